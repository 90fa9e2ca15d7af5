-- Points in the code at which a test can have something happen; src/test_support/injection.c.

CREATE FUNCTION tessera_test.injection_set(name text, action text, count int4 DEFAULT 1) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_injection_set' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_test.injection_set(text, text, int4) IS
  'arms an injection point of this database: error, crash or pause, or lets a safeguard be skipped, so many times (null: always); needs tessera.injection_points';

CREATE FUNCTION tessera_test.injection_clear(name text DEFAULT NULL) RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_injection_clear' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_test.injection_clear(text) IS 'disarms an injection point, or all of this database; who is paused there goes on';

CREATE FUNCTION tessera_test.injection_list(OUT name text, OUT action text, OUT remaining int4, OUT hits int8, OUT paused int4) RETURNS SETOF record
  AS 'MODULE_PATHNAME', 'tessera_injection_list' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera_test.injection_list() IS 'armed injection points of this database';

REVOKE ALL ON FUNCTION tessera_test.injection_set(text, text, int4), tessera_test.injection_clear(text), tessera_test.injection_list() FROM PUBLIC;
