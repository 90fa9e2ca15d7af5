/*
 * migration_cloner.c
 *	  The process of one running migration on one of its sides; the work is in src/migration/migration_process.c.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"

#include "bgworkers/worker_main.h"
#include "migration/migration.h"

extern PGDLLEXPORT void tessera_migration_worker_main(Datum arg);

void
tessera_migration_worker_main(Datum arg)
{
	uint32		generation;
	Oid			database;

	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
	memcpy(&database, MyBgworkerEntry->bgw_extra + sizeof(generation), sizeof(database));
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, tessera_migration_interrupt);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	tessera_worker_settings();
	tessera_migration_run(DatumGetInt32(arg), generation);
}
