-- DDL of the cluster: what nodes say to each other about it (src/ddl).

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

-- By the rights of the user whose statement asks: everybody sees of other sessions what pg_stat_activity shows.
@call session_description@
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT format(CASE WHEN a.state IS NULL THEN 'user "%s", application "%s"'
                ELSE 'user "%s", application "%s", %s since %s, statement: %s' END,
                a.usename, a.application_name, a.state, a.state_change, left(rtrim(a.query, E'; \n'), 200))
    FROM pg_stat_activity AS a WHERE a.pid = session_description.pid
$$;
@comment session_description@

@call role_exists@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role)
$$;
@comment role_exists@

@call database_size@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT pg_database_size(current_database())
$$;
@comment database_size@
