-- The extension comes, goes, and comes again; what stays is the roles, which all databases of a server share.
CREATE DATABASE tessera_extension;
\c tessera_extension
CREATE EXTENSION tessera;
SELECT extname, extversion, extrelocatable, extnamespace::regnamespace FROM pg_extension WHERE extname = 'tessera';
DROP EXTENSION tessera;
SELECT count(*) FROM pg_namespace WHERE nspname = 'tessera';
SELECT count(*) FROM pg_proc WHERE proname = 'create_cluster';
SELECT rolname, rolcanlogin FROM pg_roles WHERE rolname ~ '^tessera_(admin|internal)$' ORDER BY rolname COLLATE "C";
CREATE EXTENSION tessera;

-- The prefix of the settings is the extension's own.
SET tessera.no_such_setting = 1;

-- Only a superuser makes one database a node.
CREATE ROLE regress_plain;
DROP EXTENSION tessera;
SET ROLE regress_plain;
CREATE EXTENSION tessera;
RESET ROLE;
DROP ROLE regress_plain;
CREATE EXTENSION tessera;
\c contrib_regression
DROP DATABASE tessera_extension;
