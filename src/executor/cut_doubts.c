/*
 * cut_doubts.c
 *	  What is prepared and not seen: the questions to its coordinators; see cut_doubts.h. No state of its own.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"

#include "common/protocol.h"
#include "control/calls.h"
#include "executor/cut_doubts.h"
#include "executor/executor_settings.h"
#include "executor/questions.h"
#include "transaction/participant.h"
#include "transaction/peek.h"
#include "transport/connection_slots.h"

/* How long a node is asked, beside the statement, about what nobody waits for yet: what clients have prepared, and what a transaction leaves open. */
#define BRIEF_MS 1000

/* To one coordinator. */
typedef struct Peek
{
	int32		coordinator;
	List	   *doubts;			/* TesseraDoubt *: the question's, in its order */
	StringInfoData gids;
} Peek;


/* True for one that the statement needs: whose connection is there to be used. */
static bool
takes_part(const TesseraCutNodes *nodes, int32 node_id)
{
	for (int i = 0; i < nodes->n - nodes->nspare; i++)
		if (nodes->node_ids[i] == node_id && !bms_is_member(node_id, nodes->left_out))
			return tessera_participant_joined_by(node_id, tessera_participants_joins());
	return false;
}

static Peek *
find_peek(List **peeks, int32 coordinator)
{
	ListCell   *cell;
	Peek	   *peek;

	foreach(cell, *peeks)
	{
		peek = lfirst(cell);
		if (peek->coordinator == coordinator)
			return peek;
	}
	peek = palloc0(sizeof(Peek));
	peek->coordinator = coordinator;
	initStringInfo(&peek->gids);
	*peeks = lappend(*peeks, peek);
	return peek;
}

/* One for each coordinator. What was prepared later than the time is committed later. */
static List *
make_peeks(const TesseraCutMoment *moment)
{
	List	   *peeks = NIL;
	ListCell   *cell;

	foreach(cell, moment->doubts)
	{
		TesseraDoubt *doubt = lfirst(cell);
		char		transaction[TESSERA_TRANSACTION_GID];
		int32		coordinator;
		Peek	   *peek;

		if (doubt->prepared > moment->time || !tessera_part_of(doubt->gid, transaction, &coordinator))
			continue;
		peek = find_peek(&peeks, coordinator);
		peek->doubts = lappend(peek->doubts, doubt);
		appendStringInfo(&peek->gids, "%c%s", peek->gids.len == 0 ? '{' : ',', doubt->gid);
	}
	foreach(cell, peeks)
		appendStringInfoChar(&((Peek *) lfirst(cell))->gids, '}');
	return peeks;
}

static void
note_answers(Peek *peek, const Datum *answers, int n)
{
	for (int i = 0; n == list_length(peek->doubts) && i < n; i++)
		((TesseraDoubt *) list_nth(peek->doubts, i))->decided = (TesseraDecided) DatumGetInt32(answers[i]);
}

/* This node coordinates them. */
static void
peek_here(Peek *peek, TesseraTime time)
{
	ListCell   *cell;

	foreach(cell, peek->doubts)
	{
		TesseraDoubt *doubt = lfirst(cell);
		char		transaction[TESSERA_TRANSACTION_GID];
		int32		coordinator;

		if (tessera_part_of(doubt->gid, transaction, &coordinator))
			doubt->decided = tessera_peek(transaction, time);
	}
}

/* True if only clients can decide them, whom nobody waits for. */
static bool
is_of_clients(const Peek *peek)
{
	ListCell   *cell;

	foreach(cell, peek->doubts)
		if (!tessera_part_is_clients(((TesseraDoubt *) lfirst(cell))->gid))
			return false;
	return true;
}

/* The statement does not need the node: whatever goes wrong there, its transactions are as they were, in doubt. */
static void
peek_aside(Peek *peek, bool of_statement, TesseraTime time)
{
	int			timeout = of_statement && !is_of_clients(peek) ? tessera_gate_timeout : Min(tessera_gate_timeout, BRIEF_MS);
	TesseraCallTarget target = tessera_ask(tessera_within(tessera_on_lane(tessera_to_node(peek->coordinator), TESSERA_LANE_CONTROL), timeout),
										   TESSERA_TOLERATE_ERRORS);
	Datum	   *answers;
	char	   *text;
	int			n;

	if (!tessera_call_peek(target, (int64) time, peek->gids.data, &text) || text == NULL)
		return;
	tessera_node_is_back(peek->coordinator);
	answers = tessera_array_of_text(text, INT4OID, &n);
	note_answers(peek, answers, n);
}

/* Over the connections that the statement has anyway, in one trip. */
static void
peek_there(const TesseraCutNodes *nodes, uint64 statement, TesseraTime time, Peek **peeks, int n)
{
	TesseraQuestion *questions = palloc0(sizeof(TesseraQuestion) * n);
	TesseraCommandNeeds needs = {.statement = statement,.aside = statement == 0,.timeless = true};
	volatile int nsent = 0;

	PG_TRY();
	{
		for (int i = 0; i < n; i++)
		{
			TesseraQuestion *question = &questions[nsent];

			question->connection = tessera_participant(nodes->routing, peeks[i]->coordinator, &needs);
			if (tessera_connection_protocol(question->connection) < TESSERA_PEEK_PROTOCOL)
				continue;
			question->values[0] = tessera_call_from_int8((int64) time);
			question->values[1] = peeks[i]->gids.data;
			peeks[nsent++] = peeks[i];
			tessera_question_send(question, TESSERA_CALL_PEEK);
		}
		tessera_questions_await(questions, nsent);
		for (int i = 0; i < nsent; i++)
		{
			int			nanswers;
			Datum	   *answers = tessera_question_array(&questions[i], INT4OID, &nanswers);

			note_answers(peeks[i], answers, nanswers);
		}
	}
	PG_FINALLY();
	{
		tessera_questions_end(questions, nsent);
	}
	PG_END_TRY();
	pfree(questions);
}

void
tessera_cut_settle_doubts(const TesseraCutNodes *nodes, uint64 statement, TesseraCutMoment *moment)
{
	List	   *peeks = make_peeks(moment);
	Peek	  **there = palloc(sizeof(Peek *) * (list_length(peeks) + 1));
	int			nthere = 0;
	ListCell   *cell;

	foreach(cell, peeks)
	{
		Peek	   *peek = lfirst(cell);

		if (peek->coordinator == nodes->routing->self)
			peek_here(peek, moment->time);
		else if (takes_part(nodes, peek->coordinator))
			there[nthere++] = peek;
		else if (tessera_routing_node(nodes->routing, peek->coordinator) != NULL &&
				 (statement != 0 || tessera_node_is_at_hand(peek->coordinator, true)))
			peek_aside(peek, statement != 0, moment->time);
	}
	if (nthere > 0)
		peek_there(nodes, statement, moment->time, there, nthere);
	pfree(there);
}

static bool
is_part_on(const TesseraDoubt *doubt, int32 node_id)
{
	const char *last = strrchr(doubt->gid, '_');

	return last != NULL && strtol(last + 1, NULL, 10) == node_id;
}

void
tessera_cut_doubts_text(const TesseraCutMoment *moment, int32 node_id, char **gids, char **answers)
{
	StringInfoData names;
	StringInfoData decided;
	ListCell   *cell;

	initStringInfo(&names);
	initStringInfo(&decided);
	foreach(cell, moment->doubts)
	{
		const TesseraDoubt *doubt = lfirst(cell);
		char		separator = names.len == 0 ? '{' : ',';

		if (doubt->decided == TESSERA_DECIDED_UNKNOWN || !is_part_on(doubt, node_id))
			continue;
		appendStringInfo(&names, "%c%s", separator, doubt->gid);
		appendStringInfo(&decided, "%c%d", separator, (int) doubt->decided);
	}
	appendStringInfoString(&names, names.len == 0 ? "{}" : "}");
	appendStringInfoString(&decided, decided.len == 0 ? "{}" : "}");
	*gids = names.data;
	*answers = decided.data;
}
