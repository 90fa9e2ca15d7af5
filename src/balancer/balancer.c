/*
 * balancer.c
 *	  The balancer's rounds; see balancer.h.
 *
 * A look, twice a second while something is under way, else each tessera.balancer_interval: (0) sequences follow schemas that have moved; (1) what
 * has ended is noted; (2) what is asked for
 * begins, oldest first; (3) if a round is due: chunks are split at zones' borders, the policy (balance/policy.h) is asked what to do, and as much of
 * it begins as the shards have room for; (4) shards that are being removed and hold nothing any more leave. Nothing waits for a migration: each look
 * begins what has room, so a slow one holds nobody up.
 *
 * All that is durable is in the catalog: what runs (tessera.migration), what is asked for (tessera.balancer_action), what is being removed
 * (tessera.node.draining), the switches (tessera.setting). So a round may end anywhere, by a crash or a promotion, and the next one goes on from what
 * it finds. The worker is alone: there is one of its kind in a database, and only the config node's does anything.
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "balancer/actions.h"
#include "balancer/balancer.h"
#include "balancer/balancer_settings.h"
#include "balancer/cluster_snapshot.h"
#include "balancer/drain.h"
#include "balancer/schema_sequences.h"
#include "balancer/zone_borders.h"
#include "common/injection.h"
#include "common/privilege.h"
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

PG_FUNCTION_INFO_V1(tessera_explain_balancer);

/* In the worker. */
static TimestampTz next_round = 0;
static long took = 0;			/* ms, of the last round's own work */


/* What to begin */

/* The actions of the plan that begin now, in the current context. In a transaction. */
static List *
planned_now(const TesseraClusterSnapshot *snapshot)
{
	TesseraPolicyPlan *plan = tessera_policy_plan(&snapshot->policy, tessera_policy_alloc);
	List	   *actions = NIL;

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

/* Outside of a transaction. */
static bool
is_paused(void)
{
	TesseraBalancerSwitches switches;
	bool		paused;

	tessera_background_begin();
	tessera_balancer_switches(&switches);
	paused = switches.paused;
	tessera_background_commit();
	return paused;
}

/*
 * Begins what is due, but for nodes that have failed meanwhile; true if something did, or will be due soon. In a context of its own, outside of a
 * transaction.
 */
static bool
run(bool round)
{
	bool		begun = false;
	ListCell   *cell;
	List	   *actions;

	if (is_paused())
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
	if (round && tessera_drain_step())
		begun = true;
	return begun;
}


/* explain_balancer() */

/* Columns of explain_balancer(). */
enum
{
	STEP, DUE, KIND, TABLE_NAME, SCHEMA_NAME, RANGE_MIN, RANGE_MAX, RANGES, DONOR, RECIPIENT, REASON, BYTES, DETAIL, COLUMNS
};

static void
put_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL;
	if (text != NULL)
		values[column] = CStringGetTextDatum(text);
}

static void
put_range(const TesseraClusterSnapshot *snapshot, int32 group, size_t first, size_t count, Datum *values, bool *nulls)
{
	TesseraBound *min;
	TesseraBound *max;

	put_text(values, nulls, SCHEMA_NAME, group < 0 ? snapshot->schemas[first].names : NULL);
	if (group < 0)
	{
		nulls[TABLE_NAME] = nulls[RANGE_MIN] = nulls[RANGE_MAX] = true;
		return;
	}
	tessera_snapshot_range(snapshot, group, first, count, &min, &max);
	values[RANGE_MIN] = PointerGetDatum(min);
	values[RANGE_MAX] = PointerGetDatum(max);
	nulls[TABLE_NAME] = snapshot->groups[group].table == NULL;
	if (!nulls[TABLE_NAME])
		values[TABLE_NAME] = ObjectIdGetDatum(snapshot->groups[group].table->relid);
}

static const char *
name_of_shard(const TesseraClusterSnapshot *snapshot, int32 shard)
{
	const TesseraNode *node = shard < 0 ? NULL : tessera_routing_node(snapshot->routing, snapshot->shards[shard].node_id);

	return node != NULL ? NameStr(node->name) : NULL;
}

static void
put_action(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action, int step, ReturnSetInfo *result)
{
	static const char *const kinds[] = {[TESSERA_POLICY_MOVE] = "move",[TESSERA_POLICY_MERGE] = "merge",[TESSERA_POLICY_MOVE_SCHEMA] = "move"};
	Datum		values[COLUMNS] = {[STEP] = Int32GetDatum(step),[BYTES] = Int64GetDatum((int64) action->bytes)};
	bool		nulls[COLUMNS] = {0};

	put_text(values, nulls, DUE, action->now ? "now" : "later");
	put_text(values, nulls, KIND, kinds[action->kind]);
	put_range(snapshot, action->group, action->first, action->count, values, nulls);
	nulls[RANGES] = action->group < 0;
	values[RANGES] = Int32GetDatum((int32) action->nranges);
	put_text(values, nulls, DONOR, name_of_shard(snapshot, action->from));
	put_text(values, nulls, RECIPIENT, name_of_shard(snapshot, action->to));
	put_text(values, nulls, REASON, tessera_policy_reason_text(action->reason));
	put_text(values, nulls, DETAIL, tessera_balancer_planned(snapshot, action)->detail);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void
put_problem(const TesseraClusterSnapshot *snapshot, const TesseraPolicyProblem *problem, int step, ReturnSetInfo *result)
{
	static const char *const what[] = {
		[TESSERA_POLICY_NO_SHARD] = "no other shard may have it: add a shard, or change its zone",
		[TESSERA_POLICY_UNUSABLE] = "its shard, or each that may have it, cannot be reached at present",
		[TESSERA_POLICY_IMMOVABLE] = "the schema cannot be moved",
	};
	Datum		values[COLUMNS] = {[STEP] = Int32GetDatum(step)};
	bool		nulls[COLUMNS] = {[BYTES] = true,[RECIPIENT] = true};

	put_text(values, nulls, DUE, "never");
	put_text(values, nulls, KIND, "move");
	put_range(snapshot, problem->group, problem->first, problem->count, values, nulls);
	nulls[RANGES] = true;
	put_text(values, nulls, DONOR, name_of_shard(snapshot, problem->shard));
	put_text(values, nulls, REASON, snapshot->shards[problem->shard].draining ? "draining" : "zone");
	put_text(values, nulls, DETAIL, what[problem->obstacle]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* A group that the snapshot could not read. */
static void
put_unreadable(const TesseraSnapshotGroup *group, int step, ReturnSetInfo *result)
{
	Datum		values[COLUMNS] = {[STEP] = Int32GetDatum(step)};
	bool		nulls[COLUMNS];

	memset(nulls, true, sizeof(nulls));
	nulls[STEP] = false;
	put_text(values, nulls, DUE, "never");
	put_text(values, nulls, KIND, "read");
	nulls[TABLE_NAME] = group->table == NULL;
	if (!nulls[TABLE_NAME])
		values[TABLE_NAME] = ObjectIdGetDatum(group->table->relid);
	put_text(values, nulls, DETAIL, group->unreadable);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Why nothing is evened out, if so. */
static void
put_switches(int step, ReturnSetInfo *result)
{
	TesseraBalancerSwitches switches;
	Datum		values[COLUMNS] = {[STEP] = Int32GetDatum(step)};
	bool		nulls[COLUMNS];

	tessera_balancer_switches(&switches);
	if (switches.reason == NULL)
		return;
	memset(nulls, true, sizeof(nulls));
	nulls[STEP] = false;
	put_text(values, nulls, DUE, "never");
	put_text(values, nulls, KIND, "balance");
	put_text(values, nulls, DETAIL, switches.reason);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void
put_fact(int step, const char *kind, const char *shard, double bytes, const char *detail, ReturnSetInfo *result)
{
	Datum		values[COLUMNS] = {[STEP] = Int32GetDatum(step),[BYTES] = Int64GetDatum((int64) bytes)};
	bool		nulls[COLUMNS];

	memset(nulls, true, sizeof(nulls));
	nulls[STEP] = false;
	nulls[BYTES] = bytes < 0;
	put_text(values, nulls, KIND, kind);
	put_text(values, nulls, DONOR, shard);
	put_text(values, nulls, DETAIL, detail);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* How the shards differ, now and when all is done: by their fill, which is amount divided by weight. step: of the row before. */
static void
put_spread(const TesseraClusterSnapshot *snapshot, const TesseraPolicyPlan *plan, int step, ReturnSetInfo *result)
{
	const TesseraPolicySettings *settings = &snapshot->policy.settings;
	bool		by_bytes = settings->measure == TESSERA_BY_BYTES;

	put_fact(++step, "spread", NULL, -1,
			 psprintf("%.1f %% of the average between the fullest shard and the emptiest, %.1f %% after what is listed%s; below %.1f %% nothing "
					  "moves",
					  100 * plan->spread, 100 * plan->spread_after, plan->complete ? "" : ", more would follow", 100 * settings->threshold), result);
	for (size_t i = 0; i < snapshot->policy.nshards; i++)
		put_fact(++step, "shard", name_of_shard(snapshot, (int32) i), by_bytes ? plan->fill[i] : -1,
				 psprintf("%.3g, by weight; the average is %.3g%s", plan->fill[i], plan->mean_fill,
						  snapshot->shards[i].draining ? "; it is being removed" : ""), result);
}

/* explain_balancer() returns (step, due, kind, table_name, schema_name, min, max, ranges, donor, recipient, reason, bytes, detail) */
Datum
tessera_explain_balancer(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TesseraClusterSnapshot *snapshot;
	TesseraPolicyPlan *plan;
	int			step = 0;

	tessera_require_admin();
	if (!tessera_routing_or_error()->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the balancer works on the config node"),
				 errhint("Call the function there.")));
	InitMaterializedSRF(fcinfo, 0);
	snapshot = tessera_cluster_snapshot();
	plan = tessera_policy_plan(&snapshot->policy, tessera_policy_alloc);
	put_switches(++step, result);
	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
		if (snapshot->groups[i].unreadable != NULL)
			put_unreadable(&snapshot->groups[i], ++step, result);
	for (size_t i = 0; i < plan->nactions; i++)
		put_action(snapshot, &plan->actions[i], ++step, result);
	for (size_t i = 0; i < plan->nproblems; i++)
		put_problem(snapshot, &plan->problems[i], ++step, result);
	put_spread(snapshot, plan, step, result);
	return (Datum) 0;
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
	begun = run(round);
	*idle = !begun && open == 0 && followed;
	if (round)
	{
		took = TimestampDifferenceMilliseconds(began, GetCurrentTimestamp());
		next_round = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_balancer_interval * 1000);
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
