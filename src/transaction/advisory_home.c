/*
 * advisory_home.c
 *	  Advisory locks on their home node; see advisory.h.
 *
 * A lock is the server's own advisory lock. Its slot is an advisory lock, too, of a class that users cannot name (objsubid 3), one for session-level
 * and one for transaction-level holders, since the server cannot prepare a transaction that has one object at both levels. So the end of a session,
 * DISCARD ALL and pg_advisory_unlock_all let go of both. Whether this node is the home is read from the catalog itself once the slot is locked: the
 * image may lag behind COMMIT PREPARED.
 *
 * Giving up a slot takes it exclusively, without waiting, to the end of the config node's transaction; the row is written here in the same
 * transaction. A request that comes meanwhile waits for its end, and is sent on to the new home.
 *
 * Memory: two counters of this backend. A crash lets go of all locks, as on one server.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "control/calls.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "common/spi.h"
#include "common/version_compat.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transaction/advisory.h"


#define SLOT_CLASS 3			/* the server's own functions use 1 and 2 */
#define SLOT_OF_SESSIONS 1
#define SLOT_OF_TRANSACTIONS 2

/* Session-level locks that this backend keeps for another node's session. */
typedef struct KeptLocks
{
	int64		n;				/* taken and not released */

	/* the last request, if it was granted */
	int64		request;		/* 0: it was not */
	TesseraAdvisoryKey key;
	bool		shared;
} KeptLocks;

static KeptLocks kept = {0};

static LOCKTAG
key_tag(const TesseraAdvisoryKey *key)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (key->key >> 32), (uint32) key->key, key->class);
	return tag;
}

static LOCKTAG
slot_tag(int slot, int level)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, slot, level, SLOT_CLASS);
	return tag;
}

int
tessera_advisory_slot(const TesseraAdvisoryKey *key)
{
	uint64		hash = hash_bytes_uint32_extended((uint32) key->key, (uint64) (uint32) (key->key >> 32) << 2 | key->class);

	return (int) (hash % TESSERA_ADVISORY_SLOTS);
}

/* The node that keeps the slot, as of now; 0: not known. Call with the slot locked. */
static int32
home_of(int slot)
{
	Relation	rel = tessera_catalog_open(TESSERA_ADVISORY_HOME, AccessShareLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;
	int32		home = 0;
	bool		null;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (DatumGetInt32(heap_getattr(tuple, Anum_advisory_home_slot, RelationGetDescr(rel), &null)) == slot)
			home = DatumGetInt32(heap_getattr(tuple, Anum_advisory_home_node_id, RelationGetDescr(rel), &null));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return home;
}

/* LockAcquire, but a lock that was granted just as the wait for it ended with an error is not kept: at session level it would outlive the error. */
static bool
acquire(const LOCKTAG *tag, LOCKMODE mode, bool session, bool try)
{
	bool		before = tessera_lock_held(tag, mode);
	volatile LockAcquireResult result = LOCKACQUIRE_NOT_AVAIL;

	PG_TRY();
	{
		result = LockAcquire(tag, mode, session, try);
	}
	PG_CATCH();
	{
		if (session && !before && tessera_lock_held(tag, mode))
			(void) LockRelease(tag, mode, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/* With the slot locked. */
static TesseraAdvisoryAnswer
take_at_home(const TesseraAdvisoryKey *key, int slot, LOCKMODE mode, bool session, bool try, int32 *home)
{
	const TesseraRouting *routing = home ? tessera_routing() : NULL;
	LOCKTAG		tag = key_tag(key);

	if (home == NULL)
		return acquire(&tag, mode, session, try) ? TESSERA_ADVISORY_DONE : TESSERA_ADVISORY_BUSY;
	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not in a cluster")));
	tessera_require_own_node(routing);
	*home = home_of(slot);
	/* after a promotion the newest commits may be missing: perhaps the slot was given away in one of them */
	if (*home != routing->self || routing->placements_unknown)
		return TESSERA_ADVISORY_STALE;
	return acquire(&tag, mode, session, try) ? TESSERA_ADVISORY_DONE : TESSERA_ADVISORY_BUSY;
}

TesseraAdvisoryAnswer
tessera_advisory_take(const TesseraAdvisoryKey *key, bool shared, bool session, bool try, int32 *home)
{
	int			slot = tessera_advisory_slot(key);
	LOCKTAG		guard = slot_tag(slot, session ? SLOT_OF_SESSIONS : SLOT_OF_TRANSACTIONS);
	volatile TesseraAdvisoryAnswer answer = TESSERA_ADVISORY_STALE;

	/* never held exclusively for long, so pg_try_advisory_lock waits for it, too */
	(void) acquire(&guard, ShareLock, session, false);
	PG_TRY();
	{
		answer = take_at_home(key, slot, shared ? ShareLock : ExclusiveLock, session, try, home);
	}
	PG_CATCH();
	{
		if (session)
			(void) LockRelease(&guard, ShareLock, true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (answer != TESSERA_ADVISORY_DONE)
		(void) LockRelease(&guard, ShareLock, session);
	return answer;
}

bool
tessera_advisory_release(const TesseraAdvisoryKey *key, bool shared)
{
	LOCKTAG		tag = key_tag(key);
	LOCKTAG		guard = slot_tag(tessera_advisory_slot(key), SLOT_OF_SESSIONS);

	if (!LockRelease(&tag, shared ? ShareLock : ExclusiveLock, true))
		return false;
	/* not there, if the lock was taken before this database was a node */
	if (tessera_lock_held(&guard, ShareLock))
		(void) LockRelease(&guard, ShareLock, true);
	return true;
}

void
tessera_advisory_release_all(void)
{
	(void) DirectFunctionCall1(pg_advisory_unlock_all, (Datum) 0);
	kept.n = 0;
	kept.request = 0;
}

/* ---- for other nodes ---- */

static TesseraAdvisoryKey
checked_key(int32 class, int64 number)
{
	TesseraAdvisoryKey key = {class, number};

	if (key.class != 1 && key.class != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there are no advisory locks of class %d", key.class)));
	return key;
}

int64
tessera_serve_advisory_lock(const TesseraAdvisoryLockArgs *args)
{
	TesseraAdvisoryKey key;
	bool		shared = args->shared;
	bool		session = args->session;
	TesseraAdvisoryAnswer answer;
	int32		home = 0;

	key = checked_key(args->class, args->key);
	kept.request = 0;
	answer = tessera_advisory_take(&key, shared, session, args->try, &home);
	if (answer == TESSERA_ADVISORY_STALE)
		return (int64) home << 2 | TESSERA_ADVISORY_STALE;
	if (answer == TESSERA_ADVISORY_DONE && session)
	{
		kept.n++;
		kept.request = args->request;
		kept.key = key;
		kept.shared = shared;
	}
	return kept.n << 2 | answer;
}

static bool
release_for_other(const TesseraAdvisoryKey *key, bool shared)
{
	if (!tessera_advisory_release(key, shared))
		return false;
	kept.n = Max(kept.n - 1, 0);
	return true;
}

int64
tessera_serve_advisory_unlock(const TesseraAdvisoryUnlockArgs *args)
{
	TesseraAdvisoryKey key;
	bool		released;

	key = checked_key(args->class, args->key);
	released = release_for_other(&key, args->shared);
	return kept.n << 2 | (released ? TESSERA_ADVISORY_DONE : TESSERA_ADVISORY_BUSY);
}

void
tessera_serve_advisory_unlock_all(void)
{
	tessera_advisory_release_all();
}

void
tessera_serve_advisory_undo(const TesseraAdvisoryUndoArgs *args)
{
	if (kept.request != 0 && kept.request == args->request)
		(void) release_for_other(&kept.key, kept.shared);
	kept.request = 0;
}

/* ---- giving up slots ---- */

/* True if no lock of the slot is held or waited for. Then none is granted before this transaction ends. */
static bool
close_slot(int slot)
{
	LOCKTAG		sessions = slot_tag(slot, SLOT_OF_SESSIONS);
	LOCKTAG		transactions = slot_tag(slot, SLOT_OF_TRANSACTIONS);

	if (LockAcquire(&sessions, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (LockAcquire(&transactions, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&sessions, ExclusiveLock, false);
	return false;
}

/* The row here says so from the commit on. False if this node is not the home. */
static bool
write_home(int slot, int32 from, int32 to)
{
	Oid			types[] = {INT4OID, INT4OID, INT4OID};
	Datum		values[] = {Int32GetDatum(slot), Int32GetDatum(to), Int32GetDatum(from)};

	return tessera_spi_run("UPDATE tessera.advisory_home SET node_id = $2, version = version + 1 WHERE slot = $1 AND node_id = $3", SPI_OK_UPDATE, 3,
						   types, values, NULL) == 1;
}

ArrayType *
tessera_serve_advisory_give(const TesseraAdvisoryGiveArgs *args)
{
	const TesseraRouting *routing = tessera_routing();
	Datum	   *slots;
	int			nslots;
	int			given = 0;
	TesseraSpi	spi;

	if (array_contains_nulls(args->slots))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("slots must not be null")));
	deconstruct_array(args->slots, INT4OID, sizeof(int32), true, TYPALIGN_INT, &slots, NULL, &nslots);
	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not in a cluster")));
	tessera_spi_begin(&spi);
	for (int i = 0; i < nslots; i++)
		if (close_slot(DatumGetInt32(slots[i])) && write_home(DatumGetInt32(slots[i]), routing->self, args->to_node))
			slots[given++] = slots[i];
	tessera_catalog_changed();
	tessera_spi_end(&spi);
	return construct_array(slots, given, INT4OID, sizeof(int32), true, TYPALIGN_INT);
}
