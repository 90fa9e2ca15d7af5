/*
 * cut_left_out.h
 *	  Nodes of a lenient question (TesseraCutNodes) that cannot be asked, or do not answer: the statement must not come to them.
 */
#ifndef TESSERA_CUT_LEFT_OUT_H
#define TESSERA_CUT_LEFT_OUT_H

#include "postgres.h"

#include "executor/cut_private.h"

/* Sends the spare something, whether the statement will need it or not. false: nothing was sent, or it is left out now. */
extern bool tessera_left_out_or_sent(TesseraCutNodes *nodes, TesseraSpare *spare, void (*send) (TesseraSpare *spare));

/*
 * Waits for the answers of n questions that were sent so. Who cannot be reached any more is left out, and its question has no connection; other
 * errors are raised.
 */
extern void tessera_left_out_or_heard(TesseraCutNodes *nodes, TesseraQuestion *questions, int n, uint64 statement);

#endif							/* TESSERA_CUT_LEFT_OUT_H */
