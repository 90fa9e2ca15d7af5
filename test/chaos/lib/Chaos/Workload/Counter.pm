package Chaos::Workload::Counter;

# Counters are incremented, one by its key or several in one statement, and return their new values.
#
#   counter: lost       a counter is at least the number of its acknowledged increments
#   counter: doubled    and at most that and the unknown ones; no two increments return the same value
#   counter: stale      a read sees at least the increments of one key that were acknowledged before it began
#   counter: row        a statement finds each counter that it names, once

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

use Chaos::Connection;

sub defaults
{
	return (counters => 40);
}

sub name
{
	return 'counter';
}

sub tables
{
	my ($self) = @_;
	return { counter => { kind => 'text', min => 1, max => $self->{counters} + 1 } };
}

sub key
{
	my ($number) = @_;
	return sprintf('c%03d', $number);
}

sub setup
{
	my ($self) = @_;
	return (
		'CREATE TABLE counter (k text PRIMARY KEY, n bigint NOT NULL)',
		"INSERT INTO counter SELECT 'c' || to_char(g, 'FM000'), 0 FROM generate_series(1, $self->{counters}) g",
		"SELECT tessera.shard_table('counter', 'k')");
}

sub step
{
	my ($self, $connection, $random) = @_;
	my $what = $random->weighted(one => 50, list => 15, range => 15, read => 20);
	my $first = 1 + $random->below($self->{counters} - 3);
	my @keys = map { key($_) } $what eq 'list' ? $random->sample(3, 1 .. $self->{counters}) : $what eq 'range' ? $first .. $first + 3 : $first;
	my $condition = $what eq 'list' ? 'k IN (' . join(', ', map { "'$_'" } @keys) . ')' :
		$what eq 'range' ? "k BETWEEN '$keys[0]' AND '$keys[-1]'" : "k = '$keys[0]'";
	my $sql = $what eq 'read' ? "SELECT k, n FROM counter WHERE $condition" : "UPDATE counter SET n = n + 1 WHERE $condition RETURNING k, n";
	my $answer = $connection->run($sql);
	return { kind => $what eq 'read' ? 'read' : 'increment', keys => \@keys, rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { counter => 'SELECT k, n FROM counter' };
}

sub check
{
	my ($self, $records, $final) = @_;
	return (_check_answers($records), _check_reads($records), map { $self->_check_node($_, $records, $final->{$_}) } sort keys %$final);
}

sub _check_answers
{
	my ($records) = @_;
	my (%seen, @doubled, @row);
	foreach my $record (grep { $_->{outcome} eq 'ok' } @$records)
	{
		my $wanted = join(' ', sort @{ $record->{keys} });
		my $found = join(' ', sort map { $_->[0] } @{ $record->{rows} });
		push @row, "on $record->{node}: looked for $wanted, found $found" if $wanted ne $found;
		next if $record->{kind} eq 'read';
		foreach my $row (@{ $record->{rows} })
		{
			push @doubled, "two increments made $row->[0] $row->[1]" if $seen{ $row->[0] }{ $row->[1] }++;
		}
	}
	return (Chaos::Workload::findings('counter: row', @row), Chaos::Workload::findings('counter: doubled', @doubled));
}

# In the order of time: what is acknowledged when a read begins is a lower bound. Increments of several keys are left out: their commit may be
# acknowledged before a shard that is away has carried it out.
sub _check_reads
{
	my ($records) = @_;
	my (%least, @stale, @events);
	foreach my $record (grep { $_->{outcome} eq 'ok' && @{ $_->{keys} } == 1 && @{ $_->{rows} } == 1 } @$records)
	{
		push @events, $record->{kind} eq 'read' ? [ $record->{begun}, 1, $record ] : [ $record->{ended}, 0, $record ];
	}
	foreach my $event (sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] } @events)
	{
		my ($k, $n) = @{ $event->[2]{rows}[0] };
		my $least = $least{$k} // 0;
		if ($event->[1])
		{
			push @stale, "on $event->[2]{node}: $k was read as $n, but $least was acknowledged before" if $n < $least;
		}
		elsif ($n > $least)
		{
			$least{$k} = $n;
		}
	}
	return Chaos::Workload::findings('counter: stale', @stale);
}

sub _check_node
{
	my ($self, $node, $records, $final) = @_;
	my (%certain, %perhaps, %value, @lost, @doubled, @row);
	foreach my $record (grep { $_->{kind} eq 'increment' && $_->{outcome} ne 'failed' } @$records)
	{
		my $count = $record->{outcome} eq 'ok' ? \%certain : \%perhaps;
		$count->{$_}++ foreach @{ $record->{keys} };
	}
	foreach my $row (@{ $final->{counter} })
	{
		push @row, "on $node: $row->[0] is there twice" if exists $value{ $row->[0] };
		$value{ $row->[0] } = $row->[1];
	}
	foreach my $k (map { key($_) } 1 .. $self->{counters})
	{
		my ($certain, $perhaps) = ($certain{$k} // 0, $perhaps{$k} // 0);
		if (!defined $value{$k})
		{
			push @row, "on $node: $k is not there";
			next;
		}
		push @lost, "on $node: $k is $value{$k}, but $certain increments were acknowledged" if $value{$k} < $certain;
		push @doubled, "on $node: $k is $value{$k}, but there were $certain increments and $perhaps unknown ones" if $value{$k} > $certain + $perhaps;
	}
	return (
		Chaos::Workload::findings('counter: row', @row),
		Chaos::Workload::findings('counter: lost', @lost),
		Chaos::Workload::findings('counter: doubled', @doubled));
}

1;
