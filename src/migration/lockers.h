/*
 * lockers.h
 *	  Transactions that held something at one moment, to be waited for without locking anything.
 */
#ifndef TESSERA_MIGRATION_LOCKERS_H
#define TESSERA_MIGRATION_LOCKERS_H

#include "postgres.h"
#include "storage/lock.h"

typedef struct TesseraLockers
{
	int			n;
	VirtualTransactionId *ids;	/* those that had not ended when last looked */
} TesseraLockers;

/* Who holds or waits for a lock on any of the tables that conflicts with mode, now; lazy vacuums aside. In the current context. */
extern TesseraLockers *tessera_lockers_collect(int n, const Oid *relids, LOCKMODE mode);

/* A list given; copied. */
extern TesseraLockers *tessera_lockers_of(const VirtualTransactionId *ids, int n);

/* Has any not ended yet? who: a text that names the first. */
extern bool tessera_lockers_left(TesseraLockers *lockers, char *who, Size size);

/* A process that waits for an AccessExclusiveLock on one of the tables; 0: none. Memory in the current context; takes all lock partitions for a moment. */
extern int	tessera_lockers_waiter(int n, const Oid *relids);

#endif							/* TESSERA_MIGRATION_LOCKERS_H */
