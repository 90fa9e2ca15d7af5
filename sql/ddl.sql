-- DDL, TRUNCATE, COPY and sequences in a cluster of three databases of this server (doc/design.md#ddl; S104-S106, S112): a statement on any node is
-- true on all of them, or on none. Good and bad input; what is refused leaves no trace.
\set VERBOSITY default
SET client_min_messages = warning;
SELECT format('host=%s port=%s user=%s dbname=', split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_user) AS address \gset
CREATE DATABASE tessera_ddl_a;
CREATE DATABASE tessera_ddl_b;
CREATE DATABASE tessera_ddl_c;
CREATE ROLE tessera_ddl_user;
\c tessera_ddl_b
SET client_min_messages = warning;
CREATE EXTENSION tessera;
\c tessera_ddl_c
SET client_min_messages = warning;
CREATE EXTENSION tessera;
\c tessera_ddl_a
SET client_min_messages = warning;
CREATE EXTENSION tessera;
SELECT tessera.create_cluster('c', :'address' || 'tessera_ddl_a', 's1');
SELECT tessera.add_shard('s2', :'address' || 'tessera_ddl_b') > 0 AS joined;
SELECT tessera.add_shard('s3', :'address' || 'tessera_ddl_c') > 0 AS joined;

-- what each node has: its own catalog and its own rows about it
CREATE FUNCTION here() RETURNS TABLE (what text) LANGUAGE sql AS $$
  SELECT 'table ' || c.oid::regclass || ' (' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attname) || ')'
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema|tessera)' AND a.attnum > 0 AND NOT attisdropped AND c.relkind IN ('r', 'p', 'v')
  GROUP BY c.oid
  UNION ALL SELECT 'index ' || indexrelid::regclass FROM pg_index JOIN pg_class c ON c.oid = indrelid
    WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema|tessera)'
  UNION ALL SELECT 'row ' || relid::regclass || ' = ' || schema_name || '.' || table_name || coalesce(' key ' || key_columns::text, '') FROM tessera.cluster_table
  UNION ALL SELECT 'place ' || schema_name || ' = ' || node_id FROM tessera.schema_placement
  UNION ALL SELECT 'group with ' || count(*) || ' chunks' FROM tessera.table_group JOIN tessera.chunk USING (group_id) GROUP BY group_id
  ORDER BY 1 $$;
CREATE FUNCTION digest() RETURNS text LANGUAGE sql AS $$ SELECT md5(string_agg(what, ',' ORDER BY what COLLATE "C")) FROM here() $$;
SELECT digest() AS empty \gset

-- every kind of object, from a node that is not the config node
\c tessera_ddl_b
CREATE TABLE t (a int PRIMARY KEY, b text DEFAULT 'x');
CREATE INDEX t_b ON t (b);
CREATE SCHEMA app CREATE TABLE app.nested (a int) CREATE VIEW app.nested_view AS SELECT a FROM app.nested;
CREATE TABLE app.orders (tenant int NOT NULL, id int NOT NULL, note text, PRIMARY KEY (tenant, id));
CREATE TABLE app.items (tenant int NOT NULL, id int NOT NULL, line int NOT NULL, PRIMARY KEY (tenant, id, line));
CREATE TYPE mood AS ENUM ('sad', 'glad');
ALTER TYPE mood ADD VALUE 'mad' BEFORE 'glad';
CREATE TYPE pair AS (x int, y mood);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE PROCEDURE nothing() LANGUAGE sql AS '';
CREATE AGGREGATE product(int) (sfunc = int4mul, stype = int, initcond = '1');
CREATE OPERATOR === (leftarg = int, rightarg = int, procedure = int4eq);
CREATE VIEW v AS SELECT a, twice(a) AS b FROM t;
CREATE SEQUENCE numbers START 100;
CREATE STATISTICS t_stat ON a, b FROM t;
CREATE COLLATION c2 FROM "C";
CREATE TEXT SEARCH CONFIGURATION words (COPY = simple);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER keep BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION keep();
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody ON t USING (true) WITH CHECK (true);
COMMENT ON TABLE t IS 'a comment';
GRANT SELECT ON t, v TO tessera_ddl_user;
GRANT USAGE ON SCHEMA app TO tessera_ddl_user;
ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO tessera_ddl_user;
ALTER TABLE t RENAME TO t2;
ALTER TABLE t2 RENAME COLUMN b TO bb;
ALTER TABLE t2 ADD COLUMN c mood;
CREATE EXTENSION hstore;
DO $$ BEGIN CREATE TABLE from_do (a int); INSERT INTO from_do VALUES (1); END $$;
CREATE TABLE copied AS SELECT a, twice(a) AS b FROM generate_series(1, 3) a;
SELECT a INTO copied2 FROM copied WHERE a > 1;
SELECT * FROM copied ORDER BY 1;
SELECT digest() AS b \gset
SELECT * FROM here();
\c tessera_ddl_a
SELECT digest() = :'b' AS same_on_a;
SELECT obj_description('t2'::regclass), (SELECT count(*) FROM pg_policies WHERE schemaname <> 'tessera'),
  has_table_privilege('tessera_ddl_user', 'v', 'SELECT'),
  (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum), (SELECT extversion FROM pg_extension WHERE extname = 'hstore') IS NOT NULL AS hstore;
SELECT table_id AS table_id FROM tessera.cluster_table WHERE table_name = 't2' \gset
SELECT node_id AS node_id FROM tessera.schema_placement WHERE schema_name = 'app' \gset
SELECT what, object FROM tessera.changelog WHERE what ~ 'table|schema' ORDER BY change_id;
\c tessera_ddl_c
SELECT digest() = :'b' AS same_on_c;
SELECT table_id = :'table_id' AS same_table FROM tessera.cluster_table WHERE table_name = 't2';
SELECT node_id = :node_id AS same_node FROM tessera.schema_placement WHERE schema_name = 'app';
SELECT * FROM from_do;

-- what a sharded table cannot have
SELECT tessera.shard_table('app.orders', 'tenant', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('app.items', 'tenant', strategy => 'hash', colocate_with => 'app.orders');
CREATE UNIQUE INDEX ON app.orders (note);
ALTER TABLE app.orders ADD UNIQUE (id);
ALTER TABLE app.orders ADD PRIMARY KEY (id);
ALTER TABLE app.orders ADD COLUMN u int UNIQUE;
ALTER TABLE app.orders ADD EXCLUDE USING btree (id WITH =);
ALTER TABLE app.orders DROP COLUMN tenant;
ALTER TABLE app.orders ALTER COLUMN tenant TYPE int8;
ALTER TABLE app.orders ALTER COLUMN tenant DROP NOT NULL;
ALTER TABLE app.orders ADD COLUMN u uuid DEFAULT gen_random_uuid();
ALTER TABLE app.orders ADD COLUMN s serial;
ALTER TABLE app.orders ADD COLUMN i int GENERATED ALWAYS AS IDENTITY;
ALTER TABLE app.orders REPLICA IDENTITY NOTHING;
ALTER TABLE app.orders SET UNLOGGED;
ALTER TABLE app.orders INHERIT app.nested;
ALTER TABLE app.orders ADD FOREIGN KEY (id) REFERENCES t2;
ALTER TABLE app.items ADD FOREIGN KEY (tenant, id) REFERENCES app.orders (id, tenant);
ALTER TABLE t2 ADD FOREIGN KEY (a, c) REFERENCES app.orders;
CREATE TABLE child () INHERITS (app.orders);
CREATE TABLE app.refers (a int REFERENCES t2);
CREATE RULE r AS ON INSERT TO t2 DO ALSO NOTHING;
CREATE MATERIALIZED VIEW m AS SELECT * FROM v;
REFRESH MATERIALIZED VIEW CONCURRENTLY m;
DROP MATERIALIZED VIEW m;
ALTER TABLE from_do SET SCHEMA app;
EXPLAIN ANALYZE CREATE TABLE explained AS SELECT 1;
-- what it can have
CREATE INDEX CONCURRENTLY ON t2 (bb);
DROP INDEX CONCURRENTLY t_b;
ALTER TABLE app.items ADD CONSTRAINT fk FOREIGN KEY (tenant, id) REFERENCES app.orders;
ALTER TABLE app.orders ADD COLUMN d int DEFAULT 5;
ALTER TABLE app.orders ADD CHECK (id > 0);
CREATE UNIQUE INDEX ON app.orders (id, tenant);
INSERT INTO app.orders SELECT g, 1, 'n' || g FROM generate_series(1, 20) g;
INSERT INTO app.items SELECT g, 1, 1 FROM generate_series(1, 20) g;
INSERT INTO app.items VALUES (3, 2, 1);
SET tessera.verbose_errors = on;
INSERT INTO app.items VALUES (3, 2, 1);
RESET tessera.verbose_errors;
ALTER TABLE app.items DROP CONSTRAINT fk;
INSERT INTO app.items VALUES (3, 2, 1);
ALTER TABLE app.items ADD CONSTRAINT fk FOREIGN KEY (tenant, id) REFERENCES app.orders;
DELETE FROM app.items WHERE tenant = 3 AND id = 2;
ALTER TABLE app.items ADD CONSTRAINT fk FOREIGN KEY (tenant, id) REFERENCES app.orders;
ALTER TABLE app.orders ADD CHECK (tenant < 20);
ALTER TABLE app.orders ADD COLUMN nn int;
ALTER TABLE app.orders ALTER COLUMN nn SET NOT NULL;
UPDATE app.orders SET nn = tenant;
ALTER TABLE app.orders ALTER COLUMN nn SET NOT NULL;
ALTER TABLE app.orders ALTER COLUMN nn TYPE text USING 'n' || nn;
SELECT min(nn), max(nn), sum(d) FROM app.orders;
ALTER TABLE app.orders RENAME COLUMN tenant TO tenant_id;
ALTER SCHEMA app RENAME TO app2;
SELECT count(*) FROM app2.orders WHERE tenant_id = 3;
SELECT digest() AS c \gset
\c tessera_ddl_b
SELECT digest() = :'c' AS same;
SELECT what FROM here() WHERE what ~ '^(row|place|group)';

-- transactions, savepoints, functions
BEGIN;
CREATE TABLE gone (a int);
INSERT INTO gone VALUES (1);
SELECT * FROM gone;
ROLLBACK;
BEGIN;
CREATE TABLE stays (a int);
SAVEPOINT s;
CREATE TABLE gone (a int);
ALTER TABLE stays ADD COLUMN gone int;
ROLLBACK TO s;
INSERT INTO stays VALUES (1);
COMMIT;
CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TABLE %I (a int)', name);
  EXECUTE format('CREATE TABLE %I (a int)', name);
EXCEPTION WHEN duplicate_table THEN
  EXECUTE format('CREATE TABLE %I (a int)', name || '2');
END $$;
SELECT make('made');
\c tessera_ddl_c
SELECT * FROM stays;
SELECT to_regclass('made'), to_regclass('made2'), to_regclass('gone');
BEGIN READ ONLY;
CREATE TABLE gone (a int);
ROLLBACK;

-- event triggers fire once, and what they do is everywhere
CREATE TABLE audit (tag text, object text);
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
    INSERT INTO audit VALUES (r.command_tag, r.object_identity);
    IF r.command_tag = 'CREATE TABLE' THEN
      EXECUTE format('CREATE INDEX ON %s (a)', r.object_identity);
    END IF;
  END LOOP;
END $$;
CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION note();
CREATE TABLE noted (a int);
SELECT * FROM audit ORDER BY 1, 2;
\c tessera_ddl_b
SELECT what FROM here() WHERE what ~ 'noted';
DROP EVENT TRIGGER note;

-- what only this node has
CREATE TEMP TABLE passing (a int);
CREATE VIEW passing_view AS SELECT * FROM passing;
CREATE INDEX ON passing (a);
ALTER TABLE passing ADD COLUMN b int;
DROP TABLE passing, t2;
CREATE TEMP TABLE passing2 AS SELECT * FROM copied;
SET tessera.replicate_ddl = off;
CREATE TABLE only_here (a int);
RESET tessera.replicate_ddl;
ALTER TABLE only_here ADD COLUMN b int;
CREATE TABLE refers (a int REFERENCES t2, b int);
DROP TABLE refers, only_here;
DROP TABLE refers;
INSERT INTO only_here VALUES (1, 2);
TRUNCATE only_here;
SELECT * FROM only_here;
DROP TABLE only_here;
CREATE MATERIALIZED VIEW local_view AS SELECT 1 AS a;
REFRESH MATERIALIZED VIEW local_view;
DROP MATERIALIZED VIEW local_view;
VACUUM t2;
ANALYZE t2;
SET client_min_messages = notice;
CREATE TABLE IF NOT EXISTS t2 (a int);
DROP TABLE IF EXISTS nosuch;
SET client_min_messages = warning;
SET SESSION AUTHORIZATION tessera_ddl_user;
DROP TABLE t2;
CREATE TABLE app2.gone (a int);
SELECT tessera_internal.ddl_begin(gen_random_uuid(), 1, 1);
SELECT tessera_internal.ddl_lock('{1}', '{x}', '{}', 1);
SELECT tessera_internal.copy_check('t2', NULL);
SELECT tessera_internal.sequence_block('numbers', 1);
RESET SESSION AUTHORIZATION;

-- partitions are part of their root
CREATE TABLE events (k int, at date) PARTITION BY RANGE (at);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE events_2 (k int, at date);
ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
INSERT INTO events VALUES (1, '2026-05-05'), (2, '2027-05-05');
SELECT count(*) FROM events;
ALTER TABLE events DETACH PARTITION events_1;
SELECT what FROM here() WHERE what ~ '^row events' ORDER BY 1;
SELECT * FROM events_1;
INSERT INTO events_2 VALUES (3, '2027-06-06');
UPDATE events_2 SET k = 4 WHERE k = 3;
ALTER TABLE events_2 ADD CHECK (k > 0);
COPY events_2 TO stdout;
\c tessera_ddl_c
SELECT k FROM events_2 ORDER BY 1;
COPY events_2 FROM stdin;
5	2027-07-07
\.
SELECT k FROM events ORDER BY 1;
SELECT what FROM here() WHERE what ~ '^row events' ORDER BY 1;
DROP TABLE events, events_1;

-- drops take the catalog's rows along, and the last table its group's
DROP FUNCTION twice CASCADE;
DROP TABLE app2.items;
SELECT count(*) FROM tessera.table_group;
DROP SCHEMA app2 CASCADE;
SELECT count(*) FROM tessera.table_group;
DROP TABLE t2, from_do, copied, copied2, stays, made2, audit, noted;
DROP EXTENSION hstore;
SELECT * FROM here();
\c tessera_ddl_a
SELECT * FROM here();
SELECT count(*) FROM tessera.placement;
SELECT count(*) FROM tessera.chunk;

-- TRUNCATE
CREATE TABLE o (tenant int NOT NULL, id int NOT NULL, note text, PRIMARY KEY (tenant, id));
CREATE TABLE r (tenant int NOT NULL, id int NOT NULL, n serial, PRIMARY KEY (tenant, id, n), FOREIGN KEY (tenant, id) REFERENCES o);
CREATE TABLE p (a int);
\c tessera_ddl_b
ALTER TABLE r DROP CONSTRAINT r_tenant_id_fkey;
SELECT tessera.shard_table('o', 'tenant', strategy => 'hash', chunks => 6);
SELECT tessera.shard_table('r', 'tenant', strategy => 'hash', colocate_with => 'o');
ALTER TABLE r ADD FOREIGN KEY (tenant, id) REFERENCES o;
INSERT INTO o SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO r (tenant, id) SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO p VALUES (1);
TRUNCATE o;
BEGIN;
TRUNCATE r, p;
SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM r), (SELECT count(*) FROM p);
ROLLBACK;
SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM r), (SELECT count(*) FROM p);
TRUNCATE o RESTART IDENTITY CASCADE;
SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM r), (SELECT count(*) FROM p);
INSERT INTO o VALUES (1, 1);
INSERT INTO r (tenant, id) VALUES (1, 1) RETURNING n;
SET SESSION AUTHORIZATION tessera_ddl_user;
TRUNCATE p;
RESET SESSION AUTHORIZATION;
TRUNCATE r, o, p;

-- COPY
COPY o (tenant, id, note) FROM stdin;
10	1	x
11	1	y\tz
12	1	\N
13	1	a\\b
\.
COPY o (id, tenant, note) FROM stdin (FORMAT csv, HEADER, FORCE_NULL (note));
id,tenant,note
1,20,"x
y"
1,21,
1,22,""
\.
COPY o FROM stdin WHERE id = 2;
30	1	x
31	2	y
32	2	z
\.
SELECT * FROM o ORDER BY 1, 2;
-- input errors name the input's line where this node finds them; nothing stays of the rows before
COPY o (tenant, id) FROM stdin;
40	1
bad	2
\.
COPY o (tenant, id) FROM stdin;
41	1
\N	2
\.
COPY o (id) FROM stdin;
1
\.
COPY o FROM stdin (FREEZE);
\.
\set VERBOSITY sqlstate
COPY o (tenant, id) FROM stdin;
42	1
43	1
44	1
45	1
46	x
\.
COPY o (tenant, id) FROM stdin;
42	1
43	1
10	1
\.
COPY o (tenant, id) FROM stdin;
50
\.
\set VERBOSITY default
BEGIN;
COPY o (tenant, id) FROM stdin;
60	1
61	1
62	1
63	1
\.
SAVEPOINT s;
\set VERBOSITY sqlstate
COPY o (tenant, id) FROM stdin;
70	1
71	1
72	1
73	x
\.
\set VERBOSITY default
ROLLBACK TO s;
SELECT count(*) FROM o;
COMMIT;
SELECT count(*) FROM o;
\c tessera_ddl_a
CREATE TYPE mood2 AS ENUM ('a', 'b');
CREATE TABLE types (k int PRIMARY KEY, m mood2, ms mood2[], at timestamptz DEFAULT now(), g int GENERATED ALWAYS AS (k * 2) STORED, s serial, n numeric, j jsonb, b bytea);
SELECT tessera.shard_table('types', 'k', strategy => 'hash', chunks => 6);
COPY types (k, m, ms, n, j, b) FROM stdin;
1	a	{a,b}	1.5	{"x": "a\\nb"}	\\x0001
2	b	\N	NaN	\N	\N
3	\N	{}	-1e100	[]	\\x
4	a	{NULL}	0	1	\\xff
\.
SELECT k, m, ms, g, s, n = 'NaN' AS nan, j, b FROM types ORDER BY k;
COPY (SELECT k, m FROM types ORDER BY k) TO stdout;
CREATE TABLE few (k int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (k + 1) STORED);
SELECT tessera.shard_table('few', 'k');
INSERT INTO few VALUES (1, 'one'), (2, 'tw,o');
COPY few TO stdout (FORMAT csv);
COPY few (v) TO stdout (FORMAT csv, FORCE_QUOTE (v));
COPY few (g) TO stdout;
\c tessera_ddl_c
COPY p FROM stdin;
1
2
\.
COPY p TO stdout;
SET SESSION AUTHORIZATION tessera_ddl_user;
\copy p FROM '/dev/null'
COPY p FROM '/etc/passwd';
RESET SESSION AUTHORIZATION;
DROP TABLE types, few, p, r, o;
DROP TYPE mood2;

-- sequences: unique over the cluster, session state as ever
\c tessera_ddl_a
CREATE SEQUENCE seq;
CREATE TABLE auto (id serial PRIMARY KEY, v text);
CREATE TABLE ident (k int PRIMARY KEY, id int8 GENERATED ALWAYS AS IDENTITY, small int2 GENERATED BY DEFAULT AS IDENTITY);
SELECT tessera.shard_table('ident', 'k', strategy => 'hash', chunks => 6);
\c tessera_ddl_b
SELECT currval('seq');
SELECT lastval();
SELECT nextval('seq'), nextval('seq'), currval('seq'), lastval();
INSERT INTO auto (v) VALUES ('a'), ('b') RETURNING id;
INSERT INTO auto (v) SELECT 'c' FROM generate_series(1, 3) RETURNING id;
INSERT INTO auto (v) VALUES ('d');
SELECT lastval();
INSERT INTO ident (k) VALUES (1) RETURNING id, small;
INSERT INTO ident (k) SELECT generate_series(2, 5);
COPY ident (k) FROM stdin;
6
7
\.
SELECT * FROM ident ORDER BY k;
SELECT currval('ident_id_seq'), currval('seq');
\c tessera_ddl_c
SELECT nextval('seq') > 2 AS another;
INSERT INTO auto (v) VALUES ('e') RETURNING id > 6 AS another;
SELECT setval('seq', 1000), currval('seq'), nextval('seq');
\c tessera_ddl_b
SELECT nextval('seq') > 1001 AS beyond;
ALTER SEQUENCE seq RESTART WITH 5000;
SELECT nextval('seq');
SELECT setval('seq', 7000, false), nextval('seq');
SELECT last_value >= 7000 AS known, is_called FROM seq;
BEGIN;
CREATE SEQUENCE mine INCREMENT 10;
SELECT nextval('mine'), nextval('mine');
ALTER SEQUENCE mine RESTART;
SELECT nextval('mine');
CREATE TABLE mine2 (id serial, a int);
INSERT INTO mine2 (a) VALUES (7), (8) RETURNING *;
ROLLBACK;
CREATE SEQUENCE small MAXVALUE 5;
SELECT nextval('small') FROM generate_series(1, 5);
\set VERBOSITY sqlstate
SELECT nextval('small');
\set VERBOSITY default
CREATE SEQUENCE round MINVALUE -1 MAXVALUE 1 CYCLE;
SELECT nextval('round') FROM generate_series(1, 5);
CREATE SEQUENCE down INCREMENT -3;
SELECT nextval('down'), nextval('down');
CREATE TEMP SEQUENCE temp_seq;
SELECT nextval('temp_seq'), lastval();
DO $$ DECLARE n int8 := nextval('down'); BEGIN RAISE WARNING '%', n; END $$;
SET SESSION AUTHORIZATION tessera_ddl_user;
SELECT nextval('seq');
SELECT setval('seq', 1);
SELECT last_value FROM seq;
RESET SESSION AUTHORIZATION;
DISCARD SEQUENCES;
SELECT lastval();
SELECT count(*) FROM pg_prepared_xacts WHERE database LIKE 'tessera_ddl_%';

-- the databases are nodes, and are not dropped as such
\c tessera_ddl_a
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_ddl_b
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c tessera_ddl_c
SET client_min_messages = warning;
DROP EXTENSION tessera CASCADE;
\c postgres
SET client_min_messages = warning;
DROP DATABASE tessera_ddl_a WITH (FORCE);
DROP DATABASE tessera_ddl_b WITH (FORCE);
DROP DATABASE tessera_ddl_c WITH (FORCE);
DROP ROLE tessera_ddl_user;
