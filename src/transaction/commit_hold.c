/*
 * commit_hold.c
 *	  Holding commits, and what a restore point needs beside that on each node; see commit_hold.h and doc/design.md#restore-points.
 *
 * Shared: for each backend of the server, by the number of its PGPROC, the database in which it is committing (only its own backend writes it); for
 * each database the hold. A commit says that it is under way, then looks whether it is held; who holds says so, then looks whether a commit is under
 * way; with a full barrier between the two on each side, so that one of them sees the other. A commit that is held takes its word back and waits, for
 * as long as the hold may last: before anything of it is in the WAL, so it can be cancelled. Between its word and its end it waits for no other node.
 *
 * COMMIT PREPARED is never held: its decision, another node's commit, was.
 *
 * The hold's spinlock guards all of it; its key is read without, to see that there is none. A hold ends when it is released, when the process that
 * took it exits, or when its time is over: whoever finds that takes it away, so that its holder learns of it. A crash of the server starts without.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/pg_lsn.h"
#include "utils/wait_event.h"

#include "catalog/clock_store.h"
#include "clock/clock.h"
#include "common/injection.h"
#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/spi.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transaction/commit_hold.h"

typedef struct Hold
{
	slock_t		mutex;
	pg_atomic_uint64 key;		/* the holder's; 0: commits are not held */
	int			owner;			/* process that took it */
	TimestampTz until;			/* by tessera_now */
	ConditionVariable released;
	ConditionVariable quiet;	/* a commit has ended while they are held */
} Hold;

typedef struct Shared
{
	Hold		holds[TESSERA_MAX_DATABASES];
	pg_atomic_uint32 committing[FLEXIBLE_ARRAY_MEMBER]; /* Oid of the database; 0: none */
} Shared;

static Shared *shared = NULL;

static Size
shared_size(void)
{
	return add_size(offsetof(Shared, committing), mul_size(sizeof(pg_atomic_uint32), MaxBackends));
}

static void
shared_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	if (found)
		return;
	memset(memory, 0, shared_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		SpinLockInit(&shared->holds[i].mutex);
		pg_atomic_init_u64(&shared->holds[i].key, 0);
		ConditionVariableInit(&shared->holds[i].released);
		ConditionVariableInit(&shared->holds[i].quiet);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&shared->committing[i], InvalidOid);
}

static void
reset(int slot)
{
	pg_atomic_write_u64(&shared->holds[slot].key, 0);
}

static const TesseraShmemModule hold_module = {"tessera_commit_hold", shared_size, 0, shared_init, reset};

/* ---- the hold ---- */

/* ms for which commits are still held; 0: they are not. A hold whose time is over is taken away. */
static long
held_for(Hold *hold)
{
	TimestampTz now;
	TimestampTz left = 0;

	if (pg_atomic_read_u64(&hold->key) == 0)
		return 0;
	now = tessera_now();
	SpinLockAcquire(&hold->mutex);
	if (pg_atomic_read_u64(&hold->key) != 0)
		left = hold->until - now;
	if (left <= 0)
		pg_atomic_write_u64(&hold->key, 0);
	SpinLockRelease(&hold->mutex);
	return left <= 0 ? 0 : (long) ((left + 999) / 1000);
}

static void
take_hold(Hold *hold, uint64 key, int ms)
{
	bool		taken = false;

	(void) held_for(hold);
	SpinLockAcquire(&hold->mutex);
	if (pg_atomic_read_u64(&hold->key) == 0)
	{
		hold->owner = MyProcPid;
		hold->until = tessera_now() + ms * INT64CONST(1000);
		pg_atomic_write_u64(&hold->key, key);
		taken = true;
	}
	SpinLockRelease(&hold->mutex);
	if (!taken)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another restore point is being made"),
				 errhint("Try again when it is done.")));
}

/* True if this was the hold, and its time is not over. */
static bool
is_held_by(Hold *hold, uint64 key)
{
	return held_for(hold) > 0 && pg_atomic_read_u64(&hold->key) == key;
}

/* The same, and it ends. */
static bool
end_hold(Hold *hold, uint64 key)
{
	bool		held = held_for(hold) > 0;

	SpinLockAcquire(&hold->mutex);
	held = held && pg_atomic_read_u64(&hold->key) == key;
	if (held)
		pg_atomic_write_u64(&hold->key, 0);
	SpinLockRelease(&hold->mutex);
	ConditionVariableBroadcast(&hold->released);
	return held;
}

void
tessera_commit_hold_leave(int code, Datum arg)
{
	Hold	   *hold = &shared->holds[tessera_database_slot()];
	uint64		key = pg_atomic_read_u64(&hold->key);

	if (key != 0 && hold->owner == MyProcPid)
		(void) end_hold(hold, key);
}

/* ---- commits ---- */

/* NULL: this process is no backend. */
static pg_atomic_uint32 *
own_word(void)
{
	return MyProc == NULL || tessera_proc_number(MyProc) >= MaxBackends ? NULL : &shared->committing[tessera_proc_number(MyProc)];
}

/* NULL: this database was never seen to be a node. */
static Hold *
own_hold(void)
{
	int			slot = tessera_database_slot_if_any();

	return slot < 0 ? NULL : &shared->holds[slot];
}

static void
take_back(pg_atomic_uint32 *word)
{
	Hold	   *hold;

	pg_atomic_write_u32(word, InvalidOid);
	pg_memory_barrier();
	hold = own_hold();
	if (hold != NULL && pg_atomic_read_u64(&hold->key) != 0)
		ConditionVariableBroadcast(&hold->quiet);
}

static void
wait_for_release(Hold *hold)
{
	long		left;

	ConditionVariablePrepareToSleep(&hold->released);
	while ((left = held_for(hold)) > 0)
		(void) ConditionVariableTimedSleep(&hold->released, left, PG_WAIT_EXTENSION);
	ConditionVariableCancelSleep();
}

void
tessera_commit_hold_before_commit(void)
{
	pg_atomic_uint32 *word;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) || (word = own_word()) == NULL || pg_atomic_read_u32(word) == MyDatabaseId)
		return;
	for (;;)
	{
		Hold	   *hold;

		pg_atomic_write_u32(word, MyDatabaseId);
		pg_memory_barrier();
		hold = own_hold();
		if (hold == NULL || held_for(hold) == 0 || tessera_injection_skips("commit_hold"))
			break;
		take_back(word);
		wait_for_release(hold);
	}
}

/* Inside of the server's commit: raises nothing. */
void
tessera_commit_hold_ended(void)
{
	pg_atomic_uint32 *word = own_word();

	if (word != NULL && pg_atomic_read_u32(word) != InvalidOid)
		take_back(word);
}

/* ---- calls of who makes the restore point ---- */

/* A process that is committing here; 0: none. */
static int
committing_process(void)
{
	for (int i = 0; i < MaxBackends; i++)
		if (pg_atomic_read_u32(&shared->committing[i]) == MyDatabaseId)
			return Max(ProcGlobal->allProcs[i].pid, 1);
	return 0;
}

/* Until no commit is under way here. ERROR 55006 if one still is when the hold's time is over. */
static void
await_quiet(Hold *hold, uint64 key)
{
	int			pid;

	ConditionVariablePrepareToSleep(&hold->quiet);
	while ((pid = committing_process()) != 0)
	{
		long		left = held_for(hold);

		if (left == 0 || pg_atomic_read_u64(&hold->key) != key)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("a commit on this node did not end in time"),
					 errdetail("Process %d is committing.", pid),
					 errhint("Does it wait for a standby? Look at pg_stat_activity there.")));
		(void) ConditionVariableTimedSleep(&hold->quiet, left, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/*
 * On the config node, where commits are held now, so that nobody can become a node: ERROR if these are not all nodes, or one is about to join or
 * leave.
 */
static void
check_nodes(ArrayType *nodes)
{
	Oid			types[] = {INT4ARRAYOID};
	Datum		values[] = {PointerGetDatum(nodes)};
	TesseraSpi	spi;
	bool		null;

	if (!tessera_routing_or_error()->is_config)
		return;
	tessera_spi_begin(&spi);
	(void) tessera_spi_look("SELECT 'tessera.node'::regclass::oid", 0, NULL, NULL);
	if (!ConditionalLockRelationOid(DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null)), RowShareLock))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a node is joining or leaving the cluster"),
				 errhint("Try again under another name when it is done.")));
	if (tessera_spi_look("SELECT FROM tessera.node AS n FULL JOIN unnest($1) AS u(node_id) USING (node_id) "
						 "WHERE n.name IS NULL OR u.node_id IS NULL", 1, types, values) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nodes have joined or left the cluster that the other node does not know of yet"),
				 errhint("Try again under another name.")));
	tessera_spi_end(&spi);
}

int64
tessera_serve_hold_commits(const TesseraHoldCommitsArgs *args)
{
	Hold	   *hold = &shared->holds[tessera_database_slot()];
	uint64		key = (uint64) args->key;
	TesseraTimes times;

	if (key == 0 || args->hold_ms < 1 || args->hold_ms > TESSERA_HOLD_MOST_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("commits cannot be held for %d ms", args->hold_ms)));
	tessera_at_exit(tessera_commit_hold_leave);
	take_hold(hold, key, args->hold_ms);
	PG_TRY();
	{
		pg_memory_barrier();
		await_quiet(hold, key);
		check_nodes(args->nodes);
		tessera_clock_load();
		(void) tessera_clock_read(&times);
	}
	PG_CATCH();
	{
		(void) end_hold(hold, key);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return (int64) times.cluster;
}

XLogRecPtr
tessera_serve_write_restore_point(const TesseraWriteRestorePointArgs *args)
{
	TesseraTimes times = {.cluster = (TesseraTime) args->cluster_time};

	if (!tessera_clock_hear(&times, true))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the clock of another node is too far ahead of this one's"),
				 errhint("tessera.clocks shows those of all nodes.")));
	if (!is_held_by(&shared->holds[tessera_database_slot()], (uint64) args->key))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("commits are not held any more for the restore point"),
				 errhint("Try again, with a longer max_pause.")));
	return XLogRestorePoint(args->name);
}

bool
tessera_serve_release_commits(const TesseraReleaseCommitsArgs *args)
{
	return end_hold(&shared->holds[tessera_database_slot()], (uint64) args->key);
}

const char *
tessera_serve_finish_restore_point(const TesseraFinishRestorePointArgs *args)
{
	if (args->lsn > GetXLogInsertRecPtr())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("this server's log does not reach to %X/%X", LSN_FORMAT_ARGS(args->lsn))));
	XLogFlush(args->lsn);
	if (XLogArchivingActive())
		(void) RequestXLogSwitch(false);
	return TextDatumGetCString(DirectFunctionCall1(pg_walfile_name, LSNGetDatum(args->lsn)));
}

void
tessera_commit_hold_init(void)
{
	tessera_shmem_register(&hold_module);
}
