/*
 * round_request.h
 *	  Rounds of the balancer that are asked for, by numbers in shared memory: by a session that waits for it, or by a change that the balancer is to
 *	  follow at once. Config node.
 */
#ifndef TESSERA_ROUND_REQUEST_H
#define TESSERA_ROUND_REQUEST_H

#include "postgres.h"

/* When this transaction commits, the balancer makes a round, which finds what the transaction has changed. Nothing waits for it. */
extern void tessera_round_after_commit(void);

/* In the worker: number of the newest request for a round; 0: all have had theirs. */
extern uint64 tessera_round_wanted(void);

/* In the worker: the requests up to this number have had their round. */
extern void tessera_round_made(uint64 wanted);

/* Steps: asks for the round that is to follow the commit, or forgets it where there was none. Never raise. */
extern void tessera_round_committed(void);
extern void tessera_round_forget(void);

extern void tessera_round_request_init(void);	/* from _PG_init: shared memory */

#endif							/* TESSERA_ROUND_REQUEST_H */
