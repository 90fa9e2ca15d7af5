-- Extra_float_digits changes what is shown, not values: no error, comparisons and stored rows are exact.
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS c08 CASCADE;
CREATE SCHEMA c08;
CREATE TYPE c08.unit AS ENUM ('m', 's');
CREATE TABLE c08.sample (id int PRIMARY KEY, u c08.unit, f float8, r real, p point, fs float8[]);
CREATE TABLE c08.kept (id int PRIMARY KEY, u c08.unit, f float8, r real, p point, fs float8[]);
SELECT tessera.shard_table('c08.sample', 'id', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('c08.kept', 'id', strategy => 'hash', chunks => 6);
INSERT INTO c08.sample VALUES
  (1, 'm', 0.1::float8 + 0.2::float8, 1::real / 3, point(1::float8 / 3, pi()), ARRAY[1::float8 / 3, 'NaN']),
  (2, 'm', 0.3, 0.333333, point(0.333333333333333, 3.14159265358979), ARRAY[0.333333333333333, 'NaN']),
  (3, 'm', pi(), 16777217, NULL, '{}'),
  (4, 's', 5e-324, 1e-45, NULL, NULL),
  (5, 's', 'NaN', '-Infinity', NULL, NULL),
  (6, 's', '-0', '-0', NULL, NULL);

SET extra_float_digits = 0;
SELECT id, u, f, r FROM c08.sample ORDER BY id;
SELECT id, u, f = 0.1::float8 + 0.2::float8 AS exact FROM c08.sample WHERE id < 3 ORDER BY id;
SELECT u, count(DISTINCT f) AS fs, count(DISTINCT r) AS rs FROM c08.sample GROUP BY u ORDER BY u;
SELECT a.id, b.id AS other FROM c08.sample a, c08.sample b WHERE a.u = b.u AND a.f = b.f AND a.id <> b.id ORDER BY 1, 2;
INSERT INTO c08.kept SELECT * FROM c08.sample;
UPDATE c08.sample SET id = id + 100 WHERE id IN (1, 3);
-- the greatest number: shown with 15 digits it is none
INSERT INTO c08.sample VALUES (7, 's', 1.7976931348623157e308, 3.4028235e38, NULL, NULL);
SELECT id, u, f, r FROM c08.sample WHERE f > 1e300 AND f <> 'NaN' ORDER BY id;
SELECT u, max(f) FILTER (WHERE f <> 'NaN') AS greatest FROM c08.sample GROUP BY u ORDER BY u;

SET extra_float_digits = -10;
SELECT id, u, f = pi() AS is_pi FROM c08.kept ORDER BY id;

RESET extra_float_digits;
SELECT id, u, f, r, p, fs FROM c08.sample ORDER BY id;
SELECT id, u, f, r, p, fs FROM c08.kept ORDER BY id;
