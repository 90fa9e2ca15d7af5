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
         pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.prepared AS age
  FROM pg_catalog.pg_prepared_xacts p
  LEFT JOIN tessera.node n ON n.node_id OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '_([0-9]+)_[0-9]+$')::int4
  LEFT JOIN tessera.transaction_decision d ON d.gid OPERATOR(pg_catalog.=) pg_catalog.substring(p.gid, '^(.*)_[0-9]+$')
  WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database()
    AND p.gid OPERATOR(pg_catalog.~) '^tessera_[0-9a-f]{32}_[0-9]{1,9}_[0-9]{1,9}$';
COMMENT ON VIEW tessera.distributed_transactions IS 'transactions over several nodes that are prepared on this node and wait for their coordinator';
GRANT SELECT ON tessera.distributed_transactions TO PUBLIC;
