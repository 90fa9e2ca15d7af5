-- A stored value that a domain's newer check does not hold for goes from column to column, and with its row to another shard.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c41 CASCADE;
CREATE SCHEMA c41;
CREATE DOMAIN c41.positive AS int;
CREATE TABLE c41.item (id int PRIMARY KEY, qty c41.positive);
CREATE TABLE c41.item_copy (id int PRIMARY KEY, qty c41.positive);
INSERT INTO c41.item SELECT g, g - 3 FROM generate_series(1, 6) g;
ALTER DOMAIN c41.positive ADD CONSTRAINT above_zero CHECK (VALUE > 0) NOT VALID;
SELECT tessera.shard_table('c41.item', 'id', strategy => 'range');
SELECT tessera.shard_table('c41.item_copy', 'id', strategy => 'range');
SELECT tessera.move_range('c41.item', tessera.minkey(), 100, 's1');
SELECT tessera.move_range('c41.item', 100, tessera.maxkey(), 's2');
SELECT tessera.move_range('c41.item_copy', tessera.minkey(), tessera.maxkey(), 's3');
INSERT INTO c41.item_copy SELECT * FROM c41.item;
UPDATE c41.item SET id = id + 100 WHERE id = 2 RETURNING id, qty;
