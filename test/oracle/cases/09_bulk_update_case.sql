-- Statements of tens of thousands of constants, as libraries write them to change many rows at once.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c09 CASCADE;
CREATE SCHEMA c09;
CREATE TABLE c09.account (id int PRIMARY KEY, name text, points int DEFAULT 0);
CREATE TABLE c09.wide (id int PRIMARY KEY, a int, b int, c int, d int, e int, f int, g text);
SELECT tessera.shard_table('c09.account', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c09.wide', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c09.account (id, name) SELECT g, 'n' FROM generate_series(1, 200) g;

-- 35,000 WHENs: 70,000 constants
DO $$BEGIN
EXECUTE (SELECT 'UPDATE c09.account SET name = CASE id ' || string_agg(format('WHEN %s THEN %L', g, 'name ' || g),
	' ' ORDER BY g) || ' ELSE name END WHERE id <= 200'
  FROM generate_series(1, 35000) g);
END$$;
SELECT count(*) FROM c09.account WHERE name = 'name ' || id;

-- the same of one row
DO $$BEGIN
EXECUTE (SELECT 'UPDATE c09.account SET points = CASE ' || string_agg(format('WHEN (id = %s) THEN %s', g, g * 2),
	' ' ORDER BY g) || ' ELSE 0 END WHERE id = 7'
  FROM generate_series(1, 35000) g);
END$$;
SELECT points FROM c09.account WHERE id = 7;

-- 9,000 rows of 8 constants
DO $$BEGIN
EXECUTE (SELECT 'INSERT INTO c09.wide VALUES ' || string_agg(format('(%s, 1, 2, 3, 4, 5, %s, %L)', g, g % 7, 'x' || g), ', ' ORDER BY g) ||
  ' ON CONFLICT (id) DO UPDATE SET a = excluded.a' FROM generate_series(1, 9000) g);
END$$;
SELECT count(*), sum(f) FROM c09.wide;

-- a list to join with
DO $$BEGIN
EXECUTE (SELECT 'UPDATE c09.account t SET points = v.p FROM (VALUES ' || string_agg(format('(%s, %s)', g, g * 3),
	', ' ORDER BY g) || ') v(id, p) WHERE v.id = t.id'
  FROM generate_series(1, 34000) g);
END$$;
SELECT count(*) FROM c09.account WHERE points = id * 3;
DO $$BEGIN
EXECUTE (SELECT 'DELETE FROM c09.wide WHERE id IN (' || string_agg(g::text, ', ' ORDER BY g) || ') AND g <> ''x1''' FROM generate_series(1,
	70000) g);
END$$;
SELECT count(*) FROM c09.wide;
