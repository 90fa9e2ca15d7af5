/*
 * sequence_pool.c
 *	  Values that this node has drawn from sequences of other nodes and not given out yet.
 *
 * A fixed number of pools in shared memory for the whole server, found by hash of (database, sequence); a pool that nobody used longest makes room for another
 * sequence (what it held is lost, as values of a server that crashes are). One backend fetches for a pool, those who find it empty meanwhile wait for it, at
 * most FETCH_WAIT_MS: a fetcher that dies holds up nobody. Blocks grow while they are used up quickly and shrink when they are not.
 *
 * Locks: one LWLock for all pools, held for a few instructions, never over a fetch. `generation` grows when a pool is forgotten: a block fetched before does not
 * get in. Crash: pools start empty; the values are gaps.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/shmem.h"
#include "ddl/sequence.h"

#define POOLS 512
#define PROBES 16
#define BLOCK_MIN 32
#define BLOCK_MAX 1024
#define FETCH_WAIT_MS 2000
#define QUICK_US 1000000		/* a block that is used up sooner than this: the next is twice as large */
#define SLOW_US 30000000		/* later than this: half as large */

typedef struct Pool
{
	/* all under the lock */
	Oid			database;		/* InvalidOid: free */
	Oid			sequence;
	uint64		generation;
	TimestampTz used;
	TimestampTz fetched;		/* when the last block came */
	int32		size;			/* of the next block */
	TimestampTz fetching;		/* since when somebody fetches; 0: nobody */
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

void
tessera_pool_init(void)
{
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

typedef enum PoolState
{
	POOL_GAVE,
	POOL_FETCH,					/* the caller is to fetch */
	POOL_WAIT					/* somebody fetches */
} PoolState;

static PoolState
take_value(Oid sequence, int64 *value, int *size, uint64 *generation)
{
	TimestampTz now = GetCurrentTimestamp();
	PoolState	state = POOL_GAVE;
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
	LWLockRelease(lock);
	return state;
}

/* What is left of a block goes into the pool, if that still is the one it was fetched for. */
static void
end_fetch(Oid sequence, uint64 generation, const TesseraBlock *block)
{
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
	}
	LWLockRelease(lock);
	ConditionVariableBroadcast(&shared->arrived);
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
		pool->block.nruns = 0;
	}
	LWLockRelease(lock);
}
