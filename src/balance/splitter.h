/*
 * splitter.h
 *	  The worker that keeps chunks of this shard below the size of their group: it collects what statements write and cost, measures, tells the config
 *	  node, and asks it for splits (S82 to S92).
 */
#ifndef TESSERA_SPLITTER_H
#define TESSERA_SPLITTER_H

/* The worker's step; runs its own transactions. Returns the milliseconds until the next; -1: this node is no shard. */
extern long tessera_splitter_step(void);

extern void tessera_splitter_init(void);	/* from _PG_init: settings */

#endif							/* TESSERA_SPLITTER_H */
