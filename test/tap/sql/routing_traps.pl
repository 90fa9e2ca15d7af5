# The traps of routing, one by one (doc/design.md#statements): what a statement means must not depend on how it gets to the rows. As in
# sql/any_statement_any_node.pl the same script runs on a plain server and from two nodes (one holds the placed tables, one does not), and answers
# and SQLSTATEs are compared (make test-long: all of it from each; make test: each statement from one of them); what is refused must be refused as
# not supported, on every node alike, and is left out on the plain server, so that the tables stay equal.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use TesseraCluster;

my $c = TesseraCluster->new('traps');

my $schema = <<'SQL';
CREATE EXTENSION citext;
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE mood AS ENUM ('sad','ok','happy');
CREATE TYPE addr AS (street text, no int, tags text[]);
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE TABLE t1 (k int NOT NULL, id int NOT NULL, v text, n numeric(10,2), f float8, d date, ts timestamptz, arr int[], doc jsonb,
  PRIMARY KEY (k,id));
CREATE TABLE t2 (k int NOT NULL, id int NOT NULL, ref int, w text, PRIMARY KEY (k,id));
CREATE TABLE tx (k text NOT NULL, c citext, v int, PRIMARY KEY (k));
CREATE TABLE tm (k posint NOT NULL, m mood, a addr, ms mood[], v varchar(5), b char(4), PRIMARY KEY (k));
CREATE TABLE tu (k int8 NOT NULL, id int GENERATED ALWAYS AS IDENTITY, g int GENERATED ALWAYS AS (id * 2) STORED, note text DEFAULT 'dflt',
  at timestamptz DEFAULT now(), PRIMARY KEY (k,id));
CREATE TABLE ts (k serial, note text, PRIMARY KEY (k));
CREATE TABLE tn (k numeric NOT NULL, v int, PRIMARY KEY (k));
CREATE TABLE td (k date NOT NULL, v int, PRIMARY KEY (k));
CREATE TABLE t_rls (k int NOT NULL, owner text, v int, PRIMARY KEY (k));
CREATE TABLE tt (k int NOT NULL, v int, log text, PRIMARY KEY (k));
CREATE TABLE regions (id int PRIMARY KEY, name text UNIQUE, org int);
CREATE TABLE members (who text, org int, PRIMARY KEY (who, org));
CREATE TABLE audit (id serial PRIMARY KEY, what text);
CREATE TABLE parts (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (10) TO (1000);
CREATE TABLE inh_p (a int, b text);
CREATE TABLE inh_c (c int) INHERITS (inh_p);
CREATE VIEW v1 AS SELECT k, id, upper(v) AS uv, n FROM t1;
CREATE VIEW vb WITH (security_barrier) AS SELECT k, id, v FROM t1 WHERE n < 100;
CREATE VIEW vagg AS SELECT k, count(*) AS c, sum(n) AS s FROM t1 GROUP BY k;
CREATE VIEW vjoin AS SELECT t1.k, t1.id, t2.w FROM t1 JOIN t2 USING (k, id);
CREATE FUNCTION f_imm(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';
CREATE FUNCTION f_dflt(a int, b int DEFAULT 3) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN a + b; END';
CREATE FUNCTION f_st(int) RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN (SELECT count(*) FROM t1 WHERE k = $1); END';
CREATE FUNCTION f_sql(int) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM t1 WHERE k = $1';
CREATE FUNCTION f_srf(int) RETURNS TABLE (id int, v text) LANGUAGE sql STABLE AS 'SELECT id, v FROM t1 WHERE k = $1';
CREATE FUNCTION f_reg(int) RETURNS text LANGUAGE sql STABLE AS 'SELECT name FROM regions WHERE id = $1';
CREATE FUNCTION f_regs() RETURNS TABLE (id int, name text) LANGUAGE sql STABLE AS 'SELECT id, name FROM regions';
CREATE FUNCTION f_vol(int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN $1 + 1; END';
CREATE FUNCTION f_ins(int, text) RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO t2 (k,id,w) VALUES ($1, 1000 + $1, $2); RETURN $1; END';
CREATE FUNCTION f_ci(int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN ''x'' || $1; END';
CREATE FUNCTION f_secdef() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM t_rls';
CREATE FUNCTION tg_key() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN IF new.log = ''shift'' THEN new.k := new.k + 1; END IF; new.log := coalesce(new.log, '''') || ''!''; RETURN new; END';
CREATE TRIGGER tg BEFORE INSERT OR UPDATE ON tt FOR EACH ROW EXECUTE FUNCTION tg_key();
ALTER TABLE t_rls ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON t_rls FOR SELECT USING (owner = current_user OR EXISTS (SELECT 1 FROM members m WHERE m.who = current_user AND m.org = t_rls.v));
CREATE POLICY ins ON t_rls FOR INSERT WITH CHECK (owner = current_user);
CREATE POLICY upd ON t_rls FOR UPDATE USING (owner = current_user) WITH CHECK (v < 100);
GRANT ALL ON ALL TABLES IN SCHEMA public TO bob;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO bob;
REVOKE ALL ON td FROM bob;
CREATE VIEW vpriv AS SELECT * FROM td;
GRANT SELECT ON vpriv TO bob;
SQL
my @sharded = qw(t1 tx tm tu ts tn td t_rls tt);
my @tables = (@sharded, qw(t2 regions members audit parts inh_c inh_p));

my %refused;
sub refused { my ($sql) = @_; $refused{$sql} = 1; return $sql; }

# Each part begins with these rows.
my @rows = (
	(map { "DELETE FROM $_" } @tables),
	q{INSERT INTO regions SELECT g, 'r' || g, g % 3 FROM generate_series(1, 8) g},
	q{INSERT INTO t1 SELECT k, i, 'v' || k || '-' || i, k * 10 + i, k / 3.0, date '2024-01-01' + i, timestamptz '2024-01-01 00:00+00' + k * } .
	q{interval '1 hour', ARRAY[k, i], jsonb_build_object('k', k, 'i', i) FROM generate_series(1, 15) k, generate_series(1, 4) i},
	q{INSERT INTO t2 SELECT k, i, (k + i) % 7, 'w' || i FROM generate_series(1, 12) k, generate_series(2, 5) i},
	q{INSERT INTO tx SELECT 'key' || g, 'C' || g, g FROM generate_series(1, 20) g},
	q{INSERT INTO tm SELECT g, (ARRAY['sad','ok','happy'])[1 + g % 3]::mood, ROW('s' || g, g, ARRAY['x', g::text])::addr, ARRAY['ok']::mood[], } .
	q{'v' || g, 'b' || g FROM generate_series(1, 20) g},
	q{INSERT INTO tn SELECT g / 2.0, g FROM generate_series(1, 20) g},
	q{INSERT INTO td SELECT date '2024-01-01' + g, g FROM generate_series(1, 20) g},
	q{INSERT INTO t_rls SELECT g, CASE WHEN g % 3 = 0 THEN 'bob' ELSE 'alice' END, g FROM generate_series(1, 20) g},
	q{INSERT INTO members VALUES ('bob', 4), ('bob', 5), ('alice', 1)},
	q{INSERT INTO parts SELECT g, 'p' || g FROM generate_series(1, 20) g},
	q{INSERT INTO inh_p SELECT g, 'p' || g FROM generate_series(1, 5) g},
	q{INSERT INTO inh_c SELECT g, 'c' || g, g FROM generate_series(1, 5) g},
);

# each statement that has no ORDER BY of its own is compared as a set of rows
my @script = (
	@rows,
	# rows, volatile keys, pins, types, SQL syntax, numbers and names of objects
	q{INSERT INTO ts (note) VALUES ('one')},
	q{INSERT INTO ts (note) SELECT 'n' || g FROM generate_series(1, 30) g},
	q{INSERT INTO ts (note) VALUES ('two'); INSERT INTO ts (note) VALUES ('three'); INSERT INTO ts (note) VALUES ('four'); SELECT count(*) FROM ts},
	q{SELECT count(*) FROM ts a WHERE EXISTS (SELECT FROM ts b WHERE b.k = a.k)},
	q{DO $$ DECLARE i int; n int; BEGIN FOR i IN SELECT k FROM ts LOOP SELECT count(*) INTO n FROM ts WHERE k = i; IF n <> 1 THEN RAISE EXCEPTION } .
	q{'lost %', i; END IF; END LOOP; END $$},
	q{INSERT INTO t2 (k, id, w) VALUES ((random() * 1000)::int + 100, 1, 'rnd')},
	q{DO $$ DECLARE i int; n int; BEGIN FOR i IN SELECT k FROM t2 WHERE w = 'rnd' LOOP SELECT count(*) INTO n FROM t2 WHERE k = i AND w = 'rnd'; } .
	q{IF n <> 1 THEN RAISE EXCEPTION 'lost %', i; END IF; END LOOP; END $$},
	q{DELETE FROM t2 WHERE w = 'rnd'},
	q{INSERT INTO tu (k, note) VALUES (1, 'a') RETURNING k, g = id * 2, note},
	q{INSERT INTO tu (k) VALUES (2), (3), (4) RETURNING k, g = id * 2, note},
	q{INSERT INTO tu (k, id) VALUES (5, 5)},
	q{INSERT INTO tu (k, id) OVERRIDING SYSTEM VALUE VALUES (5, 5) RETURNING k, id, g, note},
	q{INSERT INTO tu (k, g) VALUES (5, 5)},
	q{UPDATE tu SET note = DEFAULT WHERE k = 1 RETURNING note},
	q{UPDATE tu SET g = 5 WHERE k = 1},
	q{SELECT k, count(DISTINCT id) FROM tu GROUP BY k},
	q{SELECT x.k, t2.id FROM (SELECT 5 AS k UNION ALL SELECT 7) x JOIN t2 ON t2.k = x.k},
	q{SELECT x.k, t2.id FROM (SELECT k FROM t1 WHERE k = 5 UNION ALL SELECT id FROM regions WHERE id = 3) x JOIN t2 ON t2.k = x.k},
	q{WITH x AS (SELECT 5 AS k UNION SELECT 7) SELECT x.k, t2.id FROM x JOIN t2 ON t2.k = x.k},
	q{SELECT * FROM (VALUES (1), (2)) x(k) JOIN t2 USING (k)},
	# branches without a condition are pulled up into the statement: none reads the local heap
	q{SELECT k, id FROM t1 UNION ALL SELECT k, id FROM t2},
	q{SELECT v FROM t1 UNION ALL SELECT name FROM regions UNION ALL SELECT c FROM tx},
	q{SELECT count(*), sum(x.k), sum(x.id) FROM (SELECT k, id FROM t1 UNION ALL SELECT id, org FROM regions UNION ALL SELECT id, k FROM t2) x},
	q{SELECT x.o, x.id FROM (SELECT k, id, 1 AS o FROM t1 UNION ALL SELECT k, id, 2 FROM t2) x WHERE x.k = 4},
	q{SELECT x.o, count(*) FROM (SELECT k, id, 1 AS o FROM t1 UNION ALL SELECT k, id, 2 FROM t2) x WHERE x.o = 2 AND x.k < 9 GROUP BY 1},
	q{SELECT r.id, (SELECT count(*) FROM (SELECT k FROM t1 UNION ALL SELECT k FROM t2) x WHERE x.k = r.id) FROM regions r},
	q{SELECT r.id, x.* FROM regions r, LATERAL (SELECT k, r.org AS o FROM t1 UNION ALL SELECT k, r.id FROM t2) x WHERE x.k = r.id},
	q{SELECT x FROM (SELECT k, v FROM t1 UNION ALL SELECT k, w FROM t2) x ORDER BY x LIMIT 7},
	q{SELECT k FROM (SELECT k, owner FROM t_rls UNION ALL SELECT k, note FROM tu) x WHERE k < 9},
	# an INSERT's columns in another order than the table's
	q{INSERT INTO regions (org, id) SELECT id + 100, org + 200 FROM regions WHERE id = 5 RETURNING id, name, org},
	q{WITH w AS (INSERT INTO regions (org, name, id) SELECT id + 100, name || '!', id + 300 FROM regions WHERE id < 4 RETURNING *) SELECT * FROM w},
	q{WITH w AS (INSERT INTO regions (org, id) VALUES (1, 401), (2, 402) RETURNING *) SELECT * FROM w},
	q{WITH w AS (INSERT INTO audit (what) SELECT name FROM regions WHERE id = 1 RETURNING what) SELECT * FROM w},
	q{INSERT INTO t2 (id, k, ref) SELECT k + 500, id, id FROM t2 WHERE k = 3 AND id < 4 RETURNING k, id, ref, w},
	q{INSERT INTO t2 (ref, id, w, k) SELECT id, ref + 600, v, k FROM t1 JOIN t2 USING (k, id) WHERE k = 3 ORDER BY id RETURNING k, id, ref, w},
	q{SELECT * FROM regions WHERE id > 100},
	q{DELETE FROM regions WHERE id > 100 RETURNING id},
	q{DELETE FROM t2 WHERE id > 500 RETURNING id},
	q{SELECT t1.k, t1.id, t2.id FROM t1 LEFT JOIN t2 ON t1.k = t2.k AND t2.k = 7 WHERE t1.k = 5},
	q{SELECT t1.k, t1.id, t2.id FROM t1 FULL JOIN t2 ON t1.k = t2.k AND t1.id = t2.id WHERE t1.k = 5 OR t2.k = 5},
	q{SELECT t1.k, t2.k, t1.id, t2.id FROM t1 FULL JOIN t2 ON t1.k = t2.k AND t1.id = t2.id WHERE t1.k = 5},
	q{SELECT t1.k, t2.k, t1.id, t2.id FROM t1 FULL JOIN t2 ON t1.k = t2.k AND t1.id = t2.id AND t1.k = 5},
	q{SELECT t1.k, t2.k, t1.id, t2.id FROM t1 FULL JOIN t2 USING (k) WHERE k = 5},
	q{SELECT t1.k, t2.k, t1.id, t2.id FROM t1 LEFT JOIN t2 ON t1.k = 5 AND t2.k = t1.k WHERE t1.id = 1},
	q{SELECT t1.k, t1.id FROM t1 RIGHT JOIN t2 ON t1.k = t2.k AND t1.k = 3 WHERE t2.id = 2},
	q{SELECT a.k, b.k, c.k FROM t1 a LEFT JOIN (t1 b JOIN t2 c ON b.k = c.k AND b.id = c.id) ON a.k = b.k WHERE a.k = 4},
	q{SELECT a.k, b.k, c.k FROM t1 a LEFT JOIN t2 b ON a.k = b.k AND b.id = 99 LEFT JOIN t2 c ON c.k = b.k WHERE a.k = 4},
	q{SELECT a.id FROM t1 a WHERE a.k = 4 AND NOT EXISTS (SELECT FROM t2 WHERE t2.k = a.k AND t2.id = a.id)},
	q{SELECT a.k, a.id FROM t1 a WHERE NOT EXISTS (SELECT FROM t2 WHERE t2.k = a.k AND t2.id = a.id)},
	q{SELECT a.k, a.id FROM t1 a WHERE (a.k, a.id) IN (SELECT k, id FROM t2 WHERE ref = 3)},
	q{SELECT a.k, a.id FROM t1 a WHERE (a.k, a.id) NOT IN (SELECT k, id FROM t2 WHERE ref <> 3)},
	q{SELECT a.k, a.id FROM t1 a WHERE (a.k, a.id) = (5, 2)},
	q{SELECT a.k, a.id FROM t1 a WHERE (a.k, a.id) > (14, 2)},
	q{SELECT a.k, a.id FROM t1 a WHERE ROW(a.k, a.id) IN (ROW(1,2), ROW(2,3), ROW(3,NULL))},
	q{SELECT a.k, a.id FROM t1 a WHERE a.k IN (1, 2, NULL) AND id = 1},
	q{SELECT a.k, a.id FROM t1 a WHERE a.k NOT IN (1, 2, 3) AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = ANY (ARRAY[3]) AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = ALL (ARRAY[3, 3]) AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = ANY ('{3,4}'::int8[]) AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = ANY ('{}'::int[]) AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = 3::int8 AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = 3::int2 AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = 3.0 AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = '3' AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = '3'::text AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = 3::float8 AND id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k = 99999999999 OR a.k = 2},
	q{SELECT count(*) FROM t1 a WHERE a.k = 99999999999},
	q{SELECT count(*) FROM t1 a WHERE a.k = 3 AND a.k = 4},
	q{SELECT count(*) FROM t1 a, t2 b WHERE a.k = 3 AND b.k = 4},
	q{SELECT count(*) FROM t1 a, t2 b WHERE a.k = 3 AND b.k = 4 AND a.k = b.k},
	q{SELECT k, note FROM tu WHERE k = 4::int2},
	q{SELECT k FROM tu WHERE k = 4.0},
	q{SELECT * FROM tn WHERE k = 2},
	q{SELECT * FROM tn WHERE k = 2.00},
	q{SELECT * FROM tn WHERE k = 2.5::float8},
	q{SELECT * FROM tn WHERE k IN (1, 1.5, 2.000)},
	q{SELECT * FROM td WHERE k = '2024-01-05'},
	q{SELECT * FROM td WHERE k = timestamp '2024-01-05'},
	q{SELECT * FROM td WHERE k = timestamptz '2024-01-05 00:00+00'},
	q{SELECT * FROM td WHERE k > '2024-01-18'},
	q{SELECT * FROM tx WHERE k = 'key5'},
	q{SELECT * FROM tx WHERE k::citext = 'KEY5'},
	q{SELECT * FROM tx WHERE k = 'key5'::citext},
	q{SELECT * FROM tx WHERE k = 'KEY5'::citext},
	q{SELECT * FROM tx WHERE c = 'c5'},
	q{SELECT * FROM tx WHERE c = 'c5' AND k = 'key5'},
	q{SELECT nullif(c, 'c5'), c IS DISTINCT FROM 'c6', CASE c WHEN 'c5' THEN 1 END FROM tx WHERE k = 'key5'},
	q{SELECT nullif(c, 'c5'), c IS DISTINCT FROM 'c6', CASE c WHEN 'c5' THEN 1 END FROM tx},
	q{SELECT a.k FROM tx a JOIN tx b ON a.c = b.k::citext},
	q{SELECT a.k, b.k FROM tx a JOIN tx b ON a.k::citext = b.k WHERE b.k = 'key7'},
	q{SELECT count(*) FROM (SELECT k::citext AS c, v FROM tx) p WHERE c = 'KEY5'},
	q{SELECT p.v, q.v FROM (SELECT k::citext AS c, v FROM tx) p JOIN (SELECT upper(k)::citext AS c, v FROM tx) q ON p.c = q.c},
	q{SELECT count(*) FROM (SELECT k::bpchar AS c FROM tx) p JOIN (SELECT (k || ' ')::bpchar AS c FROM tx) q ON p.c = q.c},
	q{INSERT INTO tx VALUES ('tw', NULL, 1), ('tw ', NULL, 2), ('tw  ', NULL, 3), ('tw   ', NULL, 4), ('tw    ', NULL, 5), ('tw     ', NULL, 6)},
	q{SELECT p.v, q.v FROM (SELECT k::bpchar AS c, v FROM tx) p JOIN (SELECT k::bpchar AS c, v FROM tx) q ON p.c = q.c WHERE p.v < 7},
	q{SELECT p.v, q.v FROM (SELECT k::bpchar AS c, v FROM tx) p JOIN (SELECT k::bpchar AS c, v FROM tx) q USING (c) WHERE c = 'tw'},
	q{DELETE FROM tx WHERE k LIKE 'tw%'},
	q{SELECT p.v, q.v FROM (SELECT k::varchar AS c, v FROM tx) p JOIN (SELECT k::varchar AS c, v FROM tx) q ON p.c = q.c WHERE p.c = 'key5'},
	q{SELECT * FROM tx WHERE k = 'key5'::varchar},
	q{SELECT * FROM tx WHERE k = 'key5'::char(4)},
	q{SELECT * FROM tx WHERE k = 'key5'::name},
	q{SELECT * FROM tx WHERE k COLLATE "C" = 'key5'},
	q{SELECT * FROM tx WHERE k COLLATE "POSIX" > 'key5' ORDER BY k COLLATE "C" DESC},
	q{SELECT * FROM tx WHERE k = 'key5' COLLATE "C"},
	q{UPDATE tx SET v = v WHERE k = 'key5' COLLATE "POSIX" RETURNING k},
	q{SELECT * FROM tx WHERE k = 'KEY5' COLLATE nocase},
	q{UPDATE tx SET v = v WHERE 'KEY5' = k COLLATE nocase RETURNING k},
	q{SELECT * FROM tx WHERE k COLLATE nocase = ANY ('{KEY5,Key7}')},
	q{SELECT a.k, b.k FROM tx a LEFT JOIN tx b ON a.k = upper(b.k) COLLATE nocase},
	q{SELECT lower(k COLLATE nocase), count(*) FROM tx GROUP BY k COLLATE nocase},
	# what is left to the planner, in a key's value
	q{SELECT k, id FROM t1 WHERE k = f_dflt(2)},
	q{UPDATE t1 SET v = v WHERE k = f_dflt(b => 1, a => 3) RETURNING k, id},
	q{DELETE FROM tu WHERE k = f_dflt(f_imm(1)) AND id < 0},
	# arrays of other integers than the key's
	q{SELECT k, note FROM tu WHERE k = ANY ('{4,NULL,2}'::int[])},
	q{UPDATE tu SET note = note WHERE k = ANY (ARRAY[1, 5]::int2[]) RETURNING k},
	q{SELECT k, id FROM t1 WHERE k = ANY ('{3,99999999999}'::int8[])},
	q{SELECT * FROM tx WHERE k LIKE 'key1%' ORDER BY k},
	q{SELECT * FROM tx WHERE k ~ '^key1'},
	q{SELECT k, m, a, (a).no, (a).tags[2], ms, v, b FROM tm WHERE k = 3},
	q{SELECT k, m, a, (a).no, (a).tags[2], ms, v, b || '|' FROM tm},
	q{SELECT k FROM tm WHERE m = 'happy'},
	q{SELECT k FROM tm WHERE m > 'sad' AND k = 4},
	q{SELECT k FROM tm WHERE a = ROW('s4', 4, ARRAY['x','4'])::addr},
	q{SELECT k FROM tm WHERE k = 4 AND a = ROW('s4', 4, ARRAY['x','4'])::addr},
	q{SELECT k FROM tm WHERE b = 'b4'},
	q{SELECT k FROM tm WHERE k = 4 AND b = 'b4 '},
	q{SELECT k FROM tm WHERE k = 4 AND v = 'v4'},
	q{SELECT k FROM tm WHERE k = 4 AND v LIKE 'v%' AND b LIKE 'b4%'},
	q{SELECT m, count(*) FROM tm GROUP BY m ORDER BY m},
	q{SELECT max(m), min(m) FROM tm},
	q{SELECT k FROM tm WHERE 'ok' = ANY (ms) AND k < 4},
	q{INSERT INTO tm (k) VALUES (-1)},
	q{INSERT INTO tm (k, v) VALUES (100, 'toolong')},
	q{INSERT INTO tm (k, m) VALUES (100, 'nosuch')},
	q{UPDATE tm SET a.street = 'new' WHERE k = 3 RETURNING a},
	q{UPDATE tm SET a.street = 'new', a.no = 77 WHERE k = 3 RETURNING a},
	q{UPDATE tm SET a.tags[1] = 'q', a.tags[2] = 'r' WHERE k = 3 RETURNING a},
	q{UPDATE tm SET ms[1] = 'sad', ms[2] = 'happy' WHERE k = 3 RETURNING ms},
	q{UPDATE t1 SET arr[1] = 100, arr[2] = 200 WHERE k = 3 RETURNING arr},
	q{UPDATE t1 SET arr[1] = 100 WHERE k = 3 RETURNING arr},
	q{UPDATE t1 SET arr[2:3] = '{7,8}' WHERE k = 3 RETURNING arr},
	q{UPDATE t1 SET doc['z'] = '1' WHERE k = 3 RETURNING doc},
	q{UPDATE t1 SET (v, n) = ('multi', 5) WHERE k = 3 AND id = 1 RETURNING v, n},
	q{UPDATE t1 SET (v, n) = (SELECT w, ref FROM t2 WHERE t2.k = t1.k AND t2.id = 2) WHERE k = 3 AND id = 1 RETURNING v, n},
	q{SELECT id FROM t1 WHERE k = 3 AND extract(year FROM ts) = 2024},
	q{SELECT extract(hour FROM ts), extract(epoch FROM d) FROM t1 WHERE k = 3 AND extract(day FROM d) = 3},
	q{SELECT id FROM t1 WHERE extract(day FROM d) = 3},
	q{SELECT id FROM t1 WHERE k = 3 AND normalize(v, NFC) = 'v3-2'},
	q{SELECT id FROM t1 WHERE k = 3 AND v IS NFC NORMALIZED},
	q{SELECT id FROM t1 WHERE k = 3 AND trim(both 'v' FROM v) = '3-2'},
	q{SELECT id FROM t1 WHERE k = 3 AND substring(v FROM 1 FOR 2) = 'v3' AND position('-' IN v) = 3 AND overlay(v PLACING 'x' FROM 1) LIKE 'x%'},
	q{SELECT id, ts AT TIME ZONE 'Asia/Tokyo' FROM t1 WHERE k = 3 AND ts AT TIME ZONE 'Asia/Tokyo' > '2000-01-01'},
	q{SELECT id FROM t1 WHERE k = 3 AND (ts, ts + interval '1 day') OVERLAPS (timestamptz '2024-01-01', interval '10 days')},
	q{SELECT id FROM t1 WHERE k = 3 AND ts BETWEEN SYMMETRIC '2025-01-01' AND '2023-01-01'},
	q{SELECT id FROM t1 WHERE k = 3 AND xmlexists('//a' PASSING BY REF '<a/>'::xml)},
	q{SELECT id FROM t1 WHERE k = 3 AND v SIMILAR TO 'v3-(1|2)'},
	q{SELECT id FROM t1 WHERE k = 3 AND interval '1 day' * id > interval '36 hours' AND time '10:00' < '11:00'},
	q{SELECT id, interval '1 day 2 hours', '1 mon'::interval, date '2024-02-03', 1.1e30::float8, 'NaN'::float8, B'101', x'1F', '\x00ff'::bytea, } .
	q{'1.2.3.4'::inet FROM t1 WHERE k = 3},
	q{SET datestyle = 'SQL, DMY'; SET intervalstyle = 'iso_8601'; SET extra_float_digits = 0; SET bytea_output = escape; SELECT id, d, ts, } .
	q{interval '1 day 2 hours', date '2024-02-03', 0.1::float8 + 0.2, '\x00ff'::bytea FROM t1 WHERE k = 3 AND d < '03/02/2024' ORDER BY id; } .
	q{SELECT d, ts, f FROM t1 WHERE d = '03/01/2024' ORDER BY k, id},
	q{SET standard_conforming_strings = off; SET escape_string_warning = off; SELECT id, 'a\b' FROM t1 WHERE k = 3 AND v <> 'x\y' ORDER BY id},
	q{SELECT id, 'it''s', E'a\nb\c', U&'\0041', $q$dollar$q$ FROM t1 WHERE k = 3 AND v <> E'x\y'},
	q{SELECT current_user, session_user, current_schema, current_database() FROM t1 WHERE k = 3},
	q{SELECT current_date = now()::date, current_timestamp = now(), localtimestamp = now()::timestamp, transaction_timestamp() = now() FROM t1 } .
	q{WHERE k = 3},
	q{SELECT DISTINCT date_trunc('year', now()) = date_trunc('year', current_date::timestamptz), count(*) FROM t1 WHERE k = 3 GROUP BY } .
	q{date_trunc('year', now())},
	q{SELECT count(*) FROM t1 WHERE k = 3 AND ts < now() - interval '1 day'},
	q{SELECT CASE WHEN id > 0 THEN v ELSE current_setting('no.such') END FROM t1 WHERE k = 3},
	q{SELECT coalesce(v, current_setting('no.such')) FROM t1 WHERE k = 3},
	q{SELECT coalesce(v, current_setting('no.such')) FROM t1},
	q{SELECT CASE WHEN id > 0 THEN v ELSE current_setting('no.such') END FROM t1 WHERE CASE WHEN id > 0 THEN true ELSE current_setting('no.such') } .
	q{= '' END},
	q{SELECT tableoid::regclass FROM t1 WHERE k = 3},
	q{SELECT DISTINCT tableoid::regclass FROM t1},
	q{SELECT count(*) FROM t1 WHERE tableoid = 't1'::regclass},
	q{SELECT count(*) FROM t1 WHERE k = 3 AND tableoid = 't1'::regclass},
	q{SELECT tableoid = 't1'::regclass::oid FROM t1 WHERE k = 3},
	q{SELECT relname FROM pg_class WHERE oid = (SELECT tableoid FROM t1 WHERE k = 3 LIMIT 1)},
	q{SELECT pg_typeof(m), pg_typeof(a) FROM tm WHERE k = 3},
	q{SELECT pg_typeof(m), pg_typeof(a) FROM tm},
	q{SELECT 't1'::regclass, 'mood'::regtype, 'f_imm'::regproc FROM t1 WHERE k = 3},
	q{SELECT x.* FROM t1 x WHERE k = 3 AND id = 2},
	q{SELECT x, row_to_json(x), to_jsonb(x) FROM t1 x WHERE k = 3 AND id = 2},
	q{SELECT x, row_to_json(x) FROM t1 x},
	q{SELECT x IS NULL, x IS NOT NULL, x = x FROM t1 x WHERE k = 3},
	q{SELECT (x).v FROM t1 x WHERE k = 3},
	q{SELECT ROW(k, v), ROW(x.*) FROM t1 x WHERE k = 3},
	q{SELECT ROW(k, v), ROW(x.*) FROM t1 x},
	q{SELECT x FROM (SELECT k, v FROM t1 WHERE k = 3) x},
	q{SELECT array_agg(ROW(k, id) ORDER BY id) FROM t1 WHERE k = 3},
	q{SELECT array_agg(ROW(k, id) ORDER BY k, id) FROM t1 WHERE id = 1},
	q{SELECT array_agg(x ORDER BY id) FROM t1 x WHERE k = 3},
	q{SELECT (json_populate_record(NULL::t2, '{"k": 5, "w": "z"}')).* FROM t1 WHERE k = 3},
	q{SELECT unnest(arr), k FROM t1 WHERE k = 3},
	q{SELECT unnest(arr), k FROM t1},
	q{SELECT k, u FROM t1, unnest(arr) WITH ORDINALITY u WHERE k = 3},
	q{SELECT e.* FROM t1, jsonb_each(doc) e WHERE k = 3 AND id = 1},
	q{SELECT e.* FROM t1, jsonb_to_record(doc) AS e(k int, i int) WHERE t1.k = 3},
	q{SELECT generate_series(1, id) FROM t1 WHERE k = 3},
	q{SELECT * FROM t1 TABLESAMPLE SYSTEM (100) WHERE k = 3},
	q{SELECT count(*) FROM ONLY t1 WHERE k = 3},
	q{SELECT count(*) FROM ONLY t1},
	# set operations, writable CTEs, INSERT ... SELECT, ON CONFLICT, partitions, MERGE, triggers, views, row security, functions
	@rows,
	q{SELECT x.k, t2.id FROM (SELECT 2 AS k UNION ALL SELECT 4 UNION ALL SELECT 1) x JOIN t2 ON t2.k = x.k},
	q{WITH x AS (SELECT 1 AS k UNION SELECT 2 UNION SELECT 4) SELECT x.k, t2.id FROM x JOIN t2 ON t2.k = x.k},
	q{SELECT x.k, t2.id FROM (SELECT k FROM t1 WHERE k = 4 UNION ALL SELECT id FROM regions WHERE id < 4) x JOIN t2 ON t2.k = x.k},
	q{SELECT g, (SELECT count(*) FROM tx WHERE k::citext = 'KEY1'), (SELECT count(*) FROM tx WHERE k::citext = 'KEY2'), (SELECT count(*) FROM tx } .
	q{WHERE k::citext = 'KEY3') FROM generate_series(1, 1) g},
	q{SELECT * FROM tx WHERE k::citext = 'KEY1'},
	q{SELECT * FROM tx WHERE k::citext = 'KEY2'},
	q{SELECT * FROM tx WHERE k::citext = 'KEY3'},
	q{SELECT * FROM tx WHERE k::citext = 'KEY4'},
	q{SELECT * FROM tx WHERE k::citext = 'Key11'},
	q{SELECT * FROM tx a JOIN tx b ON a.k::citext = b.c WHERE b.k = 'C1'},
	q{WITH n AS (INSERT INTO t1 (k, id, v) VALUES (1, 77, 'cte') RETURNING id, k) SELECT t2.k, t2.id FROM t2 JOIN n ON t2.k = n.id - 75},
	q{WITH n AS (INSERT INTO t1 (k, id, v) VALUES (1, 2, 'cte') ON CONFLICT (k, id) DO UPDATE SET v = excluded.v RETURNING id, k) SELECT t2.k, } .
	q{t2.id FROM t2 JOIN n ON t2.k = n.id},
	q{WITH d AS (DELETE FROM t1 WHERE k = 1 AND id = 77 RETURNING *) SELECT count(*) FROM d},
	q{WITH d AS (DELETE FROM t1 WHERE k = 15 RETURNING k, id, v) INSERT INTO t2 (k, id, w) SELECT k, id + 200, v FROM d},
	q{WITH u AS (UPDATE t1 SET v = 'cteu' WHERE k = 2 RETURNING k, id, v) SELECT u.id, t1.v FROM u JOIN t1 ON t1.k = u.k AND t1.id = u.id WHERE } .
	q{t1.k = 2},
	q{WITH u AS (UPDATE t1 SET v = 'a' WHERE k = 2 AND id = 1 RETURNING k), w AS (DELETE FROM t2 WHERE k = 2 AND id = 2 RETURNING k) SELECT * } .
	q{FROM u, w},
	q{WITH d AS (INSERT INTO t1 (k, id) SELECT 4, 90 + g FROM generate_series(1, 3) g RETURNING id) SELECT * FROM d},
	q{WITH d AS (INSERT INTO tu (k) VALUES (40) RETURNING k, note) SELECT * FROM d},
	q{WITH d AS (INSERT INTO tu (k, note) SELECT 41, 'x' RETURNING k, note) SELECT * FROM d},
	q{WITH s AS (SELECT 4 AS k, 95 AS id) INSERT INTO t1 (k, id) SELECT * FROM s RETURNING k, id},
	q{SELECT k, id, v FROM t1},
	q{SELECT k, id, w FROM t2},
	q{SELECT k, note FROM tu},
	q{INSERT INTO t1 (k, id, v) SELECT 50, id, v FROM t1 WHERE k = 2},
	q{INSERT INTO t1 (k, id, v) SELECT 51, id, v FROM t1 WHERE k = 4},
	q{INSERT INTO t1 (k, id, v) VALUES (52, 1, (SELECT max(name) FROM regions))},
	q{INSERT INTO t1 (k, id, v) VALUES (53, 1, (SELECT max(v) FROM t1))},
	q{INSERT INTO t1 (k, id, v) VALUES (54, 1, (SELECT max(v) FROM t1 WHERE k = 4)), (55, 1, (SELECT max(v) FROM t1 WHERE k = 2))},
	q{INSERT INTO t1 (k, id, v) VALUES (56, (SELECT count(*) FROM t1 WHERE k = 4), 'x') RETURNING k, id, v},
	q{INSERT INTO regions SELECT k + 100, v || k FROM t1 WHERE id = 1 AND k < 6},
	q{INSERT INTO t1 (k, id, v) SELECT id + 60, 1, name FROM regions WHERE id < 4 RETURNING k, v},
	q{INSERT INTO t1 (k, id) SELECT k, id FROM t1 ON CONFLICT DO NOTHING},
	q{INSERT INTO t1 (k, id, v) SELECT k, id, 'again' FROM t1 WHERE k IN (1, 2, 3, 4) ON CONFLICT (k, id) DO UPDATE SET v = excluded.v || t1.id } .
	q{RETURNING k, id, v},
	q{INSERT INTO t1 (k, id, v) VALUES (1, 1, 'a'), (1, 1, 'b') ON CONFLICT (k, id) DO UPDATE SET v = excluded.v},
	q{INSERT INTO t1 (k, id, v) VALUES (2, 1, 'a'), (2, 1, 'b') ON CONFLICT (k, id) DO UPDATE SET v = excluded.v},
	q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'a'), (4, 1, 'b') ON CONFLICT (k, id) DO UPDATE SET v = excluded.v},
	q{INSERT INTO t1 (k, id, v) VALUES (80, 1, 'a'), (80, 1, 'b') ON CONFLICT (k, id) DO NOTHING RETURNING v},
	refused(q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q'), (2, 1, 'r'), (1, 1, 's') ON CONFLICT (k, id) DO UPDATE SET v = (SELECT name FROM } .
	q{regions WHERE regions.id = t1.k) RETURNING k, v}),
	refused(q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q') ON CONFLICT (k, id) DO UPDATE SET v = (SELECT name FROM regions WHERE regions.id = } .
	q{t1.k) RETURNING k, v}),
	refused(q{INSERT INTO t1 (k, id, v) VALUES (4, 101, 'q'), (2, 101, 'r'), (1, 101, 's') RETURNING k, (SELECT name FROM regions WHERE } .
	q{regions.id = t1.k)}),
	q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q'), (2, 1, 'r'), (1, 1, 's') ON CONFLICT (k, id) DO UPDATE SET v = t1.v || '*' WHERE t1.id < } .
	q{excluded.id + 1 RETURNING k, v},
	refused(q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q') ON CONFLICT (k, id) DO UPDATE SET k = 5}),
	q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q') ON CONFLICT (k, id) DO UPDATE SET k = excluded.k, v = 'same' RETURNING k, v},
	q{INSERT INTO t1 (k, id, v) VALUES (4, 1, 'q') ON CONFLICT ON CONSTRAINT t1_pkey DO NOTHING},
	q{INSERT INTO t1 (k, id, ts) VALUES (4, 300, now()) RETURNING ts = now()},
	q{INSERT INTO t1 (k, id, ts) VALUES (4, 301, now()), (2, 301, now()) ON CONFLICT (k, id) DO UPDATE SET ts = now() RETURNING ts = now()},
	q{INSERT INTO t1 DEFAULT VALUES},
	q{INSERT INTO regions DEFAULT VALUES},
	q{INSERT INTO audit DEFAULT VALUES},
	q{INSERT INTO audit (what) VALUES ('a'), ('b') RETURNING what},
	q{INSERT INTO audit (what) SELECT v FROM t1 WHERE id = 1},
	q{SELECT count(*), count(DISTINCT id) FROM audit},
	q{INSERT INTO parts SELECT k, v FROM t1 WHERE k = 2},
	q{INSERT INTO parts VALUES (5, 'five'), (15, 'fifteen') RETURNING *},
	q{UPDATE parts SET a = a + 10 WHERE b = 'five' RETURNING *},
	q{DELETE FROM parts WHERE a = 15},
	q{SELECT * FROM parts},
	q{SELECT tableoid::regclass, a FROM parts},
	q{SELECT p.a, t1.id FROM parts p JOIN t1 ON t1.k = p.a},
	q{SELECT p.a, t1.id FROM parts1 p JOIN t1 ON t1.k = p.a},
	q{SELECT p.*, t1.id FROM inh_p p JOIN t1 ON t1.k = p.a},
	q{SELECT p.*, t1.id FROM ONLY inh_p p JOIN t1 ON t1.k = p.a},
	q{SELECT p.*, t1.id FROM inh_c p JOIN t1 ON t1.k = p.a},
	q{SELECT tableoid::regclass, p.*, t1.id FROM inh_p p JOIN t1 ON t1.k = p.a},
	q{SELECT p.tableoid::regclass, p.*, t1.id FROM inh_p p JOIN t1 ON t1.k = p.a},
	q{SELECT p.tableoid::regclass, p.*, t1.id FROM parts p JOIN t1 ON t1.k = p.a},
	q{SELECT * FROM inh_p},
	q{UPDATE inh_p SET b = 'x' || a RETURNING *},
	q{MERGE INTO t1 USING (SELECT 4 AS k, 1 AS id) s ON t1.k = s.k AND t1.id = s.id WHEN MATCHED THEN UPDATE SET v = 'merged'},
	q{MERGE INTO t1 USING (VALUES (4, 1), (4, 400)) s(k, id) ON t1.k = 4 AND t1.id = s.id WHEN MATCHED THEN UPDATE SET v = 'merged2' WHEN NOT } .
	q{MATCHED THEN INSERT (k, id, v) VALUES (4, s.id, 'new')},
	q{MERGE INTO t1 USING t2 s ON t1.k = s.k AND t1.id = s.id AND s.k = 2 WHEN NOT MATCHED THEN INSERT (k, id, v) VALUES (s.k, s.id + } .
	q{500, 'nm')},
	refused(q{MERGE INTO t1 USING (SELECT 2 AS k) s ON t1.k = s.k AND t1.id = 9999 WHEN NOT MATCHED THEN INSERT (k, id, v) VALUES (s.k + 2, 600, } .
	q{'nm')}),
	refused(q{MERGE INTO t1 USING (SELECT 2 AS k) s ON t1.k = s.k AND t1.id = 9999 WHEN NOT MATCHED THEN INSERT (k, id, v) VALUES (1, 601, 'nm')}),
	refused(q{MERGE INTO t1 USING (SELECT 2 AS k) s ON t1.k = s.k AND t1.id = 1 WHEN MATCHED THEN UPDATE SET k = 4}),
	q{MERGE INTO t1 USING (SELECT 2 AS k) s ON t1.k = s.k AND t1.id = 1 WHEN MATCHED THEN DELETE},
	q{MERGE INTO regions USING (SELECT 2 AS k) s ON regions.id = s.k WHEN MATCHED THEN UPDATE SET name = 'mr' || s.k WHEN NOT } .
	q{MATCHED THEN DO NOTHING},
	q{SELECT k, id, v FROM t1},
	q{SELECT count(*) FROM t1 a WHERE k NOT IN (SELECT k FROM t1 b WHERE b.k = a.k)},
	q{UPDATE t1 SET k = 3 WHERE k = 2 AND id = 2},
	q{UPDATE t1 SET k = k WHERE k = 2 AND id = 2 RETURNING k},
	q{UPDATE t1 SET k = 2 WHERE k = 2 AND id = 2 RETURNING k},
	q{UPDATE t1 SET v = t2.w FROM t2 WHERE t1.k = t2.k AND t1.id = t2.id AND t1.k = 4 RETURNING t1.id, t1.v, t2.w},
	q{UPDATE t1 SET v = x.w FROM (VALUES (1, 'one'), (2, 'two')) x(i, w) WHERE t1.id = x.i RETURNING t1.k, t1.v},
	# (a subquery that is not a CTE may be run once a row: on a plain server its statistics decide)
	q{UPDATE t1 SET n = s.r FROM (SELECT 1000 + (random() * 1000)::int AS r) s WHERE id = 1},
	q{SELECT count(*), bool_and(n BETWEEN 1000 AND 2000) FROM t1 WHERE id = 1},
	q{WITH s AS MATERIALIZED (SELECT (random() * 1000)::int AS r) UPDATE t1 SET n = s.r FROM s WHERE id = 1},
	q{SELECT count(DISTINCT n) FROM t1 WHERE id = 1},
	q{UPDATE t1 SET n = 5 WHERE id = 1},
	q{UPDATE t1 SET n = n + 1 WHERE ts < now() AND id = 2 RETURNING k, n},
	q{UPDATE t1 SET f = random() WHERE id = 2; SELECT count(*) FROM t1 WHERE f BETWEEN 0 AND 1 AND id = 2},
	q{DELETE FROM t1 USING t2 WHERE t1.k = t2.k AND t1.id = t2.id AND t2.k = 1 RETURNING t1.k, t1.id, t2.w},
	q{DELETE FROM t1 USING generate_series(2, 3) g WHERE t1.id = g AND t1.k > 9 RETURNING k, id},
	q{UPDATE t1 SET v = v WHERE k IN (1, 2, 4) AND id = 3 RETURNING k},
	q{UPDATE t1 SET v = 'in' WHERE k = ANY ('{1,2,4}') RETURNING k, id},
	q{DELETE FROM t1 WHERE k IN (5, 6) AND id = 3 RETURNING k},
	q{UPDATE t1 SET v = f_imm(id) WHERE k = 4 RETURNING v},
	q{UPDATE t1 SET v = f_vol(id) WHERE k = 4 RETURNING v},
	q{UPDATE t1 SET v = f_st(4) WHERE k = 4 RETURNING v},
	q{UPDATE t1 SET v = f_reg(2) WHERE k = 4 RETURNING v},
	q{UPDATE t1 SET v = r.name FROM f_regs() r WHERE k = 4 AND r.id = t1.id RETURNING t1.id, v},
	q{UPDATE t1 SET v = r.v FROM f_srf(2) r WHERE k = 4 AND r.id = t1.id RETURNING t1.id, t1.v},
	q{UPDATE t1 SET v = r.name FROM regions r WHERE k = 4 AND r.id = t1.id RETURNING t1.id, v},
	q{UPDATE t1 SET v = r.name FROM regions r WHERE r.id = t1.id},
	q{DELETE FROM t1 WHERE k = 4 AND EXISTS (SELECT FROM regions r WHERE r.id = t1.id)},
	q{UPDATE t1 SET v = (SELECT max(v) FROM t1 x WHERE x.k = 2) WHERE k = 4 RETURNING v},
	q{SELECT k, id, v, n FROM t1},
	q{INSERT INTO tt (k, v) VALUES (1, 1) RETURNING *},
	refused(q{INSERT INTO tt (k, v, log) VALUES (1, 1, 'shift') RETURNING *}),
	refused(q{INSERT INTO tt (k, v, log) VALUES (3, 1, 'shift') RETURNING *}),
	refused(q{INSERT INTO tt (k, v, log) SELECT g * 10, g, 'shift' FROM generate_series(1, 8) g}),
	q{SELECT * FROM tt},
	q{SELECT * FROM tt a WHERE EXISTS (SELECT FROM tt b WHERE b.k = a.k AND b.k = 2)},
	q{SELECT * FROM tt WHERE k = 2},
	q{SELECT * FROM tt WHERE k = 4},
	refused(q{UPDATE tt SET log = 'shift' WHERE k = 1}),
	q{SELECT * FROM tt},
	q{SELECT * FROM v1 WHERE k = 7},
	q{SELECT * FROM v1},
	q{SELECT * FROM vb WHERE k = 7},
	q{SELECT * FROM vb WHERE f_vol(id) > 2},
	q{SELECT * FROM vagg},
	q{SELECT * FROM vagg WHERE k = 7},
	q{SELECT * FROM vagg WHERE c > 3},
	q{SELECT * FROM vjoin WHERE k = 7},
	q{SELECT * FROM vjoin},
	q{SELECT v1.*, vagg.c FROM v1 JOIN vagg USING (k) WHERE k = 7},
	q{SELECT v1.*, vagg.c FROM v1 JOIN vagg USING (k)},
	q{UPDATE v1 SET n = 1 WHERE k = 7},
	q{INSERT INTO vb VALUES (7, 700, 'x')},
	q{DELETE FROM vb WHERE k = 7 AND id = 1},
	q{SELECT * FROM v1 WHERE k = 7 FOR UPDATE},
	q{SELECT * FROM vb FOR UPDATE},
	q{SET ROLE bob; SELECT * FROM vpriv ORDER BY k},
	q{SET ROLE bob; SELECT * FROM vpriv WHERE k = '2024-01-05'},
	q{SET ROLE bob; SELECT * FROM td WHERE k = '2024-01-05'},
	q{SET ROLE bob; SELECT * FROM td},
	q{SET ROLE bob; SELECT t1.id, vpriv.v FROM t1, vpriv WHERE t1.id = vpriv.v ORDER BY 1, t1.k},
	q{SET ROLE bob; INSERT INTO td VALUES ('2020-01-01')},
	refused(q{SET ROLE bob; SELECT * FROM t_rls ORDER BY k}),
	refused(q{SET ROLE bob; SELECT * FROM t_rls WHERE k = 4}),
	q{SET ROLE bob; SELECT * FROM t_rls WHERE k = 5},
	q{SET ROLE bob; SELECT * FROM t_rls WHERE k = 3},
	refused(q{SET ROLE bob; SELECT count(*) FROM t_rls JOIN t1 USING (k)}),
	q{SET ROLE bob; INSERT INTO t_rls VALUES (30, 'bob', 1) RETURNING *},
	q{SET ROLE bob; INSERT INTO t_rls VALUES (31, 'alice', 1)},
	q{SET ROLE bob; INSERT INTO t_rls SELECT g, 'bob', g FROM generate_series(32, 36) g},
	q{SET ROLE bob; INSERT INTO t_rls SELECT g, 'alice', g FROM generate_series(42, 46) g},
	refused(q{SET ROLE bob; UPDATE t_rls SET v = v + 1 WHERE k = 6 RETURNING *}),
	refused(q{SET ROLE bob; UPDATE t_rls SET v = v + 1 RETURNING k}),
	refused(q{SET ROLE bob; UPDATE t_rls SET v = 200 WHERE k = 6}),
	q{SET ROLE bob; UPDATE t_rls SET v = 1 WHERE k = 1},
	q{SET ROLE bob; DELETE FROM t_rls},
	q{SET ROLE bob; SELECT f_secdef()},
	refused(q{SET ROLE bob; SELECT f_secdef(), count(*) FROM t_rls WHERE k = 3}),
	q{SET row_security = off; SET ROLE bob; SELECT * FROM t_rls},
	q{SELECT * FROM t_rls ORDER BY k},
	q{PREPARE p AS SELECT count(*) FROM t_rls WHERE k = 3; EXECUTE p; SET ROLE bob; EXECUTE p; SET ROLE alice; EXECUTE p; RESET ROLE; EXECUTE p},
	refused(q{PREPARE p AS SELECT count(*) FROM t_rls; EXECUTE p; SET ROLE bob; EXECUTE p; RESET ROLE; EXECUTE p}),
	q{SELECT f_st(7), f_sql(7), f_reg(2)},
	q{SELECT f_st(k), f_sql(k), f_reg(id) FROM t1 WHERE k = 7},
	q{SELECT f_st(k), f_sql(k), f_reg(id) FROM t1},
	q{SELECT k FROM t1 WHERE f_st(k) > 3},
	q{SELECT * FROM f_srf(7)},
	q{SELECT f.*, t1.k, t1.v FROM f_srf(7) f JOIN t1 ON t1.id = f.id AND t1.k = 8},
	q{SELECT k, f.* FROM regions r, f_srf(r.id) f, t1 WHERE t1.k = r.id AND t1.id = f.id},
	q{SELECT f.*, t1.v FROM f_regs() f JOIN t1 ON t1.k = 7 AND t1.id = f.id},
	q{SELECT f_ins(3, 'fn')},
	q{SELECT f_ins(k + 300, v) FROM t1 WHERE id = 4},
	q{SELECT w, k FROM t2 WHERE id > 1000},
	q{SELECT f_ci(id) FROM t1 WHERE k = 7},
	q{SELECT k FROM t1 WHERE f_ci(id) = 'x2'},
	q{SELECT k, id, v FROM t1 WHERE k = f_vol(6)},
	q{SELECT count(*) FROM t1 WHERE k = f_st(7)},
	q{SELECT count(*) FROM t1 WHERE id = f_st(7)},
	# grouping, windows, recursion, LATERAL, prepared statements, cursors, subtransactions, temporary tables, search_path
	@rows,
	q{SELECT k, id, count(*), sum(n) FROM t1 GROUP BY GROUPING SETS ((k), (id), ())},
	q{SELECT k, id, count(*), GROUPING(k, id) FROM t1 WHERE k = 4 GROUP BY CUBE (k, id)},
	q{SELECT k, id, count(*) FROM t1 WHERE k = 4 GROUP BY ROLLUP (k, id) HAVING count(*) > 1},
	q{SELECT x.k, t2.id FROM (SELECT k FROM t1 WHERE k = 4 GROUP BY ROLLUP (k)) x LEFT JOIN t2 ON t2.k = x.k},
	q{SELECT x.k, x.c FROM (SELECT k, count(*) c FROM t1 GROUP BY k) x WHERE x.k = 4},
	q{SELECT x.k, x.c FROM (SELECT k, count(*) OVER () c FROM t1) x WHERE x.k = 4},
	q{SELECT x.k, x.r FROM (SELECT k, row_number() OVER (PARTITION BY k ORDER BY id) r FROM t1) x WHERE x.k = 4},
	q{SELECT x.k FROM (SELECT k FROM t1 ORDER BY k DESC, id LIMIT 3) x WHERE x.k = 4},
	q{SELECT x.k FROM (SELECT DISTINCT ON (id) id, k FROM t1 ORDER BY id, k DESC) x WHERE x.k = 15},
	q{SELECT x.k FROM (SELECT DISTINCT k FROM t1) x WHERE x.k = 15},
	q{SELECT x.k FROM (SELECT max(k) AS k FROM t1) x WHERE x.k = 15},
	q{SELECT x.k FROM (SELECT k + 1 AS k FROM t1) x WHERE x.k = 15},
	q{SELECT x.k FROM (SELECT k FROM t1 FOR UPDATE) x WHERE x.k = 15},
	q{SELECT k, id, lag(n) OVER w, ntile(2) OVER w, sum(n) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM t1 WHERE k IN (3, 4) WINDOW w } .
	q{AS (PARTITION BY k ORDER BY id) ORDER BY k, id},
	q{SELECT k, id, rank() OVER (ORDER BY n DESC), first_value(v) OVER (PARTITION BY id ORDER BY k RANGE BETWEEN 2 PRECEDING } .
	q{AND CURRENT ROW) FROM t1},
	q{SELECT k, count(*) FILTER (WHERE id > 2), percentile_cont(0.5) WITHIN GROUP (ORDER BY n), mode() WITHIN GROUP (ORDER BY id) FROM t1 GROUP BY k},
	q{SELECT k, count(*) FILTER (WHERE id > 2), percentile_cont(0.5) WITHIN GROUP (ORDER BY n) FROM t1 WHERE k = 4 GROUP BY k},
	q{SELECT k FROM t1 WHERE k = 4 UNION SELECT k FROM t2 WHERE k = 5},
	q{SELECT k FROM t1 WHERE k = 4 UNION ALL SELECT k FROM t2 WHERE k = 4 ORDER BY 1 LIMIT 3 OFFSET 1},
	q{(SELECT k, id FROM t1 WHERE k = 4 ORDER BY id LIMIT 1) UNION ALL (SELECT k, id FROM t1 WHERE k = 2 ORDER BY id DESC LIMIT 1)},
	q{SELECT k FROM t1 EXCEPT ALL SELECT k FROM t2},
	q{SELECT id FROM t1 INTERSECT ALL SELECT id FROM t2},
	q{SELECT k, 'a' FROM t1 UNION SELECT k, NULL FROM t2 ORDER BY 1, 2 NULLS FIRST},
	q{SELECT 'lit' AS x, k FROM t1 WHERE k = 4 UNION ALL SELECT 'lit2', id FROM regions WHERE id = 1},
	q{WITH RECURSIVE r(k, id, d) AS (SELECT k, id, 0 FROM t1 WHERE k = 1 AND id = 1 UNION ALL SELECT t.k, t.id, d + 1 FROM t1 t JOIN r ON t.k = } .
	q{r.k + 1 AND t.id = r.id WHERE d < 5) SELECT * FROM r},
	q{WITH RECURSIVE r(k, id, d) AS (SELECT k, id, 0 FROM t1 WHERE k = 4 UNION ALL SELECT t.k, t.id, d + 1 FROM t1 t JOIN r ON t.k = 4 AND t.id = } .
	q{r.id + 1 WHERE d < 5) SELECT * FROM r},
	q{WITH RECURSIVE r(k, id, d) AS (SELECT k, id, 0 FROM t1 WHERE k = 4 UNION SELECT t.k, t.id, 1 FROM t2 t, r WHERE t.k = r.k AND t.k = 4) } .
	q{SEARCH DEPTH FIRST BY id SET o CYCLE id SET cyc USING p SELECT k, id, d FROM r ORDER BY o},
	q{WITH a AS MATERIALIZED (SELECT * FROM t1 WHERE k = 4), b AS NOT MATERIALIZED (SELECT * FROM t2) SELECT a.id, b.w FROM a JOIN b USING (k, id)},
	q{WITH a AS (SELECT k FROM t1), b AS (SELECT * FROM a WHERE k = 4) SELECT count(*) FROM b, a WHERE a.k = b.k},
	q{WITH a AS (SELECT k, id FROM t1 WHERE k = 4) SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM t2 WHERE t2.k = (SELECT max(k) FROM a))},
	q{SELECT a.k, b.id FROM t1 a, LATERAL (SELECT * FROM t2 WHERE t2.k = a.k AND t2.id > a.id ORDER BY id LIMIT 1) b WHERE a.k = 4},
	q{SELECT a.k, b.id FROM t1 a LEFT JOIN LATERAL (SELECT * FROM t2 WHERE t2.k = a.k AND t2.id > a.id ORDER BY id LIMIT 1) b ON true},
	q{SELECT a.k, b.c FROM t1 a, LATERAL (SELECT count(*) AS c FROM t2 WHERE t2.k = a.id) b WHERE a.k = 4},
	q{SELECT a.k, b.c FROM t1 a CROSS JOIN LATERAL (SELECT t2.w AS c, g FROM t2, generate_series(1, a.id) g WHERE t2.k = a.k) b WHERE a.id = 2 } .
	q{AND b.g = 1},
	q{SELECT r.id, x.v FROM regions r LEFT JOIN LATERAL (SELECT v FROM t1 WHERE t1.k = r.id ORDER BY id DESC LIMIT 1) x ON true},
	q{SELECT count(*) FROM t1 a JOIN t1 b ON a.k = b.k AND a.id < b.id JOIN t2 c ON c.k = b.k LEFT JOIN regions r ON r.id = c.ref},
	q{SELECT a.k FROM t1 a WHERE EXISTS (SELECT FROM t2 b WHERE b.k = a.k AND EXISTS (SELECT FROM regions r WHERE r.id = b.ref AND r.org = a.id)) } .
	q{ORDER BY 1},
	q{SELECT a.k, (SELECT b.w FROM t2 b WHERE b.k = a.k AND b.id = (SELECT max(c.id) FROM t2 c WHERE c.k = a.k)) FROM t1 a WHERE a.id = 1},
	q{SELECT a.k FROM t1 a WHERE a.k > ALL (SELECT k FROM t2)},
	q{SELECT a.k FROM t1 a WHERE a.id = ANY (SELECT ref FROM t2 WHERE k = 4) AND k = 4},
	q{SELECT ARRAY(SELECT id FROM t1 WHERE k = 4 ORDER BY id)},
	q{SELECT ARRAY(SELECT id FROM t2 WHERE t2.k = a.k ORDER BY id) FROM t1 a WHERE a.id = 1},
	q{SELECT * FROM t1 NATURAL JOIN t2},
	q{SELECT * FROM t1 NATURAL LEFT JOIN t2 WHERE k = 4},
	q{SELECT * FROM (t1 JOIN t2 USING (k, id)) AS j WHERE j.k = 4},
	q{SELECT j.* FROM (t1 JOIN t2 USING (k) ) AS j (a, b) WHERE a = 4},
	q{SELECT u.k FROM t1 JOIN t2 USING (k) AS u WHERE u.k = 4},
	q{SELECT t1.k, t2.k, k FROM t1 RIGHT JOIN t2 USING (k, id) WHERE t2.k = 4},
	q{SELECT t1.k, t2.k, k FROM t1 RIGHT JOIN t2 USING (k, id)},
	q{SELECT count(*) FROM t1 a FULL JOIN t2 b USING (k, id) FULL JOIN regions r ON r.id = a.id AND r.id = b.id},
	q{SELECT a.k, b.k FROM (SELECT * FROM t1 WHERE k = 4) a FULL JOIN (SELECT * FROM t2 WHERE k = 4) b USING (id)},
	q{SELECT a.k, b.k FROM (SELECT * FROM t1 WHERE k = 4) a FULL JOIN (SELECT * FROM t2 WHERE k = 2) b USING (id)},
	q{SELECT a.k, x FROM t1 a, (VALUES (1, 'one'), (2, 'two')) v(i, x) WHERE a.id = v.i AND a.k = 4},
	q{SELECT a.k FROM t1 a ORDER BY k DESC, id DESC LIMIT 5 OFFSET 7},
	q{SELECT a.k FROM t1 a ORDER BY k DESC FETCH FIRST 5 ROWS WITH TIES},
	q{SELECT count(*) FROM (SELECT * FROM t1 LIMIT 10) x},
	q{SELECT k, id FROM t1 ORDER BY k DESC, id LIMIT 7 OFFSET 3},
	q{SELECT id, k FROM t1 WHERE id > 1 ORDER BY id, k DESC LIMIT 5},
	q{SELECT v FROM t1 WHERE f_vol(id) > 2 ORDER BY k, id LIMIT 5},
	q{SELECT k FROM t1 ORDER BY k, k DESC LIMIT 9},
	q{SELECT k + id FROM t1 ORDER BY k + id, k LIMIT 5},
	q{SELECT d FROM t1 ORDER BY d NULLS FIRST, k LIMIT 3},
	q{SELECT DISTINCT id FROM t1 ORDER BY id LIMIT 3},
	q{SELECT count(*) FROM (SELECT k FROM t1 LIMIT 25 OFFSET 40) x},
	q{SELECT count(*) FROM (SELECT unnest(arr) FROM t1 LIMIT 100) x},
	q{SELECT count(*) FROM (SELECT k FROM t1 LIMIT 0) x},
	q{SELECT count(*) FROM (SELECT a.k FROM t1 a, t2 b LIMIT 1000) x},
	q{SELECT k, id FROM t1 ORDER BY k, id LIMIT 3 FOR UPDATE},
	q{SELECT a.k, b.id FROM t1 a, LATERAL (SELECT id FROM t2 WHERE t2.k = a.k ORDER BY id DESC LIMIT 1) b},
	q{BEGIN; SELECT k, id FROM t1 ORDER BY k, id LIMIT 3; SELECT count(*) FROM (SELECT k FROM t1 LIMIT 5) x; COMMIT},
	q{PREPARE p (int) AS SELECT k, id FROM t1 ORDER BY k, id LIMIT $1; EXECUTE p(1); EXECUTE p(2); EXECUTE p(3); EXECUTE p(4); EXECUTE p(5); } .
	q{EXECUTE p(6); EXECUTE p(NULL)},
	q{SELECT k FROM t1 WHERE k = 4 LIMIT (SELECT 2)},
	q{SELECT k FROM t1 WHERE k = 4 LIMIT NULL OFFSET 1},
	q{SELECT k FROM t1 LIMIT 0},
	q{PREPARE p (int) AS SELECT a.id, b.w FROM t1 a LEFT JOIN t2 b ON a.k = b.k AND a.id = b.id WHERE a.k = $1 ORDER BY 1; EXECUTE p(1); EXECUTE } .
	q{p(2); EXECUTE p(3); EXECUTE p(4); EXECUTE p(5); EXECUTE p(6); EXECUTE p(7); EXECUTE p(8); EXECUTE p(NULL); EXECUTE p(14)},
	q{PREPARE p (int, int) AS SELECT count(*) FROM t1 a, t2 b WHERE a.k = $1 AND b.k = $2; EXECUTE p(1, 1); EXECUTE p(1, 2); EXECUTE p(2, 4); } .
	q{EXECUTE p(2, 2); EXECUTE p(3, 4); EXECUTE p(5, 1); EXECUTE p(4, 6); EXECUTE p(4, 15)},
	q{PREPARE p (int[]) AS SELECT k, id FROM t1 WHERE k = ANY ($1) AND id = 1 ORDER BY 1; EXECUTE p('{1,2}'); EXECUTE p('{}'); EXECUTE p(NULL); } .
	q{EXECUTE p('{4,NULL}'); EXECUTE p('{1,2,3,4,5}'); EXECUTE p('{8}'); EXECUTE p('{9,10}'); EXECUTE p('{11}')},
	q{PREPARE p (int, text) AS INSERT INTO t1 (k, id, v) VALUES ($1, 900, $2) ON CONFLICT (k, id) DO UPDATE SET v = t1.v || $2 RETURNING k, v; } .
	q{EXECUTE p(1, 'a'); EXECUTE p(2, 'b'); EXECUTE p(4, 'c'); EXECUTE p(1, 'd'); EXECUTE p(2, 'e'); EXECUTE p(4, 'f'); EXECUTE p(1, 'g'); } .
	q{EXECUTE p(2, 'h')},
	q{PREPARE p (text, int) AS INSERT INTO t1 (k, id, v) VALUES (1, 901, 'x'), (2, 901, 'y'), (4, 901, 'z') ON CONFLICT (k, id) DO UPDATE SET v = } .
	q{t1.v || $1, n = $2 RETURNING k, v, n, $1; EXECUTE p('a', 1); EXECUTE p('b', 2); EXECUTE p('c', 3); EXECUTE p('d', 4); EXECUTE p('e', 5); } .
	q{EXECUTE p('f', 6); EXECUTE p('g', 7)},
	q{PREPARE p (int, int) AS UPDATE t1 SET k = $1, v = 'upd' WHERE k = $1 AND id = $2 RETURNING k, id, v; EXECUTE p(1, 1); EXECUTE p(2, 2); } .
	q{EXECUTE p(4, 3); EXECUTE p(1, 2); EXECUTE p(2, 1); EXECUTE p(4, 1); EXECUTE p(5, 1)},
	q{PREPARE p (mood) AS SELECT k FROM tm WHERE m = $1 ORDER BY k; EXECUTE p('ok'); EXECUTE p('sad'); EXECUTE p('happy'); EXECUTE p('ok'); } .
	q{EXECUTE p('ok'); EXECUTE p('sad'); EXECUTE p('ok')},
	q{PREPARE p (posint, mood, addr) AS INSERT INTO tm (k, m, a) VALUES ($1, $2, $3) RETURNING k, m, a; EXECUTE p(101, 'ok', ROW('s', 1, '{q}')); } .
	q{EXECUTE p(102, 'sad', NULL); EXECUTE p(-5, 'sad', NULL)},
	q{PREPARE p (date) AS SELECT * FROM td WHERE k = $1; EXECUTE p('2024-01-05'); EXECUTE p('2024-01-06'); EXECUTE p('2024-01-07'); EXECUTE } .
	q{p('2024-01-08'); EXECUTE p('2024-01-09'); EXECUTE p('2024-01-10'); EXECUTE p('2024-01-11'); EXECUTE p('1999-01-11')},
	q{PREPARE p (numeric) AS SELECT * FROM tn WHERE k = $1; EXECUTE p(1); EXECUTE p(1.0); EXECUTE p(1.50); EXECUTE p('NaN'); EXECUTE p(2); } .
	q{EXECUTE p(3.0000); EXECUTE p(10)},
	q{PREPARE p (text) AS SELECT * FROM tx WHERE k = $1; EXECUTE p('key1'); EXECUTE p('key2'); EXECUTE p(''); EXECUTE p('key3'); EXECUTE } .
	q{p('key4'); EXECUTE p('key5'); EXECUTE p('key6')},
	# a caller that stops after the second row of RETURNING
	q{DO $$ DECLARE i int; BEGIN UPDATE t1 SET n = n WHERE k = 3 RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN UPDATE t1 SET n = n RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN DELETE FROM t1 WHERE k IN (3, 4, 5) RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN INSERT INTO t1 (k, id) VALUES (71, 1), (72, 1), (73, 1) RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN INSERT INTO t1 (k, id) SELECT k + 70, id FROM t1 RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN UPDATE t1 SET k = k + 70 WHERE k < 5 RETURNING id INTO i; END $$},
	q{DO $$ DECLARE i int; BEGIN WITH d AS (DELETE FROM t2 RETURNING k, id) UPDATE t1 SET n = 0 WHERE k < 9 RETURNING id INTO i; END $$},
	q{SELECT count(*), sum(n), max(k) FROM t1},
	q{PREPARE p (int) AS WITH d AS (DELETE FROM t2 WHERE k = $1 AND id = 5 RETURNING *) SELECT count(*) FROM d; EXECUTE p(1); EXECUTE p(2); } .
	q{EXECUTE p(1); EXECUTE p(4); EXECUTE p(5); EXECUTE p(6); EXECUTE p(7); SELECT count(*) FROM t2},
	q{BEGIN; DECLARE a CURSOR FOR SELECT k, id FROM t1 WHERE k = 4 ORDER BY id; DECLARE b CURSOR FOR SELECT k, id FROM t1 WHERE k = 6 ORDER BY } .
	q{id; FETCH 1 FROM a; FETCH 1 FROM b; FETCH 2 FROM a; FETCH 2 FROM b; FETCH ALL FROM a; FETCH ALL FROM b; COMMIT},
	q{BEGIN; DECLARE a CURSOR FOR SELECT k, id FROM t1 ORDER BY k, id; DECLARE b CURSOR FOR SELECT k, id FROM t2 ORDER BY k, id; FETCH 1 FROM a; } .
	q{FETCH 1 FROM b; FETCH 2 FROM a; CLOSE b; SELECT count(*) FROM t2; FETCH 3 FROM a; COMMIT},
	q{BEGIN; DECLARE a CURSOR FOR SELECT v FROM t1 WHERE k = 4 ORDER BY id; FETCH 1 FROM a; UPDATE t1 SET v = 'during' WHERE k = 4; FETCH ALL } .
	q{FROM a; ROLLBACK},
	q{BEGIN; DECLARE a NO SCROLL CURSOR FOR SELECT v FROM t1; FETCH 0 FROM a; UPDATE t1 SET v = 'during'; SELECT count(*) FROM t1 WHERE v = } .
	q{'during'; MOVE 3 FROM a; ROLLBACK},
	q{BEGIN; DECLARE a CURSOR FOR SELECT v FROM t1 WHERE k = 4 ORDER BY id; FETCH 1 FROM a; SAVEPOINT s; SELECT 1 / (k - 4) FROM t1 WHERE k = 4; } .
	q{ROLLBACK TO s; FETCH ALL FROM a; COMMIT},
	q{BEGIN; DECLARE a CURSOR FOR SELECT v FROM t1 ORDER BY k, id; FETCH 1 FROM a; SAVEPOINT s; SELECT 1 / (k - 4) FROM t1 WHERE k = 4; ROLLBACK } .
	q{TO s; FETCH 5 FROM a; COMMIT},
	q{BEGIN; SAVEPOINT s; DECLARE a CURSOR FOR SELECT v FROM t1 WHERE k = 4 ORDER BY id; FETCH 1 FROM a; RELEASE s; FETCH ALL FROM a; COMMIT},
	q{BEGIN; SAVEPOINT s; DECLARE a CURSOR FOR SELECT v FROM t1 WHERE k = 4 ORDER BY id; FETCH 1 FROM a; ROLLBACK TO s; FETCH ALL FROM a; COMMIT},
	q{BEGIN; UPDATE t1 SET v = 'w' WHERE k = 4; DECLARE a CURSOR FOR SELECT k, v FROM t1 WHERE k IN (2, 4) ORDER BY k, id; FETCH 2 FROM a; } .
	q{SAVEPOINT s; UPDATE t1 SET v = 'zz' WHERE k = 4; ROLLBACK TO s; FETCH ALL FROM a; ROLLBACK},
	q{BEGIN; DECLARE a CURSOR WITH HOLD FOR SELECT k, id FROM t1 WHERE k IN (4, 5) ORDER BY k, id; FETCH 1 FROM a; DELETE FROM t1 WHERE k = 5; } .
	q{COMMIT; FETCH ALL FROM a; CLOSE a},
	q{DECLARE a SCROLL CURSOR WITH HOLD FOR SELECT k, id FROM t1 WHERE k = 4 ORDER BY k, id; FETCH 2 FROM a; FETCH PRIOR FROM a; FETCH ABSOLUTE 1 } .
	q{FROM a; FETCH RELATIVE 2 FROM a; FETCH BACKWARD ALL FROM a; MOVE LAST FROM a; FETCH PRIOR FROM a},
	q{BEGIN; DECLARE a SCROLL CURSOR FOR SELECT k, id FROM t1 ORDER BY k, id; FETCH 2 FROM a; FETCH PRIOR FROM a; FETCH ABSOLUTE 10 FROM a; FETCH } .
	q{BACKWARD 3 FROM a; FETCH LAST FROM a; FETCH FIRST FROM a; COMMIT},
	q{BEGIN; DECLARE a CURSOR FOR SELECT k, id FROM t1 WHERE k = 4 ORDER BY id FOR UPDATE; FETCH 1 FROM a; UPDATE t1 SET v = 'cur' WHERE CURRENT } .
	q{OF a; ROLLBACK},
	q{DO $$ DECLARE c CURSOR (x int) FOR SELECT id FROM t1 WHERE k = x; r record; n int := 0; BEGIN FOR r IN c(4) LOOP FOR r IN c(2) LOOP n := n } .
	q{+ 1; END LOOP; END LOOP; RAISE EXCEPTION USING message = n::text, errcode = 'P0001'; END $$},
	q{DO $$ DECLARE c refcursor; r record; BEGIN OPEN c FOR SELECT k, id FROM t1 ORDER BY k, id; FETCH c INTO r; BEGIN PERFORM 1 / (k - 4) FROM } .
	q{t1 WHERE k = 4; EXCEPTION WHEN division_by_zero THEN NULL; END; FETCH c INTO r; INSERT INTO audit (what) VALUES (r.k || '-' || r.id); CLOSE } .
	q{c; END $$; SELECT what FROM audit ORDER BY id DESC LIMIT 1},
	q{DO $$ DECLARE r record; BEGIN FOR r IN SELECT k, id FROM t1 WHERE id = 1 LOOP UPDATE t1 SET v = 'loop' || r.k WHERE k = r.k AND id = r.id; } .
	q{END LOOP; END $$; SELECT count(*) FROM t1 WHERE v LIKE 'loop%'},
	q{DO $$ DECLARE r record; BEGIN FOR r IN SELECT k, id FROM t1 WHERE id = 1 LOOP BEGIN INSERT INTO t1 (k, id) VALUES (r.k, r.id); EXCEPTION } .
	q{WHEN unique_violation THEN UPDATE t1 SET v = 'dup' WHERE k = r.k AND id = r.id; END; END LOOP; END $$; SELECT count(*) FROM t1 WHERE v = 'dup'},
	q{DO $$ BEGIN FOR i IN 1..5 LOOP BEGIN INSERT INTO t2 (k, id) VALUES (i, 700); BEGIN INSERT INTO t2 (k, id) VALUES (i, 701); RAISE EXCEPTION } .
	q{'x'; EXCEPTION WHEN raise_exception THEN INSERT INTO t2 (k, id) VALUES (i, 702); END; IF i = 3 THEN RAISE EXCEPTION 'y'; END IF; EXCEPTION } .
	q{WHEN raise_exception THEN INSERT INTO t2 (k, id) VALUES (i, 703); END; END LOOP; END $$; SELECT k, id FROM t2 WHERE id >= 700 ORDER BY 1, 2},
	q{BEGIN; SAVEPOINT a; INSERT INTO t2 (k, id) VALUES (1, 801); SAVEPOINT b; INSERT INTO t2 (k, id) VALUES (2, 801); SAVEPOINT c; INSERT INTO } .
	q{t2 (k, id) VALUES (4, 801); ROLLBACK TO b; INSERT INTO t2 (k, id) VALUES (5, 801); RELEASE a; COMMIT; SELECT k FROM t2 WHERE id = 801 ORDER } .
	q{BY 1},
	q{BEGIN; INSERT INTO t2 (k, id) VALUES (1, 802); SAVEPOINT a; INSERT INTO t2 (k, id) VALUES (1, 802); ROLLBACK TO a; ROLLBACK TO a; INSERT } .
	q{INTO t2 (k, id) VALUES (2, 802); COMMIT; SELECT k FROM t2 WHERE id = 802 ORDER BY 1},
	q{BEGIN; INSERT INTO t2 (k, id) VALUES (1, 803); SELECT 1 / 0; INSERT INTO t2 (k, id) VALUES (2, 803); COMMIT; SELECT k FROM t2 WHERE id = } .
	q{803 ORDER BY 1},
	q{BEGIN; INSERT INTO t2 (k, id) VALUES (1, 804), (2, 804), (4, 804); SELECT count(*) FROM t2 WHERE id = 804; COMMIT AND CHAIN; INSERT INTO t2 } .
	q{(k, id) VALUES (5, 804); ROLLBACK; SELECT k FROM t2 WHERE id = 804 ORDER BY 1},
	q{BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM t2; INSERT INTO t2 (k, id) VALUES (1, 805), (2, 805); UPDATE t2 SET w = 's' WHERE } .
	q{id = 805; SELECT k, w FROM t2 WHERE id = 805 ORDER BY 1; COMMIT},
	q{BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM t2; SELECT count(*) FROM t1 WHERE k = 4; DELETE FROM t2; ROLLBACK},
	q{BEGIN READ ONLY; SELECT f_ins(1, 'ro'); ROLLBACK},
	q{BEGIN READ ONLY; INSERT INTO t1 SELECT * FROM t1; ROLLBACK},
	q{BEGIN READ ONLY; SELECT * FROM t1 WHERE k = 4 FOR UPDATE; ROLLBACK},
	q{BEGIN READ ONLY; WITH d AS (DELETE FROM t1 WHERE k = 4 RETURNING 1) SELECT * FROM d; ROLLBACK},
	q{CREATE TEMP TABLE tmp AS SELECT * FROM t1 WHERE k = 4; SELECT count(*) FROM tmp; INSERT INTO tmp SELECT * FROM t1 WHERE k = 2; UPDATE tmp } .
	q{SET v = t2.w FROM t2 WHERE tmp.k = t2.k AND tmp.id = t2.id; SELECT k, id, v FROM tmp ORDER BY 1, 2; DELETE FROM tmp USING t1 WHERE tmp.k = } .
	q{t1.k AND tmp.id = t1.id AND t1.id = 1; SELECT count(*) FROM tmp; SELECT t1.id, tmp.v FROM t1 JOIN tmp USING (k, id) WHERE t1.k = 4 ORDER BY 1},
	q{SELECT k, id INTO TEMP tmp FROM t1 WHERE id = 2; SELECT count(*) FROM tmp; INSERT INTO t2 (k, id, w) SELECT k, id + 950, 'tmp' FROM tmp; } .
	q{SELECT count(*) FROM t2 WHERE w = 'tmp'; DELETE FROM t2 WHERE w = 'tmp'},
	q{CREATE TEMP TABLE t1 (k int, x text); INSERT INTO t1 VALUES (4, 'shadow'); SELECT * FROM t1 WHERE k = 4; SELECT count(*) FROM public.t1 } .
	q{WHERE k = 4; SELECT t1.x, p.id FROM t1 JOIN public.t1 p USING (k) ORDER BY 2},
	q{CREATE TEMP TABLE tmp (k int, id int, v text); INSERT INTO tmp VALUES (4, 1, 'm'), (4, 960, 'n'); MERGE INTO tmp USING t1 ON tmp.k = t1.k } .
	q{AND tmp.id = t1.id AND t1.k = 4 WHEN MATCHED THEN UPDATE SET v = t1.v WHEN NOT MATCHED THEN INSERT VALUES (t1.k, t1.id, 'new'); SELECT v, } .
	q{count(*) FROM tmp GROUP BY v ORDER BY 1},
	q{COPY (SELECT k, id FROM t1 WHERE k = 4 ORDER BY id) TO STDOUT},
	q{COPY (SELECT k, id FROM t1 WHERE id = 1 ORDER BY k) TO STDOUT (FORMAT csv, HEADER)},
	q{COPY (UPDATE t1 SET v = 'cp' WHERE k = 4 AND id = 1 RETURNING k, id) TO STDOUT},
	q{SET search_path = ''; SELECT count(*) FROM public.t1 WHERE k = 4; SELECT count(*) FROM public.t1 WHERE k = 4 AND v LIKE 'v%' AND m = 'x'; } .
	q{SELECT k, m FROM public.tm WHERE k = 4 AND m = 'ok'::public.mood; SELECT public.f_imm(id) FROM public.t1 WHERE k = 4 ORDER BY 1},
	q{SET search_path = pg_catalog; SELECT a.no FROM (SELECT (a).* FROM public.tm WHERE k = 4) a; SELECT c OPERATOR(public.=) 'c1' FROM public.tx } .
	q{WHERE k = 'key1'; SELECT c::text = 'c1' FROM public.tx WHERE k = 'key1'},
	q{SET search_path = pg_catalog; SELECT nullif(c, 'c1'), CASE c WHEN 'c1' THEN 1 END, c IN ('c1'), c IS DISTINCT FROM 'c1' FROM public.tx } .
	q{WHERE k = 'key1'},
);

$c->start_nodes('s1');
$c->query('s1', 'CREATE ROLE bob; CREATE ROLE alice');
$c->query('s1', $schema);
foreach my $name ('s2', 's3')
{
	$c->start_nodes($name);
	# the numbers of objects differ from node to node
	$c->query($name, 'CREATE ROLE alice; CREATE ROLE bob; CREATE TABLE other (a int); DROP TABLE other');
}
$c->create(shards => 3);
$c->query('s2', "SELECT tessera.shard_table('$_', 'k', 'hash', chunks => 6)") foreach @sharded;
$c->query('s2', "SELECT tessera.shard_table('t2', 'k', 'hash', colocate_with => 't1')");

$c->plain_query('CREATE ROLE bob; CREATE ROLE alice');
$c->plain_query($schema);

# From each node, or, in make test, from one and the other in turn.
foreach my $names (TesseraCluster::long() ? ([ 's1' ], [ 's2' ]) : [ 's1', 's2' ])
{
	my $differ = 0;
	foreach my $n (0 .. $#script)
	{
		$differ += $c->script_differs($names->[ $n % @$names ], [ $script[$n] ], [ grep { $refused{$_} } $script[$n] ]);
	}
	is($differ, 0, "from @$names: " . scalar(@script) . ' statements do as on a plain server, or are refused');
	foreach my $table (@tables)
	{
		$c->query($names->[0], "DELETE FROM $table");
		$c->plain_query("DELETE FROM $table");
	}
}

# A LIMIT holds on each shard already: inside a transaction, too, no more rows than wanted come in.
like($c->query('s2', 'EXPLAIN (VERBOSE, COSTS OFF) SELECT id, k FROM t1 ORDER BY id DESC LIMIT 5 OFFSET 2'),
	qr/Remote SQL:.*ORDER BY .*id DESC\s+LIMIT/s, 'LIMIT goes to the shards, with its order');
$c->query('s2', "INSERT INTO t1 (k, id) SELECT g, 1 FROM generate_series(1, 300) g");
my @rows_in = $c->query('s2',
	'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT k FROM t1 ORDER BY k LIMIT 2') =~ /Shard s\d: rows=(\d+)/g;
is(scalar(grep { $_ <= 2 } @rows_in), 3, 'and no shard gives more, or fewer than it has read when the limit is reached') or diag "@rows_in";

done_testing();
