package Chaos::Run;

# A run of rounds. Each round: the load starts, ranges move, things go wrong as the schedule says; then all is healed, the load ends, and everything
# is checked.
#
#   my $run = Chaos::Run->new(seed => 7, seconds => 20, faults => [ 'Kill' ], directory => ...);
#   $run->start;
#   my @findings = $run->round(1);       # [check, text], none: all is well
#   print $run->report;
#   $run->quit;
#
# Parameters: seed; seconds of a round (20); nodes (3): shards s1 to sN, s1 being the config node; clients (3); movers (1); faults: classes of
# Chaos/Fault; pause of a client after each piece of work (0.005 s); weights {workload => weight}; hurry: help the resolver at the end of a round;
# directory for files; settings of the servers, and a name for them; quiet_seconds: how long things may be in motion after a round (120);
# balancer (1): the balancer and the splitter work, and an operator works on zones, weights and the cluster's shards.

use strict;
use warnings FATAL => 'all';

use Fcntl qw(LOCK_EX);
use File::Basename qw(dirname);
use Time::HiRes qw(sleep time);

use Chaos::Balance;
use Chaos::Cluster;
use Chaos::Operator;
use Chaos::Quiet;
use Chaos::Random;
use Chaos::Report;
use Chaos::Schedule;
use Chaos::Worker;
use Chaos::Workload::Bank;
use Chaos::Workload::Counter;
use Chaos::Workload::List;
use Chaos::Workload::Set;
use Chaos::Workload::Shop;
use Chaos::Workload::Slate;
use Chaos::Workload::Wander;

our @FAULTS = qw(Kill Crash Restart Freeze Link Disk Promote Point);
my %WEIGHTS = (bank => 4, set => 3, counter => 3, list => 3, slate => 1, wander => 2, shop => 2);

sub new
{
	my ($class, %params) = @_;
	my $self = bless {
		seed => 1, seconds => 20, name => 'chaos', quiet_seconds => 120, nodes => 3, clients => 3, movers => 1, faults => [@FAULTS], pause => 0.005,
			weights => {%WEIGHTS}, balancer => 1,
		%params,
		records => [], changes => [], operations => [], begun => [], notes => [] }, $class;
	$self->{programs} = $self->_build;
	$self->{workloads} = [ map { "Chaos::Workload::\u$_"->new } sort keys %{ $self->{weights} } ];
	return $self;
}

# The folder of client and proxy, built; tests that run beside each other build one after the other.
sub _build
{
	my $folder = dirname(__FILE__) . '/../..';
	open(my $lock, '<', "$folder/Makefile") or die "$folder/Makefile: $!\n";
	flock($lock, LOCK_EX) or die "flock: $!\n";
	my $output = `make -s -C '$folder' 2>&1`;
	close $lock;
	die "could not build client and proxy: $output\n" if $? != 0;
	return $folder;
}

sub _workers_program
{
	my ($self) = @_;
	return "$self->{programs}/client";
}

sub cluster
{
	my ($self) = @_;
	return $self->{cluster};
}

sub start
{
	my ($self) = @_;
	my $cluster = Chaos::Cluster->new($self->{name}, proxy => "$self->{programs}/proxy", disk => "$self->{programs}/disk.so",
		settings => { $self->{balancer} ? %Chaos::Balance::SETTINGS : (), %{ $self->{settings} // {} } });
	$self->{cluster} = $cluster;
	$cluster->create(shards => $self->{nodes});
	foreach my $workload (@{ $self->{workloads} })
	{
		$cluster->query('s1', $_) foreach $workload->setup;
	}
	if ($self->{balancer})
	{
		$cluster->query('s1', $_) foreach Chaos::Balance::setup($self->_tables);
	}
	$self->{origin} = $cluster->query('s1', 'SELECT extract(epoch FROM clock_timestamp())');
	return $self;
}

sub names
{
	my ($self) = @_;
	return map { "s$_" } 1 .. $self->{nodes};
}

sub _tables
{
	my ($self) = @_;
	return { map { %{ $_->tables } } @{ $self->{workloads} } };
}

sub schedule
{
	my ($self, $round) = @_;
	return Chaos::Schedule->new(seed => $self->{seed}, round => $round, seconds => $self->{seconds}, nodes => [ $self->names ],
		tables => $self->_tables,
		faults => $self->{faults}, balancer => $self->{balancer});
}

sub _conninfo
{
	my ($self, @names) = @_;
	return { map { $_ => $self->{cluster}->client_conninfo($_) . " options='-c statement_timeout=15s'" } @names };
}

# names: the nodes to which they connect, all by default.
sub start_clients
{
	my ($self, $round, @names) = @_;
	@names = $self->names unless @names;
	my @workers;
	foreach my $number (1 .. $self->{clients})
	{
		my $body = Chaos::Worker::client(
			program => $self->_workers_program, conninfo => $self->_conninfo(@names), weights => $self->{weights}, round => $round,
			pause => $self->{pause},
			workloads => [ map { ref($_)->new } @{ $self->{workloads} } ],
			first_id => ($round * 64 + $number) * 1_000_000,
			random => Chaos::Random->new($self->{seed}, $round, 'client', $number));
		push @workers, Chaos::Worker->start("$self->{directory}/client_${round}_$number", $body);
	}
	return @workers;
}

sub _start_movers
{
	my ($self, $round, $schedule, $started) = @_;
	my @workers;
	foreach my $number (1 .. $self->{movers})
	{
		my $at = 0;
		my $body = Chaos::Worker::mover(
			program => $self->_workers_program, conninfo => $self->_conninfo($schedule->present($self->names)), tables => $self->_tables,
			nodes => [ $self->names ],
			started => $started,
			changes => [ grep { $at++ % $self->{movers} == $number - 1 } @{ $schedule->{changes} } ],
			random => Chaos::Random->new($self->{seed}, $round, 'mover', $number));
		push @workers, Chaos::Worker->start("$self->{directory}/mover_${round}_$number", $body);
	}
	return @workers;
}

sub _start_operator
{
	my ($self, $round, $schedule, $started) = @_;
	my $cluster = $self->{cluster};
	my $body = Chaos::Worker::mover(
		program => $self->_workers_program, conninfo => $self->_conninfo($schedule->present($self->names)), tables => $self->_tables,
		nodes => { map { $_ => $cluster->conninfo($_) } $self->names },
		started => $started,
		changes => $schedule->{operations},
		change => \&Chaos::Operator::carry_out,
		random => Chaos::Random->new($self->{seed}, $round, 'operator'));
	return Chaos::Worker->start("$self->{directory}/operator_$round", $body);
}

# Begins and ends the faults of the schedule at their times.
sub _play
{
	my ($self, $schedule, $started) = @_;
	my @events = sort { $a->[0] <=> $b->[0] } map { ([ $_->{at}, 'begin', $_->{fault} ],
		[ $_->{until}, 'end', $_->{fault} ]) } @{ $schedule->{faults} };
	foreach my $event (@events)
	{
		my ($at, $what, $fault) = @$event;
		last if $at >= $self->{seconds};
		sleep 0.02 while time < $started + $at;
		$self->say(sprintf('%6.2f %s %s', time - $started, $what, $fault->text));
		$fault->$what($self->{cluster});
		push @{ $self->{begun} }, $fault->text =~ /^(\w+)/ if $what eq 'begin';
	}
	sleep 0.05 while time < $started + $self->{seconds};
	return;
}

sub say
{
	my ($self, $text) = @_;
	$self->{say}->($text) if $self->{say};
	return;
}

# Ends workers: what they have logged, and findings.
sub end_workers
{
	my ($self, $log, @workers) = @_;
	my @findings;
	$_->stop foreach @workers;
	foreach my $worker (@workers)
	{
		my $end = $worker->wait(240);
		push @findings, [ "worker: $end", $worker->{file} ] if $end ne 'ended';
		push @$log, $worker->records;
	}
	return @findings;
}

sub round
{
	my ($self, $round) = @_;
	my $cluster = $self->{cluster};
	my $schedule = $self->schedule($round);
	foreach my $workload (@{ $self->{workloads} })
	{
		$cluster->query('s1', $_) foreach $workload->round($round);
	}
	$_->{fault}->prepare($cluster) foreach @{ $schedule->{faults} };
	$cluster->query('s1', 'SELECT tessera.resume_balancer()') if $self->{balancer};
	my $started = time;
	my @clients = $self->start_clients($round, $schedule->present($self->names));
	my @movers = $self->_start_movers($round, $schedule, $started);
	my @operators = $self->{balancer} ? $self->_start_operator($round, $schedule, $started) : ();
	$self->_play($schedule, $started);
	$cluster->heal;
	my @findings = ($self->end_workers($self->{changes}, @movers), $self->end_workers($self->{operations}, @operators),
		$self->end_workers($self->{records}, @clients));
	$_->{fault}->finish($cluster) foreach @{ $schedule->{faults} };
	$self->say(sprintf('%6.2f healed, load has ended', time - $started));
	if ($self->{balancer})
	{
		my $random = Chaos::Random->new($self->{seed}, $round, 'settle');
		push @findings, Chaos::Balance::settle($cluster, call_off => $random->chance(0.3), seconds => $self->{quiet_seconds});
		$self->say(sprintf('%6.2f settled', time - $started));
	}
	push @findings, $self->checks;
	$self->say(sprintf('%6.2f checked', time - $started));
	return @findings;
}

# All checks of a cluster that is left alone.
sub checks
{
	my ($self) = @_;
	my @findings = Chaos::Quiet::wait_quiet($self->{cluster}, 's1', hurry => $self->{hurry}, seconds => $self->{quiet_seconds});
	push @findings, Chaos::Balance::check($self->{cluster}) if $self->{balancer};
	push @findings, Chaos::Quiet::crashes($self->{cluster}), Chaos::Quiet::schema($self->{cluster}), Chaos::Quiet::consistency($self->{cluster});
	return (@findings, $self->check_work);
}

sub check_work
{
	my ($self) = @_;
	my @findings;
	foreach my $workload (@{ $self->{workloads} })
	{
		my @records = sort { $a->{begun} <=> $b->{begun} } grep { $_->{workload} eq $workload->name } @{ $self->{records} };
		my ($final, @unread) = $self->_final($workload);
		push @findings, @unread, $workload->check(\@records, $final);
		push @{ $self->{notes} }, $workload->can('notes') ? $workload->notes : ();
	}
	return @findings;
}

# What every node shows of the tables of a workload: ({node => {name => rows}}, findings).
sub _final
{
	my ($self, $workload) = @_;
	my (%final, @findings);
	my $queries = $workload->final;
	my $connection = Chaos::Connection->new(program => $self->_workers_program, deadline_ms => 60_000);
	foreach my $node ($self->names)
	{
		$connection->open($self->{cluster}->client_conninfo($node));
		foreach my $name (sort keys %$queries)
		{
			my $answer = $connection->run($queries->{$name});
			push @findings, [ 'read: failed', "on $node: $queries->{$name}: $answer->{message}" ] if $answer->{outcome} ne 'ok';
			$final{$node}{$name} = $answer->{rows} // [];
		}
		$connection->close;
	}
	$connection->quit;
	return (\%final, @findings);
}

# Those that have ended, as the config node has them: {started, finished, state, pause, error}.
sub migrations
{
	my ($self) = @_;
	my $rows = $self->{cluster}->query('s1',
		"SELECT extract(epoch FROM started), extract(epoch FROM finished), state, pause_ms, translate(error, E'|\n', '  ') FROM tessera.migration " .
		"WHERE finished IS NOT NULL");
	return map { my @row = split /\|/, $_, -1; { started => $row[0], finished => $row[1], state => $row[2], pause => $row[3] eq '' ? undef : $row[3],
		error => $row[4] } }
		split /\n/, $rows;
}

sub report
{
	my ($self) = @_;
	my @notes = @{ $self->{notes} };
	splice @notes, 0, -1 if @notes > 1;
	push @notes, Chaos::Operator::lines($self->{operations}), Chaos::Balance::lines($self->{cluster}) if $self->{balancer};
	return Chaos::Report::lines(records => $self->{records}, changes => $self->{changes}, migrations => [ $self->migrations ],
		faults => $self->{begun},
		notes => \@notes);
}

sub quit
{
	my ($self) = @_;
	$self->{cluster}->quit;
	return;
}

1;
