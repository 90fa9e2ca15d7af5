# SELECTs whose tables all go by one shard key are answered by each shard for itself: outer joins, subqueries, WITH, DISTINCT, windows. The same
# answers as a plain server, from a node that owns nothing and from one that owns a part; what only looks so goes another way.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('closed');
$c->create(shards => 3, routers => 1);
my $plain = $c->plain;
my $schema = <<'SQL';
CREATE TABLE t (k int NOT NULL, n int NOT NULL, v int, w text, PRIMARY KEY (k, n));
CREATE TABLE u (k int PRIMARY KEY, v int, w text);
CREATE TABLE far (k int PRIMARY KEY, v int);
CREATE TABLE two (a int, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE two_more (a int, b text, n int, PRIMARY KEY (a, b, n));
CREATE TABLE here (k int PRIMARY KEY, v int);
CREATE VIEW tv AS SELECT k, n, v FROM t WHERE v IS NOT NULL;
CREATE FUNCTION largest() RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT max(v) FROM u); END';
CREATE VIEW reads AS SELECT k, n, v FROM t WHERE v < largest();
SQL
my $rows = <<'SQL';
INSERT INTO t SELECT g, n, CASE WHEN (g + n) % 5 > 0 THEN (g * 7 + n) % 40 END, 'text ' || (g + n) % 9
  FROM generate_series(1, 600) g, generate_series(1, 3) n WHERE (g + n) % 7 > 0;
INSERT INTO u SELECT g, g % 23, 'text ' || g % 5 FROM generate_series(-50, 700, 2) g;
INSERT INTO far SELECT g, g % 23 FROM generate_series(1, 100) g;
INSERT INTO two SELECT g % 20, 'b' || g / 20, g FROM generate_series(1, 300) g;
INSERT INTO two_more SELECT g % 20, 'b' || g / 20, n FROM generate_series(1, 400, 3) g, generate_series(1, 2) n;
INSERT INTO here SELECT g, g % 23 FROM generate_series(1, 100) g;
SQL
$_->('s1') foreach sub { $c->query($_[0], $schema) };
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('t', 'k'), tessera.shard_table('far', 'k', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('u', 'k', colocate_with => 't')});
$c->query('s1', q{SELECT tessera.shard_table('two', 'a, b', 'hash', chunks => 9)});
$c->query('s1', q{SELECT tessera.shard_table('two_more', 'a, b', 'hash', colocate_with => 'two')});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('t', 200, 400, 's2'), tessera.move_range('t', 400, tessera.maxkey(), 's3')});

# By the shards alone.
my @closed = (
	'SELECT t.k, n, u.v FROM t LEFT JOIN u ON u.k = t.k',
	'SELECT u.k, u.v, t.n FROM t RIGHT JOIN u ON u.k = t.k AND t.v > 10',
	'SELECT u.k, t.n FROM u LEFT JOIN t USING (k) WHERE t.k IS NULL',
	'SELECT a.k, a.n, b.n, u.w FROM t a JOIN t b USING (k) LEFT JOIN u USING (k) WHERE a.v < b.v',
	'SELECT k, w FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k AND t.v > 20)',
	'SELECT k, w FROM u WHERE NOT EXISTS (SELECT FROM t WHERE t.k = u.k AND t.v > 20)',
	'SELECT k FROM u WHERE k IN (SELECT k FROM t WHERE v = 3)',
	'SELECT k, (SELECT max(v) FROM t WHERE t.k = u.k), (SELECT n FROM t WHERE t.k = u.k ORDER BY v DESC NULLS LAST, n LIMIT 1) FROM u',
	'SELECT DISTINCT k FROM t',
	'SELECT DISTINCT k, v FROM t WHERE v > 10',
	'SELECT DISTINCT ON (k) k, n, v FROM t ORDER BY k, v DESC NULLS LAST, n',
	'SELECT DISTINCT ON (k) n, v FROM t ORDER BY k, v DESC NULLS LAST, n',
	'SELECT k, n, rank() OVER (PARTITION BY k ORDER BY v NULLS FIRST, n), sum(v) OVER (PARTITION BY k) FROM t',
	'SELECT k, n, row_number() OVER w, first_value(v) OVER w FROM t WINDOW w AS (PARTITION BY k, v ORDER BY n)',
	'SELECT t.k, count(*), sum(u.v), avg(t.v) FROM t LEFT JOIN u ON u.k = t.k GROUP BY t.k',
	'SELECT t.k, t.v, count(u.*) FROM t LEFT JOIN u ON u.k = t.k GROUP BY t.k, t.v HAVING count(*) > 1',
	'SELECT k, max(v) - min(v) AS d, rank() OVER (PARTITION BY k ORDER BY k) FROM t GROUP BY k HAVING (SELECT u.v FROM u WHERE u.k = t.k) > 3',
	'WITH x AS (SELECT k, max(v) AS m FROM t GROUP BY k) SELECT u.k, x.m FROM u JOIN x USING (k)',
	'WITH x AS (SELECT k, max(v) AS m FROM t GROUP BY k) SELECT u.k, x.m FROM u LEFT JOIN x USING (k)',
	'SELECT u.k, s.c FROM u JOIN (SELECT k, count(*) AS c FROM t GROUP BY k) s ON s.k = u.k WHERE s.c > 1',
	'SELECT u.k, s.v FROM u, LATERAL (SELECT v FROM t WHERE t.k = u.k ORDER BY v NULLS LAST LIMIT 1) s',
	'SELECT u.k, g, x.v FROM u CROSS JOIN generate_series(1, 2) g LEFT JOIN t x ON x.k = u.k AND x.n = g',
	'SELECT two.a, two.b, m.n FROM two LEFT JOIN two_more m USING (a, b)',
	'SELECT DISTINCT b, a FROM two_more',
	'SELECT tv.k, tv.n, u.v FROM tv LEFT JOIN u ON u.k = tv.k',
	'SELECT u.k FROM u WHERE u.v = ANY (SELECT v FROM t WHERE t.k = u.k)',
	'SELECT u.k, u.v FROM u WHERE u.v > ALL (SELECT v FROM t WHERE t.k = u.k AND v IS NOT NULL)',
	'SELECT DISTINCT k, generate_series(1, 2) FROM t WHERE k < 30',
	'SELECT u.k, now() > $$2000-01-01$$, u.k = 5 FROM u LEFT JOIN t ON t.k = u.k WHERE t.k IS NULL AND u.w <> current_user');
# With an order and a limit, made here.
my @ordered = (
	'SELECT t.k, n, u.v FROM t LEFT JOIN u ON u.k = t.k ORDER BY u.v DESC NULLS LAST, t.k, n',
	'SELECT t.k, n FROM t LEFT JOIN u ON u.k = t.k ORDER BY u.v, t.w COLLATE "C" DESC, t.k, n LIMIT 25',
	'SELECT t.k, n FROM t LEFT JOIN u ON u.k = t.k ORDER BY u.v, t.w DESC, t.k, n OFFSET 1000 LIMIT 25',
	'SELECT DISTINCT k FROM t ORDER BY k DESC LIMIT 7 OFFSET 3',
	'SELECT DISTINCT ON (k) k, v FROM t ORDER BY k, v DESC NULLS LAST LIMIT 12',
	'SELECT k, rank() OVER (PARTITION BY k ORDER BY n) AS r FROM t ORDER BY r DESC, k FETCH FIRST 5 ROWS WITH TIES',
	'SELECT k FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k) ORDER BY k DESC OFFSET 4 ROWS FETCH FIRST 3 ROWS WITH TIES',
	'SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY w, k LIMIT 0',
	'SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY w, k OFFSET 100000',
	'SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY w, k LIMIT NULL OFFSET 280',
	'SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY w, k LIMIT 9223372036854775807 OFFSET 285',
	'SELECT t.k, count(*) AS c FROM t LEFT JOIN u USING (k) GROUP BY t.k ORDER BY sum(t.v) DESC NULLS LAST, t.k LIMIT 10',
	'SELECT k, (SELECT max(v) FROM t WHERE t.k = u.k) AS m FROM u ORDER BY m DESC NULLS LAST, k LIMIT 10');
# Not: rows of other keys matter, or the key is not there for every row.
my @others = (
	'SELECT t.k, u.k FROM t FULL JOIN u ON u.k = t.k',
	'SELECT u.k, t.n FROM u LEFT JOIN t ON t.n = u.v',
	'SELECT k FROM u WHERE k NOT IN (SELECT k FROM t WHERE v = 3)',
	'SELECT k FROM u WHERE k IN (SELECT k FROM t ORDER BY v, k, n LIMIT 20)',
	'SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.v = u.v)',
	'SELECT k FROM u WHERE v = (SELECT max(v) FROM t)',
	'SELECT DISTINCT v FROM t',
	'SELECT DISTINCT ON (v) v, k, n FROM t ORDER BY v, k, n',
	'SELECT k, n, rank() OVER (ORDER BY v, k, n) FROM t',
	'SELECT k, n, sum(v) OVER (PARTITION BY k), count(*) OVER () FROM t',
	'SELECT u.k, count(*) FROM t LEFT JOIN u ON u.k = t.k GROUP BY u.k',
	'SELECT DISTINCT u.k FROM t LEFT JOIN u ON u.k = t.k',
	'SELECT u.v, count(*) FROM t LEFT JOIN u ON u.k = t.k GROUP BY u.v',
	'SELECT t.k, count(*) FROM t LEFT JOIN u ON u.k = t.k GROUP BY ROLLUP (t.k)',
	'SELECT count(*) FROM t LEFT JOIN u ON u.k = t.k',
	'SELECT k FROM t UNION SELECT k FROM u',
	'SELECT u.k, s.m FROM u CROSS JOIN (SELECT max(v) AS m FROM t) s',
	'SELECT u.k FROM u LEFT JOIN (SELECT k, v FROM t ORDER BY v, k, n LIMIT 30) s ON s.k = u.k WHERE s.k IS NULL',
	'SELECT u.k, far.v FROM u LEFT JOIN far ON far.k = u.k',
	'SELECT u.k, here.v FROM u LEFT JOIN here ON here.k = u.k',
	'SELECT g, t.n FROM generate_series(1, 10) g LEFT JOIN t ON t.k = g',
	'WITH x AS (SELECT k, max(v) AS m FROM t GROUP BY k) SELECT u.k FROM u JOIN x USING (k) WHERE m = (SELECT max(m) FROM x)',
	'SELECT a, max(v) FROM two LEFT JOIN two_more m USING (a, b) GROUP BY a',
	'SELECT DISTINCT k FROM reads',
	'SELECT m.a, two.v FROM two LEFT JOIN two_more m USING (a) WHERE m.n = 1 AND two.v < 50');

sub plan { my ($sql) = @_; return $c->query('r1', "EXPLAIN (COSTS off) $sql"); }
my $whole = qr{Custom Scan \(Tessera\)};

sub compare
{
	my ($what) = @_;
	$c->same_answers($what, [ @closed, @others ], [ 'r1', 's1' ], any_order => 1);
	$c->same_answers($what, \@ordered, [ 'r1', 's1' ]);
	return;
}

compare('at rest');
my %plan;
@plan{ @closed, @ordered, @others } = $c->answers('r1', map { "EXPLAIN (COSTS off) $_" } @closed, @ordered, @others);
diag $plan{ $closed[0] };
like($plan{$_}, $whole, "whole: $_") foreach @closed, @ordered;
unlike($plan{$_}, $whole, "not whole: $_") foreach @others;
unlike(plan('SELECT k, n FROM t WHERE v = 3'), $whole, 'a simple scan stays one');
unlike(plan('SELECT random(), k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k)'), $whole, 'what is volatile is not sent');
like($c->query($_->[0], "EXPLAIN ($_->[1]) SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY w, k LIMIT 3"),
	qr/Limit.*Sort.*Sort Key: .*$whole/s, "EXPLAIN ($_->[1]) on $_->[0]")
  foreach [ 'r1', 'COSTS off' ], [ 'r1', 'VERBOSE' ], [ 's1', 'ANALYZE, VERBOSE' ], [ 'r1', 'ANALYZE, BUFFERS' ];
like($c->error('r1', 'SELECT DISTINCT k FROM t ORDER BY k LIMIT -1'), qr/2201W/, 'a limit that is wrong');
like($c->error('r1', 'SELECT DISTINCT k FROM t ORDER BY k LIMIT 1 OFFSET -2'), qr/2201X/, 'and an offset');
like($c->query('r1', "EXPLAIN (ANALYZE, COSTS off, TIMING off) SELECT DISTINCT k FROM t ORDER BY k $_"), qr/Custom Scan[^\n]*rows=9 /,
	"shards send as many: $_")
	foreach 'LIMIT 3', 'LIMIT 2 OFFSET 1', 'FETCH FIRST 3 ROWS WITH TIES', 'LIMIT (2 + 1)';

# Parameters, generic plans, own writes, cursors.
foreach my $node ('r1', 's1')
{
	my $session = $c->session($node);
	my $sql = 'SELECT u.k, t.n, u.v + %s FROM u LEFT JOIN t ON t.k = u.k AND t.v > %s ORDER BY u.v, u.k, t.n LIMIT %s';
	$session->query_safe('PREPARE p (int, int, int) AS ' . sprintf($sql, '$1', '$2', '$3'));
	my $expected = $c->plain_query(sprintf($sql, 5, 10, 30));
	is($session->query_safe('EXECUTE p (5, 10, 30)'), $expected, "prepared on $node, run $_") foreach 1 .. 7;
	$sql = 'SELECT DISTINCT k FROM t ORDER BY k LIMIT $1 OFFSET $2';
	$session->query_safe("PREPARE page AS $sql");
	foreach my $arguments ('3, 4', 'NULL, 190', '0, NULL', '9223372036854775807, 195', '4, 9223372036854775807', '3, NULL', 'NULL, NULL', '2, 0')
	{
		is($session->query_safe("EXECUTE page ($arguments)"), $c->plain_query("PREPARE page AS $sql; EXECUTE page ($arguments)"),
			"a page on $node: $arguments");
	}
	$session->query_safe('BEGIN');
	$session->query_safe('DECLARE cu SCROLL CURSOR FOR SELECT DISTINCT k FROM t ORDER BY k');
	$session->query_safe('INSERT INTO t VALUES (100000, 1, 1)');
	is($session->query_safe('SELECT DISTINCT k FROM t WHERE k > 50000'), 100000, "$node: own writes are seen");
	is($session->query_safe('FETCH LAST FROM cu'), $c->plain_query('SELECT max(k) FROM t'), "$node: not by a cursor");
	is($session->query_safe('FETCH FIRST FROM cu'), $c->plain_query('SELECT min(k) FROM t'), "$node: which goes back");
	$session->query_safe('ROLLBACK');
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($session->query_safe($_), $c->plain_query($_), "$node: in a snapshot")
	  foreach 'SELECT count(*) FROM (SELECT DISTINCT k FROM t) s', $ordered[0];
	$session->query_safe('COMMIT');
	is($session->query_safe(q{CREATE TEMP TABLE copy AS SELECT DISTINCT k FROM t; SELECT count(*) FROM copy}),
		$c->plain_query('SELECT count(DISTINCT k) FROM t'), "$node: CREATE TABLE AS");
	$session->quit;
}

# Loops of PL/pgSQL that write to what they read, and cursors there.
my $loop = <<'SQL';
DO $$
DECLARE
  r record; n int := 0; c refcursor;
BEGIN
  FOR r IN SELECT t.k, u.v FROM t LEFT JOIN u USING (k) WHERE t.k < 450 ORDER BY 1 LOOP
    INSERT INTO t VALUES (r.k, 1000 + n, 1);
    n := n + 1;
  END LOOP;
  OPEN c FOR SELECT DISTINCT k FROM t WHERE k > 100;
  DELETE FROM t WHERE k > 300;
  LOOP
    FETCH c INTO r;
    EXIT WHEN NOT FOUND;
    n := n + 10000;
  END LOOP;
  RAISE EXCEPTION 'n is %', n;
END
$$
SQL
my ($counted) = ($plain->psql('postgres', $loop))[2] =~ /(n is \d+)/;
like($c->error($_, $loop), qr/\Q$counted\E$/m, "PL/pgSQL on $_: $counted") foreach 'r1', 's1';

# A column in ORDER BY or DISTINCT ON is not the output column of its name; nor are the names that are given to columns only sorted by.
$c->query('s1', 'CREATE TABLE odd (k int PRIMARY KEY, order_1 int, tessera_1 int, v int); SELECT tessera.shard_table(\'odd\', \'k\')');
$c->query('s1', "SELECT tessera.move_range('odd', 10, tessera.maxkey(), 's2')");
$c->plain_query('CREATE TABLE odd (k int PRIMARY KEY, order_1 int, tessera_1 int, v int)');
$c->query('r1', 'INSERT INTO odd SELECT g, -g % 7, g * 5 % 19, g % 3 FROM generate_series(1, 20) g');
$c->plain_query('INSERT INTO odd SELECT g, -g % 7, g * 5 % 19, g % 3 FROM generate_series(1, 20) g');
foreach my $select ('SELECT -n AS n, v FROM t WHERE k = 4 ORDER BY t.n LIMIT 1', 'SELECT DISTINCT ON (k) k, -n AS n FROM t ORDER BY k, t.n',
	'SELECT DISTINCT ON (k) v AS n, n AS v, k FROM t ORDER BY k, t.v DESC NULLS LAST, t.n LIMIT 20',
	"SELECT -k AS k, v FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k) ORDER BY u.k LIMIT '3'",
	"SELECT v, -v AS v, k FROM t WHERE k IN (SELECT k FROM u) ORDER BY t.v, k, t.n LIMIT '7'",
	"SELECT k FROM odd WHERE EXISTS (SELECT FROM t WHERE t.k = odd.k) ORDER BY v, order_1, tessera_1 LIMIT '5'",
	'SELECT k FROM odd ORDER BY v, tessera_1 LIMIT 3', 'SELECT -k AS v FROM odd ORDER BY odd.v, k LIMIT 4',
	'SELECT v AS k, k AS v FROM odd o ORDER BY o.k LIMIT 4',
	"SELECT max(v) AS k FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k) GROUP BY t.k ORDER BY t.k LIMIT '9'",
	'SELECT s.v AS k FROM (SELECT k, v FROM odd WHERE k = 12) s ORDER BY s.k')
{
	is($c->query($_, $select), $c->plain_query($select), "columns, on $_: $select") foreach 'r1', 's2';
}
$c->query('r1', 'CREATE MATERIALIZED VIEW named AS SELECT DISTINCT ON (odd.v) -v AS v, -k AS k FROM odd ORDER BY odd.v, odd.k');
is($c->query('s2', 'REFRESH MATERIALIZED VIEW named; SELECT * FROM named ORDER BY 1'),
	$c->plain_query('SELECT * FROM (SELECT DISTINCT ON (odd.v) -v AS v, -k AS k FROM odd ORDER BY odd.v, odd.k) s ORDER BY 1'),
	'columns, in a materialized view');

# What an aggregate or a domain calls, a sample, a record: as on one server.
foreach my $statement ('CREATE FUNCTION sum_of_u(bigint, int) RETURNS bigint VOLATILE LANGUAGE plpgsql AS $$ BEGIN ' .
	'RETURN coalesce($1, 0) + (SELECT count(*) FROM u); END $$', 'CREATE AGGREGATE of_u(int) (sfunc = sum_of_u, stype = bigint)',
	'CREATE FUNCTION below_u(int) RETURNS boolean STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN $1 < (SELECT count(*) FROM u); END $$',
	'CREATE DOMAIN below AS int CHECK (below_u(value))')
{
	$c->query('s1', $statement);
	$c->plain_query($statement);
}
foreach my $select ('SELECT k, of_u(n) FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k) GROUP BY k', 'SELECT of_u(n) FROM t WHERE k = 4',
	'SELECT k, of_u(n) OVER (PARTITION BY k ORDER BY n) FROM t WHERE k < 20', 'SELECT v::below FROM u WHERE k = 4',
	'SELECT k, v::below FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k)',
	q{SELECT u.k, x.* FROM u, jsonb_to_record('{"a":1}') AS x(a int) WHERE u.k = 4},
	q{SELECT u.k, x.* FROM u, jsonb_to_record('{"a":1}') AS x(a int) WHERE EXISTS (SELECT FROM t WHERE t.k = u.k)})
{
	is(join("\n", sort split(/\n/, $c->query($_, $select))), join("\n", sort split(/\n/, $c->plain_query($select))), "on $_: $select")
		foreach 'r1', 's2';
}
like($c->error($_, 'SELECT k FROM u TABLESAMPLE bernoulli((SELECT count(*) FROM far)) WHERE k = 4'), qr/0A000: TABLESAMPLE/, 'a sample by all')
	foreach 'r1', 's2';

# Numbers of tables differ from node to node, and so does their order.
foreach my $statement ('CREATE TABLE names (k int, n int, o regclass, PRIMARY KEY (k, n))', 'CREATE TABLE keys (k int PRIMARY KEY)')
{
	$c->query('s1', $statement);
	$c->plain_query($statement);
}
$c->query('s1', q{SELECT tessera.shard_table('names', 'k'); SELECT tessera.shard_table('keys', 'k', colocate_with => 'names')});
$c->query('s1', q{SELECT tessera.move_range('names', 0, 100, 's2'), tessera.move_range('names', 100, tessera.maxkey(), 's3')});
is($c->query('r1', 'SELECT count(*) FROM names; SELECT count(*) FROM keys'), "0\n0", 'where they are is known');
unlike(plan($_), $whole, "computed here: $_")
	foreach 'SELECT k, (SELECT array_agg(o ORDER BY o) FROM names WHERE names.k = keys.k) FROM keys',
	'SELECT k, (SELECT count(DISTINCT o) FROM names WHERE names.k = keys.k) FROM keys',
	'SELECT k, (SELECT n FROM names WHERE names.k = keys.k ORDER BY o LIMIT 1) FROM keys',
	q{SELECT k, string_agg(o::oid::text, ',') FROM names WHERE EXISTS (SELECT FROM keys WHERE keys.k = names.k) GROUP BY k};
like(plan('SELECT k, (SELECT array_agg(o ORDER BY n) FROM names WHERE names.k = keys.k) FROM keys'), $whole, 'names may go');

# The order of a subquery stays, as it does on one server: rows are inserted in it, too.
foreach my $select ('SELECT * FROM (SELECT k, n, u.v FROM t LEFT JOIN u USING (k) ORDER BY k % 7, k DESC, n) s',
	'WITH x AS (SELECT k, n FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k) ORDER BY n, k % 5, k DESC) SELECT * FROM x',
	'SELECT s.k, s.n FROM (SELECT * FROM (SELECT k, n FROM t ORDER BY k % 3, k, n) i) s WHERE n < 3',
	'WITH i AS (INSERT INTO here SELECT -row_number() OVER (), k FROM (SELECT DISTINCT k FROM t) d ORDER BY k % 9, k DESC RETURNING v) ' .
		'SELECT * FROM i',
	'WITH i AS (INSERT INTO here SELECT k - 100000, k FROM (SELECT k FROM t WHERE n = 1) d ORDER BY k % 9, k DESC RETURNING v) SELECT * FROM i')
{
	my $transaction = "BEGIN; $select; ROLLBACK";
	is($c->query($_, $transaction), $c->plain_query($transaction), "in order, on $_: $select") foreach 'r1', 's2';
}

# Rights.
$c->query('s1', 'CREATE ROLE reader LOGIN; GRANT SELECT (k, n) ON t TO reader; GRANT SELECT ON u TO reader; GRANT SELECT ON tv TO reader');
is($c->query('r1', 'SET ROLE reader; SELECT count(*) FROM (SELECT DISTINCT k, n FROM t) s'), $c->plain_query('SELECT count(*) FROM t'),
	'columns that may be read');
like($c->error('r1', 'SET ROLE reader; SELECT DISTINCT k, v FROM t'), qr/42501/, 'columns that may not');
like($c->error('r1', 'SET ROLE reader; SELECT k FROM u WHERE EXISTS (SELECT FROM t WHERE t.k = u.k AND v = 1)'), qr/42501/, 'nor in a subquery');
is($c->query('r1', 'SET ROLE reader; SELECT DISTINCT k FROM tv ORDER BY k LIMIT 1'), 1, 'a view reads as its owner');
$c->query('s1', q{ALTER TABLE u ENABLE ROW LEVEL SECURITY; CREATE POLICY even ON u USING (k % 4 = 0)});
is($c->query('r1', 'SET ROLE reader; SELECT count(*) FILTER (WHERE k % 4 <> 0), count(*) > 5 FROM (SELECT DISTINCT k FROM u) s'), '0|t',
	'row security holds');
$c->query('s1', 'ALTER TABLE u DISABLE ROW LEVEL SECURITY');

# While ranges move.
my $expected = $c->plain_query('SELECT count(*) FROM t LEFT JOIN u USING (k)');
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, rate => 30, script => <<"SQL")->begun;
BEGIN;
CREATE TEMP TABLE seen ON COMMIT DROP AS SELECT t.k, n, u.v FROM t LEFT JOIN u USING (k);
SELECT 1 / (count(*) = $expected)::int FROM seen;
COMMIT;
SELECT DISTINCT k FROM t ORDER BY k LIMIT 3;
SQL
$c->query('r1', "SELECT tessera.move_range('t', 100, 300, '$_')") foreach qw(s3 s1 s2 s3);
my $result = $load->end;
is("$result->{failed}|$result->{aborted}", '0|0', 'no statement failed or saw a row twice while ranges moved') or diag explain $result;
compare('after moves');
done_testing();
