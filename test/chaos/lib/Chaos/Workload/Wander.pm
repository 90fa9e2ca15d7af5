package Chaos::Workload::Wander;

# Rows that get another shard key: deleted in one place and inserted in another, mostly of another shard, in one distributed transaction; by two
# statements, or by one UPDATE of the key.
#
#   wander: lost        each row is there at the end
#   wander: doubled     once
#   wander: hops        and has been moved as often as was acknowledged, and at most as often as was tried
#
# Not checked: reads of all shards meanwhile. One may come between the two shards' commits, and see the row twice or not at all (fractured reads,
# conceded).

use strict;
use warnings FATAL => 'all';

use parent 'Chaos::Workload';

use Chaos::Connection;

sub defaults
{
	return (rows => 30, places => 1000);
}

sub name
{
	return 'wander';
}

sub tables
{
	my ($self) = @_;
	return { wander => { kind => 'int', min => 1, max => $self->{places} + 1 } };
}

sub setup
{
	my ($self) = @_;
	return (
		'CREATE TABLE wander (k int NOT NULL, id int NOT NULL, hops int NOT NULL, PRIMARY KEY (k, id))',
		"INSERT INTO wander SELECT g, g, 0 FROM generate_series(1, $self->{rows}) g",
		"SELECT tessera.shard_table('wander', 'k')");
}

sub step
{
	my ($self, $connection, $random) = @_;
	my $id = 1 + $random->below($self->{rows});
	my $to = 1 + $random->below($self->{places});
	my $found = $connection->run("SELECT k FROM wander WHERE id = $id");
	return { kind => 'look', id => $id, Chaos::Workload::outcome($found) } if $found->{outcome} ne 'ok' || @{ $found->{rows} } != 1;
	my $from = $found->{rows}[0][0];
	return _update($connection, $id, $from, $to) if $random->chance(0.5);
	my $count = 0;
	my $answer = $connection->transaction(
		sub {
			my ($query) = @_;
			my $deleted = $query->("DELETE FROM wander WHERE k = $from AND id = $id RETURNING hops");
			# Another client may have been here before.
			$count = Chaos::Connection::count($deleted);
			$query->("INSERT INTO wander VALUES ($to, $id, $deleted->{rows}[0][0] + 1)") if $count;
		});
	return { kind => 'hop', id => $id, count => $count, Chaos::Workload::outcome($answer) };
}

# Without an answer it is not known whether another client had been there before: one hop at most.
sub _update
{
	my ($connection, $id, $from, $to) = @_;
	my $answer = $connection->run("UPDATE wander SET k = $to, hops = hops + 1 WHERE k = $from AND id = $id");
	my $count = $answer->{outcome} eq 'ok' ? Chaos::Connection::count($answer) : 1;
	return { kind => 'update', id => $id, count => $count, Chaos::Workload::outcome($answer) };
}

sub final
{
	return { wander => 'SELECT id, hops FROM wander' };
}

sub check
{
	my ($self, $records, $final) = @_;
	my (%certain, %perhaps);
	foreach my $record (grep { defined $_->{count} } @$records)
	{
		$certain{ $record->{id} } += $record->{count} if $record->{outcome} eq 'ok';
		$perhaps{ $record->{id} } += $record->{count} if $record->{outcome} eq 'unknown';
	}
	return map { $self->_check_node($_, $final->{$_}, \%certain, \%perhaps) } sort keys %$final;
}

sub _check_node
{
	my ($self, $node, $final, $certain, $perhaps) = @_;
	my (%hops, @lost, @doubled, @hops);
	foreach my $row (@{ $final->{wander} })
	{
		push @doubled, "on $node: row $row->[0]" if exists $hops{ $row->[0] };
		$hops{ $row->[0] } = $row->[1];
	}
	foreach my $id (1 .. $self->{rows})
	{
		my $least = $certain->{$id} // 0;
		my $most = $least + ($perhaps->{$id} // 0);
		push @lost, "on $node: row $id" unless exists $hops{$id};
		push @hops, "on $node: row $id has $hops{$id} hops, not $least to $most" if exists $hops{$id} && ($hops{$id} < $least || $hops{$id} > $most);
	}
	return (
		Chaos::Workload::findings('wander: lost', @lost),
		Chaos::Workload::findings('wander: doubled', @doubled),
		Chaos::Workload::findings('wander: hops', @hops));
}

1;
