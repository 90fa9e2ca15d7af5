-- A row whose check the time has overtaken is moved and deleted as any other.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c06 CASCADE;
CREATE SCHEMA c06;
CREATE TABLE c06.voucher (id int PRIMARY KEY, valid_until timestamptz NOT NULL, CHECK (valid_until > now()));
SELECT tessera.shard_table('c06.voucher', 'id', strategy => 'range');
INSERT INTO c06.voucher SELECT g, now() + interval '1500 milliseconds' FROM generate_series(1, 9) g;
SELECT pg_sleep_until(max(valid_until)) IS NULL AS expired FROM c06.voucher;
SELECT tessera.move_range('c06.voucher', tessera.minkey(), 4, 's1');
SELECT tessera.move_range('c06.voucher', 4, 7, 's2');
SELECT tessera.move_range('c06.voucher', 7, tessera.maxkey(), 's3');
SELECT count(*), count(*) FILTER (WHERE valid_until < now()) AS expired FROM c06.voucher;
DELETE FROM c06.voucher WHERE id = 5;
SELECT count(*) FROM c06.voucher;
