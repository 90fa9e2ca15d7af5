package Chaos::Quiet;

# The end of a round: everything is healed, the load has stopped. Within a bounded time nothing may be in motion or left behind on any node, and the
# cluster is consistent by its own judgement.
#
#   quiet: left         a row of a migration, a closed gate, a slot, a deletion, a prepared transaction, a worker that still runs
#   quiet: config       a running migration, an outcome, or one that has ended within the last second (check_consistency passes over its placements)
#   schema: same        columns and indexes of the tables are the same on every node
#   schema: default     rows from before a column was added have its default
#   log: crash          a server's log tells of a PANIC, a failed assertion, or a process that crashed by itself
#   consistency: N      check_consistency(deep => true) reports a violation of invariant N, asked on every node

use strict;
use warnings FATAL => 'all';

use Time::HiRes qw(sleep time);

my $LEFT = <<'END';
SELECT concat_ws(', ',
	(SELECT 'coordinator ' || phase || ' ' || coalesce(decision, '-') FROM tessera.migration_coordinator LIMIT 1),
	(SELECT 'recipient row ' || state FROM tessera.migration_recipient LIMIT 1),
	(SELECT 'placement ' || gates::text FROM tessera.placement WHERE gates <> '{}' LIMIT 1),
	(SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name LIKE 'tessera%' LIMIT 1),
	(SELECT 'prepared ' || gid FROM pg_prepared_xact() LIMIT 1),
	(SELECT 'deletion' FROM tessera.range_deletions LIMIT 1),
	(SELECT 'process ' || phase FROM tessera.stat_progress_migration LIMIT 1))
END

my $CONFIG = <<'END';
SELECT concat_ws(', ',
	(SELECT 'running ' || migration_id || ' ' || coalesce(phase, '') FROM tessera.migration WHERE state = 'running' LIMIT 1),
	(SELECT 'outcome of ' || migration_id FROM tessera.migration_outcome LIMIT 1),
	(SELECT 'just ended ' || migration_id FROM tessera.migration WHERE finished > clock_timestamp() - interval '5 s' LIMIT 1))
END

# Asks until the answer is empty; returns the last one.
sub _wait
{
	my ($cluster, $node, $sql, $until, $between) = @_;
	while (1)
	{
		my ($status, $stdout, $stderr) = $cluster->psql($node, $sql, timeout => 30);
		my $answer = $status == 0 ? $stdout : $stderr;
		return $answer if $answer eq '' || time >= $until;
		$between->();
		sleep 0.05;
	}
}

# Findings. hurry: the resolver is called, instead of waiting until it wakes by itself.
sub wait_quiet
{
	my ($cluster, $config, %params) = @_;
	my $until = time + ($params{seconds} // 60);
	my @findings;
	foreach my $node ($cluster->names)
	{
		my $resolve = sub { $cluster->psql($node, "SELECT * FROM tessera.resolve_transactions('0')", timeout => 30) if $params{hurry} };
		my $left = _wait($cluster, $node, $LEFT, $until, $resolve);
		push @findings, [ 'quiet: left', "on $node: $left" ] if $left ne '';
	}
	my $left = _wait($cluster, $config, $CONFIG, $until, sub { });
	push @findings, [ 'quiet: config', $left ] if $left ne '';
	return @findings;
}

my $SCHEMA = <<'END';
SELECT c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
  ', ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace::regnamespace::text IN ('public', 'shop') AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1 ORDER BY 1
END

# The mover's DDL adds a column with a default, which all rows then have, also those from before: by the column's missing value, or by themselves,
# where they have come since, or the table is made anew for a shard that comes back.
my $EXTRA = <<'END';
SELECT attrelid::regclass FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attname = 'extra' AND NOT attisdropped AND relkind = 'r'
END

sub schema
{
	my ($cluster) = @_;
	my ($first, @others) = map { [ $_, $cluster->query($_, $SCHEMA) ] } $cluster->names;
	my @findings = map { [ 'schema: same', "$_->[0] has $_->[1]\n$first->[0] has $first->[1]" ] } grep { $_->[1] ne $first->[1] } @others;
	foreach my $table (split /\n/, $cluster->query($first->[0], $EXTRA))
	{
		my $n = $cluster->query($first->[0], "SELECT count(*) FROM $table WHERE extra IS DISTINCT FROM 7");
		push @findings, [ 'schema: default', "$n rows of $table have lost it" ] if $n;
	}
	return @findings;
}

# Servers whose logs tell of what no fault does: SIGKILL is ours.
sub crashes
{
	my ($cluster) = @_;
	my @findings;
	foreach my $name ($cluster->names)
	{
		foreach my $server ($cluster->node($name), $cluster->replaced($name))
		{
			open(my $log, '<', $server->logfile) or next;
			my @lines = grep { /PANIC:|TRAP:|terminated by signal (?!9:)/ } <$log>;
			close $log;
			chomp @lines;
			push @findings, [ 'log: crash', "of $name: $lines[0]" ] if @lines;
		}
	}
	return @findings;
}

sub consistency
{
	my ($cluster) = @_;
	my @findings;
	foreach my $node ($cluster->names)
	{
		my ($status, $stdout, $stderr) = $cluster->psql($node, 'SELECT * FROM tessera.check_consistency(deep => true)', timeout => 60);
		push @findings, [ 'consistency: failed', "on $node: $stderr" ] if $status != 0;
		push @findings, map { [ 'consistency: ' . (split /\|/)[0], "by $node: $_" ] } split /\n/, $stdout;
	}
	return @findings;
}

1;
