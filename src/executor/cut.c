/*
 * cut.c
 *	  One snapshot over all nodes, the router's side; see cut.h.
 *
 * Nodes of an earlier version (protocol below TESSERA_CUT_PROTOCOL) know no commit times: a statement that needs one of them goes by its snapshot as
 * it is.
 *
 * At REPEATABLE READ the list of the nodes that were asked belongs to the transaction whose local id it carries. A node whose remote transaction was
 * rolled back as a whole since then (tessera_participants_leave) is asked again.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "catalog/clock_store.h"
#include "clock/clock.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "executor/cut.h"
#include "executor/cut_doubts.h"
#include "executor/questions.h"
#include "transaction/cluster_time.h"
#include "transaction/participant.h"
#include "transport/connection_slots.h"

bool		tessera_snapshot_reads = false;

static int	snapshot_timeout = 2000;

typedef struct AskedNode
{
	int32		node_id;
	uint32		join;			/* of its transaction */
} AskedNode;

/* Of the transaction with this id. */
typedef struct TransactionCut
{
	LocalTransactionId transaction;
	TesseraTime time;			/* 0: nobody was asked */
	List	   *asked;			/* of AskedNode *, in TopTransactionContext */
	bool		beginning;		/* they are being asked */
	bool		imported;		/* its snapshot is another one's */
} TransactionCut;

static TransactionCut of_transaction = {InvalidLocalTransactionId};


/* The clock goes, or is started now: it does not on a standby. */
static bool
has_clock(void)
{
	tessera_clock_load();
	return tessera_clock_role() != TESSERA_CLOCK_STOPPED;
}

bool
tessera_cut_applies(void)
{
	return tessera_snapshot_reads && MyBackendType == B_BACKEND && !IsolationUsesXactSnapshot() && !tessera_internal_connection() && has_clock();
}

/* ---- asking ---- */

/* NULL: a placed table that is elsewhere, of which the node need not say anything. */
static const TesseraTable *
table_there(const TesseraCutNodes *nodes, Oid relid, int32 node_id)
{
	const TesseraTable *table = tessera_routing_table(nodes->routing, relid);

	return table == NULL || (!table->replicated && table->group < 0 && table->node_id != node_id) ? NULL : table;
}

static List *
tables_of(const TesseraCutNodes *nodes)
{
	return list_concat_copy(nodes->relids, nodes->copies);
}

/* As the argument of the call to the node. */
static const char *
table_ids(const TesseraCutNodes *nodes, int32 node_id)
{
	List	   *relids = tables_of(nodes);
	StringInfoData ids;
	ListCell   *cell;

	initStringInfo(&ids);
	foreach(cell, relids)
	{
		const TesseraTable *table = table_there(nodes, lfirst_oid(cell), node_id);

		if (table == NULL)
			continue;
		appendStringInfoChar(&ids, ids.len == 0 ? '{' : ',');
		appendStringInfoString(&ids, DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&table->table_id))));
	}
	if (ids.len == 0)
		appendStringInfoChar(&ids, '{');
	appendStringInfoChar(&ids, '}');
	list_free(relids);
	return ids.data;
}

/* The versions by which the node is asked, palloc'd. */
static TesseraToldVersion *
versions_for(const TesseraCutNodes *nodes, int32 node_id, int *n)
{
	TesseraToldVersion *versions = palloc(sizeof(TesseraToldVersion) * (TESSERA_TOLD_VERSIONS * list_length(nodes->relids) + 1));
	ListCell   *cell;

	*n = 0;
	foreach(cell, nodes->relids)
	{
		const TesseraTable *table = table_there(nodes, lfirst_oid(cell), node_id);

		if (table != NULL)
			*n += tessera_told_versions(nodes->routing, table, node_id, &versions[*n]);
	}
	return versions;
}

/* Sends the question; false: the node is of a version that does not know it. */
static bool
send_ask(TesseraQuestion *ask, const TesseraCutNodes *nodes, int32 node_id, uint64 statement)
{
	TesseraCommandNeeds needs = {.statement = statement,.aside = statement == 0,.timeless = true};
	int			protocol;

	needs.versions = versions_for(nodes, node_id, &needs.nversions);
	ask->connection = tessera_participant(nodes->routing, node_id, &needs);
	protocol = tessera_connection_protocol(ask->connection);
	if (protocol < TESSERA_CUT_PROTOCOL)
		return false;
	ask->values[0] = table_ids(nodes, node_id);
	tessera_question_send(ask, protocol < TESSERA_PEEK_PROTOCOL ? TESSERA_CALL_ASK : TESSERA_CALL_ASK_MOMENT);
	return true;
}

static TesseraTime
read_time(const char *text)
{
	return (TesseraTime) strtoll(text, NULL, 10);
}

/* false: the node routes the tables otherwise. */
static bool
read_ask(const TesseraQuestion *ask, TesseraCutMoment *moment)
{
	TesseraTime newest;
	Datum	   *answer;
	int			n;

	if (ask->answer == NULL || ask->command.stale)
		return false;
	if (tessera_connection_protocol(ask->connection) < TESSERA_PEEK_PROTOCOL)
	{
		newest = read_time(PQgetvalue(ask->answer, 0, 0));
		moment->time = Max(moment->time, newest);
		return newest != 0;
	}
	answer = tessera_question_array(ask, TEXTOID, &n);
	newest = n > 0 ? read_time(TextDatumGetCString(answer[0])) : 0;
	moment->time = Max(moment->time, newest);
	for (int i = 1; i + 1 < n; i += 2)
	{
		TesseraDoubt *doubt = palloc0(sizeof(TesseraDoubt));

		strlcpy(doubt->gid, TextDatumGetCString(answer[i]), sizeof(doubt->gid));
		doubt->prepared = read_time(TextDatumGetCString(answer[i + 1]));
		moment->doubts = lappend(moment->doubts, doubt);
	}
	return newest != 0;
}

/* ---- those that cannot be reached ---- */

/* That were asked for statements of the transaction with this id. */
typedef struct LeftOut
{
	LocalTransactionId transaction;
	List	   *statements;		/* of palloc'd numbers, in TopTransactionContext; as long as */
	List	   *nodes;			/* the list of their nodes */
} LeftOut;

static LeftOut left_out = {InvalidLocalTransactionId};

static void
leave_out(TesseraCutNodes *nodes, int32 node_id, uint64 statement)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	uint64	   *number = palloc(sizeof(uint64));

	if (left_out.transaction != tessera_proc_lxid(MyProc))
		left_out = (LeftOut) {.transaction = tessera_proc_lxid(MyProc)};
	*number = statement;
	left_out.statements = lappend(left_out.statements, number);
	left_out.nodes = lappend_int(left_out.nodes, node_id);
	MemoryContextSwitchTo(before);
	nodes->left_out = bms_add_member(nodes->left_out, node_id);
}

void
tessera_cut_require(const TesseraRouting *routing, int32 node_id, uint64 statement)
{
	ListCell   *number;
	ListCell   *node;

	if (left_out.transaction != tessera_proc_lxid(MyProc))
		return;
	forboth(number, left_out.statements, node, left_out.nodes)
		if (*(uint64 *) lfirst(number) == statement && lfirst_int(node) == node_id)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("node \"%s\" could not be reached when the statement began", NameStr(tessera_routing_node(routing, node_id)->name)),
					 errhint("Run the statement again.")));
}

/* Sends the question. false: nothing was sent. */
static bool
ask_or_leave_out(TesseraQuestion *ask, TesseraCutNodes *nodes, int32 node_id, uint64 statement)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool sent = false;

	if (!nodes->lenient)
		return send_ask(ask, nodes, node_id, statement);
	PG_TRY();
	{
		sent = send_ask(ask, nodes, node_id, statement);
	}
	PG_CATCH();
	{
		if (!tessera_error_is_unreachable(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		tessera_questions_end(ask, 1);
		memset(ask, 0, sizeof(TesseraQuestion));
		tessera_participant_let_go(node_id);
		leave_out(nodes, node_id, statement);
	}
	PG_END_TRY();
	return sent;
}

/* ---- those that a transaction does not need yet ---- */

/* One of the shards that are only asked in case they are needed later. */
typedef struct Spare
{
	const TesseraCutNodes *nodes;
	int32		node_id;
	TesseraQuestion *ask;
	const TesseraCutMoment *moment;
	bool		sent;
} Spare;

static void
ask_spare(Spare *spare)
{
	spare->sent = send_ask(spare->ask, spare->nodes, spare->node_id, 0);
}

/* A node that had so long, in ms, to answer is left alone for a while; with less than that, which anybody can set, it was only not asked. */
#define ENOUGH_MS 1000

static void
note_late(int32 node_id, TimestampTz since)
{
	if (TimestampDifferenceExceeds(since, GetCurrentTimestamp(), ENOUGH_MS))
		tessera_node_kept_waiting(node_id);
}

/* What may be wrong with a node that is not needed: it cannot be reached, or is not one that this node would work with. */
static bool
is_no_matter(int sqlerrcode)
{
	return tessera_error_is_unreachable(sqlerrcode) || sqlerrcode == ERRCODE_TESSERA_FENCED || sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
}

/* Sends the spare something, in time. false: it cannot be reached then, and is in the transaction no more. */
static bool
reach_spare(Spare *spare, void (*send) (Spare *spare), TimestampTz deadline)
{
	MemoryContext context = CurrentMemoryContext;
	TimestampTz since = GetCurrentTimestamp();
	TimestampTz before = tessera_connections_limit(deadline);
	volatile bool reached = false;

	if (before != 0 && before < deadline)
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
		if (!is_no_matter(code))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		tessera_participant_let_go(spare->node_id);
		if (code != ERRCODE_TOO_MANY_CONNECTIONS)
			note_late(spare->node_id, since);
	}
	PG_END_TRY();
	(void) tessera_connections_limit(before);
	return reached;
}

static bool
is_connected(int32 node_id)
{
	TesseraConnection *connection = tessera_connection_find(node_id, 0);

	return connection != NULL && tessera_connection_alive(connection);
}

/* Whether a spare is asked at all. One that the statement is likely to come to is not left alone. */
static bool
is_worth_asking(const TesseraCutNodes *nodes, int32 node_id, TimestampTz deadline)
{
	bool		connected = is_connected(node_id);

	if (node_id == nodes->routing->self || (!connected && GetCurrentTimestamp() >= deadline))
		return false;
	return bms_is_member(node_id, nodes->likely) || tessera_node_is_at_hand(node_id, connected);
}

/* Counts in *n how many were asked. */
static void
ask_spares(const TesseraCutNodes *nodes, TesseraQuestion *asks, volatile int *n, TimestampTz deadline)
{
	for (int i = nodes->n - nodes->nspare; i < nodes->n; i++)
	{
		Spare		spare = {.nodes = nodes,.node_id = nodes->node_ids[i],.ask = &asks[*n]};

		if (!is_worth_asking(nodes, spare.node_id, deadline))
			continue;
		if (reach_spare(&spare, ask_spare, deadline) && spare.sent)
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

/* Those that have not answered, or not as was hoped for, leave the transaction: they are asked when they are needed. */
static void
let_spare_go(TesseraQuestion *ask)
{
	int32		node_id = tessera_connection_node(ask->connection);

	tessera_questions_end(ask, 1);
	tessera_participant_let_go(node_id);
}

static void
hear_spares(TesseraQuestion *asks, int n, TimestampTz since, TimestampTz deadline, TesseraCutMoment *moment)
{
	await_spares(asks, n, deadline);
	for (int i = 0; i < n; i++)
	{
		int32		node_id = tessera_connection_node(asks[i].connection);
		bool		late = !asks[i].command.done && tessera_connection_alive(asks[i].connection);

		if (asks[i].answer != NULL && read_ask(&asks[i], moment))
			tessera_node_is_back(node_id);
		else
			let_spare_go(&asks[i]);
		if (late)
			note_late(node_id, since);
	}
}

/* How long spares are waited for, from now on: not so long that the statement fails for it. */
static TimestampTz
spares_deadline(void)
{
	int			timeout = StatementTimeout > 0 ? Min(snapshot_timeout, StatementTimeout / 2) : snapshot_timeout;

	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);
}

/* ---- all of them ---- */

/* All of them, and what this node itself answers. The moment's time is the newest that any has seen. */
static bool
ask_nodes(TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
{
	TesseraQuestion *asks = palloc0(sizeof(TesseraQuestion) * Max(nodes->n, 1));
	volatile int n = 0;
	volatile int nspares = 0;
	bool		agree = true;

	memset(here, 0, sizeof(*here));
	*moment = (TesseraCutMoment) {.time = 1};
	if (own)
		moment->time = tessera_cut_ask(here, statement != 0 ? tessera_cut_lock(tables_of(nodes)) : NIL, CurrentResourceOwner, &moment->doubts);
	PG_TRY();
	{
		TimestampTz since;
		TimestampTz deadline;

		for (int i = 0; i < nodes->n - nodes->nspare; i++)
			if (nodes->node_ids[i] != nodes->routing->self && ask_or_leave_out(&asks[n], nodes, nodes->node_ids[i], statement))
				n++;
		since = GetCurrentTimestamp();
		deadline = spares_deadline();
		ask_spares(nodes, &asks[n], &nspares, deadline);
		tessera_questions_await(asks, n);
		for (int i = 0; i < n; i++)
			agree = read_ask(&asks[i], moment) && agree;
		if (agree && nspares > 0)
			hear_spares(&asks[n], nspares, since, deadline, moment);
	}
	PG_CATCH();
	{
		for (int i = n; i < n + nspares; i++)
			if (!asks[i].command.done)
				let_spare_go(&asks[i]);
		tessera_questions_end(asks, nodes->n);
		PG_RE_THROW();
	}
	PG_END_TRY();
	tessera_questions_end(asks, nodes->n);
	pfree(asks);
	if (!agree && own)
		tessera_cut_release(here);
	return agree;
}

bool
tessera_cut_ask_nodes(TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
{
	if (!ask_nodes(nodes, statement, own, here, moment))
		return false;
	tessera_injection("cut_asked");
	moment->time = Max(moment->time, tessera_clock_session());
	tessera_cut_settle_doubts(nodes, statement, moment);
	return true;
}

void
tessera_cut_tell(TesseraConnection *connection, int32 node_id, const TesseraCutMoment *moment)
{
	char	   *gids;
	char	   *answers;

	if (tessera_connection_protocol(connection) < TESSERA_CUT_PROTOCOL)
		return;
	tessera_cut_doubts_text(moment, node_id, &gids, &answers);
	tessera_queue_take(connection, (int64) moment->time, gids, answers);
	pfree(gids);
	pfree(answers);
}

/* Sends one the question; those of earlier versions make it all the same, and are not waited for. */
static bool
send_settle(TesseraQuestion *settle, const TesseraCutNodes *nodes, int32 node_id, uint64 statement, const TesseraCutMoment *moment)
{
	TesseraCommandNeeds needs = {.statement = statement,.timeless = true};
	char	   *gids;
	char	   *answers;

	needs.versions = versions_for(nodes, node_id, &needs.nversions);
	settle->connection = tessera_participant(nodes->routing, node_id, &needs);
	if (tessera_connection_protocol(settle->connection) < TESSERA_MEET_PROTOCOL)
	{
		tessera_cut_tell(settle->connection, node_id, moment);
		tessera_connection_sync(settle->connection);
		return false;
	}
	tessera_cut_doubts_text(moment, node_id, &gids, &answers);
	settle->values[0] = tessera_call_from_int8((int64) moment->time);
	settle->values[1] = gids;
	settle->values[2] = answers;
	tessera_question_send(settle, TESSERA_CALL_SETTLE);
	return true;
}

bool
tessera_cut_settle_nodes(const TesseraCutNodes *nodes, uint64 statement, const TesseraCutMoment *moment)
{
	TesseraQuestion *settles = palloc0(sizeof(TesseraQuestion) * Max(nodes->n, 1));
	volatile int n = 0;
	bool		settled = true;

	PG_TRY();
	{
		for (int i = 0; i < nodes->n; i++)
			if (nodes->node_ids[i] != nodes->routing->self && !bms_is_member(nodes->node_ids[i], nodes->left_out) &&
				send_settle(&settles[n], nodes, nodes->node_ids[i], statement, moment))
				n++;
		tessera_questions_await(settles, n);
		for (int i = 0; i < n; i++)
			settled = settled && tessera_question_is_true(&settles[i]);
	}
	PG_FINALLY();
	{
		tessera_questions_end(settles, n);
	}
	PG_END_TRY();
	pfree(settles);
	return settled;
}

/* ---- without a question ---- */

/* So much ahead of the clock here: what is committed on the way of the statement is seen, and other routers' clocks may be a little ahead, too. */
#define LEAD (TESSERA_TIME_SECOND / 1000)

/* True if all have answered a greeting, in a version that knows it; and no transaction there would take rows that are dropped in the end. */
static bool
can_be_met(const TesseraCutNodes *nodes)
{
	TesseraCommandNeeds needs = {.autocommit = true,.aside = true,.timeless = true};

	for (int i = 0; i < nodes->n; i++)
	{
		TesseraConnection *connection;

		if (nodes->node_ids[i] == nodes->routing->self)
			continue;
		connection = tessera_participant(nodes->routing, nodes->node_ids[i], &needs);
		if (tessera_connection_protocol(connection) < TESSERA_MEET_PROTOCOL ||
			(tessera_connection_state(connection)->xact_depth > 0 && !nodes->few_rows))
			return false;
	}
	return true;
}

bool
tessera_cut_choose(const TesseraCutNodes *nodes, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
{
	List	   *locked = own ? tessera_cut_lock(tables_of(nodes)) : NIL;
	TesseraTimes now;
	TesseraTime newest;

	memset(here, 0, sizeof(*here));
	*moment = (TesseraCutMoment) {0};
	/* what takes its time comes first: the moment is to be a late one */
	if (!can_be_met(nodes) || !tessera_clock_read(&now))
		return false;
	moment->time = Max(tessera_clock_wall() + LEAD, Max(now.cluster, tessera_clock_session()));
	if (!own)
		return true;
	if (!tessera_clock_raise(moment->time))
		return false;
	tessera_injection("cut_choose");
	newest = tessera_cut_ask(here, locked, CurrentResourceOwner, &moment->doubts);
	moment->time = Max(moment->time, newest);
	if (tessera_clock_raise(moment->time) && !tessera_cut_in_doubt(moment))
		return true;
	tessera_cut_release(here);
	return false;
}

void
tessera_cut_meet(TesseraQuestion *meet, const TesseraCutNodes *nodes, int32 node_id, const TesseraCutMoment *moment)
{
	meet->values[0] = tessera_call_from_int8((int64) moment->time);
	meet->values[1] = table_ids(nodes, node_id);
	tessera_question_queue(meet, TESSERA_CALL_MEET);
}

/* ---- transactions with one snapshot ---- */

static bool
was_asked(int32 node_id)
{
	ListCell   *cell;

	foreach(cell, of_transaction.asked)
	{
		AskedNode  *asked = lfirst(cell);

		if (asked->node_id == node_id && tessera_participant_joined_by(node_id, asked->join))
			return true;
	}
	return false;
}

static void
note_asked(int32 node_id)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	AskedNode  *asked = palloc(sizeof(AskedNode));

	asked->node_id = node_id;
	asked->join = tessera_participants_joins();
	of_transaction.asked = lappend(of_transaction.asked, asked);
	MemoryContextSwitchTo(before);
}

_Noreturn static void
raise_too_late(const TesseraNode *node)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: node \"%s\" was not asked for the transaction's snapshot, and has committed since",
					node ? NameStr(node->name) : "unknown"),
			 errhint("Retry the transaction.")));
}

/* The node makes its snapshot that of the moment, at once: what it needs for that is not kept for ever. */
static void
tell_node(const TesseraRouting *routing, int32 node_id, const TesseraCutMoment *moment)
{
	TesseraCommandNeeds needs = {.aside = true,.timeless = true};
	TesseraConnection *connection;

	if (node_id == routing->self || !tessera_participant_joined_by(node_id, tessera_participants_joins()))
		return;
	connection = tessera_participant(routing, node_id, &needs);
	tessera_cut_tell(connection, node_id, moment);
	tessera_connection_sync(connection);
	note_asked(node_id);
}

static void
tell_spare(Spare *spare)
{
	tell_node(spare->nodes->routing, spare->node_id, spare->moment);
}

static void
tell_nodes(const TesseraCutNodes *nodes, const TesseraCutMoment *moment)
{
	TimestampTz deadline = spares_deadline();

	for (int i = 0; i < nodes->n; i++)
	{
		Spare		spare = {.nodes = nodes,.node_id = nodes->node_ids[i],.moment = moment};

		if (i < nodes->n - nodes->nspare)
			tell_node(nodes->routing, nodes->node_ids[i], moment);
		else
			(void) reach_spare(&spare, tell_spare, deadline);
	}
}

static bool
is_among(int32 node_id, const int32 *node_ids, int n)
{
	for (int i = 0; i < n; i++)
		if (node_ids[i] == node_id)
			return true;
	return false;
}

/* The order in which nodes are asked; those of the first kind are needed. */
typedef enum Need
{
	NEED_HELD,					/* it is in the transaction already, or keeps locks of this session: its connection stays */
	NEED_LIKELY,				/* the statement may come to it */
	NEED_CONNECTED,
	NEED_NONE
} Need;

static Need
need_of(const TesseraCutNodes *nodes, int32 node_id)
{
	TesseraConnection *connection = tessera_connection_find(node_id, 0);

	if (tessera_participant_joined_by(node_id, tessera_participants_joins()) ||
		(connection != NULL && tessera_connection_state(connection)->session_locks > 0))
		return NEED_HELD;
	if (bms_is_member(node_id, nodes->likely))
		return NEED_LIKELY;
	return is_connected(node_id) ? NEED_CONNECTED : NEED_NONE;
}

/* Behind those that are needed, which are in node_ids, all other shards; in nodes->node_ids, palloc'd. */
static void
list_nodes(TesseraCutNodes *nodes, int n, const int32 *node_ids)
{
	const TesseraRouting *routing = nodes->routing;
	int32	   *all = palloc(sizeof(int32) * (routing->nnodes + n + 1));

	memcpy(all, node_ids, sizeof(int32) * n);
	nodes->n = n;
	for (Need need = NEED_HELD; need <= NEED_NONE; need++)
		for (int i = 0; i < routing->nnodes; i++)
		{
			const TesseraNode *node = tessera_routing_node_at(routing, i);

			if (!node->is_shard || is_among(node->node_id, node_ids, n) || need_of(nodes, node->node_id) != need)
				continue;
			all[nodes->n++] = node->node_id;
			nodes->nspare += need != NEED_HELD;
		}
	nodes->node_ids = all;
}

/* How often all are asked anew, as too much has happened since the question. */
#define MOST_QUESTIONS 10

_Noreturn static void
raise_no_snapshot(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: %s", why),
			 errhint("Retry the transaction.")));
}

/* The first: nothing was read yet. */
static void
begin_cut(const TesseraRouting *routing, int n, const int32 *node_ids, Bitmapset *likely)
{
	TesseraCutNodes nodes = {.routing = routing,.likely = likely};

	tessera_injection("cut_begins");
	list_nodes(&nodes, n, node_ids);
	for (int turn = 0; turn < MOST_QUESTIONS; turn++)
	{
		TesseraCutAsk here;
		TesseraCutMoment moment;

		/* no tables are named that could be elsewhere: it has none to give */
		if (!tessera_cut_ask_nodes(&nodes, 0, true, &here, &moment))
			raise_no_snapshot("a node has no snapshot for the transaction");
		tell_nodes(&nodes, &moment);
		if (tessera_cut_take(&here, &moment) != NULL)
		{
			of_transaction.time = moment.time;
			return;
		}
	}
	raise_no_snapshot("too much was committed while the transaction began");
}

/* One that the transaction had not come to: its snapshot is taken now. */
static void
join_cut(const TesseraRouting *routing, int32 node_id)
{
	TesseraCutNodes nodes = {.routing = routing,.node_ids = &node_id,.n = 1};
	TesseraCutAsk here;
	TesseraCutMoment moment;

	/* it may have been lost before it was needed */
	if (tessera_connection_find(node_id, 0) != NULL && tessera_connection_lost(tessera_connection_find(node_id, 0)))
		tessera_participant_let_go(node_id);
	if (!ask_nodes(&nodes, 0, false, &here, &moment) || moment.time > of_transaction.time)
		raise_too_late(tessera_routing_node(routing, node_id));
	moment.time = of_transaction.time;
	tessera_cut_settle_doubts(&nodes, 0, &moment);
	tell_node(routing, node_id, &moment);
}

static TransactionCut *
this_transaction(void)
{
	if (of_transaction.transaction != tessera_proc_lxid(MyProc))
		of_transaction = (TransactionCut) {.transaction = tessera_proc_lxid(MyProc)};
	return &of_transaction;
}

void
tessera_cut_imported(void)
{
	this_transaction()->imported = true;
}

/*
 * Not of one whose snapshot is another's, or that others have: they would not have the new one; a walsender's is that of its slot. Nor by a query of
 * our own while it begins.
 */
bool
tessera_cut_begins(void)
{
	return IsolationUsesXactSnapshot() && tessera_snapshot_reads && MyBackendType == B_BACKEND && !tessera_internal_connection() &&
		this_transaction()->time == 0 && !of_transaction.imported && !of_transaction.beginning && !XactHasExportedSnapshots() && has_clock();
}

void
tessera_cut_transaction(const TesseraRouting *routing, int n, const int32 *node_ids, Bitmapset *likely, Snapshot statement)
{
	if (tessera_cut_begins())
	{
		of_transaction.beginning = true;
		PG_TRY();
		{
			begin_cut(routing, n, node_ids, likely);
		}
		PG_FINALLY();
		{
			of_transaction.beginning = false;
		}
		PG_END_TRY();
		if (statement != NULL && statement != GetTransactionSnapshot())
			tessera_cut_copy(statement, GetTransactionSnapshot());
	}
	if (!IsolationUsesXactSnapshot() || this_transaction()->time == 0)
		return;
	for (int i = 0; i < n; i++)
		if (node_ids[i] != routing->self && !was_asked(node_ids[i]))
			join_cut(routing, node_ids[i]);
}

void
tessera_cut_init(void)
{
	DefineCustomBoolVariable("tessera.snapshot_reads", "Statements that read several nodes see one moment of the cluster.",
							 "It costs a round trip where writes over several nodes are under way. If off, each node shows its newest state.",
							 &tessera_snapshot_reads, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.snapshot_timeout", "How long a transaction at REPEATABLE READ waits for shards that it does not read yet.",
							"They are asked for its snapshot with the first statement. One that does not answer in time is asked when it is needed.",
							&snapshot_timeout, 2000, 1, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
}
