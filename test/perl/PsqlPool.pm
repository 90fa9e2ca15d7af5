
=head1 NAME

PsqlPool - a psql for each statement, without the cost of its start

=head1 SYNOPSIS

  use PsqlPool;

  my ($status, $out, $err) = PsqlPool::run($conninfo, 'SELECT 1', timeout => 60, stop => 1);

=head1 DESCRIPTION

Most of what a psql costs that runs one statement is the start of a program; a whole run of the tests has some hundred thousand of them. Here a psql
that has done its work stays, and \connect gives it a session for the next statement, on whatever server: each run has a session of its own, as if
the psql were new, and the session ends with it. As psql does not stay without a connection, it is connected to its parent in between, who says just
what lets it believe that this is a server. A psql that has met an error and stops at errors (ON_ERROR_STOP), or that lost its connection, has ended,
and the next run starts another.

What a run may leave behind in psql itself (variables, formats) would show in the next: scripts with a backslash have a psql of their own. So have
scripts that may end within a literal, a comment or a parenthesis, and those that copy from psql's input: nothing but the end of that ends such a
statement for psql.

=cut

package PsqlPool;

use strict;
use warnings FATAL => 'all';

use Carp;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use IO::Socket::UNIX ();
use POSIX ();
use PostgreSQL::Test::Utils ();
use Socket qw(SOCK_STREAM);
use Time::HiRes qw(time);

# psql with nothing to do, by options and environment: {pid, process, to, out, err, lines, parked}. It is the child of one process only.
my %idle;
my $number = 0;

# Where a psql is connected that has nothing to do.
my %parking = (process => 0);

sub _parking
{
	return if $parking{process} == $$;
	my $directory = PostgreSQL::Test::Utils::tempdir_short();
	my $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Local => "$directory/.s.PGSQL.1", Listen => 5) or croak "socket: $!";
	%parking = (process => $$, socket => $socket, conninfo => "host=$directory port=1 dbname=none user=none");
	return;
}

# A psql connects: it says who it is (a length and text), and hears that it is welcome, what it asks of each server, and that it may go on.
sub _park
{
	my ($psql) = @_;
	my $client = $parking{socket}->accept or croak "accept: $!";
	my $length = '';
	sysread $client, $length, 4;
	sysread $client, my $startup, unpack('N', $length) - 4;
	my %told = (server_version => '15.0', client_encoding => 'SQL_ASCII', server_encoding => 'SQL_ASCII', standard_conforming_strings => 'on');
	syswrite $client, join '', pack('a N N', 'R', 8, 0),
		(map { pack 'a N Z* Z*', 'S', 6 + length($_) + length $told{$_}, $_, $told{$_} } sort keys %told), pack('a N a', 'Z', 5, 'I');
	$psql->{parked} = $client;
	return;
}

sub _start
{
	my ($conninfo, @options) = @_;
	pipe(my $stdin, my $to) && pipe(my $out, my $stdout) && pipe(my $err, my $stderr) or croak "pipe: $!";
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		POSIX::dup2(fileno $stdin, 0);
		POSIX::dup2(fileno $stdout, 1);
		POSIX::dup2(fileno $stderr, 2);
		no warnings 'exec';
		exec { 'psql' } 'psql', '-XAtq', '-d', $conninfo, '-f', '-', @options;
		POSIX::_exit(127);
	}
	fcntl($_, F_SETFL, fcntl($_, F_GETFL, 0) | O_NONBLOCK) foreach $to, $out, $err;
	return { pid => $pid, process => $$, to => $to, out => $out, err => $err, lines => 0 };
}

# Waits for a psql whose outputs are closed, or ends it by a signal. Returns what wait says of it.
sub _end
{
	my ($psql, $signal) = @_;
	close $psql->{to} if $psql->{to};
	kill $signal, $psql->{pid} if $signal;
	local ($?, $!);
	1 while waitpid($psql->{pid}, 0) < 0 && $! == EINTR;
	return $?;
}

# Writes a text and reads until both outputs end with the mark, or both are closed: 'mark' or 'closed'; 'late' after the deadline. Without a mark,
# ends the input when all is written.
sub _talk
{
	my ($psql, $text, $mark, $deadline, $out, $err) = @_;
	local $SIG{PIPE} = 'IGNORE';
	my %open = (out => $out, err => $err);
	my $written = 0;
	while (%open)
	{
		return 'mark' if defined $mark && !grep { length ${$_} < length $mark || substr(${$_}, -length $mark) ne $mark } $out, $err;
		my $left = defined $deadline ? $deadline - time : undef;
		return 'late' if defined $left && $left <= 0;
		if ($psql->{to} && $written >= length $text && !defined $mark)
		{
			close $psql->{to};
			$psql->{to} = undef;
		}
		my ($readable, $writable) = ('', '');
		vec($readable, fileno $psql->{$_}, 1) = 1 foreach keys %open;
		vec($readable, fileno $parking{socket}, 1) = 1 if defined $mark;
		vec($writable, fileno $psql->{to}, 1) = 1 if $written < length $text;
		next if select($readable, $writable, undef, $left) < 0;
		if ($written < length $text && vec($writable, fileno $psql->{to}, 1))
		{
			my $n = syswrite $psql->{to}, $text, 65536, $written;
			# who has ended does not read the rest
			$written = defined $n ? $written + $n : $! == EAGAIN || $! == EINTR ? $written : length $text;
		}
		_park($psql) if defined $mark && vec($readable, fileno $parking{socket}, 1);
		foreach my $name (keys %open)
		{
			next unless vec($readable, fileno $psql->{$name}, 1);
			my $n = sysread $psql->{$name}, ${ $open{$name} }, 65536, length ${ $open{$name} };
			delete $open{$name} if defined $n ? $n == 0 : $! != EAGAIN && $! != EINTR;
		}
	}
	return 'closed';
}

# Whether a ";" surely ends the last statement, and psql keeps nothing of the script.
sub _is_plain
{
	my ($sql) = @_;
	return 0 if $sql =~ /\\|--|\/\*|\bSTDIN\b/i;
	return $sql =~ tr/'// % 2 == 0 && $sql =~ tr/"// % 2 == 0 && $sql =~ tr/(// == $sql =~ tr/)//;
}

sub _quoted
{
	my ($text) = @_;
	$text =~ s/(['\\])/\\$1/g;
	return "'$text'";
}

# A psql of its own for a script.
sub _run_alone
{
	my ($conninfo, $sql, $deadline, @options) = @_;
	my ($out, $err) = ('', '');
	my $psql = _start($conninfo, @options);
	my $how = _talk($psql, $sql, undef, $deadline, \$out, \$err);
	my $status = _end($psql, $how eq 'late' ? 'KILL' : undef);
	return ($how eq 'late' ? undef : $status, $out, $err);
}

# The script between what connects and what ends its session. Marks say where its own output is: BEGUN on stdout before it, DONE on stderr behind it,
# END on both when its session has ended.
sub _run_in
{
	my ($psql, $conninfo, $sql, $stops, $deadline) = @_;
	_parking();
	my ($out, $err) = ('', '');
	my ($begun, $done, $end) = map { "=== $_ " . $number . " ===\n" } 'BEGUN', 'DONE', 'END';
	my $before = "\\set ON_ERROR_STOP 1\n" . ($psql->{lines} ? '\connect ' . _quoted($conninfo) . "\n" : '') . "\\echo $begun" .
		($stops ? '' : "\\unset ON_ERROR_STOP\n");
	my $after = "\n\\unset ON_ERROR_STOP\n\\warn $done\\connect " . _quoted($parking{conninfo}) . "\n\\echo $end\\warn $end";
	my $lines = $psql->{lines} + ($before =~ tr/\n//);
	my $text = "$before$sql$after";

	$number++;
	$psql->{lines} += $text =~ tr/\n//;
	my $how = _talk($psql, $text, $end, $deadline, \$out, \$err);
	my $ended = $how eq 'mark' ? 0 : _end($psql, $how eq 'late' ? 'KILL' : undef);
	$out =~ s/\Q$end\E\z//;
	$err =~ s/^\Q$done\E.*\z//ms;
	$err =~ s/^psql:<stdin>:(\d+):/'psql:<stdin>:' . ($1 - $lines) . ':'/gme;
	my $connected = $out =~ s/\A\Q$begun\E//;
	return { how => $how, status => $ended, connected => $connected, out => $out, err => $err };
}

# What psqls have in common that stand in for one another.
sub _key
{
	return join "\0", @_, map { "$_=$ENV{$_}" } grep { /^(?:PG|LD_)/ && !/^PG(?:HOST|PORT)$/ } sort keys %ENV;
}

# The same in a psql that is there, or else in a new one, which stays if it can.
sub _run_in_idle
{
	my ($conninfo, $sql, $stops, $deadline, @options) = @_;
	my $key = _key(@options);
	my $psql = delete $idle{$key};
	my $result;

	if ($psql && $psql->{process} == $$)
	{
		$result = _run_in($psql, $conninfo, $sql, $stops, $deadline);
		# it may have been ended by somebody since
		$result = undef if $result->{how} eq 'closed' && !$result->{connected} && $result->{err} eq '';
	}
	if (!$result)
	{
		$psql = _start($conninfo, @options);
		$result = _run_in($psql, $conninfo, $sql, $stops, $deadline);
	}
	$idle{$key} = $psql if $result->{how} eq 'mark';
	return (undef, $result->{out}, $result->{err}) if $result->{how} eq 'late';
	# as a psql says that cannot connect
	$result->{status} = 2 << 8 if $result->{err} =~ s/\Apsql:<stdin>:-?\d+: error: \\connect: /psql: error: / && !$result->{connected};
	return @{$result}{qw(status out err)};
}

# One session in which the same is asked again and again: asks until $enough says so of an answer, or the session ends, or the deadline has passed.
# Returns whether it was enough, the last answer (what psql said if it was an error), and whether the psql stays.
sub _ask_in
{
	my ($psql, $conninfo, $sql, $interval, $deadline, $enough) = @_;
	_parking();
	my ($out, $err, $answer) = ('', '', '');
	my ($done, $mark) = map { "=== $_ " . $number . " ===\n" } 'DONE', 'ASKED';
	my $text = "\\set ON_ERROR_STOP 1\n" . ($psql->{lines} ? '\connect ' . _quoted($conninfo) . "\n" : '') . "\\unset ON_ERROR_STOP\n";
	my $ended = 0;

	$number++;
	while (1)
	{
		$text .= "$sql\n\\warn $done\\echo $mark\\warn $mark";
		$psql->{lines} += $text =~ tr/\n//;
		my $how = _talk($psql, $text, $mark, $deadline, \$out, \$err);
		$out =~ s/\Q$mark\E\z//;
		$err =~ s/^\Q$done\E.*\z//ms;
		my $failed = $how ne 'mark' || $err =~ /^(?:psql:<stdin>:\d+: )?(?:ERROR|FATAL|PANIC|error):/m;
		chomp($out, $err);
		$answer = $failed ? $err : $out;
		my $is_enough = !$failed && $enough->($out);
		if ($how ne 'mark')
		{
			_end($psql, $how eq 'late' ? 'KILL' : undef);
			return (0, $answer, 0);
		}
		if ($is_enough || time >= $deadline)
		{
			my $end = '=== PARKED ' . $number . " ===\n";
			($out, $err) = ('', '');
			$text = '\connect ' . _quoted($parking{conninfo}) . "\n\\echo $end\\warn $end";
			$psql->{lines} += $text =~ tr/\n//;
			my $stays = _talk($psql, $text, $end, time + 60, \$out, \$err) eq 'mark';
			_end($psql, 'KILL') unless $stays;
			return ($is_enough, $answer, $stays);
		}
		Time::HiRes::sleep($interval);    # clock: between two questions
		($text, $out, $err) = ('', '', '');
	}
}

=pod

=head2 ask(conninfo, sql, enough, options => [...], timeout => seconds, interval => seconds, asked => sub)

Runs a statement every C<interval>, in one session as long as that lasts, until C<enough>, called with the answer, returns true. An error is no
answer. Returns (true, the answer), or after C<timeout> (false, the last answer or error). C<asked> is called for each time.

=cut

sub ask
{
	my ($conninfo, $sql, $enough, %params) = @_;
	my @options = @{ $params{options} // [] };
	my $deadline = time + $params{timeout};
	my $asked = $params{asked} // sub { };
	my $answer;

	utf8::downgrade($sql);
	while (1)
	{
		if (_is_plain($sql))
		{
			my $key = _key(@options);
			my $psql = delete $idle{$key};
			$psql = _start($conninfo, @options) unless $psql && $psql->{process} == $$;
			my ($is_enough, $last, $stays) =
			  _ask_in($psql, $conninfo, $sql =~ s/;?\s*\z/;/r, $params{interval}, $deadline, sub { $asked->(); return $enough->(@_) });
			$idle{$key} = $psql if $stays;
			$answer = $last;
			return (1, $answer) if $is_enough;
		}
		else
		{
			$asked->();
			my ($status, $out, $err) = run($conninfo, $sql, stop => 1, options => \@options, timeout => $params{timeout});
			$answer = defined $status && $status == 0 ? $out : $err;
			return (1, $answer) if defined $status && $status == 0 && $enough->($out);
		}
		return (0, $answer) if time >= $deadline;
		Time::HiRes::sleep($params{interval});    # clock: between two questions
	}
}

=pod

=head2 run(conninfo, sql, options => [...], stop => 1, timeout => seconds)

Runs a script by psql -XAtq with more options, with C<stop> until the first error. Returns what wait says of psql, or undef if it took too long, and
what it wrote, without the last end of line: (status, stdout, stderr). Messages name the lines of the script.

=cut

sub run
{
	my ($conninfo, $sql, %params) = @_;
	my @options = @{ $params{options} // [] };
	my $deadline = defined $params{timeout} ? time + $params{timeout} : undef;
	my ($status, $out, $err);

	utf8::downgrade($sql);
	if (_is_plain($sql))
	{
		($status, $out, $err) = _run_in_idle($conninfo, $sql =~ s/;?\s*\z/;/r, $params{stop}, $deadline, @options);
	}
	else
	{
		($status, $out, $err) = _run_alone($conninfo, $sql, $deadline, @options, $params{stop} ? ('-v', 'ON_ERROR_STOP=1') : ());
	}
	chomp($out, $err);
	return ($status, $out, $err);
}

1;
