/*
 * join_path.c
 *	  Inner joins of tables of one group on its whole key run on the shards: rows with equal keys lie on one shard (doc/design.md#joins-on-the-key).
 *
 * Core asks for paths of each pair of relations that it joins. If both sides are closed (a table, or such a join), and the pair's conditions equate
 * all columns of the key, the join is closed too, and gets one more path: a scan that sends the join as one query. All conditions of both sides and
 * of the pair go with it: none is left to be checked here, so that what core takes for enforced is.
 *
 * Nothing is kept: the conditions of a join are found in its path.
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
#include "planner/planner.h"
#include "planner/ship.h"
#include "planner/table_path.h"

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

static bool
closed_base(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed)
{
	RangeTblEntry *rte = planner_rt_fetch(rel->relid, root);
	ListCell   *cell;

	if (rte->rtekind != RTE_RELATION || rte->tablesample != NULL || !bms_is_empty(rel->lateral_relids) || IS_DUMMY_REL(rel) ||
		tessera_scanned_table(root, rel->relid, rte->relid) == NULL)
		return false;
	foreach(cell, rel->baserestrictinfo)
		if (!tessera_condition_ships(lfirst_node(RestrictInfo, cell)))
			return false;
	closed->relids = rel->relids;
	closed->conditions = rel->baserestrictinfo;
	return true;
}

bool
tessera_closed_rel(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed)
{
	const CustomPath *path;

	if (rel->reloptkind == RELOPT_BASEREL)
		return closed_base(root, rel, closed);
	if (rel->reloptkind != RELOPT_JOINREL || IS_DUMMY_REL(rel) || (path = closed_path(rel)) == NULL)
		return false;
	closed->relids = rel->relids;
	closed->conditions = linitial(path->custom_private);
	return true;
}

RelOptInfo *
tessera_closed_table(PlannerInfo *root, const TesseraClosedRel *closed)
{
	return find_base_rel(root, bms_next_member(closed->relids, -1));
}

Cost
tessera_closed_cost(PlannerInfo *root, const TesseraClosedRel *closed)
{
	Cost		cost = 0;
	int			relid = -1;

	while ((relid = bms_next_member(closed->relids, relid)) >= 0)
	{
		RelOptInfo *rel = find_base_rel(root, relid);

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

/* All tables are of one group, and read by the rights of one role. */
static bool
is_one_group(const TesseraRouting *routing, PlannerInfo *root, Relids relids)
{
	int			first = bms_next_member(relids, -1);
	const TesseraTable *table = table_of(routing, root, first);
	int			group = table != NULL ? table->group : -1;
	Oid			role = tessera_check_as_user(root->parse, planner_rt_fetch(first, root));
	int			relid = first;

	while (group >= 0 && (relid = bms_next_member(relids, relid)) >= 0)
	{
		table = table_of(routing, root, relid);
		if (table == NULL || table->group != group || tessera_check_as_user(root->parse, planner_rt_fetch(relid, root)) != role)
			return false;
	}
	return group >= 0;
}

int
tessera_key_column_position(const TesseraRouting *routing, PlannerInfo *root, Relids relids, Node *node)
{
	const TesseraTable *table;
	Var		   *var;

	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	var = (Var *) node;
	if (!IsA(var, Var) || var->varlevelsup != 0 || !bms_is_member(var->varno, relids))
		return -1;
	table = table_of(routing, root, var->varno);
	for (int i = 0; i < table->nkeys; i++)
		if (table->keys[i] == var->varattno)
			return i;
	return -1;
}

/* True if the conditions equate each column of the key of one side with that of the other. */
static bool
joined_on_key(const TesseraRouting *routing, PlannerInfo *root, const TesseraClosedRel *outer, const TesseraClosedRel *inner, List *conditions)
{
	const TesseraTable *table = table_of(routing, root, bms_next_member(outer->relids, -1));
	TesseraKeySpace *ks = tessera_group_keyspace(routing, tessera_routing_group(routing, table->group));
	uint32		found = 0;
	ListCell   *cell;

	foreach(cell, conditions)
	{
		OpExpr	   *op = (OpExpr *) lfirst_node(RestrictInfo, cell)->clause;
		int			position;

		if (!IsA(op, OpExpr) || list_length(op->args) != 2 || (OidIsValid(op->inputcollid) && !get_collation_isdeterministic(op->inputcollid)))
			continue;
		position = tessera_key_column_position(routing, root, outer->relids, linitial(op->args));
		if (position >= 0 ? tessera_key_column_position(routing, root, inner->relids, lsecond(op->args)) != position :
			((position = tessera_key_column_position(routing, root, inner->relids, linitial(op->args))) < 0 ||
			 tessera_key_column_position(routing, root, outer->relids, lsecond(op->args)) != position))
			continue;
		if (OidIsValid(ks->columns[position].btree_opfamily) &&
			get_op_opfamily_strategy(op->opno, ks->columns[position].btree_opfamily) == BTEqualStrategyNumber)
			found |= 1U << position;
	}
	return found == (1U << ks->ncolumns) - 1;
}

static bool
all_ship(List *conditions, const PathTarget *target)
{
	ListCell   *cell;

	foreach(cell, conditions)
		if (!tessera_condition_ships(lfirst_node(RestrictInfo, cell)))
			return false;
	foreach(cell, target->exprs)
		if (!IsA(lfirst(cell), Var) || !tessera_scan_ships(lfirst(cell)) || tessera_uses_whole_row(lfirst(cell)))
			return false;
	return true;
}

static void
join_pathlist(PlannerInfo *root, RelOptInfo *rel, RelOptInfo *outer, RelOptInfo *inner, JoinType type, JoinPathExtraData *extra)
{
	const TesseraRouting *routing;
	TesseraClosedRel left;
	TesseraClosedRel right;
	TesseraClosedRel closed;
	CustomPath *path;

	if (previous_join_pathlist)
		previous_join_pathlist(root, rel, outer, inner, type, extra);
	if (tessera_plan_mode() != TESSERA_PLAN_ROUTER || type != JOIN_INNER || root->parse->commandType != CMD_SELECT || root->rowMarks != NIL ||
		rel->reloptkind != RELOPT_JOINREL || !bms_is_empty(rel->lateral_relids) || closed_path(rel) != NULL)
		return;
	routing = tessera_routing();
	if (routing == NULL || !tessera_closed_rel(root, outer, &left) || !tessera_closed_rel(root, inner, &right) ||
		!is_one_group(routing, root, rel->relids) || !joined_on_key(routing, root, &left, &right, extra->restrictlist) ||
		!all_ship(extra->restrictlist, rel->reltarget))
		return;
	closed.relids = rel->relids;
	closed.conditions = list_concat(list_concat_copy(left.conditions, right.conditions), extra->restrictlist);
	path = makeNode(CustomPath);
	path->path.pathtype = T_CustomScan;
	path->path.parent = rel;
	path->path.pathtarget = rel->reltarget;
	path->path.rows = rel->rows;
	path->path.startup_cost = 1000;
	path->path.total_cost = 1000 + tessera_closed_cost(root, &closed) + rel->rows * cpu_tuple_cost;
	path->methods = &join_methods;
	path->custom_private = list_make1(closed.conditions);
	add_path(rel, (Path *) path);
}

static struct Plan *
plan_join(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans)
{
	TesseraClosedRel closed = {.relids = rel->relids,.conditions = linitial(path->custom_private)};
	RelOptInfo *table = tessera_closed_table(root, &closed);
	TesseraScanText text = {.relids = closed.relids};
	Query	   *query = tessera_scan_query(root, closed.conditions, &text);
	List	   *attributes = NIL;
	CustomScan *scan;
	ListCell   *cell;

	foreach(cell, tlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Expr	   *column = (Expr *) tessera_scan_expression((Node *) entry->expr, &text);

		query->targetList = lappend(query->targetList, makeTargetEntry(column, entry->resno, psprintf("c%d", entry->resno), false));
		attributes = lappend_int(attributes, entry->resno);
	}
	scan = tessera_scan_plan(table, tessera_cluster_table(planner_rt_fetch(table->relid, root)->relid), table->baserestrictinfo,
							 tessera_deparse(query), text.params, attributes, 0);
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
