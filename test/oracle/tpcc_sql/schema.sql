-- test/oracle/tpcc: tables in the shape of TPC-C's, with few rows. Variables: warehouses, items; cluster: set on a cluster of the shards s1, s2, s3.
-- All amounts begin with 0, and there are no orders yet: so consistent.sql has nothing to take into account.
CREATE TABLE item (i_id int PRIMARY KEY, i_name text NOT NULL, i_price numeric(5,2) NOT NULL);
CREATE TABLE warehouse (w_id int PRIMARY KEY, w_name text NOT NULL, w_tax numeric(4,4) NOT NULL, w_ytd numeric(12,2) NOT NULL DEFAULT 0);
CREATE TABLE district (d_w_id int, d_id int, d_tax numeric(4,4) NOT NULL, d_ytd numeric(12,2) NOT NULL DEFAULT 0, d_next_o_id int NOT NULL DEFAULT 1,
	PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_last text NOT NULL, c_balance numeric(12,2) NOT NULL DEFAULT 0,
	c_ytd_payment numeric(12,2) NOT NULL DEFAULT 0, c_payment_cnt int NOT NULL DEFAULT 0, c_delivery_cnt int NOT NULL DEFAULT 0,
	PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (h_w_id int NOT NULL, h_d_id int NOT NULL, h_c_w_id int NOT NULL, h_c_d_id int NOT NULL, h_c_id int NOT NULL,
	h_date timestamptz NOT NULL, h_amount numeric(6,2) NOT NULL);
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int NOT NULL, o_entry_d timestamptz NOT NULL, o_carrier_id int, o_ol_cnt int NOT NULL,
	PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int NOT NULL, ol_supply_w_id int NOT NULL, ol_quantity int NOT NULL,
	ol_amount numeric(6,2) NOT NULL, ol_delivery_d timestamptz, PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int NOT NULL, s_ytd int NOT NULL DEFAULT 0, s_order_cnt int NOT NULL DEFAULT 0,
	s_remote_cnt int NOT NULL DEFAULT 0, PRIMARY KEY (s_w_id, s_i_id));
CREATE INDEX ON customer (c_w_id, c_d_id, c_last);
CREATE INDEX ON history (h_w_id);
CREATE INDEX ON orders (o_w_id, o_d_id, o_c_id);

\if :{?cluster}
SELECT 1 + :warehouses / 3 AS second, 1 + 2 * :warehouses / 3 AS third \gset
ALTER TABLE history REPLICA IDENTITY FULL;
SELECT tessera.replicate_table('item');
SELECT tessera.shard_table('warehouse', 'w_id');
SELECT tessera.shard_table('district', 'd_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('customer', 'c_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('history', 'h_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('orders', 'o_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('new_order', 'no_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('order_line', 'ol_w_id', colocate_with => 'warehouse');
SELECT tessera.shard_table('stock', 's_w_id', colocate_with => 'warehouse');
SELECT tessera.move_range('warehouse', 'MINKEY', :second, 's1');
SELECT tessera.move_range('warehouse', :second, :third, 's2');
SELECT tessera.move_range('warehouse', :third, 'MAXKEY', 's3');
\endif

INSERT INTO item SELECT i, 'item ' || i, 1 + i % 99 + 0.5 FROM generate_series(1, :items) i;
INSERT INTO warehouse SELECT w, 'warehouse ' || w, 0.1 FROM generate_series(1, :warehouses) w;
INSERT INTO district SELECT w, d, 0.05 FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'name ' || c % 50 FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO stock SELECT w, i, 10 + i % 91 FROM generate_series(1, :warehouses) w, generate_series(1, :items) i;
ANALYZE item, warehouse, district, customer, stock;
