/*
 * open_doubts.c
 *	  Transactions that a common snapshot leaves open; see open_doubts.h.
 *
 * A prepared transaction takes no more locks: those that it has when it is noted tell for good which tables it has written.
 *
 * The list belongs to the transaction whose local id it carries, and lives in its context.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/relation.h"
#include "clock/commit_times.h"
#include "common/version_compat.h"
#include "executor/cut_writers.h"
#include "executor/executor_settings.h"
#include "executor/open_doubts.h"

typedef struct OpenDoubt
{
	TransactionId xid;
	List	   *relids;			/* OidList: the tables that it has written, and their indexes; none of the server's or the extension's */
} OpenDoubt;

typedef struct OpenDoubts
{
	LocalTransactionId transaction;
	TesseraTime time;
	uint64		position;		/* of the ring of commits: from there on those are found that have ended since */
	List	   *doubts;			/* of OpenDoubt */
} OpenDoubts;

static OpenDoubts open_doubts = {InvalidLocalTransactionId};


/* Modes in which tables are written, or changed. */
#define WRITE_MODES (~(LOCKBIT_ON(AccessShareLock) | LOCKBIT_ON(RowShareLock)))

/* (A stand-in is no process, and has the virtual id of the transaction that was prepared.) */
static bool
is_write_of(const LockInstanceData *lock, const VirtualTransactionId *holder)
{
	return lock->pid == 0 && lock->backend == holder->backendId && lock->lxid == holder->localTransactionId &&
		(lock->holdMask & WRITE_MODES) != 0 && lock->locktag.locktag_type == LOCKTAG_RELATION && lock->locktag.locktag_field1 == MyDatabaseId &&
		lock->locktag.locktag_field2 >= FirstNormalObjectId;
}

static OpenDoubt *
find_tables(TransactionId xid, const LockData *locks)
{
	OpenDoubt  *doubt = palloc0(sizeof(OpenDoubt));
	PGPROC	   *holder = tessera_prepared_holder(xid);
	VirtualTransactionId id;

	doubt->xid = xid;
	if (holder == NULL)
		return doubt;
	GET_VXID_FROM_PGPROC(id, *holder);
	for (int i = 0; i < locks->nelements; i++)
		if (is_write_of(&locks->locks[i], &id))
			doubt->relids = list_append_unique_oid(doubt->relids, locks->locks[i].locktag.locktag_field2);
	return doubt;
}

bool
tessera_open_doubts_note(const List *xids, TesseraTime time, uint64 position)
{
	LockData   *locks = xids == NIL ? NULL : GetLockStatusData();
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	bool		all = true;
	ListCell   *cell;

	open_doubts = (OpenDoubts) {.transaction = tessera_proc_lxid(MyProc),.time = time,.position = position};
	foreach(cell, xids)
	{
		open_doubts.doubts = lappend(open_doubts.doubts, find_tables((TransactionId) lfirst_int(cell), locks));
		/* after that: whoever is in progress has its locks */
		all = all && TransactionIdIsInProgress((TransactionId) lfirst_int(cell));
	}
	MemoryContextSwitchTo(before);
	if (!all)
		open_doubts.doubts = NIL;
	return all;
}

bool
tessera_open_doubts_any(void)
{
	return open_doubts.doubts != NIL && open_doubts.transaction == tessera_proc_lxid(MyProc);
}

static bool
share_any(const List *some, const List *others)
{
	ListCell   *cell;

	foreach(cell, some)
		if (list_member_oid(others, lfirst_oid(cell)))
			return true;
	return false;
}

/* It was committed: the snapshot should show it, if it was early enough. */
static void
require_later(TransactionId xid)
{
	TesseraTime time;

	if (tessera_commit_time_of(xid, open_doubts.position, &time) && time > open_doubts.time)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: a transaction over several nodes was in doubt when the snapshot was taken"),
			 errdetail("It was committed since, and belongs to what the snapshot shows."),
			 errhint("Retry the transaction.")));
}

void
tessera_open_doubts_check(List *relids)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_gate_timeout);
	ListCell   *cell;

	if (!tessera_open_doubts_any())
		return;
	foreach(cell, open_doubts.doubts)
	{
		const OpenDoubt *doubt = lfirst(cell);

		if (!share_any(relids, doubt->relids))
			continue;
		if (TransactionIdIsInProgress(doubt->xid))
			tessera_await_writer(doubt->xid, deadline);
		if (TransactionIdDidCommit(doubt->xid))
			require_later(doubt->xid);
	}
}

void
tessera_open_doubts_check_plan(const PlannedStmt *plan)
{
	List	   *relids = NIL;
	ListCell   *cell;

	if (!tessera_open_doubts_any())
		return;
	foreach(cell, plan->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_RELATION)
			relids = lappend_oid(relids, lfirst_node(RangeTblEntry, cell)->relid);
	tessera_open_doubts_check(relids);
	list_free(relids);
}
