-- Logical sessions (src/logical_session/, doc/design.md#sessions).

CREATE FUNCTION tessera.enable_sessions() RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_enable_sessions' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.enable_sessions() IS
  'makes the tables of logical sessions, in schema tessera_session; once in a cluster, on any node, by a superuser; false: there are some already';
REVOKE ALL ON FUNCTION tessera.enable_sessions() FROM PUBLIC;

CREATE FUNCTION tessera.start_session() RETURNS uuid
  AS 'MODULE_PATHNAME', 'tessera_start_session' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.start_session() IS
  'a new logical session of the current user, for SET tessera.session: what is done under its transaction numbers is done once';

CREATE FUNCTION tessera.end_session(session uuid) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_end_session' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.end_session(uuid) IS
  'ends a logical session of the current user (tessera_admin: anybody''s), with all that is recorded of it; waits for who uses it; false: there is '
  'none';

CREATE FUNCTION tessera.transaction_outcome(session uuid, number bigint, OUT outcome text, OUT at timestamptz) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_session_transaction_outcome' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.transaction_outcome(uuid, bigint) IS
  'what became of a transaction number of a session of the current user: committed (of statements by themselves: at least one; at: when the last of '
  'its records was written), aborted (and refused from now on), running, or expired (not known any more)';

CREATE FUNCTION tessera_internal.session_uses_here(OUT session uuid, OUT role text, OUT used int8, OUT written boolean, OUT pid int4, OUT state int4)
  RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_session_uses_here';
COMMENT ON FUNCTION tessera_internal.session_uses_here() IS 'what the call session_uses returns';

@call session_uses@
  LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT u.session, u.role, u.used, u.written, u.pid, u.state FROM tessera_internal.session_uses_here() AS u
$$;
@comment session_uses@

CREATE FUNCTION tessera.session_reaper_status(OUT refreshed timestamptz, OUT written int8, OUT postponed int8, OUT forgotten int8, OUT ended int8,
    OUT orphaned int8) RETURNS record
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_session_reaper_status';
COMMENT ON FUNCTION tessera.session_reaper_status() IS
  'what the session reaper of this node has done since the server started: when it has last written down which sessions were used here; last uses '
  'written, put off as somebody had taken the session, and forgotten for want of room; on the config node sessions ended, and sessions whose records '
  'were left without them and removed';

CREATE FUNCTION tessera_internal.sessions(OUT id uuid, OUT role name, OUT number int8, OUT started timestamptz, OUT last_use timestamptz,
    OUT node text, OUT pid int4, OUT state text) RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_sessions';
COMMENT ON FUNCTION tessera_internal.sessions() IS 'source of the view tessera.sessions';

CREATE VIEW tessera.sessions AS
  SELECT s.id, s.role, s.number, s.started, s.last_use, s.node, s.pid, s.state FROM tessera_internal.sessions() s
  ORDER BY s.started, s.id, s.node, s.pid;
COMMENT ON VIEW tessera.sessions IS
  'logical sessions of the current user (tessera_admin: all), a row for each process that uses one; the same on every node, all of which are asked';
COMMENT ON COLUMN tessera.sessions.id IS 'what tessera.start_session() has returned';
COMMENT ON COLUMN tessera.sessions.role IS 'whose it is';
COMMENT ON COLUMN tessera.sessions.number IS 'its last transaction number';
COMMENT ON COLUMN tessera.sessions.started IS 'when';
COMMENT ON COLUMN tessera.sessions.last_use IS 'as far as it was written, or the nodes that have answered have noted';
COMMENT ON COLUMN tessera.sessions.node IS 'where a process uses it; null: none does, or its node did not answer';
COMMENT ON COLUMN tessera.sessions.pid IS 'that process';
COMMENT ON COLUMN tessera.sessions.state IS
  'idle, in use (in a transaction), waiting (for another transaction that has taken the session), taken; null: a node did not answer';

CREATE FUNCTION tessera.kill_session(session uuid) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_kill_session' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tessera.kill_session(uuid) IS
  'ends the processes that use a logical session of the current user (tessera_admin: anybody''s), on all nodes, and then the session; false: there '
  'is none (any more)';
