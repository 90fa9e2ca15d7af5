/*
 * standbys.c
 *	  Waiting for this server's streaming standbys; see standbys.h.
 *
 * The positions are those that the walsenders keep in shared memory; each is read under its walsender's spinlock. A walsender that is connected to a
 * database decodes for a subscriber, and is no standby. Nobody is woken by a standby's answer unless it is a synchronous one, hence the short sleeps.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "migration/settings.h"
#include "migration/standbys.h"
#include "migration/work.h"

#define POLL_MS 2

PG_FUNCTION_INFO_V1(tessera_internal_await_standbys);

static bool
is_standby(int pid)
{
	PGPROC	   *proc = pid == 0 ? NULL : BackendPidGetProc(pid);

	return proc != NULL && !OidIsValid(proc->databaseId);
}

static bool
all_flushed(XLogRecPtr lsn)
{
	for (int i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *sender = &WalSndCtl->walsnds[i];
		bool		behind;
		int			pid;

		SpinLockAcquire(&sender->mutex);
		pid = sender->pid;
		behind = sender->state == WALSNDSTATE_STREAMING && sender->flush < lsn;
		SpinLockRelease(&sender->mutex);
		if (behind && is_standby(pid))
			return false;
	}
	return true;
}

bool
tessera_await_standbys(XLogRecPtr lsn, long timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	while (!all_flushed(lsn))
	{
		if (GetCurrentTimestamp() >= deadline)
			return false;
		tessera_work_sleep(POLL_MS);
	}
	return true;
}

void
tessera_require_standbys(void)
{
	if (!tessera_await_standbys(GetFlushRecPtr(NULL), tessera_standby_flush_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a standby does not follow: it has not flushed what was committed here"),
				 errhint("See pg_stat_replication; tessera.standby_flush_timeout limits the wait.")));
}

/* internal_await_standbys(): what has been committed here is flushed on the standbys. */
Datum
tessera_internal_await_standbys(PG_FUNCTION_ARGS)
{
	tessera_require_standbys();
	PG_RETURN_VOID();
}
