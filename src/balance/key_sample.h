/*
 * key_sample.h
 *	  Samples the keys of a table on this shard, by its key index.
 */
#ifndef TESSERA_KEY_SAMPLE_H
#define TESSERA_KEY_SAMPLE_H

#include "utils/rel.h"
#include "utils/snapshot.h"

#include "balance/split_points.h"
#include "catalog/key.h"

/*
 * Samples the keys in [min, max) of the table's rows that the snapshot sees, in one scan of the key index (only the index, where the table's pages
 * are all visible). Under hash the positions sampled are hashes. The sample is finished, and lives in the current context. The table is locked by the
 * caller. ERROR 55000 if it has no key index. Interruptible.
 */
extern TesseraKeySample *tessera_sample_keys(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *min,
											 const TesseraKeyBound *max, int capacity, Snapshot snapshot);

#endif							/* TESSERA_KEY_SAMPLE_H */
