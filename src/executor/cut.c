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

bool		tessera_snapshot_reads = false;

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
	return tessera_snapshot_reads && !IsolationUsesXactSnapshot() && !tessera_internal_connection() && has_clock();
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

/* The same; a node that is only asked in case it is needed later, and cannot be reached, is left out. */
static bool
send_or_skip(TesseraQuestion *ask, const TesseraCutNodes *nodes, int i, uint64 statement)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool sent = false;

	if (i < nodes->n - nodes->nspare)
		return send_ask(ask, nodes, nodes->node_ids[i], statement);
	PG_TRY();
	{
		sent = send_ask(ask, nodes, nodes->node_ids[i], statement);
	}
	PG_CATCH();
	{
		if (!tessera_error_is_unreachable(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return sent;
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

/* All of them, and what this node itself answers. The moment's time is the newest that any has seen. */
static bool
ask_nodes(const TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
{
	TesseraQuestion *asks = palloc0(sizeof(TesseraQuestion) * Max(nodes->n, 1));
	volatile int n = 0;
	bool		agree = true;

	memset(here, 0, sizeof(*here));
	*moment = (TesseraCutMoment) {.time = 1};
	if (own)
		moment->time = tessera_cut_ask(here, statement != 0 ? tessera_cut_lock(tables_of(nodes)) : NIL, CurrentResourceOwner, &moment->doubts);
	PG_TRY();
	{
		for (int i = 0; i < nodes->n; i++)
			if (nodes->node_ids[i] != nodes->routing->self && send_or_skip(&asks[n], nodes, i, statement))
				n++;
		tessera_questions_await(asks, n);
		for (int i = 0; i < n; i++)
			agree = read_ask(&asks[i], moment) && agree;
	}
	PG_FINALLY();
	{
		tessera_questions_end(asks, n);
	}
	PG_END_TRY();
	pfree(asks);
	if (!agree && own)
		tessera_cut_release(here);
	return agree;
}

bool
tessera_cut_ask_nodes(const TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
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
			if (nodes->node_ids[i] != nodes->routing->self && send_settle(&settles[n], nodes, nodes->node_ids[i], statement, moment))
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

/* They make their snapshots those of the time, at once: what they need for it is not kept for ever. */
static void
tell_nodes(const TesseraRouting *routing, const int32 *node_ids, int n, const TesseraCutMoment *moment)
{
	TesseraCommandNeeds needs = {.aside = true,.timeless = true};

	for (int i = 0; i < n; i++)
	{
		TesseraConnection *connection;

		if (node_ids[i] == routing->self || !tessera_participant_joined_by(node_ids[i], tessera_participants_joins()))
			continue;
		connection = tessera_participant(routing, node_ids[i], &needs);
		tessera_cut_tell(connection, node_ids[i], moment);
		tessera_connection_sync(connection);
		note_asked(node_ids[i]);
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

/* The first: what is needed now, and all other shards that can be reached. */
static void
begin_cut(const TesseraRouting *routing, int n, const int32 *node_ids)
{
	int32	   *all = palloc(sizeof(int32) * (routing->nnodes + n + 1));
	TesseraCutNodes nodes = {.routing = routing,.node_ids = all,.n = n};
	TesseraCutAsk here;
	TesseraCutMoment moment;

	tessera_injection("cut_begins");
	memcpy(all, node_ids, sizeof(int32) * n);
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		if (!node->is_shard || is_among(node->node_id, node_ids, n))
			continue;
		all[nodes.n++] = node->node_id;
		nodes.nspare++;
	}
	/* no tables are named that could be elsewhere: it has none to give */
	if (!tessera_cut_ask_nodes(&nodes, 0, true, &here, &moment))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: a node has no snapshot for the transaction"),
				 errhint("Retry the transaction.")));
	tell_nodes(routing, all, nodes.n, &moment);
	if (tessera_cut_take(&here, &moment) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: too much was committed while the transaction began"),
				 errhint("Retry the transaction.")));
	of_transaction.time = moment.time;
	pfree(all);
}

/* One that the transaction had not come to: its snapshot is taken now. */
static void
join_cut(const TesseraRouting *routing, int32 node_id)
{
	TesseraCutNodes nodes = {.routing = routing,.node_ids = &node_id,.n = 1};
	TesseraCutAsk here;
	TesseraCutMoment moment;

	if (!ask_nodes(&nodes, 0, false, &here, &moment) || moment.time > of_transaction.time)
		raise_too_late(tessera_routing_node(routing, node_id));
	moment.time = of_transaction.time;
	tessera_cut_settle_doubts(&nodes, 0, &moment);
	tell_nodes(routing, &node_id, 1, &moment);
}

void
tessera_cut_transaction(const TesseraRouting *routing, int n, const int32 *node_ids, Snapshot statement)
{
	if (!IsolationUsesXactSnapshot() || !tessera_snapshot_reads || tessera_internal_connection() || XactDeferrable || IsParallelWorker() ||
		!has_clock())
		return;
	if (of_transaction.transaction != tessera_proc_lxid(MyProc))
		of_transaction = (TransactionCut) {.transaction = tessera_proc_lxid(MyProc)};
	if (of_transaction.time == 0)
	{
		begin_cut(routing, n, node_ids);
		if (statement != NULL && statement != GetTransactionSnapshot())
			tessera_cut_copy(statement, GetTransactionSnapshot());
	}
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
}
