-- Restore points of the whole cluster (src/admin/restore_point.c, doc/design.md#restore-points).

-- On the config node only. A name is used once, whatever came of it: recovery stops at the first point of a name.
CREATE TABLE tessera.restore_point (
  name           text PRIMARY KEY,
  begun          timestamptz NOT NULL DEFAULT clock_timestamp(),
  by_name        text NOT NULL,
  cluster_time   numeric              -- NULL: not on all nodes, or not known to be
);
COMMENT ON TABLE tessera.restore_point IS 'names of restore points that were made, or begun';

CREATE FUNCTION tessera.create_restore_point(name text, max_pause interval DEFAULT '5 seconds', OUT node name, OUT cluster_time numeric,
    OUT lsn pg_lsn, OUT wal_file text) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_create_restore_point' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION tessera.create_restore_point(text, interval) IS
  'a restore point on every node, at one cluster time: all nodes restored to it are one cluster, with each transaction whole or not at all; commits '
  'wait meanwhile, for max_pause at the longest; wal_file: to be in the node''s archive before it can be restored';
REVOKE ALL ON FUNCTION tessera.create_restore_point(text, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.create_restore_point(text, interval) TO tessera_admin;

CREATE VIEW tessera.restore_points AS
  SELECT name, begun, by_name AS by, cluster_time, cluster_time IS NOT NULL AS complete FROM tessera.restore_point
  WHERE tessera_internal.on_config_node('restore_points') ORDER BY begun;
COMMENT ON VIEW tessera.restore_points IS
  'restore points made by tessera.create_restore_point; complete: the cluster can be restored to it; on the config node, an error '
  'elsewhere';
GRANT SELECT ON tessera.restore_points TO PUBLIC;

@call register_restore_point@
  LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO tessera.restore_point (name, by_name) VALUES (point_name, register_restore_point.by_name);
EXCEPTION WHEN unique_violation THEN
  RAISE EXCEPTION 'restore point "%" was made, or begun, before', point_name USING ERRCODE = 'duplicate_object',
    HINT = 'Choose another name: recovery stops at the first restore point of a name.';
END
$$;
@comment register_restore_point@

@call complete_restore_point@
  LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
  SET search_path = pg_catalog, pg_temp
-- the time is one of 64 bits without a sign
AS $$ UPDATE tessera.restore_point AS p SET cluster_time = $2::numeric + CASE WHEN $2 < 0 THEN 18446744073709551616 ELSE 0 END
  WHERE p.name = point_name $$;
@comment complete_restore_point@
