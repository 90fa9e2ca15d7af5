/*
 * cut_spares.c
 *	  Shards that a transaction at REPEATABLE READ asks for its snapshot in case it needs them later; see cut_private.h.
 *
 * They have tessera.snapshot_timeout together. Who does not answer in time, cannot be reached or has no connection to give leaves the transaction,
 * and is asked when it is needed. One that has kept others waiting is left alone for a while (tessera_node_is_at_hand), but for one session that
 * looks.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "catalog/incarnation.h"
#include "common/errors.h"
#include "executor/cut_private.h"
#include "transaction/participant.h"
#include "transport/connection_slots.h"


static void
ask_spare(TesseraSpare *spare)
{
	spare->sent = tessera_cut_send_ask(spare->ask, spare->nodes, spare->node_id, spare->statement);
}

/* A node that had so long, in ms, to answer is left alone for a while; with less than that, which anybody can set, it was only not asked. */
#define ENOUGH_MS 1000

void
tessera_spare_note_late(int32 node_id, TimestampTz since)
{
	if (TimestampDifferenceExceeds(since, GetCurrentTimestamp(), ENOUGH_MS))
		tessera_node_kept_waiting(node_id);
}

bool
tessera_is_no_matter(const TesseraRouting *routing, int sqlerrcode)
{
	/* it may have said that it is this server that was replaced */
	if (sqlerrcode == ERRCODE_TESSERA_FENCED)
		return !tessera_incarnation_is_outdone(routing->incarnation);
	return tessera_error_is_unreachable(sqlerrcode) || sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
}

bool
tessera_spare_reach(TesseraSpare *spare, void (*send) (TesseraSpare *spare), TimestampTz deadline)
{
	MemoryContext context = CurrentMemoryContext;
	TimestampTz since = GetCurrentTimestamp();
	TimestampTz before = tessera_connections_limit(deadline);
	volatile bool reached = false;

	if (before != 0 && (deadline == 0 || before < deadline))
		(void) tessera_connections_limit(before);
	PG_TRY();
	{
		send(spare);
		reached = true;
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		(void) tessera_connections_limit(before);
		if (!tessera_is_no_matter(spare->nodes->routing, code) || !tessera_participant_may_go(spare->node_id, spare->statement))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		spare->error = CopyErrorData();
		FlushErrorState();
		tessera_participant_let_go(spare->node_id);
		if (code != ERRCODE_TOO_MANY_CONNECTIONS)
			tessera_spare_note_late(spare->node_id, since);
	}
	PG_END_TRY();
	(void) tessera_connections_limit(before);
	return reached;
}

bool
tessera_spare_is_connected(int32 node_id)
{
	TesseraConnection *connection = tessera_connection_find(node_id, 0);

	return connection != NULL && tessera_connection_alive(connection);
}

/* Whether a spare is asked at all. One that the statement is likely to come to is not left alone. */
static bool
is_worth_asking(const TesseraCutNodes *nodes, int32 node_id, TimestampTz deadline)
{
	bool		connected = tessera_spare_is_connected(node_id);

	if (node_id == nodes->routing->self || (!connected && GetCurrentTimestamp() >= deadline))
		return false;
	return bms_is_member(node_id, nodes->likely) || tessera_node_is_at_hand(node_id, connected);
}

void
tessera_spares_ask(const TesseraCutNodes *nodes, TesseraQuestion *asks, volatile int *n, TimestampTz deadline)
{
	for (int i = nodes->n - nodes->nspare; i < nodes->n; i++)
	{
		TesseraSpare		spare = {.nodes = nodes,.node_id = nodes->node_ids[i],.ask = &asks[*n]};

		if (!is_worth_asking(nodes, spare.node_id, deadline))
			continue;
		if (tessera_spare_reach(&spare, ask_spare, deadline) && spare.sent)
		{
			(*n)++;
			continue;
		}
		tessera_questions_end(spare.ask, 1);
		memset(spare.ask, 0, sizeof(TesseraQuestion));
	}
}

/* What has come, and was not read while others were waited for, comes at once. */
#define GRACE_MS 100

/* Until the deadline, for n spares. Raises nothing but interrupts. */
static void
await_spares(const TesseraQuestion *asks, int n, TimestampTz deadline)
{
	TesseraConnection **connections = palloc(sizeof(TesseraConnection *) * Max(n, 1));

	for (int i = 0; i < n; i++)
		connections[i] = asks[i].connection;
	(void) tessera_connections_await_in_time(connections, n, Max(deadline, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), GRACE_MS)));
	pfree(connections);
}

void
tessera_spare_let_go(TesseraQuestion *ask)
{
	int32		node_id = tessera_connection_node(ask->connection);

	tessera_questions_end(ask, 1);
	tessera_participant_let_go(node_id);
}

/* Those that have not answered, or not as was hoped for, leave the transaction. */
void
tessera_spares_hear(TesseraQuestion *asks, int n, TimestampTz since, TimestampTz deadline, TesseraCutMoment *moment)
{
	await_spares(asks, n, deadline);
	for (int i = 0; i < n; i++)
	{
		int32		node_id = tessera_connection_node(asks[i].connection);
		bool		late = !asks[i].command.done && tessera_connection_alive(asks[i].connection);

		if (asks[i].answer != NULL && tessera_cut_read_ask(&asks[i], moment))
			tessera_node_is_back(node_id);
		else
			tessera_spare_let_go(&asks[i]);
		if (late)
			tessera_spare_note_late(node_id, since);
	}
}

TimestampTz
tessera_spares_deadline(void)
{
	int			timeout = StatementTimeout > 0 ? Min(tessera_snapshot_timeout, StatementTimeout / 2) : tessera_snapshot_timeout;

	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);
}
