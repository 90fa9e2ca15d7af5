-- Live migration and range deletion. See src/migration/.

CREATE FUNCTION tessera.move_range(table_name regclass, min tessera.bound, max tessera.bound, to_shard text,
                                   verify bool DEFAULT pg_catalog.current_setting('tessera.migration_verify')::pg_catalog.bool,
                                   wait bool DEFAULT true) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_move_range' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool, bool) IS
  'moves the rows with keys from min up to, but without, max, of all tables that live together, to a shard, while they are in use, verified by '
  'content if wanted; a part of each other shard after the other; returns the id of the last migration. wait false: the balancer is asked to do it, '
  'and the id is that of tessera.balancer_status';

CREATE FUNCTION tessera.move_chunk(table_name regclass, key tessera.bound, to_shard text,
                                   verify bool DEFAULT pg_catalog.current_setting('tessera.migration_verify')::pg_catalog.bool) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_move_chunk' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.move_chunk(regclass, tessera.bound, text, bool) IS
  'moves the chunk that holds a key to a shard; returns the id of the migration';

CREATE FUNCTION tessera.move_schema(schema_name text, to_shard text,
                                    verify bool DEFAULT pg_catalog.current_setting('tessera.migration_verify')::pg_catalog.bool,
                                    wait bool DEFAULT true) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_move_schema' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.move_schema(text, text, bool, bool) IS
  'moves all placed tables of a schema, and its sequences, to a shard, while they are in use, together with schemas that foreign keys or inheritance '
  'tie to it; returns the id of the migration. wait false: the balancer is asked to do it, and the id is that of tessera.balancer_status';

CREATE FUNCTION tessera.cancel_migration(id uuid) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_cancel_migration' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.cancel_migration(uuid) IS
  'ends a running migration, or a move that was asked for: the range stays where it was; false: it was too late';

CREATE FUNCTION tessera.migration_transitions(OUT side text, OUT from_state text, OUT to_state text, OUT kept_in text, OUT who text, OUT durable text,
    OUT comment text) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_migration_transitions' LANGUAGE C IMMUTABLE;
COMMENT ON FUNCTION tessera.migration_transitions() IS
  'states of a migration on donor, recipient and config node: each transition, where the state is kept, who makes it, and what is durable before it';

-- Config node's side.

-- Of a partition its root counts: it lives with it. Sharded tables have no foreign keys to placed ones, nor the other way. A foreign key to a
-- replicated table ties nobody: that is everywhere.
CREATE FUNCTION tessera_internal.schema_ties() RETURNS TABLE (a name, b name)
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH placed AS MATERIALIZED (
      SELECT c.oid, t.schema_name, t.replicated FROM tessera.cluster_table AS t JOIN pg_namespace AS n ON n.nspname = t.schema_name
        JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name WHERE t.group_id IS NULL)
    SELECT f.schema_name, t.schema_name FROM pg_constraint AS k JOIN placed AS f ON f.oid = coalesce(pg_partition_root(k.conrelid), k.conrelid)
      JOIN placed AS t ON t.oid = coalesce(pg_partition_root(k.confrelid), k.confrelid) WHERE k.contype = 'f' AND NOT t.replicated
    UNION SELECT f.schema_name, t.schema_name FROM pg_inherits AS i JOIN placed AS f ON f.oid = i.inhrelid JOIN placed AS t ON t.oid = i.inhparent
  $$;
COMMENT ON FUNCTION tessera_internal.schema_ties() IS
  'between nodes: pairs of schemas whose placed tables foreign keys or inheritance tie to each other, or to others of the same schema';

CREATE FUNCTION tessera_internal.tied_schemas(schema name) RETURNS SETOF name
  LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE tie AS MATERIALIZED (SELECT e.a, e.b FROM tessera_internal.schema_ties() AS e),
    tied(name) AS (
      SELECT schema UNION SELECT CASE WHEN e.a = s.name THEN e.b ELSE e.a END FROM tied AS s JOIN tie AS e ON s.name IN (e.a, e.b))
    SELECT name FROM tied
  $$;
COMMENT ON FUNCTION tessera_internal.tied_schemas(name) IS
  'between nodes: the schema, and those whose placed tables foreign keys or inheritance tie to its own: they live on one shard';

@call migration_state@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(o.outcome, m.state), m.donor, m.recipient, o.donor_majors, o.recipient_majors, (SELECT i.term FROM tessera.identity AS i), m.error
    FROM tessera.migration AS m LEFT JOIN tessera.migration_outcome AS o USING (migration_id) WHERE m.migration_id = migration_state.id
  $$;
@comment migration_state@

@call running_migrations@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.migration_id, m.donor, CASE WHEN m.schema_name IS NOT NULL THEN 'schema ' || quote_ident(m.schema_name)
        WHEN t.table_id IS NOT NULL THEN format('%I.%I', t.schema_name, t.table_name) END
    FROM tessera.migration AS m LEFT JOIN tessera.cluster_table AS t
      USING (table_id)
    WHERE m.state = 'running' AND EXISTS (SELECT FROM unnest(m.ranges) AS r WHERE r.group_id = ANY (groups)) ORDER BY m.started
  $$;
@comment running_migrations@

@call migration_progress@
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE tessera.migration AS m SET phase = migration_progress.phase,
      rows = greatest(m.rows, migration_progress.rows), bytes = greatest(m.bytes, migration_progress.bytes),
      mods = greatest(m.mods, migration_progress.mods), pause_ms = coalesce(migration_progress.pause_ms, m.pause_ms),
      error = coalesce(m.error, migration_progress.error), waiting_for = migration_progress.waiting_for,
      rows_total = coalesce(m.rows_total, migration_progress.rows_total),
      finished = CASE WHEN m.finished IS NOT NULL AND migration_progress.phase IN ('done', 'aborted') THEN clock_timestamp() ELSE m.finished END
    WHERE m.migration_id = migration_progress.id
  $$;
@comment migration_progress@

-- On any shard.

@call unsettled_ranges@
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT count(*) FROM tessera_internal.range_deletions()) + (SELECT count(*) FROM tessera.migration_coordinator)
      + (SELECT count(*) FROM tessera.migration_recipient)
  $$;
@comment unsettled_ranges@

-- Views.

CREATE FUNCTION tessera_internal.migration_slots(OUT pid int4, OUT migration_id uuid, OUT side text, OUT phase text, OUT rows int8, OUT bytes int8,
                                                 OUT mods int8, OUT backlog int8, OUT lag_ms float8, OUT gate_attempts int4, OUT pause_ms float8,
                                                 OUT waiting_for text, OUT started timestamptz, OUT memory int8, OUT memory_peak int8,
                                                 OUT rows_total int8)
                                                 RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_migration_slots' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_internal.migration_slots() IS 'source of the view tessera.stat_progress_migration';

CREATE VIEW tessera.stat_progress_migration AS
  SELECT s.pid, d.oid AS datid, d.datname, s.migration_id, s.side, s.phase, s.rows AS rows_done, s.rows_total, s.bytes AS bytes_done,
         s.mods AS mods_done, s.backlog AS backlog_bytes, s.memory AS memory_bytes, s.memory_peak AS memory_peak_bytes, s.lag_ms,
         s.gate_attempts, s.pause_ms, s.waiting_for, s.started
  FROM tessera_internal.migration_slots() AS s, pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database();
COMMENT ON VIEW tessera.stat_progress_migration IS 'migrations that this node donates or receives at present, and how far they are';

CREATE VIEW tessera_internal.migrations AS
  SELECT m.migration_id AS id, t.relid::pg_catalog.regclass AS table_name, m.schema_name,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN r1.min END AS min,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN r1.max END AS max,
         pg_catalog.cardinality(m.ranges) AS ranges, d.name AS donor, r.name AS recipient,
         m.state, coalesce(s.phase, m.phase) AS phase, coalesce(greatest(s.rows, m.rows), m.rows) AS rows,
         coalesce(greatest(s.bytes, m.bytes), m.bytes) AS bytes,
         coalesce(greatest(s.mods, m.mods), m.mods) AS mods, m.pause_ms, coalesce(s.waiting_for, m.waiting_for) AS waiting_for,
         -- errors may name addresses, and keys of rows
         CASE WHEN m.error IS NULL OR pg_catalog.pg_has_role('tessera_admin', 'USAGE') THEN m.error
              ELSE pg_catalog.concat_ws(' ', 'error', pg_catalog."substring"(m.error, '^([0-9A-Z]{5}):')) END AS error,
         m.started, m.finished, m.rows_total, m.bytes_total
  FROM tessera.migration m
  LEFT JOIN tessera_internal.migration_slots() s ON s.migration_id = m.migration_id AND s.side = 'donor'
  LEFT JOIN tessera.cluster_table t USING (table_id)
  CROSS JOIN LATERAL (SELECT o.group_id, o.min, o.max FROM pg_catalog.unnest(m.ranges) WITH ORDINALITY AS o (group_id, epoch, min, max, n)
                      ORDER BY o.group_id IS DISTINCT FROM t.group_id, o.n LIMIT 1) AS r1
  LEFT JOIN tessera_internal.group_keys k ON k.group_id = r1.group_id
  LEFT JOIN tessera.node d ON d.node_id = m.donor
  LEFT JOIN tessera.node r ON r.node_id = m.recipient
  ORDER BY m.started, m.migration_id;
COMMENT ON VIEW tessera_internal.migrations IS
  'what this node has of tessera.migrations: all of it on the config node; for the extension''s own queries and monitoring';

CREATE VIEW tessera.migrations AS
  SELECT v.* FROM tessera_internal.migrations AS v WHERE tessera_internal.on_config_node('migrations');
COMMENT ON VIEW tessera.migrations IS
  'migrations, running and ended; min and max: of the first range, of so many ranges, to who may read the key; '
  '..._total: estimates; on the config node, an error elsewhere';

REVOKE ALL ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool, bool),
  tessera.move_chunk(regclass, tessera.bound, text, bool),
  tessera.move_schema(text, text, bool, bool),
  tessera.cancel_migration(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool, bool),
  tessera.move_chunk(regclass, tessera.bound, text, bool),
  tessera.move_schema(text, text, bool, bool),
  tessera.cancel_migration(uuid) TO tessera_admin;

