/*
 * migration_diagnostics.c
 *	  The data path of a migration in SQL: payloads of a clone, their application, deletion of a range. For tests, and for who doubts a table's types.
 *
 * They work on any tables with the key columns they are told, or on those of the cluster's groups, in the caller's transaction, and bypass triggers
 * and foreign keys as a migration does: hence not for PUBLIC.
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

PG_FUNCTION_INFO_V1(tessera_moving_ranges_sql);
PG_FUNCTION_INFO_V1(tessera_clone_payloads);
PG_FUNCTION_INFO_V1(tessera_clone_operation);
PG_FUNCTION_INFO_V1(tessera_apply_payload);
PG_FUNCTION_INFO_V1(tessera_apply_operation);
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
					 errmsg("tables, key columns and ranges cannot be null")));
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

TesseraMovingRanges *
tessera_diagnostic_range(int ntables, const Oid *tables, int nkeys, char **keys, bool hashed, const TesseraBound *min, const TesseraBound *max)
{
	TesseraMovingRanges *moving = palloc0(sizeof(TesseraMovingRanges));
	TesseraMovingGroup *group = palloc0(sizeof(TesseraMovingGroup));
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];

	if (ntables < 1 || nkeys < 1 || nkeys > TESSERA_MAX_KEY_COLUMNS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be a table and a key column")));
	moving->ngroups = 1;
	moving->groups = group;
	moving->ntables = ntables;
	moving->tables = palloc0(ntables * sizeof(TesseraMovingTable));
	for (int i = 0; i < ntables; i++)
	{
		require_plain_table(tables[i]);
		moving->tables[i].relid = tables[i];
		for (int j = 0; j < nkeys; j++)
		{
			HeapTuple	tuple;
			Form_pg_attribute att = key_attribute(tables[i], keys[j], &tuple);

			moving->tables[i].keys[j] = att->attnum;
			types[j] = getBaseType(att->atttypid);
			typmods[j] = att->atttypmod;
			collations[j] = att->attcollation;
			ReleaseSysCache(tuple);
		}
	}
	group->ks = tessera_keyspace_create(CurrentMemoryContext, hashed, nkeys, types, typmods, collations);
	group->nranges = 1;
	group->ranges = palloc0(sizeof(TesseraKeyRange));
	group->ranges->min.elements[0].kind = TESSERA_MINKEY;
	group->ranges->max.elements[0].kind = TESSERA_MAXKEY;
	if (min != NULL)
		tessera_key_from_bound(group->ks, min, &group->ranges->min);
	if (max != NULL)
		tessera_key_from_bound(group->ks, max, &group->ranges->max);
	return moving;
}

static Datum
attribute(HeapTupleHeader range, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = GetAttributeByNum(range, attnum, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("group and bounds of a range cannot be null")));
	return value;
}

TesseraMovingRanges *
tessera_diagnostic_operation(ArrayType *ranges)
{
	int			n;
	Datum	   *values = elements(ranges, ARR_ELEMTYPE(ranges), &n);
	TesseraOperationRange *operation = palloc0(Max(n, 1) * sizeof(TesseraOperationRange));
	pg_uuid_t	nobody = {{0}};

	for (int i = 0; i < n; i++)
	{
		HeapTupleHeader range = DatumGetHeapTupleHeader(values[i]);

		operation[i].group_id = *DatumGetUUIDP(attribute(range, 1));
		operation[i].range.min = DatumGetTesseraBoundP(attribute(range, 2));
		operation[i].range.max = DatumGetTesseraBoundP(attribute(range, 3));
	}
	return tessera_moving_ranges(&nobody, n, operation);
}

static bytea *
bytea_of(StringInfo data)
{
	return (bytea *) cstring_to_text_with_len(data->data, data->len);
}

/* The rows of a clone, as table_index, row_count, payload. */
static void
put_clone(TesseraMovingRanges *moving, int64 bytes, ReturnSetInfo *result)
{
	StringInfoData payload;
	TesseraCloneReader *reader;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	int			table;

	initStringInfo(&payload);
	reader = tessera_clone_begin(moving, NULL);
	for (;;)
	{
		int64		rows = tessera_clone_next(reader, &payload, bytes, &table);

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
}

/* tessera_test.clone_payloads(tables, keys, min, max, hashed, bytes) */
Datum
tessera_clone_payloads(PG_FUNCTION_ARGS)
{
	int			ntables,
				nkeys;
	Oid		   *tables = tessera_diagnostic_tables(PG_GETARG_ARRAYTYPE_P(0), &ntables);
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(1), &nkeys);
	TesseraMovingRanges *moving = tessera_diagnostic_range(ntables, tables, nkeys, keys, PG_GETARG_BOOL(4), PG_GETARG_TESSERA_BOUND_P(2),
														   PG_GETARG_TESSERA_BOUND_P(3));

	InitMaterializedSRF(fcinfo, 0);
	put_clone(moving, PG_GETARG_INT64(5), (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* tessera_test.clone_operation(ranges, bytes) */
Datum
tessera_clone_operation(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	put_clone(tessera_diagnostic_operation(PG_GETARG_ARRAYTYPE_P(0)), PG_GETARG_INT64(1), (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

static int64
apply(TesseraMovingRanges *moving, bytea *payload, bool changes)
{
	TesseraApplier *applier = tessera_applier_begin(moving);
	int64		count;

	if (changes)
		count = tessera_apply_mods(applier, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload));
	else
		count = tessera_apply_clone(applier, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload));
	tessera_applier_end(applier);
	return count;
}

/* tessera_test.apply_payload(tables, keys, payload, changes) */
Datum
tessera_apply_payload(PG_FUNCTION_ARGS)
{
	int			ntables,
				nkeys;
	Oid		   *tables = tessera_diagnostic_tables(PG_GETARG_ARRAYTYPE_P(0), &ntables);
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(1), &nkeys);

	PG_RETURN_INT64(apply(tessera_diagnostic_range(ntables, tables, nkeys, keys, false, NULL, NULL), PG_GETARG_BYTEA_PP(2), PG_GETARG_BOOL(3)));
}

/* tessera_test.apply_operation(ranges, payload, changes) */
Datum
tessera_apply_operation(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(apply(tessera_diagnostic_operation(PG_GETARG_ARRAYTYPE_P(0)), PG_GETARG_BYTEA_PP(1), PG_GETARG_BOOL(2)));
}

/* Deletes from a table of the cluster, by its own key. */
static int64
delete_by_routing(Oid relid, TesseraBound *min, TesseraBound *max, int64 batch)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing == NULL ? NULL : tessera_routing_table(routing, relid);
	const TesseraGroup *group;
	TesseraKeyRange range;

	if (table == NULL || table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sharded table", get_rel_name(relid)),
				 errhint("Name the key columns.")));
	group = tessera_routing_group(routing, table->group);
	tessera_key_from_bound(tessera_group_keyspace(routing, group), min, &range.min);
	tessera_key_from_bound(tessera_group_keyspace(routing, group), max, &range.max);
	return tessera_delete_range_batch(routing, group, relid, &range, batch);
}

/* tessera_test.delete_range_rows(table_name, keys, min, max, hashed, batch) */
Datum
tessera_delete_range_rows_sql(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int			nkeys;
	char	  **keys = tessera_diagnostic_keys(PG_GETARG_ARRAYTYPE_P(1), &nkeys);
	TesseraMovingRanges *moving;
	Relation	relation;
	int64		rows;

	if (nkeys == 0)
		PG_RETURN_INT64(delete_by_routing(relid, PG_GETARG_TESSERA_BOUND_P(2), PG_GETARG_TESSERA_BOUND_P(3), PG_GETARG_INT64(5)));
	moving = tessera_diagnostic_range(1, &relid, nkeys, keys, PG_GETARG_BOOL(4), PG_GETARG_TESSERA_BOUND_P(2), PG_GETARG_TESSERA_BOUND_P(3));
	relation = table_open(relid, RowExclusiveLock);
	rows = tessera_delete_range_rows(relation, moving->groups->ks, moving->tables->keys, moving->groups->ranges, PG_GETARG_INT64(5));
	table_close(relation, NoLock);
	PG_RETURN_INT64(rows);
}

static void
put_table(const TesseraMovingRanges *moving, int table, ReturnSetInfo *result)
{
	const TesseraMovingGroup *group = tessera_moving_group(moving, table);
	Datum		attnums[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < group->ks->ncolumns; i++)
		attnums[i] = Int16GetDatum(moving->tables[table].keys[i]);
	for (int i = 0; i < group->nranges; i++)
	{
		Datum		values[6];
		bool		nulls[6] = {false};

		values[0] = Int32GetDatum(table);
		values[1] = UUIDPGetDatum(&moving->tables[table].table_id);
		values[2] = ObjectIdGetDatum(moving->tables[table].relid);
		values[3] = PointerGetDatum(construct_array(attnums, group->ks->ncolumns, INT2OID, sizeof(int16), true, TYPALIGN_SHORT));
		values[4] = PointerGetDatum(tessera_key_to_bound(group->ks, &group->ranges[i].min));
		values[5] = PointerGetDatum(tessera_key_to_bound(group->ks, &group->ranges[i].max));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/* tessera_test.moving_ranges(ranges) */
Datum
tessera_moving_ranges_sql(PG_FUNCTION_ARGS)
{
	TesseraMovingRanges *moving = tessera_diagnostic_operation(PG_GETARG_ARRAYTYPE_P(0));

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < moving->ntables; i++)
		put_table(moving, i, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}
