-- Membership of the cluster. See src/admin/.

-- Numbers of nodes are never used again: not even those of nodes that did not join in the end. Config node only.
CREATE SEQUENCE tessera.node_id AS int4;
COMMENT ON SEQUENCE tessera.node_id IS 'node numbers, never used twice (config node)';

CREATE FUNCTION tessera.check_node(OUT setting text, OUT current text, OUT needed text, OUT ok bool) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_check_node' LANGUAGE C STABLE;
COMMENT ON FUNCTION tessera.check_node() IS 'settings a node needs: current and needed value, and whether that is enough';

CREATE FUNCTION tessera.create_cluster(cluster text, conninfo text, shard text DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_create_cluster' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.create_cluster(text, text, text) IS
  'makes this database the config node of a new cluster and, if a shard is named, its first shard, which keeps its tables; conninfo: how other nodes '
  'reach it';

CREATE FUNCTION tessera.add_shard(name text, conninfo text) RETURNS int4
  AS 'MODULE_PATHNAME', 'tessera_add_shard' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.add_shard(text, text) IS 'joins the database at conninfo to the cluster as a shard; returns its node_id';

CREATE FUNCTION tessera.add_router(name text, conninfo text) RETURNS int4
  AS 'MODULE_PATHNAME', 'tessera_add_router' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.add_router(text, text) IS
  'joins the database at conninfo to the cluster as a router, which stores nothing; returns its node_id';

CREATE FUNCTION tessera.update_node(name text, conninfo text, force bool DEFAULT false) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_update_node' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.update_node(text, text, bool) IS
  'changes the address of a node; force: also to a promoted standby of it, once the old primary is stopped for good';

CREATE FUNCTION tessera.remove_shard(name text, force bool DEFAULT false) RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_remove_shard' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.remove_shard(text, bool) IS
  'removes a shard: its chunks are moved to the others first, by the balancer, and it leaves by itself when it is empty; called again it says how '
  'far that is. Its tables are kept, without rows; force: at once, without asking the node';

CREATE FUNCTION tessera.cancel_remove_shard(name text) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_cancel_remove_shard' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.cancel_remove_shard(text) IS 'calls a removal off: the shard stays, and what has moved away may come back';

CREATE FUNCTION tessera.remove_router(name text, force bool DEFAULT false) RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_remove_router' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.remove_router(text, bool) IS 'removes a router; force: without asking the node whether its transactions are ended';

CREATE FUNCTION tessera.node_conninfo(name text) RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_node_conninfo_sql' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION tessera.node_conninfo(text) IS 'address of a node, which may hold a password: for administrators';

-- Between nodes.

CREATE FUNCTION tessera_internal.range_deletions(OUT group_id uuid, OUT min tessera.bound, OUT max tessera.bound) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_range_deletions' LANGUAGE C STABLE;
COMMENT ON FUNCTION tessera_internal.range_deletions() IS 'source of the view tessera.range_deletions; bounds to who may see them';

-- By the rights of the role of the conninfo, which asks about itself.
@call unreadable_schema@
  LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT current_user,
    (SELECT format('table %I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tessera')
       AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) ORDER BY 1 LIMIT 1),
    (SELECT format('options of the user mapping for %s on server %I', coalesce(u.usename::text, 'public'), u.srvname) FROM pg_user_mappings AS u
     WHERE u.umoptions IS NULL AND NOT (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user)
     ORDER BY 1 LIMIT 1)
$$;
@comment unreadable_schema@
