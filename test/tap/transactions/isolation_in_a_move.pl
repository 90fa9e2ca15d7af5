# Isolation in the middle of a move (doc/design.md#old-plans, doc/design.md#older-writers; S72, S76, S78, S79): what
# transactions/snapshots_older_than_a_move.pl does not hold still for. Who has locked rows of the range, or has read it at SERIALIZABLE, holds the
# gate off; a plan and its lock from before the first cloned row do not show that row; an UPDATE of all rows changes each exactly once, in whatever
# phase it meets the move; rows that a former owner has still to delete are seen by no statement that began after the commit; a REPEATABLE READ
# transaction that needs a chunk which has moved under it is told to retry.
use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use TesseraCluster;

my $ROWS = 2000;
my $c = TesseraCluster->new('isolation',
	settings => { 'tessera.advisory_locks' => 'node', 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.gate_timeout' => 60000, 'tessera.migration_commit_size' => 16 });
$c->create(shards => 3);
my @nodes = $c->names;
$c->query('s1', $_) foreach (
	'CREATE TABLE acc (k int PRIMARY KEY, bal int NOT NULL, filler text)',
	"INSERT INTO acc SELECT g, 0, repeat('x', 200) FROM generate_series(1, $ROWS) g",
	'CREATE INDEX acc_bal ON acc (bal)',
	"SELECT tessera.shard_table('acc', 'k')",
	"SET client_min_messages = warning; SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's1')",
	"SELECT tessera.move_range('acc', 501, 1501, 's2')");
my $owner = 's2';

sub pause
{
	my ($node, $point) = @_;
	$c->pause_at($node, $point);
	return;
}

sub reached
{
	my ($node, $point) = @_;
	$c->paused_at($node, $point, 60) or die "$point is not reached";
	return;
}

sub resume
{
	my ($node, $point) = @_;
	$c->go_on($node, $point);
	return;
}

# Starts a move of the range; (its handle, former owner, new owner).
sub begin_move
{
	my ($from, $to) = ($owner, $owner eq 's2' ? 's3' : 's2');
	$owner = $to;
	return ($c->background('s1', "SELECT tessera.move_range('acc', 501, 1501, '$to')"), $from, $to);
}

sub end_move
{
	my ($move, $name) = @_;
	is($c->ended($move), '', "$name: the range has moved");
	foreach my $node (@nodes)
	{
		$c->wait_for($node, 'SELECT count(*) FROM tessera.range_deletions', '0', 60) or fail "$node deletes";
	}
	return;
}

sub next_owner { return $owner eq 's2' ? 's3' : 's2' }

# Who holds the gate off. Nobody else waits meanwhile.
foreach my $case (
	[ 'FOR UPDATE', 'BEGIN', 'SELECT bal FROM acc WHERE k = 700 FOR UPDATE' ],
	[ 'FOR SHARE', 'BEGIN', 'SELECT bal FROM acc WHERE k = 700 FOR SHARE' ],
	[ 'FOR KEY SHARE of many', 'BEGIN', 'SELECT count(*) FROM (SELECT 1 FROM acc WHERE k BETWEEN 600 AND 650 FOR KEY SHARE) x' ],
	[ 'SERIALIZABLE', 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT bal FROM acc WHERE k = 700' ])
{
	my ($name, @sql) = @$case;
	my ($donor) = ($owner);
	pause($donor, 'donor_steady');
	my ($move, undef, $to) = begin_move();
	reached($donor, 'donor_steady');
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query($_) foreach @sql;
	is($session->{stderr}, '', "$name: locked");
	resume($donor, 'donor_steady');
	ok($c->wait_for($donor, 'SELECT waiting_for FROM tessera.stat_progress_migration', qr/^transaction of process/, 30),
		"$name: the move waits for it");
	is($c->query('s3', 'UPDATE acc SET bal = bal WHERE k = 900 RETURNING k'), '900', "$name: others go on");
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), $donor, "$name: the gate is held off");
	$session->query('COMMIT');
	is($session->{stderr}, '', "$name: it commits");
	$session->quit;
	end_move($move, $name);
}

# Who enters just before the gate closes is waited for behind it, for a moment; then it opens again.
{
	my ($donor) = ($owner);
	pause($donor, 'donor_closing');
	my ($move) = begin_move();
	reached($donor, 'donor_closing');
	my $session = $c->session('s1', on_error_stop => 0);
	$session->query('BEGIN; UPDATE acc SET bal = bal + 1 WHERE k = 700');
	is($session->{stderr}, '', 'a writer enters');
	resume($donor, 'donor_closing');
	ok($c->wait_for($donor, 'SELECT gate_attempts > 0, phase, waiting_for FROM tessera.stat_progress_migration',
		qr/^t\|steady\|transaction of process/, 30), 'the gate was closed for it in vain');
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), $donor, 'the range is where it was');
	is($c->query('s3', 'UPDATE acc SET bal = bal WHERE k = 900 RETURNING k'), '900', 'others go on');
	$session->query('COMMIT');
	is($session->{stderr}, '', 'it commits');
	$session->quit;
	end_move($move, 'a late writer');
	is($c->query('s1', 'UPDATE acc SET bal = 0 WHERE k = 700 AND bal = 1 RETURNING k'), '700', 'what it wrote has moved');
}

# A statement that began before the move, and has not written yet: it knows of no gate. The move waits for its end, and what it writes is there.
{
	my ($donor, $to) = ($owner, next_owner());
	$c->query('s1', 'CREATE FUNCTION hold() RETURNS bool LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_xact_lock(7); RETURN true; END$$');
	my $lock = $c->session($donor);
	$lock->query_safe('SELECT pg_advisory_lock(7)');
	my $old = $c->background($donor, "UPDATE acc SET bal = bal + 1 WHERE k = 700 AND hold()");
	ok($c->wait_for($donor, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", '1', 30), 'an older statement is under way');
	my ($move) = begin_move();
	ok($c->wait_for($donor, 'SELECT phase, waiting_for FROM tessera.stat_progress_migration', qr/^steady\|transaction of process/, 30),
		'the move waits for it');
	is($c->query('s1', "SELECT tessera.range_owner('acc', 700)"), $donor, 'the gate is held off');
	$lock->quit;
	is($c->ended($old), '', 'the statement ends well');
	end_move($move, 'older statement');
	is($c->query('s1', 'UPDATE acc SET bal = 0 WHERE k = 700 AND bal = 1 RETURNING k'), '700', 'what it wrote has moved');
}

# A snapshot of the moment at which nobody knew who owns the range: it shows it as given up, even if the move was undone. Who reads by it is told to
# retry.
{
	my ($donor) = ($owner);
	pause($donor, 'config_commit');
	my ($move) = begin_move();
	reached($donor, 'config_commit');
	my $session = $c->session($donor, on_error_stop => 0);
	$session->query('\set VERBOSITY verbose');
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1');
	my $allow = "WITH t AS (SELECT group_id FROM tessera.cluster_table WHERE table_name = 'acc') UPDATE tessera.table_group g SET " .
		"allow_migrations = %s FROM t WHERE g.group_id = t.group_id";
	$c->query('s1', sprintf($allow, 'false'));
	resume($donor, 'config_commit');
	like($c->ended($move), qr/55006/, 'the config node refuses the move');
	$owner = $donor;
	$c->query('s1', sprintf($allow, 'true'));
	is($c->query($donor, 'SELECT count(*) FROM acc'), $ROWS, 'it is undone');
	is($session->query('SELECT count(*) FROM acc WHERE k BETWEEN 501 AND 1500'), '', 'a snapshot of the gap shows nothing');
	like($session->{stderr}, qr/ERROR:  40001/, 'but an error: retry');
	$session->quit;
	$c->wait_for($_, 'SELECT count(*) FROM tessera.range_deletions', '0', 60) or fail "$_ deletes" foreach @nodes;
}

# Prepared before the first cloned row, with the table's lock held since: the recipient's own copy stays hidden, the donor's is there.
my ($from, $to) = ($owner, next_owner());
my %reader;
foreach my $node (@nodes)
{
	my $session = $reader{$node} = $c->session($node, on_error_stop => 0);
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->query("PREPARE whole AS SELECT count(*) || ' ' || count(DISTINCT k) FROM acc");
	$session->query("PREPARE one AS SELECT count(*) FROM acc WHERE k = 1000");
	$session->query('BEGIN');
	is($session->query('EXECUTE whole') . $session->query('EXECUTE one'), "$ROWS ${ROWS}1", "$node: before the move");
}
pause($to, 'recipient_cloned');
my ($move) = begin_move();
reached($to, 'recipient_cloned');
is($c->query($to, 'SET tessera.replicate_ddl = off; SELECT pg_relation_size($$acc$$) > 0'), 't', 'rows are cloned');
foreach my $node (@nodes)
{
	my $session = $reader{$node};
	is($session->query('EXECUTE whole') . $session->query('EXECUTE one'), "$ROWS ${ROWS}1", "$node: the same plan when rows are cloned")
		or diag $session->{stderr};
	$session->query('COMMIT');
	is($session->query('EXECUTE whole') . $session->query('EXECUTE one'), "$ROWS ${ROWS}1", "$node: and in the next transaction")
		or diag $session->{stderr};
	$session->quit;
}
resume($to, 'recipient_cloned');
end_move($move, 'plans from before the clone');

# An UPDATE of all rows in each phase, from each node: each row once. Those that meet a closed gate wait.
my $updates = 0;
my @waiting;
($from, $to) = ($owner, next_owner());
my @phases = ([ $to, 'recipient_registered' ], [ $to, 'recipient_batch' ], [ $to, 'recipient_cloned' ], [ $from, 'donor_steady' ],
	[ $from, 'donor_write_gate', 1 ],
	[ $from, 'donor_read_gate', 1 ], [ $from, 'config_committed', 1 ], [ $from, 'donor_released' ], [ $from, 'range_deleter_batch' ]);
my $held;
my $turn = 0;
undef $move;
pause($from, 'range_deleter_batch');
foreach my $phase (@phases)
{
	my ($node, $point, $gated) = @$phase;
	pause($node, $point) unless $point eq 'range_deleter_batch';
	($move) = begin_move() if !$move;
	resume(@$held) if $held;
	reached($node, $point);
	$held = [ $node, $point ];
	foreach my $n ($gated ? $turn++ % @nodes : 0 .. $#nodes)
	{
		push @waiting, [ $c->background($nodes[$n], 'UPDATE acc SET bal = bal + 1'), "$point, from $nodes[$n]" ];
		next if $gated;
		foreach my $update (@waiting)
		{
			# several that waited may come back in different orders: then one of them has done nothing
			my $error = $c->ended($update->[0]);
			$updates++ if $error eq '';
			like($error, qr/^$|ERROR:  40(P01|001)/, "UPDATE of all rows at $update->[1]");
		}
		@waiting = ();
	}
	next if $gated;
	# seen by every node, by whatever plan
	foreach my $reader (@nodes)
	{
		is($c->query($reader, "SELECT count(*), count(DISTINCT k), min(bal), max(bal) FROM acc"), "$ROWS|$ROWS|$updates|$updates",
			"$point: $reader sees each row once, changed $updates times");
	}
}

# The former owner has still to delete: nobody sees what it has.
is($c->query($from, 'SELECT count(*) > 0 FROM tessera.range_deletions'), 't', 'the former owner has rows to delete');
foreach my $node (@nodes)
{
	foreach my $scan ('seqscan', 'indexscan', 'bitmapscan')
	{
		my $others = join('', map { "SET enable_$_ = off; " } grep { $_ ne $scan } qw(seqscan indexscan indexonlyscan bitmapscan));
		is($c->query($node, "$others SELECT count(*) FROM acc WHERE k BETWEEN 1 AND 2000 AND bal = $updates"), $ROWS,
			"$node, $scan: no row of a former owner");
	}
	is($c->query($node, 'UPDATE acc SET bal = bal WHERE k BETWEEN 501 AND 510 RETURNING 1'), join("\n", (1) x 10), "$node: none is changed there");
	is($c->query($node, 'COPY (SELECT k FROM acc WHERE k BETWEEN 995 AND 1004) TO STDOUT'), join("\n", 995 .. 1004), "$node: none is copied");
	is(scalar(split /\n/, $c->query($node, 'COPY acc (k) TO STDOUT')), $ROWS, "$node: nor with the whole table");
}
resume(@$held);
end_move($move, 'UPDATE of all rows');

# REPEATABLE READ: the shard's placement has changed, because a move has begun, but not what it owns.
foreach my $node (@nodes)
{
	my ($donor) = ($owner);
	my $session = $c->session($node, on_error_stop => 0);
	$session->query('\set VERBOSITY verbose');
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($session->query('SELECT bal FROM acc WHERE k = 1000'), $updates, "$node: a snapshot is taken");
	pause($donor, 'donor_steady');
	($move) = begin_move();
	reached($donor, 'donor_steady');
	is($session->query('UPDATE acc SET bal = bal WHERE k = 1000 RETURNING k'), '1000', "$node: a write into the range that is about to move")
		or diag $session->{stderr};
	resume($donor, 'donor_steady');
	$session->query('COMMIT');
	is($session->{stderr}, '', "$node: it commits");
	$session->quit;
	end_move($move, "$node: a writer with an older snapshot");
}

# REPEATABLE READ: the transaction has used the table; a chunk moves; what is asked of the shards that gave or got it is 40001, of others not.
foreach my $node (@nodes)
{
	my $session = $c->session($node, on_error_stop => 0);
	$session->query('\set VERBOSITY verbose');
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($session->query('SELECT bal FROM acc WHERE k = 1'), $updates, "$node: a snapshot is taken");
	($move) = begin_move();
	end_move($move, "$node: under a snapshot");
	is($session->query('SELECT bal FROM acc WHERE k = 2'), $updates, "$node: a shard that the move has not touched") or diag $session->{stderr};
	$session->query('UPDATE acc SET bal = bal WHERE k = 1000');
	like($session->{stderr}, qr/ERROR:  40001/, "$node: a row of the chunk that moved");
	$session->query('ROLLBACK');
	$session->quit;
}

is($c->query('s1', 'SELECT * FROM tessera.check_consistency(deep => true)'), '', 'consistent');
done_testing();
