-- All rows that were there get one and the same value, that of the ALTER TABLE's transaction.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c02 CASCADE;
CREATE SCHEMA c02;
CREATE TABLE c02.device (id int PRIMARY KEY, name text);
INSERT INTO c02.device SELECT g, 'device ' || g FROM generate_series(1, 30) g;
SELECT tessera.shard_table('c02.device', 'id', strategy => 'range');
SELECT tessera.move_range('c02.device', tessera.minkey(), 11, 's1');
SELECT tessera.move_range('c02.device', 11, 21, 's2');
SELECT tessera.move_range('c02.device', 21, tessera.maxkey(), 's3');

ALTER TABLE c02.device ADD COLUMN created_at timestamptz NOT NULL DEFAULT now();
SELECT count(DISTINCT created_at) AS moments, count(*) FROM c02.device;
SELECT count(*) FROM c02.device WHERE created_at = (SELECT created_at FROM c02.device WHERE id = 1);

ALTER TABLE c02.device ADD COLUMN joined timestamp DEFAULT localtimestamp, ADD COLUMN day date DEFAULT current_date;
SELECT count(DISTINCT joined) AS moments, count(DISTINCT day) AS days FROM c02.device;

BEGIN;
ALTER TABLE c02.device ADD COLUMN audited timestamptz DEFAULT transaction_timestamp();
SELECT count(*) FILTER (WHERE audited = now()) AS of_this_transaction FROM c02.device;
INSERT INTO c02.device (id, name) VALUES (31, 'later');
SELECT count(DISTINCT audited) AS moments FROM c02.device;
COMMIT;

ALTER TABLE c02.device ADD COLUMN seen text;
ALTER TABLE c02.device ALTER COLUMN seen TYPE timestamptz USING now();
SELECT count(DISTINCT seen) AS moments FROM c02.device;
