/*
 * questions.c
 *	  Calls to several nodes at once; see questions.h. No state of its own.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "executor/questions.h"

static void
keep_answer(TesseraCommand *command, PGresult *result)
{
	TesseraQuestion *question = (TesseraQuestion *) command;

	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1 && question->answer == NULL)
		question->answer = result;
	else if (PQresultStatus(result) == PGRES_FATAL_ERROR && question->error == NULL)
		question->error = result;
	else
		PQclear(result);
}

void
tessera_question_queue(TesseraQuestion *question, TesseraCallNumber call)
{
	TesseraCommand *command = &question->command;

	command->sql = tessera_call_text(&tessera_call_specs[call], tessera_connection_protocol(question->connection), &command->nparams);
	command->values = question->values;
	command->prepare = true;
	command->handler = keep_answer;
	tessera_connection_queue(question->connection, command);
}

void
tessera_question_send(TesseraQuestion *question, TesseraCallNumber call)
{
	tessera_question_queue(question, call);
	tessera_connection_sync(question->connection);
}

void
tessera_question_check(TesseraQuestion *question)
{
	PGresult   *error = question->error;

	if (error == NULL)
		return;
	question->error = NULL;
	tessera_connection_raise(question->connection, error, NULL);
}

bool
tessera_question_is_true(const TesseraQuestion *question)
{
	return question->answer != NULL && !PQgetisnull(question->answer, 0, 0) && PQgetvalue(question->answer, 0, 0)[0] == 't';
}

void
tessera_questions_await(TesseraQuestion *questions, int n)
{
	TesseraConnection **waiting = palloc(sizeof(TesseraConnection *) * Max(n, 1));
	int			nwaiting;

	do
	{
		nwaiting = 0;
		for (int i = 0; i < n; i++)
			if (!questions[i].command.done)
				waiting[nwaiting++] = questions[i].connection;
		if (nwaiting > 0)
			(void) tessera_connections_pump(waiting, nwaiting, -1);
	} while (nwaiting > 0);
	pfree(waiting);
	for (int i = 0; i < n; i++)
		tessera_question_check(&questions[i]);
}

void
tessera_questions_end(TesseraQuestion *questions, int n)
{
	for (int i = 0; i < n; i++)
	{
		TesseraQuestion *question = &questions[i];

		if (question->command.sent && !question->command.done)
			tessera_connection_forget(question->connection, &question->command);
		PQclear(question->error);
		PQclear(question->answer);
		question->error = question->answer = NULL;
	}
}

Datum *
tessera_array_of_text(char *text, Oid type, int *n)
{
	Datum	   *elements;
	int16		length;
	bool		by_value;
	char		align;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	deconstruct_array(DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, text, type, -1)), type, length, by_value, align, &elements, NULL, n);
	return elements;
}

Datum *
tessera_question_array(const TesseraQuestion *question, Oid type, int *n)
{
	*n = 0;
	if (question->answer == NULL || PQgetisnull(question->answer, 0, 0))
		return NULL;
	return tessera_array_of_text(PQgetvalue(question->answer, 0, 0), type, n);
}
