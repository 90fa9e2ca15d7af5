/*
 * key_update.c
 *	  Plans of UPDATEs that assign the shard key; see key_update.h.
 *
 * Three statements: a SELECT ... FOR UPDATE that computes the new rows where the old ones lie, a DELETE of the locked rows by ctid, and a routed
 * INSERT of the new rows, which reads them from a tuple store by an ephemeral name. The first and the last are planned as statements of their own.
 * Everything is palloc'd in the planner's context.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "catalog/relation.h"
#include "common/range_table.h"
#include "common/text.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "planner/key_update.h"
#include "planner/statement_plan.h"

#define DELETE_AND_INSERT "Delete the rows and insert them with their new keys."

static bool
refused(TesseraReason *reason, const char *text, const char *hint)
{
	reason->text = text;
	reason->hint = hint;
	return false;
}

bool
tessera_changes_key(Query *query, const TesseraAnalysis *analysis)
{
	ListCell   *cell;

	if (query->commandType != CMD_UPDATE)
		return false;
	foreach(cell, analysis->occurrences)
	{
		TesseraOccurrence *occurrence = lfirst(cell);

		if (occurrence->query == query && occurrence->rti == query->resultRelation && occurrence->table->group >= 0)
			return tessera_assigns_key(occurrence, query->targetList);
	}
	return false;
}

/* ---- what cannot be ---- */

/* True if a DELETE and an INSERT have the same effect on the table as an UPDATE. */
static bool
triggers_allow(Relation relation, TesseraReason *reason)
{
	TriggerDesc *triggers = relation->trigdesc;

	for (int i = 0; triggers && i < triggers->numtriggers; i++)
	{
		if (!triggers->triggers[i].tgisinternal)
			return refused(reason, "it changes the shard key of a table with triggers", DELETE_AND_INSERT);
		if (RI_FKey_trigger_type(triggers->triggers[i].tgfoid) == RI_TRIGGER_PK)
			return refused(reason, "it changes the shard key of a table that a foreign key references", DELETE_AND_INSERT);
	}
	return true;
}

/* Partitions may have triggers of their own. */
static bool
table_allows(Relation relation, TesseraReason *reason)
{
	bool		allowed;
	ListCell   *cell;

	if (relation->rd_rules != NULL)
		return refused(reason, "the table has rewrite rules", "Use triggers instead of rules on a table of the cluster.");
	if (relation->rd_rel->relrowsecurity)
		return refused(reason, "it changes the shard key of a table with row security", DELETE_AND_INSERT);
	allowed = triggers_allow(relation, reason);
	foreach(cell, allowed ? tessera_partitions(RelationGetRelid(relation), NoLock) : NIL)
	{
		Relation	partition = table_open(lfirst_oid(cell), AccessShareLock);

		allowed = allowed && triggers_allow(partition, reason);
		table_close(partition, AccessShareLock);
	}
	return allowed;
}

/* True for an UPDATE of the table alone that assigns whole columns. */
static bool
statement_allows(Query *query, TesseraReason *reason)
{
	ListCell   *cell;

	if (query->cteList != NIL || query->hasSubLinks)
		return refused(reason, "it changes the shard key and has a subquery", "Read the values first and pass them as parameters.");
	if (list_length(query->rtable) != 1)
		return refused(reason, "it changes the shard key and names other tables or a view",
					   "Write to the table itself, without FROM; or delete the rows and insert them with their new keys.");
	foreach(cell, query->targetList)
	{
		Node	   *expr = strip_implicit_coercions((Node *) lfirst_node(TargetEntry, cell)->expr);	/* to a domain */

		if (IsA(expr, FieldStore) || (IsA(expr, SubscriptingRef) && ((SubscriptingRef *) expr)->refassgnexpr))
			return refused(reason, "it changes the shard key and assigns elements or fields of a column", "Assign the whole column.");
	}
	return true;
}

/* ---- the three statements ---- */

static Expr *
column_of(Relation relation, AttrNumber attribute)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), attribute - 1);

	return (Expr *) makeVar(1, attribute, att->atttypid, att->atttypmod, att->attcollation, 0);
}

/* The value that the UPDATE gives to a column. */
static Expr *
new_value(Query *update, Relation relation, AttrNumber attribute)
{
	ListCell   *cell;

	foreach(cell, update->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (!entry->resjunk && entry->resno == attribute)
			return copyObject(entry->expr);
	}
	return column_of(relation, attribute);
}

/*
 * Where an assignment's coercion to the column's length or domain has its argument; NULL: the expression is none. As text of a SELECT it would be an
 * explicit cast, which cuts what is too long. So the lock query answers the argument, and the INSERT's source coerces it.
 */
static Node **
coerced(Node *expr)
{
	if (IsA(expr, FuncExpr) && ((FuncExpr *) expr)->funcformat == COERCE_IMPLICIT_CAST && exprIsLengthCoercion(expr, NULL))
		return (Node **) &linitial(((FuncExpr *) expr)->args);
	if (IsA(expr, ArrayCoerceExpr) && ((ArrayCoerceExpr *) expr)->coerceformat == COERCE_IMPLICIT_CAST)
		return (Node **) &((ArrayCoerceExpr *) expr)->arg;
	if (IsA(expr, CoerceToDomain) && ((CoerceToDomain *) expr)->coercionformat == COERCE_IMPLICIT_CAST)
		return (Node **) &((CoerceToDomain *) expr)->arg;
	return NULL;
}

static Expr *
without_coercion(Expr *value)
{
	Node	   *node = (Node *) value;
	Node	  **argument;

	while ((argument = coerced(node)) != NULL)
		node = *argument;
	return (Expr *) node;
}

/* The coercion of a value, of something else that stands for its argument. */
static Expr *
with_coercion(Expr *value, Expr *argument)
{
	Node	   *top = (Node *) value;
	Node	  **place = &top;
	Node	  **inner;

	while ((inner = coerced(*place)) != NULL)
		place = inner;
	*place = (Node *) argument;
	return (Expr *) top;
}

/* The columns that an INSERT gives values to. */
static List *
stored_columns(Relation relation)
{
	List	   *columns = NIL;

	for (int i = 0; i < RelationGetNumberOfAttributes(relation); i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), i);

		if (!att->attisdropped && !att->attgenerated)
			columns = lappend_int(columns, att->attnum);
	}
	return columns;
}

/* SELECT ctid, tableoid, old key, new row FROM t WHERE ... FOR UPDATE. */
static Query *
lock_query(Query *update, Relation relation, const TesseraTable *table, List *columns)
{
	Query	   *select = copyObject(update);
	RowMarkClause *mark = makeNode(RowMarkClause);
	Expr	   *leaf;
	List	   *targets;
	ListCell   *cell;

	/* a table, or partition, has another number on each node, but the same name */
	leaf = (Expr *) makeRelabelType((Expr *) makeVar(1, TableOidAttributeNumber, OIDOID, -1, InvalidOid, 0), REGCLASSOID, -1, InvalidOid,
									COERCE_EXPLICIT_CAST);
	targets = list_make2(makeTargetEntry((Expr *) makeVar(1, SelfItemPointerAttributeNumber, TIDOID, -1, InvalidOid, 0), 1, "row", false),
						 makeTargetEntry(leaf, 2, "leaf", false));
	for (int i = 0; i < table->nkeys; i++)
		targets = lappend(targets, makeTargetEntry(column_of(relation, table->keys[i]), list_length(targets) + 1, psprintf("old%d", i + 1), false));
	foreach(cell, columns)
	{
		Expr	   *value = without_coercion(new_value(update, relation, lfirst_int(cell)));

		targets = lappend(targets, makeTargetEntry(value, list_length(targets) + 1, psprintf("new%d", foreach_current_index(cell) + 1), false));
	}
	tessera_become_select(select, targets);
	linitial_node(RangeTblEntry, select->rtable)->inFromCl = true;
	mark->rti = 1;
	mark->strength = LCS_FORUPDATE;
	mark->waitPolicy = LockWaitBlock;
	select->rowMarks = list_make1(mark);
	select->hasForUpdate = true;
	return select;
}

/* INSERT INTO t SELECT new row FROM the locked rows, with the UPDATE's RETURNING. */
static Query *
insert_query(Query *update, Relation relation, List *columns, List *locked)
{
	Query	   *insert = copyObject(update);
	int			before = list_length(locked) - list_length(columns);
	ListCell   *cell;

	insert->commandType = CMD_INSERT;
	insert->queryId = 0;
	insert->override = OVERRIDING_SYSTEM_VALUE;
	insert->rtable = lappend(insert->rtable, tessera_stored_rows(KEY_UPDATE_ROWS, locked));
	insert->jointree = makeFromExpr(list_make1(tessera_reference_to(2)), NULL);
	insert->targetList = NIL;
	foreach(cell, columns)
	{
		int			column = before + foreach_current_index(cell) + 1;
		Node	   *value = (Node *) list_nth_node(TargetEntry, locked, column - 1)->expr;
		Var		   *var = makeVar(2, column, exprType(value), exprTypmod(value), exprCollation(value), 0);
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), lfirst_int(cell) - 1);
		Expr	   *stored = with_coercion(new_value(update, relation, att->attnum), (Expr *) var);

		insert->targetList = lappend(insert->targetList, makeTargetEntry(stored, att->attnum, pstrdup(NameStr(att->attname)), false));
	}
	return insert;
}

/* Rows of two partitions may have the same ctid. */
static char *
delete_text(Relation relation)
{
	const char *table = tessera_quote_qualified(get_namespace_name(RelationGetNamespace(relation)), RelationGetRelationName(relation));

	if (relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return psprintf("DELETE FROM %s WHERE ctid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.tid[])", table);
	return psprintf("DELETE FROM %s WHERE ctid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.tid[]) AND (ctid, tableoid) OPERATOR(pg_catalog.=) ANY "
					"(SELECT r, l::pg_catalog.oid FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.tid[]), "
					"pg_catalog.unnest($2::pg_catalog.regclass[])) AS u(r, l))", table);
}

static PlannedStmt *
plan_of_lock(Query *select, const TesseraRouting *routing, TesseraReason *reason)
{
	TesseraAnalysis *analysis = tessera_analyse(select, routing);

	return tessera_plan_statement(select, 0, routing, analysis, !analysis->all_pinned, reason);
}

PlannedStmt *
tessera_plan_key_update(Query *query, const char *source_text, int cursor_options, ParamListInfo params, const TesseraRouting *routing,
						TesseraReason *reason)
{
	Oid			relid = rt_fetch(query->resultRelation, query->rtable)->relid;
	const TesseraTable *table = tessera_routing_table(routing, relid);
	Relation	relation;
	List	   *columns;
	List	   *keys = NIL;
	Query	   *lock;
	PlannedStmt *lock_plan;
	PlannedStmt *insert_plan;
	CustomScan *scan;
	char	   *delete_sql;

	if (!statement_allows(query, reason))
		return NULL;
	relation = table_open(relid, NoLock);
	if (!table_allows(relation, reason))
	{
		table_close(relation, NoLock);
		return NULL;
	}
	for (int i = 0; i < table->nkeys; i++)
		keys = lappend_int(keys, table->keys[i]);
	columns = stored_columns(relation);
	lock = lock_query(query, relation, table, columns);
	delete_sql = delete_text(relation);
	lock_plan = plan_of_lock(lock, routing, reason);
	insert_plan = lock_plan == NULL ? NULL :
		tessera_plan_insert(insert_query(query, relation, columns, lock->targetList), source_text, 0, params, routing, reason);
	table_close(relation, NoLock);
	if (insert_plan == NULL)
		return NULL;

	scan = makeNode(CustomScan);
	scan->methods = &tessera_key_update_scan.plan;
	scan->custom_scan_tlist = tessera_output_list(query->returningList);
	scan->custom_private = list_make5(lock_plan, insert_plan, makeString(delete_sql), makeInteger((int) relid), keys);
	Assert(list_length(scan->custom_private) == KEY_UPDATE_COUNT);
	return tessera_wrap_plan(query, scan, cursor_options);
}
