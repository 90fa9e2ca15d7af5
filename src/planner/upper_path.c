/*
 * upper_path.c
 *	  Queries that each shard answers for its own rows, over a cluster table or a join on its key: groups by the whole key with all that is computed
 *	  of them, distinct rows, and the first rows of an order (doc/design.md#first-rows).
 *
 * A group whose key columns are all grouped by lies on one shard, so that shard's answer is the answer. ORDER BY and LIMIT are sent as
 * LIMIT n + OFFSET m: none of a shard's later rows can be among the wanted ones. The scan merges the sorted rows of the shards, core's Limit stays
 * above.
 *
 * What a shard is asked for are columns, sort keys and aggregates; the target list is computed of them here, as core would: for no more rows than are
 * used, and by functions that need not exist there.
 *
 * Nothing is kept; the paths live in the planner's memory.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_type.h"
#include "nodes/extensible.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/planner.h"
#include "optimizer/prep.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/selfuncs.h"

#include <math.h>

#include "executor/plan_private.h"
#include "planner/planner.h"
#include "planner/ship.h"
#include "planner/table_path.h"
#include "routing/key_comparison.h"

/* Part of the rows that a LIMIT not known yet leaves: core's guess. */
#define PART_GUESSED 0.1

/* Each of them may have each of the distinct rows: for the costs alone. */
#define SHARDS_GUESSED 4

/* custom_private of its paths */
typedef enum UpperPrivate
{
	UPPER_CLOSED,				/* tessera_closed_keep of what it reads */
	UPPER_COLUMNS,				/* List of TargetEntry: what each shard is asked for */
	UPPER_FLAGS,				/* Integer: UpperFlags */
	UPPER_LIMIT					/* Expr: rows that each shard is asked for at most; NULL: all */
} UpperPrivate;

typedef enum UpperFlags
{
	UPPER_GROUPED = 1,			/* groups of the query's GROUP BY, those that HAVING leaves */
	UPPER_SORTED = 2,			/* in the query's order */
	UPPER_DISTINCT = 4			/* each but once */
} UpperFlags;

static create_upper_paths_hook_type previous_upper_paths = NULL;

static struct Plan *plan_upper(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans);

static const CustomPathMethods upper_methods = {.CustomName = "Tessera Scan", .PlanCustomPath = plan_upper};


/* What each shard is asked for */

/* Aggregates of users may have been made otherwise on another node. */
static bool
has_foreign_aggregate(Node *node, void *context)
{
	const Aggref *aggregate = (const Aggref *) node;

	if (node == NULL)
		return false;
	if (IsA(node, Aggref) && (aggregate->agglevelsup != 0 || aggregate->aggfnoid >= FirstNormalObjectId))
		return true;
	return expression_tree_walker(node, has_foreign_aggregate, context);
}

/*
 * Values of pseudotypes (a row) have no type that could be named on the way. What needs no row may also be a parameter of the scan, and core would
 * then read that parameter from the rows.
 */
static bool
column_ships(Node *node)
{
	return (contain_var_clause(node) || contain_agg_clause(node)) && tessera_scan_ships(node) && !has_foreign_aggregate(node, NULL) &&
		!tessera_uses_whole_row(node) && get_typtype(exprType(node)) != TYPTYPE_PSEUDO &&
		exprType(node) != UNKNOWNOID;
}

static bool
has_expression(List *columns, Node *node)
{
	return tlist_member((Expr *) node, columns) != NULL;
}

static bool
add_column(List **columns, Node *node, Index ref)
{
	TargetEntry *entry;

	if (!column_ships(node))
		return false;
	entry = makeTargetEntry((Expr *) copyObject(node), list_length(*columns) + 1, psprintf("tessera_%d", list_length(*columns) + 1), false);
	entry->ressortgroupref = ref;
	*columns = lappend(*columns, entry);
	return true;
}

static bool
has_ref(List *columns, Index ref)
{
	ListCell   *cell;

	foreach(cell, columns)
		if (lfirst_node(TargetEntry, cell)->ressortgroupref == ref)
			return true;
	return false;
}

/* The columns that GROUP BY, DISTINCT or ORDER BY name. False: one cannot be sent. */
static bool
add_clauses(PlannerInfo *root, List *clauses, List **columns)
{
	ListCell   *cell;

	foreach(cell, clauses)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, cell);
		Node	   *expr = get_sortgroupclause_expr(clause, root->processed_tlist);

		if (!tessera_order_ships(clause, exprType(expr)) ||
			(!has_ref(*columns, clause->tleSortGroupRef) && !add_column(columns, expr, clause->tleSortGroupRef)))
			return false;
	}
	return true;
}

typedef struct RestContext
{
	List	   *columns;
	List	   *found;
} RestContext;

/* Columns and aggregates of an expression, outside of what is sent already. */
static bool
find_rest(Node *node, RestContext *context)
{
	if (node == NULL || has_expression(context->columns, node))
		return false;
	if (IsA(node, Var) || IsA(node, Aggref) || IsA(node, PlaceHolderVar))
	{
		context->found = list_append_unique(context->found, node);
		return false;
	}
	return expression_tree_walker(node, find_rest, context);
}

/* GROUPING() is answered by the node that groups. */
static bool
has_grouping(Node *node, void *context)
{
	return node != NULL && (IsA(node, GroupingFunc) || expression_tree_walker(node, has_grouping, context));
}

/*
 * All that the target and the clauses need: sort keys as they are, of the rest columns and aggregates. NIL: something cannot be sent, or there is
 * nothing to send.
 */
static List *
columns_for(PlannerInfo *root, const PathTarget *target, bool grouped, bool sorted)
{
	List	   *columns = NIL;
	RestContext rest = {0};
	ListCell   *cell;

	if (has_grouping((Node *) root->processed_tlist, NULL) || has_grouping(root->parse->havingQual, NULL))
		return NIL;
	if ((grouped && !add_clauses(root, root->parse->groupClause, &columns)) || (sorted && !add_clauses(root, root->parse->sortClause, &columns)))
		return NIL;
	rest.columns = columns;
	(void) find_rest((Node *) target->exprs, &rest);
	foreach(cell, rest.found)
		if (!add_column(&columns, lfirst(cell), 0))
			return NIL;
	return columns;
}

/* LIMIT + OFFSET, no greater than bigint holds; NULL: there is no LIMIT, or it is not known when the scan starts. */
static Expr *
rows_of_each(PlannerInfo *root)
{
	Expr	   *count = (Expr *) root->parse->limitCount;
	Expr	   *offset = (Expr *) root->parse->limitOffset;
	Expr	   *zero = (Expr *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(0), false, FLOAT8PASSBYVAL);
	Expr	   *most = (Expr *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(PG_INT64_MAX), false, FLOAT8PASSBYVAL);
	MinMaxExpr *offset_used = makeNode(MinMaxExpr);
	MinMaxExpr *count_used = makeNode(MinMaxExpr);
	MinMaxExpr *added = makeNode(MinMaxExpr);
	FuncExpr   *room;
	FuncExpr   *sum;

	if (count == NULL || root->parse->limitOption != LIMIT_OPTION_COUNT || (IsA(count, Const) && ((Const *) count)->constisnull))
		return NULL;
	if (contain_volatile_functions((Node *) list_make2(count, offset)) || contain_subplans((Node *) list_make2(count, offset)))
		return NULL;
	if (offset == NULL)
		return copyObject(count);
	/* count + least(greatest(offset, 0), most - greatest(count, 0)): no OFFSET is null, no LIMIT stays null; core refuses what is negative */
	offset_used->op = count_used->op = IS_GREATEST;
	added->op = IS_LEAST;
	offset_used->minmaxtype = count_used->minmaxtype = added->minmaxtype = INT8OID;
	offset_used->location = count_used->location = added->location = -1;
	offset_used->args = list_make2(copyObject(offset), zero);
	count_used->args = list_make2(copyObject(count), zero);
	room = makeFuncExpr(F_INT8MI, INT8OID, list_make2(most, count_used), InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
	added->args = list_make2(offset_used, room);
	sum = makeFuncExpr(F_INT8PL, INT8OID, list_make2(copyObject(count), added), InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
	return (Expr *) eval_const_expressions(root, (Node *) sum);
}

/* Of so many rows, how many a LIMIT leaves. */
static double
rows_left(PlannerInfo *root, double rows, Expr *limit)
{
	Const	   *count;

	if (limit == NULL)
		return rows;
	count = (Const *) estimate_expression_value(root, (Node *) limit);
	if (!IsA(count, Const))
		return clamp_row_est(rows * PART_GUESSED);
	return count->constisnull ? rows : clamp_row_est(Min(rows, (double) DatumGetInt64(count->constvalue)));
}


/* Paths */

static const CustomPath *
grouped_path(const RelOptInfo *rel)
{
	ListCell   *cell;

	foreach(cell, rel->pathlist)
	{
		CustomPath *path = lfirst(cell);

		if (IsA(path, CustomPath) && path->methods == &upper_methods)
			return path;
	}
	return NULL;
}

/* Its relation stands for the tables alone: those of the stages have none. */
static CustomPath *
upper_path(PlannerInfo *root, const TesseraClosedRel *closed, PathTarget *target, List *columns, int flags, Expr *limit)
{
	CustomPath *path = makeNode(CustomPath);

	path->path.pathtype = T_CustomScan;
	path->path.parent = fetch_upper_rel(root, UPPERREL_PARTIAL_GROUP_AGG, closed->relids);
	path->path.pathtarget = target;
	path->methods = &upper_methods;
	path->custom_private = list_make4(tessera_closed_keep(closed), columns, makeInteger(flags), limit);
	return path;
}

/* True if rows that GROUP BY or DISTINCT (clauses) makes one have one key. */
static bool
groups_by_key(PlannerInfo *root, const TesseraClosedRel *closed, List *clauses)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table;
	TesseraKeySpace *ks;
	uint32		found = 0;
	ListCell   *cell;

	Relids		keyed = tessera_closed_keyed(root, closed);

	if (bms_is_empty(keyed))
		return false;
	table = routing ? tessera_routing_table(routing, planner_rt_fetch(bms_next_member(keyed, -1), root)->relid) : NULL;
	if (table == NULL)
		return false;
	if (table->group < 0)
		return true;			/* it lies on one shard */
	ks = tessera_group_keyspace(routing, tessera_routing_group(routing, table->group));
	foreach(cell, clauses)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, cell);
		Node	   *expression = get_sortgroupclause_expr(clause, root->processed_tlist);
		int			position = tessera_key_column_position(routing, root, keyed, expression);

		if (position >= 0 &&
			tessera_is_equality(clause->eqop, exprCollation(expression), ks->columns[position].type, ks->columns[position].collation))
			found |= 1U << position;
	}
	return found == (1U << ks->ncolumns) - 1;
}

static void
add_groups(PlannerInfo *root, RelOptInfo *input, RelOptInfo *output, const GroupPathExtraData *extra)
{
	TesseraClosedRel closed;
	AggClauseCosts costs = {0};
	CustomPath *path;
	List	   *columns;

	if (root->parse->groupClause == NIL || root->parse->groupingSets != NIL || !tessera_closed_rel(root, input, &closed) ||
		!groups_by_key(root, &closed, root->parse->groupClause) ||
		(extra->havingQual != NULL && !column_ships((Node *) make_ands_explicit((List *) extra->havingQual))) ||
		(columns = columns_for(root, output->reltarget, true, false)) == NIL)
		return;
	path = upper_path(root, &closed, output->reltarget, columns, UPPER_GROUPED, NULL);
	get_agg_clause_costs(root, AGGSPLIT_SIMPLE, &costs);
	path->path.rows = estimate_num_groups(root, get_sortgrouplist_exprs(root->parse->groupClause, extra->targetList), Max(input->rows, 1), NULL,
										  NULL);
	path->path.startup_cost = 1000 + costs.transCost.startup + costs.finalCost.startup;
	path->path.total_cost = path->path.startup_cost + tessera_closed_cost(root, &closed) +
		input->rows * (costs.transCost.per_tuple + list_length(root->parse->groupClause) * cpu_operator_cost) +
		path->path.rows * (costs.finalCost.per_tuple + cpu_tuple_cost);
	add_path(output, (Path *) path);
}

/* What is below the order or the limit: groups made by the shards, or rows. */
static bool
closed_input(PlannerInfo *root, RelOptInfo *input, TesseraClosedRel *closed, Path *cost)
{
	const CustomPath *groups = grouped_path(input);

	if (groups)
	{
		tessera_closed_kept(list_nth(groups->custom_private, UPPER_CLOSED), groups->path.parent->relids, closed);
		*cost = groups->path;
		return true;
	}
	if (root->parse->groupClause != NIL || root->parse->groupingSets != NIL || root->parse->hasAggs || root->hasHavingQual ||
		!tessera_closed_rel(root, input, closed))
		return false;
	cost->rows = Max(input->rows, 1);
	cost->startup_cost = 1000;
	cost->total_cost = 1000 + tessera_closed_cost(root, closed);
	return true;
}

/* The first rows in the query's order; core puts its Limit above. */
static void
add_first_sorted(PlannerInfo *root, RelOptInfo *input, RelOptInfo *output)
{
	PathTarget *target = root->upper_targets[UPPERREL_ORDERED];
	Expr	   *limit = rows_of_each(root);
	TesseraClosedRel closed;
	Path		below = {0};
	CustomPath *path;
	List	   *columns;

	if (limit == NULL || !closed_input(root, input, &closed, &below) ||
		(columns = columns_for(root, target, root->parse->groupClause != NIL, true)) == NIL)
		return;
	path = upper_path(root, &closed, target, columns, UPPER_SORTED | (root->parse->groupClause != NIL ? UPPER_GROUPED : 0), limit);
	path->path.pathkeys = root->sort_pathkeys;
	path->path.rows = rows_left(root, below.rows, limit);
	/* half of what a sort here costs: the shards sort at the same time */
	path->path.startup_cost = below.total_cost + below.rows * cpu_operator_cost * log2(2 * Max(path->path.rows, 1));
	path->path.total_cost = path->path.startup_cost + path->path.rows * cpu_tuple_cost;
	add_path(output, (Path *) path);
}

/* Any rows, as many as are wanted. */
static void
add_first_of_any(PlannerInfo *root, RelOptInfo *input, RelOptInfo *output, const FinalPathExtraData *extra)
{
	PathTarget *target = root->upper_targets[UPPERREL_FINAL];
	Expr	   *limit = rows_of_each(root);
	TesseraClosedRel closed;
	Path		below = {0};
	CustomPath *path;
	List	   *columns;

	if (limit == NULL || root->parse->sortClause != NIL || !closed_input(root, input, &closed, &below) ||
		(columns = columns_for(root, target, root->parse->groupClause != NIL, false)) == NIL)
		return;
	path = upper_path(root, &closed, target, columns, root->parse->groupClause != NIL ? UPPER_GROUPED : 0, limit);
	path->path.rows = rows_left(root, below.rows, limit);
	path->path.startup_cost = below.startup_cost;
	/* less than what core makes of all rows and a limit */
	path->path.total_cost = below.startup_cost + 0.9 * (below.total_cost - below.startup_cost) * path->path.rows / below.rows;
	add_path(output, (Path *) create_limit_path(root, output, (Path *) path, root->parse->limitOffset, root->parse->limitCount,
												root->parse->limitOption, extra->offset_est, extra->count_est));
}

/* True if nothing but the columns of DISTINCT is asked for. */
static bool
is_of_columns(const PathTarget *target, List *columns)
{
	ListCell   *cell;

	foreach(cell, target->exprs)
		if (!has_expression(columns, lfirst(cell)))
			return false;
	return true;
}

/* Rows that are equal on several shards are made one here, if they can be: the shards send each of theirs but once. */
static void
add_distinct(PlannerInfo *root, RelOptInfo *input, RelOptInfo *output)
{
	List	   *clauses = root->parse->distinctClause;
	PathTarget *target = root->upper_targets[UPPERREL_DISTINCT];
	TesseraClosedRel closed;
	Path		below = {0};
	CustomPath *path;
	Path	   *sorted;
	List	   *columns = NIL;
	double		rows;

	if (root->parse->hasDistinctOn || root->parse->groupClause != NIL || !closed_input(root, input, &closed, &below) ||
		!add_clauses(root, clauses, &columns) || !is_of_columns(target, columns))
		return;
	rows = estimate_num_groups(root, get_sortgrouplist_exprs(clauses, root->processed_tlist), below.rows, NULL, NULL);
	path = upper_path(root, &closed, target, columns, UPPER_DISTINCT, NULL);
	path->path.rows = groups_by_key(root, &closed, clauses) ? rows : Min(below.rows, rows * SHARDS_GUESSED);
	path->path.startup_cost = below.startup_cost;
	path->path.total_cost = below.total_cost + below.rows * list_length(clauses) * cpu_operator_cost + path->path.rows * cpu_tuple_cost;
	if (groups_by_key(root, &closed, clauses))
	{
		add_path(output, (Path *) path);
		return;
	}
	if (grouping_is_hashable(clauses))
		add_path(output, (Path *) create_agg_path(root, output, (Path *) path, target, AGG_HASHED, AGGSPLIT_SIMPLE, clauses, NIL, NULL, rows));
	if (!grouping_is_sortable(clauses) || root->distinct_pathkeys == NIL)
		return;
	/* ORDER BY, if there is more of it, has what DISTINCT compares in front */
	sorted = (Path *) create_sort_path(root, output, (Path *) path, list_length(root->sort_pathkeys) > list_length(root->distinct_pathkeys) ?
									   root->sort_pathkeys : root->distinct_pathkeys, -1.0);
	add_path(output, (Path *) create_upper_unique_path(root, output, sorted, list_length(root->distinct_pathkeys), rows));
}

static void
upper_paths(PlannerInfo *root, UpperRelationKind stage, RelOptInfo *input, RelOptInfo *output, void *extra)
{
	const Query *parse = root->parse;

	if (previous_upper_paths)
		previous_upper_paths(root, stage, input, output, extra);
	if (tessera_plan_mode() != TESSERA_PLAN_ROUTER || parse->commandType != CMD_SELECT || parse->hasTargetSRFs || root->rowMarks != NIL ||
		parse->setOperations != NULL)
		return;
	if (stage == UPPERREL_GROUP_AGG)
		add_groups(root, input, output, extra);
	else if (stage == UPPERREL_DISTINCT && !parse->hasWindowFuncs)
		add_distinct(root, input, output);
	else if (stage == UPPERREL_ORDERED && !parse->hasWindowFuncs && parse->distinctClause == NIL)
		add_first_sorted(root, input, output);
	else if (stage == UPPERREL_FINAL && !parse->hasWindowFuncs && parse->distinctClause == NIL)
		add_first_of_any(root, input, output, extra);
}


/* Plans */

/* For the merge: where each sort key stands in the rows, and how it sorts. */
static List *
order_of(List *clauses, List *columns)
{
	List	   *order = NIL;
	ListCell   *cell;

	foreach(cell, clauses)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, cell);
		TargetEntry *column = get_sortgroupref_tle(clause->tleSortGroupRef, columns);

		order = lappend(order, list_make4_int(column->resno, (int) clause->sortop, (int) exprCollation((Node *) column->expr), clause->nulls_first));
	}
	return order;
}

static struct Plan *
plan_upper(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans)
{
	TesseraClosedRel closed;
	List	   *columns = list_nth(path->custom_private, UPPER_COLUMNS);
	int			flags = intVal(list_nth(path->custom_private, UPPER_FLAGS));
	Expr	   *limit = list_nth(path->custom_private, UPPER_LIMIT);
	TesseraScanText text = {0};
	RelOptInfo *table;
	List	   *clauses_of_table;
	Query	   *query;
	List	   *attributes = NIL;
	CustomScan *scan;
	ListCell   *cell;

	tessera_closed_kept(list_nth(path->custom_private, UPPER_CLOSED), rel->relids, &closed);
	table = tessera_closed_table(root, &closed, &clauses_of_table);
	query = tessera_scan_query(root, &closed, &text);
	foreach(cell, columns)
	{
		TargetEntry *column = copyObject(lfirst_node(TargetEntry, cell));

		column->expr = (Expr *) tessera_scan_expression((Node *) column->expr, &text);
		query->targetList = lappend(query->targetList, column);
		attributes = lappend_int(attributes, column->resno);
	}
	if (flags & UPPER_GROUPED)
	{
		query->groupClause = copyObject(root->parse->groupClause);
		query->hasAggs = contain_agg_clause((Node *) columns) || contain_agg_clause(root->parse->havingQual);
		if (root->parse->havingQual)
			query->havingQual = tessera_scan_expression((Node *) make_ands_explicit((List *) root->parse->havingQual), &text);
	}
	if (flags & UPPER_SORTED)
		query->sortClause = copyObject(root->parse->sortClause);
	if (flags & UPPER_DISTINCT)
		query->distinctClause = copyObject(root->parse->distinctClause);
	if (limit)
	{
		query->limitCount = tessera_make_param(limit, &text.params);
		query->limitOption = LIMIT_OPTION_COUNT;
	}
	scan = tessera_scan_plan(table, tessera_cluster_table(planner_rt_fetch(table->relid, root)->relid), clauses_of_table,
							 tessera_deparse(query), text.params, attributes, 0);
	if (flags & UPPER_SORTED)
		lfirst(list_nth_cell(scan->custom_private, TABLE_ORDER)) = order_of(root->parse->sortClause, columns);
	scan->scan.plan.targetlist = tlist;
	scan->custom_scan_tlist = copyObject(columns);
	return (struct Plan *) scan;
}

void
tessera_upper_path_init(void)
{
	previous_upper_paths = create_upper_paths_hook;
	create_upper_paths_hook = upper_paths;
}
