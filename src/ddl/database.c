/*
 * database.c
 *	  Statements about this database: ALTER DATABASE ... SET and OWNER TO, GRANT and REVOKE ... ON DATABASE, ALTER ROLE ... IN DATABASE, COMMENT and
 *	  SECURITY LABEL.
 *
 * Every node is a database of its own and may have another name, so that such a statement goes to every node and means that node's database there.
 * One that names other databases only is this server's own business; so are CREATE, DROP, RENAME, the tablespace, and the options of ALTER DATABASE.
 *
 * Memory: the current context.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "catalog/database_setting.h"
#include "ddl/ddl.h"

#define LIBRARIES "session_preload_libraries"
#define LIBRARY "tessera"

/*
 * Where the statement names databases: *name is a single one (char *), *list a list of String. False: the statement is of another kind.
 */
static bool
named_databases(Node *statement, char ***name, List ***list)
{
	Node	  **object = NULL;

	*name = NULL;
	*list = NULL;
	switch (nodeTag(statement))
	{
		case T_AlterDatabaseSetStmt:
			*name = &((AlterDatabaseSetStmt *) statement)->dbname;
			return true;
		case T_AlterRoleSetStmt:
			*name = &((AlterRoleSetStmt *) statement)->database;
			return **name != NULL;
		case T_GrantStmt:
			*list = &((GrantStmt *) statement)->objects;
			return ((GrantStmt *) statement)->targtype == ACL_TARGET_OBJECT && ((GrantStmt *) statement)->objtype == OBJECT_DATABASE;
		case T_AlterOwnerStmt:
			object = ((AlterOwnerStmt *) statement)->objectType == OBJECT_DATABASE ? &((AlterOwnerStmt *) statement)->object : NULL;
			break;
		case T_CommentStmt:
			object = ((CommentStmt *) statement)->objtype == OBJECT_DATABASE ? &((CommentStmt *) statement)->object : NULL;
			break;
		case T_SecLabelStmt:
			object = ((SecLabelStmt *) statement)->objtype == OBJECT_DATABASE ? &((SecLabelStmt *) statement)->object : NULL;
			break;
		default:
			break;
	}
	if (object)
		*name = &castNode(String, *object)->sval;
	return object != NULL;
}

bool
tessera_about_database(Node *statement)
{
	char	  **name;
	List	  **list;

	return named_databases(statement, &name, &list);
}

bool
tessera_names_this_database(Node *statement)
{
	char	   *here = get_database_name(MyDatabaseId);
	char	  **name;
	List	  **list;
	ListCell   *cell;

	if (here == NULL || !named_databases(statement, &name, &list))
		return false;
	if (name)
		return strcmp(*name, here) == 0;
	foreach(cell, *list)
		if (strcmp(strVal(lfirst(cell)), here) == 0)
			return true;
	return false;
}

PlannedStmt *
tessera_for_this_database(PlannedStmt *statement)
{
	char	  **name;
	List	  **list;

	if (!tessera_about_database(statement->utilityStmt))
		return statement;
	statement = copyObject(statement);
	(void) named_databases(statement->utilityStmt, &name, &list);
	if (name)
		*name = get_database_name(MyDatabaseId);
	else
		*list = list_make1(makeString(get_database_name(MyDatabaseId)));
	return statement;
}

void
tessera_keep_library(Node *statement)
{
	VariableSetStmt *set = IsA(statement, AlterDatabaseSetStmt) ? ((AlterDatabaseSetStmt *) statement)->setstmt : NULL;
	List	   *libraries = NIL;
	ListCell   *cell;

	if (set == NULL || !superuser() || (set->kind != VAR_RESET_ALL && pg_strcasecmp(set->name, LIBRARIES) != 0))
		return;					/* others than superusers cannot change that setting */
	if (set->kind == VAR_SET_VALUE || set->kind == VAR_SET_CURRENT)
	{
		char	   *value = ExtractSetVariableArgs(set);

		if (value != NULL && !SplitDirectoriesString(pstrdup(value), ',', &libraries))
			libraries = NIL;
	}
	foreach(cell, libraries)
		if (strcmp(lfirst(cell), LIBRARY) == 0)
			return;
	tessera_database_setting(LIBRARIES, lappend(libraries, pstrdup(LIBRARY)));
}
