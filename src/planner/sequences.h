/*
 * sequences.h
 *	  Sequences of the cluster in statements: nextval and its kin go to the sequence's home (PLANNER i).
 */
#ifndef TESSERA_SEQUENCES_H
#define TESSERA_SEQUENCES_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "routing/routing.h"

/* Replaces, in place, nextval/currval/lastval/setval and identity defaults of cluster sequences in the query by tessera's own. */
extern void tessera_route_sequences(Query *query, const TesseraRouting *routing);

/* The same in a column default, which COPY evaluates itself. The result may be the expression itself. */
extern Node *tessera_route_sequences_of_default(Node *expression);

#endif							/* TESSERA_SEQUENCES_H */
