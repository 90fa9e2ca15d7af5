-- The mirror of the catalog in shared memory (src/routing/) and its refresh from the config node.

-- Every statement that writes one of these tables has the mirror loaded again at commit, also a repair by hand. C code that writes without SQL calls
-- tessera_catalog_changed() itself.
CREATE FUNCTION tessera.note_catalog_change() RETURNS trigger
  AS 'MODULE_PATHNAME', 'tessera_note_catalog_change' LANGUAGE C;
COMMENT ON FUNCTION tessera.note_catalog_change() IS 'trigger: rows that the routing image shows were written';

CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.identity
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.node
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.schema_placement
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.sequence_fence
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.table_group
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.cluster_table
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.chunk
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.placement
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.advisory_home
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();

-- On the config node.
CREATE FUNCTION tessera_internal.note_membership() RETURNS trigger
  AS 'MODULE_PATHNAME', 'tessera_note_membership' LANGUAGE C;
COMMENT ON FUNCTION tessera_internal.note_membership() IS 'trigger: on the config node the topology time ticks with the change';
CREATE TRIGGER note_membership AFTER INSERT OR UPDATE OR DELETE ON tessera.node
  FOR EACH ROW EXECUTE FUNCTION tessera_internal.note_membership();
REVOKE ALL ON FUNCTION tessera_internal.note_membership() FROM PUBLIC;

-- Diagnostics.
CREATE FUNCTION tessera.routing_image(OUT sequence int8, OUT term int8, OUT node_id int4, OUT nodes int4, OUT tables int4, OUT groups int4,
    OUT chunks int8, OUT private bool, OUT loads int8, OUT pages int8, OUT written_pages int8, OUT bytes int8, OUT shared_pages int8)
  RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_routing_image_facts' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.routing_image() IS
  'facts about the routing image that this session uses; NULLs if this database is not a node of a cluster';

CREATE FUNCTION tessera.routing_owner(table_name regclass, key tessera.bound) RETURNS int4
  AS 'MODULE_PATHNAME', 'tessera_routing_key_owner' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.routing_owner(regclass, tessera.bound) IS 'node_id of the shard that owns the key, as this session routes by';

CREATE FUNCTION tessera.routing_chunks(table_name regclass, OUT min tessera.bound, OUT max tessera.bound, OUT node_id int4, OUT major int8,
    OUT minor int8, OUT jumbo bool) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_routing_chunk_rows' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.routing_chunks(regclass) IS 'chunks of the table''s group, as this session routes by';

CREATE FUNCTION tessera.routing_placement(table_name regclass, key tessera.bound DEFAULT NULL, OUT major int8, OUT owned int4, OUT deletions int4,
    OUT gate text, OUT hides bool, OUT newest bool, OUT owns_key bool, OUT hides_key bool) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_routing_placement_facts' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.routing_placement(regclass, tessera.bound) IS
  'placement record of the table''s group that this statement''s snapshot sees';

REVOKE ALL ON FUNCTION tessera.routing_image(), tessera.routing_owner(regclass, tessera.bound), tessera.routing_chunks(regclass),
  tessera.routing_placement(regclass, tessera.bound) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.routing_image(), tessera.routing_owner(regclass, tessera.bound), tessera.routing_chunks(regclass),
  tessera.routing_placement(regclass, tessera.bound) TO tessera_admin;

-- Plans that name a table are made anew when its row, or the place of its schema's tables, changes.
CREATE FUNCTION tessera.invalidate_plans() RETURNS trigger
  AS 'MODULE_PATHNAME', 'tessera_invalidate_plans' LANGUAGE C;
COMMENT ON FUNCTION tessera.invalidate_plans() IS 'trigger: plans on the tables concerned are made anew';
CREATE TRIGGER invalidate_plans AFTER INSERT OR UPDATE OR DELETE ON tessera.cluster_table
  FOR EACH ROW EXECUTE FUNCTION tessera.invalidate_plans();
CREATE TRIGGER invalidate_plans AFTER INSERT OR UPDATE OR DELETE ON tessera.schema_placement
  FOR EACH ROW EXECUTE FUNCTION tessera.invalidate_plans();

-- For the catalog's tables only: they read a row as the table it is meant for.
REVOKE ALL ON FUNCTION tessera.note_catalog_change(), tessera.invalidate_plans() FROM PUBLIC;

-- Refresh from the config node (src/routing/refresh.c).

-- Digests of the small tables of the catalog, without what is local to a node or told apart by version. PL/pgSQL, which keeps the plan: each refresh
-- asks for them on both nodes.
CREATE FUNCTION tessera_internal.catalog_digests() RETURNS jsonb
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC'
AS $$
BEGIN
  RETURN (SELECT jsonb_object_agg(what, encode(sha256(convert_to(coalesce(rows, ''), 'UTF8')), 'hex'))
  FROM (
    SELECT 'nodes', (SELECT string_agg(to_jsonb(n)::text, ',' ORDER BY node_id) FROM tessera.node n)
    UNION ALL
    SELECT 'schemas', (SELECT string_agg(to_jsonb(s)::text, ',' ORDER BY schema_name) FROM tessera.schema_placement s)
    UNION ALL
    SELECT 'advisory_homes', (SELECT string_agg(to_jsonb(a)::text, ',' ORDER BY slot) FROM tessera.advisory_home a)
    UNION ALL
    SELECT 'tables', (SELECT string_agg((to_jsonb(t) - 'relid')::text, ',' ORDER BY table_id) FROM tessera.cluster_table t)
    UNION ALL
    SELECT 'keys', (SELECT string_agg(to_jsonb(k)::text, ',' ORDER BY key_id) FROM tessera.signing_key k)
    UNION ALL
    SELECT 'groups', (SELECT string_agg((to_jsonb(g) - 'group_major' - 'group_minor')::text, ',' ORDER BY group_id) FROM tessera.table_group g)
  ) AS digest(what, rows));
END
$$;
COMMENT ON FUNCTION tessera_internal.catalog_digests() IS 'between nodes: digests of the registry, schemas, tables and groups';

-- Everything that is newer here than what the caller has: known = {term, cluster_id, digests, groups: {group_id: [epoch, major, minor]}}. Rows in the
-- order in which they are to be written; the last one is "end". A group of another epoch, of a newer version there, or after a change of term comes
-- whole (S9, S10).
CREATE FUNCTION tessera_internal.doubt_catalog() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_internal_doubt_catalog' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_internal.doubt_catalog() IS
  'on the config node: a node knows newer metadata, so this catalog has lost commits: it is compared with the shards, as after a promotion';

CREATE FUNCTION tessera_internal.await_catalog() RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_await_catalog' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_internal.await_catalog() IS
  'on the config node: waits until what is prepared and changes the catalog has ended; false if that takes longer than a second';

-- The answer, in one snapshot. digests: of this catalog, of that snapshot or older, with the topology time. Without `settled`, no schemas, tables and
-- groups, which may be older here than there.
CREATE FUNCTION tessera_internal.catalog_differences(known jsonb, digests jsonb, settled bool)
  RETURNS TABLE (kind text, group_id uuid, data jsonb)
  LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC'
AS $$
#variable_conflict use_column
DECLARE
  me tessera.identity;
  g tessera.table_group;
  version jsonb;
  whole bool;
  above int8[];
  portion jsonb;
BEGIN
  SELECT * INTO me FROM tessera.identity;
  IF me.is_config IS NOT TRUE THEN
    RAISE EXCEPTION 'this node is not the config node of a cluster'
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Tell the cluster where its config node is with tessera.update_node().';
  END IF;
  IF me.cluster_id <> (known->>'cluster_id')::uuid THEN
    RAISE EXCEPTION 'node is of another cluster than "%"', me.cluster USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  IF me.term < (known->>'term')::int8 THEN
    RAISE EXCEPTION 'config node is of term %, an older one than %', me.term, known->>'term'
      USING ERRCODE = 'TS003', HINT = 'A newer config node exists: stop this one.';
  END IF;

  RETURN QUERY SELECT 'source'::text, NULL::uuid, jsonb_build_object('term', me.term, 'topology', digests->'topology');
  IF NOT settled THEN
    digests := digests || jsonb_build_object('schemas', known->'digests'->'schemas', 'tables', known->'digests'->'tables',
      'groups', known->'digests'->'groups');
  END IF;
  IF digests->'nodes' IS DISTINCT FROM known->'digests'->'nodes' THEN
    RETURN QUERY SELECT 'nodes'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(n)), '[]') FROM tessera.node n;
  END IF;
  IF digests->'schemas' IS DISTINCT FROM known->'digests'->'schemas' THEN
    RETURN QUERY SELECT 'schemas'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(s)), '[]') FROM tessera.schema_placement s;
  END IF;

  -- a node of an earlier version knows no keys
  IF known->'digests' ? 'keys' AND digests->'keys' IS DISTINCT FROM known->'digests'->'keys' THEN
    RETURN QUERY SELECT 'keys'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(k)), '[]') FROM tessera.signing_key k;
  END IF;
  IF digests->'advisory_homes' IS DISTINCT FROM known->'digests'->'advisory_homes' THEN
    RETURN QUERY SELECT 'advisory_homes'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(a)), '[]') FROM tessera.advisory_home a;
  END IF;

  FOR g IN SELECT * FROM tessera.table_group LOOP
    version := known->'groups'->(g.group_id::text);
    CONTINUE WHEN version IS NULL AND NOT settled;
    IF version->>0 = g.epoch::text AND me.term = (known->>'term')::int8
       AND ((version->>1)::int8, (version->>2)::int8) > (g.group_major, g.group_minor) THEN
      PERFORM tessera_internal.doubt_catalog();
      RAISE EXCEPTION 'the catalog of the config node is older than that of a node' USING ERRCODE = 'TS003',
        DETAIL = format('Table group %s is of version %s.%s here, of %s.%s there.', g.group_id, g.group_major, g.group_minor, version->>1,
        version->>2),
        HINT = 'The config node compares its catalog with the shards now. Was an older copy of its data directory put in its place?';
    END IF;
    whole := version IS NULL OR me.term <> (known->>'term')::int8 OR version->>0 <> g.epoch::text
      OR ((version->>1)::int8, (version->>2)::int8) > (g.group_major, g.group_minor);
    CONTINUE WHEN NOT whole AND ((version->>1)::int8, (version->>2)::int8) = (g.group_major, g.group_minor);
    RETURN QUERY SELECT CASE WHEN whole THEN 'whole' ELSE 'group' END, g.group_id, to_jsonb(g);
    -- by the index on versions, however many chunks there are; in portions, so that no node has to keep all of them in memory
    above := CASE WHEN whole THEN '{-1, 0}' ELSE ARRAY[(version->>1)::int8, (version->>2)::int8] END;
    LOOP
      SELECT jsonb_agg(to_jsonb(c) ORDER BY c.major, c.minor), max(ARRAY[c.major, c.minor]) INTO portion, above
        FROM (SELECT c.* FROM tessera.chunk c WHERE c.group_id = g.group_id AND (c.major, c.minor) > (above[1], above[2])
              ORDER BY c.major, c.minor FETCH FIRST 1000 ROWS WITH TIES) c;
      EXIT WHEN portion IS NULL;
      RETURN QUERY SELECT 'chunks'::text, g.group_id, portion;
    END LOOP;
  END LOOP;

  IF digests->'tables' IS DISTINCT FROM known->'digests'->'tables' THEN
    RETURN QUERY SELECT 'tables'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(t) - 'relid'), '[]') FROM tessera.cluster_table t;
  END IF;
  IF digests->'groups' IS DISTINCT FROM known->'digests'->'groups' THEN
    RETURN QUERY SELECT 'groups'::text, NULL::uuid, coalesce(jsonb_agg(to_jsonb(t)), '[]') FROM tessera.table_group t;
  END IF;
  RETURN QUERY SELECT 'end'::text, NULL::uuid, NULL::jsonb;
END
$$;
COMMENT ON FUNCTION tessera_internal.catalog_differences(jsonb, jsonb, bool) IS
  'on the config node: rows of its catalog that are newer than what a node has, in one snapshot';

-- A node may have committed its part of a transaction whose part here is still prepared (src/config/prepared_catalog.c): then the small tables
-- differ. Each statement sees what is committed when it begins, so the answer is read after the wait.
@call catalog_changes@
  LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  others CONSTANT text[] := '{nodes, advisory_homes, keys}';
  -- read before all else: the registry that the caller gets is at least as new
  topology CONSTANT int8 := (SELECT t.changed FROM tessera.topology t);
  digests jsonb := tessera_internal.catalog_digests();
  settled bool := true;
BEGIN
  IF digests - others IS DISTINCT FROM (known->'digests') - others THEN
    settled := tessera_internal.await_catalog();
    digests := tessera_internal.catalog_digests();
  END IF;
  RETURN QUERY SELECT d.kind, d.group_id, d.data FROM tessera_internal.catalog_differences(known,
    digests || jsonb_build_object('topology', topology), settled) AS d;
END
$$;
@comment catalog_changes@

CREATE FUNCTION tessera.reload_routing() RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_reload_routing' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.reload_routing() IS
  'loads the routing image anew and fetches what changed from the config node; false if that could not be reached in time';

CREATE FUNCTION tessera.refresh_status(OUT requested int8, OUT succeeded int8, OUT last_success timestamptz, OUT last_error text) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_refresh_status' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.refresh_status() IS
  'the refresher of this node: number of the last request and of the last one served, time of the last good fetch, error of the last one';

REVOKE ALL ON FUNCTION tessera.reload_routing(), tessera.refresh_status() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.reload_routing() TO tessera_internal;
GRANT EXECUTE ON FUNCTION tessera.reload_routing(), tessera.refresh_status() TO tessera_admin;
