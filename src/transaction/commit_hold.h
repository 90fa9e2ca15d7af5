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

/*
 * Steps. A commit of what has written says that it is under way, after it has waited where commits are held; interruptible. At the end it takes its
 * word back: never raises. Who takes the commit's time earlier calls the first before, too: a reader does not wait for one that has no time yet.
 */
extern void tessera_commit_hold_before_commit(void);
extern void tessera_commit_hold_ended(void);

extern void tessera_commit_hold_init(void); /* from _PG_init: shared memory */

#endif							/* TESSERA_COMMIT_HOLD_H */
