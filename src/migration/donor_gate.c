/*
 * donor_gate.c
 *	  The critical section: who is inside, closing the gates, what is left is shipped, the range is given up, the config node decides. Opening the
 *	  gate again, and taking the confirmation back, when an attempt takes too long.
 *
 * Interleavings. (A writer before the flag) it does not take the gate lock; its changes are in the slot, and the gate is not closed before it has
 * ended: the transactions that hold the tables when the flag went up are remembered and waited for beside the clone. (A writer between the flag and
 * the gate) takes the gate lock, reads the gate open, writes; the mover finds it among the lock's holders after it has closed the gate, and waits. (A
 * writer at the closing) takes the lock, reads the gate again: closed, it lets go and waits; or still open, then the mover, who looks after closing,
 * sees it.
 *
 * Locks: the placement row only inside the steps (placement_change.c). A crash leaves the gate in the placement row and the phase in the coordinator
 * row: recovery settles it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "replication/message.h"
#include "storage/proc.h"
#include "storage/sinvaladt.h"
#include "utils/builtins.h"

#include "common/errors.h"
#include "common/injection.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "migration/donor_private.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "migration/placement_change.h"
#include "migration/table_checks.h"
#include "routing/write_gate.h"
#include "transaction/background.h"
#include "transaction/participant.h"
#include "transfer/verify.h"

#define DECIDE_MS 5000			/* for the config node's answer; then it is asked again, and then by a fence */
#define BEGIN_DECISION_MS 5000
#define KEEP_DECISION_MS 500	/* until the gate closes, or it is given up */
#define HOLD_SLACK_MS 500
#define TAKE_BACK_MS 2000
#define UNREACHED_MS 1000		/* no attempt so soon again if the config node cannot be reached */
#define LONGEST_PAUSE_MS 10000	/* between attempts, even if this process stood still while its gate was closed */
#define GATE_DUTY 20			/* the gate is closed at most 1/20 of the time */
#define BLOCKED_MS 10			/* a writer inside that waits for a lock so long makes the gate open again */


/* The gates */

bool
tessera_donor_older_writers_left(TesseraDonor *donor)
{
	char		who[TESSERA_HOLDER_TEXT];

	if (!tessera_lock_holders_left(donor->older, who, sizeof(who)))
		return false;
	tessera_migration_slot_waiting(who);
	return true;
}

/* Those inside when we last looked must have ended before the gate is closed: who stays long, or for ever, then does not hold up the others. */
bool
tessera_donor_holders_linger(TesseraDonor *donor, TesseraLockHolders **seen)
{
	char		who[TESSERA_HOLDER_TEXT];

	if (*seen == NULL)
	{
		int			n;
		VirtualTransactionId *holders = tessera_gate_holders(&donor->row->migration_id, &n);

		*seen = tessera_lock_holders_of(holders, n);
		pfree(holders);
		donor->holders_since = tessera_now();
	}
	if (!tessera_lock_holders_left(*seen, who, sizeof(who)))
		return false;
	if (tessera_ms_since(donor->holders_since) > tessera_critical_section_budget)
		tessera_migration_slot_waiting(who);
	return true;
}

/* True if a writer that holds the gate lock waits for another lock: perhaps for one of a transaction that waits at the gate. */
static bool
holder_blocked(const VirtualTransactionId *holders, int n)
{
	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc = tessera_vxid_proc(holders[i]);

		if (proc != NULL && ((volatile PGPROC *) proc)->waitStatus == PROC_WAIT_STATUS_WAITING)
			return true;
	}
	return false;
}

/* Waits until no transaction holds the gate lock; false if that takes too long. */
static bool
drain(TesseraDonor *donor, TimestampTz closed)
{
	TimestampTz blocked_since = 0;

	for (;;)
	{
		int			n;
		VirtualTransactionId *holders = tessera_gate_holders(&donor->row->migration_id, &n);
		bool		blocked = holder_blocked(holders, n);

		pfree(holders);
		if (n == 0)
			return true;
		if (tessera_ms_since(closed) >= tessera_critical_section_lock_timeout)
			return false;
		if (!blocked)
			blocked_since = 0;
		else if (blocked_since == 0)
			blocked_since = tessera_now();
		else if (tessera_ms_since(blocked_since) >= BLOCKED_MS)
			return false;
		tessera_donor_turn(donor, 1);
	}
}

/*
 * A WAL position behind every change of the range: no other change can come while the gate is closed. Flushed, so that decoding gets there; often the
 * commits of those who were inside have done that, and nothing is left to be written.
 */
static XLogRecPtr
gate_position(TesseraDonor *donor)
{
	XLogRecPtr	lsn = GetXLogInsertRecPtr();

	if (lsn <= GetFlushRecPtr(NULL))
		return lsn;
	lsn = tessera_log_message("tessera", (const char *) &donor->row->migration_id, sizeof(pg_uuid_t));

	XLogFlush(lsn);
	return lsn;
}

/*
 * How long the recipient may take from the closing of the gate to its confirmation, in milliseconds: the budget and half of it; with each attempt
 * that overran a quarter more, so that a slow machine gets there in the end.
 */
static long
pause_limit(TesseraDonor *donor)
{
	return (long) tessera_critical_section_budget * (6 + Min(donor->overruns, 34)) / 4;
}

/*
 * Everything is at the recipient. What has changed since it was last compared is compared behind it, without waiting in between: nothing changes any
 * more. The next message needs a request that it can answer.
 */
static bool
rest_arrived(TesseraDonor *donor)
{
	bool		compared = donor->sent >= donor->upto && (donor->verify == NULL || tessera_verify_rest(donor->verify));

	return compared && donor->applied >= donor->upto && donor->mods_requests.n > 0;
}

/* Behind the closed write gate: the rest is shipped and compared; false: it takes too long. */
static bool
ship_rest(TesseraDonor *donor, TimestampTz closed)
{
	donor->upto = gate_position(donor);
	while (!rest_arrived(donor))
	{
		if (tessera_ms_since(closed) > pause_limit(donor))
			return false;
		tessera_donor_turn(donor, 1);
	}
	return true;
}

static void
close_write_gate(TesseraDonor *donor)
{
	tessera_background_begin();
	tessera_placement_set_gate(donor->row, TESSERA_GATE_WRITE, TESSERA_WRITE_GATE);
	tessera_background_commit();
	tessera_migration_slot_enter(TESSERA_WRITE_GATE);
	tessera_migration_slot_lock();
	tessera_my_migration->gate_attempts++;
	tessera_migration_slot_unlock(false);
	tessera_injection("donor_write_gate");
}

static void
reopen(TesseraDonor *donor, TimestampTz closed)
{
	tessera_background_begin();
	tessera_placement_set_gate(donor->row, TESSERA_GATE_OPEN, TESSERA_STARTING);
	tessera_background_commit();
	/* who was asked to confirm must take it back: it hears of it before any further change */
	donor->taken_back |= tessera_my_migration->state == TESSERA_READ_GATE;
	donor->upto = InvalidXLogRecPtr;
	donor->known->gate_closed = 0;
	tessera_migration_slot_enter(TESSERA_STEADY);
	donor->next_attempt = TimestampTzPlusMilliseconds(tessera_now(), Min(tessera_ms_since(closed) * (GATE_DUTY - 1), LONGEST_PAUSE_MS));
	tessera_injection("donor_reopened");
}

/*
 * The recipient's worker hears of it on the exchange. If it stands still, readers there would wait until it goes on: so its node is told, too, if it
 * answers.
 */
static void
take_back(TesseraDonor *donor)
{
	MemoryContext caller = MemoryContextSwitchTo(donor->scratch);

	(void) tessera_call_take_back(tessera_ask(tessera_within(tessera_to_node(donor->row->peer), TAKE_BACK_MS), TESSERA_TOLERATE_ERRORS),
								  &donor->row->migration_id, donor->last);
	MemoryContextSwitchTo(caller);
}

/* The recipient takes too long: the gate opens again. It is tried again later, but not for ever. */
static void
overrun(TesseraDonor *donor, TimestampTz closed)
{
	bool		asked = tessera_my_migration->state == TESSERA_READ_GATE;

	reopen(donor, closed);
	if (asked)
		take_back(donor);
	donor->overruns++;
	if (donor->overruns >= tessera_critical_section_attempts)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("the recipient did not confirm the migration in time, in %d attempts", donor->overruns),
				 errdetail("The last attempt was given up after %ld ms.", tessera_ms_since(closed)),
				 errhint("Raise tessera.critical_section_budget or tessera.critical_section_attempts; a standby of the recipient that lags delays "
						 "it, too.")));
}

/* Readers, too: the recipient confirms meanwhile; false if it takes too long. */
static bool
await_confirmation(TesseraDonor *donor, TimestampTz closed)
{
	donor->last = tessera_donor_send_last(donor);
	tessera_background_begin();
	tessera_background_commit_lazily();
	tessera_placement_set_gate(donor->row, TESSERA_GATE_READ, TESSERA_WRITE_GATE);
	tessera_background_commit();
	tessera_migration_slot_enter(TESSERA_READ_GATE);
	tessera_injection("donor_readers_wait");
	while (donor->applied < donor->last)
	{
		if (tessera_ms_since(closed) > pause_limit(donor))
			return false;
		tessera_donor_turn(donor, 1);
	}
	return true;
}

static void
give_up_range(TesseraDonor *donor)
{
	tessera_background_begin();
	tessera_placement_give_up_range(donor->row);
	/* from this commit on only the config node ends this migration */
	tessera_migration_ignore_cancel(true);
	tessera_background_commit();
	tessera_migration_slot_enter(TESSERA_DECIDING);
	tessera_injection("donor_read_gate");
}

/* What the config node's commit gives; it counts once that has ended. */
static void
note_decision(TesseraDonorResult *known, const TesseraCommitMoveAnswer *decided)
{
	known->donor_majors = MemoryContextStrdup(known->context, decided->donor_majors);
	known->recipient_majors = MemoryContextStrdup(known->context, decided->recipient_majors);
	known->term = decided->config_term;
}

/* As long as an attempt may last. A process that stands still longer has lost what it left there: the config node decides once more then. */
static int
hold_ms(TesseraDonor *donor)
{
	return KEEP_DECISION_MS + tessera_critical_section_lock_timeout + (int) pause_limit(donor) + HOLD_SLACK_MS;
}

static void
drop_decision(TesseraDonor *donor)
{
	tessera_release_held();
	donor->held_since = 0;
}

/*
 * Has the config node do the whole commit, but for its end, in a transaction that waits for it. Returns NULL, or why it could not. ERROR, its own, if
 * it refuses the commit.
 */
static const char *
hold_decision(TesseraDonor *donor)
{
	MemoryContext caller = MemoryContextSwitchTo(donor->scratch);
	TesseraCallTarget config = tessera_within(tessera_holding(tessera_to_config(), hold_ms(donor)), BEGIN_DECISION_MS);
	TesseraCommitMoveAnswer decided;
	ErrorData  *error;
	bool		held;

	config = tessera_keep_error(tessera_ask(config, TESSERA_TOLERATE_ERRORS), &error);
	held = tessera_call_commit_move(config, &donor->row->migration_id, tessera_background_term(), &decided);
	if (held)
	{
		note_decision(donor->known, &decided);
		donor->held_since = tessera_now();
	}
	MemoryContextSwitchTo(caller);
	if (held)
		return NULL;
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
		return "another change of the table group on the config node";
	if (tessera_error_is_unreachable(error->sqlerrcode))
		return "the config node does not answer";
	ReThrowError(error);
}

/*
 * What can be done before the gate closes. Changes of the tables must still reach WAL: DDL of this node alone may have changed the tables meanwhile.
 * Plans are made anew: decoding has invalidated what this process had kept of the catalog.
 */
static void
prepare_attempt(TesseraDonor *donor)
{
	tessera_background_begin();
	tessera_check_tables(donor->moving, true);
	tessera_placement_plan();
	tessera_migration_row_plan(TESSERA_DONOR);
	tessera_background_commit();
}

/* From the closing of the gate until the range is given up; false: it is open again. */
static bool
hand_over(TesseraDonor *donor)
{
	TimestampTz closed;

	tessera_injection("donor_closing");
	closed = tessera_now();
	donor->known->gate_closed = closed;
	close_write_gate(donor);
	if (!drain(donor, closed))
	{
		reopen(donor, closed);
		return false;
	}
	donor->known->drained = tessera_now();
	if (!ship_rest(donor, closed))
	{
		overrun(donor, closed);
		return false;
	}
	donor->known->shipped = tessera_now();
	if (!await_confirmation(donor, closed))
	{
		overrun(donor, closed);
		return false;
	}
	give_up_range(donor);
	donor->known->given_up = tessera_now();
	return true;
}

bool
tessera_donor_holds_decision(TesseraDonor *donor)
{
	if (donor->held_since != 0 && tessera_ms_since(donor->held_since) > KEEP_DECISION_MS)
		drop_decision(donor);
	return donor->held_since != 0;
}

void
tessera_donor_prepare_gate(TesseraDonor *donor)
{
	const char *why = "the config node does not answer";
	bool		reached;

	prepare_attempt(donor);
	reached = tessera_donor_tell_progress(donor, true);
	if (reached && !tessera_donor_near_enough(donor))
		return;
	if (reached)
		why = hold_decision(donor);
	if (why == NULL)
		return;
	donor->next_attempt = TimestampTzPlusMilliseconds(tessera_now(), UNREACHED_MS);
	tessera_migration_slot_waiting(why);
}

bool
tessera_donor_attempt_gate(TesseraDonor *donor)
{
	if (hand_over(donor))
		return true;
	drop_decision(donor);
	return false;
}

void
tessera_donor_decide(TesseraDonor *donor)
{
	TesseraDonorResult *known = donor->known;

	tessera_injection("config_commit");
	if (!tessera_commit_held(0, DECIDE_MS))
	{
		TesseraCommitMoveAnswer decided;

		tessera_call_commit_move(tessera_within(tessera_to_config(), DECIDE_MS), &donor->row->migration_id, tessera_background_term(), &decided);
		note_decision(known, &decided);
	}
	known->answered = tessera_now();
	tessera_injection("config_committed");
	known->decided = true;
}
