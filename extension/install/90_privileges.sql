-- Privileges. Everybody may look at the catalog, without addresses: they can hold passwords. Changes go through functions, which ask for tessera_admin
-- (a check in C: membership may be inherited) and act as the catalog's owner; nobody else writes a row. Functions between nodes ask for tessera_internal.
--
-- pg_extension_config_dump is not used: what the catalog holds is true of this database in this place only. A dump restored elsewhere must not take itself for
-- a node (identity), and rows without it mean nothing. A cluster is backed up by its nodes' physical backups.

GRANT USAGE ON SCHEMA tessera TO PUBLIC;

GRANT SELECT ON tessera.schema_placement, tessera.table_group, tessera.cluster_table, tessera.chunk, tessera.placement, tessera.migration,
  tessera.migration_outcome, tessera.setting, tessera.changelog_entry TO PUBLIC;
GRANT SELECT (node_id, name, is_shard, is_config, draining, system_id, database, timeline, incarnation, added) ON tessera.node TO PUBLIC;
GRANT SELECT (singleton, cluster_id, cluster, node_id, node, is_config, term, database_oid, timeline, incarnation) ON tessera.identity TO PUBLIC;
GRANT SELECT ON tessera.shards, tessera.routers, tessera.schemas, tessera.tables, tessera.chunks, tessera.chunk_distribution, tessera.changelog,
  tessera.migrations, tessera.stat_progress_migration, tessera.stat_routing, tessera.range_deletions, tessera.internal_sessions, tessera.advisory_locks, tessera.advisory_home, tessera.stat_notifications TO PUBLIC;

REVOKE ALL ON FUNCTION tessera.create_cluster(text, text, text), tessera.add_shard(text, text), tessera.add_router(text, text),
  tessera.update_node(text, text, bool), tessera.remove_shard(text, bool), tessera.remove_router(text, bool), tessera.node_conninfo(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.create_cluster(text, text, text), tessera.add_shard(text, text), tessera.add_router(text, text),
  tessera.update_node(text, text, bool), tessera.remove_shard(text, bool), tessera.remove_router(text, bool), tessera.node_conninfo(text) TO tessera_admin;

REVOKE ALL ON FUNCTION tessera.internal_membership(text, text, text, bool, text), tessera.internal_run_script(text), tessera.internal_join_rows(text, text),
  tessera.internal_join(text), tessera.internal_leave(text, int4), tessera.internal_config_moved(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_membership(text, text, text, bool, text), tessera.internal_run_script(text), tessera.internal_join_rows(text, text),
  tessera.internal_join(text), tessera.internal_leave(text, int4), tessera.internal_config_moved(text) TO tessera_internal;

-- The refresher and the resolver of a node whose role is not a superuser read the catalog of others.
-- Addresses, which can hold passwords, they get from functions, as nodes.
GRANT SELECT ON ALL TABLES IN SCHEMA tessera TO tessera_internal;
REVOKE SELECT ON tessera.node, tessera.identity FROM tessera_internal;
GRANT SELECT (node_id, name, is_shard, is_config, draining, system_id, database, timeline, incarnation, added, server_start) ON tessera.node TO tessera_internal;
GRANT SELECT (singleton, cluster_id, cluster, node_id, node, is_config, term, database_oid, timeline, incarnation, backup_label, promised_term)
  ON tessera.identity TO tessera_internal;
