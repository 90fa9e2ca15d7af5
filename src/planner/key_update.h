/*
 * key_update.h
 *	  UPDATEs that assign the shard key: the rows move.
 */
#ifndef TESSERA_KEY_UPDATE_H
#define TESSERA_KEY_UPDATE_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

#include "planner/pins.h"
#include "planner/ship.h"

/* True for an UPDATE of a sharded table that assigns another value to a key column. */
extern bool tessera_changes_key(Query *query, const TesseraAnalysis *analysis);

/* The plan (executor/key_update_scan.c) of such an UPDATE; NULL and *reason if there is none. */
extern PlannedStmt *tessera_plan_key_update(Query *query, const char *source_text, int cursor_options, ParamListInfo params,
											const TesseraRouting *routing, TesseraReason *reason);

#endif							/* TESSERA_KEY_UPDATE_H */
