/*
 * decision_pruning.h
 *	  Deletes decisions of two-phase transactions that no participant can ask for any more (doc/design.md#decision-pruning).
 */
#ifndef TESSERA_DECISION_PRUNING_H
#define TESSERA_DECISION_PRUNING_H

#include "postgres.h"
#include "utils/timestamp.h"

#include "transaction/transaction_private.h"

#define TESSERA_SILENT_NODES 16

/* Where the next batch of unfinished decisions begins: after this one. And nodes that did not answer, which are not asked again for the others. */
typedef struct TesseraDecisionPlace
{
	TimestampTz decided;
	char		gid[TESSERA_GID_SIZE];
	int			nsilent;
	int32		silent[TESSERA_SILENT_NODES];
} TesseraDecisionPlace;

#define TESSERA_FIRST_DECISION ((TesseraDecisionPlace) {.decided = DT_NOBEGIN})

/*
 * One round has two steps, each of batches in transactions of their own where a background process runs them: other nodes are asked before rows are
 * locked. The first asks the participants of unfinished decisions older than retention_ms, and marks those that all have carried out; false: there
 * were no more, the place is the first again. The second deletes those finished for retention_ms and flushed by the participants' standbys; false: no
 * more are due. A node that cannot be reached only delays the deletion.
 */
extern bool tessera_decisions_finish(double retention_ms, TesseraDecisionPlace *place);
extern bool tessera_decisions_delete(double retention_ms, uint64 *deleted);

extern int	tessera_decision_retention; /* seconds */
extern void tessera_decisions_init(void);	/* from _PG_init: the setting */

#endif							/* TESSERA_DECISION_PRUNING_H */
