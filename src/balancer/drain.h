/*
 * drain.h
 *	  Shards that are being removed leave the cluster when they hold nothing any more.
 */
#ifndef TESSERA_DRAIN_H
#define TESSERA_DRAIN_H

#include "postgres.h"
#include "datatype/timestamp.h"

/*
 * On the config node, outside of a transaction: removes what may go now, which may take some time where a node does not answer. Returns when the next
 * round is wanted: at once if something new is in the way of a shard that holds nothing, which the round's plan shows; when to try again; or the end
 * of time. What is in the way is logged once.
 */
extern TimestampTz tessera_drain_step(void);

/*
 * In the process that makes the steps: what is in the way of a shard that holds nothing, in words; NULL: nothing is known. Valid until the next step.
 */
extern const char *tessera_drain_obstacle(int32 node_id);

#endif							/* TESSERA_DRAIN_H */
