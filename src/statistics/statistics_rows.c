/*
 * statistics_rows.c
 *	  Reads and writes tessera.table_statistics, without SPI: the planner reads it, and ANALYZE writes it in the user's transaction. See
 *	  statistics_rows.h.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/relation.h"
#include "statistics/statistics_rows.h"

bool
tessera_statistics_lock(const pg_uuid_t *table_id, bool wait)
{
	LOCKTAG		tag;
	LockAcquireResult result;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, tessera_catalog_relid(TESSERA_TABLE_STATISTICS),
					   (Oid) hash_bytes(table_id->data, UUID_LEN), 0);
	result = LockAcquire(&tag, ExclusiveLock, false, !wait);
	if (result == LOCKACQUIRE_NOT_AVAIL)
		return false;
	AcceptInvalidationMessages();
	return true;
}

static TesseraStatisticsRow *
row_from_tuple(HeapTuple tuple, TupleDesc desc)
{
	TesseraStatisticsRow *row = palloc0(sizeof(TesseraStatisticsRow));
	Datum		values[Natts_table_statistics];
	bool		nulls[Natts_table_statistics];

	for (int i = 0; i < Natts_table_statistics; i++)
		values[i] = heap_getattr(tuple, i + 1, desc, &nulls[i]);
	row->table_id = *DatumGetUUIDP(values[Anum_table_statistics_table_id - 1]);
	row->node_id = DatumGetInt32(values[Anum_table_statistics_node_id - 1]);
	row->stamp = TextDatumGetCString(values[Anum_table_statistics_stamp - 1]);
	row->pages = DatumGetFloat8(values[Anum_table_statistics_pages - 1]);
	row->tuples = DatumGetFloat8(values[Anum_table_statistics_tuples - 1]);
	row->bytes = DatumGetInt64(values[Anum_table_statistics_bytes - 1]);
	row->columns = (Jsonb *) PG_DETOAST_DATUM_COPY(values[Anum_table_statistics_columns - 1]);
	row->collected = DatumGetTimestampTz(values[Anum_table_statistics_collected - 1]);
	return row;
}

List *
tessera_statistics_rows(const pg_uuid_t *table_id)
{
	Oid			relid = tessera_catalog_relid(TESSERA_TABLE_STATISTICS);
	Relation	relation = OidIsValid(relid) ? try_table_open(relid, AccessShareLock) : NULL;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *rows = NIL;

	if (relation == NULL)
		return NIL;
	snapshot = tessera_catalog_snapshot();
	scan = tessera_catalog_scan(relation, TESSERA_TABLE_STATISTICS_KEY, Anum_table_statistics_table_id, table_id, snapshot);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		rows = lappend(rows, row_from_tuple(tuple, RelationGetDescr(relation)));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(relation, AccessShareLock);
	return rows;
}

/* The row as it is, copied; NULL if there is none. */
static HeapTuple
find(Relation relation, const pg_uuid_t *table_id, int32 node_id)
{
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = tessera_catalog_scan(relation, TESSERA_TABLE_STATISTICS_KEY, Anum_table_statistics_table_id, table_id, snapshot);
	HeapTuple	tuple;
	HeapTuple	found = NULL;

	while (found == NULL && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;

		if (DatumGetInt32(heap_getattr(tuple, Anum_table_statistics_node_id, RelationGetDescr(relation), &isnull)) == node_id)
			found = heap_copytuple(tuple);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return found;
}

static bool
same_stamp(HeapTuple tuple, TupleDesc desc, const char *stamp)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_table_statistics_stamp, desc, &isnull);

	return !isnull && strcmp(TextDatumGetCString(value), stamp) == 0;
}

bool
tessera_statistics_has_stamp(const pg_uuid_t *table_id, int32 node_id, const char *stamp)
{
	Relation	relation = tessera_catalog_open(TESSERA_TABLE_STATISTICS, AccessShareLock);
	HeapTuple	row = find(relation, table_id, node_id);
	bool		same = row == NULL ? stamp == NULL : stamp != NULL && same_stamp(row, RelationGetDescr(relation), stamp);

	table_close(relation, AccessShareLock);
	return same;
}

void
tessera_statistics_write(const TesseraStatisticsRow *row, Oid relid)
{
	Relation	relation = tessera_catalog_open(TESSERA_TABLE_STATISTICS, RowExclusiveLock);
	TupleDesc	desc = RelationGetDescr(relation);
	HeapTuple	old = find(relation, &row->table_id, row->node_id);
	Datum		values[Natts_table_statistics];
	bool		nulls[Natts_table_statistics] = {0};
	HeapTuple	tuple;

	if (old != NULL && same_stamp(old, desc, row->stamp))
	{
		table_close(relation, RowExclusiveLock);
		return;
	}
	values[Anum_table_statistics_table_id - 1] = UUIDPGetDatum(&row->table_id);
	values[Anum_table_statistics_node_id - 1] = Int32GetDatum(row->node_id);
	values[Anum_table_statistics_stamp - 1] = CStringGetTextDatum(row->stamp);
	values[Anum_table_statistics_pages - 1] = Float8GetDatum(row->pages);
	values[Anum_table_statistics_tuples - 1] = Float8GetDatum(row->tuples);
	values[Anum_table_statistics_bytes - 1] = Int64GetDatum(row->bytes);
	values[Anum_table_statistics_columns - 1] = JsonbPGetDatum(row->columns);
	values[Anum_table_statistics_collected - 1] = TimestampTzGetDatum(row->collected);
	tuple = heap_form_tuple(desc, values, nulls);
	if (old != NULL)
		CatalogTupleUpdate(relation, &old->t_self, tuple);
	else
		CatalogTupleInsert(relation, tuple);
	table_close(relation, NoLock);
	CommandCounterIncrement();
	if (OidIsValid(relid) && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		CacheInvalidateRelcacheByRelid(relid);
}

void
tessera_statistics_delete(const pg_uuid_t *table_id, int32 node_id)
{
	Relation	relation = tessera_catalog_open(TESSERA_TABLE_STATISTICS, RowExclusiveLock);
	HeapTuple	old = find(relation, table_id, node_id);

	if (old != NULL)
		CatalogTupleDelete(relation, &old->t_self);
	table_close(relation, NoLock);
	CommandCounterIncrement();
}
