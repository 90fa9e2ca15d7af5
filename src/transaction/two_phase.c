/*
 * two_phase.c
 *	  How a distributed transaction ends (doc/design.md#two-phase).
 *
 * Phases: OPEN - nothing decided. PREPARING - the coordinator has, or is getting, the decision row in its own transaction; the others are told to
 * PREPARE. DECIDING - a remote coordinator was told to COMMIT. COMMITTED - it has; what follows cannot change it. UNKNOWN - its answer was lost and
 * could not be asked for. If this node is the coordinator, its own commit record takes PREPARING to COMMITTED, and its abort takes everything back.
 *
 * The decision row and the PREPAREs travel at the same time. That is safe in either order: a participant that asks for the outcome inserts the same
 * key. Either the coordinator's row came first, and the participant waits for its end; or the participant's `abort` did, and the coordinator cannot
 * commit any more.
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
#include "common/protocol.h"
#include "control/calls.h"
#include "transaction/cluster_time.h"
#include "transaction/commit_hold.h"
#include "transaction/notify.h"
#include "transaction/prepared.h"
#include "transaction/transaction_private.h"

/* While an answer to COMMIT is awaited, how often a request to cancel is looked for. */
#define SLICE_MS 200

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

/* A call in the transaction at the other end, which keeps the statement prepared. */
static TesseraCommand
call_command(TesseraConnection *connection, TesseraCallNumber call, const char *const *values)
{
	TesseraCommand command = {.values = values,.prepare = true};

	command.sql = tessera_call_text(&tessera_call_specs[call], tessera_connection_protocol(connection), &command.nparams);
	return command;
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
await_commands(TesseraTransaction *transaction, const bool *waiting)
{
	for (;;)
	{
		TesseraConnection **connections = palloc(transaction->nparticipants * sizeof(TesseraConnection *));
		int			n = 0;

		for (int i = 0; i < transaction->nparticipants; i++)
			if (waiting[i] && !transaction->participants[i].command.done)
				connections[n++] = transaction->participants[i].connection;
		if (n > 0)
			(void) tessera_connections_pump(connections, n, -1);
		pfree(connections);
		if (n == 0)
			break;
	}
}

/* ---- what was written here without being flushed ---- */

void
tessera_participants_rely_on(XLogRecPtr position)
{
	TesseraTransaction *transaction = tessera_this_transaction();

	transaction->relied_on = Max(transaction->relied_on, position);
}

void
tessera_participants_flush(TesseraTransaction *transaction)
{
	if (!XLogRecPtrIsInvalid(transaction->relied_on))
		XLogFlush(transaction->relied_on);
}

/* ---- readers ---- */

/*
 * End the transactions that have only read. The answer is awaited at SERIALIZABLE only, where it can be a failure of what was read there.
 */
static void
end_readers(TesseraTransaction *transaction)
{
	bool	   *waiting = palloc0(transaction->nparticipants * sizeof(bool));

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (!participant->joined || participant->wrote || participant->locks)
			continue;
		if (!tessera_connection_alive(participant->connection))
		{
			participant->joined = false;
			continue;
		}
		if (IsolationIsSerializable() && participant->used)
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
		await_commands(transaction, waiting);
	for (int i = 0; i < transaction->nparticipants; i++)
		if (waiting[i])
		{
			check_tag(&transaction->participants[i], "COMMIT");
			left_transaction(&transaction->participants[i]);
		}
	pfree(waiting);
}

/* Rows are no longer read: drop what is still on its way. Statements outside a transaction block are cancelled. */
static void
stop_reading(TesseraTransaction *transaction)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout);

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

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
 * Send COMMIT, with a command before it (NULL: none) in the same pipeline, and wait for its answer. The wait cannot be interrupted: a
 * request to cancel is passed on (it ends a wait for a standby there), and then the answer must come within tessera.commit_timeout. It ends when the
 * node stands still.
 */
static Answer
commit_and_wait(TesseraParticipant *participant, TesseraCommand *before)
{
	TesseraCommand *command = &participant->command;
	TimestampTz deadline = 0;
	TimestampTz looked = GetCurrentTimestamp();

	memset(command, 0, sizeof(TesseraCommand));
	command->sql = "COMMIT";
	command->prepare = true;
	tessera_queue_time(participant->connection);
	if (before != NULL)
		tessera_connection_queue(participant->connection, before);
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
		(void) tessera_connections_await_answers(&participant->connection, 1, TimestampTzPlusMilliseconds(now, SLICE_MS));
	}
	if (!command->done || (command->error && is_shutdown(command->error)))
		return ANSWER_LOST;
	return command->error == NULL && command->tag && strcmp(command->tag, "COMMIT") == 0 ? ANSWER_COMMITTED : ANSWER_FAILED;
}

static void
raise_unknown(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	const char *name = tessera_connection_name(participant->connection);

	tessera_connection_forget(participant->connection, NULL);
	tessera_connection_close(participant->connection);
	if (transaction->phase == TESSERA_COMMIT_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
				 errmsg("node \"%s\" did not answer whether transaction %s is committed", name, transaction->gid),
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
commit_one(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	switch (commit_and_wait(participant, NULL))
	{
		case ANSWER_COMMITTED:
			left_transaction(participant);
			notify_after_commit(participant);
			break;
		case ANSWER_FAILED:
			check_tag(participant, "COMMIT");
			break;
		case ANSWER_LOST:
			raise_unknown(transaction, participant);
			break;
	}
}

/* The coordinator's answer was lost: ask it, on another connection. */
static void
ask_coordinator(TesseraTransaction *transaction, TesseraParticipant *coordinator)
{
	volatile char outcome = '?';
	MemoryContext before = CurrentMemoryContext;

	transaction->phase = TESSERA_COMMIT_UNKNOWN;
	tessera_connection_forget(coordinator->connection, NULL);
	tessera_connection_close(coordinator->connection);
	coordinator->joined = false;
	PG_TRY();
	{
		const TesseraRouting *routing;

		PushActiveSnapshot(GetTransactionSnapshot());
		routing = tessera_routing();
		if (routing)
			outcome = tessera_ask_outcome(routing, coordinator->node_id, transaction->gid, NULL);
		if (outcome == 'c' && transaction->commit_time == 0)
			transaction->commit_time = tessera_ask_commit_time(coordinator->node_id, transaction->gid);
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
		transaction->phase = TESSERA_COMMIT_COMMITTED;
	else if (outcome == 'a')
	{
		transaction->phase = TESSERA_COMMIT_PREPARING;
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the connection to node \"%s\" was lost before it committed", tessera_connection_name(coordinator->connection)),
				 errdetail("The transaction is rolled back on all nodes.")));
	}
	else
		raise_unknown(transaction, coordinator);
}

/* Keeps the coordinator's answer to decision_time, or its error. */
static void
keep_time(TesseraCommand *command, PGresult *result)
{
	if (PQresultStatus(result) == PGRES_FATAL_ERROR && command->error == NULL)
	{
		command->error = result;
		return;
	}
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1 && !PQgetisnull(result, 0, 0))
		*(TesseraTime *) command->arg = (TesseraTime) strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
}

static void
decide_there(TesseraTransaction *transaction, TesseraParticipant *coordinator)
{
	const char *values[1] = {transaction->gid};
	bool		knows_times = tessera_connection_protocol(coordinator->connection) >= TESSERA_CUT_PROTOCOL;
	TesseraCommand time = {0};

	if (knows_times)
		time = call_command(coordinator->connection, TESSERA_CALL_DECISION_TIME, values);
	time.handler = keep_time;
	time.arg = &transaction->commit_time;
	transaction->phase = TESSERA_COMMIT_DECIDING;
	switch (commit_and_wait(coordinator, knows_times ? &time : NULL))
	{
		case ANSWER_COMMITTED:
			transaction->phase = TESSERA_COMMIT_COMMITTED;
			left_transaction(coordinator);
			notify_after_commit(coordinator);
			break;
		case ANSWER_FAILED:
			transaction->phase = TESSERA_COMMIT_PREPARING;
			tessera_connection_check(coordinator->connection, &time);
			check_tag(coordinator, "COMMIT");
			break;
		case ANSWER_LOST:
			if (time.error != NULL)
				PQclear(time.error);
			ask_coordinator(transaction, coordinator);
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
prepared_nodes(TesseraTransaction *transaction, const TesseraParticipant *coordinator, int *n)
{
	int32	   *nodes = palloc(transaction->nparticipants * sizeof(int32));

	*n = 0;
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].wrote && &transaction->participants[i] != coordinator)
			nodes[(*n)++] = transaction->participants[i].node_id;
	return nodes;
}

/* The decision row, in the coordinator's transaction. NULL: this node is the coordinator. */
static void
write_decision(TesseraTransaction *transaction, TesseraParticipant *coordinator)
{
	int			n;
	int32	   *nodes = prepared_nodes(transaction, coordinator, &n);
	StringInfoData array;
	const char *values[2] = {transaction->gid};

	if (coordinator == NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		tessera_decision_insert(transaction->gid, nodes, n);
		PopActiveSnapshot();
		return;
	}
	initStringInfo(&array);
	for (int i = 0; i < n; i++)
		appendStringInfo(&array, "%s%d", i > 0 ? "," : "", nodes[i]);
	values[1] = psprintf("{%s}", array.data);
	coordinator->command = call_command(coordinator->connection, TESSERA_CALL_DECIDE, values);
	tessera_connection_queue(coordinator->connection, &coordinator->command);
	tessera_connection_sync(coordinator->connection);
}

static void
prepare_others(TesseraTransaction *transaction, TesseraParticipant *coordinator)
{
	bool	   *waiting = palloc0(transaction->nparticipants * sizeof(bool));

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (!participant->wrote)
			continue;
		waiting[i] = true;
		if (participant == coordinator)
			continue;			/* it has its decision row to write */
		participant->prepared = true;
		queue_command(participant, psprintf("PREPARE TRANSACTION '%s_%d'", transaction->gid, participant->node_id), false);
	}
	await_commands(transaction, waiting);
	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (participant == coordinator)
			tessera_connection_check(participant->connection, &participant->command);
		else if (waiting[i])
			check_tag(participant, "PREPARE TRANSACTION");
	}
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].prepared)
			left_transaction(&transaction->participants[i]);
}

/* This node coordinates: the time of its own commit, which follows, is that of all. */
static void
take_time_here(TesseraTransaction *transaction)
{
	tessera_commit_hold_before_commit();
	PushActiveSnapshot(GetTransactionSnapshot());
	transaction->commit_time = tessera_decision_take_time(transaction->gid);
	PopActiveSnapshot();
}

/* coordinator NULL: this node; its commit follows. */
static void
commit_two_phase(TesseraTransaction *transaction, TesseraParticipant *coordinator)
{
	tessera_make_gid(transaction->gid, transaction->digits, coordinator ? coordinator->node_id : transaction->self_node);
	transaction->phase = TESSERA_COMMIT_PREPARING;
	transaction->commit_time = 0;
	write_decision(transaction, coordinator);
	tessera_injection("commit_decision_written");
	prepare_others(transaction, coordinator);
	tessera_injection("commit_prepared");
	if (coordinator)
		decide_there(transaction, coordinator);
	else
		take_time_here(transaction);
}

static bool
any_unpreparable(TesseraTransaction *transaction)
{
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].wrote && tessera_connection_state(transaction->participants[i].connection)->unpreparable)
			return true;
	return false;
}

/*
 * The coordinator commits first, and releases its advisory locks then; but a session that waits for one of them must see what the others commit. So
 * it is a writer that keeps no locks; NULL: all do, and this node coordinates.
 */
static TesseraParticipant *
without_locks(TesseraTransaction *transaction, TesseraParticipant *writer)
{
	if (!writer->locks)
		return writer;
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].wrote && !transaction->participants[i].locks && !transaction->participants[i].unlisted)
			return &transaction->participants[i];
	return NULL;
}

/*
 * A node that has done what cannot be prepared (temporary objects, NOTIFY of C code) must be the coordinator, which commits as any
 * transaction does. There is only one, and what is written here makes it this node.
 */
static TesseraParticipant *
choose_coordinator(TesseraTransaction *transaction, TesseraParticipant *writer, bool wrote_here)
{
	const char *other = wrote_here ? "this node" : NULL;
	TesseraParticipant *chosen = NULL;

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

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
	return chosen ? chosen : without_locks(transaction, writer);
}

/* What fires at the end of the transaction does so by whom it is ended. */
static void
restate_sessions(TesseraTransaction *transaction)
{
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].wrote)
			tessera_participant_restate_session(&transaction->participants[i]);
}

void
tessera_two_phase_pre_commit(TesseraTransaction *transaction)
{
	TesseraParticipant *writer = NULL;
	int			nwriters = 0;
	bool		wrote_here = TransactionIdIsValid(GetTopTransactionIdIfAny());

	transaction->phase = TESSERA_COMMIT_OPEN;
	stop_reading(transaction);
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].wrote)
		{
			nwriters++;
			if (writer == NULL || writer->unlisted)
				writer = &transaction->participants[i];
		}
	restate_sessions(transaction);
	end_readers(transaction);
	if (nwriters == 0)
		return;
	tessera_participants_flush(transaction);
	/* What could still fail here must fail before another node commits. */
	if (IsolationIsSerializable() && !wrote_here)
		PreCommit_CheckForSerializationFailure();
	/* the local commit, which sends notifications, must not fail when another node has committed */
	if (tessera_notified() && !wrote_here && !any_unpreparable(transaction) && (nwriters > 1 || tessera_notify_queue_fills()))
		wrote_here = true;
	if (nwriters == 1 && !wrote_here)
		commit_one(transaction, writer);
	else
		commit_two_phase(transaction, choose_coordinator(transaction, writer, wrote_here));
}

/* ---- a client prepares ---- */

void
tessera_two_phase_client(TesseraTransaction *transaction, const char *client_gid)
{
	strlcpy(transaction->gid, client_gid, sizeof(transaction->gid));
	transaction->client_nnodes = 0;
}

void
tessera_two_phase_pre_prepare(TesseraTransaction *transaction)
{
	transaction->phase = TESSERA_COMMIT_OPEN;
	stop_reading(transaction);
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].unlisted)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot prepare a transaction that adds a node to the cluster"),
					 errhint("Use COMMIT.")));
	restate_sessions(transaction);
	end_readers(transaction);
	/* room for what may not fail later */
	if (transaction->client_nodes != NULL)
		pfree(transaction->client_nodes);
	transaction->client_nodes = NULL;
	transaction->client_nodes = MemoryContextAlloc(TopMemoryContext, Max(transaction->nparticipants, 1) * sizeof(int32));
	tessera_participants_flush(transaction);
	transaction->phase = TESSERA_COMMIT_PREPARING;
	prepare_others(transaction, NULL);
	tessera_injection("prepare_others_prepared");
}

/* Inside of the server's own PREPARE: raises nothing. */
void
tessera_two_phase_prepared(TesseraTransaction *transaction)
{
	for (int i = 0; i < transaction->nparticipants; i++)
		if (transaction->participants[i].prepared)
		{
			transaction->client_nodes[transaction->client_nnodes++] = transaction->participants[i].node_id;
			transaction->participants[i].prepared = false;
		}
	transaction->phase = TESSERA_COMMIT_OPEN;
}

const int32 *
tessera_two_phase_prepared_nodes(TesseraTransaction *transaction, int *n)
{
	*n = transaction->client_nnodes;
	return transaction->client_nodes;
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
warn_unfinished(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	const PGresult *error = participant->command.error;

	ereport(WARNING,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the transaction is committed, but node \"%s\" has not confirmed it yet", tessera_connection_name(participant->connection)),
			 errdetail("Prepared transaction %s_%d stays there%s%s", transaction->gid, participant->node_id, error ? ": " : ".",
					   error ? PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY) : ""),
			 errhint("tessera.resolve_transactions() on that node finishes it; until then its rows are not visible.")));
}

/* Commits a prepared part with the transaction's time; an older version is told that in front of it. false: the connection is lost. */
static bool
queue_commit_prepared(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	TesseraConnection *connection = participant->connection;
	int			protocol = tessera_connection_protocol(connection);
	bool		says_time = protocol >= TESSERA_PREPARED_TIME_PROTOCOL;
	char		time[24];
	char	   *gid = psprintf("%s_%d", transaction->gid, participant->node_id);
	const char *values[2] = {gid, time};

	if (transaction->commit_time != 0 && protocol >= TESSERA_CUT_PROTOCOL && !says_time)
	{
		snprintf(time, sizeof(time), INT64_FORMAT, (int64) transaction->commit_time);
		(void) tessera_connection_queue_quietly(connection, tessera_call_literal_for(&tessera_call_specs[TESSERA_CALL_COMMIT_TIME],
																					 TESSERA_CUT_PROTOCOL, values));
		(void) tessera_connection_sync_quietly(connection);
	}
	memset(&participant->command, 0, sizeof(TesseraCommand));
	participant->command.sql = tessera_commit_prepared_text(gid, says_time ? transaction->commit_time : 0);
	return tessera_connection_queue_command_quietly(connection, &participant->command);
}

/* Carries out the decision on the prepared participants that keep advisory locks, or on those that do not. */
static void
commit_prepared(TesseraTransaction *transaction, bool locks, TimestampTz deadline)
{
	TesseraConnection **connections = palloc(Max(transaction->nparticipants, 1) * sizeof(TesseraConnection *));
	int			n = 0;

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (!participant->prepared || participant->locks != locks)
			continue;
		if (queue_commit_prepared(transaction, participant))
			connections[n++] = participant->connection;
	}
	(void) tessera_connections_await_answers(connections, n, deadline);
	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (!participant->prepared || participant->locks != locks)
			continue;
		participant->prepared = false;
		if (participant->command.done && (participant->command.error == NULL || finished_elsewhere(participant)))
			continue;
		warn_unfinished(transaction, participant);
		tessera_connection_forget(participant->connection, NULL);
		tessera_connection_close(participant->connection);
	}
	pfree(connections);
}

/* Ends the transactions that have only kept advisory locks. The client is answered when they are free. */
static void
end_lock_holders(TesseraTransaction *transaction, TimestampTz deadline)
{
	TesseraConnection **connections = palloc(Max(transaction->nparticipants, 1) * sizeof(TesseraConnection *));
	int			n = 0;

	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (!participant->joined || !participant->locks || participant->wrote)
			continue;
		(void) tessera_connection_queue_quietly(participant->connection, "COMMIT");
		if (tessera_connection_sync_quietly(participant->connection))
			connections[n++] = participant->connection;
		left_transaction(participant);
	}
	if (n > 0 && tessera_connections_await_answers(connections, n, deadline) > 0)
		for (int i = 0; i < n; i++)
			if (tessera_connection_busy(connections[i]))
				tessera_connection_close(connections[i]);	/* which lets go of them, too */
	pfree(connections);
}

void
tessera_two_phase_committed(TesseraTransaction *transaction)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_commit_timeout);

	if (transaction->phase != TESSERA_COMMIT_OPEN)
	{
		tessera_injection("commit_decided");	/* only to crash: nothing may be raised here */
		/* a session that waits for an advisory lock must see what was committed under it */
		commit_prepared(transaction, false, deadline);
		commit_prepared(transaction, true, deadline);
	}
	end_lock_holders(transaction, deadline);
	transaction->phase = TESSERA_COMMIT_OPEN;
}

/* ---- after an abort ---- */

/* Roll back what is open, and what was or may have been prepared. Each in a pipeline of its own: one may fail. */
static void
send_rollback(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	char		sql[TESSERA_GID_SIZE + 32];

	if (participant->joined)
	{
		(void) tessera_connection_queue_quietly(participant->connection, "ROLLBACK");
		(void) tessera_connection_sync_quietly(participant->connection);
	}
	if (participant->prepared && transaction->phase == TESSERA_COMMIT_PREPARING)
	{
		snprintf(sql, sizeof(sql), "ROLLBACK PREPARED '%s_%d'", transaction->gid, participant->node_id);
		(void) tessera_connection_queue_quietly(participant->connection, sql);
		(void) tessera_connection_sync_quietly(participant->connection);
	}
}

static void
rolled_back(TesseraParticipant *participant)
{
	TesseraRemoteState *state = tessera_connection_state(participant->connection);

	state->xact_depth = 0;
	state->wrote = false;
	state->known = false;
}

/* It was not used, or its transaction has ended and only the answer to that is missing. */
static bool
has_nothing_to_say(const TesseraParticipant *participant)
{
	return tessera_participant_is_unused(participant) ||
		(!participant->joined && !participant->prepared && tessera_connection_nobody_waits(participant->connection));
}

/* What it answers is read when the connection is used again: one that hangs is no matter until then. */
static void
leave_unused(TesseraTransaction *transaction, TesseraParticipant *participant)
{
	if (tessera_connection_drop_results(participant->connection))
		send_rollback(transaction, participant);
	rolled_back(participant);
}

void
tessera_two_phase_aborted(TesseraTransaction *transaction)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout);
	TesseraConnection **connections;
	TesseraParticipant **participants;
	int			n = 0;

	/* The coordinator had committed already, when something failed here: carry it out. */
	if (transaction->phase == TESSERA_COMMIT_COMMITTED)
		tessera_two_phase_committed(transaction);
	connections = palloc(Max(transaction->nparticipants, 1) * sizeof(TesseraConnection *));
	participants = palloc(Max(transaction->nparticipants, 1) * sizeof(TesseraParticipant *));
	for (int i = 0; i < transaction->nparticipants; i++)
	{
		TesseraParticipant *participant = &transaction->participants[i];

		if (has_nothing_to_say(participant))
			leave_unused(transaction, participant);
		else
		{
			connections[n] = participant->connection;
			participants[n++] = participant;
		}
	}
	tessera_connections_reset(connections, n, deadline);
	for (int i = 0; i < n; i++)
		if (tessera_connection_alive(connections[i]))
			send_rollback(transaction, participants[i]);
	if (tessera_connections_await_answers(connections, n, deadline) > 0)
		for (int i = 0; i < n; i++)
			if (tessera_connection_busy(connections[i]))
				tessera_connection_close(connections[i]);
	for (int i = 0; i < n; i++)
		rolled_back(participants[i]);
	pfree(participants);
	pfree(connections);
	transaction->phase = TESSERA_COMMIT_OPEN;
}
