-- DDL of the cluster: what nodes say to each other about it (src/ddl).
CREATE FUNCTION tessera.internal_ddl_begin(seed uuid, home int4, at int8, lock_timeout int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_ddl_begin';
COMMENT ON FUNCTION tessera.internal_ddl_begin(uuid, int4, int8, int4) IS 'announces a DDL statement of another node: what its catalog rows derive from';

CREATE FUNCTION tessera.internal_ddl_lock(nodes int4[], names text[], groups uuid[], timeout int4) RETURNS text
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_ddl_lock';
COMMENT ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) IS 'locks names for a DDL statement and checks that no migration of the groups runs (config node)';
REVOKE ALL ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_ddl_lock(int4[], text[], uuid[], int4) TO tessera_internal;

CREATE FUNCTION tessera.internal_ddl_lock_tables(names text[], modes int4[], timeout int4) RETURNS text
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_ddl_lock_tables';
COMMENT ON FUNCTION tessera.internal_ddl_lock_tables(text[], int4[], int4) IS 'locks tables for a DDL statement of another node within so many ms, or says who holds one';
REVOKE ALL ON FUNCTION tessera.internal_ddl_lock_tables(text[], int4[], int4) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_ddl_lock_tables(text[], int4[], int4) TO tessera_internal;

CREATE FUNCTION tessera.internal_copy_check(table_name text, group_id uuid) RETURNS bool
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_copy_check';
COMMENT ON FUNCTION tessera.internal_copy_check(text, uuid) IS 'locks a table for a COPY FROM of another node and checks the versions it routes by; false: stale';

-- Sequences: stand-ins for the server's functions, put into statements by the planner; column defaults keep the server's own.
CREATE FUNCTION tessera.nextval(sequence regclass) RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_nextval';
COMMENT ON FUNCTION tessera.nextval(regclass) IS 'nextval() of a sequence of the cluster: unique over all nodes';

CREATE FUNCTION tessera.identity_nextval(sequence regclass) RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_identity_nextval';
COMMENT ON FUNCTION tessera.identity_nextval(regclass) IS 'next value of an identity column; for who may insert into its table';

CREATE FUNCTION tessera.currval(sequence regclass) RETURNS int8
  LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_currval';
COMMENT ON FUNCTION tessera.currval(regclass) IS 'currval() of a sequence of the cluster';

CREATE FUNCTION tessera.lastval() RETURNS int8
  LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_lastval';
COMMENT ON FUNCTION tessera.lastval() IS 'lastval() where sequences of the cluster are among those used';

CREATE FUNCTION tessera.setval(sequence regclass, value int8) RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_setval';
COMMENT ON FUNCTION tessera.setval(regclass, int8) IS 'setval() of a sequence of the cluster, on its home; values that nodes hold are dropped';

CREATE FUNCTION tessera.setval(sequence regclass, value int8, is_called bool) RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_setval';
COMMENT ON FUNCTION tessera.setval(regclass, int8, bool) IS 'setval() of a sequence of the cluster, on its home; values that nodes hold are dropped';

CREATE FUNCTION tessera.sequence_row(sequence regclass, OUT last_value int8, OUT log_cnt int8, OUT is_called bool) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'tessera_sequence_row';
COMMENT ON FUNCTION tessera.sequence_row(regclass) IS 'the row of a sequence as its home has it';

CREATE FUNCTION tessera.sequence_last_value(sequence regclass) RETURNS int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_sequence_last_value';
COMMENT ON FUNCTION tessera.sequence_last_value(regclass) IS 'the last value that was drawn from the home of a sequence, for pg_sequences';

CREATE FUNCTION tessera.sequence_pools(OUT sequence regclass, OUT values_left int8, OUT per_second float8) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_sequence_pools';
COMMENT ON FUNCTION tessera.sequence_pools() IS 'values that this node holds of sequences of other nodes, and how many it has drawn of late';

CREATE FUNCTION tessera.internal_sequence_block(sequence text, n int4) RETURNS int8[]
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_sequence_block';
COMMENT ON FUNCTION tessera.internal_sequence_block(text, int4) IS 'draws values for another node, as runs {first, step, count, ...} (home of the sequence)';

CREATE FUNCTION tessera.internal_sequence_set(sequence text, value int8, is_called bool) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_sequence_set';
COMMENT ON FUNCTION tessera.internal_sequence_set(text, int8, bool) IS 'setval() for another node (home of the sequence)';

CREATE FUNCTION tessera.internal_sequence_state(sequence text) RETURNS text
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_sequence_state';
COMMENT ON FUNCTION tessera.internal_sequence_state(text) IS 'where this node''s copy of a sequence stands, for another node: last_value, log_cnt, is_called';

CREATE FUNCTION tessera.internal_sequence_forget(sequence text) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_sequence_forget';
COMMENT ON FUNCTION tessera.internal_sequence_forget(text) IS 'drops the values this node holds of a sequence';

REVOKE ALL ON FUNCTION tessera.internal_sequence_block(text, int4), tessera.internal_sequence_set(text, int8, bool),
  tessera.internal_sequence_state(text), tessera.internal_sequence_forget(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_sequence_block(text, int4), tessera.internal_sequence_set(text, int8, bool),
  tessera.internal_sequence_state(text), tessera.internal_sequence_forget(text) TO tessera_internal;
