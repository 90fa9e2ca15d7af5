/*
 * cut.h
 *	  One snapshot over all nodes: the router's side (doc/design.md#one-snapshot).
 *
 * A statement that reads rows of several nodes asks all of them for a snapshot, at READ COMMITTED; a transaction at REPEATABLE READ or above does
 * so at its first statement. The time is the newest that any of them, or this session, has seen; each then makes its snapshot that of this time.
 * One that is a single fragment chooses the time itself first, and asks only where a node cannot be met.
 * Only where tessera.snapshot_reads is on; else each node goes by a moment of its own.
 */
#ifndef TESSERA_CUT_H
#define TESSERA_CUT_H

#include "postgres.h"
#include "executor/execdesc.h"
#include "nodes/bitmapset.h"

#include "clock/time_value.h"
#include "executor/cut_snapshot.h"
#include "executor/questions.h"
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
	List	   *relids;			/* OidList: the cluster tables whose rows are read where they are */
	List	   *copies;			/* OidList: replicated ones, of which each node reads its copy */
	int			n;
	const int32 *node_ids;		/* this one may be among them */
	int			nspare;			/* so many, the last ones, need not answer in time (tessera.snapshot_timeout) */
	bool		few_rows;		/* of each comes little: the work is done there */
	bool		lenient;		/* the statement may not come to all: who cannot be reached is left out, in left_out */
	Bitmapset  *left_out;
	TimestampTz late_until;		/* those that have kept others waiting are waited for so long; 0: none was yet */
	Bitmapset  *likely;			/* of the spares, those that the statement may come to */
} TesseraCutNodes;

/*
 * Asks them, under the statement's number, and settles the moment: the newest time that any of them, or this session, has seen. here: what this node
 * keeps meanwhile; its part is asked for, too, if own. Waits for the answers. false: one of them routes the tables otherwise: nothing is kept, route
 * again.
 */
extern bool tessera_cut_ask_nodes(TesseraCutNodes *nodes, uint64 statement, bool own, TesseraCutAsk *here, TesseraCutMoment *moment);

/* ERROR, that of the attempt, if the node was left out of what was asked for the statement: it must not read there, with a moment of its own. */
extern void tessera_cut_require(const TesseraRouting *routing, int32 node_id, uint64 statement);

/* In front of a fragment of the statement: the node makes its snapshot that of the moment. */
extern void tessera_cut_tell(TesseraConnection *connection, int32 node_id, const TesseraCutMoment *moment);

/*
 * Every node but this one makes its snapshot that of the moment, under the statement's number; waits for the answers. false: a node has none to give,
 * or it shows the tables' rows elsewhere than the image has it: nothing must be read by it.
 */
extern bool tessera_cut_settle_nodes(TesseraCutNodes *nodes, uint64 statement, const TesseraCutMoment *moment);

/*
 * Without a question: the router chooses the moment, a little ahead of its clock; what this node keeps for its part (if own) is in here, as above.
 * Opens the connections to the others. false: one is of an earlier version, or something here is in doubt then, and nothing is kept: ask.
 */
extern bool tessera_cut_choose(const TesseraCutNodes *nodes, bool own, TesseraCutAsk *here, TesseraCutMoment *moment);

/*
 * In front of the statement, which has no number, over meet->connection: the node makes its snapshot that of the moment, or the statement is answered
 * as a stale one, and meet says no (tessera_question_is_true).
 */
extern void tessera_cut_meet(TesseraQuestion *meet, const TesseraCutNodes *nodes, int32 node_id, const TesseraCutMoment *moment);

/*
 * At REPEATABLE READ and above, before nodes are used: the first time all shards are asked, and the transaction's snapshot here becomes that of their
 * time. Those that are named must answer; of the others those that are likely to be needed (NULL: none) are asked before the rest. statement: the
 * snapshot of the statement at hand, which nothing was read under, becomes it, too (NULL: none). A node that was not asked then must have seen
 * nothing newer: ERROR 40001.
 */
extern void tessera_cut_transaction(const TesseraRouting *routing, int n, const int32 *node_ids, Bitmapset *likely, Snapshot statement);

/* True if the transaction's snapshot will not be changed any more, or is about to be. At REPEATABLE READ and above. */
extern bool tessera_cut_is_settled(void);

/* True if tessera_cut_transaction would begin one. */
extern bool tessera_cut_begins(void);

/* The transaction's snapshot stays as it is: it is another one's (SET TRANSACTION SNAPSHOT), or a table was read under it. */
extern void tessera_cut_stays(void);

extern void tessera_cut_init(void);	/* from _PG_init */

#endif							/* TESSERA_CUT_H */
