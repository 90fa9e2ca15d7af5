/*
 * table_path.c
 *	  Hooks into core's planner: scans of cluster tables through their shards (router mode), the ownership filter (shard mode), row marks that do not
 *	  touch the local heap (doc/design.md#row-marks).
 *
 * In router mode every base relation that is a cluster table gets one path, a CustomScan that reads all its shards; conditions that mean the same on
 * a shard are shipped and not checked again, the rest stays local. The local heap of such a table is never scanned.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/table.h"
#include "catalog/heap.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planmain.h"
#include "optimizer/prep.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/snapmgr.h"

#include "common/operator_names.h"
#include "common/version_compat.h"
#include "executor/ownership.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/system_row.h"
#include "executor/targets.h"
#include "planner/cursor_rows.h"
#include "planner/planner.h"
#include "planner/pruning_conditions.h"
#include "planner/read_columns.h"
#include "planner/ship.h"
#include "planner/table_path.h"
#include "planner/timeless.h"
#include "routing/key_comparison.h"
#include "session/internal_connection.h"
#include "statistics/table_statistics.h"

static get_relation_info_hook_type previous_relation_info = NULL;
static set_rel_pathlist_hook_type previous_pathlist = NULL;
static get_relation_stats_hook_type previous_relation_stats = NULL;
static get_attavgwidth_hook_type previous_width = NULL;

static struct Plan *plan_custom_path(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans);

static const CustomPathMethods path_methods = {.CustomName = "Tessera Scan", .PlanCustomPath = plan_custom_path};

const TesseraTable *
tessera_cluster_table(Oid relid)
{
	const TesseraRouting *routing = tessera_routing();

	return routing ? tessera_routing_table(routing, relid) : NULL;
}

const TesseraTable *
tessera_scanned_table(PlannerInfo *root, Index rti, Oid relid)
{
	const TesseraTable *table = tessera_cluster_table(relid);
	ListCell   *cell;

	if (table == NULL || !table->replicated || root->parse->resultRelation == rti ||
		(tessera_names_row_version(tessera_permissions(root->parse, planner_rt_fetch(rti, root))) &&
		 tessera_reads_row_version(root->parse, (Node *) root->append_rel_list, rti, NIL)))
		return table;
	foreach(cell, root->rowMarks)
		if (lfirst_node(PlanRowMark, cell)->rti == rti && lfirst_node(PlanRowMark, cell)->strength > LCS_FORKEYSHARE)
			return table;
	return NULL;
}

/* ---- ownership filter (shard mode) ---- */

static Expr *
ownership_filter(RelOptInfo *rel, Relation relation, const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	List	   *args;

	*id = group->group_id;
	args = list_make1(makeConst(UUIDOID, -1, InvalidOid, sizeof(pg_uuid_t), UUIDPGetDatum(id), false, false));
	for (int i = 0; i < table->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), table->keys[i] - 1);

		args = lappend(args, makeVar(rel->relid, table->keys[i], att->atttypid, att->atttypmod, att->attcollation, 0));
	}
	/* a condition without a column of the table would not stay at its scan */
	if (table->nkeys == 0)
		args = lappend(args, makeVar(rel->relid, TableOidAttributeNumber, OIDOID, -1, InvalidOid, 0));
	return (Expr *) makeFuncExpr(tessera_ownership_function(), BOOLOID, args, InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);
}

static bool
hides_rows(const TesseraRouting *routing, const TesseraGroup *group, Snapshot snapshot)
{
	bool		newest;
	const TesseraPlacement *placement = tessera_placement_as_of(routing, group, snapshot, &newest);

	return placement != NULL && (placement->hides || (snapshot == InvalidSnapshot && placement->ndeletions > 0));
}

/* Under the newest placement, or under that of a snapshot by which the plan is about to run: those rows may have been deleted since. */
static bool
needs_filter(const TesseraRouting *routing, const TesseraGroup *group)
{
	Snapshot	kept = tessera_internal_statement_snapshot();

	return hides_rows(routing, group, InvalidSnapshot) || (ActiveSnapshotSet() && hides_rows(routing, group, GetActiveSnapshot())) ||
		(kept != NULL && hides_rows(routing, group, kept));
}

static void
add_filter(PlannerInfo *root, RelOptInfo *rel, Relation relation, const TesseraTable *table)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = tessera_table_placement_group(routing, table);
	Expr	   *filter;
	RestrictInfo *restriction;

	if (!needs_filter(routing, group))
		return;
	filter = ownership_filter(rel, relation, routing, table);
	restriction = tessera_make_restriction(root, filter, bms_make_singleton(rel->relid));
	rel->baserestrictinfo = lappend(rel->baserestrictinfo, restriction);
	rel->baserestrict_min_security = Min(rel->baserestrict_min_security, restriction->security_level);
}

/* ---- row marks (router mode) ---- */

/* Core would lock or fetch again by ctid in the local heap: copy the whole row instead (doc/design.md#row-marks). */
static void
copy_row_marks(PlannerInfo *root, RelOptInfo *rel)
{
	ListCell   *cell;

	foreach(cell, root->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, cell);
		char		ctid[32];
		ListCell   *target;

		if (mark->rti != rel->relid || mark->markType == ROW_MARK_COPY)
			continue;
		mark->markType = ROW_MARK_COPY;
		mark->allMarkTypes = 1 << ROW_MARK_COPY;
		snprintf(ctid, sizeof(ctid), "ctid%u", mark->rowmarkId);
		foreach(target, root->processed_tlist)
		{
			TargetEntry *entry = lfirst_node(TargetEntry, target);

			if (entry->resjunk && entry->resname && strcmp(entry->resname, ctid) == 0)
			{
				entry->expr = (Expr *) makeWholeRowVar(rt_fetch(rel->relid, root->parse->rtable), rel->relid, 0, false);
				entry->resname = psprintf("wholerow%u", mark->rowmarkId);
			}
		}
	}
}

/*
 * Partitions and children are the shard's business: here the parent is one relation (doc/design.md#partitions). Core looks at all of this after the
 * hook. Whether the user wrote ONLY is remembered until the planning ends.
 */
static void
hide_children(PlannerInfo *root, RelOptInfo *rel)
{
	RangeTblEntry *rte = planner_rt_fetch(rel->relid, root);

	tessera_plan_remember_children(rte, rte->inh);
	rte->inh = false;
	if (rte->relkind == RELKIND_PARTITIONED_TABLE)
		rte->relkind = RELKIND_RELATION;
	rel->part_scheme = NULL;
	rel->boundinfo = NULL;
	rel->nparts = -1;
}

/* Size over all shards, as last collected; if it was never collected, at least that of a medium table. */
static void
estimate_size(RelOptInfo *rel, const TesseraTable *table)
{
	double		pages;
	double		tuples;

	if (tessera_table_size_estimate(tessera_routing(), table, &pages, &tuples))
	{
		rel->pages = (BlockNumber) Min(pages, (double) MaxBlockNumber);
		rel->tuples = tuples;
		return;
	}
	rel->pages = Max(rel->pages, 1000);
	rel->tuples = Max(rel->tuples, 100000);
}

static void
relation_info(PlannerInfo *root, Oid relid, bool inhparent, RelOptInfo *rel)
{
	TesseraPlanMode mode = tessera_plan_mode();

	if (previous_relation_info)
		previous_relation_info(root, relid, inhparent, rel);
	if (mode == TESSERA_PLAN_SHARD)
	{
		const TesseraTable *table = tessera_cluster_table(relid);

		if (table && !table->replicated && rel->reloptkind == RELOPT_BASEREL && !tessera_plan_names(relid))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a function that reads table \"%s\" of the cluster cannot run inside a statement on a shard", get_rel_name(relid)),
					 errhint("Call it first and pass its result, or write the function in PL/pgSQL.")));
		if (table && !table->replicated && table->placement_group >= 0)
		{
			Relation	relation = table_open(relid, NoLock);

			add_filter(root, rel, relation, table);
			table_close(relation, NoLock);
		}
	}
	else if (mode == TESSERA_PLAN_ROUTER && tessera_scanned_table(root, rel->relid, relid))
	{
		copy_row_marks(root, rel);
		hide_children(root, rel);
		rel->indexlist = NIL;
		rel->statlist = NIL;	/* of this node's rows, as the rest */
		estimate_size(rel, tessera_cluster_table(relid));
	}
}

/* ---- statistics (router mode): of the whole table, not of the local heap ---- */

/*
 * True if the user may read all values of the column, by core's rule (all_rows_selectable). Otherwise only leakproof functions may see what the
 * statistics hold.
 */
static bool
may_read_all(PlannerInfo *root, RangeTblEntry *rte, AttrNumber attnum)
{
	Oid			role = tessera_check_as_user(root->parse, rte);
	Oid			user = OidIsValid(role) ? role : GetUserId();

	return rte->securityQuals == NIL && (pg_class_aclcheck(rte->relid, user, ACL_SELECT) == ACLCHECK_OK ||
										 pg_attribute_aclcheck(rte->relid, attnum, user, ACL_SELECT) == ACLCHECK_OK);
}

static bool
relation_stats(PlannerInfo *root, RangeTblEntry *rte, AttrNumber attnum, VariableStatData *vardata)
{
	const TesseraTable *table;

	if (previous_relation_stats && previous_relation_stats(root, rte, attnum, vardata))
		return true;
	if (tessera_plan_mode() != TESSERA_PLAN_ROUTER || rte->rtekind != RTE_RELATION || (table = tessera_cluster_table(rte->relid)) == NULL ||
		table->replicated)
		return false;
	if (attnum > 0)
		vardata->statsTuple = tessera_column_statistics(tessera_routing(), table, attnum, tessera_plan_reads_children(rte));
	vardata->freefunc = heap_freetuple;
	vardata->acl_ok = vardata->statsTuple == NULL || may_read_all(root, rte, attnum);
	return true;
}

static int32
column_width(Oid relid, AttrNumber attnum)
{
	int32		width = previous_width ? previous_width(relid, attnum) : 0;
	const TesseraTable *table;

	if (width > 0 || tessera_plan_mode() != TESSERA_PLAN_ROUTER || (table = tessera_cluster_table(relid)) == NULL || table->replicated)
		return width;
	return tessera_column_width(tessera_routing(), table, attnum);
}

/* ---- paths (router mode) ---- */

/* One that the statement names, also as a branch of UNION ALL that core has pulled up; not a partition or child, which its parent's scan reads. */
static bool
is_named(PlannerInfo *root, RelOptInfo *rel)
{
	if (rel->reloptkind == RELOPT_BASEREL)
		return true;
	return rel->reloptkind == RELOPT_OTHER_MEMBER_REL && !OidIsValid(root->append_rel_array[rel->relid]->parent_reloid);
}

static void
pathlist(PlannerInfo *root, RelOptInfo *rel, Index rti, RangeTblEntry *rte)
{
	CustomPath *path;

	if (previous_pathlist)
		previous_pathlist(root, rel, rti, rte);
	/* what core has found empty keeps its path: the condition that says so may be gone */
	if (tessera_plan_mode() != TESSERA_PLAN_ROUTER || rte->rtekind != RTE_RELATION || !is_named(root, rel) || IS_DUMMY_REL(rel) ||
		!tessera_scanned_table(root, rti, rte->relid))
		return;
	if (root->parse->commandType != CMD_SELECT && root->parse->resultRelation == rti)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("table \"%s\" of the cluster cannot be modified this way", get_rel_name(rte->relid))));
	if (rte->tablesample)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("TABLESAMPLE is supported only where one shard answers the statement")));

	path = makeNode(CustomPath);
	path->path.pathtype = T_CustomScan;
	path->path.parent = rel;
	path->path.pathtarget = rel->reltarget;
	path->path.param_info = get_baserel_parampathinfo(root, rel, rel->lateral_relids);
	path->path.parallel_safe = false;
	path->path.rows = rel->rows;
	path->path.startup_cost = 1000;
	/* the shards read at the same time, their rows come in one by one */
	path->path.total_cost = 1000 + rel->pages * seq_page_cost + rel->tuples * cpu_tuple_cost + rel->rows * cpu_tuple_cost;
	path->methods = &path_methods;
	rel->pathlist = list_make1(path);
	rel->partial_pathlist = NIL;
	rel->consider_parallel = false;
}

/* ---- plans ---- */

typedef struct CtidContext
{
	Index		relid;
	int			sublevels;
} CtidContext;

static bool
is_ctid(Node *node, CtidContext *context)
{
	Var		   *var = (Var *) node;

	return node && IsA(node, Var) && var->varno == context->relid && var->varlevelsup == context->sublevels &&
		var->varattno == SelfItemPointerAttributeNumber;
}

/* True if the relation's ctid is used for more than showing, counting, sorting or a test for NULL. */
static bool
uses_ctid(Node *node, CtidContext *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		bool		found;

		context->sublevels++;
		found = query_tree_walker((Query *) node, uses_ctid, context, 0);
		context->sublevels--;
		return found;
	}
	if (IsA(node, NullTest) && is_ctid((Node *) ((NullTest *) node)->arg, context))
		return false;
	if (IsA(node, Aggref) && ((Aggref *) node)->aggfnoid == F_COUNT_ANY && ((Aggref *) node)->aggdistinct == NIL)
	{
		TargetEntry *entry = linitial_node(TargetEntry, ((Aggref *) node)->args);

		return !is_ctid((Node *) entry->expr, context) && expression_tree_walker(node, uses_ctid, context);
	}
	return is_ctid(node, context) || expression_tree_walker(node, uses_ctid, context);
}

/*
 * Rows of two shards may have the same ctid, so no condition may go by it, and no group. It may be shown: as a column of the statement itself, not of
 * a subquery, whose columns may go anywhere.
 */
static bool
computes_with_ctid(PlannerInfo *root, RelOptInfo *rel)
{
	CtidContext context = {.relid = rel->relid};
	Query	   *parse = root->parse;
	ListCell   *cell;

	if (root->query_level > 1 || rel->reloptkind != RELOPT_BASEREL || parse->setOperations)
		return true;
	foreach(cell, parse->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		bool		groups = entry->ressortgroupref != 0 &&
			(parse->hasWindowFuncs || get_sortgroupref_clause_noerr(entry->ressortgroupref, parse->groupClause) ||
			 get_sortgroupref_clause_noerr(entry->ressortgroupref, parse->distinctClause));

		if (is_ctid((Node *) entry->expr, &context) ? groups : uses_ctid((Node *) entry->expr, &context))
			return true;
	}
	if (uses_ctid((Node *) parse->jointree, &context) || uses_ctid(parse->havingQual, &context))
		return true;
	return range_table_walker(parse->rtable, uses_ctid, &context, 0);
}

/*
 * Columns that the plan above needs from this scan: the whole row if any part of the plan asks for it as such. If only row marks ask for it
 * (copy_row_marks), for rechecks, it is the row with the columns that the statement reads: there may be no right to read the others.
 */
static List *
needed_attributes(PlannerInfo *root, RelOptInfo *rel, Relation relation, List *local_quals)
{
	Bitmapset  *needed = NULL;
	const TesseraPermissions *permissions = tessera_permissions(root->parse, planner_rt_fetch(rel->relid, root));
	Bitmapset  *read = permissions == NULL ? NULL : permissions->selectedCols;
	int			whole = InvalidAttrNumber - FirstLowInvalidHeapAttributeNumber;
	List	   *attributes = NIL;

	pull_varattnos((Node *) rel->reltarget->exprs, rel->relid, &needed);
	pull_varattnos((Node *) local_quals, rel->relid, &needed);
	if (bms_is_member(whole, needed) && !bms_is_member(whole, read))
	{
		needed = bms_union(needed, read);
		needed = bms_del_member(needed, whole);
	}
	for (int i = 1; i <= RelationGetNumberOfAttributes(relation); i++)
	{
		if (TupleDescAttr(RelationGetDescr(relation), i - 1)->attisdropped)
			continue;
		if (bms_is_member(i - FirstLowInvalidHeapAttributeNumber, needed) ||
			bms_is_member(whole, needed))
			attributes = lappend_int(attributes, i);
	}
	for (int i = -1; i > FirstLowInvalidHeapAttributeNumber; i--)
		if ((i != TableOidAttributeNumber || has_subclass(RelationGetRelid(relation))) &&
			bms_is_member(i - FirstLowInvalidHeapAttributeNumber, needed))
			attributes = lappend_int(attributes, i);
	if (list_member_int(attributes, SelfItemPointerAttributeNumber) && tessera_cluster_table(RelationGetRelid(relation))->group >= 0 &&
		computes_with_ctid(root, rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the ctid of table \"%s\" can only be shown where several shards answer the statement", RelationGetRelationName(relation)),
				 errdetail("Rows of different shards may have the same."),
				 errhint("Give the table its shard key by equality with a constant or parameter, or use the primary key.")));
	return attributes;
}

/*
 * COLLATE became an implicit RelabelType in planning and would not be printed (doc/design.md#collations-lost); PlaceHolderVars and SubPlans do not
 * print at all. hides: set if an operator is hidden.
 */
static bool
prints_wrong(Node *node, bool *hides)
{
	if (node == NULL)
		return false;
	if (IsA(node, SubPlan) || IsA(node, AlternativeSubPlan) || IsA(node, PlaceHolderVar) || IsA(node, ConvertRowtypeExpr))
		return true;
	if (IsA(node, RelabelType) && ((RelabelType *) node)->resultcollid != exprCollation((Node *) ((RelabelType *) node)->arg) &&
		OidIsValid(((RelabelType *) node)->resultcollid))
		return true;
	if (IsA(node, Var) && ((Var *) node)->varattno < 0)
		return true;
	*hides = *hides || tessera_hides_operator(node);
	return expression_tree_walker(node, prints_wrong, hides);
}

bool
tessera_scan_ships(Node *node)
{
	bool		hides = false;

	return !prints_wrong(node, &hides) && !contain_volatile_functions(node) && tessera_expression_ships(node) &&
		(!hides || tessera_operators_print(node));
}

bool
tessera_condition_ships(const RestrictInfo *restriction)
{
	return !restriction->pseudoconstant && restriction->security_level == 0 && tessera_scan_ships((Node *) restriction->clause);
}

/* Key values from the conditions `key = value`, in key order; NIL if the key is not pinned. */
static List *
pinned_key(RelOptInfo *rel, const TesseraTable *table, List *clauses)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = tessera_routing_group(routing, table->group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	List	   *values = NIL;

	for (int i = 0; i < table->nkeys; i++)
	{
		Expr	   *found = NULL;
		ListCell   *cell;

		foreach(cell, clauses)
		{
			TesseraKeyComparison comparison;

			if (tessera_compares_key((Node *) lfirst_node(RestrictInfo, cell)->clause, &ks->columns[i], rel->relid, table->keys[i], NIL,
									 &comparison) &&
				comparison.strategy == BTEqualStrategyNumber && !comparison.any && tessera_known_before_scan(comparison.value))
			{
				found = (Expr *) comparison.value;
				break;
			}
		}
		if (found == NULL)
			return NIL;
		values = lappend(values, copyObject(found));
	}
	return values;
}

/* ---- LIMIT ---- */

/* Rows that the statement needs of its only relation at most, in its order; -1: not known, or some may be dropped on the way. */
static int64
rows_wanted(PlannerInfo *root, RelOptInfo *rel)
{
	Query	   *parse = root->parse;
	Const	   *count = (Const *) parse->limitCount;
	Const	   *offset = (Const *) parse->limitOffset;
	int64		rows;

	if (count == NULL || !IsA(count, Const) || count->constisnull || (offset && (!IsA(offset, Const) || offset->constisnull)) ||
		parse->commandType != CMD_SELECT || parse->limitOption != LIMIT_OPTION_COUNT || parse->setOperations || parse->groupClause ||
		parse->groupingSets ||
		parse->distinctClause || parse->hasAggs || parse->hasWindowFuncs || parse->hasTargetSRFs || parse->havingQual || root->rowMarks != NIL ||
		!bms_equal(root->all_baserels, rel->relids))
		return -1;
	if (DatumGetInt64(count->constvalue) < 0 || (offset && DatumGetInt64(offset->constvalue) < 0) ||
		pg_add_s64_overflow(DatumGetInt64(count->constvalue), offset ? DatumGetInt64(offset->constvalue) : 0, &rows))
		return -1;
	return rows;
}

/* ORDER BY of the statement, if each expression is a column that the scan returns: as that of the scan. */
static bool
add_order(PlannerInfo *root, RelOptInfo *rel, Query *query, List *attributes)
{
	ListCell   *cell;

	foreach(cell, root->parse->sortClause)
	{
		SortGroupClause *clause = copyObject(lfirst_node(SortGroupClause, cell));
		Var		   *var = (Var *) get_sortgroupclause_expr(clause, root->parse->targetList);
		TargetEntry *column = NULL;

		for (int i = 0; IsA(var, Var) && var->varno == rel->relid && var->varlevelsup == 0 && i < list_length(attributes); i++)
			if (list_nth_int(attributes, i) == var->varattno)
				column = list_nth(query->targetList, i);
		if (column == NULL || !tessera_order_ships(clause, exprType((Node *) var)))
			return false;
		if (column->ressortgroupref == 0)
			column->ressortgroupref = foreach_current_index(cell) + 1;
		clause->tleSortGroupRef = column->ressortgroupref;
		query->sortClause = lappend(query->sortClause, clause);
	}
	return true;
}

/* ORDER BY and LIMIT go to each shard, so that it returns no more rows than the statement can use. The plan's own Sort and Limit stay above. */
static void
add_limit(PlannerInfo *root, RelOptInfo *rel, Query *query, List *attributes, List **params)
{
	int64		rows = rows_wanted(root, rel);

	if (rows < 0)
		return;
	if (!add_order(root, rel, query, attributes))
	{
		query->sortClause = NIL;
		return;
	}
	query->limitCount = tessera_make_param((Expr *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64), Int64GetDatum(rows), false, FLOAT8PASSBYVAL),
										   params);
	query->limitOption = LIMIT_OPTION_COUNT;
}

static bool
whole_row_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var) && ((Var *) node)->varattno == InvalidAttrNumber)
		return true;
	return expression_tree_walker(node, whole_row_walker, context);
}

bool
tessera_uses_whole_row(Node *node)
{
	return whole_row_walker(node, NULL);
}

/* all: no condition stays here. */
static List *
scan_texts(PlannerInfo *root, RelOptInfo *rel, Relation relation, List *attributes, List *shipped, bool all, PlanRowMark *mark, List **params)
{
	TesseraClosedRel table = {.relids = rel->relids,.conditions = shipped,.tree = tessera_closed_leaf(rel->relid)};
	TesseraScanText text = {0};
	Query	   *query = tessera_scan_query(root, &table, &text);
	ListCell   *cell;
	AttrNumber	resno = 0;

	foreach(cell, attributes)
	{
		AttrNumber	attribute = lfirst_int(cell);
		const FormData_pg_attribute *att = attribute > 0 ? TupleDescAttr(RelationGetDescr(relation), attribute - 1) :
			SystemAttributeDefinition(attribute);
		Expr	   *var = (Expr *) makeVar(1, att->attnum, att->atttypid, att->atttypmod, att->attcollation, 0);

		if (attribute == TableOidAttributeNumber)
			var = (Expr *) makeRelabelType(var, REGCLASSOID, -1, InvalidOid, COERCE_EXPLICIT_CAST);
		query->targetList = lappend(query->targetList, makeTargetEntry(var, ++resno, pstrdup(NameStr(att->attname)), false));
	}
	if (mark)
	{
		RowMarkClause *clause = makeNode(RowMarkClause);

		clause->rti = 1;
		clause->strength = mark->strength;
		clause->waitPolicy = mark->waitPolicy;
		query->rowMarks = list_make1(clause);
		query->hasForUpdate = true;
	}
	if (all)
		add_limit(root, rel, query, attributes, &text.params);
	*params = text.params;
	return tessera_deparse(query);
}

/* A FOR UPDATE/SHARE of this relation that the user asked for; NULL if it is only there for rechecks. */
static PlanRowMark *
user_mark(PlannerInfo *root, Index relid)
{
	ListCell   *cell;

	foreach(cell, root->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, cell);

		if (mark->rti == relid && mark->strength != LCS_NONE)
			return mark;
	}
	return NULL;
}

CustomScan *
tessera_scan_plan(RelOptInfo *rel, const TesseraTable *table, List *clauses, List *texts, List *params, List *attributes, int flags)
{
	CustomScan *scan = makeNode(CustomScan);
	bool		sharded = table && table->group >= 0;
	List	   *key = sharded ? pinned_key(rel, table, clauses) : NIL;
	List	   *pin = NIL;
	List	   *conditions = NIL;
	List	   *exprs = list_copy(params);

	if (key)
	{
		List	   *indexes = list_make1_int((int) table->relid);

		for (int i = 0; i < list_length(key); i++)
			indexes = lappend_int(indexes, list_length(params) + i);
		pin = list_make1(indexes);
	}
	exprs = list_concat(exprs, key);
	if (sharded && key == NIL)
		conditions = tessera_pruning_conditions(extract_actual_clauses(clauses, false), rel->relid, tessera_routing(), table, &exprs);

	scan->methods = &tessera_table_scan.plan;
	scan->flags = CUSTOMPATH_SUPPORT_PROJECTION;
	scan->custom_exprs = exprs;
	scan->custom_private = list_make5(texts, makeInteger(list_length(params)), attributes, pin, conditions);
	scan->custom_private = lappend(scan->custom_private, makeInteger(flags));
	scan->custom_private = lappend(scan->custom_private, NIL);
	Assert(list_length(scan->custom_private) == TABLE_COUNT);
	return scan;
}

static struct Plan *
plan_custom_path(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *custom_plans)
{
	RangeTblEntry *rte = planner_rt_fetch(rel->relid, root);
	Relation	relation = table_open(rte->relid, NoLock);
	CustomScan *scan;
	List	   *shipped = NIL;
	List	   *local = NIL;
	List	   *attributes;
	List	   *params;
	ListCell   *cell;
	PlanRowMark *mark = user_mark(root, rel->relid);
	int			flags = mark ? STATEMENT_WRITES : 0;
	List	   *texts;

	if (root->query_level == 1 && tessera_has_positions(root->parse, rel->relid))
		flags |= TABLE_NODES;

	foreach(cell, clauses)
	{
		RestrictInfo *restriction = lfirst_node(RestrictInfo, cell);

		if (tessera_condition_ships(restriction))
			shipped = lappend(shipped, restriction);
		else
			local = lappend(local, restriction);
	}
	attributes = needed_attributes(root, rel, relation, extract_actual_clauses(local, false));
	texts = scan_texts(root, rel, relation, attributes, shipped, local == NIL, mark, &params);
	flags |= tessera_scan_is_timeless(relation, (Node *) extract_actual_clauses(shipped, false)) ? STATEMENT_TIMELESS : 0;
	scan = tessera_scan_plan(rel, tessera_cluster_table(rte->relid), clauses, texts, params, attributes, flags);
	scan->scan.plan.targetlist = tlist;
	scan->scan.plan.qual = extract_actual_clauses(local, false);
	scan->scan.scanrelid = rel->relid;
	table_close(relation, NoLock);
	return (struct Plan *) scan;
}

void
tessera_table_path_init(void)
{
	previous_relation_info = get_relation_info_hook;
	get_relation_info_hook = relation_info;
	previous_pathlist = set_rel_pathlist_hook;
	set_rel_pathlist_hook = pathlist;
	previous_relation_stats = get_relation_stats_hook;
	get_relation_stats_hook = relation_stats;
	previous_width = get_attavgwidth_hook;
	get_attavgwidth_hook = column_width;
}
