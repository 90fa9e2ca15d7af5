/*
 * chunk_calls.c
 *	  The config node's part of the commands on chunks (admin/chunk_commands.c): split, merge, jumbo flag, settings of a group.
 *
 * Each is a transaction of its own: the group's row is locked first, then its chunks are read (config/chunks.h). A crash leaves all of it or nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/placement.h"
#include "common/errors.h"
#include "common/spi_row.h"
#include "config/authority.h"
#include "config/chunks.h"

PG_FUNCTION_INFO_V1(tessera_internal_split);
PG_FUNCTION_INFO_V1(tessera_internal_merge);
PG_FUNCTION_INFO_V1(tessera_internal_clear_jumbo);
PG_FUNCTION_INFO_V1(tessera_internal_configure_group);

/* Locks the group, and checks that it is of the epoch that the caller knows. */
static const TesseraGroup *
lock_group(FunctionCallInfo fcinfo, TesseraGroupRow *row)
{
	const pg_uuid_t *group_id = PG_GETARG_UUID_P(0);
	const TesseraRouting *routing = tessera_config_routing(PG_GETARG_INT64(2));

	tessera_group_lock(group_id, row);
	return tessera_config_group(routing, group_id, PG_GETARG_UUID_P(1));
}

static Datum
record_of(FunctionCallInfo fcinfo, int n, const Datum *values)
{
	TupleDesc	desc;
	bool		nulls[3] = {false, false, false};

	Assert(n <= 3);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != n)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), unconstify(Datum *, values), nulls));
}

/* internal_split(group_id, epoch, term, points bound[], by, object, OUT node_id int4, OUT major int8) */
Datum
tessera_internal_split(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	int			n;
	TesseraBound **bounds = tessera_bounds_of_array(PG_GETARG_ARRAYTYPE_P(3), &n);
	TesseraKeyBound *points = palloc(sizeof(TesseraKeyBound) * Max(n, 1));
	TesseraChunkRow chunk;
	Datum		values[2];

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no split points are given")));
	for (int i = 0; i < n; i++)
		tessera_key_from_bound(ks, bounds[i], &points[i]);
	tessera_chunk_split(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &points[0]), n, points,
						text_to_cstring(PG_GETARG_TEXT_PP(4)), text_to_cstring(PG_GETARG_TEXT_PP(5)), &chunk);
	if (chunk.node_id == tessera_routing()->self)
		(void) tessera_placement_raise(&row.group_id, PG_GETARG_UUID_P(1), row.major);
	values[0] = Int32GetDatum(chunk.node_id);
	values[1] = Int64GetDatum(row.major);
	return record_of(fcinfo, 2, values);
}

/* internal_merge(group_id, epoch, term, min bound, max bound, by, object, OUT merged int4, OUT node_id int4, OUT major int8) */
Datum
tessera_internal_merge(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound min,
				max;
	int32		node_id;
	Datum		values[3];

	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(3), &min);
	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(4), &max);
	values[0] = Int32GetDatum(tessera_chunk_merge(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &min), &min, &max,
												  text_to_cstring(PG_GETARG_TEXT_PP(5)), text_to_cstring(PG_GETARG_TEXT_PP(6)), &node_id));
	if (node_id == tessera_routing()->self)
		(void) tessera_placement_raise(&row.group_id, PG_GETARG_UUID_P(1), row.major);
	values[1] = Int32GetDatum(node_id);
	values[2] = Int64GetDatum(row.major);
	return record_of(fcinfo, 3, values);
}

/* internal_clear_jumbo(group_id, epoch, term, position bound, by, object) returns bool */
Datum
tessera_internal_clear_jumbo(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound position;
	TesseraChunkRow chunk;

	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(3), &position);
	tessera_chunk_find(&row.group_id, ks, &position, tessera_chunk_hint(tessera_routing(), group, ks, &position), &chunk);
	PG_RETURN_BOOL(tessera_chunk_clear_jumbo(&row, &chunk, text_to_cstring(PG_GETARG_TEXT_PP(4)), text_to_cstring(PG_GETARG_TEXT_PP(5))));
}

/* internal_configure_group(group_id, epoch, term, balancing bool, max_chunk_size int8, by, object) returns void */
Datum
tessera_internal_configure_group(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	TesseraSpi	spi;
	Datum		values[] = {PG_GETARG_DATUM(0), PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3), PG_ARGISNULL(4) ? (Datum) 0 : PG_GETARG_DATUM(4)};
	bool		nulls[] = {false, PG_ARGISNULL(3), PG_ARGISNULL(4)};
	char	   *before;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) || PG_ARGISNULL(5) || PG_ARGISNULL(6))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("group_id, epoch, term, by and object must not be null")));
	lock_group(fcinfo, &row);
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size) FROM tessera.table_group WHERE group_id = "
					"$1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, values, NULL);
	before = spi_row_text(0, 1);
	tessera_spi_run("UPDATE tessera.table_group SET balancing = coalesce($2, balancing), max_chunk_size = coalesce($3, max_chunk_size)"
					" WHERE group_id = $1 RETURNING jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size)",
					SPI_OK_UPDATE_RETURNING, 3, (Oid[]) {UUIDOID, BOOLOID, INT8OID}, values, nulls);
	tessera_changelog_add("configure_table", text_to_cstring(PG_GETARG_TEXT_PP(6)), text_to_cstring(PG_GETARG_TEXT_PP(5)), before,
						  spi_row_text(0, 1));
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	PG_RETURN_VOID();
}
