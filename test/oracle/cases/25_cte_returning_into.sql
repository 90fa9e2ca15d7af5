-- One value for INTO, FOUND and ROW_COUNT right; all parts of a WITH see the rows as they were before it.
SET client_min_messages = notice;
DROP SCHEMA IF EXISTS c25 CASCADE;
CREATE SCHEMA c25;
CREATE TABLE c25.live (id int PRIMARY KEY, done bool, v int, made timestamptz DEFAULT now(), twice int GENERATED ALWAYS AS (v * 2) STORED);
CREATE TABLE c25.archive (id int, done bool, v int, made timestamptz, twice int, at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (id));
CREATE TABLE c25.name (name text COLLATE "C" PRIMARY KEY, n int);
SELECT tessera.shard_table('c25.live', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c25.archive', 'id', strategy => 'range');
SELECT tessera.shard_table('c25.name', 'name', strategy => 'hash', chunks => 6);
INSERT INTO c25.live (id, done, v) SELECT g, g % 3 = 0, g FROM generate_series(1, 20) g;
SELECT tessera.move_range('c25.archive', 5, 10, 's2');
SELECT tessera.move_range('c25.archive', 10, tessera.maxkey(), 's3');
DO $$
DECLARE
  total int;
  n int;
  r record;
BEGIN
  WITH ins AS (INSERT INTO c25.live (id, done, v) VALUES (101, false, 1), (102, false, 2), (103, false,
	3) RETURNING v) SELECT sum(v) INTO total FROM ins;
  RAISE NOTICE 'sum %, found %', total, FOUND;
  WITH gone AS (DELETE FROM c25.live WHERE id > 100 RETURNING id) SELECT count(*) AS c, max(id) AS m INTO STRICT r FROM gone;
  RAISE NOTICE 'deleted % to %', r.c, r.m;
  UPDATE c25.live SET v = v WHERE id < 5;
  GET DIAGNOSTICS n = ROW_COUNT;
  RAISE NOTICE 'updated %, found %', n, FOUND;
  UPDATE c25.live SET v = 0 WHERE id = 12345;
  RAISE NOTICE 'found %', FOUND;
  BEGIN
    UPDATE c25.live SET v = v WHERE id < 3 RETURNING id INTO STRICT n;
  EXCEPTION WHEN too_many_rows THEN
    RAISE NOTICE 'too many';
  END;
END $$;
WITH moved AS (DELETE FROM c25.live WHERE done RETURNING *) INSERT INTO c25.archive (id, done, v, made, twice) SELECT * FROM moved;
SELECT count(*), sum(v), sum(twice) FROM c25.live;
SELECT count(*), sum(v), sum(twice) FROM c25.archive;
WITH u AS (UPDATE c25.live SET v = v + 100 RETURNING v) SELECT (SELECT sum(v) FROM c25.live) AS before, (SELECT sum(v) FROM u) AS after;
WITH d AS (DELETE FROM c25.archive WHERE id <= 6 RETURNING *), i AS (INSERT INTO c25.live (id, done, v) SELECT id + 50, done, v FROM d RETURNING *)
  SELECT (SELECT count(*) FROM d) AS d, (SELECT count(*) FROM i) AS i, (SELECT count(*) FROM c25.archive) AS archived_before,
	(SELECT count(*) FROM c25.live) AS live_before;
SELECT (SELECT count(*) FROM c25.archive) AS archived, (SELECT count(*) FROM c25.live) AS live;
-- get or create
WITH i AS (INSERT INTO c25.name VALUES ('a', 1), ('b', 2) ON CONFLICT DO NOTHING RETURNING name, n, true AS made)
  SELECT name, n, made FROM i UNION ALL SELECT name, n, false FROM c25.name WHERE name IN ('a', 'b') ORDER BY 1, 3;
WITH wanted(name, n) AS (VALUES ('b', 20), ('c', 30)), i AS (INSERT INTO c25.name SELECT * FROM wanted ON CONFLICT (name) DO NOTHING RETURNING name,
	n, true AS made)
  SELECT name, n, made FROM i UNION ALL SELECT t.name, t.n, false FROM wanted w JOIN c25.name t USING (name) ORDER BY 1;
WITH u AS (UPDATE c25.name SET n = n + 1 RETURNING name, n),
	x AS (UPDATE c25.live SET v = u.n FROM u WHERE c25.live.id = u.n RETURNING c25.live.id) SELECT count(*) FROM x;
SELECT * FROM c25.name ORDER BY name;
