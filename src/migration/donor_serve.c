/*
 * donor_serve.c
 *	  One turn of the donor's loop: requests of the recipient answered, with rows while it clones, with changes after it; limits, lag, status and
 *	  progress.
 *
 * Memory: what a turn allocates goes with the next (donor->scratch); the WAL reader keeps its own in donor->context. Locks: none. A crash leaves
 * nothing of it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/injection.h"
#include "common/text.h"
#include "control/calls.h"
#include "migration/donor_private.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "transaction/background.h"
#include "transfer/verify.h"

#define EMPTY_MODS_MS 5			/* an answer without changes at most so often */
#define COMPARE_LAG_MS 1000		/* the recipient is not farther behind when changed rows are compared */
#define PROGRESS_MS 2000		/* tells the config node so often */
#define TELL_MS 5000			/* for its answer */
#define PROGRESS_PAUSE_MS 30000	/* not so soon again if it cannot be told */
#define MAX_STATUS_MS 1024		/* S50 */
#define STATUS_MS 5000			/* for the recipient's answer */
#define LOST_MS 30000			/* a recipient that does not answer for so long is given up */

const char *
tessera_donor_id(TesseraDonor *donor)
{
	return tessera_uuid_text(&donor->row->migration_id);
}


/* Serving the recipient */

static void
push(TesseraRequests *requests, int64 sequence)
{
	if (requests->n == MAX_REQUESTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the recipient asks for too much at a time")));
	requests->sequence[requests->n++] = sequence;
}

static int64
pop(TesseraRequests *requests)
{
	int64		sequence = requests->sequence[0];

	memmove(requests->sequence, requests->sequence + 1, sizeof(int64) * --requests->n);
	return sequence;
}

static void
note_applied(TesseraDonor *donor, XLogRecPtr applied)
{
	donor->mods_begun = true;
	if (applied <= donor->applied)
		return;
	donor->applied = applied;
	if (donor->probe != InvalidXLogRecPtr && applied >= donor->probe)
	{
		tessera_round_trip_note(&donor->exchange, donor->probe_sent);
		donor->probe = InvalidXLogRecPtr;
	}
	/* the last batch's position is one that WAL has not */
	tessera_capture_confirm(donor->capture, applied == donor->last ? applied - 1 : applied);
}

/* Takes in what has arrived; true if there was anything. */
static bool
receive(TesseraDonor *donor)
{
	TesseraMessage message;
	const char *payload;
	Size		size;
	bool		any = false;

	while (tessera_pipe_receive(&donor->pipe, &message, &payload, &size))
	{
		any = true;
		switch (message.kind)
		{
			case TESSERA_MSG_CLONE_REQUEST:
				push(&donor->clone_requests, message.sequence);
				break;
			case TESSERA_MSG_MODS_REQUEST:
				push(&donor->mods_requests, message.sequence);
				note_applied(donor, message.lsn);
				break;
			case TESSERA_MSG_VERIFIED:
				tessera_verify_answered(donor->verify, message.sequence);
				break;
			default:
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("the recipient sent a message of kind %d", (int) message.kind)));
		}
	}
	return any;
}

static void
end_clone(TesseraDonor *donor)
{
	tessera_clone_end(donor->reader);
	donor->reader = NULL;
	while (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	donor->in_snapshot = false;
	MemoryContextSwitchTo(donor->context);
	donor->clone_sent = true;
	tessera_injection("donor_cloned");
}

/* At migration_max_rate: when the next batch may go. */
static void
charge_rate(TesseraDonor *donor, Size bytes)
{
	TimestampTz now = tessera_now();

	if (tessera_migration_max_rate == 0)
		return;
	donor->clone_not_before = Max(donor->clone_not_before, now) + (TimestampTz) (bytes * 1000000.0 / (tessera_migration_max_rate * 1024.0));
}

static bool
serve_clone(TesseraDonor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_CLONE_BATCH, .table = -1};

	if (donor->clone_requests.n == 0 || donor->pipe.rest != NULL)
		return false;
	/* answers without rows are not held back: they would come among what follows the clone */
	if (!donor->clone_sent && (tessera_now() < donor->clone_not_before || tessera_donor_rests(donor)))
		return false;
	resetStringInfo(&donor->payload);
	if (!donor->clone_sent)
	{
		int			table = -1;

		batch.rows = tessera_clone_next(donor->reader, &donor->payload, tessera_donor_batch_size(donor), &table);
		batch.table = table;
		if (batch.rows == 0)
		{
			batch.table = -1;
			resetStringInfo(&donor->payload);
			end_clone(donor);
			if (donor->verify != NULL)
				tessera_verify_write_sums(donor->verify, &donor->payload);
		}
	}
	batch.last = donor->clone_sent;
	batch.sequence = pop(&donor->clone_requests);
	(void) tessera_pipe_send(&donor->pipe, &batch, &donor->payload);
	tessera_migration_slot_count(batch.rows, donor->payload.len, 0);
	charge_rate(donor, donor->payload.len);
	tessera_donor_has_sent(donor, donor->payload.len);
	return true;
}

/* The gate was opened again: an empty batch behind the last one says so. It answers no request. */
static bool
take_back_last(TesseraDonor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_MODS_BATCH, .table = -1};

	if (!donor->taken_back || donor->pipe.rest != NULL)
		return false;
	batch.lsn = donor->sent;
	(void) tessera_pipe_send(&donor->pipe, &batch, NULL);
	donor->taken_back = false;
	return true;
}

/* Answers a request for changes, if there are any or the recipient has not heard from us for a while. */
static bool
serve_mods(TesseraDonor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_MODS_BATCH, .table = -1};
	XLogRecPtr	lsn = donor->sent;
	XLogRecPtr	upto;
	bool		caught_up;

	if (!donor->clone_sent || donor->mods_requests.n == 0 || donor->taken_back || donor->pipe.rest != NULL || tessera_donor_rests(donor))
		return false;
	upto = donor->upto != InvalidXLogRecPtr ? donor->upto : GetFlushRecPtr(NULL);
	resetStringInfo(&donor->payload);
	/* the WAL reader keeps what it allocates in the current context */
	MemoryContextSwitchTo(donor->context);
	if (upto > donor->sent)
		batch.rows = tessera_capture_next(donor->capture, &donor->payload, (Size) tessera_migration_batch_size * 1024, upto, &lsn, &caught_up);
	if (batch.rows == 0)
	{
		/* nothing for the recipient but the position; frequent while the gate is closed */
		if (lsn <= donor->sent || (donor->upto == InvalidXLogRecPtr && tessera_ms_since(donor->last_empty) < EMPTY_MODS_MS))
		{
			donor->sent = Max(donor->sent, lsn);
			return false;
		}
		donor->last_empty = tessera_now();
		resetStringInfo(&donor->payload);
	}
	/* nothing but the position, to a recipient that has nothing else to do: its answer takes what the network takes */
	if (batch.rows == 0 && donor->probe == InvalidXLogRecPtr && donor->applied >= donor->batch_sent)
	{
		donor->probe = lsn;
		donor->probe_sent = tessera_now();
	}
	donor->sent = Max(donor->sent, lsn);
	if (batch.rows > 0)
		donor->batch_sent = donor->sent;
	batch.lsn = donor->sent;
	batch.sequence = pop(&donor->mods_requests);
	(void) tessera_pipe_send(&donor->pipe, &batch, &donor->payload);
	tessera_migration_slot_count(0, donor->payload.len, batch.rows);
	return true;
}

XLogRecPtr
tessera_donor_send_last(TesseraDonor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_MODS_BATCH, .table = -1, .last = true};

	donor->sent = Max(donor->sent, donor->upto) + 1;
	batch.lsn = donor->sent;
	batch.sequence = pop(&donor->mods_requests);
	(void) tessera_pipe_send(&donor->pipe, &batch, NULL);
	return donor->sent;
}


/* Beside serving: limits, status, lag, progress */

static void
sample_lag(TesseraDonor *donor)
{
	TimestampTz now = tessera_now();
	XLogRecPtr	flushed = GetFlushRecPtr(NULL);
	int			reached = 0;
	double		lag;

	/* The oldest position that the recipient has not reached tells since when it is behind. */
	while (reached < donor->nsamples && donor->samples[reached].lsn <= donor->applied)
		reached++;
	memmove(donor->samples, donor->samples + reached, sizeof(donor->samples[0]) * (donor->nsamples - reached));
	donor->nsamples -= reached;
	if (flushed > donor->applied && donor->nsamples < LAG_SAMPLES &&
		(donor->nsamples == 0 || flushed > donor->samples[donor->nsamples - 1].lsn))
	{
		donor->samples[donor->nsamples].at = now;
		donor->samples[donor->nsamples++].lsn = flushed;
	}
	lag = donor->nsamples == 0 ? 0 : (now - donor->samples[0].at) / 1000.0;

	tessera_migration_slot_lock();
	tessera_my_migration->lag_ms = donor->mods_begun ? lag : -1;
	tessera_my_migration->backlog = tessera_capture_backlog(donor->capture);
	tessera_migration_slot_unlock(false);
}

static void
check_limits(TesseraDonor *donor)
{
	tessera_background_handle_interrupts();
	if (tessera_migration_slot_cancelled())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("migration was cancelled")));
	if (tessera_migration_timeout > 0 && tessera_ms_since(donor->started) > tessera_migration_timeout)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("migration took longer than tessera.migration_timeout"),
				 tessera_my_migration->waiting_for[0] ? errdetail("It waited for: %s.", tessera_my_migration->waiting_for) : 0));
	if (donor->capture != NULL && tessera_migration_max_backlog > 0 &&
		tessera_my_migration->backlog / 1024 > (uint64) tessera_migration_max_backlog)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("the migration's backlog of changes exceeds tessera.migration_max_backlog"),
				 errdetail("%llu kB of WAL are left to be decoded.", (unsigned long long) tessera_my_migration->backlog / 1024),
				 errhint("Raise tessera.migration_max_backlog, move a smaller range, or move it at a quieter time.")));
}

static void
raise_recipients_error(const TesseraRecipientStatusAnswer *status)
{
	const char *state = status->sqlstate;

	if (state != NULL && strlen(state) == 5)
		ereport(ERROR,
				(errcode(MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4])),
				 errmsg("%s", status->message),
				 status->detail && status->detail[0] ? errdetail("%s", status->detail) : 0,
				 status->hint && status->hint[0] ? errhint("%s", status->hint) : 0));
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the recipient's worker has ended")));
}

/* It may be restarting or stand still: not for long. */
static void
wait_for_recipient(TesseraDonor *donor)
{
	if (donor->status_lost == 0)
		donor->status_lost = tessera_now();
	if (tessera_ms_since(donor->status_lost) > LOST_MS)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the recipient has not answered for %d s", LOST_MS / 1000),
				 errhint("Check that its node runs; then start the migration again.")));
	tessera_migration_slot_waiting("recipient: its node does not answer");
}

static void
ask_status(TesseraDonor *donor)
{
	TimestampTz asked = tessera_now();
	TesseraRecipientStatusAnswer status;
	bool		reached;

	reached = tessera_call_recipient_status(tessera_ask(tessera_within(tessera_to_node(donor->row->peer), STATUS_MS), TESSERA_TOLERATE_LOSS),
											&donor->row->migration_id, &status);
	donor->status_ms = Min(donor->status_ms * 2, MAX_STATUS_MS);
	donor->status_due = TimestampTzPlusMilliseconds(tessera_now(), donor->status_ms);
	if (!reached)
	{
		wait_for_recipient(donor);
		return;
	}
	donor->status_lost = 0;
	tessera_round_trip_note(&donor->recipient, asked);
	if (status.live_null)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the recipient no longer knows the migration")));
	if (!status.live)
		raise_recipients_error(&status);
	tessera_donor_note_recipient(donor, status.burden, status.burden_text);
	if (donor->yield.rests)
		return;
	if (tessera_my_migration->state == TESSERA_CLONING || strncmp(tessera_my_migration->waiting_for, "recipient: ", 11) == 0)
		tessera_migration_slot_waiting(status.waiting_for != NULL && status.waiting_for[0] != '\0' ?
									   psprintf("recipient: %s", status.waiting_for) : NULL);
}

void
tessera_donor_poll_status(TesseraDonor *donor)
{
	MemoryContext caller;

	if (tessera_now() < donor->status_due)
		return;
	caller = MemoryContextSwitchTo(donor->scratch);
	ask_status(donor);
	MemoryContextSwitchTo(caller);
}

bool
tessera_donor_tell_progress(TesseraDonor *donor, bool now)
{
	const TesseraMigrationSlot *slot = tessera_my_migration;
	TimestampTz asked = tessera_now();
	MemoryContext caller;
	bool		told;

	if (!now && tessera_now() < donor->progress_due)
		return true;
	caller = MemoryContextSwitchTo(donor->scratch);
	told = tessera_call_migration_progress(tessera_ask(tessera_within(tessera_to_config(), TELL_MS), TESSERA_TOLERATE_ERRORS),
										   &donor->row->migration_id,
										   tessera_migration_state_name(slot->state), slot->rows, slot->bytes, slot->mods, NULL, NULL,
										   slot->waiting_for[0] ? pstrdup(slot->waiting_for) : NULL,
										   donor->rows_total < 0 ? NULL : &donor->rows_total);
	if (told)
		tessera_round_trip_note(&donor->config, asked);
	donor->progress_due = TimestampTzPlusMilliseconds(tessera_now(), told ? PROGRESS_MS : PROGRESS_PAUSE_MS);
	MemoryContextSwitchTo(caller);
	return told;
}

/* Behind the gate the rest is compared in one; while the recipient is far behind, what is compared would only change again. */
static bool
may_compare(const TesseraDonor *donor)
{
	return donor->upto == InvalidXLogRecPtr && tessera_my_migration->lag_ms >= 0 && tessera_my_migration->lag_ms <= COMPARE_LAG_MS;
}

/* Goes on with the comparison of changed keys; true if something was done. */
static bool
compare(TesseraDonor *donor)
{
	TesseraMessage message;
	StringInfoData payload;

	if (!tessera_verify_round_ready(donor->verify, donor->sent))
		return may_compare(donor) && tessera_verify_begin_round(donor->verify);
	if (donor->pipe.rest != NULL)
		return false;
	initStringInfo(&payload);
	if (tessera_verify_write_round(donor->verify, &message, &payload))
		(void) tessera_pipe_send(&donor->pipe, &message, &payload);
	return true;
}

void
tessera_donor_turn(TesseraDonor *donor, long sleep_ms)
{
	bool		busy;

	MemoryContextReset(donor->scratch);
	MemoryContextSwitchTo(donor->scratch);
	check_limits(donor);
	busy = receive(donor);
	(void) tessera_pipe_flush(&donor->pipe);
	busy |= serve_clone(donor);
	busy |= take_back_last(donor);
	busy |= serve_mods(donor);
	if (donor->verify != NULL && donor->mods_begun)
		busy |= compare(donor);
	sample_lag(donor);
	tessera_migration_slot_note_memory();
	MemoryContextSwitchTo(donor->context);
	if (!busy)
		(void) tessera_exchange_wait(donor->pipe.exchange, donor->pipe.rest != NULL, sleep_ms);
}
