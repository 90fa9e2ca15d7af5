/*
 * sequence_pool.c
 *	  Values that this node has drawn from sequences of other nodes and not given out yet.
 *
 * A fixed number of pools in shared memory for the whole server, found by hash of (database, sequence); the least recently used pool makes room for
 * another sequence (what it held is lost, as values of a server that crashes are). One backend fetches for a pool, those who find it empty meanwhile
 * wait for it, at most FETCH_WAIT_MS: so a fetching backend that dies does not block the others. Blocks grow while they are used up quickly and
 * shrink when they are not.
 *
 * The reserve: a pool that holds less than lasts for tessera.sequence_reserve, at the rate at which values are taken, asks for more, and the sequence
 * fetcher (a worker of the database) brings them while the rest is given out. So nextval goes on for that long while the home is down. How much a
 * pool asks for is bounded by tessera.sequence_reserve_limit, by the runs that there is room for, and by the home (a share of what the sequence has
 * left).
 *
 * Locks: one LWLock for all pools, held for a few instructions, never over a fetch. `generation` grows when a pool is forgotten: a block fetched
 * before does not get in. Crash: pools start empty; the values are gaps.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/shmem.h"
#include "common/worker_registry.h"
#include "ddl/sequence.h"

PG_FUNCTION_INFO_V1(tessera_sequence_pools);

#define POOLS 512
#define PROBES 16
#define BLOCK_MIN 32
#define BLOCK_MAX 1024
#define FETCH_WAIT_MS 2000
#define QUICK_US 1000000		/* a block that is used up sooner than this: the next is twice as large */
#define SLOW_US 30000000		/* later than this: half as large */
#define RATE_US 1000000			/* the rate is measured over at least this */
#define FETCH_MAX 8192			/* values that the fetcher asks for at once */
#define ASK_AGAIN_US 10000000	/* a request that was not met for so long is made again */

typedef struct Pool
{
	/* all under the lock */
	Oid			database;		/* InvalidOid: free */
	Oid			sequence;
	uint64		generation;
	TimestampTz used;
	TimestampTz fetched;		/* when the last block came */
	int32		size;			/* of the next block */
	TimestampTz fetching;		/* since when a backend fetches a block; 0: none does */
	TimestampTz asked;			/* since when the fetcher is asked for more; 0: it is not */
	TimestampTz counted;		/* since when values are counted */
	int64		taken;			/* values taken since then */
	double		rate;			/* values taken a second, of late */
	TesseraBlock block;
} Pool;

typedef struct Pools
{
	ConditionVariable arrived;	/* a fetch ended */
	Pool		pools[POOLS];
} Pools;

static Pools *shared = NULL;
static LWLock *lock = NULL;

static Size
pools_size(void)
{
	return sizeof(Pools);
}

static void
pools_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	lock = &locks[0].lock;
	if (!found)
	{
		memset(shared, 0, sizeof(Pools));
		ConditionVariableInit(&shared->arrived);
	}
}

static const TesseraShmemModule pool_module = {"tessera_sequence_pools", pools_size, 1, pools_init, NULL};

static int	reserve_seconds = 60;
static int	reserve_limit = 65536;

void
tessera_pool_init(void)
{
	DefineCustomIntVariable("tessera.sequence_reserve",
							"How long a node can go on drawing from a sequence of another node that is down, at the rate it has drawn.",
							"0: it holds no more than it needs next.", &reserve_seconds, 60, 0, 3600, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.sequence_reserve_limit", "How many values of a sequence of another node a node holds for that at most.", NULL,
							&reserve_limit, 65536, 32, INT_MAX / 2, PGC_SIGHUP, 0, NULL, NULL, NULL);
	tessera_shmem_register(&pool_module);
}

bool
tessera_block_take(TesseraBlock *block, int64 *value)
{
	TesseraRun64 *run = &block->runs[0];

	if (block->nruns == 0)
		return false;
	*value = run->first;
	if (--run->count > 0)
		run->first = (int64) ((uint64) run->first + (uint64) run->step);
	else
	{
		block->nruns--;
		memmove(block->runs, block->runs + 1, sizeof(TesseraRun64) * block->nruns);
	}
	return true;
}

/* The sequence's pool, or one for it (make). Lock held exclusively. */
static Pool *
find_pool(Oid sequence, bool make)
{
	Oid			key[2] = {MyDatabaseId, sequence};
	uint32		hash = hash_bytes((unsigned char *) key, sizeof(key));
	Pool	   *victim = NULL;

	for (int i = 0; i < PROBES; i++)
	{
		Pool	   *pool = &shared->pools[(hash + i) % POOLS];

		if (pool->database == MyDatabaseId && pool->sequence == sequence)
			return pool;
		if (victim == NULL || (victim->database != InvalidOid && (pool->database == InvalidOid || pool->used < victim->used)))
			victim = pool;
	}
	if (!make)
		return NULL;
	victim->database = MyDatabaseId;
	victim->sequence = sequence;
	victim->generation++;
	victim->size = BLOCK_MIN;
	victim->fetching = 0;
	victim->fetched = 0;
	victim->asked = 0;
	victim->counted = GetCurrentTimestamp();
	victim->taken = 0;
	victim->rate = 0;
	victim->block.nruns = 0;
	return victim;
}

static void
adapt_size(Pool *pool, TimestampTz now)
{
	TimestampTz lasted = now - pool->fetched;

	if (pool->fetched == 0)
		pool->size = BLOCK_MIN;
	else if (lasted < QUICK_US)
		pool->size = Min(pool->size * 2, BLOCK_MAX);
	else if (lasted > SLOW_US)
		pool->size = Max(pool->size / 2, BLOCK_MIN);
}

/* ---- the reserve ---- */

static int64
values_left(const Pool *pool)
{
	int64		left = 0;

	for (int i = 0; i < pool->block.nruns; i++)
		left += pool->block.runs[i].count;
	return left;
}

/* One value more was taken. Bursts count at once, quiet times by and by. */
static void
count_taken(Pool *pool, TimestampTz now)
{
	double		seconds = (double) (now - pool->counted) / 1000000.0;
	double		rate;

	pool->taken++;
	if (now - pool->counted < RATE_US)
		return;
	rate = (double) pool->taken / seconds;
	pool->rate = rate > pool->rate ? (rate + pool->rate) / 2 : pool->rate * 0.9 + rate * 0.1;
	pool->counted = now;
	pool->taken = 0;
}

/* Values that the pool is not to fall below. */
static int64
low_water(const Pool *pool)
{
	return (int64) Max((double) BLOCK_MIN / 2, Min(pool->rate * reserve_seconds, (double) reserve_limit / 2));
}

/* True if a backend fetches values for the pool, and has not been at it for so long that it must have died. */
static bool
is_fetched(const Pool *pool, TimestampTz now)
{
	return pool->fetching != 0 && now - pool->fetching < ASK_AGAIN_US;
}

/* Asks the fetcher for more values if the pool needs them; true if the fetcher is to be woken. */
static bool
ask_for_more(Pool *pool, TimestampTz now)
{
	if (reserve_seconds == 0 || (pool->asked != 0 && now - pool->asked < ASK_AGAIN_US) || values_left(pool) >= low_water(pool))
		return false;
	pool->asked = now;
	return true;
}

int
tessera_pool_next_wish(int *position, Oid *sequence, uint64 *generation)
{
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (; *position < POOLS && n == 0; (*position)++)
	{
		Pool	   *pool = &shared->pools[*position];

		if (pool->database != MyDatabaseId || pool->asked == 0 || is_fetched(pool, now))
			continue;
		n = (int) Min(Max(2 * low_water(pool) - values_left(pool), 0), FETCH_MAX);
		*sequence = pool->sequence;
		*generation = pool->generation;
		/* sessions that find the pool empty wait for these values, so that none gets later values before them */
		if (n > 0)
			pool->fetching = now;
	}
	LWLockRelease(lock);
	return n;
}

void
tessera_pool_bring(Oid sequence, uint64 generation, const TesseraBlock *block)
{
	Pool	   *pool;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	pool = find_pool(sequence, false);
	if (pool && pool->generation == generation)
	{
		int			n = block ? Min(block->nruns, TESSERA_POOL_RUNS - pool->block.nruns) : 0;

		pool->fetching = 0;
		if (n > 0)
			memcpy(pool->block.runs + pool->block.nruns, block->runs, n * sizeof(TesseraRun64));
		pool->block.nruns += n;
		if (block && (n == 0 || pool->block.nruns == TESSERA_POOL_RUNS || values_left(pool) >= 2 * low_water(pool)))
			pool->asked = 0;
	}
	LWLockRelease(lock);
	ConditionVariableBroadcast(&shared->arrived);
}

Datum
tessera_sequence_pools(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < POOLS; i++)
	{
		Pool	   *pool = &shared->pools[i];
		Datum		values[3];
		bool		nulls[3] = {false, false, false};
		bool		ours;

		LWLockAcquire(lock, LW_SHARED);
		ours = pool->database == MyDatabaseId;
		values[0] = ObjectIdGetDatum(pool->sequence);
		values[1] = Int64GetDatum(values_left(pool));
		values[2] = Float8GetDatum(pool->rate);
		LWLockRelease(lock);
		if (ours && SearchSysCacheExists1(RELOID, values[0]))
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* ---- taking ---- */

typedef enum PoolState
{
	POOL_GAVE,
	POOL_FETCH,					/* the caller is to fetch */
	POOL_WAIT					/* another backend fetches */
} PoolState;

static PoolState
take_value(Oid sequence, int64 *value, int *size, uint64 *generation)
{
	TimestampTz now = GetCurrentTimestamp();
	PoolState	state = POOL_GAVE;
	bool		wake;
	Pool	   *pool;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	pool = find_pool(sequence, true);
	pool->used = now;
	if (!tessera_block_take(&pool->block, value))
	{
		if (pool->fetching != 0 && now - pool->fetching < FETCH_WAIT_MS * INT64CONST(1000))
			state = POOL_WAIT;
		else
		{
			adapt_size(pool, now);
			pool->fetching = now;
			*size = pool->size;
			*generation = pool->generation;
			state = POOL_FETCH;
		}
	}
	if (state != POOL_WAIT)
		count_taken(pool, now);
	/* not while a session fetches a block for its own value: the reserve's values must be later ones */
	wake = state == POOL_GAVE && !is_fetched(pool, now) && ask_for_more(pool, now);
	LWLockRelease(lock);
	if (wake)
		(void) tessera_worker_wake(TESSERA_SEQUENCE_FETCHER);
	return state;
}

/* What is left of a block goes into the pool, if that still is the one it was fetched for. The fetcher has passed over the pool meanwhile. */
static void
end_fetch(Oid sequence, uint64 generation, const TesseraBlock *block)
{
	bool		wake = false;
	Pool	   *pool;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	pool = find_pool(sequence, false);
	if (pool && pool->generation == generation)
	{
		pool->fetching = 0;
		if (block && pool->block.nruns == 0)
		{
			pool->block = *block;
			pool->fetched = GetCurrentTimestamp();
		}
		wake = block && pool->asked != 0;
	}
	LWLockRelease(lock);
	ConditionVariableBroadcast(&shared->arrived);
	if (wake)
		(void) tessera_worker_wake(TESSERA_SEQUENCE_FETCHER);
}

static int64
fetch_block(Oid sequence, int size, uint64 generation, TesseraBlockFetch fetch, void *arg)
{
	TesseraBlock block = {0};
	int64		value;

	PG_TRY();
	{
		fetch(arg, size, &block);
	}
	PG_CATCH();
	{
		end_fetch(sequence, generation, NULL);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!tessera_block_take(&block, &value))
	{
		end_fetch(sequence, generation, NULL);
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("the home of a sequence gave no values")));
	}
	end_fetch(sequence, generation, &block);
	return value;
}

int64
tessera_pool_next(Oid sequence, TesseraBlockFetch fetch, void *arg)
{
	for (;;)
	{
		int64		value = 0;
		int			size = 0;
		uint64		generation = 0;

		switch (take_value(sequence, &value, &size, &generation))
		{
			case POOL_GAVE:
				return value;
			case POOL_FETCH:
				return fetch_block(sequence, size, generation, fetch, arg);
			case POOL_WAIT:
				(void) ConditionVariableTimedSleep(&shared->arrived, 100, PG_WAIT_EXTENSION);
				ConditionVariableCancelSleep();
				CHECK_FOR_INTERRUPTS();
				break;
		}
	}
}

void
tessera_pool_forget(Oid sequence)
{
	Pool	   *pool;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	pool = find_pool(sequence, false);
	if (pool)
	{
		pool->generation++;
		pool->fetching = 0;
		pool->asked = 0;
		pool->block.nruns = 0;
	}
	LWLockRelease(lock);
}
