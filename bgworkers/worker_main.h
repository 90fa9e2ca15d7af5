/*
 * worker_main.h
 *	  Background workers: the launcher, and the one main of all workers of a database.
 */
#ifndef TESSERA_BGWORKERS_WORKER_MAIN_H
#define TESSERA_BGWORKERS_WORKER_MAIN_H

#include "postgres.h"

#include "common/worker_registry.h"

/* Entry points, found by name in the library. */
extern PGDLLEXPORT void tessera_launcher_main(Datum arg);
extern PGDLLEXPORT void tessera_worker_main(Datum arg);

/* True if there is a step for this kind of worker. */
extern bool tessera_worker_exists(TesseraWorker worker);

/*
 * In a worker, once connected: its transactions are of the usual kind, whatever the database's or the server's defaults say; a gate could stay closed
 * otherwise.
 */
extern void tessera_worker_settings(void);

/* From _PG_init: registers the launcher. */
extern void tessera_launcher_init(void);

#endif							/* TESSERA_BGWORKERS_WORKER_MAIN_H */
