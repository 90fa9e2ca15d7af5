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

CREATE FUNCTION tessera.internal_lock_statistics(table_id uuid) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_lock_statistics' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_lock_statistics(uuid) IS 'between nodes: locks the statistics of a table to the end of the transaction, for an ANALYZE on all its shards';

CREATE FUNCTION tessera.internal_collect_statistics(table_id uuid) RETURNS text[]
  AS 'MODULE_PATHNAME', 'tessera_internal_collect_statistics' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_collect_statistics(uuid) IS 'between nodes: what this shard knows of its part of a table: stamp, pages, tuples, bytes, columns, time';

CREATE FUNCTION tessera.internal_wake_statistics() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_wake_statistics' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_wake_statistics() IS 'between nodes: statistics of a table have changed; this node looks at once';

-- Estimates (src/statistics/chunk_bytes.c).

CREATE FUNCTION tessera.internal_chunk_bytes(OUT group_id uuid, OUT min tessera.bound, OUT bytes int8, OUT collected timestamptz) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_chunk_bytes' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.internal_chunk_bytes() IS 'source of the column bytes of the views chunks and chunk_distribution';
