/*
 * sequences.h
 *	  Replaces sequence functions in statements, which go to the sequence's home (doc/design.md#sequences), and advisory lock functions, which go to
 *	  the key's.
 */
#ifndef TESSERA_SEQUENCES_H
#define TESSERA_SEQUENCES_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "routing/routing.h"

/* True if a function of tessera's replaces this one of the server's. No catalog access. */
extern bool tessera_is_replaced(Oid function);

/*
 * Replaces, in place, nextval/currval/lastval/setval and identity defaults of cluster sequences, and advisory lock functions, in the query by
 * tessera's own.
 */
extern void tessera_route_sequences(Query *query, const TesseraRouting *routing);

/* The same in a column default, which COPY evaluates itself. The result may be the expression itself. */
extern Node *tessera_route_sequences_of_default(Node *expression);

#endif							/* TESSERA_SEQUENCES_H */
