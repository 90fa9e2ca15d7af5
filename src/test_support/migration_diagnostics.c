/*
 * migration_diagnostics.c
 *	  The data path of a migration in SQL: payloads of a clone, their application, deletion of a range. For tests, and for who doubts a table's types.
 *
 * They work on any tables with the key columns they are told, in the caller's transaction, and bypass triggers and foreign keys as a migration does:
 * hence not for PUBLIC.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/uuid.h"

#include "test_support/migration_diagnostics.h"

PG_FUNCTION_INFO_V1(tessera_moving_range_sql);
PG_FUNCTION_INFO_V1(tessera_clone_payloads);
PG_FUNCTION_INFO_V1(tessera_apply_payload);
PG_FUNCTION_INFO_V1(tessera_delete_range_rows_sql);

static Datum *
elements(ArrayType *array, Oid type, int *n)
{
	Datum	   *values;
	bool	   *nulls;
	int16		typlen;
	bool		typbyval;
	char		typalign;

	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	deconstruct_array(array, type, typlen, typbyval, typalign, &values, &nulls, n);
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("tables and key columns cannot be null")));
	}
	return values;
}

Oid *
tessera_diagnostic_tables(ArrayType *array, int *n)
{
	Datum	   *values = elements(array, REGCLASSOID, n);
	Oid		   *result = palloc(Max(*n, 1) * sizeof(Oid));

	for (int i = 0; i < *n; i++)
		result[i] = DatumGetObjectId(values[i]);
	return result;
}

char **
tessera_diagnostic_keys(ArrayType *array, int *n)
{
	Datum	   *values = elements(array, TEXTOID, n);
	char	  **result = palloc(Max(*n, 1) * sizeof(char *));

	for (int i = 0; i < *n; i++)
		result[i] = TextDatumGetCString(values[i]);
	return result;
}

/* Rows are read and written in the table itself: a partitioned table, a view or an index has none. */
static void
require_plain_table(Oid relid)
{
	char		relkind = get_rel_relkind(relid);

	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				(errcode(relkind == 0 ? ERRCODE_UNDEFINED_TABLE : ERRCODE_WRONG_OBJECT_TYPE),
				 relkind == 0 ? errmsg("relation with OID %u does not exist", relid) : errmsg("\"%s\" is not a table", get_rel_name(relid))));
}

static Form_pg_attribute
key_attribute(Oid table, const char *name, HeapTuple *tuple)
{
	*tuple = SearchSysCacheAttName(table, name);
	if (!HeapTupleIsValid(*tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("table \"%s\" has no column \"%s\"", get_rel_name(table), name)));
	return (Form_pg_attribute) GETSTRUCT(*tuple);
}

TesseraMovingRange *
tessera_diagnostic_range(int ntables, const Oid *tables, int nkeys, char **keys, bool hashed)
{
	TesseraMovingRange *range = palloc0(sizeof(TesseraMovingRange));
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];

	if (ntables < 1 || nkeys < 1 || nkeys > TESSERA_MAX_KEY_COLUMNS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be a table and a key column")));
	range->ntables = ntables;
	range->table_ids = palloc0(ntables * sizeof(pg_uuid_t));
	range->relids = palloc(ntables * sizeof(Oid));
	range->keys = palloc0(ntables * sizeof(*range->keys));
	memcpy(range->relids, tables, ntables * sizeof(Oid));
	for (int i = 0; i < ntables; i++)
	{
		require_plain_table(tables[i]);
		for (int j = 0; j < nkeys; j++)
		{
			HeapTuple	tuple;
			Form_pg_attribute att = key_attribute(tables[i], keys[j], &tuple);

			range->keys[i][j] = att->attnum;
			types[j] = getBaseType(att->atttypid);
			typmods[j] = att->atttypmod;
			collations[j] = att->attcollation;
			ReleaseSysCache(tuple);
		}
	}
	range->ks = tessera_keyspace_create(CurrentMemoryContext, hashed, nkeys, types, typmods, collations);
	for (int i = 0; i < TESSERA_MAX_KEY_COLUMNS; i++)
	{
		range->min.elements[i].kind = TESSERA_MINKEY;
		range->max.elements[i].kind = TESSERA_MAXKEY;
	}
	return range;
}

/* Range of arguments tables, keys, hashed. */
static TesseraMovingRange *
range_of_arguments(FunctionCallInfo fcinfo, int tables_arg, int keys_arg, bool hashed)
{
	int			ntables,
				nkeys;
	Oid		   *tables = tessera_diagnostic_tables(PG_GETARG_ARRAYTYPE_P(tables_arg), &ntables);
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(keys_arg), &nkeys);

	return tessera_diagnostic_range(ntables, tables, nkeys, keys, hashed);
}

static bytea *
bytea_of(StringInfo data)
{
	return (bytea *) cstring_to_text_with_len(data->data, data->len);
}

/* tessera_test.clone_payloads(tables, keys, min, max, hashed, bytes) */
Datum
tessera_clone_payloads(PG_FUNCTION_ARGS)
{
	TesseraMovingRange *range = range_of_arguments(fcinfo, 0, 1, PG_GETARG_BOOL(4));
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	StringInfoData payload;
	TesseraCloneReader *reader;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	int			table;

	tessera_key_from_bound(range->ks, PG_GETARG_TESSERA_BOUND_P(2), &range->min);
	tessera_key_from_bound(range->ks, PG_GETARG_TESSERA_BOUND_P(3), &range->max);
	InitMaterializedSRF(fcinfo, 0);
	initStringInfo(&payload);
	reader = tessera_clone_begin(range, NULL);
	for (;;)
	{
		int64		rows = tessera_clone_next(reader, &payload, PG_GETARG_INT64(5), &table);

		if (rows == 0)
			break;
		values[0] = Int32GetDatum(table);
		values[1] = Int64GetDatum(rows);
		values[2] = PointerGetDatum(bytea_of(&payload));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		pfree(DatumGetPointer(values[2]));
		resetStringInfo(&payload);
	}
	tessera_clone_end(reader);
	return (Datum) 0;
}

/* tessera_test.apply_payload(tables, keys, payload, changes) */
Datum
tessera_apply_payload(PG_FUNCTION_ARGS)
{
	TesseraMovingRange *range = range_of_arguments(fcinfo, 0, 1, false);
	bytea	   *payload = PG_GETARG_BYTEA_PP(2);
	TesseraApplier *applier = tessera_applier_begin(range);
	int64		count;

	if (PG_GETARG_BOOL(3))
		count = tessera_apply_mods(applier, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload));
	else
		count = tessera_apply_clone(applier, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload));
	tessera_applier_end(applier);
	PG_RETURN_INT64(count);
}

/* Deletes from a table of the cluster, by its own key. */
static int64
delete_by_routing(Oid relid, TesseraBound *min, TesseraBound *max, int64 batch)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing == NULL ? NULL : tessera_routing_table(routing, relid);
	const TesseraGroup *group;
	TesseraKeyBound from,
				to;

	if (table == NULL || table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sharded table", get_rel_name(relid)),
				 errhint("Name the key columns.")));
	group = tessera_routing_group(routing, table->group);
	tessera_key_from_bound(tessera_group_keyspace(routing, group), min, &from);
	tessera_key_from_bound(tessera_group_keyspace(routing, group), max, &to);
	return tessera_delete_range_batch(routing, group, relid, &from, &to, batch);
}

/* tessera_test.delete_range_rows(table_name, keys, min, max, hashed, batch) */
Datum
tessera_delete_range_rows_sql(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int			nkeys;
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(1), &nkeys);
	TesseraMovingRange *range;
	Relation	relation;
	int64		rows;

	if (nkeys == 0)
		PG_RETURN_INT64(delete_by_routing(relid, PG_GETARG_TESSERA_BOUND_P(2), PG_GETARG_TESSERA_BOUND_P(3), PG_GETARG_INT64(5)));
	range = tessera_diagnostic_range(1, &relid, nkeys, keys, PG_GETARG_BOOL(4));
	tessera_key_from_bound(range->ks, PG_GETARG_TESSERA_BOUND_P(2), &range->min);
	tessera_key_from_bound(range->ks, PG_GETARG_TESSERA_BOUND_P(3), &range->max);
	relation = table_open(relid, RowExclusiveLock);
	rows = tessera_delete_range_rows(relation, range->ks, range->keys[0], &range->min, &range->max, PG_GETARG_INT64(5));
	table_close(relation, NoLock);
	PG_RETURN_INT64(rows);
}

/* tessera_test.moving_range(group_id, min, max) */
Datum
tessera_moving_range_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	pg_uuid_t  *group_id = PG_GETARG_UUID_P(0);
	TesseraMovingRange *range = tessera_moving_range(group_id, group_id, PG_GETARG_TESSERA_BOUND_P(1), PG_GETARG_TESSERA_BOUND_P(2));

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < range->ntables; i++)
	{
		Datum		values[6];
		bool		nulls[6] = {false};
		Datum		attnums[TESSERA_MAX_KEY_COLUMNS];

		for (int j = 0; j < range->ks->ncolumns; j++)
			attnums[j] = Int16GetDatum(range->keys[i][j]);
		values[0] = Int32GetDatum(i);
		values[1] = UUIDPGetDatum(&range->table_ids[i]);
		values[2] = ObjectIdGetDatum(range->relids[i]);
		values[3] = PointerGetDatum(construct_array(attnums, range->ks->ncolumns, INT2OID, sizeof(int16), true, TYPALIGN_SHORT));
		values[4] = PointerGetDatum(tessera_key_to_bound(range->ks, &range->min));
		values[5] = PointerGetDatum(tessera_key_to_bound(range->ks, &range->max));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
