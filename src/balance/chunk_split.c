/*
 * chunk_split.c
 *	  Splits of one round, for one table group; see chunk_split.h.
 *
 * Phases: candidates by their estimates (S84); one transaction that reads their keys by the index and so finds their true size (S88) and the points
 * (S87), under locks that it only takes if they are free (under hash, where chunks reach their limit at about the same time, blocks of the tables are
 * read for all of them together, not too often); then, outside of it, one call for each chunk to the config node, which makes all its pieces
 * in one commit. What it refuses (a migration is in the way, somebody else was faster) is tried again later, after a pause that grows.
 *
 * A chunk with much load is split where its load is: at the median of the keys of its newest statements, or, if one key has most of the load, on both
 * sides of that, so that it is alone and the rest can go elsewhere. A chunk of one such key is left alone.
 *
 * The first or last chunk that grows at its end (S92) gets one point more, at its outermost key: the piece behind it is nearly empty, and the
 * balancer is asked to move it to another shard, which takes the writes from then on. It is asked once for each split, which takes new evidence. This
 * is for keys whose growth cannot be foreseen; else split_ahead.c has done it before.
 *
 * Memory: the caller's context. Locks: AccessShareLock on the group's tables while keys are read; the reader gives way to who waits for a stronger
 * one. A crash leaves the split made or not.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "balance/chunk_split.h"
#include "balance/give_way.h"
#include "balance/key_sample.h"
#include "balance/move_reasons.h"
#include "catalog/bound_array.h"
#include "common/text.h"
#include "control/calls.h"
#include "transaction/background.h"

#define CALL_MS 10000
#define CHUNKS_AT_ONCE 16		/* of a group, in one round */
#define HASHED_AT_ONCE 1024		/* the same under hash */
#define HASHED_BLOCKS 10000		/* read under hash, at least: all, where there are not more */
#define BLOCKS_OF_CHUNK 16		/* as much as so many blocks hold is seen of a chunk that is too large, on average */
#define LOOK_PAUSE 20			/* times as long as it took is the next look put off under hash */
#define SURE_ROWS 32			/* of a chunk, if not all were seen: fewer tell nothing */
#define FAILURES 16				/* calls that fail: then the round ends */
#define MAX_PIECES 1000
#define KEYS_PER_PIECE 64
#define ROUND_KEYS (4 * KEYS_PER_PIECE * MAX_PIECES)	/* in the samples of a table, 128 bytes each */
#define BY "tessera"
#define MAX_DOUBLINGS 6
#define HOT_SHARE 0.5			/* of a chunk's load: if one key has more, it gets a chunk of its own */
#define ENOUGH_POSITIONS 16
#define OFTEN 4					/* times is a hot key among the newest statements, at least */

typedef struct Candidate
{
	int			chunk;
	double		priority;
	bool		hot;			/* too much load; else too large, by its estimate */
	bool		isolate;		/* most of that load is of one key: it is to have a chunk of its own */
	TesseraKeyBound hot_key;
	/* what was found */
	bool		read;
	bool		sure;			/* there was enough to see */
	bool		lower;			/* isolate: there are keys below it, and next, above it; unknown: which that are, cannot be said */
	bool		upper;
	bool		unknown;
	TesseraKeyBound next;
	double		size;
	double		largest;		/* bytes of the table that the keys are of */
	TesseraKeySample *keys;
	pg_uuid_t	table_id;
	char	   *object;			/* its name */
	/* what is to be done; texts of bounds */
	int			npoints;
	char	   *points;
	char	   *position;		/* the chunk's min */
	char	   *top_min;		/* of the piece that is to be moved away; NULL: none */
	char	   *top_max;
} Candidate;

typedef struct Round
{
	TesseraGroupLoad *load;
	MemoryContext context;
	int			n;
	Candidate  *candidates;		/* by chunk */
	/* as of the transaction that has read the keys */
	int32		self;
	int64		term;
	bool		alone;			/* there is no other shard */
} Round;


/* ---- candidates ---- */

/* The key that most of the chunk's load is about; NULL: there is none. */
static const TesseraSampleKey *
hot_key(const TesseraChunkLoad *chunk)
{
	for (int i = 0; chunk->keys && i < chunk->keys->nhot; i++)
		if (chunk->keys->weights[i] >= HOT_SHARE * chunk->load)
			return &chunk->keys->hot[i];
	return NULL;
}

/* One statement that had to wait for long makes no hot key. */
static bool
is_seen_often(const TesseraChunkLoad *chunk, const TesseraSampleKey *key)
{
	int			n = (int) Min(chunk->keys->npositions, TESSERA_HOT_POSITIONS);
	int			seen = 0;

	for (int i = 0; i < n && chunk->keys->positions != NULL; i++)
		seen += tessera_sample_key_equal(&chunk->keys->positions[i], key) ? 1 : 0;
	return seen >= OFTEN;
}

/* How urgent a split of the chunk is; 0: it needs none. warm_up: as of now. */
static double
priority_of(const TesseraGroupLoad *load, const TesseraChunkLoad *chunk, double split_load, double warm_up, bool *hot)
{
	double		weight = chunk->load * warm_up;

	*hot = false;
	if (chunk->bytes > load->max_chunk_size)
		return chunk->bytes / load->max_chunk_size;
	*hot = split_load > 0 && weight > split_load && chunk->keys && chunk->keys->npositions >= ENOUGH_POSITIONS &&
		(hot_key(chunk) == NULL || (!chunk->isolated && is_seen_often(chunk, hot_key(chunk))));
	return *hot ? weight / split_load : 0;
}

static int
by_chunk(const void *a, const void *b)
{
	return ((const Candidate *) a)->chunk - ((const Candidate *) b)->chunk;
}

static int
most_urgent_first(const void *a, const void *b)
{
	double		left = ((const Candidate *) a)->priority;
	double		right = ((const Candidate *) b)->priority;

	return left > right ? -1 : left < right ? 1 : 0;
}

/* The most urgent ones, in the order of their keys. Returns how many more there are. */
static int
find_candidates(Round *round, double split_load, TimestampTz now)
{
	int			most = round->load->hashed ? HASHED_AT_ONCE : CHUNKS_AT_ONCE;
	int			room = CHUNKS_AT_ONCE;
	int			n = 0;
	double		warm_up = tessera_load_warm_up(now);

	round->candidates = palloc(sizeof(Candidate) * room);
	for (int i = 0; i < round->load->nchunks; i++)
	{
		const TesseraChunkLoad *chunk = &round->load->chunks[i];
		Candidate	candidate = {.chunk = i};

		if (!chunk->own || !chunk->known || chunk->jumbo || chunk->not_before > now)
			continue;
		candidate.priority = priority_of(round->load, chunk, split_load, warm_up, &candidate.hot);
		if (candidate.priority == 0)
			continue;
		candidate.isolate = candidate.hot && hot_key(chunk) != NULL;
		if (n == room)
			round->candidates = repalloc_huge(round->candidates, sizeof(Candidate) * (room *= 2));
		round->candidates[n++] = candidate;
	}
	qsort(round->candidates, n, sizeof(Candidate), most_urgent_first);
	round->n = Min(n, most);
	qsort(round->candidates, round->n, sizeof(Candidate), by_chunk);
	return n - round->n;
}


/* ---- reading keys ---- */

static int
sample_capacity(const Round *round, const Candidate *candidate)
{
	double		pieces = Max(2, round->load->chunks[candidate->chunk].bytes * 2 / round->load->max_chunk_size);

	return Min(2 * KEYS_PER_PIECE * (int) Min(pieces, MAX_PIECES), ROUND_KEYS / round->n / 2 * 2);
}

/* How many blocks of a table of the hashed group are to be read: the more, the smaller a part of it the smallest chunk is that is too large. */
static BlockNumber
blocks_to_read(const Round *round)
{
	const TesseraGroupLoad *load = round->load;
	double		all = 0;
	double		smallest = 0;

	for (int i = 0; i < load->nchunks; i++)
		all += load->chunks[i].own ? load->chunks[i].bytes : 0;
	for (int i = 0; i < round->n; i++)
	{
		double		bytes = load->chunks[round->candidates[i].chunk].bytes;

		if (!round->candidates[i].hot && (smallest == 0 || bytes < smallest))
			smallest = bytes;
	}
	return (BlockNumber) Min(Max(smallest > 0 ? all / smallest * BLOCKS_OF_CHUNK : 0, HASHED_BLOCKS), MaxBlockNumber);
}

/* Takes in what a table, or a partition of it, has of a candidate's chunk. */
static void
add_table(Candidate *candidate, const TesseraSampledRange *range, const TesseraTable *root)
{
	candidate->read = true;
	candidate->size += range->bytes;
	if (candidate->keys != NULL && range->bytes <= candidate->largest)
	{
		tessera_key_sample_free(range->sample);
		return;
	}
	if (candidate->keys != NULL)
		tessera_key_sample_free(candidate->keys);
	candidate->largest = range->bytes;
	candidate->keys = range->sample;
	candidate->sure = range->whole || range->sample->seen >= SURE_ROWS;
	candidate->table_id = root->table_id;
	candidate->object = tessera_qualified_name(root->relid);
}

/* What a table has beside the hot key of a candidate's chunk. Under hash the next key is the next hash, whether there is one or not. */
static void
look_around(Candidate *candidate, TesseraKeySpace *ks, const TesseraChunkLoad *load, const TesseraChunk *chunk, const TesseraTable *table,
			Relation rel)
{
	TesseraKeyBound next;
	TesseraNextKey found;
	int			below;

	tessera_sample_key_get(hot_key(load), ks, &candidate->hot_key);
	if (ks->hashed)
	{
		int64		hash = DatumGetInt64(candidate->hot_key.elements[0].value);

		next = candidate->hot_key;
		next.elements[0].value = Int64GetDatum(hash + (hash < PG_INT64_MAX ? 1 : 0));
		candidate->lower = tessera_key_compare(ks, &chunk->min, &candidate->hot_key) < 0;
		candidate->upper = hash < PG_INT64_MAX && tessera_key_compare(ks, &next, &chunk->max) < 0;
		candidate->next = next;
		return;
	}
	below = tessera_rows_up_to(rel, ks, table->keys, &chunk->min, &candidate->hot_key, 1, GetActiveSnapshot());
	found = tessera_next_key(rel, ks, table->keys, &candidate->hot_key, &chunk->max, GetActiveSnapshot(), &next);
	candidate->unknown = candidate->unknown || below < 0 || found == TESSERA_NEXT_UNKNOWN;
	candidate->lower = candidate->lower || below > 0;
	if (found == TESSERA_NEXT_FOUND && (!candidate->upper || tessera_key_compare(ks, &next, &candidate->next) < 0))
		candidate->next = next;
	candidate->upper = candidate->upper || found == TESSERA_NEXT_FOUND;
}

/* Reads the candidates' keys in one table; false: somebody waits for the table. */
static bool
read_table(Round *round, const TesseraRouting *routing, const TesseraGroup *group, const TesseraTable *table, Relation rel)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraSampledRange *ranges = palloc0(sizeof(TesseraSampledRange) * round->n);
	bool		whole = true;

	for (int i = 0; i < round->n; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(routing, group, round->candidates[i].chunk, &chunk);
		ranges[i].min = chunk.min;
		ranges[i].max = chunk.max;
		ranges[i].capacity = sample_capacity(round, &round->candidates[i]);
		if (round->candidates[i].isolate)
			look_around(&round->candidates[i], ks, &round->load->chunks[round->candidates[i].chunk], &chunk, table, rel);
	}
	if (group->hashed)
		whole = tessera_sample_hashes(rel, ks, table->keys, ranges, round->n, blocks_to_read(round));
	for (int i = 0; whole && !group->hashed && i < round->n; i++)
		whole = tessera_sample_range(rel, ks, table->keys, &ranges[i], GetActiveSnapshot());
	for (int i = 0; whole && i < round->n; i++)
		add_table(&round->candidates[i], &ranges[i], tessera_routing_root(routing, table));
	return whole;
}

/* All tables of the group; false: one is locked, or somebody waits for it. */
static bool
read_tables(Round *round, const TesseraRouting *routing, const TesseraGroup *group)
{
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);
		Relation	rel;
		bool		whole;

		if (table->group != group->index || !OidIsValid(table->relid))
			continue;
		rel = tessera_open_if_free(table->relid);
		if (rel == NULL)
			return false;
		/* a partitioned table has its rows in its partitions */
		whole = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE || read_table(round, routing, group, table, rel);
		relation_close(rel, NoLock);
		if (!whole)
			return false;
	}
	return true;
}


/* ---- points ---- */

static int
compare_positions(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, a, b);
}

/*
 * True if the newest writes are among the outermost keys of the sample, which are in order: all but two of them in the outermost third of what lies
 * within the outermost of them. Keys further out may have been written since, as far as the chunk is larger than was known; but not many more, or it
 * does not grow there. Rows in random order look so about once in a thousand times.
 */
static bool
grows_at_end(const Round *round, TesseraKeySpace *ks, const Candidate *candidate, bool top)
{
	const TesseraKeySample *keys = candidate->keys;
	const TesseraEndWrites *end = top ? &round->load->last : &round->load->first;
	TesseraKeyBound writes[TESSERA_NEWEST_WRITES];
	int			last = TESSERA_NEWEST_WRITES - 1;
	int			beyond = 0;		/* keys outside of all these writes */
	int			third;

	if (end->n < TESSERA_NEWEST_WRITES || keys->n < 2 * TESSERA_NEWEST_WRITES)
		return false;
	for (int i = 0; i <= last; i++)
		tessera_sample_key_get(&end->newest[i], ks, &writes[i]);
	qsort_arg(writes, TESSERA_NEWEST_WRITES, sizeof(TesseraKeyBound), compare_positions, ks);
	if (top)
		while (beyond < keys->n && tessera_key_compare(ks, &keys->keys[keys->n - 1 - beyond], &writes[last]) > 0)
			beyond++;
	else
		while (beyond < keys->n && tessera_key_compare(ks, &keys->keys[beyond], &writes[0]) < 0)
			beyond++;
	if (beyond == keys->n || beyond > keys->n * (0.25 + Max(1 - round->load->chunks[candidate->chunk].bytes / candidate->size, 0)))
		return false;
	third = beyond + (keys->n - beyond) / 3;
	return top ? tessera_key_compare(ks, &writes[2], &keys->keys[keys->n - 1 - third]) >= 0
		: tessera_key_compare(ks, &writes[last - 2], &keys->keys[third]) <= 0;
}

/* Where the speed of the keys is known, the end is split off ahead of them (split_ahead.c). */
static bool
is_split_ahead(const TesseraEndWrites *writes, bool top)
{
	return tessera_key_growth_speed(&writes->growth, top) != 0;
}

/* Adds the point that leaves the first or last piece nearly empty, if writes go there. */
static int
add_end_point(Round *round, TesseraKeySpace *ks, Candidate *candidate, int n, TesseraKeyBound *points)
{
	const TesseraKeySample *keys = candidate->keys;
	TesseraKeyBound edge = {0};

	if (round->load->hashed || round->alone || n == 0)
		return n;
	for (int i = 0; i < ks->nelements; i++)
		edge.elements[i].kind = TESSERA_MAXKEY;
	if (candidate->chunk == round->load->nchunks - 1 && !is_split_ahead(&round->load->last, true) && grows_at_end(round, ks, candidate, true))
	{
		if (tessera_key_compare(ks, &keys->keys[keys->n - 1], &points[n - 1]) > 0)
			points[n++] = keys->keys[keys->n - 1];
		candidate->top_min = tessera_bound_to_cstring(tessera_key_to_bound(ks, &points[n - 1]));
		candidate->top_max = tessera_bound_to_cstring(tessera_key_to_bound(ks, &edge));
		return n;
	}
	for (int i = 0; i < ks->nelements; i++)
		edge.elements[i].kind = TESSERA_MINKEY;
	if (candidate->chunk == 0 && !is_split_ahead(&round->load->first, false) && grows_at_end(round, ks, candidate, false))
	{
		memmove(&points[1], &points[0], sizeof(TesseraKeyBound) * n);
		points[0] = keys->keys[0];
		n++;
		candidate->top_min = tessera_bound_to_cstring(tessera_key_to_bound(ks, &edge));
		candidate->top_max = tessera_bound_to_cstring(tessera_key_to_bound(ks, &points[0]));
	}
	return n;
}

/* The point that divides the statements of late in half. */
static int
point_of_load(const TesseraChunkLoad *chunk, TesseraKeySpace *ks, TesseraKeyBound *point)
{
	TesseraKeyBound positions[TESSERA_HOT_POSITIONS];
	int			n = (int) Min(chunk->keys->npositions, TESSERA_HOT_POSITIONS);

	for (int i = 0; i < n; i++)
		tessera_sample_key_get(&chunk->keys->positions[i], ks, &positions[i]);
	qsort_arg(positions, n, sizeof(TesseraKeyBound), compare_positions, ks);
	return tessera_split_points(ks, positions, n, 2, point);
}

static void
choose_points(Round *round, TesseraKeySpace *ks, const TesseraKeyBound *min, Candidate *candidate)
{
	int			pieces = (int) Max(2, Min(rint(candidate->size * 2 / round->load->max_chunk_size), MAX_PIECES));
	TesseraKeyBound *points = palloc(sizeof(TesseraKeyBound) * (pieces + 1));
	TesseraBound **bounds = palloc(sizeof(TesseraBound *) * (pieces + 1));

	candidate->position = tessera_bound_to_cstring(tessera_key_to_bound(ks, min));
	if (candidate->size > round->load->max_chunk_size)
	{
		candidate->npoints = tessera_split_points(ks, candidate->keys->keys, candidate->keys->n, pieces, points);
		candidate->npoints = add_end_point(round, ks, candidate, candidate->npoints, points);
	}
	else if (candidate->isolate)
	{
		if (candidate->lower && !candidate->unknown)
			points[candidate->npoints++] = candidate->hot_key;
		if (candidate->upper && !candidate->unknown)
			points[candidate->npoints++] = candidate->next;
	}
	else if (candidate->hot)
		candidate->npoints = point_of_load(&round->load->chunks[candidate->chunk], ks, points);
	for (int i = 0; i < candidate->npoints; i++)
		bounds[i] = tessera_key_to_bound(ks, &points[i]);
	if (candidate->npoints > 0)
		candidate->points = tessera_bounds_text(candidate->npoints, bounds);
}

int
tessera_other_shards(const TesseraRouting *routing)
{
	int			n = 0;

	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		n += node->is_shard && !node->draining && node->node_id != routing->self ? 1 : 0;
	}
	return n;
}

/* Finds out what is to be done with the candidates; a transaction of its own. False: not now. */
static bool
read_candidates(void *arg)
{
	Round	   *round = arg;
	const TesseraRouting *routing;
	const TesseraGroup *group;
	bool		done;

	tessera_background_begin();
	MemoryContextSwitchTo(round->context);
	routing = tessera_routing();
	group = routing ? tessera_routing_group_by_id(routing, &round->load->group_id) : NULL;
	done = group != NULL && memcmp(&group->epoch, &round->load->epoch, UUID_LEN) == 0 && group->group_major == round->load->group_major &&
		group->group_minor == round->load->group_minor && read_tables(round, routing, group);
	if (done)
	{
		round->self = routing->self;
		round->term = routing->promised_term;
		round->alone = tessera_other_shards(routing) == 0;
	}
	for (int i = 0; done && i < round->n; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(routing, group, round->candidates[i].chunk, &chunk);
		if (round->candidates[i].read)
			choose_points(round, tessera_group_keyspace(routing, group), &chunk.min, &round->candidates[i]);
	}
	tessera_background_commit();
	return done;
}


/* ---- calls ---- */

/* Tells what went wrong, unless it passes by itself: a migration that is in the way, a chunk that has changed. */
static void
complain(const Candidate *candidate, const ErrorData *error)
{
	if (error == NULL)
		return;
	ereport(error->sqlerrcode == ERRCODE_OBJECT_IN_USE ? DEBUG1 : LOG,
			(errcode(error->sqlerrcode),
			 errmsg("the chunk at %s of table %s cannot be split for now: %s", candidate->position, candidate->object, error->message)));
}

static TesseraCallTarget
to_config(ErrorData **error)
{
	return tessera_keep_error(tessera_ask(tessera_within(tessera_to_config(), CALL_MS), TESSERA_TOLERATE_ERRORS), error);
}

static void
request_move(const Round *round, const Candidate *candidate)
{
	ErrorData  *error = NULL;
	pg_uuid_t  *id;

	if (!tessera_call_request_move(to_config(&error), &candidate->table_id, candidate->top_min, candidate->top_max, NULL, TESSERA_REASON_TOP, BY,
								   true,
								   round->term, &id))
		complain(candidate, error);
}

/* Has the chunk split, or marked as jumbo if there is no point; true: the config node has changed something. */
static bool
act_on(const Round *round, Candidate *candidate)
{
	const TesseraGroupLoad *load = round->load;
	ErrorData  *error = NULL;
	TesseraSplitAnswer split;
	bool		marked = false;
	bool		done;

	if (candidate->npoints > 0)
		done = tessera_call_split(to_config(&error), &load->group_id, &load->epoch, round->term, candidate->points, BY, candidate->object, &split);
	else
		done = tessera_call_mark_jumbo(to_config(&error), &load->group_id, &load->epoch, round->term, round->self, candidate->position, BY,
									   candidate->object, &marked);
	if (!done)
		complain(candidate, error);
	else if (candidate->top_min != NULL)
	{
		request_move(round, candidate);
		if (candidate->chunk == 0)
			round->load->first.n = 0;
		if (candidate->chunk == round->load->nchunks - 1)
			round->load->last.n = 0;
	}
	return done;
}

/* Under hash a look reads blocks of the whole group. */
static bool
look(Round *round)
{
	TimestampTz start = GetCurrentTimestamp();
	bool		done = tessera_background_try(read_candidates, round);
	TimestampTz end = GetCurrentTimestamp();

	if (round->load->hashed)
		round->load->look_due = TimestampTzPlusMilliseconds(end, TimestampDifferenceMilliseconds(start, end) * LOOK_PAUSE);
	return done;
}

/* The next attempt comes after a pause that doubles each time. */
static void
put_off(TesseraChunkLoad *chunk, int retry_ms, TimestampTz now)
{
	chunk->attempts++;
	chunk->not_before = TimestampTzPlusMilliseconds(now, (int64) retry_ms << Min(chunk->attempts, MAX_DOUBLINGS));
}

bool
tessera_split_chunks(TesseraGroupLoad *load, double split_load, int retry_ms, bool *more)
{
	Round	   *round = palloc0(sizeof(Round));
	TimestampTz now = GetCurrentTimestamp();
	bool		changed = false;
	int			failures = 0;

	round->load = load;
	round->context = CurrentMemoryContext;
	if (load->hashed && now < load->look_due)
		return false;
	*more = find_candidates(round, split_load, now) > 0;
	if (round->n == 0)
		return false;
	for (int i = 0; i < round->n; i++)
		put_off(&load->chunks[round->candidates[i].chunk], retry_ms, now);
	if (!look(round))
		return false;
	for (int i = 0; i < round->n && failures < FAILURES; i++)
	{
		Candidate  *candidate = &round->candidates[i];
		TesseraChunkLoad *chunk = &load->chunks[candidate->chunk];

		CHECK_FOR_INTERRUPTS();
		if (!candidate->read || !candidate->sure)
			continue;
		/* the true size takes the estimate's place (S88) */
		chunk->bytes = candidate->size;
		load->unreported = true;
		if (candidate->npoints == 0 && candidate->size <= load->max_chunk_size)
		{
			chunk->isolated = candidate->isolate;
			continue;
		}
		if (!act_on(round, candidate))
		{
			failures++;
			continue;
		}
		/* its pause is left to it: until the new chunk map is here it must not be split again */
		chunk->attempts = 0;
		changed = true;
	}
	return changed;
}
