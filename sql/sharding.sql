-- Sharding a table in place, its chunks and their versions (S12-S29, S36, S82-S91), the decision of a migration (S19, S20, S63), and check_consistency.
-- Several databases of this server are the nodes.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
SELECT format('host=%s port=%s user=%s dbname=', split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_user) AS address \gset
CREATE DATABASE tessera_sharding_a;
CREATE DATABASE tessera_sharding_b;
CREATE DATABASE tessera_sharding_c;
CREATE ROLE tessera_sharding_owner;
CREATE ROLE tessera_sharding_nobody;

-- the database a team already has
\c tessera_sharding_a
SET client_min_messages = warning;
CREATE EXTENSION tessera;
GRANT CREATE ON SCHEMA public TO tessera_sharding_owner;
CREATE TYPE color AS ENUM ('red', 'green', 'blue');
CREATE DOMAIN tenant AS int8 CHECK (VALUE > 0);
CREATE TABLE t_int2 (k int2 PRIMARY KEY);
CREATE TABLE t_int4 (k int4 PRIMARY KEY, v text);
CREATE TABLE t_int8 (k int8 PRIMARY KEY);
CREATE TABLE t_numeric (k numeric PRIMARY KEY);
CREATE TABLE t_text (k text COLLATE "C" PRIMARY KEY);
CREATE TABLE t_uuid (k uuid PRIMARY KEY);
CREATE TABLE t_date (k date PRIMARY KEY);
CREATE TABLE t_timestamptz (k timestamptz PRIMARY KEY);
CREATE TABLE t_bytea (k bytea PRIMARY KEY);
CREATE TABLE t_bool (k bool PRIMARY KEY);
CREATE TABLE t_enum (k color PRIMARY KEY);
CREATE TABLE t_name (k name PRIMARY KEY);
CREATE TABLE t_domain (k tenant NOT NULL, "Odd Column" text COLLATE "C" NOT NULL, v int, PRIMARY KEY ("Odd Column", k), UNIQUE (k, "Odd Column"));
CREATE TABLE t_hash (k text PRIMARY KEY, v int);
CREATE TABLE t_hash2 (a int, b text, PRIMARY KEY (b, a));
CREATE INDEX ON t_hash2 (a, b);
CREATE TABLE t_hash3 (k uuid PRIMARY KEY);

CREATE TABLE orders (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
CREATE TABLE lines (tenant int NOT NULL, order_id int, line int, parent int, PRIMARY KEY (tenant, order_id, line),
                    CONSTRAINT lines_order FOREIGN KEY (tenant, order_id) REFERENCES orders (tenant, id),
                    CONSTRAINT lines_parent FOREIGN KEY (tenant, order_id, parent) REFERENCES lines (tenant, order_id, line));
CREATE TABLE empty_too (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
CREATE TABLE too_late (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
CREATE TABLE has_rows (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
CREATE TABLE more_rows (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
INSERT INTO has_rows SELECT g, g FROM generate_series(1, 1000) g;
INSERT INTO more_rows SELECT g, g FROM generate_series(1, 10) g;
CREATE TABLE late_rows (tenant int NOT NULL, id int, PRIMARY KEY (tenant, id));
INSERT INTO late_rows VALUES (1, 1);
CREATE TABLE same_keys (k int NOT NULL, v int);
CREATE INDEX ON same_keys (k DESC);
ALTER TABLE same_keys REPLICA IDENTITY FULL;
INSERT INTO same_keys SELECT 7, g FROM generate_series(1, 2000) g;
CREATE TABLE names (k name NOT NULL, v int, PRIMARY KEY (k));
INSERT INTO names SELECT 'n' || lpad(g::text, 3, '0') FROM generate_series(0, 99) g;

-- what cannot be sharded
CREATE TABLE plain (k int NOT NULL, v int, g int GENERATED ALWAYS AS (1) STORED);
CREATE TABLE no_identity (k int PRIMARY KEY);
ALTER TABLE no_identity REPLICA IDENTITY NOTHING;
CREATE TABLE no_key (k int NOT NULL, v int);
CREATE INDEX ON no_key (k) WHERE v > 0;
CREATE INDEX ON no_key (v, k);
CREATE TABLE nullable (k int, v int);
CREATE TABLE other_unique (k int PRIMARY KEY, v int CONSTRAINT other_unique_v UNIQUE);
CREATE TABLE other_unique_index (k int PRIMARY KEY, v int);
CREATE UNIQUE INDEX other_unique_partial ON other_unique_index (v) WHERE v > 0;
CREATE TABLE expression_unique (k int PRIMARY KEY, v int);
CREATE UNIQUE INDEX expression_unique_index ON expression_unique ((k + 1));
CREATE TABLE excluded (k int4range PRIMARY KEY, CONSTRAINT excluded_overlap EXCLUDE USING gist (k WITH &&));
CREATE TABLE excluded_equal (k int4range PRIMARY KEY, CONSTRAINT excluded_by_equal EXCLUDE USING gist (k WITH =));
CREATE TABLE referenced (k int PRIMARY KEY);
CREATE TABLE referencing (k int PRIMARY KEY, CONSTRAINT referencing_k FOREIGN KEY (k) REFERENCES referenced);
CREATE TABLE itself (k int PRIMARY KEY, parent int CONSTRAINT itself_parent REFERENCES itself);
CREATE TABLE ruled (k int PRIMARY KEY);
CREATE RULE nothing AS ON DELETE TO ruled DO INSTEAD NOTHING;
CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY);
CREATE TABLE parted (k int PRIMARY KEY) PARTITION BY RANGE (k);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parent (k int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (k)) INHERITS (parent);
CREATE VIEW a_view AS SELECT 1 AS k;
CREATE SEQUENCE a_sequence;
CREATE TABLE t_money (k money PRIMARY KEY);
CREATE TABLE t_json (k json NOT NULL);
CREATE TABLE t_enum2 (k color PRIMARY KEY);
CREATE TABLE owned (k int PRIMARY KEY);
ALTER TABLE owned OWNER TO tessera_sharding_owner;

-- outside a cluster
SELECT tessera.shard_table('t_int4', 'k');
SELECT tessera.split_chunk('t_int4', 5);
SELECT tessera.range_owner('t_int4', 5);
SELECT * FROM tessera.check_consistency();

SELECT tessera.create_cluster('sharding', :'address' || 'tessera_sharding_a', 's1');
SELECT tessera.add_shard('s2', :'address' || 'tessera_sharding_b') > 0 AS added;
SELECT tessera.add_router('r1', :'address' || 'tessera_sharding_c') > 0 AS added;

-- S26: the first chunk is 1|0, of the primary shard; nothing else happens
SELECT tessera.shard_table('t_int4', 'k');
SELECT table_name, min, max, shard, major, minor, jumbo FROM tessera.chunks;
SELECT major, owned, deletions, gates FROM tessera.placement;
SELECT what, object FROM tessera.changelog WHERE what = 'shard_table';
SELECT tessera.shard_table('t_int4', 'k');

-- every type, split once: bounds are canonical
SELECT tessera.shard_table('t_int2', 'k');
SELECT tessera.shard_table('t_int8', 'k');
SELECT tessera.shard_table('t_numeric', 'k');
SELECT tessera.shard_table('t_text', 'k');
SELECT tessera.shard_table('t_uuid', 'k');
SELECT tessera.shard_table('t_date', 'k');
SELECT tessera.shard_table('t_timestamptz', 'k');
SELECT tessera.shard_table('t_bytea', 'k');
SELECT tessera.shard_table('t_bool', 'k');
SELECT tessera.shard_table('t_enum', 'k');
SELECT tessera.shard_table('t_name', 'k');
SELECT tessera.shard_table('t_domain', 'k, "Odd Column"');
SELECT tessera.split_chunk('t_int2', 7);
SELECT tessera.split_chunk('t_int8', 9223372036854775807);
SELECT tessera.split_chunk('t_numeric', 1.50);
SELECT tessera.split_chunk('t_numeric', 'NaN');
SELECT tessera.split_chunk('t_text', 'm');
SELECT tessera.split_chunk('t_text', '');
SELECT tessera.split_chunk('t_text', '100'::text);
SELECT tessera.split_chunk('t_text', 'MINKEY'::text);
SELECT tessera.split_chunk('t_uuid', '80000000-0000-0000-0000-000000000000'::uuid);
SELECT tessera.split_chunk('t_date', date '2026-01-01');
SELECT tessera.split_chunk('t_date', date '0044-03-15 BC');
SET TimeZone = 'Asia/Tokyo';
SELECT tessera.split_chunk('t_timestamptz', timestamptz '2026-01-01 00:00');
SELECT tessera.split_chunk('t_timestamptz', '2026-01-02 00:00');
RESET TimeZone;
SELECT tessera.split_chunk('t_bytea', '\x80'::bytea);
SELECT tessera.split_chunk('t_bool', true);
SELECT tessera.split_chunk('t_enum', 'green');
SELECT tessera.split_chunk('t_enum', 'blue');
SELECT tessera.split_chunk('t_name', 'm');
SELECT tessera.split_chunk('t_domain', tessera.bound(5, 'x'));
SELECT tessera.split_chunk('t_domain', 9);
SET TimeZone = 'UTC';
SELECT table_name, min, max, major, minor FROM tessera.chunks;
SELECT strategy, key_types, key_collations FROM tessera.table_group ORDER BY key_types::text COLLATE "C";
SELECT table_name, range_owner FROM (VALUES ('t_enum'::regclass, tessera.range_owner('t_enum', 'blue')), ('t_domain', tessera.range_owner('t_domain', tessera.bound(5, 'y'))))
  AS v(table_name, range_owner);
SELECT tessera.range_owner('t_domain', 5);
SELECT tessera.range_owner('t_int4', tessera.minkey());
SELECT tessera.range_owner('plain', 5);
SELECT * FROM tessera.check_consistency(true);

-- what is refused, and why
SELECT tessera.shard_table('plain', 'nope');
SELECT tessera.shard_table('plain', 'ctid');
SELECT tessera.shard_table('plain', 'g');
SELECT tessera.shard_table('plain', 'v');
SELECT tessera.shard_table('plain', 'k, k');
SELECT tessera.shard_table('plain', '');
SELECT tessera.shard_table('plain', 'k,');
SELECT tessera.shard_table('plain', 'k, k, k, k, k, k, k, k, k');
SELECT tessera.shard_table('plain', 'k', 'list');
SELECT tessera.shard_table('plain', NULL);
SELECT tessera.shard_table('plain', 'k', chunks => 0);
SELECT tessera.shard_table('plain', 'k', max_chunk_size => 1);
SELECT tessera.shard_table('plain', 'k');
SELECT tessera.shard_table('no_identity', 'k');
SELECT tessera.shard_table('nullable', 'k');
SELECT tessera.shard_table('other_unique', 'k');
SELECT tessera.shard_table('other_unique_index', 'k');
SELECT tessera.shard_table('expression_unique', 'k');
SELECT tessera.shard_table('excluded', 'k');
SELECT tessera.shard_table('referenced', 'k');
SELECT tessera.shard_table('referencing', 'k');
SELECT tessera.shard_table('itself', 'k');
SELECT tessera.shard_table('ruled', 'k');
SELECT tessera.shard_table('unlogged', 'k');
SELECT tessera.shard_table('part', 'k');
SELECT tessera.shard_table('parent', 'k');
SELECT tessera.shard_table('child', 'k');
SELECT tessera.shard_table('a_view', 'k');
SELECT tessera.shard_table('a_sequence', 'k');
SELECT tessera.shard_table('pg_class', 'oid');
SELECT tessera.shard_table('t_money', 'k');
SELECT tessera.shard_table('t_json', 'k');
SELECT tessera.shard_table('t_enum2', 'k', 'hash');
CREATE TEMP TABLE passing (k int PRIMARY KEY);
SELECT tessera.shard_table('passing', 'k');
SELECT count(*) FROM tessera.cluster_table WHERE group_id IS NOT NULL;

-- the key index
ALTER TABLE no_key REPLICA IDENTITY FULL;
SELECT tessera.shard_table('no_key', 'k');
BEGIN;
SELECT tessera.shard_table('no_key', 'k', create_index => true);
SELECT indexdef FROM pg_indexes WHERE tablename = 'no_key' ORDER BY 1;
SELECT count(*) FROM tessera.chunks WHERE table_name = 'no_key'::regclass;
ROLLBACK;
SELECT count(*) FROM tessera.chunks WHERE table_name = 'no_key'::regclass;
SELECT tessera.shard_table('excluded_equal', 'k');

-- chunks at once: a hashed table that is empty is spread over all shards
SELECT tessera.shard_table('t_hash', 'k', 'hash', chunks => 4);
SELECT tessera.shard_table('t_hash2', 'a, b', 'hash', chunks => 3);
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 't_hash'::regclass;
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 't_hash2'::regclass;
SELECT key, tessera.range_owner('t_hash', key::tessera.bound), tessera.range_owner('t_hash2', tessera.bound(1, key)) FROM unnest(ARRAY['a', 'b', 'c', 'd', 'e']) AS key;
-- a table with rows stays where it is; split points come from its keys
SELECT tessera.shard_table('orders', 'tenant', chunks => 2);
SELECT tessera.shard_table('has_rows', 'tenant', chunks => 4, max_chunk_size => 1000000);
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 'has_rows'::regclass;
\set VERBOSITY terse
SET client_min_messages = notice;
SELECT tessera.shard_table('same_keys', 'k', chunks => 4);
SET client_min_messages = warning;
\set VERBOSITY default

-- colocation
SELECT tessera.shard_table('more_rows', 'tenant', 'hash', colocate_with => 'has_rows');
SELECT tessera.shard_table('more_rows', 'tenant, id', colocate_with => 'has_rows');
SELECT tessera.shard_table('more_rows', 'tenant', colocate_with => 't_int8');
SELECT tessera.shard_table('more_rows', 'tenant', colocate_with => 'plain');
SELECT tessera.shard_table('more_rows', 'tenant', colocate_with => 'has_rows', chunks => 3);
SELECT tessera.shard_table('more_rows', 'tenant', colocate_with => 'has_rows');
SELECT table_name, key, chunks FROM tessera.tables WHERE group_id = (SELECT group_id FROM tessera.tables WHERE table_name = 'has_rows'::regclass);
-- foreign keys: only inside a group, on the key
SELECT tessera.shard_table('orders', 'tenant');
ALTER TABLE lines DROP CONSTRAINT lines_order;
SELECT tessera.shard_table('orders', 'tenant');
SELECT tessera.shard_table('lines', 'tenant, order_id');
SELECT tessera.split_chunk('orders', 50);

-- S21: pieces of a split get the next minor versions; S22: so does what is merged
SELECT tessera.split_chunk('t_int4', 100);
SELECT tessera.split_chunk('t_int4', 50);
SELECT min, max, major, minor FROM tessera.chunks WHERE table_name = 't_int4'::regclass;
SELECT tessera.merge_chunks('t_int4', 50, tessera.maxkey());
SELECT min, max, major, minor FROM tessera.chunks WHERE table_name = 't_int4'::regclass;
SELECT what, object, before, after FROM tessera.changelog WHERE object = 'public.t_int4' AND what <> 'shard_table';
-- bad bounds
SELECT tessera.split_chunk('t_int4', 50);
SELECT tessera.split_chunk('t_int4', tessera.minkey());
SELECT tessera.split_chunk('t_int4', tessera.maxkey());
SELECT tessera.split_chunk('t_int4', 'word');
SELECT tessera.split_chunk('t_int4', 3000000000);
SELECT tessera.split_chunk('t_int4', tessera.bound(1, 2));
SELECT tessera.split_chunk('t_numeric', 1.5);
SELECT tessera.split_chunk('plain', 1);
SELECT tessera.merge_chunks('t_int4', 50, tessera.maxkey());
SELECT tessera.merge_chunks('t_int4', 40, tessera.maxkey());
SELECT tessera.merge_chunks('t_int4', tessera.minkey(), 60);
SELECT tessera.merge_chunks('t_int4', 60, 50);
SELECT tessera.merge_chunks('t_hash', tessera.minkey(), tessera.maxkey());
SELECT tessera.merge_chunks('t_hash', tessera.minkey(), 0);

-- S87, S89, S90: split at the median; not if all rows share one key, nor without rows
SELECT tessera.split_find('has_rows', 1);
SELECT tessera.split_find('same_keys', 7);
SELECT tessera.split_find('t_int8', 1);
SELECT tessera.split_find('t_int8', tessera.minkey());
-- dead entries of the index on the way: the scan remembers them until its end
CREATE TABLE dead_keys (k int4 PRIMARY KEY);
INSERT INTO dead_keys SELECT generate_series(1, 300);
DELETE FROM dead_keys WHERE k % 3 = 0;
SELECT tessera.shard_table('dead_keys', 'k');
SELECT tessera.split_find('dead_keys', 5);
DROP TABLE dead_keys;
SELECT tessera.shard_table('names', 'k', chunks => 2);
SELECT min, max FROM tessera.chunks WHERE table_name = 'names'::regclass;

-- settings of a group, and the jumbo flag (S82, S103)
SELECT tessera.configure_table('t_int4', balancing => false);
SELECT tessera.configure_table('t_int4', max_chunk_size => 5000000);
SELECT tessera.configure_table('t_int4', max_chunk_size => 5);
SELECT tessera.configure_table('plain', balancing => false);
SELECT balancing, max_chunk_size FROM tessera.table_group JOIN tessera.cluster_table USING (group_id) WHERE table_name IN ('t_int4', 'has_rows') ORDER BY table_name;
SELECT before, after FROM tessera.changelog WHERE what = 'configure_table';
SELECT tessera.clear_jumbo('t_int4', 1);
UPDATE tessera.chunk SET jumbo = true FROM tessera.cluster_table AS t WHERE t.group_id = chunk.group_id AND t.table_name = 't_int4';
SELECT tessera.clear_jumbo('t_int4', 1);
SELECT min, jumbo FROM tessera.chunks WHERE table_name = 't_int4'::regclass;

-- the caller's transaction: sharding is part of it, commands on chunks are not
BEGIN;
SELECT tessera.shard_table('empty_too', 'tenant');
SELECT tessera.range_owner('empty_too', 1);
SELECT tessera.split_chunk('empty_too', 1);
ROLLBACK;
SELECT tessera.range_owner('empty_too', 1);

-- who may
SET ROLE tessera_sharding_owner;
SELECT tessera.shard_table('empty_too', 'tenant');
SELECT tessera.shard_table('owned', 'k');
SELECT tessera.split_chunk('owned', 1);
SELECT tessera.range_owner('owned', 1);
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000001', NULL, 0);
SET ROLE tessera_sharding_nobody;
SELECT tessera.range_owner('owned', 1);
SELECT * FROM tessera.check_consistency();
RESET ROLE;

-- from another node; a table that only this node has; and the rows of a group that a node has not heard of
\c tessera_sharding_c
SET client_min_messages = warning;
SET tessera.replicate_ddl = off;
CREATE TABLE local_only (k int PRIMARY KEY);
RESET tessera.replicate_ddl;
SELECT tessera.shard_table('local_only', 'k');
SELECT tessera.shard_table('empty_too', 'tenant');
SELECT tessera.split_chunk('empty_too', 10);
SELECT tessera.split_chunk('empty_too', 20);
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 'empty_too'::regclass;
SELECT tessera.range_owner('empty_too', 15);
-- a router, with both shards as participants: all of it or nothing
BEGIN;
SELECT tessera.shard_table('t_hash3', 'k', 'hash', chunks => 4);
SELECT shard, count(*) FROM tessera.chunks WHERE table_name = 't_hash3'::regclass GROUP BY 1 ORDER BY 1;
ROLLBACK;
SELECT count(*) FROM tessera.chunks WHERE table_name = 't_hash3'::regclass;
SELECT tessera.shard_table('t_hash3', 'k', 'hash', chunks => 4);
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 't_hash3'::regclass;
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000001', NULL, 0);
SELECT * FROM tessera.check_consistency(true);
\c tessera_sharding_b
SELECT min, max, shard, major, minor FROM tessera.chunks WHERE table_name = 't_hash3'::regclass;
SELECT owned FROM tessera.placement JOIN tessera.cluster_table USING (group_id) WHERE table_name = 't_hash3';

-- the decision of a migration: registered by hand
\c tessera_sharding_a
SET client_min_messages = warning;
CREATE FUNCTION register(nr int, min tessera.bound, max tessera.bound, donor text, recipient text) RETURNS uuid LANGUAGE sql AS $$
  INSERT INTO tessera.migration (migration_id, ranges, table_id, donor, recipient, term, donor_incarnation, recipient_incarnation, phase)
  SELECT ('00000000-0000-0000-0000-' || lpad(nr::text, 12, '0'))::uuid, ARRAY[(g.group_id, g.epoch, $2, $3)::tessera.operation_range], t.table_id, d.node_id, r.node_id, i.term, d.incarnation, r.incarnation, 'deciding'
  FROM tessera.cluster_table t JOIN tessera.table_group g USING (group_id), tessera.node d, tessera.node r, tessera.identity i
  WHERE t.table_name = 'empty_too' AND d.name = $4 AND r.name = $5 RETURNING migration_id $$;
CREATE FUNCTION show_chunks() RETURNS TABLE (min tessera.bound, max tessera.bound, shard text, major int8, minor int8) LANGUAGE sql AS $$
  SELECT c.min, c.max, c.shard, c.major, c.minor FROM tessera.chunks c WHERE c.table_name = 'empty_too'::regclass ORDER BY 1 $$;
-- S19: the chunk gets <M+1,0>, one other chunk of the donor <M+1,1>
SELECT register(1, 10, 20, 's1', 's2');
SELECT tessera.split_chunk('empty_too', 15);
SELECT tessera.merge_chunks('empty_too', tessera.minkey(), 20);
-- nor does a table join its group (doc/design.md#moves-and-ddl)
SELECT tessera.shard_table('too_late', 'tenant', colocate_with => 'empty_too');
SELECT tessera.split_chunk('empty_too', 30);
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000001', 0);
SELECT * FROM show_chunks() WHERE major = 2 ORDER BY minor;
-- again: the same answer; a fence comes too late
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000001', 0);
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000001', NULL, 0);
SELECT min, jsonb_array_length(history), moved IS NOT NULL AS moved FROM tessera.chunk JOIN tessera.table_group g USING (group_id) WHERE g.group_major = 2 ORDER BY min;
-- S36: a range inside a chunk is cut out and moved
SELECT register(2, 12, 14, 's2', 's1');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000002', 0);
SELECT * FROM show_chunks();
-- the donor owns only a part of it
SELECT register(3, 5, 30, 's1', 's2');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000003', 0);
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000003', NULL, 0);
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000003', 0);
-- several chunks at once, cut at both ends
SELECT register(4, 25, 100, 's1', 's2');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000004', 0);
SELECT * FROM show_chunks();
-- S20: a donor left without a chunk
SELECT register(5, 10, 12, 's2', 's1');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000005', 0);
SELECT register(6, 14, 20, 's2', 's1');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000006', 0);
SELECT register(7, 25, 100, 's2', 's1');
-- what has changed since it was registered
UPDATE tessera.node SET incarnation = incarnation + 1 WHERE name = 's2';
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000007', 0);
UPDATE tessera.node SET incarnation = incarnation - 1 WHERE name = 's2';
UPDATE tessera.table_group SET allow_migrations = false;
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000007', 0);
UPDATE tessera.table_group SET allow_migrations = true;
UPDATE tessera.migration SET term = term - 1 WHERE state = 'running';
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000007', 0);
UPDATE tessera.migration SET term = term + 1, ranges[1].epoch = gen_random_uuid() WHERE state = 'running';
\set VERBOSITY terse
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000007', 0);
\set VERBOSITY default
UPDATE tessera.migration SET ranges[1].epoch = (SELECT epoch FROM tessera.table_group g WHERE g.group_id = (ranges[1]).group_id) WHERE state = 'running';
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000007', 0);
SELECT migration_id, outcome, donor_majors, recipient_majors, state FROM tessera.migration_outcome JOIN tessera.migration USING (migration_id) ORDER BY 1;
SELECT * FROM show_chunks();
-- a table with rows cannot join a group of which a part lies elsewhere in a transaction that has written; one without can
SELECT register(9, 100, 110, 's1', 's2');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000009', 0);
BEGIN;
UPDATE late_rows SET id = 2;
SELECT tessera.shard_table('late_rows', 'tenant', colocate_with => 'empty_too');
ROLLBACK;
BEGIN;
SELECT tessera.shard_table('too_late', 'tenant', colocate_with => 'empty_too');
ROLLBACK;
SELECT register(10, 100, 110, 's2', 's1');
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000010', 0);
-- S63: not known is not aborted
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000008', NULL, 0);
SELECT * FROM tessera_internal.commit_move('00000000-0000-0000-0000-000000000008', 0);
DELETE FROM tessera.migration_outcome;
SELECT tessera_internal.fence_migration('00000000-0000-0000-0000-000000000007', NULL, 0);

-- check_consistency sees what is wrong: versions that the shards were not told of, then worse
UPDATE tessera.migration SET finished = finished - interval '1 h';
SELECT * FROM tessera.check_consistency() WHERE object = 'public.empty_too';
-- a split tells the owner its new shard version
SELECT tessera.split_chunk('empty_too', 200);
SELECT * FROM tessera.check_consistency() WHERE object = 'public.empty_too';
UPDATE tessera.chunk SET max = 27 WHERE min OPERATOR(tessera.=) 25::tessera.bound;
UPDATE tessera.chunk SET max = 11, node_id = 99 WHERE min OPERATOR(tessera.=) tessera.minkey() AND group_id = (SELECT group_id FROM tessera.cluster_table WHERE table_name = 'empty_too');
UPDATE tessera.chunk SET major = 1, minor = 0 WHERE min OPERATOR(tessera.=) ANY (ARRAY[14, 20]::tessera.bound[]);
SELECT * FROM tessera.check_consistency() WHERE invariant = 1;
DELETE FROM tessera.chunk WHERE min OPERATOR(tessera.=) 100::tessera.bound AND group_id = (SELECT group_id FROM tessera.cluster_table WHERE table_name = 'empty_too');
SELECT * FROM tessera.check_consistency() WHERE invariant = 1 AND detail LIKE '%behind%';
UPDATE tessera.placement SET gates = ARRAY[ROW('10000000-0000-0000-0000-0000000000aa', 'MINKEY', 'MAXKEY', 'write', false)]::tessera.gated_range[] FROM tessera.cluster_table t WHERE t.group_id = placement.group_id AND t.table_name = 't_int4';
SELECT * FROM tessera.check_consistency() WHERE object = 'public.t_int4';
UPDATE tessera.placement SET owned = '{"(MINKEY,50)"}' FROM tessera.cluster_table t WHERE t.group_id = placement.group_id AND t.table_name = 'has_rows';
SELECT * FROM tessera.check_consistency() WHERE object = 'public.has_rows, public.more_rows';
-- rows that lie where they are not owned
SELECT tessera.configure_table('t_int4', balancing => true);
SELECT * FROM tessera.check_consistency(true) WHERE invariant = 4;

-- the databases are nodes, and are not dropped as such
\c tessera_sharding_a
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_sharding_b
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_sharding_c
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c contrib_regression
DROP DATABASE tessera_sharding_a WITH (FORCE);
DROP DATABASE tessera_sharding_b WITH (FORCE);
DROP DATABASE tessera_sharding_c WITH (FORCE);
DROP ROLE tessera_sharding_owner;
DROP ROLE tessera_sharding_nobody;
