-- The tables of test/oracle/random. "psql -v cluster=1": on a router; else on a plain server. Values have few different ones, and NULLs, so that
-- joins and groups find something; sums of the floating-point column are exact in any order.
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10, 2), note text, made date, paid bool);
CREATE TABLE lines (order_id int, n int, what text, price numeric(10, 2), weight float8, tags int[], PRIMARY KEY (order_id, n));
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, city text, since timestamp, parent bigint);
CREATE TABLE visits (customer bigint, at timestamp, page text, seconds int, PRIMARY KEY (customer, at));
CREATE TABLE names (name text PRIMARY KEY, length int, first "char");
CREATE TABLE settings (name text PRIMARY KEY, value text, changed date);
CREATE TABLE countries (id int PRIMARY KEY, name text, city text, people bigint);
\if :{?cluster}
SELECT tessera.shard_table('orders', 'id');
SELECT tessera.shard_table('lines', 'order_id', colocate_with => 'orders');
SELECT tessera.split_chunk('orders', v) FROM unnest('{20,40,60,80}'::int[]) v;
SELECT tessera.move_range('orders', tessera.minkey(), 40, 's2');
SELECT tessera.move_range('orders', 60, 80, 's3');
SELECT tessera.shard_table('customers', 'id', 'hash', chunks => 6);
SELECT tessera.shard_table('visits', 'customer', 'hash', colocate_with => 'customers');
SELECT tessera.shard_table('names', 'name');
SELECT tessera.split_chunk('names', v) FROM unnest('{b,n1,n5}'::text[]) v;
SELECT tessera.move_range('names', 'b', 'n1', 's2');
SELECT tessera.move_range('names', 'n5', tessera.maxkey(), 's3');
SELECT tessera.replicate_table('countries');
\endif
INSERT INTO orders SELECT g, g % 17, g * 37 % 50 + 0.25 * (g % 4), CASE g % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'n' || g % 9 END,
	DATE '2020-01-01' + g % 40, CASE g % 3 WHEN 0 THEN true WHEN 1 THEN false END FROM generate_series(1, 100) g;
INSERT INTO lines SELECT o, n, CASE (o + n) % 4 WHEN 0 THEN NULL ELSE 'n' || (o * n) % 12 END, (o * n) % 30 + 0.5, (o + n) % 16 * 0.25, ARRAY[n, o
	% 3]
	FROM generate_series(1, 100) o, generate_series(1, 3) n WHERE (o + n) % 5 > 0;
INSERT INTO customers SELECT g, 'n' || g, CASE WHEN g % 4 > 0 THEN 'c' || g % 4 END, TIMESTAMP '2020-01-01' + g % 7 * INTERVAL '5 days', NULLIF(g %
	6, 0) FROM generate_series(1, 40) g;
INSERT INTO visits SELECT c, TIMESTAMP '2020-01-01' + n * INTERVAL '5 days', 'n' || (c + n) % 7, (c * n) % 60 FROM generate_series(1, 40) c,
	generate_series(0, 2) n WHERE c % 4 > 0;
INSERT INTO names SELECT 'n' || g, g % 5, chr(97 + g % 5)::"char" FROM generate_series(0, 40) g;
INSERT INTO names VALUES ('', 0, NULL), ('a', 1, 'a'), ('z', NULL, 'z');
INSERT INTO settings SELECT 'n' || g, CASE WHEN g % 3 > 0 THEN 'v' || g % 3 END, DATE '2020-01-01' + g FROM generate_series(1, 20) g;
INSERT INTO countries SELECT g, 'n' || g, 'c' || g % 4, g * 1000000000::bigint FROM generate_series(1, 12) g;
