-- Sharded tables and their chunks. See src/admin/{shard_table,chunk_commands,consistency}.c and src/config/{group_changes,chunk_calls}.c.

CREATE FUNCTION tessera.shard_table(table_name regclass, key text, strategy text DEFAULT 'range', colocate_with regclass DEFAULT NULL,
  chunks int4 DEFAULT NULL,
                                    create_index bool DEFAULT false, max_chunk_size int8 DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_shard_table' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.shard_table(regclass, text, text, regclass, int4, bool, int8) IS
  'shards a table in place, by metadata alone; key: its columns, ''a'' or ''a, b''; strategy: range or hash; colocate_with: a table whose group it '
  'joins, by moving rows if need be';

CREATE FUNCTION tessera.check_table(table_name regclass, key text, strategy text DEFAULT 'range', colocate_with regclass DEFAULT NULL)
  RETURNS TABLE (severity text, table_name regclass, problem text, statement text, restore text)
  AS 'MODULE_PATHNAME', 'tessera_check_table' LANGUAGE C VOLATILE ROWS 10;
COMMENT ON FUNCTION tessera.check_table(regclass, text, text, regclass) IS
  'all that shard_table would refuse about a table, with the statements that mend it, in order; and what will differ once it is sharded';

CREATE FUNCTION tessera.check_schema(schema_name text, key text, strategy text DEFAULT 'range', colocate_with regclass DEFAULT NULL)
  RETURNS TABLE (severity text, table_name regclass, problem text, drop_foreign_key text, statement text, add_foreign_key text)
  AS 'MODULE_PATHNAME', 'tessera_check_schema' LANGUAGE C VOLATILE ROWS 100;
COMMENT ON FUNCTION tessera.check_schema(text, text, text, regclass) IS
  'what check_table tells, of all tables of a schema that can be sharded together, with all statements that take them there, in order';

CREATE FUNCTION tessera.split_chunk(table_name regclass, at tessera.bound) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_split_chunk' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.split_chunk(regclass, tessera.bound) IS 'splits the chunk in which a bound lies, at that bound';

CREATE FUNCTION tessera.split_find(table_name regclass, key tessera.bound) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_split_find' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.split_find(regclass, tessera.bound) IS 'splits the chunk that holds a key at the median of its keys; returns where';

CREATE FUNCTION tessera.merge_chunks(table_name regclass, min tessera.bound, max tessera.bound) RETURNS int4
  AS 'MODULE_PATHNAME', 'tessera_merge_chunks' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.merge_chunks(regclass, tessera.bound, tessera.bound) IS
  'merges the chunks of one shard from min to max into one; returns how many there were';

CREATE FUNCTION tessera.clear_jumbo(table_name regclass, key tessera.bound) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_clear_jumbo' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.clear_jumbo(regclass, tessera.bound) IS
  'lets the chunk that holds a key be balanced again; returns whether it was marked jumbo';

CREATE FUNCTION tessera.configure_table(table_name regclass, balancing bool DEFAULT NULL, max_chunk_size int8 DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_configure_table' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.configure_table(regclass, bool, int8) IS
  'settings of a table''s group: whether it is balanced, and the size in bytes above which chunks are split';

CREATE FUNCTION tessera.replicate_table(table_name regclass) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_replicate_table' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.replicate_table(regclass) IS
  'copies a placed table to every node, where it is read without asking another node from then on; writes go to all copies. Writers of the '
  'table wait meanwhile';

CREATE FUNCTION tessera.unreplicate_table(table_name regclass) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_unreplicate_table' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.unreplicate_table(regclass) IS
  'makes a replicated table a placed one again: only its schema''s primary shard keeps the rows';

CREATE FUNCTION tessera_internal.capture_replicated() RETURNS trigger
  AS 'MODULE_PATHNAME', 'tessera_capture_replicated' LANGUAGE C;
COMMENT ON FUNCTION tessera_internal.capture_replicated() IS 'notes rows of replicated tables that were changed on their lead';

CREATE FUNCTION tessera.range_owner(table_name regclass, key tessera.bound) RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_range_owner' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION tessera.range_owner(regclass, tessera.bound) IS 'shard that owns a key, by the routing table of this node';

CREATE FUNCTION tessera.check_consistency(deep bool DEFAULT false, OUT invariant int4, OUT object text, OUT detail text) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_check_consistency' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.check_consistency(bool) IS
  'checks the invariants of the cluster, one row for each violation (invariant 0: not checked); deep: also looks for rows on the wrong shard, '
  'and compares the copies of replicated tables, in scans of all tables';

-- Between nodes.

-- Text that is the same where the tables are the same: names instead of OIDs, columns in any order, defaults of privileges written out. An item
-- that begins with ! is wrong in itself. The settings are those on which such texts depend.
@call table_definitions@
  LANGUAGE sql STABLE ROWS 1000 SET search_path = pg_catalog,
  pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
  SET bytea_output = 'hex' SET quote_all_identifiers = off SET standard_conforming_strings = on SET jit = off
AS $$
  WITH known AS MATERIALIZED (
    SELECT format('%I.%I', t.schema_name, t.table_name) AS object, t.key_columns, c.oid AS root
    FROM tessera.cluster_table AS t LEFT JOIN (pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace)
      ON n.nspname = t.schema_name AND c.relname = t.table_name),
  rel AS MATERIALIZED (
    SELECT c.*, format('%I.%I', n.nspname, c.relname) AS object
    FROM (SELECT root AS oid FROM known WHERE root IS NOT NULL UNION SELECT p.relid FROM known,
    LATERAL pg_partition_tree(root) AS p WHERE root IS NOT NULL) AS list
    JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace),
  items (object, item, definition) AS (
    SELECT object, 'row of the catalog', '' FROM known
    UNION ALL
    SELECT object, format('!column %I, of its shard key, does not exist', k), '' FROM known, unnest(key_columns) AS k
    WHERE root IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = root AND a.attname = k AND NOT a.attisdropped)
    UNION ALL
    SELECT object, format('!subscription %I writes into it', s.subname), ''
    FROM rel JOIN pg_subscription_rel AS r ON r.srrelid = rel.oid JOIN pg_subscription AS s ON s.oid = r.srsubid
    UNION ALL
    SELECT object, 'table', concat_ws(' ', relkind, relpersistence, pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid),
      (SELECT string_agg(o, ',' ORDER BY o) FROM unnest(reloptions) AS o),
      (SELECT string_agg(i.inhparent::regclass::text, ',' ORDER BY i.inhseqno) FROM pg_inherits AS i WHERE i.inhrelid = rel.oid),
      CASE relkind WHEN 'm' THEN pg_get_viewdef(oid) END) FROM rel
    UNION ALL
    SELECT object, 'row security of the table', concat_ws(' ', relrowsecurity, relforcerowsecurity) FROM rel
    UNION ALL
    SELECT object, 'owner', pg_get_userbyid(relowner) FROM rel
    UNION ALL
    SELECT object, 'privileges', concat_ws(' ',
      (SELECT string_agg(a::text, ',' ORDER BY a::text) FROM unnest(coalesce(relacl, acldefault('r', relowner))) AS a),
      (SELECT string_agg(format('%I %s', a.attname, p), ',' ORDER BY a.attname, p::text) FROM pg_attribute AS a, unnest(a.attacl) AS p
       WHERE a.attrelid = rel.oid AND NOT a.attisdropped)) FROM rel
    UNION ALL
    SELECT object, format('column %I', a.attname), concat_ws(' ', format_type(a.atttypid, a.atttypmod),
      (SELECT format('COLLATE %I.%I', n.nspname, o.collname) FROM pg_collation AS o JOIN pg_namespace AS n ON n.oid = o.collnamespace
      WHERE o.oid = a.attcollation),
      CASE WHEN a.attnotnull THEN 'NOT NULL' END,
      CASE a.attidentity WHEN 'a' THEN 'GENERATED ALWAYS AS IDENTITY' WHEN 'd' THEN 'GENERATED BY DEFAULT AS IDENTITY' END,
      CASE WHEN d.oid IS NOT NULL THEN CASE a.attgenerated WHEN '' THEN 'DEFAULT' ELSE 'GENERATED' END END, pg_get_expr(d.adbin, d.adrelid))
    FROM rel JOIN pg_attribute AS a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT object, format('constraint %I', c.conname),
    pg_get_constraintdef(c.oid) FROM rel JOIN pg_constraint AS c ON c.conrelid = rel.oid WHERE c.conparentid = 0
    UNION ALL
    SELECT object, format('index %I', x.relname), concat_ws(' ', pg_get_indexdef(i.indexrelid), CASE WHEN NOT i.indisvalid THEN 'INVALID' END)
    FROM rel JOIN pg_index AS i ON i.indrelid = rel.oid JOIN pg_class AS x ON x.oid = i.indexrelid
    UNION ALL
    SELECT object, format('trigger %I', t.tgname), concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM rel JOIN pg_trigger AS t ON t.tgrelid = rel.oid WHERE NOT t.tgisinternal AND t.tgparentid = 0
    UNION ALL
    SELECT object, format('policy %I', p.polname), concat_ws(' ', p.polcmd, p.polpermissive,
      (SELECT string_agg(CASE r WHEN 0 THEN 'public' ELSE pg_get_userbyid(r)::text END, ',' ORDER BY pg_get_userbyid(r)::text) FROM unnest(p.polroles)
      AS r),
      pg_get_expr(p.polqual, p.polrelid), '/', pg_get_expr(p.polwithcheck, p.polrelid)) FROM rel JOIN pg_policy AS p ON p.polrelid = rel.oid
    UNION ALL
    SELECT object, format('rule %I', r.rulename), concat_ws(' ', pg_get_ruledef(r.oid), r.ev_enabled)
    FROM rel JOIN pg_rewrite AS r ON r.ev_class = rel.oid WHERE r.rulename <> '_RETURN')
  SELECT i.object, i.item, coalesce(i.definition, '') FROM items AS i ORDER BY i.object COLLATE "C", i.item COLLATE "C", i.definition COLLATE "C"
$$;
@comment table_definitions@

@call subscribed_tables@
  LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.nspname::text, c.relname::text, s.subname::text
    FROM pg_subscription_rel AS r JOIN pg_subscription AS s ON s.oid = r.srsubid JOIN pg_class AS c ON c.oid = r.srrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE EXISTS (SELECT FROM tessera.cluster_table AS t WHERE t.relid = coalesce(pg_partition_root(c.oid), c.oid)::oid)
  $$;
@comment subscribed_tables@

@call group_rests@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT count(*) FROM tessera.placement AS p WHERE p.group_id = group_rests.group_id
      AND (cardinality(p.deletions) > 0 OR cardinality(p.gates) > 0))
      + (SELECT count(*) FROM tessera.migration_coordinator AS d, unnest(d.ranges) AS g WHERE g.group_id = group_rests.group_id)
      + (SELECT count(*) FROM tessera.migration_recipient AS r, unnest(r.ranges) AS g WHERE g.group_id = group_rests.group_id),
      (SELECT coalesce(sum(pg_stat_get_tuples_deleted(l.relid)), 0)::int8 FROM tessera.cluster_table AS t, LATERAL (
        SELECT t.relid UNION SELECT p.relid FROM pg_partition_tree(t.relid) AS p) AS l WHERE t.group_id = group_rests.group_id)
  $$;
@comment group_rests@

CREATE FUNCTION tessera_internal.count_unowned(table_name regclass, OUT rows int8, OUT example text) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_internal_count_unowned' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_internal.count_unowned(regclass) IS 'between nodes: rows on this shard that it neither owns nor has to delete';

-- Who is shown keys (src/admin/key_visibility.c).

CREATE FUNCTION tessera_internal.keys_visible(group_id uuid) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_internal_keys_visible' LANGUAGE C STABLE PARALLEL RESTRICTED COST 100;
COMMENT ON FUNCTION tessera_internal.keys_visible(uuid) IS
  'may the caller see keys of the tables of a group, and so the bounds of its ranges? NULL: of any group, also of one that is gone';

-- Materialized: a group has many chunks, and is asked about once in a statement. A group that is gone is not in it.
CREATE VIEW tessera_internal.group_keys AS
  WITH asked AS MATERIALIZED (SELECT g.group_id, tessera_internal.keys_visible(g.group_id) AS visible FROM tessera.table_group g)
  SELECT a.group_id, a.visible FROM asked a;
COMMENT ON VIEW tessera_internal.group_keys IS 'for views with bounds: groups, and whether the caller may see their keys';

-- shard_table asks for the table's owner or tessera_admin, range_owner for the right to see the table's keys; the rest is the administrators'.
REVOKE ALL ON FUNCTION tessera.split_chunk(regclass, tessera.bound), tessera.split_find(regclass, tessera.bound),
  tessera.merge_chunks(regclass, tessera.bound, tessera.bound), tessera.clear_jumbo(regclass, tessera.bound),
  tessera.configure_table(regclass, bool, int8), tessera.check_consistency(bool) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.split_chunk(regclass, tessera.bound), tessera.split_find(regclass, tessera.bound),
  tessera.merge_chunks(regclass, tessera.bound, tessera.bound), tessera.clear_jumbo(regclass, tessera.bound),
  tessera.configure_table(regclass, bool, int8), tessera.check_consistency(bool) TO tessera_admin;

