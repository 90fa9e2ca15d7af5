/*
 * applier.c
 *	  The recipient's side of a migration's data: payloads of the clone and of the change stream into the local tables.
 *
 * A clone's rows go in as COPY's do: many at a time into the heap, then into the indexes, with NOT NULL checked.
 * Changes go one by one, found by replica identity. No trigger, rule, foreign key or CHECK fires: the donor's have (rows/stored_value.h).
 *
 * Generated columns come as they are stored. The code that tables carry (index expressions; generated columns, from a donor of before) runs as the
 * table's owner in a restricted security context, under the fixed settings of row_codec.h: a user's function must not run with the worker's rights.
 *
 * A payload is applied by a run: tables opened RowExclusive when first met, closed at its end (locks stay to the end of the transaction); all memory
 * in a context below the caller's. Within a run a command is one change, so that a row may change many times. A crash undoes the caller's
 * transaction.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "common/acting_as.h"
#include "common/version_compat.h"
#include "load/written_rows.h"
#include "rows/stored_value.h"
#include "transfer/local_origin.h"
#include "transfer/range_scan.h"
#include "transfer/row_codec.h"
#include "transfer/rows_by_key.h"
#include "transfer/transfer.h"

#define MULTI_INSERT_ROWS 1000
#define MULTI_INSERT_BYTES (512 * 1024)

struct TesseraApplier
{
	TesseraMovingRanges *moving;
};

/* A table that the payload has described. */
typedef struct ApplyTable
{
	int			table;
	Relation	relation;
	EState	   *estate;
	ResultRelInfo *result;
	EPQState	epq;
	TesseraRowReader *reader;
	TesseraWireValue *wire;		/* room for a row */
	TesseraWireValue *old_wire;
	/* clone */
	BulkInsertState bulk;
	TupleTableSlot **slots;		/* of multi-insert, made when needed */
	int			nslots;
	int			nused;
	Size		bytes;
	/* changes */
	Oid			identity;		/* index; InvalidOid: rows are found by all their columns */
	Bitmapset  *search_columns; /* of the identity, else of the shard key */
	TupleTableSlot *search;
	TupleTableSlot *local;
	TupleTableSlot *remote;
	TesseraRowWriter *writer;	/* to compare rows, if there is no identity */
	StringInfoData encoded;
} ApplyTable;

typedef struct ApplyRun
{
	TesseraMovingRanges *moving;
	TesseraPayloadCursor cursor;
	ApplyTable **tables;		/* by table index; NULL: not described yet */
	MemoryContext mcxt;
	TesseraActing before;		/* who has called: the worker */
	Oid			owner;			/* whose code may run */
	int			nestlevel;		/* of settings */
	int64		count;
} ApplyRun;

typedef void (*ApplyRecord) (ApplyRun *run, ApplyTable *table, char type);


/* ---- tables of a run ---- */

/* Code of the table that is written next may run: its indexes', its generated columns'. Owners do not meet each other's settings. */
static void
become_owner(ApplyRun *run, Relation relation)
{
	Oid			owner = relation->rd_rel->relowner;

	if (OidIsValid(run->owner) && run->owner != owner)
	{
		tessera_codec_pop_settings(run->nestlevel);
		run->nestlevel = tessera_codec_push_settings();
	}
	run->owner = owner;
	tessera_act_end(&run->before);
	tessera_act_as_owner(&run->before, owner);
}

/* Executor state of a table that is written without a plan; every column counts as changed. */
static void
open_result(ApplyTable *table)
{
	Relation	relation = table->relation;
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *permissions = NIL;
	TesseraPermissions *written;

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(relation);
	rte->relkind = relation->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	written = tessera_add_permissions(&permissions, rte);
	for (int i = 1; i <= RelationGetNumberOfAttributes(relation); i++)
	{
		written->insertedCols = bms_add_member(written->insertedCols, i - FirstLowInvalidHeapAttributeNumber);
		written->updatedCols = bms_add_member(written->updatedCols, i - FirstLowInvalidHeapAttributeNumber);
	}
	table->estate = CreateExecutorState();
	tessera_init_range_table(table->estate, rte, permissions);
	table->estate->es_output_cid = GetCurrentCommandId(true);
	table->estate->es_snapshot = GetActiveSnapshot();

	table->result = makeNode(ResultRelInfo);
	InitResultRelInfo(table->result, relation, 1, NULL, 0);
	table->result->ri_TrigDesc = NULL;
	table->estate->es_opened_result_relations = list_make1(table->result);
	tessera_stored_rows_only(table->result);
	ExecOpenIndices(table->result, false);
	tessera_init_epq(&table->epq, table->estate);
}

/* How rows are found. */
static void
open_identity(ApplyRun *run, ApplyTable *table)
{
	table->identity = tessera_row_identity(table->relation, run->moving, table->table, &table->search_columns);
}

static ApplyTable *
open_table(ApplyRun *run, int index)
{
	ApplyTable *table = palloc0(sizeof(ApplyTable));

	table->table = index;
	table->relation = table_open(run->moving->tables[index].relid, RowExclusiveLock);
	if (table->relation->rd_rel->relkind != RELKIND_RELATION && table->relation->rd_rel->relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(table->relation))));
	/* its indexes' expressions are simplified when they are opened: constant calls of the owner's functions in them run */
	become_owner(run, table->relation);
	open_result(table);
	open_identity(run, table);
	table->search = table_slot_create(table->relation, NULL);
	table->local = table_slot_create(table->relation, NULL);
	table->remote = table_slot_create(table->relation, NULL);
	table->bulk = GetBulkInsertState();
	table->slots = palloc(MULTI_INSERT_ROWS * sizeof(TupleTableSlot *));
	initStringInfo(&table->encoded);
	return table;
}

static void
close_table(ApplyTable *table)
{
	for (int i = 0; i < table->nslots; i++)
		ExecDropSingleTupleTableSlot(table->slots[i]);
	FreeBulkInsertState(table->bulk);
	table_finish_bulk_insert(table->relation, 0);
	ExecDropSingleTupleTableSlot(table->search);
	ExecDropSingleTupleTableSlot(table->local);
	ExecDropSingleTupleTableSlot(table->remote);
	EvalPlanQualEnd(&table->epq);
	ExecCloseIndices(table->result);
	ExecResetTupleTable(table->estate->es_tupleTable, false);
	FreeExecutorState(table->estate);
	table_close(table->relation, NoLock);
}

static void flush_rows(ApplyRun *run, ApplyTable *table);

/* Takes in a description: the table's rows from here on are read by it. */
static void
describe_table(ApplyRun *run, int index)
{
	ApplyTable *table = run->tables[index];

	if (table == NULL)
		table = run->tables[index] = open_table(run, index);
	flush_rows(run, table);
	if (table->reader != NULL)
		tessera_row_reader_free(table->reader);
	table->reader = tessera_row_reader_create(run->mcxt, &run->cursor, table->relation);
	run->moving->tables[index].generated = tessera_row_reader_generated(table->reader);
	run->moving->tables[index].xml_as_text = tessera_row_reader_xml_as_text(table->reader);
	if (tessera_row_reader_generated(table->reader))
		tessera_stored_generated_given(table->result);
	table->wire = palloc(Max(tessera_row_reader_columns(table->reader), 1) * sizeof(TesseraWireValue));
	table->old_wire = palloc(Max(tessera_row_reader_columns(table->reader), 1) * sizeof(TesseraWireValue));
}

/* One record after the other. */
static void
run_records(ApplyRun *run, ApplyRecord apply)
{
	char		type;
	int			index;

	while (tessera_record_next(&run->cursor, run->moving->ntables, &type, &index))
	{
		CHECK_FOR_INTERRUPTS();
		if (type == TESSERA_RECORD_TABLE)
		{
			describe_table(run, index);
			continue;
		}
		if (run->tables[index] == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("damaged payload of a migration"),
					 errdetail_internal("A row comes before its table's description.")));
		become_owner(run, run->tables[index]->relation);
		apply(run, run->tables[index], type);
		run->count++;
	}
}

static int64
apply_payload(TesseraApplier *applier, const char *payload, Size size, ApplyRecord apply)
{
	MemoryContext mcxt = AllocSetContextCreate(CurrentMemoryContext, "tessera apply", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	ApplyRun   *run = palloc0(sizeof(ApplyRun));
	RepOriginId origin;
	int64		count;

	run->nestlevel = tessera_codec_push_settings();
	run->moving = applier->moving;
	run->cursor.data = payload;
	run->cursor.size = size;
	run->mcxt = mcxt;
	run->tables = palloc0(Max(applier->moving->ntables, 1) * sizeof(ApplyTable *));
	GetUserIdAndSecContext(&run->before.user, &run->before.security);
	PushCopiedSnapshot(GetTransactionSnapshot());
	origin = tessera_local_origin_begin();
	PG_TRY();
	{
		run_records(run, apply);
		for (int i = 0; i < run->moving->ntables; i++)
		{
			if (run->tables[i] == NULL)
				continue;
			flush_rows(run, run->tables[i]);
			close_table(run->tables[i]);
		}
	}
	PG_FINALLY();
	{
		tessera_local_origin_end(origin);
		tessera_act_end(&run->before);
	}
	PG_END_TRY();
	PopActiveSnapshot();
	CommandCounterIncrement();
	tessera_codec_pop_settings(run->nestlevel);
	count = run->count;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(mcxt);
	return count;
}

static void
unexpected_record(char type)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("damaged payload of a migration"),
			 errdetail_internal("A record has the unexpected type %d.", (unsigned char) type)));
}

/* Fills a slot with a row whose columns are all given; what is not described is null. Data in the current context. */
static void
fill_slot(ApplyTable *table, const TesseraWireValue *wire, TupleTableSlot *slot)
{
	int			ncolumns = tessera_row_reader_columns(table->reader);

	for (int i = 0; i < ncolumns; i++)
	{
		if (wire[i].mark == TESSERA_VALUE_UNCHANGED)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("damaged payload of a migration"),
					 errdetail_internal("A whole row lacks a column.")));
	}
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	memset(slot->tts_values, 0, slot->tts_tupleDescriptor->natts * sizeof(Datum));
	tessera_row_decode(table->reader, wire, slot->tts_values, slot->tts_isnull);
	ExecStoreVirtualTuple(slot);
	slot->tts_tableOid = RelationGetRelid(table->relation);
}


/* ---- clone ---- */

/* Writes the rows gathered so far. */
static void
flush_rows(ApplyRun *run, ApplyTable *table)
{
	MemoryContext old;

	if (table->nused == 0)
		return;
	become_owner(run, table->relation);
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(table->estate));
	table_multi_insert(table->relation, table->slots, table->nused, table->estate->es_output_cid, 0, table->bulk);
	/* Deferrable unique constraints are not checked again: the donor's rows fulfil them. */
	for (int i = 0; i < table->nused; i++)
	{
		if (table->result->ri_NumIndices > 0)
			tessera_insert_index_tuples(table->result, table->slots[i], table->estate);
		tessera_note_written(table->relation, table->slots[i]);
		ExecClearTuple(table->slots[i]);
	}
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(table->estate);
	table->nused = 0;
	table->bytes = 0;
}

static void
apply_clone_row(ApplyRun *run, ApplyTable *table, char type)
{
	TupleConstr *constr = RelationGetDescr(table->relation)->constr;
	Size		before = run->cursor.at;
	TupleTableSlot *slot;
	MemoryContext old;

	if (type != TESSERA_RECORD_CLONE)
		unexpected_record(type);
	tessera_row_read(table->reader, &run->cursor, table->wire);
	if (table->nused == table->nslots)
		table->slots[table->nslots++] = table_slot_create(table->relation, NULL);
	slot = table->slots[table->nused];

	/* Values stay in the per-tuple context until the rows are written. */
	old = MemoryContextSwitchTo(GetPerTupleMemoryContext(table->estate));
	fill_slot(table, table->wire, slot);
	if (constr != NULL && constr->has_generated_stored)
		ExecComputeStoredGenerated(table->result, table->estate, slot, CMD_INSERT);
	if (constr != NULL)
		ExecConstraints(table->result, slot, table->estate);
	MemoryContextSwitchTo(old);

	table->nused++;
	table->bytes += run->cursor.at - before;
	if (table->nused == MULTI_INSERT_ROWS || table->bytes >= MULTI_INSERT_BYTES)
		flush_rows(run, table);
}


/* ---- changes ---- */

/*
 * True if the local row is equal to the payload's whole old row. The bytes of the wire format are compared: they do not depend on how either node
 * stores a value.
 */
static bool
rows_equal(ApplyTable *table, TupleTableSlot *slot, const TesseraWireValue *wire)
{
	int			ncolumns = tessera_row_reader_columns(table->reader);

	slot_getallattrs(slot);
	for (int i = 0; i < ncolumns; i++)
	{
		AttrNumber	attnum = tessera_row_reader_attnum(table->reader, i);
		TesseraPayloadCursor cursor = {0};
		TesseraWireValue local;

		if (wire[i].mark == TESSERA_VALUE_UNCHANGED)
			continue;
		resetStringInfo(&table->encoded);
		tessera_row_write_value(table->writer, &table->encoded, attnum, slot->tts_values[attnum - 1], slot->tts_isnull[attnum - 1]);
		cursor.data = table->encoded.data;
		cursor.size = table->encoded.len;
		tessera_value_read(&cursor, &local);
		if (local.mark != wire[i].mark || local.length != wire[i].length ||
			(local.length > 0 && memcmp(local.data, wire[i].data, local.length) != 0))
			return false;
	}
	return true;
}

/* One row that equals the payload's whole row, into the local slot. */
static bool
find_whole_row(ApplyRun *run, ApplyTable *table, const TesseraWireValue *wire)
{
	const AttrNumber *keys = run->moving->tables[table->table].keys;
	TesseraKeySpace *ks = tessera_moving_group(run->moving, table->table)->ks;
	Datum		key[TESSERA_MAX_KEY_COLUMNS];
	MemoryContext compare = AllocSetContextCreate(CurrentMemoryContext, "tessera row comparison", ALLOCSET_SMALL_SIZES);
	TesseraRangeScan *scan;
	bool		found = false;

	if (table->writer == NULL)
		table->writer = tessera_row_writer_create(run->mcxt, RelationGetDescr(table->relation), table->table,
												 run->moving->tables[table->table].generated,
												 run->moving->tables[table->table].xml_as_text);
	for (int i = 0; i < ks->ncolumns; i++)
		key[i] = table->search->tts_values[keys[i] - 1];
	/* The newest versions, this transaction's own included. Rows that are not owned yet have no other writer. */
	scan = tessera_key_scan_begin(table->relation, ks, keys, key, SnapshotSelf);
	while (!found && tessera_range_scan_next(scan, table->local))
	{
		MemoryContext old = MemoryContextSwitchTo(compare);

		found = rows_equal(table, table->local, wire);
		MemoryContextSwitchTo(old);
		MemoryContextReset(compare);
	}
	if (found)
		ExecMaterializeSlot(table->local);
	tessera_range_scan_end(scan);
	MemoryContextDelete(compare);
	return found;
}

/* What identifies a row must be there and not null. */
static void
check_search(ApplyTable *table, const TesseraWireValue *wire)
{
	int			ncolumns = tessera_row_reader_columns(table->reader);
	int			found = 0;

	for (int i = 0; i < ncolumns; i++)
	{
		if (wire[i].mark != TESSERA_VALUE_UNCHANGED && wire[i].mark != TESSERA_VALUE_NULL &&
			bms_is_member(tessera_row_reader_attnum(table->reader, i), table->search_columns))
			found++;
	}
	if (found != bms_num_members(table->search_columns))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("damaged payload of a migration"),
				 errdetail_internal("A change lacks columns of its row's identity.")));
}

/* Finds the row that the payload's row identifies, into the local slot. */
static bool
find_row(ApplyRun *run, ApplyTable *table, const TesseraWireValue *wire)
{
	TupleTableSlot *search = table->search;

	check_search(table, wire);
	ExecClearTuple(search);
	memset(search->tts_isnull, true, search->tts_tupleDescriptor->natts * sizeof(bool));
	tessera_row_decode(table->reader, wire, search->tts_values, search->tts_isnull);
	ExecStoreVirtualTuple(search);
	ExecClearTuple(table->local);
	if (OidIsValid(table->identity))
		return RelationFindReplTupleByIndex(table->relation, table->identity, LockTupleExclusive, search, table->local);
	return find_whole_row(run, table, wire);
}

static void
apply_insert(ApplyRun *run, ApplyTable *table)
{
	tessera_row_read(table->reader, &run->cursor, table->wire);
	fill_slot(table, table->wire, table->remote);
	/* The clone, or a row fetched newer than its change, may have brought it. Without identity neither happens. */
	if (OidIsValid(table->identity) && find_row(run, table, table->wire))
		ExecSimpleRelationUpdate(table->result, table->estate, &table->epq, table->local, table->remote);
	else
	{
		ExecSimpleRelationInsert(table->result, table->estate, table->remote);
		tessera_note_written(table->relation, table->remote);
	}
}

/* The old row of an update or delete, if it is given. */
static bool
read_old(ApplyRun *run, ApplyTable *table)
{
	switch (tessera_payload_byte(&run->cursor))
	{
		case TESSERA_OLD_NONE:
			return false;
		case TESSERA_OLD_IDENTITY:
		case TESSERA_OLD_ROW:
			tessera_row_read(table->reader, &run->cursor, table->old_wire);
			return true;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("damaged payload of a migration"),
					 errdetail_internal("An old row has an unknown mark.")));
	}
	return false;
}

static void
apply_update(ApplyRun *run, ApplyTable *table)
{
	TupleTableSlot *remote = table->remote;
	bool		has_old = read_old(run, table);

	tessera_row_read(table->reader, &run->cursor, table->wire);
	if (!find_row(run, table, has_old ? table->old_wire : table->wire))
		return;					/* its delete comes later (doc/design.md#unchanged-toast) */
	slot_getallattrs(table->local);
	ExecClearTuple(remote);
	memcpy(remote->tts_values, table->local->tts_values, remote->tts_tupleDescriptor->natts * sizeof(Datum));
	memcpy(remote->tts_isnull, table->local->tts_isnull, remote->tts_tupleDescriptor->natts * sizeof(bool));
	tessera_row_decode(table->reader, table->wire, remote->tts_values, remote->tts_isnull);
	ExecStoreVirtualTuple(remote);
	remote->tts_tableOid = RelationGetRelid(table->relation);
	ExecSimpleRelationUpdate(table->result, table->estate, &table->epq, table->local, remote);
}

static void
apply_delete(ApplyRun *run, ApplyTable *table)
{
	if (!read_old(run, table))
		unexpected_record(TESSERA_RECORD_DELETE);
	if (find_row(run, table, table->old_wire))
		ExecSimpleRelationDelete(table->result, table->estate, &table->epq, table->local);
}

static void
apply_change(ApplyRun *run, ApplyTable *table, char type)
{
	MemoryContext old = MemoryContextSwitchTo(GetPerTupleMemoryContext(table->estate));

	switch (type)
	{
		case TESSERA_RECORD_INSERT:
			apply_insert(run, table);
			break;
		case TESSERA_RECORD_UPDATE:
			apply_update(run, table);
			break;
		case TESSERA_RECORD_DELETE:
			apply_delete(run, table);
			break;
		default:
			unexpected_record(type);
	}
	/* Slots must not point into what is about to go. */
	ExecClearTuple(table->search);
	ExecClearTuple(table->local);
	ExecClearTuple(table->remote);
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(table->estate);
	CommandCounterIncrement();
	UpdateActiveSnapshotCommandId();
	table->estate->es_output_cid = GetCurrentCommandId(false);
}


/* ---- interface ---- */

TesseraApplier *
tessera_applier_begin(TesseraMovingRanges *moving)
{
	TesseraApplier *applier = palloc(sizeof(TesseraApplier));

	applier->moving = moving;
	return applier;
}

int64
tessera_apply_clone(TesseraApplier *applier, const char *payload, Size size)
{
	return apply_payload(applier, payload, size, apply_clone_row);
}

int64
tessera_apply_mods(TesseraApplier *applier, const char *payload, Size size)
{
	return apply_payload(applier, payload, size, apply_change);
}

void
tessera_applier_end(TesseraApplier *applier)
{
	pfree(applier);
}
