/*
 * give_way.c
 *	  Who waits for a table; see give_way.h.
 *
 * The server's own question (LockHasWaiters) is not for locks as weak as AccessShareLock. Processes are looked at without their locks: a lock's entry
 * stays shared memory, whatever becomes of it, so the worst is a wrong answer.
 */
#include "postgres.h"

#include "access/relation.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"

#include "balance/give_way.h"

Relation
tessera_open_if_free(Oid relid)
{
	Relation	rel;

	if (!OidIsValid(relid) || !ConditionalLockRelationOid(relid, AccessShareLock))
		return NULL;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		UnlockRelationOid(relid, AccessShareLock);
	return rel;
}

bool
tessera_table_is_awaited(Oid relid)
{
	LOCKTAG		wanted;

	SET_LOCKTAG_RELATION(wanted, MyDatabaseId, relid);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		const volatile PGPROC *proc = &ProcGlobal->allProcs[i];
		const LOCK *lock = proc->waitLock;

		if (lock != NULL && proc->waitStatus == PROC_WAIT_STATUS_WAITING && memcmp(&lock->tag, &wanted, sizeof(LOCKTAG)) == 0)
			return true;
	}
	return false;
}
