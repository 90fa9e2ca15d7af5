/*
 * lockers.c
 *	  Transactions that held something at one moment; see lockers.h.
 *
 * WaitForLockers would wait for vacuums, too, and cannot be asked without waiting (PROTOCOLS A3).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/memutils.h"

#include "common/spi.h"
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
		tessera_work_begin();
	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE transaction = $1", SPI_OK_SELECT, 1, &type, &value, NULL) == 1)
		result = MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&spi);
	if (own)
		tessera_work_commit();
	MemoryContextSwitchTo(caller);
	return result;
}

/* Who is waited for. A prepared transaction's name is looked up once. */
static void
name_first(TesseraLockers *lockers, char *who, Size size)
{
	VirtualTransactionId id = lockers->ids[0];
	PGPROC	   *proc;
	char	   *gid;

	if (id.backendId != InvalidBackendId)
	{
		proc = BackendIdGetProc(id.backendId);
		snprintf(who, size, "transaction of process %d", proc ? proc->pid : 0);
		return;
	}
	if (lockers->named != id.localTransactionId)
	{
		gid = tessera_prepared_name(id.localTransactionId);
		snprintf(lockers->name, sizeof(lockers->name), "%s", gid != NULL ? gid : "?");
		lockers->named = id.localTransactionId;
		if (gid != NULL)
			pfree(gid);
	}
	snprintf(who, size, "prepared transaction \"%s\"", lockers->name);
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
	name_first(lockers, who, size);
	return true;
}
