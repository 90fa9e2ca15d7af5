-- For a type that a test makes, whose statistics are of a kind of its own; src/test_support/own_statistics.c.

CREATE FUNCTION tessera_test.measured_analyze(internal) RETURNS bool
  AS 'MODULE_PATHNAME', 'tessera_measured_analyze' LANGUAGE C VOLATILE STRICT;
COMMENT ON FUNCTION tessera_test.measured_analyze(internal) IS 'ANALYZE of a type: keeps statistics of a kind of its own';
CREATE FUNCTION tessera_test.measured_selectivity(internal, oid, internal, int4) RETURNS float8
  AS 'MODULE_PATHNAME', 'tessera_measured_selectivity' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION tessera_test.measured_selectivity(internal, oid, internal, int4) IS
  'selectivity of an operator: an error where a column has statistics without those that measured_analyze makes';
REVOKE ALL ON FUNCTION tessera_test.measured_analyze(internal), tessera_test.measured_selectivity(internal, oid, internal, int4) FROM PUBLIC;
