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

-- Operations that run in phases (src/ddl/operation.c).

@call note_ddl_operation@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE tessera.ddl_operation AS o SET phase = coalesce(new_phase, o.phase),
      done = CASE WHEN node IS NULL OR node = ANY (o.done) THEN o.done ELSE o.done || node END,
      attempts = CASE WHEN new_error IS NULL THEN o.attempts ELSE o.attempts + 1 END, error = coalesce(new_error, o.error),
      tried = CASE WHEN new_error IS NULL THEN o.tried ELSE clock_timestamp() END
    WHERE o.operation_id = id AND o.state = 'running'
$$;
@comment note_ddl_operation@

@call end_ddl_operation@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  WITH changed AS (
    UPDATE tessera.ddl_operation AS o SET state = CASE WHEN end_ddl_operation.code IS NULL THEN 'done' ELSE 'failed' END,
      code = end_ddl_operation.code, error = new_error, finished = clock_timestamp()
    WHERE o.operation_id = id AND o.state = 'running' RETURNING 1)
  SELECT EXISTS (SELECT FROM changed)
$$;
@comment end_ddl_operation@

@call find_ddl_operation@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT o.operation_id, o.statement, o.search_path, o.command FROM tessera.ddl_operation AS o
    WHERE o.state = 'running' AND o.schema_name = schema::name AND o.object_name = object::name
$$;
@comment find_ddl_operation@

@call ddl_operation_state@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT o.state, o.code, o.error FROM tessera.ddl_operation AS o WHERE o.operation_id = ddl_operation_state.id
$$;
@comment ddl_operation_state@

-- What a REINDEX CONCURRENTLY has left is not valid, and has a name of its own; a long name of an index is cut off for it.
@call ddl_operation_part@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  WITH of_table AS MATERIALIZED (
    SELECT n.nspname, c.relname, i.indisvalid AND i.indisready AS valid, substring(c.relname, '^(.*)_cc(?:new|old)[0-9]*$') AS base
    FROM tessera.cluster_table AS t JOIN pg_index AS i ON coalesce(pg_partition_root(i.indrelid), i.indrelid) = t.relid
      JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE t.table_id = ddl_operation_part.table_id AND c.relkind = 'i')
  SELECT EXISTS (SELECT FROM of_table AS o WHERE o.nspname = schema::name AND o.relname = object::name),
         EXISTS (SELECT FROM of_table AS o WHERE o.nspname = schema::name AND o.relname = object::name AND o.valid),
         (SELECT format('%I.%I', o.nspname, o.relname) FROM of_table AS o
          WHERE NOT o.valid AND o.base IS NOT NULL AND o.relname IS DISTINCT FROM object::name
            AND (object IS NULL OR o.base = object OR octet_length(o.relname) >= 62 AND starts_with(object, o.base))
          ORDER BY 1 LIMIT 1)
$$;
@comment ddl_operation_part@

@call list_ddl_operations@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
-- times in a form that any DateStyle and TimeZone reads alike
AS $$
  SELECT o.operation_id::text, o.kind, CASE WHEN t.table_id IS NOT NULL THEN format('%I.%I', t.schema_name, t.table_name) END,
         format('%I.%I', o.schema_name, o.object_name), o.statement,
         o.asked_by::text, r.name::text, o.state, o.phase,
         (SELECT count(*)::int4 FROM tessera.node), (SELECT count(*)::int4 FROM tessera.node AS n WHERE n.node_id = ANY (o.done)),
         (SELECT string_agg(n.name, ', ' ORDER BY n.name) FROM tessera.node AS n WHERE o.state = 'running' AND n.node_id <> ALL (o.done)),
         o.attempts, o.error,
         to_char(o.started AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00',
         to_char(o.finished AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00'
  FROM tessera.ddl_operation AS o LEFT JOIN tessera.cluster_table AS t USING (table_id) LEFT JOIN tessera.node AS r ON r.node_id = o.runner
  ORDER BY o.started, o.operation_id
$$;
@comment list_ddl_operations@

CREATE FUNCTION tessera_internal.ddl_operations() RETURNS TABLE (id uuid, kind text, table_name text, object_name text, statement text, asked_by name,
    runner name, state text, phase text, nodes int4, nodes_done int4, waiting text, attempts int4, error text, started timestamptz,
    finished timestamptz)
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'tessera_internal_ddl_operations';
COMMENT ON FUNCTION tessera_internal.ddl_operations() IS 'source of the view tessera.ddl_operations: asks the config node';

CREATE VIEW tessera.ddl_operations AS
  SELECT o.id, o.kind, o.table_name, o.object_name, o.statement, o.asked_by, o.runner, o.state, o.phase, o.nodes, o.nodes_done, o.waiting, o.attempts,
         o.error, o.started, o.finished
  FROM tessera_internal.ddl_operations() AS o;
COMMENT ON VIEW tessera.ddl_operations IS
  'DDL that runs in phases on all nodes, how far it is, what it waits for, and how it ended; the same on every node';

-- Functions of the server that maintain an index, for all nodes (src/ddl/index_maintenance.c): the planner puts them in the place of those.

CREATE FUNCTION tessera.brin_summarize_new_values(index pg_catalog.regclass) RETURNS pg_catalog.int4
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_brin_summarize_new_values';
COMMENT ON FUNCTION tessera.brin_summarize_new_values(pg_catalog.regclass) IS
  'brin_summarize_new_values() on all parts of an index of the cluster';

CREATE FUNCTION tessera.brin_summarize_range(index pg_catalog.regclass, block pg_catalog.int8) RETURNS pg_catalog.int4
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_brin_summarize_range';
COMMENT ON FUNCTION tessera.brin_summarize_range(pg_catalog.regclass, pg_catalog.int8) IS
  'brin_summarize_range() on all parts of an index of the cluster, by each one''s own blocks';

CREATE FUNCTION tessera.brin_desummarize_range(index pg_catalog.regclass, block pg_catalog.int8) RETURNS pg_catalog.void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_brin_desummarize_range';
COMMENT ON FUNCTION tessera.brin_desummarize_range(pg_catalog.regclass, pg_catalog.int8) IS
  'brin_desummarize_range() on all parts of an index of the cluster, by each one''s own blocks';

CREATE FUNCTION tessera.gin_clean_pending_list(index pg_catalog.regclass) RETURNS pg_catalog.int8
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_gin_clean_pending_list';
COMMENT ON FUNCTION tessera.gin_clean_pending_list(pg_catalog.regclass) IS
  'gin_clean_pending_list() on all parts of an index of the cluster';
