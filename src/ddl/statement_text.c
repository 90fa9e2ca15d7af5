/*
 * statement_text.c
 *	  The text by which other nodes run a statement that has run here; see statement_text.h.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_extension.h"
#include "commands/defrem.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "common/text.h"
#include "ddl/ddl.h"
#include "ddl/statement_text.h"

/* Version of an installed extension, palloc'd; NULL if it is not installed. */
static char *
installed_version(const char *name)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum(name));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		null;
		Datum		value = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(rel), &null);

		if (!null)
			version = TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

static char *
create_extension_text(CreateExtensionStmt *statement)
{
	StringInfoData text;
	char	   *version = installed_version(statement->extname);
	ListCell   *cell;
	bool		cascade = false;

	initStringInfo(&text);
	appendStringInfo(&text, "CREATE EXTENSION %s%s", statement->if_not_exists ? "IF NOT EXISTS " : "", tessera_quote(statement->extname));
	foreach(cell, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "schema") == 0)
			appendStringInfo(&text, " SCHEMA %s", tessera_quote(defGetString(option)));
		else if (strcmp(option->defname, "cascade") == 0)
			cascade = defGetBoolean(option);
	}
	if (version)
		appendStringInfo(&text, " VERSION %s", quote_literal_cstr(version));
	if (cascade)
		appendStringInfoString(&text, " CASCADE");
	return text.data;
}

char *
tessera_statement_text(TesseraUtility *utility)
{
	Node	   *statement = utility->statement->utilityStmt;

	if (IsA(statement, CreateExtensionStmt))
		return create_extension_text((CreateExtensionStmt *) statement);
	if (IsA(statement, AlterExtensionStmt))
	{
		char	   *name = ((AlterExtensionStmt *) statement)->extname;
		char	   *version = installed_version(name);

		if (version)
			return psprintf("ALTER EXTENSION %s UPDATE TO %s", tessera_quote(name), quote_literal_cstr(version));
	}
	/* by the name that it has got here */
	if (tessera_is_unbuilt_index(statement))
		return tessera_unbuilt_index_text((IndexStmt *) statement);
	return tessera_utility_text(utility);
}
