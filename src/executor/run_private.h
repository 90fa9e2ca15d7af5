/*
 * run_private.h
 *	  A run as its files share it: run.c starts and ends it, run_rows.c receives its rows and hands them out.
 */
#ifndef TESSERA_RUN_PRIVATE_H
#define TESSERA_RUN_PRIVATE_H

#include "postgres.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "executor/run.h"

/* A result received and not handed out to its end; in the run's context, the result is libpq's. */
typedef struct TesseraPendingResult
{
	struct TesseraPendingResult *next;
	PGresult   *result;
	int			row;			/* next row to hand out */
} TesseraPendingResult;

typedef struct TesseraRunTarget
{
	TesseraCommand command;		/* first: handlers cast */
	TesseraRun *run;
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
} TesseraRunTarget;

struct TesseraRun
{
	MemoryContext context;
	MemoryContextCallback callback;
	TesseraRemoteQuery *query;
	int			ntargets;
	TesseraRunTarget  *targets;		/* remote ones */
	int			source;			/* of the last row: index of the target; ntargets: the local part */
	bool		any_order;		/* of the request */
	TesseraConnection **waiting;	/* with any_order: room for the connections of targets not read to their end */
	int			unpolled;		/* with any_order: rows of the local part since the connections were looked at */
	TesseraLocalPart *local;
	bool		local_done;
	uint64		local_rows;
	MemoryContext row_context;	/* by-reference values of the row handed out */
	TesseraWireParams wire;
	bool		write;
	int			instrument;		/* of the request: it is measured */
	int32		self;
	Snapshot	fresh;			/* registered here, for later attempts */
	ResourceOwner owner;		/* of spools' files */
	TupleTableSlot *spool_in;	/* virtual, of query->desc */
	TupleTableSlot *spool_out;	/* minimal tuples */
	MemoryContext spool_context;	/* by-reference values of the row on its way into a spool */
};

/* ---- run_rows.c ---- */

/* Handler of the targets' commands: keeps rows, the first error, and the count of rows processed. */
extern void tessera_run_receive(TesseraCommand *command, PGresult *result);

/* Drops what a target has received and not handed out. */
extern void tessera_run_drop_received(TesseraRunTarget *target);

/* The first remote error in the order of targets, raised as if local; returns if there is none. */
extern void tessera_run_raise_errors(TesseraRun *run);

#endif							/* TESSERA_RUN_PRIVATE_H */
