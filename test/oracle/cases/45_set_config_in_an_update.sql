-- set_config() of a row changes the session's setting.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c45 CASCADE;
CREATE SCHEMA c45;
CREATE TABLE c45.t (id int PRIMARY KEY, q text);
SELECT tessera.shard_table('c45.t', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c45.t VALUES (7);
UPDATE c45.t SET q = set_config('c45.seen', id::text, false) WHERE id = 7 RETURNING q;
