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
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.table_group
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.cluster_table
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.chunk
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tessera.placement
  FOR EACH STATEMENT EXECUTE FUNCTION tessera.note_catalog_change();

-- Diagnostics.
CREATE FUNCTION tessera.routing_image(OUT sequence int8, OUT term int8, OUT node_id int4, OUT nodes int4, OUT tables int4, OUT groups int4,
    OUT chunks int8, OUT private bool, OUT loads int8) RETURNS record
  AS 'MODULE_PATHNAME', 'tessera_routing_image_facts' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.routing_image() IS 'facts about the routing image that this session uses; NULLs if this database is not a node of a cluster';

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
COMMENT ON FUNCTION tessera.routing_placement(regclass, tessera.bound) IS 'placement record of the table''s group that this statement''s snapshot sees';

REVOKE ALL ON FUNCTION tessera.routing_image(), tessera.routing_owner(regclass, tessera.bound), tessera.routing_chunks(regclass),
  tessera.routing_placement(regclass, tessera.bound) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tessera.routing_image(), tessera.routing_owner(regclass, tessera.bound), tessera.routing_chunks(regclass),
  tessera.routing_placement(regclass, tessera.bound) TO tessera_admin;
