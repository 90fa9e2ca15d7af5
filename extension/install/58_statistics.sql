-- Sizes and statistics of whole tables. See src/admin/table_size.c and src/statistics/.

CREATE FUNCTION tessera.table_size(table_name regclass) RETURNS bigint
  AS 'MODULE_PATHNAME', 'tessera_table_size' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.table_size(regclass) IS 'pg_table_size of a table on all its shards together, as of now';

CREATE FUNCTION tessera.indexes_size(table_name regclass) RETURNS bigint
  AS 'MODULE_PATHNAME', 'tessera_indexes_size' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.indexes_size(regclass) IS 'pg_indexes_size of a table on all its shards together, as of now';

CREATE FUNCTION tessera.total_relation_size(table_name regclass) RETURNS bigint
  AS 'MODULE_PATHNAME', 'tessera_total_relation_size' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.total_relation_size(regclass) IS 'pg_total_relation_size of a table on all its shards together, as of now';

-- Between nodes.

@call statistics_stamps@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT s.table_id, s.stamp FROM tessera.table_statistics AS s WHERE s.node_id = node
$$;
@comment statistics_stamps@

-- the time in a form that any DateStyle and TimeZone reads alike
@call statistics_rows@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT s.table_id, s.stamp, s.pages, s.tuples, s.bytes, s.columns, to_char(s.collected, 'YYYY-MM-DD HH24:MI:SS.USOF')
    FROM tessera.table_statistics AS s WHERE s.node_id = node AND s.table_id = ANY (table_ids)
$$;
@comment statistics_rows@

@call relation_size@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(CASE measure WHEN 'pg_table_size' THEN pg_table_size(to_regclass(table_name))
                               WHEN 'pg_indexes_size' THEN pg_indexes_size(to_regclass(table_name))
                               WHEN 'pg_total_relation_size' THEN pg_total_relation_size(to_regclass(table_name)) END, -1)
$$;
@comment relation_size@

-- Estimates (src/statistics/chunk_bytes.c).

CREATE FUNCTION tessera_internal.chunk_bytes(OUT group_id uuid, OUT major int8, OUT minor int8, OUT bytes int8, OUT collected timestamptz)
  RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_chunk_bytes' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera_internal.chunk_bytes() IS 'source of the column bytes of the views chunks and chunk_distribution';
