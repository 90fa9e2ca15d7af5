/*
 * cursor_rows.h
 *	  Plans of cursors whose rows can be gone back to, and changed by WHERE CURRENT OF.
 */
#ifndef TESSERA_CURSOR_ROWS_H
#define TESSERA_CURSOR_ROWS_H

#include "postgres.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

/*
 * The query of DECLARE CURSOR, or of a cursor of PL/pgSQL, with two more columns for each table of the cluster that WHERE CURRENT OF may name, which the user does not
 * see (TESSERA_CTID_COLUMN, TESSERA_NODE_COLUMN in executor/plan_private.h). A copy; NULL if there is no such table.
 */
extern Query *tessera_add_positions(Query *query, const TesseraRouting *routing);

/* Do the plan's rows of that table carry the number of their node in place of tableoid? */
extern bool tessera_has_positions(Query *query, Index rti);

/* Does the statement ask for a cursor that was declared without SCROLL and NO SCROLL? */
extern bool tessera_may_scroll(int cursor_options);

/*
 * Such a cursor can be fetched from backwards if the plan would allow it on one server. The shards' rows come but once, so those shown are kept then. Returns the
 * plan.
 */
extern PlannedStmt *tessera_keep_rows(PlannedStmt *plan, bool whole);

#endif							/* TESSERA_CURSOR_ROWS_H */
