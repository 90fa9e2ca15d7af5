-- All rows count, wherever they lie: what they do not allow is refused and leaves nothing; defaults hold for rows of before, after moves, too.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c32 CASCADE;
CREATE SCHEMA c32;
CREATE TABLE c32.t (id int PRIMARY KEY, a text, n int, d text);
INSERT INTO c32.t SELECT g, 'a' || g % 11, CASE WHEN g <> 11 THEN g END, CASE WHEN g = 12 THEN 'not a date' ELSE '2024-01-' || lpad(g::text, 2,
	'0') END FROM generate_series(1, 12) g;
SELECT tessera.shard_table('c32.t', 'id', strategy => 'range');
SELECT tessera.move_range('c32.t', tessera.minkey(), 5, 's1');
SELECT tessera.move_range('c32.t', 5, 9, 's2');
SELECT tessera.move_range('c32.t', 9, tessera.maxkey(), 's3');
ALTER TABLE c32.t ADD COLUMN x int NOT NULL;
ALTER TABLE c32.t ALTER n SET NOT NULL;
ALTER TABLE c32.t ADD CONSTRAINT few CHECK (n < 12);
ALTER TABLE c32.t ALTER d TYPE date USING d::date;
CREATE UNIQUE INDEX t_dup ON c32.t (id, (1 / (id - 12)));
BEGIN;
ALTER TABLE c32.t ADD COLUMN y int DEFAULT 5;
UPDATE c32.t SET y = id WHERE id < 3;
SAVEPOINT s;
ALTER TABLE c32.t ALTER n SET NOT NULL;
ROLLBACK TO s;
SELECT sum(y) FROM c32.t;
COMMIT;
ALTER TABLE c32.t ADD COLUMN addr cidr, ADD COLUMN dept text NOT NULL DEFAULT 'Engineering', ADD COLUMN joined date DEFAULT '2024-05-06',
	ADD COLUMN arr int[] DEFAULT '{1,2}',
  ADD COLUMN js jsonb DEFAULT '{"k": [1]}', ADD COLUMN small numeric(6, 2) DEFAULT 1.005, ADD COLUMN pad char(4) DEFAULT 'ab';
INSERT INTO c32.t (id, n) VALUES (20, 20), (21, 21), (22, 22);
SELECT tessera.move_range('c32.t', 3, 11, 's3');
SELECT tessera.move_range('c32.t', 20, 22, 's1');
SELECT id, y, dept, joined, arr, js, small, pad || '|' AS pad FROM c32.t ORDER BY id;
ALTER TABLE c32.t ALTER dept SET DEFAULT 'Sales', ALTER joined DROP DEFAULT;
INSERT INTO c32.t (id, n) VALUES (23, 23) RETURNING dept, joined, small;
SELECT dept, count(*), count(joined) FROM c32.t GROUP BY dept ORDER BY dept;
UPDATE c32.t SET d = NULL WHERE id = 12;
UPDATE c32.t SET n = 0 WHERE n IS NULL;
ALTER TABLE c32.t ALTER n SET NOT NULL, ALTER d TYPE date USING d::date, ADD CONSTRAINT few CHECK (n < 100);
ALTER TABLE c32.t ADD COLUMN z int GENERATED ALWAYS AS (n * 2) STORED, DROP COLUMN a;
ALTER TABLE c32.t RENAME COLUMN id TO key;
ALTER TABLE c32.t RENAME TO renamed;
SELECT tessera.move_range('c32.renamed', 9, tessera.maxkey(), 's2');
SELECT key, n, d, z FROM c32.renamed WHERE key >= 10 ORDER BY key;
INSERT INTO c32.renamed (key, n) VALUES (24, NULL);
INSERT INTO c32.renamed (key, n) VALUES (24, 100);
ALTER TABLE c32.renamed ALTER y TYPE text USING 'y' || y, ALTER y SET DEFAULT 'none';
SELECT key, y FROM c32.renamed WHERE key IN (1, 5, 12, 23) ORDER BY key;
SELECT attname, atttypid::regtype,
	attnotnull FROM pg_attribute WHERE attrelid = 'c32.renamed'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname;
