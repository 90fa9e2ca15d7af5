/*
 * decision.h
 *	  Rows of tessera.transaction_decision: decisions of two-phase transactions that this node coordinates.
 */
#ifndef TESSERA_DECISION_H
#define TESSERA_DECISION_H

#include "postgres.h"

#include "clock/time_value.h"

/*
 * Inserts (gid, commit, participants) in the current transaction: its commit is the decision, and it is flushed whatever synchronous_commit says.
 * Waits for a transaction that asks for the outcome of the same gid. ERROR 23505 if there is a row: a participant asked before, and has decided
 * `abort`.
 */
extern void tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants);

/*
 * At the end of the same transaction, after all participants have prepared: takes its commit time, which is theirs, too, and writes it into the row.
 * Nobody can make it later any more. 0: this database has no clock.
 */
extern TesseraTime tessera_decision_take_time(const char *gid);

/* What stands here of a transaction, and who is at it. */
typedef enum TesseraDecisionState
{
	TESSERA_DECISION_NONE,		/* nothing */
	TESSERA_DECISION_COMMIT,	/* it is decided; *time: of its commit, 0: not known */
	TESSERA_DECISION_ABORT,
	TESSERA_DECISION_CLIENT,	/* a client has prepared it, and has yet to decide */
	TESSERA_DECISION_RUNS		/* *xid, a transaction that runs, may decide it */
} TesseraDecisionState;

/* Looks without waiting, deciding or locking anything: also at what is not committed. What is found may be over when this returns. */
extern TesseraDecisionState tessera_decision_look(const char *gid, TransactionId *xid, TesseraTime *time);

#endif							/* TESSERA_DECISION_H */
