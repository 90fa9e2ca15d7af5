# Ranges that are no neighbours go to another shard in one migration: empty chunks of a table that has just been made, when shards come; small ones
# of a shard that leaves, with what is written into them meanwhile.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('empty', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.balancer_interval' => 1, 'tessera.split_interval' => 300, 'tessera.balancer_merge' => 'off' });
$c->start_nodes('s2', 's3');
$c->create(shards => 1);
$c->query('s1', 'CREATE TABLE acc (k int PRIMARY KEY, v int NOT NULL DEFAULT 0)');
$c->query('s1', "SELECT tessera.shard_table('acc', 'k', strategy => 'hash', chunks => 256)");
$c->query('s1', 'CREATE TABLE r (k int PRIMARY KEY)');
$c->query('s1', "SELECT tessera.shard_table('r', 'k')");

my $acc = q{table_name = 'acc'::regclass};
sub chunks { return $c->query('s1', "SELECT string_agg(shard || ' ' || n, ', ' ORDER BY shard) FROM (SELECT shard, count(*) AS n FROM tessera.chunks
	WHERE $acc GROUP BY 1) AS s"); }
my $idle = "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')";

# ---- two shards come
my $estimates = "SELECT count(*) FROM tessera.chunk_estimate JOIN tessera.cluster_table USING (group_id) WHERE relid = 'acc'::regclass";
ok($c->wait_for('s1', $estimates, 256, 60), 'it is known that the chunks are empty');
$c->query('s1', 'SELECT tessera.pause_balancer($$1 hour$$)');
$c->add_shard($_) foreach 's2', 's3';
$c->query('s1', 'SELECT tessera.resume_balancer()');
my $even = "SELECT count(*) = 3 AND max(n) - min(n) <= 1 FROM (SELECT shard, count(*) AS n FROM tessera.chunks WHERE $acc GROUP BY 1) AS s";
ok($c->wait_for('s1', $even, 't', 60), '256 empty chunks: each shard has as many')
	or diag chunks(), $c->query('s1', 'SELECT * FROM tessera.balancer_status');
ok($c->wait_for('s1', $idle, 0, 60), 'and it rests');
is($c->query('s1', "SELECT string_agg(kind || ' ' || ranges || ' ' || reason || ' ' || recipient, ', ' ORDER BY recipient)
	FROM tessera.balancer_status WHERE $acc"), 'move 1 empty s2, move 1 empty s3', 'by two moves');
is($c->query('s1', "SELECT count(*) || ' ' || string_agg(DISTINCT state, ',') FROM tessera.migrations WHERE $acc"), '2 committed',
	'which are two migrations');
diag $c->query('s1', "SELECT 'empty chunks: ' || (max(finished) - min(started)) FROM tessera.migrations");
$c->is_settled('two shards');

# ---- one leaves, with ranges that are no neighbours: every second chunk of the first shard is made its own
$c->query('s1', 'SELECT tessera.pause_balancer($$1 hour$$)');
my $id = $c->query('s1', <<'SQL');
INSERT INTO tessera.migration (migration_id, ranges, table_id, donor, recipient, term, donor_incarnation, recipient_incarnation, phase)
	SELECT gen_random_uuid(), (SELECT array_agg((g.group_id, g.epoch, c.min, c.max)::tessera.operation_range ORDER BY c.min)
			FROM (SELECT o.*, row_number() OVER (ORDER BY o.min) AS n FROM tessera.chunk AS o
				WHERE o.group_id = t.group_id AND o.node_id = d.node_id) AS c
			JOIN tessera.table_group AS g USING (group_id) WHERE c.n % 2 = 0),
		t.table_id, d.node_id, r.node_id, i.term, d.incarnation, r.incarnation, 'registered'
	FROM tessera.identity AS i, tessera.node AS d, tessera.node AS r, tessera.cluster_table AS t
	WHERE d.name = 's1' AND r.name = 's3' AND t.relid = 'acc'::regclass RETURNING migration_id
SQL
my $request = TesseraCluster::quote($c->query('s1', "SELECT tessera_internal.migration_request('$id')"));
$c->query('s1', "SELECT tessera_internal.donate('$id', $request); SELECT tessera_internal.start_donor('$id')");
ok($c->wait_for('s1', "SELECT state FROM tessera.migrations WHERE id = '$id'", 'committed', 60), 'chunks that are no neighbours');
is($c->query('s1', "SELECT ranges FROM tessera.migrations WHERE id = '$id'"), 43, 'so many ranges');
is(chunks(), 's1 43, s2 85, s3 128', 'the third shard has them');
$c->query('s2', 'INSERT INTO acc SELECT g FROM generate_series(1, 600) g');

$c->pause_at('s3', 'donor_cloned');
$c->query('s1', "SELECT tessera.remove_shard('s3')");
$c->query('s1', 'SELECT tessera.resume_balancer()');
$c->is_paused_at('s3', 'donor_cloned');
ok($c->wait_for('s1', "SELECT max(ranges) > 10 FROM tessera.balancer_status WHERE reason = 'draining' AND state = 'running'", 't', 60),
	'many ranges are under way together');
$c->query('s2', 'INSERT INTO acc SELECT g, 1 FROM generate_series(601, 6000) g');
$c->query('s1', 'UPDATE acc SET v = v + 2 WHERE k <= 300');
$c->query('s3', 'DELETE FROM acc WHERE k BETWEEN 301 AND 310');
$c->go_on('s3');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.node WHERE name = 's3'", 0, 90), 'the shard has left')
	or diag chunks(), $c->query('s1', 'SELECT * FROM tessera.balancer_status'),
	$c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)');
my $moves = $c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE reason = 'draining' AND $acc");
cmp_ok($moves, '<=', 4, "128 chunks in $moves migrations");
is($c->query('s1', "SELECT count(*) FROM tessera.migrations WHERE state <> 'committed'"), 0, 'none failed');
is($c->query('s2', 'SELECT count(*), sum(v) FROM acc'), '5990|6000', 'no row is lost, of those that came meanwhile neither');
is($c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE $acc"), 256, 'no chunk was cut');

# ---- what is registered
$c->query('s1', "SELECT tessera.stop_balancer()");
$c->query('s1', "SELECT tessera.split_chunk('r', $_)") foreach 100, 200, 300;
$c->query('s1', "SELECT tessera.move_range('r', 300, tessera.maxkey(), 's2')");
sub register
{
	my ($mins, $maxs) = @_;
	return "SELECT tessera_internal.register_ranges(t.table_id, '$mins', '$maxs', n.node_id, 's2', 0, true) FROM tessera.cluster_table AS t,
		tessera.node AS n WHERE t.relid = 'r'::regclass AND n.name = 's1'";
}
my $ranges = q{SELECT string_agg(r.min || ' to ' || r.max, ', ' ORDER BY r.min) FROM tessera.migration AS m, unnest(m.ranges) AS r
	WHERE m.state = 'running'};
my $first = register('{50,120,150,250}', '{80,150,200,400}');
like($c->query('s1', "SET client_min_messages = error; $first; $ranges"), qr/\n50 to 80, 120 to 200, 250 to 300$/,
	'ranges that touch each other are one; what the shard does not own is left out');
like($c->error('s1', register('{50,70}', '{80,90}')), qr/22023: ranges must be in order/, 'they do not overlap');
like($c->error('s1', register('{50}', '{80,90}')), qr/22023/, 'each has two bounds');
is($c->query('s1', register('{300}', '{400}')), '(,)', 'none of them is the shard\'s: nothing is registered');
$c->wait_for('s1', "SELECT count(*) FROM tessera.migration WHERE state = 'running'", 0, 60);
like($c->error('s1', "$first; " . register('{60,210}', '{70,220}')), qr/55006: a part of the range is being moved already/,
	'a part that another migration moves is refused');
$c->is_settled('in the end');
done_testing();
