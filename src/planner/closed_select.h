/*
 * closed_select.h
 *	  SELECTs that each shard answers by itself: all of their tables go by one shard key.
 */
#ifndef TESSERA_CLOSED_SELECT_H
#define TESSERA_CLOSED_SELECT_H

#include "postgres.h"
#include "nodes/plannodes.h"

#include "planner/pins.h"

/*
 * The plan of a SELECT that is closed over the key (analysis), and that core's planner would not have the shards do: outer joins, subqueries, WITH,
 * DISTINCT, windows. NULL: there is none, or it is not worth it.
 */
extern PlannedStmt *tessera_plan_closed_select(Query *query, int cursor_options, const TesseraRouting *routing, const TesseraAnalysis *analysis);

/*
 * True if the shards may make the rows of an INSERT ... SELECT that is closed over the key: all of it means the same there, nothing is computed once
 * for all rows, or by their order.
 */
extern bool tessera_insert_ships(Query *query);

#endif							/* TESSERA_CLOSED_SELECT_H */
