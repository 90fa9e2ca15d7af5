-- What follows the promotion of a standby. See src/migration/promotion.c.

CREATE FUNCTION tessera.recover_node(force bool DEFAULT false) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_recover_node' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.recover_node(bool) IS
  'after a promotion: has this node find out now what it owns, on the config node also what is true; the error says what is in the way; force: gives up what is missing, for good';

CREATE FUNCTION tessera.promotion_status(OUT timeline int4, OUT placements_known bool, OUT metadata_known bool, OUT last_error text) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_promotion_status' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.promotion_status() IS
  'does this node know, since its last promotion, what it owns, and, if it is the config node, that its catalog is right? last_error: what was in the way';

-- The config node's side.

CREATE FUNCTION tessera.internal_require_config(term int8) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_require_config' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_require_config(int8) IS 'between nodes: fails unless this is the config node, of no lower term than the caller has seen';

CREATE FUNCTION tessera.internal_check_address(node int4, timeline int4) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_check_address' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.internal_check_address(int4, int4) IS 'between nodes: fails unless a node''s registered address leads to its server of that timeline';

CREATE FUNCTION tessera.internal_migration_request(id uuid) RETURNS jsonb
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('migration_id', migration_id, 'group_id', group_id, 'table_id', table_id, 'min', textin(tessera.bound_out(min)),
      'max', textin(tessera.bound_out(max)), 'donor', donor, 'recipient', recipient, 'epoch', epoch, 'term', term, 'donor_timeline', donor_timeline,
      'recipient_timeline', recipient_timeline, 'verify', verify)
    FROM tessera.migration WHERE migration_id = internal_migration_request.id
  $$;
COMMENT ON FUNCTION tessera.internal_migration_request(uuid) IS 'between nodes: a migration as it was registered';

-- The row's lock meets that of a commit (src/catalog/chunk_move.c): a commit before it counts, one after it is refused.
CREATE FUNCTION tessera.internal_register_timeline(node int4, timeline int4, term int8) RETURNS jsonb
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  known int4;
BEGIN
  PERFORM tessera.internal_require_config(internal_register_timeline.term);
  PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
  PERFORM tessera.internal_check_address(n.node_id, internal_register_timeline.timeline) FROM tessera.node AS n
    WHERE n.node_id = internal_register_timeline.node AND n.timeline < internal_register_timeline.timeline;
  SELECT n.timeline INTO known FROM tessera.node AS n WHERE n.node_id = internal_register_timeline.node FOR UPDATE;
  IF known IS NULL THEN
    RAISE EXCEPTION 'node % is not in the cluster', internal_register_timeline.node USING ERRCODE = 'undefined_object';
  END IF;
  IF known > internal_register_timeline.timeline THEN
    RAISE EXCEPTION 'another server was promoted in this one''s place'
      USING ERRCODE = 'TS003', DETAIL = format('It is on timeline %s, this one on timeline %s.', known, internal_register_timeline.timeline),
        HINT = 'Stop this server.';
  END IF;
  IF known < internal_register_timeline.timeline THEN
    UPDATE tessera.node SET timeline = internal_register_timeline.timeline WHERE node_id = internal_register_timeline.node;
    INSERT INTO tessera.changelog_entry (what, object, before, after)
      SELECT 'promotion', n.name, jsonb_build_object('timeline', known), jsonb_build_object('timeline', n.timeline)
      FROM tessera.node AS n WHERE n.node_id = internal_register_timeline.node;
  END IF;
  RETURN (SELECT coalesce(jsonb_agg(tessera.internal_migration_request(m.migration_id)), '[]')
          FROM tessera.migration AS m LEFT JOIN tessera.migration_outcome AS o USING (migration_id)
          WHERE m.donor = internal_register_timeline.node AND m.donor_timeline < internal_register_timeline.timeline
            AND (m.state = 'running' OR o.migration_id IS NOT NULL));
END
$$;
COMMENT ON FUNCTION tessera.internal_register_timeline(int4, int4, int8) IS
  'between nodes: a node was promoted; returns the migrations that it donated and that have not ended';

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
  UPDATE tessera.identity SET term = internal_merge_facts.term WHERE term < internal_merge_facts.term;
  LOCK TABLE tessera.placement IN SHARE MODE;
  IF NOT (SELECT s.placements_known FROM tessera.promotion_status() AS s) THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_build_object(
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

REVOKE ALL ON FUNCTION tessera.recover_node(bool), tessera.internal_require_config(int8), tessera.internal_check_address(int4, int4),
  tessera.internal_migration_request(uuid),
  tessera.internal_register_timeline(int4, int4, int8), tessera.internal_return_move(uuid, int8), tessera.internal_merge_facts(int8),
  tessera.internal_await_standbys() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.recover_node(bool) TO tessera_admin;
GRANT EXECUTE ON FUNCTION tessera.internal_require_config(int8), tessera.internal_check_address(int4, int4), tessera.internal_migration_request(uuid),
  tessera.internal_register_timeline(int4, int4, int8), tessera.internal_return_move(uuid, int8), tessera.internal_merge_facts(int8),
  tessera.internal_await_standbys() TO tessera_internal;
