/*
 * key_sample.h
 *	  Samples the keys of a table on this shard, by its key index.
 */
#ifndef TESSERA_KEY_SAMPLE_H
#define TESSERA_KEY_SAMPLE_H

#include "storage/block.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "balance/split_points.h"
#include "catalog/key.h"

/* A table, or a partition, with its key columns in key order. Locked by the caller. */
typedef struct TesseraSampledTable
{
	Relation	rel;
	const AttrNumber *keys;
} TesseraSampledTable;

/*
 * Samples the keys in [min, max) of the rows of n tables that the snapshot sees, in one scan of each one's key index (only the index, where the
 * table's pages are all visible). Under hash the positions sampled are hashes. The sample is finished, and lives in the current context. ERROR 55000
 * if a table has no key index. Interruptible.
 */
extern TesseraKeySample *tessera_sample_keys(int n, const TesseraSampledTable *tables, TesseraKeySpace *ks, const TesseraKeyBound *min,
											 const TesseraKeyBound *max, int capacity, Snapshot snapshot);

/*
 * How many rows the snapshot sees in [min, max), but no more than `most`: the scan of the key index ends there, also at so many times as many that it
 * does not see. Not under hash. -1: there is no key index. The table is locked by the caller.
 */
extern int	tessera_rows_up_to(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *min, const TesseraKeyBound *max,
							   int most, Snapshot snapshot);

/*
 * The lowest key above `after` and below max of the rows that the snapshot sees, in the current context; not under hash. TESSERA_NEXT_UNKNOWN: there
 * is no key index, or the search was given up. The table is locked by the caller.
 */
typedef enum TesseraNextKey
{
	TESSERA_NEXT_NONE,
	TESSERA_NEXT_FOUND,
	TESSERA_NEXT_UNKNOWN
} TesseraNextKey;
extern TesseraNextKey tessera_next_key(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *after,
									   const TesseraKeyBound *max, Snapshot snapshot, TesseraKeyBound *next);

/* A range of keys, and what was found in it. */
typedef struct TesseraSampledRange
{
	TesseraKeyBound min;
	TesseraKeyBound max;
	int			capacity;		/* of the sample that is wanted */
	TesseraKeySample *sample;	/* finished */
	double		bytes;			/* of the range's rows, estimated */
	bool		whole;			/* all of its rows were seen */
} TesseraSampledRange;

/*
 * The same for a range of which the size is wanted, too, not under hash. It is given up, with the answer false, when somebody waits for the table
 * (locked with AccessShareLock).
 */
extern bool tessera_sample_range(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *range, Snapshot snapshot);

/*
 * For n ranges of hashes (n > 0, ascending, disjoint) together: their rows lie all over the index, so random blocks of the table are read instead,
 * `most` or all that there are. The active snapshot is replaced by a newer one from time to time: an estimate needs no one moment, and no snapshot is
 * held for long. Gives way as above; then what was found must not be used.
 */
extern bool tessera_sample_hashes(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *ranges, int n, BlockNumber most);

#endif							/* TESSERA_KEY_SAMPLE_H */
