/*
 * local_statement.c
 *	  The local plan in the place of the routed one; see local_statement.h.
 *
 * At ExecutorStart the keys are read off the plan (constants and parameters only: anything else is evaluated by the executor, in statement_scan.c),
 * the statement is routed, and if its one shard is this node, the local plan is taken from the plan cache and checked under the statement's snapshot,
 * as for any local part. What fits is put into the QueryDesc before core starts it; at ExecutorEnd the QueryDesc gets back what it came with.
 * Whatever does not fit (several shards, another node, found stale, EXPLAIN, other columns than the client was told) is left to the routed plan.
 *
 * Memory: a LocalStatement and its parameters live in the context that is current at ExecutorStart, above the executor's own; the list of those that
 * run is left when the executor's context goes, also by an error. The reference to the cached plan belongs to the resource owner of ExecutorStart,
 * which lets go of it after an error.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

#include "executor/cut.h"
#include "executor/local_part.h"
#include "executor/local_statement.h"
#include "executor/pinned_versions.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/shard_check.h"
#include "executor/targets.h"

/* Parameters and keys at most; a statement with more goes by the routed plan. */
#define MAX_VALUES 64

typedef struct LocalStatement
{
	dlist_node	node;
	QueryDesc  *query;
	PlannedStmt plan;			/* the cached plan's, but known by the routed one's query id and place in the text */
	ParamListInfo params;		/* of the local text */
	PlannedStmt *routed_plan;	/* what the QueryDesc came with */
	ParamListInfo routed_params;
	CachedPlan *cached;
	ResourceOwner owner;		/* of the reference to cached */
	MemoryContextCallback forget;
} LocalStatement;

typedef struct Values
{
	int			n;
	Datum		values[MAX_VALUES];
	bool		nulls[MAX_VALUES];
	Oid			types[MAX_VALUES];
} Values;

static dlist_head running = DLIST_STATIC_INIT(running);

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorEnd_hook_type previous_end = NULL;

/* The scan of a plan that may be answered here; NULL: it is none. EXPLAIN is to show the routed plan. */
static CustomScan *
routed_scan(QueryDesc *query, int eflags)
{
	CustomScan *scan = (CustomScan *) query->plannedstmt->planTree;

	if (scan == NULL || !IsA(scan, CustomScan) || scan->methods != &tessera_statement_scan.plan)
		return NULL;
	if (eflags != 0 || query->instrument_options != 0 || query->crosscheck_snapshot != InvalidSnapshot ||
		list_length(scan->custom_exprs) > MAX_VALUES ||
		(intVal(list_nth(scan->custom_private, STATEMENT_FLAGS)) & (STATEMENT_MANY | STATEMENT_ONCE)) != 0 ||
		list_nth(scan->custom_private, STATEMENT_READS) != NIL)
		return NULL;
	return scan;
}

static bool
read_values(List *exprs, ParamListInfo params, Values *out)
{
	ListCell   *cell;

	out->n = 0;
	foreach(cell, exprs)
	{
		if (!tessera_value_given(lfirst(cell), params, &out->values[out->n], &out->nulls[out->n]))
			return false;
		out->types[out->n++] = exprType(lfirst(cell));
	}
	return true;
}

static bool
belongs_here(List *private, const TesseraRouting *routing, const Values *values)
{
	int32		targets[TESSERA_MAX_NODES];

	return tessera_targets_of_statement(private, routing, values->values, values->nulls, values->types, targets) == 1 &&
		targets[0] == routing->self;
}

/* True if the local plan returns the columns that the routed one announces. */
static bool
same_columns(List *routed, List *local)
{
	int			n = 0;
	ListCell   *cell;

	foreach(cell, local)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		TargetEntry *announced;
		Node	   *expr = (Node *) entry->expr;
		Node	   *other;

		if (entry->resjunk)
			continue;
		if (n == list_length(routed))
			return false;
		announced = list_nth_node(TargetEntry, routed, n++);
		other = (Node *) announced->expr;
		if (exprType(expr) != exprType(other) || exprTypmod(expr) != exprTypmod(other) || exprCollation(expr) != exprCollation(other) ||
			strcmp(entry->resname ? entry->resname : "", announced->resname ? announced->resname : "") != 0)
			return false;
	}
	return n == list_length(routed);
}

/* True if the local plan may run now, under the statement's snapshot. Its locks are held. */
static bool
fits(QueryDesc *query, CustomScan *scan, const TesseraRouting *routing, PlannedStmt *plan, ParamListInfo params)
{
	TesseraRoutedBy routed = {.routing = routing};
	List	   *relids = NIL;

	if (plan->commandType != query->operation || !same_columns(scan->scan.plan.targetlist, plan->planTree->targetlist))
		return false;
	if (IsolationUsesXactSnapshot())
		relids = list_concat_copy(list_nth(scan->custom_private, STATEMENT_PLACED), list_nth(scan->custom_private, STATEMENT_SHARDED));
	/* before the check: a transaction's snapshot becomes the common one, in which the rows may have gone already */
	tessera_cut_transaction(routing, 0, NULL, NULL, query->snapshot);
	tessera_cut_renew(query->snapshot);
	tessera_pinned_check(routing, relids, 1, &routing->self);
	if (tessera_shard_check(plan, query->snapshot, params, &routed) == TESSERA_STALE)
		return false;
	tessera_pinned_note(routing, relids);
	return true;
}

/* The local plan that can take the place of the routed one; NULL if none can. Runs nothing of the statement. */
static LocalStatement *
find_local(QueryDesc *query, CustomScan *scan)
{
	List	   *private = scan->custom_private;
	const TesseraRouting *routing = tessera_routing();
	Values		values;
	int			nparams = intVal(list_nth(private, STATEMENT_NPARAMS));
	LocalStatement *local;
	ParamListInfo params;
	CachedPlan *cached;

	if (routing == NULL || !read_values(scan->custom_exprs, query->params, &values) || !belongs_here(private, routing, &values))
		return NULL;
	params = tessera_local_params(nparams, values.types, values.values, values.nulls);
	cached = tessera_local_plan(strVal(linitial(list_nth(private, STATEMENT_SQL))), nparams, values.types, params);
	if (!fits(query, scan, routing, linitial_node(PlannedStmt, cached->stmt_list), params))
	{
		ReleaseCachedPlan(cached, CurrentResourceOwner);
		return NULL;
	}
	local = palloc(sizeof(LocalStatement));
	local->query = query;
	local->plan = *linitial_node(PlannedStmt, cached->stmt_list);
	local->plan.queryId = query->plannedstmt->queryId;
	local->plan.stmt_location = query->plannedstmt->stmt_location;
	local->plan.stmt_len = query->plannedstmt->stmt_len;
	local->params = params;
	local->routed_plan = query->plannedstmt;
	local->routed_params = query->params;
	local->cached = cached;
	local->owner = CurrentResourceOwner;
	return local;
}

/* The executor's context goes away: at the end of the statement, or with its portal after an error. */
static void
forget(void *local)
{
	dlist_delete(&((LocalStatement *) local)->node);
}

static void
executor_start(QueryDesc *query, int eflags)
{
	CustomScan *scan = routed_scan(query, eflags);
	LocalStatement *local = scan ? find_local(query, scan) : NULL;

	if (local)
	{
		query->plannedstmt = &local->plan;
		query->params = local->params;
	}
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (local)
	{
		dlist_push_head(&running, &local->node);
		local->forget.func = forget;
		local->forget.arg = local;
		MemoryContextRegisterResetCallback(query->estate->es_query_cxt, &local->forget);
	}
}

static LocalStatement *
find_running(QueryDesc *query)
{
	dlist_iter	iter;

	dlist_foreach(iter, &running)
	{
		LocalStatement *local = dlist_container(LocalStatement, node, iter.cur);

		if (local->query == query)
			return local;
	}
	return NULL;
}

static void
executor_end(QueryDesc *query)
{
	LocalStatement *local = find_running(query);

	if (previous_end)
		previous_end(query);
	else
		standard_ExecutorEnd(query);
	if (local)
	{
		query->plannedstmt = local->routed_plan;
		query->params = local->routed_params;
		ReleaseCachedPlan(local->cached, local->owner);
		if (local->params)
			pfree(local->params);
		pfree(local);
	}
}

void
tessera_local_statement_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = executor_end;
}
