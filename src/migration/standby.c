/*
 * standby.c
 *	  What the standbys that are attached to this server have of its WAL; see standby.h.
 *
 * Core tells it in the shared memory of the WAL senders, and wakes nobody but those who wait for synchronous replication: who waits here polls.
 */
#include "postgres.h"

#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "migration/standby.h"

/* Does this WAL sender serve a logical slot? */
static bool
is_logical(int pid)
{
	bool		logical = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !logical; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		SpinLockAcquire(&slot->mutex);
		logical = slot->in_use && slot->active_pid == pid && SlotIsLogical(slot);
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return logical;
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
		if (pid == 0 || state != WALSNDSTATE_STREAMING || XLogRecPtrIsInvalid(flushed) || has >= lsn || is_logical(pid))
			continue;
		snprintf(who, size, "%s of the standby of process %d", what == TESSERA_THROTTLE_FLUSH ? "flush" : "replay", pid);
		return false;
	}
	return true;
}
