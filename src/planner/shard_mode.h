/*
 * shard_mode.h
 *	  What a statement that reads and writes this shard's own heaps gets before core plans it.
 */
#ifndef TESSERA_SHARD_MODE_H
#define TESSERA_SHARD_MODE_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/*
 * Adds, in place, the check of new rows after their BEFORE triggers (tessera.require_owned) to the query and its CTEs. No routing table: does
 * nothing.
 */
extern void tessera_check_final_rows(Query *query);

/* OidList of the relations that the query names at any level, in the current context. */
extern List *tessera_relations_of(Query *query);

#endif							/* TESSERA_SHARD_MODE_H */
