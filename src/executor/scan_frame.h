/*
 * scan_frame.h
 *	  The frame of tessera's plan nodes: what all of them do at begin, exec, end, rescan and explain. Each kind adds its own verbs.
 *
 * A kind's state starts with a TesseraScan and lives in the query context of its statement.
 */
#ifndef TESSERA_SCAN_FRAME_H
#define TESSERA_SCAN_FRAME_H

#include "postgres.h"
#include "commands/explain.h"
#include "executor/execdesc.h"
#include "nodes/extensible.h"
#include "utils/tuplestore.h"

#include "executor/explain_shards.h"
#include "executor/route_loop.h"
#include "executor/shard_run.h"
#include "executor/values.h"

typedef struct TesseraScan TesseraScan;

typedef struct TesseraScanKind
{
	CustomScanMethods plan;		/* first: by it a plan leads to its kind */
	CustomExecMethods exec;
	size_t		size;			/* of the state */
	void		(*begin) (TesseraScan *scan, EState *estate, int eflags);
	TupleTableSlot *(*next) (TesseraScan *scan);
	void		(*end) (TesseraScan *scan); /* besides what the frame ends; NULL: nothing */
	void		(*rescan) (TesseraScan *scan);	/* NULL: it runs only once within a statement, */
	const char *once;			/* and this says what cannot be run again */
	void		(*explain) (TesseraScan *scan, ExplainState *es);	/* below the tier */
} TesseraScanKind;

struct TesseraScan
{
	CustomScanState css;		/* first */
	const TesseraScanKind *kind;
	List	   *private;		/* custom_private of its plan (plan_private.h) */
	int			flags;			/* TesseraStatementFlags */
	const char *tier;			/* for EXPLAIN */
	TesseraValues values;		/* if its plan has custom_exprs */
	TesseraRemoteQuery *query;
	TesseraShardRun *run;			/* being read; NULL: none */
	TesseraFigures figures;		/* of runs that have ended */
	int			ntargets;		/* of the run, for EXPLAIN; 0: not known */
	int32	   *targets;
	const TesseraRouting *routing;	/* in an open cursor: what it was opened with. NULL: the newest */
	Snapshot	snapshot;		/* and under which snapshot, registered, if not the statement's own */
	TesseraParts *parts;		/* its plan is of one of them; NULL: of none */
	List	   *nested;			/* of QueryDesc *: plans within it that have started */
};

extern Node *tessera_scan_create(CustomScan *plan);
extern void tessera_scan_begin(CustomScanState *node, EState *estate, int eflags);
extern TupleTableSlot *tessera_scan_exec(CustomScanState *node);
extern void tessera_scan_end(CustomScanState *node);
extern void tessera_scan_rescan(CustomScanState *node);
extern void tessera_scan_explain(CustomScanState *node, List *ancestors, ExplainState *es);

/* The methods of a kind, by the name that EXPLAIN shows. */
#define TESSERA_SCAN_METHODS(name) \
	.plan = {(name), tessera_scan_create}, \
	.exec = {.CustomName = (name), .BeginCustomScan = tessera_scan_begin, .ExecCustomScan = tessera_scan_exec, .EndCustomScan = tessera_scan_end, \
		.ReScanCustomScan = tessera_scan_rescan, .ExplainCustomScan = tessera_scan_explain}

extern const TesseraScanKind tessera_statement_scan;
extern const TesseraScanKind tessera_table_scan;
extern const TesseraScanKind tessera_insert_scan;
extern const TesseraScanKind tessera_part_scan;
extern const TesseraScanKind tessera_key_update_scan;
extern const TesseraScanKind tessera_row_trigger_scan;

/* ---- runs ---- */

/* Starts the scan's run: routes the request under the cursor's snapshot, or else the statement's (or the request's own). As tessera_route. */
extern bool tessera_scan_run(TesseraScan *scan, TesseraRoute *route, TesseraShardRunRequest *request);

/* Ends the run, if there is one, and counts it for EXPLAIN. */
extern void tessera_scan_stop(TesseraScan *scan);

/* In a cursor that opens: its scan goes by the routing and snapshot of the run, whatever happens before it is fetched; and then no more. */
extern void tessera_scan_keep_opening(TesseraScan *scan, const TesseraShardRunRequest *request);
extern void tessera_scan_forget_opening(TesseraScan *scan);

/* For EXPLAIN without a run: evaluates the values if that runs neither the plan nor a volatile function; true if it was possible. */
extern bool tessera_scan_knows_values(TesseraScan *scan);

/*
 * The nodes that the plan is going to read, if one scan of a whole statement is all of it, and its values are constants and parameters: n of them
 * (room for TESSERA_MAX_NODES). -1: it is another one, or that is only known when it runs.
 */
extern int	tessera_statement_nodes(PlanState *top, const TesseraRouting *routing, int32 *node_ids);

/* Shards, remote SQL, with `plans` what the shards would do, and what was measured. */
extern void tessera_scan_explain_query(TesseraScan *scan, ExplainState *es, const TesseraRouting *routing, bool plans);

/* ---- plans within the scan's ---- */

/*
 * Starts one under the statement's snapshot and parameters. environment: what names it may read rows by; NULL: none. It is of the parts that the scan
 * is of, or of those that tessera_nested_join names then: all its runs, those of plans within it too.
 */
extern QueryDesc *tessera_nested_start(TesseraScan *scan, PlannedStmt *plan, QueryEnvironment *environment, int eflags);

extern void tessera_nested_join(QueryDesc *query, TesseraParts *parts);

/* Its next row; NULL at the end. */
extern TupleTableSlot *tessera_nested_next(QueryDesc *query);

/* Runs it to its end, AFTER triggers included. rows: where its rows go, detoasted if wanted; NULL: nowhere. */
extern void tessera_nested_run(QueryDesc *query, Tuplestorestate *rows, bool detoast);

/* NULL: nothing to end. */
extern void tessera_nested_end(TesseraScan *scan, QueryDesc *query);

/* From now on plans that are started with the environment read these rows by the name, which is not copied. */
extern void tessera_nested_name(QueryEnvironment *environment, char *name, TupleDesc desc, Tuplestorestate *rows);

#endif							/* TESSERA_SCAN_FRAME_H */
