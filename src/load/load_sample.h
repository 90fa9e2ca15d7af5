/*
 * load_sample.h
 *	  Samples of what statements write and cost on this shard, by key: from all backends of a database to its splitter (balance/splitter.h).
 *
 * Sampling is systematic with a random phase, so that a sample stands for a known amount and the sums are unbiased: every so many bytes written, and
 * every so many statements. Between two samples a backend does nothing but count in its own memory.
 */
#ifndef TESSERA_LOAD_SAMPLE_H
#define TESSERA_LOAD_SAMPLE_H

#include "postgres.h"
#include "utils/uuid.h"

#include "routing/routing.h"

/* Room for a position: the datums of its elements, then the bytes of those by reference. A longer one is not kept. */
#define TESSERA_SAMPLE_KEY_WORDS 24

typedef struct TesseraSampleKey
{
	int32		size;			/* bytes; 0: the position is too long, or not known */
	Datum		words[TESSERA_SAMPLE_KEY_WORDS];
} TesseraSampleKey;

typedef struct TesseraLoadSample
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	bool		emptied;		/* a table was truncated: nothing else is said */
	double		bytes;			/* by which live rows have grown; negative after deletions */
	double		statements;
	double		us;				/* time that they took */
	/* of a position that is too long: its chunk, in a map of this version */
	int32		chunk;			/* -1: not needed */
	int64		group_major;
	int64		group_minor;
	TesseraSampleKey key;
} TesseraLoadSample;

/* Positions as samples keep them, and back (values point into the key). Equal positions have equal bytes where their types' values do. */
extern void tessera_sample_key_set(TesseraSampleKey *key, TesseraKeySpace *ks, const TesseraKeyBound *position);
extern void tessera_sample_key_get(const TesseraSampleKey *key, TesseraKeySpace *ks, TesseraKeyBound *position);
extern bool tessera_sample_key_equal(const TesseraSampleKey *a, const TesseraSampleKey *b);

/* ---- backends ---- */

/* False: tessera.load_sample_rate is 0, or nobody collects samples in this database. */
extern bool tessera_load_sampled(void);

/* Where tessera_load_sampled: counts bytes written; returns how many the sample that is due now stands for; 0: none is due. */
extern double tessera_load_count_bytes(double bytes);

/* Where tessera_load_sampled: counts a statement; returns how many the sample that is due now stands for; 0: none is due. */
extern int	tessera_load_count_statement(void);

/* Puts a sample about a position of the group. It is dropped, and counted as lost, if there is no room. Wakes the splitter when half is full. */
extern void tessera_load_put(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *position, double bytes,
							 double statements, double us);

/* A sharded table loses all its rows on this shard: the splitter is to measure, when its lock is free. NULL is ignored. */
extern void tessera_load_emptied(const TesseraRouting *routing, const TesseraTable *table);

/* ---- the splitter ---- */

/* From now on samples are collected in this database. step: bytes per sample (at most TESSERA_LOAD_STEP). */
#define TESSERA_LOAD_STEP 65536
extern void tessera_load_collect(int step);

/* No more: this node is no shard. */
extern void tessera_load_ignore(void);

/* Takes up to n samples out, the oldest first; returns how many. *lost: how many were dropped since the last call. */
extern int	tessera_load_take(TesseraLoadSample *samples, int n, uint64 *lost);

extern void tessera_load_sample_init(void); /* from _PG_init */

#endif							/* TESSERA_LOAD_SAMPLE_H */
