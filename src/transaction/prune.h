/*
 * prune.h
 *	  Deletes decisions of two-phase transactions that no participant can ask for any more (doc/design.md#decision-pruning).
 */
#ifndef TESSERA_PRUNE_DECISIONS_H
#define TESSERA_PRUNE_DECISIONS_H

#include "postgres.h"

/*
 * One round, in a transaction: asks the participants of unfinished decisions, then deletes those finished for retention_ms and flushed by the
 * participants' standbys. Returns rows deleted. A node that cannot be reached only delays the deletion.
 */
extern uint64 tessera_prune_decisions_older(double retention_ms);

extern int	tessera_decision_retention; /* seconds */
extern void tessera_prune_init(void);	/* from _PG_init: the setting */

#endif							/* TESSERA_PRUNE_DECISIONS_H */
