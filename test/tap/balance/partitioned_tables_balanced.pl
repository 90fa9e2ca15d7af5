# The splitter and the balancer on groups of partitioned tables: a chunk is as large as its rows in all partitions, of all tables of the group,
# whatever way they come and go; it is split and moved with all of them; a shard that is removed keeps none.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('balpart', settings => { 'tessera.orphan_cleanup_delay' => 0, 'tessera.balancer_interval' => 1,
	'tessera.max_moves_per_shard' => 2, 'tessera.split_interval' => 200 });
$c->start_nodes('s2', 's3');
$c->create(shards => 1, routers => 1);
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->query('s1', $_) foreach (
	'CREATE TABLE ev (k int NOT NULL, at int NOT NULL, what text, PRIMARY KEY (k, at)) PARTITION BY RANGE (at)',
	'CREATE TABLE ev_0 PARTITION OF ev FOR VALUES FROM (0) TO (100)',
	'CREATE TABLE ev_1 (what text, gone int, at int NOT NULL, k int NOT NULL)', 'ALTER TABLE ev_1 DROP COLUMN gone',
	'ALTER TABLE ev ATTACH PARTITION ev_1 FOR VALUES FROM (100) TO (200)',
	'CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (200) TO (300) PARTITION BY LIST (at)',
	'CREATE TABLE ev_2a PARTITION OF ev_2 FOR VALUES IN (200, 201)', 'CREATE TABLE ev_2d PARTITION OF ev_2 DEFAULT',
	"SELECT tessera.shard_table('ev', 'k', max_chunk_size => 1048576)",
	'CREATE TABLE note (k int PRIMARY KEY, what text)', "SELECT tessera.shard_table('note', 'k', colocate_with => 'ev')");

my $of = "table_name = 'ev'::regclass";
my $bytes = 'SELECT sum(e.bytes) FROM tessera.chunk_estimate AS e JOIN tessera.cluster_table AS t USING (group_id) ' .
  "WHERE t.relid = 'ev'::regclass";

# Waits until the group is taken for so many rows, of some 450 bytes each.
sub estimated
{
	my ($what, $rows) = @_;
	ok($c->wait_for('s1', "SELECT abs(($bytes) - $rows * 450) < $rows * 450 * 0.25 + 100000", 't', 60), "$what: about $rows rows")
	  or diag $c->query('s1', $bytes);
	return;
}

# ---- what the splitter knows

my $what = "repeat(md5(g::text), 12)";
$c->query('r1', "INSERT INTO ev SELECT g % 10000, g % 10 * 30, $what FROM generate_series(0, 9999) g");
estimated('rows of all partitions', 10_000);
$c->query('r1', "INSERT INTO ev_1 SELECT $what, 151, g FROM generate_series(1, 5000) g");
estimated('rows written by the name of a partition', 15_000);
$c->query('r1', "COPY ev_2d (k, at, what) FROM PROGRAM 'seq 1 3000 | sed \"s/\$/,250," . 'x' x 384 . "/\"' (FORMAT csv)");
estimated('COPY into a partition of a partition', 18_000);
$c->query('r1', "INSERT INTO note SELECT g, $what FROM generate_series(1, 4000) g");
estimated('rows of a table that lies with it', 22_000);
ok($c->wait_for('s1', "SELECT count(*) BETWEEN 8 AND 45 FROM tessera.chunks WHERE $of", 't', 90), 'chunks are split by the size in all partitions')
  or diag $c->query('s1', "SELECT min, max FROM tessera.chunks WHERE $of");
is($c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE $of AND jumbo"), 0, 'none of them is jumbo');
my $many = $c->query('s1', "SELECT count(*) FROM tessera.chunks WHERE $of");
$c->query('r1', 'TRUNCATE ev_1');
estimated('a partition that was emptied', 22_000 - 5_000 - 3_000);
$c->query('r1', "CREATE TABLE ev_4 (LIKE ev INCLUDING ALL)");
$c->query('s1', "SELECT tessera.shard_table('ev_4', 'k', colocate_with => 'ev')");
$c->query('r1', "INSERT INTO ev_4 SELECT g, 400, $what FROM generate_series(1, 6000) g");
$c->query('r1', 'ALTER TABLE ev ATTACH PARTITION ev_4 FOR VALUES FROM (400) TO (500)');
estimated('a partition that was attached', 20_000);
$c->query('r1', 'DROP TABLE ev_2d');
my $rows = $c->query('r1', 'SELECT (SELECT count(*) FROM ev) + (SELECT count(*) FROM note)');
estimated('a partition that was dropped', $rows);

# ---- one key with more rows than a chunk may have, in several partitions

$c->query('r1', "CREATE TABLE ev_wide PARTITION OF ev FOR VALUES FROM (10000) TO (30000)");
$c->query('r1', "INSERT INTO ev SELECT 77777, 10000 + g, $what FROM generate_series(0, 5999) g");
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.chunks WHERE $of AND jumbo", '1', 90),
	'one key that is too large is jumbo')
  or diag $c->query('s1', "SELECT min, max, jumbo FROM tessera.chunks WHERE $of");
$c->query('r1', 'DROP TABLE ev_wide');
estimated('and dropped with its partition', $rows);

# ---- the balancer

my $digest = 'SELECT md5(string_agg(e::text, E\'\n\' ORDER BY k, at)), count(*) FROM ev e UNION ALL ' .
  'SELECT md5(string_agg(n::text, E\'\n\' ORDER BY k)), count(*) FROM note n';
my $before = $c->query('r1', $digest);
$c->query('r1', 'CREATE TABLE ev_load PARTITION OF ev FOR VALUES FROM (250000) TO (260000)');
my $load = $c->pgbench_start(clients => 2, seconds => 600, rate => 50, max_tries => 50, nodes => [ 's1', 'r1' ], script => <<'SQL');
\set k random(20000, 29999)
INSERT INTO ev VALUES (:k, 250000 + :client_id, 'load') ON CONFLICT (k, at) DO UPDATE SET what = ev.what || '+';
SQL
$c->add_shard($_) foreach 's2', 's3';
$c->query('s1', 'SELECT tessera.start_balancer()');
my $even = "SELECT count(*) = 3 AND max(n) - min(n) < 0.4 * avg(n) FROM (SELECT tessera.range_owner('ev', k), count(*) AS n " .
  'FROM (SELECT k FROM ev WHERE at < 10000 UNION ALL SELECT k FROM note) AS t GROUP BY 1) AS s';
ok($c->wait_for('s1', $even, 't', 120), 'the balancer evens out') or diag $c->query('s1', 'SELECT * FROM tessera.explain_balancer()'),
  $c->query('s1', 'SELECT * FROM tessera.balancer_status LIMIT 20');
is($c->query('s1', "SELECT count(*) FROM tessera.balancer_status WHERE state = 'failed'"), 0, 'nothing has failed');
$c->query('s1', "SELECT tessera.remove_shard('s2')");
ok($c->wait_for('s1', "SELECT count(*) FROM tessera.node WHERE name = 's2'", '0', 180), 'a shard that is removed is emptied')
  or diag $c->query('s1', 'SELECT * FROM tessera.explain_balancer()'), $c->query('s1', 'SELECT * FROM tessera.balancer_status LIMIT 20');
$load->stop;
$c->query('s1', 'SELECT tessera.stop_balancer()');
$c->query('s1', 'DROP TABLE ev_load');
is($c->query('r1', $digest), $before, 'all rows are as they were');
is($c->query('s3', $digest), $before, 'on another node, too');
$c->is_settled('in the end');
$c->query('s2', 'DROP EXTENSION tessera CASCADE');
is($c->query('s2', 'SELECT count(*) FROM ev'), '0', 'nothing is left on it');
done_testing();
