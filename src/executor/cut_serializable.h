/*
 * cut_serializable.h
 *	  What the server's conflict detection at SERIALIZABLE has to know of a common snapshot (doc/design.md#one-snapshot).
 */
#ifndef TESSERA_CUT_SERIALIZABLE_H
#define TESSERA_CUT_SERIALIZABLE_H

#include "postgres.h"

/*
 * Before the snapshot of the question is taken: from now on this transaction's conflicts are tracked as those of one that may write, whatever it said
 * when it began. Nothing was read or written by it yet, or it was tracked so all the time. Does nothing below SERIALIZABLE. ERROR 53200, 53000: no
 * memory to track it.
 */
extern void tessera_serializable_track(void);

/* The transaction's snapshot is as of now, not of when it began. Does nothing below SERIALIZABLE. For a moment: an LWLock. */
extern void tessera_serializable_snapshot_taken(void);

#endif							/* TESSERA_CUT_SERIALIZABLE_H */
