/*
 * write_gate.c
 *	  The lock of a migration's writers; see write_gate.h.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"

#include "routing/write_gate.h"

/*
 * A tag that no relation uses: the object class is beyond any catalog's oid, the rest 48 bits of the migration's id: two migrations of one shard must
 * not share a tag, or a writer that has entered the gate of one would pass the other's.
 */
#define GATE_CLASS ((Oid) 0xFFFFFFF0)

static void
gate_tag(LOCKTAG *tag, const pg_uuid_t *migration_id)
{
	uint64		hash = hash_bytes_extended(migration_id->data, UUID_LEN, 0);

	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, GATE_CLASS, (uint32) hash, (uint16) (hash >> 32));
}

bool
tessera_gate_enter(const pg_uuid_t *migration_id)
{
	LOCKTAG		tag;

	gate_tag(&tag, migration_id);
	return LockAcquire(&tag, ShareLock, false, false) != LOCKACQUIRE_ALREADY_HELD;
}

void
tessera_gate_leave(const pg_uuid_t *migration_id)
{
	LOCKTAG		tag;

	gate_tag(&tag, migration_id);
	LockRelease(&tag, ShareLock, false);
}

VirtualTransactionId *
tessera_gate_holders(const pg_uuid_t *migration_id, int *n)
{
	LOCKTAG		tag;

	gate_tag(&tag, migration_id);
	return GetLockConflicts(&tag, ExclusiveLock, n);
}
