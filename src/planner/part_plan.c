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

#include "common/range_table.h"
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

/* SELECT all columns FROM a recursive WITH query, which stays one: its references to itself do, those to others are references to parts. */
static Query *
recursive_part(const CommonTableExpr *cte, List *ctes)
{
	Query	   *part;
	CommonTableExpr *own = copyObject((CommonTableExpr *) cte);
	RangeTblEntry *rows = makeNode(RangeTblEntry);
	ListCell   *cell;

	own->ctequery = (Node *) part_query((Query *) cte->ctequery, list_delete_ptr(list_copy(ctes), (void *) cte), 1);
	own->cterefcount = 1;
	rows->rtekind = RTE_CTE;
	rows->ctename = pstrdup(cte->ctename);
	rows->coltypes = list_copy(cte->ctecoltypes);
	rows->coltypmods = list_copy(cte->ctecoltypmods);
	rows->colcollations = list_copy(cte->ctecolcollations);
	rows->eref = makeAlias(cte->ctename, copyObject(cte->ctecolnames));
	rows->inFromCl = true;
	part = tessera_select_from(rows);
	part->hasRecursive = true;
	part->cteList = list_make1(own);
	foreach(cell, cte->ctecolnames)
	{
		int			column = foreach_current_index(cell);
		Var		   *var = makeVar(1, column + 1, list_nth_oid(cte->ctecoltypes, column), list_nth_int(cte->ctecoltypmods, column),
								  list_nth_oid(cte->ctecolcollations, column), 0);

		part->targetList = lappend(part->targetList, makeTargetEntry((Expr *) var, column + 1, pstrdup(strVal(lfirst(cell))), false));
	}
	return part;
}

PlannedStmt *
tessera_plan_parts(Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	List	   *plans = NIL;
	List	   *names = NIL;
	CustomScan *scan;
	ListCell   *cell;

	foreach(cell, query->cteList)
	{
		CommonTableExpr *cte = lfirst_node(CommonTableExpr, cell);
		Query	   *part = (Query *) cte->ctequery;

		if (part->commandType == CMD_SELECT && cte->cterefcount == 0)
			continue;
		part = cte->cterecursive ? recursive_part(cte, query->cteList) : part_query(part, query->cteList, 1);
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
