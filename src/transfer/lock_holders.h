/*
 * lock_holders.h
 *	  Transactions that held something at one moment, to be waited for without locking anything.
 */
#ifndef TESSERA_TRANSFER_LOCK_HOLDERS_H
#define TESSERA_TRANSFER_LOCK_HOLDERS_H

#include "postgres.h"
#include "storage/lock.h"

/* Settings; migration_settings.c defines them for the server. */
extern int	tessera_migration_lock_timeout; /* ms */

typedef struct TesseraLockHolders
{
	int			n;
	VirtualTransactionId *ids;	/* those that had not ended when last looked */
	TransactionId named;		/* prepared transaction whose name was looked up */
	char		name[64];
} TesseraLockHolders;

/*
 * Who holds a lock on any of the tables that conflicts with mode, now. Not lazy vacuums, and nobody who holds no more than ShareUpdateExclusiveLock:
 * that is maintenance, which writes no rows and may itself wait for a snapshot of ours or of the migration's caller. In the current context; takes
 * all lock partitions for a moment.
 */
extern TesseraLockHolders *tessera_lock_holders_collect(int n, const Oid *relids, LOCKMODE mode);

/* A list given; copied. */
extern TesseraLockHolders *tessera_lock_holders_of(const VirtualTransactionId *ids, int n);

/* Frees it. */
extern void tessera_lock_holders_free(TesseraLockHolders *holders);

/* True if any has not ended yet. who: a text that names the first. */
extern bool tessera_lock_holders_left(TesseraLockHolders *holders, char *who, Size size);

/*
 * Locks a table to the end of the transaction. Never waits in the lock's queue, because later statements would wait behind it: asks again and again,
 * shows the holder in waiting_for, and after tessera.migration_lock_timeout (between nodes: 10 s at most) ERROR 55P03 that names the holder.
 */
extern void tessera_lock_table_by_retry(Oid relid, LOCKMODE mode);

/* Name of a prepared transaction, palloc'd; NULL if there is none of this xid. In the current transaction if there is one, else in a short one. */
extern char *tessera_prepared_name(TransactionId xid);

/*
 * A process that waits for an AccessExclusiveLock on one of the tables; 0: none. Memory in the current context; takes all lock partitions for a
 * moment.
 */
extern int	tessera_lock_waiter(int n, const Oid *relids);

#endif							/* TESSERA_TRANSFER_LOCK_HOLDERS_H */
