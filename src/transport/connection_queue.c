/*
 * connection_queue.c
 *	  What is in flight on a connection: commands are handed to libpq as they are queued, their results come back in the same order.
 *
 * Phases of a command: queued (libpq holds it, or has sent it), answered (its results went to its handler), ended (libpq's NULL), done. The last
 * command before a sync is done only when the sync is answered: what fails at an implicit commit (deferred constraints, serialization) is that
 * command's error.
 *
 * A notice can be parsed while the result of the command before it still waits to be fetched. So that a TS001 notice can be told to its own command,
 * two callers' commands never stand side by side in the queue: an empty query goes between them.
 *
 * Memory: entries and notices are the connection's. Command structs are the callers'; once an entry was forgotten or discarded, they are not touched.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "clock/clock.h"
#include "common/errors.h"
#include "common/protocol.h"
#include "transport/connection_private.h"

#define SEPARATOR ""

void		(*tessera_notification_handler) (const char *channel, const char *payload) = NULL;

static inline TesseraEntry *
entry_at(TesseraConnection *connection, uint32 i)
{
	return &connection->entries[(connection->head + i) & (connection->size - 1)];
}

static TesseraEntry *
push_entry(TesseraConnection *connection, TesseraEntryKind kind)
{
	TesseraEntry *entry;

	if (connection->count == connection->size)
	{
		uint32		size = connection->size == 0 ? 32 : connection->size * 2;
		TesseraEntry *entries = MemoryContextAlloc(connection->context, size * sizeof(TesseraEntry));

		for (uint32 i = 0; i < connection->count; i++)
			entries[i] = *entry_at(connection, i);
		if (connection->entries)
			pfree(connection->entries);
		connection->entries = entries;
		connection->size = size;
		connection->head = 0;
	}
	entry = entry_at(connection, connection->count++);
	memset(entry, 0, sizeof(TesseraEntry));
	entry->kind = kind;
	connection->unsynced = kind != TESSERA_ENTRY_SYNC;
	return entry;
}

static void
pop_entry(TesseraConnection *connection)
{
	TesseraEntry *entry = tessera_entry_head(connection);

	if (entry->statement)
		tessera_statement_release(connection, entry->statement);
	connection->head = (connection->head + 1) & (connection->size - 1);
	connection->count--;
}

/* Drop the whole queue without touching the callers' commands. */
void
tessera_entries_discard(TesseraConnection *connection)
{
	while (connection->count > 0)
		pop_entry(connection);
	connection->held = NULL;
	connection->unsynced = false;
	connection->unflushed = false;
}

bool
tessera_connection_nobody_waits(const TesseraConnection *connection)
{
	/* a sync alone: a statement that commits by itself is not over */
	bool		ends = connection->count == 0;

	for (int i = 0; i < connection->count; i++)
	{
		TesseraEntryKind kind = connection->entries[(connection->head + i) & (connection->size - 1)].kind;

		if (kind == TESSERA_ENTRY_COMMAND || kind == TESSERA_ENTRY_PREPARE)
			return false;
		ends = ends || kind == TESSERA_ENTRY_QUIET;
	}
	return ends && connection->held == NULL;
}

void
tessera_connection_clear_errors(TesseraConnection *connection)
{
	ListCell   *cell;

	foreach(cell, connection->errors)
		PQclear(lfirst(cell));
	list_free(connection->errors);
	connection->errors = NIL;
}

static void
free_errors(List **errors)
{
	ListCell   *cell;

	foreach(cell, *errors)
		FreeErrorData(lfirst(cell));
	list_free(*errors);
	*errors = NIL;
}

void
tessera_connection_clear_all_notices(TesseraConnection *connection)
{
	free_errors(&connection->notices);
	free_errors(&connection->notifications);
}

/* ---- notices ---- */

/* The caller's command whose execution the notice belongs to; see the head of the file. */
static TesseraCommand *
command_of_notice(TesseraConnection *connection)
{
	for (uint32 i = 0; i < connection->count; i++)
	{
		TesseraEntry *entry = entry_at(connection, i);

		if (entry->kind == TESSERA_ENTRY_COMMAND)
			return entry->command;
	}
	return NULL;
}

static int
level_of(const char *severity)
{
	if (severity == NULL)
		return NOTICE;
	if (strcmp(severity, "WARNING") == 0)
		return WARNING;
	if (strcmp(severity, "INFO") == 0)
		return INFO;
	if (strcmp(severity, "LOG") == 0 || strncmp(severity, "DEBUG", 5) == 0)
		return DEBUG1;
	return NOTICE;
}

static char *
field_copy(const PGresult *result, int code)
{
	const char *value = PQresultErrorField(result, code);

	return value ? pstrdup(value) : NULL;
}

static int
sqlstate_of(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (state == NULL || strlen(state) != 5)
		return ERRCODE_CONNECTION_FAILURE;
	return MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
}

/*
 * An INFO by which tessera on the other end tells something to this one. Code of users there can raise the same SQLSTATE, but not in the name of our
 * source files.
 */
static bool
is_word_of_ours(const PGresult *result, const char *severity, int code)
{
	static const char *const files[] = {"shard_check.c", "truncate.c", "internal_connection.c", "notify.c", "replicated.c"};
	const char *file = PQresultErrorField(result, PG_DIAG_SOURCE_FILE);

	if (severity == NULL || strcmp(severity, "INFO") != 0 || file == NULL || sqlstate_of(result) != code)
		return false;
	for (int i = 0; i < lengthof(files); i++)
		if (strcmp(file, files[i]) == 0)
			return true;
	return false;
}

/* libpq's notice receiver: nothing may be thrown here, so keep it for tessera_connection_emit_notices. */
void
tessera_connection_notice(void *arg, const PGresult *result)
{
	TesseraConnection *connection = arg;
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
	MemoryContext before;
	ErrorData  *notice;

	if (is_word_of_ours(result, severity, ERRCODE_TESSERA_STALE_ROUTING))
	{
		TesseraCommand *command = command_of_notice(connection);

		if (command)
			command->stale = true;
		return;
	}
	if (is_word_of_ours(result, severity, ERRCODE_TESSERA_UNPREPARABLE) || is_word_of_ours(result, severity, ERRCODE_TESSERA_OLD_UNPREPARABLE))
	{
		connection->state.unpreparable = true;
		return;
	}
	if (is_word_of_ours(result, severity, ERRCODE_TESSERA_CAPTURED))
	{
		connection->state.captured = true;
		return;
	}
	before = MemoryContextSwitchTo(connection->context);
	notice = palloc0(sizeof(ErrorData));
	notice->elevel = level_of(severity);
	notice->sqlerrcode = PQresultErrorField(result, PG_DIAG_SQLSTATE) ? sqlstate_of(result) : ERRCODE_WARNING;
	notice->message = field_copy(result, PG_DIAG_MESSAGE_PRIMARY);
	notice->detail = field_copy(result, PG_DIAG_MESSAGE_DETAIL);
	notice->hint = field_copy(result, PG_DIAG_MESSAGE_HINT);
	notice->context = field_copy(result, PG_DIAG_CONTEXT);
	if (is_word_of_ours(result, severity, ERRCODE_TESSERA_NOTIFICATION) || is_word_of_ours(result, severity, ERRCODE_TESSERA_OLD_NOTIFICATION))
		connection->notifications = lappend(connection->notifications, notice);
	else
		connection->notices = lappend(connection->notices, notice);
	MemoryContextSwitchTo(before);
}

void
tessera_connection_deliver_notifications(TesseraConnection *connection)
{
	while (connection->notifications != NIL)
	{
		ErrorData  *notice = linitial(connection->notifications);

		connection->notifications = list_delete_first(connection->notifications);
		if (tessera_notification_handler && notice->message)
			tessera_notification_handler(notice->message, notice->detail ? notice->detail : "");
		FreeErrorData(notice);
	}
}

/* Say here what the other end said, at its level; this session's client_min_messages filters. */
void
tessera_connection_emit_notices(TesseraConnection *connection)
{
	while (connection->notices != NIL)
	{
		ErrorData  *notice = linitial(connection->notices);

		connection->notices = list_delete_first(connection->notices);
		ereport(notice->elevel,
				(errcode(notice->sqlerrcode),
				 notice->message ? errmsg_internal("%s", notice->message) : errmsg_internal("message without text"),
				 notice->detail ? errdetail_internal("%s", notice->detail) : 0,
				 notice->hint ? errhint("%s", notice->hint) : 0,
				 notice->context ? errcontext("%s", notice->context) : 0,
				 errcontext("node \"%s\"", NameStr(connection->name))));
		FreeErrorData(notice);
	}
}

/* ---- queueing ---- */

/*
 * libpq refuses a statement with more parameters than the protocol can count, before it queues any of it: that is the statement's error. Whatever
 * else it refuses means that the connection is gone, or is left with half a message.
 */
static void
require_countable(TesseraConnection *connection, const TesseraCommand *command)
{
	if (command->nparams > PQ_QUERY_PARAM_MAX_LIMIT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the statement has %d parameters, but no more than %d can be sent to node \"%s\"", command->nparams,
						PQ_QUERY_PARAM_MAX_LIMIT, NameStr(connection->name)),
				 errhint("Pass several values as an array.")));
}

static void
require(TesseraConnection *connection, int sent)
{
	if (!sent)
	{
		tessera_connection_broke(connection);
		tessera_connection_raise_broken(connection);
	}
}

static void
require_open(TesseraConnection *connection)
{
	if (connection->pg == NULL || connection->broken)
		tessera_connection_raise_broken(connection);
}

static const char *
statement_name(uint32 number)
{
	static char name[32];
	static uint32 named = 0;	/* numbers begin with 1 */

	if (named != number)
		snprintf(name, sizeof(name), "tessera_%u", number);
	named = number;
	return name;
}

/*
 * Names that are free again. Only before a caller's command: DEALLOCATE takes a snapshot, and before a BEGIN of another isolation level there must be
 * none.
 */
static void
queue_deallocations(TesseraConnection *connection)
{
	while (connection->nleftovers > 0)
	{
		uint32		number = connection->leftovers[--connection->nleftovers];
		char		deallocate[64];

		snprintf(deallocate, sizeof(deallocate), "DEALLOCATE %s", statement_name(number));
		require(connection, PQsendQueryParams(connection->pg, deallocate, 0, NULL, NULL, NULL, NULL, 0));
		push_entry(connection, TESSERA_ENTRY_DEALLOCATE)->number = number;
	}
}

/* The statement for this SQL, with its Parse queued if it is new. command: it gets the Parse's error. The reference is given to the caller. */
static TesseraStatement *
queue_prepare(TesseraConnection *connection, TesseraCommand *command, const char *sql, int nparams, const Oid *types)
{
	bool		found;
	TesseraStatement *statement = tessera_statement_find(connection, sql, nparams, types, command ? command->shape : 0, &found);

	if (!found)
	{
		TesseraEntry *entry;

		require(connection, PQsendPrepare(connection->pg, statement_name(statement->number), sql, nparams, types));
		entry = push_entry(connection, TESSERA_ENTRY_PREPARE);
		entry->command = command;
		entry->statement = statement;
		statement->refs++;
	}
	return statement;
}

void
tessera_connection_queue(TesseraConnection *connection, TesseraCommand *command)
{
	TesseraStatement *statement = NULL;
	TesseraEntry *entry;

	require_open(connection);
	require_countable(connection, command);
	command->sent = command->done = command->aborted = command->stale = false;
	command->error = NULL;
	command->tag = NULL;
	command->next = NULL;

	queue_deallocations(connection);
	if (command->prepare && tessera_statement_cache_size > 0)
		statement = queue_prepare(connection, command, command->sql, command->nparams, command->types);
	if (connection->count > 0 && entry_at(connection, connection->count - 1)->kind == TESSERA_ENTRY_COMMAND)
	{
		require(connection, PQsendQueryParams(connection->pg, SEPARATOR, 0, NULL, NULL, NULL, NULL, 0));
		push_entry(connection, TESSERA_ENTRY_QUIET);
	}
	if (statement)
		require(connection, PQsendQueryPrepared(connection->pg, statement_name(statement->number), command->nparams, command->values,
												command->lengths, command->formats, command->result_format));
	else
		require(connection, PQsendQueryParams(connection->pg, command->sql, command->nparams, command->types, command->values,
											  command->lengths, command->formats, command->result_format));
	entry = push_entry(connection, TESSERA_ENTRY_COMMAND);
	entry->command = command;
	entry->statement = statement;
	command->sent = true;
}

void
tessera_connection_queue_sql(TesseraConnection *connection, const char *sql)
{
	require_open(connection);
	require(connection, PQsendQueryParams(connection->pg, sql, 0, NULL, NULL, NULL, NULL, 0));
	push_entry(connection, TESSERA_ENTRY_INTERNAL);
}

void
tessera_connection_queue_control(TesseraConnection *connection, const char *sql, int nparams, const char *const *values)
{
	TesseraStatement *statement;

	require_open(connection);
	if (tessera_statement_cache_size <= 0)
	{
		require(connection, PQsendQueryParams(connection->pg, sql, nparams, NULL, values, NULL, NULL, 0));
		push_entry(connection, TESSERA_ENTRY_INTERNAL);
		return;
	}
	statement = queue_prepare(connection, NULL, sql, nparams, NULL);
	require(connection, PQsendQueryPrepared(connection->pg, statement_name(statement->number), nparams, values, NULL, NULL, 0));
	push_entry(connection, TESSERA_ENTRY_INTERNAL)->statement = statement;
}

bool
tessera_connection_queue_quietly(TesseraConnection *connection, const char *sql)
{
	if (!tessera_connection_alive(connection))
		return false;
	if (!PQsendQueryParams(connection->pg, sql, 0, NULL, NULL, NULL, NULL, 0))
	{
		tessera_connection_broke(connection);
		return false;
	}
	push_entry(connection, TESSERA_ENTRY_QUIET);
	return true;
}

bool
tessera_connection_queue_command_quietly(TesseraConnection *connection, TesseraCommand *command)
{
	if (!tessera_connection_alive(connection))
		return false;
	if (!PQsendQueryParams(connection->pg, command->sql, command->nparams, command->types, command->values, command->lengths,
						   command->formats, command->result_format))
	{
		tessera_connection_broke(connection);
		return false;
	}
	push_entry(connection, TESSERA_ENTRY_COMMAND)->command = command;
	command->sent = true;
	return tessera_connection_sync_quietly(connection);
}

bool
tessera_connection_sync_quietly(TesseraConnection *connection)
{
	if (!tessera_connection_alive(connection))
		return false;
	if (connection->unsynced)
	{
		MemoryContextReset(connection->tags);
		if (!PQpipelineSync(connection->pg))
		{
			tessera_connection_broke(connection);
			return false;
		}
		push_entry(connection, TESSERA_ENTRY_SYNC);
		connection->unflushed = true;
	}
	return tessera_connection_flush(connection);
}

/* Send what libpq holds as far as the socket takes it. False if the connection broke. */
bool
tessera_connection_flush(TesseraConnection *connection)
{
	int			status;

	if (!connection->unflushed)
		return true;
	status = PQflush(connection->pg);
	if (status < 0)
	{
		tessera_connection_broke(connection);
		return false;
	}
	connection->unflushed = status > 0;
	return true;
}

void
tessera_connection_forget(TesseraConnection *connection, TesseraCommand *command)
{
	if (command == NULL || connection->held == command)
		connection->held = NULL;
	for (uint32 i = 0; i < connection->count; i++)
	{
		TesseraEntry *entry = entry_at(connection, i);

		if (command == NULL || entry->command == command)
			entry->command = NULL;
		if (command == NULL)
			entry->quiet = true;
	}
}

/* ---- answers ---- */

bool
tessera_connection_read(TesseraConnection *connection)
{
	if (!PQconsumeInput(connection->pg))
	{
		tessera_connection_broke(connection);
		return false;
	}
	return true;
}

static bool
is_error(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE || status == PGRES_NONFATAL_ERROR;
}

/* What an error tells about the session and the prepared statement it happened with. */
static void
learn_from_error(TesseraConnection *connection, TesseraEntry *entry, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
	int			state = sqlstate_of(result);

	connection->state.known = false;
	if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
	{
		const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		if (connection->last_words)
			pfree(connection->last_words);
		connection->last_words = MemoryContextStrdup(connection->context, message ? message : PQresultErrorMessage(result));
		connection->last_state = state;
	}
	if (entry->statement == NULL)
		return;
	if (entry->kind == TESSERA_ENTRY_PREPARE || state == ERRCODE_UNDEFINED_PSTATEMENT)
		tessera_statement_drop(connection, entry->statement, false);
	else if (state == ERRCODE_FEATURE_NOT_SUPPORTED)
		tessera_statement_drop(connection, entry->statement, true); /* perhaps "cached plan must not change result type" */
}

/* Give a result to its command; the result is taken over. */
static void
deliver(TesseraConnection *connection, TesseraCommand *command, PGresult *result)
{
	if (command == NULL)
	{
		PQclear(result);
		return;
	}
	if (!is_error(result) && PQresultStatus(result) != PGRES_SINGLE_TUPLE)
	{
		const char *tag = PQcmdStatus(result);

		command->tag = tag && *tag ? MemoryContextStrdup(connection->tags, tag) : NULL;
	}
	if (command->handler)
		command->handler(command, result);
	else if (is_error(result) && command->error == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(connection->context);

		command->error = result;
		connection->errors = lappend(connection->errors, result);
		MemoryContextSwitchTo(before);
	}
	else
		PQclear(result);
}

/* An error of something no caller waits for. */
static void
raise_internal(TesseraConnection *connection, TesseraEntry *entry, PGresult *result, bool quiet)
{
	if (quiet || entry->quiet || entry->kind == TESSERA_ENTRY_QUIET)
		PQclear(result);
	else
		tessera_connection_raise(connection, result, NULL);
}

/*
 * What time it is at the other end (doc/design.md#cluster-time): it says so in front of the end of an answer, if that has changed. A time that is
 * too far ahead is not taken in here, where nothing may be raised; what uses the connection next is refused (transaction/node_link.c).
 */
static void
learn_time(TesseraConnection *connection, bool quiet)
{
	const char *text = PQparameterStatus(connection->pg, TESSERA_TIME_PARAMETER);
	TesseraTimes times;

	if (text == NULL || strcmp(text, connection->state.time_text) == 0)
		return;					/* nothing new with this answer */
	strlcpy(connection->state.time_text, text, sizeof(connection->state.time_text));
	if (!tessera_times_read(text, &times) || !tessera_times_newer(&times, &connection->state.heard))
		return;
	tessera_times_raise(&connection->state.heard, &times);
	(void) tessera_clock_hear(&times, !quiet);
}

/* One result of the entry at the head. */
static void
handle_result(TesseraConnection *connection, PGresult *result, bool quiet)
{
	TesseraEntry *entry = tessera_entry_head(connection);
	ExecStatusType status = PQresultStatus(result);

	connection->handled++;
	if (status == PGRES_PIPELINE_SYNC)
	{
		TesseraCommand *held = connection->held;

		PQclear(result);
		Assert(entry->kind == TESSERA_ENTRY_SYNC);
		learn_time(connection, quiet);
		connection->held = NULL;
		if (held)
			held->done = true;
		pop_entry(connection);
		return;
	}
	if (status == PGRES_PIPELINE_ABORTED)
	{
		PQclear(result);
		if (entry->kind == TESSERA_ENTRY_PREPARE)
			tessera_statement_drop(connection, entry->statement, false);
		else if (entry->kind == TESSERA_ENTRY_DEALLOCATE)
			tessera_leftover_add(connection, entry->number);
		else if (entry->kind == TESSERA_ENTRY_COMMAND && entry->command && !entry->failed)
			entry->command->aborted = true;
		return;
	}
	if (entry->kind == TESSERA_ENTRY_PREPARE && status == PGRES_COMMAND_OK)
	{
		PQclear(result);
		entry->statement->prepared = true;
		if (entry->statement->doomed)
			tessera_leftover_add(connection, entry->statement->number);
		return;
	}
	if (is_error(result))
	{
		learn_from_error(connection, entry, result);
		entry->failed = true;
		if (entry->kind == TESSERA_ENTRY_SYNC)
		{
			/* The implicit commit failed. */
			if (connection->held == NULL)
				raise_internal(connection, entry, result, quiet);
			else
				deliver(connection, connection->held, result);
			return;
		}
		if (entry->kind == TESSERA_ENTRY_PREPARE && entry->command)
		{
			TesseraCommand *command = entry->command;

			/* Its own entry will come back aborted: it has its reason already. */
			for (uint32 i = 1; i < connection->count; i++)
				if (entry_at(connection, i)->command == command)
					entry_at(connection, i)->failed = true;
			deliver(connection, command, result);
			return;
		}
		if (entry->kind != TESSERA_ENTRY_COMMAND || entry->command == NULL)
		{
			raise_internal(connection, entry, result, quiet);
			return;
		}
	}
	if (entry->kind == TESSERA_ENTRY_COMMAND)
		deliver(connection, entry->command, result);
	else
		PQclear(result);
}

/* libpq's NULL: the entry at the head has given all its results. */
static void
end_entry(TesseraConnection *connection)
{
	TesseraEntry *entry = tessera_entry_head(connection);

	if (entry->kind == TESSERA_ENTRY_SYNC)
		return;					/* after an error at the implicit commit; its sync still comes */
	if (entry->kind == TESSERA_ENTRY_COMMAND)
		connection->held = entry->command;
	pop_entry(connection);
}

bool
tessera_connection_process(TesseraConnection *connection, bool quiet)
{
	uint64		before = connection->handled;

	if (connection->pg == NULL || connection->broken)
		return false;
	while (connection->count > 0)
	{
		TesseraEntry *entry = tessera_entry_head(connection);
		PGresult   *result;

		/* The one before is done unless its sync comes next. */
		if (connection->held && entry->kind != TESSERA_ENTRY_SYNC)
		{
			connection->held->done = true;
			connection->held = NULL;
		}
		if (entry->kind == TESSERA_ENTRY_COMMAND && !entry->row_mode && entry->command && entry->command->single_row)
			entry->row_mode = PQsetSingleRowMode(connection->pg) == 1;
		if (PQisBusy(connection->pg))
			break;
		result = PQgetResult(connection->pg);
		if (result)
			handle_result(connection, result, quiet);
		else if (PQstatus(connection->pg) == CONNECTION_BAD)
		{
			tessera_connection_broke(connection);
			break;
		}
		else
			end_entry(connection);
	}
	if (connection->notifications != NIL && !quiet)
		tessera_connection_deliver_notifications(connection);
	if (connection->notices != NIL)
	{
		if (quiet)
			free_errors(&connection->notices);
		else
			tessera_connection_emit_notices(connection);
	}
	return connection->handled != before;
}
