-- Change capture: what the clone brought plus what the stream brings is what the donor has (S43; doc/design.md#unchanged-toast).
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
CREATE EXTENSION IF NOT EXISTS tessera_test;
CREATE TYPE captured_mood AS ENUM ('bad', 'good');
CREATE TABLE captured (id int, sub int, t text, big text, m captured_mood, twice int GENERATED ALWAYS AS (sub * 2) STORED, PRIMARY KEY (id, sub));
CREATE TABLE captured_log (id int NOT NULL, note text, at numeric, j json);
CREATE INDEX ON captured_log (id);
ALTER TABLE captured_log REPLICA IDENTITY FULL;
CREATE TABLE captured_other (id int PRIMARY KEY);
CREATE TABLE copy (m captured_mood, big text, sub int, t text, id int, twice int GENERATED ALWAYS AS (sub * 2) STORED, PRIMARY KEY (id, sub));
CREATE TABLE copy_log (note text, j json, at numeric, id int NOT NULL);
CREATE INDEX ON copy_log (id);
ALTER TABLE copy_log REPLICA IDENTITY FULL;

CREATE FUNCTION toast(seed int) RETURNS text LANGUAGE sql AS $$SELECT string_agg(md5((g * seed)::text), '') FROM generate_series(1, 200) g$$;
INSERT INTO captured SELECT g, g % 3, 'first ' || g, CASE WHEN g % 5 = 0 THEN toast(g) END, 'good' FROM generate_series(1, 300) g;
INSERT INTO captured_log SELECT g / 2, 'twin', 1.50, '{"a":  1}' FROM generate_series(180, 420) g;
-- Large transactions spill to disk.
DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = ''64kB''', current_database()); END$$;

CREATE FUNCTION differences() RETURNS TABLE (missing int8, too_many int8, missing_log int8, too_many_log int8, rows int8, log_rows int8) LANGUAGE sql AS $$
  SELECT (SELECT count(*) FROM (SELECT id, sub, t, big, m, twice FROM captured WHERE id >= 100 AND id < 200 EXCEPT ALL SELECT id, sub, t, big, m, twice FROM copy) a),
    (SELECT count(*) FROM (SELECT id, sub, t, big, m, twice FROM copy EXCEPT ALL SELECT id, sub, t, big, m, twice FROM captured WHERE id >= 100 AND id < 200) a),
    (SELECT count(*) FROM (SELECT id, note, at::text, j::text FROM captured_log WHERE id >= 100 AND id < 200 EXCEPT ALL SELECT id, note, at::text, j::text FROM copy_log) a),
    (SELECT count(*) FROM (SELECT id, note, at::text, j::text FROM copy_log EXCEPT ALL SELECT id, note, at::text, j::text FROM captured_log WHERE id >= 100 AND id < 200) a),
    (SELECT count(*) FROM copy), (SELECT count(*) FROM copy_log)
$$;

-- Without an identity nothing can be captured.
ALTER TABLE captured REPLICA IDENTITY NOTHING;
SELECT * FROM tessera_test.capture_start('capture_test', '{captured,captured_log}', '{id}', 100, 200);
ALTER TABLE captured REPLICA IDENTITY DEFAULT;
SELECT * FROM tessera_test.capture_start('capture_test', '{captured,captured_log}', '{t}', tessera.minkey(), tessera.maxkey());
SELECT * FROM tessera_test.capture_start('capture_test', '{captured}', '{m}', tessera.minkey(), tessera.maxkey());
-- The wait for older transactions has a bound, names what it waits for, and leaves no slot.
BEGIN;
INSERT INTO captured_other VALUES (1);
PREPARE TRANSACTION 'capture in the way';
SELECT * FROM tessera_test.capture_start('capture_test', '{captured,captured_log}', '{id}', 100, 200, timeout_ms => 200);
SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'capture_test';
COMMIT PREPARED 'capture in the way';

SELECT sum(row_count) AS rows, encode(string_agg(payload, ''), 'hex') AS clone FROM tessera_test.capture_start('capture_test', '{captured,captured_log}', '{id}', 100, 200) \gset
SELECT :rows AS rows;
SELECT slot_type, plugin, active, temporary FROM pg_replication_slots WHERE slot_name = 'capture_test';
-- Vacuum may clean what only the slot's making needed.
SELECT xmin FROM pg_replication_slots WHERE slot_name = 'capture_test';

-- Inside, outside, in, out.
INSERT INTO captured VALUES (150, 10, 'new', NULL, 'bad'), (250, 10, 'outside', NULL, 'bad'), (155, 11, 'new and big', toast(7), NULL);
UPDATE captured SET t = 'second ' || id WHERE id IN (99, 100, 105, 199, 200);
UPDATE captured SET big = NULL WHERE id = 110;
UPDATE captured SET big = toast(3) WHERE id = 115;
UPDATE captured SET sub = sub + 20 WHERE id IN (120, 121);
UPDATE captured SET id = 130, sub = 100 WHERE id IN (5, 6) AND sub = id % 3 AND id = 5;
UPDATE captured SET id = 5, sub = 100 WHERE id = 135;
UPDATE captured SET id = 140, sub = 101, t = 'moved in with toast' WHERE id = 10;
DELETE FROM captured WHERE id IN (98, 160, 165, 210);
-- Moved in without their TOAST in WAL, and gone, changed or moved out again before it is fetched.
UPDATE captured SET id = 141, sub = 102 WHERE id = 15;
DELETE FROM captured WHERE id = 141 AND sub = 102;
UPDATE captured SET id = 142, sub = 103 WHERE id = 20;
UPDATE captured SET big = toast(99), t = 'changed later' WHERE id = 142 AND sub = 103;
UPDATE captured SET id = 143, sub = 104 WHERE id = 25;
UPDATE captured SET id = 25, sub = 1 WHERE id = 143 AND sub = 104;
UPDATE captured SET id = 144, sub = 105 WHERE id = 30;
UPDATE captured SET t = 'on its way' WHERE id = 144 AND sub = 105;
UPDATE captured SET id = 145, sub = 106 WHERE id = 144 AND sub = 105;
-- Not what is rolled back.
BEGIN;
INSERT INTO captured VALUES (170, 50, 'never');
ROLLBACK;
BEGIN;
UPDATE captured SET t = 'kept' WHERE id = 171;
SAVEPOINT a;
UPDATE captured SET t = 'not kept' WHERE id = 172;
ROLLBACK TO a;
SAVEPOINT b;
UPDATE captured SET t = 'kept too' WHERE id = 173;
RELEASE b;
COMMIT;
-- A prepared transaction counts when it commits.
BEGIN;
UPDATE captured SET t = 'prepared' WHERE id = 174;
PREPARE TRANSACTION 'capture prepared';
-- Without a key: one of two equal rows, json that has no equality, numeric by its digits.
DELETE FROM captured_log WHERE ctid = (SELECT min(ctid) FROM captured_log WHERE id = 101);
UPDATE captured_log SET note = 'single' WHERE ctid = (SELECT min(ctid) FROM captured_log WHERE id = 102);
UPDATE captured_log SET at = 1.5 WHERE id = 103;
UPDATE captured_log SET id = id + 100 WHERE id IN (95, 104);
INSERT INTO captured_log VALUES (105, NULL, NULL, NULL), (205, NULL, NULL, NULL);
DELETE FROM captured_log WHERE id = 105 AND note IS NULL;
INSERT INTO captured_other SELECT g FROM generate_series(2, 100) g;

SELECT sum(change_count) AS changes, bool_or(caught_up) AS caught_up, encode(string_agg(payload, ''), 'hex') AS mods FROM tessera_test.capture_next() \gset
SELECT :changes AS changes, :'caught_up' AS caught_up;
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'clone', 'hex'));
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
SELECT * FROM differences();
SELECT id, sub, t, big IS NULL AS toast, m, twice FROM copy WHERE id = 174;
-- The prepared one, now.
COMMIT PREPARED 'capture prepared';
SELECT sum(change_count) AS changes, encode(string_agg(payload, ''), 'hex') AS mods FROM tessera_test.capture_next() \gset
SELECT :changes AS changes;
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
SELECT * FROM differences();

-- One transaction larger than a batch is handed out in parts; nothing else comes between; a position only when all is out.
BEGIN;
UPDATE captured SET t = t || '.';
INSERT INTO captured SELECT 100 + g % 100, 1000 + g, repeat('x', 200), NULL, 'good' FROM generate_series(1, 5000) g;
DELETE FROM captured WHERE sub = 1001;
COMMIT;
SELECT count(*) > 50 AS parts, sum(change_count) AS changes, max(length(payload)) < 20000 AS small, count(DISTINCT lsn) AS positions,
    count(*) FILTER (WHERE caught_up) AS caught_up, encode(string_agg(payload, ''), 'hex') AS mods
  FROM tessera_test.capture_next(bytes => 8192) \gset
SELECT :'parts' AS parts, :changes AS changes, :'small' AS small, :positions AS positions, :caught_up AS caught_up;
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
SELECT * FROM differences();

-- The same changes again: rows are replaced, what is gone stays gone.
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true) > 0 AS again;
SELECT * FROM differences() WHERE missing + too_many > 0;

-- Nothing new.
SELECT change_count, caught_up, length(payload) FROM tessera_test.capture_next();
-- An update of a row that the recipient lacks is skipped.
DELETE FROM copy WHERE id = 180 AND sub = 0;
UPDATE captured SET t = 'lost' WHERE id = 180 AND sub = 0;
SELECT encode(string_agg(payload, ''), 'hex') AS mods FROM tessera_test.capture_next() \gset
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
SELECT * FROM copy WHERE id = 180 AND sub = 0;
-- Rows deleted by the range deleter do not show as a user's: their records have an origin; this capture takes them all the same.
SELECT tessera_test.delete_range_rows('captured', '{id}', 190, 195) > 0 AS deleted;
SELECT sum(change_count) > 0 AS changes FROM tessera_test.capture_next();

-- A column added: the stream describes the table anew.
ALTER TABLE captured ADD COLUMN late int DEFAULT 7;
UPDATE captured SET late = 8 WHERE id = 181 AND sub = 1;
SELECT encode(string_agg(payload, ''), 'hex') AS mods FROM tessera_test.capture_next() \gset
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
ALTER TABLE copy ADD COLUMN late int;
SELECT tessera_test.apply_payload('{copy,copy_log}', '{id}', decode(:'mods', 'hex'), changes => true);
SELECT late FROM copy WHERE id = 181 AND sub = 1;

-- TRUNCATE ends it; the slot goes.
TRUNCATE captured_other;
SELECT change_count, caught_up FROM tessera_test.capture_next();
TRUNCATE captured_log;
SELECT change_count, caught_up FROM tessera_test.capture_next();
SELECT * FROM tessera_test.capture_next();
SELECT tessera_test.capture_stop();
DO $$
BEGIN
  FOR i IN 1 .. 1000 LOOP
    EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'capture_test');
    PERFORM pg_sleep(0.01);
  END LOOP;
END$$;
SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'capture_test';

-- Hash strategy, and the end asked for.
SELECT coalesce(sum(row_count), 0) AS rows FROM tessera_test.capture_start('capture_test', '{captured}', '{id}', tessera.minkey(), tessera.bound(0::bigint), hashed => true) \gset
SELECT :rows = count(*) AS half FROM captured WHERE tessera.key_hash(id) < 0;
UPDATE captured SET id = id + 1000;
SELECT sum(change_count) > 0 AS changes FROM tessera_test.capture_next();
SELECT tessera_test.capture_stop();
SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'capture_test';
SELECT tessera_test.capture_drop_slot('capture_test');
DO $$BEGIN EXECUTE format('ALTER DATABASE %I RESET logical_decoding_work_mem', current_database()); END$$;
DROP TABLE captured, captured_log, captured_other, copy, copy_log;
DROP FUNCTION differences, toast;
DROP TYPE captured_mood;
