-- Counters of the node (src/common/stat_routing.c).
CREATE FUNCTION tessera_internal.stat_routing() RETURNS TABLE (t1 int8, whole int8, routed_inserts int8, general int8, parts int8, stale_retries int8,
  connections int8, gate_waits int8, gate_wait_us int8,
                                                  stats_reset timestamptz)
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_stat_routing';
COMMENT ON FUNCTION tessera_internal.stat_routing() IS 'source of the view tessera.stat_routing';

CREATE FUNCTION tessera.stat_routing_reset() RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_stat_routing_reset';
COMMENT ON FUNCTION tessera.stat_routing_reset() IS 'sets the counters of tessera.stat_routing to zero';
REVOKE ALL ON FUNCTION tessera.stat_routing_reset() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.stat_routing_reset() TO tessera_admin;

CREATE VIEW tessera.stat_routing AS
  SELECT t1, whole, routed_inserts, general, parts, stale_retries, connections, gate_waits, gate_wait_us / 1000.0::float8 AS gate_wait_time,
  stats_reset
  FROM tessera_internal.stat_routing();
COMMENT ON VIEW tessera.stat_routing IS
  'what this node did as a router since stats_reset: statements by tier, attempts that were stale, connections opened to other nodes; and how often '
  'and how long (ms) statements waited here at the gates of migrations';

-- Connections to the other nodes (src/transport/connection_slots.c).
CREATE FUNCTION tessera_internal.node_connections() RETURNS TABLE (node_id int4, open int4, in_use int4, waiting int4, opened int8, waits int8,
                                                      exceeded int8, refused int8)
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_node_connections';
COMMENT ON FUNCTION tessera_internal.node_connections() IS 'source of the view tessera.node_connections';

CREATE VIEW tessera.node_connections AS
  SELECT n.name AS node, c.open, c.in_use, c.open - c.in_use AS idle, c.waiting, c.opened, c.waits, c.exceeded, c.refused
  FROM tessera_internal.node_connections() c JOIN tessera.node n USING (node_id) ORDER BY c.node_id;
COMMENT ON VIEW tessera.node_connections IS
  'connections that transactions of this node''s clients have to each other node: open, in use by a transaction, idle; sessions that wait for one; '
  'and since the start of the server: opened, waits, opened beyond tessera.max_connections_per_shard, refused after tessera.connection_wait_timeout';

-- Views of the catalog. On the config node they show the authoritative rows; on other nodes the local copy, as of its last refresh; what other nodes
-- have no copy of is refused there (tessera_internal.on_config_node). Addresses are in none.

CREATE FUNCTION tessera_internal.silent_since(node_id int4) RETURNS timestamptz
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_silent_since';
COMMENT ON FUNCTION tessera_internal.silent_since(int4) IS
  'since when no connection from this node to that one comes about; NULL: the last one has, or none was tried since the start of the server';

CREATE VIEW tessera.shards AS
  SELECT n.name, n.node_id, n.is_config, n.draining, n.database, n.timeline, n.added,
         CASE WHEN (SELECT i.is_config FROM tessera.identity i) THEN coalesce(w.weight, 1) END AS weight,
         (SELECT pg_catalog.sum(e.bytes)::int8 FROM tessera.chunk_estimate e WHERE e.node_id = n.node_id) AS bytes,
         (SELECT pg_catalog.round(pg_catalog.sum(e.load)::numeric, 2)::float8 FROM tessera.chunk_estimate e WHERE e.node_id = n.node_id) AS load,
         tessera_internal.silent_since(n.node_id) AS silent_since
  FROM tessera.node n LEFT JOIN tessera.shard_weight w USING (node_id) WHERE n.is_shard ORDER BY n.node_id;
COMMENT ON VIEW tessera.shards IS
  'nodes that store rows; weight, bytes and load (of sharded tables, as last measured; load: sessions at work) are NULL on other nodes than the '
  'config node, which alone knows them; silent_since: since when this node cannot connect to it, NULL: the last attempt succeeded, or there was none';

CREATE VIEW tessera.routers AS
  SELECT n.name, n.node_id, n.is_config, n.database, n.timeline, n.added, tessera_internal.silent_since(n.node_id) AS silent_since
  FROM tessera.node n WHERE NOT n.is_shard ORDER BY n.node_id;
COMMENT ON VIEW tessera.routers IS 'nodes that store nothing; silent_since: as in tessera.shards';

CREATE VIEW tessera.schemas AS
  SELECT p.schema_name AS schema, n.name AS shard, coalesce(s.name, n.name) AS sequences_on, p.mod
  FROM tessera.schema_placement p LEFT JOIN tessera.node n USING (node_id) LEFT JOIN tessera.node s ON s.node_id = p.sequence_home
  ORDER BY p.schema_name;
COMMENT ON VIEW tessera.schemas IS
  'primary shard of each schema: its placed tables live there; sequences_on: the node that gives out the values of its sequences; mod grows with '
  'each move of the schema';

CREATE VIEW tessera.tables AS
  SELECT t.relid::pg_catalog.regclass AS table_name,
         CASE WHEN t.replicated THEN 'replicated' WHEN t.group_id IS NULL THEN 'placed' ELSE 'sharded' END AS kind,
         (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ' ORDER BY k.position)
          FROM pg_catalog.unnest(t.key_columns) WITH ORDINALITY AS k (name, position)) AS key,
         g.strategy,
         n.name AS primary_shard,
         t.group_id,
         (SELECT pg_catalog.count(*) FROM tessera.chunk c WHERE c.group_id = t.group_id) AS chunks
  FROM tessera.cluster_table t
  LEFT JOIN tessera.table_group g USING (group_id)
  LEFT JOIN tessera.schema_placement p ON p.schema_name = t.schema_name AND t.group_id IS NULL
  LEFT JOIN tessera.node n ON n.node_id = p.node_id
  ORDER BY t.schema_name, t.table_name;
COMMENT ON VIEW tessera.tables IS 
  'tables of the cluster: placed on one shard, replicated (whole on every node), or sharded by a key; tables of one group live together';

CREATE VIEW tessera.chunks AS
  SELECT t.relid::pg_catalog.regclass AS table_name, CASE WHEN k.visible THEN c.min END AS min, CASE WHEN k.visible THEN c.max END AS max,
         n.name AS shard, c.major, c.minor, c.jumbo, b.bytes, b.collected
  FROM tessera.cluster_table t
  JOIN tessera_internal.group_keys k USING (group_id)
  JOIN tessera.chunk c USING (group_id)
  LEFT JOIN tessera_internal.chunk_bytes() b ON b.group_id = c.group_id AND b.major = c.major AND b.minor = c.minor
  LEFT JOIN tessera.node n ON n.node_id = c.node_id
  ORDER BY t.schema_name, t.table_name, c.min;
COMMENT ON VIEW tessera.chunks IS
  'ranges of keys and the shard that owns each; min and max: to who may read the key; bytes: estimate for the whole group, '
  'from statistics of the time collected, on the config node as the shards have measured it; a chunk of a group is shown for each of its tables';

CREATE VIEW tessera_internal.chunk_distribution AS
  SELECT t.relid::pg_catalog.regclass AS table_name, n.name AS shard, d.chunks, d.bytes,
         pg_catalog.repeat('#', (30 * d.bytes / nullif(pg_catalog.max(d.bytes) OVER (PARTITION BY t.table_id), 0))::int4) AS bar, d.collected
  FROM tessera.cluster_table t
  JOIN (SELECT c.group_id, c.node_id, pg_catalog.count(*) AS chunks, pg_catalog.sum(b.bytes)::int8 AS bytes, pg_catalog.min(b.collected) AS collected
        FROM tessera.chunk c
          LEFT JOIN tessera_internal.chunk_bytes() b ON b.group_id = c.group_id AND b.major = c.major AND b.minor = c.minor
        GROUP BY c.group_id, c.node_id) AS d USING (group_id)
  LEFT JOIN tessera.node n ON n.node_id = d.node_id
  ORDER BY t.schema_name, t.table_name, n.name;
COMMENT ON VIEW tessera_internal.chunk_distribution IS
  'what this node has of tessera.chunk_distribution: all of it on the config node; for the extension''s own queries and monitoring';

CREATE VIEW tessera.chunk_distribution AS
  SELECT v.* FROM tessera_internal.chunk_distribution AS v WHERE tessera_internal.on_config_node('chunk_distribution');
COMMENT ON VIEW tessera.chunk_distribution IS
  'chunks of each sharded table by shard; bytes, drawn by bar: estimate for the whole group, as the shards have measured it at the time '
  'collected; on the config node, an error elsewhere';

CREATE VIEW tessera.changelog AS
  SELECT e.change_id, e.at, e.by, e.what, e.object,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN e.before END AS before,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN e.after END AS after
  FROM tessera.changelog_entry e LEFT JOIN tessera_internal.group_keys k USING (group_id)
  WHERE tessera_internal.on_config_node('changelog') ORDER BY e.change_id;
COMMENT ON VIEW tessera.changelog IS 'every change of metadata: when, by whom, before and after (to administrators, of a table group also to who may '
  'read the key); on the config node, an error elsewhere';

CREATE VIEW tessera.range_deletions AS
  SELECT t.relid::pg_catalog.regclass AS table_name, d.min, d.max
  FROM tessera_internal.range_deletions() d
  JOIN (SELECT o.schema_name, o.table_name, o.relid, coalesce(o.group_id, p.group_id) AS group_id
        FROM tessera.cluster_table o LEFT JOIN tessera.schema_placement p ON p.schema_name = o.schema_name AND o.group_id IS NULL) AS t
    USING (group_id)
  ORDER BY t.schema_name, t.table_name, d.min;
COMMENT ON VIEW tessera.range_deletions IS 'ranges whose rows this shard still has to delete; min and max: to who may read the key';

CREATE FUNCTION tessera_internal.session_origins(OUT pid int4, OUT node_id int4, OUT client_pid int4) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_session_origins';
COMMENT ON FUNCTION tessera_internal.session_origins() IS 'source of the view tessera.internal_sessions';

CREATE VIEW tessera.internal_sessions AS
  SELECT s.pid, n.name AS node, nullif(s.client_pid, 0) AS client_pid
  FROM tessera_internal.session_origins() s LEFT JOIN tessera.node n USING (node_id) ORDER BY s.pid;
COMMENT ON VIEW tessera.internal_sessions IS
  'sessions on this node that other nodes have opened: process here, the node it serves, and the process there; while one serves a client its '
  'application_name is that client''s';
