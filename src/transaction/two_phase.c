/*
 * two_phase.c
 *	  How a distributed transaction ends (doc/design.md#two-phase).
 *
 * Phases: OPEN - nothing decided. PREPARING - the coordinator has, or is getting, the decision row in its own transaction; the others are told to
 * PREPARE. DECIDING - a remote coordinator was told to COMMIT. COMMITTED - it has; what follows cannot change it. UNKNOWN - its answer was lost and
 * could not be asked for. If this node is the coordinator, its own commit record takes PREPARING to COMMITTED, and its abort takes everything back.
 *
 * The decision row and the PREPAREs travel at the same time. That is safe in either order: who asks for the outcome inserts the same key, so that
 * either the coordinator's row came first and the asker waits for its end, or the asker's `abort` did, and the coordinator cannot commit any more.
 *
 * Crash: before the coordinator's commit all is rolled back, prepared parts by tessera.resolve_transactions() on their nodes, which asks the
 * coordinator; after it they are committed in the same way. Nothing here is kept in memory beyond the transaction.
 *
 * The first function runs before the local commit and may raise. The two others run inside the server's commit and abort: they raise nothing, check
 * no interrupts, and are bounded by tessera.commit_timeout and tessera.abort_timeout.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "port.h"
#include "storage/predicate.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/decision.h"
#include "common/injection.h"
#include "transaction/notify.h"
#include "transaction/prepared.h"
#include "transaction/transaction_private.h"

/* While an answer to COMMIT is awaited, how often a request to cancel is looked for. */
#define SLICE_MS 200

typedef enum Phase
{
	PHASE_OPEN,
	PHASE_PREPARING,
	PHASE_DECIDING,
	PHASE_COMMITTED,
	PHASE_UNKNOWN
} Phase;

static Phase phase = PHASE_OPEN;
static char gid[TESSERA_GID_SIZE];

/* ---- one command of the protocol ---- */

static void
queue_command(TesseraParticipant *participant, const char *sql, bool prepare)
{
	memset(&participant->command, 0, sizeof(TesseraCommand));
	participant->command.sql = sql;
	participant->command.prepare = prepare;
	tessera_connection_queue(participant->connection, &participant->command);
	tessera_connection_sync(participant->connection);
}

/* The remote transaction has ended well (or will, for all that matters here): the session's user and settings stay. */
static void
left_transaction(TesseraParticipant *participant)
{
	TesseraRemoteState *state = tessera_connection_state(participant->connection);

	state->xact_depth = 0;
	state->wrote = false;
	participant->joined = false;
}

/* Raises the command's error; also raises one if the command did not end with this tag, because the transaction there had failed before. */
static void
check_tag(TesseraParticipant *participant, const char *tag)
{
	TesseraCommand *command = &participant->command;

	tessera_connection_check(participant->connection, command);
	if (command->tag && strcmp(command->tag, tag) == 0)
		return;
	tessera_connection_state(participant->connection)->known = false;
	ereport(ERROR,
			(errcode(ERRCODE_TRANSACTION_ROLLBACK),
			 errmsg("the transaction on node \"%s\" was rolled back", tessera_connection_name(participant->connection)),
			 errdetail("An earlier error there was not seen here; %s answered \"%s\".", tag, command->tag ? command->tag : "nothing")));
}

/* Wait for the commands of those participants whose flag is set. Interruptible: nothing is decided. */
static void
await_commands(const bool *waiting)
{
	for (;;)
	{
		TesseraConnection **connections = palloc(tessera_participant_count * sizeof(TesseraConnection *));
		int			n = 0;

		for (int i = 0; i < tessera_participant_count; i++)
			if (waiting[i] && !tessera_participants[i].command.done)
				connections[n++] = tessera_participants[i].connection;
		if (n > 0)
			(void) tessera_connections_pump(connections, n, -1);
		pfree(connections);
		if (n == 0)
			break;
	}
}

/* ---- what was written here without being flushed ---- */

/* The log position that values in this transaction, or one before, rest on. */
static XLogRecPtr relied_on = InvalidXLogRecPtr;

void
tessera_participants_rely_on(XLogRecPtr position)
{
	relied_on = Max(relied_on, position);
}

void
tessera_participants_flush(void)
{
	if (!XLogRecPtrIsInvalid(relied_on))
		XLogFlush(relied_on);
}

/* ---- readers ---- */

/*
 * End the transactions that have only read. The answer is awaited at SERIALIZABLE only, where it can be a failure.
 */
static void
end_readers(void)
{
	bool	   *waiting = palloc0(tessera_participant_count * sizeof(bool));

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->joined || participant->wrote || participant->locks)
			continue;
		if (!tessera_connection_alive(participant->connection))
		{
			participant->joined = false;
			continue;
		}
		if (IsolationIsSerializable())
		{
			queue_command(participant, "COMMIT", true);
			waiting[i] = true;
			continue;
		}
		(void) tessera_connection_queue_quietly(participant->connection, "COMMIT");
		(void) tessera_connection_sync_quietly(participant->connection);
		left_transaction(participant);
	}
	if (IsolationIsSerializable())
		await_commands(waiting);
	for (int i = 0; i < tessera_participant_count; i++)
		if (waiting[i])
		{
			check_tag(&tessera_participants[i], "COMMIT");
			left_transaction(&tessera_participants[i]);
		}
	pfree(waiting);
}

/* Rows are no longer read: drop what is still on its way. Statements outside a transaction block are cancelled. */
static void
stop_reading(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout);

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->joined && tessera_connection_busy(participant->connection))
			tessera_connections_reset(&participant->connection, 1, deadline);
		else if (tessera_connection_busy(participant->connection))
			tessera_connection_forget(participant->connection, NULL);
	}
}

/* ---- the commit that decides ---- */

typedef enum Answer
{
	ANSWER_COMMITTED,
	ANSWER_FAILED,				/* it says so itself */
	ANSWER_LOST
} Answer;

/* An error that says the server or the connection goes down, not that the transaction failed. */
static bool
is_shutdown(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state == NULL || strncmp(state, "57P", 3) == 0 || strncmp(state, "08", 2) == 0;
}

/*
 * Send COMMIT and wait for its answer. The wait cannot be interrupted: a request to cancel is passed on (it ends a wait for a standby there), and
 * then the answer must come within tessera.commit_timeout. It ends when the node stands still.
 */
static Answer
commit_and_wait(TesseraParticipant *participant)
{
	TesseraCommand *command = &participant->command;
	TimestampTz deadline = 0;
	TimestampTz looked = GetCurrentTimestamp();

	memset(command, 0, sizeof(TesseraCommand));
	command->sql = "COMMIT";
	command->prepare = true;
	tessera_connection_queue(participant->connection, command);
	(void) tessera_connection_sync_quietly(participant->connection);
	while (!command->done && tessera_connection_alive(participant->connection))
	{
		TimestampTz now = GetCurrentTimestamp();

		if (deadline == 0 && (QueryCancelPending || ProcDiePending))
		{
			tessera_connection_cancel(participant->connection);
			deadline = TimestampTzPlusMilliseconds(now, tessera_commit_timeout);
		}
		if ((deadline != 0 && now >= deadline) || tessera_connection_stands_still(participant->connection, &looked))
			break;
		(void) tessera_connections_settle(&participant->connection, 1, TimestampTzPlusMilliseconds(now, SLICE_MS));
	}
	if (!command->done || (command->error && is_shutdown(command->error)))
		return ANSWER_LOST;
	return command->error == NULL && command->tag && strcmp(command->tag, "COMMIT") == 0 ? ANSWER_COMMITTED : ANSWER_FAILED;
}

static void
raise_unknown(TesseraParticipant *participant)
{
	const char *name = tessera_connection_name(participant->connection);

	tessera_connection_forget(participant->connection, NULL);
	tessera_connection_close(participant->connection);
	if (phase == PHASE_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
				 errmsg("node \"%s\" did not answer whether transaction %s is committed", name, gid),
				 errdetail("It is committed everywhere or nowhere; what the node decided shows as soon as it can be reached."),
				 errhint("Look at tessera.transaction_decision on that node.")));
	ereport(ERROR,
			(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
			 errmsg("node \"%s\" did not answer whether the transaction is committed", name),
			 errhint("Look whether its effect is there before you run it again.")));
}

/* What deferred triggers have sent there goes out with this session's own commit, which must not fail now. */
static void
notify_after_commit(TesseraParticipant *participant)
{
	tessera_notify_no_interrupts();
	tessera_connection_deliver_notifications(participant->connection);
}

/* The only writer commits by itself. */
static void
commit_one(TesseraParticipant *participant)
{
	switch (commit_and_wait(participant))
	{
		case ANSWER_COMMITTED:
			left_transaction(participant);
			notify_after_commit(participant);
			break;
		case ANSWER_FAILED:
			check_tag(participant, "COMMIT");
			break;
		case ANSWER_LOST:
			raise_unknown(participant);
			break;
	}
}

/* The coordinator's answer was lost: ask it, on another connection. */
static void
ask_coordinator(TesseraParticipant *coordinator)
{
	volatile char outcome = '?';
	MemoryContext before = CurrentMemoryContext;

	phase = PHASE_UNKNOWN;
	tessera_connection_forget(coordinator->connection, NULL);
	tessera_connection_close(coordinator->connection);
	coordinator->joined = false;
	PG_TRY();
	{
		const TesseraRouting *routing;

		PushActiveSnapshot(GetTransactionSnapshot());
		routing = tessera_routing();
		if (routing)
			outcome = tessera_ask_outcome(routing, coordinator->node_id, gid, NULL);
		PopActiveSnapshot();
	}
	PG_CATCH();
	{
		/* Unreachable, or no time to wait: said in the error that follows, which cleans up after this one too. */
		MemoryContextSwitchTo(before);
		FlushErrorState();
	}
	PG_END_TRY();

	if (outcome == 'c')
		phase = PHASE_COMMITTED;
	else if (outcome == 'a')
	{
		phase = PHASE_PREPARING;
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the connection to node \"%s\" was lost before it committed", tessera_connection_name(coordinator->connection)),
				 errdetail("The transaction is rolled back on all nodes.")));
	}
	else
		raise_unknown(coordinator);
}

static void
decide_there(TesseraParticipant *coordinator)
{
	phase = PHASE_DECIDING;
	switch (commit_and_wait(coordinator))
	{
		case ANSWER_COMMITTED:
			phase = PHASE_COMMITTED;
			left_transaction(coordinator);
			notify_after_commit(coordinator);
			break;
		case ANSWER_FAILED:
			phase = PHASE_PREPARING;
			check_tag(coordinator, "COMMIT");
			break;
		case ANSWER_LOST:
			ask_coordinator(coordinator);
			break;
	}
}

/* ---- two phases ---- */

#define GID_BYTES 16

/* Random bytes of one gid. They are fetched for several at once: that costs more than they do. */
static const uint8 *
gid_bytes(void)
{
	static uint8 random[16 * GID_BYTES];
	static int	used = lengthof(random);
	const uint8 *bytes;

	if (used == lengthof(random))
	{
		if (!pg_strong_random(random, sizeof(random)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a transaction identifier")));
		used = 0;
	}
	bytes = random + used;
	used += GID_BYTES;
	return bytes;
}

void
tessera_make_gid(char *made, const char *fixed, int32 coordinator)
{
	static const char hex[] = "0123456789abcdef";
	int			nfixed = strlen(fixed);
	char	   *digits = made + strlen(TESSERA_GID_PREFIX);

	strcpy(made, TESSERA_GID_PREFIX);
	do
	{
		const uint8 *bytes = gid_bytes();

		for (int i = 0; i < 2 * GID_BYTES; i++)
			digits[i] = hex[i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15];
	} while (nfixed == 0 && strncmp(digits, TESSERA_CLIENT_GID, strlen(TESSERA_CLIENT_GID)) == 0);
	memcpy(digits, fixed, nfixed);
	sprintf(digits + 2 * GID_BYTES, "_%d", coordinator);
}

/* Nodes that will be prepared: for the decision row. */
static int32 *
prepared_nodes(const TesseraParticipant *coordinator, int *n)
{
	int32	   *nodes = palloc(tessera_participant_count * sizeof(int32));

	*n = 0;
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].wrote && &tessera_participants[i] != coordinator)
			nodes[(*n)++] = tessera_participants[i].node_id;
	return nodes;
}

/* The decision row, in the coordinator's transaction. NULL: this node is the coordinator. */
static void
write_decision(TesseraParticipant *coordinator)
{
	int			n;
	int32	   *nodes = prepared_nodes(coordinator, &n);
	StringInfoData array;
	char	   *sql;

	if (coordinator == NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		tessera_decision_insert(gid, nodes, n);
		PopActiveSnapshot();
		return;
	}
	initStringInfo(&array);
	for (int i = 0; i < n; i++)
		appendStringInfo(&array, "%s%d", i > 0 ? "," : "", nodes[i]);
	sql = psprintf("SELECT tessera_internal.decide('%s', '{%s}')", gid, array.data);
	queue_command(coordinator, sql, false);
}

static void
prepare_others(TesseraParticipant *coordinator)
{
	bool	   *waiting = palloc0(tessera_participant_count * sizeof(bool));

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->wrote)
			continue;
		waiting[i] = true;
		if (participant == coordinator)
			continue;			/* it has its decision row to write */
		participant->prepared = true;
		queue_command(participant, psprintf("PREPARE TRANSACTION '%s_%d'", gid, participant->node_id), false);
	}
	await_commands(waiting);
	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (participant == coordinator)
			tessera_connection_check(participant->connection, &participant->command);
		else if (waiting[i])
			check_tag(participant, "PREPARE TRANSACTION");
	}
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].prepared)
			left_transaction(&tessera_participants[i]);
}

/* coordinator NULL: this node; its commit follows. */
static void
commit_two_phase(TesseraParticipant *coordinator)
{
	tessera_make_gid(gid, "", coordinator ? coordinator->node_id : tessera_self_node);
	phase = PHASE_PREPARING;
	write_decision(coordinator);
	tessera_injection("commit_decision_written");
	prepare_others(coordinator);
	tessera_injection("commit_prepared");
	if (coordinator)
		decide_there(coordinator);
}

static bool
any_unpreparable(void)
{
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].wrote && tessera_connection_state(tessera_participants[i].connection)->unpreparable)
			return true;
	return false;
}

/*
 * A node that has done what cannot be prepared (temporary objects, NOTIFY of C code) must be the coordinator, which commits as any transaction does.
 * There is only one, and what is written here makes it this node.
 */
/*
 * The coordinator commits first, and lets go of its advisory locks then: who waits for one of them must see what the others commit. So it is a writer
 * that keeps no locks; NULL: all do, and this node coordinates.
 */
static TesseraParticipant *
without_locks(TesseraParticipant *writer)
{
	if (!writer->locks)
		return writer;
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].wrote && !tessera_participants[i].locks && !tessera_participants[i].unlisted)
			return &tessera_participants[i];
	return NULL;
}

static TesseraParticipant *
choose_coordinator(TesseraParticipant *writer, bool wrote_here)
{
	const char *other = wrote_here ? "this node" : NULL;
	TesseraParticipant *chosen = NULL;

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->wrote || !tessera_connection_state(participant->connection)->unpreparable)
			continue;
		if (other)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot commit on several nodes what was done on node \"%s\"", tessera_connection_name(participant->connection)),
					 errdetail("Temporary objects, also those of triggers, and notifications of C code cannot be prepared there, and %s must commit "
							   "last, too.", other),
					 errhint("Write to rows of one shard in a transaction that does this.")));
		other = psprintf("node \"%s\"", tessera_connection_name(participant->connection));
		chosen = participant;
	}
	if (wrote_here)
		return NULL;
	return chosen ? chosen : without_locks(writer);
}

/* What fires at the end of the transaction does so by whom it is ended. */
static void
restate_users(void)
{
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].wrote)
			tessera_participant_restate_user(&tessera_participants[i]);
}

void
tessera_two_phase_pre_commit(void)
{
	TesseraParticipant *writer = NULL;
	int			nwriters = 0;
	bool		wrote_here = TransactionIdIsValid(GetTopTransactionIdIfAny());

	phase = PHASE_OPEN;
	stop_reading();
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].wrote)
		{
			nwriters++;
			if (writer == NULL || writer->unlisted)
				writer = &tessera_participants[i];
		}
	restate_users();
	end_readers();
	if (nwriters == 0)
		return;
	tessera_participants_flush();
	/* What could still fail here must fail before another node commits. */
	if (IsolationIsSerializable() && !wrote_here)
		PreCommit_CheckForSerializationFailure();
	/* the local commit, which sends notifications, must not fail when another node has committed */
	if (tessera_notified() && !wrote_here && !any_unpreparable() && (nwriters > 1 || tessera_notify_queue_fills()))
		wrote_here = true;
	if (nwriters == 1 && !wrote_here)
		commit_one(writer);
	else
		commit_two_phase(choose_coordinator(writer, wrote_here));
}

/* ---- a client prepares ---- */

static int32 *client_nodes = NULL;	/* where the transaction is prepared; in TopMemoryContext */
static int	client_nnodes = 0;

void
tessera_two_phase_client(const char *client_gid)
{
	strlcpy(gid, client_gid, sizeof(gid));
	client_nnodes = 0;
}

void
tessera_two_phase_pre_prepare(void)
{
	phase = PHASE_OPEN;
	stop_reading();
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].unlisted)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare a transaction that adds a node to the cluster"),
					 errhint("Use COMMIT.")));
	restate_users();
	end_readers();
	/* room for what may not fail later */
	if (client_nodes != NULL)
		pfree(client_nodes);
	client_nodes = NULL;
	client_nodes = MemoryContextAlloc(TopMemoryContext, Max(tessera_participant_count, 1) * sizeof(int32));
	tessera_participants_flush();
	phase = PHASE_PREPARING;
	prepare_others(NULL);
	tessera_injection("prepare_others_prepared");
}

/* Inside of the server's own PREPARE: raises nothing. */
void
tessera_two_phase_prepared(void)
{
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_participants[i].prepared)
		{
			client_nodes[client_nnodes++] = tessera_participants[i].node_id;
			tessera_participants[i].prepared = false;
		}
	phase = PHASE_OPEN;
}

const int32 *
tessera_two_phase_prepared_nodes(int *n)
{
	*n = client_nnodes;
	return client_nodes;
}

/* ---- after the local commit ---- */

/* True if another session has finished it; with this decision it can only have been committed. */
static bool
finished_elsewhere(const TesseraParticipant *participant)
{
	const char *state = participant->command.error ? PQresultErrorField(participant->command.error, PG_DIAG_SQLSTATE) : NULL;

	return state && strcmp(state, "42704") == 0;
}

static void
warn_unfinished(TesseraParticipant *participant)
{
	const PGresult *error = participant->command.error;

	ereport(WARNING,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the transaction is committed, but node \"%s\" has not confirmed it yet", tessera_connection_name(participant->connection)),
			 errdetail("Prepared transaction %s_%d stays there%s%s", gid, participant->node_id, error ? ": " : ".",
					   error ? PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY) : ""),
			 errhint("tessera.resolve_transactions() on that node finishes it; until then its rows are not visible.")));
}

/* Carries out the decision on the prepared participants that keep advisory locks, or on those that do not. */
static void
commit_prepared(bool locks, TimestampTz deadline)
{
	TesseraConnection **connections = palloc(Max(tessera_participant_count, 1) * sizeof(TesseraConnection *));
	int			n = 0;

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->prepared || participant->locks != locks)
			continue;
		memset(&participant->command, 0, sizeof(TesseraCommand));
		participant->command.sql = psprintf("COMMIT PREPARED '%s_%d'", gid, participant->node_id);
		if (tessera_connection_queue_command_quietly(participant->connection, &participant->command))
			connections[n++] = participant->connection;
	}
	(void) tessera_connections_settle(connections, n, deadline);
	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->prepared || participant->locks != locks)
			continue;
		participant->prepared = false;
		if (participant->command.done && (participant->command.error == NULL || finished_elsewhere(participant)))
			continue;
		warn_unfinished(participant);
		tessera_connection_forget(participant->connection, NULL);
		tessera_connection_close(participant->connection);
	}
	pfree(connections);
}

/* Ends the transactions that have only kept advisory locks. The client is answered when they are free. */
static void
end_lock_holders(TimestampTz deadline)
{
	TesseraConnection **connections = palloc(Max(tessera_participant_count, 1) * sizeof(TesseraConnection *));
	int			n = 0;

	for (int i = 0; i < tessera_participant_count; i++)
	{
		TesseraParticipant *participant = &tessera_participants[i];

		if (!participant->joined || !participant->locks || participant->wrote)
			continue;
		(void) tessera_connection_queue_quietly(participant->connection, "COMMIT");
		if (tessera_connection_sync_quietly(participant->connection))
			connections[n++] = participant->connection;
		left_transaction(participant);
	}
	if (n > 0 && tessera_connections_settle(connections, n, deadline) > 0)
		for (int i = 0; i < n; i++)
			if (tessera_connection_busy(connections[i]))
				tessera_connection_close(connections[i]);	/* which lets go of them, too */
	pfree(connections);
}

void
tessera_two_phase_committed(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_commit_timeout);

	if (phase != PHASE_OPEN)
	{
		tessera_injection("commit_decided");	/* only to crash: nothing may be raised here */
		/* who waits for an advisory lock sees what was committed under it */
		commit_prepared(false, deadline);
		commit_prepared(true, deadline);
	}
	end_lock_holders(deadline);
	phase = PHASE_OPEN;
}

/* ---- after an abort ---- */

/* Roll back what is open, and what was or may have been prepared. Each in a pipeline of its own: one may fail. */
static void
send_rollback(TesseraParticipant *participant)
{
	char		sql[TESSERA_GID_SIZE + 32];

	if (participant->joined)
	{
		(void) tessera_connection_queue_quietly(participant->connection, "ROLLBACK");
		(void) tessera_connection_sync_quietly(participant->connection);
	}
	if (participant->prepared && phase == PHASE_PREPARING)
	{
		snprintf(sql, sizeof(sql), "ROLLBACK PREPARED '%s_%d'", gid, participant->node_id);
		(void) tessera_connection_queue_quietly(participant->connection, sql);
		(void) tessera_connection_sync_quietly(participant->connection);
	}
}

void
tessera_two_phase_aborted(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout);
	int			n;
	TesseraConnection **connections;

	/* The coordinator had committed already, when something failed here: carry it out. */
	if (phase == PHASE_COMMITTED)
		tessera_two_phase_committed();
	connections = tessera_participant_connections(false, &n);
	tessera_connections_reset(connections, n, deadline);
	for (int i = 0; i < tessera_participant_count; i++)
		if (tessera_connection_alive(connections[i]))
			send_rollback(&tessera_participants[i]);
	if (tessera_connections_settle(connections, n, deadline) > 0)
		for (int i = 0; i < n; i++)
			if (tessera_connection_busy(connections[i]))
				tessera_connection_close(connections[i]);
	for (int i = 0; i < n; i++)
	{
		TesseraRemoteState *state = tessera_connection_state(connections[i]);

		state->xact_depth = 0;
		state->wrote = false;
		state->known = false;
	}
	pfree(connections);
	phase = PHASE_OPEN;
}
