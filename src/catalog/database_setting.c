/*
 * database_setting.c
 *	  Writes settings of this database; see database_setting.h. What is written goes with the transaction; sessions that begin later go by it.
 */
#include "postgres.h"

#include "catalog/pg_db_role_setting.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "catalog/database_setting.h"

#define LIBRARY "tessera"

static A_Const *
string_constant(char *text)
{
	A_Const    *constant = makeNode(A_Const);

	constant->val.sval.type = T_String;
	constant->val.sval.sval = text;
	constant->location = -1;
	return constant;
}

void
tessera_database_setting(const char *name, List *values)
{
	VariableSetStmt *statement = makeNode(VariableSetStmt);
	ListCell   *cell;

	statement->kind = values == NIL ? VAR_RESET : VAR_SET_VALUE;
	statement->name = pstrdup(name);
	foreach(cell, values)
		statement->args = lappend(statement->args, string_constant(lfirst(cell)));
	AlterSetting(MyDatabaseId, InvalidOid, statement);
}

void
tessera_require_library(bool on)
{
	char	   *current = pstrdup(GetConfigOption("session_preload_libraries", false, false));
	List	   *libraries = NIL;
	List	   *wanted = NIL;
	ListCell   *cell;

	if (!SplitDirectoriesString(current, ',', &libraries))
		libraries = NIL;
	foreach(cell, libraries)
		if (strcmp(lfirst(cell), LIBRARY) != 0)
			wanted = lappend(wanted, lfirst(cell));
	if (on)
		wanted = lappend(wanted, pstrdup(LIBRARY));
	tessera_database_setting("session_preload_libraries", wanted);
}
