-- What follows the promotion of a standby. See src/failover/promotion.c and src/config/promotion_merge.c.

CREATE FUNCTION tessera.recover_node(force bool DEFAULT false) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_recover_node' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.recover_node(bool) IS
  'after a promotion: has this node find out now what it owns, on the config node also what is true; the error says what is in the way; force: gives '
  'up what is missing, for good';

CREATE FUNCTION tessera.promotion_status(OUT timeline int4, OUT placements_known bool, OUT metadata_known bool, OUT last_error text,
    OUT incarnation int4, OUT replaced bool) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_promotion_status' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.promotion_status() IS
  'does this node know, since its last promotion, what it owns, and, if it is the config node, that its catalog is right? last_error: what '
  'was in the way; replaced: another server was promoted in the place of this one';

-- The config node's side.

CREATE FUNCTION tessera_internal.require_config(term int8) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_require_config' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_internal.require_config(int8) IS
  'between nodes: fails unless this is the config node, of no lower term than the caller has seen';

CREATE FUNCTION tessera_internal.check_address(node int4, timeline int4, started text) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_check_address' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_internal.check_address(int4, int4, text) IS
  'between nodes: fails unless a node''s registered address leads to its server of that timeline, started then';

CREATE FUNCTION tessera_internal.migration_request(id uuid) RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('migration_id', migration_id, 'table_id', table_id, 'schema_name', schema_name, 'donor', donor,
      'recipient', recipient, 'term', term,
      'donor_incarnation', donor_incarnation, 'recipient_incarnation', recipient_incarnation, 'verify', verify,
      'yields', yields, 'share', share,
      'ranges', (SELECT jsonb_agg(jsonb_build_object('group_id', r.group_id, 'epoch', r.epoch, 'min', textin(tessera.bound_out(r.min)),
          'max', textin(tessera.bound_out(r.max))) ORDER BY r.n)
        FROM unnest(m.ranges) WITH ORDINALITY AS r (group_id, epoch, min, max, n)),
      'members', (SELECT jsonb_agg(t.table_id ORDER BY t.table_id) FROM tessera_internal.moving_table AS t
        WHERE t.group_id IN (SELECT r.group_id FROM unnest(m.ranges) AS r)))
    FROM tessera.migration AS m WHERE migration_id = migration_request.id
  $$;
COMMENT ON FUNCTION tessera_internal.migration_request(uuid) IS 'between nodes: a migration as it was registered';

CREATE FUNCTION tessera_internal.request_ranges(request jsonb) RETURNS tessera.operation_range[]
  LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ranges tessera.operation_range[];
BEGIN
  ranges := (SELECT array_agg(((r->>'group_id')::uuid, (r->>'epoch')::uuid, tessera.bound_in(textout(r->>'min')),
      tessera.bound_in(textout(r->>'max')))::tessera.operation_range ORDER BY n)
    FROM jsonb_array_elements(request->'ranges') WITH ORDINALITY AS q (r, n));
  IF tessera_internal.ranges_complete(ranges) IS NOT TRUE THEN
    RAISE EXCEPTION 'the request names no ranges, or not the whole of them' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN ranges;
END
$$;
COMMENT ON FUNCTION tessera_internal.request_ranges(jsonb) IS 'between nodes: the ranges of a migration as it was registered';

-- The row's lock meets that of a commit (src/config/commit_move.c): a commit before it counts, one after it is refused. A server that is registered
-- already is not asked for its address again.
@call register_server@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  known tessera.node;
BEGIN
  PERFORM tessera_internal.require_config(register_server.term);
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  PERFORM tessera_internal.check_address(n.node_id, register_server.timeline, started) FROM tessera.node AS n
    WHERE n.node_id = register_server.node
      AND (n.timeline, n.incarnation) <> (register_server.timeline, register_server.incarnation);
  SELECT n.* INTO known FROM tessera.node AS n WHERE n.node_id = register_server.node FOR UPDATE;
  IF known.node_id IS NULL THEN
    RAISE EXCEPTION 'node % is not in the cluster', register_server.node USING ERRCODE = 'undefined_object';
  END IF;
  registered := known.incarnation;
  UPDATE tessera.node AS n SET server_start = started WHERE n.node_id = known.node_id AND n.server_start IS DISTINCT FROM started;
  IF (known.timeline, known.incarnation) <> (register_server.timeline, register_server.incarnation) THEN
    registered := greatest(known.incarnation, register_server.incarnation) + 1;
    UPDATE tessera.node AS n SET timeline = register_server.timeline, incarnation = registered WHERE n.node_id = known.node_id;
    INSERT INTO tessera.changelog_entry (what, object, before, after)
      VALUES ('promotion', known.name, jsonb_build_object('timeline', known.timeline, 'incarnation', known.incarnation),
        jsonb_build_object('timeline', register_server.timeline, 'incarnation', registered));
  END IF;
  unfinished := (SELECT coalesce(jsonb_agg(tessera_internal.migration_request(m.migration_id)), '[]')
                 FROM tessera.migration AS m LEFT JOIN tessera.migration_outcome AS o USING (migration_id)
                 WHERE m.donor = known.node_id AND m.donor_incarnation < registered
                   AND (m.state = 'running' OR o.migration_id IS NOT NULL));
END
$$;
@comment register_server@

@call moves_received@
  LANGUAGE sql STABLE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(tessera_internal.migration_request(m.migration_id) ORDER BY m.started DESC), '[]')
    FROM tessera.migration AS m WHERE m.recipient = moves_received.recipient AND m.state = 'committed'
      AND EXISTS (SELECT FROM unnest(m.ranges) AS r WHERE r.group_id = moves_received.group_id)
  $$;
@comment moves_received@

@call known_terms@
  LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(i.term, i.promised_term), (SELECT jsonb_object_agg(n.node_id, n.incarnation) FROM tessera.node AS n) FROM tessera.identity AS i
  $$;
@comment known_terms@

-- Any shard's side.

-- The lock waits for changes of placements that began under an older term, and keeps new ones out until the new term is committed
-- (src/migration/placement_change.c).
@call merge_facts@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s'
AS $$
#variable_conflict use_column
BEGIN
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  IF (SELECT s.replaced FROM tessera.promotion_status() AS s) THEN
    RAISE EXCEPTION 'this server was replaced' USING ERRCODE = 'TS003', HINT = 'Stop it.';
  END IF;
  UPDATE tessera.identity SET promised_term = merge_facts.term WHERE promised_term < merge_facts.term;
  LOCK TABLE tessera.placement IN SHARE MODE;
  IF NOT (SELECT s.placements_known FROM tessera.promotion_status() AS s) THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object(
    'server', (SELECT jsonb_build_object('timeline', i.timeline, 'incarnation', i.incarnation) FROM tessera.identity AS i),
    'placements', (SELECT coalesce(jsonb_agg(jsonb_build_object('group_id', p.group_id, 'major', p.major, 'owned',
        (SELECT coalesce(jsonb_agg(jsonb_build_object('min', textin(tessera.bound_out(o.min)), 'max', textin(tessera.bound_out(o.max)))), '[]')
         FROM unnest(p.owned) AS o))), '[]') FROM tessera.placement AS p),
    'schemas', (SELECT coalesce(jsonb_agg(jsonb_build_object('schema', to_jsonb(s), 'group', to_jsonb(g))), '[]')
      FROM tessera.schema_placement AS s JOIN tessera.table_group AS g USING (group_id)),
    'donated', (SELECT coalesce(jsonb_agg(jsonb_build_object('request', c.request, 'decision', c.decision)), '[]') FROM tessera.migration_coordinator
    AS c),
    'received', (SELECT coalesce(jsonb_agg(jsonb_build_object('request', r.request, 'state', r.state)), '[]') FROM tessera.migration_recipient AS r));
END
$$;
@comment merge_facts@

REVOKE ALL ON FUNCTION tessera.recover_node(bool) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.recover_node(bool) TO tessera_admin;
