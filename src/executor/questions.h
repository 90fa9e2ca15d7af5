/*
 * questions.h
 *	  Calls to several nodes at once, on the connections of the transaction in which they take part; each answers one row.
 */
#ifndef TESSERA_QUESTIONS_H
#define TESSERA_QUESTIONS_H

#include "postgres.h"
#include "libpq-fe.h"

#include "control/calls.h"
#include "transport/connection.h"

/* One; zeroed by the caller, who owns the array of them. */
typedef struct TesseraQuestion
{
	TesseraCommand command;		/* first: the handler casts */
	TesseraConnection *connection;	/* the caller's, from tessera_participant */
	const char *values[3];		/* arguments of the call; they stay until the answer has come */
	PGresult   *answer;			/* one row; NULL: the node has not answered with one */
	PGresult   *error;
} TesseraQuestion;

/* Puts a call in front of what is sent next over question->connection. ERROR 08006 as any queueing. */
extern void tessera_question_queue(TesseraQuestion *question, TesseraCallNumber call);

/* Sends it at once. */
extern void tessera_question_send(TesseraQuestion *question, TesseraCallNumber call);

/* Raises the error that one was answered by; returns if there is none. */
extern void tessera_question_check(TesseraQuestion *question);

/* The answer is one value, which is true. */
extern bool tessera_question_is_true(const TesseraQuestion *question);

/* Waits for the answers of n that were sent, and raises the first error among them. */
extern void tessera_questions_await(TesseraQuestion *questions, int n);

/* When the answers were read, or after an error: frees them, and nobody writes into the memory of a question any more. */
extern void tessera_questions_end(TesseraQuestion *questions, int n);

/* The elements of an answer that is an array of int4 or text, palloc'd, n of them; 0 where there is none. */
extern Datum *tessera_question_array(const TesseraQuestion *question, Oid type, int *n);

/* The same of the array's text. */
extern Datum *tessera_array_of_text(char *text, Oid type, int *n);

#endif							/* TESSERA_QUESTIONS_H */
