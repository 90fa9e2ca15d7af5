-- What the oracle's cluster does with each table right after it was made: oracle.mode is hash, range, replicated or placed (nothing). What cannot
-- be sharded or copied stays where it is; oracle.spread says why. Run with "psql -v mode=..." on a router of a cluster with the shards s1, s2, s3,
-- and with mode plain on the plain server.
CREATE SCHEMA oracle;
CREATE TABLE oracle.spread (at timestamptz DEFAULT clock_timestamp(), name text, why text);
CREATE TABLE oracle.left_alone (name text);
GRANT USAGE ON SCHEMA oracle TO public;

-- The first column of the primary key, or of another unique index, or the first one that btree and hash know.
CREATE FUNCTION oracle.key_of(of regclass) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
	SELECT attname FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisunique AND i.indkey[0] = a.attnum
	WHERE a.attrelid = of AND a.attnum > 0 AND NOT a.attisdropped AND
		(i.indexrelid IS NOT NULL OR NOT EXISTS (SELECT FROM pg_index u WHERE u.indrelid = of AND u.indisunique)) AND
		EXISTS (SELECT FROM pg_opclass o WHERE o.opcintype = a.atttypid AND o.opcdefault AND o.opcmethod = 403)
	ORDER BY i.indisprimary DESC NULLS LAST, a.attnum LIMIT 1
$$;

-- Ranges cannot be moved by the statement that makes the table, so an empty table joins the group of a table whose ranges lie on all shards, by its
-- key's type (the end of this script). Rows that are there already, and keys of other types, stay on one shard, in several chunks.
CREATE FUNCTION oracle.spread_by_range(of regclass, key text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	with_table regclass := to_regclass('oracle.by_' || (SELECT typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = of AND a.attname = key));
	filled bool;
BEGIN
	EXECUTE format('SELECT EXISTS (SELECT FROM %s)', of) INTO filled;
	IF filled OR with_table IS NULL THEN
		PERFORM tessera.shard_table(of, quote_ident(key), 'range', create_index => true, chunks => CASE WHEN filled THEN 3 END);
	ELSE
		PERFORM tessera.shard_table(of, quote_ident(key), 'range', colocate_with => with_table, create_index => true);
	END IF;
END
$$;

-- A key must be NOT NULL and have an index, and a table without a primary key a replica identity. All is made on the plain server, too.
CREATE FUNCTION oracle.prepare_table(of regclass, key text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
	EXECUTE format('ALTER TABLE %s ALTER %I SET NOT NULL', of, key);
	IF NOT EXISTS (SELECT FROM pg_index WHERE indrelid = of AND indisprimary) THEN
		EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', of);
	END IF;
	IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = of AND a.attnum = indkey[0]
		WHERE indrelid = of AND a.attname = key AND indpred IS NULL) THEN
		EXECUTE format('CREATE INDEX ON %s (%I)', of, key);
	END IF;
EXCEPTION WHEN OTHERS THEN
	INSERT INTO oracle.spread (name, why) VALUES (of::text, sqlerrm);
END
$$;

CREATE FUNCTION oracle.spread_table(of regclass, mode text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	key text := oracle.key_of(of);
BEGIN
	IF mode = 'replicated' THEN
		PERFORM tessera.replicate_table(of);
	ELSIF key IS NOT NULL THEN
		PERFORM oracle.prepare_table(of, key);
		IF mode = 'range' THEN
			PERFORM oracle.spread_by_range(of, key);
		ELSIF mode = 'hash' THEN
			PERFORM tessera.shard_table(of, quote_ident(key), mode, create_index => true, chunks => 6);
		END IF;
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
		WHERE d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT
			c.relispartition
			AND c.relnamespace <> 'oracle'::regnamespace
			AND (mode = 'replicated' OR c.relname NOT IN (SELECT name FROM oracle.left_alone) AND NOT EXISTS (SELECT FROM pg_inherits WHERE
				inhrelid = c.oid))
	LOOP
		PERFORM oracle.spread_table(made.oid, mode);
	END LOOP;
END
$$;
CREATE EVENT TRIGGER oracle_spread ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION
	oracle.spread_new();

-- For mode range: a table for each type of key, split at what the scripts' values have between them, the chunks on s1, s2 and s3 in turn.
\if :{?mode}
SELECT :'mode' = 'range' AS by_range \gset
\else
\set by_range false
\endif
\if :by_range
CREATE TABLE oracle.points (type regtype PRIMARY KEY, at text[]);
INSERT INTO oracle.points
SELECT unnest('{int2,int4,int8,oid,float4,float8,numeric}'::regtype[]), '{1,2,3,5,11,100,500,2000,7000}'::text[]
UNION ALL SELECT unnest('{text,varchar,bpchar,name,bytea}'::regtype[]), '{2,B,P,b,d,foo,h,n,t}'
UNION ALL SELECT unnest('{date,timestamp,timestamptz}'::regtype[]), '{1990-01-01,1997-02-10,1997-02-11,2000-01-02,2000-06-01,2010-01-01,2020-01-01}'
UNION ALL VALUES ('time'::regtype, '{02:00,12:00}'::text[]), ('interval', '{1 hour,2 days}'), ('bool', '{t}'),
	('uuid', '{22222222-2222-2222-2222-222222222222,33333333-3333-3333-3333-333333333333}'), ('"char"', '{b,m}'), ('inet',
		'{10.0.0.0/8,192.168.0.0/16}');
SELECT format('CREATE TABLE oracle.by_%s (key %s PRIMARY KEY)', t.typname, format_type(t.oid, NULL)) FROM oracle.points p JOIN pg_type t ON t.oid = p.type \gexec
SELECT format('SELECT tessera.shard_table(''oracle.by_%s'', ''key'')', t.typname) FROM oracle.points p JOIN pg_type t ON t.oid = p.type \gexec
SELECT format('SELECT tessera.split_chunk(%L, %L)', 'oracle.by_' || t.typname, v.at)
FROM oracle.points p JOIN pg_type t ON t.oid = p.type, unnest(p.at) v(at) \gexec
SELECT format('SELECT tessera.move_range(%L, %L, %L, %L)', table_name, min, max, wanted)
FROM (SELECT *, 's' || 1 + row_number() OVER (PARTITION BY table_name ORDER BY min) % 3 AS wanted FROM tessera.chunks WHERE table_name::text LIKE
	'oracle.by_%') c
WHERE shard <> wanted \gexec
\endif
