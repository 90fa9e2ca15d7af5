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
