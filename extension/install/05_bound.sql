-- tessera.bound: an end of a range of keys. See src/catalog/bound.h.

CREATE TYPE tessera.bound;

CREATE FUNCTION tessera.bound_in(cstring) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_in' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_in(cstring) IS 'reads a bound';

CREATE FUNCTION tessera.bound_out(tessera.bound) RETURNS cstring
  AS 'MODULE_PATHNAME', 'tessera_bound_out' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_out(tessera.bound) IS 'writes a bound';

CREATE FUNCTION tessera.bound_recv(internal) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_recv' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_recv(internal) IS 'reads a bound in binary';

CREATE FUNCTION tessera.bound_send(tessera.bound) RETURNS bytea
  AS 'MODULE_PATHNAME', 'tessera_bound_send' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_send(tessera.bound) IS 'writes a bound in binary';

CREATE TYPE tessera.bound (
  INPUT = tessera.bound_in,
  OUTPUT = tessera.bound_out,
  RECEIVE = tessera.bound_recv,
  SEND = tessera.bound_send,
  INTERNALLENGTH = VARIABLE,
  ALIGNMENT = int4,
  STORAGE = extended
);
COMMENT ON TYPE tessera.bound IS 'an end of a range of keys: MINKEY, MAXKEY, a value, or several of them for a compound key as in (1,abc)';

CREATE TYPE tessera.bound_range AS (min tessera.bound, max tessera.bound);
COMMENT ON TYPE tessera.bound_range IS 'a range of keys: from min up to, but without, max';

CREATE TYPE tessera.operation_range AS (group_id uuid, epoch uuid, min tessera.bound, max tessera.bound);
COMMENT ON TYPE tessera.operation_range IS
  'a range that an operation, e.g. a migration, moves; epoch: of its table group, as registered';

CREATE FUNCTION tessera_internal.ranges_complete(ranges tessera.operation_range[]) RETURNS bool
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT cardinality(ranges) > 0 AND bool_and(r.group_id IS NOT NULL AND r.epoch IS NOT NULL AND r.min IS NOT NULL AND r.max IS NOT NULL)
    FROM unnest(ranges) AS r
  $$;
COMMENT ON FUNCTION tessera_internal.ranges_complete(tessera.operation_range[]) IS 'is there a range, and has none a null in it?';

CREATE TYPE tessera.gated_range AS (migration_id uuid, min tessera.bound, max tessera.bound, gate text, confirmed bool);
COMMENT ON TYPE tessera.gated_range IS
  'a range that a migration takes from a shard, or is about to have brought; gate: open, write (writers wait), read (readers, too)';

CREATE FUNCTION tessera.minkey() RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_minkey' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.minkey() IS 'the bound below every key';

CREATE FUNCTION tessera.maxkey() RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_maxkey' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.maxkey() IS 'the bound above every key';

CREATE FUNCTION tessera.bound(VARIADIC "any") RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_construct' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound(VARIADIC "any") IS 'the bound of these values, one for each key column';

-- Order and equality: for display and for uniqueness in the catalog. Keys themselves are ordered by their own types.

CREATE FUNCTION tessera.bound_lt(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_lt' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_lt(tessera.bound, tessera.bound) IS 'implementation of operator <';

CREATE FUNCTION tessera.bound_le(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_le' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_le(tessera.bound, tessera.bound) IS 'implementation of operator <=';

CREATE FUNCTION tessera.bound_eq(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_eq' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_eq(tessera.bound, tessera.bound) IS 'implementation of operator =';

CREATE FUNCTION tessera.bound_ne(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_ne' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_ne(tessera.bound, tessera.bound) IS 'implementation of operator <>';

CREATE FUNCTION tessera.bound_ge(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_ge' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_ge(tessera.bound, tessera.bound) IS 'implementation of operator >=';

CREATE FUNCTION tessera.bound_gt(tessera.bound, tessera.bound) RETURNS boolean
  AS 'MODULE_PATHNAME', 'tessera_bound_gt' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_gt(tessera.bound, tessera.bound) IS 'implementation of operator >';

CREATE FUNCTION tessera.bound_cmp(tessera.bound, tessera.bound) RETURNS integer
  AS 'MODULE_PATHNAME', 'tessera_bound_cmp' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_cmp(tessera.bound, tessera.bound) IS 'less, equal or greater: -1, 0, 1';

CREATE FUNCTION tessera.bound_hash(tessera.bound) RETURNS integer
  AS 'MODULE_PATHNAME', 'tessera_bound_hash' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_hash(tessera.bound) IS 'hash for hash joins and hash indexes';

CREATE FUNCTION tessera.bound_hash_extended(tessera.bound, bigint) RETURNS bigint
  AS 'MODULE_PATHNAME', 'tessera_bound_hash_extended' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.bound_hash_extended(tessera.bound, bigint) IS 'seeded hash for hash partitions';

CREATE OPERATOR tessera.< (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_lt,
  COMMUTATOR = OPERATOR(tessera.>), NEGATOR = OPERATOR(tessera.>=), RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);
COMMENT ON OPERATOR tessera.< (tessera.bound, tessera.bound) IS 'is less than';

CREATE OPERATOR tessera.<= (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_le,
  COMMUTATOR = OPERATOR(tessera.>=), NEGATOR = OPERATOR(tessera.>), RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);
COMMENT ON OPERATOR tessera.<= (tessera.bound, tessera.bound) IS 'is less than or equal to';

CREATE OPERATOR tessera.= (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_eq,
  COMMUTATOR = OPERATOR(tessera.=), NEGATOR = OPERATOR(tessera.<>), RESTRICT = eqsel, JOIN = eqjoinsel, HASHES, MERGES
);
COMMENT ON OPERATOR tessera.= (tessera.bound, tessera.bound) IS 'equals';

CREATE OPERATOR tessera.<> (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_ne,
  COMMUTATOR = OPERATOR(tessera.<>), NEGATOR = OPERATOR(tessera.=), RESTRICT = neqsel, JOIN = neqjoinsel
);
COMMENT ON OPERATOR tessera.<> (tessera.bound, tessera.bound) IS 'does not equal';

CREATE OPERATOR tessera.>= (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_ge,
  COMMUTATOR = OPERATOR(tessera.<=), NEGATOR = OPERATOR(tessera.<), RESTRICT = scalargesel, JOIN = scalargejoinsel
);
COMMENT ON OPERATOR tessera.>= (tessera.bound, tessera.bound) IS 'is greater than or equal to';

CREATE OPERATOR tessera.> (
  LEFTARG = tessera.bound, RIGHTARG = tessera.bound, FUNCTION = tessera.bound_gt,
  COMMUTATOR = OPERATOR(tessera.<), NEGATOR = OPERATOR(tessera.<=), RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);
COMMENT ON OPERATOR tessera.> (tessera.bound, tessera.bound) IS 'is greater than';

CREATE OPERATOR CLASS tessera.bound_ops DEFAULT FOR TYPE tessera.bound USING btree AS
  OPERATOR 1 tessera.<, OPERATOR 2 tessera.<=, OPERATOR 3 tessera.=, OPERATOR 4 tessera.>=, OPERATOR 5 tessera.>,
  FUNCTION 1 tessera.bound_cmp(tessera.bound, tessera.bound);
COMMENT ON OPERATOR CLASS tessera.bound_ops USING btree IS 'order of bounds for the catalog and for display';
COMMENT ON OPERATOR FAMILY tessera.bound_ops USING btree IS 'order of bounds for the catalog and for display';

CREATE OPERATOR CLASS tessera.bound_ops DEFAULT FOR TYPE tessera.bound USING hash AS
  OPERATOR 1 tessera.=,
  FUNCTION 1 tessera.bound_hash(tessera.bound),
  FUNCTION 2 tessera.bound_hash_extended(tessera.bound, bigint);
COMMENT ON OPERATOR CLASS tessera.bound_ops USING hash IS 'equality of bounds';
COMMENT ON OPERATOR FAMILY tessera.bound_ops USING hash IS 'equality of bounds';

-- Values become bounds as they stand: move_range('orders', 100, 200, 's2').

CREATE FUNCTION tessera.to_bound(smallint) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(smallint) IS 'the bound of this value, taken as it is';

CREATE CAST (smallint AS tessera.bound) WITH FUNCTION tessera.to_bound(smallint) AS IMPLICIT;
COMMENT ON CAST (smallint AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(integer) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(integer) IS 'the bound of this value, taken as it is';

CREATE CAST (integer AS tessera.bound) WITH FUNCTION tessera.to_bound(integer) AS IMPLICIT;
COMMENT ON CAST (integer AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(bigint) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(bigint) IS 'the bound of this value, taken as it is';

CREATE CAST (bigint AS tessera.bound) WITH FUNCTION tessera.to_bound(bigint) AS IMPLICIT;
COMMENT ON CAST (bigint AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(numeric) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(numeric) IS 'the bound of this value, taken as it is';

CREATE CAST (numeric AS tessera.bound) WITH FUNCTION tessera.to_bound(numeric) AS IMPLICIT;
COMMENT ON CAST (numeric AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(real) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(real) IS 'the bound of this value, taken as it is';

CREATE CAST (real AS tessera.bound) WITH FUNCTION tessera.to_bound(real) AS IMPLICIT;
COMMENT ON CAST (real AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(double precision) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(double precision) IS 'the bound of this value, taken as it is';

CREATE CAST (double precision AS tessera.bound) WITH FUNCTION tessera.to_bound(double precision) AS IMPLICIT;
COMMENT ON CAST (double precision AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(text) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(text) IS 'the bound of this value, taken as it is';

CREATE CAST (text AS tessera.bound) WITH FUNCTION tessera.to_bound(text) AS IMPLICIT;
COMMENT ON CAST (text AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(character varying) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(character varying) IS 'the bound of this value, taken as it is';

CREATE CAST (character varying AS tessera.bound) WITH FUNCTION tessera.to_bound(character varying) AS IMPLICIT;
COMMENT ON CAST (character varying AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(pg_catalog.bpchar) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(pg_catalog.bpchar) IS 'the bound of this value, taken as it is';

CREATE CAST (pg_catalog.bpchar AS tessera.bound) WITH FUNCTION tessera.to_bound(pg_catalog.bpchar) AS IMPLICIT;
COMMENT ON CAST (pg_catalog.bpchar AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(uuid) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(uuid) IS 'the bound of this value, taken as it is';

CREATE CAST (uuid AS tessera.bound) WITH FUNCTION tessera.to_bound(uuid) AS IMPLICIT;
COMMENT ON CAST (uuid AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(date) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(date) IS 'the bound of this value, taken as it is';

CREATE CAST (date AS tessera.bound) WITH FUNCTION tessera.to_bound(date) AS IMPLICIT;
COMMENT ON CAST (date AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(timestamp without time zone) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(timestamp without time zone) IS 'the bound of this value, taken as it is';

CREATE CAST (timestamp without time zone AS tessera.bound) WITH FUNCTION tessera.to_bound(timestamp without time zone) AS IMPLICIT;
COMMENT ON CAST (timestamp without time zone AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(timestamp with time zone) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(timestamp with time zone) IS 'the bound of this value, taken as it is';

CREATE CAST (timestamp with time zone AS tessera.bound) WITH FUNCTION tessera.to_bound(timestamp with time zone) AS IMPLICIT;
COMMENT ON CAST (timestamp with time zone AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(bytea) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(bytea) IS 'the bound of this value, taken as it is';

CREATE CAST (bytea AS tessera.bound) WITH FUNCTION tessera.to_bound(bytea) AS IMPLICIT;
COMMENT ON CAST (bytea AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(boolean) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_value' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(boolean) IS 'the bound of this value, taken as it is';

CREATE CAST (boolean AS tessera.bound) WITH FUNCTION tessera.to_bound(boolean) AS IMPLICIT;
COMMENT ON CAST (boolean AS tessera.bound) IS 'the bound of this value';

CREATE FUNCTION tessera.to_bound(record) RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_bound_from_record' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION tessera.to_bound(record) IS 'the compound bound of these values';

-- CREATE CAST refuses record, a pseudo-type.
CREATE FUNCTION tessera.create_record_cast() RETURNS void
  AS 'MODULE_PATHNAME', 'tessera_bound_create_record_cast' LANGUAGE C VOLATILE;
COMMENT ON FUNCTION tessera.create_record_cast() IS
  'creates the cast from record to tessera.bound if it is missing; for superusers, around pg_upgrade';

REVOKE ALL ON FUNCTION tessera.create_record_cast() FROM PUBLIC;
SELECT tessera.create_record_cast();
COMMENT ON CAST (record AS tessera.bound) IS 'the compound bound of these values';

-- Key spaces, for diagnostics.

CREATE FUNCTION tessera.key_hash(VARIADIC "any") RETURNS bigint
  AS 'MODULE_PATHNAME', 'tessera_key_hash_sql' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION tessera.key_hash(VARIADIC "any") IS 'hash of a shard key of these columns under the hash strategy';

CREATE FUNCTION tessera.key_compare(types regtype[], a tessera.bound, b tessera.bound, hashed boolean DEFAULT false,
    collations regcollation[] DEFAULT NULL) RETURNS integer
  AS 'MODULE_PATHNAME', 'tessera_key_compare_sql' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION tessera.key_compare(regtype[], tessera.bound, tessera.bound, boolean, regcollation[]) IS
  'order of two bounds (-1, 0, 1) in the key space of columns of these types; with hashed, of bounds of the hash';

CREATE FUNCTION tessera.key_canonical(types regtype[], bound tessera.bound, hashed boolean DEFAULT false, collations regcollation[] DEFAULT NULL)
  RETURNS tessera.bound
  AS 'MODULE_PATHNAME', 'tessera_key_canonical_sql' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION tessera.key_canonical(regtype[], tessera.bound, boolean, regcollation[]) IS
  'a bound as the catalog keeps it in the key space of columns of these types; with hashed, of a bound of the hash';
