/*
 * cut_serializable.c
 *	  Conflict detection under a snapshot that was changed; see cut_serializable.h.
 *
 * The server registers a serializable transaction with its first snapshot, and takes shortcuts for one that only reads, or has only read:
 *
 * - A conflict matters only if the transaction at its end was committed before the snapshot. That is judged by a number that is taken with the
 *   registration. The snapshot of the common moment shows more: so the number is taken again.
 * - One that is declared READ ONLY is tracked only as long as any of those who were writing when it was registered does something that matters; not
 *   at all if nobody was writing. By the moment of the snapshot there may be others: so it is registered once more, as one that may write.
 *
 * The second registration is no later than the question. What the snapshot hides was committed after that, so all that is known of it is still kept.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lwlock.h"
#include "storage/predicate.h"
#include "storage/predicate_internals.h"
#include "storage/shmem.h"
#include "utils/snapshot.h"

#include "executor/cut_serializable.h"


static SERIALIZABLEXACT *
own_registration(void)
{
	return (SERIALIZABLEXACT *) ShareSerializableXact();
}

void
tessera_serializable_track(void)
{
	static SnapshotData as_registered = {SNAPSHOT_MVCC};
	const SERIALIZABLEXACT *own = own_registration();
	bool		read_only = XactReadOnly;

	if (!IsolationIsSerializable() || (own != InvalidSerializableXact && (own->flags & SXACT_FLAG_READ_ONLY) == 0))
		return;
	ReleasePredicateLocks(false, false);
	PG_TRY();
	{
		XactReadOnly = false;
		(void) GetSerializableTransactionSnapshot(&as_registered);
	}
	PG_FINALLY();
	{
		XactReadOnly = read_only;
	}
	PG_END_TRY();
}

/* The server's, which has no other way to it. */
static PredXactListData *
all_registrations(void)
{
	static PredXactListData *all = NULL;
	bool		found;

	if (all == NULL)
		all = ShmemInitStruct("PredXactList", PredXactListDataSize, &found);
	return all;
}

void
tessera_serializable_snapshot_taken(void)
{
	SERIALIZABLEXACT *own = own_registration();
	const PredXactListData *all;

	if (own == InvalidSerializableXact)
		return;
	all = all_registrations();
	LWLockAcquire(SerializableXactHashLock, LW_EXCLUSIVE);
	own->SeqNo.lastCommitBeforeSnapshot = all->LastSxactCommitSeqNo;
	LWLockRelease(SerializableXactHashLock);
}
