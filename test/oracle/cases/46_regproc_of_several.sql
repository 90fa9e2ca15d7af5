-- A regproc names one of several functions of a name.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c46 CASCADE;
CREATE SCHEMA c46;
CREATE TABLE c46.hook (id int PRIMARY KEY, fn regproc);
CREATE FUNCTION c46.many(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION c46.many(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
SELECT tessera.shard_table('c46.hook', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c46.hook VALUES (5, 'c46.many(int)'::regprocedure);
INSERT INTO c46.hook VALUES (6, 'lower(text)'::regprocedure);
