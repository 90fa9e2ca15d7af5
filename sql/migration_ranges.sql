-- One operation moves ranges of several groups: one clone, one capture, one applier, one verification. Catalog rows are filled in by hand.
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE DATABASE migration_ranges_a;
CREATE DATABASE migration_ranges_b;

-- On donor and recipient. Group 1 is by (tenant, region), group 2 by the hash of id, group 3 by k. Table ids of the groups alternate.
SELECT $$
SET client_min_messages = warning;
CREATE EXTENSION tessera;
CREATE EXTENSION tessera_test;
CREATE TABLE picture (no int, id int8, PRIMARY KEY (id, no));
CREATE TABLE account (tenant int8, region text COLLATE "C", id int, note text, PRIMARY KEY (tenant, region, id));
CREATE TABLE item (note text, id int8 PRIMARY KEY);
CREATE TABLE log (note text, region text COLLATE "C" NOT NULL, tenant int8 NOT NULL);
CREATE INDEX ON log (tenant);
ALTER TABLE log REPLICA IDENTITY FULL;
CREATE TABLE plain (k int PRIMARY KEY);
CREATE FUNCTION ranges() RETURNS tessera_test.group_range[] LANGUAGE sql AS $f$SELECT ARRAY[
  ('10000000-0000-0000-0000-000000000002', 0::int8, 4611686018427387904),
  ('10000000-0000-0000-0000-000000000001', ROW(20, 'd'), 30),
  ('10000000-0000-0000-0000-000000000002', tessera.minkey(), -4611686018427387904),
  ('10000000-0000-0000-0000-000000000001', ROW(10, 'm'), 20)]::tessera_test.group_range[]$f$;
CREATE FUNCTION part(tenant int8, region text) RETURNS int LANGUAGE sql IMMUTABLE AS $f$
  SELECT CASE WHEN (tenant, region COLLATE "C") >= (10, 'm') AND tenant < 20 THEN 1 WHEN (tenant, region COLLATE "C") >= (20, 'd') AND tenant < 30 THEN 2 ELSE 0 END$f$;
CREATE FUNCTION part(id int8) RETURNS int LANGUAGE sql IMMUTABLE AS $f$
  SELECT CASE WHEN tessera.key_hash(id) < -4611686018427387904 THEN 1 WHEN tessera.key_hash(id) >= 0 AND tessera.key_hash(id) < 4611686018427387904 THEN 2
    ELSE 0 END$f$;
CREATE VIEW content AS
  SELECT 'account' AS name, part(tenant, region) AS part, concat_ws('|', tenant, region, id, note) AS row FROM account
  UNION ALL SELECT 'item', part(id), concat_ws('|', id, note) FROM item
  UNION ALL SELECT 'log', part(tenant, region), concat_ws('|', tenant, region, note) FROM log
  UNION ALL SELECT 'picture', part(id), concat_ws('|', id, no) FROM picture;
CREATE VIEW moved AS SELECT name, part, count(*), md5(string_agg(row, ' ' ORDER BY row COLLATE "C")) AS md5 FROM content WHERE part > 0 GROUP BY 1, 2;
INSERT INTO tessera.identity (cluster_id, cluster, node_id, node, is_config, config_conninfo, term)
  VALUES ('00000000-0000-0000-0000-00000000000c', 'c', 1, 'n1', true, 'dbname=nowhere', 7);
INSERT INTO tessera.node (node_id, name, conninfo, is_shard, is_config, system_id, database, timeline) VALUES (1, 'n1', 'dbname=nowhere', true, true, 1, 'd', 1);
INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations) VALUES
  ('10000000-0000-0000-0000-000000000001', '10000000-0000-0000-0000-0000000000e1', now(), 1, 0, 'range', '{bigint,text}', '{"","\"pg_catalog\".\"C\""}'),
  ('10000000-0000-0000-0000-000000000002', '10000000-0000-0000-0000-0000000000e2', now(), 1, 0, 'hash', '{bigint}', '{""}'),
  ('10000000-0000-0000-0000-000000000003', '10000000-0000-0000-0000-0000000000e3', now(), 1, 0, 'range', '{int}', '{""}');
INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, group_id, key_columns) VALUES
  ('20000000-0000-0000-0000-000000000004', 'public', 'picture', '10000000-0000-0000-0000-000000000002', '{id}'),
  ('20000000-0000-0000-0000-000000000001', 'public', 'account', '10000000-0000-0000-0000-000000000001', '{tenant,region}'),
  ('20000000-0000-0000-0000-000000000005', 'public', 'plain', '10000000-0000-0000-0000-000000000003', '{k}'),
  ('20000000-0000-0000-0000-000000000003', 'public', 'log', '10000000-0000-0000-0000-000000000001', '{tenant,region}'),
  ('20000000-0000-0000-0000-000000000002', 'public', 'item', '10000000-0000-0000-0000-000000000002', '{id}');
INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) SELECT group_id, 'MINKEY', 'MAXKEY', 1, 1, 0 FROM tessera.table_group;
INSERT INTO tessera.placement (group_id, term, epoch, major, owned) SELECT group_id, 7, epoch, 1, ARRAY[ROW('MINKEY', 'MAXKEY')]::tessera.bound_range[]
  FROM tessera.table_group;
$$ AS common \gset

\c migration_ranges_a
:common
SELECT table_index, table_name, key_columns, range_min, range_max FROM tessera_test.moving_ranges(ranges());
-- Ranges that adjoin become one; ranges that overlap, and groups that nobody knows, are refused.
SELECT table_name, range_min, range_max FROM tessera_test.moving_ranges(ARRAY[('10000000-0000-0000-0000-000000000003', 5, 9),
  ('10000000-0000-0000-0000-000000000003', 20, tessera.maxkey()), ('10000000-0000-0000-0000-000000000003', tessera.minkey(), 5)]::tessera_test.group_range[]);
SELECT table_name FROM tessera_test.moving_ranges(ARRAY[('10000000-0000-0000-0000-000000000003', 5, 10),
  ('10000000-0000-0000-0000-000000000003', 9, 20)]::tessera_test.group_range[]);
SELECT table_name FROM tessera_test.moving_ranges(ARRAY[('10000000-0000-0000-0000-000000000003', 5, 10),
  ('10000000-0000-0000-0000-000000000004', 9, 20)]::tessera_test.group_range[]);

INSERT INTO account SELECT t, r, 1, 'first' FROM generate_series(1, 40) t, unnest('{a,c,d,l,m,z}'::text[]) r;
INSERT INTO log SELECT 'twin', r, t FROM generate_series(1, 40) t, unnest('{a,c,d,l,m,z}'::text[]) r, generate_series(1, 2);
INSERT INTO item SELECT 'first', id FROM generate_series(1, 1000) id;
INSERT INTO picture SELECT no, id FROM generate_series(1, 1000) id, generate_series(1, 2) no;
INSERT INTO plain SELECT generate_series(1, 1000);
-- A row comes once, whether by an index of both key columns, of one, or without one, and whether ranges meet in a value of the first column or not.
CREATE FUNCTION cloned(ranges tessera_test.group_range[]) RETURNS TABLE (table_index int, rows numeric) LANGUAGE sql AS
  $$SELECT table_index, sum(row_count) FROM tessera_test.clone_operation(ranges, 100) GROUP BY 1 ORDER BY 1$$;
CREATE FUNCTION several() RETURNS tessera_test.group_range[] LANGUAGE sql AS $$SELECT ARRAY[
  ('10000000-0000-0000-0000-000000000001', 2, ROW(3, 'd')), ('10000000-0000-0000-0000-000000000001', ROW(3, 'l'), ROW(3, 'm')),
  ('10000000-0000-0000-0000-000000000001', ROW(4, 'z'), ROW(7, 'a')), ('10000000-0000-0000-0000-000000000001', ROW(7, 'c'), ROW(7, 'd')),
  ('10000000-0000-0000-0000-000000000001', ROW(38, 'z'), tessera.maxkey()), ('10000000-0000-0000-0000-000000000003', tessera.minkey(), 3),
  ('10000000-0000-0000-0000-000000000003', 5, 6), ('10000000-0000-0000-0000-000000000003', 6, 7),
  ('10000000-0000-0000-0000-000000000003', 998, tessera.maxkey())]::tessera_test.group_range[]$$;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM cloned(several());
SELECT * FROM cloned(ARRAY[('10000000-0000-0000-0000-000000000001', tessera.minkey(), ROW(5, 'c')),
  ('10000000-0000-0000-0000-000000000001', ROW(5, 'd'), tessera.maxkey())]::tessera_test.group_range[]);
SELECT * FROM cloned(ranges());
COMMIT;
DROP INDEX log_tenant_idx;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM cloned(several());
COMMIT;
CREATE INDEX ON log (tenant);

SELECT encode(string_agg(payload, '') FILTER (WHERE table_index >= 0), 'hex') AS clone, max(encode(payload, 'hex')) FILTER (WHERE table_index < 0) AS sums,
  sum(row_count) AS rows FROM tessera_test.capture_operation('operation_test', ranges()) \gset
SELECT :rows AS cloned, count(*) AS there FROM content WHERE part > 0;

-- Out of the cluster an UPDATE of a key is one of the heap, not a DELETE and an INSERT.
DELETE FROM tessera.identity;
-- At the borders; from one range to another of the same group, out of all, into one, and past all of them.
INSERT INTO account VALUES (10, 'm', 2, 'in'), (10, 'l', 2, 'out'), (19, 'zz', 2, 'in'), (20, '', 2, 'out'), (20, 'c', 2, 'out'), (20, 'd', 2, 'in'),
  (29, 'zz', 2, 'in'), (30, '', 2, 'out');
UPDATE account SET note = 'second' WHERE id = 1 AND (tenant IN (9, 10, 20, 30) OR (tenant, region) IN ((19, 'z'), (29, 'z')));
DELETE FROM account WHERE id = 1 AND (tenant, region) IN ((10, 'l'), (10, 'm'), (20, 'c'), (20, 'd'), (30, 'a'));
UPDATE account SET tenant = 25, id = 3 WHERE tenant = 15;
UPDATE account SET tenant = 15, id = 4 WHERE tenant = 26;
UPDATE account SET tenant = 5, id = 5 WHERE tenant = 16;
UPDATE account SET tenant = 20, region = 'b', id = 6 WHERE tenant = 22 AND region = 'd';
UPDATE account SET tenant = 17, id = 7 WHERE tenant = 3;
UPDATE account SET region = 'e', id = 8 WHERE tenant = 20 AND region = 'a';
UPDATE account SET tenant = 1000 WHERE tenant = 2;
UPDATE log SET tenant = 25, note = 'changed' WHERE tenant = 15;
UPDATE log SET tenant = 5 WHERE tenant = 16;
UPDATE log SET tenant = 17 WHERE tenant = 3 AND region = 'a';
UPDATE log SET region = 'b' WHERE tenant = 20;
DELETE FROM log WHERE ctid IN (SELECT min(ctid) FROM log WHERE tenant IN (11, 28, 31) GROUP BY tenant, region);
UPDATE item SET id = id + 10000 WHERE id <= 500;
UPDATE item SET note = 'second' WHERE id % 7 = 0;
UPDATE picture SET no = 3 WHERE no = 2 AND id <= 100;
UPDATE picture SET id = id + 20000 WHERE id > 900;
DELETE FROM item WHERE id % 50 = 0;
UPDATE plain SET k = k + 5000;
SELECT encode(string_agg(payload, ''), 'hex') AS mods1 FROM tessera_test.capture_next() \gset
-- A round begins; a key that changes before it is sent leaves it.
SELECT count(*) AS sent FROM tessera_test.capture_round();
SELECT min(id) AS id FROM item WHERE part(id) = 1 AND id % 7 = 0 \gset
UPDATE item SET note = 'third' WHERE id = :id;
SELECT encode(string_agg(payload, ''), 'hex') AS mods2 FROM tessera_test.capture_next() \gset
SELECT key_count AS keys1, encode(payload, 'hex') AS round1 FROM tessera_test.capture_round() \gset
SELECT min(id) AS id FROM picture WHERE part(id) = 2 \gset
UPDATE picture SET no = 4 WHERE no = 1 AND id = :id;
UPDATE account SET note = 'last' WHERE tenant = 29;
SELECT encode(string_agg(payload, ''), 'hex') AS mods3 FROM tessera_test.capture_next() \gset
SELECT count(*) AS sent FROM tessera_test.capture_round(true);
SELECT key_count AS keys2, encode(payload, 'hex') AS round2 FROM tessera_test.capture_round(true) \gset
SELECT count(*) AS left FROM tessera_test.capture_round(true);
SELECT :keys1 AS keys1, :keys2 AS keys2;
SELECT tessera_test.capture_stop();
SELECT name, part, count FROM moved ORDER BY 1, 2;
SELECT string_agg(moved::text, ' ' ORDER BY moved) AS moved_a FROM moved \gset

\c migration_ranges_b
:common
-- Not of the operation: nothing is said of them.
INSERT INTO account VALUES (20, 'b', 1, 'gap'), (30, 'a', 1, 'behind');
INSERT INTO item SELECT 'gap', min(id) FROM generate_series(1, 100) id WHERE part(id) = 0;
SELECT tessera_test.apply_operation(ranges(), decode(:'clone', 'hex'));
SELECT tessera_test.verify_operation(ranges(), decode(:'sums', 'hex'));
-- A difference in any range of any group is found.
DELETE FROM account WHERE (tenant, region) = (29, 'z');
SELECT tessera_test.verify_operation(ranges(), decode(:'sums', 'hex'));
INSERT INTO account VALUES (29, 'z', 1, 'first');
SELECT min(id) AS id FROM picture WHERE part(id) = 2 \gset
UPDATE picture SET no = 9 WHERE no = 1 AND id = :id;
SELECT tessera_test.verify_operation(ranges(), decode(:'sums', 'hex'));
UPDATE picture SET no = 1 WHERE no = 9;
SELECT tessera_test.verify_operation(ranges(), decode(:'sums', 'hex'));

SELECT tessera_test.apply_operation(ranges(), decode(:'mods1', 'hex'), true);
SELECT tessera_test.apply_operation(ranges(), decode(:'mods2', 'hex'), true);
SELECT tessera_test.verify_operation(ranges(), decode(:'round1', 'hex'), true);
DELETE FROM log WHERE tenant = 25 AND region = 'a' AND note = 'changed';
SELECT tessera_test.verify_operation(ranges(), decode(:'round1', 'hex'), true);
INSERT INTO log SELECT 'changed', 'a', 25 FROM generate_series(1, 2);
SELECT tessera_test.verify_operation(ranges(), decode(:'round1', 'hex'), true);
-- The last round is of the changes that follow.
SELECT tessera_test.verify_operation(ranges(), decode(:'round2', 'hex'), true);
SELECT tessera_test.apply_operation(ranges(), decode(:'mods3', 'hex'), true);
SELECT tessera_test.verify_operation(ranges(), decode(:'round2', 'hex'), true);
SELECT string_agg(moved::text, ' ' ORDER BY moved) = :'moved_a' AS same FROM moved;
SELECT * FROM content WHERE part = 0 ORDER BY 1, 3;
SELECT tessera_test.capture_stop();
DROP EXTENSION tessera CASCADE;
\c contrib_regression
SET client_min_messages = warning;
DROP DATABASE migration_ranges_a;
DROP DATABASE migration_ranges_b;
