/*
 * round_request.c
 *	  Rounds of the balancer that are asked for; see round_request.h.
 *
 * Shared memory: two counters for each database slot, atomics. Who asks takes a number and wakes the worker; a session that waits does so until
 * rounds are made up to its number. For a change the number is taken in the commit callback, when the change can be seen. A crash loses both
 * counters, and all who wait; the worker begins with a round after tessera.balancer_interval.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

#include "common/shmem.h"
#include "common/text.h"
#include "common/worker_registry.h"
#include "config/authority.h"
#include "config/round_request.h"
#include "control/calls.h"
#include "transaction/background.h"

#define POLL_MS 20
#define WAIT_MS 60000

typedef struct Shared
{
	pg_atomic_uint64 wanted;
	pg_atomic_uint64 made;
} Shared;

static Shared *shared = NULL;

static bool asked = false;		/* by the transaction at hand; reset at its end */

void
tessera_round_after_commit(void)
{
	asked = true;
}

void
tessera_round_forget(void)
{
	asked = false;
}

/* Nothing here raises, as the commit has been made. */
void
tessera_round_committed(void)
{
	if (asked)
	{
		pg_atomic_fetch_add_u64(&shared[tessera_database_slot()].wanted, 1);
		(void) tessera_worker_wake(TESSERA_BALANCER);
	}
	asked = false;
}

uint64
tessera_round_wanted(void)
{
	uint64		wanted = pg_atomic_read_u64(&shared[tessera_database_slot()].wanted);

	return wanted > pg_atomic_read_u64(&shared[tessera_database_slot()].made) ? wanted : 0;
}

void
tessera_round_made(uint64 wanted)
{
	if (wanted != 0)
		pg_atomic_write_u64(&shared[tessera_database_slot()].made, wanted);
}

/* Has the worker make a round, and waits for it. */
const char *
tessera_serve_balancer_round(void)
{
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz deadline = TimestampTzPlusMilliseconds(began, WAIT_MS);
	Shared	   *mine = &shared[tessera_database_slot()];
	uint64		number;

	(void) tessera_config_routing(0);
	number = pg_atomic_add_fetch_u64(&mine->wanted, 1);
	while (pg_atomic_read_u64(&mine->made) < number)
	{
		if (GetCurrentTimestamp() >= deadline || !tessera_worker_wake(TESSERA_BALANCER))
			return NULL;
		tessera_background_sleep(POLL_MS);
	}
	return tessera_timestamp_text(began);
}

static Size
shared_size(void)
{
	return sizeof(Shared) * TESSERA_MAX_DATABASES;
}

static void
shared_init(void *area, LWLockPadded *locks, bool found)
{
	shared = area;
	for (int i = 0; i < TESSERA_MAX_DATABASES && !found; i++)
	{
		pg_atomic_init_u64(&shared[i].wanted, 0);
		pg_atomic_init_u64(&shared[i].made, 0);
	}
}

static const TesseraShmemModule module = {"tessera_balancer", shared_size, 0, shared_init, NULL};

void
tessera_round_request_init(void)
{
	tessera_shmem_register(&module);
}
