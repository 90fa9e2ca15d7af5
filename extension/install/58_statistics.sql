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

-- Estimates (src/statistics/chunk_bytes.c).

CREATE FUNCTION tessera_internal.chunk_bytes(OUT group_id uuid, OUT min tessera.bound, OUT bytes int8, OUT collected timestamptz) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_chunk_bytes' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera_internal.chunk_bytes() IS 'source of the column bytes of the views chunks and chunk_distribution';
