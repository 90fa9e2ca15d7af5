/*
 * table_lock.c
 *	  Strong table locks in short attempts. See table_lock.h.
 *
 * Each attempt waits at most ATTEMPT_MS in the lock's queue, inside a subtransaction, because the error of a lock wait that timed out has to be rolled
 * back. Between attempts those who queued behind it pass. A crash leaves nothing.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "common/table_lock.h"

#define ATTEMPT_MS 200
#define FIRST_PAUSE_MS 20
#define LAST_PAUSE_MS 1000

int			tessera_ddl_lock_timeout = 30000;

/* One attempt of at most timeout_ms. */
static bool
attempt(Oid relid, LOCKMODE mode, int timeout_ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			saved = LockTimeout;
	volatile bool locked = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LockTimeout = timeout_ms;
		LockRelationOid(relid, mode);
		LockTimeout = saved;
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		locked = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = saved;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	return locked;
}

void
tessera_lock_table(Oid relid, LOCKMODE mode)
{
	TimestampTz start = GetCurrentTimestamp();
	int			pause = FIRST_PAUSE_MS;

	while (!ConditionalLockRelationOid(relid, mode))
	{
		long		left = tessera_ddl_lock_timeout - TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());

		if (left <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not lock table \"%s\" within %d ms", get_rel_name(relid), tessera_ddl_lock_timeout),
					 errdetail("Other transactions hold locks on it."),
					 errhint("Try again when they have ended, or raise tessera.ddl_lock_timeout.")));
		if (attempt(relid, mode, Min(left, ATTEMPT_MS)))
			return;

		/* let those pass who queued behind this attempt */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		pause = Min(pause * 2, LAST_PAUSE_MS);
	}
}

void
tessera_table_lock_init(void)
{
	DefineCustomIntVariable("tessera.ddl_lock_timeout",
							"Time within which a command that changes a table of the cluster must get its locks.",
							"Locks are asked for in short attempts, so that statements behind them are not held up.",
							&tessera_ddl_lock_timeout, 30000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
}
