/*
 * shard_pruning.h
 *	  Which shards of a group conditions on the key leave: IN lists on a single-column key, and comparisons on the leading column under range.
 */
#ifndef TESSERA_SHARD_PRUNING_H
#define TESSERA_SHARD_PRUNING_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/*
 * A condition, as planned: IntList (strategy, index of the value's expression in custom_exprs); strategy as btree's, or TESSERA_PRUNE_IN for an
 * array.
 */
#define TESSERA_PRUNE_IN 0

/*
 * Shards that may have rows which meet all conditions (AND). values/nulls/types: of custom_exprs, evaluated. Result palloc'd; at least one shard: if
 * no row can qualify, one that may say so.
 */
extern TesseraTargets *tessera_prune_shards(const TesseraRouting *routing, const TesseraTable *table, List *conditions, const Datum *values,
											const bool *nulls, const Oid *types);

#endif							/* TESSERA_SHARD_PRUNING_H */
