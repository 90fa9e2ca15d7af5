/*
 * limited_locks.h
 *	  SELECT ... LIMIT n FOR UPDATE: n rows are locked, and no more.
 */
#ifndef TESSERA_LIMITED_LOCKS_H
#define TESSERA_LIMITED_LOCKS_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "routing/routing.h"

/*
 * The query with each level of it that locks rows of one table of the cluster up to a limit written so that rows are locked one by one; the query
 * itself if there is none. What was changed is a copy.
 */
extern Query *tessera_lock_up_to_limit(Query *query, const TesseraRouting *routing);

#endif							/* TESSERA_LIMITED_LOCKS_H */
