-- Privileges. Everybody may look at the catalog, without addresses, which can hold passwords, and without keys of rows. Changes go through functions,
-- which ask for tessera_admin (a check in C: membership may be inherited) and act as the catalog's owner; nobody else writes a row. Functions between
-- nodes ask for tessera_internal.
--
-- pg_extension_config_dump is not used: what the catalog holds is true of this database in this place only. A dump restored elsewhere must not take
-- itself for a node (identity), and rows without it mean nothing. A cluster is backed up by its nodes' physical backups.

GRANT USAGE ON SCHEMA tessera, tessera_internal TO PUBLIC;

-- Between nodes. A statement's calls run as its effective user: those are everybody's, and refuse whoever is not a node.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tessera_internal FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tessera_internal TO tessera_internal;
-- These are called inside other functions, by their owner.
REVOKE EXECUTE ON FUNCTION tessera_internal.doubt_catalog(), tessera_internal.backup_label(), tessera_internal.catalog_digests(),
  tessera_internal.await_catalog(), tessera_internal.catalog_differences(jsonb, jsonb, bool), tessera_internal.declared_waits(),
  tessera_internal.processes_here(name), tessera_internal.waits_here(), tessera_internal.activity_here(name, bool)
  FROM tessera_internal;
@grants@
-- Sources of views that everybody may read.
GRANT EXECUTE ON FUNCTION tessera_internal.migration_slots(), tessera_internal.chunk_bytes(), tessera_internal.session_origins(),
  tessera_internal.stat_routing(), tessera_internal.node_connections(),
  tessera_internal.stat_notifications(), tessera_internal.range_deletions(), tessera_internal.ddl_operations(), tessera_internal.sessions(),
  tessera_internal.keys_visible(uuid), tessera_internal.on_config_node(text), tessera_internal.silent_since(int4),
  tessera_internal.cluster_facts(bool) TO PUBLIC;

-- They stand in statements that routers send for everybody; there is nothing to them but the value.
GRANT EXECUTE ON FUNCTION tessera_internal.exact_text("any"), tessera_internal.exact_text_in_leader("any") TO PUBLIC;

GRANT EXECUTE ON FUNCTION tessera_internal.clocks() TO tessera_admin;
-- It asks itself: who may read tessera.health, or is an administrator.
GRANT EXECUTE ON FUNCTION tessera.node_answers() TO PUBLIC;

GRANT SELECT ON tessera.schema_placement, tessera.table_group, tessera.cluster_table, tessera.migration_outcome, tessera.setting,
  tessera.shard_weight, tessera.zone_shard TO PUBLIC;
-- Bounds are keys of rows, which few may read: not for everybody, nor what may name them or addresses, as errors do. The views show bounds to who may
-- read the key (src/admin/key_visibility.c).
GRANT SELECT (group_id, node_id, major, minor, jumbo, moved, history) ON tessera.chunk TO PUBLIC;
GRANT SELECT (group_id, node_id, bytes, statements, load, measured) ON tessera.chunk_estimate TO PUBLIC;
GRANT SELECT (group_id, term, epoch, major) ON tessera.placement TO PUBLIC;
GRANT SELECT (migration_id, table_id, schema_name, donor, recipient, term, donor_incarnation, recipient_incarnation, verify, caller_pid, started,
  finished, state, phase, rows, bytes, mods, pause_ms, waiting_for, yields, bytes_total, rows_total, share, rate, rate_reported)
  ON tessera.migration TO PUBLIC;
GRANT SELECT (action_id, kind, schema_name, group_id, table_id, donor, recipient, reason, detail, by, verify, state, bytes,
  attempts, not_before, migration_id, asked, started, finished) ON tessera.balancer_action TO PUBLIC;
GRANT SELECT (group_id, zone) ON tessera.zone_range TO PUBLIC;
GRANT SELECT (change_id, at, by, what, object, group_id) ON tessera.changelog_entry TO PUBLIC;
GRANT SELECT ON tessera.chunk, tessera.chunk_estimate, tessera.placement, tessera.migration, tessera.balancer_action, tessera.zone_range,
  tessera.changelog_entry TO tessera_admin;
GRANT SELECT (node_id, name, is_shard, is_config, draining, system_id, database, timeline, incarnation, added) ON tessera.node TO PUBLIC;
GRANT SELECT (singleton, cluster_id, cluster, node_id, node, is_config, term, database_oid, timeline, incarnation) ON tessera.identity TO PUBLIC;
GRANT SELECT ON tessera.shards, tessera.routers, tessera.schemas, tessera.tables, tessera.chunks, tessera.chunk_distribution, tessera.changelog,
  tessera.migrations, tessera.stat_progress_migration, tessera.stat_routing, tessera.node_connections, tessera.range_deletions,
  tessera.internal_sessions, tessera.advisory_locks, tessera.advisory_home, tessera.stat_notifications, tessera.balancer_status,
  tessera.draining_shards, tessera.ddl_operations, tessera.sessions, tessera.zones, tessera.zone_ranges,
  tessera.cluster_activity, tessera.lock_waits TO PUBLIC;
-- What the queries in extension/monitoring read on every node.
GRANT SELECT ON tessera_internal.migrations, tessera_internal.chunk_distribution TO PUBLIC;

REVOKE ALL ON FUNCTION tessera.create_cluster(text, text, text), tessera.add_shard(text, text), tessera.add_router(text, text),
  tessera.update_node(text, text, bool), tessera.remove_shard(text, bool), tessera.cancel_remove_shard(text), tessera.remove_router(text, bool),
  tessera.node_conninfo(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.create_cluster(text, text, text), tessera.add_shard(text, text), tessera.add_router(text, text),
  tessera.update_node(text, text, bool), tessera.remove_shard(text, bool), tessera.cancel_remove_shard(text), tessera.remove_router(text, bool),
  tessera.node_conninfo(text) TO tessera_admin;

-- The refresher and the resolver of a node whose role is not a superuser read the catalog of others.
-- Addresses, which can hold passwords, they get from functions, as nodes.
GRANT SELECT ON ALL TABLES IN SCHEMA tessera TO tessera_internal;
REVOKE SELECT ON tessera.node, tessera.identity, tessera.signing_key FROM tessera_internal;
GRANT SELECT (node_id, name, is_shard, is_config, draining, system_id, database, timeline, incarnation, added, server_start) ON tessera.node
  TO tessera_internal;
GRANT SELECT (singleton, cluster_id, cluster, node_id, node, is_config, term, database_oid, timeline, incarnation, backup_label, promised_term)
  ON tessera.identity TO tessera_internal;

-- pg_write_all_data and pg_read_all_data have rights on all tables, but row security holds for them: rows of the catalog are for the functions of the
-- extension to write, which act as its owner; whoever has a grant reads them. Of what not everybody may read whole, because it holds passwords or
-- keys of rows, pg_read_all_data, which has all columns, gets no row. Of signing_key nobody does.
DO $$
DECLARE
  t regclass;
BEGIN
  FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'tessera'::regnamespace AND relkind = 'r' AND relname <> 'signing_key' LOOP
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY readers ON %s FOR SELECT USING (%s)', t,
      CASE WHEN has_table_privilege('public', t, 'SELECT') THEN 'true'
        ELSE $q$NOT pg_has_role('pg_read_all_data', 'USAGE') OR pg_has_role('tessera_admin', 'USAGE') OR pg_has_role('tessera_internal', 'USAGE')$q$
        END);
  END LOOP;
END
$$;
