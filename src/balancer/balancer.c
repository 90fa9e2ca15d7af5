/*
 * balancer.c
 *	  The balancer's rounds; see balancer.h.
 *
 * A look, twice a second while something is under way, else each tessera.balancer_interval: (0) sequences follow schemas that have moved; (1) what
 * has ended is noted; (2) if a round is due, chunks are split at zones' borders; (3) what is asked for begins, oldest first; (4) if a round is due,
 * the policy (balance/policy.h) is asked what to do, and as much of it begins as the shards have room for; (5) if a round is due, shards that are
 * being removed and hold nothing any more leave. Nothing waits for a migration: each look begins what has room, so a slow one holds nobody up.
 *
 * All that is durable is in the catalog: what runs (tessera.migration), what is asked for (tessera.balancer_action), what is being removed
 * (tessera.node.draining), the switches (tessera.setting). So a round may end anywhere, by a crash or a promotion, and the next one goes on from what
 * it finds. The worker is alone: there is one of its kind in a database, and only the config node's does anything.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "balancer/actions.h"
#include "balancer/balancer.h"
#include "balancer/balancer_settings.h"
#include "balancer/cluster_snapshot.h"
#include "balancer/drain.h"
#include "balancer/round_plan.h"
#include "balancer/schema_sequences.h"
#include "balancer/zone_borders.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "config/authority.h"
#include "config/round_request.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transport/connection.h"

#define BUSY_MS 500L
#define DOUBT_MS 1000L
#define AGAIN_MS 100L
#define AGAIN 5				/* looks at that distance after it was woken: what it was woken for may not be committed yet */
#define KEEP_ACTIONS 10000		/* that have ended */

/* In the worker. */
static TimestampTz next_round = 0;
static long took = 0;			/* ms, of the last round's own work, without the removal of shards, which may wait for nodes */


/* What to begin */

/* The actions of the plan that begin now, in the current context; the plan is kept for explain_balancer(). In a transaction. */
static List *
planned_now(const TesseraClusterSnapshot *snapshot)
{
	TesseraPolicyPlan *plan = tessera_policy_plan(&snapshot->policy, tessera_policy_alloc);
	List	   *actions = NIL;

	tessera_round_plan_keep(snapshot, plan);

	for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
		actions = lappend(actions, tessera_balancer_planned(snapshot, &plan->actions[i]));
	return actions;
}

/* Has somebody asked for something that is due? In a transaction. */
static bool
requests_due(void)
{
	TesseraSpi	spi;
	bool		due;

	tessera_spi_begin(&spi);
	due = tessera_spi_run("SELECT FROM tessera.balancer_action WHERE state = 'queued' AND coalesce(not_before <= clock_timestamp(), true) LIMIT 1",
						  SPI_OK_SELECT, 0, NULL, NULL, NULL) > 0;
	tessera_spi_end(&spi);
	return due;
}

/* In the current context. round: also what the policy chooses. Outside of a transaction. */
static List *
choose(bool round)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "tessera balancer snapshot", ALLOCSET_DEFAULT_SIZES);
	TesseraClusterSnapshot *snapshot;
	List	   *actions = NIL;

	tessera_background_begin();
	/* reading a large cluster takes a while: only if there is a reason */
	if (round || requests_due())
	{
		MemoryContextSwitchTo(context);
		snapshot = tessera_cluster_snapshot();
		MemoryContextSwitchTo(caller);
		if (round)
			tessera_balancer_note_unreadable(snapshot);
		actions = tessera_balancer_requests(snapshot);
		if (round)
			actions = list_concat(actions, planned_now(snapshot));
	}
	tessera_background_commit();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return actions;
}

/* round: that it is paused is what this round comes to. Outside of a transaction. */
static bool
is_paused(bool round)
{
	TesseraBalancerSwitches switches;

	tessera_background_begin();
	tessera_balancer_switches(&switches);
	if (switches.paused && round)
		tessera_round_plan_keep(NULL, NULL);
	tessera_background_commit();
	return switches.paused;
}

/*
 * Begins what is due, but for nodes that have failed meanwhile; true if something did. began: the look did. *again: a round is due then, if it is not
 * before. In a context of its own, outside of a transaction.
 */
static bool
run(bool round, TimestampTz began, TimestampTz *again)
{
	bool		begun = false;
	ListCell   *cell;
	List	   *actions;

	*again = DT_NOEND;
	if (is_paused(round))
		return false;
	if (round)
		tessera_split_at_zone_borders();
	actions = choose(round);
	foreach(cell, actions)
	{
		const TesseraBalancerAction *action = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		if (tessera_balancer_node_usable(action->donor) && tessera_balancer_node_usable(action->recipient) && tessera_balancer_begin(action))
			begun = true;
	}
	if (round)
	{
		took = TimestampDifferenceMilliseconds(began, GetCurrentTimestamp());
		*again = tessera_drain_step();
	}
	return begun;
}


/* The worker */

/* In a transaction: how many actions run or are due, and when the next is. */
static int64
follow(TimestampTz *next)
{
	int64		open;
	TesseraSpi	spi;

	open = tessera_balancer_follow(next);
	tessera_spi_begin(&spi);
	tessera_spi_run("DELETE FROM tessera.balancer_action WHERE state IN ('done', 'failed', 'dropped') AND asked < (SELECT asked FROM"
					" tessera.balancer_action WHERE state IN ('done', 'failed', 'dropped') ORDER BY asked DESC OFFSET $1 LIMIT 1)", SPI_OK_DELETE, 1,
					(Oid[]) {INT8OID}, (Datum[]) {Int64GetDatum(KEEP_ACTIONS)}, NULL);
	tessera_spi_end(&spi);
	return open;
}

/* One look; ms until the next. *idle: nothing is under way. In a context of its own. */
static long
look(bool *idle)
{
	TimestampTz began = GetCurrentTimestamp();
	uint64		wanted;
	bool		round;
	bool		begun;
	bool		followed = tessera_sequences_follow();
	int64		open;
	TimestampTz next;
	TimestampTz again;
	TimestampTz latest = TimestampTzPlusMilliseconds(began, tessera_balancer_interval * 1000);

	/* the setting may have become lower since */
	if (next_round == 0 || next_round > latest)
		next_round = latest;
	tessera_background_begin();
	open = follow(&next);
	tessera_background_commit();

	wanted = tessera_round_wanted();
	round = wanted != 0 || GetCurrentTimestamp() >= next_round;
	*idle = !round && open == 0 && followed;
	if (*idle)
		return Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), Min(next, next_round)), 1);
	begun = run(round, began, &again);
	*idle = !begun && open == 0 && followed;
	if (round)
	{
		next_round = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_balancer_interval * 1000);
		next_round = Min(next_round, Max(again, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), 10 * took)));
		tessera_round_made(wanted);
	}
	/* while moves run, shards get room again: the next round need not wait for its time, but rounds take a tenth of all time at most */
	if (!*idle)
		next_round = Min(next_round, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Max(2 * BUSY_MS, 10 * took)));
	return BUSY_MS;
}

long
tessera_balancer_step(void)
{
	static TimestampTz due = 0;
	static int	again = 0;
	int			may = tessera_config_duty();
	bool		woken = GetCurrentTimestamp() < due;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	volatile bool idle = true;
	volatile long wait = BUSY_MS;

	if (may <= 0)
		return may < 0 ? -1 : DOUBT_MS;
	again = woken ? AGAIN : Max(again - 1, 0);
	context = AllocSetContextCreate(caller, "tessera balancer", ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		bool		now_idle;

		MemoryContextSwitchTo(context);
		wait = look(&now_idle);
		idle = now_idle;
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(context);
		if (idle)
			tessera_connections_close(1);	/* an idle session would keep CREATE, ALTER and DROP DATABASE there waiting */
	}
	PG_END_TRY();
	if (again > 0)
		wait = Min(wait, AGAIN_MS);
	due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait);
	return wait;
}
