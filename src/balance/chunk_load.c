/*
 * chunk_load.c
 *	  Estimates of chunks; see chunk_load.h.
 *
 * A chunk's estimate follows its keys: when the chunk map changes, an old chunk's figures are divided equally among the new ones that begin in it
 * (its load by the keys of its newest statements, where they are kept), and go to the one that holds it if none does. Chunks of other shards are
 * kept, too: what a migration brings is counted before the chunk is ours.
 *
 * Averages: a sample adds to a sum that halves in HALF_LIFE; what the sum is in a steady state is the rate. Hot keys: the heaviest of a few counters
 * (space saving: who comes in takes the lightest one's place and weight), which fade with the load.
 *
 * Memory: all in one context of the process; arrays of a group are replaced when its map changes. 100,000 chunks take about 15 MB. A crash loses it;
 * the next process measures.
 */
#include "postgres.h"

#include <math.h>

#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "balance/chunk_load.h"

#define HALF_LIFE 60.0			/* s */
#define FADING (M_LN2 / HALF_LIFE)	/* per second */
#define SURE_BLOCKS 8			/* blocks of a chunk from which on a measurement counts more than what was known */
#define SURE_POSITIONS 16		/* keys of statements from which on they say how a chunk's load is spread */
#define IDLE 1e-4				/* a load below it is none */
#define KEYED_CHUNKS 4096		/* of a group: so many have counters of hot keys at most, 2 kB each */

static MemoryContext loads_context = NULL;
static List *loads = NIL;		/* of TesseraGroupLoad * */
static TimestampTz begun = 0;	/* this process */
static bool followed = false;	/* it has seen what groups there are */


/* ---- groups ---- */

TesseraGroupLoad *
tessera_group_load_by_id(const pg_uuid_t *group_id)
{
	ListCell   *cell;

	foreach(cell, loads)
		if (memcmp(&((TesseraGroupLoad *) lfirst(cell))->group_id, group_id, UUID_LEN) == 0)
			return lfirst(cell);
	return NULL;
}

TesseraGroupLoad *
tessera_group_load_at(int i)
{
	return i < list_length(loads) ? list_nth(loads, i) : NULL;
}

static void
free_keys(TesseraGroupLoad *load, TesseraChunkLoad *chunk)
{
	if (chunk->keys == NULL)
		return;
	load->nkeyed--;
	if (chunk->keys->positions)
		pfree(chunk->keys->positions);
	pfree(chunk->keys);
	chunk->keys = NULL;
}

static void
free_arrays(TesseraGroupLoad *load)
{
	for (int i = 0; i < load->nchunks; i++)
		free_keys(load, &load->chunks[i]);
	if (load->chunks)
		pfree(load->chunks);
	if (load->mins)
		pfree(load->mins);
	if (load->bytes)
		pfree(load->bytes);
	load->chunks = NULL;
	load->mins = NULL;
	load->bytes = NULL;
	load->nchunks = load->nown = 0;
}

void
tessera_group_loads_sweep(void)
{
	ListCell   *cell;

	followed = true;
	foreach(cell, loads)
	{
		TesseraGroupLoad *load = lfirst(cell);

		if (load->listed)
			continue;
		free_arrays(load);
		pfree(load);
		loads = foreach_delete_current(loads, cell);
	}
}


/* ---- following the chunk map ---- */

/* Arrays for the chunks of the image: bounds, owners, no figures. */
static void
make_arrays(TesseraGroupLoad *load, const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks)
{
	int			n = tessera_routing_nchunks(routing, group);
	Size		size = 0;
	Size		offset = 0;

	load->nelements = ks->nelements;
	load->chunks = MemoryContextAllocExtended(loads_context, sizeof(TesseraChunkLoad) * Max(n, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	load->mins = MemoryContextAllocHuge(loads_context, sizeof(TesseraKeyDatum) * ks->nelements * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(routing, group, i, &chunk);
		size += tessera_key_flat_size(ks, &chunk.min);
	}
	load->bytes = MemoryContextAllocHuge(loads_context, Max(size, 1));
	for (int i = 0; i < n; i++)
	{
		TesseraKeyBound flat;
		TesseraChunk chunk;

		tessera_routing_chunk(routing, group, i, &chunk);
		offset = tessera_key_flatten(ks, &chunk.min, &flat, load->bytes, offset);
		memcpy(load->mins + (Size) i * ks->nelements, flat.elements, sizeof(TesseraKeyDatum) * ks->nelements);
		load->chunks[i].own = chunk.node_id == routing->self;
		load->chunks[i].jumbo = chunk.jumbo;
		load->nown += load->chunks[i].own ? 1 : 0;
	}
	load->nchunks = n;
	load->epoch = group->epoch;
	load->group_major = group->group_major;
	load->group_minor = group->group_minor;
	load->hashed = group->hashed;
}

static void
min_of(const TesseraGroupLoad *load, TesseraKeySpace *ks, int i, TesseraKeyBound *min)
{
	TesseraKeyBound flat = {0};

	memcpy(flat.elements, load->mins + (Size) i * load->nelements, sizeof(TesseraKeyDatum) * load->nelements);
	tessera_key_unflatten(ks, &flat, load->bytes, min);
}

/* A share of an old chunk's figures goes to a new one. */
static void
add_share(TesseraChunkLoad *to, const TesseraChunkLoad *from, double share, double load_share)
{
	to->known = to->known || from->known;
	/* what has left this shard has left its rows behind */
	if (to->own || !from->own)
		to->bytes += from->bytes * share;
	to->statements += from->statements * load_share;
	to->load += from->load * load_share;
}

static void count_key(TesseraGroupLoad *load, TesseraChunkLoad *chunk, const TesseraSampleKey *key, double weight, bool keep_positions);

/* The new chunk, of those from first up to, but without, next, that holds the key. */
static int
chunk_of_key(const TesseraGroupLoad *to, TesseraKeySpace *ks, const TesseraSampleKey *key, int first, int next)
{
	TesseraKeyBound position;
	TesseraKeyBound min;
	int			low = first;

	tessera_sample_key_get(key, ks, &position);
	while (next - low > 1)
	{
		int			middle = low + (next - low) / 2;

		min_of(to, ks, middle, &min);
		if (tessera_key_compare(ks, &min, &position) <= 0)
			low = middle;
		else
			next = middle;
	}
	return low;
}

/*
 * What is known of an old chunk's statements goes to the new chunks from first up to, but without, next: keys to those that hold them, the load by
 * the number of keys of its newest statements. False: too few are known, the load is not divided.
 */
static bool
divide_load(TesseraGroupLoad *to, const TesseraChunkLoad *old, TesseraKeySpace *ks, int first, int next)
{
	const TesseraChunkKeys *keys = old->keys;
	int			n = keys != NULL && keys->positions != NULL ? (int) Min(keys->npositions, TESSERA_HOT_POSITIONS) : 0;

	if (n < SURE_POSITIONS)
		return false;
	for (int i = 0; i < n; i++)
	{
		TesseraChunkLoad *chunk = &to->chunks[chunk_of_key(to, ks, &keys->positions[i], first, next)];

		add_share(chunk, old, 0, 1.0 / n);
		if (chunk->own)
			count_key(to, chunk, &keys->positions[i], 0, true);
	}
	for (int i = 0; i < keys->nhot; i++)
	{
		TesseraChunkLoad *chunk = &to->chunks[chunk_of_key(to, ks, &keys->hot[i], first, next)];

		if (chunk->own)
			count_key(to, chunk, &keys->hot[i], keys->weights[i], false);
	}
	return true;
}

/* Figures of the old arrays into the new ones. Both ascend, and cover all keys. */
static void
carry_over(TesseraGroupLoad *to, TesseraGroupLoad *from, TesseraKeySpace *ks)
{
	int			next = 0;		/* first new chunk that begins at or above the old one's end */

	for (int i = 0; i < from->nchunks; i++)
	{
		TesseraChunkLoad *old = &from->chunks[i];
		int			first = next;
		bool		divided;
		TesseraKeyBound end;

		if (i + 1 < from->nchunks)
			min_of(from, ks, i + 1, &end);
		while (next < to->nchunks)
		{
			TesseraKeyBound min;

			min_of(to, ks, next, &min);
			if (i + 1 < from->nchunks && tessera_key_compare(ks, &min, &end) >= 0)
				break;
			next++;
		}
		if (next == first)
		{
			add_share(&to->chunks[Max(next - 1, 0)], old, 1, 1);
			continue;
		}
		divided = next > first + 1 && divide_load(to, old, ks, first, next);
		for (int j = first; j < next; j++)
			add_share(&to->chunks[j], old, 1.0 / (next - first), divided ? 0 : 1.0 / (next - first));
		if (next == first + 1 && to->chunks[first].own)
		{
			to->chunks[first].keys = old->keys;
			to->nkeyed += old->keys ? 1 : 0;
			from->nkeyed -= old->keys ? 1 : 0;
			to->chunks[first].attempts = old->attempts;
			to->chunks[first].not_before = old->not_before;
			to->chunks[first].isolated = old->isolated;
			old->keys = NULL;
		}
	}
	for (int i = 0; i < to->nchunks; i++)
		if (to->chunks[i].own && !to->chunks[i].known)
			to->measure_due = true;
}

/* A chunk that was not here before has no figures of its own. */
static void
follow_map(TesseraGroupLoad *load, const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraGroupLoad *after = palloc(sizeof(TesseraGroupLoad));
	bool		same_epoch = memcmp(&load->epoch, &group->epoch, UUID_LEN) == 0;

	*after = *load;
	after->chunks = NULL;
	after->mins = NULL;
	after->bytes = NULL;
	after->nchunks = after->nown = after->nkeyed = 0;
	PG_TRY();
	{
		make_arrays(after, routing, group, ks);
		if (same_epoch)
			carry_over(after, load, ks);
	}
	PG_CATCH();
	{
		free_arrays(after);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!same_epoch)
		after->first = after->last = (TesseraEndWrites) {0};	/* of another key */
	free_arrays(load);
	*load = *after;
	pfree(after);
	load->measure_due = true;
	load->unreported = true;
}

TesseraGroupLoad *
tessera_group_load(const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraGroupLoad *load = tessera_group_load_by_id(&group->group_id);

	if (loads_context == NULL)
	{
		loads_context = AllocSetContextCreate(TopMemoryContext, "tessera chunk load", ALLOCSET_DEFAULT_SIZES);
		begun = GetCurrentTimestamp();
	}
	if (load == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(loads_context);

		load = palloc0(sizeof(TesseraGroupLoad));
		load->group_id = group->group_id;
		load->decayed = GetCurrentTimestamp();
		/* what the process before this one has reported may have gone since */
		load->told = !followed;
		loads = lappend(loads, load);
		MemoryContextSwitchTo(before);
	}
	if (load->chunks == NULL || load->group_major != group->group_major || load->group_minor != group->group_minor ||
		memcmp(&load->epoch, &group->epoch, UUID_LEN) != 0)
		follow_map(load, routing, group);
	return load;
}


/* ---- samples ---- */

static void
count_key(TesseraGroupLoad *load, TesseraChunkLoad *chunk, const TesseraSampleKey *key, double weight, bool keep_positions)
{
	TesseraChunkKeys *keys = chunk->keys;
	int			at;
	int			lightest = 0;

	if (keys == NULL)
	{
		if (load->nkeyed == KEYED_CHUNKS)
			return;
		load->nkeyed++;
		keys = chunk->keys = MemoryContextAllocZero(loads_context, sizeof(TesseraChunkKeys));
	}
	if (keep_positions && keys->positions == NULL)
	{
		keys->positions = MemoryContextAlloc(loads_context, sizeof(TesseraSampleKey) * TESSERA_HOT_POSITIONS);
		keys->npositions = 0;
	}
	if (keep_positions)
		keys->positions[keys->npositions++ % TESSERA_HOT_POSITIONS] = *key;
	for (at = 0; at < keys->nhot && !tessera_sample_key_equal(&keys->hot[at], key); at++)
		if (keys->weights[at] < keys->weights[lightest])
			lightest = at;
	if (at == keys->nhot && at == TESSERA_HOT_KEYS)
	{
		at = lightest;
		keys->hot[at] = *key;
	}
	else if (at == keys->nhot)
	{
		keys->nhot++;
		keys->hot[at] = *key;
		keys->weights[at] = 0;
	}
	keys->weights[at] += weight;
}

static void
count_write(TesseraEndWrites *writes, const TesseraLoadSample *sample)
{
	writes->newest[writes->n++ % TESSERA_NEWEST_WRITES] = sample->key;
	writes->bytes += sample->bytes;
	if (writes->since == 0)
		writes->since = GetCurrentTimestamp();
}

static void
count_bytes(TesseraGroupLoad *load, int i, const TesseraLoadSample *sample)
{
	load->changed += fabs(sample->bytes);
	load->last_change = GetCurrentTimestamp();
	if (i < 0)
		return;
	load->chunks[i].bytes = Max(load->chunks[i].bytes + sample->bytes, 0);
	if (sample->bytes <= 0 || sample->key.size == 0)
		return;
	if (i == 0)
		count_write(&load->first, sample);
	if (i == load->nchunks - 1)
		count_write(&load->last, sample);
}

void
tessera_group_load_sample(TesseraGroupLoad *load, const TesseraRouting *routing, const TesseraGroup *group, const TesseraLoadSample *sample,
						  bool keep_positions)
{
	int			i = -1;

	if (memcmp(&sample->epoch, &load->epoch, UUID_LEN) != 0)
		return;
	if (sample->emptied)
	{
		load->measure_due = true;
		return;
	}
	if (sample->key.size > 0)
	{
		TesseraKeyBound position;

		tessera_sample_key_get(&sample->key, tessera_group_keyspace(routing, group), &position);
		i = tessera_routing_find_chunk(routing, group, &position);
	}
	else if (sample->group_major == load->group_major && sample->group_minor == load->group_minor)
		i = sample->chunk;
	if (sample->bytes != 0)
		count_bytes(load, i, sample);
	if (sample->statements > 0 && i >= 0 && load->chunks[i].own)
	{
		double		weight = sample->us / 1e6 * FADING;

		load->chunks[i].statements += sample->statements * FADING;
		load->chunks[i].load += weight;
		if (sample->key.size > 0)
			count_key(load, &load->chunks[i], &sample->key, weight, keep_positions);
	}
	load->unreported = true;
}

void
tessera_group_load_decay(TesseraGroupLoad *load, TimestampTz now)
{
	double		seconds = (now - load->decayed) / 1e6;
	double		factor;

	if (seconds < 1)
		return;
	load->decayed = now;
	factor = exp(-FADING * seconds);
	for (int i = 0; i < load->nchunks; i++)
	{
		TesseraChunkLoad *chunk = &load->chunks[i];

		if (chunk->statements == 0)
			continue;
		chunk->statements *= factor;
		chunk->load *= factor;
		for (int j = 0; chunk->keys && j < chunk->keys->nhot; j++)
			chunk->keys->weights[j] *= factor;
		if (chunk->statements > IDLE)
			continue;
		chunk->statements = chunk->load = 0;
		free_keys(load, chunk);
		load->unreported = true;
	}
}

double
tessera_load_warm_up(TimestampTz now)
{
	double		seconds = Max((now - begun) / 1e6, 1);

	return 1 / (1 - exp(-FADING * seconds));
}


/* ---- measurements ---- */

/*
 * What is measured counts by the number of blocks that it comes from, or should come from; against it stands what was known, else the average chunk.
 */
void
tessera_group_load_measured(TesseraGroupLoad *load, const TesseraMeasure *measure, TimestampTz now)
{
	double		blocks = 0;

	for (int i = 0; i < load->nchunks; i++)
		blocks += measure->blocks[i];
	for (int i = 0; i < load->nchunks; i++)
	{
		TesseraChunkLoad *chunk = &load->chunks[i];
		double		before = chunk->known ? chunk->bytes : measure->total / Max(load->nown, 1);
		double		expected = measure->total > 0 ? blocks * before / measure->total : 0;
		double		evidence = Max(measure->blocks[i], expected);
		double		weight = measure->complete || measure->total <= 0 ? 1 : evidence / (evidence + SURE_BLOCKS);

		if (!chunk->own)
			continue;
		chunk->bytes = before + (measure->bytes[i] - before) * weight;
		chunk->known = true;
	}
	load->changed = 0;
	load->measure_due = false;
	load->measured = now;
	load->unreported = true;
}
