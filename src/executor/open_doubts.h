/*
 * open_doubts.h
 *	  What the common snapshot of a whole transaction leaves open (doc/design.md#one-snapshot).
 *
 * Something is prepared here that may be committed at the transaction's time or before, and whose coordinator cannot be asked. Its rows are not
 * seen; that is right for whoever does not read the tables that it writes. Each statement that reads one of them waits for its end first, and fails
 * if it was committed and should be seen.
 */
#ifndef TESSERA_OPEN_DOUBTS_H
#define TESSERA_OPEN_DOUBTS_H

#include "postgres.h"
#include "nodes/plannodes.h"

#include "clock/time_value.h"

/*
 * xids (integers): left open by the snapshot of the transaction at hand, which is as of this time; of a former one nothing is left. position: of the
 * ring when it was asked for. false: one of them has ended, so the snapshot must be taken again; none is noted.
 */
extern bool tessera_open_doubts_note(const List *xids, TesseraTime time, uint64 position);

/*
 * Before the tables (OidList), or those of a plan, are read under the transaction's snapshot, with their locks held. ERROR 55P03 after
 * tessera.gate_timeout; 40001 if something was committed that the snapshot should show.
 */
extern void tessera_open_doubts_check(List *relids);
extern void tessera_open_doubts_check_plan(const PlannedStmt *plan);

/* True if there are any: else the former do nothing. They are not known in parallel workers. */
extern bool tessera_open_doubts_any(void);

#endif							/* TESSERA_OPEN_DOUBTS_H */
