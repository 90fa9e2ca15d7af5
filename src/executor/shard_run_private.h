/*
 * shard_run_private.h
 *	  A run as its files share it: shard_run.c starts and ends it, shard_run_rows.c receives its rows and hands them out.
 */
#ifndef TESSERA_SHARD_RUN_PRIVATE_H
#define TESSERA_SHARD_RUN_PRIVATE_H

#include "postgres.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "executor/cut.h"
#include "executor/shard_run.h"

/* A result received and not handed out to its end; in the run's context, the result is libpq's. */
typedef struct TesseraPendingResult
{
	struct TesseraPendingResult *next;
	PGresult   *result;
	int			row;			/* next row to hand out */
} TesseraPendingResult;

typedef struct TesseraShardRunTarget
{
	TesseraCommand command;		/* first: handlers cast */
	TesseraShardRun *run;
	int32		node_id;
	TesseraConnection *connection;
	TesseraPendingResult *first;
	TesseraPendingResult *last;
	int			npending;
	Tuplestorestate *spool;		/* rows behind the pending ones */
	PGresult   *error;
	bool		answered;		/* first result is here */
	bool		savepoint;
	uint64		processed;
	uint64		rows;
	TimestampTz sent;
	TimestampTz ended;
	uint64		explain;		/* number under which the shard keeps its plan */
	TesseraQuestion meet;		/* whether its snapshot could be made that of the run's moment; sent only if the run meets its nodes */
} TesseraShardRunTarget;

struct TesseraShardRun
{
	MemoryContext context;
	MemoryContextCallback callback;
	TesseraRemoteQuery *query;
	int			ntargets;
	TesseraShardRunTarget  *targets;		/* remote ones */
	int			source;			/* of the last row: index of the target; ntargets: the local part */
	bool		any_order;		/* of the request */
	const TesseraRowOrder *order;	/* of the request */
	TupleTableSlot **heads;		/* with an order: the next row of each source, the local part's own slot among them */
	struct binaryheap *merge;	/* sources that have such a row; NULL: nothing was asked for yet */
	TesseraConnection **waiting;	/* room for the connections of targets that are waited for */
	int			unpolled;		/* with any_order: rows of the local part since the connections were looked at */
	TesseraLocalPart *local;
	TupleTableSlot *local_first;	/* its first row, asked for ahead of time; NULL: none is kept */
	bool		local_done;
	uint64		local_rows;
	MemoryContext row_context;	/* by-reference values of the row handed out */
	TesseraWireParams wire;
	bool		write;
	int			instrument;		/* of the request: it is measured */
	int32		self;
	Snapshot	fresh;			/* registered here, for later attempts */
	Snapshot	cut_snapshot;	/* registered here: of this node's part, with a common snapshot */
	bool		cut;			/* its nodes have a common snapshot, of this moment */
	bool		meets;			/* they were not asked for it: each says whether it can be had */
	TesseraCutMoment moment;
	TesseraCutAsk cut_here;		/* what is kept for this node's part until that is made */
	ResourceOwner owner;		/* of spools' files */
	TupleTableSlot *spool_in;	/* virtual, of query->desc */
	TupleTableSlot *spool_out;	/* minimal tuples */
	MemoryContext spool_context;	/* by-reference values of the row on its way into a spool */
};

/* ---- shard_run_rows.c ---- */

/* Handler of the targets' commands: keeps rows, the first error, and the count of rows processed. */
extern void tessera_shard_run_receive(TesseraCommand *command, PGresult *result);

/* Drops what a target has received and not handed out. */
extern void tessera_shard_run_drop_received(TesseraShardRunTarget *target);

/* The first remote error in the order of targets, raised as if local; returns if there is none. */
extern void tessera_shard_run_raise_errors(TesseraShardRun *run);

#endif							/* TESSERA_SHARD_RUN_PRIVATE_H */
