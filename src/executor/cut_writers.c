/*
 * cut_writers.c
 *	  Who writes what a statement reads, as far as a common snapshot has to know it; see cut_writers.h. No state of its own.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "common/injection.h"
#include "executor/cut_writers.h"


/*
 * Those at this moment: the locks of whoever was prepared, or has taken its commit time, before the clock was raised to the reader's time are among
 * them.
 */
static void
find_writers(TesseraWriters *writers)
{
	ListCell   *cell;

	writers->holders = palloc(sizeof(VirtualTransactionId));
	foreach(cell, writers->relids)
	{
		VirtualTransactionId *holders;
		LOCKTAG		tag;
		int			n;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(cell));
		holders = GetLockConflicts(&tag, ShareLock, &n);
		writers->holders = repalloc(writers->holders, sizeof(VirtualTransactionId) * (writers->n + n + 1));
		memcpy(&writers->holders[writers->n], holders, sizeof(VirtualTransactionId) * n);
		writers->n += n;
	}
}

PGPROC *
tessera_prepared_holder(TransactionId xid)
{
	for (int i = MaxBackends + NUM_AUXILIARY_PROCS; i < MaxBackends + NUM_AUXILIARY_PROCS + max_prepared_xacts; i++)
		if (ProcGlobal->allProcs[i].xid == xid)
			return &ProcGlobal->allProcs[i];
	return NULL;
}

/* Who holds its locks: of one that is prepared, and is being committed by the process of this slot, its stand-in. */
static PGPROC *
find_holder(int proc, TransactionId xid)
{
	return ProcGlobal->allProcs[proc].xid == xid ? &ProcGlobal->allProcs[proc] : tessera_prepared_holder(xid);
}

bool
tessera_writes_what_is_read(int proc, TransactionId xid, void *arg)
{
	TesseraWriters *writers = arg;
	PGPROC	   *of = find_holder(proc, xid);
	VirtualTransactionId live;

	if (of == NULL)
		return true;			/* it ends just now: there is nothing to wait for */
	if (writers->holders == NULL)
		find_writers(writers);
	GET_VXID_FROM_PGPROC(live, *of);
	for (int i = 0; i < writers->n; i++)
		if (VirtualTransactionIdEquals(writers->holders[i], live))
			return true;
	return false;
}

static void
say_what_is_waited_for(void *arg)
{
	errcontext("waiting for a transaction over several nodes that ends, as its rows may belong to what this statement reads");
}

void
tessera_await_writer(TransactionId xid, TimestampTz deadline)
{
	ErrorContextCallback context = {.callback = say_what_is_waited_for,.previous = error_context_stack};
	int			before = LockTimeout;
	int			left = (int) Max(1, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline));

	tessera_injection("cut_wait");
	error_context_stack = &context;
	PG_TRY();
	{
		LockTimeout = before > 0 ? Min(before, left) : left;
		XactLockTableWait(xid, NULL, NULL, XLTW_None);
	}
	PG_FINALLY();
	{
		LockTimeout = before;
	}
	PG_END_TRY();
	error_context_stack = context.previous;
}
