/*
 * target_view.h
 *	  Modifications through views: the rewriter has put the view's table in its place; for a shard the view is named again.
 */
#ifndef TESSERA_TARGET_VIEW_H
#define TESSERA_TARGET_VIEW_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "planner/ship.h"

/*
 * In a private copy of an unplanned Query (scribbled on, with its CTEs): each INSERT, UPDATE or DELETE that the rewriter turned from a view to its table goes to the
 * view again, so that the shard itself applies the view's conditions, check options, barriers and owner's rights. What cannot be said of the view goes
 * to the table where that is the same. false and *reason: neither.
 */
extern bool tessera_restore_target_views(Query *query, TesseraReason *reason);

/* Does the query, or a CTE of it, modify a view that has INSTEAD OF triggers? They run here. */
extern bool tessera_modifies_view(Query *query);

#endif							/* TESSERA_TARGET_VIEW_H */
