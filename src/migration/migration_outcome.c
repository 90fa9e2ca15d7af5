/*
 * migration_outcome.c
 *	  The end of a migration; see migration_outcome.h.
 *
 * Donor's order when committed: the recipient takes over first, so that statements sent on find it ready; then the donor's placement and decision in
 * one commit; then the recipient's standbys, slot, acknowledgements, coordinator row last (S67, S69): as long as that is there the range deleter
 * leaves the range alone. When aborted: the donor's placement and decision first, which opens its gate; then the fence on the config node, the
 * recipient, and the rest (S68). The local decision 'aborted' is allowed only before the phase 'deciding': from there the config node may have been
 * told to commit, and is asked first, by a fence, which is a writing transaction (doc/design.md#commit-and-fence).
 *
 * Behind the closed gates nothing is flushed that the config node can tell again: the recipient's and the donor's release are committed lazily, and
 * made durable before the outcome is acknowledged.
 *
 * A crash between any two of these leaves the coordinator row, and with it everything that follows.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "replication/slot.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/durable.h"
#include "common/injection.h"
#include "common/text.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "migration/migration_outcome.h"
#include "migration/placement_change.h"
#include "transaction/background.h"
#include "transfer/transfer.h"

/* While a gate is closed a node gets so long to answer; then it is asked again. */
#define GATE_CALL_MS 5000

typedef struct Outcome
{
	bool		committed;
	bool		acknowledged;	/* the outcome's row is gone: versions are not known, and both sides have carried it out */
	const char *donor_majors;	/* one for each group, int8[] as text */
	const char *recipient_majors;
	int64		term;
} Outcome;


static const char *
result_text(bool committed)
{
	return tessera_migration_result_text(committed ? TESSERA_RESULT_COMMITTED : TESSERA_RESULT_ABORTED);
}

char *
tessera_outcome_error(const char *sqlstate, const char *message, const char *detail)
{
	bool		details = detail != NULL && detail[0] != '\0';

	return psprintf("%s: %s%s%s%s", sqlstate, message, details ? " (" : "", details ? detail : "", details ? ")" : "");
}

/* Asks the config node, fencing the migration if it is open; then the reason is noted with it. */
static void
fence(const pg_uuid_t *migration_id, const TesseraDonorResult *known, Outcome *outcome)
{
	TesseraMigrationStateAnswer decided;
	char	   *answer;

	tessera_call_fence_migration(tessera_within(tessera_to_config(), GATE_CALL_MS), migration_id, known->error, tessera_background_term(), &answer);
	outcome->committed = tessera_migration_result_of(answer) == TESSERA_RESULT_COMMITTED;
	if (!outcome->committed)
		return;
	tessera_call_migration_state(tessera_to_config(), migration_id, &decided);
	outcome->acknowledged = decided.donor_majors == NULL || decided.recipient_majors == NULL;
	if (outcome->acknowledged)
		return;
	outcome->donor_majors = decided.donor_majors;
	outcome->recipient_majors = decided.recipient_majors;
	outcome->term = decided.term;
}

/* lazily: while gates are closed; it must be told again, durably, before the outcome is acknowledged. */
static void
tell_recipient(const TesseraMigrationRow *row, const Outcome *outcome, bool lazily)
{
	tessera_call_release_recipient(tessera_within(tessera_to_node(row->peer), GATE_CALL_MS), &row->migration_id, result_text(outcome->committed),
								   outcome->recipient_majors != NULL ? outcome->recipient_majors : "{}", outcome->term, lazily);
}

/* What the config node keeps about the migration. */
static void
report(const TesseraMigrationRow *row, const TesseraDonorResult *known, bool committed)
{
	tessera_call_migration_progress(tessera_to_config(), &row->migration_id, tessera_migration_state_name(committed ? TESSERA_DONE : TESSERA_ABORTED),
									known->rows,
									known->bytes, known->mods, known->pause_ms < 0 ? NULL : &known->pause_ms, committed ? NULL : known->error, NULL,
									NULL);
}

/* The outcome is carried out on both sides; the config node forgets it. false: it has become another one, as the recipient has lost the rows. */
static bool
acknowledge(const TesseraMigrationRow *row, bool committed)
{
	bool		accepted;

	tessera_call_acknowledge_migration(tessera_to_config(), &row->migration_id, result_text(committed), &accepted);
	return accepted;
}

/* A committed migration that the config node counts as aborted after a promotion: the rows are still here. */
static void
take_back(TesseraMigrationRow *row)
{
	ereport(LOG,
			(errmsg("taking back the range of migration %s: the recipient has lost it", tessera_uuid_text(&row->migration_id))));
	tessera_background_refresh();
	tessera_background_begin();
	tessera_placement_take_back_range(row);
	tessera_background_commit();
}

static void
drop_slot(const TesseraMigrationRow *row)
{
	if (row->slot == NULL)
		return;
	tessera_capture_drop_slot(row->slot);
	if (SearchNamedReplicationSlot(row->slot, true) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("replication slot \"%s\" is in use", row->slot)));
}

static void
measure_pause(TesseraDonorResult *known)
{
	if (known->gate_closed == 0)
		return;
	known->pause_ms = (double) (tessera_now() - known->gate_closed) / 1000.0;
	if (known->answered != 0)
		ereport(DEBUG1,
				(errmsg_internal("pause of %.1f ms: drain %.1f, ship %.1f, confirm and give up %.1f, decide %.1f", known->pause_ms,
								 (known->drained - known->gate_closed) / 1000.0, (known->shipped - known->drained) / 1000.0,
								 (known->given_up - known->shipped) / 1000.0, (known->answered - known->given_up) / 1000.0)));
	known->gate_closed = 0;
	if (tessera_my_migration != NULL)
	{
		tessera_migration_slot_lock();
		tessera_my_migration->pause_ms = known->pause_ms;
		tessera_migration_slot_unlock(false);
	}
}

/* Carried out and acknowledged by this node's old primary, of which this server is an older copy. */
static void
release_late(TesseraMigrationRow *row)
{
	tessera_background_refresh();
	tessera_background_begin();
	tessera_placement_commit_donation_late(row);
	tessera_background_commit();
}

static void
carry_out_commit(TesseraMigrationRow *row, TesseraDonorResult *known, const Outcome *outcome)
{
	MemoryContext caller = CurrentMemoryContext;

	if (row->decision == TESSERA_RESULT_NONE && outcome->acknowledged)
		release_late(row);
	else if (row->decision == TESSERA_RESULT_NONE)
	{
		tessera_migration_slot_enter(TESSERA_RELEASING);
		tessera_injection("donor_carrying_out");
		/* The recipient first; if it cannot be reached now, the gate here is opened all the same: the config node has decided. */
		PG_TRY();
		{
			tell_recipient(row, outcome, true);
		}
		PG_CATCH();
		{
			if (geterrcode() == ERRCODE_QUERY_CANCELED || geterrcode() == ERRCODE_ADMIN_SHUTDOWN)
				PG_RE_THROW();
			MemoryContextSwitchTo(caller);
			EmitErrorReport();
			FlushErrorState();
			AbortOutOfAnyTransaction();
			MemoryContextSwitchTo(caller);
		}
		PG_END_TRY();
		tessera_background_begin();
		tessera_background_commit_lazily();
		tessera_placement_commit_donation(row, tessera_migration_majors(row, tessera_majors_of_text(outcome->donor_majors)), outcome->term);
		tessera_background_commit();
		measure_pause(known);
		tessera_injection("donor_released");
		tessera_migration_slot_result(TESSERA_RESULT_COMMITTED, NULL);
		(void) tessera_worker_wake(TESSERA_RANGE_DELETER);
		tessera_background_refresh();
	}
	if (!outcome->acknowledged)
		tell_recipient(row, outcome, false);
	/*
	 * the rows here are deleted when the coordinator row is gone: not before the recipient's standbys know that it owns the range
	 * (doc/design.md#moves-and-standbys)
	 */
	tessera_migration_slot_waiting("recipient's standbys");
	tessera_call_await_standbys(tessera_to_node(row->peer));
	tessera_migration_slot_waiting(NULL);
}

static void
carry_out_abort(TesseraMigrationRow *row, TesseraDonorResult *known)
{
	Outcome		outcome = {0};

	if (row->decision == TESSERA_RESULT_NONE)
	{
		tessera_background_begin();
		tessera_placement_abort_donation(row);
		tessera_background_commit();
		measure_pause(known);
		tessera_injection("donor_restored");
	}
	fence(&row->migration_id, known, &outcome);
	tessera_injection("donor_fenced");
	if (outcome.committed)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("migration %s was aborted here but committed by the config node", tessera_uuid_text(&row->migration_id))));
	tessera_migration_slot_result(TESSERA_RESULT_ABORTED, NULL);
	tell_recipient(row, &outcome, false);
}

static void
forget(const pg_uuid_t *migration_id, bool committed)
{
	tessera_background_begin();
	tessera_migration_row_delete(TESSERA_DONOR, migration_id, committed ? TESSERA_DONE : TESSERA_ABORTED);
	tessera_background_commit();
}

TesseraMigrationResult
tessera_outcome_complete_donor(const pg_uuid_t *migration_id, TesseraDonorResult *known)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraMigrationRow *row;
	Outcome		outcome = {0};
	bool		older_copy;		/* after a promotion the row may be older than what was done */

	tessera_background_begin();
	MemoryContextSwitchTo(caller);
	row = tessera_migration_row(TESSERA_DONOR, migration_id, false);
	older_copy = row != NULL && row->donor_incarnation != tessera_routing()->incarnation;
	tessera_background_commit();
	if (row == NULL)
		return TESSERA_RESULT_NONE;

	if (row->decision == TESSERA_RESULT_ABORTED)
		outcome.committed = false;
	else if (known->decided && known->term >= tessera_background_term())
	{
		outcome.committed = true;
		outcome.donor_majors = known->donor_majors;
		outcome.recipient_majors = known->recipient_majors;
		outcome.term = known->term;
	}
	else if (row->decision != TESSERA_RESULT_NONE || row->state == TESSERA_DECIDING || row->state == TESSERA_REGISTERED || older_copy)
		fence(migration_id, known, &outcome);

	if (row->decision == TESSERA_RESULT_COMMITTED && !outcome.committed)
		take_back(row);
	if (outcome.committed && row->state == TESSERA_REGISTERED && !older_copy)
	{
		/* A caller that joined the migration had it noted here once more, after its end: nothing of this row was begun. */
		forget(migration_id, true);
		tessera_migration_slot_result(TESSERA_RESULT_COMMITTED, NULL);
		return TESSERA_RESULT_COMMITTED;
	}
	if (outcome.committed)
	{
		carry_out_commit(row, known, &outcome);
		tessera_migration_slot_enter(TESSERA_CLEANING);
	}
	else
	{
		tessera_migration_slot_enter(TESSERA_ABORTING);
		carry_out_abort(row, known);
	}
	tessera_injection("donor_cleaning");
	drop_slot(row);
	tessera_injection("donor_slot_dropped");
	report(row, known, outcome.committed);
	/* what was committed lazily here must not be lost once the outcome is */
	tessera_background_begin();
	tessera_commit_all_durably();
	tessera_background_commit();
	if (!acknowledge(row, outcome.committed))
	{
		take_back(row);
		tessera_migration_slot_enter(TESSERA_ABORTING);
		(void) acknowledge(row, false);
		outcome.committed = false;
	}
	tessera_injection("donor_acknowledged");
	forget(migration_id, outcome.committed);
	tessera_injection("donor_forgotten");
	tessera_migration_slot_enter(outcome.committed ? TESSERA_DONE : TESSERA_ABORTED);
	return outcome.committed ? TESSERA_RESULT_COMMITTED : TESSERA_RESULT_ABORTED;
}

void
tessera_outcome_complete_recipient(const pg_uuid_t *migration_id, bool committed, ArrayType *majors, int64 term)
{
	TesseraMigrationRow *row = tessera_migration_row(TESSERA_RECIPIENT, migration_id, false);

	if (row == NULL)
		return;
	if (committed)
		tessera_placement_commit_reception(row, tessera_migration_majors(row, majors), term);
	else
		tessera_placement_abort_reception(row);
	if (!committed)
		(void) tessera_worker_wake(TESSERA_RANGE_DELETER);
}

bool
tessera_outcome_follow(const pg_uuid_t *migration_id)
{
	TesseraMigrationStateAnswer decided;
	bool		committed;

	tessera_call_migration_state(tessera_to_config(), migration_id, &decided);
	if (tessera_migration_result_of(decided.state) == TESSERA_RESULT_NONE)
		return false;
	committed = tessera_migration_result_of(decided.state) == TESSERA_RESULT_COMMITTED;
	if (committed && decided.recipient_majors == NULL)
		return false;
	tessera_background_begin();
	tessera_outcome_complete_recipient(migration_id, committed, committed ? tessera_majors_of_text(decided.recipient_majors) : NULL, decided.term);
	tessera_background_commit();
	tessera_background_refresh();
	return true;
}
