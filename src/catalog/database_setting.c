/*
 * database_setting.c
 *	  Writes settings of this database, reads one of any database; see database_setting.h. What is written goes with the transaction; sessions that
 *	  begin later go by it.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "catalog/database_setting.h"

#define LIBRARIES "session_preload_libraries"
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
	char	   *current = pstrdup(GetConfigOption(LIBRARIES, false, false));
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
	tessera_database_setting(LIBRARIES, wanted);
}

/* settings: text[] of name=value, as in pg_db_role_setting. */
static bool
settings_name_library(ArrayType *settings)
{
	Datum	   *elements;
	int			n;

	deconstruct_array(settings, TEXTOID, -1, false, TYPALIGN_INT, &elements, NULL, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *setting = TextDatumGetCString(elements[i]);
		List	   *libraries = NIL;
		ListCell   *cell;

		if (strncmp(setting, LIBRARIES "=", strlen(LIBRARIES) + 1) != 0 ||
			!SplitDirectoriesString(setting + strlen(LIBRARIES) + 1, ',', &libraries))
			continue;
		foreach(cell, libraries)
			if (strcmp(lfirst(cell), LIBRARY) == 0)
				return true;
	}
	return false;
}

bool
tessera_database_requires_library(Oid database)
{
	Relation	relation = table_open(DbRoleSettingRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		requires = false;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(InvalidOid));
	scan = systable_beginscan(relation, DbRoleSettingDatidRolidIndexId, true, NULL, 2, keys);
	if ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		null;
		Datum		settings = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig, RelationGetDescr(relation), &null);

		requires = !null && settings_name_library(DatumGetArrayTypeP(settings));
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return requires;
}
