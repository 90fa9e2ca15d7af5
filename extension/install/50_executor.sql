-- What the planner and executor call.
CREATE FUNCTION tessera.owned_support(internal) RETURNS internal
  LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'tessera_owned_support';
COMMENT ON FUNCTION tessera.owned_support(internal) IS 'planner support of tessera.owned';
REVOKE ALL ON FUNCTION tessera.owned_support(internal) FROM PUBLIC;

CREATE FUNCTION tessera.owned(group_id uuid, VARIADIC key "any") RETURNS bool
  LANGUAGE c STABLE LEAKPROOF PARALLEL SAFE COST 2 AS 'MODULE_PATHNAME', 'tessera_owned' SUPPORT tessera.owned_support;
COMMENT ON FUNCTION tessera.owned(uuid, "any") IS 'ownership filter: is this key''s row of this shard visible, by the placement that the snapshot sees?';
