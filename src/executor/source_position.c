/*
 * source_position.c
 *	  tessera.source_position(): which of the rows of VALUES an INSERT returns; see source_position.h.
 *
 * Core takes a row from VALUES, writes it and computes its RETURNING before it takes the next one. So in RETURNING the row is the one at which the
 * scan of VALUES stands. A statement that begins within another one (in a trigger) returns all its rows before the outer one goes on: of those that
 * have started, the innermost asks.
 *
 * Memory: a statement's record lives in the executor's context, and leaves the list with it, also by an error.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "executor/source_position.h"

PG_FUNCTION_INFO_V1(tessera_source_position);

typedef struct Statement
{
	dlist_node	node;
	ValuesScanState *values;
	MemoryContextCallback forget;
} Statement;

static dlist_head statements = DLIST_STATIC_INIT(statements);	/* innermost first */

Oid
tessera_source_position_function(void)
{
	Oid			namespace = get_namespace_oid("tessera", true);

	return !OidIsValid(namespace) ? InvalidOid :
		GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("source_position"), PointerGetDatum(buildoidvector(NULL, 0)),
						ObjectIdGetDatum(namespace));
}

/* True if the function stands last in the INSERT's RETURNING, where routers write it. */
static bool
returns_position(const PlannedStmt *statement)
{
	ModifyTable *plan = (ModifyTable *) statement->planTree;
	FuncExpr   *last;

	if (!statement->hasReturning || statement->commandType != CMD_INSERT || !IsA(plan, ModifyTable) || plan->returningLists == NIL)
		return false;
	last = (FuncExpr *) llast_node(TargetEntry, linitial_node(List, plan->returningLists))->expr;
	return IsA(last, FuncExpr) && last->args == NIL && last->funcid == tessera_source_position_function();
}

/* The scan of VALUES below a node of the plan; NULL: the rows come from elsewhere. */
static ValuesScanState *
values_below(PlanState *node)
{
	while (node != NULL && !IsA(node, ValuesScanState))
		node = IsA(node, SubqueryScanState) ? ((SubqueryScanState *) node)->subplan : outerPlanState(node);
	return (ValuesScanState *) node;
}

static void
forget(void *statement)
{
	dlist_delete(&((Statement *) statement)->node);
}

void
tessera_source_position_started(QueryDesc *query)
{
	ValuesScanState *values = returns_position(query->plannedstmt) ? values_below(query->planstate) : NULL;
	Statement  *statement;

	if (values == NULL)
		return;
	statement = MemoryContextAlloc(query->estate->es_query_cxt, sizeof(Statement));
	statement->values = values;
	dlist_push_head(&statements, &statement->node);
	statement->forget.func = forget;
	statement->forget.arg = statement;
	MemoryContextRegisterResetCallback(query->estate->es_query_cxt, &statement->forget);
}

Datum
tessera_source_position(PG_FUNCTION_ARGS)
{
	if (dlist_is_empty(&statements))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("tessera.source_position stands in statements of routers only"),
				 errhint("The planner uses this function; there is no need to call it.")));
	PG_RETURN_INT64(dlist_head_element(Statement, node, &statements)->values->curr_idx);
}
