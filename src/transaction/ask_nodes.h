/*
 * ask_nodes.h
 *	  One question to all other nodes at once, with one deadline: a node that is silent costs no more than all that are.
 */
#ifndef TESSERA_ASK_NODES_H
#define TESSERA_ASK_NODES_H

#include "postgres.h"

#include "control/call.h"
#include "routing/routing.h"

typedef struct TesseraNodeReply
{
	int32		node_id;
	NameData	name;
	const char *trouble;		/* why there is no answer, without addresses; NULL: it has answered */
	int			took_ms;		/* until it had answered, or was given up */
	TesseraCallAnswer answer;	/* of the call */
} TesseraNodeReply;

/*
 * Asks all nodes of the image but this one, each over a connection of its own that is closed at the end, beside this transaction and without
 * the envelope. Returns when all have answered, at the latest after timeout_ms. spec, values: a call and its arguments, as text; spec NULL: whether
 * the node is there (hello). Whether a connection came about is noted (tessera_node_reached). Palloc'd, *n of them. No node is a reason for an
 * error; interruptible.
 */
extern TesseraNodeReply *tessera_ask_nodes(const TesseraRouting *routing, const TesseraCallSpec *spec, const char *const *values, int timeout_ms,
										   int *n);

#endif							/* TESSERA_ASK_NODES_H */
