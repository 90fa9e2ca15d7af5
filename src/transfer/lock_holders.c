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
#include "utils/backend_status.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/spi_row.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "session/remote_client.h"
#include "transaction/background.h"
#include "transaction/peek.h"
#include "transfer/lock_holders.h"

#define LOCK_POLL_MS 20
#define CALLED_LOCK_MS 10000	/* a node that is called answers in time */
#define CLIENTS_GID_MS 2000		/* for the config node, which knows under what name a client has prepared something */
#define CLIENTS_GID_PAUSE_MS 30000	/* if it did not answer */

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

/* ---- names ---- */

/* The client's process, its application, its role unless that is the one between nodes, and its database if that is not the node's. */
static char *
process_text(int pid)
{
	MemoryContext caller = CurrentMemoryContext;
	const TesseraRouting *routing = tessera_routing();
	TesseraRemoteClient origin;
	bool		is_remote = tessera_remote_client_of(pid, &origin);
	TesseraRemoteClient client = is_remote ? origin : (TesseraRemoteClient) {routing != NULL ? routing->self : 0, pid};
	const TesseraNode *node = routing != NULL ? tessera_routing_node(routing, client.node_id) : NULL;
	Datum		values[2] = {Int32GetDatum(pid), BoolGetDatum(is_remote)};
	TesseraSpi	spi;
	char	   *details = NULL;
	char	   *result;

	pgstat_clear_backend_activity_snapshot();	/* this transaction's may be older than the session */
	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT concat_ws(', ', CASE WHEN NOT $2 THEN format('user \"%s\"', pg_get_userbyid(a.usesysid)) END,"
						"   CASE WHEN a.application_name <> '' THEN format('application \"%s\"', a.application_name) END,"
						"   (SELECT format('database \"%s\"', d.datname)"
						"   FROM pg_database AS d WHERE d.oid = a.datid AND d.datname <> current_database()))"
						" FROM pg_stat_get_activity($1) AS a WHERE a.usesysid IS NOT NULL",
						SPI_OK_SELECT, 2, (Oid[]) {INT4OID, BOOLOID}, values, NULL) == 1)
		details = MemoryContextStrdup(caller, spi_row_text(0, 1));
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	result = psprintf("transaction of process %d", client.pid);
	if (node != NULL)
		result = psprintf("%s on node \"%s\"", result, NameStr(node->name));
	return details != NULL && details[0] != '\0' ? psprintf("%s (%s)", result, details) : result;
}

/* How long the config node may be waited for: to the limit (0: none), and to the one that all connections have. */
static int
clients_gid_ms(TimestampTz now, TimestampTz limit)
{
	TimestampTz outer = tessera_connections_limit(0);
	long		left = CLIENTS_GID_MS;

	(void) tessera_connections_limit(outer);
	if (outer != 0)
		left = Min(left, TimestampDifferenceMilliseconds(now, outer));
	if (limit != 0)
		left = Min(left, TimestampDifferenceMilliseconds(now, limit));
	return (int) left;
}

/*
 * Asks beside the transaction at hand, of which the config node must not become a part; not if that has written, and may hold what others wait for.
 * On the config node itself it is a look at a table. NULL: none did, or it is not known.
 */
static char *
ask_clients_gid(const char *transaction, TimestampTz limit)
{
	static TimestampTz asked_in_vain = 0;
	TesseraCallTarget target = tessera_to_config();
	TimestampTz now = GetCurrentTimestamp();
	char	   *gid = NULL;

	if (!tessera_routing()->is_config)
	{
		int			timeout_ms = clients_gid_ms(now, limit);

		if (timeout_ms <= 0 || TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
			(asked_in_vain != 0 && !TimestampDifferenceExceeds(asked_in_vain, now, CLIENTS_GID_PAUSE_MS)))
			return NULL;
		target = tessera_on_lane(tessera_within(target, timeout_ms), TESSERA_LANE_CONTROL);
	}
	if (tessera_call_client_gid(tessera_ask(target, TESSERA_TOLERATE_ERRORS), transaction, &gid))
		return gid;
	asked_in_vain = now;
	return NULL;
}

/* What the client called the transaction of which this is a part; the part's own name if none did, or the config node cannot be asked. */
static const char *
clients_gid(const char *part, TimestampTz limit)
{
	char		transaction[TESSERA_TRANSACTION_GID];
	int32		coordinator;
	const char *gid;

	if (tessera_routing() == NULL || !tessera_part_of(part, transaction, &coordinator) || !tessera_part_is_clients(part))
		return part;
	gid = ask_clients_gid(transaction, limit);
	return gid != NULL ? gid : part;
}

/* NULL: there is no prepared transaction of this xid. */
static char *
prepared_text(TransactionId xid, TimestampTz limit)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		value = TransactionIdGetDatum(xid);
	TesseraSpi	spi;
	char	   *gid = NULL;
	char	   *rest = NULL;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT p.gid, format('of role \"%s\" since %s', pg_get_userbyid(p.ownerid),"
						"   to_char(p.prepared AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS+00'))"
						" FROM pg_prepared_xact() AS p WHERE p.transaction = $1",
						SPI_OK_SELECT, 1, (Oid[]) {XIDOID}, &value, NULL) == 1)
	{
		gid = MemoryContextStrdup(caller, spi_row_text(0, 1));
		rest = MemoryContextStrdup(caller, spi_row_text(0, 2));
	}
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	return gid != NULL ? psprintf("prepared transaction \"%s\" %s", clients_gid(gid, limit), rest) : NULL;
}

char *
tessera_transaction_text(TransactionId xid, TimestampTz limit)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		own = !IsTransactionState();
	int			pid = BackendXidGetPid(xid);
	char	   *text;

	if (own)
		tessera_background_begin();
	text = pid != 0 ? process_text(pid) : prepared_text(xid, limit);
	text = MemoryContextStrdup(caller, text != NULL ? text : psprintf("transaction %u", xid));
	if (own)
		tessera_background_commit();
	MemoryContextSwitchTo(caller);
	return text;
}

/* The process that runs the transaction of this virtual id; 0: none does (any more). */
static int
running_pid(VirtualTransactionId id)
{
	PGPROC	   *proc = tessera_vxid_proc(id);

	return proc != NULL && tessera_proc_lxid(proc) == id.localTransactionId ? proc->pid : 0;
}

/* A prepared transaction keeps the virtual id of the backend that prepared it, which goes on; after a restart it has its xid there. */
static const char *
prepared_holder_text(VirtualTransactionId id, TimestampTz limit)
{
	bool		more;
	TransactionId xid = tessera_vxid_is_recovered(id) ? id.localTransactionId : TwoPhaseGetXidByVirtualXID(id, &more);

	return TransactionIdIsValid(xid) ? prepared_text(xid, limit) : NULL;
}

/*
 * Names who is waited for. What was found out once is kept, of a process as long as it runs the transaction: it may prepare it, and is then no longer
 * to blame. In a transaction.
 */
static void
name_holder(TesseraHolderName *name, VirtualTransactionId id, TimestampTz limit)
{
	int			pid = running_pid(id);
	const char *text;

	if (name->text[0] != '\0' && VirtualTransactionIdEquals(name->id, id) && name->pid == pid)
		return;
	text = pid != 0 ? process_text(pid) : prepared_holder_text(id, limit);
	name->id = id;
	name->pid = pid;
	if (text == NULL)
	{
		text = "a transaction that is just ending";
		SetInvalidVirtualTransactionId(name->id);
	}
	strlcpy(name->text, text, pg_mbcliplen(text, (int) strlen(text), sizeof(name->text) - 1) + 1);
}

bool
tessera_lock_holders_left(TesseraLockHolders *holders, char *who, Size size)
{
	MemoryContext caller = CurrentMemoryContext;
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
	holders->n = kept;
	if (kept > 0)
		name_holder(&holders->name, holders->ids[0], 0);
	if (own)
		tessera_background_commit();
	MemoryContextSwitchTo(caller);
	if (kept == 0)
		return false;
	strlcpy(who, holders->name.text, size);
	return true;
}

/* Names one who holds a lock that conflicts. false: no transaction holds it any more. */
static bool
find_holder(Oid relid, LOCKMODE mode, TesseraHolderName *name, TimestampTz limit)
{
	LOCKTAG		tag;
	VirtualTransactionId *ids;
	int			n;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	ids = GetLockConflicts(&tag, mode, &n);
	if (n > 0)
		name_holder(name, ids[0], limit);
	pfree(ids);
	return n > 0;
}

void
tessera_lock_table_by_retry(Oid relid, LOCKMODE mode)
{
	int			timeout = tessera_migration_lock_timeout;
	TimestampTz began = GetCurrentTimestamp();
	TesseraHolderName holder = {0};

	if (!tessera_is_background_worker() && (timeout == 0 || timeout > CALLED_LOCK_MS))
		timeout = CALLED_LOCK_MS;
	while (!ConditionalLockRelationOid(relid, mode))
	{
		bool		held = find_holder(relid, mode, &holder, timeout > 0 ? TimestampTzPlusMilliseconds(began, timeout) : 0);

		if (timeout > 0 && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), timeout))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("table \"%s\" is locked by others", get_rel_name(relid) ? get_rel_name(relid) : "?"),
					 errdetail("Waited %d ms for: %s.", timeout, held ? holder.text : "several, one after the other"),
					 errhint("Start the migration again when the lock is gone, or raise tessera.migration_lock_timeout.")));
		if (held)
			tessera_background_waiting(psprintf("lock of a table: %s", holder.text));
		tessera_background_sleep(LOCK_POLL_MS);
	}
	tessera_background_waiting(NULL);
}
