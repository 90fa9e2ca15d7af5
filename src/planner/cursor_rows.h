/*
 * cursor_rows.h
 *	  Plans of cursors that can be read backwards, and whose rows WHERE CURRENT OF can change.
 */
#ifndef TESSERA_CURSOR_ROWS_H
#define TESSERA_CURSOR_ROWS_H

#include "postgres.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

/*
 * The query of DECLARE CURSOR, or of a cursor of PL/pgSQL, with two more columns for each table of the cluster that WHERE CURRENT OF may name, which
 * the user does not see (TESSERA_CTID_COLUMN, TESSERA_NODE_COLUMN in executor/plan_private.h). A copy; NULL if there is no such table.
 */
extern Query *tessera_add_positions(Query *query, const TesseraRouting *routing);

/* True if the plan's rows of that table carry the number of their node in place of tableoid. */
extern bool tessera_has_positions(Query *query, Index rti);

/* True for a cursor that was declared with neither SCROLL nor NO SCROLL. */
extern bool tessera_may_scroll(int cursor_options);

/*
 * A plan that keeps what the plan has returned, to go back to. materialize_finished_plan of the server is for plans whose references are not set yet:
 * it takes over the columns' expressions, which nobody can print above the node that evaluates them (auto_explain).
 */
extern Plan *tessera_materialize(Plan *plan);

/*
 * Makes such a cursor readable backwards if its plan would allow that on one server. Shards send each row only once, so the rows that were shown are
 * kept. Returns the plan.
 */
extern PlannedStmt *tessera_keep_rows(PlannedStmt *plan, bool whole);

#endif							/* TESSERA_CURSOR_ROWS_H */
