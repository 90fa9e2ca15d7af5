package Chaos::Connection;

# A client's connection to a node, through the program test/chaos/client (libpq under a deadline).
#
# An answer is a hash: {outcome => 'ok', ms, status, rows => [[...], ...]}, or {outcome, state, message} where outcome says what became of the
# statement:
#   failed    it had no effect, and cannot have one later
#   unknown   the connection was lost, or the deadline passed, after it was sent
# Only what is a transaction by itself can be unknown in effect: a statement inside a block that got no answer is as good as failed (no COMMIT was
# sent).

use strict;
use warnings FATAL => 'all';

use IPC::Open2 qw(open2);

sub new
{
	my ($class, %params) = @_;
	my $self = bless { deadline_ms => $params{deadline_ms} // 20_000 }, $class;
	$self->{pid} = open2($self->{from}, $self->{to}, $params{program}, $self->{deadline_ms});
	return $self;
}

sub _ask
{
	my ($self, $line) = @_;
	local $SIG{PIPE} = 'IGNORE';
	print { $self->{to} } "$line\n";
	$self->{to}->flush;
	my $answer = readline($self->{from});
	die "the client program has ended\n" unless defined $answer;
	chomp $answer;
	return split /\t/, $answer, -1;
}

# True if the node lets us in.
sub open
{
	my ($self, $conninfo) = @_;
	my ($outcome) = $self->_ask("open\t$conninfo");
	$self->{is_open} = $outcome eq 'ok';
	return $self->{is_open};
}

sub is_open
{
	my ($self) = @_;
	return $self->{is_open};
}

sub close
{
	my ($self) = @_;
	$self->_ask('close');
	$self->{is_open} = 0;
	return;
}

# Errors that do not tell whether the server had carried the statement out.
sub _unknown
{
	my ($state) = @_;
	return $state eq 'CHAOS' || $state =~ /^08/ && $state !~ /^0800[13]$/ || $state =~ /^57P0/ || $state eq '40003';
}

sub run
{
	my ($self, $sql) = @_;
	$sql =~ s/\s+/ /g;
	return $self->_answer($self->_ask("run\t$sql"));
}

# COPY ... FROM STDIN, of rows in its text format.
sub copy
{
	my ($self, $sql, @rows) = @_;
	return $self->_answer($self->_ask("copy\t$sql\t" . join("\x1e", @rows)));
}

sub _answer
{
	my ($self, $outcome, @rest) = @_;
	if ($outcome eq 'ok')
	{
		my ($ms, $status, $rows) = @rest;
		my @rows = $rows eq '' && $status !~ /^SELECT 1$/ ? () : map { [ split /\x1f/, $_, -1 ] } split /\x1e/, $rows, -1;
		return { outcome => 'ok', ms => $ms, status => $status, rows => \@rows };
	}
	my ($state, $message) = @rest;
	$self->{is_open} = 0 if $state eq 'CHAOS' || $state =~ /^08/ || $state =~ /^57P0/;
	return { outcome => _unknown($state) ? 'unknown' : 'failed', state => $state, message => $message };
}

# Runs $body->($query) in a transaction block, where $query->(sql) returns the answer of a statement that succeeded. What $body returns is lost: it
# keeps what it needs by itself. Returns the answer of COMMIT, or the first error's, which then has failed for certain. $level: an isolation level, or
# none.
sub transaction
{
	my ($self, $body, $level) = @_;
	my $failure;
	my $query = sub {
		my $answer = $self->run($_[0]);
		return $answer if $answer->{outcome} eq 'ok';
		$failure = $answer;
		die "failed\n";
	};
	my $done = eval {
		$query->($level ? "BEGIN ISOLATION LEVEL $level" : 'BEGIN');
		$body->($query);
		1;
	};
	if (!$done)
	{
		die $@ unless $failure;
		$self->run('ROLLBACK') if $self->{is_open};
		return { %$failure, outcome => 'failed' };
	}
	my $answer = $self->run('COMMIT');
	return { outcome => 'failed', state => '25P02', message => "COMMIT answered $answer->{status}" }
		if $answer->{outcome} eq 'ok' && $answer->{status} ne 'COMMIT';
	return $answer;
}

# Rows that a statement has changed or returned.
sub count
{
	my ($answer) = @_;
	return ($answer->{status} // '') =~ /(\d+)$/ ? $1 : 0;
}

sub quit
{
	my ($self) = @_;
	CORE::close($self->{to});
	CORE::close($self->{from});
	waitpid($self->{pid}, 0);
	return;
}

1;
