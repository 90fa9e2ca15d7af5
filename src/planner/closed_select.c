/*
 * closed_select.c
 *	  Plans of SELECTs that go whole to all shards; see closed_select.h, doc/design.md#closed-selects.
 *
 * The analysis has found that the rows of the answer are, key by key, those of the same statement on the rows of one key (pins.c). Rows of a key lie
 * on one shard, so the answer is what the shards answer, one after the other. What goes over all of it is done here, over the rows that come:
 * ORDER BY and LIMIT, by plan nodes of core's. Columns that are only sorted by are sent as well. A shard that has LIMIT rows has enough.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/planmain.h"
#include "optimizer/planner.h"
#include "optimizer/tlist.h"
#include "rewrite/rewriteManip.h"
#include "utils/fmgroids.h"

#include "catalog/portable_types.h"
#include "planner/closed_select.h"
#include "planner/cursor_rows.h"
#include "planner/statement_plan.h"

static bool
has_outer_join(Node *node)
{
	ListCell   *cell;

	if (IsA(node, JoinExpr))
		return ((JoinExpr *) node)->jointype != JOIN_INNER || has_outer_join(((JoinExpr *) node)->larg) ||
			has_outer_join(((JoinExpr *) node)->rarg);
	if (IsA(node, FromExpr))
		foreach(cell, ((FromExpr *) node)->fromlist)
			if (has_outer_join(lfirst(cell)))
				return true;
	return false;
}

/* Scans, inner joins, groups and first rows are the shards' work in a plan of core's, too, which needs not be of one group of tables. */
static bool
is_worth_it(const Query *query)
{
	ListCell   *cell;

	if (query->hasSubLinks || query->cteList != NIL || query->distinctClause != NIL || query->hasWindowFuncs ||
		has_outer_join((Node *) query->jointree))
		return true;
	foreach(cell, query->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_SUBQUERY && !OidIsValid(lfirst_node(RangeTblEntry, cell)->relid))
			return true;
	return false;
}

static bool
clauses_ship(List *clauses, List *targets)
{
	ListCell   *cell;

	foreach(cell, clauses)
		if (!tessera_order_ships(lfirst(cell), exprType(get_sortgroupclause_expr(lfirst(cell), targets))))
			return false;
	return true;
}

static bool
query_orders_ship(const Query *query)
{
	ListCell   *cell;

	foreach(cell, query->windowClause)
		if (!clauses_ship(lfirst_node(WindowClause, cell)->partitionClause, query->targetList) ||
			!clauses_ship(lfirst_node(WindowClause, cell)->orderClause, query->targetList))
			return false;
	return clauses_ship(query->sortClause, query->targetList) && clauses_ship(query->groupClause, query->targetList) &&
		clauses_ship(query->distinctClause, query->targetList);
}

/* True if something at some level compares, to sort or to group, what means another thing on another node, or makes its number of it. */
static bool
order_stays(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
		return !query_orders_ship((Query *) node) || query_tree_walker((Query *) node, order_stays, context, 0);
	if (IsA(node, Aggref) &&
		(!clauses_ship(((Aggref *) node)->aggorder, ((Aggref *) node)->args) ||
		 !clauses_ship(((Aggref *) node)->aggdistinct, ((Aggref *) node)->args)))
		return true;
	if (IsA(node, RelabelType) && ((RelabelType *) node)->resulttype == OIDOID &&
		tessera_type_names_object(exprType((Node *) ((RelabelType *) node)->arg)))
		return true;
	return expression_tree_walker(node, order_stays, context);
}

/* Rows that come in an order are expected to stay in it: INSERT ... SELECT ... ORDER BY numbers them so, and may have the first of each in mind. */
static bool
has_ordered_source(const Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
	{
		const Query *source = lfirst_node(RangeTblEntry, cell)->subquery;

		/* LATERAL is in order for each row around it */
		if (source != NULL && !lfirst_node(RangeTblEntry, cell)->lateral && (source->sortClause != NIL || has_ordered_source(source)))
			return true;
	}
	foreach(cell, query->cteList)
	{
		const Query *source = castNode(Query, lfirst_node(CommonTableExpr, cell)->ctequery);

		if (source->sortClause != NIL || has_ordered_source(source))
			return true;
	}
	return false;
}

/* Two of them do not overflow. NULL is no bound: LEAST() passes over it. */
static Expr *
bounded(Node *count)
{
	MinMaxExpr *least = makeNode(MinMaxExpr);

	least->minmaxtype = INT8OID;
	least->op = IS_LEAST;
	least->args = list_make2(count, makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(PG_INT64_MAX / 2), false, FLOAT8PASSBYVAL));
	least->location = -1;
	return (Expr *) least;
}

static bool
is_null(Node *node)
{
	return node == NULL || (IsA(node, Const) && ((Const *) node)->constisnull);
}

/* How many rows a shard gives at most: those that are skipped, too. NULL: all. */
static Node *
count_of_shard(const Query *query)
{
	Node	   *limit = eval_const_expressions(NULL, copyObject(query->limitCount));
	Node	   *offset = eval_const_expressions(NULL, copyObject(query->limitOffset));
	Node	   *sum;

	if (is_null(limit))
		return NULL;
	if (is_null(offset))
		offset = (Node *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(0), false, FLOAT8PASSBYVAL);
	sum = (Node *) makeFuncExpr(F_INT8PL, INT8OID, list_make2(bounded(limit), bounded(offset)), InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
	/* a constant of this type has a cast in the text, which FETCH FIRST does not allow */
	return query->limitOption == LIMIT_OPTION_WITH_TIES ? sum : eval_const_expressions(NULL, sum);
}

/* What the shards are sent. Columns that are only sorted by become columns, the last ones. */
static Query *
query_of_shards(const Query *query)
{
	Query	   *sent = copyObject((Query *) query);
	Node	   *count = count_of_shard(query);
	ListCell   *cell;
	int			added = 0;

	foreach(cell, sent->sortClause)
	{
		TargetEntry *entry = get_sortgroupclause_tle(lfirst(cell), sent->targetList);

		if (!entry->resjunk)
			continue;
		entry->resjunk = false;
		entry->resname = psprintf("order_%d", ++added);
	}
	sent->limitCount = count;
	sent->limitOffset = NULL;
	if (count == NULL)
	{
		sent->limitOption = LIMIT_OPTION_COUNT;
		/* DISTINCT ON goes by it */
		if (!sent->hasDistinctOn)
			sent->sortClause = NIL;
	}
	return sent;
}

/* The columns of the plan below, as a node above it has them. */
static List *
pass_columns(Plan *below, const Query *query)
{
	List	   *result = NIL;
	ListCell   *cell;
	int			visible = ExecCleanTargetListLength(query->targetList);

	foreach(cell, below->targetlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *expr = (Node *) entry->expr;
		TargetEntry *passed = flatCopyTargetEntry(entry);

		passed->expr = (Expr *) makeVar(OUTER_VAR, entry->resno, exprType(expr), exprTypmod(expr), exprCollation(expr), 0);
		passed->resjunk = entry->resno > visible;
		result = lappend(result, passed);
	}
	return result;
}

static void
put_above(PlannedStmt *plan, Plan *node, const Query *query)
{
	Plan	   *below = plan->planTree;

	node->targetlist = pass_columns(below, query);
	node->startup_cost = below->startup_cost;
	node->total_cost = below->total_cost;
	node->plan_rows = below->plan_rows;
	node->plan_width = below->plan_width;
	node->plan_node_id = below->plan_node_id + 1;
	plan->planTree = node;
}

/* So that the nodes above find what ORDER BY names. */
static void
mark_columns(Plan *scan, const Query *sent)
{
	ListCell   *cell;
	ListCell   *column = list_head(scan->targetlist);

	foreach(cell, sent->targetList)
	{
		if (lfirst_node(TargetEntry, cell)->resjunk)
			continue;
		lfirst_node(TargetEntry, column)->ressortgroupref = lfirst_node(TargetEntry, cell)->ressortgroupref;
		column = lnext(scan->targetlist, column);
	}
}

static Limit *
limit_plan(Plan *below, const Query *query)
{
	int			n = query->limitOption == LIMIT_OPTION_WITH_TIES ? list_length(query->sortClause) : 0;
	AttrNumber *columns = palloc(sizeof(AttrNumber) * Max(n, 1));
	Oid		   *operators = palloc(sizeof(Oid) * Max(n, 1));
	Oid		   *collations = palloc(sizeof(Oid) * Max(n, 1));

	for (int i = 0; i < n; i++)
	{
		SortGroupClause *clause = list_nth_node(SortGroupClause, query->sortClause, i);
		TargetEntry *entry = get_sortgroupclause_tle(clause, below->targetlist);

		columns[i] = entry->resno;
		operators[i] = clause->eqop;
		collations[i] = exprCollation((Node *) entry->expr);
	}
	return make_limit(below, (Node *) expression_planner((Expr *) copyObject(query->limitOffset)),
					  (Node *) expression_planner((Expr *) copyObject(query->limitCount)), query->limitOption, n, columns, operators, collations);
}

/* On whichever shard, and however often it is run. */
static bool
means_the_same(Query *query)
{
	return tessera_expression_ships((Node *) query) && !order_stays((Node *) query, NULL) && !contain_volatile_functions((Node *) query);
}

bool
tessera_insert_ships(Query *query)
{
	return means_the_same(query) && !has_ordered_source(query);
}

PlannedStmt *
tessera_plan_closed_select(Query *query, int cursor_options, const TesseraRouting *routing, const TesseraAnalysis *analysis)
{
	TesseraReason reason = {0};
	Query	   *sent;
	PlannedStmt *plan;

	/* views are still expanded here: what their functions read has to be there, too */
	if (query->commandType != CMD_SELECT || !analysis->all_closed || analysis->nother > 0 || analysis->has_writing_cte || analysis->locks_rows ||
		!is_worth_it(query) || checkExprHasSubLink(query->limitCount) || checkExprHasSubLink(query->limitOffset))
		return NULL;
	/* the shards' streams come one after the other */
	if (query->sortClause == NIL && query->groupClause == NIL && query->distinctClause == NIL && has_ordered_source(query))
		return NULL;
	if (!means_the_same(query))
		return NULL;
	sent = query_of_shards(query);
	plan = tessera_plan_statement(sent, cursor_options & ~CURSOR_OPT_SCROLL, routing, tessera_analyse(sent, routing), true, &reason);
	if (plan == NULL)
		return NULL;
	mark_columns(plan->planTree, sent);
	if (query->sortClause != NIL)
		put_above(plan, (Plan *) make_sort_from_sortclauses(query->sortClause, plan->planTree), query);
	if (query->limitCount != NULL || query->limitOffset != NULL)
		put_above(plan, (Plan *) limit_plan(plan->planTree, query), query);
	if ((cursor_options & CURSOR_OPT_SCROLL) && !ExecSupportsBackwardScan(plan->planTree))
		plan->planTree = tessera_materialize(plan->planTree);
	return plan;
}
