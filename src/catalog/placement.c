/*
 * placement.c
 *	  Rows of tessera.placement.
 *
 * Readers scan with a snapshot of the caller's, or with one that sees everything up to now. Writers hold the row (tessera_placement_lock: SELECT FOR
 * UPDATE) from before they read it to the end of their transaction, so a write never meets a concurrent one. A crash leaves the old row or the
 * new one. The mirror in shared memory follows at commit (catalog/change.h).
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "catalog/change.h"
#include "catalog/placement.h"
#include "catalog/relation.h"
#include "common/spi.h"

static const char *const gate_names[] = {
	[TESSERA_GATE_OPEN] = "open",
	[TESSERA_GATE_WRITE] = "write",
	[TESSERA_GATE_READ] = "read",
};


/* Reading */

static TesseraBound *
copy_bound(Datum datum)
{
	return (TesseraBound *) PG_DETOAST_DATUM_COPY(datum);
}

/* Elements of an array of rows (palloc'd array of HeapTupleHeader); of a null one NULL. */
static HeapTupleHeader *
rows_of_array(Datum array, int *n)
{
	ArrayType  *rows = DatumGetArrayTypeP(array);
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *elements;
	bool	   *nulls;
	HeapTupleHeader *result;

	get_typlenbyvalalign(ARR_ELEMTYPE(rows), &typlen, &typbyval, &typalign);
	deconstruct_array(rows, ARR_ELEMTYPE(rows), typlen, typbyval, typalign, &elements, &nulls, n);
	result = palloc(Max(*n, 1) * sizeof(HeapTupleHeader));
	for (int i = 0; i < *n; i++)
		result[i] = nulls[i] ? NULL : DatumGetHeapTupleHeader(elements[i]);
	return result;
}

/* A field of an element; null where none may be is corruption. */
static Datum
field(HeapTupleHeader row, int number)
{
	bool		null = true;
	Datum		value = row == NULL ? (Datum) 0 : GetAttributeByNum(row, number, &null);

	if (null)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a range in tessera.placement is incomplete")));
	return value;
}

static TesseraRange *
ranges_from_array(Datum array, int *n)
{
	HeapTupleHeader *rows = rows_of_array(array, n);
	TesseraRange *result = palloc(Max(*n, 1) * sizeof(TesseraRange));

	for (int i = 0; i < *n; i++)
	{
		result[i].min = copy_bound(field(rows[i], 1));
		result[i].max = copy_bound(field(rows[i], 2));
	}
	return result;
}

static TesseraGate
gate_from_text(Datum value)
{
	char	   *name = TextDatumGetCString(value);

	for (int i = 0; i < lengthof(gate_names); i++)
		if (strcmp(name, gate_names[i]) == 0)
			return (TesseraGate) i;
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("unknown gate \"%s\" in tessera.placement", name)));
}

static TesseraGatedRange *
gates_from_array(Datum array, int *n)
{
	HeapTupleHeader *rows = rows_of_array(array, n);
	TesseraGatedRange *result = palloc(Max(*n, 1) * sizeof(TesseraGatedRange));

	for (int i = 0; i < *n; i++)
	{
		result[i].migration_id = *DatumGetUUIDP(field(rows[i], 1));
		result[i].range.min = copy_bound(field(rows[i], 2));
		result[i].range.max = copy_bound(field(rows[i], 3));
		result[i].gate = gate_from_text(field(rows[i], 4));
		result[i].confirmed = DatumGetBool(field(rows[i], 5));
	}
	return result;
}

static TesseraPlacementRow *
row_from_tuple(HeapTuple tuple, TupleDesc desc)
{
	Datum		values[Natts_placement];
	bool		nulls[Natts_placement];
	TesseraPlacementRow *row = palloc0(sizeof(TesseraPlacementRow));

	/* a later version of the extension may have added columns behind */
	for (int i = 0; i < Natts_placement; i++)
		values[i] = heap_getattr(tuple, i + 1, desc, &nulls[i]);

	row->group_id = *DatumGetUUIDP(values[Anum_placement_group_id - 1]);
	row->term = DatumGetInt64(values[Anum_placement_term - 1]);
	row->epoch = *DatumGetUUIDP(values[Anum_placement_epoch - 1]);
	row->major = DatumGetInt64(values[Anum_placement_major - 1]);
	row->owned = ranges_from_array(values[Anum_placement_owned - 1], &row->nowned);
	row->deletions = ranges_from_array(values[Anum_placement_deletions - 1], &row->ndeletions);
	row->gates = gates_from_array(values[Anum_placement_gates - 1], &row->ngates);
	row->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	return row;
}

TesseraPlacementRow *
tessera_placement_read(const pg_uuid_t *group_id, Snapshot snapshot)
{
	Relation	rel = tessera_catalog_open(TESSERA_PLACEMENT, AccessShareLock);
	Snapshot	own = snapshot == NULL ? tessera_catalog_snapshot() : NULL;
	SysScanDesc scan = tessera_catalog_scan(rel, TESSERA_PLACEMENT_KEY, Anum_placement_group_id, group_id, own ? own : snapshot);
	HeapTuple	tuple = systable_getnext(scan);
	TesseraPlacementRow *row = HeapTupleIsValid(tuple) ? row_from_tuple(tuple, RelationGetDescr(rel)) : NULL;

	systable_endscan(scan);
	if (own)
		UnregisterSnapshot(own);
	table_close(rel, AccessShareLock);
	return row;
}

TesseraPlacementRow **
tessera_placement_read_all(Snapshot snapshot, int *n)
{
	Relation	rel = tessera_catalog_open(TESSERA_PLACEMENT, AccessShareLock);
	Snapshot	own = snapshot == NULL ? tessera_catalog_snapshot() : NULL;
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, own ? own : snapshot, 0, NULL);
	int			room = 16;
	TesseraPlacementRow **rows = palloc(room * sizeof(TesseraPlacementRow *));
	HeapTuple	tuple;

	*n = 0;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (*n == room)
			rows = repalloc(rows, (room *= 2) * sizeof(TesseraPlacementRow *));
		rows[(*n)++] = row_from_tuple(tuple, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	if (own)
		UnregisterSnapshot(own);
	table_close(rel, AccessShareLock);
	return rows;
}

TesseraGatedRange *
tessera_placement_gate_of(const TesseraPlacementRow *row, const pg_uuid_t *migration_id)
{
	for (int i = 0; i < row->ngates; i++)
		if (memcmp(&row->gates[i].migration_id, migration_id, sizeof(pg_uuid_t)) == 0)
			return &row->gates[i];
	return NULL;
}

TesseraGate
tessera_placement_closest_gate(const TesseraPlacementRow *row)
{
	TesseraGate gate = TESSERA_GATE_OPEN;

	for (int i = 0; i < row->ngates; i++)
		gate = Max(gate, row->gates[i].gate);
	return gate;
}


/* Writing */

static const char *const lock_sql = "SELECT FROM tessera.placement WHERE group_id OPERATOR(pg_catalog.=) $1 FOR UPDATE";

TesseraPlacementRow *
tessera_placement_lock(const pg_uuid_t *group_id)
{
	TesseraSpi	spi;
	Oid			types[1] = {UUIDOID};
	Datum		values[1] = {UUIDPGetDatum(group_id)};
	TesseraPlacementRow *row;

	tessera_spi_begin(&spi);
	while (tessera_spi_run_saved(lock_sql, SPI_OK_SELECT, 1, types, values, NULL) == 0)
	{
		CHECK_FOR_INTERRUPTS();
		tessera_spi_run("INSERT INTO tessera.placement (group_id, term, epoch, major, owned)"
						" SELECT $1, coalesce((SELECT term FROM tessera.identity), 0),"
						"  coalesce((SELECT epoch FROM tessera.table_group WHERE group_id OPERATOR(pg_catalog.=) $1),"
						"   '00000000-0000-0000-0000-000000000000'), 0, '{}'"
						" ON CONFLICT DO NOTHING", SPI_OK_INSERT, 1, types, values, NULL);
		if (SPI_processed > 0)
			tessera_catalog_changed();
	}
	tessera_spi_end(&spi);

	row = tessera_placement_read(group_id, NULL);
	if (row == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("placement record changed during the transaction")));
	return row;
}

void
tessera_placement_plan(void)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_plan(lock_sql, 1, (Oid[]) {UUIDOID});
	tessera_spi_end(&spi);
}

/* An array of n rows without nulls; `fields` puts the fields of element i into values. */
static Datum
array_of_rows(int n, Oid array_type, void (*fields) (const void *list, int i, Datum *values), const void *list)
{
	Oid			type = get_element_type(array_type);
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	Datum	   *elements = palloc(Max(n, 1) * sizeof(Datum));
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc0(desc->natts * sizeof(bool));
	int16		typlen;
	bool		typbyval;
	char		typalign;

	for (int i = 0; i < n; i++)
	{
		fields(list, i, values);
		elements[i] = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	}
	ReleaseTupleDesc(desc);
	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	return PointerGetDatum(construct_array(elements, n, type, typlen, typbyval, typalign));
}

static void
range_fields(const void *list, int i, Datum *values)
{
	const TesseraRange *range = (const TesseraRange *) list + i;

	values[0] = PointerGetDatum(range->min);
	values[1] = PointerGetDatum(range->max);
}

static void
gate_fields(const void *list, int i, Datum *values)
{
	const TesseraGatedRange *gate = (const TesseraGatedRange *) list + i;

	values[0] = UUIDPGetDatum(&gate->migration_id);
	range_fields(&gate->range, 0, values + 1);
	values[3] = CStringGetTextDatum(gate_names[gate->gate]);
	values[4] = BoolGetDatum(gate->confirmed);
}

static HeapTuple
tuple_from_row(const TesseraPlacementRow *row, HeapTuple old, TupleDesc desc)
{
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc0(desc->natts * sizeof(bool));
	bool	   *replace = palloc0(desc->natts * sizeof(bool));

	for (int i = Anum_placement_term; i <= Natts_placement; i++)
		replace[i - 1] = true;
	values[Anum_placement_term - 1] = Int64GetDatum(row->term);
	values[Anum_placement_epoch - 1] = UUIDPGetDatum(&row->epoch);
	values[Anum_placement_major - 1] = Int64GetDatum(row->major);
	values[Anum_placement_owned - 1] = array_of_rows(row->nowned, TupleDescAttr(desc, Anum_placement_owned - 1)->atttypid, range_fields, row->owned);
	values[Anum_placement_deletions - 1] = array_of_rows(row->ndeletions, TupleDescAttr(desc, Anum_placement_deletions - 1)->atttypid, range_fields,
														 row->deletions);
	values[Anum_placement_gates - 1] = array_of_rows(row->ngates, TupleDescAttr(desc, Anum_placement_gates - 1)->atttypid, gate_fields, row->gates);
	return heap_modify_tuple(old, desc, values, nulls, replace);
}

/* The table that a row of tessera.cluster_table means. */
static void
invalidate_table(HeapTuple tuple, TupleDesc desc)
{
	bool		null;
	Datum		relid = heap_getattr(tuple, Anum_cluster_table_relid, desc, &null);
	Oid			table = tessera_resolve_table(null ? InvalidOid : DatumGetObjectId(relid),
											  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_schema_name, desc, &null))),
											  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_table_name, desc, &null))));

	tessera_invalidate_tree(table);
}

/* The schema whose group it is; false: it is of sharded tables. */
static bool
find_schema(const pg_uuid_t *group_id, Snapshot snapshot, Name schema)
{
	Relation	rel = tessera_catalog_open(TESSERA_SCHEMA_PLACEMENT, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		null;
		Datum		id = heap_getattr(tuple, Anum_schema_placement_group_id, RelationGetDescr(rel), &null);

		found = !null && memcmp(DatumGetUUIDP(id), group_id, sizeof(pg_uuid_t)) == 0;
		if (found)
			*schema = *DatumGetName(heap_getattr(tuple, Anum_schema_placement_schema_name, RelationGetDescr(rel), &null));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Plans on the group's tables are made anew: with or without the ownership filter. */
static void
invalidate_tables(const pg_uuid_t *group_id)
{
	Relation	rel = tessera_catalog_open(TESSERA_CLUSTER_TABLE, AccessShareLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = tessera_catalog_scan(rel, TESSERA_CLUSTER_TABLE_GROUP, Anum_cluster_table_group_id, group_id, snapshot);
	NameData	schema;
	bool		sharded = false;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		sharded = true;
		invalidate_table(tuple, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	if (!sharded && find_schema(group_id, snapshot, &schema))
	{
		scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			bool		null;

			if (namestrcmp(DatumGetName(heap_getattr(tuple, Anum_cluster_table_schema_name, RelationGetDescr(rel), &null)), NameStr(schema)) == 0)
				invalidate_table(tuple, RelationGetDescr(rel));
		}
		systable_endscan(scan);
	}
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

void
tessera_placement_write(const TesseraPlacementRow *row)
{
	Relation	rel = tessera_catalog_open(TESSERA_PLACEMENT, RowExclusiveLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = tessera_catalog_scan(rel, TESSERA_PLACEMENT_KEY, Anum_placement_group_id, &row->group_id, snapshot);
	HeapTuple	old = systable_getnext(scan);
	HeapTuple	new;

	if (!HeapTupleIsValid(old))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no placement record of this table group")));
	new = tuple_from_row(row, old, RelationGetDescr(rel));
	CatalogTupleUpdate(rel, &old->t_self, new);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);

	invalidate_tables(&row->group_id);
	tessera_catalog_changed();
	CommandCounterIncrement();
}

bool
tessera_placement_raise(const pg_uuid_t *group_id, const pg_uuid_t *epoch, int64 major)
{
	TesseraPlacementRow *row = tessera_placement_lock(group_id);

	if (memcmp(&row->epoch, epoch, sizeof(pg_uuid_t)) != 0 || row->nowned == 0 || row->major >= major ||
		tessera_placement_closest_gate(row) == TESSERA_GATE_READ)
		return false;
	row->major = major;
	tessera_placement_write(row);
	return true;
}
