/*
 * cut.h
 *	  One snapshot over all nodes: the router's side (doc/design.md#one-snapshot).
 *
 * A statement that reads rows of several nodes asks all of them for a snapshot, at READ COMMITTED; a transaction at REPEATABLE READ or above does so
 * at its first statement. The time is the newest that any of them, or this session, has seen; each then makes its snapshot that of this time.
 * Only where tessera.snapshot_reads is on; else each node goes by a moment of its own.
 */
#ifndef TESSERA_CUT_H
#define TESSERA_CUT_H

#include "postgres.h"
#include "executor/execdesc.h"

#include "clock/time_value.h"
#include "executor/cut_snapshot.h"
#include "routing/routing.h"
#include "transport/connection.h"

/* Setting tessera.snapshot_reads. */
extern bool tessera_snapshot_reads;

/* True if statements that read several nodes get one snapshot: at READ COMMITTED, on the node that the client is connected to. */
extern bool tessera_cut_applies(void);

/* The nodes that a statement reads. */
typedef struct TesseraCutNodes
{
	const TesseraRouting *routing;
	List	   *relids;			/* OidList: the cluster tables */
	int			n;
	const int32 *node_ids;		/* this one may be among them */
	int			nspare;			/* so many, the last ones, need not be reached */
} TesseraCutNodes;

/*
 * Asks them, under the statement's number, and settles the moment: the newest time that any of them, or this session, has seen. here: what this node
 * keeps meanwhile; its part is asked for, too, if own. Waits for the answers. false: one of them routes the tables otherwise: nothing is kept, route
 * again.
 */
extern bool tessera_cut_ask_nodes(const TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment);

/* In front of a fragment of the statement: the node makes its snapshot that of the moment. */
extern void tessera_cut_tell(TesseraConnection *connection, int32 node_id, const TesseraCutMoment *moment);

/*
 * At REPEATABLE READ and above, before a node is used: the first time all shards are asked, and the transaction's snapshot here becomes that of their
 * time; statement: the snapshot of the statement at hand, which nothing was read under, becomes it, too (NULL: none). A node that was not asked then
 * must have seen nothing newer: ERROR 40001.
 */
extern void tessera_cut_transaction(const TesseraRouting *routing, int n, const int32 *node_ids, Snapshot statement);

extern void tessera_cut_init(void);	/* from _PG_init */

#endif							/* TESSERA_CUT_H */
