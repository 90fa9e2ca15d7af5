/*
 * resolver.h
 *	  Finishes prepared transactions that a coordinator or a connection left behind on this node.
 */
#ifndef TESSERA_RESOLVER_H
#define TESSERA_RESOLVER_H

#include "postgres.h"

/* What became of one. */
typedef struct TesseraResolved
{
	char	   *gid;
	/* "commit", "abort", "prepared": by a client, who has yet to decide; or "in doubt": the coordinator could not be asked; a WARNING says why */
	const char *outcome;
} TesseraResolved;

/*
 * Asks the coordinators of this node's prepared transactions that are older than age_ms and finishes those whose outcome is known. In a transaction;
 * each is finished by itself on another connection. Array of n, palloc'd. Waits for coordinators that have not decided yet, at most 10 s each.
 */
extern TesseraResolved *tessera_resolve_transactions_older(double age_ms, int *n);

/*
 * The transaction resolver's step: a search for deadlocks, and when it is due a round of the above, each in transactions of its own. Returns
 * milliseconds until the next step.
 */
extern long tessera_resolver_step(void);

#endif							/* TESSERA_RESOLVER_H */
