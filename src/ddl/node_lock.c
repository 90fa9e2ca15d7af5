/*
 * node_lock.c
 *	  Locks on one node for a statement of any node, waited for in the lock's queue for a short time; a caller that does not get one learns who holds
 *	  it.
 *
 * A lock wait that has timed out is an error, which has to be rolled back: so it runs in a subtransaction, and the caller gets an answer instead.
 * Between nodes that is text: "ok", or "held <what>" and a line for each holder: process here, node and process of the client it works for (0 0: its
 * own), name of a prepared transaction. Locks last to the end of the caller's (sub)transaction. Nothing is kept here; a crash leaves nothing.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "common/subtransaction.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "session/internal_connection.h"
#include "session/remote_client.h"

#define ATTEMPT_MS 200
#define FIRST_PAUSE_MS 20
#define LAST_PAUSE_MS 1000


/* ---- one lock ---- */

typedef struct Wanted
{
	const LOCKTAG *tag;
	LOCKMODE	mode;
} Wanted;

static void
acquire(void *arg)
{
	Wanted	   *wanted = arg;

	(void) LockAcquire(wanted->tag, wanted->mode, false, false);
}

/* A wait of the lock manager; false if it took too long. */
static bool
wait_by(void (*wait) (void *arg), void *arg, int timeout_ms)
{
	int			saved = LockTimeout;
	ErrorData  *error;

	LockTimeout = timeout_ms;
	error = tessera_try(wait, arg);
	LockTimeout = saved;
	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	return error == NULL;
}

/* Waits in the lock's queue. */
static bool
wait_for_lock(const LOCKTAG *tag, LOCKMODE mode, int timeout_ms)
{
	Wanted		wanted = {tag, mode};

	return wait_by(acquire, &wanted, timeout_ms);
}

/*
 * The gid of a prepared transaction; "?": it has ended. Core's function is called by hand: a query would take the transaction's snapshot, and LOCK
 * TABLE at REPEATABLE READ must have its lock first.
 */
static char *
prepared_name(TransactionId xid)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	function;
	ReturnSetInfo rows = {.type = T_ReturnSetInfo, .allowedModes = SFRM_ValuePerCall, .returnMode = SFRM_ValuePerCall};
	char	   *name = NULL;

	rows.econtext = CreateStandaloneExprContext();
	fmgr_info(F_PG_PREPARED_XACT, &function);
	InitFunctionCallInfoData(*fcinfo, &function, 0, InvalidOid, NULL, (Node *) &rows);
	while (name == NULL)
	{
		Datum		value = FunctionCallInvoke(fcinfo);
		HeapTupleHeader row;
		bool		isnull;

		if (rows.isDone == ExprEndResult)
			break;
		row = DatumGetHeapTupleHeader(value);
		if (TransactionIdEquals(DatumGetTransactionId(GetAttributeByName(row, "transaction", &isnull)), xid))
			name = TextDatumGetCString(GetAttributeByName(row, "gid", &isnull));
	}
	FreeExprContext(rows.econtext, true);
	return name ? name : pstrdup("?");
}

/* A prepared transaction keeps the virtual id of the backend that prepared it, which goes on; after a restart it has its xid there. */
static void
append_holder(StringInfo holders, VirtualTransactionId id)
{
	PGPROC	   *proc = tessera_vxid_proc(id);
	TesseraRemoteClient origin = {0};

	if (proc != NULL && tessera_proc_lxid(proc) == id.localTransactionId)
	{
		if (!tessera_remote_client_of(proc->pid, &origin))
			origin.node_id = origin.pid = 0;
		appendStringInfo(holders, "\n%d %d %d ", proc->pid, origin.node_id, origin.pid);
	}
	else
	{
		bool		more;
		TransactionId xid = tessera_vxid_is_recovered(id) ? id.localTransactionId : TwoPhaseGetXidByVirtualXID(id, &more);

		if (TransactionIdIsValid(xid))
		{
			char	   *name = prepared_name(xid);

			for (char *c = name; *c; c++)
				if (*c == '\n')
					*c = ' ';	/* ends a holder's line */
			appendStringInfo(holders, "\n0 0 0 %s", name);
		}
	}
}

bool
tessera_try_lock(const LOCKTAG *tag, LOCKMODE mode, int timeout_ms, StringInfo holders)
{
	VirtualTransactionId *ids;
	int			n;

	if (LockAcquire(tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL || (timeout_ms > 0 && wait_for_lock(tag, mode, timeout_ms)))
	{
		if (tag->locktag_type == LOCKTAG_RELATION)
			AcceptInvalidationMessages();
		return true;
	}
	ids = GetLockConflicts(tag, mode, &n);
	for (int i = 0; i < Min(n, TESSERA_MOST_AWAITED); i++)
		append_holder(holders, ids[i]);
	pfree(ids);
	return false;
}

/* ---- one table, of this node alone ---- */

/* DETAIL from the lines of tessera_try_lock. */
static char *
name_holders(const char *lines)
{
	StringInfoData text;

	initStringInfo(&text);
	while ((lines = strchr(lines, '\n')) != NULL)
	{
		int			pid;
		int			node;
		int			client;
		int			used = 0;

		lines++;
		if (sscanf(lines, "%d %d %d %n", &pid, &node, &client, &used) < 3)
			break;
		appendStringInfoString(&text, text.len ? "\n" : "");
		if (pid == 0)
			appendStringInfo(&text, "Prepared transaction %s holds it.",
							 tessera_describe_prepared(pnstrdup(lines + used, strcspn(lines + used, "\n"))));
		else if (node != 0)
			appendStringInfo(&text, "Process %d holds it for process %d of node %d.", pid, client, node);
		else
			appendStringInfo(&text, "Process %d holds it.", pid);
	}
	return text.len ? text.data : "Others wait for it.";
}

char *
tessera_lock_table_or_holders(Oid relid, LOCKMODE mode)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_ddl_lock_timeout);
	int			pause = FIRST_PAUSE_MS;
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	for (;;)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		StringInfoData holders;

		initStringInfo(&holders);
		if (tessera_try_lock(&tag, mode, (int) Min(left, ATTEMPT_MS), &holders))
			return NULL;
		if (left <= 0)
			return name_holders(holders.data);
		pfree(holders.data);

		/* sessions that queued behind this attempt get the lock first */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		pause = Min(pause * 2, LAST_PAUSE_MS);
	}
}

void
tessera_lock_table_here(Oid relid, LOCKMODE mode)
{
	char	   *holders = tessera_lock_table_or_holders(relid, mode);

	if (holders != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not lock table \"%s\" within %d ms", get_rel_name(relid), tessera_ddl_lock_timeout),
				 errdetail_internal("%s", holders),
				 errhint("Try again when they have ended, or raise tessera.ddl_lock_timeout.")));
}

/* ---- tables ---- */

/* The role between nodes may have no right on the schema: the statement's user is asked for that by the statement. */
static Oid
find_table(const char *qualified)
{
	RangeVar   *name = makeRangeVarFromNameList(tessera_names_of(qualified));

	return name->schemaname ? get_relname_relid(name->relname, get_namespace_oid(name->schemaname, true)) : InvalidOid;
}

char *
tessera_lock_tables_here(int n, char *const *names, const LOCKMODE *modes, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	for (int i = 0; i < n; i++)
	{
		Oid			relid = find_table(names[i]);
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		LOCKTAG		tag;
		StringInfoData holders;

		if (!OidIsValid(relid))
			continue;			/* the statement itself says so */
		initStringInfo(&holders);
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (!tessera_try_lock(&tag, modes[i], timeout_ms > 0 ? Max((int) left, 1) : 0, &holders))
			return psprintf("held %s%s", names[i], holders.data);
	}
	return pstrdup("ok");
}

static void
await_transaction(void *arg)
{
	(void) VirtualXactLock(*(VirtualTransactionId *) arg, true);
}

static bool
is_of_migration(VirtualTransactionId id)
{
	PGPROC	   *proc = tessera_vxid_proc(id);

	return proc != NULL && tessera_proc_lxid(proc) == id.localTransactionId && tessera_ddl_is_of_migration(proc->pid);
}

char *
tessera_await_holders_here(int n, char *const *names, const LOCKMODE *modes, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	for (int i = 0; i < n; i++)
	{
		Oid			relid = find_table(names[i]);
		VirtualTransactionId *ids;
		LOCKTAG		tag;
		int			nids;

		if (!OidIsValid(relid))
			continue;
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		ids = GetLockConflicts(&tag, modes[i], &nids);
		for (int j = 0; j < nids; j++)
		{
			long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
			StringInfoData holders;

			if (is_of_migration(ids[j]) || VirtualXactLock(ids[j], false) || wait_by(await_transaction, &ids[j], Max((int) left, 1)))
				continue;
			initStringInfo(&holders);
			append_holder(&holders, ids[j]);
			return psprintf("held %s%s", names[i], holders.data);
		}
		pfree(ids);
	}
	return pstrdup("ok");
}

/* True if any transaction has ended since this one took its snapshot. */
static bool
snapshot_is_old(void)
{
	Snapshot	own = GetTransactionSnapshot();
	TransactionId xmax = own->xmax;
	uint32		running = own->xcnt;
	Snapshot	now = GetLatestSnapshot();

	return now->xmax != xmax || now->xcnt != running;
}

/* Tables and modes that another node names; returns how many, palloc'd. */
static int
read_tables(ArrayType *names, ArrayType *modes, char ***texts, int32 **numbers)
{
	Datum	   *values;
	int			n;

	if (array_contains_nulls(names) || array_contains_nulls(modes))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("names and modes must not be null")));
	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &values, NULL, &n);
	*numbers = (int32 *) ARR_DATA_PTR(modes);
	if (ArrayGetNItems(ARR_NDIM(modes), ARR_DIMS(modes)) != n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("names and modes must be as many")));
	*texts = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		if ((*numbers)[i] < AccessShareLock || (*numbers)[i] > AccessExclusiveLock)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%d is no lock mode", (*numbers)[i])));
		(*texts)[i] = TextDatumGetCString(values[i]);
	}
	return n;
}

/*
 * Locks tables, of qualified names, for a statement of another node; waits for
 * all of them together so many ms at most. Those that do not exist are passed over. 'ok', or who holds one. timeout -1: waits for nothing, and is
 * 'ok' only if the transaction's snapshot is as new as the locks.
 */
const char *
tessera_serve_ddl_lock_tables(const TesseraDdlLockTablesArgs *args)
{
	char	  **texts;
	int32	   *numbers;
	int			n = read_tables(args->names, args->modes, &texts, &numbers);
	char	   *answer = tessera_lock_tables_here(n, texts, numbers, Max(args->timeout, 0));

	if (args->timeout < 0 && n > 0 && strcmp(answer, "ok") == 0 && snapshot_is_old())
		answer = psprintf("held %s", texts[0]);
	return answer;
}

/* 'ok', or who holds one of the tables and has not ended in so many ms. */
const char *
tessera_serve_ddl_await_holders(const TesseraDdlAwaitHoldersArgs *args)
{
	char	  **texts;
	int32	   *numbers;
	int			n = read_tables(args->names, args->modes, &texts, &numbers);

	return tessera_await_holders_here(n, texts, numbers, Max(args->timeout, 0));
}
