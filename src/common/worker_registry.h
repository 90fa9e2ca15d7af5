/*
 * worker_registry.h
 *	  Which background workers run in which database, and how to wake, start and stop them. Their mains are in bgworkers/.
 */
#ifndef TESSERA_WORKER_REGISTRY_H
#define TESSERA_WORKER_REGISTRY_H

#include "postgres.h"

/* Workers of one database: one of each kind at most. The steps they run are in the table in bgworkers/worker_main.c. */
typedef enum TesseraWorker
{
	TESSERA_REFRESHER,
	TESSERA_RANGE_DELETER,
	TESSERA_MIGRATION_RECOVERY,
	TESSERA_TRANSACTION_RESOLVER,
	TESSERA_NOTIFICATION_FORWARDER,
	TESSERA_STATISTICS,
	TESSERA_SEQUENCE_FETCHER,
	TESSERA_SPLITTER,
	TESSERA_BALANCER,
	TESSERA_DDL_OPERATIONS,
	TESSERA_SESSION_REAPER,
	TESSERA_WORKERS				/* count */
} TesseraWorker;

/* From any backend of the database: makes the worker run its step soon; starts it if it does not run. False if no worker can be started now. */
extern bool tessera_worker_wake(TesseraWorker worker);

/* Starts a worker in a database (TESSERA_WORKERS: the probe that looks whether the database is a node, and starts the others). The handle (NULL: not
 * wanted) is palloc'd. False if the server has no free worker slot. */
struct BackgroundWorkerHandle;
extern bool tessera_worker_start(Oid database, TesseraWorker worker, struct BackgroundWorkerHandle **handle);

/*
 * What a probe finds out about a database, for a session in another one. UNKNOWN: no worker could be started, or it failed (its error is in the
 * server's log).
 */
typedef enum TesseraProbe
{
	TESSERA_PROBE_UNKNOWN,
	TESSERA_PROBE_NO_NODE,
	TESSERA_PROBE_NODE
} TesseraProbe;

/* Has the database probed and waits for the answer; interruptible. The caller must hold no lock on it that keeps sessions out. */
extern TesseraProbe tessera_worker_probe(Oid database);

/* In the probe: whether somebody waits for its answer. */
extern bool tessera_worker_is_awaited(void);

/* In the probe: answers whoever waits for it, if anybody does. */
extern void tessera_worker_probed(bool node);

/* In a worker: the database that it was started for. */
extern Oid	tessera_worker_database(void);

/* True if this worker of the slot's database does not run and is to be started. */
extern bool tessera_worker_missing(int slot, TesseraWorker worker);

/* In the worker: enters it in the registry, until its exit. False if there is another one of its kind: then this one must end. */
extern bool tessera_worker_attach(TesseraWorker worker);

/* Exit step of a worker: another one may be started in its place. */
extern void tessera_worker_leave(int code, Datum arg);

/*
 * For a worker that ends because this node has no work for it: read tessera_worker_roles before looking for work, and pass that to
 * tessera_worker_unneeded. It is then not started again until the node's role changes or it is woken.
 */
extern uint64 tessera_worker_roles(void);
extern void tessera_worker_unneeded(uint64 roles);

/* At commit, when the role of this database in its cluster may have changed: workers that were not needed are checked again. Never raises. */
extern void tessera_worker_roles_changed(void);

/* For statements that need a database without connections (DROP DATABASE): its workers end at once and are not started for some seconds. */
extern void tessera_workers_stop(Oid database);

/* attach: the launcher enters itself in the registry, until its exit. wake: never raises. */
extern void tessera_launcher_attach(void);
extern void tessera_launcher_wake(void);

/* From _PG_init. */
extern void tessera_worker_init(void);

#endif							/* TESSERA_WORKER_REGISTRY_H */
