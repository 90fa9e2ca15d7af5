-- Advisory locks of the whole cluster (src/transaction/advisory.c): the planner puts these functions in the place of the server's of the same names.

CREATE FUNCTION tessera.pg_advisory_lock(key int8) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_lock';
COMMENT ON FUNCTION tessera.pg_advisory_lock(int8) IS 'pg_advisory_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_lock(key1 int4, key2 int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_lock';
COMMENT ON FUNCTION tessera.pg_advisory_lock(int4, int4) IS 'pg_advisory_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_lock_shared(key int8) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_lock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_lock_shared(int8) IS 'pg_advisory_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_lock_shared(key1 int4, key2 int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_lock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_lock_shared(int4, int4) IS 'pg_advisory_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_xact_lock(key int8) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_xact_lock';
COMMENT ON FUNCTION tessera.pg_advisory_xact_lock(int8) IS 'pg_advisory_xact_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_xact_lock(key1 int4, key2 int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_xact_lock';
COMMENT ON FUNCTION tessera.pg_advisory_xact_lock(int4, int4) IS 'pg_advisory_xact_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_xact_lock_shared(key int8) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_xact_lock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_xact_lock_shared(int8) IS
  'pg_advisory_xact_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_xact_lock_shared(key1 int4, key2 int4) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_xact_lock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_xact_lock_shared(int4, int4) IS
  'pg_advisory_xact_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_lock(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_lock';
COMMENT ON FUNCTION tessera.pg_try_advisory_lock(int8) IS 'pg_try_advisory_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_lock(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_lock';
COMMENT ON FUNCTION tessera.pg_try_advisory_lock(int4, int4) IS 'pg_try_advisory_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_lock_shared(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_lock_shared';
COMMENT ON FUNCTION tessera.pg_try_advisory_lock_shared(int8) IS
  'pg_try_advisory_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_lock_shared(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_lock_shared';
COMMENT ON FUNCTION tessera.pg_try_advisory_lock_shared(int4, int4) IS
  'pg_try_advisory_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_xact_lock(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_xact_lock';
COMMENT ON FUNCTION tessera.pg_try_advisory_xact_lock(int8) IS 'pg_try_advisory_xact_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_xact_lock(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_xact_lock';
COMMENT ON FUNCTION tessera.pg_try_advisory_xact_lock(int4, int4) IS
  'pg_try_advisory_xact_lock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_xact_lock_shared(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_xact_lock_shared';
COMMENT ON FUNCTION tessera.pg_try_advisory_xact_lock_shared(int8) IS
  'pg_try_advisory_xact_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_try_advisory_xact_lock_shared(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_try_advisory_xact_lock_shared';
COMMENT ON FUNCTION tessera.pg_try_advisory_xact_lock_shared(int4, int4) IS
  'pg_try_advisory_xact_lock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_unlock(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_unlock';
COMMENT ON FUNCTION tessera.pg_advisory_unlock(int8) IS 'pg_advisory_unlock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_unlock(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_unlock';
COMMENT ON FUNCTION tessera.pg_advisory_unlock(int4, int4) IS 'pg_advisory_unlock() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_unlock_shared(key int8) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_unlock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_unlock_shared(int8) IS 'pg_advisory_unlock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_unlock_shared(key1 int4, key2 int4) RETURNS bool
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_unlock_shared';
COMMENT ON FUNCTION tessera.pg_advisory_unlock_shared(int4, int4) IS
  'pg_advisory_unlock_shared() on the key''s home node: one lock in the whole cluster';

CREATE FUNCTION tessera.pg_advisory_unlock_all() RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_advisory_unlock_all';
COMMENT ON FUNCTION tessera.pg_advisory_unlock_all() IS 'pg_advisory_unlock_all() on all nodes that keep locks of this session';

-- Between nodes: the home's side (src/transaction/advisory_home.c). Everybody may execute the first four, as those of 20_internal.sql.

@call advisory_homes@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  INSERT INTO tessera.advisory_home AS a SELECT * FROM unnest(rows)
  ON CONFLICT (slot) DO UPDATE SET node_id = excluded.node_id, version = excluded.version WHERE a.version < excluded.version
$$;
@comment advisory_homes@

@call advisory_locks@
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT l.classid::int8, l.objid::int8, l.objsubid::int4, l.mode, l.granted, coalesce(o.node_id, i.node_id), coalesce(o.client_pid, l.pid)
  FROM pg_locks l
  JOIN tessera.identity i ON i.database_oid = l.database
  LEFT JOIN tessera_internal.session_origins() o ON o.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.objsubid IN (1, 2)
$$;
@comment advisory_locks@

CREATE FUNCTION tessera.all_advisory_locks(OUT classid oid, OUT objid oid, OUT objsubid int2, OUT mode text, OUT granted bool, OUT home text,
  OUT node text,
    OUT pid int4) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_all_advisory_locks';
COMMENT ON FUNCTION tessera.all_advisory_locks() IS 'source of the view tessera.advisory_locks; a node that cannot be asked is named in a warning';

CREATE VIEW tessera.advisory_locks AS
  SELECT classid, objid, objsubid, mode, granted, home, node, pid FROM tessera.all_advisory_locks();
COMMENT ON VIEW tessera.advisory_locks IS
  'advisory locks of all nodes, as pg_locks shows them: home is the node that keeps the lock, node and pid the client''s session that has it or '
  'waits for it';

