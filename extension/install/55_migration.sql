-- Live migration and range deletion. See src/migration/.

CREATE FUNCTION tessera.move_range(table_name regclass, min tessera.bound, max tessera.bound, to_shard text,
                                   verify bool DEFAULT pg_catalog.current_setting('tessera.migration_verify')::pg_catalog.bool) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_move_range' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool) IS
  'moves the rows with keys from min up to, but without, max, of all tables that live together, to a shard, while they are in use, verified by content if wanted; a part of each other shard after the other; returns the id of the last migration';

CREATE FUNCTION tessera.move_chunk(table_name regclass, key tessera.bound, to_shard text,
                                   verify bool DEFAULT pg_catalog.current_setting('tessera.migration_verify')::pg_catalog.bool) RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_move_chunk' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.move_chunk(regclass, tessera.bound, text, bool) IS 'moves the chunk that holds a key to a shard; returns the id of the migration';

CREATE FUNCTION tessera.cancel_migration(id uuid) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_cancel_migration' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.cancel_migration(uuid) IS 'ends a running migration, the range stays where it was; false: it was too late';

-- Config node's side.

CREATE FUNCTION tessera.internal_register_migration(table_id uuid, min tessera.bound, max tessera.bound, "position" tessera.bound, to_shard text, term int8,
                                                    verify bool DEFAULT true, OUT migration_id uuid, OUT donor int4, OUT joined bool, OUT request text,
                                                    OUT part_min tessera.bound, OUT part_max tessera.bound) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_internal_register_migration' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.internal_register_migration(uuid, tessera.bound, tessera.bound, tessera.bound, text, int8, bool) IS
  'between nodes: the config node registers a migration of the first part of a range that is not there yet, or finds the same one running; id null: all is there';

CREATE FUNCTION tessera.internal_migration_state(id uuid, OUT state text, OUT donor int4, OUT recipient int4, OUT donor_major int8,
                                                 OUT recipient_major int8, OUT term int8, OUT error text) RETURNS record
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(o.outcome, m.state), m.donor, m.recipient, o.donor_major, o.recipient_major, (SELECT i.term FROM tessera.identity AS i), m.error
    FROM tessera.migration AS m LEFT JOIN tessera.migration_outcome AS o USING (migration_id) WHERE m.migration_id = internal_migration_state.id
  $$;
COMMENT ON FUNCTION tessera.internal_migration_state(uuid) IS 'between nodes: what the config node knows of a migration';

CREATE FUNCTION tessera.internal_running_migration(groups uuid[], OUT migration_id uuid, OUT donor int4, OUT "table" text) RETURNS record
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.migration_id, m.donor, format('%I.%I', t.schema_name, t.table_name) FROM tessera.migration AS m LEFT JOIN tessera.cluster_table AS t USING (table_id)
    WHERE m.state = 'running' AND m.group_id = ANY (groups) ORDER BY m.started LIMIT 1
  $$;
COMMENT ON FUNCTION tessera.internal_running_migration(uuid[]) IS 'between nodes: a migration of the groups that runs, by the config node; nulls: there is none';

CREATE FUNCTION tessera.internal_migration_progress(id uuid, phase text, rows int8, bytes int8, mods int8, pause_ms float8, error text, waiting_for text) RETURNS void
  LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE tessera.migration AS m SET phase = internal_migration_progress.phase,
      rows = greatest(m.rows, internal_migration_progress.rows), bytes = greatest(m.bytes, internal_migration_progress.bytes),
      mods = greatest(m.mods, internal_migration_progress.mods), pause_ms = coalesce(internal_migration_progress.pause_ms, m.pause_ms),
      error = coalesce(m.error, internal_migration_progress.error), waiting_for = internal_migration_progress.waiting_for
    WHERE m.migration_id = internal_migration_progress.id
  $$;
COMMENT ON FUNCTION tessera.internal_migration_progress(uuid, text, int8, int8, int8, float8, text, text) IS 'between nodes: the donor says how far a migration is';

CREATE FUNCTION tessera.internal_acknowledge_migration(id uuid, outcome text) RETURNS bool
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  decided text;
BEGIN
  PERFORM tessera.internal_require_config(0);
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  PERFORM FROM tessera.migration_outcome AS o WHERE o.migration_id = internal_acknowledge_migration.id FOR UPDATE;
  SELECT m.state INTO decided FROM tessera.migration AS m WHERE m.migration_id = internal_acknowledge_migration.id;
  IF decided IS DISTINCT FROM internal_acknowledge_migration.outcome AND decided IS NOT NULL THEN
    RETURN false;
  END IF;
  DELETE FROM tessera.migration_outcome AS o WHERE o.migration_id = internal_acknowledge_migration.id;
  RETURN true;
END
$$;
COMMENT ON FUNCTION tessera.internal_acknowledge_migration(uuid, text) IS
  'between nodes: donor and recipient have carried out the outcome of a migration: what is left of it is the state of the migration''s row; false: it is another one';

CREATE FUNCTION tessera.internal_abandon_migration(migration_id uuid) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_abandon_migration' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_abandon_migration(uuid) IS
  'between nodes: the caller of a migration could not tell its donor, and has given up: it is fenced, unless the donor knows of it';

-- Donor's side.

CREATE FUNCTION tessera.internal_donate(migration_id uuid, request jsonb) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_donate' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_donate(uuid, jsonb) IS 'between nodes: the donor notes a migration';

CREATE FUNCTION tessera.internal_start_donor(migration_id uuid) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_start_donor' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_start_donor(uuid) IS 'between nodes: the donor begins a migration it has noted';

CREATE FUNCTION tessera.internal_wait_migration(migration_id uuid, timeout_ms int4, OUT state text, OUT sqlstate text, OUT message text, OUT detail text,
                                                OUT hint text) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_internal_wait_migration' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_wait_migration(uuid, int4) IS 'between nodes: waits on the donor until a migration has ended';

CREATE FUNCTION tessera.internal_cancel_migration(migration_id uuid, by text DEFAULT NULL) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_cancel_migration' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.internal_cancel_migration(uuid, text) IS
  'between nodes: asks the donor''s process to end a migration, for the statement named; false: there is none';

CREATE FUNCTION tessera.internal_knows_migration(migration_id uuid) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_knows_migration' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_knows_migration(uuid) IS 'between nodes: has this donor a process or a row of a migration?';

-- Recipient's side.

CREATE FUNCTION tessera.internal_owns_range(group_id uuid, min tessera.bound, max tessera.bound) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_owns_range' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_owns_range(uuid, tessera.bound, tessera.bound) IS
  'between nodes: does this shard know what it owns, and that it owns the range? Asked before leftovers of the range are deleted elsewhere';

CREATE FUNCTION tessera.internal_prepare_recipient(migration_id uuid, request jsonb) RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_internal_prepare_recipient' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_prepare_recipient(uuid, jsonb) IS 'between nodes: the recipient checks and notes a migration; returns its public key for the exchange';

CREATE FUNCTION tessera.internal_start_recipient(migration_id uuid, endpoint text, donor_key text) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_start_recipient' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_start_recipient(uuid, text, text) IS 'between nodes: the recipient begins to fetch from the donor''s exchange';

CREATE FUNCTION tessera.internal_recipient_status(migration_id uuid, OUT live bool, OUT state text, OUT rows int8, OUT mods int8, OUT sqlstate text,
                                                  OUT message text, OUT detail text, OUT hint text, OUT waiting_for text) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_internal_recipient_status' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_recipient_status(uuid) IS 'between nodes: how the recipient of a migration fares';

CREATE FUNCTION tessera.internal_take_back(migration_id uuid, attempt pg_lsn) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_take_back' LANGUAGE C VOLATILE STRICT SET lock_timeout = '1s';
COMMENT ON FUNCTION tessera.internal_take_back(uuid, pg_lsn) IS
  'between nodes: the donor has opened its gate again: the recipient''s confirmation of that attempt does not hold, nor do its readers wait any more';

CREATE FUNCTION tessera.internal_release_recipient(migration_id uuid, outcome text, major int8, term int8, lazily bool) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_release_recipient' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_release_recipient(uuid, text, int8, int8, bool) IS 'between nodes: the recipient carries out the outcome of a migration';

-- Views.

CREATE FUNCTION tessera.internal_migration_slots(OUT pid int4, OUT migration_id uuid, OUT side text, OUT phase text, OUT rows int8, OUT bytes int8,
                                                 OUT mods int8, OUT backlog int8, OUT lag_ms float8, OUT gate_attempts int4, OUT pause_ms float8,
                                                 OUT waiting_for text, OUT started timestamptz, OUT memory int8, OUT memory_peak int8) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_migration_slots' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.internal_migration_slots() IS 'source of the view tessera.stat_progress_migration';

CREATE VIEW tessera.stat_progress_migration AS
  SELECT s.pid, d.oid AS datid, d.datname, s.migration_id, s.side, s.phase, s.rows AS rows_done, s.bytes AS bytes_done, s.mods AS mods_done,
         s.backlog AS backlog_bytes, s.memory AS memory_bytes, s.memory_peak AS memory_peak_bytes, s.lag_ms, s.gate_attempts, s.pause_ms, s.waiting_for, s.started
  FROM tessera.internal_migration_slots() AS s, pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database();
COMMENT ON VIEW tessera.stat_progress_migration IS 'migrations that this node donates or receives at present, and how far they are';

CREATE VIEW tessera.migrations AS
  SELECT m.migration_id AS id, t.relid::pg_catalog.regclass AS table_name, m.min, m.max, d.name AS donor, r.name AS recipient, m.state,
         coalesce(s.phase, m.phase) AS phase, coalesce(greatest(s.rows, m.rows), m.rows) AS rows, coalesce(greatest(s.bytes, m.bytes), m.bytes) AS bytes,
         coalesce(greatest(s.mods, m.mods), m.mods) AS mods, m.pause_ms, coalesce(s.waiting_for, m.waiting_for) AS waiting_for, m.error, m.started, m.finished
  FROM tessera.migration m
  LEFT JOIN tessera.internal_migration_slots() s ON s.migration_id = m.migration_id AND s.side = 'donor'
  LEFT JOIN tessera.cluster_table t USING (table_id)
  LEFT JOIN tessera.node d ON d.node_id = m.donor
  LEFT JOIN tessera.node r ON r.node_id = m.recipient
  ORDER BY m.started, m.migration_id;
COMMENT ON VIEW tessera.migrations IS 'migrations, running and ended; kept on the config node only';

-- Injection points, for tests.

CREATE FUNCTION tessera.injection_set(name text, action text, count int4 DEFAULT 1) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_injection_set' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.injection_set(text, text, int4) IS
  'arms an injection point of this database: error, crash or pause, or lets a safeguard be skipped, so many times (null: always); needs tessera.injection_points';

CREATE FUNCTION tessera.injection_clear(name text DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_injection_clear' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.injection_clear(text) IS 'disarms an injection point, or all of this database; who is paused there goes on';

CREATE FUNCTION tessera.injection_list(OUT name text, OUT action text, OUT remaining int4, OUT hits int8, OUT paused int4) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_injection_list' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.injection_list() IS 'armed injection points of this database';

REVOKE ALL ON FUNCTION tessera.injection_set(text, text, int4), tessera.injection_clear(text), tessera.injection_list() FROM PUBLIC;
REVOKE ALL ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool), tessera.move_chunk(regclass, tessera.bound, text, bool),
  tessera.cancel_migration(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.move_range(regclass, tessera.bound, tessera.bound, text, bool), tessera.move_chunk(regclass, tessera.bound, text, bool),
  tessera.cancel_migration(uuid) TO tessera_admin;

REVOKE ALL ON FUNCTION tessera.internal_register_migration(uuid, tessera.bound, tessera.bound, tessera.bound, text, int8, bool),
  tessera.internal_migration_state(uuid), tessera.internal_running_migration(uuid[]), tessera.internal_migration_progress(uuid, text, int8, int8, int8, float8, text, text),
  tessera.internal_acknowledge_migration(uuid, text), tessera.internal_abandon_migration(uuid), tessera.internal_donate(uuid, jsonb), tessera.internal_start_donor(uuid),
  tessera.internal_wait_migration(uuid, int4), tessera.internal_cancel_migration(uuid, text), tessera.internal_knows_migration(uuid),
  tessera.internal_prepare_recipient(uuid, jsonb), tessera.internal_start_recipient(uuid, text, text), tessera.internal_recipient_status(uuid),
  tessera.internal_take_back(uuid, pg_lsn), tessera.internal_owns_range(uuid, tessera.bound, tessera.bound),
  tessera.internal_release_recipient(uuid, text, int8, int8, bool) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.internal_register_migration(uuid, tessera.bound, tessera.bound, tessera.bound, text, int8, bool),
  tessera.internal_migration_state(uuid), tessera.internal_running_migration(uuid[]), tessera.internal_migration_progress(uuid, text, int8, int8, int8, float8, text, text),
  tessera.internal_acknowledge_migration(uuid, text), tessera.internal_abandon_migration(uuid), tessera.internal_donate(uuid, jsonb), tessera.internal_start_donor(uuid),
  tessera.internal_wait_migration(uuid, int4), tessera.internal_cancel_migration(uuid, text), tessera.internal_knows_migration(uuid),
  tessera.internal_prepare_recipient(uuid, jsonb), tessera.internal_start_recipient(uuid, text, text), tessera.internal_recipient_status(uuid),
  tessera.internal_take_back(uuid, pg_lsn), tessera.internal_owns_range(uuid, tessera.bound, tessera.bound),
  tessera.internal_release_recipient(uuid, text, int8, int8, bool) TO tessera_internal;
