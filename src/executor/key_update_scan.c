/*
 * key_update_scan.c
 *	  Executor of UPDATEs that assign the shard key: each row is deleted where it lies and inserted where its new key belongs.
 *
 * Phases: the rows are locked on their shards (FOR UPDATE), which answer each one's ctid, its table (which may be a partition), its old key and its
 * new row, kept in a tuple store; then they are deleted by ctid, many at a time, and then the new rows are inserted by a routed INSERT that reads the
 * tuple store. All rows are locked before the first is written, so no row is met twice. Once a row is locked, no other transaction can change or move
 * it, and the table's ctids stay: the table lock forbids a rewrite, the row lock is waited for by a move. The locks must live until the deletion:
 * nothing here may be committed on its own.
 *
 * The DELETE needs a newer snapshot than the lock had: what was locked is the newest version of a row, which may be younger. So it is a statement of
 * its own on its shard.
 *
 * Memory: the query context of the outer statement; the tuple store ends with the node.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/tuplestore.h"

#include "common/injection.h"
#include "common/version_compat.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/targets.h"
#include "transaction/participant.h"

#define DELETE_BATCH 1000		/* rows */

/* Rows to be deleted on one shard. */
typedef struct Batch
{
	int32		node_id;
	int			n;
	ItemPointerData rows[DELETE_BATCH];
	Oid			leaves[DELETE_BATCH];	/* tables that they are in: the named one, or its partitions */
} Batch;

typedef struct KeyUpdateState
{
	TesseraScan scan;			/* query: the deletion */
	QueryDesc  *lock;
	TesseraParts shared;		/* of its runs */
	QueryDesc  *insert;
	Tuplestorestate *rows;		/* ctid, table, old key, new row */
	QueryEnvironment *environment;	/* names it */
	Oid			relid;
	List	   *relids;			/* the same, as runs take it */
	bool		partitioned;	/* the deletion names partitions, too */
	List	   *batches;		/* of Batch *, one for each shard met */
	uint64		nlocked;
	bool		ready;			/* locked and deleted */
	bool		done;
} KeyUpdateState;

static QueryDesc *
start_plan(KeyUpdateState *state, TesseraKeyUpdatePrivate which, int eflags)
{
	return tessera_nested_start(&state->scan, list_nth(state->scan.private, which), state->environment, eflags | TESSERA_EXEC_FOR_WRITE);
}

/* Makes the tuple store for the locked rows; the statements that follow find it by its name, KEY_UPDATE_ROWS. */
static void
publish(KeyUpdateState *state)
{
	state->rows = tuplestore_begin_heap(false, false, work_mem);
	tessera_nested_name(state->environment, pstrdup(KEY_UPDATE_ROWS), state->lock->tupDesc, state->rows);
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	KeyUpdateState *state = (KeyUpdateState *) scan;
	Oid			types[] = {get_array_type(TIDOID), get_array_type(REGCLASSOID)};

	scan->tier = "moved rows";
	state->relid = (Oid) intVal(list_nth(state->scan.private, KEY_UPDATE_RELID));
	state->relids = list_make1_oid(state->relid);
	state->partitioned = get_rel_relkind(state->relid) == RELKIND_PARTITIONED_TABLE;
	state->scan.query = tessera_remote_query_make(list_make1(list_nth(state->scan.private, KEY_UPDATE_DELETE)), state->partitioned ? 2 : 1, types,
												  NULL, 0, NULL);
	state->environment = create_queryEnv();
	state->lock = start_plan(state, KEY_UPDATE_LOCK, eflags);
	publish(state);
	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		state->insert = start_plan(state, KEY_UPDATE_INSERT, eflags);
}

/* Runs the lock query as one of the statement's parts: run alone, a shard would commit it at once, and with that release the locks. */
static void
lock_rows(KeyUpdateState *state)
{
	state->shared.number = tessera_next_statement();
	tessera_nested_join(state->lock, &state->shared);
	tessera_nested_run(state->lock, state->rows, true);
	state->nlocked = tuplestore_tuple_count(state->rows);
}

/* ---- deletion ---- */

_Noreturn static void
table_changed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("the table's shard key was changed while the statement ran"),
			 errhint("Run the statement again.")));
}

/* True if the table is sharded by the columns that it was planned with. */
static const TesseraTable *
check_table(KeyUpdateState *state, const TesseraRouting *routing)
{
	const TesseraTable *table = routing ? tessera_routing_table(routing, state->relid) : NULL;
	List	   *keys = list_nth(state->scan.private, KEY_UPDATE_KEYS);

	if (table == NULL || table->group < 0 || table->nkeys != list_length(keys))
		table_changed();
	for (int i = 0; i < table->nkeys; i++)
		if (table->keys[i] != list_nth_int(keys, i))
			table_changed();
	return table;
}

/* Shard on which a row lies, by its old key: column 3 and the following of the locked row. */
static int32
shard_of_row(KeyUpdateState *state, TupleTableSlot *row)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = check_table(state, routing);
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	bool		no_row;

	for (int i = 0; i < table->nkeys; i++)
		types[i] = TupleDescAttr(row->tts_tupleDescriptor, i + 2)->atttypid;
	return tessera_target_of_key(routing, table, row->tts_values + 2, row->tts_isnull + 2, types, &no_row);
}

static Datum
array_of_rows(Batch *batch)
{
	Datum	   *elements = palloc(sizeof(Datum) * batch->n);

	for (int i = 0; i < batch->n; i++)
		elements[i] = PointerGetDatum(&batch->rows[i]);
	return PointerGetDatum(construct_array(elements, batch->n, TIDOID, sizeof(ItemPointerData), false, TYPALIGN_SHORT));
}

static Datum
array_of_leaves(Batch *batch)
{
	Datum	   *elements = palloc(sizeof(Datum) * batch->n);

	for (int i = 0; i < batch->n; i++)
		elements[i] = ObjectIdGetDatum(batch->leaves[i]);
	return PointerGetDatum(construct_array(elements, batch->n, REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT));
}

/*
 * Its targets stay: a shard that is found stale has had other chunks moved, those of locked rows stay. But it needs a newer snapshot than the lock's.
 */
static bool
choose_targets(TesseraRoute *route, TesseraShardRunRequest *request)
{
	KeyUpdateState *state = route->owner;

	(void) check_table(state, request->routing);
	if (route->attempts == 0)
		request->snapshot = tessera_shard_run_fresh_snapshot(state->scan.run, request->snapshot);
	return true;
}

static void
delete_batch(KeyUpdateState *state, Batch *batch)
{
	Datum		values[] = {array_of_rows(batch), array_of_leaves(batch)};
	bool		nulls[] = {false, false};
	TesseraRoute route = {.owner = state, .choose = choose_targets};
	TesseraShardRunRequest request = {
		.query = state->scan.query, .values = values, .nulls = nulls, .ntargets = 1, .targets = &batch->node_id, .relids = state->relids,
		.write = true, .instrument = state->scan.css.ss.ps.state->es_instrument,
	};
	uint64		deleted;

	(void) tessera_scan_run(&state->scan, &route, &request);
	deleted = tessera_shard_run_complete(state->scan.run);
	tessera_scan_stop(&state->scan);
	if (deleted != batch->n)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("of %d rows locked on node %d only " UINT64_FORMAT " were there to be moved", batch->n, batch->node_id, deleted),
				 errhint("Retry the transaction.")));
	batch->n = 0;
}

static Batch *
batch_for(KeyUpdateState *state, int32 node_id)
{
	Batch	   *batch;
	ListCell   *cell;

	foreach(cell, state->batches)
		if (((Batch *) lfirst(cell))->node_id == node_id)
			return lfirst(cell);
	batch = palloc(sizeof(Batch));
	batch->node_id = node_id;
	batch->n = 0;
	state->batches = lappend(state->batches, batch);
	return batch;
}

static void
delete_rows(KeyUpdateState *state)
{
	TupleTableSlot *row = MakeSingleTupleTableSlot(state->lock->tupDesc, &TTSOpsMinimalTuple);
	ListCell   *cell;

	while (tuplestore_gettupleslot(state->rows, true, false, row))
	{
		Batch	   *batch;

		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(row);
		batch = batch_for(state, shard_of_row(state, row));
		batch->leaves[batch->n] = DatumGetObjectId(row->tts_values[1]);
		batch->rows[batch->n++] = *(ItemPointer) DatumGetPointer(row->tts_values[0]);
		if (batch->n == DELETE_BATCH)
			delete_batch(state, batch);
	}
	foreach(cell, state->batches)
		if (((Batch *) lfirst(cell))->n > 0)
			delete_batch(state, lfirst(cell));
	ExecDropSingleTupleTableSlot(row);
}

/* ---- rows ---- */

static void
make_ready(KeyUpdateState *state)
{
	MemoryContext before = MemoryContextSwitchTo(state->scan.css.ss.ps.state->es_query_cxt);

	if (state->scan.parts)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("an UPDATE in WITH that changes the shard key is not supported"),
				 errhint("Run it as a statement of its own.")));
	lock_rows(state);
	tessera_injection("key_update_locked");
	delete_rows(state);
	state->insert = start_plan(state, KEY_UPDATE_INSERT, 0);
	state->ready = true;
	MemoryContextSwitchTo(before);
}

static void
finish_insert(KeyUpdateState *state)
{
	uint64		inserted = state->insert->estate->es_processed;

	standard_ExecutorFinish(state->insert);
	state->done = true;
	if (inserted != state->nlocked)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("of " UINT64_FORMAT " rows only " UINT64_FORMAT " were moved", state->nlocked, inserted)));
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	KeyUpdateState *state = (KeyUpdateState *) scan;
	TupleTableSlot *slot;

	if (state->done)
		return NULL;
	if (!state->ready)
		make_ready(state);
	slot = tessera_nested_next(state->insert);
	scan->css.ss.ps.state->es_processed = state->insert->estate->es_processed;
	if (slot == NULL)
		finish_insert(state);
	return slot;
}

static void
end(TesseraScan *scan)
{
	KeyUpdateState *state = (KeyUpdateState *) scan;

	tessera_nested_end(scan, state->insert);
	tessera_nested_end(scan, state->lock);
	tuplestore_end(state->rows);
}

static void
explain(TesseraScan *scan, ExplainState *es)
{
	KeyUpdateState *state = (KeyUpdateState *) scan;

	if (state->lock)
		tessera_explain_nested(es, state->lock, "Lock");
	if (es->verbose)
		ExplainPropertyText("Remote SQL", scan->query->sql, es);
	if (es->analyze && scan->figures.shards)
	{
		ExplainOpenGroup("Delete", "Delete", true, es);
		tessera_explain_figures(es, tessera_routing(), &scan->figures);
		ExplainCloseGroup("Delete", "Delete", true, es);
	}
	if (state->insert)
		tessera_explain_nested(es, state->insert, "Insert");
}

const TesseraScanKind tessera_key_update_scan = {
	TESSERA_SCAN_METHODS("Tessera Key Update"), .size = sizeof(KeyUpdateState), .begin = begin, .next = next, .end = end, .explain = explain,
	.once = "an UPDATE of the shard key",
};
