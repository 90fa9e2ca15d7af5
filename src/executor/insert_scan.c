/*
 * insert_scan.c
 *	  Executor of routed inserts: rows come from a plan of their own, each goes to the shard that owns its key.
 *
 * The source is read to its end before the first row is written, so a statement that selects from the table it inserts into does not meet its own
 * rows. Rows are then sent in batches, pipelined over all shards; all fragments on one shard share the snapshot of the first (statement
 * number), so that ON CONFLICT and triggers see the statement as one. A stale shard undoes its batch only: nothing of it was run.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/explain.h"
#include "executor/executor.h"
#include "executor/tstoreReceiver.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "executor/explain_shards.h"
#include "executor/plan_private.h"
#include "executor/run.h"
#include "executor/targets.h"
#include "transaction/participant.h"

typedef struct InsertState
{
	CustomScanState css;
	TesseraRemoteQuery *query;
	int			nparams;
	int		   *columns;		/* source column of each parameter */
	int			nattributes;
	int		   *attributes;		/* of the table, for each column of the source */
	Oid			relid;
	int			flags;
	QueryDesc  *source;
	Tuplestorestate *rows;		/* of the source */
	Tuplestorestate *returned;	/* of RETURNING */
	TupleTableSlot *row_slot;
	TupleTableSlot *returned_slot;
	bool		done;
	uint64		statement;
	MemoryContext row_context;
} InsertState;

static Node *create_state(CustomScan *scan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

const CustomScanMethods tessera_insert_methods = {"Tessera Insert", create_state};

static const CustomExecMethods exec_methods = {
	.CustomName = "Tessera Insert",
	.BeginCustomScan = begin,
	.ExecCustomScan = next,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static Node *
create_state(CustomScan *scan)
{
	InsertState *state = (InsertState *) newNode(sizeof(InsertState), T_CustomScanState);

	state->css.methods = &exec_methods;
	return (Node *) state;
}

static int *
int_array(List *list)
{
	int		   *result = palloc(sizeof(int) * Max(list_length(list), 1));
	ListCell   *cell;

	foreach(cell, list)
		result[foreach_current_index(cell)] = lfirst_int(cell);
	return result;
}

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	InsertState *state = (InsertState *) node;
	CustomScan *scan = (CustomScan *) node->ss.ps.plan;
	List	   *private = scan->custom_private;
	List	   *types = list_nth(private, INSERT_PARAM_TYPES);
	Oid		   *type_array = palloc(sizeof(Oid) * Max(list_length(types), 1));
	PlannedStmt *plan = (PlannedStmt *) list_nth(private, INSERT_SOURCE);
	ListCell   *cell;

	foreach(cell, types)
		type_array[foreach_current_index(cell)] = lfirst_oid(cell);
	state->flags = intVal(list_nth(private, INSERT_FLAGS));
	state->nparams = list_length(types);
	state->columns = int_array(list_nth(private, INSERT_PARAM_COLUMNS));
	state->nattributes = list_length(list_nth(private, INSERT_ATTRIBUTES));
	state->attributes = int_array(list_nth(private, INSERT_ATTRIBUTES));
	state->relid = (Oid) intVal(list_nth(private, INSERT_RELID));
	state->query = tessera_remote_query_make(strVal(list_nth(private, INSERT_SQL)), state->nparams, type_array,
											 (state->flags & STATEMENT_RETURNS_ROWS) ? node->ss.ss_ScanTupleSlot->tts_tupleDescriptor : NULL,
											 list_length(scan->custom_scan_tlist), NULL);
	state->source = CreateQueryDesc(plan, estate->es_sourceText, estate->es_snapshot, InvalidSnapshot, None_Receiver, estate->es_param_list_info,
									estate->es_queryEnv, estate->es_instrument);
	standard_ExecutorStart(state->source, eflags);
	state->row_context = AllocSetContextCreate(estate->es_query_cxt, "tessera insert row", ALLOCSET_DEFAULT_SIZES);
}

/* Read the source to its end. */
static void
read_source(InsertState *state)
{
	DestReceiver *receiver = CreateDestReceiver(DestTuplestore);

	state->rows = tuplestore_begin_heap(false, false, work_mem);
	state->row_slot = MakeSingleTupleTableSlot(state->source->tupDesc, &TTSOpsMinimalTuple);
	SetTuplestoreDestReceiverParams(receiver, state->rows, CurrentMemoryContext, false, NULL, NULL);
	state->source->dest = receiver;
	standard_ExecutorRun(state->source, ForwardScanDirection, 0, true);
	standard_ExecutorFinish(state->source);
}

/* Column of the source (1..) for an attribute of the table; 0: none, the value is null. */
static int
column_of(InsertState *state, AttrNumber attribute)
{
	for (int i = 0; i < state->nattributes; i++)
		if (state->attributes[i] == attribute)
			return i + 1;
	return 0;
}

static int32
target_of_row(InsertState *state, const TesseraRouting *routing, TupleTableSlot *row, int *group)
{
	const TesseraTable *table = tessera_routing_table(routing, state->relid);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	bool		nulls[TESSERA_MAX_KEY_COLUMNS];
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	bool		no_row;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the table left the cluster while the statement ran"),
				 errhint("Run the statement again.")));
	*group = table->group;
	if (table->group < 0)
		return table->node_id;
	for (int i = 0; i < table->nkeys; i++)
	{
		int			column = column_of(state, table->keys[i]);

		nulls[i] = column == 0 || row->tts_isnull[column - 1];
		types[i] = column == 0 ? UNKNOWNOID : TupleDescAttr(row->tts_tupleDescriptor, column - 1)->atttypid;
		if (!nulls[i])
			values[i] = row->tts_values[column - 1];
	}
	return tessera_target_of_key(routing, table, values, nulls, types, &no_row);
}

/* One row to its shard; routed again while it is stale. Returns rows inserted. */
static uint64
insert_row(InsertState *state, TupleTableSlot *row, EState *estate)
{
	Datum	   *values = palloc(sizeof(Datum) * Max(state->nparams, 1));
	bool	   *nulls = palloc(sizeof(bool) * Max(state->nparams, 1));
	TesseraRetry retry = {0};
	TesseraRun *run = tessera_run_make();
	TesseraRunRequest request = {
		.query = state->query, .values = values, .nulls = nulls, .ntargets = 1, .write = true, .statement = state->statement,
		.snapshot = estate->es_snapshot,
	};
	uint64		processed;
	TupleTableSlot *slot;

	for (int i = 0; i < state->nparams; i++)
	{
		values[i] = row->tts_values[state->columns[i] - 1];
		nulls[i] = row->tts_isnull[state->columns[i] - 1];
	}
	for (;;)
	{
		int32		target;
		int			group;

		request.routing = tessera_routing();
		target = target_of_row(state, request.routing, row, &group);
		request.targets = &target;
		request.groups = &group;
		request.ngroups = group >= 0 ? 1 : 0;
		if (tessera_run_start(run, &request))
			break;
		state->statement = request.statement = tessera_next_statement();
		tessera_stale_again(run, &retry);
		request.snapshot = tessera_run_fresh_snapshot(run, estate->es_snapshot);
	}
	if (state->returned)
		while ((slot = tessera_run_next(run, state->css.ss.ss_ScanTupleSlot)) != NULL)
			tuplestore_puttupleslot(state->returned, slot);
	processed = tessera_run_complete(run);
	tessera_run_end(run);
	return processed;
}

static void
insert_rows(InsertState *state)
{
	EState	   *estate = state->css.ss.ps.state;
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);

	read_source(state);
	state->statement = tessera_next_statement();
	if (state->flags & STATEMENT_RETURNS_ROWS)
	{
		state->returned = tuplestore_begin_heap(false, false, work_mem);
		state->returned_slot = MakeSingleTupleTableSlot(state->css.ss.ss_ScanTupleSlot->tts_tupleDescriptor, &TTSOpsMinimalTuple);
	}
	while (tuplestore_gettupleslot(state->rows, true, false, state->row_slot))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(state->row_slot);
		MemoryContextSwitchTo(state->row_context);
		estate->es_processed += insert_row(state, state->row_slot, estate);
		MemoryContextSwitchTo(estate->es_query_cxt);
		MemoryContextReset(state->row_context);
	}
	state->done = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next(CustomScanState *node)
{
	InsertState *state = (InsertState *) node;

	if (!state->done)
		insert_rows(state);
	if (state->returned && tuplestore_gettupleslot(state->returned, true, false, state->returned_slot))
		return state->returned_slot;
	return NULL;
}

static void
end(CustomScanState *node)
{
	InsertState *state = (InsertState *) node;

	if (state->row_slot)
		ExecDropSingleTupleTableSlot(state->row_slot);
	if (state->returned_slot)
		ExecDropSingleTupleTableSlot(state->returned_slot);
	if (state->rows)
		tuplestore_end(state->rows);
	if (state->returned)
		tuplestore_end(state->returned);
	if (!state->done && !(state->source->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY) && !state->source->estate->es_finished)
		standard_ExecutorFinish(state->source);
	standard_ExecutorEnd(state->source);
	FreeQueryDesc(state->source);
}

static void
rescan(CustomScanState *node)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("a routed INSERT cannot be run again within a statement")));
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	InsertState *state = (InsertState *) node;

	ExplainPropertyText("Tier", "routed rows", es);
	if (es->verbose)
		ExplainPropertyText("Remote SQL", state->query->sql, es);
	ExplainOpenGroup("Source", "Source", true, es);
	es->indent++;
	{
		ExplainState *nested = es;
		List	   *rtable = nested->rtable;
		List	   *names = nested->rtable_names;
		List	   *context = nested->deparse_cxt;
		PlannedStmt *plan = nested->pstmt;

		ExplainPrintPlan(nested, state->source);
		nested->rtable = rtable;
		nested->rtable_names = names;
		nested->deparse_cxt = context;
		nested->pstmt = plan;
	}
	es->indent--;
	ExplainCloseGroup("Source", "Source", true, es);
}
