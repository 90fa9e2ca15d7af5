-- What follows the promotion of a standby. See src/migration/promotion.c.

CREATE FUNCTION tessera.recover_node(force bool DEFAULT false) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_recover_node' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.recover_node(bool) IS
  'after a promotion: has this node find out now what it owns, on the config node also what is true; the error says what is in the way; force: gives up what is missing, for good';

CREATE FUNCTION tessera.promotion_status(OUT timeline int4, OUT placements_known bool, OUT metadata_known bool, OUT last_error text,
    OUT incarnation int4, OUT replaced bool) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_promotion_status' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.promotion_status() IS
  'does this node know, since its last promotion, what it owns, and, if it is the config node, that its catalog is right? last_error: what was in the way; replaced: another server was
  promoted in the place of this one';

-- The config node's side.

CREATE FUNCTION tessera.internal_require_config(term int8) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_require_config' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_require_config(int8) IS 'between nodes: fails unless this is the config node, of no lower term than the caller has seen';

CREATE FUNCTION tessera.internal_check_address(node int4, timeline int4, started text) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_check_address' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_check_address(int4, int4, text) IS
  'between nodes: fails unless a node''s registered address leads to its server of that timeline, started then';

CREATE FUNCTION tessera.internal_announce_server(node int4) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_announce_server' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_announce_server(int4) IS 'between nodes: has the config node tell all that a node has another server now; that server''s predecessors, too';

CREATE FUNCTION tessera.internal_migration_request(id uuid) RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('migration_id', migration_id, 'group_id', group_id, 'table_id', table_id, 'min', textin(tessera.bound_out(min)),
      'max', textin(tessera.bound_out(max)), 'donor', donor, 'recipient', recipient, 'epoch', epoch, 'term', term, 'donor_incarnation', donor_incarnation,
      'recipient_incarnation', recipient_incarnation, 'verify', verify,
      'members', (SELECT jsonb_agg(t.table_id ORDER BY t.table_id) FROM tessera.cluster_table AS t WHERE t.group_id = m.group_id))
    FROM tessera.migration AS m WHERE migration_id = internal_migration_request.id
  $$;
COMMENT ON FUNCTION tessera.internal_migration_request(uuid) IS 'between nodes: a migration as it was registered';

-- The row's lock meets that of a commit (src/catalog/chunk_move.c): a commit before it counts, one after it is refused. A server that is registered already is not asked
-- for its address again.
CREATE FUNCTION tessera.internal_register_server(node int4, timeline int4, incarnation int4, started text, term int8,
    OUT registered int4, OUT unfinished jsonb) RETURNS record
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  known tessera.node;
BEGIN
  PERFORM tessera.internal_require_config(internal_register_server.term);
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  PERFORM tessera.internal_check_address(n.node_id, internal_register_server.timeline, started) FROM tessera.node AS n
    WHERE n.node_id = internal_register_server.node
      AND (n.timeline, n.incarnation) <> (internal_register_server.timeline, internal_register_server.incarnation);
  SELECT n.* INTO known FROM tessera.node AS n WHERE n.node_id = internal_register_server.node FOR UPDATE;
  IF known.node_id IS NULL THEN
    RAISE EXCEPTION 'node % is not in the cluster', internal_register_server.node USING ERRCODE = 'undefined_object';
  END IF;
  registered := known.incarnation;
  UPDATE tessera.node AS n SET server_start = started WHERE n.node_id = known.node_id AND n.server_start IS DISTINCT FROM started;
  IF (known.timeline, known.incarnation) <> (internal_register_server.timeline, internal_register_server.incarnation) THEN
    registered := greatest(known.incarnation, internal_register_server.incarnation) + 1;
    UPDATE tessera.node AS n SET timeline = internal_register_server.timeline, incarnation = registered WHERE n.node_id = known.node_id;
    INSERT INTO tessera.changelog_entry (what, object, before, after)
      VALUES ('promotion', known.name, jsonb_build_object('timeline', known.timeline, 'incarnation', known.incarnation),
        jsonb_build_object('timeline', internal_register_server.timeline, 'incarnation', registered));
  END IF;
  unfinished := (SELECT coalesce(jsonb_agg(tessera.internal_migration_request(m.migration_id)), '[]')
                 FROM tessera.migration AS m LEFT JOIN tessera.migration_outcome AS o USING (migration_id)
                 WHERE m.donor = known.node_id AND m.donor_incarnation < registered
                   AND (m.state = 'running' OR o.migration_id IS NOT NULL));
END
$$;
COMMENT ON FUNCTION tessera.internal_register_server(int4, int4, int4, text, int8) IS
  'between nodes: another server is to be this node; returns its incarnation, and the migrations that the node donated and that have not ended';

CREATE FUNCTION tessera.internal_return_move(migration_id uuid, term int8) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_return_move' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_return_move(uuid, int8) IS
  'between nodes: the recipient has lost the rows of a committed migration: the range goes back to the donor, if that still has them; false: it may not';

-- Any shard's side.

-- The lock waits for changes of placements that began under an older term, and keeps new ones out until the new term is committed (src/migration/place.c).
CREATE FUNCTION tessera.internal_merge_facts(term int8) RETURNS jsonb
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  IF (SELECT s.replaced FROM tessera.promotion_status() AS s) THEN
    RAISE EXCEPTION 'this server was replaced' USING ERRCODE = 'TS003', HINT = 'Stop it.';
  END IF;
  UPDATE tessera.identity SET promised_term = internal_merge_facts.term WHERE promised_term < internal_merge_facts.term;
  LOCK TABLE tessera.placement IN SHARE MODE;
  IF NOT (SELECT s.placements_known FROM tessera.promotion_status() AS s) THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object(
    'server', (SELECT jsonb_build_object('timeline', i.timeline, 'incarnation', i.incarnation) FROM tessera.identity AS i),
    'placements', (SELECT coalesce(jsonb_agg(jsonb_build_object('group_id', p.group_id, 'major', p.major, 'owned',
        (SELECT coalesce(jsonb_agg(jsonb_build_object('min', textin(tessera.bound_out(o.min)), 'max', textin(tessera.bound_out(o.max)))), '[]')
         FROM unnest(p.owned) AS o))), '[]') FROM tessera.placement AS p),
    'donated', (SELECT coalesce(jsonb_agg(jsonb_build_object('request', c.request, 'decision', c.decision)), '[]') FROM tessera.migration_coordinator AS c),
    'received', (SELECT coalesce(jsonb_agg(jsonb_build_object('request', r.request, 'state', r.state)), '[]') FROM tessera.migration_recipient AS r));
END
$$;
COMMENT ON FUNCTION tessera.internal_merge_facts(int8) IS
  'between nodes: the config node was promoted: from now on its new term holds; returns what this shard owns, and its migrations; null: it does not know';

CREATE FUNCTION tessera.internal_await_standbys() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_await_standbys' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.internal_await_standbys() IS 'between nodes: waits until what is committed here is flushed on the streaming standbys';

REVOKE ALL ON FUNCTION tessera.recover_node(bool), tessera.internal_require_config(int8), tessera.internal_check_address(int4, int4, text),
  tessera.internal_announce_server(int4), tessera.internal_migration_request(uuid),
  tessera.internal_register_server(int4, int4, int4, text, int8), tessera.internal_return_move(uuid, int8), tessera.internal_merge_facts(int8),
  tessera.internal_await_standbys() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.recover_node(bool) TO tessera_admin;
GRANT EXECUTE ON FUNCTION tessera.internal_require_config(int8), tessera.internal_check_address(int4, int4, text),
  tessera.internal_announce_server(int4), tessera.internal_migration_request(uuid),
  tessera.internal_register_server(int4, int4, int4, text, int8), tessera.internal_return_move(uuid, int8), tessera.internal_merge_facts(int8),
  tessera.internal_await_standbys() TO tessera_internal;
