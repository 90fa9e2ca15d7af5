# Groups and aggregates are made on the shards and combined on the router, joins on the key are made there: the same answers as a plain server, from a
# node that owns nothing and from one that owns a part, while ranges move, by the rights and settings of the caller.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('partial');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE m (k int NOT NULL, i2 int2, i4 int4, i8 int8, n numeric, f4 float4, f8 float8, t text, b bool,
  ts timestamptz, d date, iv interval, bit bit(8), mo mood, a int[], PRIMARY KEY (k));
CREATE TABLE e (k int PRIMARY KEY, v int);
CREATE TABLE o (k int, i int, w int8, s text, PRIMARY KEY (k, i));
CREATE TABLE q (a int, k int PRIMARY KEY, s text);
CREATE VIEW vm AS SELECT k, i4, t FROM m WHERE b;
SQL
my $rows = <<'SQL';
INSERT INTO m SELECT g, g % 7, g % 11, g::int8 * 1000000007, (g % 13) / 7.0, g % 5, g * 0.25, 'text ' || g % 17, g % 3 = 0,
  '2020-01-01 00:00+00'::timestamptz + g * interval '1 hour',
  '2020-01-01'::date + g % 400, g * interval '1 minute', (g % 256)::bit(8),
  (ARRAY['sad', 'ok', 'happy'])[1 + g % 3]::mood, ARRAY[g % 2, g % 3] FROM generate_series(1, 3000) g;
INSERT INTO o SELECT g, i, g * i, 'text ' || g % 5 FROM generate_series(0, 3200) g, generate_series(1, 3) i WHERE (g + i) % 4 <> 0;
INSERT INTO q SELECT g % 3, g, 'text ' || g % 17 FROM generate_series(1, 3050, 2) g;
INSERT INTO m (k, i4) SELECT g, CASE WHEN g % 2 = 0 THEN 3 END FROM generate_series(3001, 3100) g;
SQL
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('m', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 'm')}) foreach qw(o q);
$c->query('s1', q{SELECT tessera.shard_table('e', 'k', 'hash', chunks => 6)});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('m', 1000, 2000, 's2'), tessera.move_range('m', 2000, tessera.maxkey(), 's3')});

my @queries = (
	'SELECT count(*) FROM m',
	'SELECT count(*), count(i2), sum(i2), sum(i4), sum(i8), sum(n), avg(i2), avg(i4), avg(i8), avg(n) FROM m',
	'SELECT min(i4), max(i8), min(n), max(t), min(ts), max(d), min(iv), max(mo), min(a), max(f4) FROM m',
	'SELECT sum(iv), avg(iv), bool_and(b), bool_or(b), every(b IS NOT NULL), bit_and(bit), bit_or(i4), bit_xor(i8) FROM m',
	'SELECT round(stddev(i4), 6), round(variance(i8), 2), round(var_pop(n), 6), round(stddev(f8)::numeric, 6), round(corr(f8, i4)::numeric, 6),
	   round(regr_slope(f8, f4)::numeric, 6), regr_count(f8, f4) FROM m',
	'SELECT i4, count(*), avg(n), sum(i8) FROM m GROUP BY i4 ORDER BY i4',
	'SELECT t, mo, count(*) FROM m GROUP BY 1, 2 ORDER BY 1, 2',
	'SELECT i4 + 1, count(*) FROM m GROUP BY i4 + 1 ORDER BY 1',
	'SELECT date_trunc(\'month\', ts), avg(i8) FROM m GROUP BY 1 ORDER BY 1',
	'SELECT i4, avg(i8) FILTER (WHERE b), count(*) FILTER (WHERE i2 > 3) FROM m GROUP BY i4 ORDER BY i4',
	'SELECT i4, avg(f8) FROM m GROUP BY i4 HAVING avg(f8) > 374 AND count(*) > 10 ORDER BY i4',
	'SELECT i4 FROM m GROUP BY i4 HAVING max(i8) > 2990000020000 ORDER BY sum(n) DESC, i4',
	'SELECT i4, i2 FROM m GROUP BY i4, i2 ORDER BY i4, i2',
	'SELECT i4, count(*) * 2 + i4 FROM m GROUP BY i4 ORDER BY 2, 1',
	'SELECT i4, sum(count(*)) OVER (ORDER BY i4), rank() OVER (ORDER BY avg(n) DESC, i4) FROM m GROUP BY i4 ORDER BY i4',
	'SELECT count(*), avg(i4) FROM m WHERE k > 5000',
	'SELECT i4, count(*) FROM m WHERE k > 5000 GROUP BY i4',
	'SELECT count(*), avg(i8) FROM m WHERE k BETWEEN 1200 AND 1300',
	'SELECT count(*), sum(i4) FROM m WHERE t LIKE \'text 1%\' AND b',
	'SELECT count(*), avg(i4), max(t) FROM vm',
	'SELECT t, avg(i4) FROM vm GROUP BY t ORDER BY t',
	'SELECT count(*), avg(v) FROM e',
	'SELECT * FROM (SELECT i4 AS g, avg(n) AS a FROM m GROUP BY i4) s WHERE a > 0.8 ORDER BY g',
	'WITH s AS MATERIALIZED (SELECT i4 AS g, count(*) AS c FROM m GROUP BY i4) SELECT s.g, m.k FROM s JOIN m ON m.k = s.c ORDER BY 1, 2',
	'SELECT g, (SELECT avg(i8) FROM m WHERE i4 = g) FROM generate_series(0, 3) g ORDER BY g',
	'SELECT count(*) FROM m WHERE i8 > (SELECT avg(i8) FROM m)',
	'SELECT x.g, s.c FROM (VALUES (1), (2), (NULL)) x(g), LATERAL (SELECT count(*) AS c FROM m WHERE i4 = x.g) s ORDER BY 1',
	'SELECT count(DISTINCT i4), avg(i8) FROM m',
	'SELECT i4, array_agg(k ORDER BY k) FROM m WHERE k < 30 GROUP BY i4 ORDER BY i4',
	'SELECT i4, i2, count(*) FROM m WHERE i4 < 3 GROUP BY ROLLUP (i4, i2) ORDER BY 1, 2',
	'SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY i4) FROM m',
	'SELECT k, t, count(*) FROM m WHERE k < 10 GROUP BY k ORDER BY k',
	'SELECT count(m.*), count(ROW(i4, t)) FROM m',
	'SELECT sum(i4) FROM m UNION ALL SELECT count(*) FROM m UNION ALL SELECT max(v) FROM e',
	'SELECT avg(i4 + (SELECT 1)) FROM m',
	'SELECT * FROM (SELECT i4, i2 + 1 AS j, count(*)::int AS c, avg(k), max(i2) FROM m GROUP BY i4, i2 + 1) s WHERE j = i4 ORDER BY 1',
	'SELECT CASE WHEN b THEN t ELSE \'none\' END, avg(n) FROM m GROUP BY 1 ORDER BY 1',
	'SELECT b, avg(i4)::numeric(10, 3), avg(iv) FROM m GROUP BY b ORDER BY b NULLS FIRST',
	'SELECT t COLLATE "C", count(*) FROM m GROUP BY 1 ORDER BY 1',
	'SELECT max(t COLLATE "C") FROM m',
	'SELECT a, count(*) FROM m GROUP BY a ORDER BY a',
	'SELECT mo, avg(i8) FROM m GROUP BY mo ORDER BY mo',
	'SELECT count(*), sum(w), avg(n) FROM m JOIN o USING (k)',
	'SELECT m.k, o.i, q.s FROM m JOIN o ON o.k = m.k JOIN q ON q.k = o.k WHERE m.i4 = 3 AND q.a = 1 ORDER BY 1, 2',
	'SELECT count(*) FROM m, o, q WHERE m.k = o.k AND m.k = q.k AND o.s = m.t',
	'SELECT count(*) FROM m, o, q WHERE m.k = o.k AND o.w = q.k',
	'SELECT i4, count(*), max(o.s) FROM m JOIN o ON m.k = o.k AND o.i < m.i4 GROUP BY i4 ORDER BY i4',
	'SELECT x.k, y.k FROM q x JOIN q y ON x.k = y.k WHERE x.s < \'text 11\' AND y.a = 2 ORDER BY 1',
	'SELECT x.k, y.k FROM q x JOIN q y ON x.k = y.a WHERE x.k < 3 ORDER BY 1, 2 LIMIT 20',
	'SELECT count(*) FROM m LEFT JOIN o ON m.k = o.k',
	'SELECT m.k, count(o.k) FROM m LEFT JOIN (o JOIN q ON o.k = q.k) ON m.k = o.k AND q.a = 1 WHERE m.k BETWEEN 990 AND 1010 GROUP BY m.k
	   ORDER BY m.k',
	'SELECT m.k FROM m WHERE EXISTS (SELECT FROM o WHERE o.k = m.k AND w > 8000) ORDER BY m.k',
	'SELECT a.i4, b.s FROM (SELECT k, i4 FROM m WHERE b) a JOIN (SELECT k, s FROM q) b ON a.k = b.k WHERE a.k < 100 ORDER BY a.k',
	'SELECT count(*) FROM m JOIN o USING (k) JOIN e USING (k)',
	'SELECT v.x, count(*) FROM (VALUES (1), (2)) v(x) JOIN o ON o.i = v.x JOIN q ON q.k = o.k GROUP BY 1 ORDER BY 1',
	'SELECT (SELECT count(*) FROM m JOIN o ON m.k = o.k WHERE m.k < x) FROM generate_series(10, 30, 10) x ORDER BY 1',
	'SELECT m FROM q JOIN (SELECT k, i2 FROM m) m ON m.k = q.k WHERE q.k < 20 ORDER BY q.k',
	'SELECT o, q.s FROM o JOIN q ON o.k = q.k WHERE q.k < 10 ORDER BY o.k, o.i',
	'SELECT DISTINCT o.s, q.a FROM o JOIN q ON o.k = q.k ORDER BY 1, 2',
	'SELECT o.k, sum(o.w) OVER (PARTITION BY q.a ORDER BY o.k, o.i) FROM o JOIN q ON o.k = q.k WHERE q.k BETWEEN 1995 AND 2005 ORDER BY 1, 2',
	'SELECT count(*) FROM o JOIN q ON o.k = q.k AND o.k = 1500 AND o.i = 1',
	'SELECT count(*), min(m.k) FROM m JOIN q ON m.k = q.k AND (m.k = 7 OR q.k = 2501)',
	'SELECT ROW(i4, i2), count(*) FROM m GROUP BY ROW(i4, i2) ORDER BY 1',
	'SELECT ARRAY[ROW(i4, i2)], count(*) FROM m GROUP BY 1 ORDER BY 1',
	'SELECT bit, count(*), avg(i4) FROM m WHERE bit = 5::bit(8) GROUP BY bit',
	'SELECT count(*) FILTER (WHERE k > 10000 AND current_setting(\'app.none\')::int > i4) FROM m',
	'SELECT sum(i4 / current_setting(\'app.none\')::int) FROM m WHERE k > 1000000');

sub compare
{
	my ($when, @nodes) = @_;

	$c->same_answers($when, \@queries, \@nodes);
	return;
}

compare('at rest', qw(r1 s2));

my $plan = $c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT i4, count(*), avg(n) FROM m GROUP BY i4');
like($plan, qr/Finalize \w*Aggregate/, 'the router combines');
like($plan, qr/tessera\.partial\(avg\(n\), NULL::bytea\)/, 'states of avg travel');
like($plan, qr/GROUP BY i4/, 'the shards group');
$plan = $c->query('r1', 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT count(*) FROM m');
like($plan, qr/Tessera Scan\) \(actual rows=3 /, 'a row of each shard');
unlike($c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT count(DISTINCT i4) FROM m'), qr/partial/, 'what cannot be combined is not');

$plan = $c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) SELECT count(*) FROM m, o, q WHERE m.k = o.k AND o.k = q.k');
like($plan, qr/Remote SQL:  SELECT count\(\*\) AS c1\s+FROM m,\s+o,\s+q\s+WHERE/, 'a join of three tables is one query');
like($plan, qr/^Finalize Aggregate\n[^>]*->  Custom Scan \(Tessera Scan\)/, 'of which the router sees the counts');
like($c->query('r1', 'EXPLAIN (COSTS off) SELECT count(*) FROM m, o WHERE m.k = o.i'), qr/Join/, 'but by another column it is');

# Not a function for users.
like($c->error('r1', 'SELECT tessera.partial(avg(i4), NULL::bigint[]) FROM m'), qr/0A000/, 'tessera.partial by itself is refused');
like($c->error('r1', 'SELECT tessera.partial(count(*), NULL::text) FROM m WHERE k = 5'), qr/0A000/, 'also where one shard would answer');

my $session = $c->session('r1');
my $same = 'SELECT b, count(*), avg(i4) FROM m WHERE b = $1 GROUP BY b';
$session->query_safe("SET enable_hashagg = off; PREPARE one(bool) AS $same");
is($session->query_safe('EXECUTE one(true)'), $c->plain_query($same =~ s/\$1/true/r), 'one group by a parameter, sorted')
	foreach 1 .. 7;
$session->query_safe('SET plan_cache_mode = force_generic_plan; PREPARE by_none(int) AS SELECT $1, count(*), avg(i4) FROM m GROUP BY $1::int');
is($session->query_safe('EXECUTE by_none(7)'), $c->plain_query('SELECT 7, count(*), avg(i4) FROM m'), 'one group by a parameter alone')
	foreach 1 .. 2;
$session->quit;
# Nor within what is the user's on a shard: what stands above it, or beside it, would take a state for a result.
my $state = 'tessera.partial(avg(i4), NULL::bigint[])';
$c->query('s1', $_) foreach (
	"CREATE VIEW above AS SELECT k, float8send(avg(f8)) AS x, $state AS y FROM m GROUP BY k",
	'CREATE FUNCTION as_text(bigint) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT $1::text$$',
	'CREATE AGGREGATE largest(bigint) (sfunc = int8larger, stype = bigint, finalfunc = as_text, combinefunc = int8larger)',
	"CREATE VIEW own AS SELECT k, length(largest(i8)) AS x, $state AS y FROM m GROUP BY k",
	"CREATE FUNCTION inlined() RETURNS bigint[] STABLE LANGUAGE sql AS 'SELECT $state FROM m WHERE k = 5'");
like($c->error($_->[0], $_->[1]), qr/0A000/, "no user's statement uses it: $_->[1]") foreach map { [ 'r1', $_ ], [ 's1', $_ ] } (
	'SELECT * FROM above WHERE k = 5', 'SELECT * FROM own WHERE k = 5', 'SELECT x FROM own WHERE k = 5', 'SELECT inlined()',
	"UPDATE m SET i4 = 0 WHERE k = 5 AND (SELECT $state FROM m WHERE k = 5) IS NULL",
	"SELECT length(largest(i8)), $state FROM m WHERE k = 5", "SELECT float8send(avg(f8)), $state FROM m WHERE k = 5 GROUP BY k");
is($c->query('s1', 'SELECT count(*) FROM m WHERE k = 5'), 1, 'the servers are well');
$c->query('s1', $_) foreach ('DROP VIEW above, own', 'DROP FUNCTION inlined', 'DROP AGGREGATE largest(bigint)', 'DROP FUNCTION as_text');

# Parameters, generic plans, a local part.
foreach my $node (qw(r1 s1))
{
	my $session = $c->session($node);

	$session->query_safe('PREPARE p(int, text) AS SELECT i4 + $1 AS g, avg(n + $1), count(*) FROM m WHERE t > $2 GROUP BY i4 + $1 ORDER BY 1');
	my $expected = $c->plain_query(q{SELECT i4 + 4, avg(n + 4), count(*) FROM m WHERE t > 'text 12' GROUP BY i4 + 4 ORDER BY 1});
	is($session->query_safe(q{EXECUTE p(4, 'text 12')}), $expected, "prepared on $node, run $_") foreach 1 .. 7;
	$session->query_safe('BEGIN');
	$session->query_safe('DECLARE cu CURSOR FOR SELECT i4, count(*), avg(i8) FROM m GROUP BY i4 ORDER BY i4');
	$session->query_safe('UPDATE m SET i4 = 1000 WHERE k = 1500');
	is($session->query_safe('FETCH ALL FROM cu'), $c->plain_query('SELECT i4, count(*), avg(i8) FROM m GROUP BY i4 ORDER BY i4'),
		"a cursor on $node shows what was there when it opened");
	is($session->query_safe('SELECT max(i4), count(*) FROM m'), '1000|3100', 'own writes are seen');
	$session->query_safe('ROLLBACK');
	$session->quit;
}

# Rights: columns, views, row security.
$c->query('s1', <<'SQL');
CREATE ROLE reader LOGIN; GRANT SELECT (k, i4) ON m TO reader; GRANT SELECT ON vm TO reader;
CREATE TABLE secret (k int PRIMARY KEY, owner text, v int); GRANT SELECT ON secret TO reader; ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON secret USING (owner = current_user);
SQL
$c->query('s1', q{SELECT tessera.shard_table('secret', 'k', 'hash', chunks => 6)});
$c->query('s1', q{INSERT INTO secret SELECT g, CASE WHEN g % 2 = 0 THEN 'reader' ELSE 'postgres' END, g FROM generate_series(1, 100) g});
is($c->query('r1', 'SET ROLE reader; SELECT count(*), avg(i4)::int FROM m'), $c->plain_query('SELECT count(*), avg(i4)::int FROM m'),
	'columns that may be read');
like($c->error('r1', 'SET ROLE reader; SELECT avg(n) FROM m'), qr/42501/, 'columns that may not');
is($c->query('r1', 'SET ROLE reader; SELECT count(*), max(t) FROM vm'), $c->plain_query('SELECT count(*), max(t) FROM vm'),
	'a view reads as its owner');
is($c->query('r1', 'SET ROLE reader; SELECT count(*), sum(v) FROM secret'), '50|2550', 'row security holds');

# While ranges move, each count is that of one moment.
my ($joined, $keys) = split /\|/, $c->plain_query('SELECT count(*), sum(k) FROM m JOIN o USING (k)');
my $script = <<"SQL";
SELECT 1 / (count(*) = 3100 AND sum(k) = 4806550)::int FROM m;
SELECT 1 / (count(*) = $joined AND sum(k) = $keys)::int FROM m JOIN o USING (k);
SELECT 1 / (count(*) = 11)::int FROM (SELECT i4, avg(n) FROM m WHERE i4 IS NOT NULL GROUP BY i4) s;
SQL
my $load = $c->pgbench_start(nodes => [ 's1', 'r1' ], clients => 2, seconds => 600, script => $script)->begun;
foreach my $shard (qw(s3 s1 s2 s3))
{
	$c->query('r1', "SELECT tessera.move_range('m', 500, 1500, '$shard')");
}
my $result = $load->end;
is("$result->{failed}|$result->{aborted}", '0|0', 'no statement failed or saw a row twice while ranges moved') or diag explain $result;
cmp_ok($result->{processed}, '>', 0, 'statements ran');
compare('after moves', 'r1');

done_testing();
