-- move_range, move_chunk and cancel_migration with good and bad arguments, and what the views show of them (S35-S38, S46). Several databases of this server are the nodes.
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;
SELECT format('host=%s port=%s user=%s dbname=', split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_user) AS address \gset
CREATE DATABASE tessera_moves_a;
CREATE DATABASE tessera_moves_b;
CREATE DATABASE tessera_moves_r;
CREATE ROLE tessera_moves_nobody;
CREATE ROLE tessera_moves_boss;

\c tessera_moves_a
SET client_min_messages = warning;
CREATE EXTENSION tessera;
GRANT tessera_admin TO tessera_moves_boss;
SELECT tessera.create_cluster('moves', :'address' || 'tessera_moves_a', 's1');
SELECT tessera.add_shard('s2', :'address' || 'tessera_moves_b');
SELECT tessera.add_router('r1', :'address' || 'tessera_moves_r');
CREATE TABLE item (k int PRIMARY KEY, v text);
CREATE TABLE pair (a text COLLATE "C", b date, v int, PRIMARY KEY (a, b));
CREATE TABLE hashed (k uuid PRIMARY KEY);
CREATE TABLE placed (k int PRIMARY KEY);
INSERT INTO item SELECT g, 'row ' || g FROM generate_series(1, 1000) g;
INSERT INTO pair SELECT 'a' || g % 10, date '2026-01-01' + g, g FROM generate_series(1, 100) g;
INSERT INTO hashed SELECT md5(g::text)::uuid FROM generate_series(1, 100) g;
SELECT tessera.shard_table('item', 'k');
SELECT tessera.shard_table('pair', 'a, b');
SELECT tessera.shard_table('hashed', 'k', 'hash');
SELECT tessera.split_chunk('item', 500);

-- What is refused: nothing is registered.
SELECT tessera.move_range('item', 100, 200, 'nowhere');
SELECT tessera.move_range('item', 100, 200, 'r1');
SELECT tessera.move_range('item', 200, 100, 's2');
SELECT tessera.move_range('item', 100, 100, 's2');
SELECT tessera.move_range('item', NULL, 100, 's2');
SELECT tessera.move_range('item', 100, 200, NULL);
SELECT tessera.move_range('item', 100::int8 * 100000000000, 200, 's2');
SELECT tessera.move_range('item', 'x', 'y', 's2');
SELECT tessera.move_range('item', date '2026-01-01', date '2026-01-02', 's2');
SELECT tessera.move_range('item', ROW(1, 2), ROW(3, 4), 's2');
SELECT tessera.move_range('pair', 'a1', ROW('a2', date '2026-02-01', 3), 's2');
SELECT tessera.move_range('hashed', 'x', 'y', 's2');
SELECT tessera.move_range('placed', 1, 2, 's2');
SELECT tessera.move_range('pg_class', 1, 2, 's2');
SELECT tessera.move_range('nothing_of_the_kind', 1, 2, 's2');
SELECT tessera.move_chunk('item', NULL, 's2');
SELECT tessera.move_chunk('item', 'x', 's2');
SELECT tessera.move_chunk('item', 1, 'nowhere');
SELECT tessera.move_chunk('placed', 1, 's2');
SELECT tessera.cancel_migration(NULL);
SELECT tessera.cancel_migration('00000000-0000-0000-0000-000000000001');
BEGIN;
INSERT INTO item VALUES (2000, 'mine');
SELECT tessera.move_range('item', 100, 200, 's2');
ROLLBACK;
SET ROLE tessera_moves_nobody;
SELECT tessera.move_range('item', 100, 200, 's2');
SELECT tessera.move_chunk('item', 100, 's2');
SELECT tessera.cancel_migration('00000000-0000-0000-0000-000000000001');
RESET ROLE;
SELECT count(*) FROM tessera.migrations;
-- It is there already: nothing to do.
SELECT tessera.move_range('item', 100, 200, 's1');
SELECT tessera.move_range('item', 1, 10, 's2') IS NOT NULL AS moved;
-- over two shards
SELECT tessera.move_range('item', 5, 20, 's2') IS NOT NULL AS moved;

-- What moves, in each form of bounds; from the config node, the shard and the router.
SET ROLE tessera_moves_boss;
SELECT tessera.move_range('item', 100, 200, 's2') IS NOT NULL AS moved;
SELECT tessera.move_chunk('item', 700, 's2') IS NOT NULL AS moved;
RESET ROLE;
\c tessera_moves_b
\set SHOW_CONTEXT never
SELECT tessera.move_range('pair', ROW('a3', date '2026-02-01'), 'a5', 's2') IS NOT NULL AS moved;
SELECT tessera.move_range('pair', tessera.minkey(), 'a1', 's2') IS NOT NULL AS moved;
SELECT tessera.move_chunk('hashed', -5, 's2');
SELECT tessera.move_chunk('hashed', '00000000-0000-0000-0000-000000000001'::uuid, 's2') IS NOT NULL AS moved;
\c tessera_moves_r
\set SHOW_CONTEXT never
SELECT tessera.move_range('hashed', 0, tessera.maxkey(), 's1') IS NOT NULL AS moved;
SELECT tessera.move_range('item', 150, 160, 's1') IS NOT NULL AS moved;
SELECT tessera.cancel_migration('00000000-0000-0000-0000-000000000001');
SELECT count(*), sum(k), count(DISTINCT v) FROM item;
SELECT count(*), sum(v) FROM pair;
SELECT count(*) FROM hashed;

-- An ended migration is no longer cancelled.
\c tessera_moves_a
\set SHOW_CONTEXT never
SET client_min_messages = warning;
SELECT count(tessera.cancel_migration(id)) AS ended FROM tessera.migrations WHERE state = 'committed' AND table_name = 'item'::regclass \gset
SELECT :ended AS ended;
SELECT table_name, min, max, donor, recipient, state, phase, rows, waiting_for, error FROM tessera.migrations ORDER BY started;
SELECT bool_and(pause_ms >= 0 AND finished >= started) AS times, count(*) AS migrations FROM tessera.migrations;
SELECT table_name, min, max, shard, major, minor FROM tessera.chunks ORDER BY table_name::text, min;
SELECT count(*) FROM tessera.stat_progress_migration;
SELECT count(*) FROM tessera.distributed_transactions;
SELECT * FROM tessera.resolve_transactions();
SELECT * FROM tessera.resolve_transactions(NULL);
SELECT tessera.prune_decisions('1 hour'), tessera.prune_decisions(NULL);
SELECT placements_known, metadata_known, last_error FROM tessera.promotion_status();
SELECT tessera.recover_node();
SELECT tessera.reload_routing();
SELECT succeeded <= requested AS counted, last_error FROM tessera.refresh_status();
SELECT tessera.stat_routing_reset();
SELECT count(*), bool_and(t1 >= 0 AND stats_reset IS NOT NULL) FROM tessera.stat_routing;
SET ROLE tessera_moves_nobody;
SELECT tessera.resolve_transactions();
SELECT tessera.prune_decisions();
SELECT tessera.recover_node();
SELECT tessera.reload_routing();
SELECT tessera.refresh_status();
SELECT tessera.stat_routing_reset();
RESET ROLE;
SELECT * FROM tessera.check_consistency(true);

-- the databases are nodes, and are not dropped as such
\c tessera_moves_a
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_moves_b
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_moves_r
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c contrib_regression
DROP DATABASE tessera_moves_a WITH (FORCE);
DROP DATABASE tessera_moves_b WITH (FORCE);
DROP DATABASE tessera_moves_r WITH (FORCE);
DROP ROLE tessera_moves_nobody;
DROP ROLE tessera_moves_boss;
