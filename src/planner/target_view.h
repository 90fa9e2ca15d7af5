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
 * In a private copy of an unplanned Query (scribbled on, with its CTEs): each INSERT, UPDATE or DELETE that the rewriter turned from a view to its
 * table goes to the view again, so that the shard itself applies the view's conditions, check options, barriers and owner's rights. What cannot be
 * written in terms of the view goes to its table, where that means the same. Returns false and *reason if neither is possible.
 */
extern bool tessera_restore_target_views(Query *query, TesseraReason *reason);

/* True if the query, or a CTE of it, modifies a view that has INSTEAD OF triggers. These run on this node. */
extern bool tessera_modifies_view(Query *query);

#endif							/* TESSERA_TARGET_VIEW_H */
