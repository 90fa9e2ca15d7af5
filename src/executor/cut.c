/*
 * cut.c
 *	  One snapshot over all nodes, the router's side; see cut.h. Here the nodes are asked for the moment, and told it.
 *
 * Nodes of an earlier version (protocol below TESSERA_CUT_PROTOCOL) know no commit times: a statement that needs one of them goes by its snapshot as
 * it is.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/resowner.h"
#include "utils/uuid.h"

#include "catalog/clock_store.h"
#include "clock/clock.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "control/calls.h"
#include "executor/cut.h"
#include "executor/cut_doubts.h"
#include "executor/cut_left_out.h"
#include "executor/cut_private.h"
#include "executor/questions.h"
#include "transaction/cluster_time.h"
#include "transaction/participant.h"

bool		tessera_snapshot_reads = true;
int			tessera_snapshot_timeout = 2000;


bool
tessera_cut_has_clock(void)
{
	tessera_clock_load();
	return tessera_clock_role() != TESSERA_CLOCK_STOPPED;
}

bool
tessera_cut_applies(void)
{
	return tessera_snapshot_reads && MyBackendType == B_BACKEND && !IsolationUsesXactSnapshot() && !tessera_internal_connection() &&
		tessera_cut_has_clock();
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

bool
tessera_cut_send_ask(TesseraQuestion *ask, const TesseraCutNodes *nodes, int32 node_id, uint64 statement)
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

bool
tessera_cut_read_ask(const TesseraQuestion *ask, TesseraCutMoment *moment)
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

/* ---- all of them ---- */

static void
ask_one(TesseraSpare *spare)
{
	spare->sent = tessera_cut_send_ask(spare->ask, spare->nodes, spare->node_id, spare->statement);
}

/* True if there is an answer to wait for. */
static bool
ask_or_leave_out(TesseraQuestion *ask, TesseraCutNodes *nodes, int32 node_id, uint64 statement)
{
	TesseraSpare asked = {.nodes = nodes,.node_id = node_id,.statement = statement,.ask = ask};

	return nodes->lenient ? tessera_left_out_or_sent(nodes, &asked, ask_one) : tessera_cut_send_ask(ask, nodes, node_id, statement);
}

static void
await(TesseraQuestion *questions, int n, TesseraCutNodes *nodes, uint64 statement)
{
	if (nodes->lenient)
		tessera_left_out_or_heard(nodes, questions, n, statement);
	else
		tessera_questions_await(questions, n);
}

bool
tessera_cut_ask_all(TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment)
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
		deadline = tessera_spares_deadline();
		tessera_spares_ask(nodes, &asks[n], &nspares, deadline);
		await(asks, n, nodes, statement);
		for (int i = 0; i < n; i++)
			agree = (asks[i].connection == NULL || tessera_cut_read_ask(&asks[i], moment)) && agree;
		if (agree && nspares > 0)
			tessera_spares_hear(&asks[n], nspares, since, deadline, moment);
	}
	PG_CATCH();
	{
		for (int i = n; i < n + nspares; i++)
			if (!asks[i].command.done)
				tessera_spare_let_go(&asks[i]);
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
	if (!tessera_cut_ask_all(nodes, statement, own, here, moment))
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
static void
settle_one(TesseraSpare *spare)
{
	const TesseraCutNodes *nodes = spare->nodes;
	TesseraCommandNeeds needs = {.statement = spare->statement,.timeless = true};
	TesseraQuestion *settle = spare->ask;
	char	   *gids;
	char	   *answers;

	needs.versions = versions_for(nodes, spare->node_id, &needs.nversions);
	settle->connection = tessera_participant(nodes->routing, spare->node_id, &needs);
	if (tessera_connection_protocol(settle->connection) < TESSERA_MEET_PROTOCOL)
	{
		tessera_cut_tell(settle->connection, spare->node_id, spare->moment);
		tessera_connection_sync(settle->connection);
		return;
	}
	tessera_cut_doubts_text(spare->moment, spare->node_id, &gids, &answers);
	settle->values[0] = tessera_call_from_int8((int64) spare->moment->time);
	settle->values[1] = gids;
	settle->values[2] = answers;
	tessera_question_send(settle, TESSERA_CALL_SETTLE);
	spare->sent = true;
}

/* True if there is an answer to wait for. */
static bool
settle_or_leave_out(TesseraQuestion *settle, TesseraCutNodes *nodes, int32 node_id, uint64 statement, const TesseraCutMoment *moment)
{
	TesseraSpare told = {.nodes = nodes,.node_id = node_id,.statement = statement,.ask = settle,.moment = moment};

	if (node_id == nodes->routing->self || bms_is_member(node_id, nodes->left_out))
		return false;
	if (nodes->lenient)
		return tessera_left_out_or_sent(nodes, &told, settle_one);
	settle_one(&told);
	return told.sent;
}

bool
tessera_cut_settle_nodes(TesseraCutNodes *nodes, uint64 statement, const TesseraCutMoment *moment)
{
	TesseraQuestion *settles = palloc0(sizeof(TesseraQuestion) * Max(nodes->n, 1));
	volatile int n = 0;
	bool		settled = true;

	PG_TRY();
	{
		for (int i = 0; i < nodes->n; i++)
			if (settle_or_leave_out(&settles[n], nodes, nodes->node_ids[i], statement, moment))
				n++;
		await(settles, n, nodes, statement);
		for (int i = 0; i < n; i++)
			settled = settled && (settles[i].connection == NULL || tessera_question_is_true(&settles[i]));
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

/* ---- settings ---- */

void
tessera_cut_init(void)
{
	DefineCustomBoolVariable("tessera.snapshot_reads", "Statements that read several nodes see one moment of the cluster.",
							 "It costs a round trip where writes over several nodes are under way. If off, each node shows its newest state.",
							 &tessera_snapshot_reads, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.snapshot_timeout", "How long a transaction at REPEATABLE READ waits for shards that it does not read yet.",
							"They are asked for its snapshot with the first statement. One that does not answer in time is asked when it is needed.",
							&tessera_snapshot_timeout, 2000, 1, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
}
