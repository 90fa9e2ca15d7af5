/*
 * drop_extension.c
 *	  DROP EXTENSION tessera on a node of a cluster: what stands against it, and the locks it begins with.
 *
 * Core's DROP locks what it drops one by one and keeps what it has while it waits for the next. The workers of the extension, and each session that
 * reads the catalog anew, lock the same tables in orders of their own, and who reads a view locks that first: with them DROP would end in a deadlock
 * now and then. So all of them are locked before, and nothing is held while one of them is waited for.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"

#include "catalog/database_setting.h"
#include "common/spi.h"
#include "ddl/ddl.h"

/* True if the statement drops the extension. */
static bool
drops_extension(Node *statement)
{
	ListCell   *cell;

	if (!IsA(statement, DropStmt) || ((DropStmt *) statement)->removeType != OBJECT_EXTENSION)
		return false;
	foreach(cell, ((DropStmt *) statement)->objects)
		if (strcmp(strVal(lfirst(cell)), "tessera") == 0)
			return true;
	return false;
}

/* OIDs of the extension's tables, views and sequences; a List in the caller's context. */
static List *
extension_tables(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			type = OIDOID;
	Datum		extension = ObjectIdGetDatum(get_extension_oid("tessera", false));
	List	   *tables = NIL;
	TesseraSpi	access;

	tessera_spi_begin(&access);
	(void) tessera_spi_run("SELECT c.oid FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = d.objid"
						   " WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = $1 AND d.deptype = 'e'"
						   " AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.relkind IN ('r', 'v', 'S') ORDER BY c.oid",
						   SPI_OK_SELECT, 1, &type, &extension, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		Oid			table = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		MemoryContext spi = MemoryContextSwitchTo(caller);

		tables = lappend_oid(tables, table);
		MemoryContextSwitchTo(spi);
	}
	tessera_spi_end(&access);
	return tables;
}

/* Locks as many of the tables as can be had at once, beside `held` (InvalidOid: none). Returns the one that could not; InvalidOid: has all. */
static Oid
lock_without_waiting(const List *tables, Oid held)
{
	ListCell   *cell;

	foreach(cell, tables)
	{
		Oid			table = lfirst_oid(cell);

		if (table == held || ConditionalLockRelationOid(table, AccessExclusiveLock))
			continue;
		for (int i = 0; i < foreach_current_index(cell); i++)
			if (list_nth_oid(tables, i) != held)
				UnlockRelationOid(list_nth_oid(tables, i), AccessExclusiveLock);
		return table;
	}
	return InvalidOid;
}

/* Locks all tables of the extension to the end of the transaction. Waits as any statement does: interruptible, lock_timeout at most for each. */
static void
lock_tables(void)
{
	List	   *tables = extension_tables();
	Oid			held = InvalidOid;
	Oid			busy;

	while (OidIsValid(busy = lock_without_waiting(tables, held)))
	{
		if (OidIsValid(held))
			UnlockRelationOid(held, AccessExclusiveLock);
		LockRelationOid(busy, AccessExclusiveLock);
		held = busy;
	}
	list_free(tables);
}

/* The processes of a migration would lose their rows, and its replication slot would stay. The locks keep new ones away. */
static void
refuse_during_migration(void)
{
	TesseraSpi	access;
	bool		running;

	tessera_spi_begin(&access);
	running = tessera_spi_look("SELECT FROM tessera.migration_coordinator UNION ALL SELECT FROM tessera.migration_recipient", 0, NULL, NULL) > 0;
	tessera_spi_end(&access);
	if (running)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("cannot drop extension tessera: this node takes part in a migration"),
				 errhint("End it with tessera.cancel_migration().")));
}

void
tessera_ddl_check_drop_extension(Node *statement)
{
	if (!drops_extension(statement))
		return;
	if (((DropStmt *) statement)->behavior != DROP_CASCADE)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop extension tessera: this database is a node of a cluster"),
				 errhint("Remove the node first: tessera.remove_shard, tessera.remove_router. DROP EXTENSION tessera CASCADE makes this node forget "
						 "the cluster, and which rows are its own.")));
	if (superuser())			/* others are refused by what follows */
	{
		lock_tables();
		refuse_during_migration();
		tessera_require_library(false);
	}
}
