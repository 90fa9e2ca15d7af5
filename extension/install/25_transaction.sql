-- Transactions over several nodes: the coordinator's decisions, and what finishes prepared transactions that were left behind.

CREATE FUNCTION tessera.internal_decide(gid text, participants int4[]) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_decide';
COMMENT ON FUNCTION tessera.internal_decide(text, int4[]) IS 'called by other nodes: this transaction is the decision to commit the two-phase transaction';

-- The unique index of the decisions answers: it waits for a coordinator that is still at it and fences one that is gone.
CREATE FUNCTION tessera.internal_transaction_outcome(transaction_gid text) RETURNS text
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
  SET lock_timeout = '10s'
  SET synchronous_commit = on
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM tessera.identity i WHERE transaction_gid ~ ('^tessera_[0-9a-f]{32}_' || i.node_id || '$')) THEN
    RAISE EXCEPTION 'this node does not coordinate transaction %', transaction_gid USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO tessera.transaction_decision (gid, outcome) VALUES (transaction_gid, 'abort') ON CONFLICT DO NOTHING;
  -- A new statement: it sees a row that the insert has waited for.
  RETURN (SELECT d.outcome FROM tessera.transaction_decision d WHERE d.gid = transaction_gid);
END
$$;
COMMENT ON FUNCTION tessera.internal_transaction_outcome(text) IS 'called by other nodes: outcome of a two-phase transaction that this node coordinates; decides abort if there is none';
REVOKE ALL ON FUNCTION tessera.internal_transaction_outcome(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_transaction_outcome(text) TO tessera_internal;

CREATE FUNCTION tessera.resolve_transactions(older_than interval DEFAULT '1 minute') RETURNS TABLE (gid text, outcome text)
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_resolve_transactions';
COMMENT ON FUNCTION tessera.resolve_transactions(interval) IS 'finishes prepared transactions left behind on this node, as their coordinators decided';
REVOKE ALL ON FUNCTION tessera.resolve_transactions(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.resolve_transactions(interval) TO tessera_admin;

-- Decisions go when nobody can ask for them any more (src/transaction/prune.c).
CREATE FUNCTION tessera.prune_decisions(older_than interval DEFAULT '1 hour') RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_prune_decisions';
COMMENT ON FUNCTION tessera.prune_decisions(interval) IS 'deletes decisions of this coordinator that all participants have carried out, with their standbys, this long ago; returns how many';
REVOKE ALL ON FUNCTION tessera.prune_decisions(interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.prune_decisions(interval) TO tessera_admin;

CREATE FUNCTION tessera.internal_unfinished_transactions(gids text[]) RETURNS text[]
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(array_agg(p.gid), '{}') FROM pg_catalog.pg_prepared_xacts p WHERE p.gid = ANY (gids) AND p.database = current_database()
$$;
COMMENT ON FUNCTION tessera.internal_unfinished_transactions(text[]) IS 'called by other nodes: which of these transactions are still prepared here';

-- A standby that is away is known by its slot.
CREATE FUNCTION tessera.internal_standbys_flushed(upto pg_lsn) RETURNS TABLE (flushed bool, here pg_lsn)
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
COMMENT ON FUNCTION tessera.internal_standbys_flushed(pg_lsn) IS 'called by other nodes: have all standbys of this node flushed its WAL up to there, and where is its end now; null: are there none';
REVOKE ALL ON FUNCTION tessera.internal_unfinished_transactions(text[]), tessera.internal_standbys_flushed(pg_lsn) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_unfinished_transactions(text[]), tessera.internal_standbys_flushed(pg_lsn) TO tessera_internal;

-- Deadlocks over several nodes (src/transaction/deadlock.c).
CREATE FUNCTION tessera.internal_lock_waits(older_than_ms int4) RETURNS int8[]
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_lock_waits';
COMMENT ON FUNCTION tessera.internal_lock_waits(int4) IS 'called by other nodes: who waits for whom on this node, and for which nodes they work';

CREATE FUNCTION tessera.internal_end_wait(pid int4, since int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_end_wait';
COMMENT ON FUNCTION tessera.internal_end_wait(int4, int8) IS 'called by other nodes: the process is part of a deadlock over several nodes; its wait ends with an error';
REVOKE ALL ON FUNCTION tessera.internal_lock_waits(int4), tessera.internal_end_wait(int4, int8) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_lock_waits(int4), tessera.internal_end_wait(int4, int8) TO tessera_internal;

CREATE VIEW tessera.distributed_transactions AS
  SELECT p.gid,
         n.name AS coordinator,
         p.prepared,
         CASE d.outcome WHEN 'commit' THEN 'committing' WHEN 'abort' THEN 'aborting' ELSE 'prepared' END AS state,
         pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.prepared AS age,
         CASE WHEN d.outcome IS NULL THEN 'decision of ' OPERATOR(pg_catalog.||) coalesce(n.name, 'a removed node') ELSE 'resolver of this node' END AS waits_for
  FROM pg_catalog.pg_prepared_xacts p
  LEFT JOIN tessera.node n ON n.node_id OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '_([0-9]+)_[0-9]+$')::int4
  LEFT JOIN tessera.transaction_decision d ON d.gid OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '^(.*)_[0-9]+$')
  WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database()
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
COMMENT ON VIEW tessera.distributed_transactions IS 'transactions over several nodes that are prepared on this node and wait for their coordinator, or that this node has committed and not all others confirmed within two minutes';
GRANT SELECT ON tessera.distributed_transactions TO PUBLIC;
