/*
 * statement_plan.h
 *	  Plans of whole statements, made without core's planner (doc/design.md#handmade-plans).
 */
#ifndef TESSERA_STATEMENT_PLAN_H
#define TESSERA_STATEMENT_PLAN_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

#include "planner/pins.h"
#include "planner/ship.h"

/* True for UPDATE or DELETE ... WHERE CURRENT OF. */
extern bool tessera_names_current_row(const Query *query);

/* T1: the whole statement on one shard; many: DML on every shard of its group. NULL and *reason if there is none. */
extern PlannedStmt *tessera_plan_statement(Query *query, int cursor_options, const TesseraRouting *routing, TesseraAnalysis *analysis, bool many,
										   TesseraReason *reason);

/* What a modification reads on the router before it runs (read_side.h). */
typedef struct TesseraReads
{
	Query	   *query;			/* as the user wrote it */
	List	   *plans;			/* of PlannedStmt: the SELECTs */
	List	   *params;			/* the first parameters of the text, NULL here: an array for each of their columns, in their order */
} TesseraReads;

/* The same for a query in which the rows of arrays stand for what is read: their Params are those of reads->params. */
extern PlannedStmt *tessera_plan_statement_reading(Query *query, const TesseraReads *reads, int cursor_options, const TesseraRouting *routing,
												   TesseraAnalysis *analysis, bool many, TesseraReason *reason);

/* INSERT whose rows are computed by a plan of their own and routed one by one. */
extern PlannedStmt *tessera_plan_insert(Query *query, const char *source_text, int cursor_options, ParamListInfo params,
										const TesseraRouting *routing, TesseraReason *reason);

/* The rows of an INSERT as a SELECT of its target list, and of `more` values. A copy. */
extern Query *tessera_source_query(Query *insert, List *more);

/* Makes a modification a SELECT of these targets from the same range table, in place; its target is not in the FROM clause yet. */
extern void tessera_become_select(Query *modification, List *targets);

/* Rows with the types of these targets, kept by the executor under the name, as a range table entry of their reader. */
extern RangeTblEntry *tessera_stored_rows(const char *name, List *targets);

/* Has the plan made anew with any of those that run inside it: they are looked at by nobody else. Returns the plan. */
extern PlannedStmt *tessera_depend_on(PlannedStmt *plan, List *nested);

/* True if the assignments of an UPDATE (or of ON CONFLICT, or of MERGE) give a key column another value. */
extern bool tessera_assigns_key(const TesseraOccurrence *occurrence, List *targets);

/*
 * A PlannedStmt around one CustomScan, for the query: range table for locks and privileges, dependencies, tags. Takes the target list from
 * custom_scan_tlist.
 */
extern PlannedStmt *tessera_wrap_plan(Query *query, CustomScan *scan, int cursor_options);

/* custom_scan_tlist for these output columns: Vars of a dummy range table entry appended to the list later by tessera_wrap_plan. */
extern List *tessera_output_list(List *targets);

#endif							/* TESSERA_STATEMENT_PLAN_H */
