/*
 * lock_holders.c
 *	  Transactions that held something at one moment; see lock_holders.h.
 *
 * WaitForLockers would wait for vacuums, too, and cannot be asked without waiting (doc/design.md#older-writers); GetLockConflicts does not tell in
 * which mode somebody holds a table.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/spi.h"
#include "common/version_compat.h"
#include "transaction/background.h"
#include "transfer/lock_holders.h"

#define LOCK_POLL_MS 20
#define CALLED_LOCK_MS 10000	/* a node that is called answers in time */

int			tessera_migration_lock_timeout;

static bool
is_vacuum(VirtualTransactionId id)
{
	PGPROC	   *proc = tessera_vxid_proc(id);

	return proc != NULL && (((volatile PGPROC *) proc)->statusFlags & PROC_IN_VACUUM) != 0;
}

/* Does the process hold one of the tables in a mode that conflicts? ShareUpdateExclusiveLock does not count. */
static bool
holds_one(const LockInstanceData *lock, int n, const Oid *relids, LOCKMODE mode)
{
	bool		conflicts = false;

	if (lock->locktag.locktag_type != LOCKTAG_RELATION || lock->locktag.locktag_field1 != MyDatabaseId)
		return false;
	for (LOCKMODE held = AccessShareLock; held <= AccessExclusiveLock && !conflicts; held++)
		conflicts = held != ShareUpdateExclusiveLock && (lock->holdMask & LOCKBIT_ON(held)) != 0 && DoLockModesConflict(held, mode);
	for (int i = 0; i < n && conflicts; i++)
		if (relids[i] == lock->locktag.locktag_field2)
			return true;
	return false;
}

TesseraLockHolders *
tessera_lock_holders_collect(int n, const Oid *relids, LOCKMODE mode)
{
	TesseraLockHolders *holders = palloc0(sizeof(TesseraLockHolders));
	LockData   *data = GetLockStatusData();

	holders->ids = palloc(sizeof(*holders->ids) * Max(data->nelements, 1));
	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];
		VirtualTransactionId id = tessera_lock_vxid(lock);

		if (lock->pid != MyProcPid && VirtualTransactionIdIsValid(id) && holds_one(lock, n, relids, mode) && !is_vacuum(id))
			holders->ids[holders->n++] = id;
	}
	pfree(data->locks);
	pfree(data);
	return holders;
}

TesseraLockHolders *
tessera_lock_holders_of(const VirtualTransactionId *ids, int n)
{
	TesseraLockHolders *holders = palloc0(sizeof(TesseraLockHolders));

	holders->ids = palloc(sizeof(*ids) * Max(n, 1));
	memcpy(holders->ids, ids, sizeof(*ids) * n);
	holders->n = n;
	return holders;
}

void
tessera_lock_holders_free(TesseraLockHolders *holders)
{
	if (holders->ids != NULL)
		pfree(holders->ids);
	pfree(holders);
}

int
tessera_lock_waiter(int n, const Oid *relids)
{
	LockData   *data = GetLockStatusData();

	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		if (lock->waitLockMode != AccessExclusiveLock || lock->locktag.locktag_type != LOCKTAG_RELATION ||
			lock->locktag.locktag_field1 != MyDatabaseId)
			continue;
		for (int j = 0; j < n; j++)
			if (relids[j] == lock->locktag.locktag_field2)
				return lock->pid;
	}
	return 0;
}

char *
tessera_prepared_name(TransactionId xid)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		own = !IsTransactionState();
	TesseraSpi	spi;
	Oid			type = XIDOID;
	Datum		value = TransactionIdGetDatum(xid);
	char	   *result = NULL;

	if (own)
		tessera_background_begin();
	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT gid FROM pg_catalog.pg_prepared_xact() WHERE transaction = $1", SPI_OK_SELECT, 1, &type, &value, NULL) == 1)
		result = MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&spi);
	if (own)
		tessera_background_commit();
	MemoryContextSwitchTo(caller);
	return result;
}

/*
 * Who is waited for. A prepared transaction keeps the virtual id of the backend that prepared it, which goes on; after a restart it has its xid
 * there. Its name is looked up once.
 */
static void
name_first(TesseraLockHolders *holders, char *who, Size size)
{
	VirtualTransactionId id = holders->ids[0];
	PGPROC	   *proc = tessera_vxid_proc(id);
	TransactionId xid;
	char	   *gid;
	bool		more;

	if (proc != NULL && tessera_proc_lxid(proc) == id.localTransactionId)
	{
		snprintf(who, size, "transaction of process %d", proc->pid);
		return;
	}
	xid = tessera_vxid_is_recovered(id) ? id.localTransactionId : TwoPhaseGetXidByVirtualXID(id, &more);
	if (holders->named != xid)
	{
		gid = tessera_prepared_name(xid);
		strlcpy(holders->name, gid != NULL ? gid : "?",
				gid != NULL ? pg_mbcliplen(gid, (int) strlen(gid), sizeof(holders->name) - 1) + 1 : sizeof(holders->name));
		holders->named = xid;
		if (gid != NULL)
			pfree(gid);
	}
	snprintf(who, size, "prepared transaction \"%s\"", holders->name);
}

bool
tessera_lock_holders_left(TesseraLockHolders *holders, char *who, Size size)
{
	int			kept = 0;
	bool		own = false;

	if (holders->n == 0)
		return false;
	if (!IsTransactionState())
	{
		/* a prepared transaction is looked up by a lock on its xid */
		own = true;
		tessera_background_begin();
	}
	for (int i = 0; i < holders->n; i++)
		if (!VirtualXactLock(holders->ids[i], false))
			holders->ids[kept++] = holders->ids[i];
	if (own)
		tessera_background_commit();
	holders->n = kept;
	if (kept == 0)
		return false;
	name_first(holders, who, size);
	return true;
}

/* Names one who holds a lock that conflicts; empty: no transaction holds it any more. */
static void
name_holder(Oid relid, LOCKMODE mode, char *who, Size size)
{
	LOCKTAG		tag;
	VirtualTransactionId *ids;
	int			n;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	ids = GetLockConflicts(&tag, mode, &n);
	who[0] = '\0';
	if (n > 0)
	{
		TesseraLockHolders *holders = tessera_lock_holders_of(ids, n);

		name_first(holders, who, size);
		tessera_lock_holders_free(holders);
	}
	pfree(ids);
}

void
tessera_lock_table_by_retry(Oid relid, LOCKMODE mode)
{
	int			timeout = tessera_migration_lock_timeout;
	TimestampTz began = GetCurrentTimestamp();
	char		who[160];

	if (!tessera_is_background_worker() && (timeout == 0 || timeout > CALLED_LOCK_MS))
		timeout = CALLED_LOCK_MS;
	while (!ConditionalLockRelationOid(relid, mode))
	{
		name_holder(relid, mode, who, sizeof(who));
		if (timeout > 0 && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), timeout))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("table \"%s\" is locked by others", get_rel_name(relid) ? get_rel_name(relid) : "?"),
					 errdetail("Waited %d ms for: %s.", timeout, who[0] ? who : "several, one after the other"),
					 errhint("Start the migration again when the lock is gone, or raise tessera.migration_lock_timeout.")));
		if (who[0] != '\0')
			tessera_background_waiting(psprintf("lock of a table: %s", who));
		tessera_background_sleep(LOCK_POLL_MS);
	}
	tessera_background_waiting(NULL);
}
