/*
 * table_as.c
 *	  CREATE TABLE AS and SELECT INTO on a member node: an empty table on every node, then INSERT ... SELECT, all in one transaction.
 *
 * The CREATE TABLE is made as text from the query's columns and goes through the hook like one of the user's; the rows go through the planner like an
 * INSERT of the user's. Materialized views: matview.c.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "parser/parse_relation.h"
#include "rewrite/rewriteHandler.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"

#include "common/range_table.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "ddl/ddl.h"
#include "session/internal_connection.h"

/* ---- materialized views ---- */

static bool
names_cluster_table(Node *node, void *routing)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		return rte->rtekind == RTE_RELATION && OidIsValid(tessera_cluster_root(routing, rte->relid));
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, names_cluster_table, routing, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, names_cluster_table, routing);
}

bool
tessera_creates_cluster_view(CreateTableAsStmt *statement, const TesseraRouting *routing)
{
	Query	   *query = castNode(Query, statement->query);
	ListCell   *cell;

	if (statement->objtype != OBJECT_MATVIEW || query->commandType == CMD_UTILITY)
		return false;
	foreach(cell, QueryRewrite(copyObject(query)))
		if (names_cluster_table(lfirst(cell), (void *) routing))
			return true;
	return false;
}

/* ---- the empty table ---- */

static void
append_column(StringInfo text, const char *name, Node *expression)
{
	Oid			collation = exprCollation(expression);
	Oid			type = exprType(expression);

	if (!OidIsValid(collation) && type_is_collatable(type))
		ereport(ERROR,
				(errcode(ERRCODE_INDETERMINATE_COLLATION),
				 errmsg("no collation was derived for column \"%s\" with collatable type %s", name, format_type_be(type)),
				 errhint("Use the COLLATE clause to set the collation explicitly.")));
	appendStringInfo(text, "%s %s", tessera_quote(name),
					 tessera_type_text(type, exprTypmod(expression), FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY));
	if (OidIsValid(collation) && collation != get_typcollation(type))
		appendStringInfo(text, " COLLATE %s", generate_collation_name(collation));
}

void
tessera_append_into_options(StringInfo text, IntoClause *into)
{
	ListCell   *cell;

	if (into->accessMethod)
		appendStringInfo(text, " USING %s", tessera_quote(into->accessMethod));
	foreach(cell, into->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		appendStringInfo(text, "%s%s%s%s = %s", foreach_current_index(cell) == 0 ? " WITH (" : ", ",
						 option->defnamespace ? tessera_quote(option->defnamespace) : "",
						 option->defnamespace ? "." : "", tessera_quote(option->defname),
						 option->arg ? quote_literal_cstr(defGetString(option)) : "true");
	}
	if (into->options)
		appendStringInfoChar(text, ')');
	if (into->tableSpaceName)
		appendStringInfo(text, " TABLESPACE %s", tessera_quote(into->tableSpaceName));
}

static char *
create_text(CreateTableAsStmt *statement, Query *query, const char *schema)
{
	IntoClause *into = statement->into;
	StringInfoData text;
	ListCell   *cell;
	int			column = 0;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE %sTABLE %s%s (", into->rel->relpersistence == RELPERSISTENCE_UNLOGGED ? "UNLOGGED " : "",
					 statement->if_not_exists ? "IF NOT EXISTS " : "", tessera_quote_qualified(schema, into->rel->relname));
	foreach(cell, query->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (entry->resjunk)
			continue;
		if (column > 0)
			appendStringInfoString(&text, ", ");
		append_column(&text, column < list_length(into->colNames) ? strVal(list_nth(into->colNames, column)) : entry->resname, (Node *) entry->expr);
		column++;
	}
	if (column < list_length(into->colNames))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("too many column names were specified")));
	appendStringInfoChar(&text, ')');
	tessera_append_into_options(&text, into);
	return text.data;
}

void
tessera_run_utility_text(const char *text)
{
	RawStmt    *raw = linitial_node(RawStmt, pg_parse_query(text));
	PlannedStmt *statement = makeNode(PlannedStmt);

	statement->commandType = CMD_UTILITY;
	statement->canSetTag = false;
	statement->utilityStmt = parse_analyze_fixedparams(raw, text, NULL, 0, NULL)->utilityStmt;
	statement->stmt_location = 0;
	statement->stmt_len = 0;
	ProcessUtility(statement, text, false, PROCESS_UTILITY_QUERY, NULL, NULL, None_Receiver, NULL);
	CommandCounterIncrement();
}

/* ---- the rows ---- */

static RangeTblEntry *
target_entry(Oid relid, Query *query)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *list = NIL;
	TesseraPermissions *permissions;

	rte->rtekind = RTE_RELATION;
	rte->relid = relid;
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	rte->eref = makeAlias(RelationGetRelationName(rel), NIL);
	permissions = tessera_add_permissions(&list, rte);
	permissions->requiredPerms = ACL_INSERT;
	for (int i = 0; i < RelationGetDescr(rel)->natts; i++)
	{
		rte->eref->colnames = lappend(rte->eref->colnames, makeString(pstrdup(NameStr(TupleDescAttr(RelationGetDescr(rel), i)->attname))));
		permissions->insertedCols = bms_add_member(permissions->insertedCols, i + 1 - FirstLowInvalidHeapAttributeNumber);
	}
	tessera_set_query_permissions(query, list);
	table_close(rel, NoLock);
	return rte;
}

/* INSERT INTO the table SELECT ..., analysed. */
static Query *
insert_query(Oid relid, Query *source)
{
	Query	   *query = makeNode(Query);
	RangeTblEntry *target = target_entry(relid, query);
	RangeTblEntry *rows = tessera_subquery_entry(copyObject(source), "*SELECT*", NIL);
	ListCell   *cell;
	AttrNumber	column = 0;

	query->commandType = CMD_INSERT;
	query->querySource = QSRC_ORIGINAL;
	query->canSetTag = true;
	query->rtable = list_make2(target, rows);
	query->resultRelation = 1;
	query->jointree = makeFromExpr(list_make1(tessera_reference_to(2)), NULL);
	foreach(cell, source->targetList)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);
		Node	   *expression = (Node *) entry->expr;

		if (entry->resjunk)
			continue;
		column++;
		rows->eref->colnames = lappend(rows->eref->colnames, makeString(pstrdup(entry->resname ? entry->resname : "?column?")));
		query->targetList = lappend(query->targetList,
									makeTargetEntry((Expr *) makeVar(2, column, exprType(expression), exprTypmod(expression),
																	 exprCollation(expression), 0),
													column, pstrdup(strVal(list_nth(target->eref->colnames, column - 1))), false));
	}
	return query;
}

uint64
tessera_insert_rows(Oid relid, Query *source, TesseraUtility *utility)
{
	List	   *rewritten = QueryRewrite(insert_query(relid, source));
	PlannedStmt *plan = pg_plan_query(linitial_node(Query, rewritten), utility->text, CURSOR_OPT_PARALLEL_OK, utility->params);
	QueryDesc  *query;
	uint64		processed;

	PushCopiedSnapshot(GetActiveSnapshot());
	UpdateActiveSnapshotCommandId();
	query = CreateQueryDesc(plan, utility->text, GetActiveSnapshot(), InvalidSnapshot, None_Receiver, utility->params, utility->environment, 0);
	ExecutorStart(query, 0);
	tessera_run_to_end(ExecutorRun, query);
	ExecutorFinish(query);
	processed = query->estate->es_processed;
	ExecutorEnd(query);
	FreeQueryDesc(query);
	PopActiveSnapshot();
	return processed;
}

_Noreturn static void
refuse_source(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s is not supported for a table of the cluster", why),
			 errhint("CREATE TABLE, then INSERT ... SELECT.")));
}

/* Namespace of the new table; InvalidOid if it stays on this node, or is there already. */
static Oid
new_table_namespace(CreateTableAsStmt *statement)
{
	RangeVar   *relation = statement->into->rel;
	Oid			namespace;

	if (relation->relpersistence == RELPERSISTENCE_TEMP)
		return InvalidOid;
	namespace = RangeVarGetCreationNamespace(relation);
	if (isAnyTempNamespace(namespace) || IsCatalogNamespace(namespace) || namespace == get_namespace_oid("tessera", true))
		return InvalidOid;
	if (statement->if_not_exists && OidIsValid(get_relname_relid(relation->relname, namespace)))
		return InvalidOid;
	return namespace;
}

static void
change_own_right(Oid relid, const char *format)
{
	tessera_run_utility_text(psprintf(format, tessera_qualified_name(relid),
									  tessera_quote(GetUserNameFromId(GetUserId(), false))));
}

/*
 * CREATE TABLE AS needs no right to INSERT, which default privileges may have taken from the owner; but the INSERTs on the shards check it. So it is
 * granted while the rows are written.
 */
static uint64
fill_table(Oid relid, Query *query, TesseraUtility *utility)
{
	bool		allowed = pg_class_aclcheck(relid, GetUserId(), ACL_INSERT) == ACLCHECK_OK;
	volatile uint64 processed;

	if (!allowed)
		change_own_right(relid, "GRANT INSERT ON %s TO %s");
	tessera_nesting_enter();
	PG_TRY();
	{
		processed = tessera_insert_rows(relid, query, utility);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
	if (!allowed)
		change_own_right(relid, "REVOKE INSERT ON %s FROM %s");
	return processed;
}

bool
tessera_create_table_as(TesseraUtility *utility, const TesseraRouting *routing)
{
	CreateTableAsStmt *statement = castNode(CreateTableAsStmt, utility->statement->utilityStmt);
	Query	   *query = castNode(Query, statement->query);
	Oid			namespace;
	uint64		processed = 0;

	if (statement->objtype == OBJECT_MATVIEW && !tessera_creates_cluster_view(statement, routing))
		return false;
	namespace = new_table_namespace(statement);
	if (!OidIsValid(namespace))
		return false;
	if (statement->objtype == OBJECT_MATVIEW)
	{
		tessera_create_materialized_view(statement, get_namespace_name(namespace));
		return true;
	}
	if (statement->into->onCommit != ONCOMMIT_NOOP)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("ON COMMIT can only be used on temporary tables")));
	if (query->commandType == CMD_UTILITY)
		refuse_source("CREATE TABLE AS EXECUTE");
	if (query->targetList == NIL)
		refuse_source("CREATE TABLE AS without columns");
	tessera_run_utility_text(create_text(statement, query, get_namespace_name(namespace)));
	if (!statement->into->skipData)
		processed = fill_table(get_relname_relid(statement->into->rel->relname, namespace), query, utility);
	if (utility->completion && !statement->into->skipData)
		SetQueryCompletion(utility->completion, CMDTAG_SELECT, processed);
	return true;
}
