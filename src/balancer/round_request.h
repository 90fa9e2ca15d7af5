/*
 * round_request.h
 *	  A round of the balancer that a session asks for and waits for: by numbers in shared memory.
 */
#ifndef TESSERA_ROUND_REQUEST_H
#define TESSERA_ROUND_REQUEST_H

#include "postgres.h"

/* In the worker: number of the newest request for a round; 0: all have had theirs. */
extern uint64 tessera_round_wanted(void);

/* In the worker: the requests up to this number have had their round. */
extern void tessera_round_made(uint64 wanted);

extern void tessera_round_request_init(void);	/* from _PG_init */

#endif							/* TESSERA_ROUND_REQUEST_H */
