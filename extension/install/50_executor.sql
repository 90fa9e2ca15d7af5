-- What the planner and executor call.
CREATE FUNCTION tessera.owned_support(internal) RETURNS internal
  LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'tessera_owned_support';
COMMENT ON FUNCTION tessera.owned_support(internal) IS 'planner support of tessera.owned';
REVOKE ALL ON FUNCTION tessera.owned_support(internal) FROM PUBLIC;

CREATE FUNCTION tessera.owned(group_id uuid, VARIADIC key "any") RETURNS bool
  LANGUAGE c STABLE LEAKPROOF PARALLEL SAFE COST 2 AS 'MODULE_PATHNAME', 'tessera_owned' SUPPORT tessera.owned_support;
COMMENT ON FUNCTION tessera.owned(uuid, "any") IS
  'ownership filter: is this key''s row of this shard visible, by the placement that the snapshot sees?';

CREATE FUNCTION tessera.require_owned(group_id uuid, VARIADIC key "any") RETURNS bool
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_require_owned';
COMMENT ON FUNCTION tessera.require_owned(uuid, "any") IS 'check of a new row after its BEFORE triggers: error if this shard does not own its key';

CREATE FUNCTION tessera.partial(aggregate "any", state anyelement) RETURNS anyelement
  LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'tessera_partial';
COMMENT ON FUNCTION tessera.partial("any", anyelement) IS
  'in statements of routers: the state of an aggregate over a shard''s rows, in the place of its result';

CREATE FUNCTION tessera.source_position() RETURNS int8
  LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'tessera_source_position';
COMMENT ON FUNCTION tessera.source_position() IS
  'in statements of routers: which of the rows that an INSERT was given, from 0, is the one that it returns';

CREATE FUNCTION tessera_internal.exact_text(value "any") RETURNS text
  LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'tessera_internal_exact_text';
COMMENT ON FUNCTION tessera_internal.exact_text("any") IS
  'in statements of routers: a value''s text as it is whatever the session has set, for output columns that cannot go in binary';
CREATE FUNCTION tessera_internal.exact_text_in_leader(value "any") RETURNS text
  LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_exact_text';
COMMENT ON FUNCTION tessera_internal.exact_text_in_leader("any") IS
  'the same of types whose output function does not say that it is safe in parallel workers';

-- EXPLAIN ANALYZE over nodes (src/executor/explain_remote.c).

