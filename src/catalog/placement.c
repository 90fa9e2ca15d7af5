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
#include "utils/inval.h"
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

static TesseraRange *
ranges_from_array(Datum array, int *n)
{
	ArrayType  *ranges = DatumGetArrayTypeP(array);
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *elements;
	bool	   *nulls;
	TesseraRange *result;

	get_typlenbyvalalign(ARR_ELEMTYPE(ranges), &typlen, &typbyval, &typalign);
	deconstruct_array(ranges, ARR_ELEMTYPE(ranges), typlen, typbyval, typalign, &elements, &nulls, n);
	result = palloc(Max(*n, 1) * sizeof(TesseraRange));
	for (int i = 0; i < *n; i++)
	{
		HeapTupleHeader range;
		Datum		min;
		Datum		max;
		bool		min_null = true;
		bool		max_null = true;

		if (!nulls[i])
		{
			range = DatumGetHeapTupleHeader(elements[i]);
			min = GetAttributeByNum(range, 1, &min_null);
			max = GetAttributeByNum(range, 2, &max_null);
		}
		if (min_null || max_null)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("a range in tessera.placement lacks a bound")));
		result[i].min = copy_bound(min);
		result[i].max = copy_bound(max);
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
	row->gate = gate_from_text(values[Anum_placement_gate - 1]);
	if (!nulls[Anum_placement_gate_min - 1] && !nulls[Anum_placement_gate_max - 1])
	{
		row->gate_range.min = copy_bound(values[Anum_placement_gate_min - 1]);
		row->gate_range.max = copy_bound(values[Anum_placement_gate_max - 1]);
	}
	row->has_migration = !nulls[Anum_placement_migration_id - 1];
	if (row->has_migration)
		row->migration_id = *DatumGetUUIDP(values[Anum_placement_migration_id - 1]);
	row->confirmed = DatumGetBool(values[Anum_placement_confirmed - 1]);
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

static Datum
ranges_to_array(int n, const TesseraRange *ranges, Oid array_type)
{
	Oid			type = get_element_type(array_type);
	TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
	Datum	   *elements = palloc(Max(n, 1) * sizeof(Datum));
	int16		typlen;
	bool		typbyval;
	char		typalign;

	for (int i = 0; i < n; i++)
	{
		Datum		values[2] = {PointerGetDatum(ranges[i].min), PointerGetDatum(ranges[i].max)};
		bool		nulls[2] = {false, false};

		elements[i] = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	}
	ReleaseTupleDesc(desc);
	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	return PointerGetDatum(construct_array(elements, n, type, typlen, typbyval, typalign));
}

static HeapTuple
tuple_from_row(const TesseraPlacementRow *row, HeapTuple old, TupleDesc desc)
{
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc0(desc->natts * sizeof(bool));
	bool	   *replace = palloc0(desc->natts * sizeof(bool));
	bool		has_range = row->gate_range.min != NULL && row->gate_range.max != NULL;

	for (int i = Anum_placement_term; i <= Natts_placement; i++)
		replace[i - 1] = true;
	values[Anum_placement_term - 1] = Int64GetDatum(row->term);
	values[Anum_placement_epoch - 1] = UUIDPGetDatum(&row->epoch);
	values[Anum_placement_major - 1] = Int64GetDatum(row->major);
	values[Anum_placement_owned - 1] = ranges_to_array(row->nowned, row->owned, TupleDescAttr(desc, Anum_placement_owned - 1)->atttypid);
	values[Anum_placement_deletions - 1] = ranges_to_array(row->ndeletions, row->deletions,
														   TupleDescAttr(desc, Anum_placement_deletions - 1)->atttypid);
	values[Anum_placement_gate - 1] = CStringGetTextDatum(gate_names[row->gate]);
	values[Anum_placement_gate_min - 1] = PointerGetDatum(row->gate_range.min);
	nulls[Anum_placement_gate_min - 1] = !has_range;
	values[Anum_placement_gate_max - 1] = PointerGetDatum(row->gate_range.max);
	nulls[Anum_placement_gate_max - 1] = !has_range;
	values[Anum_placement_migration_id - 1] = UUIDPGetDatum(&row->migration_id);
	nulls[Anum_placement_migration_id - 1] = !row->has_migration;
	values[Anum_placement_confirmed - 1] = BoolGetDatum(row->confirmed);
	return heap_modify_tuple(old, desc, values, nulls, replace);
}

/* Plans on the group's tables are made anew: with or without the ownership filter. */
static void
invalidate_tables(const pg_uuid_t *group_id)
{
	Relation	rel = tessera_catalog_open(TESSERA_CLUSTER_TABLE, AccessShareLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = tessera_catalog_scan(rel, TESSERA_CLUSTER_TABLE_GROUP, Anum_cluster_table_group_id, group_id, snapshot);
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		null;
		Datum		relid = heap_getattr(tuple, Anum_cluster_table_relid, desc, &null);
		Oid			table = tessera_resolve_table(null ? InvalidOid : DatumGetObjectId(relid),
												  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_schema_name, desc, &null))),
												  NameStr(*DatumGetName(heap_getattr(tuple, Anum_cluster_table_table_name, desc, &null))));

		if (OidIsValid(table) && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table)))
			CacheInvalidateRelcacheByRelid(table);
	}
	systable_endscan(scan);
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

	if (memcmp(&row->epoch, epoch, sizeof(pg_uuid_t)) != 0 || row->nowned == 0 || row->major >= major || row->gate == TESSERA_GATE_READ)
		return false;
	row->major = major;
	tessera_placement_write(row);
	return true;
}
