-- The balancer, zones and weights. See src/balancer/, src/balance/, src/admin/balancing_commands.c and src/config/balancing.c.

CREATE FUNCTION tessera.start_balancer() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_start_balancer' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.start_balancer() IS 'lets the balancer even out the shards again; it does so in a new cluster';

CREATE FUNCTION tessera.stop_balancer() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_stop_balancer' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.stop_balancer() IS
  'the balancer evens nothing out and merges nothing any more; what was asked for, removals of shards and zones it still sees to';

CREATE FUNCTION tessera.pause_balancer(how_long interval) RETURNS timestamptz
  AS 'MODULE_PATHNAME', 'tessera_pause_balancer' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.pause_balancer(interval) IS 'the balancer begins nothing at all for so long; moves that run go on; returns until when';

CREATE FUNCTION tessera.resume_balancer() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_resume_balancer' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.resume_balancer() IS 'ends a pause of the balancer';

CREATE FUNCTION tessera.balancer_round() RETURNS timestamptz
  AS 'MODULE_PATHNAME', 'tessera_run_balancer_round' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.balancer_round() IS
  'has the balancer make a round now, and waits for its end, not for the moves that it begins; returns when it began';

CREATE FUNCTION tessera.explain_balancer(now bool DEFAULT false, OUT step int4, OUT due text, OUT kind text, OUT table_name regclass,
    OUT schema_name text, OUT min tessera.bound, OUT max tessera.bound, OUT ranges int4, OUT donor text, OUT recipient text, OUT reason text,
    OUT bytes int8, OUT detail text, OUT made timestamptz) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_explain_balancer' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.explain_balancer(bool) IS
  'what the balancer''s last round has decided, in its order, and why, or, with now => true, what one would decide now; due: now, later, or never, '
  'where something is in the way; made: when it was decided; on the config node';

CREATE FUNCTION tessera.add_zone(zone text, shard text) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_add_zone' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.add_zone(text, text) IS 'puts a shard into a zone, which is made if there is none of this name';

CREATE FUNCTION tessera.remove_zone(zone text, shard text DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_remove_zone' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.remove_zone(text, text) IS 'takes a shard, or all, out of a zone; the last one only when the zone has no ranges';

CREATE FUNCTION tessera.set_zone_range(table_name regclass, zone text, min tessera.bound, max tessera.bound) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_set_zone_range' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.set_zone_range(regclass, text, tessera.bound, tessera.bound) IS
  'rows of the table''s group with keys from min up to, but without, max are to lie on the shards of a zone: the balancer splits and moves them; '
  'zone NULL: gives the range up';

CREATE FUNCTION tessera.set_shard_weight(shard text, weight float8) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_set_shard_weight' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera.set_shard_weight(text, float8) IS 'how much a shard is to have, relative to the others, which have 1';

REVOKE ALL ON FUNCTION tessera.start_balancer(), tessera.stop_balancer(), tessera.pause_balancer(interval), tessera.resume_balancer(),
  tessera.balancer_round(), tessera.explain_balancer(bool), tessera.add_zone(text, text), tessera.remove_zone(text, text),
  tessera.set_zone_range(regclass, text, tessera.bound, tessera.bound), tessera.set_shard_weight(text, float8) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.start_balancer(), tessera.stop_balancer(), tessera.pause_balancer(interval), tessera.resume_balancer(),
  tessera.balancer_round(), tessera.explain_balancer(bool), tessera.add_zone(text, text), tessera.remove_zone(text, text),
  tessera.set_zone_range(regclass, text, tessera.bound, tessera.bound), tessera.set_shard_weight(text, float8) TO tessera_admin;

-- Views.

CREATE VIEW tessera_internal.hot_chunks AS
  SELECT t.relid::pg_catalog.regclass AS table_name, CASE WHEN k.visible THEN c.min END AS min, CASE WHEN k.visible THEN c.max END AS max,
         n.name AS shard, e.statements, e.load, CASE WHEN k.visible THEN e.hot_key END AS hot_key, e.hot_share,
         CASE WHEN e.hot_share >= 0.5 AND e.hot_key OPERATOR(tessera.=) c.min THEN 'one key has most of the load: no split can help'
              WHEN e.hot_share >= 0.5 THEN
                'one key has most of the load: with tessera.balancer_policy = load it gets a chunk of its own'
              WHEN c.jumbo THEN 'it is jumbo: it cannot be split'
              ELSE 'with tessera.balancer_policy = load it is split, and the pieces are spread' END AS advice, e.measured
  FROM tessera.chunk_estimate e
  JOIN tessera_internal.group_keys k USING (group_id)
  JOIN tessera.chunk c ON c.group_id = e.group_id AND c.min OPERATOR(tessera.=) e.min
  JOIN tessera.node n ON n.node_id = c.node_id
  JOIN LATERAL (SELECT o.relid FROM tessera.cluster_table o WHERE o.group_id = e.group_id ORDER BY o.schema_name, o.table_name LIMIT 1) AS t ON true
  WHERE e.load > 0 ORDER BY e.load DESC, e.statements DESC;
COMMENT ON VIEW tessera_internal.hot_chunks IS
  'what this node has of tessera.hot_chunks: all of it on the config node; for the extension''s own queries and monitoring';

CREATE VIEW tessera.hot_chunks AS
  SELECT v.* FROM tessera_internal.hot_chunks AS v WHERE tessera_internal.on_config_node('hot_chunks');
COMMENT ON VIEW tessera.hot_chunks IS
  'chunks by their load, which is sessions at work on them on average, the hottest first, with the key that most of it is about as far as known, and '
  'what helps; table_name: one table of the group; on the config node, an error elsewhere';

CREATE VIEW tessera.zones AS
  SELECT z.zone, n.name AS shard FROM tessera.zone_shard z JOIN tessera.node n USING (node_id)
  WHERE tessera_internal.on_config_node('zones') ORDER BY z.zone, n.name;
COMMENT ON VIEW tessera.zones IS 'shards of each zone; on the config node, an error elsewhere';

CREATE VIEW tessera_internal.zone_ranges AS
  SELECT t.relid::pg_catalog.regclass AS table_name, r.zone, CASE WHEN k.visible THEN r.min END AS min, CASE WHEN k.visible THEN r.max END AS max
  FROM tessera.zone_range r JOIN tessera_internal.group_keys k USING (group_id) JOIN tessera.cluster_table t USING (group_id)
  ORDER BY t.schema_name, t.table_name, r.min;
COMMENT ON VIEW tessera_internal.zone_ranges IS
  'what this node has of tessera.zone_ranges: all of it on the config node; for the extension''s own queries and monitoring';

CREATE VIEW tessera.zone_ranges AS
  SELECT v.* FROM tessera_internal.zone_ranges AS v WHERE tessera_internal.on_config_node('zone_ranges');
COMMENT ON VIEW tessera.zone_ranges IS
  'ranges whose rows are to lie in a zone; min and max: to who may read the key; on the config node, an error elsewhere';

CREATE VIEW tessera_internal.balancer_status AS
  SELECT a.action_id AS id, a.state, a.kind, t.relid::pg_catalog.regclass AS table_name, a.schema_name,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN a.min END AS min,
         CASE WHEN coalesce(k.visible, tessera_internal.keys_visible(NULL)) THEN a.max END AS max,
         coalesce(pg_catalog.cardinality(a.ranges), 1) AS ranges, d.name AS donor, r.name AS recipient, a.reason, a.detail,
         a.bytes, m.bytes AS bytes_done,
         CASE a.state
           WHEN 'running' THEN pg_catalog.make_interval(secs => greatest(a.bytes - coalesce(m.bytes, 0), 0) / r1.rate)
           WHEN 'queued' THEN pg_catalog.make_interval(secs => a.bytes / r1.rate) END AS remaining, a.by, a.attempts, a.asked, a.started, a.finished,
			   a.not_before, a.migration_id,
         -- errors may name addresses, and keys of rows
         CASE WHEN a.error IS NULL THEN CASE a.state WHEN 'running' THEN m.waiting_for END
              WHEN pg_catalog.pg_has_role('tessera_admin', 'USAGE') THEN a.error
              ELSE 'error ' || pg_catalog."left"(a.error, 5) END AS waiting_for
  FROM tessera.balancer_action a
  LEFT JOIN tessera.cluster_table t USING (table_id)
  LEFT JOIN tessera_internal.group_keys k ON k.group_id = a.group_id
  LEFT JOIN tessera.node d ON d.node_id = a.donor
  LEFT JOIN tessera.node r ON r.node_id = a.recipient
  LEFT JOIN tessera_internal.migrations m ON m.id = a.migration_id
  -- bytes a second of the last moves that were long enough to tell
  CROSS JOIN (SELECT coalesce(pg_catalog.sum(l.bytes) / nullif(pg_catalog.sum(extract(epoch FROM l.finished - l.started)), 0),
							  10000000)::float8 AS rate
              FROM (SELECT o.bytes, o.started, o.finished FROM tessera.migration o WHERE o.state = 'committed' AND o.bytes > 1000000
                    ORDER BY o.finished DESC LIMIT 20) AS l) AS r1
  ORDER BY CASE a.state WHEN 'running' THEN 1 WHEN 'queued' THEN 2 ELSE 3 END, CASE WHEN a.state IN ('queued', 'running') THEN a.asked END,
    a.finished DESC, a.action_id;
COMMENT ON VIEW tessera_internal.balancer_status IS
  'what this node has of tessera.balancer_status: all of it on the config node; for the extension''s own queries and monitoring';

CREATE VIEW tessera.balancer_status AS
  SELECT v.* FROM tessera_internal.balancer_status AS v WHERE tessera_internal.on_config_node('balancer_status');
COMMENT ON VIEW tessera.balancer_status IS
  'what the balancer does and is asked to do, then what it did, the newest first, each with the reason; min and max: to who may read '
  'the key; remaining: how long it may still take, by the speed of the last moves; on the config node, an error elsewhere';

CREATE VIEW tessera.draining_shards AS
  SELECT n.name AS shard, c.chunks, s.schemas, greatest(c.bytes + s.bytes - m.bytes, 0) AS bytes_left, m.moves, m.rate AS bytes_per_second,
         CASE WHEN m.rate > 0 THEN pg_catalog.make_interval(secs => greatest(c.bytes + s.bytes - m.bytes, 0) / m.rate) END AS remaining, w.in_the_way
  FROM tessera.node n
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS chunks, coalesce(pg_catalog.sum(e.bytes), 0)::int8 AS bytes
                      FROM tessera.chunk k LEFT JOIN tessera.chunk_estimate e ON e.group_id = k.group_id AND e.min OPERATOR(tessera.=) k.min
                      WHERE k.node_id = n.node_id
                        AND NOT EXISTS (SELECT FROM tessera.schema_placement p WHERE p.group_id = k.group_id)) AS c
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS schemas,
                             coalesce(pg_catalog.sum((SELECT pg_catalog.sum(u.bytes)
                               FROM tessera.cluster_table t JOIN tessera.table_statistics u USING (table_id)
                               WHERE t.schema_name = p.schema_name AND t.group_id IS NULL AND u.node_id = p.node_id
                                 AND u.node_id = n.node_id)), 0)::int8
                               AS bytes
                      FROM tessera.schema_placement p WHERE n.node_id IN (p.node_id, p.sequence_home)) AS s
  -- what it has sent since the first of the moves of the last minutes began
  CROSS JOIN LATERAL (SELECT pg_catalog.count(*) FILTER (WHERE g.state = 'running') AS moves,
                             coalesce(pg_catalog.sum(g.bytes) FILTER (WHERE g.state = 'running'), 0)::int8 AS bytes,
                             pg_catalog.sum(g.bytes)::float8 / greatest(extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min(g.started)),
                               1)::float8 AS rate
                      FROM tessera.migration g
                      WHERE g.donor = n.node_id AND (g.state = 'running'
                        OR g.state = 'committed' AND g.finished > pg_catalog.clock_timestamp() - interval '5 minutes')) AS m
  CROSS JOIN LATERAL (
    SELECT pg_catalog.string_agg(o.what, '; ' ORDER BY o.what) AS in_the_way FROM (
      SELECT 'the balancer is paused until ' || t.value FROM tessera.setting t
      WHERE t.name = 'balancer_paused_until' AND t.value::timestamptz > pg_catalog.clock_timestamp()
      UNION ALL
      SELECT pg_catalog.format('the sequences of schema %s have not left it yet', p.schema_name)
      FROM tessera.schema_placement p WHERE n.node_id = p.sequence_home AND n.node_id <> p.node_id
      UNION ALL
      SELECT DISTINCT pg_catalog.format('schema %s stays while %I.%I is replicated', t.schema_name, t.schema_name, t.table_name)
      FROM tessera.schema_placement p JOIN tessera.cluster_table t USING (schema_name) WHERE p.node_id = n.node_id AND t.replicated
      UNION ALL
      SELECT pg_catalog.format('no other shard of zone %s may have its rows of %s', z.zone, z.table_name)
      FROM tessera.zone_shard h JOIN tessera_internal.zone_ranges z USING (zone)
      WHERE h.node_id = n.node_id
        AND NOT EXISTS (SELECT FROM tessera.zone_shard r JOIN tessera.node q USING (node_id) WHERE r.zone = z.zone AND NOT q.draining)
      UNION ALL
      SELECT pg_catalog.format('%s cannot be read: %s', b.table_name, b.waiting_for)
      FROM tessera_internal.balancer_status b JOIN tessera.cluster_table t ON t.relid = b.table_name
      WHERE b.kind = 'read' AND b.state = 'failed' AND EXISTS (SELECT FROM tessera.chunk k WHERE k.group_id = t.group_id AND k.node_id = n.node_id)
      UNION ALL
      -- it may be an error, or name transactions of others
      SELECT CASE WHEN pg_catalog.pg_has_role('tessera_admin', 'USAGE') THEN p.detail ELSE 'it is empty, but cannot be removed yet' END
      FROM tessera.balancer_plan p WHERE p.kind = 'remove' AND p.donor = n.name
      UNION ALL
      SELECT 'there is no other shard' WHERE NOT EXISTS (SELECT FROM tessera.node q WHERE q.is_shard AND NOT q.draining)
      UNION ALL
      SELECT CASE WHEN b.schema_name IS NOT NULL THEN pg_catalog.format('schema %s: %s', b.schema_name, b.waiting_for)
                  ELSE pg_catalog.format('%s%s: %s', b.table_name, ' from ' || b.min::text, b.waiting_for) END FROM tessera_internal.balancer_status b
      WHERE b.donor = n.name AND b.waiting_for IS NOT NULL
        AND (b.state IN ('queued', 'running') OR b.state = 'failed' AND b.not_before > pg_catalog.clock_timestamp())
    ) AS o (what)) AS w
  WHERE n.is_shard AND n.draining AND tessera_internal.on_config_node('draining_shards') ORDER BY n.node_id;
COMMENT ON VIEW tessera.draining_shards IS
  'shards that are being removed: what is left on each, how fast that goes lately, how long it may still take, and what is in the way or waited for; '
  'on the config node, an error elsewhere';
