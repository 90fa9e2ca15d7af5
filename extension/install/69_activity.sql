-- Who does what on all nodes, and who waits for whom (src/admin/cluster_activity.c). Each node says what its own pg_stat_activity would show to the
-- role that asks; the views put together what belongs to one client's session.

CREATE FUNCTION tessera_internal.declared_waits(OUT pid int4, OUT since timestamptz, OUT node_id int4, OUT awaited int4) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_declared_waits';
COMMENT ON FUNCTION tessera_internal.declared_waits() IS
  'statements of this node that ask for locks on several nodes in short attempts, and for which processes of which nodes they wait';

-- client_node, client_pid: the session that a process of an internal connection works for; busy: it runs something, or is in a transaction. These are
-- no secret, as pg_locks is none. The connection that asks is left out.
CREATE FUNCTION tessera_internal.processes_here(by name) RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_agg(jsonb_build_object('pid', a.pid, 'usename', a.usename, 'datname', a.datname, 'application', nullif(a.application_name, ''),
             'is_client', a.backend_type = 'client backend' AND o.pid IS NULL,
             'client_node', CASE WHEN o.client_pid <> 0 THEN o.node_id END, 'client_pid', nullif(o.client_pid, 0),
             'busy', a.state IS DISTINCT FROM 'idle') ||
           CASE WHEN r.may_see THEN
             jsonb_build_object('client_addr', host(a.client_addr), 'state', a.state, 'query_start', a.query_start,
               'wait', a.wait_event_type || ':' || a.wait_event, 'query', a.query, 'session', u.session)
           ELSE jsonb_build_object('query', '<insufficient privilege>') END)
  FROM pg_stat_activity a
    CROSS JOIN LATERAL (SELECT pg_has_role(by, 'pg_read_all_stats', 'USAGE') OR coalesce(pg_has_role(by, a.usesysid, 'USAGE'), false) AS may_see) r
    LEFT JOIN tessera_internal.session_origins() o ON o.pid = a.pid
    LEFT JOIN (SELECT DISTINCT ON (s.pid) s.pid, s.session FROM tessera_internal.session_uses_here() s WHERE s.pid <> 0 ORDER BY s.pid, s.used DESC) u
      ON u.pid = a.pid
  WHERE a.datname = current_database() AND (o.pid IS NULL OR a.pid <> pg_backend_pid())
$$;
COMMENT ON FUNCTION tessera_internal.processes_here(name) IS
  'processes of this node: what everybody may know of them, and the rest of those that the role may see in pg_stat_activity';

-- blocker: a process here; else gid: a prepared transaction here, with when and by whom it was prepared; else of the process holding_pid of
-- holding_node, for whose locks, on whatever node, the waiter asks in attempts. Of who waits for a row the server says which transaction has it; of
-- the first one that waits also which table it is in, as that one has locked the place of the row meanwhile.
CREATE FUNCTION tessera_internal.waits_here() RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  WITH lock AS MATERIALIZED (SELECT l.* FROM pg_locks l),
  waiting AS MATERIALIZED (
    SELECT coalesce(a.leader_pid, l.pid) AS waiter, coalesce(l.relation, t.relation)::regclass::text AS relation,
           CASE WHEN l.locktype = 'relation' THEN l.mode
                WHEN l.locktype = 'tuple' OR t.relation IS NOT NULL THEN 'row'
                WHEN l.locktype = 'advisory' THEN format('advisory %s:%s:%s', l.classid, l.objid, l.objsubid)
                ELSE l.locktype END AS lock,
           l.waitstart AS since, l AS wanted, b.pid AS blocker
    FROM lock l
      JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database()
      LEFT JOIN LATERAL (SELECT x.relation FROM lock x WHERE x.pid = l.pid AND x.locktype = 'tuple' AND x.granted LIMIT 1) t
        ON l.locktype = 'transactionid'
      CROSS JOIN LATERAL (SELECT DISTINCT p.pid FROM unnest(pg_blocking_pids(l.pid)) AS p (pid)) b
    WHERE NOT l.granted),
  -- as src/backend/storage/lmgr/lock.c of the server has it: modes by their strength, and which conflict with each
  mode (name, conflicts) AS (VALUES
    ('AccessShareLock', '{AccessExclusiveLock}'::text[]),
    ('RowShareLock', '{ExclusiveLock,AccessExclusiveLock}'),
    ('RowExclusiveLock', '{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'),
    ('ShareUpdateExclusiveLock', '{ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'),
    ('ShareLock', '{RowExclusiveLock,ShareUpdateExclusiveLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'),
    ('ShareRowExclusiveLock', '{RowExclusiveLock,ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'),
    ('ExclusiveLock',
     '{RowShareLock,RowExclusiveLock,ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'),
    ('AccessExclusiveLock', '{AccessShareLock,RowShareLock,RowExclusiveLock,ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,'
     'AccessExclusiveLock}'))
  SELECT jsonb_agg(to_jsonb(found))
  FROM (
    SELECT w.waiter, w.since, w.relation, w.lock, w.blocker, NULL::text AS gid, NULL::timestamptz AS prepared, NULL::name AS owner,
           NULL::int4 AS holding_node, NULL::int4 AS holding_pid
    FROM waiting w WHERE w.blocker <> 0
    UNION
    SELECT w.waiter, w.since, w.relation, w.lock, NULL, p.gid, p.prepared, r.rolname, NULL, NULL
    FROM waiting w
      JOIN mode m ON m.name = (w.wanted).mode
      JOIN lock h ON h.pid IS NULL AND h.granted AND h.mode = ANY (m.conflicts) AND h.locktype = (w.wanted).locktype
        AND (h.database, h.relation, h.page, h.tuple, h.virtualxid, h.transactionid, h.classid, h.objid, h.objsubid) IS NOT DISTINCT FROM
          ((w.wanted).database, (w.wanted).relation, (w.wanted).page, (w.wanted).tuple, (w.wanted).virtualxid, (w.wanted).transactionid,
           (w.wanted).classid, (w.wanted).objid, (w.wanted).objsubid)
      -- a prepared transaction keeps the virtual id under which it ran, and the lock on its own id
      JOIN lock x ON x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = h.virtualtransaction
      -- not the view, which shows clients what they have prepared in the cluster
      JOIN pg_prepared_xact() p ON p.transaction = x.transactionid
      LEFT JOIN pg_roles r ON r.oid = p.ownerid
    WHERE w.blocker = 0
    UNION
    SELECT d.pid, d.since, NULL, 'of several nodes', NULL, NULL, NULL, NULL, d.node_id, d.awaited FROM tessera_internal.declared_waits() d
  ) AS found
$$;
COMMENT ON FUNCTION tessera_internal.waits_here() IS 'processes of this node that wait for locks, and for whose';

-- clients_gids: on the config node, under which names clients have prepared what has internal ones
CREATE FUNCTION tessera_internal.activity_here(by name, waits bool) RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object('processes', tessera_internal.processes_here(by)) ||
    CASE WHEN waits THEN
      jsonb_build_object('waits', tessera_internal.waits_here(), 'clients_gids',
        (SELECT jsonb_object_agg(d.gid, d.user_gid) FROM tessera.transaction_decision d WHERE d.outcome = 'prepared' AND d.user_gid IS NOT NULL))
    ELSE '{}' END)
$$;
COMMENT ON FUNCTION tessera_internal.activity_here(name, bool) IS 'what the call activity answers, for who sees all of pg_stat_activity';

CREATE FUNCTION tessera_internal.cluster_facts(waits bool, OUT node_id int4, OUT node name, OUT trouble text, OUT facts jsonb) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_cluster_facts';
COMMENT ON FUNCTION tessera_internal.cluster_facts(bool) IS
  'source of the views tessera.cluster_activity and tessera.lock_waits: what each node says';

CREATE VIEW tessera.cluster_activity AS
  WITH said AS MATERIALIZED (SELECT f.* FROM tessera_internal.cluster_facts(false) f),
  process AS MATERIALIZED (
    SELECT s.node_id, s.node, p.*
    FROM said s CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.facts -> 'processes') AS p (pid int4, usename name, datname name, application text,
      client_addr inet, state text, query_start timestamptz, wait text, query text, session uuid, is_client bool, client_node int4, client_pid int4,
      busy bool))
  SELECT c.node, c.pid, c.usename, c.datname, c.application, c.client_addr, c.state, c.query_start::timestamptz(0) AS query_start, c.wait,
         CASE WHEN c.state IS NOT NULL THEN
           (SELECT pg_catalog.string_agg(p.node || ':' || p.pid, ', ' ORDER BY p.node, p.pid) FROM process p
            WHERE p.client_node = c.node_id AND p.client_pid = c.pid AND p.busy)
         END AS parts,
         c.session, c.query, NULL::text AS trouble
  FROM process c WHERE c.is_client
  UNION ALL
  SELECT s.node, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, s.trouble FROM said s WHERE s.trouble IS NOT NULL
  ORDER BY 1, 2;
COMMENT ON VIEW tessera.cluster_activity IS
  'sessions of clients on all nodes, as pg_stat_activity of each node shows them to the current user; a node that has not answered within 5 s '
  'has a row that says why';

CREATE VIEW tessera.lock_waits AS
  WITH said AS MATERIALIZED (SELECT f.* FROM tessera_internal.cluster_facts(true) f),
  process AS MATERIALIZED (
    SELECT s.node_id, p.*
    FROM said s CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.facts -> 'processes') AS p (pid int4, usename name, query text, client_node int4,
      client_pid int4)),
  prepared AS MATERIALIZED (SELECT g.* FROM said s CROSS JOIN LATERAL pg_catalog.jsonb_each_text(s.facts -> 'clients_gids') AS g (gid, user_gid)),
  -- of processes that work for a session of another node: that one
  wait AS MATERIALIZED (
    SELECT s.node AS on_node, w.relation, w.lock, w.since, w.prepared, w.owner,
           coalesce((SELECT g.user_gid FROM prepared g WHERE g.gid || '_' || s.node_id = w.gid), w.gid) AS gid,
           coalesce(a.client_node, s.node_id) AS waiting_node, coalesce(a.client_pid, w.waiter) AS waiting_pid,
           coalesce(w.holding_node, b.client_node, CASE WHEN w.blocker IS NOT NULL THEN s.node_id END) AS blocking_node,
           coalesce(w.holding_pid, b.client_pid, w.blocker) AS blocking_pid
    FROM said s
      CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.facts -> 'waits') AS w (waiter int4, since timestamptz, relation text, lock text,
        blocker int4, gid text, prepared timestamptz, owner name, holding_node int4, holding_pid int4)
      LEFT JOIN process a ON a.node_id = s.node_id AND a.pid = w.waiter
      LEFT JOIN process b ON b.node_id = s.node_id AND b.pid = w.blocker)
  SELECT wn.name AS node, w.waiting_pid AS pid, a.usename, bn.name AS by_node, w.blocking_pid AS by_pid, coalesce(b.usename, w.owner) AS by_user,
         w.gid, w.on_node, w.relation, w.lock, w.since::timestamptz(0) AS since,
         pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - w.prepared) AS prepared_for, a.query, b.query AS by_query,
         NULL::text AS trouble
  FROM wait w
    LEFT JOIN process a ON a.node_id = w.waiting_node AND a.pid = w.waiting_pid
    LEFT JOIN process b ON b.node_id = w.blocking_node AND b.pid = w.blocking_pid
    LEFT JOIN tessera.node wn ON wn.node_id = w.waiting_node
    LEFT JOIN tessera.node bn ON bn.node_id = w.blocking_node
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, s.node, NULL, NULL, NULL, NULL, NULL, NULL, s.trouble FROM said s WHERE s.trouble IS NOT NULL
  ORDER BY 11, 1, 2, 4, 5;
COMMENT ON VIEW tessera.lock_waits IS
  'who waits for whose lock, on whatever node, a row for each who is in the way: sessions of clients, whichever processes on other nodes wait for '
  'them, and prepared transactions; what pg_stat_activity of each node shows to the current user; a node that has not answered within 5 s has a row '
  'that says why';

CREATE FUNCTION tessera.cancel(node text, pid int4) RETURNS boolean
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_cancel';
COMMENT ON FUNCTION tessera.cancel(text, int4) IS
  'cancels what a session runs on whatever node, as pg_cancel_backend does there, by the caller''s rights; false: there is no such process';

CREATE FUNCTION tessera.terminate(node text, pid int4) RETURNS boolean
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_terminate';
COMMENT ON FUNCTION tessera.terminate(text, int4) IS
  'ends a session on whatever node, as pg_terminate_backend does there, by the caller''s rights; false: there is no such process';
