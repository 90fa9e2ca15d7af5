/*
 * launcher.c
 *	  The launcher: one for each server, started when recovery has finished; starts the workers of each database that is a node.
 *
 * At its start it has a probe look into each database, one after the other: shared memory is empty, only the databases know what they are. From then
 * on a database that becomes a node makes itself known (it has a slot), and the launcher, woken by the commit, by a worker's exit or by its own
 * clock, starts what is missing. It keeps no connection to any database, so it never blocks a statement such as DROP DATABASE.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "bgworkers/worker.h"
#include "common/shmem.h"
#include "common/worker.h"

#define LOOK_AROUND 60000L		/* ms */
#define LOOK_AGAIN 1000L		/* ms, when something could not be started */

void
tessera_launcher_init(void)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 5;
	strlcpy(worker.bgw_library_name, "tessera", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "tessera_launcher_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "tessera launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "tessera launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* Databases that can be connected to, in the current context. */
static List *
list_databases(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *databases = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old = MemoryContextSwitchTo(context);

		if (database->datallowconn && !database->datistemplate)
			databases = lappend_oid(databases, database->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return databases;
}

/* Has the first database of the list probed, and waits for that; false if no worker could be started. */
static bool
probe_first(List *databases)
{
	BackgroundWorkerHandle *handle;

	if (!tessera_worker_start(linitial_oid(databases), TESSERA_WORKERS, &handle))
		return false;
	(void) WaitForBackgroundWorkerShutdown(handle);
	pfree(handle);
	return true;
}

/* Starts what is missing; false if something could not be started. */
static bool
start_missing(void)
{
	Oid			databases[TESSERA_MAX_DATABASES];
	bool		all = true;

	tessera_database_slots(databases);
	for (int slot = 0; slot < TESSERA_MAX_DATABASES; slot++)
		for (int worker = 0; worker < TESSERA_WORKERS && OidIsValid(databases[slot]); worker++)
			if (tessera_worker_exists(worker) && tessera_worker_missing(slot, worker))
				all = tessera_worker_start(databases[slot], worker, NULL) && all;
	return all;
}

void
tessera_launcher_main(Datum arg)
{
	List	   *unprobed;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	tessera_launcher_attach();
	MemoryContextSwitchTo(TopMemoryContext);
	unprobed = list_databases();

	for (;;)
	{
		bool		all = true;

		CHECK_FOR_INTERRUPTS();
		while (unprobed != NIL && (all = probe_first(unprobed)))
			unprobed = list_delete_first(unprobed);
		all = start_missing() && all;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, all ? LOOK_AROUND : LOOK_AGAIN, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}
