-- The routing image: S2 (every node reads its own copy in memory), S12-S14 (versions), S30, S31 (registry). Catalog rows are filled in by hand.
SET client_min_messages = warning;
CREATE DATABASE tessera_routing;
\c tessera_routing
SET client_min_messages = warning;
CREATE EXTENSION tessera;
SET tessera.replicate_ddl = off;	-- the other nodes do not exist
SET tessera.replicate_ddl = off;	-- the nodes of this cluster do not exist
SET search_path = public, tessera;	-- for the operators of tessera.bound

-- not a node yet
SELECT nodes, tables, groups FROM tessera.routing_image();

CREATE TABLE tr_orders (tenant int8 NOT NULL, id int4 NOT NULL, PRIMARY KEY (tenant, id));
CREATE TABLE tr_events (name text COLLATE "C" NOT NULL, at timestamptz NOT NULL);
CREATE TABLE tr_hashed (u uuid NOT NULL);
CREATE TABLE tr_placed (x int4);

INSERT INTO tessera.identity (cluster_id, cluster, node_id, node, is_config, config_conninfo, term)
  VALUES ('00000000-0000-0000-0000-00000000000c', 'c', 1, 'n1', true, 'dbname=nowhere', 7);
INSERT INTO tessera.node (node_id, name, conninfo, is_shard, is_config, system_id, database, timeline)
  SELECT i, 'n' || i, 'dbname=nowhere host=n' || i, true, i = 1, i, 'd', 1 FROM generate_series(3, 1, -1) i;
INSERT INTO tessera.schema_placement (schema_name, node_id) VALUES ('public', 2);
INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations) VALUES
  ('10000000-0000-0000-0000-000000000001', '10000000-0000-0000-0000-0000000000e1', now(), 2, 1, 'range', '{bigint}', '{""}'),
  ('10000000-0000-0000-0000-000000000002', '10000000-0000-0000-0000-0000000000e2', now(), 1, 2, 'range', '{text,timestamp with time zone}',
    '{"\"pg_catalog\".\"C\"",""}'),
  ('10000000-0000-0000-0000-000000000003', '10000000-0000-0000-0000-0000000000e3', now(), 1, 1, 'hash', '{uuid}', '{""}');
INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, group_id, key_columns) VALUES
  ('20000000-0000-0000-0000-000000000001', 'public', 'tr_orders', '10000000-0000-0000-0000-000000000001', '{tenant}'),
  ('20000000-0000-0000-0000-000000000002', 'public', 'tr_events', '10000000-0000-0000-0000-000000000002', '{name,at}'),
  ('20000000-0000-0000-0000-000000000003', 'public', 'tr_hashed', '10000000-0000-0000-0000-000000000003', '{u}'),
  ('20000000-0000-0000-0000-000000000004', 'public', 'tr_placed', NULL, NULL),
  ('20000000-0000-0000-0000-000000000005', 'public', 'tr_not_here', NULL, NULL);
INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) VALUES
  ('10000000-0000-0000-0000-000000000001', 'MINKEY', 10, 1, 1, 1),
  ('10000000-0000-0000-0000-000000000001', 10, 100, 2, 2, 0),
  ('10000000-0000-0000-0000-000000000001', 100, 'MAXKEY', 1, 2, 1),
  ('10000000-0000-0000-0000-000000000002', 'MINKEY', tessera.bound('m'::text, '2020-01-01 00:00:00+00'::timestamptz), 1, 1, 1),
  ('10000000-0000-0000-0000-000000000002', tessera.bound('m'::text, '2020-01-01 00:00:00+00'::timestamptz), 'MAXKEY', 3, 1, 2),
  ('10000000-0000-0000-0000-000000000003', 'MINKEY', 0, 1, 1, 0),
  ('10000000-0000-0000-0000-000000000003', 0, 'MAXKEY', 2, 1, 1);

SELECT term, node_id, nodes, tables, groups, chunks, private FROM tessera.routing_image();
SELECT k, tessera.routing_owner('tr_orders', k::bigint) FROM unnest('{-5,9,10,99,100,1000000}'::bigint[]) k;
SELECT tessera.routing_owner('tr_events', tessera.bound('a'::text, now())) a,
  tessera.routing_owner('tr_events', tessera.bound('m'::text, '2019-12-31 23:59:59+00'::timestamptz)) before,
  tessera.routing_owner('tr_events', tessera.bound('m'::text, '2020-01-01 00:00:00+00'::timestamptz)) at,
  tessera.routing_owner('tr_events', tessera.bound('n'::text, '1999-12-31 23:59:59+00'::timestamptz)) n;
SELECT bool_and(tessera.routing_owner('tr_hashed', u) = CASE WHEN tessera.key_hash(u) < 0 THEN 1 ELSE 2 END)
  FROM (SELECT md5(i::text)::uuid u FROM generate_series(1, 100) i) s;
SELECT * FROM tessera.routing_chunks('tr_orders');
SELECT tessera.routing_owner('tr_placed', 1);

-- the same image serves until the catalog changes, which background workers may do as well
SELECT loads AS loads_before, sequence AS sequence_before FROM tessera.routing_image() \gset
SELECT tessera.routing_owner('tr_orders', 1), tessera.routing_owner('tr_orders', 11);
SELECT loads - :loads_before <= sequence - :sequence_before AS only_what_changed FROM tessera.routing_image();

-- a transaction that changes the catalog has an image of its own, which follows its changes; others see them at commit
BEGIN;
UPDATE tessera.chunk SET node_id = 3, major = 3, minor = 0 WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = '10';
UPDATE tessera.table_group SET group_major = 3, group_minor = 0 WHERE group_id = '10000000-0000-0000-0000-000000000001';
SELECT private FROM tessera.routing_image();
SELECT tessera.routing_owner('tr_orders', 50);
SAVEPOINT s;
UPDATE tessera.chunk SET node_id = 1, major = 4, minor = 0 WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = '10';
UPDATE tessera.table_group SET group_major = 4, group_minor = 0 WHERE group_id = '10000000-0000-0000-0000-000000000001';
SELECT tessera.routing_owner('tr_orders', 50);
ROLLBACK TO s;
SELECT tessera.routing_owner('tr_orders', 50);
ROLLBACK;
SELECT tessera.routing_owner('tr_orders', 50), private FROM tessera.routing_image();

-- split, then merge: only what changed is read, and put over the old map (S21, S22)
BEGIN;
DELETE FROM tessera.chunk WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = '10';
INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor) VALUES
  ('10000000-0000-0000-0000-000000000001', 10, 50, 2, 2, 2), ('10000000-0000-0000-0000-000000000001', 50, 100, 3, 2, 3);
UPDATE tessera.table_group SET group_minor = 3 WHERE group_id = '10000000-0000-0000-0000-000000000001';
COMMIT;
SELECT * FROM tessera.routing_chunks('tr_orders');
BEGIN;
DELETE FROM tessera.chunk WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min IN ('10', '50');
UPDATE tessera.chunk SET max = 100, minor = 4 WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = 'MINKEY';
UPDATE tessera.chunk SET major = 2 WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = 'MINKEY';
UPDATE tessera.table_group SET group_minor = 4 WHERE group_id = '10000000-0000-0000-0000-000000000001';
COMMIT;
SELECT * FROM tessera.routing_chunks('tr_orders');

-- invariant 1: a map with a gap is refused, and disturbs only its own group
BEGIN;
UPDATE tessera.chunk SET min = 120, minor = 5 WHERE group_id = '10000000-0000-0000-0000-000000000001' AND min = '100';
UPDATE tessera.table_group SET group_minor = 5 WHERE group_id = '10000000-0000-0000-0000-000000000001';
SELECT tessera.routing_owner('tr_events', tessera.bound('a'::text, now()));
SELECT tessera.routing_owner('tr_orders', 1);
ROLLBACK;

-- placements
SELECT * FROM tessera.routing_placement('tr_orders');
INSERT INTO tessera.placement (group_id, term, epoch, major, owned, deletions) VALUES
  ('10000000-0000-0000-0000-000000000001', 7, '10000000-0000-0000-0000-0000000000e1', 2,
   ARRAY[ROW(100, 'MAXKEY'), ROW('MINKEY', 10), ROW(10, 20)]::tessera.bound_range[], ARRAY[ROW(20, 30), ROW(0, 5)]::tessera.bound_range[]);
SELECT * FROM tessera.routing_placement('tr_orders');
SELECT k, owns_key, hides_key FROM unnest('{-1,0,4,15,20,29,30,99,100}'::bigint[]) k, tessera.routing_placement('tr_orders', k);
UPDATE tessera.placement SET deletions = ARRAY[ROW(5, 15)]::tessera.bound_range[];
SELECT hides, newest FROM tessera.routing_placement('tr_orders');
BEGIN;
UPDATE tessera.placement SET owned = '{}', major = 0, gates = ARRAY[ROW('10000000-0000-0000-0000-0000000000aa', 5, 15, 'read', false)]::tessera.gated_range[];
SELECT major, owned, gate, hides, newest FROM tessera.routing_placement('tr_orders');
ROLLBACK;
SELECT major, owned, gate, hides, newest FROM tessera.routing_placement('tr_orders');

-- renaming: by relid no more, by name again
ALTER TABLE tr_orders RENAME TO tr_orders2;
UPDATE tessera.cluster_table SET table_name = 'tr_orders2' WHERE table_name = 'tr_orders';
SELECT tessera.routing_owner('tr_orders2', 1);

-- what is read by id: a table that is made anew under its name
DROP TABLE tr_placed;
CREATE TABLE tr_placed (x int4);
SELECT tables FROM tessera.routing_image();

-- a prepared transaction's changes show after COMMIT PREPARED, whoever runs it
BEGIN;
UPDATE tessera.placement SET major = 3;
SELECT major FROM tessera.routing_placement('tr_orders2');
PREPARE TRANSACTION 'tessera_0123456789abcdef0123456789abcdef_1_1';
SELECT major FROM tessera.routing_placement('tr_orders2');
COMMIT PREPARED 'tessera_0123456789abcdef0123456789abcdef_1_1';
SELECT major FROM tessera.routing_placement('tr_orders2');

-- only a node's own role reads these
CREATE ROLE tessera_routing_nobody;
SET ROLE tessera_routing_nobody;
SELECT tessera.routing_owner('tr_orders2', 1);
SELECT tessera_internal.catalog_changes('{}');
SELECT tessera.reload_routing();
RESET ROLE;
DROP ROLE tessera_routing_nobody;

-- DROP EXTENSION ends membership, a rollback restores it
BEGIN;
DROP EXTENSION tessera CASCADE;
ROLLBACK;
SELECT nodes FROM tessera.routing_image();
DROP EXTENSION tessera CASCADE;
CREATE EXTENSION tessera;
SELECT nodes, tables, groups FROM tessera.routing_image();
SELECT tessera.reload_routing();
\c contrib_regression
DROP DATABASE tessera_routing;
