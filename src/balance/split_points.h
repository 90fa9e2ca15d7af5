/*
 * split_points.h
 *	  Where to split a range of keys: a bounded sample of its keys, and the choice of points from it. Pure: no catalog, no table, no lock.
 */
#ifndef TESSERA_SPLIT_POINTS_H
#define TESSERA_SPLIT_POINTS_H

#include "postgres.h"

#include "catalog/key.h"

/* Every k-th key of a stream of unknown length: k doubles whenever the sample is full, so memory is bounded and the spacing even. */
typedef struct TesseraKeySample
{
	TesseraKeySpace *ks;
	MemoryContext context;		/* of the kept keys */
	int			capacity;
	int			n;
	int64		every;			/* k */
	int64		seen;			/* keys offered */
	TesseraKeyBound *keys;		/* capacity + 1 of them */
	bool		has_last;
	TesseraKeyBound last;		/* the newest key that is not kept, if has_last */
} TesseraKeySample;

/* An empty sample that keeps between capacity/2 and capacity keys (capacity even, >= 2); in the current context, as are the keys it will keep. */
extern TesseraKeySample *tessera_key_sample_create(TesseraKeySpace *ks, int capacity);

/* Offers the next key (its elements all TESSERA_VALUE); copied if it is kept. */
extern void tessera_key_sample_add(TesseraKeySample *sample, const TesseraKeyBound *key);

/* Ends the stream: puts the kept keys, and the last one offered, in order. */
extern void tessera_key_sample_finish(TesseraKeySample *sample);

/* Frees a sample that is finished, with its keys. */
extern void tessera_key_sample_free(TesseraKeySample *sample);

/*
 * Points that split the keys (n of them, in order) into at most `pieces` pieces of about equally many: fills points (room for pieces - 1; values
 * are shared with keys) and returns their count. Points are distinct and above the lowest key, so no piece is empty; fewer come out where
 * many rows share a key, and none if all do (S89, S90).
 */
extern int	tessera_split_points(TesseraKeySpace *ks, const TesseraKeyBound *keys, int n, int pieces, TesseraKeyBound *points);

/* Bounds that divide the space of hashes into n even chunks: the n - 1 inner ones. */
extern void tessera_split_points_of_hash(int n, TesseraKeyBound *points);

#endif							/* TESSERA_SPLIT_POINTS_H */
