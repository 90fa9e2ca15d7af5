/*
 * migration_process.c
 *	  What the process of a migration does, on either side, until the migration has ended.
 *
 * Donor: run to the decision; then, whatever happened, complete the migration, and try again while a node cannot be reached. Recipient: run; after an
 * error the donor completes the migration.
 *
 * A request to cancel arrives as SIGINT, so that it ends any wait; it is ignored once only the config node can end the migration.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/migration_row.h"
#include "common/errors.h"
#include "common/text.h"
#include "control/calls.h"
#include "failover/promotion.h"
#include "migration/donor.h"
#include "migration/migration.h"
#include "migration/migration_outcome.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "migration/recipient.h"
#include "transaction/background.h"
#include "transaction/participant.h"
#include "transfer/lock_holders.h"
#include "transfer/transfer.h"

#define FIRST_PAUSE 500L
#define LONGEST_PAUSE 30000L
#define GATE_PAUSE 1000L		/* while the gate is closed: others wait for the end */
#define EXPLAIN_MS 2000			/* the recipient's node gets so long to say why its worker has ended */
#define EXPLAIN_POLL_MS 50

static volatile sig_atomic_t ignores_cancel = false;


void
tessera_migration_ignore_cancel(bool ignore)
{
	ignores_cancel = ignore;
	if (ignore)
		QueryCancelPending = false;
}

void
tessera_migration_interrupt(SIGNAL_ARGS)
{
	int			saved_errno = errno;

	if (!ignores_cancel)
	{
		InterruptPending = true;
		QueryCancelPending = true;
	}
	SetLatch(MyLatch);
	errno = saved_errno;
}

/* Takes the current error, in the context given; ends the transaction it happened in. */
static ErrorData *
take_error(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	EmitErrorReport();
	error = CopyErrorData();
	FlushErrorState();
	HOLD_INTERRUPTS();
	AbortOutOfAnyTransaction();
	LWLockReleaseAll();
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	RESUME_INTERRUPTS();
	MemoryContextSwitchTo(context);
	return error;
}

/* The worker was asked to end: the reason is who asked, not the call that it happened to be in. */
static void
explain_cancellation(ErrorData *error)
{
	const char *by = tessera_my_migration->cancelled_by;

	if (!tessera_migration_slot_cancelled() || error->sqlerrcode != ERRCODE_QUERY_CANCELED)
		return;
	error->message = "migration was cancelled";
	if (by[0] == '\0')
		return;
	error->sqlerrcode = ERRCODE_OBJECT_IN_USE;
	error->message = psprintf("migration was cancelled: %s was in its way", by);
	error->hint = "Start it again when the statement's transaction has ended.";
}

/* Node of the other side; 0: the migration's row is gone. */
static int32
peer_of(const pg_uuid_t *migration_id)
{
	TesseraMigrationRow *row;
	int32		peer;

	tessera_background_begin();
	row = tessera_migration_row(TESSERA_DONOR, migration_id, false);
	peer = row != NULL ? row->peer : 0;
	tessera_background_commit();
	return peer;
}

/*
 * The connection to the recipient was lost: why, only the recipient's node knows. Its answer takes the place of the error; if there is none, that
 * stays, with a note. While the gate is closed there is no time for that: others wait for its opening.
 */
static void
explain_loss(const pg_uuid_t *migration_id, ErrorData *error, bool gate_closed)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(tessera_now(), EXPLAIN_MS);
	int32		peer;
	TesseraRecipientStatusAnswer status = {0};

	if (gate_closed || tessera_migration_slot_cancelled() || !tessera_error_is_unreachable(error->sqlerrcode))
		return;
	peer = peer_of(migration_id);
	/* its worker may be about to end */
	while (peer != 0 && tessera_now() < deadline)
	{
		if (!tessera_call_recipient_status(tessera_ask(tessera_within(tessera_to_node(peer), EXPLAIN_MS), TESSERA_TOLERATE_ERRORS), migration_id,
										   &status))
		{
			error->hint = pstrdup("Its node cannot be asked for the reason: see its server's log.");
			return;
		}
		if (status.sqlstate != NULL || !status.live)
			break;
		tessera_background_sleep(EXPLAIN_POLL_MS);
	}
	if (status.sqlstate == NULL || strlen(status.sqlstate) != 5)
		return;
	error->sqlerrcode = MAKE_SQLSTATE(status.sqlstate[0], status.sqlstate[1], status.sqlstate[2], status.sqlstate[3], status.sqlstate[4]);
	error->message = status.message != NULL ? status.message : error->message;
	error->detail = status.detail;
	error->hint = status.hint;
}

/* The same, errors caught: what is known must not get lost. */
static void
try_explain_loss(const pg_uuid_t *migration_id, ErrorData *error, bool gate_closed, MemoryContext context)
{
	PG_TRY();
	{
		explain_loss(migration_id, error, gate_closed);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_ADMIN_SHUTDOWN)
			PG_RE_THROW();
		FreeErrorData(take_error(context));
	}
	PG_END_TRY();
}

static void
run_donor(const pg_uuid_t *migration_id, MemoryContext context)
{
	MemoryContext running = AllocSetContextCreate(context, "tessera donor", ALLOCSET_DEFAULT_SIZES);
	TesseraDonorResult known = {.pause_ms = -1,.context = context};
	volatile long pause = FIRST_PAUSE;

	PG_TRY();
	{
		MemoryContextSwitchTo(running);
		tessera_donor_run(migration_id, &known);
	}
	PG_CATCH();
	{
		ErrorData  *error = take_error(context);

		tessera_release_held();	/* the fence would wait for it */
		try_explain_loss(migration_id, error, known.gate_closed != 0, context);
		explain_cancellation(error);
		known.error = tessera_outcome_error(unpack_sql_state(error->sqlerrcode), error->message ? error->message : "unknown error", error->detail);
		tessera_migration_slot_result(TESSERA_RESULT_NONE, error);
	}
	PG_END_TRY();
	tessera_migration_ignore_cancel(true);
	MemoryContextSwitchTo(context);
	MemoryContextDelete(running);	/* closes the exchange */

	for (;;)
	{
		volatile bool done = false;

		PG_TRY();
		{
			(void) tessera_outcome_complete_donor(migration_id, &known);
			done = true;
		}
		PG_CATCH();
		{
			FreeErrorData(take_error(context));
		}
		PG_END_TRY();
		if (done)
			return;
		tessera_migration_slot_waiting("end of the migration: a node cannot be reached");
		tessera_background_sleep(pause);
		pause = Min(pause * 2, known.gate_closed != 0 ? GATE_PAUSE : LONGEST_PAUSE);
	}
}

static void
run_recipient(const pg_uuid_t *migration_id, MemoryContext context)
{
	MemoryContext running = AllocSetContextCreate(context, "tessera recipient", ALLOCSET_DEFAULT_SIZES);

	PG_TRY();
	{
		MemoryContextSwitchTo(running);
		tessera_recipient_run(migration_id);
	}
	PG_CATCH();
	{
		tessera_migration_slot_result(TESSERA_RESULT_NONE, take_error(context));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	MemoryContextDelete(running);
}

void
tessera_migration_run(int slot, uint32 generation)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tessera migration", ALLOCSET_DEFAULT_SIZES);
	pg_uuid_t	migration_id;

	if (!tessera_migration_slot_attach(slot, generation))
		return;
	migration_id = tessera_my_migration->migration_id;
	MemoryContextSwitchTo(context);
	pgstat_report_activity(STATE_RUNNING, psprintf("%s of migration %s", tessera_my_migration->side == TESSERA_DONOR ? "donor" : "recipient",
												   tessera_uuid_text(&migration_id)));
	/* a lock that another transaction holds for long ends the migration */
	SetConfigOption("lock_timeout", psprintf("%d", tessera_migration_lock_timeout), PGC_USERSET, PGC_S_SESSION);
	/* what decoding collects of transactions that have not ended */
	SetConfigOption("logical_decoding_work_mem", psprintf("%d", tessera_migration_memory), PGC_USERSET, PGC_S_SESSION);
	if (tessera_my_migration->side == TESSERA_DONOR)
		run_donor(&migration_id, context);
	else
		run_recipient(&migration_id, context);
}
