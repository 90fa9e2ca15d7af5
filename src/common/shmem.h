/*
 * shmem.h
 *	  Registry of the extension's shared memory: each module states its size and initialiser; init.c composes them.
 *
 * All shared state is kept per database (many nodes may live in one server): a module keeps an array with one entry per database slot. A slot is
 * given to a database at its first use and stays its own until the server stops or the database is dropped.
 */
#ifndef TESSERA_SHMEM_H
#define TESSERA_SHMEM_H

#include "postgres.h"
#include "storage/lwlock.h"
#include "utils/dsa.h"

#define TESSERA_MAX_DATABASES 64

/*
 * One module's part: name (of the ShmemInitStruct and its LWLock tranche), size, count of LWLocks, initialiser (called once, under
 * AddinShmemInitLock).
 */
typedef struct TesseraShmemModule
{
	const char *name;
	Size		(*size) (void);
	int			lwlocks;
	void		(*init) (void *area, LWLockPadded *locks, bool found);
	/* optional: frees what a dropped database left in a slot that is given to another one; may raise, then it is called again */
	void		(*reset_slot) (int slot);
} TesseraShmemModule;

/* From _PG_init only: remembers modules (static, never freed) and installs the request and startup hooks. */
extern void tessera_shmem_register(const TesseraShmemModule *module);
extern void tessera_shmem_install(void);

/* Slot of MyDatabaseId, cached in this backend. */
extern int	tessera_database_slot(void);

/* The same, but gives none: -1 if the database has no slot, because it was never seen to be a node. */
extern int	tessera_database_slot_if_any(void);

/* The database was dropped: its slot may be given to another one. Never raises. */
extern void tessera_database_slot_release(Oid database);

/* Databases that have a slot (array of TESSERA_MAX_DATABASES, InvalidOid where free), copied. */
extern void tessera_database_slots(Oid *databases);

/*
 * A number that grows whenever a slot is given, and at tessera_database_slots_changed, which makes databases without a slot check again whether they
 * are nodes. One atomic read.
 */
extern uint64 tessera_database_slots_generation(void);
extern void tessera_database_slots_changed(void);

/* The server's DSA area, attached (and created by the backend that needs it first); lives until the backend exits. */
extern dsa_area *tessera_dsa(void);

#endif							/* TESSERA_SHMEM_H */
