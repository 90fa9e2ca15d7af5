-- sqlsmith builds its queries from the catalog of a database of its own, which runs none of them. There it sees only types that the tables have,
-- since nearly all values of others would be NULLs, and no function whose result is another each time or hangs on the order of rows or on the node.
CREATE TABLE basket (id int, of int, note text, weight numeric, made date);
CREATE TABLE information_schema.kept_type (type regtype PRIMARY KEY);
INSERT INTO information_schema.kept_type SELECT
	unnest('{bool,int4,int8,numeric,float8,text,"\"char\"",date,timestamp,interval,_int4,"\"any\""}'::regtype[]);
INSERT INTO information_schema.kept_type SELECT
	unnest('{anyelement,anyarray,anynonarray,anycompatible,anycompatiblearray,anycompatiblenonarray,internal,oid,name}'::regtype[]);

SET allow_system_table_mods = on;
CREATE VIEW information_schema.pg_proc AS SELECT * FROM pg_catalog.pg_proc p WHERE provolatile <> 'v' AND prorettype IN (SELECT type FROM
	information_schema.kept_type)
	AND prorettype NOT IN ('internal'::regtype, 'oid'::regtype, 'name'::regtype)
	AND NOT EXISTS (SELECT FROM unnest(proargtypes) a WHERE a NOT IN (SELECT type FROM information_schema.kept_type) OR a IN ('internal'::regtype,
		'oid'::regtype, 'name'::regtype))
	AND (prokind = 'w' OR proname !~
		'(_agg|_accum|_inv|_combine|stddev|var_|variance|corr|covar|regr_|hash|_sortsupport|in_range|_larger|_smaller|transfn|finalfn)')
	AND (prokind <> 'w' OR proname IN ('rank', 'dense_rank', 'percent_rank', 'cume_dist'))
	AND proname !~ ('^(pg_|has_|row_security|current_|inet_|to_reg|version|getdatabase|col_desc|obj_desc|shobj|age|now|statement_t|transaction_t|lo_|'
		'query_|table_|database_|schema_|cursor_|mode|repeat|lpad|rpad|generate_|factorial|power|exp|numeric_power|numeric_exp|dpow|dexp|pow|'
		'int4_avg|int8_avg|binary_upgrade|unique_key|ts_|txid_|like_|json|to_json|row_to|suppress|text_in|xml|convert|timezone)');
CREATE VIEW information_schema.pg_type AS SELECT * FROM pg_catalog.pg_type WHERE oid IN (SELECT type FROM information_schema.kept_type);
DELETE FROM pg_operator WHERE oprleft NOT IN (SELECT type FROM information_schema.kept_type) OR oprright NOT IN (SELECT type FROM
	information_schema.kept_type)
	OR oprresult NOT IN (SELECT type FROM information_schema.kept_type) OR oprname IN ('^', '@>', '<@', '&&') AND oprleft <> 'anyarray'::regtype;
ALTER DATABASE generator SET search_path = information_schema, pg_catalog, public;
