/*
 * cut_left_out.c
 *	  Who is left out of a statement's common snapshot at READ COMMITTED; see cut_left_out.h.
 *
 * All nodes that have rows of the statement's tables are asked, and it may come to few of them. One that is down, fenced or hangs is no matter until
 * then; when it is needed the statement fails (tessera_cut_require), also if the node is back: it would show a moment of its own.
 *
 * Any node may be needed, so it gets the time that a statement on it alone would give it: a lock or a free connection may be waited for. One that has
 * kept others waiting lately gets tessera.snapshot_timeout.
 */
#include "postgres.h"

#include "storage/proc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "common/version_compat.h"
#include "executor/cut_left_out.h"
#include "transaction/participant.h"
#include "transport/connection_slots.h"

typedef struct LeftOutKey
{
	uint64		statement;
	int64		node_id;		/* so wide that there is no padding */
} LeftOutKey;

typedef struct LeftOut
{
	LeftOutKey	key;
	int			sqlerrcode;
	const char *why;			/* in TopTransactionContext */
} LeftOut;

/* Of the transaction with this id; in TopTransactionContext. */
typedef struct AllLeftOut
{
	LocalTransactionId transaction;
	HTAB	   *table;
} AllLeftOut;

static AllLeftOut left_out = {InvalidLocalTransactionId};


static void
leave_out(TesseraCutNodes *nodes, int32 node_id, uint64 statement, const ErrorData *why)
{
	LeftOutKey	key = {.statement = statement,.node_id = node_id};
	LeftOut    *entry;

	if (left_out.transaction != tessera_proc_lxid(MyProc))
	{
		HASHCTL		control = {.keysize = sizeof(LeftOutKey),.entrysize = sizeof(LeftOut),.hcxt = TopTransactionContext};

		left_out.table = hash_create("tessera left out", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		left_out.transaction = tessera_proc_lxid(MyProc);
	}
	entry = hash_search(left_out.table, &key, HASH_ENTER, NULL);
	entry->sqlerrcode = why->sqlerrcode;
	entry->why = MemoryContextStrdup(TopTransactionContext, why->detail ? psprintf("%s: %s", why->message, why->detail) : why->message);
	nodes->left_out = bms_add_member(nodes->left_out, node_id);
}

void
tessera_cut_require(const TesseraRouting *routing, int32 node_id, uint64 statement)
{
	LeftOutKey	key = {.statement = statement,.node_id = node_id};
	const LeftOut *entry;

	if (left_out.transaction != tessera_proc_lxid(MyProc))
		return;
	entry = hash_search(left_out.table, &key, HASH_FIND, NULL);
	if (entry != NULL)
		ereport(ERROR,
				(errcode(entry->sqlerrcode),
				 errmsg("node \"%s\" could not be reached when the statement began", NameStr(tessera_routing_node(routing, node_id)->name)),
				 errdetail("%s", entry->why),
				 errhint("Run the statement again.")));
}

/* ---- sending ---- */

/* For all of a question together. */
static TimestampTz
late_until(TesseraCutNodes *nodes)
{
	if (nodes->late_until == 0)
		nodes->late_until = tessera_spares_deadline();
	return nodes->late_until;
}

bool
tessera_left_out_or_sent(TesseraCutNodes *nodes, TesseraSpare *spare, void (*send) (TesseraSpare *spare))
{
	if (tessera_spare_reach(spare, send, tessera_node_keeps_waiting(spare->node_id) ? late_until(nodes) : 0))
		return spare->sent;
	tessera_questions_end(spare->ask, 1);
	memset(spare->ask, 0, sizeof(TesseraQuestion));
	leave_out(nodes, spare->node_id, spare->statement, spare->error);
	return false;
}

/* ---- waiting ---- */

/* Nothing will come of it. */
static bool
has_failed(const TesseraQuestion *question)
{
	TesseraConnection *connection = question->connection;

	if (connection == NULL)
		return false;
	if (!question->command.done)
		return !tessera_connection_alive(connection) || tessera_connection_broken(connection);
	return question->answer == NULL && question->error == NULL && !question->command.stale;
}

static void
drop_question(TesseraCutNodes *nodes, TesseraQuestion *question, uint64 statement, const ErrorData *why, TimestampTz since)
{
	int32		node_id = tessera_connection_node(question->connection);

	tessera_questions_end(question, 1);
	memset(question, 0, sizeof(TesseraQuestion));
	question->command.done = true;
	tessera_participant_let_go(node_id);
	tessera_spare_note_late(node_id, since);
	leave_out(nodes, node_id, statement, why);
}

/* Those of the questions that are late, and not answered yet. */
static int
pending(const TesseraQuestion *questions, int n, const bool *late, TesseraConnection **connections)
{
	int			npending = 0;

	for (int i = 0; i < n; i++)
		if (late[i] && !questions[i].command.done)
			connections[npending++] = questions[i].connection;
	return npending;
}

/* Those that have kept others waiting lately: they are waited for as long as such are, and dropped if they may go. */
static void
await_late(TesseraCutNodes *nodes, TesseraQuestion *questions, int n, const bool *late, uint64 statement, TimestampTz since)
{
	const ErrorData why = {.sqlerrcode = ERRCODE_CONNECTION_FAILURE,.message = "It has not answered in time."};
	TesseraConnection **connections = palloc(sizeof(TesseraConnection *) * Max(n, 1));
	int			npending;

	while ((npending = pending(questions, n, late, connections)) > 0)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), late_until(nodes));

		if (!tessera_connections_pump(connections, npending, (int) left) && left == 0)
			break;
	}
	pfree(connections);
	for (int i = 0; i < n; i++)
	{
		int32		node_id = late[i] && questions[i].connection != NULL ? tessera_connection_node(questions[i].connection) : 0;

		if (node_id == 0)
			continue;
		if (questions[i].answer != NULL)
			tessera_node_is_back(node_id);
		else if (!questions[i].command.done && tessera_participant_may_go(node_id, statement))
			drop_question(nodes, &questions[i], statement, &why, since);
	}
}

void
tessera_left_out_or_heard(TesseraCutNodes *nodes, TesseraQuestion *questions, int n, uint64 statement)
{
	TimestampTz since = GetCurrentTimestamp();
	bool	   *late = palloc0(sizeof(bool) * Max(n, 1));
	volatile bool heard = false;

	for (int i = 0; i < n; i++)
		late[i] = tessera_node_keeps_waiting(tessera_connection_node(questions[i].connection));
	while (!heard)
	{
		MemoryContext context = CurrentMemoryContext;

		PG_TRY();
		{
			await_late(nodes, questions, n, late, statement, since);
			tessera_questions_await(questions, n);
			heard = true;
		}
		PG_CATCH();
		{
			TesseraQuestion *failed = NULL;
			ErrorData  *why;

			for (int i = 0; i < n && failed == NULL; i++)
				if (has_failed(&questions[i]))
					failed = &questions[i];
			if (failed == NULL || !tessera_is_no_matter(nodes->routing, geterrcode()) ||
				!tessera_participant_may_go(tessera_connection_node(failed->connection), statement))
				PG_RE_THROW();
			MemoryContextSwitchTo(context);
			why = CopyErrorData();
			FlushErrorState();
			drop_question(nodes, failed, statement, why, since);
			FreeErrorData(why);
		}
		PG_END_TRY();
	}
	pfree(late);
}
