-- Cluster time (doc/design.md#cluster-time): of commits, over all nodes.

CREATE FUNCTION tessera.cluster_time() RETURNS numeric
  AS 'MODULE_PATHNAME', 'tessera_cluster_time' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION tessera.cluster_time() IS
  'the cluster''s time as this node knows it: not earlier than any commit that this session has seen; units of 2^-32 s since 1970';

CREATE FUNCTION tessera.cluster_time_token() RETURNS text
  AS 'MODULE_PATHNAME', 'tessera_cluster_time_token' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION tessera.cluster_time_token() IS 'the cluster''s time, signed: for tessera.after_cluster_time, in another session, on any node';

CREATE FUNCTION tessera.cluster_time_to_timestamp(cluster_time numeric) RETURNS timestamptz
  AS 'MODULE_PATHNAME', 'tessera_cluster_time_to_timestamp' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.cluster_time_to_timestamp(numeric) IS 'a cluster time as date and time';

CREATE FUNCTION tessera_internal.clocks(OUT node name, OUT cluster_time numeric, OUT config_time numeric, OUT topology_time numeric,
    OUT wall_clock timestamptz) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_internal_clocks' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_internal.clocks() IS 'clocks of all nodes, asked one after the other; NULL: it does not answer';

CREATE VIEW tessera.clocks AS
  SELECT node, cluster_time, config_time, topology_time, wall_clock,
    tessera.cluster_time_to_timestamp(cluster_time) - clock_timestamp() AS ahead
  FROM tessera_internal.clocks();
COMMENT ON VIEW tessera.clocks IS
  'clocks of all nodes: cluster, config and topology time, wall clock, and how far the first is ahead of the clock of the server that is asked';
GRANT SELECT ON tessera.clocks TO tessera_admin;
