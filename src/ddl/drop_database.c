/*
 * drop_database.c
 *	  DROP DATABASE of a database that is a node of a cluster, by a session in another database of the server: refused, as the cluster would lose what
 *	  lies there.
 *
 * What a database is stands in its own catalog, which only a session there can read. Databases that may be nodes are known everywhere: by the setting
 * that makes their sessions load the library (catalog/database_setting.h), which is durable and in a catalog of the whole server, and by their slots
 * in shared memory. Into these a probe (bgworkers/worker_main.c) looks: a dump that was restored has the setting, and is no node. Any other database
 * costs one look into the settings.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/syscache.h"

#include "catalog/database_setting.h"
#include "common/shmem.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"
#include "ddl/ddl.h"

#define INVALID_DATABASE (-2)	/* core's DATCONNLIMIT_INVALID_DB, which 15.4 has brought */

static bool
has_slot(Oid database)
{
	Oid			databases[TESSERA_MAX_DATABASES];

	tessera_database_slots(databases);
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
		if (databases[i] == database)
			return true;
	return false;
}

/* What a DROP DATABASE that was interrupted has left: nobody can connect to it, and core's only way out is to drop it. */
static bool
is_invalid(Oid database)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	bool		invalid = HeapTupleIsValid(tuple) && ((Form_pg_database) GETSTRUCT(tuple))->datconnlimit == INVALID_DATABASE;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return invalid;
}

/* What core refuses anyway, and for better reasons, is left to it; nor does anybody make workers run who may not drop the database. */
void
tessera_ddl_check_drop_database(const TesseraUtility *utility)
{
	const DropdbStmt *statement = castNode(DropdbStmt, utility->statement->utilityStmt);
	Oid			database;
	bool		requires_library;

	if (RecoveryInProgress())
		return;
	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "DROP DATABASE");
	database = get_database_oid(statement->dbname, true);
	if (!OidIsValid(database) || database == MyDatabaseId || !tessera_owns_database(database, GetUserId()) || is_invalid(database))
		return;
	requires_library = tessera_database_requires_library(database);
	if (!requires_library && !has_slot(database))
		return;
	switch (tessera_worker_probe(database))
	{
		case TESSERA_PROBE_NO_NODE:
			return;
		case TESSERA_PROBE_NODE:
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop database \"%s\": it is a node of a cluster", statement->dbname),
					 errhint("Remove the node first: tessera.remove_shard, tessera.remove_router. DROP EXTENSION tessera CASCADE in that database "
							 "makes it forget the cluster, and which rows are its own.")));
			break;
		case TESSERA_PROBE_UNKNOWN:
			if (!requires_library)
				return;			/* a superuser has reset the setting, or it was dropped with the extension */
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot drop database \"%s\": it may be a node of a cluster", statement->dbname),
					 errdetail("The background worker that was to look there could not be started, or failed."),
					 errhint("The server's log may say why; or increase max_worker_processes. If it is none, or nobody can look there any more: "
							 "ALTER DATABASE %s RESET session_preload_libraries, as a superuser.", tessera_quote(statement->dbname))));
			break;
	}
}
