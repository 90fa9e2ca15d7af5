/*
 * capture_start.c
 *	  The slot of a migration's change capture: made, made consistent, and dropped.
 *
 * The start point is where every transaction that was running when the slot was made has ended: core's snapshot builder finds it from the records of
 * running transactions in WAL. It would wait for them in the lock manager, without a bound and without a name; so they are waited for here, before
 * the builder gets the record, and then it finds no transaction to wait for. The end of a transaction of any database, prepared or not, sends no
 * event to other processes: hence polling.
 *
 * Interleaving: a transaction begins, and takes an xid, while older ones are waited for. The builder saw it begin, or it is in the next record of
 * running transactions and is waited for then; in the end all is in the snapshot or in the stream, nothing in both, nothing in neither.
 *
 * The slot is ephemeral until the start point is found (an error or crash drops it), then permanent. As long as it is held with its first context, it
 * keeps rows of all tables from vacuum; that ends when the clone's transaction has the snapshot. Locks: core's own, for moments.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/rmgr.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogutils.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/decode.h"
#include "replication/slot.h"
#include "replication/snapbuild.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/standbydefs.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/fixed_settings.h"
#include "common/version_compat.h"
#include "transfer/capture_private.h"
#include "transfer/lock_holders.h"

#define PLUGIN "tessera"


/* ---- before the slot ---- */

/* 15.19 and later load only output plugins of a list; for this process the list gets ours. Older minors do not know the setting. */
static void
allow_plugin(void)
{
	const char *allowed = GetConfigOption("output_plugin_libraries", true, false);
	char	   *wanted;

	if (allowed == NULL || strstr(allowed, PLUGIN) != NULL)
		return;
	wanted = allowed[0] == '\0' ? pstrdup(PLUGIN) : psprintf("%s, %s", allowed, PLUGIN);
	SetConfigOption("output_plugin_libraries", wanted, PGC_SUSET, PGC_S_SESSION);
	pfree(wanted);
}

static void
check_identity_has_key(Relation relation, TesseraMovingRanges *moving, int table)
{
	Relation	index = index_open(RelationGetReplicaIndex(relation), AccessShareLock);

	for (int i = 0; i < tessera_moving_group(moving, table)->ks->ncolumns; i++)
	{
		bool		found = false;

		for (int j = 0; j < index->rd_index->indnkeyatts && !found; j++)
			found = index->rd_index->indkey.values[j] == moving->tables[table].keys[i];
		if (!found)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the replica identity of table \"%s\" does not contain its shard key", RelationGetRelationName(relation)),
					 errhint("Use ALTER TABLE ... REPLICA IDENTITY to choose an index with the shard key, or FULL.")));
	}
	index_close(index, AccessShareLock);
}

/* Every change of every table must tell its row, old and new key. */
static void
check_identities(TesseraMovingRanges *moving)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	for (int i = 0; i < moving->ntables; i++)
	{
		Relation	relation = table_open(moving->tables[i].relid, AccessShareLock);

		/* a materialized view changes by REFRESH alone, which ends the migration */
		if (relation->rd_rel->relreplident != REPLICA_IDENTITY_FULL && relation->rd_rel->relkind != RELKIND_MATVIEW)
		{
			if (!OidIsValid(RelationGetReplicaIndex(relation)))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("table \"%s\" has no replica identity", RelationGetRelationName(relation)),
						 errhint("Give it a primary key, or use ALTER TABLE ... REPLICA IDENTITY.")));
			check_identity_has_key(relation, moving, i);
		}
		table_close(relation, AccessShareLock);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}


/* ---- waiting ---- */

static char *
transaction_name(TransactionId xid)
{
	int			pid = BackendXidGetPid(xid);
	char	   *gid;

	if (pid != 0)
		return psprintf("transaction %u of process %d", xid, pid);
	gid = tessera_prepared_name(xid);
	if (gid != NULL)
		return psprintf("prepared transaction \"%s\"", gid);
	return psprintf("transaction %u", xid);
}

/* Sleeps a while, or until something wants this process; ERROR at the deadline. */
static void
pause_start(TesseraCapture *capture, long ms, const char *what)
{
	long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), capture->deadline);

	if (left <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("change capture could not begin: it still waits for %s", what),
				 errhint("End what it waits for, and start the migration again.")));
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, Min(ms, left), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static void
wait_for_transaction(TesseraCapture *capture, TransactionId xid)
{
	char	   *name = NULL;
	int			named = 0;
	long		ms = 1;

	while (TransactionIdIsInProgress(xid))
	{
		int			pid = BackendXidGetPid(xid);

		/* again if the process has prepared it */
		if (name == NULL || named != pid)
		{
			MemoryContext old = MemoryContextSwitchTo(capture->mcxt);

			named = pid;
			name = transaction_name(xid);
			if (capture->waiting != NULL)
				capture->waiting(tessera_transaction_text(xid, capture->deadline), capture->waiting_arg);
			MemoryContextSwitchTo(old);
		}
		pause_start(capture, ms, name);
		ms = Min(ms * 2, 100);
	}
}

/*
 * Waits for those transactions of a record of running ones that the builder would wait for. It does so when it takes the first record (all must end
 * before everything that follows can be decoded) and when those of the first have ended (all must end before the snapshot sees them); and for those
 * below the horizon of its xmin.
 */
static void
wait_for_running(TesseraCapture *capture, const xl_running_xacts *running, TransactionId *next_phase_at)
{
	SnapBuildState state = SnapBuildCurrentState(capture->ctx->snapshot_builder);
	TransactionId horizon = MyReplicationSlot->effective_catalog_xmin;
	TransactionId cutoff = running->nextXid;

	if (TransactionIdIsNormal(horizon) && NormalTransactionIdPrecedes(running->oldestRunningXid, horizon))
		cutoff = horizon;
	else if (running->oldestRunningXid == running->nextXid)
		return;
	else if (state == SNAPBUILD_START ||
			 (state == SNAPBUILD_BUILDING_SNAPSHOT && TransactionIdPrecedesOrEquals(*next_phase_at, running->oldestRunningXid)))
		*next_phase_at = running->nextXid;
	else
		return;
	for (int i = 0; i < running->xcnt; i++)
	{
		if (!TransactionIdFollows(running->xids[i], cutoff))
			wait_for_transaction(capture, running->xids[i]);
	}
}

/* Reads a page of WAL that is flushed; else waits (while the start point is looked for, to the deadline) or says that there is no more. */
static int
read_page(XLogReaderState *state, XLogRecPtr page, int length, XLogRecPtr record, char *buffer)
{
	TesseraCapture *capture = tessera_current_capture;
	long		ms = 1;

	while (GetFlushRecPtr(NULL) < page + length)
	{
		if (!capture->starting)
			return -1;
		/* The WAL writer flushes it: what is waited for is a record that core wrote without a commit. */
		pause_start(capture, ms, "WAL to be flushed");
		ms = Min(ms * 2, 10);
	}
	return read_local_xlog_page(state, page, length, record, buffer);
}


/* ---- the slot ---- */

/* While the flag is set, vacuum does not look at what this process's own snapshots see: fit for walsenders, not for a worker that reads tables. */
static void
protect_own_snapshots(void)
{
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	MyProc->statusFlags &= ~PROC_IN_LOGICAL_DECODING;
	ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
	LWLockRelease(ProcArrayLock);
}

LogicalDecodingContext *
tessera_capture_decoding_context(TesseraCapture *capture, bool create)
{
	XLogReaderRoutine *routine = XL_ROUTINE(.page_read = read_page,
											.segment_open = wal_segment_open,
											.segment_close = wal_segment_close);
	MemoryContext old = MemoryContextSwitchTo(capture->mcxt);
	LogicalDecodingContext *ctx;

	tessera_current_capture = capture;
	if (create)
		ctx = CreateInitDecodingContext(PLUGIN, NIL, true, InvalidXLogRecPtr, routine, NULL, NULL, NULL);
	else
		ctx = CreateDecodingContext(InvalidXLogRecPtr, NIL, false, routine, NULL, NULL, NULL);
	MemoryContextSwitchTo(old);
	protect_own_snapshots();
	return ctx;
}

/* Reads WAL until the builder is consistent. */
static void
find_start_point(TesseraCapture *capture)
{
	LogicalDecodingContext *ctx = capture->ctx;
	TransactionId next_phase_at = InvalidTransactionId;

	XLogBeginRead(ctx->reader, MyReplicationSlot->data.restart_lsn);
	while (!DecodingContextReady(ctx))
	{
		char	   *error = NULL;

		if (XLogReadRecord(ctx->reader, &error) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("could not read WAL for a migration: %s", error != NULL ? error : "no record")));
		if (XLogRecGetRmid(ctx->reader) == RM_STANDBY_ID && (XLogRecGetInfo(ctx->reader) & ~XLR_INFO_MASK) == XLOG_RUNNING_XACTS)
			wait_for_running(capture, (const xl_running_xacts *) XLogRecGetData(ctx->reader), &next_phase_at);
		LogicalDecodingProcessRecord(ctx, ctx->reader);
		CHECK_FOR_INTERRUPTS();
	}
	capture->position = ctx->reader->EndRecPtr;
	SpinLockAcquire(&MyReplicationSlot->mutex);
	MyReplicationSlot->data.confirmed_flush = capture->position;
	SpinLockRelease(&MyReplicationSlot->mutex);
}

/* Begins the clone's transaction with the snapshot, and gives the slot's hold on all rows back to it. */
static void
begin_clone_transaction(TesseraCapture *capture)
{
	Snapshot	snapshot;

	StartTransactionCommand();
	XactIsoLevel = XACT_REPEATABLE_READ;
	XactReadOnly = true;
	snapshot = SnapBuildInitialSnapshot(capture->ctx->snapshot_builder);
	RestoreTransactionSnapshot(snapshot, MyProc);
	FreeDecodingContext(capture->ctx);
	capture->ctx = NULL;
	ReplicationSlotPersist();
	/* Only a release lets the slot's xmin go; the transaction's own counts from here. */
	ReplicationSlotRelease();
	tessera_acquire_slot(NameStr(capture->slot));
}

static int
compare_relids(const void *a, const void *b)
{
	Oid			left = ((const CapturedTable *) a)->relid;
	Oid			right = ((const CapturedTable *) b)->relid;

	return left < right ? -1 : left > right;
}

static TesseraCapture *
capture_make(TesseraMovingRanges *moving, const char *slot)
{
	MemoryContext mcxt = AllocSetContextCreate(TopMemoryContext, "tessera capture", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	TesseraCapture *capture = palloc0(sizeof(TesseraCapture));
	int			ntables = Max(moving->ntables, 1);

	capture->mcxt = mcxt;
	capture->moving = moving;
	capture->tables = palloc(ntables * sizeof(CapturedTable));
	for (int i = 0; i < moving->ntables; i++)
		capture->tables[i] = (CapturedTable) {.relid = moving->tables[i].relid,.table = i};
	qsort(capture->tables, moving->ntables, sizeof(CapturedTable), compare_relids);
	namestrcpy(&capture->slot, slot);
	capture->writers = palloc0(ntables * sizeof(TesseraRowWriter *));
	capture->described = palloc0(ntables * sizeof(bool));
	initStringInfo(&capture->out);
	capture->change_context = AllocSetContextCreate(mcxt, "tessera captured change", ALLOCSET_DEFAULT_SIZES);
	capture->items_context = AllocSetContextCreate(mcxt, "tessera captured items", ALLOCSET_DEFAULT_SIZES);
	capture->item_context = AllocSetContextCreate(mcxt, "tessera captured item", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(old);
	return capture;
}

/* Lets go of everything but the slot on disk. Safe after an error. */
static void
capture_forget(TesseraCapture *capture)
{
	if (MyReplicationSlot != NULL && strcmp(NameStr(MyReplicationSlot->data.name), NameStr(capture->slot)) == 0)
		ReplicationSlotRelease();
	if (capture->ctx != NULL && capture->ctx->reader != NULL && capture->ctx->reader->seg.ws_file >= 0)
		wal_segment_close(capture->ctx->reader);
	if (capture->spool != NULL)
		BufFileClose(capture->spool);
	if (tessera_current_capture == capture)
		tessera_current_capture = NULL;
	MemoryContextDelete(capture->mcxt);
}

TesseraCapture *
tessera_capture_create(TesseraMovingRanges *moving, const char *slot, int timeout_ms,
					   void (*waiting) (const char *what, void *arg), void *arg)
{
	TesseraCapture *capture;

	if (IsTransactionState())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("change capture cannot begin inside a transaction")));
	CheckLogicalDecodingRequirements();
	check_identities(moving);
	allow_plugin();
	if (MyBackendType == B_BG_WORKER)
		tessera_fixed_settings_keep();

	capture = capture_make(moving, slot);
	capture->deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	capture->waiting = waiting;
	capture->waiting_arg = arg;
	capture->starting = true;
	PG_TRY();
	{
		tessera_create_ephemeral_slot(slot);
		capture->ctx = tessera_capture_decoding_context(capture, true);
		find_start_point(capture);
		begin_clone_transaction(capture);
	}
	PG_CATCH();
	{
		/* Drops the slot: until now it is ephemeral. */
		capture_forget(capture);
		PG_RE_THROW();
	}
	PG_END_TRY();
	capture->starting = false;
	return capture;
}

void
tessera_capture_check(TesseraCapture *capture)
{
	if (MyReplicationSlot == NULL || strcmp(NameStr(MyReplicationSlot->data.name), NameStr(capture->slot)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("change capture has lost its replication slot \"%s\"", NameStr(capture->slot))));
	if (XLogRecPtrIsInvalid(MyReplicationSlot->data.restart_lsn))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("WAL that replication slot \"%s\" still needs has been removed", NameStr(capture->slot)),
				 errhint("Raise max_slot_wal_keep_size, and start the migration again.")));
}

void
tessera_capture_end(TesseraCapture *capture, bool drop)
{
	NameData	slot = capture->slot;

	capture_forget(capture);
	if (drop)
		tessera_capture_drop_slot(NameStr(slot));
}

void
tessera_capture_drop_slot(const char *slot)
{
	ReplicationSlot *found;
	bool		exists = false;
	bool		ours = false;
	bool		active = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	found = SearchNamedReplicationSlot(slot, false);
	if (found != NULL)
	{
		SpinLockAcquire(&found->mutex);
		exists = true;
		active = found->active_pid != 0;
		ours = found->data.database == MyDatabaseId && strcmp(NameStr(found->data.plugin), PLUGIN) == 0;
		SpinLockRelease(&found->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);
	if (!exists || active)
		return;
	if (!ours)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("replication slot \"%s\" is not a migration's of this database", slot)));
	ReplicationSlotDrop(slot, true);
}
