/*
 * row_triggers.h
 *	  Plans of statements that write a table whose triggers fire on the router (doc/design.md#triggers).
 */
#ifndef TESSERA_ROW_TRIGGERS_H
#define TESSERA_ROW_TRIGGERS_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

/* True if the statement, not one of its WITH queries, writes a table of the cluster and has to fire its triggers on the router. */
extern bool tessera_fires_row_triggers(Query *query, const TesseraRouting *routing);

/* True if a WITH query of the statement does. */
extern bool tessera_with_fires_row_triggers(Query *query, const TesseraRouting *routing);

/* Makes the plan depend on the functions of the triggers of the table that the query writes: by them is decided where these fire. */
extern void tessera_depend_on_triggers(Query *query, PlannedStmt *plan);

/*
 * The plan of such a statement. ordinary: its plan with triggers that fire on the shards, which runs where this node has all rows of the table. If
 * this statement cannot have its triggers fired on the router, it is that plan which is returned.
 */
extern PlannedStmt *tessera_plan_row_triggers(Query *query, const char *source_text, int cursor_options, ParamListInfo params,
											  const TesseraRouting *routing, PlannedStmt *ordinary);

#endif							/* TESSERA_ROW_TRIGGERS_H */
