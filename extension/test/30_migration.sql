-- Diagnostics of a migration's data path, on any tables: they need not belong to a cluster. For tests; they bypass triggers and foreign keys, hence not for PUBLIC.

CREATE TYPE tessera_test.group_range AS (group_id uuid, min tessera.bound, max tessera.bound);
COMMENT ON TYPE tessera_test.group_range IS 'a range of a group that an operation moves';

CREATE FUNCTION tessera_test.moving_ranges(ranges tessera_test.group_range[])
  RETURNS TABLE (table_index int4, table_id uuid, table_name regclass, key_columns int2[], range_min tessera.bound, range_max tessera.bound)
  AS 'MODULE_PATHNAME', 'tessera_moving_ranges_sql' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.moving_ranges(tessera_test.group_range[]) IS
  'what an operation would move: the tables of all groups in the order of the exchange, their key columns, and each range of them';

CREATE FUNCTION tessera_test.clone_payloads(tables regclass[], keys text[], min tessera.bound DEFAULT tessera.minkey(), max tessera.bound DEFAULT tessera.maxkey(),
    hashed bool DEFAULT false, bytes int8 DEFAULT 1048576)
  RETURNS TABLE (table_index int4, row_count int8, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_clone_payloads' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.clone_payloads(regclass[], text[], tessera.bound, tessera.bound, bool, int8) IS
  'rows of a range as a migration would send them; in a transaction at isolation level REPEATABLE READ';

CREATE FUNCTION tessera_test.clone_operation(ranges tessera_test.group_range[], bytes int8 DEFAULT 1048576)
  RETURNS TABLE (table_index int4, row_count int8, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_clone_operation' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.clone_operation(tessera_test.group_range[], int8) IS
  'rows of ranges of groups as one migration would send them; in a transaction at isolation level REPEATABLE READ';

CREATE FUNCTION tessera_test.apply_payload(tables regclass[], keys text[], payload bytea, changes bool DEFAULT false) RETURNS int8
  AS 'MODULE_PATHNAME', 'tessera_apply_payload' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.apply_payload(regclass[], text[], bytea, bool) IS
  'applies a payload of cloned rows, or of changes, as a migration''s recipient would; returns rows or changes';

CREATE FUNCTION tessera_test.apply_operation(ranges tessera_test.group_range[], payload bytea, changes bool DEFAULT false) RETURNS int8
  AS 'MODULE_PATHNAME', 'tessera_apply_operation' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.apply_operation(tessera_test.group_range[], bytea, bool) IS
  'the same of an operation''s payload';

CREATE FUNCTION tessera_test.delete_range_rows(table_name regclass, keys text[], min tessera.bound, max tessera.bound, hashed bool DEFAULT false,
    batch int8 DEFAULT 1000) RETURNS int8
  AS 'MODULE_PATHNAME', 'tessera_delete_range_rows_sql' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.delete_range_rows(regclass, text[], tessera.bound, tessera.bound, bool, int8) IS
  'deletes at most one batch of the rows of a range as the range deleter would; without key columns, of a sharded table by its own key; returns rows';

CREATE FUNCTION tessera_test.capture_start(slot name, tables regclass[], keys text[], min tessera.bound DEFAULT tessera.minkey(),
    max tessera.bound DEFAULT tessera.maxkey(), hashed bool DEFAULT false, timeout_ms int4 DEFAULT 30000)
  RETURNS TABLE (table_index int4, row_count int8, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_capture_start_sql' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.capture_start(name, regclass[], text[], tessera.bound, tessera.bound, bool, int4) IS
  'begins change capture of a range in a worker of this session, and returns the rows as of its snapshot';

CREATE FUNCTION tessera_test.capture_operation(slot name, ranges tessera_test.group_range[], timeout_ms int4 DEFAULT 30000)
  RETURNS TABLE (table_index int4, row_count int8, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_capture_operation' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.capture_operation(name, tessera_test.group_range[], int4) IS
  'the same for ranges of groups, to be verified: the last payload, of table -1, has the digests of the clone';

CREATE FUNCTION tessera_test.capture_next(upto pg_lsn DEFAULT NULL, bytes int8 DEFAULT 1048576)
  RETURNS TABLE (change_count int8, lsn pg_lsn, caught_up bool, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_capture_next_sql' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_test.capture_next(pg_lsn, int8) IS 'changes of the captured range up to a WAL position, by default all that is flushed';

CREATE FUNCTION tessera_test.capture_round(last bool DEFAULT false) RETURNS TABLE (key_count int8, payload bytea)
  AS 'MODULE_PATHNAME', 'tessera_capture_round' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.capture_round(bool) IS
  'a step of verification: begins a round, or, when the changes up to its beginning are out, returns its keys; last: nothing changes any more';

CREATE FUNCTION tessera_test.verify_operation(ranges tessera_test.group_range[], payload bytea, keys bool DEFAULT false) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_verify_operation' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.verify_operation(tessera_test.group_range[], bytea, bool) IS
  'compares the rows here with the digests of a clone, or with the keys of a round, as a migration''s recipient would';

CREATE FUNCTION tessera_test.capture_stop() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_capture_stop_sql' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.capture_stop() IS 'ends this session''s change capture and drops its slot';

CREATE FUNCTION tessera_test.capture_drop_slot(slot name) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_capture_drop_slot_sql' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.capture_drop_slot(name) IS 'drops the replication slot of a migration, if it exists and is not in use';

REVOKE ALL ON FUNCTION tessera_test.moving_ranges(tessera_test.group_range[]),
  tessera_test.clone_payloads(regclass[], text[], tessera.bound, tessera.bound, bool, int8), tessera_test.clone_operation(tessera_test.group_range[], int8),
  tessera_test.apply_payload(regclass[], text[], bytea, bool), tessera_test.apply_operation(tessera_test.group_range[], bytea, bool),
  tessera_test.delete_range_rows(regclass, text[], tessera.bound, tessera.bound, bool, int8),
  tessera_test.capture_start(name, regclass[], text[], tessera.bound, tessera.bound, bool, int4),
  tessera_test.capture_operation(name, tessera_test.group_range[], int4), tessera_test.capture_next(pg_lsn, int8), tessera_test.capture_round(bool),
  tessera_test.verify_operation(tessera_test.group_range[], bytea, bool), tessera_test.capture_stop(), tessera_test.capture_drop_slot(name) FROM PUBLIC;
