/*
 * row_triggers.c
 *	  Plans of statements that write a table whose triggers fire on the router; see row_triggers.h.
 *
 * Four statements come of one: the rows (of an INSERT, its source; else a SELECT of the old rows, which locks them, with the values to be assigned),
 * read and computed as those of any SELECT; a text that writes one row by its identity, for the shards; the SELECT of RETURNING, from what was
 * written; and the statement as it would run without all this. Everything is palloc'd in the planner's context.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/trigger_place.h"
#include "common/range_table.h"
#include "common/version_compat.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "planner/row_conflict.h"
#include "planner/row_triggers.h"
#include "planner/ship.h"
#include "planner/statement_plan.h"
#include "session/row_write.h"

/* Parameters of the text that writes a row: numbered by attribute, far above any of the user's own; that of the row's place. */
#define COLUMN_PARAM 1000000
#define PLACE_PARAM 2000000

/* ---- which statements ---- */

/* The table that the query itself writes, if it is one of the cluster; NULL: none. It is locked. */
static Relation
written_table(Query *query, const TesseraRouting *routing)
{
	RangeTblEntry *target;

	if (query->commandType != CMD_INSERT && query->commandType != CMD_UPDATE && query->commandType != CMD_DELETE)
		return NULL;
	target = rt_fetch(query->resultRelation, query->rtable);
	return tessera_routing_table(routing, target->relid) ? table_open(target->relid, NoLock) : NULL;
}

static bool
updates_on_conflict(const Query *query)
{
	return query->onConflict != NULL && query->onConflict->action == ONCONFLICT_UPDATE;
}

bool
tessera_fires_row_triggers(Query *query, const TesseraRouting *routing)
{
	Relation	table = written_table(query, routing);
	bool		fires;

	if (table == NULL)
		return false;
	fires = table->trigdesc != NULL && (tessera_fires_on_router(table, query->commandType) ||
										(updates_on_conflict(query) && tessera_fires_on_router(table, CMD_UPDATE)));
	table_close(table, NoLock);
	return fires;
}

bool
tessera_with_fires_row_triggers(Query *query, const TesseraRouting *routing)
{
	ListCell   *cell;

	if (query->hasModifyingCTE)
		foreach(cell, query->cteList)
			if (tessera_fires_row_triggers((Query *) lfirst_node(CommonTableExpr, cell)->ctequery, routing))
				return true;
	return false;
}

void
tessera_depend_on_triggers(Query *query, PlannedStmt *plan)
{
	Relation	table;

	if (query->resultRelation == 0)
		return;
	table = table_open(rt_fetch(query->resultRelation, query->rtable)->relid, NoLock);
	for (int i = 0; table->trigdesc != NULL && i < table->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &table->trigdesc->triggers[i];
		PlanInvalItem *item;

		if (trigger->tgisinternal)
			continue;
		item = makeNode(PlanInvalItem);
		item->cacheId = PROCOID;
		item->hashValue = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(trigger->tgfoid));
		plan->invalItems = lappend(plan->invalItems, item);
	}
	table_close(table, NoLock);
}

/* True if the target was reached through a view. */
static bool
goes_through_view(Query *query)
{
	ListCell   *cell;

	if (OidIsValid(tessera_check_as_user(query, rt_fetch(query->resultRelation, query->rtable))))
		return true;
	foreach(cell, query->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_RELATION && lfirst_node(RangeTblEntry, cell)->relkind == RELKIND_VIEW)
			return true;
	return false;
}

/* True if some assignment is computed together with others: SET (a, b) = (SELECT ...). */
static bool
assigns_rows(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->targetList)
		if (lfirst_node(TargetEntry, cell)->resjunk)
			return true;
	return false;
}

static bool
names_current_of(Node *node, void *context)
{
	if (node == NULL)
		return false;
	return IsA(node, CurrentOfExpr) || expression_tree_walker(node, names_current_of, context);
}

/* True if the statement is one of those that are planned here. */
static bool
is_covered(Query *query, Relation table)
{
	if (table->rd_rel->relkind != RELKIND_RELATION || table->rd_rel->relhassubclass || table->rd_rules != NULL)
		return false;
	if (goes_through_view(query) || query->hasModifyingCTE || tessera_has_deferrable_trigger(table, query->commandType))
		return false;
	if (checkExprHasSubLink((Node *) query->returningList))
		return false;
	if (query->commandType == CMD_INSERT && !updates_on_conflict(query))
		return true;
	if (query->commandType == CMD_INSERT)
		return !table->rd_rel->relrowsecurity && !checkExprHasSubLink((Node *) query->onConflict) &&
			!tessera_has_deferrable_trigger(table, CMD_UPDATE);
	return !table->rd_rel->relrowsecurity && !assigns_rows(query) && !names_current_of(query->jointree->quals, NULL);
}

/* ---- columns ---- */

static Expr *
column_of(Relation table, Index rti, AttrNumber attribute)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), attribute - 1);

	return (Expr *) makeVar(rti, attribute, att->atttypid, att->atttypmod, att->attcollation, 0);
}

static List *
all_columns(Relation table)
{
	List	   *columns = NIL;

	for (int i = 0; i < RelationGetNumberOfAttributes(table); i++)
		if (!TupleDescAttr(RelationGetDescr(table), i)->attisdropped)
			columns = lappend_int(columns, i + 1);
	return columns;
}

List *
tessera_assigned_columns(List *targets)
{
	List	   *columns = NIL;
	ListCell   *cell;

	foreach(cell, targets)
		columns = lappend_int(columns, lfirst_node(TargetEntry, cell)->resno);
	return columns;
}

/* Those that the text writes: all that can be, if triggers may change any. */
static List *
written_columns(CmdType command, List *assigned, Relation table)
{
	bool		any = command == CMD_INSERT || (table->trigdesc && table->trigdesc->trig_update_before_row);
	List	   *columns = NIL;

	for (int i = 0; i < RelationGetNumberOfAttributes(table); i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), i);

		if (att->attisdropped || att->attgenerated || (!any && !list_member_int(assigned, att->attnum)))
			continue;
		/* which an UPDATE cannot assign, but for its default */
		if (command == CMD_UPDATE && att->attidentity == ATTRIBUTE_IDENTITY_ALWAYS)
			continue;
		columns = lappend_int(columns, att->attnum);
	}
	return columns;
}

/* ---- the rows ---- */

static void
add_target(List **targets, Expr *expr)
{
	int			n = list_length(*targets) + 1;

	*targets = lappend(*targets, makeTargetEntry(expr, n, psprintf("column%d", n), false));
}

/* True if one of them is a column by which other tables may refer to the row: by core's rule for the lock that an UPDATE takes. */
static bool
change_identity(List *assigned, Relation table)
{
	Bitmapset  *keys = RelationGetIndexAttrBitmap(table, INDEX_ATTR_BITMAP_KEY);
	ListCell   *cell;

	foreach(cell, assigned)
		if (bms_is_member(lfirst_int(cell) - FirstLowInvalidHeapAttributeNumber, keys))
			return true;
	return false;
}

void
tessera_lock_for_update(Query *select, Index rti, List *assigned, Relation table)
{
	RowMarkClause *mark = makeNode(RowMarkClause);

	mark->rti = rti;
	mark->strength = assigned != NIL && !change_identity(assigned, table) ? LCS_FORNOKEYUPDATE : LCS_FORUPDATE;
	mark->waitPolicy = LockWaitBlock;
	select->rowMarks = list_make1(mark);
	select->hasForUpdate = true;
}

/*
 * SELECT ctid, old row, assigned values, what else RETURNING needs ... FOR UPDATE OF the table. The table is read by its owner's rights: those of the
 * user were checked by what the statement names, and this names more.
 */
static Query *
lock_query(Query *query, Relation table, List *columns, List *others)
{
	Query	   *select = copyObject(query);
	RangeTblEntry *target = rt_fetch(query->resultRelation, select->rtable);
	TesseraPermissions *permissions = tessera_permissions(select, target);
	List	   *targets = NIL;
	ListCell   *cell;

	add_target(&targets, (Expr *) makeVar(query->resultRelation, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0));
	foreach(cell, columns)
		add_target(&targets, column_of(table, query->resultRelation, lfirst_int(cell)));
	if (query->commandType == CMD_UPDATE)
		foreach(cell, query->targetList)
			add_target(&targets, copyObject(lfirst_node(TargetEntry, cell)->expr));
	foreach(cell, others)
		add_target(&targets, copyObject(lfirst(cell)));
	tessera_become_select(select, targets);
	target->inFromCl = true;
	permissions->requiredPerms = 0;
	permissions->checkAsUser = table->rd_rel->relowner;
	tessera_lock_for_update(select, query->resultRelation, query->commandType == CMD_UPDATE ? tessera_assigned_columns(query->targetList) : NIL,
							table);
	return select;
}

/* ---- the text that writes a row ---- */

Expr *
tessera_row_value(Relation table, AttrNumber attribute)
{
	Param	   *value = makeNode(Param);

	value->paramkind = PARAM_EXTERN;
	value->paramtypmod = -1;
	value->location = -1;
	if (attribute == SelfItemPointerAttributeNumber)
	{
		value->paramid = PLACE_PARAM;
		value->paramtype = TIDOID;
	}
	else
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), attribute - 1);

		value->paramid = COLUMN_PARAM + attribute;
		value->paramtype = att->atttypid;
		value->paramcollid = att->attcollation;
	}
	return (Expr *) value;
}

RangeTblEntry *
tessera_row_entry(Query *query, Relation table)
{
	RangeTblEntry *entry = copyObject(rt_fetch(query->resultRelation, query->rtable));

	entry->alias = NULL;
	entry->eref = makeAlias(pstrdup(RelationGetRelationName(table)), copyObject(entry->eref->colnames));
	entry->securityQuals = NIL;
	entry->inFromCl = false;
	return entry;
}

List *
tessera_place_and_columns(Relation table, List *columns)
{
	List	   *targets = NIL;
	ListCell   *cell;

	add_target(&targets, (Expr *) makeVar(1, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0));
	foreach(cell, columns)
		add_target(&targets, column_of(table, 1, lfirst_int(cell)));
	return targets;
}

/* With the conflict that the INSERT looks for, but nothing is done then. */
static OnConflictExpr *
conflict_of(Query *query)
{
	OnConflictExpr *conflict = copyObject(query->onConflict);

	if (conflict == NULL)
		return NULL;
	conflict->action = ONCONFLICT_NOTHING;
	conflict->onConflictSet = NIL;
	conflict->onConflictWhere = NULL;
	conflict->exclRelIndex = 0;
	conflict->exclRelTlist = NIL;
	ChangeVarNodes((Node *) conflict, query->resultRelation, 1, 0);
	return conflict;
}

static Query *
write_query(Query *query, Relation table, List *columns, CmdType command, List *assigned)
{
	Query	   *write = makeNode(Query);
	List	   *permissions = NIL;
	ListCell   *cell;

	write->commandType = command;
	write->canSetTag = true;
	write->resultRelation = 1;
	write->rtable = list_make1(tessera_row_entry(query, table));
	tessera_move_permissions(query, linitial(write->rtable), &permissions);
	tessera_set_query_permissions(write, permissions);
	if (command != CMD_DELETE)
	{
		foreach(cell, written_columns(command, assigned, table))
			write->targetList = lappend(write->targetList, makeTargetEntry(tessera_row_value(table, lfirst_int(cell)), lfirst_int(cell),
																		   get_attname(RelationGetRelid(table), lfirst_int(cell), false), false));
		write->returningList = tessera_place_and_columns(table, columns);
	}
	if (command == CMD_INSERT)
	{
		write->jointree = makeFromExpr(NIL, NULL);
		write->override = write->targetList ? OVERRIDING_SYSTEM_VALUE : OVERRIDING_NOT_SET;
		write->onConflict = conflict_of(query);
	}
	else
	{
		Expr	   *place = (Expr *) makeVar(1, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0);
		Expr	   *is_at = make_opclause(TIDEqualOperator, BOOLOID, false, place, tessera_row_value(table, SelfItemPointerAttributeNumber),
										  InvalidOid, InvalidOid);

		write->jointree = makeFromExpr(list_make1(tessera_reference_to(1)), (Node *) is_at);
	}
	return write;
}

List *
tessera_row_texts(Query *query, List **attributes)
{
	List	   *params = NIL;
	TesseraReason reason = {0};
	ListCell   *cell;

	if (!tessera_prepare_query(query, true, &params, &reason))
		return NIL;
	foreach(cell, params)
	{
		Param	   *param = lfirst(cell);

		if (!IsA(param, Param) || param->paramid < COLUMN_PARAM)
			return NIL;
		*attributes = lappend_int(*attributes, param->paramid == PLACE_PARAM ? SelfItemPointerAttributeNumber : param->paramid - COLUMN_PARAM);
	}
	return tessera_deparse(query);
}

List *
tessera_write_texts(Query *query, Relation table, List *columns, CmdType command, List *assigned, List **attributes)
{
	bool		reads = (tessera_permissions(query, rt_fetch(query->resultRelation, query->rtable))->requiredPerms & ACL_SELECT) != 0;
	List	   *texts = tessera_row_texts(write_query(query, table, columns, command, assigned), attributes);
	ListCell   *cell;

	foreach(cell, texts)
		lfirst(cell) = makeString(tessera_row_write_text(strVal(lfirst(cell)), reads));
	return texts;
}

/* ---- RETURNING ---- */

typedef struct ReturningContext
{
	Query	   *query;
	Relation	table;
	List	   *columns;
	List	   *others;			/* Vars of other relations than the target */
	bool		refused;
} ReturningContext;

static int
position_of(List *columns, AttrNumber attribute)
{
	ListCell   *cell;

	foreach(cell, columns)
		if (lfirst_int(cell) == attribute)
			return foreach_current_index(cell) + 1;
	return 0;
}

static Node *
written_column(Relation table, List *columns, AttrNumber attribute)
{
	Var		   *var = (Var *) column_of(table, 1, attribute);

	var->varattno = var->varattnosyn = position_of(columns, attribute);
	return (Node *) var;
}

static Node *
whole_row(ReturningContext *context)
{
	RowExpr    *row = makeNode(RowExpr);
	TupleDesc	desc = RelationGetDescr(context->table);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		row->args = lappend(row->args, att->attisdropped ? (Node *) makeNullConst(INT4OID, -1, InvalidOid) :
							written_column(context->table, context->columns, att->attnum));
		row->colnames = lappend(row->colnames, makeString(pstrdup(NameStr(att->attname))));
	}
	row->row_typeid = context->table->rd_rel->reltype;
	row->row_format = COERCE_IMPLICIT_CAST;
	row->location = -1;
	return (Node *) row;
}

/* Columns of the written row, and of what the statement read, become columns of TRIGGER_ROWS. */
static Node *
returning_mutator(Node *node, ReturningContext *context)
{
	Var		   *var = (Var *) node;

	if (node == NULL)
		return NULL;
	if (!IsA(node, Var))
		return expression_tree_mutator(node, returning_mutator, context);
	if (var->varno != context->query->resultRelation)
	{
		ListCell   *cell;
		int			position = 0;

		foreach(cell, context->others)
			if (equal(lfirst(cell), var))
				position = foreach_current_index(cell) + 1;
		if (position == 0)
		{
			context->others = lappend(context->others, copyObject(var));
			position = list_length(context->others);
		}
		return (Node *) makeVar(1, list_length(context->columns) + position, var->vartype, var->vartypmod, var->varcollid, 0);
	}
	if (var->varattno == InvalidAttrNumber)
		return whole_row(context);
	if (var->varattno == TableOidAttributeNumber)
		return (Node *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(RelationGetRelid(context->table)), false, true);
	context->refused |= var->varattno < 0;
	return context->refused ? node : written_column(context->table, context->columns, var->varattno);
}

/* TRIGGER_ROWS as a range table entry. */
static RangeTblEntry *
written_rows(ReturningContext *context)
{
	List	   *targets = NIL;
	ListCell   *cell;

	foreach(cell, context->columns)
		add_target(&targets, column_of(context->table, 1, lfirst_int(cell)));
	foreach(cell, context->others)
		add_target(&targets, lfirst(cell));
	return tessera_stored_rows(TRIGGER_ROWS, targets);
}

/* SELECT of the RETURNING list FROM the written rows. */
static Query *
returning_query(ReturningContext *context)
{
	List	   *targets = (List *) returning_mutator((Node *) context->query->returningList, context);
	Query	   *select = tessera_select_from(written_rows(context));	/* these are what the list has asked for */

	select->targetList = targets;
	return select;
}

/* ---- the plan ---- */

static PlannedStmt *
plan_with_triggers(Query *query, Relation table, const char *source_text, int cursor_options, ParamListInfo params, PlannedStmt *ordinary)
{
	ReturningContext returning = {.query = query, .table = table, .columns = all_columns(table)};
	Query	   *select = query->returningList ? returning_query(&returning) : NULL;
	List	   *attributes = NIL;
	List	   *assigned = query->commandType == CMD_DELETE ? NIL : tessera_assigned_columns(query->targetList);
	List	   *texts = returning.refused ? NIL : tessera_write_texts(query, table, returning.columns, query->commandType, assigned, &attributes);
	List	   *conflict = texts && updates_on_conflict(query) ? tessera_plan_row_conflict(query, table, returning.columns) : NIL;
	PlannedStmt *source;
	CustomScan *scan;

	if (texts == NIL || (updates_on_conflict(query) && conflict == NIL))
		return ordinary;
	source = tessera_nested_planner(query->commandType == CMD_INSERT ? tessera_source_query(query, NIL) :
									lock_query(query, table, returning.columns, returning.others), source_text, params, false);
	scan = makeNode(CustomScan);
	scan->methods = &tessera_row_trigger_scan.plan;
	scan->custom_scan_tlist = tessera_output_list(query->returningList);
	scan->custom_private = list_make5(ordinary, makeInteger(query->commandType), makeInteger((int) RelationGetRelid(table)), source,
									  returning.columns);
	scan->custom_private = lappend(scan->custom_private, assigned);
	scan->custom_private = lappend(scan->custom_private, texts);
	scan->custom_private = lappend(scan->custom_private, attributes);
	scan->custom_private = lappend(scan->custom_private, select ? list_make1(tessera_nested_planner(select, source_text, params, true)) : NIL);
	scan->custom_private = lappend(scan->custom_private, conflict);
	Assert(list_length(scan->custom_private) == TRIGGER_COUNT);
	return tessera_depend_on(tessera_wrap_plan(query, scan, cursor_options), list_make2(ordinary, source));
}

PlannedStmt *
tessera_plan_row_triggers(Query *query, const char *source_text, int cursor_options, ParamListInfo params, const TesseraRouting *routing,
						  PlannedStmt *ordinary)
{
	Relation	table = written_table(query, routing);
	PlannedStmt *plan = ordinary;

	if (is_covered(query, table))
		plan = plan_with_triggers(query, table, source_text, cursor_options, params, ordinary);
	table_close(table, NoLock);
	return plan;
}
