/*
 * resolver.h
 *	  Finishes prepared transactions that a coordinator or a connection left behind on this node.
 */
#ifndef TESSERA_RESOLVER_H
#define TESSERA_RESOLVER_H

#include "postgres.h"

/*
 * The transaction resolver's step: a search for deadlocks, and when it is due a round of asking coordinators about old prepared transactions, each in
 * transactions of its own. Returns milliseconds until the next step.
 */
extern long tessera_resolver_step(void);

/*
 * Finishes what is still prepared, on any node, of a transaction of these digits (tessera_transaction_digits) that is known to have committed, so
 * that all see what it has written. Asks all nodes. A node that cannot be reached, or whose part cannot be finished, is a WARNING: the resolver goes
 * on.
 */
extern void tessera_finish_committed(const char *digits);

#endif							/* TESSERA_RESOLVER_H */
