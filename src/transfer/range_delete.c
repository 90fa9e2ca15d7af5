/*
 * range_delete.c
 *	  Deletes the rows of a range from one table, a batch at a time, with no trigger or foreign key firing.
 *
 * Rows of a range to be deleted are not owned here: no statement changes them. A row that someone has changed or deleted all the same is left
 * to the next batch, whose snapshot sees what became of it.
 *
 * In the caller's transaction; RowExclusive on the table to its end. The records are marked so that consumers of logical decoding that filter by
 * origin skip them. A crash undoes the batch.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "transfer/local_origin.h"
#include "transfer/range_scan.h"
#include "transfer/transfer.h"

/* True if the row is gone by this transaction. */
static bool
delete_row(Relation relation, TupleTableSlot *slot, Snapshot snapshot)
{
	TM_FailureData failure;
	TM_Result	result = table_tuple_delete(relation, &slot->tts_tid, GetCurrentCommandId(true), snapshot, InvalidSnapshot, true /* wait */ ,
											&failure, false);

	switch (result)
	{
		case TM_Ok:
			return true;
		case TM_Updated:
		case TM_Deleted:
		case TM_SelfModified:
			return false;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg_internal("unexpected result %d of deleting a row of \"%s\"", result, RelationGetRelationName(relation))));
	}
	return false;
}

int64
tessera_delete_range_rows(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyRange *range,
						  int64 batch)
{
	MemoryContext mcxt = AllocSetContextCreate(CurrentMemoryContext, "tessera range delete", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	RepOriginId origin = tessera_local_origin_begin();
	int64		rows = 0;

	PG_TRY();
	{
		TupleTableSlot *slot = table_slot_create(relation, NULL);
		TesseraRangeScan *scan = tessera_range_scan_begin(relation, ks, keys, 1, range, snapshot);

		PushActiveSnapshot(snapshot);
		while (rows < batch && tessera_range_scan_next(scan, slot))
			rows += delete_row(relation, slot, snapshot);
		PopActiveSnapshot();
		tessera_range_scan_end(scan);
		ExecDropSingleTupleTableSlot(slot);
	}
	PG_FINALLY();
	{
		tessera_local_origin_end(origin);
	}
	PG_END_TRY();
	UnregisterSnapshot(snapshot);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(mcxt);
	if (rows > 0)
		CommandCounterIncrement();
	return rows;
}

int64
tessera_delete_range_batch(const TesseraRouting *routing, const TesseraGroup *group, Oid relid, const TesseraKeyRange *range,
						   int64 batch)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);
	Relation	relation;
	int64		rows;

	if (table == NULL || table->placement_group != group->index)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relation %u is not a table of the group whose range is to be deleted", relid)));
	relation = table_open(relid, RowExclusiveLock);
	rows = tessera_delete_range_rows(relation, tessera_group_keyspace(routing, group), table->keys, range, batch);
	table_close(relation, NoLock);
	return rows;
}
