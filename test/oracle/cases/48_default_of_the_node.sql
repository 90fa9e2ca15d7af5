-- A new column's default that asks for something of the node is refused; one server gives all rows one value.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c48 CASCADE;
CREATE SCHEMA c48;
CREATE TABLE c48.device (id int PRIMARY KEY, name text);
INSERT INTO c48.device SELECT g, 'device ' || g FROM generate_series(1, 30) g;
SELECT tessera.shard_table('c48.device', 'id', strategy => 'range');
SELECT tessera.move_range('c48.device', 11, tessera.maxkey(), 's2');
ALTER TABLE c48.device ADD COLUMN tx bigint DEFAULT txid_current();
SELECT count(*) FROM c48.device;
