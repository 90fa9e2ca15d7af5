-- Notifications for listeners of all nodes (src/transaction/notify.c): the planner puts pg_notify in the place of the server's.

CREATE FUNCTION tessera.pg_notify(channel text, payload text) RETURNS void
  LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_pg_notify';
COMMENT ON FUNCTION tessera.pg_notify(text, text) IS 'pg_notify() for listeners of all nodes';

CREATE FUNCTION tessera_internal.stat_notifications(OUT node_id int4, OUT queued int8, OUT forwarded int8, OUT dropped int8, OUT listening bool)
  RETURNS SETOF record
  LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'tessera_internal_stat_notifications';
COMMENT ON FUNCTION tessera_internal.stat_notifications() IS 'source of the view tessera.stat_notifications';

CREATE VIEW tessera.stat_notifications AS
  SELECT n.name AS node, s.queued, s.forwarded, s.dropped, s.listening
  FROM tessera_internal.stat_notifications() s JOIN tessera.node n USING (node_id) ORDER BY s.node_id;
COMMENT ON VIEW tessera.stat_notifications IS
  'notifications of this node for the listeners of each other node since the server started: waiting to be passed on, passed on, dropped; listening: '
  'does the forwarder run';
