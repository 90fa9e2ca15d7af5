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

#endif							/* TESSERA_RESOLVER_H */
