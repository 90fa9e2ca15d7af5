-- LIKE copies the columns of a temporary table, too; afterwards nothing hangs on it.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c29 CASCADE;
CREATE SCHEMA c29;
CREATE TABLE c29.target (id int PRIMARY KEY, name text NOT NULL DEFAULT 'none', qty numeric(8, 2) CHECK (qty >= 0),
	loaded timestamptz DEFAULT now());
SELECT tessera.shard_table('c29.target', 'id', strategy => 'hash', chunks => 6);
CREATE TEMP TABLE staging (LIKE c29.target INCLUDING ALL);
ALTER TABLE staging ADD COLUMN line int;
INSERT INTO staging (id, name, qty, line) SELECT g, 'row ' || g, g * 1.5, g FROM generate_series(1, 30) g;
CREATE TABLE c29.of_query AS SELECT id, name, line FROM staging WHERE id < 4;
CREATE TABLE c29.no_rows AS TABLE staging WITH NO DATA;
SELECT table_name, count(*) FROM information_schema.columns WHERE table_schema = 'c29' GROUP BY 1 ORDER BY 1;
SELECT * FROM c29.of_query ORDER BY id;
INSERT INTO c29.target SELECT id, name, qty FROM staging WHERE id <= 20;
UPDATE staging SET qty = qty + 100 WHERE id > 10;
INSERT INTO c29.target AS t (id, name, qty) SELECT id, name,
	qty FROM staging ORDER BY id ON CONFLICT (id) DO UPDATE SET qty = excluded.qty WHERE t.qty IS DISTINCT FROM excluded.qty;
SELECT count(*), sum(qty) FROM c29.target;
UPDATE c29.target t SET name = s.name || '!' FROM staging s WHERE s.id = t.id AND s.line % 5 = 0;
DELETE FROM c29.target t USING staging s WHERE s.id = t.id AND s.line > 28;
DELETE FROM staging s WHERE NOT EXISTS (SELECT FROM c29.target t WHERE t.id = s.id);
SELECT (SELECT count(*) FROM staging) AS staged, count(*), count(*) FILTER (WHERE name LIKE '%!') AS renamed FROM c29.target;
-- a temporary table of the same name stands in front
CREATE TEMP TABLE target (id int, name text);
INSERT INTO target VALUES (1, 'mine');
SET search_path = c29, public;
SELECT name FROM target WHERE id = 1;
SELECT name FROM c29.target WHERE id = 1;
SELECT m.name, t.name FROM target m JOIN c29.target t USING (id);
WITH target AS (SELECT id FROM c29.target WHERE id < 3) SELECT count(*) FROM target JOIN c29.target t USING (id);
DROP TABLE pg_temp.target;
SELECT name FROM target WHERE id = 1;
DROP TABLE staging;
