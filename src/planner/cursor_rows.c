/*
 * cursor_rows.c
 *	  Plans of cursors whose rows can be gone back to, and changed by WHERE CURRENT OF; see cursor_rows.h.
 *
 * A row of a cursor is known by its shard and its ctid. Both are columns of the plan that are dropped before the user sees them, so they pass through
 * sorts and joins; executor/current_of.c reads them. The shard takes the place of tableoid, which is a constant for a table without children.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planmain.h"
#include "parser/parsetree.h"

#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "planner/cursor_rows.h"

/* ---- positions ---- */

/* True if each row of the query stands for one row of the table, by the rule of core for WHERE CURRENT OF. */
static bool
shows_rows(Query *query)
{
	return query->commandType == CMD_SELECT && !query->hasAggs && !query->hasWindowFuncs && !query->hasTargetSRFs && query->groupClause == NIL &&
		query->groupingSets == NIL && query->havingQual == NULL && query->distinctClause == NIL && query->setOperations == NULL;
}

/* With FOR UPDATE any table so marked, else the only one. */
static bool
may_be_named(Query *query, Index rti)
{
	ListCell   *cell;
	RangeTblRef *only;

	if (query->rowMarks == NIL)
	{
		only = list_length(query->jointree->fromlist) == 1 ? linitial(query->jointree->fromlist) : NULL;
		return only && IsA(only, RangeTblRef) && only->rtindex == rti;
	}
	foreach(cell, query->rowMarks)
		if (lfirst_node(RowMarkClause, cell)->rti == rti)
			return true;
	return false;
}

typedef struct FoldContext
{
	Index		rti;
	Oid			relid;
	int			sublevels;
} FoldContext;

/* Replaces the table's tableoid by a constant, since the column is about to carry the shard's number. */
static Node *
fold_tableoid(Node *node, FoldContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
	{
		Query	   *result;

		context->sublevels++;
		result = query_tree_mutator((Query *) node, fold_tableoid, context, 0);
		context->sublevels--;
		return (Node *) result;
	}
	if (IsA(node, Var))
	{
		Var		   *var = (Var *) node;

		if (var->varno == context->rti && var->varlevelsup == context->sublevels && var->varattno == TableOidAttributeNumber)
			return (Node *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(context->relid), false, true);
	}
	return expression_tree_mutator(node, fold_tableoid, context);
}

/* Its use is bounded to what one shard answers, which such a plan may not be. */
static bool
names_ctid(Node *node, FoldContext *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		bool		found;

		context->sublevels++;
		found = query_tree_walker((Query *) node, names_ctid, context, 0);
		context->sublevels--;
		return found;
	}
	if (IsA(node, Var))
		return ((Var *) node)->varno == context->rti && ((Var *) node)->varlevelsup == context->sublevels &&
			((Var *) node)->varattno == SelfItemPointerAttributeNumber;
	return expression_tree_walker(node, names_ctid, context);
}

static void
add_column(Query *query, Index rti, AttrNumber attribute, Oid type, const char *name)
{
	Var		   *var = makeVar(rti, attribute, type, -1, InvalidOid, 0);

	query->targetList = lappend(query->targetList,
								makeTargetEntry((Expr *) var, list_length(query->targetList) + 1, psprintf("%s%u", name, rti), true));
}

Query *
tessera_add_positions(Query *query, const TesseraRouting *routing)
{
	Query	   *result = NULL;

	if (!shows_rows(query))
		return NULL;
	for (Index rti = 1; rti <= list_length(query->rtable); rti++)
	{
		RangeTblEntry *rte = rt_fetch(rti, query->rtable);
		FoldContext fold = {.rti = rti, .relid = rte->relid};

		if (rte->rtekind != RTE_RELATION || rte->relkind != RELKIND_RELATION || rte->tablesample ||
			tessera_routing_table(routing, rte->relid) == NULL ||
			has_subclass(rte->relid) || !may_be_named(query, rti) || query_tree_walker(query, names_ctid, &fold, 0))
			continue;
		if (result == NULL)
			result = copyObject(query);
		(void) query_tree_mutator(result, fold_tableoid, &fold, QTW_DONT_COPY_QUERY);
		add_column(result, rti, SelfItemPointerAttributeNumber, TIDOID, TESSERA_CTID_COLUMN);
		add_column(result, rti, TableOidAttributeNumber, OIDOID, TESSERA_NODE_COLUMN);
	}
	return result;
}

bool
tessera_has_positions(Query *query, Index rti)
{
	ListCell   *cell;
	char	   *name = psprintf("%s%u", TESSERA_NODE_COLUMN, rti);

	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (entry->resjunk && entry->resname && strcmp(entry->resname, name) == 0)
			return true;
	}
	return false;
}

/* ---- backwards ---- */

bool
tessera_may_scroll(int cursor_options)
{
	return (cursor_options & CURSOR_OPT_FAST_PLAN) != 0 && (cursor_options & (CURSOR_OPT_SCROLL | CURSOR_OPT_NO_SCROLL)) == 0;
}

/* Marks scans of the cluster's tables as able to go back, or takes the mark off again. */
static void
mark_scans(Plan *plan, bool able)
{
	ListCell   *cell;

	if (plan == NULL)
		return;
	if (IsA(plan, CustomScan) && ((CustomScan *) plan)->methods == &tessera_table_scan.plan)
	{
		if (able)
			((CustomScan *) plan)->flags |= CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
		else
			((CustomScan *) plan)->flags &= ~CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
	}
	if (IsA(plan, Append))
		foreach(cell, ((Append *) plan)->appendplans)
			mark_scans(lfirst(cell), able);
	if (IsA(plan, SubqueryScan))
		mark_scans(((SubqueryScan *) plan)->subplan, able);
	mark_scans(plan->lefttree, able);
	mark_scans(plan->righttree, able);
}

/* The columns of a node above a finished plan, as core gives them to Sort and Material: setrefs.c. */
static List *
columns_below(List *below)
{
	List	   *columns = NIL;
	ListCell   *cell;

	foreach(cell, below)
	{
		TargetEntry *entry = flatCopyTargetEntry(lfirst_node(TargetEntry, cell));

		if (!IsA(entry->expr, Const))
			entry->expr = (Expr *) makeVar(OUTER_VAR, entry->resno, exprType((Node *) entry->expr), exprTypmod((Node *) entry->expr),
										   exprCollation((Node *) entry->expr), 0);
		columns = lappend(columns, entry);
	}
	return columns;
}

Plan *
tessera_materialize(Plan *plan)
{
	Plan	   *above = materialize_finished_plan(plan);

	above->targetlist = columns_below(plan->targetlist);
	return above;
}

PlannedStmt *
tessera_keep_rows(PlannedStmt *plan, bool whole)
{
	bool		goes_back;

	if (plan->rowMarks != NIL || plan->commandType != CMD_SELECT || ExecSupportsBackwardScan(plan->planTree))
		return plan;
	mark_scans(plan->planTree, true);
	goes_back = whole || ExecSupportsBackwardScan(plan->planTree);
	mark_scans(plan->planTree, false);
	if (goes_back)
		plan->planTree = tessera_materialize(plan->planTree);
	return plan;
}
