/*
 * client_pace.h
 *	  How long clients' transactions take on this shard, and how that compares with the time when no move works here: by it moves make way.
 *
 * A transaction counts if a session of a client, or of another node that works for one, has run a plan in it that names a sharded table.
 * Its time is what it spends in the executor, and all of its last statement with the commit; not what passes while the client thinks. The average is
 * the geometric one, so that a few long transactions among many short ones do not hide, or feign, that all take longer.
 */
#ifndef TESSERA_CLIENT_PACE_H
#define TESSERA_CLIENT_PACE_H

#include "postgres.h"

/* ---- backends: no lock but once in 50 ms ---- */

/* Would a plan that names a sharded table still make a difference to this transaction? */
extern bool tessera_pace_asks(void);

/* It has run one. */
extern void tessera_pace_counts(void);

/* Around what the executor does for a query; calls for queries within it are ignored. */
extern void tessera_pace_enter(const void *query);
extern void tessera_pace_leave(const void *query);

/*
 * Steps: the transaction that has been committed or prepared is counted if it is to be, with the whole of its last statement, as the commit belongs
 * to that; one that was rolled back is forgotten. Never raise.
 */
extern void tessera_pace_committed(void);
extern void tessera_pace_forget(void);

/* ---- moves ---- */

/* A process that moves rows begins (1) or has ended (-1) here. While there is one nothing is learned of how long transactions usually take. */
extern void tessera_pace_mover(int change);

/* How many times as long transactions of the last two seconds took as those before the moves; 0: there were too few, then or now. */
extern double tessera_pace_slowdown(void);

extern void tessera_client_pace_init(void); /* from _PG_init: shared memory */

#endif							/* TESSERA_CLIENT_PACE_H */
