/*
 * local_part.h
 *	  The part of a routed statement that this node's own shard answers: the same SQL text as an ordinary cached plan, run in this backend.
 *
 * The plan is made in shard mode (it reads local heaps) through core's plan cache, kept per backend by text and parameter types, and run as a nested
 * query under the outer statement's snapshot, so that it sees this transaction's own writes. Core does locks, invalidation, search_path and role.
 */
#ifndef TESSERA_LOCAL_PART_H
#define TESSERA_LOCAL_PART_H

#include "postgres.h"
#include "executor/execdesc.h"
#include "nodes/execnodes.h"
#include "nodes/params.h"
#include "utils/plancache.h"
#include "utils/snapshot.h"

#include "executor/remote_query.h"
#include "executor/shard_check.h"

typedef struct TesseraLocalPart TesseraLocalPart;

/*
 * Among the cursor options that the planner is given: this is a local part's text, to be planned in shard mode. Core passes the bit on from the
 * cached plan's source.
 */
#define TESSERA_PLAN_LOCAL_PART 0x01000000

/* Parameters of a local text, palloc'd in the current context; NULL: it has none. Values are not copied. */
extern ParamListInfo tessera_local_params(int nparams, const Oid *types, const Datum *values, const bool *nulls);

/*
 * The custom or generic plan of the text, made in shard mode. Locks on its tables are held; CurrentResourceOwner has a reference to it, to be
 * released with ReleaseCachedPlan.
 */
extern CachedPlan *tessera_local_plan(const char *sql, int nparams, const Oid *types, ParamListInfo params);

/*
 * Plans (or takes the cached plan), locks, checks the versions the router goes by under the snapshot, and starts. NULL: the placement does not fit
 * (stale); nothing was run. May wait at a gate. write: runs to completion at the first fetch.
 */
extern TesseraLocalPart *tessera_local_begin(const TesseraRemoteQuery *query, const Datum *values, const bool *nulls, Snapshot snapshot,
											 const TesseraRoutedBy *routed, int eflags, int instrument);

/* Next row, or NULL at the end. The slot is the nested plan's own (or a spool's): valid until the next call. */
extern TupleTableSlot *tessera_local_next(TesseraLocalPart *part);

/* Run a statement that returns no rows; rows processed. */
extern uint64 tessera_local_processed(TesseraLocalPart *part);

/* For EXPLAIN. */
extern QueryDesc *tessera_local_query(TesseraLocalPart *part);

/* Ends it (finish: fire AFTER triggers first). */
extern void tessera_local_end(TesseraLocalPart *part);

#endif							/* TESSERA_LOCAL_PART_H */
