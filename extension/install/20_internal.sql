-- What nodes say to each other on internal connections. Everybody may execute these functions because a statement runs as the session's effective user there;
-- the functions themselves refuse whoever is not another node (src/session/internal.c).
CREATE FUNCTION tessera.internal_hello(cluster uuid, router text, version text, protocol int4, router_node int4, router_pid int4,
  claimed int4, expected int4) RETURNS int4
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_hello';
COMMENT ON FUNCTION tessera.internal_hello(uuid, text, text, int4, int4, int4, int4, int4) IS
  'first call of another node on its connection; returns the incarnation of this server; below what is expected: it was replaced; negative: the caller was';

CREATE FUNCTION tessera.internal_session(effective_user text, names text[], settings text[], client_user text, setters text[], security int4) RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_session';
COMMENT ON FUNCTION tessera.internal_session(text, text[], text[], text, text[], int4) IS 'settings and who set them, effective and session user, security context of the statements that follow; null users: the role of the connection';

CREATE FUNCTION tessera.internal_tell(group_ids uuid[], epochs uuid[], terms int8[], majors int8[]) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_tell';
COMMENT ON FUNCTION tessera.internal_tell(uuid[], uuid[], int8[], int8[]) IS 'versions by which the other node routes';

CREATE FUNCTION tessera.internal_statement(number int8, kept int8[]) RETURNS void
  LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_internal_set_statement';
COMMENT ON FUNCTION tessera.internal_statement(int8, int8[]) IS 'number of the statement to which the fragments that follow belong: they share one snapshot; and the open cursors, whose snapshots are kept';

-- A statement's effective user calls them by their qualified names.
GRANT USAGE ON SCHEMA tessera TO PUBLIC;
