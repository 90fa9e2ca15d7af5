-- What needs an operator.

CREATE FUNCTION tessera.node_answers(OUT node_id int4, OUT node name, OUT trouble text, OUT took_ms int4) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_node_answers' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.node_answers() IS
  'asks all other nodes at once whether they are there; trouble: why one has not answered within 5 s, NULL: it has; took_ms: how long that took';

CREATE VIEW tessera.health AS
  SELECT v.severity, v.subject, v.problem, v.what_to_do FROM (
    SELECT 'error' AS severity, 'setting ' || s.setting AS subject,
           pg_catalog.format('it is %s, and must be %s', s.current, s.needed) AS problem,
           'set it in postgresql.conf of this server, and restart it' AS what_to_do
    FROM tessera.check_node() s WHERE NOT s.ok
    UNION ALL
    SELECT 'error', 'catalog of this node', 'the config node was not reached: ' || r.last_error,
           'see that the config node runs, and that tessera.update_node() knows its address'
    FROM tessera.refresh_status() r WHERE r.last_error IS NOT NULL
    UNION ALL
    SELECT CASE WHEN a.trouble IS NULL THEN 'warning' ELSE 'error' END, 'node ' || a.node,
           CASE WHEN a.trouble IS NULL THEN pg_catalog.format('it is slow: it took %s ms to answer this node', a.took_ms)
             ELSE pg_catalog.format('it does not answer this node%s: %s', ' since ' || tessera_internal.silent_since(a.node_id), a.trouble) END,
           CASE WHEN a.trouble IS NULL THEN 'see what its server and the network between are busy with'
             ELSE 'see that it runs and can be reached from this server, and that tessera.update_node() knows its address' END
    FROM tessera.node_answers() a WHERE a.trouble IS NOT NULL OR a.took_ms > 2000
    UNION ALL
    SELECT 'error', 'this database',
           pg_catalog.format('it was node %s, and was removed from its cluster: statements on its tables are refused', r.node), r.way_out
    FROM (SELECT f.node, 'take it back with tessera.add_shard() or tessera.add_router(), or run DROP EXTENSION tessera here' AS way_out
          FROM tessera.former_membership f
          WHERE NOT EXISTS (SELECT FROM tessera.identity i WHERE i.database_oid = tessera.this_database())
          UNION ALL
          -- it could not be told
          SELECT i.node, 'run DROP EXTENSION tessera CASCADE here, or drop it'
          FROM tessera.identity i
          WHERE i.database_oid = tessera.this_database() AND NOT i.is_config AND EXISTS (SELECT FROM tessera.node)
            AND NOT EXISTS (SELECT FROM tessera.node n WHERE n.node_id = i.node_id)) AS r
    UNION ALL
    SELECT 'error', 'prepared transaction ' || p.gid, pg_catalog.format('it has been prepared on this node since %s', p.prepared),
           'see that all nodes run; tessera.resolve_transactions() ends those of the cluster, COMMIT PREPARED or ROLLBACK PREPARED those of clients'
    FROM pg_catalog.pg_prepared_xacts p
    WHERE p.database = pg_catalog.current_database() AND p.prepared < pg_catalog.clock_timestamp() - interval '5 minutes'
    UNION ALL
    -- locks of names: objects with this number of a column (src/config/name_locks.c)
    SELECT 'warning', 'prepared transaction ' || coalesce(d.user_gid, p.gid),
           pg_catalog.format('role %s has prepared it at %s, and it holds %s names of DDL: DDL on the same objects fails, and no node comes or goes',
                             coalesce(d.owner, pg_catalog.pg_get_userbyid(p.ownerid)), p.prepared, l.names),
           pg_catalog.format('COMMIT PREPARED or ROLLBACK PREPARED %L, as that role or as a superuser', coalesce(d.user_gid, p.gid))
    FROM (SELECT x.transactionid, pg_catalog.count(*) AS names
          FROM pg_catalog.pg_locks n JOIN pg_catalog.pg_locks x USING (virtualtransaction)
          WHERE n.locktype = 'object' AND n.objsubid = 3537 AND n.classid < 4294967280 AND n.pid IS NULL
            AND n.database = (SELECT o.oid FROM pg_catalog.pg_database o WHERE o.datname = pg_catalog.current_database())
            AND x.locktype = 'transactionid' AND x.pid IS NULL
          GROUP BY x.transactionid) AS l
      JOIN pg_catalog.pg_prepared_xact() p ON p.transaction = l.transactionid
      LEFT JOIN tessera.transaction_decision d ON d.user_gid IS NOT NULL AND d.gid = pg_catalog.regexp_replace(p.gid, '_[0-9]+$', '')
    WHERE p.prepared < pg_catalog.clock_timestamp() - pg_catalog.current_setting('tessera.prepared_ddl_warning')::interval
    UNION ALL
    SELECT 'error', 'replication slot ' || s.slot_name, 'it is of a migration that has no process, and keeps WAL',
           'see the log of this server: the worker "migration recovery" drops it'
    FROM pg_catalog.pg_replication_slots s
    WHERE s.slot_name ~ '^tessera_[0-9a-f]{32}$' AND NOT s.active AND s.database = pg_catalog.current_database()
      AND NOT EXISTS (SELECT FROM tessera.migration_coordinator c WHERE c.slot = s.slot_name)
    UNION ALL
    SELECT CASE WHEN s.wal_status = 'lost' THEN 'error' ELSE 'warning' END, 'replication slot ' || s.slot_name,
           CASE WHEN s.wal_status = 'lost' THEN 'WAL that it needs has been removed'
             WHEN s.active THEN pg_catalog.format('who reads it is behind: it keeps %s of WAL', pg_catalog.pg_size_pretty(s.kept))
             ELSE pg_catalog.format('%s reads it, and it keeps %s of WAL', CASE s.slot_type WHEN 'physical' THEN 'no standby' ELSE 'nobody' END,
                                    pg_catalog.pg_size_pretty(s.kept)) END,
           CASE WHEN s.wal_status = 'lost' THEN 'make the standby or subscriber that used it anew, and drop it: pg_drop_replication_slot()'
             ELSE 'see to the standby or subscriber that uses it; if that is gone for good: pg_drop_replication_slot()' END
    FROM (SELECT r.*, pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                                                   ELSE pg_catalog.pg_current_wal_lsn() END, r.restart_lsn) AS kept
          FROM pg_catalog.pg_replication_slots r) AS s
    WHERE s.wal_status = 'lost' OR s.kept > pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_wal_size'))
      OR (NOT s.active AND s.kept IS NOT NULL AND s.slot_name !~ '^tessera_[0-9a-f]{32}$')
    UNION ALL
    -- what the WAL senders do is told to those with the rights of pg_read_all_stats only
    SELECT 'error', 'synchronous standbys',
           pg_catalog.format('%s of them are connected, and commits wait for %s: %s', w.connected, w.needed,
                             pg_catalog.current_setting('synchronous_standby_names')),
           'start the standbys, or take those that are gone out of synchronous_standby_names, and reload'
    FROM (SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')) AS connected,
                 coalesce(pg_catalog.substring(pg_catalog.current_setting('synchronous_standby_names'),
                                               '(?i)^\s*(?:first\M|any\M)?\s*([0-9]+)\s*\(')::int4, 1) AS needed) AS w
    WHERE w.connected < w.needed AND pg_catalog.current_setting('synchronous_standby_names') !~ '^\s*$' AND NOT pg_catalog.pg_is_in_recovery()
      AND pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
    UNION ALL
    SELECT s.severity, 'subscription ' || s.subname, s.problem, s.what_to_do
    FROM (SELECT u.subname,
                 CASE WHEN t.tables IS NOT NULL THEN 'error' WHEN u.subenabled THEN 'warning' ELSE 'notice' END AS severity,
                 CASE WHEN t.tables IS NOT NULL THEN
                     pg_catalog.format('it does not run, as it would write into tables of the cluster: %s', t.tables)
                   WHEN u.subenabled THEN
                     pg_catalog.format('it has no worker: it fails again and again, or starts just now. Errors so far: %s',
                                       coalesce(c.apply_error_count + c.sync_error_count, 0))
                   ELSE 'it is disabled: its slot at the publisher keeps WAL there' END AS problem,
                 CASE WHEN t.tables IS NOT NULL THEN
                     'take them out of the publication, then ALTER SUBSCRIPTION ... ENABLE, if it is disabled, and ... REFRESH PUBLICATION'
                   WHEN u.subenabled THEN 'the log of this server says why'
                   ELSE 'ALTER SUBSCRIPTION ... ENABLE, or DROP SUBSCRIPTION; if it was disabled by an error, the log of this server says which'
                   END AS what_to_do,
                 t.tables IS NULL AND u.subenabled AND EXISTS (SELECT FROM pg_catalog.pg_stat_subscription w
                                                               WHERE w.subid = u.oid AND w.relid IS NULL AND w.pid IS NOT NULL) AS works
          FROM pg_catalog.pg_subscription u
            LEFT JOIN pg_catalog.pg_stat_subscription_stats c ON c.subid = u.oid
            CROSS JOIN LATERAL (SELECT pg_catalog.string_agg(r.srrelid::pg_catalog.regclass::text, ', ' ORDER BY r.srrelid) AS tables
                                FROM pg_catalog.pg_subscription_rel r
                                WHERE r.srsubid = u.oid AND EXISTS (SELECT FROM tessera.cluster_table o
                                  WHERE o.relid = coalesce(pg_catalog.pg_partition_root(r.srrelid), r.srrelid))) AS t
          WHERE u.subdbid = (SELECT o.oid FROM pg_catalog.pg_database o WHERE o.datname = pg_catalog.current_database())) AS s
    WHERE NOT s.works
    UNION ALL
    SELECT 'warning', pg_catalog.format('index %s of %s', i.indexrelid::regclass, i.indrelid::regclass),
           'it is not valid on this node: it is being built, or that has failed',
           pg_catalog.format('if no operation of it runs (tessera.ddl_operations): REINDEX INDEX CONCURRENTLY %s, or DROP INDEX',
                             i.indexrelid::regclass)
    FROM pg_catalog.pg_index i JOIN tessera.cluster_table t ON t.relid = coalesce(pg_catalog.pg_partition_root(i.indrelid), i.indrelid)
      JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    WHERE NOT i.indisvalid AND x.relkind = 'i'
    UNION ALL
    SELECT 'warning', pg_catalog.format('operation: %s', o.statement), pg_catalog.format('it has failed %s times, at last: %s', o.attempts, o.error),
           'mend the cause; it goes on by itself'
    FROM tessera.ddl_operation o WHERE o.state = 'running' AND o.attempts > 0
    UNION ALL
    SELECT 'warning', pg_catalog.format('migration %s of %s', m.id, m.table_name),
           pg_catalog.format('it has run since %s%s', m.started, ', and waits for ' || m.waiting_for),
           'end what it waits for, or the migration: tessera.cancel_migration()'
    FROM tessera_internal.migrations m WHERE m.state = 'running' AND m.started < pg_catalog.clock_timestamp() - interval '1 hour'
    UNION ALL
    SELECT 'warning', CASE WHEN b.schema_name IS NOT NULL THEN pg_catalog.format('%s of schema %s', b.kind, b.schema_name)
             ELSE pg_catalog.format('%s of %s%s%s', b.kind, b.table_name, ' from ' || b.min::text, ' to ' || b.max::text) END,
           pg_catalog.format('it has failed %s times, at last: %s', b.attempts, b.waiting_for),
           'mend the cause; it is tried again by itself'
    FROM tessera_internal.balancer_status b
    WHERE b.attempts >= 3 AND (b.state = 'queued' OR b.state = 'failed' AND b.not_before > pg_catalog.clock_timestamp())
    UNION ALL
    SELECT 'error', pg_catalog.format('table group of %s', coalesce(b.table_name::text, 'no table')),
           pg_catalog.format('the balancer leaves it out, as it cannot be read: %s', b.waiting_for),
           'tessera.check_consistency() says what is wrong with its chunks; wrong rows of tessera.chunk_estimate may be deleted: shards report anew'
    FROM tessera_internal.balancer_status b WHERE b.kind = 'read' AND b.state = 'failed'
    UNION ALL
    SELECT 'error', pg_catalog.format('table group of %s', t.table_name),
           pg_catalog.format('this shard neither measures nor splits its chunks since %s, as they cannot be read: %s', u.since, u.error),
           'tessera.reload_routing() fetches them from the config node, tessera.check_consistency() says what is wrong with them there'
    FROM tessera.unreadable_group u
      CROSS JOIN LATERAL (SELECT pg_catalog.min(o.relid::pg_catalog.regclass::text) AS table_name FROM tessera.cluster_table o
                          WHERE o.group_id = u.group_id) AS t
    WHERE t.table_name IS NOT NULL
    UNION ALL
    SELECT 'warning', pg_catalog.format('chunk of %s%s', c.table_name, ' from ' || c.min::text), 'it is jumbo: too large, and it could not be split',
           'choose a key with more values; or, when rows with other keys have come, tessera.clear_jumbo()'
    FROM tessera.chunks c WHERE c.jumbo
    UNION ALL
    SELECT 'notice', pg_catalog.concat_ws(' ', 'key', h.hot_key::text, 'of', h.table_name),
           pg_catalog.format('it is as much as %s sessions at work on shard %s, which no split can spread',
                             pg_catalog.round(h.load::numeric, 1), h.shard),
           'choose a key with more columns, or see to it that less is done with this one; tessera.hot_chunks shows the load'
    FROM tessera_internal.hot_chunks h
    -- by the advice, as the key itself is not for all who see this view
    WHERE h.load >= 0.5 AND h.advice LIKE 'one key has most of the load: no split%'
      AND h.measured > pg_catalog.clock_timestamp() - interval '10 minutes'
    UNION ALL
    SELECT 'warning', 'shard ' || n.name, 'it is being removed, but the sequences of schema ' || p.schema_name || ' have not left it yet',
           'see that it runs, and the shard that has the schema now; it is tried again by itself'
    FROM tessera.node n JOIN tessera.schema_placement p ON n.node_id = p.sequence_home AND n.node_id <> p.node_id WHERE n.draining
    UNION ALL
    SELECT 'warning', 'shard ' || n.name,
           pg_catalog.format('it is being removed, but is the lead of the replicated table %I.%I, which keeps its schema there', t.schema_name,
                             t.table_name),
           pg_catalog.format('tessera.unreplicate_table(''%I.%I''), and tessera.replicate_table() again when the schema has moved', t.schema_name,
                             t.table_name)
    FROM tessera.node n JOIN tessera.schema_placement p USING (node_id) JOIN tessera.cluster_table t USING (schema_name)
    WHERE n.draining AND t.replicated
    UNION ALL
    SELECT 'warning', 'shard ' || n.name,
           pg_catalog.format('it is being removed, but no other shard of zone %s may have its rows of %s', z.zone, z.table_name),
           'add a shard to the zone with tessera.add_zone(), or give the range up with tessera.set_zone_range()'
    FROM tessera.node n JOIN tessera.zone_shard m USING (node_id) JOIN tessera_internal.zone_ranges z USING (zone)
    WHERE n.draining AND NOT EXISTS (SELECT FROM tessera.zone_shard o JOIN tessera.node s USING (node_id) WHERE o.zone = z.zone AND NOT s.draining)
    UNION ALL
    SELECT 'notice', 'balancer', CASE s.name WHEN 'balancer' THEN 'it is stopped' ELSE 'it is paused until ' || s.value END,
           CASE s.name WHEN 'balancer' THEN 'tessera.start_balancer()' ELSE 'tessera.resume_balancer()' END
    FROM tessera.setting s
    WHERE EXISTS (SELECT FROM tessera.identity i WHERE i.is_config) AND CASE s.name WHEN 'balancer' THEN s.value = 'off'
                      WHEN 'balancer_paused_until' THEN s.value::timestamptz > pg_catalog.clock_timestamp() END
  ) AS v;
COMMENT ON VIEW tessera.health IS
  'one row for each thing that needs an operator, and what to do; none is good. What is of one node is shown on that node, moves, the balancer and '
  'prepared transactions that hold names of DDL on the config node. It asks all other nodes at once whether they are there, for 5 s at most';

REVOKE ALL ON tessera.health FROM PUBLIC;
GRANT SELECT ON tessera.health TO tessera_admin;
REVOKE ALL ON tessera.hot_chunks FROM PUBLIC;
GRANT SELECT ON tessera.hot_chunks TO tessera_admin;
