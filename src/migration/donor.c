/*
 * donor.c
 *	  The donor's side of a running migration: from the coordinator row to the decision.
 *
 * Phases, one function each (migration_state.c has the table): prepare (registered), start (starting), then one loop that serves the recipient's
 * requests and, while it does, moves on: clone, catch up, wait until the pause will be short, close the gates, hand over. One turn of that loop is in
 * donor_serve.c, the gates and the hand-over are in donor_gate.c. The end of every migration, good or bad, is in migration_outcome.c.
 *
 * The process holds one open transaction while it clones: its snapshot is the slot's. In it nothing is written; status is asked and progress reported
 * over the control lane. After it, each durable step is a transaction of its own.
 *
 * Locks: AccessShareLock on the tables while cloning; the placement row only inside the steps (placement_change.c). No lock is held here across a
 * call of another node but the clone's; on the config node, for an attempt at the gates, those of the commit (config/commit_move.c).
 *
 * A crash leaves the coordinator row; recovery settles the migration.
 */
#include "postgres.h"

#include <limits.h>

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "optimizer/plancat.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "common/injection.h"
#include "common/protocol.h"
#include "control/calls.h"
#include "migration/table_checks.h"
#include "transfer/exchange_address.h"
#include "migration/donor_private.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "migration/placement_change.h"
#include "migration/table_checks.h"
#include "transaction/background.h"
#include "transfer/exchange_address.h"
#include "transfer/verify.h"

#define GOOD_MOMENT_MS 2000		/* a good moment for the pause is waited for so long */
#define GATE_CLOSED_MS 1000		/* change capture waits so long for others while the gate is closed */
#define IDLE_MS 10				/* looks for new WAL so often */
#define REFRESH_MS 10000		/* for what the config node knows of the group's tables */
#define GIVE_WAY_MS 200			/* while cloning: looks so often whether another session waits for the tables */


/* Prepare: checks, and the keys of the exchange */

static void
check_registration(TesseraDonor *donor)
{
	TesseraMigrationStateAnswer known;

	tessera_call_migration_state(tessera_to_config(), &donor->row->migration_id, &known);
	if (known.state == NULL || tessera_migration_result_of(known.state) != TESSERA_RESULT_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s is not running according to the config node", tessera_donor_id(donor))));
	tessera_background_require_incarnation(donor->row->donor_incarnation);
}

/*
 * A table that has joined the group by the config node's catalog is cloned, and its writers meet the gate, only if it is one of the group here, too:
 * the transaction in which it joins may not be over here. A refresh comes after it.
 */
static void
require_members(const TesseraDonor *donor)
{
	if (!tessera_members_known(donor->row->request))
		(void) tessera_routing_refresh(REFRESH_MS);
	if (!tessera_members_known(donor->row->request))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a table joins or leaves the table group, and that is not over on this node"),
				 errhint("Try again; tessera.resolve_transactions() ends what a lost node has left.")));
}

/*
 * An estimate of the rows that move: the tables' rows by their sizes and by what was last counted, as the planner sees them. -1: the config node,
 * which is of an older release, has not said which share of them that is. In a transaction.
 */
static int64
expected_rows(const TesseraDonor *donor)
{
	double		rows = 0;

	if (donor->row->share < 0)
		return -1;
	for (int i = 0; i < donor->moving->ntables; i++)
	{
		Relation	rel = table_open(donor->moving->tables[i].relid, AccessShareLock);
		BlockNumber pages = RELKIND_HAS_STORAGE(rel->rd_rel->relkind) ? RelationGetNumberOfBlocks(rel) : 0;
		BlockNumber counted;
		double		tuples;
		double		visible;

		/* a small table that was never counted is taken for a larger one */
		if (pages > 0)
		{
			estimate_rel_size(rel, NULL, &counted, &tuples, &visible);
			rows += counted > pages ? tuples / counted * pages : tuples;
		}
		table_close(rel, NoLock);
	}
	return (int64) (rows * donor->row->share);
}

/* The recipient checks, makes its key pair, and is told where to connect to only when there is something to fetch. Returns the endpoint. */
static char *
prepare(TesseraDonor *donor)
{
	char	   *recipient_key;
	TesseraExchangeAddress address;
	char	   *request;
	int			protocol;

	check_registration(donor);
	tessera_background_begin();
	MemoryContextSwitchTo(donor->context);
	for (int i = 0; i < donor->row->nranges; i = tessera_next_group(donor->row, i))
	{
		const TesseraGroup *group;

		(void) tessera_background_group(&donor->row->ranges[i].group_id, &group);
	}
	require_members(donor);
	donor->moving = tessera_moving_ranges(&donor->row->migration_id, donor->row->nranges, donor->row->ranges);
	tessera_check_tables(donor->moving, true);
	donor->rows_total = expected_rows(donor);
	tessera_migration_slot_expect(donor->rows_total);
	request = tessera_describe_tables(donor->row->request);
	request = MemoryContextStrdup(donor->context, request);
	tessera_exchange_find_address(&address);
	tessera_background_commit();

	tessera_call_prepare_recipient(tessera_say_protocol(tessera_to_node(donor->row->peer), &protocol), &donor->row->migration_id, request,
								   &recipient_key);
	for (int i = 0; i < donor->moving->ntables; i++)
	{
		donor->moving->tables[i].generated = protocol >= TESSERA_GENERATED_PROTOCOL;
		donor->moving->tables[i].xml_as_text = protocol >= TESSERA_XML_PROTOCOL;
	}
	tessera_exchange_make_keys(&donor->keys);
	tessera_pipe_init(&donor->pipe, tessera_exchange_bind(address.bind_to, address.ports, &donor->keys, recipient_key), &donor->row->migration_id);
	return tessera_exchange_advertise(&address, tessera_exchange_endpoint(donor->pipe.exchange));
}


/* Start: flag, slot, recipient */

/* Change capture waits for something. Told once; behind a closed gate neither told nor waited for long. */
static void
waiting_for_capture(const char *what, void *arg)
{
	TesseraDonor *donor = arg;
	bool		changed = strcmp(tessera_my_migration->waiting_for, what) != 0;

	tessera_migration_slot_waiting(what);
	if (donor->known->gate_closed == 0)
		(void) tessera_donor_tell_progress(donor, changed);
	else if (tessera_ms_since(donor->known->gate_closed) > GATE_CLOSED_MS)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("change capture waited for too long while the gate was closed"),
				 errdetail("It waited for: %s.", what),
				 errhint("Look at the server's synchronous standbys (pg_stat_replication), and start the migration again.")));
}

/* Milliseconds that are left to the migration. */
static int
time_left(TesseraDonor *donor)
{
	if (tessera_migration_timeout == 0)
		return INT_MAX;
	return Max(0, tessera_migration_timeout - (int) tessera_ms_since(donor->started));
}

static void
start(TesseraDonor *donor, char *endpoint)
{
	Oid		   *relids;
	int			n;

	tessera_background_begin();
	tessera_placement_begin_donation(donor->row);
	tessera_background_commit();
	tessera_migration_slot_enter(TESSERA_STARTING);
	tessera_injection("donor_flag_up");
	relids = tessera_moving_relids(donor->moving, &n);
	donor->older = tessera_lock_holders_collect(n, relids, ExclusiveLock);

	donor->capture = tessera_capture_create(donor->moving, donor->row->slot, time_left(donor), waiting_for_capture, donor);
	donor->in_snapshot = true;
	MemoryContextSwitchTo(donor->context);
	tessera_injection("donor_slot");
	for (int i = 0; i < donor->moving->ntables; i++)
		tessera_lock_table_by_retry(donor->moving->tables[i].relid, AccessShareLock);
	if (donor->row->verify)
	{
		donor->verify = tessera_verify_begin(donor->moving);
		tessera_capture_note_keys(donor->capture, donor->verify);
	}
	donor->reader = tessera_clone_begin(donor->moving, donor->verify != NULL ? tessera_verify_sums(donor->verify) : NULL);

	tessera_donor_ask_rate(donor);
	tessera_call_start_recipient(tessera_to_node(donor->row->peer), &donor->row->migration_id, endpoint, donor->keys.public_key);
	tessera_migration_slot_enter(TESSERA_CLONING);
}


/* The whole */

/*
 * The clone holds the tables for as long as it takes. A statement that needs one exclusively (DDL that did not name it, or of this node only, VACUUM
 * FULL) would wait for that, and all later statements behind it (doc/design.md#moves-and-ddl).
 */
static void
give_way(TesseraDonor *donor)
{
	Oid		   *relids;
	int			n;
	int			pid;

	if (!donor->in_snapshot || tessera_now() < donor->give_way_due)
		return;
	donor->give_way_due = TimestampTzPlusMilliseconds(tessera_now(), GIVE_WAY_MS);
	MemoryContextSwitchTo(donor->scratch);
	relids = tessera_moving_relids(donor->moving, &n);
	pid = tessera_lock_waiter(n, relids);
	MemoryContextSwitchTo(donor->context);
	if (pid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration was cancelled: process %d waits for a table that it copies", pid),
				 errhint("Start it again when the table is free.")));
}

static void
until_cloned(TesseraDonor *donor)
{
	while (!donor->mods_begun)
	{
		tessera_donor_turn(donor, IDLE_MS);
		tessera_donor_poll_status(donor);
		tessera_donor_tell_progress(donor, false);
		tessera_donor_ask_rate(donor);
		give_way(donor);
		(void) tessera_donor_older_writers_left(donor);
	}
	tessera_migration_slot_enter(TESSERA_CATCHING_UP);
	tessera_donor_tell_progress(donor, true);
}

/* Within the first seconds, only when the recipient is so near that the pause will be a short one; then, when it fits the budget. */
static bool
good_moment(TimestampTz steady_since)
{
	return tessera_my_migration->lag_ms <= tessera_critical_section_budget / 10.0 || tessera_ms_since(steady_since) > GOOD_MOMENT_MS;
}

/*
 * The recipient is so near that what is left fits the budget of the critical section, beside what the network takes; if that alone does not fit, an
 * attempt says so.
 */
static bool
is_steady(const TesseraDonor *donor)
{
	double		left = tessera_critical_section_budget - tessera_donor_latency(donor);
	double		lag = tessera_my_migration->lag_ms;

	return lag >= 0 && lag <= (left >= 0 ? left : tessera_critical_section_budget);
}

/*
 * Until the range is given up. With all conditions met the config node makes the decision; that may take long, so they must be met once more, or
 * still, when the gate closes.
 */
static void
until_handed_over(TesseraDonor *donor)
{
	TesseraLockHolders *seen = NULL;
	TimestampTz steady_since = 0;

	for (;;)
	{
		bool		held = tessera_donor_holds_decision(donor);

		tessera_donor_turn(donor, 1);
		tessera_donor_poll_status(donor);
		if (!held)
		{
			tessera_donor_tell_progress(donor, false);
			tessera_donor_ask_rate(donor);
		}
		if (!is_steady(donor))
		{
			if (tessera_my_migration->state == TESSERA_STEADY)
				tessera_migration_slot_enter(TESSERA_CATCHING_UP);
			continue;
		}
		if (tessera_my_migration->state == TESSERA_CATCHING_UP)
			tessera_migration_slot_enter(TESSERA_STEADY);
		if (steady_since == 0)
			steady_since = tessera_now();
		if (tessera_donor_older_writers_left(donor) || tessera_now() < donor->next_attempt || !good_moment(steady_since))
			continue;
		if (donor->verify != NULL && !tessera_verify_fits(donor->verify, tessera_critical_section_budget))
		{
			tessera_migration_slot_waiting("comparison of changed rows");
			continue;
		}
		tessera_injection("donor_steady");
		if (tessera_donor_holders_linger(donor, &seen))
			continue;
		tessera_migration_slot_waiting(NULL);
		if (!held)
		{
			tessera_donor_prepare_gate(donor);
			continue;
		}
		if (tessera_donor_attempt_gate(donor))
			return;
		tessera_lock_holders_free(seen);
		seen = NULL;
	}
}

void
tessera_donor_run(const pg_uuid_t *migration_id, TesseraDonorResult *known)
{
	TesseraDonor *donor = palloc0(sizeof(TesseraDonor));
	char	   *endpoint;

	donor->context = CurrentMemoryContext;
	donor->scratch = AllocSetContextCreate(donor->context, "tessera donor turn", ALLOCSET_DEFAULT_SIZES);
	donor->known = known;
	donor->started = tessera_now();
	donor->status_ms = 1;
	donor->rows_total = -1;
	initStringInfo(&donor->payload);

	tessera_background_begin();
	MemoryContextSwitchTo(donor->context);
	donor->row = tessera_migration_row(TESSERA_DONOR, migration_id, false);
	tessera_background_commit();
	if (donor->row == NULL)
		return;
	tessera_injection("donor_registered");

	PG_TRY();
	{
		endpoint = prepare(donor);
		start(donor, endpoint);
		until_cloned(donor);
		until_handed_over(donor);
		tessera_donor_decide(donor);
	}
	PG_FINALLY();
	{
		const TesseraMigrationSlot *slot = tessera_my_migration;

		known->rows = slot->rows;
		known->bytes = slot->bytes;
		known->mods = slot->mods;
	}
	PG_END_TRY();
	tessera_capture_end(donor->capture, false);
	tessera_exchange_close(donor->pipe.exchange);
}
