/*
 * answer.h
 *	  What a statement has answered, kept as bytes, and given once more; and what tells one statement from another.
 *
 * The bytes say of each column its name and its type's, in full, and of each value its text as no session's settings change it (rows/exact_text.h).
 */
#ifndef TESSERA_ANSWER_H
#define TESSERA_ANSWER_H

#include "postgres.h"
#include "executor/execdesc.h"
#include "tcop/dest.h"

typedef struct TesseraAnswer TesseraAnswer;

/*
 * A receiver that hands each row on to another one, and keeps it. All in the current context. limit: bytes; an answer that is larger is not kept.
 */
extern TesseraAnswer *tessera_answer_begin(TupleDesc desc, DestReceiver *next, Size limit);
extern DestReceiver *tessera_answer_receiver(TesseraAnswer *answer);

/* What was kept, palloc'd; NULL: it was too large, or has columns that cannot be kept (of type record). */
extern bytea *tessera_answer_take(TesseraAnswer *answer);

/* Sends the rows to the query's receiver. ERROR TS006 if its columns are not those of the answer. */
extern void tessera_answer_give(const bytea *kept, QueryDesc *query);

/*
 * What makes a statement this one and no other: its part of the text, its parameters with their types, the name of the client's current role and
 * search_path. Palloc'd; 32 bytes. Runs the parameters' output functions, as the current user.
 */
extern bytea *tessera_statement_identity(const PlannedStmt *plan, const char *text, ParamListInfo params);

#endif							/* TESSERA_ANSWER_H */
