-- DDL of the cluster: what nodes say to each other about it (src/ddl).
CREATE FUNCTION tessera.internal_ddl_begin(seed uuid, home int4, at int8, lock_timeout int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_ddl_begin';
COMMENT ON FUNCTION tessera.internal_ddl_begin(uuid, int4, int8, int4) IS 'announces a DDL statement of another node: what its catalog rows derive from';

CREATE FUNCTION tessera.internal_ddl_lock(nodes int4[], names text[], groups uuid[], timeout int4) RETURNS text
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_ddl_lock';
COMMENT ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) IS 'locks names for a DDL statement and checks that no migration of the groups runs (config node)';
REVOKE ALL ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) TO tessera_internal;

CREATE FUNCTION tessera.internal_copy_check(table_name text) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_copy_check';
COMMENT ON FUNCTION tessera.internal_copy_check(text) IS 'locks a table for a COPY FROM of another node and checks the versions it routes by; false: stale';
