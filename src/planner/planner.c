/*
 * planner.c
 *	  The planner hook: decides the tier of each statement.
 *
 * Shard mode: the outermost statement of an internal connection, and local parts. Everything else on a member node is router mode: T1 if all cluster
 * tables are pinned to one shard, DML whole to all shards of its table, inserts routed row by row, and T3 for any SELECT. What none of these covers
 * is refused with 0A000 and the reason; it never runs on local rows only.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "ddl/ddl.h"
#include "executor/local_part.h"
#include "executor/plan_private.h"
#include "executor/reference_check.h"
#include "executor/scan_frame.h"
#include "planner/closed_select.h"
#include "planner/cursor_rows.h"
#include "planner/key_update.h"
#include "planner/limited_locks.h"
#include "planner/part_plan.h"
#include "planner/pins.h"
#include "planner/planner.h"
#include "planner/read_side.h"
#include "planner/row_triggers.h"
#include "planner/shard_mode.h"
#include "planner/ship.h"
#include "planner/sequences.h"
#include "planner/statement_plan.h"
#include "planner/target_view.h"
#include "session/internal_connection.h"
#include "session/row_write.h"

static planner_hook_type previous_planner = NULL;
static needs_fmgr_hook_type previous_needs_hook = NULL;

/*
 * How the planning in progress (the innermost) is done. Core's planner hands its hooks nothing of ours, so they find it here; it is changed by
 * plan_with alone.
 */
typedef struct Planning
{
	TesseraPlanMode mode;
	int			depth;			/* of plannings by core: 0: none is in progress */
	List	   *named;			/* in shard mode: relations that the statement itself names */
	List	   *children;		/* in router mode: entries of range tables, see tessera_plan_reads_children; in the planner's memory */
	bool		whole;			/* the next statement may go to a shard whole */
} Planning;

static Planning planning = {.mode = TESSERA_PLAN_PLAIN,.whole = true};

TesseraPlanMode
tessera_plan_mode(void)
{
	return planning.mode;
}

/* Calls a planner with this state of planning; the state around it is put back afterwards, also by an error. */
static PlannedStmt *
plan_with(Planning wanted, planner_hook_type planner, Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	Planning	before = planning;
	PlannedStmt *plan;

	planning = wanted;
	PG_TRY();
	{
		plan = planner(query, source, cursor_options, params);
	}
	PG_FINALLY();
	{
		planning = before;
	}
	PG_END_TRY();
	return plan;
}

/* Calls core's planner in a mode. named: relations that the statement of shard mode names. */
static PlannedStmt *
plan_by_core(TesseraPlanMode mode, List *named, Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	Planning	wanted = {.mode = mode,.depth = planning.depth + 1,.named = named,.whole = true};

	return plan_with(wanted, previous_planner ? previous_planner : standard_planner, query, source, cursor_options, params);
}

static PlannedStmt *
plan_in_mode(TesseraPlanMode mode, Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	return plan_by_core(mode, NIL, query, source, cursor_options, params);
}

_Noreturn static void
refuse_statement(Query *query, const TesseraReason *reason)
{
	const char *what = query->commandType == CMD_INSERT ? "INSERT" : query->commandType == CMD_UPDATE ? "UPDATE" :
		query->commandType == CMD_DELETE ? "DELETE" : query->commandType == CMD_MERGE ? "MERGE" : "statement";

	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("this %s on a table of the cluster is not supported: %s", what,
					reason->text ? reason->text : "its rows lie on several shards and it cannot be sent to them whole"),
			 errhint("%s", reason->hint ? reason->hint :
					 "Give each sharded table its shard key by equality with a constant or parameter, or split the statement.")));
}

/* UPDATE, DELETE, MERGE or INSERT ... SELECT that goes by the key of a sharded table: each shard does its part. */
static bool
goes_to_all_shards(Query *query, const TesseraAnalysis *analysis)
{
	return query->commandType != CMD_SELECT && analysis->all_closed && analysis->nother == 0 && !tessera_has_volatile_source(query) &&
		(query->commandType != CMD_INSERT || tessera_insert_ships(query));
}

static const TesseraTable *
insert_target(Query *query, const TesseraRouting *routing)
{
	if (query->commandType != CMD_INSERT)
		return NULL;
	return tessera_routing_table(routing, rt_fetch(query->resultRelation, query->rtable)->relid);
}

/* ---- the scans of a T3 statement: one fragment needs no transaction on the shards, and none may read the local heap ---- */

typedef struct ScanCount
{
	List	   *rtable;
	int			n;
	CustomScan *scan;
	bool		repeated;		/* below something that scans again */
} ScanCount;

/* ERROR 0A000 if core's plan reads a table of the cluster by itself: the answer would have this node's rows only. */
static void
check_scan(Plan *plan, const ScanCount *count)
{
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
			{
				const TesseraRouting *routing = tessera_routing();
				Oid			relid = rt_fetch(((Scan *) plan)->scanrelid, count->rtable)->relid;

				const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;

				if (table != NULL && !table->replicated)
					ereport(ERROR,
							(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							 errmsg("the statement was planned to read table \"%s\" of the cluster on this node alone", get_rel_name(relid)),
							 errhint("Rewrite the statement, and report this as a bug.")));
				break;
			}
		default:
			break;
	}
}

static void
count_scans(Plan *plan, bool repeated, ScanCount *count)
{
	ListCell   *cell;
	List	   *children = NIL;

	if (plan == NULL)
		return;
	if (IsA(plan, CustomScan) && ((CustomScan *) plan)->methods == &tessera_table_scan.plan)
	{
		count->n++;
		count->scan = (CustomScan *) plan;
		count->repeated |= repeated;
	}
	check_scan(plan, count);
	switch (nodeTag(plan))
	{
		case T_Append:
			children = ((Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) plan)->mergeplans;
			break;
		case T_SubqueryScan:
			children = list_make1(((SubqueryScan *) plan)->subplan);
			break;
		case T_CustomScan:
			children = ((CustomScan *) plan)->custom_plans;
			break;
		default:
			break;
	}
	foreach(cell, children)
		count_scans(lfirst(cell), repeated, count);
	count_scans(plan->lefttree, repeated || IsA(plan, RecursiveUnion), count);
	count_scans(plan->righttree, repeated || IsA(plan, NestLoop) || IsA(plan, RecursiveUnion), count);
}

static void
check_scans(PlannedStmt *plan)
{
	ScanCount	count = {.rtable = plan->rtable};
	ListCell   *cell;

	count_scans(plan->planTree, false, &count);
	foreach(cell, plan->subplans)
		count_scans(lfirst(cell), true, &count);
	if (count.n == 1 && !count.repeated)
	{
		Integer    *flags = list_nth(count.scan->custom_private, TABLE_FLAGS);

		flags->ival |= TABLE_SINGLE;
	}
}

/*
 * This shard's own heaps. A function that core inlines may bring in a relation that the router knows nothing of and that has rows elsewhere: see
 * tessera_plan_names.
 */
static PlannedStmt *
plan_in_shard(Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	tessera_check_final_rows(query);
	return plan_by_core(TESSERA_PLAN_SHARD, tessera_relations_of(query), query, source, cursor_options, params);
}

/* What a router has sent, or has this node run as its own part. */
static PlannedStmt *
plan_for_router(Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	PlannedStmt *plan = plan_in_shard(query, source, cursor_options, params);

	if (tessera_is_row_write(source))
		tessera_row_write_planned(plan);
	return plan;
}

bool
tessera_plan_names(Oid relid)
{
	return list_member_oid(planning.named, relid);
}

void
tessera_plan_remember_children(RangeTblEntry *rte, bool reads)
{
	planning.children = list_delete_ptr(planning.children, rte);
	if (reads)
		planning.children = lappend(planning.children, rte);
}

bool
tessera_plan_reads_children(RangeTblEntry *rte)
{
	return list_member_ptr(planning.children, rte);
}

/* Core's planner with the cluster's tables scanned through their shards. */
static PlannedStmt *
plan_in_router(Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	PlannedStmt *plan = plan_in_mode(TESSERA_PLAN_ROUTER, query, source, cursor_options, params);

	check_scans(plan);
	return tessera_may_scroll(cursor_options) ? tessera_keep_rows(plan, false) : plan;
}

/* UPDATE, DELETE or MERGE of a cluster table whose shards do not have all that it reads. */
static bool
reads_beside_target(const Query *query, const TesseraAnalysis *analysis)
{
	return query->commandType != CMD_INSERT && !analysis->has_writing_cte && tessera_target_of(analysis, query) != NULL;
}

/* What is read elsewhere is read here and sent along; WITH queries one by one. */
static PlannedStmt *
plan_reading(Query *query, const char *source, int cursor_options, ParamListInfo params, const TesseraRouting *routing, TesseraReason *reason)
{
	TesseraReason own = {0};
	PlannedStmt *plan;

	if (query->cteList != NIL)
		return tessera_plan_parts(query, source, cursor_options, params);
	plan = tessera_plan_reading(query, source, cursor_options, params, routing, &own);
	if (own.text)
		*reason = own;
	return plan;
}

/* The plan of a statement that names cluster tables; triggers fire on the shards. */
static PlannedStmt *
plan_without_triggers(Query *query, const char *source, int cursor_options, ParamListInfo params, const TesseraRouting *routing)
{
	TesseraAnalysis *analysis = tessera_analyse(query, routing);
	TesseraReason reason = {0};
	PlannedStmt *plan;

	if (tessera_modifies_view(query))
	{
		if (analysis->writes_cluster)
			refuse_statement(query, &reason);
		return plan_in_router(query, source, cursor_options, params);
	}
	if (tessera_names_current_row(query) && analysis->writes_cluster)
	{
		plan = tessera_plan_statement(query, cursor_options, routing, analysis, true, &reason);
		if (plan == NULL)
			refuse_statement(query, &reason);
		return plan;
	}
	if (tessera_changes_key(query, analysis))
	{
		plan = tessera_plan_key_update(query, source, cursor_options, params, routing, &reason);
		if (plan == NULL)
			refuse_statement(query, &reason);
		return plan;
	}
	if (planning.whole && (cursor_options & CURSOR_OPT_FAST_PLAN) && !analysis->policies_read_cluster)
	{
		Query	   *positioned = tessera_add_positions(query, routing);

		if (positioned)
			return plan_in_router(positioned, source, cursor_options, params);
	}
	if (planning.whole && analysis->occurrences != NIL && analysis->nother == 0 && analysis->all_pinned)
	{
		plan = tessera_plan_statement(query, cursor_options, routing, analysis, false, &reason);
		if (plan)
			return tessera_may_scroll(cursor_options) && query->rowMarks == NIL ? tessera_keep_rows(plan, true) : plan;
	}
	if (analysis->policies_read_cluster)
	{
		/* The shard applies them, too, and would read its own part of those tables only. */
		reason.text = "a row security policy reads other tables of the cluster, whose rows lie on other shards";
		reason.hint = "Pin all of them to one shard by the shard key, or keep what the policy needs in the table's own columns.";
		refuse_statement(query, &reason);
	}
	if (analysis->has_writing_cte && analysis->writes_cluster)
		return tessera_plan_parts(query, source, cursor_options, params);
	if (goes_to_all_shards(query, analysis))
	{
		plan = tessera_plan_statement(query, cursor_options, routing, analysis, true, &reason);
		if (plan)
			return plan;
	}
	if (insert_target(query, routing) != NULL)
	{
		plan = tessera_plan_insert(query, source, cursor_options, params, routing, &reason);
		if (plan)
			return plan;
	}
	plan = reads_beside_target(query, analysis) ? plan_reading(query, source, cursor_options, params, routing, &reason) : NULL;
	if (plan)
		return plan;
	if (analysis->writes_cluster)
		refuse_statement(query, &reason);
	plan = planning.whole && !(cursor_options & CURSOR_OPT_FAST_PLAN) ? tessera_plan_closed_select(query, cursor_options, routing, analysis) : NULL;
	return plan ? plan : plan_in_router(tessera_lock_up_to_limit(query, routing), source, cursor_options, params);
}

/*
 * The same with triggers that fire here, if they have to. On an internal connection they fire where the statement runs: its router's session is
 * elsewhere.
 */
static PlannedStmt *
plan_routed(Query *query, const char *source, int cursor_options, ParamListInfo params, const TesseraRouting *routing)
{
	PlannedStmt *plan;
	bool		fires = !tessera_internal_connection() && tessera_fires_row_triggers(query, routing);

	if (query->hasModifyingCTE && !tessera_internal_connection() && (fires || tessera_with_fires_row_triggers(query, routing)))
		return tessera_plan_parts(query, source, cursor_options, params);
	plan = plan_without_triggers(query, source, cursor_options, params, routing);
	if (fires)
		plan = tessera_plan_row_triggers(query, source, cursor_options, params, routing, plan);
	if (query->resultRelation > 0)
		tessera_depend_on_triggers(query, plan);
	return plan;
}

/* Another plan of a Query, when the one made before does not fit: its pins fell on different shards, or (whole) a table was sharded since. */
static PlannedStmt *
plan_again(Query *query, const char *source, ParamListInfo params, bool whole)
{
	Planning	wanted = planning;

	wanted.whole = whole;
	return plan_with(wanted, pg_plan_query, query, source, CURSOR_OPT_PARALLEL_OK, params);
}

/* True if the query names a relation, or calls a function, outside of the schemas pg_catalog and tessera, or uses a sequence function. */
static bool
names_other_tables(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;
		Oid			schema;

		if (rte->rtekind != RTE_RELATION)
			return false;
		schema = get_rel_namespace(rte->relid);
		return schema != PG_CATALOG_NAMESPACE && !tessera_is_own_schema(schema);
	}
	if (IsA(node, FuncExpr))
	{
		Oid			function = ((FuncExpr *) node)->funcid;
		Oid			schema = get_func_namespace(function);

		if (tessera_is_replaced(function))
			return true;
		if (schema != PG_CATALOG_NAMESPACE && !tessera_is_own_schema(schema))
			return true;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, names_other_tables, context, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, names_other_tables, context);
}

/* True if the text of an SQL function names one of the functions that are replaced. */
static bool
names_replaced(HeapTuple tuple)
{
	static const char *const words[] = {"nextval", "currval", "lastval", "setval", "advisory", "notify"};
	bool		null;
	Datum		body = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosqlbody, &null);
	char	   *source;
	bool		found = false;

	if (!null)
		return true;			/* parsed already: names are oids there */
	body = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &null);
	if (null)
		return false;
	source = TextDatumGetCString(body);
	for (char *c = source; *c && !found; c++)
		for (int i = 0; i < lengthof(words) && !found; i++)
			found = pg_strncasecmp(c, words[i], strlen(words[i])) == 0;
	pfree(source);
	return found;
}

/*
 * Core puts the body of a simple SQL function in the place of its call, after this planner has replaced what is to be replaced. A function with a
 * hook it leaves alone: the body is then a statement of its own. So such functions have one, which does nothing, while a statement is planned.
 */
static bool
stays_a_call(Oid function)
{
	HeapTuple	tuple;
	bool		stays = false;

	if (previous_needs_hook && previous_needs_hook(function))
		return true;
	if (planning.depth == 0 || function < FirstNormalObjectId || !IsTransactionState())
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		stays = form->prolang == SQLlanguageId && form->provolatile == PROVOLATILE_VOLATILE && names_replaced(tuple);
		ReleaseSysCache(tuple);
	}
	return stays;
}

/* True if the statement is about one table, which has a foreign key to a replicated one. */
static bool
refers_to_copies(Query *query, const TesseraRouting *routing)
{
	RangeTblEntry *rte = list_length(query->rtable) == 1 ? linitial_node(RangeTblEntry, query->rtable) : NULL;
	Relation	rel;
	ListCell   *cell;
	bool		refers = false;

	if (rte == NULL || rte->rtekind != RTE_RELATION || tessera_routing_table(routing, rte->relid) == NULL)
		return false;
	rel = table_open(rte->relid, NoLock);
	foreach(cell, RelationGetFKeyList(rel))
	{
		const TesseraTable *table = tessera_routing_table(routing, ((ForeignKeyCacheInfo *) lfirst(cell))->confrelid);

		refers |= table != NULL && table->replicated;
	}
	table_close(rel, NoLock);
	return refers;
}

static PlannedStmt *
tessera_planner(Query *query, const char *source, int cursor_options, ParamListInfo params)
{
	bool		local = (cursor_options & TESSERA_PLAN_LOCAL_PART) != 0;
	const TesseraRouting *routing;

	Query	   *refresh = tessera_refresh_query(source);

	cursor_options &= ~TESSERA_PLAN_LOCAL_PART;
	if (refresh)
		return plan_in_shard(refresh, source, cursor_options, params);
	if (query->commandType == CMD_UTILITY || !IsTransactionState())
		return plan_in_mode(TESSERA_PLAN_PLAIN, query, source, cursor_options, params);
	if (local || (planning.depth == 0 && tessera_received(source)))
		return plan_for_router(query, source, cursor_options, params);
	if (tessera_ddl_plans_locally(source) || tessera_refresh_plans_locally(source))
		return plan_in_shard(query, source, cursor_options, params);
	/* An image of its own for each of a catalog-changing transaction's statements is dear; those on the catalog itself do without. */
	if (tessera_catalog_changed_here() != 0 && !names_other_tables((Node *) query, NULL))
		return plan_in_mode(TESSERA_PLAN_PLAIN, query, source, cursor_options, params);
	routing = tessera_routing();
	if (routing == NULL && planning.depth == 0)
		return (previous_planner ? previous_planner : standard_planner) (query, source, cursor_options, params);
	if (routing == NULL)
		return plan_in_mode(TESSERA_PLAN_PLAIN, query, source, cursor_options, params);
	if (routing->nreplicated > 0 && tessera_nesting() > 0 && tessera_is_reference_query(source) && refers_to_copies(query, routing))
		return plan_in_shard(query, source, cursor_options, params);
	tessera_route_sequences(query, routing);
	if (!tessera_names_cluster_table(query, routing))
		return plan_in_router(query, source, cursor_options, params);
	return plan_routed(query, source, cursor_options, params, routing);
}

void
tessera_planner_init(void)
{
	previous_planner = planner_hook;
	planner_hook = tessera_planner;
	previous_needs_hook = needs_fmgr_hook;
	needs_fmgr_hook = stays_a_call;
	tessera_nested_planner = plan_again;
}
