# Data-modifying WITH queries over several shards (doc/design.md#statements): each runs exactly once and to its end, whoever reads it, and no part of
# the statement sees what another has written. The same script runs on a plain server and from two nodes, and answers and SQLSTATEs are compared.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('parts');

my $schema = <<'SQL';
CREATE TABLE t1 (k int NOT NULL, id int NOT NULL, v text, n int, PRIMARY KEY (k,id));
CREATE TABLE t2 (k int NOT NULL, id int NOT NULL, w text, PRIMARY KEY (k,id));
CREATE TABLE tu (k int8 NOT NULL, id int GENERATED ALWAYS AS IDENTITY, note text DEFAULT 'dflt', PRIMARY KEY (k,id));
CREATE TABLE pl (id int PRIMARY KEY, name text DEFAULT 'noname');
CREATE TABLE log (k int, what text);
CREATE TABLE tt (k int PRIMARY KEY, v text);
CREATE FUNCTION tg_tt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := NEW.v || '#'; RETURN NEW; END $$;
CREATE TRIGGER tg BEFORE UPDATE ON tt FOR EACH ROW EXECUTE FUNCTION tg_tt();
SQL

my @refused;
sub refused { push @refused, $_[0]; return $_[0]; }

my @script = (
	q{INSERT INTO t1 SELECT k, i, 'v' || k || '-' || i, k * 10 + i FROM generate_series(1, 15) k, generate_series(1, 4) i},
	q{INSERT INTO t2 SELECT k, i, 'w' || i FROM generate_series(1, 12) k, generate_series(2, 5) i},
	q{INSERT INTO pl SELECT g, 'p' || g FROM generate_series(1, 5) g},
	q{INSERT INTO tt SELECT g, 't' FROM generate_series(1, 10) g},
	q{WITH u AS (UPDATE t1 SET n = n + 1000 RETURNING k, n) SELECT count(*), sum(u.n), (SELECT sum(n) FROM t1) FROM u},
	q{SELECT sum(n) FROM t1},
	q{WITH u AS (UPDATE t1 SET n = n - 1000) SELECT count(*) FROM t1 WHERE n > 1000},
	q{SELECT count(*) FROM t1 WHERE n > 1000},
	q{WITH d AS (DELETE FROM t1 WHERE id = 4 RETURNING *) INSERT INTO t2 SELECT k, id + 100, v FROM d RETURNING k, id, w},
	q{SELECT * FROM t2 WHERE id > 100},
	q{WITH i AS (INSERT INTO t1 (k, id, v) VALUES (20, 1, 'a'), (21, 1, 'b'), (22, 1, 'c') RETURNING k, v), j AS (INSERT INTO t2 SELECT k, 1, v } .
	q{FROM i RETURNING k, w) SELECT i.k, j.w, (SELECT count(*) FROM t1 WHERE k >= 20) FROM i JOIN j USING (k)},
	q{WITH i AS (INSERT INTO tu (k) VALUES (40), (41) RETURNING k, note) SELECT * FROM i},
	q{WITH i AS (INSERT INTO t1 (k, id, v) VALUES (1, 77, 'cte') RETURNING id, k) SELECT t2.k, t2.id FROM t2 JOIN i ON t2.k = i.id - 75},
	q{WITH i AS (INSERT INTO t1 (k, id, v) VALUES (1, 2, 'cte'), (2, 2, 'cte') ON CONFLICT (k, id) DO UPDATE SET v = excluded.v RETURNING id, k, } .
	q{v) SELECT t2.k, t2.id, i.v FROM t2 JOIN i ON t2.k = i.id},
	q{WITH a AS (UPDATE t1 SET v = 'a' WHERE id = 1 RETURNING k), b AS (UPDATE t1 SET v = 'b' WHERE id = 2 RETURNING k), c AS (DELETE FROM t2 } .
	q{WHERE id = 5) SELECT count(*) FROM a, b WHERE a.k = b.k},
	q{WITH a AS (UPDATE t1 SET v = 'twice' WHERE id = 3 RETURNING k), b AS (UPDATE t1 SET n = 0 WHERE id = 3 RETURNING k) SELECT (SELECT count(*) } .
	q{FROM a) + (SELECT count(*) FROM b)},
	q{WITH s AS (SELECT k, max(id) AS id FROM t1 GROUP BY k), d AS (DELETE FROM t2 WHERE k < 3 RETURNING k, id) SELECT s.k, d.id FROM s JOIN d ON } .
	q{s.k = d.k},
	q{WITH p AS (UPDATE pl SET name = name || '!' RETURNING id, name), u AS (UPDATE t1 SET v = 'pl' WHERE id = 1 RETURNING k) SELECT p.name, u.k } .
	q{FROM p JOIN u ON p.id = u.k},
	q{WITH d AS (DELETE FROM pl WHERE id = 5 RETURNING id, name) INSERT INTO t1 (k, id, v) SELECT id + 50, 1, name FROM d},
	q{WITH d AS (DELETE FROM t1 WHERE k > 49 RETURNING k, v) INSERT INTO pl SELECT k, v FROM d RETURNING *},
	q{WITH d AS (DELETE FROM t2 WHERE k = 4 RETURNING *), e AS (SELECT count(*) AS n FROM d), f AS (INSERT INTO pl SELECT 100 + n, 'cnt' FROM e } .
	q{RETURNING id) SELECT * FROM f},
	q{WITH d AS (DELETE FROM t2 WHERE k = 6 RETURNING *) SELECT k FROM d WHERE false},
	q{SELECT count(*) FROM t2 WHERE k = 6},
	q{WITH d AS (DELETE FROM t2 WHERE k IN (7, 8) RETURNING *) SELECT k FROM d LIMIT 0},
	q{SELECT count(*) FROM t2 WHERE k IN (7, 8)},
	q{WITH i AS (INSERT INTO t1 (k, id) SELECT g, 500 FROM generate_series(1, 200) g RETURNING k) SELECT count(*) FROM i},
	q{WITH i AS (INSERT INTO t1 (k, id) SELECT g, 500 FROM generate_series(200, 300) g RETURNING k) SELECT count(*) FROM i},
	q{SELECT count(*) FROM t1 WHERE id = 500},
	q{WITH d AS (DELETE FROM t1 WHERE id = 500) SELECT 1 / 0},
	q{SELECT count(*) FROM t1 WHERE id = 500},
	q{WITH d AS (DELETE FROM t1 WHERE id = 500) SELECT count(*) FROM t1},
	q{WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3), i AS (INSERT INTO t1 (k, id) SELECT n, 600 FROM r) } .
	q{SELECT 1},
	q{BEGIN; WITH u AS (UPDATE t1 SET n = 7 WHERE id = 1 RETURNING k) SELECT count(*) FROM u; SAVEPOINT a; WITH u AS (DELETE FROM t1 WHERE id = 1 } .
	q{RETURNING k), j AS (DELETE FROM t2 RETURNING k) SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM j); ROLLBACK TO a; SELECT count(*) } .
	q{FROM t1 WHERE n = 7; COMMIT},
	q{PREPARE p (int) AS WITH d AS (DELETE FROM t1 WHERE id = $1 RETURNING k, id, v) INSERT INTO t1 (k, id, v) SELECT k, id + 1000, v FROM d } .
	q{RETURNING 1; EXECUTE p(1); EXECUTE p(2); EXECUTE p(1001); EXECUTE p(3); EXECUTE p(4); EXECUTE p(5); EXECUTE p(6); EXECUTE p(1002)},
	q{PREPARE q (int, int) AS WITH d AS (DELETE FROM t2 WHERE k = $1 RETURNING k, id) SELECT count(*), max(t1.k) FROM d, t1 WHERE t1.k = $2; } .
	q{EXECUTE q(1, 1); EXECUTE q(3, 4); EXECUTE q(5, 2); EXECUTE q(9, 9); EXECUTE q(10, 3); EXECUTE q(11, 11); EXECUTE q(12, 5); EXECUTE q(12, 12)},
	q{BEGIN; DECLARE c CURSOR FOR WITH d AS (DELETE FROM t1 RETURNING k) SELECT * FROM d; ROLLBACK},
	q{BEGIN READ ONLY; WITH d AS (DELETE FROM t1 RETURNING k) SELECT * FROM d; ROLLBACK},
	q{DO $$ DECLARE r record; c int := 0; BEGIN FOR r IN WITH u AS (UPDATE t1 SET n = 99 RETURNING k) SELECT k FROM u LOOP c := c + 1; END LOOP; } .
	q{INSERT INTO log VALUES (c, 'loop'); END $$; SELECT * FROM log},
	q{CREATE TEMP TABLE tmp (k int, v text); WITH d AS (DELETE FROM t1 WHERE k < 4 RETURNING k, v) INSERT INTO tmp SELECT * FROM d; SELECT } .
	q{count(*) FROM tmp; WITH d AS (DELETE FROM tmp RETURNING k) INSERT INTO t1 (k, id) SELECT DISTINCT k, 900 FROM d RETURNING k},
	q{WITH l AS (INSERT INTO log SELECT g, 'x' FROM generate_series(1, 3) g RETURNING k), u AS (UPDATE tt SET v = v || 'u' RETURNING k, v) SELECT } .
	q{(SELECT count(*) FROM l), max(u.v) FROM u},
	q{WITH a AS (UPDATE tt SET v = 'a' WHERE k < 5 RETURNING k, v), b AS (UPDATE tt SET v = 'b' WHERE k > 3 RETURNING k, v) SELECT count(*) FROM } .
	q{(SELECT * FROM a UNION ALL SELECT * FROM b) x},
	q{WITH d AS (DELETE FROM t1 RETURNING k), d2 AS (SELECT k FROM d WHERE k > 3) SELECT count(*) FROM d2 x JOIN d2 y USING (k) WHERE EXISTS } .
	q{(SELECT FROM d WHERE d.k = x.k)},
	q{SELECT * FROM t1 ORDER BY k, id},
	q{SELECT * FROM t2 ORDER BY k, id},
	q{SELECT k, left(v, 1) FROM tt ORDER BY k},
	q{SELECT * FROM pl ORDER BY id},
	q{SELECT * FROM log ORDER BY 1, 2},
);

$c->create(shards => 3);
$c->query('s1', $schema);
$c->query('s2', "SELECT tessera.shard_table('$_', 'k', 'hash', chunks => 6)") foreach qw(t1 tu tt);
$c->query('s2', "SELECT tessera.shard_table('t2', 'k', 'hash', colocate_with => 't1')");
$c->plain_query($schema);

foreach my $name ('s1', 's2')
{
	is($c->script_differs($name, \@script, \@refused), 0, "from $name: " . scalar(@script) . ' statements do as on a plain server, or are refused');
	foreach my $table (qw(t1 t2 tu tt pl log))
	{
		$c->query($name, "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
}

# Nothing of it stays if a later part fails, or is committed on its own before.
$c->query('s1', "INSERT INTO t1 SELECT g, 1, 'x', g FROM generate_series(1, 30) g");
like($c->error('s2', "WITH d AS (DELETE FROM t1 WHERE k = $_ RETURNING k) INSERT INTO pl SELECT 1, k::text FROM d, generate_series(1, 2)"), qr/23505/,
	'a later part fails') foreach 1 .. 5;
is($c->query('s3', 'SELECT count(*) FROM t1'), '30', 'and what the earlier one deleted is there');
like($c->query('s3', 'EXPLAIN (COSTS OFF) WITH d AS (DELETE FROM t1 RETURNING k) SELECT count(*) FROM d, t2'),
	qr/Tessera Parts.*Tier: parts.*whole statement.*Named Tuplestore Scan/s, 'EXPLAIN shows the parts');

# What a node does as a router is counted, by tier.
sub counted { return $c->query('s2', 'SELECT t1, whole, routed_inserts, general, parts, stale_retries FROM tessera.stat_routing'); }
$c->query('s2', 'SELECT tessera.stat_routing_reset()');
is(counted(), '0|0|0|0|0|0', 'counters begin at zero');
$c->query('s2', $_)
  foreach 'SELECT n FROM t1 WHERE k = 1', 'UPDATE t1 SET n = 1 WHERE k = 2', 'SELECT n FROM t1 WHERE k = 3', 'UPDATE t1 SET n = 2',
  'INSERT INTO t1 (k, id) SELECT g, 9 FROM generate_series(1, 20) g',
  'SELECT count(*) FROM t1 a JOIN t1 b USING (id)';
is(counted(), '3|1|1|1|0|0', 'a statement counts once');
$c->query('s2', 'WITH d AS (DELETE FROM t1 WHERE id = 9 RETURNING k) SELECT count(*) FROM d');
is($c->query('s2', 'SELECT parts, connections > 0, stats_reset < now() FROM tessera.stat_routing'), '1|t|t',
	'as does one of several parts; connections are counted');
like($c->error('s2', 'SET ROLE pg_monitor; SELECT tessera.stat_routing_reset()'), qr/42501/, 'not everybody may reset them');

done_testing();
