/*
 * statement_scan.c
 *	  Executor of whole statements: T1 (one shard, chosen at execution), and DML that goes whole to every shard of its group.
 *
 * Begin prepares expressions only. The first Exec evaluates parameters and keys once, routes by the current image, runs, and routes again as long as
 * a shard finds it stale. If the pins fall on different shards, or a table was sharded since, another plan of the same Query runs instead, nested. A
 * cursor is routed, and asks its shard, when it opens (cursor.h).
 *
 * What a modification reads elsewhere (planner/read_side.h) is read before it is routed: each of its plans runs to its end, and the columns become
 * arrays, which are parameters. All of it is one statement on each shard, under one snapshot (TesseraParts in shard_run.h). The arrays live in the
 * query context.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "parser/parsetree.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "common/wire.h"
#include "executor/current_of.h"
#include "executor/cursor.h"
#include "executor/eflags.h"
#include "executor/executor_settings.h"
#include "executor/plan_private.h"
#include "executor/replicated.h"
#include "executor/scan_frame.h"
#include "executor/statement_cut.h"
#include "executor/targets.h"
#include "transaction/participant.h"

TesseraNestedPlanner tessera_nested_planner = NULL;

typedef struct StatementState
{
	TesseraScan scan;			/* values: parameters, then keys */
	bool		started;
	bool		evaluated;		/* the values are */
	bool		held;			/* in a cursor: runs at the first fetch; the shard has its snapshot */
	QueryDesc  *nested;			/* another plan of the statement, if this one does not fit */
	TesseraCursorRow current;	/* of WHERE CURRENT OF */
	bool		nothing;		/* it has no row of the table */
	List	   *reads;			/* of QueryDesc *: what it reads elsewhere */
	bool		has_read;		/* all of that, into the values */
	TesseraParts shared;		/* of those and itself, if it is of no other parts */
} StatementState;

/* Open while the statement runs, as those of any plan: DDL of the same session refuses tables in use. */
static void
open_relations(EState *estate)
{
	for (Index rti = 1; rti <= estate->es_range_table_size; rti++)
	{
		RangeTblEntry *rte = exec_rt_fetch(rti, estate);

		if (rte->rtekind == RTE_RELATION && rte->relkind != RELKIND_VIEW)
			tessera_open_relation(estate, rti);
	}
}

/* Returns false if a table's placement changed its nature since the statement was planned (sharded meanwhile): plan again. */
static bool
choose_targets(StatementState *state, const TesseraRouting *routing)
{
	TesseraScan *scan = &state->scan;

	if (scan->targets == NULL)
		scan->targets = MemoryContextAlloc(scan->css.ss.ps.state->es_query_cxt, sizeof(int32) * TESSERA_MAX_NODES);
	scan->ntargets = tessera_targets_of_statement(scan->private, routing, scan->values.values, scan->values.nulls, scan->values.types, scan->targets);
	return scan->ntargets > 0;
}

/*
 * Another plan of the same statement answers, nested: the general one if the pins fell on different shards, a fresh one if this one is outdated.
 */
static void
start_nested(StatementState *state, bool outdated)
{
	Query	   *query = (Query *) list_nth(state->scan.private, STATEMENT_QUERY);
	EState	   *estate = state->scan.css.ss.ps.state;
	PlannedStmt *plan;

	plan = tessera_nested_planner(copyObject(query), estate->es_sourceText, estate->es_param_list_info, outdated);
	state->nested = tessera_nested_start(&state->scan, plan, estate->es_queryEnv, 0);
}

int
tessera_statement_nodes(PlanState *top, const TesseraRouting *routing, int32 *node_ids)
{
	TesseraScan *scan = (TesseraScan *) top;
	int			n;

	if (!IsA(top, CustomScanState) || castNode(CustomScanState, top)->methods != &tessera_statement_scan.exec ||
		(scan->flags & STATEMENT_CURRENT_OF) || list_nth(scan->private, STATEMENT_READS) != NIL || scan->values.exprs != NIL)
		return -1;
	tessera_values_evaluate(&scan->values, &scan->css);
	n = tessera_targets_of_statement(scan->private, routing, scan->values.values, scan->values.nulls, scan->values.types, node_ids);
	return n > 0 ? n : -1;
}

static bool
may_autocommit(StatementState *state, const TesseraShardRunRequest *request)
{
	if (request->statement != 0)
		return false;
	if ((state->scan.flags & STATEMENT_WRITES) == 0)
		return !IsolationUsesXactSnapshot();
	return state->scan.ntargets == 1 && state->scan.targets[0] != request->routing->self && tessera_autocommit_write_allowed() &&
		!tessera_replicated_may_follow(request->routing, request->relids);
}

/* The row of WHERE CURRENT OF: its ctid is a parameter of the text. false: the cursor's row has none of the table. */
static bool
find_current_row(StatementState *state)
{
	TesseraCursorRow *row = &state->current;
	Query	   *query = (Query *) list_nth(state->scan.private, STATEMENT_QUERY);
	Oid			relid = rt_fetch(query->resultRelation, query->rtable)->relid;
	int			position = intVal(list_nth(state->scan.private, STATEMENT_POSITION));

	if (!tessera_cursor_row(castNode(CurrentOfExpr, query->jointree->quals), state->scan.css.ss.ps.state, relid, row))
		return false;
	state->scan.values.values[position] = PointerGetDatum(&row->ctid);
	state->scan.values.nulls[position] = false;
	return true;
}

/* false: another plan has been started instead. */
static bool
choose_run(TesseraRoute *route, TesseraShardRunRequest *request)
{
	StatementState *state = route->owner;
	bool		fits = request->routing != NULL && choose_targets(state, request->routing);

	if (list_nth(state->scan.private, STATEMENT_READS) != NIL)
	{
		/* what was read is not read twice: it may have called anything */
		if (state->has_read && !fits)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("tables of the cluster have changed while the statement read"),
					 errhint("Try again.")));
		/* not read, as it did not fit a moment ago: the arrays are not there */
		fits &= state->has_read;
	}
	if (!fits || (state->scan.ntargets > 1 && !(state->scan.flags & STATEMENT_MANY)))
	{
		start_nested(state, !fits);
		return false;
	}
	if (state->scan.flags & STATEMENT_CURRENT_OF)
	{
		state->scan.ntargets = 1;
		state->scan.targets[0] = state->current.node_id;
	}
	request->ntargets = state->scan.ntargets;
	request->targets = state->scan.targets;
	request->autocommit = may_autocommit(state, request);
	return true;
}

static void
begin_anew(TesseraRoute *route, TesseraShardRunRequest *request)
{
	StatementState *state = route->owner;

	if (route->fixed)
		tessera_cursor_stale();
	if (state->held)
		request->statement = tessera_statement_number(state->scan.css.ss.ps.state)->kept.number = tessera_next_statement();
}

/* ---- what it reads elsewhere ---- */

static void
start_reads(StatementState *state, int eflags)
{
	ListCell   *cell;

	if (list_nth(state->scan.private, STATEMENT_READS) == NIL)
		return;
	if (state->scan.parts == NULL)
	{
		state->shared.number = tessera_next_statement();
		state->shared.begun = false;
		state->scan.parts = &state->shared;
		if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY))
			tessera_parts_cut(&state->shared, list_nth(state->scan.private, STATEMENT_READS), state->scan.css.ss.ps.state);
	}
	foreach(cell, (List *) list_nth(state->scan.private, STATEMENT_READS))
		state->reads = lappend(state->reads, tessera_nested_start(&state->scan, lfirst(cell), state->scan.css.ss.ps.state->es_queryEnv,
																  eflags | TESSERA_EXEC_FOR_WRITE));
}

static void
end_reads(StatementState *state)
{
	ListCell   *cell;

	foreach(cell, state->reads)
		tessera_nested_end(&state->scan, lfirst(cell));
	state->reads = NIL;
	if (state->scan.parts == &state->shared)
		state->scan.parts = NULL;
}

static Size
size_of_value(Datum value, Form_pg_attribute att)
{
	if (att->attlen > 0)
		return att->attlen;
	return att->attlen == -1 ? toast_raw_datum_size(value) : strlen(DatumGetCString(value)) + 1;
}

/* Adds a row to the arrays. output: of columns whose text is sent; NULL oid: the value is. Returns its size. */
static Size
add_row(TupleTableSlot *row, ArrayBuildState **arrays, FmgrInfo *output, MemoryContext context)
{
	TupleDesc	desc = row->tts_tupleDescriptor;
	Size		size = 0;

	slot_getallattrs(row);
	for (int i = 0; i < desc->natts; i++)
	{
		Datum		value = row->tts_values[i];

		/* with its length on the wire, and its entry in the array while that is built */
		size += sizeof(Datum) + (row->tts_isnull[i] ? 0 : size_of_value(value, TupleDescAttr(desc, i)));
		if (OidIsValid(output[i].fn_oid) && !row->tts_isnull[i])
			value = CStringGetTextDatum(tessera_wire_output(&output[i], value));
		(void) accumArrayResult(arrays[i], value, row->tts_isnull[i], arrays[i]->element_type, context);
	}
	return size;
}

/* Runs one and sets the parameters from first on to its columns. Returns how many they are; *size grows by what they take. */
static int
read_columns(StatementState *state, QueryDesc *query, int first, Size *size)
{
	TesseraValues *values = &state->scan.values;
	TupleDesc	desc = query->tupDesc;
	ExprContext *temporary = GetPerTupleExprContext(state->scan.css.ss.ps.state);
	Tuplestorestate *rows = tuplestore_begin_heap(false, false, work_mem);
	TupleTableSlot *row = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	ArrayBuildState **arrays = palloc(sizeof(ArrayBuildState *) * desc->natts);
	FmgrInfo   *output = palloc0(sizeof(FmgrInfo) * desc->natts);

	for (int i = 0; i < desc->natts; i++)
	{
		Oid			element = get_element_type(values->types[first + i]);
		Oid			function;
		bool		varlena;

		arrays[i] = initArrayResult(element, CurrentMemoryContext, true);
		if (element == TupleDescAttr(desc, i)->atttypid)
			continue;
		getTypeOutputInfo(TupleDescAttr(desc, i)->atttypid, &function, &varlena);
		fmgr_info(function, &output[i]);
	}
	tessera_nested_run(query, rows, true);
	while (tuplestore_gettupleslot(rows, true, false, row))
	{
		MemoryContext before = MemoryContextSwitchTo(temporary->ecxt_per_tuple_memory);

		CHECK_FOR_INTERRUPTS();
		*size += add_row(row, arrays, output, before);
		MemoryContextSwitchTo(before);
		ResetExprContext(temporary);
		if (*size / 1024 > tessera_sent_rows_limit)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("what the statement reads elsewhere for its shards exceeds %d kB", tessera_sent_rows_limit),
					 errhint("Modify fewer rows at a time, colocate the tables by their shard key, or raise tessera.sent_rows_limit.")));
	}
	for (int i = 0; i < desc->natts; i++)
	{
		values->values[first + i] = makeArrayResult(arrays[i], CurrentMemoryContext);
		values->nulls[first + i] = false;
	}
	ExecDropSingleTupleTableSlot(row);
	tuplestore_end(rows);
	return desc->natts;
}

/* Not if the statement will be planned again: then that plan reads. */
static void
read_elsewhere(StatementState *state)
{
	const TesseraRouting *routing = tessera_routing();
	Size		size = 0;
	int			first = 0;
	ListCell   *cell;

	if (list_nth(state->scan.private, STATEMENT_READS) == NIL || routing == NULL || !choose_targets(state, routing))
		return;
	start_reads(state, 0);
	foreach(cell, state->reads)
		first += read_columns(state, lfirst(cell), first, &size);
	state->has_read = true;
}

/* Routes and sends the request's query until its shards take it, or starts another plan. */
static void
run(StatementState *state, TesseraShardRunRequest *request)
{
	TesseraRoute route = {.owner = state, .choose = choose_run, .stale = begin_anew};

	request->relids = list_concat_copy(list_nth(state->scan.private, STATEMENT_PLACED), list_nth(state->scan.private, STATEMENT_SHARDED));
	if (!state->evaluated)
	{
		tessera_values_evaluate(&state->scan.values, &state->scan.css);
		read_elsewhere(state);
	}
	state->evaluated = true;
	if ((state->scan.flags & STATEMENT_CURRENT_OF) && !find_current_row(state))
	{
		state->nothing = true;
		return;
	}
	route.fixed = (state->scan.flags & STATEMENT_CURRENT_OF) ? state->current.routing : state->scan.routing;
	(void) tessera_scan_run(&state->scan, &route, request);
}

static void
start(StatementState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
	TesseraShardRunRequest request = {
		.query = state->scan.query,
		.values = state->scan.values.values,
		.nulls = state->scan.values.nulls,
		.write = (state->scan.flags & STATEMENT_WRITES) != 0,
		.statement = state->held ? tessera_statement_number(estate)->kept.number : 0,
		.cursor = state->held,
		.instrument = estate->es_instrument,
	};

	tessera_stat_count((state->scan.flags & STATEMENT_MANY) ? TESSERA_STAT_WHOLE : TESSERA_STAT_T1);
	run(state, &request);
	state->started = true;
	MemoryContextSwitchTo(before);
}

/* The shard takes the cursor's snapshot now and runs the statement at the fetch. */
static void
hold(StatementState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	TesseraShardRunRequest request = {
		.query = tessera_remote_query_probe(state->scan.query),
		.values = state->scan.values.values,
		.nulls = state->scan.values.nulls,
		.statement = tessera_statement_number(estate)->kept.number,
	};

	state->held = true;
	run(state, &request);
	if (state->nested)
	{
		state->started = true;
		return;
	}
	tessera_scan_keep_opening(&state->scan, &request);
	tessera_scan_stop(&state->scan);
}

static void
open_scan(void *scan)
{
	StatementState *state = scan;

	if (tessera_cursor_holds(((CustomScan *) state->scan.css.ss.ps.plan)->custom_exprs, (state->scan.flags & STATEMENT_WRITES) != 0))
		hold(state);
	else
		start(state);
}

static TupleTableSlot *
next_nested(StatementState *state)
{
	TupleTableSlot *slot = tessera_nested_next(state->nested);

	if (state->scan.flags & STATEMENT_DML)
		state->scan.css.ss.ps.state->es_processed = state->nested->estate->es_processed;
	return slot;
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	StatementState *state = (StatementState *) scan;
	EState	   *estate = scan->css.ss.ps.state;
	TupleTableSlot *slot;

	if (!state->started)
		start(state);
	if (state->nothing)
		return NULL;
	if (state->nested)
		return next_nested(state);
	if (!(state->scan.flags & STATEMENT_RETURNS_ROWS))
	{
		estate->es_processed += tessera_shard_run_complete(state->scan.run);
		return NULL;
	}
	/* Rows of RETURNING count as they are handed out, as core counts them: a caller that wants only some stops in between. */
	slot = tessera_shard_run_next(scan->run, scan->css.ss.ss_ScanTupleSlot);
	if (slot != NULL && (state->scan.flags & STATEMENT_DML))
		estate->es_processed++;
	if (slot == NULL && (state->scan.flags & STATEMENT_DML))
		(void) tessera_shard_run_complete(state->scan.run);
	return slot;
}

/* Ends the nested plans; scan_frame.c ends the run. */
static void
end(TesseraScan *scan)
{
	StatementState *state = (StatementState *) scan;

	tessera_nested_end(scan, state->nested);
	state->nested = NULL;
	end_reads(state);
}

static void
rescan(TesseraScan *scan)
{
	StatementState *state = (StatementState *) scan;

	tessera_scan_stop(scan);
	end(scan);
	state->started = false;
	state->evaluated = false;
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	CustomScanState *node = &scan->css;
	TupleDesc	desc;

	scan->flags = intVal(list_nth(scan->private, STATEMENT_FLAGS));
	scan->tier = (scan->flags & STATEMENT_MANY) ? "whole statement" : "T1";
	tessera_values_init(&scan->values, node);
	desc = (scan->flags & STATEMENT_RETURNS_ROWS) ? node->ss.ss_ScanTupleSlot->tts_tupleDescriptor : NULL;
	scan->query = tessera_remote_query_make(list_nth(scan->private, STATEMENT_SQL), intVal(list_nth(scan->private, STATEMENT_NPARAMS)),
											scan->values.types, desc, list_length(((CustomScan *) node->ss.ps.plan)->custom_scan_tlist), NULL);
	scan->query->once = (scan->flags & STATEMENT_ONCE) != 0;
	open_relations(estate);
	if (tessera_opens_cursor(eflags))
		tessera_open_in_cursor(open_scan, scan, estate);
	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		start_reads((StatementState *) scan, eflags);
}

/* Without parameters at hand (a generic plan explained) the shard is not known. Nor is it asked of a volatile function, which may do something. */
static void
explain(TesseraScan *scan, ExplainState *es)
{
	StatementState *state = (StatementState *) scan;
	const TesseraRouting *routing = tessera_routing();
	bool		known = !state->started && routing != NULL && tessera_scan_knows_values(scan);
	ListCell   *cell;

	if (known && !choose_targets(state, routing))
		scan->ntargets = 0;
	tessera_scan_explain_query(scan, es, routing, known && !es->analyze && (scan->ntargets <= 1 || (scan->flags & STATEMENT_MANY)));
	foreach(cell, state->reads)
		tessera_explain_nested(es, lfirst(cell), "Read");
	if (es->analyze && state->nested)
		tessera_explain_nested(es, state->nested, "Instead");
}

const TesseraScanKind tessera_statement_scan = {
	TESSERA_SCAN_METHODS("Tessera"), .size = sizeof(StatementState), .begin = begin, .next = next, .end = end, .rescan = rescan, .explain = explain,
};
