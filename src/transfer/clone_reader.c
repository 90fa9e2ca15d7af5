/*
 * clone_reader.c
 *	  The donor's clone: the rows of the moving ranges, table by table, as the slot's snapshot sees them.
 *
 * All tables are locked and checked when the clone begins, so that none is rewritten while it waits its turn; then one after the other is scanned.
 * The reader lives in one transaction at REPEATABLE READ, which the caller keeps open from batch to batch.
 *
 * The reader's context holds everything, below the caller's; a row's values live in a context emptied for each row. Locks: AccessShare on the tables,
 * to the end of the transaction. A crash leaves nothing.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "transfer/range_scan.h"
#include "transfer/row_codec.h"
#include "transfer/transfer.h"

struct TesseraCloneReader
{
	MemoryContext mcxt;
	MemoryContext row_context;
	TesseraMovingRanges *moving;
	Snapshot	snapshot;		/* registered */
	Relation   *relations;
	int			table;			/* being read */
	TesseraRangeScan *scan;		/* NULL: not begun */
	TupleTableSlot *slot;
	TesseraRowWriter *writer;
	TesseraDigest *sums;		/* the caller's, by table; NULL: not wanted */
};


/* A rewritten table has a new file, in which the snapshot sees nothing (doc/design.md#rewritten-tables). */
static void
check_file(Relation relation, Snapshot snapshot)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		same = false;

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(RelationGetRelid(relation)));
	scan = systable_beginscan(catalog, ClassOidIndexId, true, snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		same = ((Form_pg_class) GETSTRUCT(tuple))->relfilenode == relation->rd_rel->relfilenode;
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was created or rewritten while its migration began", RelationGetRelationName(relation)),
				 errhint("Start the migration again.")));
}

TesseraCloneReader *
tessera_clone_begin(TesseraMovingRanges *moving, TesseraDigest *sums)
{
	MemoryContext mcxt = AllocSetContextCreate(CurrentMemoryContext, "tessera clone", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	TesseraCloneReader *reader = palloc0(sizeof(TesseraCloneReader));

	if (!IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a clone needs a transaction at isolation level REPEATABLE READ")));
	reader->mcxt = mcxt;
	reader->moving = moving;
	reader->sums = sums;
	reader->row_context = AllocSetContextCreate(mcxt, "tessera clone row", ALLOCSET_DEFAULT_SIZES);
	reader->snapshot = RegisterSnapshot(GetTransactionSnapshot());
	reader->relations = palloc(Max(moving->ntables, 1) * sizeof(Relation));
	for (int i = 0; i < moving->ntables; i++)
	{
		reader->relations[i] = table_open(moving->tables[i].relid, AccessShareLock);
		check_file(reader->relations[i], reader->snapshot);
	}
	MemoryContextSwitchTo(old);
	return reader;
}

static void
begin_table(TesseraCloneReader *reader)
{
	const TesseraMovingTable *table = &reader->moving->tables[reader->table];
	const TesseraMovingGroup *group = tessera_moving_group(reader->moving, reader->table);
	Relation	relation = reader->relations[reader->table];
	MemoryContext old = MemoryContextSwitchTo(reader->mcxt);

	reader->writer = tessera_row_writer_create(reader->mcxt, RelationGetDescr(relation), reader->table, table->generated, table->xml_as_text);
	reader->slot = table_slot_create(relation, NULL);
	reader->scan = tessera_range_scan_begin(relation, group->ks, table->keys, group->nranges, group->ranges, reader->snapshot);
	MemoryContextSwitchTo(old);
}

static void
end_table(TesseraCloneReader *reader)
{
	tessera_range_scan_end(reader->scan);
	ExecDropSingleTupleTableSlot(reader->slot);
	tessera_row_writer_free(reader->writer);
	reader->scan = NULL;
}

/* Rows of the current table, to the end of the table or until there are enough bytes. */
static int64
read_rows(TesseraCloneReader *reader, StringInfo payload, Size bytes, bool *end)
{
	int64		rows = 0;

	*end = false;
	while (rows == 0 || payload->len < bytes)
	{
		MemoryContext old;
		int			start;

		if (!tessera_range_scan_next(reader->scan, reader->slot))
		{
			*end = true;
			break;
		}
		if (rows++ == 0)
			tessera_row_describe(reader->writer, payload);
		slot_getallattrs(reader->slot);
		old = MemoryContextSwitchTo(reader->row_context);
		tessera_record_begin(reader->writer, payload, TESSERA_RECORD_CLONE);
		start = payload->len;
		tessera_row_write(reader->writer, payload, reader->slot->tts_values, reader->slot->tts_isnull, NULL);
		if (reader->sums != NULL)
			tessera_digest_add(&reader->sums[reader->table], payload->data + start, payload->len - start);
		MemoryContextSwitchTo(old);
		MemoryContextReset(reader->row_context);
	}
	return rows;
}

int64
tessera_clone_next(TesseraCloneReader *reader, StringInfo payload, Size bytes, int *table)
{
	int			nestlevel = tessera_codec_push_settings();
	int64		rows = 0;

	PushActiveSnapshot(reader->snapshot);
	while (rows == 0 && reader->table < reader->moving->ntables)
	{
		bool		end;

		if (reader->scan == NULL)
			begin_table(reader);
		*table = reader->table;
		rows = read_rows(reader, payload, bytes, &end);
		if (end)
		{
			end_table(reader);
			reader->table++;
		}
	}
	PopActiveSnapshot();
	tessera_codec_pop_settings(nestlevel);
	return rows;
}

void
tessera_clone_end(TesseraCloneReader *reader)
{
	if (reader->scan != NULL)
		end_table(reader);
	for (int i = 0; i < reader->moving->ntables; i++)
		table_close(reader->relations[i], NoLock);
	UnregisterSnapshot(reader->snapshot);
	MemoryContextDelete(reader->mcxt);
}
