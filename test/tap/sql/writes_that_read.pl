# UPDATE, DELETE and MERGE of sharded tables that read other rows: joins, subqueries and WITH. Each statement does on the cluster what it does on a
# plain server: the same rows returned, counted and left, the same errors; by a node that owns nothing and one that owns a part, moved or not.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('reading');
$c->create(shards => 3, routers => 1);

my $schema = <<'SQL';
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (x int, y text);
CREATE TABLE t (k int NOT NULL, id int NOT NULL, v text, n int, a int[], p pair, m mood, PRIMARY KEY (k, id));
CREATE TABLE u (k int NOT NULL, id int NOT NULL, w text, n int, a int[], p pair, m mood, PRIMARY KEY (k, id));
CREATE TABLE b (k bigint PRIMARY KEY, s text);
CREATE TABLE h (k int PRIMARY KEY, x int, s text);
CREATE TABLE c2 (a int, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE d2 (a int, b text, i int, v int, PRIMARY KEY (a, b, i));
CREATE TABLE pl (id int PRIMARY KEY, s text, n int);
CREATE TABLE co (id int PRIMARY KEY, s text COLLATE "und-x-icu");
INSERT INTO co VALUES (1, 'T2'), (2, 'U'), (3, 'a');
CREATE VIEW vt AS SELECT k, id, v, n FROM t WHERE id < 4;
CREATE VIEW vu AS SELECT k, id, upper(w) AS w FROM u WHERE n IS NOT NULL;
CREATE VIEW vg AS SELECT k, count(*) AS c, max(w) AS w FROM u GROUP BY k;
CREATE FUNCTION f_pl(int) RETURNS TABLE (id int, s text) LANGUAGE sql STABLE AS 'SELECT id, s FROM pl WHERE n = $1';
CREATE FUNCTION f_count(int) RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN (SELECT count(*) FROM t WHERE id = $1); END';
SQL
my $rows = <<'SQL';
INSERT INTO t SELECT k, i, 't' || k || '-' || i, CASE WHEN (k + i) % 5 > 0 THEN (k * i) % 17 END, ARRAY[k, i], ROW(k, 'x' || i)::pair,
  (ARRAY['sad', 'ok', 'happy'])[1 + (k + i) % 3]::mood FROM generate_series(1, 40) k, generate_series(1, 4) i WHERE (k + i) % 7 > 0;
INSERT INTO u SELECT k, i, 'u' || k || '-' || i, CASE WHEN (k + i) % 4 > 0 THEN (k + i) % 13 END, ARRAY[i, NULL, k], ROW(i, NULL)::pair,
  (ARRAY['sad', 'ok', 'happy'])[1 + k % 3]::mood FROM generate_series(3, 45) k, generate_series(2, 5) i WHERE k % 6 > 0;
INSERT INTO b SELECT g, 'b' || g FROM generate_series(5, 50) g;
INSERT INTO h SELECT g, CASE WHEN g % 8 > 0 THEN g % 9 END, 'h' || g FROM generate_series(1, 30) g;
INSERT INTO c2 SELECT g, x, g FROM generate_series(1, 20) g, unnest(ARRAY['p', 'q', 'r']) x;
INSERT INTO d2 SELECT g, x, i, g * i FROM generate_series(5, 25) g, unnest(ARRAY['q', 'r', 's']) x, generate_series(1, 2) i;
INSERT INTO pl SELECT g, 'pl' || g, g % 5 FROM generate_series(1, 12) g;
SQL
$c->query('s1', $schema);
$c->plain_query($schema);
$c->query('s1', q{SELECT tessera.shard_table('t', 'k')});
$c->query('s1', qq{SELECT tessera.shard_table('$_', 'k', colocate_with => 't')}) foreach qw(u);
$c->query('s1', q{SELECT tessera.shard_table('b', 'k')});
$c->query('s1', q{SELECT tessera.shard_table('h', 'k', 'hash', chunks => 6)});
$c->query('s1', q{SELECT tessera.shard_table('c2', 'a, b')});
$c->query('s1', q{SELECT tessera.shard_table('d2', 'a, b', colocate_with => 'c2')});
$c->query('s1', $rows);
$c->plain_query($rows);
$c->query('s1', q{SELECT tessera.move_range('t', 10, 20, 's2'), tessera.move_range('t', 20, tessera.maxkey(), 's3')});
$c->query('s1', q{SELECT tessera.move_range('c2', (5, 'q'), (12, 'r'), 's2')});

# What each table that a statement may change is like behind it; how many rows the statement names.
sub whole
{
	return map { join ";\n", "$_\n\\g\n\\echo :ROW_COUNT\nSELECT * FROM t", map { "SELECT * FROM $_" } qw(u h c2 pl) } @_;
}

# Each key by itself is what each shard does by itself.
my @closed = (
	q{UPDATE t SET v = u.w FROM u WHERE u.k = t.k AND u.id = t.id RETURNING t.k, t.id, v, w},
	q{UPDATE t SET v = x.w FROM u x JOIN u y ON y.k = x.k WHERE t.k = x.k AND x.id = t.id AND y.id = x.id + 1},
	q{UPDATE t SET v = w FROM u LEFT JOIN t o ON o.k = u.k AND o.id = u.id + 1 WHERE u.k = t.k AND u.id = t.id AND o.k IS NULL RETURNING *},
	q{UPDATE t SET n = s.c FROM (SELECT k, count(*) AS c FROM u GROUP BY k) s WHERE s.k = t.k RETURNING t.k, c},
	q{UPDATE t SET n = c, v = w FROM vg WHERE vg.k = t.k},
	q{UPDATE t SET n = (SELECT count(*) FROM u WHERE u.k = t.k AND u.id > t.id)},
	q{UPDATE t SET (n, v) = (SELECT max(n), min(w) FROM u WHERE u.k = t.k) WHERE id = 2 RETURNING k, n, v},
	q{UPDATE t SET v = (SELECT w FROM u WHERE u.k = t.k ORDER BY id DESC LIMIT 1) WHERE n > 3},
	q{UPDATE t SET v = (SELECT w FROM u WHERE u.k = t.k)},
	q{UPDATE t SET v = s.v FROM t s WHERE s.k = t.k AND s.id = t.id + 1 RETURNING t.*, s.id},
	q{UPDATE t SET v = 'none' WHERE NOT EXISTS (SELECT FROM u WHERE u.k = t.k AND u.id = t.id)},
	q{UPDATE t SET v = 'some' WHERE k IN (SELECT k FROM u WHERE n = 3) RETURNING k, id},
	q{UPDATE t SET v = 'some' WHERE (id, k) IN (SELECT id, k FROM vu)},
	q{UPDATE t SET v = 'same' FROM u WHERE u.k = t.k AND EXISTS (SELECT FROM t o WHERE o.k = u.k AND o.n = u.n)},
	q{UPDATE t SET v = r.c FROM (VALUES (1, 'one'), (2, 'two')) r(i, c) WHERE r.i = t.id AND k IN (SELECT k FROM u)},
	q{UPDATE t SET a = u.a, p = u.p, m = u.m FROM u WHERE u.k = t.k AND u.id = t.id RETURNING u.*, t.a},
	q{UPDATE t SET v = x FROM u, LATERAL (SELECT max(w) AS x FROM u z WHERE z.k = u.k) l WHERE u.k = t.k AND u.id = t.id},
	q{UPDATE vt SET v = w FROM u WHERE u.k = vt.k AND u.id = vt.id RETURNING vt.*},
	q{DELETE FROM vt USING vu WHERE vu.k = vt.k AND vu.id = vt.id RETURNING vu.w},
	q{DELETE FROM t USING u WHERE u.k = t.k AND u.id = t.id AND u.n > 5 RETURNING t.*, u.w},
	q{DELETE FROM t USING t o WHERE o.k = t.k AND o.m = t.m AND o.ctid < t.ctid},
	q{DELETE FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k AND u.n < t.n) RETURNING (SELECT count(*) FROM u WHERE u.k = t.k)},
	q{DELETE FROM t WHERE n = (SELECT min(o.n) FROM t o WHERE o.k = t.k)},
	q{WITH s AS (SELECT k, max(n) AS n FROM u GROUP BY k) UPDATE t SET n = s.n FROM s WHERE s.k = t.k RETURNING t.k, t.id, t.n},
	q{WITH s AS (SELECT k, id FROM u WHERE n > 5) DELETE FROM t USING s WHERE s.k = t.k AND s.id = t.id RETURNING t.v},
	q{UPDATE c2 SET v = d2.v FROM d2 WHERE d2.a = c2.a AND d2.b = c2.b AND i = 2 RETURNING *},
	q{UPDATE c2 SET v = (SELECT sum(v) FROM d2 WHERE d2.a = c2.a AND d2.b = c2.b) WHERE b > 'p'},
	q{UPDATE c2 SET v = d2.v FROM d2 WHERE c2.a = 7 AND d2.a = 7 AND d2.b = c2.b AND i = 2 RETURNING *},
	q{DELETE FROM c2 WHERE (b, a) IN (SELECT b, a FROM d2 WHERE i = 1)},
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN MATCHED AND u.n > 6 THEN DELETE WHEN MATCHED THEN UPDATE SET v = w
	  WHEN NOT MATCHED THEN INSERT (k, id, v) VALUES (u.k, u.id, u.w)},
	q{MERGE INTO t USING (SELECT k, max(id) AS id, sum(n) AS n FROM u GROUP BY k) s ON s.k = t.k AND s.id = t.id + 2
	  WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED AND s.n > 9 THEN INSERT VALUES (s.k, s.id + 100, 'new')},
	q{MERGE INTO t USING vu ON t.k = vu.k AND t.id = vu.id WHEN NOT MATCHED THEN INSERT (id, k, v) VALUES (vu.id, vu.k, (SELECT s FROM
	  (SELECT max(w) AS s FROM u WHERE u.k = vu.k) z))},
	q{MERGE INTO t USING u ON t.k = u.k WHEN MATCHED THEN UPDATE SET v = w},
	q{MERGE INTO c2 USING d2 ON d2.a = c2.a AND d2.b = c2.b AND i = 1 WHEN MATCHED THEN UPDATE SET v = d2.v
	  WHEN NOT MATCHED AND i = 2 AND d2.a > 20 THEN INSERT VALUES (d2.a, d2.b, -1)},
);

# What the shards of the target do not have is read once, and sent along.
my $temporary = q{CREATE TEMP TABLE tmp AS SELECT g AS k, g % 5 AS id, 'tmp' || g AS s, g * 1.5 AS q, ARRAY[g, NULL] AS a, ROW(g, 'z')::pair AS p,
	date '2024-01-01' + g AS d FROM generate_series(1, 30) g; ALTER TABLE tmp DROP COLUMN q};
my @reading = (
	# tables elsewhere: placed, of another group, temporary, of the catalog
	q{UPDATE t SET v = pl.s FROM pl WHERE pl.id = t.n RETURNING t.k, t.id, v, pl.n},
	q{UPDATE t SET v = pl.s FROM pl WHERE pl.id = t.n AND t.k = 15 RETURNING t.*, pl.*},
	q{UPDATE t SET v = h.s FROM h WHERE h.k = t.k RETURNING h.*},
	q{UPDATE t SET v = x.s, n = x.x + pl.n FROM h x JOIN pl ON pl.id = x.x WHERE x.k = t.k AND pl.n < 4},
	q{UPDATE t SET v = b.s FROM b WHERE b.k = t.k},
	q{UPDATE t SET v = u.w FROM u WHERE u.n = t.n AND u.id = 3 AND u.k = 7 AND t.id = 1},
	q{UPDATE t SET v = u.w || pl.s FROM u LEFT JOIN pl ON pl.id = u.n WHERE u.k = t.k AND u.id = t.id RETURNING u.w, t.v},
	q{UPDATE t SET v = pl.s FROM u RIGHT JOIN pl ON pl.id = u.n AND u.id = 3 WHERE pl.id = t.n AND u.k IS NULL},
	q{UPDATE t SET v = s FROM u JOIN pl USING (id) WHERE u.k = t.k AND id = t.id},
	q{UPDATE t SET v = x FROM (u JOIN pl USING (id)) AS j (i, kk, w, n, a, p, m, x, y) WHERE kk = t.k AND i = t.id},
	q{DELETE FROM t USING pl WHERE pl.id = t.k RETURNING t.v, pl.s},
	q{DELETE FROM t USING pl},
	q{DELETE FROM t USING pl a, pl z WHERE a.id = t.k AND z.id = a.n AND t.m = 'ok'},
	qq{$temporary; UPDATE t SET v = tmp.s, a = tmp.a, p = tmp.p FROM tmp WHERE tmp.k = t.k AND tmp.id = t.id RETURNING t.*, tmp.d, tmp.a},
	qq{$temporary; SET LOCAL datestyle = 'SQL, DMY'; UPDATE t SET v = tmp.d FROM tmp WHERE tmp.k = t.k},
	qq{$temporary; UPDATE t SET p = tmp.p FROM tmp WHERE tmp.k = t.k AND (tmp.p).x > 5 AND tmp.a[1] < 20},
	qq{$temporary; DELETE FROM t USING tmp, u WHERE tmp.k = t.k AND u.k = t.k AND u.id = tmp.id RETURNING tmp.s, u.w},
	qq{$temporary; UPDATE pl SET s = tmp.s FROM tmp WHERE tmp.k = pl.id RETURNING pl.*},
	qq{$temporary; UPDATE tmp SET s = t.v FROM t WHERE t.k = tmp.k AND t.id = 1; SELECT * FROM tmp},
	q{UPDATE t SET v = c.relname FROM pg_class c WHERE c.relname = 'pl' AND t.id = 1},
	q{UPDATE h SET x = t.n FROM t WHERE t.k = h.k AND t.id = 2},
	q{UPDATE h SET x = (SELECT count(*) FROM t WHERE t.k = h.k), s = (SELECT max(s) FROM b WHERE b.k < h.k)},
	q{UPDATE pl SET s = h.s FROM h WHERE h.k = pl.id RETURNING *},
	q{UPDATE pl SET n = (SELECT count(*) FROM u WHERE u.n = pl.id)},
	q{DELETE FROM pl WHERE id IN (SELECT n FROM t WHERE m = 'sad') RETURNING *},
	q{UPDATE t SET m = u.m FROM u WHERE u.id = t.n AND u.m > t.m AND u.k = 9},
	# subqueries by themselves
	q{UPDATE t SET v = 'in' WHERE n IN (SELECT id FROM pl WHERE n = 2)},
	q{UPDATE t SET v = 'in' WHERE (id, n) IN (SELECT n, id FROM pl)},
	q{UPDATE t SET v = 'not in' WHERE n NOT IN (SELECT x FROM h WHERE x IS NOT NULL)},
	q{UPDATE t SET v = 'not in' WHERE n NOT IN (SELECT x FROM h)},
	q{UPDATE t SET v = 'all' WHERE n > ALL (SELECT n FROM pl)},
	q{DELETE FROM t WHERE n = (SELECT max(n) FROM t)},
	q{DELETE FROM t WHERE n = (SELECT max(x) FROM h) OR EXISTS (SELECT FROM pl WHERE n = 99) RETURNING k, id},
	q{DELETE FROM t WHERE EXISTS (SELECT FROM h WHERE s = 'h5') AND id = 4},
	q{UPDATE t SET v = (SELECT s FROM pl WHERE id = 3), n = (SELECT count(*) FROM h)},
	q{UPDATE t SET (v, n) = (SELECT s, n FROM pl WHERE id = 3) WHERE k > 30},
	q{UPDATE t SET v = (SELECT s FROM pl)},
	q{UPDATE t SET v = (SELECT s FROM pl) WHERE k = 1000},
	q{UPDATE t SET v = (SELECT s FROM pl WHERE id = 1000)},
	q{UPDATE t SET a = ARRAY(SELECT id FROM pl ORDER BY n, id) WHERE id = 1},
	q{UPDATE t SET v = (SELECT string_agg(s, ',' ORDER BY s) FROM pl) WHERE k < 5 RETURNING (SELECT count(*) FROM pl), v},
	q{UPDATE t SET v = (SELECT max(v) FROM t x WHERE x.k = 2) WHERE k = 4 RETURNING v},
	q{UPDATE t SET v = 'pinned' WHERE k = 4 AND id IN (SELECT id FROM u WHERE k = 22) AND EXISTS (SELECT FROM pl)},
	q{DELETE FROM t WHERE (k, id) IN (SELECT k, id FROM t ORDER BY n DESC NULLS LAST, k, id LIMIT 5) RETURNING *},
	q{DELETE FROM t WHERE (k, id) IN (SELECT k, id FROM u WHERE n = 3 ORDER BY k, id LIMIT 4 FOR UPDATE) RETURNING k, id},
	q{UPDATE t SET v = s.r FROM (SELECT u.k, max(pl.s) AS r FROM u JOIN pl ON pl.id = u.n GROUP BY u.k) s WHERE s.k = t.k},
	q{UPDATE t SET v = s.s FROM (SELECT s, id FROM pl UNION ALL SELECT s, k FROM h WHERE k > 20) s WHERE s.id = t.k},
	q{UPDATE t SET n = s.n FROM (SELECT k, row_number() OVER (ORDER BY k DESC, id) AS n FROM u WHERE id = 3) s WHERE s.k = t.k},
	q{UPDATE t SET v = 'none' FROM (SELECT FROM pl WHERE n = 77) s},
	q{UPDATE t SET v = vg.w FROM vg WHERE vg.c = t.id AND vg.k = 9},
	q{UPDATE vt SET v = pl.s FROM pl WHERE pl.id = vt.k RETURNING vt.*, pl.n},
	q{DELETE FROM vt WHERE n IN (SELECT n FROM vu JOIN pl USING (id))},
	# subqueries that depend on the row
	q{UPDATE t SET v = (SELECT s FROM pl WHERE pl.id = t.k)},
	q{UPDATE t SET v = (SELECT s FROM pl WHERE pl.n = t.id) WHERE k = 3},
	q{DELETE FROM t WHERE k = 4 AND EXISTS (SELECT FROM pl WHERE pl.id = t.id)},
	q{DELETE FROM t WHERE NOT EXISTS (SELECT FROM h WHERE h.k = t.k AND h.x > t.id) RETURNING k, id},
	q{UPDATE t SET n = (SELECT count(*) FROM u JOIN pl ON pl.id = u.n WHERE u.k = t.k AND pl.n > 1)},
	q{UPDATE t SET v = (SELECT w FROM (SELECT max(s) AS w, n FROM pl GROUP BY n) z WHERE z.n = t.id)},
	q{UPDATE t SET v = coalesce((SELECT s FROM pl WHERE id = t.k AND n = (SELECT min(x) FROM h WHERE h.k > pl.id)), 'nothing') WHERE n > 3},
	q{UPDATE t SET v = (SELECT s FROM pl WHERE id = t.k UNION SELECT s FROM h WHERE k = t.k ORDER BY 1 LIMIT 1)},
	q{UPDATE t SET n = (SELECT sum(l.x) FROM pl, LATERAL (SELECT x FROM h WHERE h.k = pl.n + t.id) l)},
	# WITH
	q{WITH s AS (SELECT id, s FROM pl) UPDATE t SET v = s.s FROM s WHERE s.id = t.k RETURNING t.*},
	q{WITH s AS (SELECT id, s FROM pl), r AS (SELECT count(*) AS c FROM s) UPDATE t SET v = s.s, n = r.c FROM s, r WHERE s.id = t.k},
	q{WITH s AS (SELECT k, id FROM t WHERE n IS NOT NULL ORDER BY n, k, id LIMIT 7 FOR UPDATE SKIP LOCKED)
	  UPDATE t SET v = 'taken' FROM s WHERE s.k = t.k AND s.id = t.id RETURNING t.k, t.id},
	q{WITH d AS (DELETE FROM u WHERE n = 3 RETURNING *) UPDATE t SET v = d.w FROM d WHERE d.id = t.id AND d.k = t.k + 1},
	q{WITH d AS (DELETE FROM u WHERE n = 3 RETURNING *) DELETE FROM t WHERE k IN (SELECT k FROM d) RETURNING k, id},
	q{WITH i AS (INSERT INTO pl VALUES (101, 'new', 1) RETURNING *) UPDATE t SET v = i.s FROM i WHERE i.n = t.id},
	q{WITH s AS (SELECT max(n) AS n FROM t) DELETE FROM t USING s WHERE t.n = s.n},
	q{WITH s AS (SELECT g FROM generate_series(1, 3) g) DELETE FROM t WHERE id IN (SELECT g FROM s) AND n IN (SELECT n FROM pl)},
	q{WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT r.i + 1 FROM r JOIN pl ON pl.id = r.i) UPDATE t SET v = '' FROM r WHERE r.i = t.k},
	q{WITH RECURSIVE a AS (SELECT k AS i, n FROM t WHERE id = 1), r(i, n) AS (SELECT i, n FROM a WHERE i < 9 UNION SELECT a.i, a.n FROM r JOIN a ON
	  a.i = r.n) DELETE FROM t USING r WHERE r.n = t.n AND t.k > 20 RETURNING t.*},
	q{UPDATE t SET v = z.s FROM pl x JOIN pl y ON y.n = x.id AND y.id > 5 LEFT JOIN pl z ON z.id = y.id AND z.n > 1 WHERE x.n < 4 AND x.id = t.k},
	q{UPDATE t SET v = u.w FROM u LEFT JOIN pl ON pl.id = u.n WHERE u.k = t.k AND u.id = t.id AND pl.n IS NULL},
	q{SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; UPDATE t SET n = (SELECT max(n) FROM t) + pl.n FROM pl WHERE pl.id = t.id RETURNING t.*},
	q{SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; DELETE FROM t WHERE n IN (SELECT n FROM u GROUP BY n HAVING count(*) > 9)},
	# a transition table
	q{CREATE TEMP TABLE tr (k int, s text); CREATE FUNCTION pg_temp.tf() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET v = n.s FROM
	  newrows n WHERE n.k = t.k; DELETE FROM t WHERE k IN (SELECT k + 20 FROM newrows); RETURN NULL; END $$; CREATE TRIGGER x AFTER INSERT ON tr
	  REFERENCING NEW TABLE AS newrows FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.tf();
	  INSERT INTO tr SELECT g, 'tr' || g FROM generate_series(1, 9) g; INSERT INTO tr VALUES (30, 'thirty')},
	# which of them is less goes by the column's collation
	q{UPDATE t SET v = co.s FROM co WHERE co.id = t.id AND t.v < co.s RETURNING t.k, t.v},
	q{DELETE FROM t WHERE v > (SELECT max(s) FROM co WHERE id < 3)},
	q{DELETE FROM t WHERE v < (SELECT max(s COLLATE "C") FROM co)},
	# columns without a name, or with the same
	q{UPDATE t SET v = x || y FROM (SELECT id, max(s), min(s) FROM pl GROUP BY 1) z (i, x, y) WHERE i = t.k},
	q{UPDATE t SET v = z.max FROM (SELECT n, max(s), max(s) || '!', 1 + max(id), 2 + max(id) FROM pl GROUP BY 1) z WHERE z.n = t.k RETURNING z.n},
	# what is computed once
	q{WITH s AS MATERIALIZED (SELECT random() AS r) UPDATE t SET n = s.r FROM s; SELECT count(DISTINCT n) FROM t; UPDATE t SET n = 0},
	q{SELECT setseed(0.5); UPDATE t SET v = (SELECT random()::text); SELECT count(DISTINCT v) FROM t; UPDATE t SET v = ''},
	q{UPDATE t SET v = f.s FROM f_pl(3) f WHERE f.id = t.id},
	(map { "UPDATE t SET v = f.s FROM f_pl(3) f WHERE f.id = t.id AND k = $_ RETURNING *" } 9, 12, 33),
	qq{$temporary; DELETE FROM t USING tmp WHERE tmp.k = t.k AND t.k = 12},
	q{UPDATE t SET v = (SELECT f_count(2)::text) WHERE id = 3},
	q{MERGE INTO t USING pl ON t.k = pl.id WHEN MATCHED AND t.n > 8 THEN DELETE WHEN MATCHED AND t.id = 2 THEN UPDATE SET v = s},
	q{MERGE INTO t USING (VALUES (1, 'one'), (2, 'two')) s(i, x) ON t.id = s.i AND t.n IN (SELECT n FROM pl) WHEN MATCHED THEN UPDATE SET v = x},
	q{MERGE INTO t USING u ON t.n = u.id AND u.k = 5 WHEN MATCHED THEN DELETE},
	q{MERGE INTO t USING pl ON t.k = 4 AND t.id = pl.id WHEN MATCHED THEN UPDATE SET v = s WHEN NOT MATCHED AND pl.id < 9 THEN
	  INSERT (k, id, v) VALUES (4, pl.id, pl.s)},
	# errors, of the read and of the write
	q{UPDATE t SET n = 1 / (SELECT count(*) FROM pl WHERE id = 1000)},
	q{UPDATE t SET n = (SELECT 1 / (n - n) FROM pl WHERE id = 1)},
	q{UPDATE t SET m = (SELECT s FROM pl WHERE id = 1)::mood WHERE k = 7},
	q{UPDATE t SET id = pl.n FROM pl WHERE pl.n IN (1, 2) AND t.k = 3},
);

my @refused = (
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (u.k + 1, u.id)},
	q{MERGE INTO t USING u ON t.k = u.k AND t.id = u.id WHEN MATCHED THEN UPDATE SET k = u.n},
	q{MERGE INTO t USING u ON t.id = u.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (u.k, u.id)},
	q{MERGE INTO t USING (VALUES (1, 1), (30, 9)) s(k, id) ON t.k = s.k AND t.id = s.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (s.k, s.id)},
	q{MERGE INTO t USING (SELECT u.k, o.id FROM t o LEFT JOIN u ON u.k = o.k) s ON t.k = s.k AND t.id = s.id
	  WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (k, id) VALUES (s.k, s.id)},
	q{MERGE INTO t USING pl ON t.k = pl.id WHEN NOT MATCHED THEN INSERT (k, id) VALUES (pl.id, 1)},
	q{UPDATE t SET v = u.w || pl.s FROM u LEFT JOIN pl ON pl.id = u.n WHERE u.k = t.k AND u.id = t.id RETURNING u.*, pl},
	q{UPDATE t SET v = u.w FROM u TABLESAMPLE BERNOULLI (100) WHERE u.k = t.k AND u.id = t.id},
	q{UPDATE t SET v = pl.ctid FROM pl WHERE pl.id = t.k},
	q{UPDATE t SET v = 'x' WHERE ctid IN (SELECT ctid FROM t ORDER BY n LIMIT 3)},
	q{UPDATE t SET v = pl::text FROM pl WHERE pl.id = t.k},
	q{UPDATE t SET v = (SELECT s || random() FROM pl WHERE pl.id = t.k)},
	q{UPDATE t SET k = u.n FROM u WHERE u.k = t.k AND u.id = t.id},
	q{DELETE FROM t USING u WHERE u.k = t.k AND t.ctid = '(0,1)'},
);

sub same
{
	my ($when, @nodes) = @_;

	is($c->table_differs($_, [ whole(@closed) ]), 0, "$when: closed over the key, from $_") foreach @nodes;
	is($c->table_differs($_, [ whole(@reading) ]), 0, "$when: read elsewhere, from $_") foreach @nodes;
	is($c->table_differs($_, [], \@refused), 0, "$when: refused, from $_") foreach @nodes;
}

same('at rest', qw(r1 s2));

# The shards do it: the plan is one statement.
foreach my $statement (@closed)
{
	my $plan = $c->query('r1', "EXPLAIN (COSTS off) $statement");

	like($plan, qr/Tier: whole statement/, "whole: $statement") or diag $plan;
}

# What is read elsewhere is planned by itself, and only the columns that are used are sent.
my $plan = $c->query('r1', 'EXPLAIN (VERBOSE, COSTS off) UPDATE t SET v = u.w FROM u WHERE u.n = t.n AND u.n < 9');
like($plan, qr/unnest\(\(\$\d\)::text\[\], \(\$\d\)::integer\[\]\)/i, 'two columns are sent') or diag $plan;
like($plan, qr/Remote SQL: +SELECT [^<]*WHERE \(+[u.]*n < /s, 'of the rows that meet the condition') or diag $plan;
$plan = $c->query('r1', 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) UPDATE t SET v = v FROM pl WHERE pl.id = t.k AND pl.n = 2');
like($plan, qr/Tier: T1.*rows=3/s, 'the read is shown') or diag $plan;

# Parameters, with plans of their own and a generic one; in PL/pgSQL; plans that do not fit any more.
foreach my $mode (qw(auto force_custom_plan force_generic_plan))
{
	my @prepared = (
		"SET plan_cache_mode = $mode; PREPARE p(int, text) AS UPDATE t SET v = pl.s || \$2 FROM pl WHERE pl.id = t.n AND pl.n >= \$1 RETURNING v; "
		  . join(' ', map { "EXECUTE p($_, 'x$_');" } 0 .. 6) . ' SELECT * FROM t',
		"SET plan_cache_mode = $mode; PREPARE p(int) AS DELETE FROM t WHERE n = (SELECT max(x) FROM h WHERE x < \$1) AND id = \$1; "
		  . join(' ', map { "EXECUTE p($_);" } 1 .. 7) . ' SELECT * FROM t',
		"SET plan_cache_mode = $mode; PREPARE p(int, int) AS UPDATE t SET v = u.w FROM u WHERE t.k = \$1 AND u.k = \$2 AND u.id = t.id RETURNING *; "
		  . join(' ', map { "EXECUTE p($_);" } '4, 4', '4, 25', '25, 4', '15, 4', '1, 9', '25, 27', '4, 5') . ' SELECT * FROM t',
		"SET plan_cache_mode = $mode; PREPARE p(int) AS UPDATE t SET n = u.n FROM u WHERE u.k = t.k AND u.id = t.id AND t.k > \$1 RETURNING t.*; "
		  . join(' ', map { "EXECUTE p($_);" } 38, 30, 20, 10, 5, 1) . ' SELECT * FROM t',
		"SET plan_cache_mode = $mode; DO \$\$ DECLARE s text; d int; BEGIN FOR i IN 1 .. 8 LOOP SELECT pl.s, 2 INTO s, d FROM pl WHERE pl.id = i; "
		  . "UPDATE t SET v = s || pl.s FROM pl WHERE pl.id = t.n AND t.id > d; GET DIAGNOSTICS d = ROW_COUNT; "
		  . "UPDATE t SET n = d WHERE k = i AND EXISTS (SELECT FROM h WHERE h.k = i); END LOOP; END \$\$; SELECT * FROM t");

	is($c->table_differs('r1', \@prepared), 0, "parameters, $mode");
}

# Rights: those of the user who runs it, on the rows and columns of every table.
my $rights = <<'SQL';
CREATE ROLE writer LOGIN; CREATE ROLE owner2;
GRANT SELECT, UPDATE, DELETE ON t TO writer; GRANT SELECT (k, id) ON u TO writer; GRANT SELECT (id, n) ON pl TO writer; GRANT SELECT ON vu TO writer;
CREATE TABLE sec (k int PRIMARY KEY, owner text, v text); CREATE TABLE psec (id int PRIMARY KEY, owner text, v text);
CREATE TABLE tsec (k int, id int, owner text, v text, PRIMARY KEY (k, id));
GRANT ALL ON sec, psec, tsec TO writer;
ALTER TABLE sec ENABLE ROW LEVEL SECURITY; ALTER TABLE psec ENABLE ROW LEVEL SECURITY; ALTER TABLE tsec ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON sec USING (owner = current_user); CREATE POLICY mine ON psec USING (owner = current_user);
CREATE POLICY mine ON tsec USING (owner = current_user) WITH CHECK (v <> 'v9');
SQL
my $secrets = <<'SQL';
INSERT INTO sec SELECT g, CASE WHEN g % 2 = 0 THEN 'writer' ELSE 'x' END, 'v' || g FROM generate_series(1, 40) g;
INSERT INTO psec SELECT * FROM sec WHERE k < 20;
INSERT INTO tsec SELECT k, id, CASE WHEN k % 3 > 0 THEN 'writer' ELSE 'x' END, v FROM t;
SQL
$c->query('s1', $rights);
$c->plain_query($rights);
$c->query('s1', q{SELECT tessera.shard_table('sec', 'k', 'hash', chunks => 4), tessera.shard_table('tsec', 'k', colocate_with => 't')});
$c->query('s1', $secrets);
$c->plain_query($secrets);
my @rights = map { "SET LOCAL ROLE writer; $_; RESET ROLE; SELECT * FROM t; SELECT * FROM tsec" } (
	q{UPDATE t SET v = 'a' FROM u WHERE u.k = t.k AND u.id = t.id},
	q{UPDATE t SET v = u.w FROM u WHERE u.k = t.k AND u.id = t.id},
	q{UPDATE t SET v = vu.w FROM vu WHERE vu.k = t.k AND vu.id = t.id RETURNING *},
	q{UPDATE t SET v = 'a' FROM pl WHERE pl.id = t.k},
	q{UPDATE t SET v = pl.s FROM pl WHERE pl.id = t.k},
	q{UPDATE t SET v = (SELECT s FROM pl WHERE pl.id = t.k)},
	q{UPDATE t SET v = (SELECT max(s) FROM pl)},
	q{DELETE FROM t WHERE k IN (SELECT k FROM h)},
	q{DELETE FROM u USING t WHERE t.k = u.k},
	q{UPDATE t SET v = sec.v FROM sec WHERE sec.k = t.k},
	q{UPDATE t SET v = psec.v FROM psec WHERE psec.id = t.k RETURNING t.k, psec.owner},
	q{UPDATE t SET v = (SELECT string_agg(v, ',' ORDER BY k) FROM sec)},
	q{UPDATE tsec SET v = u.id::text FROM u WHERE u.k = tsec.k AND u.id = tsec.id RETURNING *},
	q{UPDATE tsec SET v = sec.v FROM sec WHERE sec.k = tsec.k AND sec.k < 30},
	q{UPDATE tsec SET v = 'v9' FROM psec WHERE psec.id = tsec.k},
	q{DELETE FROM tsec USING psec WHERE psec.id = tsec.k RETURNING psec.*});
is($c->table_differs('r1', \@rights), 0, 'rights and row security');

# What is read is bounded.
my $much = q{SELECT g, repeat('x', 100) AS x, random() FROM generate_series(1, 2000) g};
like($c->error('r1', "SET tessera.sent_rows_limit = 64; UPDATE t SET v = s.x FROM ($much) s WHERE s.g = t.k"), qr/54000.*sent_rows_limit/s,
	'more than the limit');

$c->query('r1', $_) foreach (q{SELECT tessera.move_range('t', 5, 15, 's3'), tessera.move_range('t', 30, 35, 's1')},
	q{SELECT tessera.move_range('c2', (7, 'p'), (9, 'r'), 's3')});
same('after moves', 'r1');

# Each in a transaction of its own.
is($c->script_differs('r1', [ @closed[ 0, 3, 5 ], 'SELECT * FROM t', @reading[ 0, 3, 26, 31, 45 ], 'SELECT * FROM t', 'SELECT * FROM pl',
	q{UPDATE t SET v = f.s FROM f_pl(3) f WHERE f.id = t.id}, 'DELETE FROM t WHERE n = (SELECT max(n) FROM t)', 'SELECT * FROM t' ]), 0,
	'without a transaction block');

# While ranges move: each statement adds one to each row that it meets, all of them or none.
my $script = <<'SQL';
UPDATE t SET n = u.id + x.c FROM u, (SELECT count(*) AS c FROM pl) x WHERE u.k = t.k AND u.id = t.id;
UPDATE t SET v = 'n' || (SELECT count(*) FROM u WHERE u.k = t.k) WHERE id = 1;
SQL
my $load = $c->pgbench_start(nodes => ['r1'], clients => 1, seconds => 600, rate => 40, script => $script, max_tries => 100)->begun;
$c->query('r1', "SELECT tessera.move_range('t', 8, 25, '$_')") foreach qw(s1 s2 s3);
my $result = $load->end;
cmp_ok($result->{processed}, '>', 0, 'statements ran while ranges moved') or diag explain $result;
$c->plain_query($script);
my $contents = 'SELECT * FROM t ORDER BY k, id';
is($c->query('r1', $contents), $c->plain_query($contents), 'and each did all of its work');

done_testing();
