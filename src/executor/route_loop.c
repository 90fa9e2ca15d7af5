/*
 * route_loop.c
 *	  Route, start, repeat when stale; see route_loop.h.
 *
 * A shard that finds a statement routed by another placement than its snapshot sees runs nothing of it and says so (executor/shard_check.c). Then the
 * routing table is brought up to date from the config node and the statement is routed again, under a new snapshot where the isolation level has one
 * to give and no other fragment of the statement has run.
 *
 * No state of its own, no lock is held while it waits.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/stat_routing.h"
#include "executor/executor_settings.h"
#include "executor/route_loop.h"

/* Attempts for a fragment of a statement of which others have run. The first finds the router stale, another may find a shard so. */
#define BEGUN_ATTEMPTS 4

/* How long a statement that fails waits for the newest routing, so that a retry does not fail again; ms. */
#define REFRESH_TIMEOUT 1000

/*
 * Before another attempt: refreshes the routing table, waits a little longer each time. ERROR 40001 once tessera.gate_timeout has passed since the
 * first.
 */
static void
refresh_and_wait(TesseraRoute *route, TimestampTz *since)
{
	TimestampTz now = GetCurrentTimestamp();
	long		elapsed;

	if (route->attempts++ == 0)
		*since = now;
	elapsed = (now - *since) / 1000;
	if (elapsed > tessera_gate_timeout)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not route the statement: placements kept changing or stayed unknown"),
				 errdetail("Tried %d times in %ld ms.", route->attempts, elapsed),
				 errhint("Look at tessera.migrations; retry the transaction.")));

	tessera_stat_count(TESSERA_STAT_STALE);
	CHECK_FOR_INTERRUPTS();
	(void) tessera_routing_refresh(Max(1, tessera_gate_timeout - (int) elapsed));

	/* It may be the shard whose routing is older: it refreshes when a newer version comes with a statement. So wait, longer each time. */
	if (route->attempts > 2)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1L << Min(route->attempts - 2, 6), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
tessera_route_begun(TesseraRoute *route)
{
	route->begun = true;
	if (route->fixed == NULL && route->attempts + 1 < BEGUN_ATTEMPTS)
		return;
	(void) tessera_routing_refresh(REFRESH_TIMEOUT);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("a chunk of a table was moved while the statement ran"),
			 errhint("Retry the transaction.")));
}

/* The image to go by, NULL if the database is in no cluster any more. */
static const TesseraRouting *
choose_image(TesseraRoute *route)
{
	if (route->fixed)
		return route->fixed;
	return route->attempts == 0 && route->first ? route->first : tessera_routing();
}

bool
tessera_route(TesseraRoute *route, TesseraShardRun *run, TesseraShardRunRequest *request)
{
	Snapshot	own = request->snapshot;
	TimestampTz since = 0;

	for (;;)
	{
		request->refreshed |= route->fixed != NULL;
		request->routing = choose_image(route);
		if (!route->choose(route, request))
			return false;
		if (route->start ? route->start(route, request) : tessera_shard_run_start(run, request))
			return true;
		if (request->parts && request->parts->begun)
			tessera_route_begun(route);
		if (route->stale)
			route->stale(route, request);
		Assert(route->fixed == NULL);
		refresh_and_wait(route, &since);
		request->refreshed = true;
		if (run && !route->begun)
			request->snapshot = tessera_shard_run_fresh_snapshot(run, own);
	}
}
