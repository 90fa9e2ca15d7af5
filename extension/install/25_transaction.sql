-- Transactions over several nodes: the coordinator's decisions, and what finishes prepared transactions that were left behind.

-- Of the transaction at hand, which can be made later no more: readers wait for it.
CREATE FUNCTION tessera_internal.take_commit_time() RETURNS int8
  LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'tessera_own_commit_time';
COMMENT ON FUNCTION tessera_internal.take_commit_time() IS 'cluster time that the commit of this transaction is going to have';

-- Of this server's WAL: another one after each promotion and each restore.
CREATE FUNCTION tessera_internal.timeline() RETURNS int4
  LANGUAGE sql VOLATILE PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp
AS $$ SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int4 $$;
COMMENT ON FUNCTION tessera_internal.timeline() IS 'called by other nodes: timeline of this server';

-- The unique index of the decisions answers: it waits for a coordinator that is still at it and fences one that is gone. Transactions of clients
-- (their gids begin with 75736572 and the config node's timeline): 'prepared' until the client decides; 'check' if this server was promoted since,
-- and may have lost what was decided. With the timeline behind it.
@call transaction_outcome@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
DECLARE
  of_client bool := transaction_gid ~ '^tessera_75736572';
  here int4 := tessera_internal.timeline();
  decision tessera.transaction_decision;
BEGIN
  IF NOT EXISTS (SELECT FROM tessera.identity i WHERE transaction_gid ~ ('^tessera_[0-9a-f]{32}_' || i.node_id || '$')) THEN
    RAISE EXCEPTION 'this node does not coordinate transaction %', transaction_gid USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF of_client AND ('x' || substr(transaction_gid, 17, 8))::bit(32)::int4 <> here
     AND NOT EXISTS (SELECT FROM tessera.transaction_decision d WHERE d.gid = transaction_gid) THEN
    RETURN 'check ' || here;
  END IF;
  INSERT INTO tessera.transaction_decision (gid, outcome, timeline) VALUES (transaction_gid, 'abort', CASE WHEN of_client THEN here END)
    ON CONFLICT DO NOTHING;
  -- A new statement: it sees a row that the insert has waited for.
  SELECT * INTO STRICT decision FROM tessera.transaction_decision d WHERE d.gid = transaction_gid;
  IF NOT of_client THEN
    RETURN decision.outcome;
  END IF;
  RETURN CASE WHEN decision.outcome = 'prepared' AND decision.timeline <> here THEN 'check' ELSE decision.outcome END || ' ' || here;
END
$$;
@comment transaction_outcome@

@call decided_time@
  LANGUAGE sql STABLE STRICT SECURITY DEFINER PARALLEL SAFE
  SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce((SELECT d.commit_time FROM tessera.transaction_decision d WHERE d.gid = transaction_gid AND d.outcome = 'commit'), 0) $$;
@comment decided_time@

-- Transactions that clients prepare (src/transaction/prepared.c). Their home is the config node.
@call prepare_begin@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF EXISTS (SELECT FROM tessera.transaction_decision d WHERE d.user_gid = client_gid AND d.outcome = 'prepared') THEN
    RAISE EXCEPTION 'transaction identifier "%" is already in use', client_gid USING ERRCODE = 'duplicate_object';
  END IF;
  RETURN tessera_internal.timeline();
END
$$;
@comment prepare_begin@

@call prepare_record@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET synchronous_commit = on
AS $$
DECLARE
  violated text;
BEGIN
  IF ('x' || substr(transaction_gid, 17, 8))::bit(32)::int4 <> tessera_internal.timeline() THEN
    RAISE EXCEPTION 'the config node was promoted while the transaction was being prepared' USING ERRCODE = 'transaction_rollback';
  END IF;
  INSERT INTO tessera.transaction_decision (gid, outcome, participants, user_gid, owner, timeline)
    VALUES (transaction_gid, 'prepared', participant_nodes, client_gid, owner_name, tessera_internal.timeline());
EXCEPTION WHEN unique_violation THEN
  GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
  IF violated = 'transaction_decision_user_gid' THEN
    RAISE EXCEPTION 'transaction identifier "%" is already in use', client_gid USING ERRCODE = 'duplicate_object';
  END IF;
  RAISE EXCEPTION 'the transaction took too long to prepare, and was rolled back' USING ERRCODE = 'transaction_rollback';
END
$$;
@comment prepare_record@

-- The decision. evidence: what other nodes know of one that this server may have lost ('none', 'commit', 'abort'); null: not asked.
@call finish_prepared@
  LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
#variable_conflict use_column
DECLARE
  decision tessera.transaction_decision;
  here int4 := tessera_internal.timeline();
  taken int8;
BEGIN
  SELECT * INTO decision FROM tessera.transaction_decision d WHERE d.user_gid = client_gid AND d.outcome = 'prepared' FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'prepared transaction with identifier "%" does not exist', client_gid USING ERRCODE = 'undefined_object';
  END IF;
  IF decision.owner IS DISTINCT FROM user_name AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = user_name AND r.rolsuper) THEN
    RAISE EXCEPTION 'permission denied to finish prepared transaction'
      USING ERRCODE = 'insufficient_privilege', HINT = 'Must be superuser or the user that prepared the transaction.';
  END IF;
  IF decision.timeline <> here AND evidence IS NULL THEN
    RETURN QUERY SELECT decision.gid, 'check', decision.participants::text, here, 0::int8;
    RETURN;
  END IF;
  IF decision.timeline <> here AND evidence <> 'none' THEN
    wanted := evidence;
  END IF;
  IF wanted = 'commit' THEN
    taken := tessera_internal.take_commit_time();
  END IF;
  UPDATE tessera.transaction_decision d SET outcome = wanted, decided = clock_timestamp(), timeline = here, commit_time = taken
    WHERE d.gid = decision.gid;
  RETURN QUERY SELECT decision.gid, wanted, decision.participants::text, here, coalesce(taken, 0);
END
$$;
@comment finish_prepared@

-- After 'check': what other nodes know makes good what was lost here.
@call settle_transaction@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
DECLARE
  here int4 := tessera_internal.timeline();
BEGIN
  INSERT INTO tessera.transaction_decision (gid, outcome, participants, timeline)
    VALUES (transaction_gid, CASE evidence WHEN 'commit' THEN 'commit' ELSE 'abort' END, (SELECT array_agg(n.node_id) FROM tessera.node n), here)
    ON CONFLICT DO NOTHING;
  UPDATE tessera.transaction_decision d SET outcome = CASE evidence WHEN 'none' THEN 'prepared' ELSE evidence END, timeline = here
    WHERE d.gid = transaction_gid AND d.outcome = 'prepared' AND d.timeline <> here;
  RETURN (SELECT d.outcome || ' ' || here FROM tessera.transaction_decision d WHERE d.gid = transaction_gid);
END
$$;
@comment settle_transaction@

-- A participant writes down an outcome before it carries it out, so that it is known if the config node loses it. A decision of an older timeline is
-- refused once a newer one has asked.
@call note_outcome@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
DECLARE
  known text;
BEGIN
  INSERT INTO tessera.transaction_decision AS d (gid, outcome, participants, timeline)
    VALUES (transaction_gid, noted, ARRAY[split_part(transaction_gid, '_', 3)::int4], home_timeline)
    ON CONFLICT (gid) DO UPDATE SET outcome = noted, timeline = home_timeline, decided = clock_timestamp(), finished = NULL
      WHERE d.outcome = 'prepared' AND d.user_gid IS NULL AND d.timeline <= home_timeline;
  SELECT d.outcome INTO STRICT known FROM tessera.transaction_decision d WHERE d.gid = transaction_gid;
  IF known <> noted THEN
    RAISE EXCEPTION 'the decision about transaction % is not valid any more: it is "%" here', transaction_gid,
      known USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
END
$$;
@comment note_outcome@

@call noted_outcome@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
BEGIN
  INSERT INTO tessera.transaction_decision AS d (gid, outcome, participants, timeline)
    VALUES (transaction_gid, 'prepared', ARRAY[split_part(transaction_gid, '_', 3)::int4], home_timeline)
    ON CONFLICT (gid) DO UPDATE SET timeline = home_timeline WHERE d.outcome = 'prepared' AND d.user_gid IS NULL AND d.timeline < home_timeline;
  RETURN (SELECT CASE d.outcome WHEN 'prepared' THEN 'none' ELSE d.outcome END FROM tessera.transaction_decision d WHERE d.gid = transaction_gid);
END
$$;
@comment noted_outcome@

@call prepared_transactions@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
-- the time in a form that any DateStyle and TimeZone reads alike
AS $$ SELECT d.user_gid, to_char(d.decided AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', d.owner
  FROM tessera.transaction_decision d WHERE d.outcome = 'prepared' AND d.user_gid IS NOT NULL $$;
@comment prepared_transactions@

CREATE FUNCTION tessera.list_prepared_transactions() RETURNS TABLE (gid text, prepared timestamptz, owner name)
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'tessera_list_prepared_transactions';
COMMENT ON FUNCTION tessera.list_prepared_transactions() IS 'transactions of this cluster that clients have prepared, as the config node knows them';

-- What clients see as pg_prepared_xacts on a node. A transaction of the cluster has many xids, so none is shown.
CREATE VIEW tessera.prepared_transactions AS
  SELECT NULL::pg_catalog.xid AS transaction, l.gid, l.prepared, l.owner, pg_catalog.current_database() AS database
  FROM tessera.list_prepared_transactions() l
  UNION ALL
  SELECT p.transaction, p.gid, p.prepared, r.rolname, d.datname
  FROM pg_catalog.pg_prepared_xact() p
  LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) p.ownerid
  LEFT JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) p.dbid
  WHERE p.gid OPERATOR(pg_catalog.!~) '^tessera_[0-9a-f]{32}_[0-9]{1,9}_[0-9]{1,9}$';
COMMENT ON VIEW tessera.prepared_transactions IS
  'what pg_prepared_xacts shows on a node: transactions of this cluster that clients have prepared, from every node, and those prepared on this '
  'server outside of the cluster';
GRANT SELECT ON tessera.prepared_transactions TO PUBLIC;

CREATE FUNCTION tessera.resolve_transactions(older_than interval DEFAULT '1 minute') RETURNS TABLE (gid text, outcome text)
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_resolve_transactions';
COMMENT ON FUNCTION tessera.resolve_transactions(interval) IS
  'finishes prepared transactions left behind on this node, as their coordinators decided';
REVOKE ALL ON FUNCTION tessera.resolve_transactions(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.resolve_transactions(interval) TO tessera_admin;

-- Decisions go when nobody can ask for them any more (src/transaction/decision_pruning.c).
CREATE FUNCTION tessera.prune_decisions(older_than interval DEFAULT '1 hour') RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_prune_decisions';
COMMENT ON FUNCTION tessera.prune_decisions(interval) IS
  'deletes decisions of this coordinator that all participants have carried out, with their standbys, this long ago; returns how many';
REVOKE ALL ON FUNCTION tessera.prune_decisions(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.prune_decisions(interval) TO tessera_admin;

@call unfinished_transactions@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(array_agg(p.gid), '{}') FROM pg_catalog.pg_prepared_xact() p WHERE p.gid = ANY (gids)
$$;
@comment unfinished_transactions@

@call prepared_count@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT count(*) FROM pg_prepared_xact() AS p WHERE p.dbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
$$;
@comment prepared_count@

@call part_awaiting@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT p.gid FROM pg_prepared_xact() AS p
    WHERE p.dbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) AND p.gid ~ ('^tessera_[0-9a-f]+_' || coordinator || '_')
    LIMIT 1
$$;
@comment part_awaiting@

@call client_gid@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT d.user_gid FROM tessera.transaction_decision AS d WHERE d.gid = transaction_gid AND d.user_gid IS NOT NULL
$$;
@comment client_gid@

-- A standby that is away is known by its slot.
@call standbys_flushed@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
AS $$
  SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
                     WHERE r.state IN ('startup', 'catchup', 'streaming') AND coalesce(s.slot_type, 'physical') = 'physical'
                       AND (r.flush_lsn >= upto) IS NOT TRUE)
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                     WHERE s.slot_type = 'physical' AND NOT s.active AND s.restart_lsn IS NOT NULL AND (s.restart_lsn >= upto) IS NOT TRUE),
         pg_current_wal_insert_lsn()
$$;
@comment standbys_flushed@

-- Deadlocks over several nodes (src/transaction/deadlock.c).

CREATE VIEW tessera.distributed_transactions AS
  SELECT p.gid,
         n.name AS coordinator,
         p.prepared,
         CASE d.outcome WHEN 'commit' THEN 'committing' WHEN 'abort' THEN 'aborting' ELSE 'prepared' END AS state,
         pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.prepared AS age,
         CASE WHEN d.outcome IN ('commit', 'abort') THEN 'resolver of this node'
              WHEN p.gid OPERATOR(pg_catalog.~) '^tessera_75736572' THEN 'COMMIT PREPARED or ROLLBACK PREPARED of a client'
              ELSE 'decision of ' OPERATOR(pg_catalog.||) coalesce(n.name, 'a removed node') END AS waits_for
  FROM pg_catalog.pg_prepared_xact() p
  JOIN pg_catalog.pg_database b ON b.oid OPERATOR(pg_catalog.=) p.dbid
  LEFT JOIN tessera.node n ON n.node_id OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '_([0-9]+)_[0-9]+$')::int4
  LEFT JOIN tessera.transaction_decision d ON d.gid OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '^(.*)_[0-9]+$')
  WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
    AND p.gid OPERATOR(pg_catalog.~) '^tessera_[0-9a-f]{32}_[0-9]{1,9}_[0-9]{1,9}$'
  UNION ALL
  SELECT d.gid,
         i.name,
         d.decided,
         'committed',
         pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) d.decided,
         'confirmation of ' OPERATOR(pg_catalog.||) (SELECT pg_catalog.string_agg(n.name, ', ' ORDER BY n.node_id) FROM tessera.node n
                                                     WHERE n.node_id OPERATOR(pg_catalog.=) ANY (d.participants))
  FROM tessera.transaction_decision d
  CROSS JOIN (SELECT n.name FROM tessera.identity i JOIN tessera.node n ON n.node_id OPERATOR(pg_catalog.=) i.node_id) i
  WHERE d.finished IS NULL AND d.outcome OPERATOR(pg_catalog.=) 'commit'
    AND d.decided OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '2 minutes'::pg_catalog.interval);
COMMENT ON VIEW tessera.distributed_transactions IS
  'transactions over several nodes that are prepared on this node and wait for their coordinator, or that this node has committed and not all others '
  'confirmed within two minutes';
GRANT SELECT ON tessera.distributed_transactions TO PUBLIC;
