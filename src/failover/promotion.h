/*
 * promotion.h
 *	  What follows the promotion of a standby: the node finds out again what it owns (doc/design.md#lost-commits).
 */
#ifndef TESSERA_FAILOVER_PROMOTION_H
#define TESSERA_FAILOVER_PROMOTION_H

#include "postgres.h"

#include "routing/routing.h"

/*
 * Worker's step, outside a transaction: does what is due. true: nothing is (left) to do, what this node owns is known. Never errors but for its own
 * end.
 */
extern bool tessera_promotion_step(void);

/* ---- outdated_placements.c ---- */

/* True if placements of this shard are older than its chunks, and stay so. Outside a transaction; may wait for the config node. */
extern bool tessera_placements_lost(void);

/* ---- placement_recovery.c: any shard ---- */

/* True if the placement owns exactly the chunks of this shard. In a transaction. */
extern bool tessera_owns_its_chunks(const TesseraRouting *routing, const TesseraGroup *group, const TesseraPlacementRow *placement);

/*
 * The placements of this shard become what the config node's chunks say. force: also where rows are missing here. Outside a transaction. ERROR 08006,
 * 57P03: the config node cannot be asked; 55000: rows of a range are missing here, whose move is lost.
 */
extern void tessera_recover_placements(bool force);

/*
 * config/promotion_merge.c, set by init.c: the config node's catalog becomes what the shards say, in a new term. force: without the shards that
 * cannot be reached. Outside a transaction. Errors see there.
 */
extern void (*tessera_promotion_merge) (bool force);

extern void tessera_promotion_init(void);	/* from _PG_init: shared memory */

#endif							/* TESSERA_FAILOVER_PROMOTION_H */
