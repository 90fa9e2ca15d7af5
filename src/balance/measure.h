/*
 * measure.h
 *	  How many bytes of live rows each chunk of a table group has on this shard, from a random sample of blocks.
 */
#ifndef TESSERA_MEASURE_H
#define TESSERA_MEASURE_H

#include "postgres.h"

#include "routing/routing.h"

typedef struct TesseraMeasure
{
	bool		complete;		/* every block of every table was read: the figures are exact, as of the snapshot */
	bool		skipped;		/* a table was locked by somebody: its rows are missing */
	double		total;			/* bytes of all chunks of this shard */
	double	   *bytes;			/* of each chunk of the group; 0 of those that other shards own */
	int32	   *blocks;			/* of each chunk: blocks in which a row of it was seen */
} TesseraMeasure;

/*
 * Measures all tables of the group, under the active snapshot. Reads up to 2,000 blocks of each table (or all, if it is not larger). The arrays are
 * in the current context. Waits for no lock. Interruptible.
 */
extern void tessera_measure_group(const TesseraRouting *routing, const TesseraGroup *group, TesseraMeasure *measure);

#endif							/* TESSERA_MEASURE_H */
