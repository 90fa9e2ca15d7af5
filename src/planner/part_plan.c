/*
 * part_plan.c
 *	  Each WITH query of a statement becomes a statement of its own, whose rows the others read from a tuple store; see part_plan.h.
 *
 * The tuple store goes by an ephemeral name in the executor's query environment, so a reference to a WITH query only changes its kind of range table
 * entry. Parts are planned by the planner hook like any statement, each by its best tier.
 */
#include "postgres.h"

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"

#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "planner/part_plan.h"
#include "planner/statement_plan.h"

typedef struct ReferenceContext
{
	List	   *ctes;			/* of the statement */
	int			depth;			/* levels between the query looked at and the statement */
} ReferenceContext;

static char *
part_name(const char *cte)
{
	return psprintf("tessera part %s", cte);
}

static void
refer_to_part(RangeTblEntry *rte, ReferenceContext *context)
{
	ListCell   *cell;

	if (rte->rtekind != RTE_CTE || rte->ctelevelsup != context->depth)
		return;
	foreach(cell, context->ctes)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, cell);

		if (strcmp(cte->ctename, rte->ctename) != 0)
			continue;
		rte->rtekind = RTE_NAMEDTUPLESTORE;
		rte->enrname = part_name(cte->ctename);
		rte->enrtuples = 1000;
		rte->ctename = NULL;
		rte->ctelevelsup = 0;
		return;
	}
}

static bool
reference_walker(Node *node, ReferenceContext *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		refer_to_part((RangeTblEntry *) node, context);
		return false;
	}
	if (IsA(node, Query))
	{
		context->depth++;
		(void) query_tree_walker((Query *) node, reference_walker, context, QTW_EXAMINE_RTES_BEFORE);
		context->depth--;
		return false;
	}
	return expression_tree_walker(node, reference_walker, context);
}

/* A copy of the query with references to parts; depth: of its own range table below the statement. */
static Query *
part_query(Query *query, List *ctes, int depth)
{
	Query	   *part = copyObject(query);
	ReferenceContext context = {.ctes = ctes, .depth = depth};

	if (depth == 0)
	{
		part->cteList = NIL;
		part->hasModifyingCTE = false;
		part->hasRecursive = false;
	}
	(void) query_tree_walker(part, reference_walker, &context, QTW_EXAMINE_RTES_BEFORE);
	return part;
}

PlannedStmt *
tessera_plan_parts(Query *query, const char *source, int cursor_options, ParamListInfo params, TesseraReason *reason)
{
	List	   *plans = NIL;
	List	   *names = NIL;
	CustomScan *scan;
	ListCell   *cell;

	foreach(cell, query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, cell);
		Query	   *part = (Query *) cte->ctequery;

		if (cte->cterecursive)
		{
			reason->text = "it has a recursive WITH query beside one that modifies data";
			reason->hint = "Split the statement.";
			return NULL;
		}
		if (part->commandType == CMD_SELECT && cte->cterefcount == 0)
			continue;
		part = part_query(part, query->cteList, 1);
		plans = lappend(plans, tessera_nested_planner(part, source, params, true));
		names = lappend(names, makeString(part_name(cte->ctename)));
	}
	plans = lappend(plans, tessera_nested_planner(part_query(query, query->cteList, 0), source, params, true));

	scan = makeNode(CustomScan);
	scan->methods = &tessera_part_scan.plan;
	scan->custom_scan_tlist = tessera_output_list(query->commandType == CMD_SELECT ? query->targetList : query->returningList);
	scan->custom_private = list_make3(plans, names, makeInteger(query->commandType == CMD_SELECT ? 0 : STATEMENT_DML));
	Assert(list_length(scan->custom_private) == PARTS_COUNT);
	return tessera_wrap_plan(query, scan, cursor_options);
}
