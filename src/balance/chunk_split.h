/*
 * chunk_split.h
 *	  Splits chunks of this shard that are too large, or too much at work.
 */
#ifndef TESSERA_CHUNK_SPLIT_H
#define TESSERA_CHUNK_SPLIT_H

#include "postgres.h"

#include "balance/chunk_load.h"

/*
 * Looks for chunks of the group that are to be split, and has the config node split them: the largest first, a few at once. split_load: sessions at
 * work on a chunk from which on it is split, too; 0: load does not matter. retry_ms: first pause after an attempt that came to nothing. Outside a
 * transaction; allocates in the current context. Returns whether something was changed on the config node, so that a refresh is due; *more: there are
 * more to do now.
 */
extern bool tessera_split_chunks(TesseraGroupLoad *load, double split_load, int retry_ms, bool *more);

/* How many shards there are beside this one that may be given rows. */
extern int	tessera_other_shards(const TesseraRouting *routing);

#endif							/* TESSERA_CHUNK_SPLIT_H */
