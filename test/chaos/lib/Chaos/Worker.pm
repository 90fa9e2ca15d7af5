package Chaos::Worker;

# A process of its own beside the run: a client with its workloads, or a mover. What it does it writes to a file, one JSON object on a line, as soon
# as the outcome is known; it ends when told to, or with the process that started it.

use strict;
use warnings FATAL => 'all';

use Carp;
use JSON::PP ();
use POSIX ();
use Time::HiRes qw(sleep time);

use Chaos::Connection;
use Chaos::Mover;

my $json = JSON::PP->new->canonical;

# Starts $body->($log, $stopped) in a process: $log->(hash) writes a line, $stopped->() is true when it has to end.
sub start
{
	my ($class, $file, $body) = @_;
	my $parent = $$;
	my $self = bless { file => $file, stop => "$file.stop" }, $class;
	$self->{pid} = fork // croak "fork: $!";
	return $self if $self->{pid};

	$SIG{TERM} = $SIG{INT} = 'DEFAULT';
	my $done = eval {
		open(my $handle, '>', $file) or die "$file: $!\n";
		$handle->autoflush(1);
		my $log = sub { print $handle $json->encode($_[0]) . "\n" };
		$body->($log, sub { -e $self->{stop} || getppid != $parent });
		close $handle;
		1;
	};
	# Not exit: the parent's END blocks stop its servers.
	print STDERR "worker $file: $@" unless $done;
	POSIX::_exit($done ? 0 : 1);
}

sub stop
{
	my ($self) = @_;
	open(my $handle, '>', $self->{stop}) or croak "$self->{stop}: $!";
	close $handle;
	return;
}

# Waits at most so many seconds: 'ended', 'failed', or 'hangs' (and is killed).
sub wait
{
	my ($self, $seconds) = @_;
	my $deadline = time + $seconds;
	while (waitpid($self->{pid}, POSIX::WNOHANG()) == 0)
	{
		if (time >= $deadline)
		{
			kill 'KILL', $self->{pid};
			waitpid($self->{pid}, 0);
			return 'hangs';
		}
		sleep 0.02;
	}
	return $? == 0 ? 'ended' : 'failed';
}

sub records
{
	my ($self) = @_;
	open(my $handle, '<', $self->{file}) or return ();
	my @records = map { $json->decode($_) } grep { /\}$/ } <$handle>;
	close $handle;
	return @records;
}

# Opens a connection to one of the nodes, whichever lets us in first; false if stopped.
sub _connect
{
	my ($connection, $random, $conninfo, $stopped) = @_;
	my $node;
	until ($connection->is_open)
	{
		return undef if $stopped->();
		$node = $random->pick(sort keys %$conninfo);
		$connection->open($conninfo->{$node}) or sleep 0.1;
	}
	return $node;
}

# The body of a client: workloads {name => weight} until stopped. Parameters: program, random, conninfo {node => ...}, workloads [...], weights,
# first_id, round, pause (seconds after each piece of work).
sub client
{
	my (%params) = @_;
	my $random = $params{random};
	my $id = $params{first_id};
	my %workload = map { $_->name => $_ } @{ $params{workloads} };
	return sub {
		my ($log, $stopped) = @_;
		my $connection = Chaos::Connection->new(program => $params{program});
		my $node;
		until ($stopped->())
		{
			if (!$connection->is_open)
			{
				$node = _connect($connection, $random, $params{conninfo}, $stopped) // last;
			}
			my $name = $random->weighted(%{ $params{weights} });
			my $begun = time;
			my $record = $workload{$name}->step($connection, $random, sub { $id++ }, $params{round});
			$log->({ %$record, workload => $name, node => $node, begun => $begun, ended => time });
			$connection->close if $random->chance(0.02);
			sleep $params{pause};
		}
		$connection->quit;
	};
}

# The body of a mover. Parameters: program, random, conninfo, changes, tables, nodes, started (time at which the round began); change: carries one
# out, Chaos::Mover::change by default.
sub mover
{
	my (%params) = @_;
	my $carry_out = $params{change} // \&Chaos::Mover::change;
	return sub {
		my ($log, $stopped) = @_;
		my $connection = Chaos::Connection->new(program => $params{program}, deadline_ms => 60_000);
		foreach my $change (@{ $params{changes} })
		{
			sleep 0.02 until $stopped->() || time >= $params{started} + $change->{at};
			last if $stopped->();
			my %first = ($change->{via} => $params{conninfo}{ $change->{via} });
			_connect($connection, $params{random}, $connection->open($first{ $change->{via} }) ? \%first : $params{conninfo}, $stopped);
			my $begun = time;
			my $answer = $carry_out->($connection, $change, $params{tables}{ $change->{table} // '' }, $params{nodes});
			delete $answer->{ms};
			$log->({ %$answer, change => $change, begun => $begun, ended => time });
		}
		$connection->quit;
	};
}

1;
