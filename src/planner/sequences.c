/*
 * sequences.c
 *	  Sequences of the cluster in statements; see sequences.h.
 */
#include "postgres.h"

#include "planner/sequences.h"

void
tessera_route_sequences(Query *query, const TesseraRouting *routing)
{
}
