-- DateStyle and TimeZone change how a moment is shown, never which moment it is. (CST is China's as well as America's, IST India's and
-- Israel's.)
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c07 CASCADE;
CREATE SCHEMA c07;
CREATE TYPE c07.state AS ENUM ('new', 'done');
CREATE TABLE c07.event (id int PRIMARY KEY, s c07.state, at timestamptz, on_day date);
CREATE TABLE c07.archive (id int PRIMARY KEY, s c07.state, at timestamptz, on_day date);
CREATE TABLE c07.log (id int PRIMARY KEY, old_at timestamptz);
CREATE FUNCTION c07.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO c07.log VALUES (OLD.id, OLD.at); RETURN NEW; END$$;
CREATE TRIGGER keep AFTER UPDATE ON c07.archive FOR EACH ROW EXECUTE FUNCTION c07.keep();
SELECT tessera.shard_table('c07.event', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c07.archive', 'id', strategy => 'hash', chunks => 6);
SET TIME ZONE 'UTC';
INSERT INTO c07.event SELECT g, CASE WHEN g % 2 = 0 THEN 'done' ELSE 'new' END::c07.state,
	timestamptz '2024-03-01 12:00:00.5+00' + g * interval '1 day', date '2024-03-01' + g
  FROM generate_series(1, 6) g;

SET TIME ZONE 'Asia/Shanghai';
SET DateStyle = 'SQL, DMY';
SELECT id, s, at FROM c07.event ORDER BY id;
SELECT id, at FROM c07.event ORDER BY id;
SELECT count(*) FROM c07.event WHERE at = timestamptz '2024-03-02 12:00:00.5+00';
SELECT a.id FROM c07.event a JOIN c07.event b ON b.at = a.at AND b.s = a.s ORDER BY a.id;
INSERT INTO c07.archive SELECT * FROM c07.event;
UPDATE c07.event SET id = id + 100 WHERE id = 3;
UPDATE c07.archive SET s = 'done' WHERE id IN (1, 2);

SET TIME ZONE 'Asia/Kolkata';
SET DateStyle = 'Postgres, MDY';
SELECT id, s, at FROM c07.event ORDER BY id;
SET DateStyle = 'German';
SELECT s, min(at), max(at), max(on_day) FROM c07.event GROUP BY s ORDER BY s;

-- before there were zones: local mean time
INSERT INTO c07.event VALUES (200, 'new', '1880-01-01 12:00:00+00', '1880-01-01');
SET TIME ZONE 'America/New_York';
SET DateStyle = 'SQL, MDY';
SELECT id, s, at FROM c07.event WHERE id >= 100 ORDER BY id;

SET DateStyle = 'ISO, MDY';
SET TIME ZONE 'UTC';
SELECT id, s, at, on_day FROM c07.event ORDER BY id;
SELECT id, s, at, on_day FROM c07.archive ORDER BY id;
SELECT id, old_at FROM c07.log ORDER BY id;
