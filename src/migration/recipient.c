/*
 * recipient.c
 *	  The recipient's side of a running migration: from its row to the outcome.
 *
 * Phases: receive (rows that an older deletion left in the range are deleted, the range becomes a deletion range, older holders are waited for), pull
 * the clone with several requests in flight, pull the changes, confirm, wait for the outcome.
 *
 * Each batch is applied in a transaction that first locks this migration's row and checks its state: a worker that was stopped, and wakes when the
 * migration was aborted long ago, finds no row and ends (doc/design.md#late-batches). Transactions of the clone and of changes need not be flushed;
 * the confirmation's is, and covers them.
 *
 * Locks: RowExclusiveLock on the tables inside a batch's transaction, which never waits for the donor. A crash leaves the recipient row and, in the
 * tables, rows of a deletion range; the donor aborts, or the outcome is asked for (migration_recovery.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/placement_ranges.h"
#include "common/injection.h"
#include "common/text.h"
#include "failover/standby.h"
#include "migration/donor.h"
#include "migration/migration_outcome.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "migration/placement_change.h"
#include "migration/range_deleter.h"
#include "migration/recipient.h"
#include "transaction/background.h"
#include "transfer/lock_holders.h"
#include "transfer/pipe.h"
#include "transfer/transfer.h"
#include "transfer/verify.h"

#define REQUESTS 4				/* in flight */
#define RECEIVE_MS 100
#define SILENCE_MS 1000			/* a donor that is silent for so long is shown as waited for */
#define OUTCOME_MS 500			/* asks for the outcome so often if it is not told */
#define STANDBY_POLL_MS 20
#define LOCK_HOLDERS_MS 3000			/* waits for older holders so long at most */
#define LOCKERS_POLL_MS 10

typedef struct Recipient
{
	MemoryContext context;		/* lives as long as the migration runs */
	MemoryContext scratch;		/* reset at each batch */
	TesseraMigrationRow *row;
	TesseraMovingRanges *moving;
	TesseraPipe pipe;
	TesseraApplier *applier;
	int64		sequence;		/* of the last request */
	bool		in_batch;		/* a transaction is open */
	Size		batch_bytes;
	XLogRecPtr	applied;
	TimestampTz standby_lags;	/* since then a standby has not flushed what was to be confirmed, in one attempt or several; 0: all have */
} Recipient;


/* Receive */

/*
 * Waits a while for transactions that may have planned without the ownership filter (doc/design.md#old-plans). Not for ever: a statement's check
 * compares its plan with the placement, and has it planned again (executor/shard_check.c).
 */
static void
await_older_lock_holders(Recipient *recipient)
{
	int			n;
	Oid		   *relids = tessera_moving_relids(recipient->moving, &n);
	TesseraLockHolders *holders = tessera_lock_holders_collect(n, relids, AccessExclusiveLock);
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOCK_HOLDERS_MS);
	char		who[TESSERA_HOLDER_TEXT];

	while (tessera_lock_holders_left(holders, who, sizeof(who)) && GetCurrentTimestamp() < deadline)
	{
		tessera_migration_slot_waiting(who);
		tessera_background_sleep(LOCKERS_POLL_MS);
	}
	tessera_migration_slot_waiting(NULL);
}

/*
 * A migration that was ended, but whose end has not come here yet, would go on applying to our range: it is ended here, too. The config node lets no
 * two run that have a range in common, so none can follow.
 */
static void
end_others(Recipient *recipient)
{
	const TesseraOperationRange *moving = recipient->row->ranges;

	for (int r = 0; r < recipient->row->nranges; r++)
	{
		const TesseraGroup *group;
		const TesseraRouting *routing;
		TesseraRange *ranges;
		pg_uuid_t  *ids;
		bool	   *overlaps;
		int			n;

		tessera_background_begin();
		routing = tessera_background_group(&moving[r].group_id, &group);
		MemoryContextSwitchTo(recipient->context);
		ranges = tessera_received_ranges(&moving[r].group_id, &recipient->row->migration_id, &ids, &n);
		overlaps = palloc(sizeof(bool) * Max(n, 1));
		for (int i = 0; i < n; i++)
			overlaps[i] = tessera_ranges_overlap(tessera_group_keyspace(routing, group), 1, &ranges[i], &moving[r].range);
		tessera_background_commit();
		for (int i = 0; i < n; i++)
			if (overlaps[i] && !tessera_outcome_follow(&ids[i]))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("migration %s has not ended on the recipient", tessera_uuid_text(&ids[i])),
						 errhint("Look at tessera.migrations.")));
	}
}

static void
register_range(Recipient *recipient)
{
	end_others(recipient);
	for (;;)
	{
		bool		done;

		tessera_background_begin();
		done = tessera_placement_begin_reception(recipient->row);
		tessera_background_commit();
		if (done)
			break;
		/* S65: what an older migration left here goes first; no transaction has to be waited for, and no delay observed */
		tessera_migration_slot_waiting("deletion of the range's older rows");
		tessera_delete_overlap(recipient->row);
	}
	tessera_migration_slot_waiting(NULL);
	tessera_injection("recipient_registered");
	await_older_lock_holders(recipient);
	tessera_migration_slot_enter(TESSERA_RECEIVING);
}


/* Pull */

/* Between batches, and while the donor is waited for. */
static void
check_limits(void)
{
	tessera_background_handle_interrupts();
	if (tessera_migration_slot_cancelled())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("migration was cancelled")));
	if (tessera_migration_timeout > 0 && TimestampDifferenceExceeds(tessera_my_migration->started, GetCurrentTimestamp(), tessera_migration_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("migration took longer than tessera.migration_timeout"),
				 errdetail("The recipient has waited that long.")));
}

static void
begin_batch(Recipient *recipient)
{
	TesseraMigrationRow *row;

	if (recipient->in_batch)
		return;
	tessera_background_begin();
	tessera_background_commit_lazily();
	recipient->in_batch = true;
	recipient->batch_bytes = 0;
	/* before the row: the process that ends the migration does not wait for these */
	for (int i = 0; i < recipient->moving->ntables; i++)
		tessera_lock_table_by_retry(recipient->moving->tables[i].relid, RowExclusiveLock);
	row = tessera_migration_row(TESSERA_RECIPIENT, &recipient->row->migration_id, true);
	if (row == NULL || row->state != TESSERA_RECEIVING)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("the migration was ended while it was receiving")));
	if (recipient->applier == NULL)
	{
		MemoryContextSwitchTo(recipient->context);
		recipient->applier = tessera_applier_begin(recipient->moving);
	}
}

static void
commit_batch(Recipient *recipient)
{
	if (!recipient->in_batch)
		return;
	tessera_migration_slot_note_memory();
	tessera_injection("recipient_batch");
	if (recipient->applier != NULL)
		tessera_applier_end(recipient->applier);
	recipient->applier = NULL;
	tessera_background_commit();
	recipient->in_batch = false;
	MemoryContextSwitchTo(recipient->context);
}

static void
flush_pipe(Recipient *recipient)
{
	while (!tessera_pipe_flush(&recipient->pipe))
	{
		/* do not keep locks while waiting */
		commit_batch(recipient);
		(void) tessera_exchange_wait(recipient->pipe.exchange, true, RECEIVE_MS);
		check_limits();
	}
}

static void
request(Recipient *recipient, TesseraMessageKind kind)
{
	TesseraMessage message = {.kind = kind, .table = -1};

	message.sequence = ++recipient->sequence;
	message.lsn = recipient->applied;
	flush_pipe(recipient);
	(void) tessera_pipe_send(&recipient->pipe, &message, NULL);
}

/* After a commit of the clone: does not run ahead of the standbys (tessera.secondary_throttle), but does not wait for one for ever, either. */
static void
throttle(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_secondary_throttle_timeout);
	XLogRecPtr	lsn = XactLastCommitEnd;
	long		ms = 1;
	char		who[128];

	if (tessera_secondary_throttle == TESSERA_THROTTLE_OFF)
		return;
	XLogFlush(lsn);
	while (!tessera_standbys_have(lsn, tessera_secondary_throttle, who, sizeof(who)) && GetCurrentTimestamp() < deadline)
	{
		tessera_migration_slot_waiting(who);
		tessera_background_sleep(ms);
		check_limits();
		ms = Min(ms * 2, STANDBY_POLL_MS);
	}
	tessera_migration_slot_waiting(NULL);
}

static void
refuse_message(const TesseraMessage *message, TesseraMessageKind due)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("the donor sent a message of kind %d where one of kind %d was due", (int) message->kind, (int) due)));
}

/* The next message of the kind wanted; waits for it. */
static void
next_message(Recipient *recipient, TesseraMessageKind kind, TesseraMessage *message, const char **payload, Size *size)
{
	TimestampTz since = GetCurrentTimestamp();

	while (!tessera_pipe_receive(&recipient->pipe, message, payload, size))
	{
		/* nothing there: do not keep locks while waiting */
		commit_batch(recipient);
		check_limits();
		(void) tessera_pipe_flush(&recipient->pipe);
		if (!tessera_exchange_wait(recipient->pipe.exchange, recipient->pipe.rest != NULL, RECEIVE_MS) &&
			TimestampDifferenceExceeds(since, GetCurrentTimestamp(), SILENCE_MS))
			tessera_migration_slot_waiting("next batch of the donor");
	}
	tessera_migration_slot_waiting(NULL);
	check_limits();
	if (message->kind != kind &&
		!(kind == TESSERA_MSG_MODS_BATCH &&
		  (message->kind == TESSERA_MSG_VERIFY || (message->kind == TESSERA_MSG_CLONE_BATCH && message->rows == 0))))
		refuse_message(message, kind);
}

/* All that the donor has put into a batch was found in it. */
static void
check_count(const TesseraMessage *message, int64 found)
{
	if (found != message->rows)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("a batch of " INT64_FORMAT " rows or changes had " INT64_FORMAT, message->rows, found)));
}

/* The last batch of the clone has brought the donor's digests. */
static void
verify_clone(Recipient *recipient, const char *payload, Size size)
{
	tessera_migration_slot_waiting("comparison of the cloned rows with the donor's");
	tessera_verify_clone(recipient->moving, payload, size);
	tessera_migration_slot_waiting(NULL);
	MemoryContextSwitchTo(recipient->context);
}

static void
pull_clone(Recipient *recipient)
{
	TesseraMessage message;
	const char *payload;
	Size		size;

	for (int i = 0; i < REQUESTS; i++)
		request(recipient, TESSERA_MSG_CLONE_REQUEST);
	for (;;)
	{
		int64		rows = 0;

		next_message(recipient, TESSERA_MSG_CLONE_BATCH, &message, &payload, &size);
		if (message.last)
			break;
		request(recipient, TESSERA_MSG_CLONE_REQUEST);
		if (payload == NULL)
			continue;
		begin_batch(recipient);
		MemoryContextReset(recipient->scratch);
		MemoryContextSwitchTo(recipient->scratch);
		rows = tessera_apply_clone(recipient->applier, payload, size);
		MemoryContextSwitchTo(recipient->context);
		check_count(&message, rows);
		tessera_migration_slot_count(rows, size, 0);
		recipient->batch_bytes += size;
		if (recipient->batch_bytes >= (Size) tessera_migration_commit_size * 1024)
		{
			commit_batch(recipient);
			throttle();
		}
	}
	commit_batch(recipient);
	tessera_migration_slot_enter(TESSERA_APPLYING);
	tessera_injection("recipient_cloned");
	if (payload != NULL)
		verify_clone(recipient, payload, size);
}

/* The donor asks whether the rows of some keys, as the changes so far have left them, are the same as its own. */
static void
verify_keys(Recipient *recipient, const TesseraMessage *message, const char *payload, Size size)
{
	TesseraMessage answer = {.kind = TESSERA_MSG_VERIFIED, .table = -1, .sequence = message->sequence};

	tessera_injection(message->last ? "recipient_verify_rest" : "recipient_verify_round");
	tessera_verify_keys(recipient->moving, payload, size, message->last);
	MemoryContextSwitchTo(recipient->context);
	while (!tessera_pipe_flush(&recipient->pipe))
		(void) tessera_exchange_wait(recipient->pipe.exchange, true, RECEIVE_MS);
	(void) tessera_pipe_send(&recipient->pipe, &answer, NULL);
}

/* Returns the position of the last batch. */
static XLogRecPtr
pull_mods(Recipient *recipient)
{
	TesseraMessage message;
	const char *payload;
	Size		size;

	/* the donor may still answer requests for more of the clone: empty batches */
	for (;;)
	{
		next_message(recipient, TESSERA_MSG_MODS_BATCH, &message, &payload, &size);
		if (message.kind == TESSERA_MSG_VERIFY)
			verify_keys(recipient, &message, payload, size);
		if (message.kind != TESSERA_MSG_MODS_BATCH)
			continue;
		if (message.last)
			return message.lsn;
		if (payload != NULL)
		{
			int64		mods;

			begin_batch(recipient);
			MemoryContextReset(recipient->scratch);
			MemoryContextSwitchTo(recipient->scratch);
			mods = tessera_apply_mods(recipient->applier, payload, size);
			MemoryContextSwitchTo(recipient->context);
			check_count(&message, mods);
			commit_batch(recipient);
			tessera_migration_slot_count(0, size, mods);
		}
		recipient->applied = message.lsn;
		request(recipient, TESSERA_MSG_MODS_REQUEST);
	}
}


/* Confirm, and the end */

/*
 * The confirmation counts when a standby that is promoted instead of this server has it, too, and with it all rows: then the donor may delete its
 * own. The donor does not wait for long; false: it goes on already, or has gone.
 */
static bool
await_standbys(Recipient *recipient)
{
	XLogRecPtr	lsn = XactLastCommitEnd;
	char		who[128];

	while (!tessera_standbys_have(lsn, TESSERA_THROTTLE_FLUSH, who, sizeof(who)))
	{
		if (recipient->standby_lags == 0)
			recipient->standby_lags = GetCurrentTimestamp();
		if (TimestampDifferenceExceeds(recipient->standby_lags, GetCurrentTimestamp(), tessera_standby_flush_timeout))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a standby does not follow"),
					 errdetail("Waited for: %s.", who),
					 errhint("See pg_stat_replication; tessera.standby_flush_timeout limits the wait.")));
		tessera_migration_slot_waiting(who);
		if (tessera_exchange_wait(recipient->pipe.exchange, false, 1))
			return false;
	}
	recipient->standby_lags = 0;
	tessera_migration_slot_waiting(NULL);
	return true;
}

/* The two steps of the confirmation; false: the donor has given up waiting for it, and another process here knows. */
static bool
place_confirmation(Recipient *recipient, XLogRecPtr last)
{
	bool		done;

	tessera_background_begin();
	tessera_background_commit_lazily();
	done = tessera_placement_begin_confirmation(recipient->row, last);
	tessera_background_commit();
	if (!done)
		return false;
	tessera_migration_slot_enter(TESSERA_CONFIRMING);
	tessera_injection("recipient_confirming");

	/* from here on the outcome alone ends it */
	tessera_migration_ignore_cancel(true);
	tessera_background_begin();
	done = tessera_placement_confirm(recipient->row, last);
	tessera_background_commit();
	if (!done)
		return false;
	tessera_migration_slot_enter(TESSERA_CONFIRMED);
	tessera_injection("recipient_confirmed");
	return true;
}

static void
confirm(Recipient *recipient, XLogRecPtr last)
{
	tessera_injection("recipient_last");
	if (place_confirmation(recipient, last) && await_standbys(recipient))
		recipient->applied = last;
	request(recipient, TESSERA_MSG_MODS_REQUEST);
	while (!tessera_pipe_flush(&recipient->pipe))
		(void) tessera_exchange_wait(recipient->pipe.exchange, true, RECEIVE_MS);
}

/* The donor's gate is open again: the range is not ours, and changes of it will follow. */
static void
take_back(Recipient *recipient, XLogRecPtr last)
{
	tessera_background_begin();
	tessera_placement_undo_confirmation(recipient->row, last);
	tessera_background_commit();
	tessera_migration_ignore_cancel(false);
	tessera_migration_slot_enter(TESSERA_APPLYING);
	tessera_injection("recipient_taken_back");
}

/*
 * True if the donor has sent an empty batch of changes behind its last one. It only does that when it has opened its gate again. Not so its answers
 * to requests for more of the clone than there was: they may come as late as this. If the donor has gone, or sends something unexpected, *listening
 * becomes false: what the config node says counts.
 */
static bool
donor_goes_on(Recipient *recipient, volatile bool *listening)
{
	TesseraMessage message;
	const char *payload;
	Size		size;
	volatile bool goes_on = false;

	PG_TRY();
	{
		while (!goes_on && tessera_pipe_receive(&recipient->pipe, &message, &payload, &size))
		{
			goes_on = message.kind == TESSERA_MSG_MODS_BATCH && !message.last && payload == NULL;
			if (!goes_on && (message.kind != TESSERA_MSG_CLONE_BATCH || message.rows > 0))
				refuse_message(&message, TESSERA_MSG_MODS_BATCH);
		}
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_ADMIN_SHUTDOWN)
			PG_RE_THROW();
		MemoryContextSwitchTo(recipient->context);
		FlushErrorState();
		*listening = false;
	}
	PG_END_TRY();
	return goes_on;
}

/* Asks the config node for the outcome, and carries it out; errors are logged, and it is asked again later. */
static void
ask_for_outcome(Recipient *recipient)
{
	PG_TRY();
	{
		tessera_injection("recipient_asking");
		if (tessera_outcome_follow(&recipient->row->migration_id))
			tessera_migration_slot_completed(&recipient->row->migration_id);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_ADMIN_SHUTDOWN)
			PG_RE_THROW();
		MemoryContextSwitchTo(recipient->context);
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(recipient->context);
	}
	PG_END_TRY();
}

/*
 * Another process carries the outcome out here (internal_release_recipient), or this one asks for it. false: there is none yet, the donor has opened
 * its gate again.
 */
static bool
await_outcome(Recipient *recipient)
{
	TimestampTz ask = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), OUTCOME_MS);
	volatile bool listening = true;

	tessera_migration_slot_waiting("the outcome of the migration");
	while (!((volatile TesseraMigrationSlot *) tessera_my_migration)->completed)
	{
		if (listening && donor_goes_on(recipient, &listening))
			return false;
		if (listening)
			(void) tessera_exchange_wait(recipient->pipe.exchange, false, OUTCOME_MS);
		else
			tessera_background_sleep(OUTCOME_MS);
		tessera_background_handle_interrupts();
		if (GetCurrentTimestamp() < ask)
			continue;
		ask_for_outcome(recipient);
		ask = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), OUTCOME_MS);
	}
	tessera_background_refresh();
	tessera_injection("recipient_released");
	return true;
}

static void
connect_to_donor(Recipient *recipient)
{
	TesseraExchangeKeys keys;
	TesseraMigrationSlot slot = *tessera_my_migration;

	strlcpy(keys.public_key, slot.public_key, sizeof(keys.public_key));
	strlcpy(keys.secret_key, slot.secret_key, sizeof(keys.secret_key));
	tessera_pipe_init(&recipient->pipe, tessera_exchange_connect(slot.endpoint, &keys, slot.peer_key), &recipient->row->migration_id);
	explicit_bzero(&keys, sizeof(keys));
	explicit_bzero(&slot, sizeof(slot));
}

void
tessera_recipient_run(const pg_uuid_t *migration_id)
{
	Recipient  *recipient = palloc0(sizeof(Recipient));

	recipient->context = CurrentMemoryContext;
	recipient->scratch = AllocSetContextCreate(recipient->context, "tessera recipient batch", ALLOCSET_DEFAULT_SIZES);
	tessera_background_begin();
	MemoryContextSwitchTo(recipient->context);
	recipient->row = tessera_migration_row(TESSERA_RECIPIENT, migration_id, false);
	if (recipient->row != NULL)
		recipient->moving = tessera_moving_ranges(migration_id, recipient->row->nranges, recipient->row->ranges);
	tessera_background_commit();
	if (recipient->row == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("the migration was ended before it began")));
	tessera_background_require_incarnation(recipient->row->recipient_incarnation);

	PG_TRY();
	{
		connect_to_donor(recipient);
		register_range(recipient);
		pull_clone(recipient);
		request(recipient, TESSERA_MSG_MODS_REQUEST);
		request(recipient, TESSERA_MSG_MODS_REQUEST);
		for (;;)
		{
			XLogRecPtr	last = pull_mods(recipient);

			confirm(recipient, last);
			if (await_outcome(recipient))
				break;
			take_back(recipient, last);
		}
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(recipient->context);
		error = CopyErrorData();
		FlushErrorState();
		tessera_pipe_fail(&recipient->pipe, error);
		ReThrowError(error);
	}
	PG_END_TRY();
	tessera_exchange_close(recipient->pipe.exchange);
}
