\echo Use "CREATE EXTENSION tessera_test" to load this file. \quit
-- For the tests of tessera alone: a build with TESTS_BUILD=1 has it. Nobody but superusers may use it.

CREATE SCHEMA tessera_test;
COMMENT ON SCHEMA tessera_test IS 'functions for the tests of tessera';
