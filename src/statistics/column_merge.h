/*
 * column_merge.h
 *	  Statistics of the shards' parts of a column, merged into those of the whole column. A pure function: no catalog but the type's comparison.
 */
#ifndef TESSERA_COLUMN_MERGE_H
#define TESSERA_COLUMN_MERGE_H

#include "postgres.h"

#include "statistics/statistics_json.h"

/* A shard's part. */
typedef struct TesseraColumnPart
{
	double		tuples;
	const TesseraColumnStatistics *statistics;
} TesseraColumnPart;

/*
 * n > 0 parts of one column, tuples > 0 each; disjoint: no value is on two shards (the shard key). The result points into the parts, and is palloc'd.
 */
extern TesseraColumnStatistics *tessera_merge_statistics(const TesseraColumnPart *parts, int n, bool disjoint);

#endif							/* TESSERA_COLUMN_MERGE_H */
