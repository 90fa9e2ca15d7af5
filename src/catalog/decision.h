/*
 * decision.h
 *	  Rows of tessera.transaction_decision: decisions of two-phase transactions that this node coordinates.
 */
#ifndef TESSERA_DECISION_H
#define TESSERA_DECISION_H

#include "postgres.h"

/*
 * Inserts (gid, commit, participants) in the current transaction: its commit is the decision, and it is flushed whatever synchronous_commit says. Waits for
 * whoever asks for the same gid. ERROR 23505 if the outcome has been decided already (abort: somebody asked too early).
 */
extern void tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants);

#endif							/* TESSERA_DECISION_H */
