/*
 * donor_yield.c
 *	  How a move that the balancer has begun makes way: for its share of tessera.balancer_max_rate, for standbys that do not follow, and for clients
 *	  whose transactions take longer (doc/design.md#moves-make-way).
 *
 * The donor decides for both sides: the recipient says with its status who suffers there. While the clone is handed out the donor rests between
 * batches, at most a second at a time; once changes are handed out it rests for standbys alone: changes are what clients write, and to hand them out
 * later spares nobody. With half of tessera.migration_max_backlog to decode it makes way no more, so that a move never ends by its own patience.
 *
 * Memory: the donor's struct. Locks: none. The config node is asked only while it does not keep the decision.
 */
#include "postgres.h"

#include "control/calls.h"
#include "migration/donor_private.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"

#define RATE_MS 1000			/* reports what was sent, and asks for its share, so often */
#define RATE_ANSWER_MS 2000
#define RATE_PAUSE_MS 10000		/* not so soon again if the config node does not answer */
#define LOOK_MS 500				/* looks so often who suffers; what is measured is over two seconds */
#define FIRST_REST_MS 50
#define LONGEST_REST_MS 1000
#define LEAST_BATCH 64			/* kB */
#define LEAST_PACED 8192		/* bytes: of a batch at a low rate */


/* tessera.balancer_max_rate */

/* What is paid off at the rate since the last look. */
static void
pay_off(TesseraYield *yield)
{
	TimestampTz now = tessera_now();

	yield->debt = Max(yield->debt - yield->rate * ((now - yield->debt_at) / 1000000.0), 0);
	yield->debt_at = now;
	if (yield->rate == 0)
		yield->debt = 0;
}

void
tessera_donor_ask_rate(TesseraDonor *donor)
{
	TesseraYield *yield = &donor->yield;
	int64		sent = tessera_my_migration->bytes;
	TimestampTz now = tessera_now();
	double		seconds = (now - yield->reported) / 1000000.0;
	MemoryContext caller;
	bool		told;

	if (!donor->row->yields || now < yield->rate_due)
		return;
	caller = MemoryContextSwitchTo(donor->scratch);
	pay_off(yield);
	told = tessera_call_move_rate(tessera_ask(tessera_within(tessera_to_config(), RATE_ANSWER_MS), TESSERA_TOLERATE_ERRORS),
								  &donor->row->migration_id, yield->reported == 0 ? 0 : (sent - yield->reported_bytes) / Max(seconds, 0.001),
								  &yield->rate);
	if (told)
	{
		yield->reported = now;
		yield->reported_bytes = sent;
	}
	yield->rate_due = TimestampTzPlusMilliseconds(tessera_now(), told ? RATE_MS : RATE_PAUSE_MS);
	MemoryContextSwitchTo(caller);
}


/* Who suffers */

static void
adjust(TesseraYield *yield, bool clients_suffer)
{
	int			most = tessera_migration_batch_size;

	if (yield->batch == 0 || yield->batch > most)
		yield->batch = most;
	if (clients_suffer)
	{
		yield->batch = Max(yield->batch / 2, Min(LEAST_BATCH, most));
		yield->rest_ms = Min(Max(yield->rest_ms * 2, FIRST_REST_MS), LONGEST_REST_MS);
	}
	else
	{
		yield->batch = Min(yield->batch * 2, most);
		yield->rest_ms = yield->rest_ms <= FIRST_REST_MS ? 0 : yield->rest_ms / 2;
	}
}

static void
look(TesseraDonor *donor)
{
	TesseraYield *yield = &donor->yield;
	char		text[TESSERA_BURDEN_TEXT];

	if (tessera_now() < yield->look_due)
		return;
	yield->look_due = TimestampTzPlusMilliseconds(tessera_now(), LOOK_MS);
	yield->burden = tessera_shard_burden(text);
	snprintf(yield->who, sizeof(yield->who), "donor: %s", text);
	if (yield->recipients > yield->burden)
	{
		yield->burden = yield->recipients;
		snprintf(yield->who, sizeof(yield->who), "recipient: %s", yield->recipients_text);
	}
	adjust(yield, yield->burden == TESSERA_BURDEN_CLIENTS);
}

void
tessera_donor_note_recipient(TesseraDonor *donor, int32 burden, const char *text)
{
	donor->yield.recipients = (TesseraBurden) burden;
	strlcpy(donor->yield.recipients_text, text != NULL ? text : "", sizeof(donor->yield.recipients_text));
}


/* Resting */

/* So much is, or was, left to be decoded that waiting longer might end the move. */
static bool
is_late(TesseraYield *yield)
{
	if (tessera_migration_max_backlog > 0 && tessera_my_migration->backlog / 1024 > (uint64) tessera_migration_max_backlog / 2)
		yield->late = true;
	return yield->late;
}

/* So little is left to be handed out that the move is better ended. */
static bool
is_near_its_end(const TesseraDonor *donor)
{
	return donor->clone_sent && tessera_my_migration->backlog <= (uint64) tessera_migration_batch_size * 1024;
}

/* What it rests for; NULL: it does not. */
static const char *
reason_to_rest(TesseraDonor *donor)
{
	TesseraYield *yield = &donor->yield;

	if (is_late(yield) || is_near_its_end(donor))
		return NULL;
	look(donor);
	if (yield->burden == TESSERA_BURDEN_STANDBY)
		return yield->who;
	if (donor->clone_sent)
		return NULL;
	if (tessera_now() < yield->rest_until)
		return yield->burden == TESSERA_BURDEN_CLIENTS ? yield->who : yield->why;
	pay_off(yield);
	return yield->debt > 0 ? "its share of tessera.balancer_max_rate" : NULL;
}

bool
tessera_donor_rests(TesseraDonor *donor)
{
	TesseraYield *yield = &donor->yield;
	const char *why;

	if (!donor->row->yields || donor->upto != InvalidXLogRecPtr || donor->held_since != 0)
		return false;
	why = reason_to_rest(donor);
	if (why != NULL)
	{
		if (why != yield->why)
			strlcpy(yield->why, why, sizeof(yield->why));
		tessera_migration_slot_waiting(why);
	}
	else if (yield->rests)
		tessera_migration_slot_waiting(NULL);
	yield->rests = why != NULL;
	return yield->rests;
}

Size
tessera_donor_batch_size(TesseraDonor *donor)
{
	TesseraYield *yield = &donor->yield;
	Size		size = (Size) tessera_migration_batch_size * 1024;

	if (!donor->row->yields || yield->late)
		return size;
	if (yield->batch > 0)
		size = Min(size, (Size) yield->batch * 1024);
	if (yield->rate > 0)
		size = Min(size, (Size) Max(yield->rate, LEAST_PACED));
	return size;
}

void
tessera_donor_has_sent(TesseraDonor *donor, Size bytes)
{
	TesseraYield *yield = &donor->yield;

	if (!donor->row->yields)
		return;
	if (yield->rate > 0)
		yield->debt += bytes;
	yield->rest_until = yield->rest_ms == 0 ? 0 : TimestampTzPlusMilliseconds(tessera_now(), yield->rest_ms);
}
