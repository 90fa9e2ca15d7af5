-- ROLLBACK TO takes back the cancelled statement alone; the transaction sees its own writes, goes on and commits.
\set VERBOSITY terse
SET client_min_messages = notice;
DROP SCHEMA IF EXISTS c20 CASCADE;
CREATE SCHEMA c20;
CREATE TABLE c20.t (id int PRIMARY KEY, v int);
SELECT tessera.shard_table('c20.t', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c20.t SELECT g, 0 FROM generate_series(1, 12) g;
CREATE FUNCTION c20.slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(20); RETURN $1 + 1; END$$;
BEGIN;
UPDATE c20.t SET v = v + 1 WHERE id <= 4;
SAVEPOINT a;
SET LOCAL statement_timeout = '300ms';
UPDATE c20.t SET v = c20.slow(v);
ROLLBACK TO a;
SHOW statement_timeout;
SELECT sum(v) FROM c20.t;
UPDATE c20.t SET v = v + 10 WHERE id IN (1, 5, 9);
SAVEPOINT b;
SET LOCAL statement_timeout = '300ms';
SELECT c20.slow(v) FROM c20.t WHERE v > 0;
ROLLBACK TO b;
SAVEPOINT c;
INSERT INTO c20.t VALUES (13, 100), (14, 100);
SET LOCAL statement_timeout = '300ms';
DELETE FROM c20.t WHERE c20.slow(v) = 1;
ROLLBACK TO c;
INSERT INTO c20.t VALUES (13, 1000);
RELEASE a;
COMMIT;
SELECT id, v FROM c20.t ORDER BY id;

SET statement_timeout = '4s';
DO $$
DECLARE
  n int;
BEGIN
  UPDATE c20.t SET v = v + 1;
  BEGIN
    UPDATE c20.t SET v = c20.slow(v) WHERE id = 3;
  EXCEPTION WHEN query_canceled THEN
    RAISE NOTICE 'cancelled';
  END;
  SELECT sum(v) INTO n FROM c20.t;
  RAISE NOTICE 'sum %', n;
  UPDATE c20.t SET v = v + 1 WHERE id IN (1, 2, 3);
END $$;
RESET statement_timeout;
SELECT id, v FROM c20.t ORDER BY id;
-- a cancelled statement outside of a block leaves nothing
SET statement_timeout = '300ms';
INSERT INTO c20.t SELECT id + 100, c20.slow(v) FROM c20.t;
UPDATE c20.t SET v = c20.slow(v) WHERE id = 1;
RESET statement_timeout;
SELECT count(*), sum(v) FROM c20.t;
