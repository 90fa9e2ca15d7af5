/*
 * table_copy.c
 *	  Plans of SELECTs of columns of one table; see table_copy.h.
 *
 * Nothing is kept.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "utils/rel.h"

#include "common/version_compat.h"
#include "planner/exact_columns.h"
#include "planner/table_copy.h"
#include "planner/table_path.h"

static bool
is_table(const RangeTblEntry *rte)
{
	return rte->rtekind == RTE_RELATION && rte->relkind == RELKIND_RELATION && !rte->inh && rte->tablesample == NULL && rte->securityQuals == NIL;
}

bool
tessera_copies_table(const Query *query)
{
	ListCell   *cell;

	if (query->commandType != CMD_SELECT || list_length(query->rtable) != 1 || !is_table(linitial(query->rtable)) ||
		list_length(query->jointree->fromlist) != 1 || query->jointree->quals != NULL || query->cteList != NIL || query->rowMarks != NIL ||
		query->groupClause != NIL || query->groupingSets != NIL || query->havingQual != NULL || query->distinctClause != NIL ||
		query->sortClause != NIL || query->limitCount != NULL || query->limitOffset != NULL)
		return false;
	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *column = (Node *) entry->expr;

		if (tessera_is_exact_text(entry->expr))
			column = linitial(((FuncExpr *) column)->args);
		if (entry->resjunk || !IsA(column, Var) || ((Var *) column)->varattno <= 0)
			return false;
	}
	return true;
}

PlannedStmt *
tessera_plan_table_copy(Query *query)
{
	RangeTblEntry *rte = linitial_node(RangeTblEntry, query->rtable);
	Relation	relation = table_open(rte->relid, NoLock);
	Expr	   *filter = tessera_owned_filter(1, relation);
	SeqScan    *scan = makeNode(SeqScan);
	PlannedStmt *plan = makeNode(PlannedStmt);
	List	   *permissions = NIL;

	scan->scan.scanrelid = 1;
	scan->scan.plan.targetlist = query->targetList;
	scan->scan.plan.qual = filter ? list_make1(filter) : NIL;
	scan->scan.plan.plan_rows = clamp_row_est(Max(relation->rd_rel->reltuples, 1000));
	scan->scan.plan.plan_width = 32;
	scan->scan.plan.total_cost = scan->scan.plan.plan_rows * cpu_tuple_cost + Max(relation->rd_rel->relpages, 0) * seq_page_cost;
	table_close(relation, NoLock);
	plan->commandType = CMD_SELECT;
	plan->queryId = query->queryId;
	plan->canSetTag = query->canSetTag;
	plan->dependsOnRole = query->hasRowSecurity;
	plan->planTree = (Plan *) scan;
	tessera_move_permissions(query, rte, &permissions);
	tessera_set_plan_relations(plan, list_make1(rte), permissions);
	plan->relationOids = list_make1_oid(rte->relid);
	plan->stmt_location = query->stmt_location;
	plan->stmt_len = query->stmt_len;
	return plan;
}
