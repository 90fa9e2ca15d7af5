--
-- tessera.bound: an end of a range of keys, and the key spaces in which bounds get their order.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
RESET client_min_messages;
\set SHOW_CONTEXT never

-- Text form: what is read, and how it is written.
CREATE TEMP TABLE literals (n serial, literal text);
INSERT INTO literals (literal) VALUES
  ('MINKEY'), ('MAXKEY'), ('maxkey'), ('"MINKEY"'), ('MINKEYS'),
  ('100'), ('-1.50'), ('1e+20'), ('NaN'), ('-Infinity'), ('"100"'), ('007'), ('+1'), ('.5'), ('1e9999'), ('infinity'),
  ('abc'), (' a b '), (''), ('""'), ('a"b'), ('"a""b"'), ('"a\"b\\c"'), ('a\b'), ('a,b'), ('"(1,2)"'), ('x)'), ('\x00ff'),
  ('(1,abc)'), ('( 1 , a b )'), ('(1,"a b")'), ('(a"b c"d,"x,y",\,\(\))'), ('(1,"")'), ('("1",1)'), ('(MINKEY,MAXKEY,"MINKEY")'), ('(abc)'),
  ('(1,"\\x00ff")'), ('(é,ß)');
SELECT literal, bound, tessera.bound_in(bound::text::cstring) OPERATOR(tessera.=) bound AS reads_back
  FROM literals, LATERAL tessera.bound_in(literal::cstring) AS bound ORDER BY n;

SELECT '('::tessera.bound;
SELECT '()'::tessera.bound;
SELECT '(1,)'::tessera.bound;
SELECT '(1,2'::tessera.bound;
SELECT '(1,2)x'::tessera.bound;
SELECT '(1,(2))'::tessera.bound;
SELECT '(1,\'::tessera.bound;
SELECT '"abc'::tessera.bound;
SELECT '"abc\'::tessera.bound;
SELECT '"abc"d'::tessera.bound;
SELECT tessera.bound_in(('(' || repeat('1,', 31) || '1)')::cstring);
SELECT tessera.bound_in(('(' || repeat('1,', 32) || '1)')::cstring);
-- Binary form.
SELECT tessera.bound_send('(MINKEY,1,a,MAXKEY)');
CREATE TEMP TABLE sent AS SELECT n, tessera.bound_in(literal::cstring) AS bound FROM literals;
CREATE TEMP TABLE received (LIKE sent);
SELECT current_setting('data_directory') || '/bound_test.data' AS file, 'rm ' || current_setting('data_directory') || '/bound_test.data' AS remove \gset
COPY sent TO :'file' (FORMAT binary);
COPY received FROM :'file' (FORMAT binary);
SELECT count(*) AS sent, count(r.n) AS received
  FROM sent s LEFT JOIN received r ON r.n = s.n AND r.bound OPERATOR(tessera.=) s.bound AND r.bound::text = s.bound::text;
TRUNCATE received;
COPY sent TO :'file';
COPY received FROM :'file';
SELECT count(*) AS sent, count(r.n) AS received
  FROM sent s LEFT JOIN received r ON r.n = s.n AND r.bound OPERATOR(tessera.=) s.bound AND r.bound::text = s.bound::text;

COPY (SELECT WHERE false) TO PROGRAM :'remove';

-- Casts: arguments as typed.
CREATE FUNCTION pg_temp.show(min tessera.bound, max tessera.bound) RETURNS text
  LANGUAGE sql AS $$ SELECT min::text || ' .. ' || max::text || ', ' || tessera.bound_cmp(min, max) $$;
SELECT pg_temp.show(100, 200);
SELECT pg_temp.show('100', '200');
SELECT pg_temp.show(9, 10), pg_temp.show('9'::text, '10'::text);
SELECT pg_temp.show(row(1, 'a'), row(1, 'b'));
SELECT pg_temp.show((1, 'a'), (1, tessera.maxkey()));
SELECT pg_temp.show(tessera.minkey(), tessera.maxkey());
SELECT pg_temp.show(1::smallint, 9223372036854775807);
SELECT pg_temp.show(1.50, 'NaN'::numeric);
SELECT pg_temp.show(0.1::real, 1e300::float8);
SELECT pg_temp.show('MINKEY'::text, '(1,2)'::varchar);
SELECT pg_temp.show('ab  '::char(4), 'b'::varchar(3));
SELECT pg_temp.show('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid);
SELECT pg_temp.show(date '2024-02-29', date 'infinity');
SELECT pg_temp.show(timestamp '2024-02-29 12:00:00.000001', timestamptz '2024-02-29 12:00:00+02');
SELECT pg_temp.show('\x00'::bytea, '\xff'::bytea);
SELECT pg_temp.show(false, true);
CREATE DOMAIN pg_temp.positive AS int CHECK (VALUE > 0);
SELECT pg_temp.show(5::pg_temp.positive, NULL) IS NULL AS strict;
SELECT pg_temp.show(row(5::pg_temp.positive, '5'::text), row('x', date '2024-01-01', true));
PREPARE shown(int, text) AS SELECT pg_temp.show(($1, $2), ($1 + 1, 'z'));
EXECUTE shown(1, 'a b');

-- Values of named composite types expand as well.
CREATE TYPE pg_temp.pair AS (a int, gone int, b text);
ALTER TYPE pg_temp.pair DROP ATTRIBUTE gone;
SELECT pg_temp.show(tessera.bound((1, 'x')::pg_temp.pair), tessera.bound(p)) FROM (VALUES (2, 'y')) p;
SELECT pg_temp.show(tessera.to_bound((3, 'z')::pg_temp.pair), tessera.maxkey());
SELECT pg_temp.show(row(1, NULL), 1);
SELECT pg_temp.show(row(), 1);
SELECT pg_temp.show(row(1, tessera.bound(2, 3)), 1);

-- The constructor.
SELECT tessera.bound(1), tessera.bound(1, 'a', tessera.minkey()), tessera.bound('MINKEY'), tessera.bound('MINKEY'::text),
       tessera.bound(VARIADIC ARRAY['x', 'y z']), tessera.bound(tessera.bound(1, 2)), tessera.bound(row(1, 2));
SELECT tessera.bound(1, NULL);
SELECT tessera.bound(VARIADIC ARRAY(SELECT g FROM generate_series(1, 33) g));
SELECT tessera.bound(VARIADIC ARRAY[]::int[]);
SELECT (1, 5)::tessera.bound_range, ('a', tessera.maxkey())::tessera.bound_range, ((1, 'x'), 'MAXKEY')::tessera.bound_range;

-- The record cast belongs to the extension, and can be made again.
SELECT pg_describe_object(classid, objid, 0), deptype FROM pg_depend
 WHERE classid = 'pg_cast'::regclass AND refclassid = 'pg_extension'::regclass
   AND objid = (SELECT oid FROM pg_cast WHERE castsource = 'record'::regtype AND casttarget = 'tessera.bound'::regtype);
SELECT tessera.create_record_cast();
BEGIN;
ALTER EXTENSION tessera DROP CAST (record AS tessera.bound);
DROP CAST (record AS tessera.bound);
SELECT tessera.create_record_cast();
SELECT pg_temp.show((1, 2), (3, 4));
DROP CAST (record AS tessera.bound);
ROLLBACK;
CREATE ROLE regress_bound;
GRANT USAGE ON SCHEMA tessera TO regress_bound;
SET ROLE regress_bound;
SELECT tessera.create_record_cast();
SELECT tessera.bound(1, 2);
RESET ROLE;
REVOKE USAGE ON SCHEMA tessera FROM regress_bound;
DROP ROLE regress_bound;

-- Order, uniqueness, grouping.
CREATE TEMP TABLE bounds (b tessera.bound PRIMARY KEY);
INSERT INTO bounds VALUES ('MAXKEY'), (10), (9), (-1.5), ('NaN'::float8), (tessera.minkey()), ('10'::text), ('9'::text), ('abc'), ('ab'),
  ('(9,x)'), ('(9,MAXKEY)'), ('(9,2)'), (123456789012345678901234567890), (1e-5::float8), (''::text), ('Z'), ('é');
SELECT b FROM bounds ORDER BY b;
INSERT INTO bounds VALUES (9.00);
INSERT INTO bounds VALUES ('(9,MINKEY,7)');
INSERT INTO bounds VALUES ('(MAXKEY,1)');
SELECT a.b AS a, c.b AS c FROM bounds a, bounds c
 WHERE (a.b OPERATOR(tessera.<) c.b) <> (tessera.bound_cmp(a.b, c.b) < 0) OR (a.b OPERATOR(tessera.<=) c.b) <> (tessera.bound_cmp(a.b, c.b) <= 0)
    OR (a.b OPERATOR(tessera.=) c.b) <> (tessera.bound_cmp(a.b, c.b) = 0) OR (a.b OPERATOR(tessera.<>) c.b) <> (tessera.bound_cmp(a.b, c.b) <> 0)
    OR (a.b OPERATOR(tessera.>) c.b) <> (tessera.bound_cmp(a.b, c.b) > 0) OR (a.b OPERATOR(tessera.>=) c.b) <> (tessera.bound_cmp(a.b, c.b) >= 0)
    OR tessera.bound_cmp(a.b, c.b) <> - tessera.bound_cmp(c.b, a.b);
SELECT tessera.bound_hash(a) = tessera.bound_hash(b) AS hash, tessera.bound_hash_extended(a, 7) = tessera.bound_hash_extended(b, 7) AS extended,
       tessera.bound_hash(a)::bit(32) = tessera.bound_hash_extended(a, 0)::bit(32) AS low_half
  FROM (VALUES (tessera.bound(9), tessera.bound(9.0)), ('(9,MINKEY)', '9'), ('(MAXKEY,1)', 'MAXKEY'), ('(0,-0)', '(-0,0,MINKEY)')) v(a, b);
CREATE INDEX ON bounds USING hash (b);
SET enable_seqscan = off;
SET enable_indexscan = off;
SELECT b FROM bounds WHERE b OPERATOR(tessera.=) '(9,2)';
RESET enable_indexscan;
RESET enable_seqscan;
SELECT count(*), count(DISTINCT b) FROM (SELECT b FROM bounds UNION ALL SELECT tessera.bound_in(b::text::cstring) FROM bounds) u;

-- Key spaces under range: the type's own order.
SELECT tessera.key_compare('{int4}', 9, 10), tessera.key_compare('{int4}', '9', '10'), tessera.key_compare('{int4}', '10', 10),
       tessera.key_compare('{int2}', 'MAXKEY', 32767), tessera.key_compare('{int8}', 'MINKEY', '-9223372036854775808'),
       tessera.key_compare('{text}', '9'::text, '10'::text, collations => '{"\"C\""}');
SELECT tessera.key_compare('{int4,text}', (1, 'a'), (1, 'b'), collations => '{-,"\"C\""}') AS second,
       tessera.key_compare('{int4,int4}', 1, '(1,MINKEY)') AS filled,
       tessera.key_compare('{int4,int4}', 1, (1, -2147483648)) AS below_all,
       tessera.key_compare('{int4,int4}', '(1,MAXKEY)', (2, 0)) AS above_all,
       tessera.key_compare('{int4,int4}', 'MAXKEY', '(MAXKEY,MAXKEY)') AS top,
       tessera.key_compare('{int4,int4}', 'MAXKEY', '(MAXKEY,5)') AS also_top;
SELECT tessera.key_compare('{uuid}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12'),
       tessera.key_compare('{date}', '2024-01-31', '2024-02-01'), tessera.key_compare('{timestamp}', '-infinity', '2024-02-01 00:00'),
       tessera.key_compare('{timestamptz}', '2024-01-01 00:00+00', '2024-01-01 00:00+02'),
       tessera.key_compare('{numeric}', 1.50, 1.5), tessera.key_compare('{bool}', false, true), tessera.key_compare('{bytea}', '\xff', '\x00ff'),
       tessera.key_compare('{interval}', '1 mon', '31 days'), tessera.key_compare('{int4[]}', '{1,2}', '{1,3}'),
       tessera.key_compare('{"char(3)"}', 'ab', 'ab '::text, collations => '{"\"C\""}');
CREATE TYPE mood AS ENUM ('sad', 'happy');
ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy';
CREATE DOMAIN small_mood AS mood;
SELECT tessera.key_compare('{mood}', 'sad', 'ok'), tessera.key_compare('{mood}', 'ok', 'happy'), tessera.key_compare('{small_mood}', 'MAXKEY', 'happy');
SELECT tessera.key_compare('{mood}', 'glad', 'ok');
SELECT tessera.key_compare('{int4}', 'abc', 1);
SELECT tessera.key_compare('{int2}', 40000, 1);
SELECT tessera.key_compare('{int4}', (1, 2), 1);
SELECT tessera.key_compare('{}', 1, 1);
SELECT tessera.key_compare('{int4,int4,int4,int4,int4,int4,int4,int4,int4}', 1, 1);
SELECT tessera.key_compare('{int4,NULL}', 1, 1);
SELECT tessera.key_compare('{int4,int4}', 1, 1, collations => '{-}');
SELECT tessera.key_compare('{int4}', NULL, 1) IS NULL AS strict;

-- Bounds as the catalog keeps them.
SELECT tessera.key_canonical('{int4}', '0100'), tessera.key_canonical('{text}', 100, collations => '{"\"C\""}'),
       tessera.key_canonical('{int4,int4}', 1), tessera.key_canonical('{int4,int4}', '(MAXKEY,MAXKEY)'),
       tessera.key_canonical('{int4,int4,int4}', '(1,MAXKEY,7)'), tessera.key_canonical('{mood,bool}', '(ok,yes)');

-- What compares otherwise on another node is refused.
CREATE COLLATION of_the_system (provider = libc, locale = 'C.utf8');
CREATE COLLATION of_icu (provider = icu, locale = 'und');
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE labelled AS (id int, label text COLLATE of_the_system);
CREATE TYPE text_range AS RANGE (subtype = text, collation = of_the_system);
CREATE DOMAIN c_text AS text COLLATE "C";
CREATE DOMAIN system_text AS text COLLATE of_the_system;
SELECT tessera.key_compare('{text}', 'a', 'B', collations => '{of_icu}') AS icu, tessera.key_compare('{text}', 'a', 'B', collations => '{"\"C\""}') AS c,
       tessera.key_compare('{text}', 'a', 'B', collations => '{"\"POSIX\""}') AS posix, tessera.key_compare('{c_text}', 'a', 'B') AS domain,
       tessera.key_compare('{name}', 'a', 'B') AS name;
SELECT tessera.key_compare('{int4,text}', 1, 1, collations => '{-,of_the_system}');
SELECT tessera.key_compare('{system_text}', 1, 1);
SELECT tessera.key_compare('{text[]}', '{a}', '{b}', collations => '{of_the_system}');
SELECT tessera.key_compare('{labelled}', '(1,a)', '(1,b)');
SELECT tessera.key_compare('{text_range}', '[a,b)', '[c,d)');
SELECT tessera.key_compare('{text}', 'a', 'b', collations => '{any_case}');
SELECT tessera.key_compare('{text}', 1, 2, true, collations => '{any_case}');
SELECT tessera.key_compare('{money[]}', '{1}', '{2}');
SELECT tessera.key_compare('{regclass}', 'pg_class', 'pg_type');
SELECT tessera.key_compare('{point}', '(1,2)', '(1,3)');
SELECT tessera.key_compare('{record}', '(1,2)', '(1,3)');
SELECT tessera.key_compare('{json}', '1', '2');

-- Under hash, bounds are of the hash.
SELECT tessera.key_compare('{text,mood[]}', 9, 10, true);
SELECT tessera.key_compare('{text,int4}', 9, 10, true), tessera.key_compare('{text}', 'MINKEY', '-9223372036854775808', true),
       tessera.key_canonical('{text}', '010', true);
SELECT tessera.key_compare('{text,int4}', (9, 1), 10, true);
SELECT tessera.key_compare('{text}', 'abc', 10, true);
SELECT tessera.key_compare('{mood}', 9, 10, true);
SELECT tessera.key_compare('{small_mood}', 9, 10, true);
CREATE TYPE moody AS (id int, m mood);
CREATE TYPE mood_range AS RANGE (subtype = mood);
SELECT tessera.key_compare('{moody}', 9, 10, true);
SELECT tessera.key_compare('{mood_range}', 9, 10, true);
SELECT tessera.key_compare('{mood_multirange}', 9, 10, true);
SELECT tessera.key_compare('{regrole}', 9, 10, true);
SELECT tessera.key_compare('{bit}', 9, 10, true);
SELECT tessera.key_hash('a'::text) = hashtextextended('a', 0) AS text, tessera.key_hash('a') = hashtextextended('a', 0) AS literal,
       tessera.key_hash(1) = hashint4extended(1, 0) AS int4, tessera.key_hash(1::int8) = tessera.key_hash(1) AS alike,
       tessera.key_hash(5::pg_temp.positive) = tessera.key_hash(5) AS domain,
       tessera.key_hash(1, 'a') <> tessera.key_hash('a', 1) AS in_order, tessera.key_hash(VARIADIC ARRAY[1, 2]) = tessera.key_hash(1, 2) AS array;
SELECT count(DISTINCT tessera.key_hash(g, g::text)) FROM generate_series(1, 1000) g;
SELECT tessera.key_hash(1, 'a'), tessera.key_hash('x'), tessera.key_hash(uuid 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
       tessera.key_hash(VARIADIC k) FROM (VALUES ('{1}'::int[]), ('{1,2}'), ('{2}')) v(k);
SELECT tessera.key_hash('sad'::mood);
SELECT tessera.key_hash(1, NULL::int);
SELECT tessera.key_hash(VARIADIC ARRAY[]::int[]);

-- Exact round trips, made and read under odd settings.
CREATE TEMP TABLE kept (n int, what text, bound tessera.bound);
CREATE FUNCTION pg_temp.keep() RETURNS void LANGUAGE sql AS $$
  INSERT INTO kept VALUES
    (1, 'timestamptz', '2024-03-31 01:30:00.123456+00'::timestamptz), (2, 'timestamptz', '0044-03-15 12:00:00+00 BC'::timestamptz),
    (3, 'timestamptz', 'infinity'::timestamptz), (4, 'timestamp', '0099-12-31 23:59:59.999999'::timestamp),
    (5, 'date', make_date(2024, 2, 1)), (6, 'date', make_date(-44, 3, 15)), (7, 'date', make_date(7, 8, 9)),
    (8, 'float8', 0.1::float8 + 0.2::float8), (9, 'float8', 5e-324::float8), (10, 'float8', 1.7976931348623157e308::float8), (11, 'float8', '-Infinity'::float8),
    (12, 'float4', 0.3::float4), (13, 'float4', 1.17549435e-38::float4),
    (14, 'numeric', 12345678901234567890.123456789012345678900), (15, 'numeric', '-Infinity'::numeric), (16, 'numeric', 1e-30::numeric),
    (17, 'bytea', '\x00015c22ff'::bytea), (18, 'bytea', ''::bytea), (19, 'uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid),
    (20, 'int2', (-32768)::int2), (21, 'int4', 2147483647), (22, 'int8', (-9223372036854775808)::int8), (23, 'bool', true),
    (24, 'interval', tessera.bound(make_interval(months => -14, days => 3, secs => -4.5))), (25, 'interval', tessera.bound(make_interval(days => -1, hours => -2))),
    (26, 'interval', tessera.bound(make_interval(years => 1, hours => 30))), (27, 'mood', tessera.bound('ok'::mood)), (28, 'c_text', E' (a"b\\c,\n\'\t'::text), (29, 'c_text', 'minkey'::text)
$$;
-- Each value, as its canonical text, is the same as before.
CREATE FUNCTION pg_temp.differing() RETURNS TABLE (n int, what text, bound tessera.bound, canonical tessera.bound) LANGUAGE sql AS $$
  SELECT n, what, bound, tessera.key_canonical(ARRAY[what::regtype], bound) FROM kept
   WHERE tessera.key_canonical(ARRAY[what::regtype], bound)::text <> bound::text OR tessera.key_compare(ARRAY[what::regtype], bound, bound) <> 0
$$;
SELECT pg_temp.keep();
SELECT * FROM kept ORDER BY n;
SELECT * FROM pg_temp.differing();
SET DateStyle = 'SQL, DMY';
SET TimeZone = 'America/St_Johns';
SET IntervalStyle = 'sql_standard';
SET extra_float_digits = -15;
SET bytea_output = 'escape';
SELECT pg_temp.keep();
SELECT * FROM pg_temp.differing();
SELECT tessera.bound(timestamptz '2024-01-01 00:00', date '02/01/2024', 0.1::float8, '\x00'::bytea), now()::text LIKE '__/__/____ %' AS style_kept,
       current_setting('TimeZone'), current_setting('extra_float_digits');
-- a user's own text is read as the session reads it
SELECT tessera.key_canonical('{timestamptz,date}', ('01/02/2024 10:00', '01/02/2024'));
SET DateStyle = 'German';
SET TimeZone = 'Asia/Kolkata';
SET IntervalStyle = 'iso_8601';
SELECT pg_temp.keep();
SELECT * FROM pg_temp.differing();
SET DateStyle = 'Postgres, MDY';
SET IntervalStyle = 'postgres_verbose';
SELECT pg_temp.keep();
SELECT * FROM pg_temp.differing();
SELECT count(*), count(DISTINCT (n, bound::text)) AS distinct_texts FROM kept;
RESET DateStyle; RESET TimeZone; RESET IntervalStyle; RESET extra_float_digits; RESET bytea_output;
SELECT * FROM pg_temp.differing();
-- an error in between leaves the settings alone
SET TimeZone = 'Asia/Kolkata';
SELECT tessera.bound(timestamptz '2024-01-01 00:00', NULL);
SHOW TimeZone;
RESET TimeZone;
-- compounds
SELECT k, tessera.key_canonical('{int8,c_text,timestamptz,bytea}', k) OPERATOR(tessera.=) k AS same
  FROM (VALUES (tessera.bound(1::int8, 'a b', '2024-01-01 00:00+00'::timestamptz, '\x00'::bytea)),
               ('(-5,"",infinity,"\\x")'), ('(7,"100",MINKEY)'), ('(7,MAXKEY)'), ('MINKEY')) v(k);

-- Large values: compressed and out of line in a table, in bounds and in key spaces.
CREATE TEMP TABLE large (b tessera.bound, t text);
ALTER TABLE large ALTER b SET STORAGE EXTERNAL;
INSERT INTO large SELECT repeat('x', 100000), repeat('y', 100000);
SELECT length(b::text), tessera.bound_cmp(b, repeat('x', 99999)), tessera.bound_cmp(b, b), tessera.key_compare('{c_text}', b, t),
       tessera.bound(t) OPERATOR(tessera.=) repeat('y', 100000) AS same FROM large;

-- SQLSTATEs.
\set VERBOSITY sqlstate
SELECT '(1,)'::tessera.bound;
SELECT tessera.bound(1, NULL);
SELECT tessera.bound(VARIADIC ARRAY[]::int[]);
SELECT tessera.key_compare('{int4}', '(1,2)', 1);
SELECT tessera.key_compare('{system_text}', 1, 1);
SELECT tessera.key_compare('{text}', 1, 1, true, '{any_case}');
SELECT tessera.key_compare('{point}', 1, 1);
SELECT tessera.key_hash('ok'::mood);
SELECT tessera.key_hash(NULL::int);
\set VERBOSITY default

DROP TYPE moody, mood_range, labelled, text_range;
DROP DOMAIN small_mood, c_text, system_text;
DROP TYPE mood;
DROP COLLATION of_the_system, of_icu, any_case;
