/*
 * cut_snapshot.h
 *	  Snapshots of this node as of a cluster time, for statements and transactions over several nodes (doc/design.md#one-snapshot).
 *
 * Two steps, as all nodes must have taken the first before the time is known: ask takes a snapshot that keeps row versions, and says the newest
 * commit time that it sees; the time is the greatest of all nodes'. take then makes the snapshot as of that time.
 */
#ifndef TESSERA_CUT_SNAPSHOT_H
#define TESSERA_CUT_SNAPSHOT_H

#include "postgres.h"
#include "nodes/pg_list.h"
#include "utils/resowner.h"
#include "utils/snapshot.h"

#include "clock/commit_times.h"
#include "clock/time_value.h"

/* Between the two steps. The caller owns the struct. */
typedef struct TesseraCutAsk
{
	Snapshot	held;			/* registered with the owner, until tessera_cut_release; of a whole transaction: its own, which nobody need release */
	ResourceOwner owner;
	uint64		position;
	List	   *relids;			/* of a statement: the tables that it reads, their partitions too; the caller's */
	List	   *clients;		/* xids of what clients have prepared, and was found in doubt; in the top transaction's context */
	List	   *named;			/* the same of all others */
} TesseraCutAsk;

/* What all nodes have answered: the moment that the statement, or the transaction, is to see. */
typedef struct TesseraCutMoment
{
	TesseraTime time;
	List	   *doubts;			/* of palloc'd TesseraDoubt: what is prepared on any of them, and was not seen */
} TesseraCutMoment;

/*
 * In a transaction; the statement's tables are locked. At REPEATABLE READ and above it is the transaction's snapshot that is asked for. Adds what it
 * finds in doubt here to *doubts. Returns the newest commit time that it sees.
 */
extern TesseraTime tessera_cut_ask(TesseraCutAsk *ask, List *relids, ResourceOwner owner, List **doubts);

/* True if something was prepared at the moment or before, and was not seen. */
extern bool tessera_cut_in_doubt(const TesseraCutMoment *moment);

/* Locks the tables that a statement is going to read, with their children: what empties or rewrites one waits. Returns all of them. */
extern List *tessera_cut_lock(List *relids);

/*
 * The snapshot as of the moment, registered with ask->owner; at REPEATABLE READ and above the transaction's own becomes it, and is returned. Waits,
 * up to tessera.gate_timeout, for transactions that may have been committed by then and are not seen yet: ERROR 55P03. NULL: too much was
 * committed since it was asked for; ask again.
 */
extern Snapshot tessera_cut_take(TesseraCutAsk *ask, const TesseraCutMoment *moment);

/* Makes another copy of the transaction's snapshot the same: one that was made of it before tessera_cut_take. */
extern void tessera_cut_copy(Snapshot to, Snapshot from);

/*
 * A snapshot of a statement that is about to start, or to run on: if it was copied from the transaction's before tessera_cut_take it becomes what
 * that is now. Nothing was read under it: what reads a table takes first. NULL: none.
 */
extern void tessera_cut_renew(Snapshot snapshot);

extern void tessera_cut_release(TesseraCutAsk *ask);

/*
 * On an internal connection, when a statement of the router's starts: true if a common snapshot was to be made for it and could not be: it must not
 * run. Asked once for each.
 */
extern bool tessera_cut_missing(void);

/*
 * On an internal connection: the snapshot that was made for the statement that follows, which has no number; NULL: none was. The caller owns it, and
 * unregisters it from the top transaction's owner. ERROR: none.
 */
extern Snapshot tessera_cut_met(void);

/*
 * Steps: the snapshot that a router has asked for and not taken is released before the commit or PREPARE, and forgotten at the end; an abort
 * releases it by its owner.
 */
extern void tessera_cut_snapshot_release(void);
extern void tessera_cut_snapshot_forget(void);

/* Step: what was made for a statement that has not come is released. */
extern void tessera_cut_snapshot_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent);

#endif							/* TESSERA_CUT_SNAPSHOT_H */
