-- What check_consistency (src/admin/consistency.c) asks the nodes.

@call group_chunks@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT c.min, c.max, c.node_id, c.major, c.minor FROM tessera.chunk AS c WHERE c.group_id = group_chunks.group_id
$$;
@comment group_chunks@

@call table_groups@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT g.group_id, g.epoch, g.group_major, g.group_minor,
      coalesce((SELECT string_agg(format('%I.%I', t.schema_name, t.table_name), ', ' ORDER BY t.schema_name, t.table_name)
                FROM tessera.cluster_table AS t WHERE t.group_id = g.group_id),
        (SELECT 'schema ' || quote_ident(s.schema_name) FROM tessera.schema_placement AS s WHERE s.group_id = g.group_id), 'group ' || g.group_id)
    FROM tessera.table_group AS g ORDER BY 5
$$;
@comment table_groups@

@call busy_groups@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT DISTINCT r.group_id, n.node_id FROM tessera.migration AS m, unnest(m.ranges) AS r, LATERAL (VALUES (m.donor), (m.recipient)) AS n (node_id)
    WHERE m.state = 'running' OR m.finished > clock_timestamp() - interval '1 s'
      -- finished is the time at which the decision was made; a moment later it was committed, and carried out
      OR m.finished > clock_timestamp() - interval '5 s' AND EXISTS (SELECT FROM tessera.migration_outcome AS o WHERE o.migration_id = m.migration_id)
$$;
@comment busy_groups@

@call owned_ranges@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT p.group_id, p.epoch, p.major, r.min, r.max,
    coalesce((SELECT g.gate FROM unnest(p.gates) AS g WHERE g.gate <> 'open' LIMIT 1), 'open'), r.deleted
    FROM tessera.placement AS p
      LEFT JOIN LATERAL (SELECT o.min, o.max, false AS deleted FROM unnest(p.owned) AS o
                         UNION ALL SELECT d.min, d.max, true FROM unnest(p.deletions) AS d) AS r ON true
$$;
@comment owned_ranges@

@call prepared_parts@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT x.gid, date_trunc('second', now() - x.prepared)::text
    FROM pg_prepared_xact() AS x
    WHERE x.dbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
      AND x.gid LIKE 'tessera%' AND x.gid NOT LIKE 'tessera\_75736572%' -- gids of clients' transactions (transaction/prepared.h)
      AND x.prepared < now() - interval '1 minute'
    ORDER BY x.prepared
$$;
@comment prepared_parts@

@call promotion_doubt@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(s.last_error, 'it is finding out') FROM tessera.promotion_status() AS s
    WHERE NOT s.placements_known OR NOT coalesce(s.metadata_known, true)
$$;
@comment promotion_doubt@

@call unowned_rows@
  LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT CASE WHEN l.relid = c.oid THEN format('%I.%I', t.schema_name, t.table_name) ELSE l.relid::regclass::text END, u.rows, u.example
    FROM tessera.cluster_table AS t
      JOIN pg_namespace AS n ON n.nspname = t.schema_name
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.table_name, LATERAL (
        SELECT c.oid AS relid UNION SELECT p.relid FROM pg_partition_tree(c.oid) AS p WHERE p.isleaf) AS l,
      tessera_internal.count_unowned(l.relid) AS u
    WHERE u.rows > 0 ORDER BY 1
$$;
@comment unowned_rows@
