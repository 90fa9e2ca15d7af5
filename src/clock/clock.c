/*
 * clock.c
 *	  The clock of this node in shared memory; see clock.h.
 *
 * One slot for each database. Its spinlock guards all of it, so that the three times are read and changed as one; it is held for a few instructions.
 * Crash: the server starts with clocks that do not go, and the first that needs one starts it from what is durable.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "clock/clock.h"
#include "clock/commit_times.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/worker_registry.h"

typedef struct ClockSlot
{
	slock_t		mutex;
	TesseraClockRole role;
	bool		running_out;	/* the worker was told that the reservation ends soon */
	TesseraTimes now;
	TesseraTime reserved;
	TesseraTimes heard;			/* config and topology: not settled yet, if later than now's */
	TesseraTime topology_told;	/* the refresher was woken for it */
	ConditionVariable reservation;	/* broadcast when it has grown */
} ClockSlot;

int			tessera_max_clock_drift;

#ifdef TESSERA_TESTS
static int	clock_shift = 0;
#endif

static ClockSlot *slots = NULL;

/* The newest time that this session has heard or given. */
static TesseraTime session_time = 0;


static Size
clock_size(void)
{
	return sizeof(ClockSlot) * TESSERA_MAX_DATABASES;
}

static void
clock_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	if (found)
		return;
	memset(slots, 0, clock_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		SpinLockInit(&slots[i].mutex);
		ConditionVariableInit(&slots[i].reservation);
	}
}

static void
stop(int slot)
{
	SpinLockAcquire(&slots[slot].mutex);
	slots[slot].role = TESSERA_CLOCK_STOPPED;
	SpinLockRelease(&slots[slot].mutex);
}

static const TesseraShmemModule clock_module = {"tessera_clock", clock_size, 0, clock_shmem_init, stop};

void
tessera_clock_init(void)
{
	tessera_shmem_register(&clock_module);
	DefineCustomIntVariable("tessera.max_clock_drift", "How far ahead of this server's clock a cluster time may be that others state.",
							"A time further ahead is refused: one of the clocks is wrong.",
							&tessera_max_clock_drift, 365 * 24 * 3600, 60, INT_MAX, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
#ifdef TESSERA_TESTS
	DefineCustomIntVariable("tessera.clock_shift", "For tests: how far this node takes its wall clock to be off.", NULL,
							&clock_shift, 0, INT_MIN, INT_MAX, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
#endif
}

TesseraTime
tessera_clock_wall(void)
{
	int64		us = GetCurrentTimestamp() + (int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

#ifdef TESSERA_TESTS
	us += clock_shift * INT64CONST(1000);
#endif
	return tessera_time_from_us(us);
}

/* The slot of this database; NULL: it has none. */
static ClockSlot *
own_slot(void)
{
	int			slot = tessera_database_slot_if_any();

	return slot < 0 ? NULL : &slots[slot];
}

void
tessera_clock_start(TesseraClockRole role, TesseraTime reserved, const TesseraTimes *times)
{
	ClockSlot  *slot = &slots[tessera_database_slot()];
	TesseraTime begins_at = 0;

	SpinLockAcquire(&slot->mutex);
	if (slot->role == TESSERA_CLOCK_STOPPED)
	{
		memset(&slot->now, 0, sizeof(TesseraTimes));
		tessera_times_raise(&slot->now, times);
		slot->heard = slot->now;
		slot->topology_told = slot->now.topology;
		slot->reserved = reserved;
		slot->running_out = false;
		begins_at = slot->now.cluster;
	}
	slot->role = role;
	SpinLockRelease(&slot->mutex);
	tessera_commit_start(begins_at);
}

TesseraClockRole
tessera_clock_role(void)
{
	ClockSlot  *slot = own_slot();
	TesseraClockRole role;

	if (slot == NULL)
		return TESSERA_CLOCK_STOPPED;
	SpinLockAcquire(&slot->mutex);
	role = slot->role;
	SpinLockRelease(&slot->mutex);
	return role;
}

void
tessera_clock_stop(void)
{
	stop(tessera_database_slot());
}

bool
tessera_clock_read(TesseraTimes *times)
{
	ClockSlot  *slot = own_slot();
	bool		goes = false;

	memset(times, 0, sizeof(TesseraTimes));
	if (slot == NULL)
		return false;
	SpinLockAcquire(&slot->mutex);
	if (slot->role != TESSERA_CLOCK_STOPPED)
	{
		*times = slot->now;
		goes = true;
	}
	SpinLockRelease(&slot->mutex);
	Assert(tessera_times_ordered(times));
	return goes;
}

bool
tessera_clock_tick(bool metadata, TesseraTime *time)
{
	ClockSlot  *slot = &slots[tessera_database_slot()];
	TesseraTime wall = tessera_clock_wall();
	bool		reserved;
	bool		wake = false;

	SpinLockAcquire(&slot->mutex);
	*time = tessera_time_next(slot->now.cluster, wall);
	reserved = slot->role != TESSERA_CLOCK_STOPPED && *time <= slot->reserved;
	if (reserved)
	{
		slot->now.cluster = *time;
		if (metadata && slot->role == TESSERA_CLOCK_TICKS_CONFIG)
			slot->now.config = *time;
		wake = !slot->running_out && slot->reserved - *time < TESSERA_RESERVE_AGAIN * TESSERA_TIME_SECOND;
		slot->running_out |= wake;
	}
	SpinLockRelease(&slot->mutex);
	if (reserved)
		session_time = *time;
	if (wake)
		(void) tessera_worker_wake(TESSERA_TRANSACTION_RESOLVER);
	return reserved;
}

bool
tessera_clock_is_reserved(TesseraTime time)
{
	ClockSlot  *slot = own_slot();
	bool		reserved;

	if (slot == NULL)
		return false;
	SpinLockAcquire(&slot->mutex);
	reserved = slot->role != TESSERA_CLOCK_STOPPED && time <= slot->reserved;
	SpinLockRelease(&slot->mutex);
	return reserved;
}

void
tessera_clock_reserve(TesseraTime reserved)
{
	ClockSlot  *slot = &slots[tessera_database_slot()];

	SpinLockAcquire(&slot->mutex);
	slot->reserved = Max(slot->reserved, reserved);
	slot->running_out = false;
	SpinLockRelease(&slot->mutex);
	ConditionVariableBroadcast(&slot->reservation);
}

bool
tessera_clock_wants_reservation(TesseraTime *needed)
{
	ClockSlot  *slot = own_slot();
	bool		wants;

	if (slot == NULL)
		return false;
	SpinLockAcquire(&slot->mutex);
	*needed = slot->now.cluster;
	wants = slot->role != TESSERA_CLOCK_STOPPED && slot->reserved < slot->now.cluster + TESSERA_RESERVE_AGAIN * TESSERA_TIME_SECOND;
	SpinLockRelease(&slot->mutex);
	return wants;
}

bool
tessera_clock_await(TesseraTime time, TimestampTz deadline)
{
	ClockSlot  *slot = &slots[tessera_database_slot()];
	bool		reserved;

	ConditionVariablePrepareToSleep(&slot->reservation);
	while (!(reserved = tessera_clock_is_reserved(time)))
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		if (left <= 0)
			break;
		/* now and then look whether there still is a worker */
		if (ConditionVariableTimedSleep(&slot->reservation, Min(left, 1000), PG_WAIT_EXTENSION))
			(void) tessera_worker_wake(TESSERA_TRANSACTION_RESOLVER);
	}
	ConditionVariableCancelSleep();
	return reserved;
}

bool
tessera_clock_hear(const TesseraTimes *heard, bool may_wake)
{
	ClockSlot  *slot = own_slot();
	TesseraTimes cluster = {.cluster = heard->cluster};
	bool		wakes_refresher = false;
	bool		wakes_keeper = false;

	if (slot == NULL)
		return true;
	if (tessera_clock_is_off(heard->cluster, NULL))
		return false;
	SpinLockAcquire(&slot->mutex);
	if (slot->role != TESSERA_CLOCK_STOPPED)
	{
		tessera_times_raise(&slot->now, &cluster);
		tessera_times_raise(&slot->heard, heard);
		wakes_refresher = may_wake && slot->heard.topology > slot->topology_told;
		wakes_keeper = may_wake && slot->heard.config > slot->now.config;
		if (wakes_refresher)
			slot->topology_told = slot->heard.topology;
	}
	SpinLockRelease(&slot->mutex);
	session_time = Max(session_time, heard->cluster);
	if (wakes_refresher)
		(void) tessera_worker_wake(TESSERA_REFRESHER);
	if (wakes_keeper)
		(void) tessera_worker_wake(TESSERA_TRANSACTION_RESOLVER);
	return true;
}

bool
tessera_clock_raise(TesseraTime time)
{
	TesseraTimes now;

	return tessera_clock_hear(&(TesseraTimes) {.cluster = time}, true) && tessera_clock_read(&now) && now.cluster >= time;
}

TesseraTime
tessera_clock_session(void)
{
	return session_time;
}

TesseraTime
tessera_clock_config_heard(void)
{
	ClockSlot  *slot = own_slot();
	TesseraTime config;

	if (slot == NULL)
		return 0;
	SpinLockAcquire(&slot->mutex);
	config = slot->role != TESSERA_CLOCK_STOPPED && slot->heard.config > slot->now.config ? slot->heard.config : 0;
	SpinLockRelease(&slot->mutex);
	return config;
}

TesseraTime
tessera_clock_topology_heard(void)
{
	ClockSlot  *slot = own_slot();
	TesseraTime topology;

	if (slot == NULL)
		return 0;
	SpinLockAcquire(&slot->mutex);
	topology = slot->role != TESSERA_CLOCK_STOPPED && slot->heard.topology > slot->now.topology ? slot->heard.topology : 0;
	SpinLockRelease(&slot->mutex);
	return topology;
}

void
tessera_clock_settle(TesseraTime config, TesseraTime topology)
{
	ClockSlot  *slot = own_slot();
	TesseraTimes times = {.config = config,.topology = topology};

	if (slot == NULL)
		return;
	SpinLockAcquire(&slot->mutex);
	if (slot->role != TESSERA_CLOCK_STOPPED)
	{
		tessera_times_raise(&slot->now, &times);
		tessera_times_raise(&slot->heard, &slot->now);
	}
	SpinLockRelease(&slot->mutex);
}

bool
tessera_clock_is_off(TesseraTime time, double *ahead)
{
	TesseraTime wall = tessera_clock_wall();

	if (ahead != NULL)
		*ahead = time > wall ? (double) (time - wall) / TESSERA_TIME_SECOND : 0;
	return tessera_time_too_far(time, wall, tessera_max_clock_drift);
}
