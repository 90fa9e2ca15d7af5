# The balancer moves schemas: what is asked for waits in its queue, a shard with schemas is drained under load and taken back, nodes are evened out by
# whole schemas, those that are tied to each other stay together, a failure is tried again later.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('schema_balancing', settings => { 'tessera.injection_points' => 'on', 'tessera.orphan_cleanup_delay' => 0,
	'tessera.auto_split' => 'off', 'tessera.split_interval' => 600000, 'tessera.balancer_interval' => 3600, 'tessera.balancer_merge' => 'off' });
$c->create(shards => 3);
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->query('s1', <<'SQL');
CREATE SCHEMA one;
CREATE SCHEMA two;
CREATE SCHEMA tied;
CREATE SCHEMA nothing;
CREATE TABLE one.t (k int PRIMARY KEY, v int NOT NULL DEFAULT 0, filler text);
CREATE TABLE two.t (k int PRIMARY KEY, v int NOT NULL DEFAULT 0, filler text);
INSERT INTO one.t SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 3000) g;
INSERT INTO two.t SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 3000) g;
SQL

sub round { return $c->query('s1', 'SELECT tessera.balancer_round()'); }
my $open = "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')";
sub homes { return $c->query('s1', "SELECT string_agg(schema || ' ' || shard, ', ' ORDER BY schema) FROM tessera.schemas
	WHERE schema IN ('one', 'two', 'tied', 'nothing')"); }

# What is asked for.
$c->query('s1', "SELECT tessera.move_schema('$_', 's2')") foreach 'one', 'two', 'nothing';
my $id = $c->query('s3', "SELECT tessera.move_schema('tied', 's2', wait => false)");
ok($c->wait_for('s1', "SELECT state, kind, schema_name, reason, recipient FROM tessera.balancer_status WHERE id = '$id'",
	'done|move|tied|requested|s2'), 'move_schema(wait => false) is done by the balancer')
  or diag $c->query('s1', 'SELECT * FROM tessera.balancer_status');
$c->query('s1', 'CREATE TABLE tied.c (k int PRIMARY KEY REFERENCES one.t, v int)');
is(homes(), 'nothing s2, one s2, tied s2, two s2', 'all are there');

# A failure. What is asked for stays in the queue, what the balancer has chosen is left alone for a while.
$c->query('s2', "SELECT tessera_test.injection_set('donor_cloned', 'error', 100)");
$id = $c->query('s1', "SELECT tessera.move_schema('two', 's3', wait => false)");
ok($c->wait_for('s1', "SELECT attempts > 0, waiting_for LIKE '_____: %donor_cloned%', not_before > now() FROM tessera.balancer_status
	WHERE id = '$id'", 't|t|t'), 'a request that fails stays, with the error and the time of the next attempt');
is($c->query('s1', "SELECT tessera.cancel_migration('$id')"), 't', 'it can be called off');
$c->query('s2', 'SELECT tessera_test.injection_clear()');

# Draining, under load.
my $load = $c->pgbench_start(clients => 2, seconds => 600, rate => 50, max_tries => 50, nodes => [ 's3' ], script => <<'SCRIPT')->begun;
\set a random(1, 3000)
UPDATE one.t SET v = v + 1 WHERE k = :a;
UPDATE two.t SET v = v + 1 WHERE k = :a;
SCRIPT
$c->pause_at('s2', 'donor_cloned');
like($c->query('s1', "SELECT tessera.remove_shard('s2')"), qr/^draining: 0 chunks \(0 bytes\) and 4 schemas are left, 0 moves run$/,
	'a shard with schemas is to be removed');
# The balancer begins with it at once: then balancer_status shows it, a moment later.
ok($c->wait_for('s1', "SELECT string_agg(DISTINCT name, ', ' ORDER BY name) FROM (
	SELECT unnest(string_to_array(schema_name, ', ')) AS name FROM tessera.explain_balancer(now => true)
	WHERE due IN ('now', 'later') AND reason = 'draining'
	UNION ALL SELECT unnest(string_to_array(schema_name, ', ')) FROM tessera.balancer_status WHERE reason = 'draining') AS s WHERE name <> 'tied'",
	'nothing, one, two'), 'explain_balancer shows what is to leave it');
round();
$c->is_paused_at('s2', 'donor_cloned');
# One move stands; others may have been done meanwhile.
like($c->query('s1', 'SELECT shard, chunks, schemas, moves > 0 FROM tessera.draining_shards'), qr/^s2\|0\|[1-4]\|t$/,
	'draining_shards shows how far it is');
$c->query('s1', "SELECT tessera.cancel_remove_shard('s2')");
$c->go_on('s2', 'donor_cloned');
ok($c->wait_for('s1', $open, 0), 'it is called off; what runs comes to its end');
$c->query('s1', "SELECT tessera.remove_shard('s2')");
for my $i (1 .. 60)
{
	last if $c->query('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's2'") eq '0';
	round();
	$c->wait_for('s1', $open, 0);
}
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.shards WHERE name = 's2'", 0, 60), 'it leaves by itself when its schemas have left it')
  or diag $c->query('s1', 'SELECT * FROM tessera.draining_shards'), $c->query('s1', 'SELECT * FROM tessera.balancer_status');
unlike(homes(), qr/s2/, 'they live elsewhere');
is($c->query('s1', "SELECT count(DISTINCT shard) FROM tessera.schemas WHERE schema IN ('one', 'tied')"), 1, 'those that are tied live together');
ok($c->wait_for('s2', 'SELECT count(*) FROM tessera.identity', 0), 'it is no node any more');
like($c->error('s2', 'SELECT count(*) FROM one.t'), qr/TS003/, 'and refuses what is done with its tables');
my $sums = $load->end;
is($sums->{failed} // 0, 0, 'no transaction failed');
cmp_ok($sums->{processed}, '>', 0, "$sums->{processed} transactions");
is($c->query('s3', 'SELECT (SELECT sum(v) FROM one.t), (SELECT sum(v) FROM two.t)'), "$sums->{processed}|$sums->{processed}", 'each change once');
is($c->query('s1', 'SELECT count(*) FROM tessera.check_consistency(true)'), 0, 'all is consistent');

# It comes back, which it may as its tables are without rows, and whole nodes are evened out.
$c->query('s1', sprintf("SELECT tessera.add_shard('s2', %s)", TesseraCluster::quote($c->conninfo('s2'))));
$c->query('s1', "SELECT tessera.move_schema('$_', 's3')") foreach 'one', 'two';
$c->query('s1', 'ANALYZE one.t');
$c->query('s1', 'ANALYZE two.t');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.cluster_table t JOIN tessera.table_statistics s USING (table_id)
	JOIN tessera.node n USING (node_id) WHERE t.table_name = 't' AND n.name = 's3' AND s.bytes > 2000000", 2),
	'the config node knows how large the schemas are');
# it is asked what it would do before it does that
$c->query('s1', "SELECT tessera.pause_balancer('1 hour')");
$c->query('s1', 'SELECT tessera.start_balancer()');
$c->query('s1', "DELETE FROM tessera.setting WHERE name = 'balancer_paused_until'");
is($c->query('s1', "SELECT count(*) > 0 FROM tessera.explain_balancer(now => true) WHERE due = 'now' AND reason = 'node' AND donor = 's3'"), 't',
	'a schema is to leave the fullest node') or diag $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)');
round();
ok($c->wait_for('s1', $open, 0), 'it is moved');
is($c->query('s1', "SELECT count(DISTINCT shard) FROM tessera.schemas WHERE schema IN ('one', 'two')"), 2, 'nodes are even by whole schemas')
  or diag $c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)'), $c->query('s1', 'SELECT * FROM tessera.balancer_status');
is($c->query('s1', "SELECT count(DISTINCT shard) FROM tessera.schemas WHERE schema IN ('one', 'tied')"), 1,
	'those that are tied still live together');
my $moves = $c->query('s1', 'SELECT count(*) FROM tessera.balancer_action');
round() foreach 1 .. 2;
is($c->query('s1', 'SELECT count(*) FROM tessera.balancer_action'), $moves, 'and stay');
$c->is_settled('in the end');
done_testing();
