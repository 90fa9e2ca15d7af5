-- What the planner and executor call.
CREATE FUNCTION tessera.owned_support(internal) RETURNS internal
  LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'tessera_owned_support';
COMMENT ON FUNCTION tessera.owned_support(internal) IS 'planner support of tessera.owned';
REVOKE ALL ON FUNCTION tessera.owned_support(internal) FROM PUBLIC;

CREATE FUNCTION tessera.owned(group_id uuid, VARIADIC key "any") RETURNS bool
  LANGUAGE c STABLE LEAKPROOF PARALLEL SAFE COST 2 AS 'MODULE_PATHNAME', 'tessera_owned' SUPPORT tessera.owned_support;
COMMENT ON FUNCTION tessera.owned(uuid, "any") IS 'ownership filter: is this key''s row of this shard visible, by the placement that the snapshot sees?';

CREATE FUNCTION tessera.require_owned(group_id uuid, VARIADIC key "any") RETURNS bool
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_require_owned';
COMMENT ON FUNCTION tessera.require_owned(uuid, "any") IS 'check of a new row after its BEFORE triggers: error if this shard does not own its key';

-- EXPLAIN ANALYZE over nodes (src/executor/explain_remote.c).
CREATE FUNCTION tessera.internal_explain_next(number int8, instrument int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_explain_next';
COMMENT ON FUNCTION tessera.internal_explain_next(int8, int4) IS 'between nodes: the next statement of this connection is measured, and its plan kept under this number';

CREATE FUNCTION tessera.internal_explained(number int8, costs bool) RETURNS text
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_explained';
COMMENT ON FUNCTION tessera.internal_explained(int8, bool) IS 'between nodes: the plan of a measured statement, once';
