/*
 * deadlock.h
 *	  Finds transactions of several nodes that wait for each other.
 */
#ifndef TESSERA_DEADLOCK_H
#define TESSERA_DEADLOCK_H

#include "postgres.h"

/*
 * A round of the search, in transactions of its own (none unless a lock has been waited for longer than tessera.deadlock_timeout on behalf of another
 * node). One transaction of each deadlock found gets 40P01. Returns milliseconds until the next round. An error leaves nothing behind.
 */
extern long tessera_deadlock_step(void);

extern void tessera_deadlock_init(void);	/* from _PG_init: the setting */

#endif							/* TESSERA_DEADLOCK_H */
