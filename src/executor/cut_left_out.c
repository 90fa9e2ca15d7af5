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
	entry->why = MemoryContextStrdup(TopTransactionContext, why->message);
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

bool
tessera_left_out_or_sent(TesseraCutNodes *nodes, TesseraSpare *spare, void (*send) (TesseraSpare *spare))
{
	TimestampTz deadline = tessera_node_keeps_waiting(spare->node_id) ? tessera_spares_deadline() : 0;

	if (tessera_spare_reach(spare, send, deadline))
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
	if (question->connection == NULL || question->answer != NULL || question->error != NULL)
		return false;
	return (question->command.done && !question->command.stale) || !tessera_connection_alive(question->connection);
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

/* Those that have kept others waiting lately. */
static void
await_late(TesseraCutNodes *nodes, TesseraQuestion *questions, int n, uint64 statement)
{
	TesseraConnection **connections = palloc(sizeof(TesseraConnection *) * Max(n, 1));
	const ErrorData why = {.sqlerrcode = ERRCODE_CONNECTION_FAILURE,.message = "It has not answered in time."};
	TimestampTz since = GetCurrentTimestamp();
	int			nlate = 0;

	for (int i = 0; i < n; i++)
		if (!questions[i].command.done && tessera_node_keeps_waiting(tessera_connection_node(questions[i].connection)))
			connections[nlate++] = questions[i].connection;
	if (nlate > 0)
	{
		(void) tessera_connections_await_in_time(connections, nlate, tessera_spares_deadline());
		for (int i = 0; i < n; i++)
		{
			int32		node_id = questions[i].connection != NULL ? tessera_connection_node(questions[i].connection) : 0;

			if (node_id == 0 || !tessera_node_keeps_waiting(node_id))
				continue;
			if (questions[i].command.done)
				tessera_node_is_back(node_id);
			else if (tessera_participant_may_go(node_id))
				drop_question(nodes, &questions[i], statement, &why, since);
		}
	}
	pfree(connections);
}

void
tessera_left_out_or_heard(TesseraCutNodes *nodes, TesseraQuestion *questions, int n, uint64 statement)
{
	TimestampTz since = GetCurrentTimestamp();
	volatile bool heard = false;

	await_late(nodes, questions, n, statement);
	while (!heard)
	{
		MemoryContext context = CurrentMemoryContext;

		PG_TRY();
		{
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
			if (failed == NULL || !tessera_is_no_matter(geterrcode()) ||
				!tessera_participant_may_go(tessera_connection_node(failed->connection)))
				PG_RE_THROW();
			MemoryContextSwitchTo(context);
			why = CopyErrorData();
			FlushErrorState();
			drop_question(nodes, failed, statement, why, since);
			FreeErrorData(why);
		}
		PG_END_TRY();
	}
}
