/*
 * commit_hold.h
 *	  For a moment no transaction that has written commits on this node: a restore point is made on all nodes (doc/design.md#restore-points).
 */
#ifndef TESSERA_COMMIT_HOLD_H
#define TESSERA_COMMIT_HOLD_H

#include "postgres.h"

/* ms that commits may be held at most. */
#define TESSERA_HOLD_MOST_MS 60000

/* Exit step: a process that holds commits lets them go. */
extern void tessera_commit_hold_leave(int code, Datum arg);

/* From _PG_init: shared memory, and what comes right before the commit's time is taken; what comes first after a commit. */
extern void tessera_commit_hold_init(void);
extern void tessera_commit_hold_end_init(void);

#endif							/* TESSERA_COMMIT_HOLD_H */
