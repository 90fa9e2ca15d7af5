/*
 * standby.c
 *	  What the standbys that are attached to this server have of its WAL; see standby.h.
 *
 * Core tells it in the shared memory of the WAL senders, and wakes only backends that wait for synchronous replication: so the waits here poll.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "control/calls.h"
#include "failover/standby.h"
#include "transaction/background.h"

#define POLL_MS 2


int			tessera_standby_flush_timeout = 3000;

/* A WAL sender that is connected to a database decodes for a subscriber. */
static bool
is_standby(int pid)
{
	PGPROC	   *proc = pid == 0 ? NULL : BackendPidGetProc(pid);

	return proc != NULL && !OidIsValid(proc->databaseId);
}

bool
tessera_standbys_have(XLogRecPtr lsn, TesseraThrottle what, char *who, Size size)
{
	for (int i = 0; what != TESSERA_THROTTLE_OFF && i < max_wal_senders; i++)
	{
		WalSnd	   *sender = &WalSndCtl->walsnds[i];
		int			pid;
		WalSndState state;
		XLogRecPtr	flushed;
		XLogRecPtr	has;

		SpinLockAcquire(&sender->mutex);
		pid = sender->pid;
		state = sender->state;
		flushed = sender->flush;
		has = what == TESSERA_THROTTLE_FLUSH ? sender->flush : sender->apply;
		SpinLockRelease(&sender->mutex);
		if (state != WALSNDSTATE_STREAMING || XLogRecPtrIsInvalid(flushed) || has >= lsn || !is_standby(pid))
			continue;
		snprintf(who, size, "%s of the standby of process %d", what == TESSERA_THROTTLE_FLUSH ? "flush" : "replay", pid);
		return false;
	}
	return true;
}

uint64
tessera_standbys_lag(int *pid)
{
	XLogRecPtr	here = InvalidXLogRecPtr;
	uint64		lag = 0;

	*pid = 0;
	for (int i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *sender = &WalSndCtl->walsnds[i];
		int			sender_pid;
		WalSndState state;
		XLogRecPtr	replayed;

		SpinLockAcquire(&sender->mutex);
		sender_pid = sender->pid;
		state = sender->state;
		replayed = sender->apply;
		SpinLockRelease(&sender->mutex);
		if ((state != WALSNDSTATE_STREAMING && state != WALSNDSTATE_CATCHUP) || XLogRecPtrIsInvalid(replayed) || !is_standby(sender_pid))
			continue;
		if (XLogRecPtrIsInvalid(here))
			here = GetFlushRecPtr(NULL);
		if (here <= replayed || here - replayed <= lag)
			continue;
		lag = here - replayed;
		*pid = sender_pid;
	}
	return lag;
}

/*
 * Waits until every standby that streams from this server has flushed the position; false if one has not within timeout_ms. A standby that goes away,
 * or falls out of streaming, is no longer waited for; without any, true at once. Takes in interrupts. Outside a transaction or in one.
 */
static bool
await_standbys(XLogRecPtr lsn, long timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	char		who[128];

	while (!tessera_standbys_have(lsn, TESSERA_THROTTLE_FLUSH, who, sizeof(who)))
	{
		if (GetCurrentTimestamp() >= deadline)
			return false;
		tessera_background_sleep(POLL_MS);
	}
	return true;
}

/* The same for all that is committed on this server by now; ERROR 55000 if a standby has not flushed it within tessera.standby_flush_timeout. */
static void
require_standbys(void)
{
	if (!await_standbys(GetFlushRecPtr(NULL), tessera_standby_flush_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a standby does not follow: it has not flushed what was committed here"),
				 errhint("See pg_stat_replication; tessera.standby_flush_timeout limits the wait.")));
}

/* What has been committed here is flushed on the standbys. */
void
tessera_serve_await_standbys(void)
{
	require_standbys();
}
