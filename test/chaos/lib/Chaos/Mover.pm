package Chaos::Mover;

# Carries out the moves, splits, merges and DDL of a schedule, one after the other, each at its time or as soon as the one before has ended.

use strict;
use warnings FATAL => 'all';

use Chaos::Workload::Counter;

# The SQL of a key.
sub literal
{
	my ($table, $number) = @_;
	return $table->{kind} eq 'text' ? "'" . Chaos::Workload::Counter::key($number) . "'" : $number;
}

# The shard that is so many behind the owner of the key.
sub _recipient
{
	my ($connection, $change, $key, $nodes) = @_;
	my $answer = $connection->run("SELECT tessera.range_owner('$change->{table}', $key)");
	return ($answer) if $answer->{outcome} ne 'ok';
	my $owner = $answer->{rows}[0][0];
	my ($at) = grep { $nodes->[$_] eq $owner } 0 .. $#$nodes;
	return ($answer, $nodes->[ (($at // 0) + $change->{step}) % @$nodes ]);
}

sub _move
{
	my ($connection, $change, $table, $nodes) = @_;
	my ($low, $high) = map { literal($table, $change->{$_}) } 'low', 'high';
	my ($answer, $to) = _recipient($connection, $change, $low, $nodes);
	return $answer unless $to;
	if ($table->{kind} ne 'hash')
	{
		$answer = $connection->run("SELECT tessera.move_range('$change->{table}', $low, $high, '$to')");
		# A range of several shards is refused: then the chunk.
		return $answer unless $answer->{outcome} ne 'ok' && $answer->{state} eq '22023';
	}
	return $connection->run("SELECT tessera.move_chunk('$change->{table}', $low, '$to')");
}

# Two neighbours of one shard.
my $MERGE = <<'END';
SELECT tessera.merge_chunks('%1$s', c.min, c.next_max)
FROM (SELECT min, max, shard, lead(max) OVER w AS next_max, lead(shard) OVER w AS next_shard
	FROM tessera.chunks WHERE table_name = '%1$s'::regclass WINDOW w AS (ORDER BY min)) c
WHERE shard = next_shard ORDER BY min LIMIT 1
END

# A column or an index comes or goes; nobody uses them, but a migration or a clone must not lose them.
sub _ddl
{
	my ($change) = @_;
	my $name = $change->{table};
	my @statements = (
		"ALTER TABLE $name ADD COLUMN IF NOT EXISTS extra int DEFAULT 7",
		"CREATE INDEX IF NOT EXISTS ${name}_extra ON $name ((1))",
		"ALTER TABLE $name DROP COLUMN IF EXISTS extra",
		"DROP INDEX IF EXISTS ${name}_extra");
	return $statements[ $change->{low} % @statements ];
}

sub change
{
	my ($connection, $change, $table, $nodes) = @_;
	return $connection->run(_ddl($change)) if $change->{kind} eq 'ddl';
	return _move($connection, $change, $table, $nodes) if $change->{kind} eq 'move';
	return $connection->run(sprintf($MERGE, $change->{table})) if $change->{kind} eq 'merge' || $table->{kind} eq 'hash';
	return $connection->run("SELECT tessera.split_chunk('$change->{table}', " . literal($table, $change->{high}) . ')');
}

1;
