-- The data path of a migration: rows of a range into payloads, payloads into another database whose types have other OIDs; changes captured from WAL.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE DATABASE migration_a;
CREATE DATABASE migration_b;

-- The same schema on both, with different OIDs, column numbers and order on the second.
\c migration_b
SET client_min_messages = warning;
CREATE TYPE junk AS ENUM ('z');
CREATE TABLE junk_table (a int);
CREATE EXTENSION tessera;
CREATE EXTENSION tessera_test;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy "quoted"');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN feeling AS mood;
CREATE TYPE pair AS (m mood, t timestamptz, n numeric);
CREATE TABLE odd (
  gone2 text, note text, junk int, m mood, ms mood[], p pair, ps pair[], pos positive, f feeling,
  id bigint, region text COLLATE "C", doubled bigint GENERATED ALWAYS AS (id * 2) STORED,
  n numeric, ts timestamptz, i interval, b bytea, js jsonb, r int4range, u uuid, fl float8, fs float4[], big text, c char(5), v varchar(10), cls regclass,
  bits bit varying(20), x xml, nothing int, PRIMARY KEY (id, region));
ALTER TABLE odd DROP COLUMN gone2, DROP COLUMN junk;
CREATE TABLE line (region text COLLATE "C", id bigint, line int, amount numeric CHECK (amount >= 0), PRIMARY KEY (id, line));
\c migration_a
SET client_min_messages = warning;
CREATE EXTENSION tessera;
CREATE EXTENSION tessera_test;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy "quoted"');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN feeling AS mood;
CREATE TYPE pair AS (m mood, t timestamptz, n numeric);
CREATE TABLE odd (
  id bigint, gone text, region text COLLATE "C", n numeric, ts timestamptz, i interval, b bytea, js jsonb, r int4range, u uuid, fl float8, fs float4[],
  big text, c char(5), v varchar(10), cls regclass, bits bit varying(20), x xml, nothing int, note text, m mood, ms mood[], p pair, ps pair[], pos positive,
  f feeling, doubled bigint GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id, region));
ALTER TABLE odd DROP COLUMN gone;
CREATE TABLE line (id bigint, line int, region text COLLATE "C", amount numeric CHECK (amount >= 0), PRIMARY KEY (id, line));
INSERT INTO odd VALUES
  (9, 'outside', 1.50, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'no', NULL, NULL, NULL, NULL, NULL, NULL),
  (10, 'eu', 1.50, '2024-02-29 12:00:00.123456+02', '1 mon -3 days 04:05:06', '\x00ff', '{"a": [1, null]}', '[3,7)',
   'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 0.1, '{1.1,NULL,-0}', repeat('0123456789', 100000), 'ab', 'héllo', 'pg_class', B'10110', '<a>b</a>', NULL, E'new\nline',
   'happy "quoted"', '{sad,NULL,"happy \"quoted\""}', '("happy ""quoted""","2020-01-01 00:00:00+00",1.230)', ARRAY[ROW('sad', '2021-06-01 00:00+00', 2)::pair, NULL],
   7, 'ok'),
  (11, 'eu', 'NaN', 'infinity', NULL, '', 'null', 'empty', NULL, 'Infinity', '{}', NULL, '', '', 'odd', B'', NULL, NULL, '', 'sad', '{}', NULL, NULL, NULL, NULL),
  (19, 'us', -0.000, '-infinity', NULL, NULL, '"x"', '(,5]', NULL, 1e-300, NULL, (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 32768) g), NULL, NULL, NULL, NULL, NULL, NULL, 'incompressible', NULL, NULL, NULL, NULL, NULL, NULL),
  (20, 'outside', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'no', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO line SELECT g / 10, g % 10, 'eu', g * 1.5 FROM generate_series(50, 259) g;

-- Settings of the session do not matter.
SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Asia/Tokyo'; SET extra_float_digits = 0; SET client_encoding = 'LATIN1'; SET bytea_output = 'escape';

-- A clone needs one snapshot.
SELECT * FROM tessera_test.clone_payloads('{odd,line}', '{id}', 10, 20);
-- Two tables, several batches; then the payloads as psql variables for the other database.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT table_index, sum(row_count), count(*) > 1 AS batches FROM tessera_test.clone_payloads('{odd,line}', '{id}', 10, 20, bytes => 500) GROUP BY 1 ORDER BY 1;
SELECT encode(payload, 'hex') AS odd FROM tessera_test.clone_payloads('{odd,line}', '{id}', 10, 20, bytes => 100000000) WHERE table_index = 0 \gset
SELECT encode(payload, 'hex') AS line FROM tessera_test.clone_payloads('{odd,line}', '{id}', 10, 20, bytes => 100000000) WHERE table_index = 1 \gset
COMMIT;
RESET DateStyle; RESET IntervalStyle; RESET TimeZone; RESET extra_float_digits; RESET client_encoding; RESET bytea_output;
CREATE VIEW digest AS SELECT id, doubled, n, ts, i, b, js, r, u, fl, fs, length(big) AS len, md5(big) AS big, c, v, cls, bits, x::text, nothing, note, m, ms, p, ps, pos, f FROM odd;
SELECT md5(string_agg(digest::text, '|' ORDER BY id)) AS digest_a FROM digest WHERE id >= 10 AND id < 20 \gset
SELECT md5(string_agg(digest::text, '|' ORDER BY id)) AS lines_a FROM (SELECT id, line, region, amount FROM line) digest WHERE id >= 10 AND id < 20 \gset

\c migration_b
SET client_min_messages = warning;
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a trigger fired''; END';
CREATE TRIGGER never BEFORE INSERT OR UPDATE OR DELETE ON odd FOR EACH ROW EXECUTE FUNCTION fires();
ALTER TABLE odd ENABLE ALWAYS TRIGGER never;
SET DateStyle = 'SQL, DMY'; SET TimeZone = 'America/New_York';
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'odd', 'hex'));
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'line', 'hex'));
RESET DateStyle; RESET TimeZone;
CREATE VIEW digest AS SELECT id, doubled, n, ts, i, b, js, r, u, fl, fs, length(big) AS len, md5(big) AS big, c, v, cls, bits, x::text, nothing, note, m, ms, p, ps, pos, f FROM odd;
SELECT id, doubled, n, i, js, r, fs, length(big), c, v, cls, bits, x::text, m, ms, ps, pos, f, region FROM odd WHERE id = 10;
SELECT count(*), md5(string_agg(digest::text, '|' ORDER BY id)) = :'digest_a' AS same FROM digest;
SELECT count(*), md5(string_agg(digest::text, '|' ORDER BY id)) = :'lines_a' AS same FROM (SELECT id, line, region, amount FROM line) digest;
SET enable_seqscan = off;
SELECT id, doubled FROM odd WHERE id = 19 AND region = 'us';
RESET enable_seqscan;

-- What a unique index forbids, the applier forbids; a CHECK judges no row that is stored.
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'line', 'hex'));
ALTER TABLE line ADD CHECK (amount < 100) NOT VALID;
DELETE FROM line;
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'line', 'hex'));
-- Tables that differ are refused.
ALTER TABLE line ADD COLUMN extra int;
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'line', 'hex'));
ALTER TABLE line DROP COLUMN extra, ALTER COLUMN amount TYPE float8;
SELECT tessera_test.apply_payload('{odd,line}', '{id}', decode(:'line', 'hex'));

-- Damage: every prefix of a payload, and every byte changed, is an error or other values, never a crash.
CREATE TABLE small (id int PRIMARY KEY, t text, m mood, n numeric, a int[]);
INSERT INTO small VALUES (1, 'one', 'ok', 1.5, '{1,2}');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT encode(payload, 'hex') AS small FROM tessera_test.clone_payloads('{small}', '{id}') \gset
COMMIT;
DELETE FROM small;
CREATE FUNCTION damage(payload bytea, changes bool) RETURNS TABLE (kind text, codes text[]) LANGUAGE plpgsql AS $$
DECLARE
  byte int;
BEGIN
  kind := 'cut';
  codes := '{}';
  FOR i IN 1 .. length(payload) - 1 LOOP
    BEGIN
      PERFORM tessera_test.apply_payload('{small}', '{id}', substr(payload, 1, i), changes);
      codes := codes || 'accepted'::text;	-- the end of the description is the end of a record too
    EXCEPTION WHEN OTHERS THEN
      codes := codes || SQLSTATE::text;
    END;
  END LOOP;
  codes := (SELECT array_agg(c || ': ' || n ORDER BY c) FROM (SELECT c, count(*) > 1 AS n FROM unnest(codes) c GROUP BY c) c);
  RETURN NEXT;
  kind := 'changed';
  codes := '{}';
  FOR i IN 0 .. length(payload) - 1 LOOP
    FOREACH byte IN ARRAY ARRAY[0, 1, 32, 127, 128, 255] LOOP
      BEGIN
        PERFORM tessera_test.apply_payload('{small}', '{id}', set_byte(payload, i, byte), changes);
        DELETE FROM small;
      EXCEPTION WHEN OTHERS THEN
        codes := codes || SQLSTATE::text;
      END;
    END LOOP;
  END LOOP;
  codes := (SELECT array_agg(DISTINCT c ORDER BY c) FROM unnest(codes) c);
  RETURN NEXT;
END $$;
SELECT * FROM damage(decode(:'small', 'hex'), false);
-- The same row as an insert.
SELECT * FROM damage(overlay(decode(:'small', 'hex') PLACING '\x49' FROM position('\x43000062'::bytea IN decode(:'small', 'hex'))), true);

-- Deletion of a range, in batches, without triggers; what is outside stays.
INSERT INTO small SELECT g, 'x' FROM generate_series(1, 100) g;
SELECT tessera_test.delete_range_rows('small', '{id}', 10, 60, batch => 20) FROM generate_series(1, 4);
SELECT count(*), min(id), max(id) FROM small;
SELECT tessera_test.delete_range_rows('odd', '{id,region}', ROW(10, 'eu'), ROW(19, 'a'));
SELECT id, region FROM odd;
SELECT tessera_test.delete_range_rows('small', '{id}', tessera.minkey(), tessera.bound(0::bigint), hashed => true) AS deleted \gset
SELECT :deleted > 0 AND :deleted < 50 AS about_half, count(*) = 50 - :deleted AS rest FROM small;

-- The owner's code does not run as the caller.
CREATE ROLE migration_owner;
CREATE TABLE owned (id int PRIMARY KEY, who text);
ALTER TABLE owned OWNER TO migration_owner;
INSERT INTO owned VALUES (1, '');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT encode(payload, 'hex') AS owned FROM tessera_test.clone_payloads('{owned}', '{id}') \gset
COMMIT;
DELETE FROM owned;
CREATE FUNCTION who_runs(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'runs as %', current_user; END$$;
CREATE INDEX ON owned (who_runs(id));
SELECT tessera_test.apply_payload('{owned}', '{id}', decode(:'owned', 'hex'));
SELECT current_user = session_user AS myself;
DROP TABLE owned;
DROP ROLE migration_owner;
\c contrib_regression
SET client_min_messages = warning;
DROP DATABASE migration_a;
DROP DATABASE migration_b;
