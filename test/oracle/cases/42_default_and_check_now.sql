-- DEFAULT now() and now() in a CHECK are the same moment in one transaction.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c42 CASCADE;
CREATE SCHEMA c42;
CREATE TABLE c42.slot (id int PRIMARY KEY, starts timestamptz NOT NULL DEFAULT now() CHECK (starts >= now()), label text);
SELECT tessera.shard_table('c42.slot', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c42.slot (id, label) VALUES (1, 'one');
INSERT INTO c42.slot (id, label) VALUES (2, 'two'), (3, 'three'), (4, 'four');
INSERT INTO c42.slot (id, label) SELECT g, 'many' FROM generate_series(5, 12) g;
BEGIN;
INSERT INTO c42.slot (id, label) VALUES (13, 'in a block');
SELECT count(*) >= 0 AS read FROM c42.slot;
INSERT INTO c42.slot (id, starts, label) VALUES (14, now(), 'in a block');
COMMIT;
SELECT count(*) FROM c42.slot;
