/*
 * lock_holders.h
 *	  Transactions that held something at one moment, to be waited for without locking anything.
 */
#ifndef TESSERA_TRANSFER_LOCK_HOLDERS_H
#define TESSERA_TRANSFER_LOCK_HOLDERS_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "storage/lock.h"

/* Settings; migration_settings.c defines them for the server. */
extern int	tessera_migration_lock_timeout; /* ms */

/* Room for the text that names a holder. */
#define TESSERA_HOLDER_TEXT 224

/* The text of a holder, kept as long as it is the same one. All zero: of nobody. */
typedef struct TesseraHolderName
{
	VirtualTransactionId id;	/* invalid: the text is not to be kept */
	int			pid;			/* of the process that runs it; 0: it is prepared */
	char		text[TESSERA_HOLDER_TEXT];
} TesseraHolderName;

typedef struct TesseraLockHolders
{
	int			n;
	VirtualTransactionId *ids;	/* those that had not ended when last looked */
	TesseraHolderName name;		/* of the first */
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
 * Who runs a transaction, for an operator, palloc'd: of a process the node and process of the client's session, which tessera.cancel takes, its
 * application and, if it is a session of this node, its role; of a prepared transaction its name (the client's, if one has prepared it in the
 * cluster), its owner, and since when. Nothing that pg_stat_activity and pg_prepared_xacts do not show to everybody. In the current transaction if
 * there is one, else in a short one. May ask the config node, beside that transaction, for 2 s at most, and not beyond the limit (0: none).
 */
extern char *tessera_transaction_text(TransactionId xid, TimestampTz limit);

/*
 * A process that waits for an AccessExclusiveLock on one of the tables; 0: none. Memory in the current context; takes all lock partitions for a
 * moment.
 */
extern int	tessera_lock_waiter(int n, const Oid *relids);

#endif							/* TESSERA_TRANSFER_LOCK_HOLDERS_H */
