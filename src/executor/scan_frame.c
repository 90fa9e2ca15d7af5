/*
 * scan_frame.c
 *	  The frame of tessera's plan nodes; see scan_frame.h.
 *
 * A scan has at most one run open at a time. It is ended at a rescan and at the end; after an error it goes with the memory context in which it was
 * made.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "executor/tstoreReceiver.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/snapmgr.h"

#include "common/version_compat.h"
#include "executor/cursor.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"

Node *
tessera_scan_create(CustomScan *plan)
{
	const TesseraScanKind *kind = (const TesseraScanKind *) plan->methods;
	TesseraScan *scan = (TesseraScan *) newNode(kind->size, T_CustomScanState);

	scan->css.methods = &kind->exec;
	scan->kind = kind;
	return (Node *) scan;
}

void
tessera_scan_begin(CustomScanState *node, EState *estate, int eflags)
{
	TesseraScan *scan = (TesseraScan *) node;

	scan->private = ((CustomScan *) node->ss.ps.plan)->custom_private;
	scan->kind->begin(scan, estate, eflags);
}

TupleTableSlot *
tessera_scan_exec(CustomScanState *node)
{
	TesseraScan *scan = (TesseraScan *) node;

	return scan->kind->next(scan);
}

void
tessera_scan_end(CustomScanState *node)
{
	TesseraScan *scan = (TesseraScan *) node;

	tessera_scan_stop(scan);
	if (scan->kind->end)
		scan->kind->end(scan);
	tessera_scan_forget_opening(scan);
}

void
tessera_scan_rescan(CustomScanState *node)
{
	TesseraScan *scan = (TesseraScan *) node;

	if (scan->kind->rescan == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be run again within a statement", scan->kind->once)));
	scan->kind->rescan(scan);
}

void
tessera_scan_explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	TesseraScan *scan = (TesseraScan *) node;

	ExplainPropertyText("Tier", scan->tier, es);
	if (es->analyze && scan->run)
		tessera_figures_add(&scan->figures, scan->run, node->ss.ps.state->es_query_cxt);
	scan->kind->explain(scan, es);
}

/* ---- runs ---- */

bool
tessera_scan_run(TesseraScan *scan, TesseraRoute *route, TesseraShardRunRequest *request)
{
	int			path;
	bool		routed;

	if (scan->snapshot)
		request->snapshot = scan->snapshot;
	else if (request->snapshot == NULL)
		request->snapshot = scan->css.ss.ps.state->es_snapshot;
	request->parts = scan->parts;
	request->timeless = (scan->flags & STATEMENT_TIMELESS) != 0;
	if (scan->parts && scan->parts->begun)
		route->first = scan->parts->routing;
	scan->run = tessera_shard_run_make();
	path = tessera_cursor_path_begin(scan->css.ss.ps.state);
	routed = tessera_route(route, scan->run, request);
	tessera_cursor_path_end(path);
	return routed;
}

void
tessera_scan_stop(TesseraScan *scan)
{
	if (scan->run == NULL)
		return;
	tessera_figures_add(&scan->figures, scan->run, scan->css.ss.ps.state->es_query_cxt);
	tessera_shard_run_end(scan->run);
	scan->run = NULL;
}

void
tessera_scan_keep_opening(TesseraScan *scan, const TesseraShardRunRequest *request)
{
	scan->routing = request->routing;
	scan->snapshot = tessera_shard_run_take_snapshot(scan->run);
}

void
tessera_scan_forget_opening(TesseraScan *scan)
{
	if (scan->snapshot)
		UnregisterSnapshot(scan->snapshot);
	scan->snapshot = NULL;
	scan->routing = NULL;
}

bool
tessera_scan_knows_values(TesseraScan *scan)
{
	List	   *exprs = ((CustomScan *) scan->css.ss.ps.plan)->custom_exprs;

	if (tessera_needs_running_plan(exprs) || contain_volatile_functions((Node *) exprs) ||
		(scan->css.ss.ps.state->es_param_list_info == NULL && tessera_exprs_need_params(exprs)))
		return false;
	tessera_values_evaluate(&scan->values, &scan->css);
	return true;
}

void
tessera_scan_explain_query(TesseraScan *scan, ExplainState *es, const TesseraRouting *routing, bool plans)
{
	tessera_explain_shards(es, routing, scan->ntargets, scan->targets);
	if (es->verbose)
		ExplainPropertyText("Remote SQL", scan->query->text, es);
	if (plans && es->verbose)
	{
		TesseraShardRunRequest request = {
			.query = scan->query, .values = scan->values.values, .nulls = scan->values.nulls, .routing = routing, .ntargets = scan->ntargets,
			.targets = scan->targets, .snapshot = scan->css.ss.ps.state->es_snapshot,
		};

		tessera_explain_plans(es, &request);
	}
	tessera_explain_figures(es, routing, &scan->figures);
}

/* ---- plans within the scan's ---- */

QueryDesc *
tessera_nested_start(TesseraScan *scan, PlannedStmt *plan, QueryEnvironment *environment, int eflags)
{
	EState	   *estate = scan->css.ss.ps.state;
	QueryDesc  *query = CreateQueryDesc(plan, estate->es_sourceText, estate->es_snapshot, InvalidSnapshot, None_Receiver, estate->es_param_list_info,
										environment, estate->es_instrument);
	MemoryContext before;

	/* what is read for a write in there is part of it */
	standard_ExecutorStart(query, eflags | (estate->es_top_eflags & TESSERA_EXEC_FOR_WRITE));
	before = MemoryContextSwitchTo(estate->es_query_cxt);
	scan->nested = lappend(scan->nested, query);
	MemoryContextSwitchTo(before);
	if (scan->parts)
		tessera_nested_join(query, scan->parts);
	return query;
}

static bool
join_parts(PlanState *node, void *parts)
{
	TesseraScan *scan = (TesseraScan *) node;
	ListCell   *cell;

	if (node == NULL)
		return false;
	if (IsA(node, CustomScanState) && scan->css.methods->BeginCustomScan == tessera_scan_begin)
	{
		scan->parts = parts;
		foreach(cell, scan->nested)
			tessera_nested_join(lfirst(cell), parts);
	}
	return planstate_tree_walker(node, join_parts, parts);
}

void
tessera_nested_join(QueryDesc *query, TesseraParts *parts)
{
	(void) join_parts(query->planstate, parts);
}

TupleTableSlot *
tessera_nested_next(QueryDesc *query)
{
	TupleTableSlot *slot;

	ResetPerTupleExprContext(query->estate);
	slot = ExecProcNode(query->planstate);
	if (TupIsNull(slot))
		return NULL;
	return query->estate->es_junkFilter ? ExecFilterJunk(query->estate->es_junkFilter, slot) : slot;
}

void
tessera_nested_run(QueryDesc *query, Tuplestorestate *rows, bool detoast)
{
	if (rows)
	{
		query->dest = CreateDestReceiver(DestTuplestore);
		SetTuplestoreDestReceiverParams(query->dest, rows, CurrentMemoryContext, detoast, NULL, NULL);
	}
	tessera_run_to_end(standard_ExecutorRun, query);
	standard_ExecutorFinish(query);
}

void
tessera_nested_end(TesseraScan *scan, QueryDesc *query)
{
	if (query == NULL)
		return;
	scan->nested = list_delete_ptr(scan->nested, query);
	if (!query->estate->es_finished && !(query->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY))
		standard_ExecutorFinish(query);
	standard_ExecutorEnd(query);
	FreeQueryDesc(query);
}

void
tessera_nested_name(QueryEnvironment *environment, char *name, TupleDesc desc, Tuplestorestate *rows)
{
	EphemeralNamedRelation relation = palloc0(sizeof(EphemeralNamedRelationData));

	relation->md.name = name;
	relation->md.tupdesc = desc;
	relation->md.enrtype = ENR_NAMED_TUPLESTORE;
	relation->reldata = rows;
	register_ENR(environment, relation);
}

void
tessera_executor_init(void)
{
	RegisterCustomScanMethods(&tessera_statement_scan.plan);
	RegisterCustomScanMethods(&tessera_table_scan.plan);
	RegisterCustomScanMethods(&tessera_insert_scan.plan);
	RegisterCustomScanMethods(&tessera_part_scan.plan);
	RegisterCustomScanMethods(&tessera_key_update_scan.plan);
	RegisterCustomScanMethods(&tessera_row_trigger_scan.plan);
}
