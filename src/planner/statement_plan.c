/*
 * statement_plan.c
 *	  PlannedStmts made by hand for whole statements and routed inserts; see statement_plan.h.
 *
 * The range table holds every relation of every level (also inside views and sublinks): it drives locks at re-execution, privilege checks and the
 * read-only check. Its last entry is a dummy that names the output columns for EXPLAIN.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/sysattr.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/planmain.h"
#include "optimizer/planner.h"
#include "parser/parse_relation.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteHandler.h"
#include "rewrite/rewriteManip.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "common/range_table.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/source_position.h"
#include "executor/targets.h"
#include "planner/cursor_rows.h"
#include "planner/pruning_conditions.h"
#include "planner/statement_plan.h"
#include "planner/target_view.h"
#include "planner/timeless.h"

static List *
output_targets(Query *query)
{
	return query->commandType == CMD_SELECT ? query->targetList : query->returningList;
}

List *
tessera_output_list(List *targets)
{
	List	   *result = NIL;
	ListCell   *cell;
	AttrNumber	attribute = 0;

	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *expr = (Node *) entry->expr;
		Var		   *var;
		TargetEntry *output;

		if (entry->resjunk)
			continue;
		attribute++;
		/* varno is set by tessera_wrap_plan, which knows the dummy's index */
		var = makeVar(0, attribute, exprType(expr), exprTypmod(expr), exprCollation(expr), 0);
		output = makeTargetEntry((Expr *) var, attribute, entry->resname ? pstrdup(entry->resname) : NULL, false);
		output->resorigtbl = entry->resorigtbl;
		output->resorigcol = entry->resorigcol;
		result = lappend(result, output);
	}
	return result;
}

/* Range table and permissions of a plan: of all relations that a query names, at any depth. */
typedef struct Relations
{
	const Query *query;			/* being walked */
	List	   *rtable;
	List	   *permissions;
} Relations;

static bool
collect_relations(Node *node, Relations *relations)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		if (tessera_is_checked(rte))
		{
			RangeTblEntry *copy = makeNode(RangeTblEntry);

			/* as core's plans, it shares with the query what nobody changes after planning */
			memcpy(copy, rte, sizeof(RangeTblEntry));
			copy->subquery = NULL;
			copy->securityQuals = NIL;
			tessera_move_permissions(relations->query, copy, &relations->permissions);
			relations->rtable = lappend(relations->rtable, copy);
		}
		return false;
	}
	if (IsA(node, Query))
	{
		const Query *around = relations->query;

		relations->query = (Query *) node;
		(void) query_tree_walker((Query *) node, collect_relations, relations, QTW_EXAMINE_RTES_BEFORE);
		relations->query = around;
		return false;
	}
	return expression_tree_walker(node, collect_relations, relations);
}

static RangeTblEntry *
dummy_entry(List *output)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *names = NIL;
	ListCell   *cell;

	foreach(cell, output)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		names = lappend(names, makeString(pstrdup(entry->resname ? entry->resname : "?column?")));
	}
	rte->rtekind = RTE_RESULT;
	rte->eref = makeAlias("shards", names);
	return rte;
}

/* The plan's target list over its custom_scan_tlist. */
static List *
index_targets(List *scan_list)
{
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, scan_list)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Var		   *var = (Var *) entry->expr;
		TargetEntry *target = makeTargetEntry((Expr *) makeVar(INDEX_VAR, entry->resno, var->vartype, var->vartypmod, var->varcollid, 0),
											  entry->resno, entry->resname ? pstrdup(entry->resname) : NULL, false);

		target->resorigtbl = entry->resorigtbl;
		target->resorigcol = entry->resorigcol;
		result = lappend(result, target);
	}
	return result;
}

PlannedStmt *
tessera_wrap_plan(Query *query, CustomScan *scan, int cursor_options)
{
	PlannedStmt *plan = makeNode(PlannedStmt);
	Relations	relations = {0};
	Plan	   *top = (Plan *) scan;
	ListCell   *cell;
	bool		row_security;

	(void) collect_relations((Node *) query, &relations);
	relations.rtable = lappend(relations.rtable, dummy_entry(scan->custom_scan_tlist));
	foreach(cell, scan->custom_scan_tlist)
		((Var *) ((TargetEntry *) lfirst(cell))->expr)->varno = list_length(relations.rtable);
	foreach(cell, scan->custom_scan_tlist)
		((Var *) ((TargetEntry *) lfirst(cell))->expr)->varnosyn = list_length(relations.rtable);
	scan->scan.scanrelid = 0;
	scan->scan.plan.targetlist = index_targets(scan->custom_scan_tlist);
	scan->scan.plan.plan_node_id = 1;
	/* One cost for custom and generic plans: after five executions the generic one wins by what planning costs. */
	scan->scan.plan.startup_cost = 10;
	scan->scan.plan.total_cost = 100;
	scan->scan.plan.plan_rows = 1;
	scan->scan.plan.plan_width = 64;

	if ((cursor_options & CURSOR_OPT_SCROLL) && !ExecSupportsBackwardScan(top))
		top = tessera_materialize(top);

	plan->commandType = query->commandType;
	plan->queryId = query->queryId;
	plan->hasReturning = query->returningList != NIL;
	plan->hasModifyingCTE = query->hasModifyingCTE;
	plan->canSetTag = query->canSetTag;
	plan->planTree = top;
	tessera_set_plan_relations(plan, relations.rtable, relations.permissions);
	plan->stmt_location = query->stmt_location;
	plan->stmt_len = query->stmt_len;
	extract_query_dependencies((Node *) query, &plan->relationOids, &plan->invalItems, &row_security);
	/* a table is named through a view, by its owner's rights: tessera_restore_target_views looks at the current user then */
	plan->dependsOnRole = row_security || tessera_plan_checks_as_user(plan);
	return plan;
}

/* ---- whole statements ---- */

static bool
same_pin(const TesseraOccurrence *a, const TesseraOccurrence *b)
{
	return a->table->group == b->table->group && equal(a->key, b->key);
}

/* Index in the parameters of the value that the prepared INSERT gives to a column; -1: it is no parameter. */
static int
param_of_column(Query *prepared, AttrNumber attribute)
{
	ListCell   *cell;

	foreach(cell, prepared->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *node = (Node *) entry->expr;

		if (entry->resno != attribute)
			continue;
		if (IsA(node, RelabelType))
			node = (Node *) ((RelabelType *) node)->arg;
		return IsA(node, Param) ? ((Param *) node)->paramid - 1 : -1;
	}
	return -1;
}

/* The values that the router computes, which come from a query that is not planned, as the executor takes expressions. */
static List *
plan_values(List *exprs)
{
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, exprs)
	{
		Expr	   *expr = lfirst(cell);

		result = lappend(result, IsA(expr, Const) || IsA(expr, Param) ? expr : expression_planner(expr));
	}
	return result;
}

/*
 * The pins that differ: keys appended to exprs. A volatile key is that of the statement's one new row; it must be evaluated once, so the pin names
 * the parameter that carries it.
 */
static List *
collect_pins(TesseraAnalysis *analysis, Query *prepared, List **exprs)
{
	List	   *pins = NIL;
	List	   *distinct = NIL;
	ListCell   *cell;

	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);
		bool		known = false;
		ListCell   *other;
		List	   *pin;

		if (occurrence->table->group < 0 || !occurrence->pinned)
			continue;
		foreach(other, distinct)
			known |= same_pin(occurrence, lfirst(other));
		if (known)
			continue;
		distinct = lappend(distinct, occurrence);
		pin = list_make1_int((int) occurrence->table->relid);
		for (int i = 0; i < list_length(occurrence->key); i++)
		{
			Node	   *value = list_nth(occurrence->key, i);
			int			param = contain_volatile_functions(value) ? param_of_column(prepared, occurrence->table->keys[i]) : -1;

			if (param < 0)
			{
				param = list_length(*exprs);
				*exprs = lappend(*exprs, copyObject(value));
			}
			pin = lappend_int(pin, param);
		}
		pins = lappend(pins, pin);
	}
	return pins;
}

/* The target comes first: its group is that of the shards. */
static void
collect_tables(TesseraAnalysis *analysis, const TesseraOccurrence *target, List **placed, List **sharded)
{
	ListCell   *cell;

	*placed = NIL;
	*sharded = target && target->table->group >= 0 ? list_make1_oid(target->table->relid) : NIL;
	foreach(cell, analysis->occurrences)
	{
		const TesseraTable *table = ((TesseraOccurrence *) lfirst(cell))->table;

		if (table->group < 0)
			*placed = list_append_unique_oid(*placed, table->relid);
		else
			*sharded = list_append_unique_oid(*sharded, table->relid);
	}
}

static List *
types_of(List *exprs)
{
	List	   *types = NIL;
	ListCell   *cell;

	foreach(cell, exprs)
		types = lappend_oid(types, exprType(lfirst(cell)));
	return types;
}

static bool
refused(TesseraReason *reason, const char *text, const char *hint)
{
	reason->text = text;
	reason->hint = hint;
	return false;
}

static bool
table_has_rules(Oid relid)
{
	Relation	relation = table_open(relid, NoLock);
	/* of which the shard says that it cannot be changed */
	bool		result = relation->rd_rules != NULL && relation->rd_rel->relkind != RELKIND_MATVIEW;

	table_close(relation, NoLock);
	return result;
}

/*
 * True if the assignment leaves the key column as it is: it assigns the column itself, the value to which the statement pins it, or that of the
 * excluded row (a row that conflicts has the same key).
 */
static bool
keeps_key(const TesseraOccurrence *occurrence, int column, TargetEntry *entry)
{
	Query	   *query = occurrence->query;
	Var		   *var = (Var *) entry->expr;

	if (IsA(var, Var) && var->varattno == entry->resno && var->varlevelsup == 0)
		return var->varno == occurrence->rti || (query->onConflict && var->varno == query->onConflict->exclRelIndex);
	return query->commandType == CMD_UPDATE && occurrence->pinned && equal(entry->expr, list_nth(occurrence->key, column));
}

bool
tessera_assigns_key(const TesseraOccurrence *occurrence, List *targets)
{
	ListCell   *cell;

	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		for (int k = 0; k < occurrence->table->nkeys; k++)
			if (!entry->resjunk && entry->resno == occurrence->table->keys[k] && !keeps_key(occurrence, k, entry))
				return true;
	}
	return false;
}

/* What a modification must not do on a cluster table, wherever its rows lie. */
static bool
modification_allowed(TesseraAnalysis *analysis, TesseraReason *reason)
{
	ListCell   *cell;

	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);
		Query	   *owner = occurrence->query;
		bool		assigns = false;
		ListCell   *action;

		if (owner->resultRelation != occurrence->rti)
			continue;
		if (table_has_rules(occurrence->table->relid))
			return refused(reason, "the table has rewrite rules", "Use triggers instead of rules on a table of the cluster.");
		if (owner->commandType == CMD_UPDATE)
			assigns = tessera_assigns_key(occurrence, owner->targetList);
		if (owner->onConflict)
			assigns |= tessera_assigns_key(occurrence, owner->onConflict->onConflictSet);
		foreach(action, owner->mergeActionList)
			if (lfirst_node(MergeAction, action)->commandType == CMD_UPDATE)
				assigns |= tessera_assigns_key(occurrence, lfirst_node(MergeAction, action)->targetList);
		if (assigns)
			return refused(reason, "it changes the shard key", "Delete the row and insert it with the new key.");
	}
	return true;
}

/* Column of the source that a new row's column is; 0: it is something else. */
static AttrNumber
source_column(const TargetEntry *entry, Index source)
{
	List	   *vars = pull_var_clause((Node *) entry->expr, PVC_RECURSE_PLACEHOLDERS);
	Var		   *var = list_length(vars) == 1 ? linitial_node(Var, vars) : NULL;

	return var != NULL && var->varno == source && var->varlevelsup == 0 ? var->varattno : 0;
}

static int
source_columns(RangeTblEntry *source)
{
	int			columns = 0;
	ListCell   *cell;

	if (source->rtekind == RTE_VALUES)
		return list_length(linitial(source->values_lists));
	foreach(cell, source->subquery->targetList)
		columns += !lfirst_node(TargetEntry, cell)->resjunk;
	return columns;
}

/*
 * The rewriter puts an INSERT's columns into the table's order and adds defaults, but leaves the rows' source as it is; the deparser prints both one
 * under the other (doc/design.md#insert-defaults). Puts the columns into the source's order; false: the source does not have all of them.
 */
static bool
order_by_source(Query *insert)
{
	Index		rti;
	RangeTblEntry *source;
	List	   *ordered = NIL;

	if (list_length(insert->jointree->fromlist) != 1 || !IsA(linitial(insert->jointree->fromlist), RangeTblRef))
		return false;
	rti = linitial_node(RangeTblRef, insert->jointree->fromlist)->rtindex;
	source = rt_fetch(rti, insert->rtable);
	if ((source->rtekind != RTE_SUBQUERY && source->rtekind != RTE_VALUES) || source_columns(source) != list_length(insert->targetList))
		return false;
	/* or a rule's INSERT ... VALUES reads the view's rows, which is not how it can be written */
	if (source->rtekind == RTE_SUBQUERY && strcmp(source->eref->aliasname, "*SELECT*") != 0)
		return false;
	for (int column = 1; column <= list_length(insert->targetList); column++)
	{
		ListCell   *cell;

		foreach(cell, insert->targetList)
			if (source_column(lfirst_node(TargetEntry, cell), rti) == column)
				ordered = lappend(ordered, lfirst(cell));
		if (list_length(ordered) != column)
			return false;
	}
	insert->targetList = ordered;
	return true;
}

/* True if each INSERT of the statement can be printed with its source. Conditions, which only a rule can give it, cannot be. */
static bool
inserts_print(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->cteList)
	{
		Query	   *cte = (Query *) lfirst_node(CommonTableExpr, cell)->ctequery;

		if (IsA(cte, Query) && !inserts_print(cte))
			return false;
	}
	return query->commandType != CMD_INSERT || (query->jointree->quals == NULL && (query->jointree->fromlist == NIL || order_by_source(query)));
}

/* True for INSERT ... VALUES of several rows: they are computed on the router, one by one, as a single row is. */
static bool
inserts_values(Query *query)
{
	ListCell   *cell;

	if (query->commandType == CMD_INSERT)
		foreach(cell, query->jointree->fromlist)
			if (IsA(lfirst(cell), RangeTblRef) && rt_fetch(lfirst_node(RangeTblRef, cell)->rtindex, query->rtable)->rtekind == RTE_VALUES)
				return true;
	return false;
}

/* True if an output column is an anonymous row: such a value cannot be sent back, since its type has no name. */
static bool
returns_anonymous_rows(Query *query)
{
	ListCell   *cell;

	foreach(cell, output_targets(query))
	{
		Oid			type = exprType((Node *) lfirst_node(TargetEntry, cell)->expr);

		if (!lfirst_node(TargetEntry, cell)->resjunk && (type == RECORDOID || type == RECORDARRAYOID))
			return true;
	}
	return false;
}

/* WHERE CURRENT OF becomes WHERE ctid = the newest version of the row whose ctid is a parameter. Returns the parameter's index. */
static int
add_position(Query *copy, List **params)
{
	RangeTblEntry *table = rt_fetch(copy->resultRelation, copy->rtable);
	char	   *name = tessera_qualified_name(table->relid);
	Const	   *text = makeConst(TEXTOID, -1, DEFAULT_COLLATION_OID, -1, CStringGetTextDatum(name), false, false);
	Node	   *ctid = tessera_make_param((Expr *) makeNullConst(TIDOID, -1, InvalidOid), params);
	FuncExpr   *newest = makeFuncExpr(F_CURRTID2, TIDOID, list_make2(text, ctid), InvalidOid, DEFAULT_COLLATION_OID, COERCE_EXPLICIT_CALL);
	Query	   *select = makeNode(Query);
	SubLink    *value = makeNode(SubLink);

	/* in a subquery it is asked for once */
	select->commandType = CMD_SELECT;
	select->canSetTag = true;
	select->targetList = list_make1(makeTargetEntry((Expr *) newest, 1, pstrdup("ctid"), false));
	select->jointree = makeFromExpr(NIL, NULL);
	value->subLinkType = EXPR_SUBLINK;
	value->subselect = (Node *) select;
	value->location = -1;
	copy->jointree->quals = (Node *) make_opclause(TIDEqualOperator, BOOLOID, false,
												   (Expr *) makeVar(copy->resultRelation, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0),
												   (Expr *) value, InvalidOid, InvalidOid);
	copy->hasSubLinks = true;
	return list_length(*params) - 1;
}

/*
 * True if it goes by the ctid of a row: rows of different shards may have the same one. But rows of one key lie on one shard, so there they may be
 * compared with each other.
 */
static bool
goes_by_ctid(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
		return ((Var *) node)->varattno == SelfItemPointerAttributeNumber;
	if (IsA(node, OpExpr) && list_length(((OpExpr *) node)->args) == 2)
	{
		Node	   *left = linitial(((OpExpr *) node)->args);
		Node	   *right = lsecond(((OpExpr *) node)->args);

		if (IsA(left, Var) && IsA(right, Var) && goes_by_ctid(left, NULL) && goes_by_ctid(right, NULL))
			return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, goes_by_ctid, context, 0);
	return expression_tree_walker(node, goes_by_ctid, context);
}

/* The same of a whole statement: what a SELECT or RETURNING shows of a row itself is no matter. */
static bool
statement_goes_by_ctid(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rtable)
		if (goes_by_ctid((Node *) lfirst_node(RangeTblEntry, cell)->subquery, NULL))
			return true;
	return goes_by_ctid((Node *) query->jointree, NULL) || goes_by_ctid((Node *) query->cteList, NULL) ||
		(query->commandType != CMD_SELECT && goes_by_ctid((Node *) query->targetList, NULL)) ||
		goes_by_ctid((Node *) query->mergeActionList, NULL);
}

/* One that the query itself names, if there is any. */
static const TesseraOccurrence *
first_of(const TesseraAnalysis *analysis, const Query *query)
{
	ListCell   *cell;

	foreach(cell, analysis->occurrences)
		if (((TesseraOccurrence *) lfirst(cell))->query == query)
			return lfirst(cell);
	return linitial(analysis->occurrences);
}

bool
tessera_names_current_row(const Query *query)
{
	return query->jointree && query->jointree->quals && IsA(query->jointree->quals, CurrentOfExpr);
}

/* True if the rows of a replicated table that are written were or may have been found by where a copy of them lies. */
static bool
goes_by_position_of_copy(Query *query, const TesseraRouting *routing)
{
	const TesseraTable *table = query->resultRelation > 0 ?
		tessera_routing_table(routing, rt_fetch(query->resultRelation, query->rtable)->relid) : NULL;

	return table != NULL && table->replicated && (tessera_names_current_row(query) || statement_goes_by_ctid(query));
}

PlannedStmt *
tessera_depend_on(PlannedStmt *plan, List *nested)
{
	ListCell   *cell;

	foreach(cell, nested)
	{
		PlannedStmt *read = lfirst_node(PlannedStmt, cell);

		plan->relationOids = list_concat_unique_oid(plan->relationOids, read->relationOids);
		plan->invalItems = list_concat(plan->invalItems, copyObject(read->invalItems));
		plan->dependsOnRole |= read->dependsOnRole;
	}
	return plan;
}

PlannedStmt *
tessera_plan_statement(Query *query, int cursor_options, const TesseraRouting *routing, TesseraAnalysis *analysis, bool many, TesseraReason *reason)
{
	TesseraReads none = {.query = query};

	return tessera_plan_statement_reading(query, &none, cursor_options, routing, analysis, many, reason);
}

PlannedStmt *
tessera_plan_statement_reading(Query *query, const TesseraReads *reads, int cursor_options, const TesseraRouting *routing, TesseraAnalysis *analysis,
							   bool many, TesseraReason *reason)
{
	bool		writes = analysis->writes_cluster;
	const TesseraOccurrence *target = tessera_target_of(analysis, query);
	const TesseraOccurrence *bounded = target ? target : first_of(analysis, query);
	Query	   *copy;
	List	   *params = list_copy(reads->params);
	List	   *exprs;
	List	   *pins;
	List	   *placed;
	List	   *sharded;
	int			flags = 0;
	int			position = -1;
	List	   *conditions = NIL;
	TesseraConstants constants = {0};
	CustomScan *scan;
	List	   *texts;

	if (writes && !modification_allowed(analysis, reason))
		return NULL;
	if ((many || reads->plans) && statement_goes_by_ctid(query))
	{
		reason->text = "it goes by ctid, and rows of different shards may have the same";
		reason->hint = "Give the table its shard key by equality with a constant or parameter, or use the primary key.";
		return NULL;
	}
	if (writes && goes_by_position_of_copy(query, routing))
	{
		reason->text = "it goes by ctid, and a row of a replicated table has another on each node";
		reason->hint = "Use the primary key.";
		return NULL;
	}
	if (inserts_values(query))
	{
		reason->text = "it inserts several rows that are computed one by one";
		return NULL;
	}
	if (returns_anonymous_rows(query))
	{
		reason->text = "it returns rows of no named type";
		reason->hint = "Cast them to a composite type, or return the columns.";
		return NULL;
	}
	copy = copyObject(query);
	if (writes && !tessera_restore_target_views(copy, reason))
		return NULL;
	if (!inserts_print(copy))
	{
		reason->text = "it needs defaults that the rows' source does not have";
		return NULL;
	}
	if (tessera_names_current_row(query))
	{
		if (has_subclass(bounded->table->relid))
		{
			reason->text = "WHERE CURRENT OF needs a table without partitions and children";
			reason->hint = "Use the primary key.";
			return NULL;
		}
		copy->jointree->quals = NULL;
		flags |= STATEMENT_CURRENT_OF;
	}
	if (many || analysis->nplaced == 0 || list_length(analysis->occurrences) == 1)
		constants = tessera_lift_constants(copy, &params);
	if (!tessera_prepare_query(copy, writes, &params, reason))
		return NULL;
	if (writes || analysis->locks_rows)
		flags |= STATEMENT_WRITES;
	/* a SELECT does even without columns */
	if (query->commandType == CMD_SELECT || query->returningList != NIL)
		flags |= STATEMENT_RETURNS_ROWS;
	if (query->commandType != CMD_SELECT)
		flags |= STATEMENT_DML;
	if (many)
		flags |= STATEMENT_MANY;
	flags |= (constants.many || constants.large_array ? STATEMENT_ONCE : 0) | (tessera_query_is_timeless(copy) ? STATEMENT_TIMELESS : 0);
	if (flags & STATEMENT_CURRENT_OF)
		position = add_position(copy, &params);
	exprs = list_copy(params);
	pins = collect_pins(analysis, copy, &exprs);
	collect_tables(analysis, target, &placed, &sharded);
	/* the rows of MERGE are those of its source, which its ON does not bound */
	if (many && position < 0 && query->commandType != CMD_MERGE && bounded->query == query)
		conditions = tessera_pruning_conditions(make_ands_implicit((Expr *) query->jointree->quals), bounded->rti, routing, bounded->table, &exprs);
	texts = constants.many ? tessera_deparse_once(copy) : tessera_deparse(copy);
	scan = makeNode(CustomScan);
	scan->methods = &tessera_statement_scan.plan;
	scan->custom_exprs = plan_values(exprs);
	scan->custom_scan_tlist = tessera_output_list(output_targets(query));
	scan->custom_private = list_make5(texts, makeInteger(list_length(params)), pins, placed, sharded);
	scan->custom_private = lappend(scan->custom_private, makeInteger(flags));
	scan->custom_private = lappend(scan->custom_private, conditions);
	scan->custom_private = lappend(scan->custom_private, makeInteger(position));
	scan->custom_private = lappend(scan->custom_private, reads->query);
	scan->custom_private = lappend(scan->custom_private, reads->plans);
	Assert(list_length(scan->custom_private) == STATEMENT_COUNT);
	return tessera_depend_on(tessera_wrap_plan(reads->query, scan, cursor_options), reads->plans);
}

/* ---- what a modification reads ---- */

void
tessera_become_select(Query *modification, List *targets)
{
	modification->commandType = CMD_SELECT;
	modification->queryId = 0;
	modification->canSetTag = true;
	modification->resultRelation = 0;
	modification->targetList = targets;
	modification->onConflict = NULL;
	modification->returningList = NIL;
	modification->withCheckOptions = NIL;
}

RangeTblEntry *
tessera_stored_rows(const char *name, List *targets)
{
	RangeTblEntry *rows = makeNode(RangeTblEntry);
	List	   *names = NIL;
	ListCell   *cell;

	rows->rtekind = RTE_NAMEDTUPLESTORE;
	rows->enrname = pstrdup(name);
	rows->enrtuples = 1000;
	rows->inFromCl = true;
	foreach(cell, targets)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *expr = (Node *) entry->expr;

		names = lappend(names, makeString(pstrdup(entry->resname)));
		rows->coltypes = lappend_oid(rows->coltypes, exprType(expr));
		rows->coltypmods = lappend_int(rows->coltypmods, exprTypmod(expr));
		rows->colcollations = lappend_oid(rows->colcollations, exprCollation(expr));
	}
	rows->eref = makeAlias(name, names);
	return rows;
}

/* ---- routed inserts ---- */

/* Parameters of row_query that stand for the source's columns: numbered far above any of the user's own. */
#define ROW_PARAM 1000000

Query *
tessera_source_query(Query *insert, List *more)
{
	Query	   *source = copyObject(insert);
	RangeTblEntry *target = rt_fetch(insert->resultRelation, source->rtable);
	ListCell   *cell;
	AttrNumber	resno = 0;

	tessera_become_select(source, source->targetList);
	/* The target is not read; the source is, also as text. */
	target->rtekind = RTE_RESULT;
	target->securityQuals = NIL;
	if (insert->onConflict && insert->onConflict->exclRelIndex > 0)
		rt_fetch(insert->onConflict->exclRelIndex, source->rtable)->rtekind = RTE_RESULT;
	foreach(cell, source->rtable)
		lfirst_node(RangeTblEntry, cell)->inFromCl = true;
	foreach(cell, source->targetList)
		((TargetEntry *) lfirst(cell))->resno = ++resno;
	foreach(cell, more)
		source->targetList = lappend(source->targetList, makeTargetEntry(copyObject(lfirst(cell)), ++resno, "value", false));
	return source;
}

/* INSERT INTO t (columns) VALUES ($1, ...) with the statement's own ON CONFLICT and RETURNING. */
static Query *
row_query(Query *insert)
{
	Query	   *row = copyObject(insert);
	List	   *targets = NIL;
	ListCell   *cell;
	int			column = 0;
	RangeTblEntry *target = rt_fetch(insert->resultRelation, row->rtable);

	foreach(cell, insert->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Param	   *value = makeNode(Param);

		column++;
		/* Numbered by the source's column; tessera_prepare_query makes it one of the text's parameters. */
		value->paramkind = PARAM_EXTERN;
		value->paramid = ROW_PARAM + column;
		value->paramtype = exprType((Node *) entry->expr);
		value->paramtypmod = -1;
		value->paramcollid = exprCollation((Node *) entry->expr);
		value->location = -1;
		targets = lappend(targets, makeTargetEntry((Expr *) value, entry->resno,
												   entry->resname ? pstrdup(entry->resname) : NULL, false));
	}
	row->targetList = targets;
	row->jointree = makeFromExpr(NIL, NULL);
	row->cteList = NIL;
	row->hasModifyingCTE = false;
	row->override = targets ? OVERRIDING_SYSTEM_VALUE : OVERRIDING_NOT_SET; /* without a column it does not parse */
	/* only the target (and EXCLUDED, which stands behind it) is named by what is left */
	for (int i = 0; i < list_length(row->rtable); i++)
	{
		RangeTblEntry *rte = list_nth(row->rtable, i);

		/* views are those that the target was reached through: tessera_restore_target_views needs them */
		if (rte != target && rte->relkind != RELKIND_VIEW && i + 1 != (row->onConflict ? row->onConflict->exclRelIndex : 0))
		{
			rte->rtekind = RTE_RESULT;
			rte->subquery = NULL;
			rte->values_lists = NIL;
			rte->functions = NIL;
			rte->joinaliasvars = rte->joinleftcols = rte->joinrightcols = NIL;
		}
	}
	return row;
}

/* ---- several rows in one text ---- */

typedef struct BatchContext
{
	int			first;			/* parameters up to here are the row's columns */
	int			shift;			/* what is added to the number of the row's columns */
	int			shift_others;
} BatchContext;

static Node *
batch_mutator(Node *node, BatchContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXTERN)
	{
		Param	   *param = copyObject((Param *) node);

		param->paramid += param->paramid <= context->first ? context->shift : context->shift_others;
		return (Node *) param;
	}
	if (IsA(node, Query))
		return (Node *) query_tree_mutator((Query *) node, batch_mutator, context, QTW_DONT_COPY_QUERY);
	return expression_tree_mutator(node, batch_mutator, context);
}

/* VALUES of the entry, of which the parameter says how many count. */
static RangeTblEntry *
first_values(RangeTblEntry *values, int param)
{
	Query	   *query;
	Param	   *limit = makeNode(Param);
	ListCell   *cell;

	limit->paramkind = PARAM_EXTERN;
	limit->paramid = param;
	limit->paramtype = INT8OID;
	limit->paramtypmod = -1;
	limit->location = -1;
	values->inFromCl = true;
	query = tessera_select_from(values);
	query->limitCount = (Node *) limit;
	query->limitOption = LIMIT_OPTION_COUNT;
	foreach(cell, values->coltypes)
	{
		int			i = foreach_current_index(cell);
		Var		   *var = makeVar(1, i + 1, lfirst_oid(cell), -1, list_nth_oid(values->colcollations, i), 0);

		query->targetList = lappend(query->targetList, makeTargetEntry((Expr *) var, i + 1, strVal(list_nth(values->eref->colnames, i)), false));
	}
	return tessera_subquery_entry(query, values->eref->aliasname, copyObject(values->eref->colnames));
}

/* What RETURNING of several rows has behind the statement's own columns: which of them the row is. */
static TargetEntry *
position_column(AttrNumber column)
{
	FuncExpr   *call = makeFuncExpr(tessera_source_position_function(), INT8OID, NIL, InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL);

	return makeTargetEntry((Expr *) call, column, pstrdup("position"), false);
}

/*
 * The prepared INSERT of one row, made one of n rows: VALUES of n lists. columns: of the row. counted: the number of a further parameter, which
 * says how many of the lists count; 0: all do.
 */
static Query *
batch_query(const Query *row, int columns, int n, int counted)
{
	Query	   *batch = copyObject((Query *) row);
	BatchContext context = {.first = columns, .shift_others = (n - 1) * columns};
	List	   *exprs = NIL;
	List	   *names = NIL;
	RangeTblEntry *values = makeNode(RangeTblEntry);
	RangeTblRef *reference;
	ListCell   *cell;

	foreach(cell, batch->targetList)
		exprs = lappend(exprs, ((TargetEntry *) lfirst(cell))->expr);
	values->rtekind = RTE_VALUES;
	for (int i = 0; i < n; i++)
	{
		context.shift = i * columns;
		values->values_lists = lappend(values->values_lists, expression_tree_mutator((Node *) exprs, batch_mutator, &context));
	}
	batch->rtable = lappend(batch->rtable, values);
	reference = tessera_reference_to(list_length(batch->rtable));
	foreach(cell, batch->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *expr = (Node *) entry->expr;

		values->coltypes = lappend_oid(values->coltypes, exprType(expr));
		values->coltypmods = lappend_int(values->coltypmods, -1);
		values->colcollations = lappend_oid(values->colcollations, exprCollation(expr));
		names = lappend(names, makeString(psprintf("column%d", foreach_current_index(cell) + 1)));
		entry->expr = (Expr *) makeVar(reference->rtindex, foreach_current_index(cell) + 1, exprType(expr), -1, exprCollation(expr), 0);
	}
	values->eref = makeAlias("*VALUES*", names);
	if (counted)
		llast(batch->rtable) = first_values(values, counted);
	batch->jointree = makeFromExpr(list_make1(reference), NULL);
	context.shift = 0;
	batch->onConflict = (OnConflictExpr *) batch_mutator((Node *) batch->onConflict, &context);
	batch->returningList = (List *) batch_mutator((Node *) batch->returningList, &context);
	if (batch->returningList)
		batch->returningList = lappend(batch->returningList, position_column(list_length(batch->returningList) + 1));
	return batch;
}

#define BATCH_LARGE 64
#define BATCH_SMALL 8
#define BATCH_COUNTED 1024
#define BATCH_MAX_PARAMS 30000	/* the protocol's limit is 65535 */

/* Does it matter how many statements insert the rows? */
static bool
fires_by_statement(Oid relid)
{
	Relation	rel = table_open(relid, NoLock);
	const TriggerDesc *triggers = rel->trigdesc;
	bool		fires = triggers != NULL && (triggers->trig_insert_before_statement || triggers->trig_insert_after_statement ||
											 triggers->trig_update_before_statement || triggers->trig_update_after_statement);

	table_close(rel, NoLock);
	return fires;
}

/*
 * Texts for several rows at once, largest first, as far as the source can have so many. counted: each takes as many rows or fewer, and one more
 * parameter that says how many, so that the rows of a shard go in one statement. None if the rows that come back could not be told apart.
 */
static List *
batch_texts(Query *insert, const Query *row, int params, bool counted)
{
	static const int sizes[] = {BATCH_COUNTED, BATCH_LARGE, BATCH_SMALL};
	int			columns = list_length(row->targetList);
	int			expected = INT_MAX;
	List	   *texts = NIL;
	ListCell   *cell;

	foreach(cell, insert->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_VALUES)
			expected = list_length(lfirst_node(RangeTblEntry, cell)->values_lists);
	if (insert->jointree->fromlist == NIL || columns == 0)
		return NIL;
	if (row->returningList && (!OidIsValid(tessera_source_position_function()) || list_length(row->returningList) >= MaxTupleAttributeNumber))
		return NIL;
	for (int i = counted ? 0 : 1; i < lengthof(sizes); i++)
	{
		bool		wanted = counted ? i == lengthof(sizes) - 1 || sizes[i + 1] < expected : sizes[i] <= expected;

		if (wanted && sizes[i] * columns + params < BATCH_MAX_PARAMS)
		{
			int			count = counted ? (sizes[i] - 1) * columns + params + 1 : 0;

			texts = lappend(texts, list_make2(tessera_deparse(batch_query(row, columns, sizes[i], count)), makeInteger(sizes[i])));
		}
	}
	return texts;
}

static List *
attributes_of(Query *insert)
{
	List	   *attributes = NIL;
	ListCell   *cell;

	foreach(cell, insert->targetList)
		attributes = lappend_int(attributes, ((TargetEntry *) lfirst(cell))->resno);
	return attributes;
}

PlannedStmt *
tessera_plan_insert(Query *query, const char *source_text, int cursor_options, ParamListInfo params, const TesseraRouting *routing,
					TesseraReason *reason)
{
	RangeTblEntry *target = rt_fetch(query->resultRelation, query->rtable);
	const TesseraTable *table = tessera_routing_table(routing, target->relid);
	TesseraAnalysis analysis = {0};
	TesseraOccurrence occurrence = {.query = query, .rti = query->resultRelation, .table = table};
	List	   *shipped = NIL;
	List	   *more = NIL;
	List	   *columns = NIL;
	List	   *batches;
	ListCell   *cell;
	Query	   *row;
	CustomScan *scan;
	PlannedStmt *source;
	List	   *row_texts;
	bool		counted;
	bool		timeless;

	analysis.occurrences = list_make1(&occurrence);
	if (!modification_allowed(&analysis, reason))
		return NULL;
	if (checkExprHasSubLink((Node *) query->onConflict) || checkExprHasSubLink((Node *) query->returningList))
	{
		reason->text = "its ON CONFLICT or RETURNING clause has a subquery";
		reason->hint = "Read the value first and insert it as a column.";
		return NULL;
	}
	if (returns_anonymous_rows(query))
	{
		reason->text = "it returns rows of no named type";
		reason->hint = "Cast them to a composite type, or return the columns.";
		return NULL;
	}
	row = row_query(query);
	if (!tessera_restore_target_views(row, reason) || !tessera_prepare_query(row, true, &shipped, reason))
		return NULL;
	/* A parameter of the text is one of the row's columns, or a value of ON CONFLICT or RETURNING, which the source computes as one more column. */
	foreach(cell, shipped)
	{
		Param	   *param = lfirst(cell);

		if (IsA(param, Param) && param->paramid > ROW_PARAM)
			columns = lappend_int(columns, param->paramid - ROW_PARAM);
		else
		{
			more = lappend(more, param);
			columns = lappend_int(columns, list_length(query->targetList) + list_length(more));
		}
	}
	counted = fires_by_statement(target->relid);
	timeless = tessera_query_is_timeless(row);
	batches = batch_texts(query, row, list_length(shipped), counted);
	row_texts = tessera_deparse(row);
	source = pg_plan_query(tessera_source_query(query, more), source_text, cursor_options & ~CURSOR_OPT_SCROLL, params);

	scan = makeNode(CustomScan);
	scan->methods = &tessera_insert_scan.plan;
	scan->custom_scan_tlist = tessera_output_list(query->returningList);
	scan->custom_private = list_make5(row_texts, types_of(shipped), columns, attributes_of(query), makeInteger((int) table->relid));
	scan->custom_private = lappend(scan->custom_private, source);
	scan->custom_private = lappend(scan->custom_private, makeInteger((query->returningList != NIL ? STATEMENT_RETURNS_ROWS : 0) |
																		(counted ? STATEMENT_COUNTED_ROWS : 0) |
																		(timeless ? STATEMENT_TIMELESS : 0)));
	scan->custom_private = lappend(scan->custom_private, batches);
	scan->custom_private = lappend(scan->custom_private, makeInteger(list_length(row->targetList)));
	Assert(list_length(scan->custom_private) == INSERT_COUNT);
	return tessera_wrap_plan(query, scan, cursor_options);
}
