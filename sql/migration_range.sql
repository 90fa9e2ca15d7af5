-- What a migration moves is read from the routing image: all tables of the group, in one order on both sides. Catalog rows are filled in by hand.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE DATABASE migration_range;
\c migration_range
SET client_min_messages = warning;
CREATE EXTENSION tessera;
CREATE EXTENSION tessera_test;
SELECT * FROM tessera_test.moving_ranges('{"(10000000-0000-0000-0000-000000000001,1,2)"}');
CREATE TABLE second (id int PRIMARY KEY, region text COLLATE "C", tenant int8 NOT NULL);
CREATE TABLE first (tenant int8, region text COLLATE "C", PRIMARY KEY (tenant, region));
CREATE TABLE stranger (tenant int8);
INSERT INTO first SELECT g, r FROM generate_series(1, 5) g, unnest('{a,m,z}'::text[]) r;
INSERT INTO tessera.identity (cluster_id, cluster, node_id, node, is_config, config_conninfo, term)
  VALUES ('00000000-0000-0000-0000-00000000000c', 'c', 1, 'n1', true, 'dbname=nowhere', 7);
INSERT INTO tessera.node (node_id, name, conninfo, is_shard, is_config, system_id, database, timeline) VALUES (1, 'n1', 'dbname=nowhere', true, true, 1, 'd', 1);
INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations) VALUES
  ('10000000-0000-0000-0000-000000000001', '10000000-0000-0000-0000-0000000000e1', now(), 1, 0, 'range', '{bigint,text}', '{"","\"pg_catalog\".\"C\""}');
INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, group_id, key_columns) VALUES
  ('20000000-0000-0000-0000-000000000002', 'public', 'second', '10000000-0000-0000-0000-000000000001', '{tenant,region}'),
  ('20000000-0000-0000-0000-000000000001', 'public', 'first', '10000000-0000-0000-0000-000000000001', '{tenant,region}');
INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) VALUES ('10000000-0000-0000-0000-000000000001', 'MINKEY', 'MAXKEY', 1, 1, 0);
SELECT * FROM tessera_test.moving_ranges(ARRAY[('10000000-0000-0000-0000-000000000001', 1, ROW(2, 'x'))]::tessera_test.group_range[]);
SELECT tessera_test.delete_range_rows('first', '{}', ROW(2, 'm'), ROW(4, 'b'), batch => 5) FROM generate_series(1, 3);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT row_count FROM tessera_test.clone_payloads('{first}', '{tenant,region}');
SELECT row_count FROM tessera_test.clone_payloads('{first}', '{tenant,region}', ROW(2, 'b'), ROW(4, 'z'));
COMMIT;
SELECT tessera_test.delete_range_rows('stranger', '{}', 1, 2);
DROP EXTENSION tessera CASCADE;
\c contrib_regression
DROP DATABASE migration_range;
