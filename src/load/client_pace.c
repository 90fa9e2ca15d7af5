/*
 * client_pace.c
 *	  How long clients' transactions take on this shard; see client_pace.h.
 *
 * Shared memory: an entry for each database slot with two rings of sums over short times: what was measured lately, and what was measured while no
 * move worked here. Its spinlock is held for a few additions. A backend adds what it has measured when 50 ms have passed since it last did.
 *
 * A move is counted from its process's beginning, so that the time of its first batch is not taken for the usual one.
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "common/shmem.h"
#include "common/start_times.h"
#include "load/client_pace.h"

#define FLUSH_US 50000
#define RECENT_US INT64CONST(500000)	/* a sum of what was measured lately is over so long */
#define RECENT 4
#define QUIET_US INT64CONST(5000000)	/* of what was measured without a move */
#define QUIET 12
#define QUIET_AGE INT64CONST(720)	/* in such times, an hour: older sums say nothing about now */
#define LEAST_RECENT 5			/* transactions */
#define LEAST_QUIET 20

/* Of the transactions within a short time. */
typedef struct Sum
{
	int64		number;			/* of that time, since the epoch */
	int64		n;
	double		log_us;			/* of their times' logarithms */
} Sum;

typedef struct Pace
{
	slock_t		mutex;
	int			movers;
	Sum			recent[RECENT];
	Sum			quiet[QUIET];
} Pace;

/* This backend's transaction, and what it has not added yet. */
typedef struct Mine
{
	bool		counts;
	const void *query;			/* in the executor now, the outermost; NULL: none */
	TimestampTz entered;
	TimestampTz statement;		/* start of the statement that "current" is about */
	int64		current;		/* us in the executor */
	int64		earlier;		/* us of the statements before it */
	int64		n;
	double		log_us;
	TimestampTz flushed;
} Mine;

static Pace *paces = NULL;
static Mine mine;


static Pace *
my_pace(void)
{
	int			slot = tessera_database_slot_if_any();

	return paces != NULL && slot >= 0 ? &paces[slot] : NULL;
}

static void
add(Sum *ring, int size, int64 number)
{
	Sum		   *sum = &ring[number % size];

	if (sum->number != number)
		*sum = (Sum) {.number = number};
	sum->n += mine.n;
	sum->log_us += mine.log_us;
}

static void
flush(TimestampTz now)
{
	Pace	   *pace = my_pace();

	if (pace != NULL)
	{
		SpinLockAcquire(&pace->mutex);
		add(pace->recent, RECENT, now / RECENT_US);
		if (pace->movers == 0)
			add(pace->quiet, QUIET, now / QUIET_US);
		SpinLockRelease(&pace->mutex);
	}
	mine.n = 0;
	mine.log_us = 0;
	mine.flushed = now;
}

bool
tessera_pace_asks(void)
{
	return !mine.counts && MyBackendType == B_BACKEND;
}

void
tessera_pace_counts(void)
{
	mine.counts = true;
}

/* What was measured is about another statement from here on. */
static void
next_statement(TimestampTz statement)
{
	if (statement == mine.statement)
		return;
	mine.earlier += mine.current;
	mine.current = 0;
	mine.statement = statement;
}

void
tessera_pace_enter(const void *query)
{
	if (!mine.counts || mine.query != NULL)
		return;
	next_statement(tessera_message_time());
	mine.query = query;
	mine.entered = GetCurrentTimestamp();
}

void
tessera_pace_leave(const void *query)
{
	if (mine.query != query || query == NULL)
		return;
	mine.current += GetCurrentTimestamp() - mine.entered;
	mine.query = NULL;
}

void
tessera_pace_committed(void)
{
	if (mine.counts)
	{
		TimestampTz now = GetCurrentTimestamp();

		next_statement(tessera_message_time());
		mine.n++;
		mine.log_us += log((double) Max(mine.earlier + now - mine.statement, 1));
		if (now - mine.flushed >= FLUSH_US)
			flush(now);
	}
	tessera_pace_forget();
}

void
tessera_pace_forget(void)
{
	mine.counts = false;
	mine.query = NULL;
	mine.statement = 0;
	mine.current = mine.earlier = 0;
}


/* ---- moves ---- */

void
tessera_pace_mover(int change)
{
	Pace	   *pace = my_pace();

	if (pace == NULL)
		return;
	SpinLockAcquire(&pace->mutex);
	/* what was before it says nothing about it */
	if (pace->movers == 0)
		memset(pace->recent, 0, sizeof(pace->recent));
	pace->movers += change;
	SpinLockRelease(&pace->mutex);
}

/* Logarithm of the average over the sums from this time on; -1: there are fewer transactions. */
static double
average(const Sum *ring, int size, int64 first, int64 least)
{
	int64		n = 0;
	double		log_us = 0;

	for (int i = 0; i < size; i++)
	{
		if (ring[i].number < first)
			continue;
		n += ring[i].n;
		log_us += ring[i].log_us;
	}
	return n < least ? -1 : log_us / n;
}

double
tessera_pace_slowdown(void)
{
	Pace	   *pace = my_pace();
	TimestampTz now = GetCurrentTimestamp();
	double		recent;
	double		quiet;

	if (pace == NULL)
		return 0;
	SpinLockAcquire(&pace->mutex);
	recent = average(pace->recent, RECENT, now / RECENT_US - RECENT + 1, LEAST_RECENT);
	quiet = average(pace->quiet, QUIET, now / QUIET_US - QUIET_AGE, LEAST_QUIET);
	SpinLockRelease(&pace->mutex);
	return recent < 0 || quiet < 0 ? 0 : exp(recent - quiet);
}


/* ---- set-up ---- */

static Size
shared_size(void)
{
	return sizeof(Pace) * TESSERA_MAX_DATABASES;
}

static void
shared_init(void *memory, LWLockPadded *locks, bool found)
{
	paces = memory;
	if (found)
		return;
	memset(paces, 0, shared_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
		SpinLockInit(&paces[i].mutex);
}

static void
reset_slot(int slot)
{
	SpinLockAcquire(&paces[slot].mutex);
	memset(paces[slot].recent, 0, sizeof(paces[slot].recent));
	memset(paces[slot].quiet, 0, sizeof(paces[slot].quiet));
	paces[slot].movers = 0;
	SpinLockRelease(&paces[slot].mutex);
}

static const TesseraShmemModule module = {"tessera_pace", shared_size, 0, shared_init, reset_slot};

void
tessera_client_pace_init(void)
{
	tessera_shmem_register(&module);
}
