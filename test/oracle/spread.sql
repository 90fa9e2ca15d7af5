-- What the oracle's cluster does with each table right after it was made: oracle.mode is hash, range, replicated or placed (nothing). What cannot be
-- sharded or copied stays where it is; oracle.spread says why.
CREATE SCHEMA oracle;
CREATE TABLE oracle.spread (at timestamptz DEFAULT clock_timestamp(), name text, why text);
GRANT USAGE ON SCHEMA oracle TO public;

-- The first column of the primary key, or of another unique index, or the first one that btree and hash know.
CREATE FUNCTION oracle.key_of(of regclass) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
	SELECT attname FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisunique AND i.indkey[0] = a.attnum
	WHERE a.attrelid = of AND a.attnum > 0 AND NOT a.attisdropped AND
		(i.indexrelid IS NOT NULL OR NOT EXISTS (SELECT FROM pg_index u WHERE u.indrelid = of AND u.indisunique)) AND
		EXISTS (SELECT FROM pg_opclass o WHERE o.opcintype = a.atttypid AND o.opcdefault AND o.opcmethod = 403)
	ORDER BY i.indisprimary DESC NULLS LAST, a.attnum LIMIT 1
$$;

CREATE FUNCTION oracle.spread_table(of regclass, mode text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	key text := oracle.key_of(of);
BEGIN
	IF mode = 'replicated' THEN
		PERFORM tessera.replicate_table(of);
	ELSIF key IS NOT NULL THEN
		PERFORM tessera.shard_table(of, quote_ident(key), mode, create_index => true, chunks => CASE mode WHEN 'hash' THEN 6 END);
	END IF;
EXCEPTION WHEN OTHERS THEN
	INSERT INTO oracle.spread (name, why) VALUES (of::text, sqlerrm);
END
$$;

CREATE FUNCTION oracle.spread_new() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	made record;
	mode text := current_setting('oracle.mode', true);
BEGIN
	IF coalesce(mode, 'placed') = 'placed' THEN
		RETURN;
	END IF;
	FOR made IN SELECT c.oid FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid AND d.classid = 'pg_class'::regclass
		WHERE d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition
			AND c.relnamespace <> 'oracle'::regnamespace
	LOOP
		PERFORM oracle.spread_table(made.oid, mode);
	END LOOP;
END
$$;
CREATE EVENT TRIGGER oracle_spread ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION oracle.spread_new();
