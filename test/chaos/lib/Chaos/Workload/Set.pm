package Chaos::Workload::Set;

# Rows with unique ids are inserted, one or several in a statement or by COPY, into a table that has no constraint which would hide a second copy.
#
#   set: lost           an acknowledged row is there, at the end and whenever it is read after its acknowledgement
#   set: doubled        no row is there twice
#   set: unacknowledged a row whose insert failed is not there
#   set: half           of a statement all rows are there, or none

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

sub name
{
	return 'set';
}

sub tables
{
	return { item => { kind => 'hash', min => 1, max => 1_000_000 } };
}

sub setup
{
	return (
		'CREATE TABLE item (id bigint NOT NULL, client text)',
		'CREATE INDEX ON item (id)',
		'ALTER TABLE item REPLICA IDENTITY FULL',
		"SELECT tessera.shard_table('item', 'id', strategy => 'hash', chunks => 6)");
}

sub step
{
	my ($self, $connection, $random, $next_id) = @_;
	my $mine = $self->{acknowledged} //= [];
	if (@$mine && $random->chance(0.3))
	{
		my $id = $random->pick(@$mine);
		my $answer = $connection->run("SELECT count(*) FROM item WHERE id = $id");
		return { kind => 'read', id => $id, rows => $answer->{rows}, Chaos::Workload::outcome($answer) };
	}
	return $self->_copy($connection, $random, $next_id) if $random->chance(0.2);
	my @ids = map { $next_id->() } 1 .. $random->pick(1, 1, 3, 5);
	my $answer = $connection->run("INSERT INTO item VALUES " . join(', ', map { "($_, 'c')" } @ids));
	# A commit over several shards may be acknowledged before all of them have carried it out, if one is away: such rows are looked for at the end
	# only.
	push @$mine, @ids if $answer->{outcome} eq 'ok' && @ids == 1;
	return { kind => 'insert', ids => \@ids, Chaos::Workload::outcome($answer) };
}

sub _copy
{
	my ($self, $connection, $random, $next_id) = @_;
	my @ids = map { $next_id->() } 1 .. $random->pick(1, 10, 100);
	my $answer = $connection->copy('COPY item (id, client) FROM STDIN', map { "$_\tc" } @ids);
	return { kind => 'copy', ids => \@ids, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { item => 'SELECT id FROM item' };
}

sub check
{
	my ($self, $records, $final) = @_;
	my (@lost, @doubled);
	foreach my $record (grep { $_->{kind} eq 'read' && $_->{outcome} eq 'ok' } @$records)
	{
		my $n = $record->{rows}[0][0];
		push @lost, "on $record->{node}: row $record->{id} was not seen" if $n == 0;
		push @doubled, "on $record->{node}: row $record->{id} was seen $n times" if $n > 1;
	}
	return (
		Chaos::Workload::findings('set: lost', @lost),
		Chaos::Workload::findings('set: doubled', @doubled),
		map { _check_node($_, $records, $final->{$_}) } sort keys %$final);
}

sub _check_node
{
	my ($node, $records, $final) = @_;
	my (%count, @lost, @doubled, @unacknowledged, @half);
	$count{ $_->[0] }++ foreach @{ $final->{item} };
	foreach my $record (grep { $_->{ids} } @$records)
	{
		my @there = grep { $count{$_} } @{ $record->{ids} };
		my @missing = grep { !$count{$_} } @{ $record->{ids} };
		push @lost, map { "on $node: row $_" } @missing if $record->{outcome} eq 'ok';
		push @unacknowledged, map { "on $node: row $_ ($record->{state})" } @there if $record->{outcome} eq 'failed';
		push @half, "on $node: of the rows @{ $record->{ids} } there are @there" if $record->{outcome} eq 'unknown' && @there && @missing;
	}
	push @doubled, map { "on $node: row $_ is there $count{$_} times" } grep { $count{$_} > 1 } sort keys %count;
	return (
		Chaos::Workload::findings('set: lost', @lost),
		Chaos::Workload::findings('set: doubled', @doubled),
		Chaos::Workload::findings('set: unacknowledged', @unacknowledged),
		Chaos::Workload::findings('set: half', @half));
}

1;
