/*
 * cut_writers.h
 *	  The transactions of this server that write what a statement reads, for common snapshots (doc/design.md#one-snapshot).
 */
#ifndef TESSERA_CUT_WRITERS_H
#define TESSERA_CUT_WRITERS_H

#include "postgres.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

/* Who may have written the tables: those who hold locks for that when it is first asked for. Zeroed but for relids. */
typedef struct TesseraWriters
{
	List	   *relids;
	VirtualTransactionId *holders;	/* palloc'd; NULL: not looked for yet */
	int			n;
} TesseraWriters;

/*
 * True if the transaction, whose slot of commit_times.h is that of this PGPROC, writes one of the tables: in any other it changes nothing that is
 * read. True, too, if it ends just now: its locks would have told. arg: TesseraWriters. A TesseraConcerns.
 */
extern bool tessera_writes_what_is_read(int proc, TransactionId xid, void *arg);

/* The stand-in of a prepared transaction, which holds its locks; NULL: there is none any more. It may be another's at any moment. */
extern PGPROC *tessera_prepared_holder(TransactionId xid);

/* Waits for the end of the transaction by a lock, so that deadlocks are found. ERROR 55P03 at the deadline, or after lock_timeout. */
extern void tessera_await_writer(TransactionId xid, TimestampTz deadline);

#endif							/* TESSERA_CUT_WRITERS_H */
