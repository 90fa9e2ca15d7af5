/*
 * lockers.c
 *	  Transactions that held something at one moment; see lockers.h.
 *
 * WaitForLockers would wait for vacuums, too, and cannot be asked without waiting (PROTOCOLS A3).
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"

#include "migration/lockers.h"
#include "migration/work.h"

static bool
is_vacuum(VirtualTransactionId id)
{
	PGPROC	   *proc = id.backendId == InvalidBackendId ? NULL : BackendIdGetProc(id.backendId);

	return proc != NULL && (((volatile PGPROC *) proc)->statusFlags & PROC_IN_VACUUM) != 0;
}

TesseraLockers *
tessera_lockers_collect(int n, const Oid *relids, LOCKMODE mode)
{
	TesseraLockers *lockers = palloc0(sizeof(TesseraLockers));

	for (int i = 0; i < n; i++)
	{
		LOCKTAG		tag;
		int			count;
		VirtualTransactionId *ids;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relids[i]);
		ids = GetLockConflicts(&tag, mode, &count);
		if (count == 0)
			continue;
		lockers->ids = lockers->ids ? repalloc(lockers->ids, sizeof(*ids) * (lockers->n + count)) : palloc(sizeof(*ids) * count);
		for (int j = 0; j < count; j++)
			if (!is_vacuum(ids[j]))
				lockers->ids[lockers->n++] = ids[j];
	}
	return lockers;
}

TesseraLockers *
tessera_lockers_of(const VirtualTransactionId *ids, int n)
{
	TesseraLockers *lockers = palloc0(sizeof(TesseraLockers));

	lockers->ids = palloc(sizeof(*ids) * Max(n, 1));
	memcpy(lockers->ids, ids, sizeof(*ids) * n);
	lockers->n = n;
	return lockers;
}

int
tessera_lockers_waiter(int n, const Oid *relids)
{
	LockData   *data = GetLockStatusData();

	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		if (lock->waitLockMode != AccessExclusiveLock || lock->locktag.locktag_type != LOCKTAG_RELATION || lock->locktag.locktag_field1 != MyDatabaseId)
			continue;
		for (int j = 0; j < n; j++)
			if (relids[j] == lock->locktag.locktag_field2)
				return lock->pid;
	}
	return 0;
}

/* A prepared transaction keeps the virtual id of the backend that prepared it, which goes on; after a restart it has its xid there. */
static void
name_transaction(VirtualTransactionId id, char *who, Size size)
{
	PGPROC	   *proc = id.backendId == InvalidBackendId ? NULL : BackendIdGetProc(id.backendId);
	bool		more;

	if (proc != NULL && ((volatile PGPROC *) proc)->lxid == id.localTransactionId)
		snprintf(who, size, "transaction of process %d", proc->pid);
	else
		snprintf(who, size, "prepared transaction %u",
				 id.backendId == InvalidBackendId ? id.localTransactionId : TwoPhaseGetXidByVirtualXID(id, &more));
}

bool
tessera_lockers_left(TesseraLockers *lockers, char *who, Size size)
{
	int			kept = 0;
	bool		own = false;

	if (lockers->n == 0)
		return false;
	if (!IsTransactionState())
	{
		/* a prepared transaction is looked up by a lock on its xid */
		own = true;
		tessera_work_begin();
	}
	for (int i = 0; i < lockers->n; i++)
		if (!VirtualXactLock(lockers->ids[i], false))
			lockers->ids[kept++] = lockers->ids[i];
	if (own)
		tessera_work_commit();
	lockers->n = kept;
	if (kept == 0)
		return false;
	name_transaction(lockers->ids[0], who, size);
	return true;
}
