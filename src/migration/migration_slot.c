/*
 * migration_slot.c
 *	  Shared memory of running migrations; see migration_slot.h.
 *
 * A crash of the server empties it: what is to be done then is in the durable rows (migration_outcome.c).
 */
#include "postgres.h"

#include <signal.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/version_compat.h"
#include "load/client_pace.h"
#include "migration/migration.h"
#include "migration/migration_slot.h"
#include "transaction/background.h"

#define RESERVED_MS 30000

typedef struct Slots
{
	LWLock	   *lock;
	ConditionVariable changed;
	TesseraMigrationSlot slots[TESSERA_MIGRATION_SLOTS];
} Slots;

TesseraMigrationSlot *tessera_my_migration = NULL;

static Slots *shared = NULL;


static Size
slots_size(void)
{
	return sizeof(Slots);
}

static void
slots_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	if (found)
		return;
	memset(shared, 0, sizeof(Slots));
	shared->lock = &locks[0].lock;
	ConditionVariableInit(&shared->changed);
}

static const TesseraShmemModule slot_module = {"tessera_migration", slots_size, 1, slots_init};

static bool
is_live(const TesseraMigrationSlot *slot)
{
	return slot->use == TESSERA_SLOT_RUNNING ||
		(slot->use == TESSERA_SLOT_RESERVED && !TimestampDifferenceExceeds(slot->reserved, GetCurrentTimestamp(), RESERVED_MS));
}

bool
tessera_migration_slot_live(const TesseraMigrationSlot *copy)
{
	return is_live(copy);
}

/* With the lock held: index of the migration's slot, a live one if there is one; -1. */
static int
find(TesseraMigrationSide side, const pg_uuid_t *migration_id)
{
	int			found = -1;

	for (int i = 0; i < TESSERA_MIGRATION_SLOTS; i++)
	{
		const TesseraMigrationSlot *slot = &shared->slots[i];

		if (slot->use == TESSERA_SLOT_FREE || slot->database != MyDatabaseId || slot->side != side ||
			memcmp(&slot->migration_id, migration_id, sizeof(pg_uuid_t)) != 0)
			continue;
		if (is_live(slot))
			return i;
		if (found < 0 || slot->reserved > shared->slots[found].reserved)
			found = i;
	}
	return found;
}

/* With the lock held exclusively: a slot that may be given away: a free one, else the one that ended (or was reserved in vain) longest ago; -1. */
static int
find_free(void)
{
	int			best = -1;

	for (int i = 0; i < TESSERA_MIGRATION_SLOTS; i++)
	{
		const TesseraMigrationSlot *slot = &shared->slots[i];

		if (slot->use == TESSERA_SLOT_FREE)
			return i;
		if (!is_live(slot) && (best < 0 || slot->reserved < shared->slots[best].reserved))
			best = i;
	}
	return best;
}

int
tessera_migration_slot_reserve(TesseraMigrationSide side, const pg_uuid_t *migration_id, const pg_uuid_t *group_id, bool *existing)
{
	int			i;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	i = find(side, migration_id);
	*existing = i >= 0 && is_live(&shared->slots[i]);
	if (!*existing && (i >= 0 || (i = find_free()) >= 0))
	{
		TesseraMigrationSlot *slot = &shared->slots[i];
		uint32		generation = slot->generation + 1;

		memset(slot, 0, sizeof(TesseraMigrationSlot));
		slot->use = TESSERA_SLOT_RESERVED;
		slot->generation = generation;
		slot->database = MyDatabaseId;
		slot->side = side;
		slot->migration_id = *migration_id;
		slot->group_id = *group_id;
		slot->reserved = slot->started = GetCurrentTimestamp();
		slot->state = side == TESSERA_DONOR ? TESSERA_REGISTERED : TESSERA_PREPARED;
		slot->lag_ms = -1;
		slot->rows_total = -1;
	}
	LWLockRelease(shared->lock);
	if (i < 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many migrations are running in this server")));
	return i;
}

void
tessera_migration_slot_unreserve(int i, uint32 generation)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	if (shared->slots[i].generation == generation && shared->slots[i].use == TESSERA_SLOT_RESERVED)
		shared->slots[i].use = TESSERA_SLOT_FREE;
	LWLockRelease(shared->lock);
	ConditionVariableBroadcast(&shared->changed);
}

bool
tessera_migration_slot_find(TesseraMigrationSide side, const pg_uuid_t *migration_id, int *number, TesseraMigrationSlot *copy)
{
	int			i;

	LWLockAcquire(shared->lock, LW_SHARED);
	i = find(side, migration_id);
	if (i >= 0)
		*copy = shared->slots[i];
	LWLockRelease(shared->lock);
	if (number)
		*number = i;
	return i >= 0;
}

void
tessera_migration_slot_copy(int i, TesseraMigrationSlot *copy)
{
	LWLockAcquire(shared->lock, LW_SHARED);
	*copy = shared->slots[i];
	LWLockRelease(shared->lock);
}

void
tessera_migration_slot_set_keys(int i, const TesseraExchangeKeys *keys)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	strlcpy(shared->slots[i].public_key, keys->public_key, TESSERA_CURVE_KEY_SIZE);
	strlcpy(shared->slots[i].secret_key, keys->secret_key, TESSERA_CURVE_KEY_SIZE);
	LWLockRelease(shared->lock);
}

void
tessera_migration_slot_set_peer(int i, const char *endpoint, const char *peer_key)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	strlcpy(shared->slots[i].endpoint, endpoint, sizeof(shared->slots[i].endpoint));
	strlcpy(shared->slots[i].peer_key, peer_key, TESSERA_CURVE_KEY_SIZE);
	shared->slots[i].reserved = GetCurrentTimestamp();
	LWLockRelease(shared->lock);
}

void
tessera_migration_slot_start_worker(int i, uint32 generation)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	TesseraMigrationSlot copy;

	tessera_migration_slot_copy(i, &copy);
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = Int32GetDatum(i);
	strlcpy(worker.bgw_library_name, "tessera", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "tessera_migration_worker_main", BGW_MAXLEN);
	snprintf(worker.bgw_name, BGW_MAXLEN, "tessera migration %s of database %u", copy.side == TESSERA_DONOR ? "donor" : "recipient", copy.database);
	strlcpy(worker.bgw_type, "tessera migration cloner", BGW_MAXLEN);
	memcpy(worker.bgw_extra, &generation, sizeof(generation));
	memcpy(worker.bgw_extra + sizeof(generation), &copy.database, sizeof(Oid));
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker is left for a migration"),
				 errhint("Raise max_worker_processes.")));
}

bool
tessera_migration_slot_cancel(TesseraMigrationSide side, const pg_uuid_t *migration_id, const char *by)
{
	int			i;
	bool		found = false;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	i = find(side, migration_id);
	if (i >= 0 && is_live(&shared->slots[i]))
	{
		found = true;
		if (!shared->slots[i].cancel && by != NULL)
			strlcpy(shared->slots[i].cancelled_by, by, sizeof(shared->slots[i].cancelled_by));
		shared->slots[i].cancel = true;
		/* also out of waits that know nothing of us; the worker ignores it once it is deciding */
		if (shared->slots[i].pid != 0)
			kill(shared->slots[i].pid, SIGINT);
	}
	LWLockRelease(shared->lock);
	return found;
}

bool
tessera_is_of_migration(int pid)
{
	bool		found = false;

	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < TESSERA_MIGRATION_SLOTS && !found; i++)
		found = shared->slots[i].use == TESSERA_SLOT_RUNNING && shared->slots[i].pid == pid;
	LWLockRelease(shared->lock);
	return found;
}

void
tessera_migration_slot_completed(const pg_uuid_t *migration_id)
{
	int			i;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	i = find(TESSERA_RECIPIENT, migration_id);
	if (i >= 0)
	{
		shared->slots[i].completed = true;
		if (shared->slots[i].use == TESSERA_SLOT_RESERVED)
			shared->slots[i].use = TESSERA_SLOT_FREE;
		else if (shared->slots[i].pid != 0)
			SetLatch(&ProcGlobal->allProcs[shared->slots[i].pgprocno].procLatch);
	}
	LWLockRelease(shared->lock);
}

bool
tessera_migration_slot_take_back(const pg_uuid_t *migration_id, XLogRecPtr attempt)
{
	bool		begun = false;
	int			i;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	i = find(TESSERA_RECIPIENT, migration_id);
	if (i >= 0 && shared->slots[i].use == TESSERA_SLOT_RUNNING)
	{
		TesseraMigrationSlot *slot = &shared->slots[i];

		slot->taken_back = Max(slot->taken_back, attempt);
		begun = slot->confirming != InvalidXLogRecPtr && slot->confirming <= attempt;
	}
	LWLockRelease(shared->lock);
	return begun;
}


/* The worker's own */

void
tessera_migration_slot_leave(int code, Datum arg)
{
	TesseraMigrationSlot *slot = tessera_my_migration;

	if (slot == NULL)
		return;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	slot->use = TESSERA_SLOT_ENDED;
	slot->pid = 0;
	memset(slot->secret_key, 0, sizeof(slot->secret_key));
	slot->waiting_for[0] = '\0';
	LWLockRelease(shared->lock);
	tessera_pace_mover(-1);
	tessera_my_migration = NULL;
	ConditionVariableBroadcast(&shared->changed);
}

static bool
shows_waiting(void)
{
	return tessera_my_migration->waiting_for[0] != '\0';
}

static const TesseraProcessDisplay display = {tessera_migration_slot_waiting, shows_waiting, tessera_migration_slot_note_memory};

bool
tessera_migration_slot_attach(int i, uint32 generation)
{
	TesseraMigrationSlot *slot = &shared->slots[i];
	bool		mine;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	/* too late: recovery takes the migration for one without a process */
	mine = slot->generation == generation && slot->use == TESSERA_SLOT_RESERVED && is_live(slot);
	if (mine)
	{
		slot->use = TESSERA_SLOT_RUNNING;
		slot->pid = MyProcPid;
		slot->pgprocno = tessera_proc_number(MyProc);
		slot->started = GetCurrentTimestamp();
		tessera_my_migration = slot;
	}
	LWLockRelease(shared->lock);
	if (mine)
	{
		tessera_pace_mover(1);
		tessera_process_display = &display;
		tessera_at_exit(tessera_migration_slot_leave);
	}
	return mine;
}

void
tessera_migration_slot_lock(void)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
}

void
tessera_migration_slot_unlock(bool broadcast)
{
	LWLockRelease(shared->lock);
	if (broadcast)
		ConditionVariableBroadcast(&shared->changed);
}

void
tessera_migration_slot_enter(TesseraMigrationState state)
{
	TesseraMigrationSlot *slot = tessera_my_migration;

	if (slot == NULL)
		return;
	tessera_migration_check_transition(slot->side, TESSERA_IN_PROCESS, slot->state, state);
	tessera_migration_slot_lock();
	slot->state = state;
	slot->waiting_for[0] = '\0';
	tessera_migration_slot_unlock(true);
}

void
tessera_migration_slot_waiting(const char *what)
{
	TesseraMigrationSlot *slot = tessera_my_migration;
	int			length = what != NULL ? pg_mbcliplen(what, (int) strlen(what), sizeof(slot->waiting_for) - 1) : 0;

	if (slot == NULL || strcmp(slot->waiting_for, what ? what : "") == 0)
		return;
	tessera_migration_slot_lock();
	strlcpy(slot->waiting_for, what ? what : "", length + 1);
	tessera_migration_slot_unlock(false);
}

void
tessera_migration_slot_note_memory(void)
{
	static TimestampTz noted = 0;
	TimestampTz now = GetCurrentTimestamp();
	int64		bytes;

	if (tessera_my_migration == NULL || !TimestampDifferenceExceeds(noted, now, 100))
		return;
	noted = now;
	bytes = (int64) MemoryContextMemAllocated(TopMemoryContext, true);
	tessera_migration_slot_lock();
	tessera_my_migration->memory = bytes;
	tessera_my_migration->memory_peak = Max(tessera_my_migration->memory_peak, bytes);
	tessera_migration_slot_unlock(false);
}

void
tessera_migration_slot_expect(int64 rows_total)
{
	tessera_migration_slot_lock();
	tessera_my_migration->rows_total = rows_total;
	tessera_migration_slot_unlock(false);
}

void
tessera_migration_slot_count(int64 rows, int64 bytes, int64 mods)
{
	if (tessera_my_migration == NULL)
		return;
	tessera_migration_slot_lock();
	tessera_my_migration->rows += rows;
	tessera_my_migration->bytes += bytes;
	tessera_my_migration->mods += mods;
	tessera_migration_slot_unlock(false);
}

void
tessera_migration_slot_confirming(XLogRecPtr attempt)
{
	tessera_migration_slot_lock();
	tessera_my_migration->confirming = attempt;
	tessera_migration_slot_unlock(false);
}

bool
tessera_migration_slot_cancelled(void)
{
	return tessera_my_migration != NULL && ((volatile TesseraMigrationSlot *) tessera_my_migration)->cancel;
}

void
tessera_migration_slot_result(TesseraMigrationResult result, const ErrorData *error)
{
	TesseraMigrationSlot *slot = tessera_my_migration;

	if (slot == NULL)
		return;
	tessera_migration_slot_lock();
	slot->result = result;
	slot->decided = result == TESSERA_RESULT_NONE ? 0 : GetCurrentTimestamp();
	if (error != NULL && slot->sqlstate[0] == '\0')
	{
		strlcpy(slot->sqlstate, unpack_sql_state(error->sqlerrcode), sizeof(slot->sqlstate));
		strlcpy(slot->message, error->message ? error->message : "", sizeof(slot->message));
		strlcpy(slot->detail, error->detail ? error->detail : "", sizeof(slot->detail));
		strlcpy(slot->hint, error->hint ? error->hint : "", sizeof(slot->hint));
	}
	tessera_migration_slot_unlock(true);
}

bool
tessera_migration_slot_wait(TesseraMigrationSide side, const pg_uuid_t *migration_id, int timeout_ms, TesseraMigrationSlot *copy)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	bool		found;

	ConditionVariablePrepareToSleep(&shared->changed);
	for (;;)
	{
		long		left;

		found = tessera_migration_slot_find(side, migration_id, NULL, copy);
		if (!found || !is_live(copy))
			break;
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (left <= 0)
			break;
		ConditionVariableTimedSleep(&shared->changed, left, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return found;
}

void
tessera_migration_slot_init(void)
{
	tessera_shmem_register(&slot_module);
}
