# The first rows of an order, and groups by the whole key, are made on the shards: the same answers as a plain server, from a node that owns nothing
# and from one that owns a part, while ranges move, by the rights and settings of the caller.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('top');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE TABLE m (k int NOT NULL, i4 int4, n numeric, f8 float8, t text, tc text COLLATE "C", b bool, ts timestamptz, mo mood, a int[], s small,
  tessera_1 int, PRIMARY KEY (k));
CREATE TABLE e (k int PRIMARY KEY, v int);
CREATE TABLE o (k int, i int, w int8, s text, PRIMARY KEY (k, i));
CREATE TABLE p (a int, b text COLLATE "C", v int, PRIMARY KEY (a, b));
CREATE VIEW vm AS SELECT k, i4, t FROM m WHERE b;
CREATE VIEW barrier WITH (security_barrier) AS SELECT k, i4, t FROM m WHERE b;
CREATE FUNCTION reads(a int, b int) RETURNS bool LANGUAGE plpgsql AS $$BEGIN RETURN a < b AND (SELECT count(*) > 0 FROM e WHERE k = 1); END$$;
CREATE FUNCTION reads_cmp(a int, b int) RETURNS int LANGUAGE plpgsql AS
  $$BEGIN RETURN CASE WHEN (SELECT count(*) > 0 FROM e WHERE k = 1) THEN btint4cmp(a, b) END; END$$;
CREATE OPERATOR <# (LEFTARG = int, RIGHTARG = int, FUNCTION = reads);
CREATE OPERATOR CLASS by_reading FOR TYPE int USING btree AS OPERATOR 1 <#, OPERATOR 3 = (int, int), FUNCTION 1 reads_cmp(int, int);
CREATE FUNCTION here(x int) RETURNS text LANGUAGE plpgsql STABLE AS $$BEGIN RETURN 'f' || x; END$$;
SQL
my $rows = <<'SQL';
INSERT INTO m SELECT g, g % 11, (g % 13) / 7.0, CASE WHEN g % 50 = 0 THEN 'NaN' ELSE (g % 40) * 0.25 END,
  (ARRAY['a', 'B', 'b', 'A', 'Zz', 'zZ'])[1 + g % 6] || g % 17,
  (ARRAY['a', 'B', 'b', 'A', 'Zz', 'zZ'])[1 + g % 6] || g % 17, g % 3 = 0, '2020-01-01 00:00+00'::timestamptz + (g * 7919 % 3000) * interval '1 hour',
  (ARRAY['sad', 'ok', 'happy'])[1 + g % 3]::mood, ARRAY[g % 2, g % 3], g % 900, 3000 - g FROM generate_series(1, 3000) g;
INSERT INTO m (k, i4) SELECT g, CASE WHEN g % 2 = 0 THEN 3 END FROM generate_series(3001, 3100) g;
INSERT INTO o SELECT g, i, g * i, 'text ' || g % 5 FROM generate_series(0, 3200) g, generate_series(1, 3) i WHERE (g + i) % 4 <> 0;
INSERT INTO e SELECT g, g * 31 % 97 FROM generate_series(1, 500) g;
INSERT INTO p SELECT g % 20, 'x' || g % 7, g FROM generate_series(1, 140) g;
SQL
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('m', 'k')});
$c->query('s1', q{SELECT tessera.shard_table('o', 'k', colocate_with => 'm')});
$c->query('s1', q{SELECT tessera.shard_table('e', 'k', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('p', 'a, b', 'hash', chunks => 6)});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('m', 1000, 2000, 's2'), tessera.move_range('m', 2000, tessera.maxkey(), 's3')});

# What is pushed, and the same answer; %d is the number of a parameter in Remote SQL.
my @top = (
	'SELECT k FROM m ORDER BY k LIMIT 5',
	'SELECT k FROM m ORDER BY k DESC LIMIT 5 OFFSET 995',
	'SELECT k, i4 FROM m ORDER BY i4, k LIMIT 12',
	'SELECT k, i4 FROM m ORDER BY i4 NULLS FIRST, k DESC LIMIT 60',
	'SELECT k, i4 FROM m ORDER BY i4 DESC NULLS LAST, k LIMIT 4 OFFSET 2',
	'SELECT k, i4 FROM m ORDER BY i4 DESC, k LIMIT 55 OFFSET 3',
	'SELECT i4 FROM m ORDER BY i4 LIMIT 700',
	'SELECT f8, k FROM m ORDER BY f8 DESC NULLS LAST, k LIMIT 70',
	'SELECT n, k FROM m ORDER BY n USING >, k USING < LIMIT 7 OFFSET 100',
	'SELECT t, k FROM m ORDER BY t, k LIMIT 40',
	'SELECT t, k FROM m ORDER BY t DESC NULLS LAST, k LIMIT 40 OFFSET 10',
	'SELECT tc, k FROM m ORDER BY tc, k LIMIT 40',
	'SELECT mo, k FROM m ORDER BY mo DESC NULLS LAST, k LIMIT 9',
	'SELECT a, b, k FROM m ORDER BY b, a, k LIMIT 9',
	'SELECT s, k FROM m ORDER BY s DESC NULLS LAST, k LIMIT 9',
	'SELECT ts FROM m WHERE ts > \'2020-01-05\' ORDER BY ts LIMIT 9',
	'SELECT k + 1, i4 * 2 FROM m ORDER BY i4 * 2 DESC NULLS LAST, k + 1 LIMIT 9',
	'SELECT k FROM m ORDER BY length(t), abs(k - 1500), k LIMIT 9',
	'SELECT here(k), upper(t) FROM m ORDER BY lower(t), k LIMIT 6',
	'SELECT k AS tessera_1, tessera_1 AS tessera_2 FROM m ORDER BY m.tessera_1 LIMIT 3',
	'SELECT (SELECT count(*) FROM e WHERE e.v = m.i4), k FROM m ORDER BY k DESC LIMIT 3',
	'SELECT k, 1 / nullif(i4, 0) FROM m WHERE i4 <> 0 ORDER BY k LIMIT 3 OFFSET 5000',
	'SELECT k FROM m ORDER BY k LIMIT 0',
	'SELECT k FROM m WHERE k BETWEEN 990 AND 1010 ORDER BY k LIMIT 15 OFFSET 3',
	'SELECT k FROM m WHERE k > 5000 ORDER BY k LIMIT 15',
	'SELECT k FROM m ORDER BY k LIMIT 9223372036854775807 OFFSET 3095',
	'SELECT k FROM m ORDER BY k LIMIT (SELECT 3) OFFSET (SELECT 2)',
	'SELECT k, t FROM vm ORDER BY t, k LIMIT 10',
	'SELECT v, k FROM e ORDER BY v, k LIMIT 10',
	'SELECT a, b FROM p ORDER BY b DESC, a LIMIT 10',
	'SELECT m.k, o.i, o.w FROM m JOIN o USING (k) WHERE m.b ORDER BY o.w DESC, m.k LIMIT 10',
	'SELECT m.t || o.s, o.k FROM m, o WHERE m.k = o.k ORDER BY o.s DESC, m.t, o.k, o.i LIMIT 7 OFFSET 7',
	'SELECT k, count(*), sum(w) FROM o GROUP BY k ORDER BY sum(w) DESC, k LIMIT 5',
	'SELECT k, count(*) + 1 FROM o GROUP BY k ORDER BY 2, k DESC LIMIT 5 OFFSET 5',
	'SELECT k FROM o GROUP BY k HAVING count(*) = 2 ORDER BY max(s), k LIMIT 5',
	'SELECT k % 10 + count(*), k FROM o GROUP BY k ORDER BY 1 DESC, 2 LIMIT 11');

my @groups = (
	'SELECT k, count(*), sum(w), string_agg(s, \',\' ORDER BY i) FROM o GROUP BY k ORDER BY k',
	'SELECT k, count(DISTINCT s), array_agg(i ORDER BY i DESC) FROM o WHERE k < 1100 GROUP BY k ORDER BY k',
	'SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY w), mode() WITHIN GROUP (ORDER BY s) FROM o WHERE k > 990 GROUP BY k ORDER BY k',
	'SELECT k, max(i) FROM o GROUP BY k HAVING max(i) < 3 AND count(*) > 1 ORDER BY k',
	'SELECT k, json_agg(i ORDER BY i), jsonb_object_agg(i, w) FROM o WHERE k IN (5, 1500, 2500) GROUP BY k ORDER BY k',
	'SELECT m.k, m.t, count(*) FROM m JOIN o ON m.k = o.k GROUP BY m.k ORDER BY m.k',
	'SELECT m.k, m.t, m.i4 + sum(o.w) FROM m JOIN o ON m.k = o.k WHERE m.b GROUP BY m.k, m.t, m.i4 ORDER BY m.k',
	'SELECT k, i % 2, (i % 2) * 2 + count(*), avg(w) FROM o GROUP BY k, i % 2 ORDER BY k, i % 2',
	'SELECT a, b, array_agg(v ORDER BY v) FROM p GROUP BY a, b ORDER BY a, b',
	'SELECT k + 1 FROM o GROUP BY k ORDER BY 1',
	'SELECT sum(c), count(*) FROM (SELECT k, count(DISTINCT s) AS c FROM o GROUP BY k) s',
	'SELECT k, rank() OVER (ORDER BY sum(w) DESC, k) FROM o GROUP BY k ORDER BY 2',
	'SELECT e.v, c FROM e JOIN (SELECT k, count(*) AS c FROM o GROUP BY k) s USING (k) ORDER BY k',
	'SELECT k, sum(w) FILTER (WHERE i > 1) FROM o GROUP BY k ORDER BY k DESC');

# Answers only.
my @others = (
	q{SELECT (CASE WHEN k % 2 = 0 THEN 'm' ELSE 'o' END)::regclass AS r, k FROM m ORDER BY r, k LIMIT 3},
	'SELECT k FROM m WHERE k < 40 ORDER BY i4 USING <#, k LIMIT 5',
	'SELECT k, GROUPING(k), count(*) FROM m GROUP BY k ORDER BY k',
	'SELECT k, max(i4) FROM m GROUP BY k HAVING GROUPING(k) = 0 ORDER BY GROUPING(k), k LIMIT 5',
	'SELECT count(*) FROM (SELECT k FROM m LIMIT 20) s',
	'SELECT count(*), count(DISTINCT k) FROM (SELECT k FROM m OFFSET 3095 LIMIT 20) s',
	'SELECT count(*) FROM (SELECT m.t, o.k FROM m JOIN o USING (k) LIMIT 12 OFFSET 3) s',
	'SELECT count(*), max(c) FROM (SELECT k, count(*) AS c FROM o GROUP BY k LIMIT 12) s',
	'SELECT i4 FROM m WHERE k < 50 ORDER BY i4 DESC OFFSET 1 FETCH FIRST 3 ROWS WITH TIES',
	'SELECT t, k FROM m ORDER BY t COLLATE "C", k LIMIT 20',
	'SELECT t, k FROM m WHERE t IS NOT NULL ORDER BY t COLLATE "C" DESC, k LIMIT 20 OFFSET 30',
	'SELECT tc, k FROM m WHERE t IS NOT NULL ORDER BY tc COLLATE "en-x-icu", k LIMIT 20',
	'SELECT generate_series(1, 2), k FROM m ORDER BY k LIMIT 5',
	'SELECT k, (random() * 0)::int FROM m ORDER BY k LIMIT 5',
	'SELECT k FROM m ORDER BY k + random() * 0, k LIMIT 5',
	'SELECT m FROM (SELECT k, i4 FROM m) m ORDER BY k LIMIT 5',
	'SELECT m FROM m ORDER BY k LIMIT 2',
	'SELECT i4, count(*) FROM m GROUP BY i4 ORDER BY count(*) DESC, i4 LIMIT 3',
	'SELECT count(*) FROM m LIMIT 3',
	'SELECT DISTINCT i4 FROM m ORDER BY i4 DESC LIMIT 4',
	'SELECT DISTINCT ON (i4) i4, k FROM m ORDER BY i4, k DESC LIMIT 4',
	'SELECT k, row_number() OVER (ORDER BY k DESC) FROM m ORDER BY k LIMIT 4',
	'SELECT i4, k, count(*) FROM m WHERE k < 9 GROUP BY ROLLUP (k, i4) ORDER BY k, i4 LIMIT 5',
	'SELECT k FROM m ORDER BY k LIMIT ALL OFFSET 3098',
	'SELECT k FROM m ORDER BY k LIMIT NULL OFFSET 3098',
	'SELECT k, t FROM barrier WHERE k < 100 ORDER BY t, k LIMIT 10',
	'SELECT m.k, o.w FROM m LEFT JOIN o ON m.k = o.k ORDER BY m.k DESC, o.w LIMIT 9',
	'SELECT m.k, e.v FROM m JOIN e USING (k) ORDER BY e.v, m.k LIMIT 9',
	'SELECT m.k, o.w FROM m JOIN o ON m.k = o.i ORDER BY o.w, m.k, o.k LIMIT 9',
	'SELECT g, s.k FROM generate_series(1, 5) g, LATERAL (SELECT k FROM m WHERE i4 = g ORDER BY k DESC LIMIT 2) s ORDER BY 1, 2',
	'SELECT g, s.k FROM generate_series(0, 4) g, LATERAL (SELECT k FROM m WHERE i4 = 2 ORDER BY k DESC LIMIT g OFFSET g) s ORDER BY 1, 2',
	'SELECT g, (SELECT k FROM m WHERE i4 = g ORDER BY ts, k LIMIT 1) FROM generate_series(0, 3) g ORDER BY g',
	'(SELECT k FROM m ORDER BY k LIMIT 2) UNION ALL (SELECT k FROM o ORDER BY w DESC, k LIMIT 2) ORDER BY 1 LIMIT 3',
	'SELECT k FROM m UNION SELECT v FROM e ORDER BY 1 LIMIT 5',
	'WITH s AS MATERIALIZED (SELECT k, ts FROM m ORDER BY ts DESC NULLS LAST, k LIMIT 5) SELECT * FROM s JOIN o USING (k) ORDER BY o.k, o.i',
	'SELECT i, count(*) FROM o GROUP BY i ORDER BY i',
	'SELECT a, count(*) FROM p GROUP BY a ORDER BY a LIMIT 3',
	'SELECT k::numeric, count(*) FROM o WHERE k < 20 GROUP BY 1 ORDER BY 1',
	'SELECT ROW(k, i4) FROM m ORDER BY ROW(i4, k) LIMIT 4');

sub compare
{
	my ($when, @nodes) = @_;

	$c->same_answers($when, [ @top, @groups, @others ], \@nodes);
	return;
}

compare('at rest', qw(r1 s2));

# It is the shards that do it.
my %plan;
@plan{ @top, @groups } = $c->answers('r1', map { "EXPLAIN (VERBOSE, COSTS off) $_" } @top, @groups);
foreach my $query (@top)
{
	my $text = $plan{$query};

	like($text, qr/Limit\n(?:(?!->  (?!Result)).)*->  Custom Scan \(Tessera Scan\).*Remote SQL:.*ORDER BY.*LIMIT/s, "pushed: $query")
	  or diag $text;
}
foreach my $query (@groups)
{
	my $text = $plan{$query};

	like($text, qr/Remote SQL:.*GROUP BY/s, "grouped there: $query") or diag $text;
	unlike($text, qr/tessera\.partial/, "not their states: $query");
	unlike($text =~ s/Remote SQL:.*//sr, qr/GroupAggregate|HashAggregate/, "and not here: $query");
}
foreach my $query ('SELECT k, count(*) FROM o GROUP BY k LIMIT 12',
	'SELECT m.t, o.k FROM m JOIN o USING (k) LIMIT 12 OFFSET 3', 'SELECT k FROM m LIMIT 5')
{
	like($c->query('r1', "EXPLAIN (VERBOSE, COSTS off) $query"), qr/^Limit.*Remote SQL:.*LIMIT/s, "pushed: $query");
}
unlike($c->query('r1', "EXPLAIN (VERBOSE, COSTS off) $_"), qr/Remote SQL:[^\n]*(?:\n +[A-Z][^:\n]*)*LIMIT/, "not pushed: $_")
  foreach 'SELECT k, i4 FROM m ORDER BY i4 FETCH FIRST 3 ROWS WITH TIES', 'SELECT k FROM m ORDER BY k LIMIT 3 FOR UPDATE',
  'SELECT k FROM m ORDER BY k LIMIT (random() * 0 + 3)::int', 'SELECT DISTINCT i4 FROM m LIMIT 2', 'SELECT k, sum(k) OVER () FROM m LIMIT 2',
  'SELECT generate_series(1, 2), k FROM m ORDER BY k LIMIT 5', 'SELECT count(*) FROM m LIMIT 3', 'SELECT i, count(*) FROM o GROUP BY i LIMIT 2';
my @rows_in = $c->query('r1', 
	'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT k, i4 FROM m ORDER BY i4, k LIMIT 5 OFFSET 1') =~ /Shard s\d: rows=(\d+)/g;
is(scalar(grep { $_ <= 6 } @rows_in), 3, 'no shard sends more than LIMIT and OFFSET') or diag "@rows_in";

# Negative limits, bad divisions: as on one server.
like($c->error('r1', 'SELECT k FROM m ORDER BY k LIMIT -1'), qr/2201W/, 'a negative LIMIT');
like($c->error('r1', 'SELECT k FROM m ORDER BY k LIMIT 5 OFFSET -1'), qr/2201X/, 'a negative OFFSET');

foreach my $node (qw(r1 s1))
{
	# Parameters, generic plans.
	my $session = $c->session($node);

	$session->query_safe('PREPARE p(int, int, int) AS SELECT k, i4 + $3 FROM m ORDER BY i4 + $3 DESC NULLS LAST, k LIMIT $1 OFFSET $2');
	$session->query_safe('PREPARE g(int, int) AS SELECT k, $1 + count(*) FROM o WHERE i > $2 GROUP BY k, $1::int
	  ORDER BY $1 + count(*) DESC, k LIMIT $1');
	$session->query_safe('PREPARE h(int) AS SELECT $1, count(*) FROM o GROUP BY $1::int');
	foreach my $mode (qw(auto force_generic_plan))
	{
		$session->query_safe("SET plan_cache_mode = $mode");
		foreach my $set ('3, 0, 5', '4, 995, 1', 'NULL, 3090, 2', '3, NULL, 2', '0, 0, 0')
		{
			my ($n, $m, $add) = split /, /, $set;
			is($session->query_safe("EXECUTE p($set)"),
				$c->plain_query("SELECT k, i4 + $add FROM m ORDER BY i4 + $add DESC NULLS LAST, k LIMIT $n OFFSET $m"),
				"prepared on $node, $mode: $set");
		}
		is($session->query_safe('EXECUTE h(7)'), $c->plain_query('SELECT 7, count(*) FROM o'), "groups by a parameter on $node, $mode");
		is($session->query_safe('EXECUTE g(7, 1)'),
			$c->plain_query('SELECT k, 7 + count(*) FROM o WHERE i > 1 GROUP BY k ORDER BY 7 + count(*) DESC, k LIMIT 7'),
			"groups on $node, $mode");
	}

	# Cursors, also backward, and what the transaction itself has written.
	my $query = 'SELECT k, i4 FROM m ORDER BY i4 DESC NULLS LAST, k LIMIT 6 OFFSET 2';
	my @expected = split /\n/, $c->plain_query($query);
	$session->query_safe('BEGIN');
	$session->query_safe("DECLARE cu SCROLL CURSOR FOR $query");
	$session->query_safe('UPDATE m SET i4 = 1000 WHERE k IN (1500, 20, 2500)');
	is($session->query_safe('FETCH 4 FROM cu'), join("\n", @expected[0 .. 3]), "a cursor on $node shows what was there when it opened");
	is($session->query_safe('FETCH BACKWARD 2 FROM cu'), join("\n", @expected[ 2, 1 ]), 'backward');
	is($session->query_safe('FETCH ALL FROM cu'), join("\n", @expected[ 2 .. 5 ]), 'forward again');
	is($session->query_safe('FETCH LAST FROM cu'), $expected[5], 'the last');
	is($session->query_safe('SELECT k, i4 FROM m ORDER BY i4 DESC NULLS LAST, k LIMIT 4'),
		"20|1000\n1500|1000\n2500|1000\n10|10", 'own writes are seen');
	$session->query_safe('INSERT INTO o VALUES (7000, 1, 100000, $$x$$), (7000, 2, 100000, $$x$$)');
	is($session->query_safe('SELECT k, sum(w) FROM o GROUP BY k ORDER BY 2 DESC LIMIT 1'), '7000|200000', 'also in groups');
	$session->query_safe('ROLLBACK');

	# A cursor that is closed early leaves its connections usable.
	$session->query_safe('BEGIN');
	$session->query_safe('DECLARE cu CURSOR FOR SELECT k FROM m ORDER BY t, k LIMIT 2000');
	is($session->query_safe('FETCH 1 FROM cu'), $c->plain_query('SELECT k FROM m ORDER BY t, k LIMIT 1'), 'one row of many');
	is($session->query_safe('SELECT count(*), max(k) FROM m'), '3100|3100', 'another statement while it is open');
	is($session->query_safe('MOVE 998 FROM cu; FETCH 1 FROM cu'), $c->plain_query('SELECT k FROM m ORDER BY t, k LIMIT 1 OFFSET 999'),
		'and on');
	$session->query_safe('CLOSE cu');
	$session->query_safe('COMMIT');
	is($session->query_safe('SELECT k FROM m ORDER BY k DESC LIMIT 1'), '3100', 'and then');
	$session->quit;
}

# Rights: columns, views, row security.
$c->query('s1', <<'SQL');
CREATE ROLE reader LOGIN; GRANT SELECT (k, i4) ON m TO reader; GRANT SELECT ON vm, barrier TO reader;
CREATE TABLE secret (k int PRIMARY KEY, owner text, v int); GRANT SELECT ON secret TO reader; ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON secret USING (owner = current_user);
SQL
$c->query('s1', q{SELECT tessera.shard_table('secret', 'k', 'hash', chunks => 6)});
$c->query('s1', q{INSERT INTO secret SELECT g, CASE WHEN g % 2 = 0 THEN 'reader' ELSE 'postgres' END, g FROM generate_series(1, 100) g});
foreach my $query ('SELECT k, i4 FROM m ORDER BY i4, k LIMIT 5', 'SELECT k, t FROM vm ORDER BY t, k LIMIT 5',
	'SELECT k, t FROM barrier ORDER BY t, k LIMIT 5',
	'SELECT k, count(*) FROM vm GROUP BY k ORDER BY k LIMIT 5')
{
	is($c->query('r1', "SET ROLE reader; $query"), $c->plain_query($query), "may be read: $query");
}
like($c->error('r1', 'SET ROLE reader; SELECT k FROM m ORDER BY n LIMIT 2'), qr/42501/, 'an order by a column that may not be read');
is($c->query('r1', 'SET ROLE reader; SELECT k FROM secret ORDER BY k DESC LIMIT 3'), "100\n98\n96", 'row security holds');
is($c->query('r1', 'SET ROLE reader; SELECT count(*) FROM (SELECT k, array_agg(v) FROM secret GROUP BY k) s'), '50', 'in groups, too');

# While ranges move, each answer is that of one moment.
my $script = <<'SQL';
SELECT 1 / (count(*) = 20 AND min(k) = 3081)::int FROM (SELECT k FROM m ORDER BY k DESC LIMIT 20) s;
SELECT 1 / (array_agg(k) = ARRAY[991, 992, 993, 994, 995])::int FROM (SELECT k FROM m ORDER BY k LIMIT 5 OFFSET 990) s;
SELECT 1 / (count(*) = 3201 AND sum(c) = 7203)::int FROM (SELECT k, count(DISTINCT i) AS c FROM o GROUP BY k) s;
SQL
my $counts = $c->plain_query('SELECT count(*) FROM o');
$script =~ s/7203/$counts/;
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
