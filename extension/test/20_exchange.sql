-- Diagnostics: functions that test a part of the extension on the server they are called on.

CREATE FUNCTION tessera_test.exchange_selftest() RETURNS text
  LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tessera_exchange_selftest';
COMMENT ON FUNCTION tessera_test.exchange_selftest() IS 'tests the data plane of migrations on the loopback interface: a line per check, each ends in "ok" or "FAILED"';
REVOKE ALL ON FUNCTION tessera_test.exchange_selftest() FROM PUBLIC;
