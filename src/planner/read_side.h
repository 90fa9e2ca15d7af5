/*
 * read_side.h
 *	  UPDATE, DELETE and MERGE that read rows which the shards of their target do not have: those are read on the router, once, and sent along.
 */
#ifndef TESSERA_READ_SIDE_H
#define TESSERA_READ_SIDE_H

#include "postgres.h"
#include "nodes/params.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

#include "planner/ship.h"

/* True if a source of rows or values of the query, not the query's own expressions, is volatile: each shard would have other ones. */
extern bool tessera_has_volatile_source(Query *query);

/*
 * The plan (executor/statement_scan.c) of a modification without WITH; NULL and *reason if there is none. ERROR if what is read cannot be planned, as
 * for a statement of its own.
 */
extern PlannedStmt *tessera_plan_reading(Query *query, const char *source, int cursor_options, ParamListInfo params,
										 const TesseraRouting *routing, TesseraReason *reason);

#endif							/* TESSERA_READ_SIDE_H */
