/*
 * decision_pruning.h
 *	  Deletes decisions of two-phase transactions that no participant can ask for any more (doc/design.md#decision-pruning).
 */
#ifndef TESSERA_DECISION_PRUNING_H
#define TESSERA_DECISION_PRUNING_H

#include "postgres.h"

/*
 * One round has two steps, in a transaction each where a background process runs them: other nodes are asked before rows are locked. The first asks
 * the participants of unfinished decisions older than retention_ms, and marks those that all have carried out; the second deletes those finished for
 * retention_ms and flushed by the participants' standbys, and returns how many. A node that cannot be reached only delays the deletion.
 */
extern void tessera_decisions_finish(double retention_ms);
extern uint64 tessera_decisions_delete(double retention_ms);

extern int	tessera_decision_retention; /* seconds */
extern void tessera_decisions_init(void);	/* from _PG_init: the setting */

#endif							/* TESSERA_DECISION_PRUNING_H */
