-- Injection points: off unless the server was started with them, and for superusers alone.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS tessera;
CREATE EXTENSION IF NOT EXISTS tessera_test;
RESET client_min_messages;
\set VERBOSITY terse

SELECT tessera_test.injection_set('x', 'error');
SELECT * FROM tessera_test.injection_list();
CREATE ROLE injection_nobody;
SET ROLE injection_nobody;
SELECT tessera_test.injection_set('x', 'error');
RESET ROLE;
GRANT USAGE ON SCHEMA tessera_test TO injection_nobody;
SET ROLE injection_nobody;
SELECT tessera_test.injection_set('x', 'error');
RESET ROLE;
REVOKE USAGE ON SCHEMA tessera_test FROM injection_nobody;
DROP ROLE injection_nobody;
DROP EXTENSION tessera_test;
