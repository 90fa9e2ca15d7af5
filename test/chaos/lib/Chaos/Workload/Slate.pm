package Chaos::Workload::Slate;

# Batches of rows, spread over all shards, are written in one statement each, and the table is wiped by TRUNCATE now and then. A migration of the
# table that is under way ends then.
#
#   slate: half             of a batch all rows are there at the end, or none: a TRUNCATE is there whole or not at all
#   slate: lost             an acknowledged batch is there, if no TRUNCATE can have come after it
#   slate: kept             a batch that was acknowledged before an acknowledged TRUNCATE began is not there
#   slate: unacknowledged   a batch whose insert failed is not there
#   slate: doubled          no row is there twice
#
# Not checked: reads of all shards meanwhile; one may come between the shards' commits (fractured reads, conceded).

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

sub defaults
{
	return (places => 1000, size => 10);
}

sub name
{
	return 'slate';
}

sub tables
{
	my ($self) = @_;
	return { slate => { kind => 'int', min => 1, max => $self->{places} + 1 } };
}

sub setup
{
	return (
		'CREATE TABLE slate (k int NOT NULL, batch bigint NOT NULL)',
		'CREATE INDEX ON slate (k)',
		'ALTER TABLE slate REPLICA IDENTITY FULL',
		"SELECT tessera.shard_table('slate', 'k')");
}

sub step
{
	my ($self, $connection, $random, $next_id) = @_;
	if ($random->chance(0.1))
	{
		my $answer = $connection->run('TRUNCATE slate');
		return { kind => 'truncate', Chaos::Workload::outcome($answer) };
	}
	my $batch = $next_id->();
	my $first = 1 + $random->below($self->{places} / $self->{size});
	my @rows = map { sprintf '(%d, %d)', $first + $_ * $self->{places} / $self->{size}, $batch } 0 .. $self->{size} - 1;
	my $answer = $connection->run('INSERT INTO slate VALUES ' . join(', ', @rows));
	return { kind => 'write', batch => $batch, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { slate => 'SELECT k, batch FROM slate' };
}

sub check
{
	my ($self, $records, $final) = @_;
	my @batches = grep { $_->{kind} eq 'write' } @$records;
	my @truncates = grep { $_->{kind} eq 'truncate' && $_->{outcome} ne 'failed' } @$records;
	# Until when a TRUNCATE may have come: one without an answer at any time; and since when one has certainly begun.
	my ($last, $begun) = (0, 0);
	foreach my $truncate (@truncates)
	{
		my $until = $truncate->{outcome} eq 'ok' ? $truncate->{ended} : 9**9**9;
		$last = $until if $until > $last;
		$begun = $truncate->{begun} if $truncate->{outcome} eq 'ok' && $truncate->{begun} > $begun;
	}
	return map { $self->_check_node($_, $final->{$_}{slate}, \@batches, $last, $begun) } sort keys %$final;
}

sub _check_node
{
	my ($self, $node, $rows, $batches, $last, $begun) = @_;
	my (%there, %seen, @half, @lost, @kept, @unacknowledged, @doubled);
	foreach my $row (@$rows)
	{
		push @doubled, "on $node: row @$row" if $seen{"@$row"}++;
		$there{ $row->[1] }++ if $seen{"@$row"} == 1;
	}
	foreach my $record (@$batches)
	{
		my $batch = $record->{batch};
		my $n = $there{$batch} // 0;
		my $who = "on $node: batch $batch ($record->{outcome})";
		push @half, "$who has $n rows" if $n > 0 && $n < $self->{size};
		push @lost, $who if $n == 0 && $record->{outcome} eq 'ok' && $record->{begun} > $last;
		push @kept, $who if $n > 0 && $record->{outcome} eq 'ok' && $record->{ended} < $begun;
		push @unacknowledged, $who if $n > 0 && $record->{outcome} eq 'failed';
	}
	return (
		Chaos::Workload::findings('slate: half', @half),
		Chaos::Workload::findings('slate: lost', @lost),
		Chaos::Workload::findings('slate: kept', @kept),
		Chaos::Workload::findings('slate: unacknowledged', @unacknowledged),
		Chaos::Workload::findings('slate: doubled', @doubled));
}

1;
