/*
 * chunk_load.h
 *	  What the splitter knows of the chunks of a table group: estimates of their size and load, kept up to date by samples and measurements.
 */
#ifndef TESSERA_CHUNK_LOAD_H
#define TESSERA_CHUNK_LOAD_H

#include "postgres.h"
#include "datatype/timestamp.h"

#include "balance/key_growth.h"
#include "balance/measure.h"
#include "load/load_sample.h"
#include "routing/routing.h"

#define TESSERA_HOT_KEYS 8
#define TESSERA_HOT_POSITIONS 64
#define TESSERA_NEWEST_WRITES 12

/* Keys of a chunk's statements; only of chunks that have some. */
typedef struct TesseraChunkKeys
{
	int			nhot;
	TesseraSampleKey hot[TESSERA_HOT_KEYS];
	double		weights[TESSERA_HOT_KEYS];	/* load, as far as counted */
	uint32		npositions;		/* samples so far; the newest are kept */
	TesseraSampleKey *positions;	/* TESSERA_HOT_POSITIONS of them; NULL: not wanted */
} TesseraChunkKeys;

typedef struct TesseraChunkLoad
{
	bool		own;			/* of this shard */
	bool		known;			/* bytes comes from a measurement, or from nothing but samples since the chunk was empty */
	bool		jumbo;
	double		bytes;			/* of rows that live */
	double		statements;		/* per second; this and load as of the group's decayed */
	double		load;			/* sessions at work */
	int			attempts;		/* to split it, in a row, that did not */
	TimestampTz not_before;		/* of the next one */
	bool		isolated;		/* its hottest key has most of its load, and there is nothing else in it to be split off */
	TesseraChunkKeys *keys;		/* NULL: none */
} TesseraChunkLoad;

/* Writes to the first or to the last chunk. */
typedef struct TesseraEndWrites
{
	uint32		n;				/* samples so far; the newest are kept */
	TesseraSampleKey newest[TESSERA_NEWEST_WRITES];
	/* for split_ahead.c */
	uint32		windowed;		/* n as of the last window */
	double		bytes;			/* written since */
	TimestampTz since;			/* when the first of them was taken in; 0: there are none */
	TesseraKeyGrowth growth;
	int			attempts;		/* to split it off, in a row, that failed */
	TimestampTz not_before;		/* of the next one */
} TesseraEndWrites;

typedef struct TesseraGroupLoad
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		group_major;	/* version of the chunk map that chunks follow */
	int64		group_minor;
	bool		hashed;
	int			nelements;
	int			nchunks;
	int			nown;
	int			nkeyed;			/* chunks with keys */
	TesseraChunkLoad *chunks;
	TesseraKeyDatum *mins;		/* flat; base: bytes */
	char	   *bytes;
	int64		max_chunk_size;
	uint64		members;		/* the group's tables, mixed: another sum means other tables */
	TesseraEndWrites first;		/* to the first chunk */
	TesseraEndWrites last;
	/* since the last measurement */
	double		changed;		/* bytes, up and down */
	TimestampTz last_change;
	bool		measure_due;	/* whatever has changed */
	TransactionId horizon;		/* transactions below it may have written what the last measurement did not see; invalid: none */
	TimestampTz measured;
	long		measure_ms;		/* how long the last one took */
	TimestampTz look_due;		/* under hash: chunks are not looked at before, for splits */
	/* reports */
	TimestampTz decayed;		/* statements and load are as of then */
	TimestampTz reported;
	bool		unreported;		/* something has changed since */
	bool		told;			/* the config node may have had a report that was not empty */
	bool		listed;			/* the group is still there */
	bool		unreadable;		/* its chunks cannot be read now: nothing is done with it, and it does not follow them */
} TesseraGroupLoad;

/*
 * What is known of a group, brought to its newest chunk map; made if there is nothing yet. Lives as long as the process, or until forgotten. ERROR
 * XX001 if the map has holes: what is known stays as it was.
 */
extern TesseraGroupLoad *tessera_group_load(const TesseraRouting *routing, const TesseraGroup *group);

/* The same by id, as it is; NULL: nothing is known. */
extern TesseraGroupLoad *tessera_group_load_by_id(const pg_uuid_t *group_id);

/* All of them: call with an index from 0 on, until it is NULL. */
extern TesseraGroupLoad *tessera_group_load_at(int i);

/* Forgets those that are not listed. */
extern void tessera_group_loads_sweep(void);

/* Takes in a sample; the group's chunks must follow this image. */
extern void tessera_group_load_sample(TesseraGroupLoad *load, const TesseraRouting *routing, const TesseraGroup *group,
									  const TesseraLoadSample *sample, bool keep_positions);

/* Takes in a measurement of the same chunk map. */
extern void tessera_group_load_measured(TesseraGroupLoad *load, const TesseraMeasure *measure, TimestampTz now);

/* Lets statements and load fade up to now. */
extern void tessera_group_load_decay(TesseraGroupLoad *load, TimestampTz now);

/* Factor by which averages are too low because this process has not run for long. */
extern double tessera_load_warm_up(TimestampTz now);

#endif							/* TESSERA_CHUNK_LOAD_H */
