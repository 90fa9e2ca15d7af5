/*
 * worker_registry.c
 *	  Registry of background workers in shared memory: one entry for each database slot and kind, and one for the launcher.
 *
 * A worker enters itself when it has connected and leaves at exit; a second one of its kind ends at once. An entry's spinlock guards all of its
 * fields. Starting is a request to the postmaster, which may take a moment: STARTING keeps others from asking again, for a few seconds only. A latch
 * pointer may outlive its process: setting it then wakes another process for nothing, which does no harm. Crash of a worker: the launcher finds its
 * entry empty and starts another.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"

#define STARTING_MS 5000		/* after that a start counts as failed */
#define STOPPED_MS 10000		/* workers stay away from a database that is being dropped */

typedef enum WorkerState
{
	WORKER_ABSENT,
	WORKER_STARTING,
	WORKER_RUNNING,
	WORKER_UNNEEDED
} WorkerState;

typedef struct WorkerEntry
{
	slock_t		mutex;
	WorkerState state;
	TimestampTz since;
	int			pid;
	Latch	   *latch;
} WorkerEntry;

typedef struct WorkerShared
{
	WorkerEntry launcher;
	pg_atomic_uint64 roles[TESSERA_MAX_DATABASES];	/* generation of the database's role in its cluster */
	pg_atomic_uint64 stopped_until[TESSERA_MAX_DATABASES];	/* TimestampTz */
	WorkerEntry entries[TESSERA_MAX_DATABASES][TESSERA_WORKERS];
	pg_atomic_uint64 probes[FLEXIBLE_ARRAY_MEMBER]; /* answers of probes, by the number of the PGPROC that waits */
} WorkerShared;

/* The answer names the database: one for which nobody waits any more may come when another one is waited for. */
#define PROBED(database, answer) ((uint64) (database) << 32 | (answer))

/* What a worker is told when it is started. */
typedef struct WorkerOrder
{
	Oid			database;
	int			waiter;			/* place in probes; -1: nobody waits */
} WorkerOrder;

static WorkerShared *shared = NULL;
static WorkerEntry *mine = NULL;


static Size
worker_size(void)
{
	return add_size(offsetof(WorkerShared, probes), mul_size(sizeof(pg_atomic_uint64), MaxBackends));
}

static void
worker_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	if (found)
		return;
	memset(shared, 0, worker_size());
	SpinLockInit(&shared->launcher.mutex);
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		pg_atomic_init_u64(&shared->roles[i], 1);
		pg_atomic_init_u64(&shared->stopped_until[i], 0);
		for (int j = 0; j < TESSERA_WORKERS; j++)
			SpinLockInit(&shared->entries[i][j].mutex);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&shared->probes[i], 0);
}

static void
worker_reset_slot(int slot)
{
	pg_atomic_write_u64(&shared->stopped_until[slot], 0);
	for (int i = 0; i < TESSERA_WORKERS; i++)
	{
		WorkerEntry *entry = &shared->entries[slot][i];

		SpinLockAcquire(&entry->mutex);
		entry->state = WORKER_ABSENT;
		SpinLockRelease(&entry->mutex);
	}
}

static const TesseraShmemModule worker_module = {"tessera_workers", worker_size, 0, worker_shmem_init, worker_reset_slot};

void
tessera_worker_init(void)
{
	tessera_shmem_register(&worker_module);
}

static void
wake_entry(WorkerEntry *entry)
{
	Latch	   *latch;

	SpinLockAcquire(&entry->mutex);
	latch = entry->state == WORKER_RUNNING ? entry->latch : NULL;
	SpinLockRelease(&entry->mutex);
	if (latch != NULL)
		SetLatch(latch);
}

/* True if a worker may be started now; then its entry is set to STARTING. */
static bool
claim_start(WorkerEntry *entry, bool also_unneeded)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		claimed;

	SpinLockAcquire(&entry->mutex);
	claimed = entry->state == WORKER_ABSENT || (entry->state == WORKER_UNNEEDED && also_unneeded) ||
		(entry->state == WORKER_STARTING && TimestampDifferenceExceeds(entry->since, now, STARTING_MS));
	if (claimed)
	{
		entry->state = WORKER_STARTING;
		entry->since = now;
	}
	SpinLockRelease(&entry->mutex);
	return claimed;
}

static bool
start(WorkerOrder order, TesseraWorker worker, BackgroundWorkerHandle **handle)
{
	static const char *const names[TESSERA_WORKERS + 1] = {
		[TESSERA_REFRESHER] = "refresher",
		[TESSERA_RANGE_DELETER] = "range deleter",
		[TESSERA_MIGRATION_RECOVERY] = "migration recovery",
		[TESSERA_TRANSACTION_RESOLVER] = "transaction resolver",
		[TESSERA_NOTIFICATION_FORWARDER] = "notification forwarder",
		[TESSERA_STATISTICS] = "statistics",
		[TESSERA_SEQUENCE_FETCHER] = "sequence fetcher",
		[TESSERA_SPLITTER] = "splitter",
		[TESSERA_BALANCER] = "balancer",
		[TESSERA_DDL_OPERATIONS] = "DDL operations",
		[TESSERA_SESSION_REAPER] = "session reaper",
		[TESSERA_WORKERS] = "probe",
	};
	BackgroundWorker bgw = {0};

	bgw.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	bgw.bgw_start_time = BgWorkerStart_RecoveryFinished;
	bgw.bgw_restart_time = BGW_NEVER_RESTART;	/* the launcher sees to it */
	strlcpy(bgw.bgw_library_name, "tessera", BGW_MAXLEN);
	strlcpy(bgw.bgw_function_name, "tessera_worker_main", BGW_MAXLEN);
	snprintf(bgw.bgw_name, BGW_MAXLEN, "tessera %s of database %u", names[worker], order.database);
	snprintf(bgw.bgw_type, BGW_MAXLEN, "tessera %s", names[worker]);
	bgw.bgw_main_arg = Int32GetDatum((int32) worker);
	StaticAssertStmt(sizeof(order) <= BGW_EXTRALEN, "an order must fit");
	memcpy(bgw.bgw_extra, &order, sizeof(order));
	bgw.bgw_notify_pid = handle != NULL ? MyProcPid : 0;
	return RegisterDynamicBackgroundWorker(&bgw, handle);
}

bool
tessera_worker_start(Oid database, TesseraWorker worker, BackgroundWorkerHandle **handle)
{
	return start((WorkerOrder) {database, -1}, worker, handle);
}

Oid
tessera_worker_database(void)
{
	WorkerOrder order;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	return order.database;
}

TesseraProbe
tessera_worker_probe(Oid database)
{
	int			waiter = tessera_proc_number(MyProc);
	BackgroundWorkerHandle *handle;
	uint64		answer;

	if (waiter >= MaxBackends)
		return TESSERA_PROBE_UNKNOWN;
	pg_atomic_write_u64(&shared->probes[waiter], 0);
	if (!start((WorkerOrder) {database, waiter}, TESSERA_WORKERS, &handle))
		return TESSERA_PROBE_UNKNOWN;
	PG_TRY();
	{
		(void) WaitForBackgroundWorkerShutdown(handle);
	}
	PG_CATCH();
	{
		/* nobody waits for it any more, and it stands in the way of who drops the database next */
		TerminateBackgroundWorker(handle);
		PG_RE_THROW();
	}
	PG_END_TRY();
	pfree(handle);
	answer = pg_atomic_read_u64(&shared->probes[waiter]);
	return answer == PROBED(database, TESSERA_PROBE_NODE) ? TESSERA_PROBE_NODE :
		answer == PROBED(database, TESSERA_PROBE_NO_NODE) ? TESSERA_PROBE_NO_NODE : TESSERA_PROBE_UNKNOWN;
}

bool
tessera_worker_is_awaited(void)
{
	WorkerOrder order;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	return order.waiter >= 0;
}

void
tessera_worker_probed(bool node)
{
	WorkerOrder order;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	if (order.waiter >= 0)
		pg_atomic_write_u64(&shared->probes[order.waiter], PROBED(order.database, node ? TESSERA_PROBE_NODE : TESSERA_PROBE_NO_NODE));
}

bool
tessera_worker_wake(TesseraWorker worker)
{
	WorkerEntry *entry = &shared->entries[tessera_database_slot()][worker];

	if (RecoveryInProgress())
		return false;
	if (!claim_start(entry, true))
	{
		wake_entry(entry);
		return true;
	}
	if (tessera_worker_start(MyDatabaseId, worker, NULL))
		return true;
	SpinLockAcquire(&entry->mutex);
	entry->state = WORKER_ABSENT;
	SpinLockRelease(&entry->mutex);
	return false;
}

bool
tessera_worker_missing(int slot, TesseraWorker worker)
{
	return GetCurrentTimestamp() >= (TimestampTz) pg_atomic_read_u64(&shared->stopped_until[slot]) &&
		claim_start(&shared->entries[slot][worker], false);
}


/* In workers */

void
tessera_worker_leave(int code, Datum arg)
{
	SpinLockAcquire(&mine->mutex);
	if (mine->pid == MyProcPid)
	{
		mine->pid = 0;
		if (mine->state == WORKER_RUNNING)
			mine->state = WORKER_ABSENT;
	}
	SpinLockRelease(&mine->mutex);
	if (mine != &shared->launcher)
		tessera_launcher_wake();
}

static bool
enter(WorkerEntry *entry)
{
	bool		alone;

	SpinLockAcquire(&entry->mutex);
	alone = entry->state != WORKER_RUNNING;
	if (alone)
	{
		entry->state = WORKER_RUNNING;
		entry->pid = MyProcPid;
		entry->latch = MyLatch;
	}
	SpinLockRelease(&entry->mutex);
	if (alone)
	{
		mine = entry;
		tessera_at_exit(tessera_worker_leave);
	}
	return alone;
}

bool
tessera_worker_attach(TesseraWorker worker)
{
	return enter(&shared->entries[tessera_database_slot()][worker]);
}

uint64
tessera_worker_roles(void)
{
	return pg_atomic_read_u64(&shared->roles[tessera_database_slot()]);
}

void
tessera_worker_unneeded(uint64 roles)
{
	SpinLockAcquire(&mine->mutex);
	mine->state = WORKER_UNNEEDED;
	SpinLockRelease(&mine->mutex);
	/* if it has changed meanwhile: the process that changed it has not seen that this worker is unneeded */
	pg_memory_barrier();
	if (tessera_worker_roles() != roles)
		tessera_worker_roles_changed();
}

void
tessera_worker_roles_changed(void)
{
	int			slot = tessera_database_slot_if_any();

	if (slot < 0)
		return;
	pg_atomic_fetch_add_u64(&shared->roles[slot], 1);
	for (int i = 0; i < TESSERA_WORKERS; i++)
	{
		WorkerEntry *entry = &shared->entries[slot][i];

		SpinLockAcquire(&entry->mutex);
		if (entry->state == WORKER_UNNEEDED)
			entry->state = WORKER_ABSENT;
		SpinLockRelease(&entry->mutex);
		wake_entry(entry);
	}
	tessera_launcher_wake();
}

void
tessera_workers_stop(Oid database)
{
	Oid			databases[TESSERA_MAX_DATABASES];

	tessera_database_slots(databases);
	for (int slot = 0; slot < TESSERA_MAX_DATABASES; slot++)
	{
		if (databases[slot] != database)
			continue;
		pg_atomic_write_u64(&shared->stopped_until[slot], (uint64) TimestampTzPlusMilliseconds(GetCurrentTimestamp(), STOPPED_MS));
		for (int i = 0; i < TESSERA_WORKERS; i++)
		{
			WorkerEntry *entry = &shared->entries[slot][i];
			int			pid;

			SpinLockAcquire(&entry->mutex);
			pid = entry->state == WORKER_RUNNING ? entry->pid : 0;
			SpinLockRelease(&entry->mutex);
			if (pid != 0)
				kill(pid, SIGTERM);
		}
	}
}

void
tessera_launcher_attach(void)
{
	(void) enter(&shared->launcher);
}

void
tessera_launcher_wake(void)
{
	wake_entry(&shared->launcher);
}
