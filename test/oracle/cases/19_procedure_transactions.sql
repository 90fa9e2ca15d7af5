-- Each COMMIT and ROLLBACK in a procedure ends one transaction over all shards; loops over queries go on across them.
SET client_min_messages = notice;
DROP SCHEMA IF EXISTS c19 CASCADE;
CREATE SCHEMA c19;
CREATE TABLE c19.t (id int PRIMARY KEY, org int);
CREATE TABLE c19.log (n int PRIMARY KEY, what text);
SELECT tessera.shard_table('c19.t', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c19.log', 'n', strategy => 'hash', chunks => 6);
CREATE PROCEDURE c19.replace_all(a int, b int) LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM c19.t;
  COMMIT;
  INSERT INTO c19.t VALUES (a, b);
  ROLLBACK;
  INSERT INTO c19.log VALUES (1, 'after the rollback');
END $$;
INSERT INTO c19.t VALUES (2, 3);
CALL c19.replace_all(2, 5);
SELECT * FROM c19.t ORDER BY id;
SELECT * FROM c19.log ORDER BY n;

INSERT INTO c19.t SELECT g, g FROM generate_series(1, 12) g;
CREATE PROCEDURE c19.in_portions(INOUT done int) LANGUAGE plpgsql AS $$
DECLARE
  r record;
  n int;
BEGIN
  done := 0;
  FOR r IN SELECT id, org FROM c19.t ORDER BY id LOOP
    UPDATE c19.t SET org = org * 10 WHERE id = r.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    done := done + n;
    INSERT INTO c19.log VALUES (100 + r.id, 'portion');
    IF r.id % 4 = 0 THEN
      ROLLBACK;
    ELSIF r.id % 2 = 0 THEN
      COMMIT;
    END IF;
  END LOOP;
END $$;
CALL c19.in_portions(NULL);
SELECT id, org FROM c19.t ORDER BY id;
SELECT count(*) FROM c19.log WHERE n > 100;

-- errors caught in between, with a handler's own work
CREATE PROCEDURE c19.stubborn() LANGUAGE plpgsql AS $$
DECLARE
  state text;
  what text;
  named text;
BEGIN
  FOR i IN 1 .. 4 LOOP
    BEGIN
      INSERT INTO c19.log VALUES (200 + i, 'try');
      INSERT INTO c19.t VALUES (i * 4, 0);
    EXCEPTION WHEN unique_violation THEN
      GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, what = CONSTRAINT_NAME, named = TABLE_NAME;
      INSERT INTO c19.log VALUES (300 + i, state || ' ' || what || ' ' || named);
    END;
    COMMIT AND CHAIN;
  END LOOP;
  BEGIN
    PERFORM 1 / (org - org) FROM c19.t;
  EXCEPTION WHEN division_by_zero THEN
    RAISE NOTICE 'caught %', SQLSTATE;
  END;
END $$;
CALL c19.stubborn();
SELECT n, what FROM c19.log WHERE n > 200 ORDER BY n;
DO $$
BEGIN
  INSERT INTO c19.t VALUES (50, 1), (51, 1), (52, 1);
  COMMIT;
  INSERT INTO c19.t VALUES (53, 1), (50, 1);
END $$;
SELECT count(*) FROM c19.t WHERE id >= 50;
BEGIN;
CALL c19.replace_all(1, 1);
ROLLBACK;
SELECT count(*) FROM c19.t;
