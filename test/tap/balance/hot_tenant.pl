# A hot tenant: a key that has most of the load gets a chunk of its own, its neighbours go to other shards, and it is not merged back.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('tenant', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1,
	'tessera.balancer_policy' => 'load', 'tessera.split_interval' => 500, 'tessera.balancer_merge_after' => 0 });
$c->create(shards => 3);
# 200 tenants; most of the work is about the 77th. It is in the middle of a chunk, and the first shard has the schemas.
$c->query('s1', 'CREATE TABLE acc (tenant int, n int, v int NOT NULL DEFAULT 0, PRIMARY KEY (tenant, n))');
$c->query('s1', 'INSERT INTO acc SELECT t, n FROM generate_series(1, 200) t, generate_series(1, 20) n');
$c->query('s1', "SELECT tessera.shard_table('acc', 'tenant')");
$c->query('s1', "SELECT tessera.move_range('acc', tessera.minkey(), tessera.maxkey(), 's2')");
my $acc = q{table_name = 'acc'::regclass};

my $load = $c->pgbench_start(clients => 4, seconds => 600, max_tries => 50, protocol => 'prepared', nodes => ['s1'], scripts => { map {
	(my $set = $_->[0]) =~ s/^/\\set /;
	"$set\n\\set n random(1, 20)\n"
		. "SELECT v, (SELECT count(*) FROM generate_series(1, 20000) AS g WHERE g <> acc.v) FROM acc WHERE tenant = :t AND n = :n;\n"
		. "UPDATE acc SET v = v + 1 WHERE tenant = :t AND n = :n;\n" => $_->[1] } [ 't 77', 3 ], [ 't random(1, 200)', 1 ] });
my $alone = "SELECT count(*) FROM tessera.chunks WHERE $acc AND min::text = '77' AND max::text = '78'";
ok($c->wait_for('s1', $alone, 1, 60), 'the hot tenant gets a chunk of its own')
	or diag $c->query('s1', "SELECT * FROM tessera.chunks WHERE $acc"), $c->query('s1', 'SELECT * FROM tessera.hot_chunks');
# what others do is worth a quarter: two shards share it
my $shard = "(SELECT shard FROM tessera.chunks WHERE $acc AND min::text = '77')";
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.chunks WHERE $acc AND shard = $shard", 1, 90),
	'it is alone on its shard: its neighbours are elsewhere')
	or diag $c->query('s1', "SELECT * FROM tessera.chunks WHERE $acc"), $c->query('s1', 'SELECT * FROM tessera.hot_chunks'),
	$c->query('s1', 'SELECT * FROM tessera.explain_balancer(now => true)');
my $named = "SELECT hot_key::text = '77' AND hot_share > 0.9 AND min::text = '77' AND advice LIKE '%no split can help'
	FROM tessera.hot_chunks LIMIT 1";
ok($c->wait_for('s1', $named, 't', 60), 'hot_chunks names it, and that no split can help')
	or diag $c->query('s1', 'SELECT * FROM tessera.hot_chunks');
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.health WHERE subject = 'key 77 of acc' AND severity = 'notice'", 1, 60), 'so does health')
	or diag $c->query('s1', 'SELECT * FROM tessera.health');
$c->query('s1', 'SELECT tessera.balancer_round()') foreach 1 .. 3;
is($c->query('s1', $alone), 1, 'it is not merged back');
my $sums = $load->end;
# a move may end a statement that reads the whole table
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->wait_for('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state IN ('queued', 'running')", 0);
is($sums->{failed} // 0, 0, 'no transaction failed');
is($c->query('s3', 'SELECT sum(v) FROM acc'), $sums->{processed}, 'each change once');
$c->is_settled('in the end');
done_testing();
