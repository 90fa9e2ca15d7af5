/*
 * promotion_merge.h
 *	  A promoted config node's catalog is merged with what the shards know.
 */
#ifndef TESSERA_PROMOTION_MERGE_H
#define TESSERA_PROMOTION_MERGE_H

#include "postgres.h"

/*
 * The catalog becomes what the shards say, in a new term. force: without the shards that cannot be reached. Outside a transaction. ERROR 08006: a
 * shard cannot be reached; 55000: what shards say does not fit together.
 */
extern void tessera_recover_catalog(bool force);

#endif							/* TESSERA_PROMOTION_MERGE_H */
