/*
 * decision.h
 *	  Rows of tessera.transaction_decision: decisions of two-phase transactions that this node coordinates.
 */
#ifndef TESSERA_DECISION_H
#define TESSERA_DECISION_H

#include "postgres.h"

/*
 * Inserts (gid, commit, participants) in the current transaction: its commit is the decision, and it is flushed whatever synchronous_commit says.
 * Waits for a transaction that asks for the outcome of the same gid. ERROR 23505 if there is a row: a participant asked before, and has decided
 * `abort`.
 */
extern void tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants);

#endif							/* TESSERA_DECISION_H */
