/*
 * drain.h
 *	  Shards that are being removed leave the cluster when they hold nothing any more.
 */
#ifndef TESSERA_DRAIN_H
#define TESSERA_DRAIN_H

/*
 * On the config node, outside of a transaction: removes what may go now. Errors are logged, and it is tried again with the next step. true: a shard
 * that holds nothing waits for its range deleter, and is to be looked at again soon.
 */
extern bool tessera_drain_step(void);

#endif							/* TESSERA_DRAIN_H */
