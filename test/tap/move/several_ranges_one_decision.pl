# A migration of several ranges of several table groups: one capture, one gate for all, one decision; and that decision, which the config node has
# made but for its end before a gate is closed.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

# The servers fill memory that was freed: who uses it still does not find what was there.
$ENV{MALLOC_PERTURB_} = 165;

my $c = TesseraCluster->new('operation', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	restart_after_crash => 'on' });
# s1 is the config node; s2 and s3 move to each other.
$c->create(shards => 3);
foreach my $table ('acc', 'other')
{
	$c->query('s1', "CREATE TABLE $table (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)");
	$c->query('s1', "INSERT INTO $table SELECT g FROM generate_series(1, 1000) g");
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', tessera.minkey(), tessera.maxkey(), 's2')");
	$c->query('s1', "SELECT tessera.split_chunk('$table', 350)");
}

# Two ranges of the one group, one cut out of a chunk in its middle, one over a chunk's end; one range of the other.
my @ranges = ([ 'acc', 100, 200 ], [ 'acc', 300, 400 ], [ 'other', 50, 150 ]);
my @moving = ([ 'acc', 150 ], [ 'acc', 349 ], [ 'acc', 350 ], [ 'other', 100 ]);
my @staying = ([ 'acc', 50 ], [ 'acc', 250 ], [ 'acc', 500 ], [ 'other', 20 ], [ 'other', 350 ]);

# No function of users makes one of several ranges yet: registered by hand, then told to the donor as move_range does it.
sub start
{
	my ($from, $to) = @_;
	my $list = join(' UNION ALL ', map { "SELECT '$_->[0]' AS t, $_->[1] AS min, $_->[2] AS max" } @ranges);
	my $id = $c->query('s1', <<"SQL");
INSERT INTO tessera.migration (migration_id, ranges, table_id, donor, recipient, term, donor_incarnation, recipient_incarnation, phase)
	SELECT gen_random_uuid(),
		(SELECT array_agg((g.group_id, g.epoch, r.min::tessera.bound, r.max::tessera.bound)::tessera.operation_range ORDER BY g.group_id, r.min)
			FROM ($list) AS r JOIN tessera.cluster_table ON table_name = t JOIN tessera.table_group AS g USING (group_id)),
		(SELECT table_id FROM tessera.cluster_table WHERE table_name = 'acc'), d.node_id, r.node_id, i.term, d.incarnation, r.incarnation,
		'registered'
	FROM tessera.identity AS i, tessera.node AS d, tessera.node AS r WHERE d.name = '$from' AND r.name = '$to' RETURNING migration_id
SQL
	my $request = TesseraCluster::quote($c->query('s1', "SELECT tessera_internal.migration_request('$id')"));
	$c->query($from, "SELECT tessera_internal.donate('$id', $request); SELECT tessera_internal.start_donor('$id')");
	return $id;
}

sub ended
{
	my ($id, $state, $what) = @_;
	ok($c->wait_for('s1', "SELECT state FROM tessera.migration WHERE migration_id = '$id'", $state, 60), "$what: $state")
		or diag $c->query('s1', "SELECT * FROM tessera.migrations WHERE id = '$id'");
	$c->is_settled($what);
	return;
}

sub move { my ($table, $min, $max, $to) = @_; return "SELECT tessera.move_range('$table', $min, $max, '$to')"; }
sub owners { return join(' ', map { $c->query('s1', "SELECT tessera.range_owner('$_->[0]', $_->[1])") } @_); }

# All rows, and a write to each of the keys, from each node.
sub usable
{
	my ($what, @keys) = @_;
	foreach my $node ($c->names)
	{
		ok($c->wait_for($node, 'SELECT (SELECT count(*) FROM acc), (SELECT count(*) FROM other)', '1000|1000'), "$what: all rows from $node")
			unless $what =~ /closed/;
		my ($status, undef, $stderr) = $c->psql($node, join(';', 'SET tessera.gate_timeout = 5000',
			map { "UPDATE $_->[0] SET v = v + 1 WHERE k = $_->[1]" } @keys));
		is($status, 0, "$what: $node writes") or diag $stderr;
	}
	return;
}

my $held = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%commit_move%'";

# From one shard to the other, with all gates closed at one moment.
my $majors = "SELECT string_agg(group_major::text, ' ' ORDER BY group_id) FROM tessera.table_group";
my $expected = join(' ', map { $_ + 1 } split / /, $c->query('s1', $majors));
$c->pause_at('s2', 'donor_write_gate');
my $id = start('s2', 's3');
$c->is_paused_at('s2', 'donor_write_gate');
is($c->query('s2', "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'tessera%'"), 1, 'one capture');
is($c->query('s2', "SELECT string_agg(cardinality(gates) || ' ' || (SELECT string_agg(DISTINCT g.gate, ',') FROM unnest(gates) AS g), '; '
	ORDER BY cardinality(gates)) FROM tessera.placement"), '1 write; 2 write', 'the gates of all ranges are closed');
is($c->query('s1', $held), 1, 'the config node has made the decision, and waits');
is($c->query('s1', "SELECT count(*) FROM tessera.migration_outcome"), 0, 'which nobody sees');
is(owners(@moving), 's2 s2 s2 s2', 'and which is not one yet');
my @waiting = map { $c->background('s2', "SET tessera.gate_timeout = 60000; UPDATE $_->[0] SET v = -1 WHERE k = $_->[1]") } @moving;
ok($c->wait_for('s2', "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%SET v = -1%' AND state = 'active' AND wait_event_type = 'Extension'",
	scalar @moving), 'a writer to each range waits');
usable('closed gates', @staying);
$c->go_on('s2');
is($c->ended($_), '', 'the writer goes on') foreach @waiting;
ended($id, 'committed', 'several ranges');
is(owners(@moving), 's3 s3 s3 s3', 'all ranges have moved');
is(owners(@staying), 's2 s2 s2 s2 s2', 'and nothing else');
is($c->query('s1', $majors), $expected, 'each group has one new major version');
is($c->query('s3', 'SELECT count(*) FROM acc WHERE v = -1') + $c->query('s3', 'SELECT count(*) FROM other WHERE v = -1'), 4, 'nothing is lost');
usable('several ranges', @moving, @staying);
is($c->query('s1', "SELECT string_agg(object, ' ' ORDER BY object) FROM tessera.changelog WHERE what = 'move' AND at >=
	(SELECT started FROM tessera.migration WHERE migration_id = '$id')"), 'public.acc public.other', 'the changelog has a row for each group');

# The way back: called off, then to the end.
$c->pause_at('s3', 'donor_cloned');
$id = start('s3', 's2');
$c->is_paused_at('s3', 'donor_cloned');
like($c->error('s1', "SELECT tessera.move_range('other', 140, 160, 's1')"), qr/55006: a part of the range is being moved already/,
	'another migration may not have a part of any of its ranges');
like($c->error('s1', "SELECT tessera.move_range('acc', 100, 200, 's2')"), qr/55006: a part of the range is being moved already/,
	'nor is a move of one of them the same migration');
$c->query('s1', "SELECT tessera.cancel_migration('$id')");
$c->go_on('s3');
ended($id, 'aborted', 'called off');
is(owners(@moving), 's3 s3 s3 s3', 'all ranges have stayed');
usable('called off', @moving, @staying);
ended(start('s3', 's2'), 'committed', 'and back');
is(owners(@moving), 's2 s2 s2 s2', 'all ranges are back');

# Crashes: all of it or nothing.
foreach my $crash ([ 's2', 'donor_flag_up', 's2' ], [ 's2', 'donor_write_gate', 's2' ], [ 's2', 'donor_read_gate', 's2' ],
	[ 's3', 'recipient_confirmed', 's2' ], [ 's1', 'config_deciding', 's2' ], [ 's2', 'config_committed', 's3' ],
	[ 's2', 'donor_carrying_out', 's3' ], [ 's3', 'recipient_released', 's3' ])
{
	my ($node, $point, $owner) = @$crash;
	$c->query($node, "SELECT tessera_test.injection_set('$point', 'crash')");
	$id = start('s2', 's3');
	# a server that has crashed has forgotten what was armed
	ok($c->wait_for($node, 'SELECT count(*) FROM tessera_test.injection_list()', 0), "$point: the server has crashed, and is back");
	$c->is_settled("crash at $point");
	is(owners(@moving), "$owner $owner $owner $owner", "crash at $point: all or nothing");
	usable("crash at $point", @moving, @staying);
	ended(start('s3', 's2'), 'committed', "after the crash at $point") if $owner eq 's3';
}

# The session that keeps the decision is ended: it is made once more.
$c->pause_at('s2', 'donor_write_gate');
$id = start('s2', 's3');
$c->is_paused_at('s2', 'donor_write_gate');
(my $end = $held) =~ s/count.*? FROM/pg_terminate_backend(pid, 10000) FROM/;
is($c->query('s1', $end), 't', 'its session is ended');
$c->go_on('s2');
ended($id, 'committed', 'a lost session');
is(owners(@moving), 's3 s3 s3 s3', 'the ranges have moved');

# An attempt that is given up gives the decision up, too; nobody waits for its locks.
$c->pause_at('s2', 'recipient_confirming');
$c->pause_at('s3', 'donor_reopened');
$id = start('s3', 's2');
$c->is_paused_at('s2', 'recipient_confirming');
is($c->query('s1', $held), 1, 'the decision is held');
$c->is_paused_at('s3', 'donor_reopened');
$c->go_on('s2');
$c->query('s3', "SELECT tessera_test.injection_set('donor_closing', 'pause')");
$c->go_on('s3', 'donor_reopened');
$c->is_paused_at('s3', 'donor_closing');
is($c->query('s1', $held), 1, 'the next attempt has one of its own, and only that');
$c->query('s3', "SELECT tessera.cancel_migration('$id')");
$c->go_on('s3');
ended($id, 'aborted', 'given up');
is($c->query('s1', $held), 0, 'nothing is held');
is($c->query('s1', "SET lock_timeout = '5s'; SELECT tessera.split_chunk('acc', 700) IS NULL"), 'f', 'the group is free');

# The COMMIT stands still, so that the donor does not hear of it in time, and calls for the decision once more: it finds that it was made.
$c->pause_at('s1', 'config_deciding');
$id = start('s3', 's2');
$c->is_paused_at('s1', 'config_deciding');
ok($c->wait_for('s1', "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%commit_move%'
	AND wait_event_type = 'Lock'", 1, 30), 'the second call waits for the first');
$c->go_on('s1');
ended($id, 'committed', 'an answer that was lost');
is(owners(@moving), 's2 s2 s2 s2', 'the ranges have moved');

# A donor's process that stands still with the decision held: the config node ends it after a while, and who waits for its locks goes on.
$c->pause_at('s2', 'donor_closing');
$id = start('s2', 's3');
$c->is_paused_at('s2', 'donor_closing');
my @waits = $c->background('s1', "SELECT tessera.split_chunk('acc', 800)");
# a chunk of which a part moves is not split: the split comes first
$c->wait_for('s1', "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%tessera_internal.split(%' AND wait_event_type = 'Lock')
	OR EXISTS (SELECT FROM tessera.chunk WHERE min::text = '800')", 't', 30);
push @waits, map { $c->background('s1', $_) } move('acc', 850, 860, 's1'),
	"SELECT tessera.update_node('s3', conninfo) FROM tessera.node WHERE name = 's3'";
is($c->ended($_), '', 'who waits for the decision goes on') foreach @waits;
is($c->query('s1', $held), 0, 'the config node has ended what was held for too long');
$c->go_on('s2');
ended($id, 'committed', 'held for too long');
is(owners(@moving), 's3 s3 s3 s3', 'the ranges have moved all the same');

# Held up for a while by another one's commit, in which its range is written: it looks again before it closes its gate.
$c->query('s1', "ALTER DATABASE postgres SET lock_timeout = '300ms'");
$c->pause_at('s3', 'donor_closing');
$id = start('s3', 's2');
$c->is_paused_at('s3', 'donor_closing');
my $second = $c->background('s2', move('acc', 500, 600, 's1'));
is($c->ended($second), '', 'another move of the group waits for the commit of the first, whatever lock_timeout the database has');
$c->go_on('s3');
ended($id, 'committed', 'two of one group');
$c->query('s1', 'ALTER DATABASE postgres RESET lock_timeout');
is(owners(@moving), 's2 s2 s2 s2', 'both have moved');

# Many chunks.
$c->query('s1', "SELECT count(*) FROM (SELECT tessera.split_chunk('other', g) FROM generate_series(51, 149) AS g) AS q");
ended(start('s2', 's3'), 'committed', 'many chunks');
is(owners(@moving), 's3 s3 s3 s3', 'all have moved');
is($c->query('s1', "SELECT count(*), count(DISTINCT major) FROM tessera.chunks WHERE table_name = 'other'::regclass AND shard = 's3'"), '100|1',
	'each one');

# What names no ranges, or not the whole of them, is no migration.
my $id0 = '00000000-0000-0000-0000-00000000dead';
foreach my $ranges ('[]', 'null', '[{"min": "1"}]', '[{"group_id": "10000000-0000-0000-0000-000000000001", "epoch": null, "min": "1", "max": "2"}]')
{
	my $request = "'{\"recipient\": 3, \"donor\": 2, \"term\": 1, \"donor_incarnation\": 1, \"recipient_incarnation\": 1,
		\"ranges\": $ranges}'";
	like($c->error('s2', "SELECT tessera_internal.donate('$id0', $request)"), qr/22023: /, "donate: $ranges");
	like($c->error('s2', "SELECT tessera_internal.prepare_recipient('$id0', $request)"), qr/22023: /, "prepare: $ranges");
}
like($c->error('s2', "INSERT INTO tessera.migration_recipient (migration_id, ranges, donor, state, request)
	VALUES ('$id0', ARRAY[(NULL, NULL, '1', '2')::tessera.operation_range], 3, 'applying', '{}')"), qr/23514/, 'nor is it kept in a row');

# Writers from each node meanwhile.
my $sum = 'SELECT (SELECT sum(v) FROM acc) + (SELECT sum(v) FROM other)';
my $total = $c->query('s1', $sum);
my $load = $c->pgbench_start(clients => 2, transactions => 80, rate => 25, max_tries => 20, protocol => 'prepared', script => <<'SCRIPT');
\set a random(1, 1000)
\set b random(1, 1000)
BEGIN;
UPDATE acc SET v = v + 1 WHERE k = :a;
UPDATE other SET v = v + 1 WHERE k = :b;
COMMIT;
SCRIPT
foreach my $way ([ 's3', 's2' ], [ 's2', 's3' ], [ 's3', 's1' ], [ 's1', 's2' ])
{
	ended(start(@$way), 'committed', "under load from $way->[0] to $way->[1]");
}
$c->is_counted($load, 'under load', $total, $sum, 2);

done_testing();
