/*
 * join_path.c
 *	  Joins of tables of one group on its whole key, and with replicated tables, run on the shards: rows with equal keys lie on one shard, copies on
 *	  each (doc/design.md#joins-on-the-key).
 *
 * Core asks for paths of each pair of relations that it joins. If both sides are closed (a table, or such a join), and the pair's conditions equate
 * all columns of the key, or the inner side is a replicated table, the join is closed too, and gets one more path: a scan that sends the join as one
 * query. All conditions of both sides and of the pair go with it: none is left to be checked here, so that what core takes for enforced is.
 *
 * Nothing is kept: what a join is made of is found in its path.
 */
#include "postgres.h"

#include "nodes/extensible.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"

#include "common/version_compat.h"
#include "executor/plan_private.h"
#include "planner/planner.h"
#include "planner/ship.h"
#include "planner/table_path.h"
#include "planner/timeless.h"
#include "routing/key_comparison.h"

static set_join_pathlist_hook_type previous_join_pathlist = NULL;

static struct Plan *plan_join(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans);

static const CustomPathMethods join_methods = {.CustomName = "Tessera Scan", .PlanCustomPath = plan_join};


/* Relations that shards can answer for */

/* The path of a closed join, also below a projection. */
static const CustomPath *
closed_path(const RelOptInfo *rel)
{
	ListCell   *cell;

	foreach(cell, rel->pathlist)
	{
		Path	   *path = lfirst(cell);

		if (IsA(path, ProjectionPath))
			path = ((ProjectionPath *) path)->subpath;
		if (IsA(path, CustomPath) && ((CustomPath *) path)->methods == &join_methods)
			return (CustomPath *) path;
	}
	return NULL;
}

/* Its rows are here and on each shard: it joins with whatever lies there. */
static bool
is_copy(PlannerInfo *root, Index relid)
{
	Oid			table = planner_rt_fetch(relid, root)->relid;

	return tessera_cluster_table(table) != NULL && tessera_scanned_table(root, relid, table) == NULL;
}

static bool
closed_base(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed)
{
	RangeTblEntry *rte = planner_rt_fetch(rel->relid, root);
	ListCell   *cell;

	if (rte->rtekind != RTE_RELATION || rte->tablesample != NULL || !bms_is_empty(rel->lateral_relids) || IS_DUMMY_REL(rel) ||
		tessera_cluster_table(rte->relid) == NULL)
		return false;
	/* the lead is read: elsewhere it would be a copy */
	if (tessera_cluster_table(rte->relid)->replicated && !is_copy(root, rel->relid))
		return false;
	foreach(cell, rel->baserestrictinfo)
		if (!tessera_condition_ships(lfirst_node(RestrictInfo, cell)))
			return false;
	closed->relids = rel->relids;
	closed->conditions = rel->baserestrictinfo;
	closed->tree = tessera_closed_leaf(rel->relid);
	return true;
}

/* One side of a join: also a replicated table. */
static bool
closed_side(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed)
{
	const CustomPath *path;

	if (rel->reloptkind == RELOPT_BASEREL)
		return closed_base(root, rel, closed);
	if (rel->reloptkind != RELOPT_JOINREL || IS_DUMMY_REL(rel) || (path = closed_path(rel)) == NULL)
		return false;
	tessera_closed_kept(linitial(path->custom_private), rel->relids, closed);
	return true;
}

static bool
is_copy_side(PlannerInfo *root, const RelOptInfo *rel)
{
	return rel->reloptkind == RELOPT_BASEREL && is_copy(root, rel->relid);
}

bool
tessera_closed_rel(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed)
{
	return closed_side(root, rel, closed) && !is_copy_side(root, rel);
}

List *
tessera_closed_keep(const TesseraClosedRel *closed)
{
	return list_make2(closed->conditions, closed->tree);
}

void
tessera_closed_kept(List *kept, Relids relids, TesseraClosedRel *closed)
{
	closed->relids = relids;
	closed->conditions = linitial(kept);
	closed->tree = lsecond(kept);
}

/* Those that are not replicated: their rows lie on this or that shard. */
static Relids
without_copies(PlannerInfo *root, Relids relids)
{
	Relids		left = NULL;
	int			relid = -1;

	while ((relid = bms_next_member(relids, relid)) >= 0)
		if (!is_copy(root, relid))
			left = bms_add_member(left, relid);
	return left;
}

Relids
tessera_closed_keyed(PlannerInfo *root, const TesseraClosedRel *closed)
{
	return without_copies(root, bms_difference(tessera_tree_relids(closed->tree), tessera_tree_nullable(closed->tree)));
}

RelOptInfo *
tessera_closed_table(PlannerInfo *root, const TesseraClosedRel *closed, List **clauses)
{
	Relids		keyed = tessera_closed_keyed(root, closed);
	RelOptInfo *table;

	if (bms_is_empty(keyed))
	{
		Relids		owned = without_copies(root, closed->relids);

		*clauses = NIL;
		return find_base_rel(root, bms_next_member(bms_is_empty(owned) ? closed->relids : owned, -1));
	}
	table = find_base_rel(root, bms_next_member(keyed, -1));
	*clauses = table->baserestrictinfo;
	return table;
}

Cost
tessera_closed_cost(PlannerInfo *root, const TesseraClosedRel *closed)
{
	Cost		cost = 0;
	int			relid = -1;

	while ((relid = bms_next_member(closed->relids, relid)) >= 0)
	{
		RelOptInfo *rel = find_base_rel(root, relid);

		/* the copies are read at the same time, and no slower than the one here would be */
		if (!is_copy(root, relid))
			cost += rel->pages * seq_page_cost + rel->tuples * cpu_tuple_cost;
	}
	return cost;
}


/* Joins of them */

/* By one image of the catalog: groups are known by their places in it. NULL: it is no table of the cluster by this one. */
static const TesseraTable *
table_of(const TesseraRouting *routing, PlannerInfo *root, int relid)
{
	return tessera_routing_table(routing, planner_rt_fetch(relid, root)->relid);
}

/* All tables but copies are of one group, or there is one alone, and all are read by the rights of one role. */
static bool
is_one_group(const TesseraRouting *routing, PlannerInfo *root, Relids relids)
{
	Relids		owned = without_copies(root, relids);
	int			first = bms_next_member(owned, -1);
	int			relid = -1;
	Oid			role;

	if (bms_is_empty(owned) || table_of(routing, root, first) == NULL)
		return false;
	role = tessera_check_as_user(root->parse, planner_rt_fetch(first, root));
	while ((relid = bms_next_member(relids, relid)) >= 0)
	{
		const TesseraTable *table = table_of(routing, root, relid);

		if (table == NULL || tessera_check_as_user(root->parse, planner_rt_fetch(relid, root)) != role)
			return false;
		if (bms_is_member(relid, owned) ? table->group != table_of(routing, root, first)->group : !table->replicated)
			return false;
	}
	return table_of(routing, root, first)->group >= 0 || bms_membership(owned) == BMS_SINGLETON;
}

int
tessera_key_column_position(const TesseraRouting *routing, PlannerInfo *root, Relids relids, Node *node)
{
	const TesseraTable *table;
	Var		   *var = (Var *) tessera_unlabelled(node);

	if (!IsA(var, Var) || var->varlevelsup != 0 || !bms_is_member(var->varno, relids))
		return -1;
	table = table_of(routing, root, var->varno);
	for (int i = 0; i < table->nkeys; i++)
		if (table->keys[i] == var->varattno)
			return i;
	return -1;
}

/*
 * True if the conditions equate each column of the key of one side with that of the other. Rows extended by NULL match none, so it may be a column
 * of an outer join's nullable side: what is extended stays where it is.
 */
static bool
joined_on_key(const TesseraRouting *routing, PlannerInfo *root, const TesseraClosedRel *outer, const TesseraClosedRel *inner, List *conditions)
{
	Relids		left = without_copies(root, tessera_tree_relids(outer->tree));
	Relids		right = without_copies(root, tessera_tree_relids(inner->tree));
	const TesseraTable *table = bms_is_empty(left) ? NULL : table_of(routing, root, bms_next_member(left, -1));
	TesseraKeySpace *ks;
	uint32		found = 0;
	ListCell   *cell;

	if (table == NULL || table->group < 0)
		return false;
	ks = tessera_group_keyspace(routing, tessera_routing_group(routing, table->group));
	foreach(cell, conditions)
	{
		OpExpr	   *op = (OpExpr *) lfirst_node(RestrictInfo, cell)->clause;
		int			position;

		if (!IsA(op, OpExpr) || list_length(op->args) != 2)
			continue;
		position = tessera_key_column_position(routing, root, left, linitial(op->args));
		if (position >= 0 ? tessera_key_column_position(routing, root, right, lsecond(op->args)) != position :
			((position = tessera_key_column_position(routing, root, right, linitial(op->args))) < 0 ||
			 tessera_key_column_position(routing, root, left, lsecond(op->args)) != position))
			continue;
		if (tessera_is_equality(op->opno, op->inputcollid, ks->columns[position].type, ks->columns[position].collation))
			found |= 1U << position;
	}
	return found == (1U << ks->ncolumns) - 1;
}

static bool
conditions_ship(List *conditions)
{
	ListCell   *cell;

	foreach(cell, conditions)
		if (!tessera_condition_ships(lfirst_node(RestrictInfo, cell)))
			return false;
	return true;
}

/* Columns of the tables of FROM are all that the query can be asked for. */
static bool
target_ships(const PathTarget *target, Node *tree)
{
	Relids		tables = tessera_tree_relids(tree);
	ListCell   *cell;

	foreach(cell, target->exprs)
	{
		Var		   *var = lfirst(cell);

		if (!IsA(var, Var) || !bms_is_member(var->varno, tables) || !tessera_scan_ships((Node *) var) || tessera_uses_whole_row((Node *) var))
			return false;
	}
	return true;
}

static JoinExpr *
make_join(JoinType type, Node *left, Node *right, List *conditions)
{
	JoinExpr   *join = makeNode(JoinExpr);

	join->jointype = type;
	join->larg = left;
	join->rarg = right;
	join->quals = (Node *) conditions;
	return join;
}

/* The join of two closed relations. on: conditions of an outer join's ON, or of EXISTS; above: all others. False: it has no text. */
static bool
join_closed(JoinType type, const TesseraClosedRel *left, const TesseraClosedRel *right, List *on, List *above, TesseraClosedRel *closed)
{
	/* of the left side joined with NULLs: the columns of the right may be asked for */
	if (type == JOIN_ANTI && above != NIL)
		type = JOIN_LEFT;
	closed->relids = bms_union(left->relids, right->relids);
	switch (type)
	{
		case JOIN_INNER:
			closed->conditions = list_concat(list_concat_copy(left->conditions, right->conditions), above);
			closed->tree = (Node *) make_join(JOIN_INNER, left->tree, right->tree, NIL);
			return true;
		case JOIN_LEFT:
			closed->conditions = list_concat_copy(left->conditions, above);
			closed->tree = (Node *) make_join(JOIN_LEFT, left->tree, right->tree, list_concat_copy(right->conditions, on));
			return true;
		case JOIN_FULL:
			closed->conditions = above;
			closed->tree = (Node *) make_join(JOIN_FULL, left->tree, right->tree, on);
			return left->conditions == NIL && right->conditions == NIL;
		case JOIN_SEMI:
		case JOIN_ANTI:
			closed->conditions = list_concat_copy(left->conditions,
												  list_make1(make_join(type, NULL, right->tree, list_concat_copy(right->conditions, on))));
			closed->tree = left->tree;
			return true;
		default:
			return false;
	}
}

/* Conditions of an outer join, or of EXISTS: which rows match; the others leave out rows of the result. */
static void
split_conditions(JoinType type, RelOptInfo *rel, List *conditions, List **on, List **above)
{
	ListCell   *cell;

	*on = *above = NIL;
	foreach(cell, conditions)
	{
		RestrictInfo *restriction = lfirst_node(RestrictInfo, cell);

		if (type == JOIN_SEMI || (type != JOIN_INNER && !RINFO_IS_PUSHED_DOWN(restriction, rel->relids)))
			*on = lappend(*on, restriction);
		else
			*above = lappend(*above, restriction);
	}
}

static void
join_pathlist(PlannerInfo *root, RelOptInfo *rel, RelOptInfo *outer, RelOptInfo *inner, JoinType type, JoinPathExtraData *extra)
{
	const TesseraRouting *routing;
	TesseraClosedRel left;
	TesseraClosedRel right;
	TesseraClosedRel closed;
	List	   *on;
	List	   *above;
	bool		has_copy;
	CustomPath *path;

	if (previous_join_pathlist)
		previous_join_pathlist(root, rel, outer, inner, type, extra);
	if (tessera_plan_mode() != TESSERA_PLAN_ROUTER || root->parse->commandType != CMD_SELECT || root->rowMarks != NIL ||
		rel->reloptkind != RELOPT_JOINREL || !bms_is_empty(rel->lateral_relids) || closed_path(rel) != NULL)
		return;
	routing = tessera_routing();
	if (routing == NULL || !closed_side(root, outer, &left) || !closed_side(root, inner, &right) || is_copy_side(root, outer))
		return;
	has_copy = is_copy_side(root, inner);
	split_conditions(type, rel, extra->restrictlist, &on, &above);
	/* each shard would extend the rows of its copy that match none of its own */
	if ((type == JOIN_FULL && has_copy) || !conditions_ship(extra->restrictlist) || !is_one_group(routing, root, rel->relids) ||
		(!has_copy && !joined_on_key(routing, root, &left, &right, type == JOIN_INNER ? above : on)) ||
		!join_closed(type, &left, &right, on, above, &closed) || !target_ships(rel->reltarget, closed.tree))
		return;
	path = makeNode(CustomPath);
	path->path.pathtype = T_CustomScan;
	path->path.parent = rel;
	path->path.pathtarget = rel->reltarget;
	path->path.rows = rel->rows;
	path->path.startup_cost = 1000;
	path->path.total_cost = 1000 + tessera_closed_cost(root, &closed) + rel->rows * cpu_tuple_cost;
	path->methods = &join_methods;
	path->custom_private = list_make1(tessera_closed_keep(&closed));
	add_path(rel, (Path *) path);
}

static struct Plan *
plan_join(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans)
{
	TesseraClosedRel closed;
	TesseraScanText text = {0};
	RelOptInfo *table;
	List	   *clauses_of_table;
	Query	   *query;
	List	   *attributes = NIL;
	int			flags;
	CustomScan *scan;
	ListCell   *cell;

	tessera_closed_kept(linitial(path->custom_private), rel->relids, &closed);
	table = tessera_closed_table(root, &closed, &clauses_of_table);
	query = tessera_scan_query(root, &closed, &text);
	foreach(cell, tlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Expr	   *column = (Expr *) tessera_scan_expression((Node *) entry->expr, &text);

		query->targetList = lappend(query->targetList, makeTargetEntry(column, entry->resno, psprintf("c%d", entry->resno), false));
		attributes = lappend_int(attributes, entry->resno);
	}
	flags = tessera_query_is_timeless(query) ? STATEMENT_TIMELESS : 0;
	scan = tessera_scan_plan(table, tessera_cluster_table(planner_rt_fetch(table->relid, root)->relid), clauses_of_table,
							 tessera_deparse(query), text.params, attributes, flags);
	scan->scan.plan.targetlist = tlist;
	scan->custom_scan_tlist = copyObject(tlist);
	return (struct Plan *) scan;
}

void
tessera_join_path_init(void)
{
	previous_join_pathlist = set_join_pathlist_hook;
	set_join_pathlist_hook = join_pathlist;
}
