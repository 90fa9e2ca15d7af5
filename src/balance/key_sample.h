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

/* A range of keys, and what was found in it. */
typedef struct TesseraSampledRange
{
	TesseraKeyBound min;
	TesseraKeyBound max;
	TesseraKeySample *sample;
	int64		measured;		/* rows whose width was looked at */
	double		bytes;			/* of those */
} TesseraSampledRange;

/*
 * The same for n ranges (n > 0, ascending, disjoint), in one scan from the first to the last; under hash any range costs a scan of the whole index.
 * give_way: it is given up, with the answer false, when somebody waits for the table (locked with AccessShareLock).
 */
extern bool tessera_sample_ranges(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *ranges, int n, int capacity,
								  Snapshot snapshot, bool give_way);

#endif							/* TESSERA_KEY_SAMPLE_H */
