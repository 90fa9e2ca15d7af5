/*
 * shard_run.h
 *	  One execution of a query on a set of shards: send to all at once, learn whether each accepted it, stream the rows.
 *
 * A run is all or nothing until every shard has accepted: if any finds the versions stale, what the others did is undone (reads: dropped; writes: a
 * savepoint is rolled back) and the caller routes again (route_loop.h). After acceptance rows are handed out as they arrive.
 *
 * Memory: the run and its pending results live in the context current at tessera_shard_run_make; results (malloc'ed by libpq) are freed as they are
 * consumed, at tessera_shard_run_end, or when that context is reset.
 */
#ifndef TESSERA_SHARD_RUN_H
#define TESSERA_SHARD_RUN_H

#include "postgres.h"
#include "executor/execdesc.h"

#include "executor/local_part.h"
#include "executor/remote_query.h"
#include "routing/routing.h"

typedef struct TesseraShardRun TesseraShardRun;

/* What the runs of all parts of one statement share (part_scan.c): they are fragments of it, whatever their requests say. */
typedef struct TesseraParts
{
	uint64		number;			/* the statement's */
	bool		begun;			/* some fragment was accepted: too late to begin anew */
	const struct TesseraRouting *routing;	/* by which the last one was */
} TesseraParts;

/* Order of the rows of each shard; the streams are merged by it. */
typedef struct TesseraRowOrder
{
	int			nkeys;
	struct SortSupportData *keys;	/* ssup_attno: column of the query */
} TesseraRowOrder;

typedef struct TesseraShardRunRequest
{
	TesseraRemoteQuery *query;
	const Datum *values;
	const bool *nulls;
	const TesseraRouting *routing;
	int			ntargets;
	const int32 *targets;		/* node_ids */
	List	   *relids;			/* OidList: the cluster tables it names */
	List	   *copies;			/* OidList: replicated ones, of which each shard reads its copy */
	bool		write;
	bool		autocommit;		/* it may run outside a remote transaction block */
	bool		timeless;		/* as TesseraCommandNeeds has it */
	uint64		statement;		/* router's statement number if it has several fragments, else 0 */
	bool		any_order;		/* rows are wanted as they come, whichever shard sends them; else all of one shard, then of the next */
	const TesseraRowOrder *order;	/* each shard sends its rows in this order, and so they are handed out; NULL: in none. Outlives the run */
	bool		groups;			/* the work is done before the first row: this node's part does its own while the others do theirs */
	TesseraParts *parts;		/* it is of one of them; NULL: of none */
	bool		refreshed;		/* the image was fetched for this statement: what it says of other shards' rows is so */
	bool		cut;			/* it is all that its statement reads: its nodes are asked for a common snapshot */
	bool		cursor;			/* it belongs to a cursor: other statements may have run since its snapshot */
	Snapshot	snapshot;		/* of the outer statement, for the local part */
	int			eflags;
	int			instrument;
} TesseraShardRunRequest;

extern TesseraShardRun *tessera_shard_run_make(void);

/* Sends and waits until all have accepted. false: stale, nothing done. Remote errors are raised. */
extern bool tessera_shard_run_start(TesseraShardRun *run, const TesseraShardRunRequest *request);

/*
 * Next row into slot (virtual, of query->desc), or the local part's own slot; NULL at the end. Its values live until the next row is asked for.
 */
extern TupleTableSlot *tessera_shard_run_next(TesseraShardRun *run, TupleTableSlot *slot);

/* The node that the last row came from; 0: the local part. */
extern int32 tessera_shard_run_row_node(const TesseraShardRun *run);

/* Runs to the end (a statement without rows, or rows not wanted) and returns the rows processed, all shards summed. */
extern uint64 tessera_shard_run_complete(TesseraShardRun *run);

/* Drops what is pending and ends the local part. */
extern void tessera_shard_run_end(TesseraShardRun *run);

/* The snapshot for another attempt: a new one (released at tessera_shard_run_end) where the isolation level allows it, else the statement's own. */
extern Snapshot tessera_shard_run_fresh_snapshot(TesseraShardRun *run, Snapshot own);

/* The snapshot of the attempt that was accepted; NULL if it was the statement's own. The caller owns it from now on and unregisters it. */
extern Snapshot tessera_shard_run_take_snapshot(TesseraShardRun *run);

/*
 * Per target: rows returned and milliseconds from send to last answer; for EXPLAIN ANALYZE, before tessera_shard_run_end. None of a run that was not
 * measured.
 */
typedef struct TesseraShardRunStats
{
	int32		node_id;
	uint64		rows;
	double		ms;
	bool		ended;			/* read to its end */
	uint64		explain;		/* number under which another node keeps its plan; 0: it was not measured */
	QueryDesc  *query;			/* this node's own part, valid until the run's end; NULL: another node's */
} TesseraShardRunStats;
extern int	tessera_shard_run_stats(TesseraShardRun *run, TesseraShardRunStats **stats);
extern bool tessera_shard_run_is_measured(const TesseraShardRun *run);

#endif							/* TESSERA_SHARD_RUN_H */
