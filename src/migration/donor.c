/*
 * donor.c
 *	  The donor's side of a running migration: from the coordinator row to the decision.
 *
 * Phases, one function each (fsm.c has the table): prepare (registered), start (starting), then one loop that serves the recipient's requests and, while it
 * does, moves on: clone, catch up, wait until the pause will be short, close the gates, hand over. The end of every migration, good or bad, is in settle.c.
 *
 * The process holds one open transaction while it clones: its snapshot is the slot's. In it nothing is written; status is asked and progress reported over
 * the control lane. After it, each durable step is a transaction of its own.
 *
 * Locks: AccessShareLock on the tables while cloning; the placement row only inside the steps (place.c). No lock is held across a call of another node but the
 * clone's.
 *
 * Interleavings. (A writer before the flag) it does not take the gate lock; its changes are in the slot, and the gate is not closed before it has ended:
 * the transactions that hold the tables when the flag went up are remembered and waited for beside the clone. (A writer between the flag and the gate)
 * takes the gate lock, reads the gate open, writes; the mover finds it among the lock's holders after it has closed the gate, and waits. (A writer at
 * the closing) takes the lock, reads the gate again: closed, it lets go and waits; or still open, then the mover, who looks after closing, sees it.
 *
 * A crash leaves the coordinator row; recovery settles the migration.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "replication/message.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/injection.h"
#include "migration/address.h"
#include "migration/data.h"
#include "migration/describe.h"
#include "migration/donor.h"
#include "migration/lockers.h"
#include "migration/pipe.h"
#include "migration/place.h"
#include "migration/settings.h"
#include "migration/slot.h"
#include "migration/work.h"
#include "routing/gate.h"

#define MAX_REQUESTS 64			/* not answered at a time, of each kind */
#define EMPTY_MODS_MS 5			/* an answer without changes at most so often */
#define IDLE_MS 10				/* looks for new WAL so often */
#define PROGRESS_MS 2000		/* tells the config node so often */
#define MAX_STATUS_MS 1024		/* S50 */
#define CONFIRM_MS 10000		/* for the recipient's confirmation */
#define GATE_DUTY 20			/* the gate is closed at most 1/20 of the time */
#define BLOCKED_MS 10			/* a writer inside that waits for a lock so long makes the gate open again */
#define LAG_SAMPLES 64
#define GIVE_WAY_MS 200		/* while cloning: looks so often whether somebody waits for the tables */

typedef struct Requests
{
	int			n;
	int64		sequence[MAX_REQUESTS];
} Requests;

typedef struct Donor
{
	MemoryContext context;		/* of this struct: lives as long as the migration runs */
	MemoryContext scratch;		/* reset at each turn of the loop */
	TesseraMigrationRow *row;
	TesseraMovingRange *range;
	TesseraSettle *known;

	/* data */
	TesseraExchangeKeys keys;
	TesseraPipe pipe;
	TesseraCapture *capture;
	TesseraCloneReader *reader;
	StringInfoData payload;
	bool		in_snapshot;	/* the clone's transaction is open */
	bool		clone_sent;
	Requests	clone_requests;
	Requests	mods_requests;
	XLogRecPtr	sent;			/* changes up to here are with the recipient or on their way */
	XLogRecPtr	applied;		/* the recipient has committed up to here */
	XLogRecPtr	upto;			/* hand out no later changes; invalid: all that are flushed */
	bool		mods_begun;		/* the recipient has committed the clone */
	TimestampTz last_empty;
	TimestampTz clone_not_before;	/* rate limit */

	/* lag: when which position was flushed */
	struct
	{
		TimestampTz at;
		XLogRecPtr	lsn;
	}			samples[LAG_SAMPLES];
	int			nsamples;

	/* who may be inside without the gate lock */
	TesseraLockers *older;

	/* times */
	TimestampTz started;
	TimestampTz status_due;
	int			status_ms;
	TimestampTz progress_due;
	TimestampTz give_way_due;
	TimestampTz next_attempt;
	TimestampTz holders_since;	/* since then those inside are waited for */
} Donor;

static const char *
id_text(Donor *donor)
{
	return tessera_work_uuid(&donor->row->migration_id);
}

static long
ms_since(TimestampTz then)
{
	return (long) ((GetCurrentTimestamp() - then) / 1000);
}


/* Prepare: checks, and the keys of the exchange */

static void
check_registration(Donor *donor)
{
	const char *values[] = {id_text(donor)};
	char	  **columns = tessera_work_call(0, "SELECT state FROM tessera.internal_migration_state($1::uuid)", 1, values);

	if (columns == NULL || columns[0] == NULL || strcmp(columns[0], "running") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s is not running by the config node", values[0])));
	if (GetWALInsertionTimeLine() != donor->row->donor_timeline)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the donor is of another timeline than the one registered"),
				 errdetail("Registered is %d, this is %d.", donor->row->donor_timeline, (int) GetWALInsertionTimeLine())));
}

/* The recipient checks, makes its key pair, and is told where to connect to only when there is something to fetch. Returns the endpoint. */
static char *
prepare(Donor *donor)
{
	const char *values[2];
	char	  **columns;
	char	   *bind_address;
	char	   *host;
	char	   *request;

	check_registration(donor);
	tessera_work_begin();
	MemoryContextSwitchTo(donor->context);
	{
		const TesseraGroup *group;

		(void) tessera_work_group(&donor->row->group_id, &group);
	}
	donor->range = tessera_moving_range(&donor->row->migration_id, &donor->row->group_id, donor->row->range.min, donor->row->range.max);
	tessera_check_tables(donor->range, true);
	request = tessera_describe_tables(donor->row->request);
	request = MemoryContextStrdup(donor->context, request);
	tessera_exchange_addresses(&bind_address, &host);
	tessera_work_commit();

	values[0] = id_text(donor);
	values[1] = request;
	columns = tessera_work_call(donor->row->peer, "SELECT tessera.internal_prepare_recipient($1::uuid, $2::jsonb)", 2, values);
	tessera_exchange_make_keys(&donor->keys);
	tessera_pipe_init(&donor->pipe, tessera_exchange_bind(bind_address, &donor->keys, columns[0]), &donor->row->migration_id);
	return tessera_exchange_advertise(tessera_exchange_endpoint(donor->pipe.exchange), host);
}


/* Start: flag, slot, recipient */

static void
waiting_for_slot(const char *what, void *arg)
{
	tessera_slot_waiting(what);
}

static void
start(Donor *donor, char *endpoint)
{
	const char *values[3];

	tessera_work_begin();
	tessera_place_flag_up(donor->row);
	tessera_work_commit();
	tessera_slot_enter(TESSERA_STARTING);
	tessera_injection("donor_flag_up");
	donor->older = tessera_lockers_collect(donor->range->ntables, donor->range->relids, ExclusiveLock);

	donor->capture = tessera_capture_create(donor->range, donor->row->slot, tessera_migration_lock_timeout, waiting_for_slot, NULL);
	donor->in_snapshot = true;
	MemoryContextSwitchTo(donor->context);
	tessera_injection("donor_slot");
	donor->reader = tessera_clone_begin(donor->range);

	values[0] = id_text(donor);
	values[1] = endpoint;
	values[2] = donor->keys.public_key;
	tessera_work_call(donor->row->peer, "SELECT tessera.internal_start_recipient($1::uuid, $2, $3)", 3, values);
	tessera_slot_enter(TESSERA_CLONING);
}


/* Serving the recipient */

static void
push(Requests *requests, int64 sequence)
{
	if (requests->n == MAX_REQUESTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the recipient asks for too much at a time")));
	requests->sequence[requests->n++] = sequence;
}

static int64
pop(Requests *requests)
{
	int64		sequence = requests->sequence[0];

	memmove(requests->sequence, requests->sequence + 1, sizeof(int64) * --requests->n);
	return sequence;
}

static void
note_applied(Donor *donor, XLogRecPtr applied)
{
	donor->mods_begun = true;
	if (applied <= donor->applied)
		return;
	donor->applied = applied;
	tessera_capture_confirm(donor->capture, applied);
}

/* Takes in what has arrived; true if there was anything. */
static bool
receive(Donor *donor)
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
			default:
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("the recipient sent a message of kind %d", (int) message.kind)));
		}
	}
	return any;
}

static void
end_clone(Donor *donor)
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
charge_rate(Donor *donor, Size bytes)
{
	TimestampTz now = GetCurrentTimestamp();

	if (tessera_migration_max_rate == 0)
		return;
	donor->clone_not_before = Max(donor->clone_not_before, now) + (TimestampTz) (bytes * 1000000.0 / (tessera_migration_max_rate * 1024.0));
}

static bool
serve_clone(Donor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_CLONE_BATCH, .table = -1};
	Size		sent;

	if (donor->clone_requests.n == 0 || donor->pipe.rest != NULL || GetCurrentTimestamp() < donor->clone_not_before)
		return false;
	resetStringInfo(&donor->payload);
	if (!donor->clone_sent)
	{
		int			table = -1;

		batch.rows = tessera_clone_next(donor->reader, &donor->payload, (Size) tessera_migration_batch_size * 1024, &table);
		batch.table = table;
		if (batch.rows == 0)
		{
			batch.table = -1;
			resetStringInfo(&donor->payload);
			end_clone(donor);
		}
	}
	batch.last = donor->clone_sent;
	batch.sequence = pop(&donor->clone_requests);
	sent = tessera_pipe_send(&donor->pipe, &batch, &donor->payload);
	tessera_slot_count(batch.rows, donor->payload.len, 0);
	charge_rate(donor, sent);
	return true;
}

/* Answers a request for changes, if there are any or the recipient has not heard from us for a while. */
static bool
serve_mods(Donor *donor)
{
	TesseraMessage batch = {.kind = TESSERA_MSG_MODS_BATCH, .table = -1};
	XLogRecPtr	lsn = donor->sent;
	XLogRecPtr	upto;
	bool		caught_up;

	if (!donor->clone_sent || donor->mods_requests.n == 0 || donor->pipe.rest != NULL)
		return false;
	upto = donor->upto != InvalidXLogRecPtr ? donor->upto : GetFlushRecPtr(NULL);
	resetStringInfo(&donor->payload);
	/* the WAL reader keeps what it allocates in the current context */
	MemoryContextSwitchTo(donor->context);
	if (upto > donor->sent)
		batch.rows = tessera_capture_next(donor->capture, &donor->payload, (Size) tessera_migration_batch_size * 1024, upto, &lsn, &caught_up);
	if (batch.rows == 0)
	{
		/* nothing for the recipient but the position; in a hurry behind the gate */
		if (lsn <= donor->sent || (donor->upto == InvalidXLogRecPtr && ms_since(donor->last_empty) < EMPTY_MODS_MS))
		{
			donor->sent = Max(donor->sent, lsn);
			return false;
		}
		donor->last_empty = GetCurrentTimestamp();
		resetStringInfo(&donor->payload);
	}
	donor->sent = Max(donor->sent, lsn);
	batch.lsn = donor->sent;
	batch.sequence = pop(&donor->mods_requests);
	(void) tessera_pipe_send(&donor->pipe, &batch, &donor->payload);
	tessera_slot_count(0, donor->payload.len, batch.rows);
	return true;
}

/* The last batch: no changes, and a position that no batch had. Its acknowledgement is the recipient's confirmation. */
static XLogRecPtr
send_last(Donor *donor)
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
sample_lag(Donor *donor)
{
	TimestampTz now = GetCurrentTimestamp();
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

	tessera_slot_lock();
	tessera_my_migration->lag_ms = donor->mods_begun ? lag : -1;
	tessera_my_migration->backlog = tessera_capture_backlog(donor->capture);
	tessera_slot_unlock(false);
}

static void
check_limits(Donor *donor)
{
	tessera_work_take_in();
	if (tessera_slot_cancelled())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("migration was cancelled")));
	if (tessera_migration_timeout > 0 && ms_since(donor->started) > tessera_migration_timeout)
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

/* Does the recipient's worker live? Asked 1 ms after the start, then at intervals that double (S50). Its error is raised here. */
static void
poll_status(Donor *donor)
{
	const char *values[] = {id_text(donor)};
	char	  **columns;

	if (GetCurrentTimestamp() < donor->status_due)
		return;
	columns = tessera_work_call(donor->row->peer,
								"SELECT live, sqlstate, message, detail, hint, waiting_for FROM tessera.internal_recipient_status($1::uuid)", 1, values);
	donor->status_ms = Min(donor->status_ms * 2, MAX_STATUS_MS);
	donor->status_due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), donor->status_ms);
	if (columns == NULL || columns[0] == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the recipient no longer knows the migration")));
	if (columns[0][0] == 't')
	{
		if (tessera_my_migration->state == TESSERA_CLONING)
			tessera_slot_waiting(columns[5] != NULL && columns[5][0] != '\0' ? psprintf("recipient: %s", columns[5]) : NULL);
		return;
	}
	if (columns[1] != NULL && strlen(columns[1]) == 5)
		ereport(ERROR,
				(errcode(MAKE_SQLSTATE(columns[1][0], columns[1][1], columns[1][2], columns[1][3], columns[1][4])),
				 errmsg("%s", columns[2]),
				 columns[3] && columns[3][0] ? errdetail("%s", columns[3]) : 0,
				 columns[4] && columns[4][0] ? errhint("%s", columns[4]) : 0));
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the recipient's worker has ended")));
}

/* Best effort: what the config node shows of it. Never while a gate is closed. */
static void
tell_progress(Donor *donor, bool now)
{
	const TesseraMigrationSlot *slot = tessera_my_migration;
	const char *values[8];

	if (!now && GetCurrentTimestamp() < donor->progress_due)
		return;
	donor->progress_due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PROGRESS_MS);
	values[0] = id_text(donor);
	values[1] = tessera_migration_state_name(slot->state);
	values[2] = psprintf(INT64_FORMAT, slot->rows);
	values[3] = psprintf(INT64_FORMAT, slot->bytes);
	values[4] = psprintf(INT64_FORMAT, slot->mods);
	values[5] = values[6] = NULL;
	values[7] = slot->waiting_for[0] ? pstrdup(slot->waiting_for) : NULL;
	tessera_work_try_call(0, "SELECT tessera.internal_migration_progress($1::uuid, $2, $3::int8, $4::int8, $5::int8, $6::float8, $7, $8)", 8, values);
}

/* One turn: take in, answer, look after the rest; sleeps if there was nothing to do. */
static void
turn(Donor *donor, long sleep_ms)
{
	bool		busy;

	MemoryContextReset(donor->scratch);
	MemoryContextSwitchTo(donor->scratch);
	check_limits(donor);
	busy = receive(donor);
	(void) tessera_pipe_flush(&donor->pipe);
	busy |= serve_clone(donor);
	busy |= serve_mods(donor);
	sample_lag(donor);
	MemoryContextSwitchTo(donor->context);
	if (!busy)
		(void) tessera_exchange_wait(donor->pipe.exchange, donor->pipe.rest != NULL, sleep_ms);
}


/* The gates */

static bool
older_writers_left(Donor *donor)
{
	char		who[128];

	if (!tessera_lockers_left(donor->older, who, sizeof(who)))
		return false;
	tessera_slot_waiting(who);
	return true;
}

/* Those inside when we last looked must have ended before the gate is closed: who stays long, or for ever, then does not hold up the others. */
static bool
holders_linger(Donor *donor, TesseraLockers **seen)
{
	char		who[128];

	if (*seen == NULL)
	{
		int			n;
		VirtualTransactionId *holders = tessera_gate_holders(&donor->row->migration_id, &n);

		*seen = tessera_lockers_of(holders, n);
		pfree(holders);
		donor->holders_since = GetCurrentTimestamp();
	}
	if (!tessera_lockers_left(*seen, who, sizeof(who)))
		return false;
	if (ms_since(donor->holders_since) > tessera_critical_section_budget)
		tessera_slot_waiting(who);
	return true;
}

/* A writer inside waits for a lock: perhaps for somebody who waits at the gate. */
static bool
holder_blocked(const VirtualTransactionId *holders, int n)
{
	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc = holders[i].backendId == InvalidBackendId ? NULL : BackendIdGetProc(holders[i].backendId);

		if (proc != NULL && ((volatile PGPROC *) proc)->waitStatus == PROC_WAIT_STATUS_WAITING)
			return true;
	}
	return false;
}

/* Waits until nobody is inside; false if that takes too long. */
static bool
drain(Donor *donor, TimestampTz closed)
{
	TimestampTz blocked_since = 0;

	for (;;)
	{
		int			n;
		VirtualTransactionId *holders;

		holders = tessera_gate_holders(&donor->row->migration_id, &n);
		if (n == 0)
			return true;
		if (ms_since(closed) >= tessera_critical_section_lock_timeout)
			return false;
		if (!holder_blocked(holders, n))
			blocked_since = 0;
		else if (blocked_since == 0)
			blocked_since = GetCurrentTimestamp();
		else if (ms_since(blocked_since) >= BLOCKED_MS)
			return false;
		pfree(holders);
		turn(donor, 1);
	}
}

/* A position behind every change of the range: nobody can make another one while the gate is closed. Flushed, so that decoding gets there. */
static XLogRecPtr
gate_position(Donor *donor)
{
	XLogRecPtr	lsn = LogLogicalMessage("tessera", (const char *) &donor->row->migration_id, sizeof(pg_uuid_t), false);

	XLogFlush(lsn);
	return lsn;
}

/* Behind the closed write gate: everything is at the recipient, or it takes too long. */
static bool
ship_rest(Donor *donor, TimestampTz closed)
{
	long		limit = (long) tessera_critical_section_budget * (4 + Min(tessera_my_migration->gate_attempts, 16));

	donor->upto = gate_position(donor);
	while (donor->applied < donor->upto || donor->mods_requests.n == 0)
	{
		if (ms_since(closed) > limit)
			return false;
		turn(donor, 1);
	}
	return true;
}

static void
close_write_gate(Donor *donor)
{
	tessera_work_begin();
	tessera_place_gate(donor->row, TESSERA_GATE_WRITE, TESSERA_WRITE_GATE);
	tessera_work_commit();
	tessera_slot_enter(TESSERA_WRITE_GATE);
	tessera_slot_lock();
	tessera_my_migration->gate_attempts++;
	tessera_slot_unlock(false);
	tessera_injection("donor_write_gate");
}

static void
reopen(Donor *donor, TimestampTz closed)
{
	tessera_work_begin();
	tessera_place_gate(donor->row, TESSERA_GATE_OPEN, TESSERA_STARTING);
	tessera_work_commit();
	donor->upto = InvalidXLogRecPtr;
	donor->known->gate_closed = 0;
	tessera_slot_enter(TESSERA_STEADY);
	donor->next_attempt = GetCurrentTimestamp() + (GetCurrentTimestamp() - closed) * (GATE_DUTY - 1);
}

/* Readers, too: the recipient confirms meanwhile; then the range is given up. */
static void
hand_over(Donor *donor)
{
	XLogRecPtr	last = send_last(donor);
	TimestampTz begun = GetCurrentTimestamp();

	tessera_work_begin();
	tessera_work_commit_lazily();
	tessera_place_gate(donor->row, TESSERA_GATE_READ, TESSERA_WRITE_GATE);
	tessera_work_commit();
	tessera_slot_enter(TESSERA_READ_GATE);

	donor->status_ms = 16;
	donor->status_due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), donor->status_ms);
	while (donor->applied < last)
	{
		if (ms_since(begun) > CONFIRM_MS)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("the recipient did not confirm the migration in time")));
		turn(donor, 1);
		poll_status(donor);
	}
	tessera_work_begin();
	tessera_place_give_up(donor->row);
	/* from the commit on nobody but the config node ends this migration */
	tessera_migration_deaf(true);
	tessera_work_commit();
	tessera_slot_enter(TESSERA_DECIDING);
	tessera_injection("donor_read_gate");
}

/* One attempt: true if the range was given up. */
static bool
attempt_gate(Donor *donor)
{
	TimestampTz closed;

	tell_progress(donor, true);
	closed = GetCurrentTimestamp();
	donor->known->gate_closed = closed;
	close_write_gate(donor);
	if (!drain(donor, closed))
	{
		reopen(donor, closed);
		return false;
	}
	donor->known->drained = GetCurrentTimestamp();
	if (!ship_rest(donor, closed))
	{
		reopen(donor, closed);
		return false;
	}
	donor->known->shipped = GetCurrentTimestamp();
	hand_over(donor);
	donor->known->given_up = GetCurrentTimestamp();
	return true;
}

static void
decide(Donor *donor)
{
	const char *values[] = {id_text(donor)};
	char	  **columns;

	tessera_injection("config_commit");
	columns = tessera_work_call(0, "SELECT c.donor_major, c.recipient_major, (SELECT term FROM tessera.identity) FROM tessera.internal_commit_move($1::uuid) c",
								1, values);
	donor->known->answered = GetCurrentTimestamp();
	tessera_injection("config_committed");
	donor->known->donor_major = pg_strtoint64(columns[0]);
	donor->known->recipient_major = pg_strtoint64(columns[1]);
	donor->known->term = pg_strtoint64(columns[2]);
	donor->known->decided = true;
}


/*
 * The clone holds the tables for as long as it takes. Whoever wants one for itself alone (DDL that did not name it, or of this node only, VACUUM FULL) would
 * wait for that, and everybody else behind him (A6).
 */
static void
give_way(Donor *donor)
{
	int			pid;

	if (!donor->in_snapshot || GetCurrentTimestamp() < donor->give_way_due)
		return;
	donor->give_way_due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), GIVE_WAY_MS);
	MemoryContextSwitchTo(donor->scratch);
	pid = tessera_lockers_waiter(donor->range->ntables, donor->range->relids);
	MemoryContextSwitchTo(donor->context);
	if (pid != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration was cancelled: process %d waits for a table that it copies", pid),
				 errhint("Start it again when the table is free.")));
}


/* The whole */

static void
until_cloned(Donor *donor)
{
	while (!donor->mods_begun)
	{
		turn(donor, IDLE_MS);
		poll_status(donor);
		tell_progress(donor, false);
		give_way(donor);
		(void) older_writers_left(donor);
	}
	tessera_slot_enter(TESSERA_CATCHING_UP);
	tell_progress(donor, true);
}

/* Until the range is given up. */
static void
until_handed_over(Donor *donor)
{
	TesseraLockers *seen = NULL;

	for (;;)
	{
		bool		steady;

		turn(donor, 1);
		poll_status(donor);
		tell_progress(donor, false);
		steady = tessera_my_migration->lag_ms >= 0 && tessera_my_migration->lag_ms <= tessera_critical_section_budget;
		if (!steady)
		{
			if (tessera_my_migration->state == TESSERA_STEADY)
				tessera_slot_enter(TESSERA_CATCHING_UP);
			continue;
		}
		if (tessera_my_migration->state == TESSERA_CATCHING_UP)
			tessera_slot_enter(TESSERA_STEADY);
		if (older_writers_left(donor) || GetCurrentTimestamp() < donor->next_attempt)
			continue;
		tessera_injection("donor_steady");
		if (holders_linger(donor, &seen))
			continue;
		tessera_slot_waiting(NULL);
		if (attempt_gate(donor))
			return;
		seen = NULL;
	}
}

void
tessera_donor_run(const pg_uuid_t *migration_id, TesseraSettle *known)
{
	Donor	   *donor = palloc0(sizeof(Donor));
	char	   *endpoint;

	donor->context = CurrentMemoryContext;
	donor->scratch = AllocSetContextCreate(donor->context, "tessera donor turn", ALLOCSET_DEFAULT_SIZES);
	donor->known = known;
	donor->started = GetCurrentTimestamp();
	donor->status_ms = 1;
	initStringInfo(&donor->payload);

	tessera_work_begin();
	MemoryContextSwitchTo(donor->context);
	donor->row = tessera_migration_row(TESSERA_DONOR, migration_id, false);
	tessera_work_commit();
	if (donor->row == NULL)
		return;
	tessera_injection("donor_registered");

	PG_TRY();
	{
		endpoint = prepare(donor);
		start(donor, endpoint);
		until_cloned(donor);
		until_handed_over(donor);
		decide(donor);
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
