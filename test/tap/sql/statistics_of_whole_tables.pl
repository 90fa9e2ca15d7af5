# Planning on a router goes by statistics of the whole table: collected by ANALYZE on any node and by the workers, merged at planning,
# under core's rules of who may see what they hold.
use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('statistics', settings => { 'tessera.statistics_interval' => 1, autovacuum => 'off' });
$c->create(shards => 2, routers => 1);

# Rows that a node expects of a query's first scan.
sub rows
{
	my ($node, $query) = @_;
	my $plan = $c->query($node, "EXPLAIN $query");
	my ($table) = $query =~ /FROM (\w+)/;
	return $plan =~ /Tessera Scan\) on $table .*?rows=(\d+)/ ? $1 : "no scan: $plan";
}

sub about
{
	my ($node, $query, $rows, $what) = @_;
	my $expected = rows($node, $query);
	return cmp_ok(abs($expected - $rows), '<=', 0.35 * $rows + 1, "$what ($expected rows expected, $rows there)");
}

my @tables = ('t (k int PRIMARY KEY, few int, many int, own text, maybe int, day date, kind kind, tags text[], city text COLLATE "C")',
	'u (k int PRIMARY KEY, v int)', 'placed (k int PRIMARY KEY, v int)');
foreach my $server ([ $c, 's1' ], [])
{
	my $run = sub { $server->[0] ? $c->query('s1', $_[0]) : $c->plain_query($_[0]) };
	$run->("CREATE TYPE kind AS ENUM ('a', 'b', 'c')");
	$run->("CREATE TABLE $_") foreach @tables;
}
$c->query('s1', "SELECT tessera.shard_table('$_', 'k')") foreach 't', 'u';
foreach my $table ('t', 'u')
{
	next if $table eq 'u';
	$c->query('s1', "SELECT tessera.split_chunk('t', 2000)");
	$c->query('s1', "SELECT tessera.move_chunk('t', 3000, 's2')");
}
# few: other values on each shard; many: as many as rows; own: the same 50 everywhere; maybe: half null
my $fill = "INSERT INTO t SELECT g, CASE WHEN g < 2000 THEN g % 4 ELSE 10 + g % 6 END, g * 7, 'v' || g % 50, CASE WHEN g % 2 = 0 THEN g % 10 END, " .
	"date '2020-01-01' + g / 10,"
  . " (CASE WHEN g % 10 = 0 THEN 'a' ELSE 'b' END)::kind, ARRAY['x', 'y' || g % 3], CASE WHEN g % 5 = 0 THEN 'Bonn' ELSE 'c' || g END FROM " .
  "generate_series(0, 4999) g";
$c->query('r1', $fill);
$c->plain_query($fill);

# Never analyzed: from the size of the heaps, as soon as a worker has looked.
ok($c->wait_for('r1', "SELECT count(*) FROM " .
	"(SELECT 1 FROM tessera.table_statistics s JOIN tessera.cluster_table t USING (table_id) WHERE t.table_name = 't' AND s.tuples > 500) x", 2),
	"the shards' sizes arrive by themselves");
cmp_ok(rows('r1', 'SELECT * FROM t'), '<', 20000, 'sizes without ANALYZE');

# ANALYZE on a node that owns nothing; its own plans know at once.
$c->query('r1', 'ANALYZE t');
$c->plain_query('ANALYZE t');
is($c->query($_, "SELECT count(*) > 0 FROM pg_stats WHERE tablename = 't'"), 't', "ANALYZE has run on $_") foreach 's1', 's2';
is(rows('r1', 'SELECT * FROM t'), 5000, 'a 5,000-row table has 5,000 rows');
my @queries = (
	'k < 500', 'k BETWEEN 1900 AND 2100', 'k >= 4000', 'few = 2', 'few = 12', 'few IN (1, 13)', 'many < 7000', 'many > 30000', "own = 'v7'",
	'maybe IS NULL', 'maybe = 4',
	"day < '2020-02-20'", "day >= '2021-01-01'", "kind = 'a'", "kind = 'b'", "tags @> ARRAY['y1']", "city = 'Bonn'", "city < 'c2'", "own LIKE 'v1%'");
foreach my $where (@queries)
{
	about('r1', "SELECT * FROM t WHERE $where", $c->query('r1', "SELECT count(*) FROM t WHERE $where"), "WHERE $where");
}
# The rows of the top node that groups; the shards do that by themselves where the key is among the columns.
sub groups { my ($plan) = @_; return $plan =~ /(?:Aggregate|Unique|Group|^Custom Scan).*?rows=(\d+)/m ? $1 : -1 }
foreach my $column ('few', 'own', 'many', 'maybe', 'k')
{
	my $mine = groups($c->query('r1', "EXPLAIN SELECT $column FROM t GROUP BY $column"));
	my $plain = groups($c->plain_query("EXPLAIN SELECT $column FROM t GROUP BY $column"));
	cmp_ok(abs($mine - $plain), '<=', 0.3 * $plain + 1, "groups by $column: $mine as on one server, $plain");
}

# The others hear of it.
ok($c->wait_for($_, 'EXPLAIN SELECT * FROM t', qr/Tessera Scan.*rows=5000/), "$_ has heard of ANALYZE") foreach 's1', 's2';

# A cached plan is made anew.
my $session = $c->session('r1');
$session->query_safe('SET plan_cache_mode = force_generic_plan; PREPARE p AS SELECT * FROM u WHERE v > 0');
like($session->query_safe('EXPLAIN EXECUTE p'), qr/Tessera Scan/, 'planned before there are statistics');
$c->query('s2', 'INSERT INTO u SELECT g, g FROM generate_series(1, 300) g; ANALYZE u');
my $found = 0;
for (1 .. 600) { last if $found = $session->query_safe('EXPLAIN EXECUTE p') =~ /rows=300\b/; select(undef, undef, undef, 0.05) }
ok($found, 'a prepared statement is planned anew when statistics arrive');

# Column lists, several tables, options, errors and rights as core's.
$c->query('r1', 'INSERT INTO placed SELECT g, g % 7 FROM generate_series(1, 700) g');
my ($status, undef, $messages) = $c->psql('r1', 'ANALYZE (VERBOSE, SKIP_LOCKED) t (few, k), placed');
is($status, 0, 'options, columns, two tables');
like($messages, qr/"t": scanned \d+ of \d+ pages, containing [1-9]\d* live rows/, 'VERBOSE tells of the shards');
about('r1', 'SELECT * FROM placed LEFT JOIN u ON u.v = placed.k WHERE placed.v = 3', 100, 'a placed table on another node');
like($c->error('r1', 'ANALYZE t (nocolumn)'), qr/42703/, 'no such column');
like($c->error('r1', 'ANALYZE t, nosuch'), qr/42P01/, 'no such table');
$c->query('s1', 'CREATE ROLE stranger LOGIN; GRANT SELECT (k) ON t TO stranger');
($status, undef, $messages) = $c->psql('r1', 'SET ROLE stranger; ANALYZE t');
is($status, 0, "another's table is skipped");
is(scalar(() = $messages =~ /skipping "t"/g), 1, 'with one WARNING');

# In transactions: what it has made and locked; undone with it; read only; repeatable read.
$c->query('r1', 'BEGIN; CREATE TABLE young (k int PRIMARY KEY); INSERT INTO young SELECT generate_series(1, 40); ANALYZE young; COMMIT');
is(rows('r1', 'SELECT * FROM young LEFT JOIN u ON u.v = young.k'), 40, 'a table of the same transaction');
is($c->query('r1', 'BEGIN; LOCK TABLE u; ANALYZE u; COMMIT; SELECT 1'), 1, 'a locked table');
is($c->query('r1', 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM u; ANALYZE u; COMMIT; SELECT 1'), "300\n1", 'repeatable read');
is($c->query('r1', 'BEGIN READ ONLY; ANALYZE u; COMMIT; SELECT 1'), 1, 'read only');
$c->query('r1', 'BEGIN; INSERT INTO u SELECT g, g FROM generate_series(1001, 1900) g; SAVEPOINT s; ANALYZE u; ROLLBACK TO s; COMMIT');
$c->query('r1', 'ANALYZE');
is(rows('r1', 'SELECT * FROM u'), 1200, 'ANALYZE without a list: tables of the cluster, too');

# Two at once, crosswise.
my @both = map { $c->session($_) } 's1', 's2';
$_->query_until(qr/begun/, "\\echo begun\nANALYZE t; ANALYZE t; ANALYZE t, u; SELECT 'fine';\n") foreach @both;
foreach my $one (@both) { like($one->query_safe("SELECT 'done'"), qr/done/, 'ANALYZE from two nodes at once') }

# Who may not read the values gets no estimate from them by way of an operator of his own; row security and column rights are core's.
$c->query('s1', q{CREATE FUNCTION leak(int, int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''value %'', $1; RETURN $1 < $2; END' COST 1});
$c->query('s1', q{CREATE OPERATOR <<< (LEFTARG = int, RIGHTARG = int, FUNCTION = leak, RESTRICT = scalarltsel)});
(undef, undef, $messages) = $c->psql('r1', 'EXPLAIN SELECT * FROM t WHERE many <<< 700');
like($messages, qr/value/, 'the owner sees values of statistics');
$c->query('s1', 'GRANT USAGE ON SCHEMA public TO stranger; CREATE VIEW barrier WITH (security_barrier) AS SELECT * FROM t WHERE few = 1; GRANT ' .
	'SELECT ON barrier TO stranger');
(undef, undef, $messages) = $c->psql('r1', 'SET ROLE stranger; EXPLAIN SELECT k FROM t WHERE many <<< 700');
unlike($messages, qr/value \d/, 'a column that may not be read');
(undef, undef, $messages) = $c->psql('r1', 'SET ROLE stranger; EXPLAIN SELECT k FROM barrier WHERE many <<< 700');
unlike($messages, qr/value \d/, 'behind a security barrier');
$c->query('s1', 'CREATE ROLE reader LOGIN; GRANT SELECT ON u TO reader; ALTER TABLE u ENABLE ROW LEVEL SECURITY; CREATE ' .
	'POLICY p ON u USING (v < 10)');
(undef, undef, $messages) = $c->psql('r1', 'SET ROLE reader; EXPLAIN SELECT k FROM u WHERE v <<< 700');
unlike($messages, qr/value \d/, 'behind row security');
like($c->error('r1', 'SET ROLE reader; SELECT * FROM tessera.table_statistics'), qr/42501/, 'nobody reads the table itself');

# A worker notices what a shard's autovacuum does.
$c->query('s2', 'SET tessera.replicate_ddl = off; DELETE FROM t WHERE k >= 4000');
$c->node('s2')->append_conf('postgresql.conf', "autovacuum = on\nautovacuum_naptime = 1\nautovacuum_analyze_threshold = " .
	"10\nautovacuum_analyze_scale_factor = 0.01\nautovacuum_vacuum_threshold = 10\nautovacuum_vacuum_scale_factor = 0.01\n");
$c->node('s2')->reload;
ok($c->wait_for('r1', 'EXPLAIN SELECT * FROM t', qr/rows=4000\b/), "autovacuum's figures reach a router");

# Renamed, moved, dropped, a shard down, a new node.
$c->query('r1', 'ALTER TABLE t RENAME TO t2; ALTER TABLE t2 RENAME COLUMN few TO several');
is(rows('r1', 'SELECT * FROM t2'), 4000, 'statistics follow a rename');
ok($c->wait_for('r1', 'EXPLAIN SELECT * FROM t2 WHERE several = 2', qr/rows=500\b/), 'and that of a column');
$c->query('r1', 'ALTER TABLE t2 RENAME COLUMN several TO few; ALTER TABLE t2 RENAME TO t');
$c->query('s1', "SELECT tessera.move_range('t', tessera.minkey(), 2000, 's2')");
ok($c->wait_for('r1', 'EXPLAIN SELECT * FROM t', qr/rows=(3[5-9]\d\d|4\d\d\d)\b/), 'after a move of everything');
ok($c->wait_for('s1', 'SELECT count(*) FROM tessera.range_deletions', 0), 'what was left behind is deleted');
$c->query('r1', 'ANALYZE t');
is(rows('r1', 'SELECT * FROM t'), 4000, 'and after ANALYZE');
$c->stop('s2', 'immediate');
is(rows('r1', 'SELECT * FROM t'), 4000, 'a shard that is down keeps its last');
like($c->error('r1', 'ANALYZE t'), qr/08006.*s2/s, 'ANALYZE names it');
$c->start('s2');
$c->start_node('r2', extension => 1);
$c->query('r2', "CREATE ROLE $_ LOGIN") foreach 'stranger', 'reader';
$c->add_router('r2');
ok($c->wait_for('r2', 'EXPLAIN SELECT * FROM t', qr/rows=4000\b/), 'a new router learns them');
$c->query('r1', 'DROP TABLE t, placed CASCADE');
ok($c->wait_for('r1', 'SELECT count(*) FROM tessera.table_statistics s WHERE NOT EXISTS (SELECT FROM tessera.cluster_table t WHERE t.table_id = ' .
	's.table_id)', '0'), 'gone with the table');

done_testing();
