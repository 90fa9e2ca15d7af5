/*
 * group_path.c
 *	  Groups and aggregates over a cluster table, or a join on its key, are made where the rows are (doc/design.md#partial-aggregates).
 *
 * On the router: the shards group their own rows and send each group's partial state, a scan with a target list of its own; core's Finalize node
 * combines them, and checks HAVING. What an aggregate without a final function returns is its state, so that it is sent as it was written; of others
 * the shard is asked for tessera.partial(aggregate, NULL::type of the state).
 *
 * On the shard: the planner takes tessera.partial away again and plans the aggregation as the first half of one, in parallel if it likes: several
 * rows of one group do no harm, as the router combines them anyway.
 *
 * Nothing is kept; the paths live in the planner's memory.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_aggregate.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "nodes/extensible.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "optimizer/prep.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/selfuncs.h"
#include "utils/syscache.h"

#include "common/version_compat.h"
#include "executor/plan_private.h"
#include "planner/exact_columns.h"
#include "planner/planner.h"
#include "planner/ship.h"
#include "planner/table_path.h"
#include "planner/timeless.h"

/* Each of them may have each group: for the costs alone. */
#define SHARDS_GUESSED 4

PG_FUNCTION_INFO_V1(tessera_partial);

static create_upper_paths_hook_type previous_upper_paths = NULL;

static struct Plan *plan_groups(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans);

static const CustomPathMethods group_methods = {.CustomName = "Tessera Scan", .PlanCustomPath = plan_groups};

/* Oid of tessera.partial("any", anyelement). */
static Oid
partial_function(void)
{
	Oid			types[2] = {ANYOID, ANYELEMENTOID};
	Oid			namespace = get_namespace_oid("tessera", true);

	return !OidIsValid(namespace) ? InvalidOid :
		GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("partial"), PointerGetDatum(buildoidvector(types, 2)),
						ObjectIdGetDatum(namespace));
}

static void
refuse_partial(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("tessera.partial stands in statements of routers only"),
			 errhint("The planner uses this function; there is no need to call it.")));
}

/* In the place of core's call: the planner of a shard has taken it away. */
Datum
tessera_partial(PG_FUNCTION_ARGS)
{
	refuse_partial();
	PG_RETURN_NULL();
}


/* What shards can do */

static bool
has_final_function(const Aggref *aggregate)
{
	HeapTuple	tuple = SearchSysCache1(AGGFNOID, ObjectIdGetDatum(aggregate->aggfnoid));
	bool		has;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("cache lookup failed for aggregate %u", aggregate->aggfnoid)));
	has = OidIsValid(((Form_pg_aggregate) GETSTRUCT(tuple))->aggfinalfn);
	ReleaseSysCache(tuple);
	return has;
}

/* Type of its state on the wire: internal ones travel serialised. */
static Oid
state_type(const Aggref *aggregate)
{
	return aggregate->aggtranstype == INTERNALOID ? BYTEAOID : aggregate->aggtranstype;
}

/* Values of these types name no columns, so that nobody can read them. */
static bool
is_anonymous(Oid type)
{
	return type == RECORDOID || type == RECORDARRAYOID;
}

/* Aggregates of users may have been made otherwise on another node, and their states may name oids of types. */
static bool
aggregate_ships(Aggref *aggregate)
{
	return aggregate->agglevelsup == 0 && aggregate->aggkind == AGGKIND_NORMAL && aggregate->aggorder == NIL && aggregate->aggdistinct == NIL &&
		aggregate->aggfnoid < FirstNormalObjectId && !is_anonymous(state_type(aggregate)) &&
		(!has_final_function(aggregate) || (state_type(aggregate) < FirstNormalObjectId && OidIsValid(partial_function()))) &&
		tessera_scan_ships((Node *) aggregate) && !tessera_uses_whole_row((Node *) aggregate);
}

static bool
groups(PlannerInfo *root, const PathTarget *target, int column)
{
	Index		ref = get_pathtarget_sortgroupref(target, column);

	return ref != 0 && get_sortgroupref_clause_noerr(ref, root->parse->groupClause) != NULL;
}

/* What shards send: the grouping columns, and the states of all aggregates of target list and HAVING. NULL: shards cannot. */
static PathTarget *
partial_target(PlannerInfo *root, const PathTarget *target, Node *having)
{
	PathTarget *partial = create_empty_pathtarget();
	List	   *others = NIL;
	ListCell   *cell;

	foreach(cell, target->exprs)
	{
		int			column = foreach_current_index(cell);

		if (!groups(root, target, column))
		{
			others = lappend(others, lfirst(cell));
			continue;
		}
		/* what needs no row may also be a parameter of the scan: core would read that from the rows */
		if (!contain_var_clause(lfirst(cell)) || !tessera_scan_ships(lfirst(cell)) || tessera_uses_whole_row(lfirst(cell)) ||
			is_anonymous(exprType(lfirst(cell))))
			return NULL;
		add_column_to_pathtarget(partial, lfirst(cell), get_pathtarget_sortgroupref(target, column));
	}
	others = lappend(others, having);
	others = pull_var_clause((Node *) others, PVC_INCLUDE_AGGREGATES | PVC_RECURSE_WINDOWFUNCS | PVC_INCLUDE_PLACEHOLDERS);
	foreach(cell, others)
	{
		/* a column that depends on the primary key in GROUP BY stays here, with all of it; one that is grouped by is there already */
		if (!IsA(lfirst(cell), Aggref) && !list_member(partial->exprs, lfirst(cell)))
			return NULL;
		if (IsA(lfirst(cell), Aggref) && !aggregate_ships(lfirst(cell)))
			return NULL;
	}
	add_new_columns_to_pathtarget(partial, others);
	foreach(cell, partial->exprs)
	{
		Aggref	   *aggregate = lfirst(cell);

		if (!IsA(aggregate, Aggref))
			continue;
		aggregate = copyObject(aggregate);
		mark_partial_aggref(aggregate, AGGSPLIT_INITIAL_SERIAL);
		lfirst(cell) = aggregate;
	}
	return set_pathtarget_cost_width(root, partial);
}


/* Without keys if what is grouped by is equal to constants: then all rows are of one group. */
static Path *
sorted_by_group(PlannerInfo *root, RelOptInfo *rel, Path *path)
{
	return root->group_pathkeys == NIL ? path : (Path *) create_sort_path(root, rel, path, root->group_pathkeys, -1.0);
}


/* Paths of the router */

static CustomPath *
scan_path(PlannerInfo *root, RelOptInfo *input, const TesseraClosedRel *closed, PathTarget *target, double ngroups)
{
	CustomPath *path = makeNode(CustomPath);
	AggClauseCosts costs = {0};

	get_agg_clause_costs(root, AGGSPLIT_INITIAL_SERIAL, &costs);
	path->path.pathtype = T_CustomScan;
	path->path.parent = fetch_upper_rel(root, UPPERREL_PARTIAL_GROUP_AGG, input->relids);
	path->path.pathtarget = target;
	path->path.rows = Min(Max(input->rows, 1), ngroups * SHARDS_GUESSED);
	path->path.startup_cost = 1000 + costs.transCost.startup;
	path->path.total_cost = path->path.startup_cost + tessera_closed_cost(root, closed) +
		input->rows * (costs.transCost.per_tuple + list_length(root->parse->groupClause) * cpu_operator_cost) + path->path.rows * cpu_tuple_cost;
	/* one row of each shard is no more than the rows themselves, however few those are thought to be */
	if (root->parse->groupClause == NIL)
		path->path.total_cost = Min(path->path.total_cost, input->cheapest_total_path->total_cost - SHARDS_GUESSED * cpu_tuple_cost);
	path->methods = &group_methods;
	path->custom_private = list_make1(tessera_closed_keep(closed));
	return path;
}

static void
add_final_paths(PlannerInfo *root, RelOptInfo *input, const TesseraClosedRel *closed, RelOptInfo *output, const GroupPathExtraData *extra)
{
	Query	   *parse = root->parse;
	List	   *clauses = parse->groupClause;
	PathTarget *target = partial_target(root, output->reltarget, extra->havingQual);
	List	   *having = (List *) extra->havingQual;
	AggClauseCosts costs = {0};
	Path	   *path;
	double		ngroups;

	if (target == NULL)
		return;
	ngroups = clauses == NIL ? 1 : estimate_num_groups(root, get_sortgrouplist_exprs(clauses, extra->targetList), Max(input->rows, 1), NULL, NULL);
	path = (Path *) scan_path(root, input, closed, target, ngroups);
	get_agg_clause_costs(root, AGGSPLIT_FINAL_DESERIAL, &costs);
	if (clauses == NIL)
		add_path(output, (Path *) create_agg_path(root, output, path, output->reltarget, AGG_PLAIN, AGGSPLIT_FINAL_DESERIAL, NIL, having, &costs, 1));
	if (clauses != NIL && (extra->flags & GROUPING_CAN_USE_HASH))
		add_path(output, (Path *) create_agg_path(root, output, path, output->reltarget, AGG_HASHED, AGGSPLIT_FINAL_DESERIAL, clauses, having, &costs,
												  ngroups));
	if (clauses != NIL && (extra->flags & GROUPING_CAN_USE_SORT))
	{
		path = sorted_by_group(root, output, path);
		add_path(output, (Path *) create_agg_path(root, output, path, output->reltarget, AGG_SORTED, AGGSPLIT_FINAL_DESERIAL, clauses, having, &costs,
												  ngroups));
	}
}

/* The same aggregate as it was written. */
static Expr *
state_expression(Aggref *partial, List *written)
{
	Aggref	   *aggregate = NULL;
	ListCell   *cell;

	foreach(cell, written)
		if (IsA(lfirst(cell), Aggref) && ((Aggref *) lfirst(cell))->aggno == partial->aggno)
			aggregate = lfirst(cell);
	Assert(aggregate != NULL);
	if (!has_final_function(aggregate))
		return (Expr *) aggregate;
	return (Expr *) makeFuncExpr(partial_function(), partial->aggtype,
								 list_make2(aggregate, makeNullConst(partial->aggtype, -1, partial->aggcollid)), partial->aggcollid, InvalidOid,
								 COERCE_EXPLICIT_CALL);
}

static struct Plan *
plan_groups(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans)
{
	TesseraClosedRel closed;
	TesseraScanText text = {0};
	RelOptInfo *table;
	List	   *clauses_of_table;
	Query	   *query;
	List	   *written = pull_var_clause((Node *) list_make2(root->processed_tlist, root->parse->havingQual),
										  PVC_INCLUDE_AGGREGATES | PVC_RECURSE_WINDOWFUNCS | PVC_INCLUDE_PLACEHOLDERS);
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
		TargetEntry *column = flatCopyTargetEntry(entry);

		column->expr = entry->expr;
		if (IsA(column->expr, Aggref))
			column->expr = state_expression((Aggref *) entry->expr, written);
		column->expr = (Expr *) tessera_scan_expression((Node *) column->expr, &text);
		column->resname = psprintf("c%d", entry->resno);
		column->resjunk = false;
		query->targetList = lappend(query->targetList, column);
		attributes = lappend_int(attributes, entry->resno);
		query->hasAggs |= IsA(entry->expr, Aggref);
	}
	query->groupClause = copyObject(root->parse->groupClause);
	flags = tessera_query_is_timeless(query) ? STATEMENT_TIMELESS : 0;
	scan = tessera_scan_plan(table, tessera_cluster_table(planner_rt_fetch(table->relid, root)->relid), clauses_of_table,
							 tessera_deparse(query), text.params, attributes, flags);
	scan->scan.plan.targetlist = tlist;
	scan->custom_scan_tlist = copyObject(tlist);
	return (struct Plan *) scan;
}


/* Paths of a shard */

/* The Oid of tessera.partial, as context. */
static bool
names_partial(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcid == *(Oid *) context)
		return true;
	return expression_tree_walker(node, names_partial, context);
}

bool
tessera_sends_states(const Query *query)
{
	Oid			partial = query->hasAggs ? partial_function() : InvalidOid;

	return OidIsValid(partial) && names_partial((Node *) query->targetList, &partial);
}

/*
 * One column of a statement of a router: tessera.partial(aggregate, NULL), an aggregate that returns its state, or what is grouped by. The first half
 * of an aggregation puts states in the place of results, so nothing may stand above them but exact_text, which takes them for what they are; users'
 * aggregates are none of a router's.
 */
static Expr *
without_partial(Expr *column, Oid partial)
{
	FuncExpr   *call = (FuncExpr *) column;
	bool		named = IsA(column, FuncExpr) && call->funcid == partial;
	Aggref	   *aggregate = named ? linitial(call->args) : (Aggref *) column;

	if (tessera_is_exact_text(column))
	{
		call = copyObject(call);
		linitial(call->args) = without_partial(linitial(call->args), partial);
		return (Expr *) call;
	}
	if (!named && !contain_agg_clause((Node *) column) && !names_partial((Node *) column, &partial))
		return column;
	if (IsA(aggregate, Aggref) && aggregate->aggfnoid < FirstNormalObjectId &&
		(named ? IsA(lsecond(call->args), Const) && ((Const *) lsecond(call->args))->constisnull : !has_final_function(aggregate)))
	{
		aggregate = copyObject(aggregate);
		mark_partial_aggref(aggregate, AGGSPLIT_INITIAL_SERIAL);
		if (!named || aggregate->aggtype == call->funcresulttype)
			return (Expr *) aggregate;
	}
	refuse_partial();
	return NULL;
}

/* The aggregation, as the first half of one, over a path of its input. */
static Path *
first_half(PlannerInfo *root, RelOptInfo *rel, Path *input, PathTarget *target, const GroupPathExtraData *extra, const AggClauseCosts *costs)
{
	List	   *clauses = root->parse->groupClause;
	double		ngroups;

	if (clauses == NIL)
		return (Path *) create_agg_path(root, rel, input, target, AGG_PLAIN, AGGSPLIT_INITIAL_SERIAL, NIL, NIL, costs, 1);
	ngroups = estimate_num_groups(root, get_sortgrouplist_exprs(clauses, extra->targetList), input->rows, NULL, NULL);
	if (extra->flags & GROUPING_CAN_USE_HASH)
		return (Path *) create_agg_path(root, rel, input, target, AGG_HASHED, AGGSPLIT_INITIAL_SERIAL, clauses, NIL, costs, ngroups);
	input = sorted_by_group(root, rel, input);
	return (Path *) create_agg_path(root, rel, input, target, AGG_SORTED, AGGSPLIT_INITIAL_SERIAL, clauses, NIL, costs, ngroups);
}

static void
replace_by_first_half(PlannerInfo *root, RelOptInfo *input, RelOptInfo *output, const GroupPathExtraData *extra)
{
	PathTarget *target = output->reltarget;
	AggClauseCosts costs = {0};
	Oid			partial = partial_function();
	List	   *exprs = NIL;
	ListCell   *cell;

	if (!OidIsValid(partial) || !names_partial((Node *) target->exprs, &partial))
		return;
	/* a view, a policy or a function is no statement of a router */
	if (root->parent_root != NULL || root->hasNonPartialAggs || root->hasNonSerialAggs || extra->havingQual != NULL ||
		root->parse->groupingSets != NIL)
		refuse_partial();
	foreach(cell, target->exprs)
		exprs = lappend(exprs, without_partial(lfirst(cell), partial));
	/* all paths of the query that follow have this very target */
	target->exprs = exprs;
	get_agg_clause_costs(root, AGGSPLIT_INITIAL_SERIAL, &costs);
	output->pathlist = NIL;
	output->partial_pathlist = NIL;
	add_path(output, first_half(root, output, input->cheapest_total_path, target, extra, &costs));
	if (output->consider_parallel && input->partial_pathlist != NIL)
	{
		Path	   *half = first_half(root, output, linitial(input->partial_pathlist), target, extra, &costs);
		double		rows = half->rows * half->parallel_workers;

		add_path(output, (Path *) create_gather_path(root, output, half, target, NULL, &rows));
	}
}

static void
upper_paths(PlannerInfo *root, UpperRelationKind stage, RelOptInfo *input, RelOptInfo *output, void *extra)
{
	TesseraClosedRel closed;

	if (previous_upper_paths)
		previous_upper_paths(root, stage, input, output, extra);
	if (stage != UPPERREL_GROUP_AGG)
		return;
	if (tessera_plan_mode() == TESSERA_PLAN_SHARD)
		replace_by_first_half(root, input, output, extra);
	else if (tessera_plan_mode() == TESSERA_PLAN_ROUTER && root->parse->groupingSets == NIL && !root->parse->hasTargetSRFs &&
			 !root->hasNonPartialAggs && !root->hasNonSerialAggs && root->rowMarks == NIL && tessera_closed_rel(root, input, &closed))
		add_final_paths(root, input, &closed, output, extra);
}

void
tessera_group_path_init(void)
{
	previous_upper_paths = create_upper_paths_hook;
	create_upper_paths_hook = upper_paths;
}
