/*
 * node_parts.h
 *	  One statement on several nodes at once, on each in transactions of its own (VACUUM, REINDEX CONCURRENTLY).
 *
 * Nothing holds locks for another node, and nothing is undone on one because another one fails. The connections are of one statement alone.
 */
#ifndef TESSERA_NODE_PARTS_H
#define TESSERA_NODE_PARTS_H

#include "postgres.h"

#include "routing/routing.h"
#include "transport/connection.h"

/* A node's part. */
typedef struct TesseraNodePart
{
	int32		node_id;
	TesseraConnection *connection;
	TesseraCommand command;		/* sql is the caller's */
} TesseraNodePart;

typedef struct TesseraNodeParts
{
	int			n;
	int			nopen;			/* so many of them have a connection */
	TesseraNodePart *parts;
	TesseraConnection **connections;
	void		(*answered) (int32 node_id, void *arg);	/* called when a node has done its part; NULL: nothing. The caller's, as is arg */
	void	   *arg;
} TesseraNodeParts;

/* Room for all nodes, in the current memory context, which must live until tessera_node_parts_end. */
extern void tessera_node_parts_init(TesseraNodeParts *parts, const TesseraRouting *routing);

/* The node is to run this statement, as the current user. sql: not copied. */
extern void tessera_node_parts_add(TesseraNodeParts *parts, int32 node_id, const char *sql);

/* Opens the connections. ERROR 08006 if a node cannot be reached: nothing has been sent then. */
extern void tessera_node_parts_open(TesseraNodeParts *parts, const TesseraRouting *routing);

extern void tessera_node_parts_send(TesseraNodeParts *parts);

/* Waits until all have answered, then raises the first error, with its node. Interruptible. */
extern void tessera_node_parts_await(TesseraNodeParts *parts);

/* Cancels what still runs, and closes the connections. After each use, also after an error. Never raises. */
extern void tessera_node_parts_end(TesseraNodeParts *parts);

#endif							/* TESSERA_NODE_PARTS_H */
