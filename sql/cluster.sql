-- Membership of the cluster: several databases of this server are its nodes. Good and bad input of every function; what is refused leaves no trace (S30, S33, S180).
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;
SELECT format('host=%s port=%s user=%s dbname=', split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_user) AS address \gset
CREATE DATABASE tessera_cluster_a;
CREATE DATABASE tessera_cluster_b;
CREATE DATABASE tessera_cluster_c;
CREATE DATABASE tessera_cluster_d;
CREATE DATABASE tessera_cluster_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';
CREATE DATABASE tessera_cluster_ctype TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C.UTF-8';
CREATE ROLE tessera_cluster_nobody LOGIN;
CREATE ROLE tessera_cluster_boss LOGIN;
CREATE ROLE tessera_cluster_owner;

-- the database a team already has
\c tessera_cluster_a
SET client_min_messages = warning;
CREATE EXTENSION tessera;
GRANT tessera_admin TO tessera_cluster_boss;
GRANT CREATE ON SCHEMA public TO tessera_cluster_owner;
CREATE SCHEMA app AUTHORIZATION tessera_cluster_owner;
CREATE SCHEMA "odd name;";
CREATE TABLE app.orders (order_id int8 PRIMARY KEY, tenant_id int8 NOT NULL, note text DEFAULT E'it''s\n\\restrict x\n\\unrestrict x\n');
CREATE TABLE "odd name;"."Odd Table" (a int);
CREATE TABLE events (at timestamptz NOT NULL, what text) PARTITION BY RANGE (at);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE parent (a int);
CREATE TABLE child () INHERITS (parent);
CREATE TEMP TABLE passing (a int);
CREATE VIEW app.notes AS SELECT note FROM app.orders;
CREATE SEQUENCE app.numbers;
CREATE FUNCTION app.orders_of(int8) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM app.orders WHERE tenant_id = $1';
ALTER TABLE app.orders OWNER TO tessera_cluster_owner;
GRANT SELECT ON app.notes TO tessera_cluster_nobody;
INSERT INTO app.orders SELECT i, i % 10 FROM generate_series(1, 100) i;

-- every setting is listed with a verdict; this server has what is needed
SELECT setting, needed, ok FROM tessera.check_node();

-- nothing of it works outside a cluster
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
SELECT tessera.add_router('r1', :'address' || 'tessera_cluster_b');
SELECT tessera.update_node('s1', :'address' || 'tessera_cluster_a');
SELECT tessera.remove_shard('s1');
SELECT tessera.remove_router('s1');
SELECT tessera.node_conninfo('s1');
SELECT * FROM tessera.shards;
SELECT * FROM tessera.range_deletions;

-- create_cluster: what is refused
SELECT tessera.create_cluster('', :'address' || 'tessera_cluster_a', 's1');
SELECT tessera.create_cluster(repeat('c', 64), :'address' || 'tessera_cluster_a', 's1');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', '');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', 's 1');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', '-s1');
SELECT tessera.create_cluster(NULL, :'address' || 'tessera_cluster_a', 's1');
SELECT tessera.create_cluster('c', NULL, 's1');
SELECT tessera.create_cluster('c', 'what is this', 's1');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a replication=database', 's1');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a');
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_b', 's1');
SELECT tessera.create_cluster('c', replace(:'address', 'user=', 'user=tessera_cluster_nobody nothing=') || 'tessera_cluster_a', 's1');
SELECT tessera.create_cluster('c', regexp_replace(:'address', 'user=\S+', 'user=tessera_cluster_nobody') || 'tessera_cluster_a', 's1');
\set VERBOSITY sqlstate
SELECT tessera.create_cluster('c', 'host=/nonexistent dbname=tessera_cluster_a', 's1');
\set VERBOSITY default
BEGIN READ ONLY;
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', 's1');
ROLLBACK;
SET ROLE tessera_cluster_nobody;
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', 's1');
RESET ROLE;
SELECT count(*) FROM tessera.identity;

-- a rollback undoes it; an administrator who owns nothing can do it
BEGIN;
SELECT tessera.create_cluster('undone', :'address' || 'tessera_cluster_a', 's1');
SELECT name FROM tessera.shards;
ROLLBACK;
SELECT name FROM tessera.shards;
SET ROLE tessera_cluster_boss;
SELECT tessera.create_cluster('c', :'address' || 'tessera_cluster_a', 's1');
RESET ROLE;
SELECT tessera.create_cluster('c2', :'address' || 'tessera_cluster_a', 's1');
SELECT name, node_id, is_config, draining, database FROM tessera.shards;
SELECT * FROM tessera.routers;
SELECT * FROM tessera.schemas;
SELECT table_name, kind, key, strategy, primary_shard, chunks FROM tessera.tables;
SELECT what, object, by = session_user AS by_me, after FROM tessera.changelog;
-- its tables are as they were
SELECT count(*) FROM app.orders;

-- add_shard: what is refused
SELECT tessera.add_shard('s 2', :'address' || 'tessera_cluster_b');
SELECT tessera.add_shard('s2', '=');
SELECT tessera.add_shard('s1', :'address' || 'tessera_cluster_b');
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_a');
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_ascii');
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_ctype');
SELECT tessera.add_shard('s2', regexp_replace(:'address', 'user=\S+', 'user=tessera_cluster_nobody') || 'tessera_cluster_b');
\set VERBOSITY sqlstate
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_nowhere');
\set VERBOSITY default
SET ROLE tessera_cluster_nobody;
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
RESET ROLE;
-- a table in a schema that would be copied; one elsewhere does no harm
\c tessera_cluster_b
CREATE TABLE leftover (a int);
CREATE SCHEMA other CREATE TABLE other.harmless (a int);
\c tessera_cluster_a
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
\c tessera_cluster_b
DROP TABLE leftover;
-- a transaction somebody prepared there
BEGIN; CREATE TABLE held (a int); PREPARE TRANSACTION 'tessera_cluster_held';
\c tessera_cluster_a
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
\c tessera_cluster_b
ROLLBACK PREPARED 'tessera_cluster_held';
-- an object in the way of the schema: neither side keeps anything
CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE SCHEMA app;
\c tessera_cluster_a
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
\c tessera_cluster_b
DROP SCHEMA app;
SELECT count(*) FROM pg_extension WHERE extname = 'tessera';
\c tessera_cluster_a
-- a schema that only this transaction sees would not be copied
BEGIN;
CREATE TABLE app.unseen (a int);
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b');
ROLLBACK;
SELECT name FROM tessera.shards;

-- it joins or leaves no trace
BEGIN;
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b') > 1 AS joined;
SELECT name FROM tessera.shards;
ROLLBACK;
SELECT name FROM tessera.shards;
\c tessera_cluster_b
SELECT count(*) FROM pg_extension WHERE extname = 'tessera';
SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database();
SELECT to_regclass('app.orders');

-- two in one transaction
\c tessera_cluster_a
SET ROLE tessera_cluster_boss;
BEGIN;
SELECT tessera.add_shard('s2', :'address' || 'tessera_cluster_b') > 1 AS joined;
SELECT tessera.add_router('r1', :'address' || 'tessera_cluster_c') > 1 AS joined;
COMMIT;
RESET ROLE;
SELECT name, is_config, draining, database FROM tessera.shards;
SELECT name, is_config, database FROM tessera.routers;
SELECT what, object, after - 'node_id' AS after FROM tessera.changelog;
SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'tessera%';
SELECT tessera.add_shard('s3', :'address' || 'tessera_cluster_b');

-- the new shard has the schema with owners and privileges, the catalog, and an identity of its own
\c tessera_cluster_b
SELECT cluster, node, is_config, term FROM tessera.identity;
SELECT name, is_config, database FROM tessera.shards;
SELECT table_name, kind, primary_shard FROM tessera.tables;
SELECT count(*) AS wrong FROM tessera.cluster_table WHERE relid <> format('%I.%I', schema_name, table_name)::regclass;
SELECT tableowner FROM pg_tables WHERE schemaname = 'app';
SELECT has_table_privilege('tessera_cluster_nobody', 'app.notes', 'SELECT');
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'app.orders'::regclass;
SELECT to_regclass('public.events_1'), to_regclass('app.numbers'), to_regprocedure('app.orders_of(int8)');

-- changes are handed on to the config node, whichever node is asked
\c tessera_cluster_c
SELECT cluster, node, is_config FROM tessera.identity;
SELECT tessera.add_shard('s1', :'address' || 'tessera_cluster_d');
BEGIN;
SELECT tessera.add_shard('s3', :'address' || 'tessera_cluster_d');
ROLLBACK;
SET ROLE tessera_cluster_nobody;
SELECT tessera.add_shard('s3', :'address' || 'tessera_cluster_d');
SET ROLE tessera_cluster_boss;
SELECT tessera.add_shard('s3', :'address' || 'tessera_cluster_d') > 1 AS joined;
RESET ROLE;
\c tessera_cluster_a
SELECT name FROM tessera.shards;
SELECT what, object FROM tessera.changelog WHERE object = 's3' AND by = session_user;

-- update_node
SELECT tessera.update_node('s9', :'address' || 'tessera_cluster_b');
SELECT tessera.update_node('s2', :'address' || 'tessera_cluster_c');
SELECT tessera.update_node('s2', 'nonsense');
SELECT tessera.update_node('s2', :'address' || 'tessera_cluster_b connect_timeout=5');
SELECT right(tessera.node_conninfo('s2'), 17) AS conninfo;
SELECT before, after FROM tessera.changelog WHERE what = 'update_node';
-- the config node itself, asked elsewhere: everybody gets the new address
\c tessera_cluster_b
SELECT tessera.update_node('s1', :'address' || 'tessera_cluster_a connect_timeout=6');
SELECT right(config_conninfo, 17) AS config FROM tessera.identity;
\c tessera_cluster_c
SELECT right(config_conninfo, 17) AS config FROM tessera.identity;
\c tessera_cluster_a
SELECT right(config_conninfo, 17) AS config FROM tessera.identity;

-- everybody may look, but not at addresses
SET ROLE tessera_cluster_nobody;
SELECT name FROM tessera.shards;
SELECT count(*) FROM tessera.tables;
SELECT count(*) FROM tessera.chunks;
SELECT count(*) FROM tessera.chunk_distribution;
SELECT count(*) FROM tessera.migrations;
SELECT count(*) FROM tessera.range_deletions;
SELECT name, system_id <> 0 AS known FROM tessera.node ORDER BY node_id;
SELECT conninfo FROM tessera.node;
SELECT config_conninfo FROM tessera.identity;
SELECT tessera.node_conninfo('s2');
SELECT tessera_internal.leave('', 2);
SELECT tessera_internal.join_rows('node', '{}');
DELETE FROM tessera.node;
RESET ROLE;
SELECT tessera_internal.join_rows('identity', '{}');
SELECT tessera_internal.join_rows('node', '{}');
SELECT tessera_internal.membership('conquer', 's2', NULL, false, NULL);

-- remove: only what holds nothing
SELECT tessera.remove_shard('s9');
SELECT tessera.remove_shard('r1');
SELECT tessera.remove_router('s2');
SELECT tessera.remove_router('s1');
SELECT tessera.remove_shard('s1');
SELECT tessera.remove_shard('s1', force => true);
-- a node is told only if the removal commits
BEGIN;
SAVEPOINT before;
SELECT tessera.remove_shard('s2');
ROLLBACK TO before;
COMMIT;
BEGIN;
SELECT tessera.remove_shard('s2');
ROLLBACK;
\c tessera_cluster_b
SELECT count(*) FROM tessera.identity;
\c tessera_cluster_a
SELECT name FROM tessera.shards;
SELECT tessera.remove_shard('s2');
\c tessera_cluster_b
SELECT count(*) FROM tessera.identity;
SELECT count(*) FROM tessera.node;
SELECT to_regclass('app.orders');
\c tessera_cluster_c
SELECT tessera.remove_shard('s3');
SELECT tessera.remove_router('r1');
\c tessera_cluster_a
SELECT name FROM tessera.shards;
SELECT name FROM tessera.routers;
SELECT what, object, before - 'node_id' AS before FROM tessera.changelog WHERE what LIKE 'remove%';

-- another cluster, whose config node stores nothing: its first shard takes the schemas
\c tessera_cluster_d
SELECT count(*) FROM tessera.identity;
SET client_min_messages = warning;
DROP SCHEMA app CASCADE;
DROP SCHEMA "odd name;" CASCADE;
DROP TABLE parent, events CASCADE;
CREATE SCHEMA empty;
SELECT tessera.create_cluster('d', :'address' || 'tessera_cluster_d');
SELECT name, is_config FROM tessera.routers;
SELECT * FROM tessera.schemas;
-- a node of another cluster is not taken over
SELECT tessera.add_shard('s1', :'address' || 'tessera_cluster_a');
\c tessera_cluster_c
SET client_min_messages = warning;
DROP SCHEMA app CASCADE;
DROP SCHEMA "odd name;" CASCADE;
DROP TABLE parent, events CASCADE;
\c tessera_cluster_d
SELECT tessera.add_shard('s1', :'address' || 'tessera_cluster_c') > 1 AS joined;
SELECT * FROM tessera.schemas;
SELECT tessera.remove_shard('s1');

-- the database of a node is not dropped; that of one that was removed (b), or has forgotten the cluster, is
\c postgres
SET client_min_messages = warning;
DROP DATABASE tessera_cluster_a;
DROP DATABASE tessera_cluster_a WITH (FORCE);
DROP DATABASE tessera_cluster_b WITH (FORCE);
\c tessera_cluster_a
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_cluster_c
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_cluster_d
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c postgres
SET client_min_messages = warning;
DROP DATABASE tessera_cluster_a WITH (FORCE);
DROP DATABASE tessera_cluster_c WITH (FORCE);
DROP DATABASE tessera_cluster_d WITH (FORCE);
DROP DATABASE tessera_cluster_ascii;
DROP DATABASE tessera_cluster_ctype;
DROP ROLE tessera_cluster_nobody, tessera_cluster_boss, tessera_cluster_owner;
