-- NOT VALID, and the check of a domain at all, concern values that become of the domain's type. Reading, joining, copying from column to column,
-- updating other columns and moving a row do not check its stored value; and who reads needs no right on the function of the check.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c05 CASCADE;
DROP ROLE IF EXISTS c05_reader;
CREATE ROLE c05_reader;
CREATE SCHEMA c05;
CREATE DOMAIN c05.positive AS int;
CREATE TABLE c05.item (id int PRIMARY KEY, qty c05.positive, tag text);
CREATE TABLE c05.series (id int PRIMARY KEY, hist c05.positive[]);
INSERT INTO c05.item SELECT g, g - 3, 'tag ' || g FROM generate_series(1, 12) g;
INSERT INTO c05.series SELECT g, ARRAY[g - 3, g]::c05.positive[] FROM generate_series(1, 12) g;
ALTER DOMAIN c05.positive ADD CONSTRAINT above_zero CHECK (VALUE > 0) NOT VALID;
SELECT tessera.shard_table('c05.item', 'id', strategy => 'range');
SELECT tessera.shard_table('c05.series', 'id', strategy => 'range', colocate_with => 'c05.item');
SELECT tessera.move_range('c05.item', tessera.minkey(), 2, 's1');
SELECT tessera.move_range('c05.item', 2, 3, 's2');
SELECT tessera.move_range('c05.item', 3, tessera.maxkey(), 's3');

SELECT id, qty FROM c05.item ORDER BY id;
SELECT sum(qty), count(*) FILTER (WHERE qty <= 0) AS old_ones FROM c05.item;
SELECT a.id, b.qty FROM c05.item a JOIN c05.item b ON b.id = a.id + 1 WHERE b.qty < 1 ORDER BY a.id;
SELECT id, hist FROM c05.series ORDER BY id LIMIT 4;
UPDATE c05.item SET tag = 'seen' WHERE id = 1 RETURNING id, qty, tag;
COPY (SELECT * FROM c05.item ORDER BY id LIMIT 3) TO STDOUT;
INSERT INTO c05.item VALUES (50, -1);
UPDATE c05.item SET qty = 0 WHERE id = 5;
SELECT count(*), sum(qty) FROM c05.item;

-- a check whose function the reader may not call
CREATE FUNCTION c05.is_code(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 ~ ''^[A-Z]+$''; END';
REVOKE EXECUTE ON FUNCTION c05.is_code(text) FROM PUBLIC;
CREATE DOMAIN c05.code AS text CHECK (c05.is_code(VALUE));
CREATE TABLE c05.ware (id int PRIMARY KEY, c c05.code);
SELECT tessera.shard_table('c05.ware', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c05.ware SELECT g, chr(64 + g) FROM generate_series(1, 6) g;
GRANT USAGE ON SCHEMA c05 TO c05_reader;
GRANT SELECT ON c05.ware TO c05_reader;
SET ROLE c05_reader;
SELECT id, c FROM c05.ware ORDER BY id;
RESET ROLE;
DROP SCHEMA c05 CASCADE;
DROP ROLE c05_reader;
