-- A row is found by the name of the table or type that it names, whichever node has it.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c47 CASCADE;
CREATE SCHEMA c47;
CREATE TABLE c47.hook (id int PRIMARY KEY, cls regclass, typ regtype);
CREATE TYPE c47.shade AS ENUM ('dark');
SELECT tessera.shard_table('c47.hook', 'id', strategy => 'range');
SELECT tessera.move_range('c47.hook', tessera.minkey(), tessera.maxkey(), 's2');
INSERT INTO c47.hook VALUES (2, 'c47.hook', 'c47.shade');
SELECT id FROM c47.hook WHERE cls = 'c47.hook'::regclass;
SELECT id FROM c47.hook WHERE typ = 'c47.shade'::regtype;
SELECT id FROM c47.hook WHERE cls = 'c47.hook'::regclass OR typ = 'c47.shade'::regtype;
