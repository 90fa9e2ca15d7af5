# Statements whose form the deparser, the rewriter or the wire does not carry by itself: casts with a length, assignments of several columns at once,
# parts of columns, generated columns, temporary views, types and children, tables without columns, rows of joins, domains as keys. Each is run on a
# plain server and through each node of a cluster, one of which owns nothing; the answers are the same, or it is refused where doc/differences.md says
# so.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('forms');

my $schema = <<'SQL';
CREATE ROLE owner;
CREATE ROLE other;
GRANT CREATE, USAGE ON SCHEMA public TO owner, other;
ALTER DEFAULT PRIVILEGES FOR ROLE owner REVOKE INSERT ON TABLES FROM owner;
CREATE DOMAIN dn AS numeric(5,1);
CREATE DOMAIN dv AS varchar(2);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN filled AS text CHECK (value <> '');
CREATE TYPE pair AS (x int, y text);
CREATE TYPE span AS (a pair, b pair);
CREATE DOMAIN pairs AS pair[] CHECK (cardinality(value) < 4);
CREATE DOMAIN low AS pair CHECK ((value).x < 100);
CREATE TABLE typed (k int NOT NULL, id int NOT NULL, n numeric(5,1), v varchar(2), c char(3), b bit(4), vb varbit(4), ts timestamp(2),
  tz timestamptz(1), ti time(0),
	tt timetz(1), iv interval second(1), na numeric(5,1)[], va varchar(2)[], PRIMARY KEY (k, id));
CREATE TABLE domains (k int NOT NULL, id int NOT NULL, n dn, v dv, free numeric, txt text, t time, PRIMARY KEY (k, id));
CREATE TABLE u (k int PRIMARY KEY, a int, b int, c text, l text[], d low, e span);
CREATE TABLE pl (k int PRIMARY KEY, a int, b int, c text, l text[], d low, e span);
CREATE TABLE gen (k int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED, h int GENERATED ALWAYS AS (a + 1) STORED);
CREATE TABLE dom (k positive PRIMARY KEY, c pairs, d pair);
CREATE TABLE named (k filled COLLATE "C" PRIMARY KEY, v int);
CREATE TABLE nothing ();
CREATE TABLE emptied (x int);
ALTER TABLE emptied DROP COLUMN x;
CREATE VIEW genv AS SELECT k, a, g AS gg FROM gen;
CREATE FUNCTION told(text) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 || current_query(); END';
CREATE VIEW asked AS SELECT k, a, current_query() AS q, pg_backend_pid() AS pid, told(c) AS told FROM u;
CREATE VIEW asked_again AS SELECT k, q, q IS NOT NULL AS known FROM asked WHERE a > 0;
CREATE SCHEMA aside; CREATE TABLE aside.u (k int PRIMARY KEY, a int);
CREATE VIEW ruled AS SELECT k, a FROM pl;
CREATE RULE upd AS ON UPDATE TO ruled DO INSTEAD UPDATE pl SET a = new.a + 100 WHERE k = old.k;
CREATE RULE ins AS ON INSERT TO ruled DO INSTEAD INSERT INTO pl (k, a) VALUES (new.k, new.a);
CREATE RULE del AS ON DELETE TO ruled DO INSTEAD DELETE FROM pl WHERE k = old.k;
INSERT INTO typed SELECT k, id, 1.2, 'ab', 'abc', '1010', '101', '2020-01-01 10:00:00.12', '2020-01-01 10:00:00.1', '11:22:33', '11:22:33.4+01',
  '1.2', '{1.2}', '{ab}'
	FROM unnest('{1,14}'::int[]) k, generate_series(1,2) id;
INSERT INTO domains SELECT k, id, 1.2, 'ab', 1.2, 'ab', '11:22:33' FROM unnest('{1,14}'::int[]) k, generate_series(1,2) id;
INSERT INTO u SELECT k, k, k, 'c' || k, '{a,b}', (k,'d')::pair::low, ROW((k,'x')::pair,(k,'y')::pair)::span FROM generate_series(1,20) k;
INSERT INTO pl SELECT k, k, k, 'c' || k, '{a,b}', (k,'d')::pair::low, ROW((k,'x')::pair,(k,'y')::pair)::span FROM generate_series(1,20) k;
INSERT INTO gen SELECT k, k FROM generate_series(1, 20) k;
INSERT INTO dom VALUES (1, ARRAY[(1,'a')::pair], (1,'b')), (14, ARRAY[(2,'z')::pair], (3,'c'));
INSERT INTO named VALUES ('a', 1), ('z', 2);
SQL

# Casts with a length: %s stands for the keys of either shard and for all.
my @casts = (
	q{SELECT k, id FROM typed WHERE n = '1.23'::numeric(5,1) AND %s},
	q{SELECT k, id FROM typed WHERE n = 1.23::numeric(5,1) AND %s},
	q{SELECT k, id FROM typed WHERE v = 'abc'::varchar(2) AND %s},
	q{SELECT k, id FROM typed WHERE v = 12345::varchar(2) OR v = 'ab'::text::varchar(1) || 'b' AND %s},
	q{SELECT k, id FROM typed WHERE c = 'abcd'::char(3) AND %s},
	q{SELECT k, id FROM typed WHERE b = '10101'::bit(4) AND %s},
	q{SELECT k, id FROM typed WHERE vb = '1010'::varbit(3) AND %s},
	q{SELECT k, id FROM typed WHERE ts = timestamp(2) '2020-01-01 10:00:00.1234' AND %s},
	q{SELECT k, id FROM typed WHERE tz = timestamptz(1) '2020-01-01 10:00:00.1234' AND %s},
	q{SELECT k, id FROM typed WHERE ti = time(0) '11:22:33.44' AND %s},
	q{SELECT k, id FROM typed WHERE tt = '11:22:33.44+01'::timetz(1) AND %s},
	q{SELECT k, id FROM typed WHERE iv = interval '1.23' second(1) AND %s},
	q{SELECT k, id FROM typed WHERE iv = '1.23'::interval second(1) AND %s},
	q{SELECT k, id FROM typed WHERE na = '{1.23}'::numeric(5,1)[] AND %s},
	q{SELECT k, id FROM typed WHERE na = ARRAY[1.23, 4]::numeric(5,1)[] OR na = ARRAY[1.23]::numeric(5,1)[] AND %s},
	q{SELECT k, id FROM typed WHERE va = '{abc}'::varchar(2)[] AND %s},
	q{SELECT k, id FROM typed WHERE v IN ('abc'::varchar(2), 'x') AND %s},
	q{SELECT k, id FROM domains WHERE free = 1.23::dn AND txt = 'ab'::dv AND %s},
	q{SELECT '1.26'::numeric(5,1), 'abc'::varchar(2), id FROM domains WHERE %s},
	q{UPDATE domains SET free = '1.23'::numeric(5,1), txt = 'abc'::varchar(2), t = time(0) '11:22:33.44' WHERE %s RETURNING *},
	q{UPDATE domains SET free = 1.26::dn, txt = 'abcd'::char(3) WHERE %s RETURNING *},
	q{UPDATE domains SET txt = 'abc'::dv WHERE %s RETURNING *},
	q{UPDATE domains SET v = 'abc' WHERE %s},
	q{UPDATE domains SET n = 123456 WHERE %s},
	q{UPDATE typed SET v = 'abc' WHERE %s},
	q{UPDATE typed SET v = 'abc'::varchar(2), n = 1.26, iv = '1.26', ts = '2020-01-01 10:00:00.127', b = B'11111'::bit(4) WHERE %s RETURNING *},
	q{UPDATE typed SET ts = localtimestamp(0), tz = current_timestamp(0), ti = localtime(0), tt = current_time(0) WHERE %s RETURNING } .
	q{extract(microsecond from ts)::int %% 1000000, extract(microsecond from tz)::int %% 1000000},
	q{DELETE FROM domains WHERE free = '1.23'::numeric(5,1) AND %s RETURNING *, 'abc'::char(2)},
	q{PREPARE p (numeric, varchar) AS SELECT k, id FROM domains WHERE free = $1::numeric(5,1) AND txt = $2::varchar(2) AND %s ORDER BY 1, 2; } .
	q{EXECUTE p(1.23, 'abc'); EXECUTE p(1.23, 'abc')},
	q{PREPARE p (numeric, varchar) AS UPDATE domains SET free = $1::numeric(5,1), txt = $2::varchar(2) WHERE %s RETURNING free, txt; EXECUTE } .
	q{p(1.27, 'abc'); EXECUTE p(1.34, 'xyz')},
);

my @script = (
	map { my $sql = $_; map { sprintf $sql, $_ } 'k = 1', 'k = 14', 'k > 0' } @casts);

push @script, split /^--\n/m, <<'SQL';
INSERT INTO typed (k, id, v) VALUES (3, 1, 'abc'::varchar(2)), (15, 1, 'abc'::varchar(2)) RETURNING *
--
INSERT INTO typed (k, id, n, iv, ts) VALUES (15, 1, 1.26, '1.26', '2020-01-01 10:00:00.1274') RETURNING *
--
INSERT INTO typed (k, id, v) VALUES (15, 1, 'abc')
--
INSERT INTO typed (k, id, n) VALUES (15.6::numeric(4,0), 1, 1.26) RETURNING k, n
--
SELECT k, id FROM typed WHERE k = 14.2::numeric(4,0) AND n = '1.23'::numeric(5,1)
--
INSERT INTO domains (k, id, free, txt) VALUES (15, 1, 1.26::dn, 'abc'::varchar(2)), (16, 1, '1.26'::numeric(5,1), 'abc'::char(2)) RETURNING *
--
INSERT INTO domains (k, id, free, txt) VALUES (14, 1, 1, '') ON CONFLICT (k, id) DO UPDATE SET free = '1.26'::numeric(5,1),
  txt = 'abc'::char(2) RETURNING *
--
INSERT INTO domains (k, id, free, txt) VALUES (1, 1, 1, ''), (14, 1, 1, '') ON CONFLICT (k, id) DO UPDATE SET free = '1.26'::numeric(5,1),
  txt = 'abc'::char(2) WHERE domains.free = '1.23'::numeric(5,1) RETURNING *
--
UPDATE u SET (b, a) = (SELECT 10, 20) WHERE k = 1 RETURNING k, a, b, c
--
UPDATE u SET (b, a) = (SELECT 10, 20) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE pl SET (b, a) = (SELECT 10, 20) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE pl SET (b, a) = (SELECT 10, 20) RETURNING k, a, b, c
--
UPDATE u SET (b, a) = (10, 20) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE u SET (b, a) = ROW(10, 20) RETURNING k, a, b, c
--
UPDATE u SET (b, c) = (SELECT 10, 'x'), a = 7 WHERE k = 14 RETURNING k, a, b, c
--
UPDATE u SET a = 7, (c, b) = (SELECT 'x', 10) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE u SET (c, b) = (SELECT 'x', 10), (a) = (SELECT 5) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE pl SET (a) = (SELECT 5), (c, b) = (SELECT 'x', 10) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE u SET (c, b) = (SELECT x.c || u.c, u.b + x.k FROM u x WHERE x.k = u.k) WHERE k = 14 RETURNING k, a, b, c
--
UPDATE u SET (l[2], c, l[1]) = (SELECT 'two', 'x', 'one'), (b, a) = (SELECT 1, 2) WHERE k = 14 RETURNING k, a, b, c, l
--
WITH w AS (UPDATE pl SET (b, a) = (SELECT 10, 20) WHERE k = 3 RETURNING k, a, b) SELECT * FROM w
--
INSERT INTO pl (k, a, b, c) VALUES (14, 1, 2, 'z') ON CONFLICT (k) DO UPDATE SET (b, a) = (10, 20) RETURNING k, a, b, c
--
INSERT INTO pl (k, a, b, c) VALUES (14, 1, 2, 'z') ON CONFLICT (k) DO UPDATE SET (c, b, a) = (SELECT excluded.c, excluded.a, excluded.b) RETURNING k,
  a, b, c
--
INSERT INTO u (k, a, b) VALUES (1, 1, 2), (14, 1, 2) ON CONFLICT (k) DO UPDATE SET (b, a) = (excluded.a, excluded.b + 5) RETURNING k, a, b, c
--
MERGE INTO pl USING (SELECT 14 AS k, 5 AS x) s ON pl.k = s.k WHEN MATCHED AND pl.a > 100 THEN DELETE WHEN MATCHED THEN UPDATE SET (b, c, a) = (s.x,
  'm', 20); SELECT k, a, b, c FROM pl WHERE k = 14
--
MERGE INTO u USING (SELECT * FROM pl WHERE k = 1) s ON u.k = s.k AND u.k = 1 WHEN MATCHED THEN UPDATE SET (b, a) = (s.b + 1, 20); SELECT k, a, b, c
  FROM u WHERE k = 1
--
MERGE INTO u USING (SELECT * FROM u WHERE k = 14) s ON u.k = s.k AND u.k = 14 WHEN MATCHED AND s.a < 3 THEN DELETE WHEN MATCHED THEN UPDATE SET (c,
  b) = ('m', s.a), a = 4; SELECT k, a, b, c FROM u WHERE k = 14
--
UPDATE u SET l[1] = 'p', l[2] = 'q' WHERE k = 14 RETURNING l
--
UPDATE u SET l[1] = 'p', l[5] = l[1] RETURNING l
--
UPDATE u SET l[2:3] = '{r,s}', l[1] = 't' WHERE k = 14 RETURNING l
--
UPDATE u SET d.x = 1, d.y = 'z' WHERE k = 14 RETURNING d
--
UPDATE u SET d.x = (u.d).x + 1, d.y = 'z' RETURNING d
--
UPDATE u SET d.x = 99, d.x = 100 WHERE k = 14 RETURNING d
--
UPDATE u SET d.x = 100 WHERE k = 14
--
UPDATE u SET e.a.x = 7, e.b.y = 'q', e.a.y = 'w' WHERE k = 14 RETURNING e
--
UPDATE pl SET e.a.x = 7, e.b.y = 'q', e.a.y = 'w' RETURNING e
--
UPDATE dom SET c[1].x = 9 WHERE k = 14 RETURNING *
--
UPDATE dom SET c[1].x = (c[1]).x + 1, c[2] = (3,'n') RETURNING *
--
UPDATE dom SET c[2] = ROW(3,'b'), c[3].y = 'three', d.x = 4 WHERE k = 1 RETURNING *
--
UPDATE dom SET c[4] = ROW(3,'b') WHERE k = 1
--
INSERT INTO dom (k, c[1].x, c[2].y, d.y) VALUES (15, 1, 'b', 'q'), (2, 5, 'c', 'r') RETURNING *
--
INSERT INTO dom (k, c[1]) VALUES (15, (1,'a')) ON CONFLICT (k) DO UPDATE SET c[2].x = 4, c[1].y = 'k' RETURNING *
--
INSERT INTO dom (k, c[1]) VALUES (14, (1,'a')), (1, (1,'a')) ON CONFLICT (k) DO UPDATE SET c[2].x = 4, c[1].y = 'k' RETURNING *
--
SELECT * FROM dom WHERE c = ARRAY[(2,'z')::pair] AND k = 14
--
DELETE FROM dom WHERE k = 14 AND c = ARRAY[(2,'z')::pair]::pairs RETURNING c
--
SELECT array_agg(d ORDER BY k), max(c) FROM dom
--
PREPARE p (pairs) AS UPDATE dom SET c = $1 WHERE k = 14 RETURNING *; EXECUTE p('{"(8,h)"}'); EXECUTE p('{"(8,h)"}'); EXECUTE p(NULL)
--
COPY dom FROM stdin;
30	{"(1,a)"}	(1,a)
2	{"(1,a)"}	(1,a)
\.
SELECT * FROM dom ORDER BY k
--
UPDATE dom SET k = 15 WHERE k = 14 RETURNING *
--
UPDATE dom SET k = 15 WHERE k = 1 RETURNING *
--
UPDATE dom SET k = k + 3; SELECT * FROM dom ORDER BY k
--
UPDATE dom SET k = -1 WHERE k = 14
--
UPDATE dom SET k = '7' WHERE k = 14 RETURNING k
--
UPDATE named SET k = 'y' WHERE k = 'a' RETURNING *
--
UPDATE named SET k = k || 'x'; SELECT * FROM named ORDER BY k
--
UPDATE named SET k = '' WHERE k = 'a'
--
PREPARE p (filled, text) AS UPDATE named SET k = $1 WHERE k = $2 RETURNING *; EXECUTE p('b', 'a'); EXECUTE p('zz', 'b'); EXECUTE p('', 'zz')
--
UPDATE gen SET g = DEFAULT WHERE k = 14 RETURNING *
--
UPDATE gen SET g = DEFAULT RETURNING *
--
UPDATE gen SET h = DEFAULT, g = DEFAULT WHERE k = 1 RETURNING *
--
UPDATE gen SET a = 5, g = DEFAULT RETURNING *
--
UPDATE gen SET g = 5 WHERE k = 14
--
UPDATE genv SET gg = DEFAULT WHERE k = 14 RETURNING *
--
INSERT INTO gen (k, a, g) VALUES (14, 2, DEFAULT) ON CONFLICT (k) DO UPDATE SET g = DEFAULT RETURNING *
--
INSERT INTO gen (k, a, g) VALUES (50, 1, DEFAULT), (1, 2, DEFAULT) ON CONFLICT (k) DO UPDATE SET g = DEFAULT RETURNING *
--
MERGE INTO gen USING (SELECT * FROM gen WHERE k = 14) s ON gen.k = s.k AND gen.k = 14 WHEN MATCHED THEN UPDATE SET g = DEFAULT; SELECT * FROM gen
  WHERE k = 14
--
UPDATE ruled SET a = 5 WHERE k = 14; SELECT k, a FROM pl WHERE k = 14
--
UPDATE ruled SET a = a + 5; SELECT k, a FROM pl ORDER BY k
--
INSERT INTO ruled SELECT k + 30, a FROM ruled; SELECT count(*) FROM pl
--
DELETE FROM ruled WHERE k = 14; SELECT count(*) FROM pl
--
CREATE TEMP VIEW tv AS SELECT * FROM u; SELECT count(*), sum(a) FROM tv; SELECT * FROM tv WHERE k = 14; SELECT tv FROM tv WHERE k = 1
--
CREATE TEMP VIEW tv AS SELECT * FROM u; UPDATE tv SET a = a + 1 WHERE k = 14; SELECT a FROM u WHERE k = 14; DELETE FROM tv WHERE k = 1;
INSERT INTO tv (k, c) VALUES (40, 'n'); SELECT count(*) FROM tv; UPDATE tv SET a = 0; SELECT sum(a) FROM u
--
CREATE TEMP VIEW u AS SELECT k, 'temp' AS t FROM public.pl; SELECT * FROM u WHERE k IN (1,14) ORDER BY k; SELECT * FROM u WHERE k = 14;
SELECT count(*) FROM public.u
--
CREATE TEMP VIEW pl AS SELECT k, a FROM u WHERE k = 14; SELECT * FROM pl; SELECT * FROM pl WHERE k = 14; SELECT a FROM public.pl WHERE k = 5;
UPDATE pl SET a = 77; SELECT a FROM public.u WHERE k = 14; SELECT sum(a) FROM public.pl
--
CREATE TEMP VIEW tv AS SELECT u.k, pl.a FROM u JOIN pl USING (k); SELECT * FROM tv WHERE k = 14; SELECT count(*) FROM tv; DROP VIEW tv; SELECT *
  FROM tv
--
CREATE TEMP VIEW tv AS SELECT * FROM u; CREATE TEMP VIEW tv2 AS SELECT k, a FROM tv WHERE k > 3; SELECT count(*) FROM tv2;
CREATE OR REPLACE TEMP VIEW tv AS SELECT * FROM u WHERE k < 5; SELECT * FROM tv2; SELECT * FROM tv2 WHERE k = 4; ALTER VIEW tv RENAME TO tv3;
SELECT count(*) FROM tv3; COMMENT ON VIEW tv3 IS 'x'
--
CREATE TEMP VIEW tv AS SELECT k, a FROM u WHERE k < 15; GRANT SELECT ON tv TO other; SET ROLE other; SELECT * FROM tv WHERE k = 14; SELECT count(*)
  FROM tv; SELECT count(*) FROM u
--
CREATE VIEW vv AS SELECT k, a FROM u; CREATE TEMP VIEW tv AS SELECT * FROM vv WHERE k > 2; SELECT * FROM tv WHERE k = 14; UPDATE tv SET a = 3
  WHERE k = 14; SELECT count(*), sum(a) FROM tv
--
CREATE TEMP VIEW tv WITH (security_barrier) AS SELECT k, a FROM u WHERE a > 3; SELECT * FROM tv WHERE k = 14; SELECT count(*) FROM tv
--
CREATE TEMP TABLE tt (k int); CREATE VIEW vt AS SELECT u.k, u.a FROM u JOIN tt USING (k); INSERT INTO tt VALUES (14); SELECT * FROM vt
--
CREATE TEMP TABLE tt (a int, b text); CREATE FUNCTION tf(tt) RETURNS int LANGUAGE sql AS 'SELECT $1.a'; INSERT INTO tt VALUES (14, 'x'); SELECT tf(tt)
  FROM tt; SELECT u.k, tf(t) FROM tt t, u WHERE u.k = tf(t); COMMENT ON FUNCTION tf(tt) IS 'x'; ALTER FUNCTION tf(tt) RENAME TO tf2;
  DROP FUNCTION tf2(tt); SELECT tf2(tt) FROM tt
--
CREATE TEMP TABLE tt (a int, b text); CREATE FUNCTION tf() RETURNS SETOF tt LANGUAGE sql AS 'SELECT * FROM pg_temp.tt'; INSERT INTO tt VALUES (14,
  'x'); SELECT * FROM tf(); DROP TABLE tt CASCADE; SELECT * FROM tf()
--
CREATE TEMP TABLE tt (a int, b text); CREATE DOMAIN dtt AS tt CHECK ((value).a > 0); SELECT ROW(1, 'x')::dtt;
ALTER DOMAIN dtt ADD CHECK ((value).b <> ''); SELECT ROW(1, '')::dtt; DROP DOMAIN dtt; SELECT ROW(1, '')::dtt
--
CREATE TEMP TABLE tt (a int, b text); CREATE TYPE ctt AS (x tt, y int); SELECT (ROW(ROW(1, 'x'), 5)::ctt).y, k FROM u WHERE k = 14; DROP TYPE ctt
--
CREATE TYPE pg_temp.ett AS ENUM ('a', 'b'); SELECT 'a'::pg_temp.ett, k FROM u WHERE k = 14; SELECT max('a'::pg_temp.ett) FROM u;
CREATE FUNCTION pg_temp.f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + 1; END'; SELECT pg_temp.f(k) FROM u WHERE k = 14
  AND pg_temp.f(a) = 15; SELECT sum(pg_temp.f(k)) FROM u
--
CREATE DOMAIN pg_temp.dtt AS int CHECK (value > 0); SELECT 5::pg_temp.dtt, k::pg_temp.dtt FROM u WHERE k = 14; CREATE TEMP TABLE tt (a pg_temp.dtt);
INSERT INTO tt SELECT k FROM u; SELECT count(*) FROM tt
--
INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES; SELECT count(*) FROM nothing; COPY (SELECT FROM nothing) TO stdout;
COPY nothing TO stdout; SELECT nothing FROM nothing; CREATE TEMP TABLE x AS SELECT FROM nothing; SELECT count(*) FROM x
--
INSERT INTO emptied DEFAULT VALUES; INSERT INTO emptied SELECT; COPY (SELECT FROM emptied) TO stdout; SELECT 1 FROM emptied; SELECT count(*)
  FROM emptied, nothing; SELECT n, 1 FROM emptied n; SELECT row_to_json(n) FROM emptied n; DELETE FROM emptied; SELECT count(*) FROM emptied
--
COPY nothing FROM stdin;


\.
SELECT count(*) FROM nothing; COPY nothing TO stdout
--
INSERT INTO nothing SELECT FROM generate_series(1, 3); SELECT EXISTS (SELECT FROM nothing); SELECT (SELECT count(*) FROM nothing n), * FROM nothing;
ALTER TABLE nothing ADD COLUMN y int; UPDATE nothing SET y = 4; SELECT * FROM nothing; ALTER TABLE nothing DROP COLUMN y; COPY nothing TO stdout
--
COPY (SELECT FROM u WHERE k = 14) TO stdout; COPY (SELECT FROM u) TO stdout; SELECT count(*) FROM (SELECT FROM u WHERE k = 14) x
--
SELECT x.* FROM u JOIN pl USING (k) AS x WHERE u.k = 14
--
SELECT row_to_json(x.*), row_to_json(x) FROM u JOIN u w USING (k) AS x WHERE x.k = 14
--
SELECT row_to_json(x.*) FROM pl JOIN pl w USING (k, a) AS x WHERE x.k < 3
--
SELECT row_to_json(x) FROM u JOIN pl USING (k) AS x WHERE x.k IN (1, 14)
--
SELECT x, to_jsonb(x) FROM u JOIN pl USING (k, a) AS x WHERE x.k < 3
--
SELECT row_to_json(j) FROM (u JOIN u w USING (k)) j (k, a, b, c, l, d, e, a2, b2, c2, l2) WHERE j.k = 14
--
SELECT row_to_json(j) FROM (pl JOIN pl w USING (k)) j WHERE j.k = 14
--
SELECT row_to_json(x.*) FROM u AS x(kk, aa) WHERE kk = 14
--
SELECT row_to_json(x) FROM (SELECT k, a FROM u WHERE k = 14) AS x(kk, aa)
--
SELECT row_to_json(f), row_to_json(u) FROM u, generate_series(1, 2) AS f(n) WHERE u.k = 14
--
SELECT row_to_json(f) FROM pl, LATERAL (SELECT pl.a + 1, pl.b) AS f(n, m) WHERE pl.k = 14
--
SELECT to_json(f) FROM u JOIN unnest(ARRAY[14, 1]) WITH ORDINALITY AS f(k, o) USING (k)
--
WITH w(x, y) AS (SELECT k, a FROM u WHERE k = 14) SELECT row_to_json(w), w.* FROM w
--
SELECT json_agg(x.* ORDER BY x.k) FROM u JOIN u w USING (k) AS x WHERE x.k < 4
--
SELECT ROW(u.a, u.b), row_to_json(ROW(u.a, u.b)) FROM u WHERE k = 14
--
UPDATE u SET a = 3 WHERE k = 14 RETURNING row_to_json(u), u
--
CREATE TABLE taken AS SELECT * FROM pg_class WHERE relkind = 'i'; SELECT count(*) > 100, pg_typeof(relacl) FROM taken GROUP BY 2 LIMIT 1
--
CREATE TABLE taken AS SELECT * FROM pg_proc WHERE prosqlbody IS NULL AND proargdefaults IS NULL; SELECT count(*) > 100 FROM taken
  WHERE proargtypes = ''
--
CREATE TABLE taken AS SELECT 'int'::regtype t, 'x'::name n, 1::oid o, '{}'::aclitem[] a, ''::int2vector v, '3 4'::oidvector w, 'x'::"char" ch,
  '5'::xid xi, '(0,1)'::tid ti, '1'::cid ci; SELECT * FROM taken
--
SET ROLE owner; CREATE TABLE taken AS SELECT 1 AS a, 2 AS b; SELECT * FROM taken; RESET ROLE; SELECT relacl FROM pg_class WHERE relname = 'taken';
SET ROLE owner; INSERT INTO taken VALUES (3, 4)
--
SET ROLE owner; SELECT 5 AS a INTO taken; SELECT * FROM taken
--
UPDATE u SET c = current_query() WHERE k IN (1, 14) RETURNING c
--
UPDATE u SET c = upper(left(current_query(), 6)) || k RETURNING c
--
UPDATE pl SET c = current_query(), a = length(current_query()) WHERE k = 3 RETURNING c, a
--
UPDATE u SET c = CASE WHEN k > 10 THEN current_query() ELSE c END RETURNING c
--
DELETE FROM u WHERE c <> current_query() AND length(current_query()) > 5 RETURNING k
--
UPDATE u SET c = current_query() FROM pl WHERE pl.k = u.k AND u.k IN (1, 14) RETURNING u.c
--
UPDATE u SET k = k + 100, c = current_query() WHERE k = 14 RETURNING k, c
--
MERGE INTO u USING (VALUES (1), (14)) v (x) ON u.k = v.x WHEN MATCHED THEN UPDATE SET c = current_query(); SELECT k, c FROM u
--
PREPARE p(int) AS UPDATE u SET c = current_query() WHERE k = $1 RETURNING c; EXECUTE p(1); EXECUTE p(14)
--
DO $$ BEGIN UPDATE u SET c = current_query() WHERE k IN (1, 14); END $$; SELECT k, c FROM u
--
SELECT k, current_query() FROM u WHERE k = 14 AND c <> current_query()
--
SELECT k, q, pid = pg_backend_pid() FROM asked WHERE k = 14
--
SELECT told FROM asked WHERE k = 14
--
SELECT * FROM asked_again WHERE k = 14
--
UPDATE u SET c = asked.q FROM asked WHERE asked.k = u.k AND u.k = 14 RETURNING u.c
--
SELECT (SELECT q FROM asked WHERE asked.k = u.k) FROM u WHERE k = 14
--
DECLARE c CURSOR FOR SELECT k, a FROM u WHERE k = 14; SET LOCAL search_path = aside; FETCH ALL FROM c; SELECT k FROM u; SHOW search_path
--
DECLARE c CURSOR FOR SELECT u.k, pl.a FROM u JOIN pl USING (k) WHERE u.k IN (1, 14); SET LOCAL search_path = aside; FETCH 1 FROM c; FETCH ALL FROM c
--
DECLARE c CURSOR FOR SELECT k, (SELECT max(a) FROM pl WHERE pl.k = u.k) FROM u ORDER BY k FOR UPDATE; SET LOCAL search_path = aside;
FETCH 3 FROM c; SET LOCAL search_path = public; FETCH 2 FROM c; SHOW search_path
--
DECLARE c CURSOR FOR SELECT count(*), max(k) FROM u; SET LOCAL search_path = aside; FETCH c; SHOW search_path
SQL

my @refused = split /^--\n/m, <<'SQL';
CREATE TEMP TABLE child () INHERITS (u)
--
CREATE TEMP TABLE child () INHERITS (pl)
--
CREATE TEMP TABLE child (LIKE pl); ALTER TABLE child INHERIT pl
--
CREATE TEMP TABLE tt (a int); CREATE TABLE uses (k int, x tt)
--
CREATE TEMP TABLE tt (a int); ALTER TABLE pl ADD COLUMN x tt[]
--
CREATE TEMP VIEW tv AS SELECT * FROM u WHERE a < 30 WITH CHECK OPTION; UPDATE tv SET a = 50 WHERE k = 14
--
CREATE TEMP VIEW tv WITH (security_barrier) AS SELECT * FROM u WHERE a < 30; UPDATE tv SET a = 50 WHERE k = 14
SQL

$c->create(shards => 2, routers => 1);
$c->query('s1', $schema);
foreach my $table (qw(typed domains u gen dom))
{
	$c->query('s1', "SELECT tessera.shard_table('$table', 'k')");
	$c->query('s1', "SELECT tessera.move_range('$table', 11, tessera.maxkey(), 's2')");
}
$c->query('s1', "SELECT tessera.shard_table('named', 'k'); SELECT tessera.move_range('named', 'm'::text, tessera.maxkey(), 's2')");
$c->query('s1', "SELECT tessera.shard_table('aside.u', 'k')");
$c->plain_query($schema);

chomp(@script, @refused);
is($c->table_differs($_, \@script, \@refused), 0, "from $_: " . scalar(@script) . ' statements as on a plain server') foreach $c->names;

like($c->error('r1', 'CREATE TABLE taken AS SELECT adbin FROM pg_attrdef'), qr/0A000: a value of type pg_node_tree cannot be sent to another node/,
	'what has no input is refused');

# Nothing of the temporary kind went to another node, and what rested on it is gone with its session.
$c->query('r1', 'CREATE TEMP TABLE tt (a int); CREATE FUNCTION gone(tt) RETURNS int LANGUAGE sql AS $$SELECT $1.a$$');
is(join(' ', $c->query_all("SELECT count(*) FROM pg_proc WHERE proname = 'gone'")), '0 0 0', 'no function of a temporary type is left');

foreach my $name ($c->names)
{
	unlike(slurp_file($c->node($name)->logfile), qr/TRAP|PANIC|terminated by signal/, "$name: no crash");
}

done_testing();
