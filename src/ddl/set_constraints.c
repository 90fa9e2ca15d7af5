/*
 * set_constraints.c
 *	  SET CONSTRAINTS: names are resolved once, here, by the user's search path and rights; the other nodes get them qualified.
 *
 * Core runs the statement on this node first, and raises what is wrong with it. What transaction/constraint_modes.c then takes to the shards are the
 * constraints of the cluster's tables alone: those of temporary tables and of this node's own are not there.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_constraint.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "common/text.h"
#include "ddl/ddl.h"
#include "session/internal_connection.h"
#include "transaction/constraint_modes.h"

/* True if the schema has constraints of this name; *of_cluster: one of them is on a table of the cluster. */
static bool
find_constraint(Relation catalog, Oid schema, const char *name, const TesseraRouting *routing, bool *of_cluster)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&keys[0], Anum_pg_constraint_conname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum(name));
	ScanKeyInit(&keys[1], Anum_pg_constraint_connamespace, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(schema));
	scan = systable_beginscan(catalog, ConstraintNameNspIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			relid = ((Form_pg_constraint) GETSTRUCT(tuple))->conrelid;

		found = true;
		if (OidIsValid(relid) && OidIsValid(tessera_cluster_root(routing, relid)))
			*of_cluster = true;
	}
	systable_endscan(scan);
	return found;
}

/*
 * The name as other nodes are given it; NULL: not there (core raises that), or of this node alone. As core does, the first schema of the path that
 * has the name.
 */
static char *
qualified_name(Relation catalog, const RangeVar *constraint, const TesseraRouting *routing)
{
	List	   *schemas;
	ListCell   *cell;

	/* core raises what is wrong with it */
	if (constraint->catalogname != NULL && strcmp(constraint->catalogname, get_database_name(MyDatabaseId)) != 0)
		return NULL;
	if (constraint->schemaname != NULL)
		schemas = list_make1_oid(LookupExplicitNamespace(constraint->schemaname, true));
	else
		schemas = fetch_search_path(true);
	foreach(cell, schemas)
	{
		bool		of_cluster = false;

		if (!OidIsValid(lfirst_oid(cell)) || !find_constraint(catalog, lfirst_oid(cell), constraint->relname, routing, &of_cluster))
			continue;
		return of_cluster ? tessera_quote_qualified(get_namespace_name(lfirst_oid(cell)), constraint->relname) : NULL;
	}
	return NULL;
}

/* The list for the other nodes; empty: nothing concerns them. */
static char *
shipped_names(const ConstraintsSetStmt *statement, const TesseraRouting *routing)
{
	StringInfoData names;
	Relation	catalog;
	ListCell   *cell;

	if (statement->constraints == NIL)
		return "ALL";
	initStringInfo(&names);
	catalog = table_open(ConstraintRelationId, AccessShareLock);
	foreach(cell, statement->constraints)
	{
		char	   *name = qualified_name(catalog, lfirst_node(RangeVar, cell), routing);

		if (name != NULL)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", name);
	}
	table_close(catalog, AccessShareLock);
	return names.data;
}

void
tessera_set_constraints(TesseraUtility *utility, const TesseraRouting *routing)
{
	ConstraintsSetStmt *statement = castNode(ConstraintsSetStmt, utility->statement->utilityStmt);
	bool		deferred = statement->deferred;
	char	   *names = shipped_names(statement, routing);

	if (names[0] != '\0' && tessera_internal_connection())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function or trigger that runs on a shard cannot run SET CONSTRAINTS"),
				 errdetail("The other shards of the transaction would not know of it."),
				 errhint("Run it in the client, or in a function called outside the statement.")));
	tessera_utility_run(utility);
	if (names[0] != '\0')
		tessera_constraint_modes_set(routing, names, deferred);
}
