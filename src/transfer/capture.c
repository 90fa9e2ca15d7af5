/*
 * capture.c
 *	  The donor's change capture: a logical slot decoded inside the donor's own worker, changes of the moving ranges kept in commit order.
 *
 * Phases: create the slot, find its start point, begin the clone's transaction under the slot's snapshot (capture_start.c); decode, batch by batch,
 * until the end (here). What the slot's changes become:
 *	  - another table: skipped before anything of the row is looked at
 *	  - key outside the ranges before and after: skipped
 *	  - key leaves the ranges: a delete; key enters them: an insert of the whole row
 *	  - columns of unchanged TOAST are not in WAL: an update marks them; an insert takes them from the row as it is now, found by identity; is it
 *		gone, its delete comes later and the insert is skipped (doc/design.md#unchanged-toast). Whatever is newer than the change is overwritten by
 *		the rest of the stream.
 *	  - identity changes inside the ranges, be it from one to another: a delete and an insert. The row may be one that was skipped; it was skipped
 *		because its identity was no longer there, and what took it away, delete or new identity, is further on in the stream: so each row comes in
 *		under its last identity at the latest.
 *
 * Decoding cannot stop inside a transaction. What it makes is kept as items (payloads, and rows that wait for their TOAST), in memory up to
 * tessera.migration_memory, then in a temporary file, and handed out before decoding goes on. What core collects of transactions that have not ended
 * is bounded by the same setting (migration_process.c).
 *
 * The capture owns a context below TopMemoryContext. The slot stays acquired from creation to end, so that it cannot be dropped; it survives a crash
 * of the server, and recovery drops it by name. Decoding runs outside of transactions: core starts one for each it replays. Locks: none kept.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"
#include "replication/slot.h"
#include "storage/buffile.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/version_compat.h"
#include "transaction/background.h"
#include "transfer/capture_private.h"
#include "transfer/lock_holders.h"
#include "transfer/range_scan.h"
#include "transfer/row_codec.h"
#include "transfer/verify.h"

/* Payload items are closed at this size, whatever the caller's batch is. */
#define ITEM_BYTES (4 * 1024 * 1024)

/* A call returns after about so many milliseconds even if it has found nothing: the worker has a peer that must hear from it. */
#define SLICE_MS 500

typedef enum ItemKind
{
	ITEM_PAYLOAD,				/* a whole payload */
	ITEM_ROW					/* a row that entered the ranges, some of its columns still to be fetched: a flat heap tuple */
} ItemKind;

typedef struct CapturedItem
{
	ItemKind	kind;
	int			table;
	TransactionId xid;			/* ITEM_ROW: whose change it is */
	int64		changes;
	Size		size;
	char	   *data;
} CapturedItem;

PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

int			tessera_migration_memory;

/* The plugin's callbacks find their capture here: core makes the context, and calls startup, before anyone could tell it. */
TesseraCapture *tessera_current_capture = NULL;


/* ---- items ---- */

static void
item_put(TesseraCapture *capture, CapturedItem *item)
{
	tessera_background_note_memory();
	if (capture->spool == NULL && capture->memory_bytes + item->size <= (Size) tessera_migration_memory * 1024)
	{
		MemoryContext old = MemoryContextSwitchTo(capture->items_context);
		CapturedItem	   *kept = palloc(sizeof(CapturedItem));

		*kept = *item;
		kept->data = palloc(Max(item->size, 1));
		memcpy(kept->data, item->data, item->size);
		capture->items = lappend(capture->items, kept);
		MemoryContextSwitchTo(old);
		capture->memory_bytes += item->size;
		return;
	}
	if (capture->spool == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(capture->mcxt);

		capture->spool = BufFileCreateTemp(true);
		MemoryContextSwitchTo(old);
		capture->spool_written = capture->spool_read = 0;
	}
	BufFileWrite(capture->spool, item, sizeof(CapturedItem));
	BufFileWrite(capture->spool, item->data, item->size);
	capture->spool_written++;
}

static void
spool_read(TesseraCapture *capture, void *data, Size size)
{
	if (BufFileRead(capture->spool, data, size) != size)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read the temporary file of a migration's changes: %m")));
}

/* The oldest item, in the current context; false if there is none. What lies in memory is older than what lies in the file. */
static bool
item_get(TesseraCapture *capture, CapturedItem *item)
{
	if (capture->items != NIL)
	{
		*item = *(CapturedItem *) list_nth(capture->items, capture->items_read++);
		if (capture->items_read == list_length(capture->items))
			capture->items = NIL;	/* its memory goes when the last item has been handed out */
		return true;
	}
	if (capture->spool == NULL)
		return false;
	if (capture->spool_read == 0 && BufFileSeek(capture->spool, 0, 0, SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not rewind the temporary file of a migration's changes: %m")));
	spool_read(capture, item, sizeof(CapturedItem));
	item->data = MemoryContextAllocHuge(CurrentMemoryContext, Max(item->size, 1));
	spool_read(capture, item->data, item->size);
	if (++capture->spool_read == capture->spool_written)
	{
		BufFileClose(capture->spool);
		capture->spool = NULL;
	}
	return true;
}

static bool
items_left(TesseraCapture *capture)
{
	return capture->items != NIL || capture->spool != NULL;
}

static void
items_forget(TesseraCapture *capture)
{
	MemoryContextReset(capture->items_context);
	capture->items = NIL;
	capture->items_read = 0;
	capture->memory_bytes = 0;
}

/* Closes the payload being written: the next record begins a new one, with descriptions of its own. */
static void
close_payload(TesseraCapture *capture)
{
	CapturedItem		item = {ITEM_PAYLOAD};

	if (capture->out.len > 0)
	{
		item.changes = capture->out_changes;
		item.size = capture->out.len;
		item.data = capture->out.data;
		item_put(capture, &item);
	}
	resetStringInfo(&capture->out);
	capture->out_changes = 0;
	memset(capture->described, 0, capture->moving->ntables * sizeof(bool));
}


/* ---- callbacks: changes to records ---- */

/* The row's columns, and which of them WAL has. */
typedef struct DecodedRow
{
	Datum	   *values;
	bool	   *nulls;
	bool	   *given;
	bool		complete;
} DecodedRow;

static void
decode_tuple(HeapTuple tuple, TupleDesc desc, DecodedRow *row)
{
	row->values = palloc(Max(desc->natts, 1) * sizeof(Datum));
	row->nulls = palloc(Max(desc->natts, 1) * sizeof(bool));
	row->given = palloc(Max(desc->natts, 1) * sizeof(bool));
	row->complete = true;
	heap_deform_tuple(tuple, desc, row->values, row->nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		row->given[i] = att->attisdropped || row->nulls[i] || att->attlen != -1 ||
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(row->values[i]));
		if (!row->given[i])
			row->complete = false;
	}
}

/* What the new row lacks, from the old one: WAL has identity columns there whole. */
static void
complete_row(DecodedRow *row, const DecodedRow *old, int natts)
{
	row->complete = true;
	for (int i = 0; i < natts; i++)
	{
		if (!row->given[i] && old != NULL && !old->nulls[i] && old->given[i])
		{
			row->values[i] = old->values[i];
			row->given[i] = true;
		}
		row->complete &= row->given[i];
	}
}

static bool
row_in_ranges(const TesseraMovingRanges *moving, int table, Relation relation, const DecodedRow *row)
{
	const TesseraMovingGroup *group = tessera_moving_group(moving, table);
	Datum		key[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;

	for (int i = 0; i < group->ks->ncolumns; i++)
	{
		int			at = moving->tables[table].keys[i] - 1;

		if (row->nulls[at] || !row->given[at])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a change of table \"%s\" does not tell the row's shard key", RelationGetRelationName(relation)),
					 errhint("Its replica identity must contain the shard key.")));
		key[i] = row->values[at];
	}
	tessera_key_position(group->ks, key, &position);
	return tessera_key_ranges_hold(group->ks, group->nranges, group->ranges, &position);
}

/* Begins a record; describes the table if the payload has not yet, or if it has changed. */
static TesseraRowWriter *
begin_record(TesseraCapture *capture, int table, TupleDesc desc, char type)
{
	TesseraRowWriter *writer = capture->writers[table];

	if (capture->out.len >= capture->item_bytes)
		close_payload(capture);
	if (writer != NULL && !tessera_row_writer_fits(writer, desc))
	{
		tessera_row_writer_free(writer);
		writer = NULL;
	}
	if (writer == NULL)
	{
		writer = capture->writers[table] = tessera_row_writer_create(capture->mcxt, desc, table,
													capture->moving->tables[table].generated,
													capture->moving->tables[table].xml_as_text);
		capture->described[table] = false;
	}
	if (!capture->described[table])
		tessera_row_describe(writer, &capture->out);
	capture->described[table] = true;
	tessera_record_begin(writer, &capture->out, type);
	capture->out_changes++;
	return writer;
}

static void
write_old(TesseraCapture *capture, TesseraRowWriter *writer, Relation relation, const DecodedRow *old)
{
	TupleDesc	desc = RelationGetDescr(relation);
	bool	   *given;

	if (old == NULL)
	{
		appendStringInfoChar(&capture->out, TESSERA_OLD_NONE);
		return;
	}
	if (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
	{
		appendStringInfoChar(&capture->out, TESSERA_OLD_ROW);
		tessera_row_write(writer, &capture->out, old->values, old->nulls, old->given);
		return;
	}
	/* Identity columns are not null; what is null is not in WAL. */
	given = palloc(Max(desc->natts, 1) * sizeof(bool));
	for (int i = 0; i < desc->natts; i++)
		given[i] = !old->nulls[i] && old->given[i];
	appendStringInfoChar(&capture->out, TESSERA_OLD_IDENTITY);
	tessera_row_write(writer, &capture->out, old->values, old->nulls, given);
}

/* A row of the ranges was changed: its key, for verification. */
static void
note_key(TesseraCapture *capture, int table, Relation relation, const DecodedRow *row)
{
	if (capture->verify != NULL)
		tessera_verify_note(capture->verify, table, RelationGetDescr(relation), row->values, row->nulls, row->given, capture->xid);
}

static void
emit_delete(TesseraCapture *capture, int table, Relation relation, const DecodedRow *old)
{
	TesseraRowWriter *writer = begin_record(capture, table, RelationGetDescr(relation), TESSERA_RECORD_DELETE);

	note_key(capture, table, relation, old);
	write_old(capture, writer, relation, old);
}

static void
emit_update(TesseraCapture *capture, int table, Relation relation, const DecodedRow *old, const DecodedRow *new)
{
	TesseraRowWriter *writer = begin_record(capture, table, RelationGetDescr(relation), TESSERA_RECORD_UPDATE);

	write_old(capture, writer, relation, old);
	tessera_row_write(writer, &capture->out, new->values, new->nulls, new->given);
}

/* A row that is new in the ranges. Is it incomplete, it waits until decoding is done: then the table can be read. */
static void
emit_insert(TesseraCapture *capture, int table, Relation relation, DecodedRow *new)
{
	TupleDesc	desc = RelationGetDescr(relation);
	CapturedItem		item = {ITEM_ROW};
	HeapTuple	flat;

	note_key(capture, table, relation, new);
	if (new->complete)
	{
		tessera_row_write(begin_record(capture, table, desc, TESSERA_RECORD_INSERT), &capture->out, new->values, new->nulls, NULL);
		return;
	}
	for (int i = 0; i < desc->natts; i++)
	{
		if (!new->nulls[i] && new->given[i] && TupleDescAttr(desc, i)->attlen == -1 &&
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(new->values[i])))
			new->values[i] = PointerGetDatum(PG_DETOAST_DATUM(new->values[i]));
	}
	flat = heap_form_tuple(desc, new->values, new->nulls);
	close_payload(capture);
	item.table = table;
	item.xid = capture->xid;
	item.changes = 1;
	item.size = flat->t_len;
	item.data = (char *) flat->t_data;
	item_put(capture, &item);
}

static void
capture_update(TesseraCapture *capture, int table, Relation relation, HeapTuple old_tuple, HeapTuple new_tuple)
{
	TupleDesc	desc = RelationGetDescr(relation);
	DecodedRow	old_row,
				new,
				full;
	DecodedRow *old = NULL;
	bool		was,
				is;

	if (old_tuple != NULL)
	{
		decode_tuple(old_tuple, desc, &old_row);
		old = &old_row;
	}
	decode_tuple(new_tuple, desc, &new);
	full = new;
	full.given = palloc(Max(desc->natts, 1) * sizeof(bool));
	memcpy(full.given, new.given, desc->natts * sizeof(bool));
	full.values = palloc(Max(desc->natts, 1) * sizeof(Datum));
	memcpy(full.values, new.values, desc->natts * sizeof(Datum));
	complete_row(&full, old, desc->natts);

	/* Without an old row the identity, and with it the key, is unchanged. */
	is = row_in_ranges(capture->moving, table, relation, &full);
	was = old != NULL ? row_in_ranges(capture->moving, table, relation, old) : is;
	if (was && is && (old == NULL || relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL))
	{
		emit_update(capture, table, relation, old, &new);
		note_key(capture, table, relation, &full);
		if (old != NULL)
			note_key(capture, table, relation, old);
	}
	else if (was && is)
	{
		/*
		 * A new identity. The recipient may lack the row (doc/design.md#unchanged-toast), and an update would pass it by for ever: hence the whole
		 * row.
		 */
		emit_delete(capture, table, relation, old);
		emit_insert(capture, table, relation, &full);
	}
	else if (was)
		emit_delete(capture, table, relation, old);
	else if (is)
		emit_insert(capture, table, relation, &full);
}

static void
no_identity(Relation relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("a change of table \"%s\" does not tell which row it changed", RelationGetRelationName(relation)),
			 errhint("Give the table a primary key, or ALTER TABLE ... REPLICA IDENTITY, and start the migration again.")));
}

/* Index of a table among those that move, or -1. */
static int
table_index(const TesseraCapture *capture, Oid relid)
{
	int			low = 0;
	int			high = capture->moving->ntables;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (capture->tables[middle].relid < relid)
			low = middle + 1;
		else
			high = middle;
	}
	return low < capture->moving->ntables && capture->tables[low].relid == relid ? capture->tables[low].table : -1;
}

static void
capture_change(TesseraCapture *capture, int table, Relation relation, ReorderBufferChange *change)
{
	TupleDesc	desc = RelationGetDescr(relation);
	HeapTuple	old_tuple = tessera_change_tuple(change->data.tp.oldtuple);
	HeapTuple	new_tuple = tessera_change_tuple(change->data.tp.newtuple);
	DecodedRow	row;

	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			if (new_tuple == NULL)
				no_identity(relation);
			decode_tuple(new_tuple, desc, &row);
			if (row_in_ranges(capture->moving, table, relation, &row))
				emit_insert(capture, table, relation, &row);
			break;
		case REORDER_BUFFER_CHANGE_UPDATE:
			if (new_tuple == NULL ||
				(old_tuple == NULL && relation->rd_rel->relreplident != REPLICA_IDENTITY_FULL && !OidIsValid(RelationGetReplicaIndex(relation))))
				no_identity(relation);
			capture_update(capture, table, relation, old_tuple, new_tuple);
			break;
		case REORDER_BUFFER_CHANGE_DELETE:
			if (old_tuple == NULL)
				no_identity(relation);
			decode_tuple(old_tuple, desc, &row);
			if (row_in_ranges(capture->moving, table, relation, &row))
				emit_delete(capture, table, relation, &row);
			break;
		default:
			break;
	}
}

static void
change_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, ReorderBufferChange *change)
{
	TesseraCapture *capture = ctx->output_plugin_private;
	int			table = table_index(capture, RelationGetRelid(relation));
	MemoryContext old;

	if (table < 0)
		return;
	if (!capture->settings_pushed)
	{
		/* In core's transaction, which ends them if it fails. */
		capture->settings_level = tessera_codec_push_settings();
		capture->settings_pushed = true;
	}
	capture->xid = txn->xid;
	old = MemoryContextSwitchTo(capture->change_context);
	capture_change(capture, table, relation, change);
	MemoryContextSwitchTo(old);
	MemoryContextReset(capture->change_context);
}

static void
truncate_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, int nrelations, Relation relations[], ReorderBufferChange *change)
{
	TesseraCapture *capture = ctx->output_plugin_private;

	for (int i = 0; i < nrelations; i++)
	{
		if (table_index(capture, RelationGetRelid(relations[i])) >= 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" was truncated during its migration", RelationGetRelationName(relations[i])),
					 errhint("Start the migration again.")));
	}
}

static void
begin_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	TesseraCapture *capture = ctx->output_plugin_private;

	capture->settings_pushed = false;
}

static void
commit_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr commit_lsn)
{
	TesseraCapture *capture = ctx->output_plugin_private;

	if (capture->settings_pushed)
		tessera_codec_pop_settings(capture->settings_level);
	capture->settings_pushed = false;
}

static void
startup_cb(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init)
{
	if (tessera_current_capture == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("output plugin \"tessera\" serves migrations only")));
	options->output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;
	options->receive_rewrites = false;
	ctx->output_plugin_private = tessera_current_capture;
}

void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	callbacks->startup_cb = startup_cb;
	callbacks->begin_cb = begin_cb;
	callbacks->change_cb = change_cb;
	callbacks->truncate_cb = truncate_cb;
	callbacks->commit_cb = commit_cb;
}


/* ---- rows that entered the ranges without their TOAST ---- */

/* Fills in what the row lacks from the row that has its identity now; false if that is gone. */
static bool
fetch_missing(Relation relation, DecodedRow *row)
{
	TupleDesc	desc = RelationGetDescr(relation);
	Oid			identity = RelationGetReplicaIndex(relation);
	Relation	index;
	IndexScanDesc scan;
	ScanKeyData keys[INDEX_MAX_KEYS];
	TupleTableSlot *slot;
	bool		found;

	if (!OidIsValid(identity))
		no_identity(relation);
	index = index_open(identity, AccessShareLock);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		tessera_index_scankey(&keys[i], index, i, BTEqualStrategyNumber, row->values[index->rd_index->indkey.values[i] - 1]);
	slot = table_slot_create(relation, NULL);
	scan = tessera_index_scan(relation, index, GetActiveSnapshot(), index->rd_index->indnkeyatts);
	index_rescan(scan, keys, index->rd_index->indnkeyatts, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
	{
		slot_getallattrs(slot);
		for (int i = 0; i < desc->natts; i++)
		{
			if (row->given[i])
				continue;
			row->nulls[i] = slot->tts_isnull[i];
			/* Fetched now: the slot's page goes with the slot, its TOAST with the snapshot. */
			if (!row->nulls[i])
				row->values[i] = PointerGetDatum(PG_DETOAST_DATUM_COPY(slot->tts_values[i]));
			row->given[i] = true;
		}
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	return found;
}

/*
 * A commit is decoded as soon as it is flushed; others see it a moment later, with a synchronous standby perhaps much later. A row that was fetched
 * before that would be missed under its new identity.
 */
static void
wait_until_visible(TesseraCapture *capture, TransactionId xid)
{
	TimestampTz began = GetCurrentTimestamp();

	while (TransactionIdIsInProgress(xid))
	{
		if (tessera_migration_lock_timeout > 0 && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), tessera_migration_lock_timeout))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("a transaction that has committed did not become visible in time"),
					 errhint("Look at the server's synchronous standbys (pg_stat_replication).")));
		if (capture->waiting != NULL)
			capture->waiting("a committed transaction to become visible", capture->waiting_arg);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Makes a payload of an ITEM_ROW. Returns its changes. */
static int64
resolve_row(TesseraCapture *capture, const CapturedItem *item, StringInfo payload)
{
	MemoryContext old = CurrentMemoryContext;
	HeapTupleData tuple = {0};
	Relation	relation;
	TesseraRowWriter *writer;
	DecodedRow	row;
	int64		changes = 0;
	int			nestlevel;

	wait_until_visible(capture, item->xid);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	nestlevel = tessera_codec_push_settings();
	relation = table_open(capture->moving->tables[item->table].relid, AccessShareLock);
	writer = capture->writers[item->table];
	if (writer == NULL || !tessera_row_writer_fits(writer, RelationGetDescr(relation)))
	{
		if (writer != NULL)
			tessera_row_writer_free(writer);
		writer = capture->writers[item->table] = tessera_row_writer_create(capture->mcxt, RelationGetDescr(relation), item->table,
													capture->moving->tables[item->table].generated,
													capture->moving->tables[item->table].xml_as_text);
	}
	tuple.t_len = item->size;
	tuple.t_data = (HeapTupleHeader) item->data;
	if (HeapTupleHeaderGetNatts(tuple.t_data) != RelationGetDescr(relation)->natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" was changed during its migration", RelationGetRelationName(relation)),
				 errhint("Start the migration again.")));
	decode_tuple(&tuple, RelationGetDescr(relation), &row);
	/* what is fetched may be newer than what a snapshot of before has seen */
	capture->xid = item->xid;
	note_key(capture, item->table, relation, &row);
	if (fetch_missing(relation, &row))
	{
		tessera_row_describe(writer, payload);
		tessera_record_begin(writer, payload, TESSERA_RECORD_INSERT);
		tessera_row_write(writer, payload, row.values, row.nulls, NULL);
		changes = 1;
	}
	table_close(relation, AccessShareLock);
	tessera_codec_pop_settings(nestlevel);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return changes;
}


/* ---- interface ---- */

/* Hands out items until the payload has enough. Each item's payload describes its tables, so they can follow each other. */
static int64
hand_out(TesseraCapture *capture, StringInfo payload, Size bytes)
{
	MemoryContext old = MemoryContextSwitchTo(capture->item_context);
	int64		changes = 0;

	while (payload->len < bytes && items_left(capture))
	{
		CapturedItem		item;

		if (!item_get(capture, &item))
			break;
		if (item.kind == ITEM_ROW)
			changes += resolve_row(capture, &item, payload);
		else
		{
			appendBinaryStringInfo(payload, item.data, (int) item.size);
			changes += item.changes;
		}
		MemoryContextSwitchTo(capture->item_context);
		MemoryContextReset(capture->item_context);
	}
	if (!items_left(capture))
		items_forget(capture);
	MemoryContextSwitchTo(old);
	return changes;
}

static void
start_decoding(TesseraCapture *capture)
{
	capture->ctx = tessera_capture_decoding_context(capture, false);
	XLogBeginRead(capture->ctx->reader, MyReplicationSlot->data.restart_lsn);
	InvalidateSystemCaches();
}

/* Decodes one record; false if there is none before the end of what is flushed. */
static bool
decode_record(TesseraCapture *capture)
{
	MemoryContext old = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *error = NULL;
	XLogRecord *record;

	record = XLogReadRecord(capture->ctx->reader, &error);
	if (record == NULL && error != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read WAL for a migration: %s", error)));
	if (record == NULL)
		return false;
	LogicalDecodingProcessRecord(capture->ctx, capture->ctx->reader);
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(old);
	return true;
}

int64
tessera_capture_next(TesseraCapture *capture, StringInfo payload, Size bytes, XLogRecPtr upto, XLogRecPtr *lsn, bool *caught_up)
{
	int64		changes;
	TimestampTz began = GetCurrentTimestamp();
	int			records = 0;
	bool		end = false;
	bool		dry = false;

	if (IsTransactionState())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("changes cannot be captured inside a transaction")));
	tessera_capture_check(capture);
	if (capture->ctx == NULL)
		start_decoding(capture);
	capture->item_bytes = Min(Max(bytes, 8192), ITEM_BYTES);
	changes = hand_out(capture, payload, bytes);
	while (!items_left(capture) && payload->len < bytes && !end)
	{
		if (capture->ctx->reader->EndRecPtr >= upto)
			end = true;
		else if (!decode_record(capture))
		{
			dry = true;
			break;
		}
		if (capture->out.len > 0)
			close_payload(capture);
		changes += hand_out(capture, payload, bytes);
		CHECK_FOR_INTERRUPTS();
		if (++records % 256 == 0 && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), SLICE_MS))
			break;
	}
	/* A position counts only when nothing before it waits to be handed out. Between the last record and upto may lie a page's header. */
	if (!items_left(capture))
	{
		capture->position = Max(capture->position, capture->ctx->reader->EndRecPtr);
		if (dry)
			end = GetFlushRecPtr(NULL) >= upto;
		if (end)
			capture->position = Max(capture->position, upto);
	}
	*lsn = capture->position;
	*caught_up = end && !items_left(capture);
	return changes;
}

void
tessera_capture_note_keys(TesseraCapture *capture, TesseraVerify *verify)
{
	capture->verify = verify;
}

void
tessera_capture_confirm(TesseraCapture *capture, XLogRecPtr lsn)
{
	tessera_capture_check(capture);
	if (lsn <= MyReplicationSlot->data.confirmed_flush)
		return;
	LogicalConfirmReceivedLocation(lsn);
	ReplicationSlotMarkDirty();
}

uint64
tessera_capture_backlog(TesseraCapture *capture)
{
	XLogRecPtr	insert = GetXLogInsertRecPtr();

	return insert > capture->position ? insert - capture->position : 0;
}
