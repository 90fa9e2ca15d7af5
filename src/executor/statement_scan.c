/*
 * statement_scan.c
 *	  Executor of whole statements: T1 (one shard, chosen at execution), and DML that goes whole to every shard of its group.
 *
 * Begin prepares expressions only. The first Exec evaluates parameters and keys once, routes by the current image, runs, and routes again as long as
 * a shard finds it stale. If the pins fall on different shards, or a table was sharded since, another plan of the same Query runs instead, nested. A
 * cursor is routed, and asks its shard, when it opens (cursor.h).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/explain.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "executor/current_of.h"
#include "executor/cursor.h"
#include "executor/explain_shards.h"
#include "executor/plan_private.h"
#include "executor/route_loop.h"
#include "executor/targets.h"
#include "executor/values.h"
#include "transaction/participant.h"

TesseraNestedPlanner tessera_nested_planner = NULL;

typedef struct StatementState
{
	CustomScanState css;
	TesseraValues values;		/* parameters, then keys */
	int			flags;
	TesseraRemoteQuery *query;
	TesseraRun *run;
	TesseraFigures figures;		/* of runs that have ended */
	bool		started;
	bool		evaluated;		/* the values are */
	bool		held;			/* in a cursor: runs at the first fetch; the shard has its snapshot */
	const TesseraRouting *routing;	/* what it was opened with */
	Snapshot	snapshot;		/* and under which snapshot, if not the statement's own */
	QueryDesc  *nested;			/* another plan of the statement, if this one does not fit */
	int			ntargets;
	int32	   *targets;
	TesseraCursorRow current;	/* of WHERE CURRENT OF */
	bool		nothing;		/* it has no row of the table */
} StatementState;

static Node *create_state(CustomScan *scan);
static void open_scan(void *scan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

const CustomScanMethods tessera_statement_methods = {"Tessera", create_state};

static const CustomExecMethods exec_methods = {
	.CustomName = "Tessera",
	.BeginCustomScan = begin,
	.ExecCustomScan = next,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static Node *
create_state(CustomScan *scan)
{
	StatementState *state = (StatementState *) newNode(sizeof(StatementState), T_CustomScanState);

	state->css.methods = &exec_methods;
	return (Node *) state;
}

static List *
private_of(StatementState *state)
{
	return ((CustomScan *) state->css.ss.ps.plan)->custom_private;
}

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

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	StatementState *state = (StatementState *) node;
	CustomScan *scan = (CustomScan *) node->ss.ps.plan;
	List	   *private = scan->custom_private;

	state->flags = intVal(list_nth(private, STATEMENT_FLAGS));
	tessera_values_init(&state->values, node);
	state->query = tessera_remote_query_make(strVal(list_nth(private, STATEMENT_SQL)), intVal(list_nth(private, STATEMENT_NPARAMS)),
											 state->values.types,
											 (state->flags & STATEMENT_RETURNS_ROWS) ? node->ss.ss_ScanTupleSlot->tts_tupleDescriptor : NULL,
											 list_length(scan->custom_scan_tlist), NULL);
	open_relations(estate);
	if (tessera_opens_cursor(eflags))
		tessera_open_in_cursor(open_scan, state, estate);
}

/* Returns false if a table's placement changed its nature since the statement was planned (sharded meanwhile): plan again. */
static bool
choose_targets(StatementState *state, const TesseraRouting *routing)
{
	if (state->targets == NULL)
		state->targets = MemoryContextAlloc(state->css.ss.ps.state->es_query_cxt, sizeof(int32) * TESSERA_MAX_NODES);
	state->ntargets = tessera_targets_of_statement(private_of(state), routing, state->values.values, state->values.nulls, state->values.types,
												   state->targets);
	return state->ntargets > 0;
}

/*
 * Another plan of the same statement answers, nested: the general one if the pins fell on different shards, a fresh one if this one is outdated.
 */
static void
start_nested(StatementState *state, bool outdated)
{
	Query	   *query = (Query *) list_nth(private_of(state), STATEMENT_QUERY);
	EState	   *estate = state->css.ss.ps.state;
	PlannedStmt *plan;

	if (!outdated && query->commandType != CMD_INSERT && query->commandType != CMD_SELECT && !query->hasModifyingCTE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the rows that the statement modifies and reads lie on different shards"),
				 errhint("Give all tables the same shard key value, or split the statement.")));
	plan = tessera_nested_planner(copyObject(query), estate->es_sourceText, estate->es_param_list_info, outdated);
	state->nested = CreateQueryDesc(plan, estate->es_sourceText, estate->es_snapshot, InvalidSnapshot, None_Receiver, estate->es_param_list_info,
									estate->es_queryEnv, estate->es_instrument);
	standard_ExecutorStart(state->nested, estate->es_top_eflags & TESSERA_EXEC_FOR_WRITE);
}

static bool
may_autocommit(StatementState *state, const TesseraRunRequest *request)
{
	if (request->statement != 0)
		return false;
	if ((state->flags & STATEMENT_WRITES) == 0)
		return !IsolationUsesXactSnapshot();
	return state->ntargets == 1 && state->targets[0] != request->routing->self && tessera_autocommit_write_allowed();
}

/* The row of WHERE CURRENT OF: its ctid is a parameter of the text. false: the cursor's row has none of the table. */
static bool
find_current_row(StatementState *state)
{
	TesseraCursorRow *row = &state->current;
	Query	   *query = (Query *) list_nth(private_of(state), STATEMENT_QUERY);
	Oid			relid = rt_fetch(query->resultRelation, query->rtable)->relid;
	int			position = intVal(list_nth(private_of(state), STATEMENT_POSITION));

	if (!tessera_cursor_row(castNode(CurrentOfExpr, query->jointree->quals), state->css.ss.ps.state, relid, row))
		return false;
	state->values.values[position] = PointerGetDatum(&row->ctid);
	state->values.nulls[position] = false;
	return true;
}

/* false: another plan has been started instead. */
static bool
choose_run(TesseraRoute *route, TesseraRunRequest *request)
{
	StatementState *state = route->owner;
	bool		fits = request->routing != NULL && choose_targets(state, request->routing);

	if (!fits || (state->ntargets > 1 && !(state->flags & STATEMENT_MANY)))
	{
		start_nested(state, !fits);
		return false;
	}
	if (state->flags & STATEMENT_CURRENT_OF)
	{
		state->ntargets = 1;
		state->targets[0] = state->current.node_id;
	}
	request->ntargets = state->ntargets;
	request->targets = state->targets;
	request->autocommit = may_autocommit(state, request);
	return true;
}

static void
begin_anew(TesseraRoute *route, TesseraRunRequest *request)
{
	StatementState *state = route->owner;

	if (route->fixed)
		tessera_cursor_stale();
	if (state->held)
		request->statement = tessera_statement_number(state->css.ss.ps.state)->kept.number = tessera_next_statement();
}

/* Routes and sends the request's query until its shards take it, or starts another plan. */
static void
run(StatementState *state, TesseraRunRequest *request)
{
	TesseraRoute route = {.owner = state, .choose = choose_run, .stale = begin_anew};

	request->relids = list_concat_copy(list_nth(private_of(state), STATEMENT_PLACED), list_nth(private_of(state), STATEMENT_SHARDED));
	if (!state->evaluated)
		tessera_values_evaluate(&state->values, &state->css);
	state->evaluated = true;
	if ((state->flags & STATEMENT_CURRENT_OF) && !find_current_row(state))
	{
		state->nothing = true;
		return;
	}
	route.fixed = (state->flags & STATEMENT_CURRENT_OF) ? state->current.routing : state->routing;
	request->snapshot = state->snapshot ? state->snapshot : state->css.ss.ps.state->es_snapshot;
	state->run = tessera_run_make();
	(void) tessera_route(&route, state->run, request);
}

static void
start(StatementState *state)
{
	EState	   *estate = state->css.ss.ps.state;
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
	TesseraRunRequest request = {
		.query = state->query,
		.values = state->values.values,
		.nulls = state->values.nulls,
		.write = (state->flags & STATEMENT_WRITES) != 0,
		.statement = state->held ? tessera_statement_number(estate)->kept.number : 0,
		.cursor = state->held,
		.instrument = estate->es_instrument,
	};

	tessera_stat_count((state->flags & STATEMENT_MANY) ? TESSERA_STAT_WHOLE : TESSERA_STAT_T1);
	run(state, &request);
	state->started = true;
	MemoryContextSwitchTo(before);
}

/* The shard takes the cursor's snapshot now and runs the statement at the fetch. */
static void
hold(StatementState *state)
{
	EState	   *estate = state->css.ss.ps.state;
	TesseraRunRequest request = {
		.query = tessera_remote_query_probe(state->query),
		.values = state->values.values,
		.nulls = state->values.nulls,
		.statement = tessera_statement_number(estate)->kept.number,
	};

	state->held = true;
	run(state, &request);
	if (state->nested)
	{
		state->started = true;
		return;
	}
	state->routing = request.routing;
	state->snapshot = tessera_run_take_snapshot(state->run);
	tessera_run_end(state->run);
	state->run = NULL;
}

static void
open_scan(void *scan)
{
	StatementState *state = scan;

	if (tessera_cursor_holds(((CustomScan *) state->css.ss.ps.plan)->custom_exprs, (state->flags & STATEMENT_WRITES) != 0))
		hold(state);
	else
		start(state);
}

static TupleTableSlot *
next_nested(StatementState *state)
{
	TupleTableSlot *slot;

	ResetPerTupleExprContext(state->nested->estate);
	slot = ExecProcNode(state->nested->planstate);
	if (state->flags & STATEMENT_DML)
		state->css.ss.ps.state->es_processed = state->nested->estate->es_processed;
	if (TupIsNull(slot))
		return NULL;
	if (state->nested->estate->es_junkFilter)
		slot = ExecFilterJunk(state->nested->estate->es_junkFilter, slot);
	return slot;
}

static TupleTableSlot *
next(CustomScanState *node)
{
	StatementState *state = (StatementState *) node;
	EState	   *estate = node->ss.ps.state;
	TupleTableSlot *slot;

	if (!state->started)
		start(state);
	if (state->nothing)
		return NULL;
	if (state->nested)
		return next_nested(state);
	if (!(state->flags & STATEMENT_RETURNS_ROWS))
	{
		estate->es_processed += tessera_run_complete(state->run);
		return NULL;
	}
	/* Rows of RETURNING count as they are handed out, as core counts them: a caller that wants only some stops in between. */
	slot = tessera_run_next(state->run, node->ss.ss_ScanTupleSlot);
	if (slot != NULL && (state->flags & STATEMENT_DML))
		estate->es_processed++;
	if (slot == NULL && (state->flags & STATEMENT_DML))
		(void) tessera_run_complete(state->run);
	return slot;
}

static void
stop(StatementState *state)
{
	if (state->run)
	{
		tessera_figures_add(&state->figures, state->run, state->css.ss.ps.state->es_query_cxt);
		tessera_run_end(state->run);
	}
	state->run = NULL;
	if (state->nested)
	{
		standard_ExecutorFinish(state->nested);
		standard_ExecutorEnd(state->nested);
		FreeQueryDesc(state->nested);
	}
	state->nested = NULL;
	state->started = false;
	state->evaluated = false;
}

static void
end(CustomScanState *node)
{
	StatementState *state = (StatementState *) node;

	stop(state);
	if (state->snapshot)
		UnregisterSnapshot(state->snapshot);
	state->snapshot = NULL;
}

static void
rescan(CustomScanState *node)
{
	stop((StatementState *) node);
}

/*
 * Without parameters at hand (a generic plan explained) the shard is not known. Nor is it asked of a volatile function, which may do something.
 */
static bool
knows_values(StatementState *state)
{
	List	   *exprs = ((CustomScan *) state->css.ss.ps.plan)->custom_exprs;

	if (state->values.n > 0 && (contain_volatile_functions((Node *) exprs) ||
								(state->css.ss.ps.state->es_param_list_info == NULL && tessera_exprs_need_params(exprs))))
		return false;
	tessera_values_evaluate(&state->values, &state->css);
	return true;
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	StatementState *state = (StatementState *) node;
	const TesseraRouting *routing = tessera_routing();
	bool		known = !state->started && routing != NULL && knows_values(state);

	ExplainPropertyText("Tier", (state->flags & STATEMENT_MANY) ? "whole statement" : "T1", es);
	if (known && !choose_targets(state, routing))
		state->ntargets = 0;
	tessera_explain_shards(es, routing, state->ntargets, state->targets);
	if (es->verbose)
		ExplainPropertyText("Remote SQL", state->query->sql, es);
	if (known && es->verbose && !es->analyze && (state->ntargets <= 1 || (state->flags & STATEMENT_MANY)))
	{
		TesseraRunRequest request = {
			.query = state->query, .values = state->values.values, .nulls = state->values.nulls, .routing = routing, .ntargets = state->ntargets,
			.targets = state->targets, .snapshot = node->ss.ps.state->es_snapshot,
		};

		tessera_explain_plans(es, &request);
	}
	if (es->analyze && state->run)
		tessera_figures_add(&state->figures, state->run, node->ss.ps.state->es_query_cxt);
	tessera_explain_figures(es, routing, &state->figures);
	if (es->analyze && state->nested)
		tessera_explain_nested(es, state->nested, "Instead");
}
