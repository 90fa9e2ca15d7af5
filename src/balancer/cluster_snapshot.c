/*
 * cluster_snapshot.c
 *	  What the balancer's policy is told; see cluster_snapshot.h.
 *
 * Chunks and shards come from the routing image, the rest from the catalog in a few statements; estimates, of which there may be a million, in
 * portions. Nothing is locked; what has changed meanwhile is found out when an action begins. What is read of one group is read in a subtransaction:
 * an error leaves that group out, not the others.
 *
 * Estimates: one stands for the keys from its min to the next one's. Chunks that begin in there share its bytes alike; an estimate that begins inside
 * of a chunk, which has been merged, adds to that chunk. A chunk before the first estimate has none: it counts as empty, and is not merged.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "balance/move_reasons.h"
#include "balancer/balancer_settings.h"
#include "balancer/cluster_snapshot.h"
#include "catalog/bound_array.h"
#include "common/spi_row.h"
#include "common/subtransaction.h"
#include "config/membership.h"

#define GROWING_S 900.0			/* so long after a move for it was asked for does an end of the key space count as one where rows come in */
#define GROWING_CHUNKS 2
#define FETCH_ROWS 10000
/* Smaller schemas are not moved for balance. */
#define WORTH_BYTES (1024.0 * 1024)

/* Small: a group may have a million. */
typedef struct Estimate
{
	int32		first;			/* the first chunk that begins at or above its min */
	bool		inside;			/* its min is inside of the chunk before */
	bool		settled;		/* long enough there for its chunk to be merged */
	double		bytes;
	double		load;
} Estimate;

void *
tessera_policy_alloc(size_t size)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, Max(size, 1), MCXT_ALLOC_HUGE);
}

static void *
allocate(Size size)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, Max(size, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

int
tessera_snapshot_shard(const TesseraClusterSnapshot *snapshot, int32 node_id)
{
	int			low = 0;
	int			high = (int) snapshot->policy.nshards - 1;

	while (low <= high)
	{
		int			middle = (low + high) / 2;

		if (snapshot->shards[middle].node_id == node_id)
			return middle;
		if (snapshot->shards[middle].node_id < node_id)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return -1;
}

int
tessera_snapshot_group(const TesseraClusterSnapshot *snapshot, const pg_uuid_t *group_id)
{
	const TesseraGroup *group = tessera_routing_group_by_id(snapshot->routing, group_id);

	return group != NULL ? group->index : -1;
}

/* The same of a group that could be read so far; -1: it is not there, or it could not. */
static int
readable_group(const TesseraClusterSnapshot *snapshot, const pg_uuid_t *group_id)
{
	int			index = tessera_snapshot_group(snapshot, group_id);

	return index >= 0 && snapshot->groups[index].unreadable == NULL ? index : -1;
}

void
tessera_snapshot_range(const TesseraClusterSnapshot *snapshot, int group, size_t first, size_t count, TesseraBound **min, TesseraBound **max)
{
	const TesseraSnapshotGroup *here = &snapshot->groups[group];
	TesseraChunk chunk;

	tessera_routing_chunk(snapshot->routing, here->group, (int) first, &chunk);
	*min = tessera_key_to_bound(here->ks, &chunk.min);
	tessera_routing_chunk(snapshot->routing, here->group, (int) (first + count - 1), &chunk);
	*max = tessera_key_to_bound(here->ks, &chunk.max);
}

const double *
tessera_snapshot_bytes(TesseraClusterSnapshot *snapshot)
{
	if (snapshot->bytes != NULL)
		return snapshot->bytes;
	snapshot->bytes = allocate(sizeof(double) * snapshot->policy.nshards);
	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
		for (size_t j = 0; j < snapshot->policy.groups[i].nchunks; j++)
			snapshot->bytes[snapshot->groups[i].chunks[j].shard] += snapshot->groups[i].chunks[j].bytes;
	return snapshot->bytes;
}


/* What may fail of one group */

typedef struct GroupStep
{
	TesseraClusterSnapshot *snapshot;
	int			index;
	void		(*step) (TesseraClusterSnapshot *snapshot, int index, const void *arg);
	const void *arg;
} GroupStep;

static void
take_step(void *arg)
{
	GroupStep  *step = arg;

	step->step(step->snapshot, step->index, step->arg);
}

/* A step about one group. After an error that says something of it the group is left out. */
static void
try_group(TesseraClusterSnapshot *snapshot, int index, void (*step) (TesseraClusterSnapshot *snapshot, int index, const void *arg), const void *arg)
{
	GroupStep	attempt = {snapshot, index, step, arg};
	char	   *reason = tessera_try_one(take_step, &attempt);

	if (reason == NULL)
		return;
	snapshot->policy_groups[index].nchunks = 0;
	snapshot->groups[index].unreadable = MemoryContextStrdup(snapshot->context, reason);
}


/* Shards */

static void
read_shards(TesseraClusterSnapshot *snapshot)
{
	const TesseraRouting *routing = snapshot->routing;
	TesseraSpi	spi;
	uint64		n;

	snapshot->shards = allocate(sizeof(TesseraPolicyShard) * routing->nnodes);
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		TesseraPolicyShard *shard = &snapshot->shards[snapshot->policy.nshards];

		if (!node->is_shard)
			continue;
		*shard = (TesseraPolicyShard) {.node_id = node->node_id,.weight = 1,.draining = node->draining,
			.usable = tessera_balancer_node_usable(node->node_id),.room = tessera_max_moves_per_shard()};
		snapshot->policy.nshards++;
	}
	snapshot->policy.shards = snapshot->shards;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT node_id, weight FROM tessera.shard_weight", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			shard = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 1)));

		if (shard >= 0)
			snapshot->shards[shard].weight = DatumGetFloat8(spi_row_value(i, 2));
	}
	n = tessera_spi_run("SELECT n, count(*) FROM tessera.migration AS m, LATERAL (VALUES (m.donor), (m.recipient)) AS v (n) WHERE m.state = 'running'"
						" GROUP BY n", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			shard = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 1)));

		if (shard >= 0)
			snapshot->shards[shard].room = Max(snapshot->shards[shard].room - (int) DatumGetInt64(spi_row_value(i, 2)), 0);
	}
	tessera_spi_end(&spi);
}


/* Groups */

static void
read_chunks(TesseraClusterSnapshot *snapshot, TesseraSnapshotGroup *here, TesseraPolicyGroup *policy)
{
	policy->nchunks = tessera_routing_nchunks(snapshot->routing, here->group);
	here->chunks = allocate(sizeof(TesseraPolicyChunk) * policy->nchunks);
	policy->chunks = here->chunks;
	for (size_t i = 0; i < policy->nchunks; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(snapshot->routing, here->group, (int) i, &chunk);
		here->chunks[i].shard = tessera_snapshot_shard(snapshot, chunk.node_id);
		here->chunks[i].zone = -1;
		here->chunks[i].jumbo = chunk.jumbo;
		/* an owner that is no shard any more: nobody can do anything about it here */
		if (here->chunks[i].shard < 0)
		{
			here->chunks[i].shard = 0;
			here->chunks[i].busy = true;
		}
	}
}

/* By key. Those inside of one chunk come in any order: all of them, or all but one, add to it. */
static int
compare_estimates(const void *a, const void *b)
{
	const Estimate *x = a;
	const Estimate *y = b;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return (int) y->inside - (int) x->inside;
}

static void
place_estimate(const TesseraClusterSnapshot *snapshot, const TesseraSnapshotGroup *here, const TesseraBound *min, Estimate *estimate)
{
	TesseraKeyBound key;
	TesseraChunk chunk;

	tessera_key_from_bound(here->ks, min, &key);
	estimate->first = tessera_routing_find_chunk(snapshot->routing, here->group, &key);
	tessera_routing_chunk(snapshot->routing, here->group, estimate->first, &chunk);
	estimate->inside = tessera_key_compare(here->ks, &chunk.min, &key) != 0;
	estimate->first += estimate->inside;
}

static Estimate *
read_estimates(const TesseraClusterSnapshot *snapshot, const TesseraSnapshotGroup *here, size_t nchunks, size_t *n)
{
	size_t		room = Max(nchunks, 16);
	Estimate   *estimates = allocate(sizeof(Estimate) * room);
	TesseraSpi	spi;
	Portal		portal;

	*n = 0;
	tessera_spi_begin(&spi);
	portal = SPI_cursor_open_with_args(NULL, "SELECT min, bytes, load, since <= clock_timestamp() - make_interval(secs => $2)"
									   " FROM tessera.chunk_estimate WHERE group_id = $1", 2, (Oid[]) {UUIDOID, FLOAT8OID},
									   (Datum[]) {UUIDPGetDatum(&here->group->group_id), Float8GetDatum(tessera_merge_after_s())}, NULL, true, 0);
	for (;;)
	{
		MemoryContext rows;

		SPI_cursor_fetch(portal, true, FETCH_ROWS);
		if (SPI_processed == 0)
			break;
		rows = AllocSetContextCreate(CurrentMemoryContext, "tessera estimates", ALLOCSET_DEFAULT_SIZES);
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			MemoryContext spi_context = MemoryContextSwitchTo(rows);

			if (*n == room)
				estimates = repalloc_huge(estimates, sizeof(Estimate) * (room *= 2));
			place_estimate(snapshot, here, DatumGetTesseraBoundP(spi_row_value(i, 1)), &estimates[*n]);
			estimates[*n].bytes = (double) DatumGetInt64(spi_row_value(i, 2));
			estimates[*n].load = DatumGetFloat8(spi_row_value(i, 3));
			estimates[(*n)++].settled = DatumGetBool(spi_row_value(i, 4));
			MemoryContextSwitchTo(spi_context);
		}
		MemoryContextDelete(rows);
		SPI_freetuptable(SPI_tuptable);
		CHECK_FOR_INTERRUPTS();
	}
	SPI_cursor_close(portal);
	tessera_spi_end(&spi);
	qsort(estimates, *n, sizeof(Estimate), compare_estimates);
	return estimates;
}

static void
spread_estimates(const TesseraClusterSnapshot *snapshot, const TesseraSnapshotGroup *here, size_t nchunks)
{
	size_t		n;
	Estimate   *estimates;

	if (nchunks == 0)
		return;
	estimates = read_estimates(snapshot, here, nchunks, &n);
	for (size_t i = 0; i < n; i++)
	{
		size_t		first = estimates[i].first;
		size_t		end = i + 1 < n ? (size_t) estimates[i + 1].first : nchunks;

		if (end == first)
			first = end = Max(first, 1) - 1;	/* it begins inside of this chunk, and so does the next one */
		if (end - first == 1)
			here->chunks[first].mergeable = estimates[i].settled;	/* find_mergeable looks further */
		for (size_t j = first; j < Max(end, first + 1); j++)
		{
			here->chunks[j].measured = true;
			here->chunks[j].bytes += estimates[i].bytes / Max(end - first, 1);
			here->chunks[j].load += estimates[i].load / Max(end - first, 1);
		}
	}
	pfree(estimates);
}

static void
read_group(TesseraClusterSnapshot *snapshot, int index, const void *arg)
{
	TesseraSnapshotGroup *here = &snapshot->groups[index];

	here->ks = tessera_group_keyspace(snapshot->routing, here->group);
	read_chunks(snapshot, here, &snapshot->policy_groups[index]);
	spread_estimates(snapshot, here, snapshot->policy_groups[index].nchunks);
}

static void
read_groups(TesseraClusterSnapshot *snapshot)
{
	const TesseraRouting *routing = snapshot->routing;
	TesseraPolicyGroup *groups = allocate(sizeof(TesseraPolicyGroup) * routing->ngroups);
	TesseraSpi	spi;
	uint64		n;

	snapshot->groups = allocate(sizeof(TesseraSnapshotGroup) * routing->ngroups);
	snapshot->policy.ngroups = routing->ngroups;
	snapshot->policy.groups = snapshot->policy_groups = groups;
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group >= 0 && snapshot->groups[table->group].table == NULL)
			snapshot->groups[table->group].table = tessera_routing_root(routing, table);
	}
	for (int i = 0; i < routing->ngroups; i++)
	{
		snapshot->groups[i].group = tessera_routing_group(routing, i);
		CHECK_FOR_INTERRUPTS();
		try_group(snapshot, i, read_group, NULL);
	}

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT group_id, balancing AND allow_migrations, max_chunk_size, allow_migrations FROM tessera.table_group", SPI_OK_SELECT,
						0,
						NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			index = readable_group(snapshot, DatumGetUUIDP(spi_row_value(i, 1)));

		if (index < 0)
			continue;
		groups[index].balancing = DatumGetBool(spi_row_value(i, 2)) && snapshot->groups[index].table != NULL;
		groups[index].max_chunk_bytes = (double) DatumGetInt64(spi_row_value(i, 3));
		if (!DatumGetBool(spi_row_value(i, 4)) || snapshot->groups[index].table == NULL)
			for (size_t j = 0; j < groups[index].nchunks; j++)
				snapshot->groups[index].chunks[j].busy = true;
	}
	tessera_spi_end(&spi);
}

/* The chunk that begins there has moved a short while ago. */
static void
forbid_merge(TesseraClusterSnapshot *snapshot, int index, const void *arg)
{
	TesseraSnapshotGroup *here = &snapshot->groups[index];
	TesseraKeyBound min;

	tessera_key_from_bound(here->ks, arg, &min);
	here->chunks[tessera_routing_find_chunk(snapshot->routing, here->group, &min)].mergeable = false;
}

/* Merged are chunks that are far below the size at which they are split, see little use, and have been here for a while. */
static void
find_mergeable(TesseraClusterSnapshot *snapshot)
{
	TesseraSpi	spi;
	uint64		n;

	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
		for (size_t j = 0; j < snapshot->policy.groups[i].nchunks; j++)
		{
			TesseraPolicyChunk *chunk = &snapshot->groups[i].chunks[j];

			chunk->mergeable = chunk->mergeable && !chunk->jumbo && chunk->load < 0.01 &&
				chunk->bytes < snapshot->policy.groups[i].max_chunk_bytes / 4;
		}

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT group_id, min FROM tessera.chunk WHERE moved > clock_timestamp() - make_interval(secs => $1)", SPI_OK_SELECT, 1,
						(Oid[]) {FLOAT8OID}, (Datum[]) {Float8GetDatum(tessera_merge_after_s())}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			index = readable_group(snapshot, DatumGetUUIDP(spi_row_value(i, 1)));

		if (index >= 0)
			try_group(snapshot, index, forbid_merge, DatumGetTesseraBoundP(spi_row_value(i, 2)));
	}
	tessera_spi_end(&spi);
}


/* Zones, and what is under way */

typedef struct Visit
{
	const TesseraBound *min;
	const TesseraBound *max;
	void		(*visit) (TesseraPolicyChunk *chunk, bool inside, int value);
	int			value;
} Visit;

static void
visit_chunks(TesseraClusterSnapshot *snapshot, int index, const void *arg)
{
	const Visit *range = arg;
	TesseraSnapshotGroup *here = &snapshot->groups[index];
	TesseraKeyBound low;
	TesseraKeyBound high;

	tessera_key_from_bound(here->ks, range->min, &low);
	tessera_key_from_bound(here->ks, range->max, &high);
	for (size_t i = tessera_routing_find_chunk(snapshot->routing, here->group, &low); i < snapshot->policy.groups[index].nchunks; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(snapshot->routing, here->group, (int) i, &chunk);
		if (tessera_key_compare(here->ks, &chunk.min, &high) >= 0)
			return;
		range->visit(&here->chunks[i],
					 tessera_key_compare(here->ks, &low, &chunk.min) <= 0 && tessera_key_compare(here->ks, &chunk.max, &high) <= 0, range->value);
	}
}

/* What a row says of a range of a group: each chunk that it touches is handed to visit; inside: no part of the chunk lies outside of the range. */
static void
visit_range(TesseraClusterSnapshot *snapshot, const pg_uuid_t *group_id, const TesseraBound *min, const TesseraBound *max,
			void (*visit) (TesseraPolicyChunk *chunk, bool inside, int value), int value)
{
	int			index = readable_group(snapshot, group_id);
	Visit		range = {min, max, visit, value};

	if (index >= 0)
		try_group(snapshot, index, visit_chunks, &range);
}

/* A chunk across a border is split before the policy is asked again; until then it is nobody's to move. */
static void
put_into_zone(TesseraPolicyChunk *chunk, bool inside, int zone)
{
	if (!inside)
		chunk->busy = true;
	chunk->zone = zone;
}

static int
zone_of_name(TesseraClusterSnapshot *snapshot, const char *name)
{
	for (size_t i = 0; i < snapshot->policy.nzones; i++)
		if (strcmp(snapshot->zones[i], name) == 0)
			return (int) i;
	return -1;
}

static void
read_zones(TesseraClusterSnapshot *snapshot)
{
	MemoryContext caller = CurrentMemoryContext;
	bool	   *members;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT zone FROM tessera.zone_shard UNION SELECT zone FROM tessera.zone_range ORDER BY zone", SPI_OK_SELECT, 0, NULL, NULL,
						NULL);
	snapshot->zones = MemoryContextAlloc(caller, sizeof(char *) * Max(n, 1));
	members = MemoryContextAllocZero(caller, Max(n * snapshot->policy.nshards, 1));
	for (uint64 i = 0; i < n; i++)
		snapshot->zones[i] = MemoryContextStrdup(caller, spi_row_text(i, 1));
	snapshot->policy.nzones = n;
	snapshot->policy.zone_shards = members;
	n = tessera_spi_run("SELECT zone, node_id FROM tessera.zone_shard", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			shard = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 2)));
		int			zone = zone_of_name(snapshot, spi_row_text(i, 1));

		/* a zone may have been made since the statement before */
		if (shard >= 0 && zone >= 0)
			members[zone * snapshot->policy.nshards + shard] = true;
	}
	n = tessera_spi_run("SELECT group_id, min, max, zone FROM tessera.zone_range", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			zone = zone_of_name(snapshot, spi_row_text(i, 4));

		if (zone >= 0)
			visit_range(snapshot, DatumGetUUIDP(spi_row_value(i, 1)), DatumGetTesseraBoundP(spi_row_value(i, 2)),
						DatumGetTesseraBoundP(spi_row_value(i, 3)), put_into_zone, zone);
	}
	tessera_spi_end(&spi);
}

/* It counts for the shard that it is to come to, if that is known. */
static void
make_busy(TesseraPolicyChunk *chunk, bool inside, int shard)
{
	chunk->busy = true;
	if (shard >= 0)
		chunk->shard = shard;
}

static void
read_busy(TesseraClusterSnapshot *snapshot)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT r.group_id, r.min, r.max, m.recipient FROM tessera.migration AS m, unnest(m.ranges) AS r WHERE m.state = 'running'"
						" UNION ALL SELECT a.group_id, r.min, r.max, CASE a.state WHEN 'failed' THEN 0 ELSE coalesce(a.recipient, 0) END"
						"  FROM tessera.balancer_action AS a,"
						"  unnest(coalesce(a.ranges, ARRAY[(a.group_id, NULL, a.min, a.max)::tessera.operation_range])) AS r"
						"  WHERE a.schema_name IS NULL AND a.kind <> 'read'"
						"   AND (a.state IN ('queued', 'running') AND a.kind = 'move' OR a.state = 'failed' AND a.not_before > clock_timestamp())",
						SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
		visit_range(snapshot, DatumGetUUIDP(spi_row_value(i, 1)), DatumGetTesseraBoundP(spi_row_value(i, 2)),
					DatumGetTesseraBoundP(spi_row_value(i, 3)), make_busy, tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 4))));
	tessera_spi_end(&spi);
}

/*
 * Rows come in at this end of a group's key space: the piece that was moved for them stays where it is, and so does the one that they fill now.
 */
static void
keep_growing_end(TesseraClusterSnapshot *snapshot, int index, const void *arg)
{
	const Visit *range = arg;
	TesseraSnapshotGroup *here = &snapshot->groups[index];
	size_t		n = snapshot->policy.groups[index].nchunks;
	TesseraKeyBound low;
	TesseraKeyBound high;

	tessera_key_from_bound(here->ks, range->min, &low);
	tessera_key_from_bound(here->ks, range->max, &high);
	for (size_t i = 0; i < Min(n, GROWING_CHUNKS); i++)
	{
		if (high.elements[0].kind == TESSERA_MAXKEY)
			here->chunks[n - 1 - i].pinned = true;
		if (low.elements[0].kind == TESSERA_MINKEY)
			here->chunks[i].pinned = true;
	}
}

static void
keep_growing_ends(TesseraClusterSnapshot *snapshot)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT group_id, min, max FROM tessera.balancer_action WHERE reason = '" TESSERA_REASON_TOP "'"
						" AND asked > clock_timestamp() - make_interval(secs => $1)", SPI_OK_SELECT, 1, (Oid[]) {FLOAT8OID},
						(Datum[]) {Float8GetDatum(GROWING_S)}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			index = readable_group(snapshot, DatumGetUUIDP(spi_row_value(i, 1)));
		Visit		end = {.min = DatumGetTesseraBoundP(spi_row_value(i, 2)),.max = DatumGetTesseraBoundP(spi_row_value(i, 3))};

		if (index >= 0)
			try_group(snapshot, index, keep_growing_end, &end);
	}
	tessera_spi_end(&spi);
}


/* Placed schemas: what their tables take, by the statistics that this node has of them */

static int
compare_names(const void *a, const void *b)
{
	return strcmp(((const TesseraPlacedSchema *) a)->name, ((const TesseraPlacedSchema *) b)->name);
}

static TesseraPlacedSchema *
find_placed(const TesseraClusterSnapshot *snapshot, const char *name)
{
	TesseraPlacedSchema wanted = {.name = unconstify(char *, name)};

	return bsearch(&wanted, snapshot->placed, snapshot->nplaced, sizeof(wanted), compare_names);
}

const TesseraPlacedSchema *
tessera_snapshot_placed(const TesseraClusterSnapshot *snapshot, const char *name)
{
	return find_placed(snapshot, name);
}

/* All schemas that have a shard. Under way: they count for the shard that they are to come to, if that is known. */
static void
read_placed(TesseraClusterSnapshot *snapshot)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	/* what its new shard says of a table that has just come is what it said before: then the size is what any shard says, the old one above all */
	n = tessera_spi_run("WITH moved AS (SELECT r.group_id, max(m.finished) AS at FROM tessera.migration AS m, unnest(m.ranges) AS r"
						"  WHERE m.schema_name IS NOT NULL AND m.state = 'committed' GROUP BY 1)"
						" SELECT p.schema_name, p.node_id, coalesce(sum(b.bytes), 0)::float8 FROM tessera.schema_placement AS p"
						" LEFT JOIN moved AS v ON v.group_id = p.group_id"
						" LEFT JOIN tessera.cluster_table AS t ON t.schema_name = p.schema_name AND t.group_id IS NULL"
						" LEFT JOIN LATERAL (SELECT coalesce(max(s.bytes) FILTER (WHERE s.node_id = p.node_id AND s.collected > coalesce(v.at,"
						"  '-infinity')), max(s.bytes)) AS bytes FROM tessera.table_statistics AS s WHERE s.table_id = t.table_id) AS b ON true"
						" GROUP BY 1, 2", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	snapshot->placed = MemoryContextAllocZero(caller, sizeof(TesseraPlacedSchema) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
		snapshot->placed[i] = (TesseraPlacedSchema) {.name = MemoryContextStrdup(caller, spi_row_text(i, 1)),
			.owner = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 2))),.bytes = DatumGetFloat8(spi_row_value(i, 3))};
	snapshot->nplaced = (int) n;
	qsort(snapshot->placed, n, sizeof(TesseraPlacedSchema), compare_names);
	for (int i = 0; i < snapshot->nplaced; i++)
	{
		snapshot->placed[i].tied_to = i;
		snapshot->placed[i].shard = snapshot->placed[i].owner;
	}
	n = tessera_spi_run("SELECT p.schema_name, m.recipient FROM tessera.migration AS m, unnest(m.ranges) AS r JOIN tessera.schema_placement AS p"
						"  USING (group_id) WHERE m.state = 'running'"
						" UNION ALL SELECT schema_name, coalesce(recipient, 0) FROM tessera.balancer_action"
						"  WHERE schema_name IS NOT NULL AND state IN ('queued', 'running')"
						" UNION ALL SELECT schema_name, 0 FROM tessera.balancer_action"
						"  WHERE schema_name IS NOT NULL AND state = 'failed' AND not_before > clock_timestamp()"
						" UNION ALL SELECT p.schema_name, 0 FROM tessera.schema_placement AS p JOIN tessera.table_group AS g USING (group_id)"
						"  WHERE NOT g.allow_migrations"
						" UNION ALL SELECT DISTINCT schema_name, 0 FROM tessera.cluster_table WHERE replicated", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		TesseraPlacedSchema *placed = find_placed(snapshot, spi_row_text(i, 1));
		int			shard = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 2)));

		if (placed == NULL)
			continue;
		placed->busy = true;
		if (shard >= 0)
			placed->shard = shard;
	}
	tessera_spi_end(&spi);
}

/* The first of those that this one is tied to, as far as known. */
static int
first_tied(const TesseraClusterSnapshot *snapshot, int number)
{
	while (snapshot->placed[number].tied_to != number)
		number = snapshot->placed[number].tied_to;
	return number;
}

static void
read_ties(TesseraClusterSnapshot *snapshot)
{
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT a, b FROM tessera_internal.schema_ties() WHERE a <> b", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		TesseraPlacedSchema *a = find_placed(snapshot, spi_row_text(i, 1));
		TesseraPlacedSchema *b = find_placed(snapshot, spi_row_text(i, 2));
		int			first;
		int			second;

		if (a == NULL || b == NULL)
			continue;
		first = first_tied(snapshot, (int) (a - snapshot->placed));
		second = first_tied(snapshot, (int) (b - snapshot->placed));
		snapshot->placed[Max(first, second)].tied_to = Min(first, second);
	}
	tessera_spi_end(&spi);
	for (int i = 0; i < snapshot->nplaced; i++)
		snapshot->placed[i].tied_to = first_tied(snapshot, i);
}

/*
 * Those that are tied as one. For balance only such are moved as are worth it: the first move of each waits for the cluster's DDL, and each one ends
 * with its sequences following.
 */
static void
read_schemas(TesseraClusterSnapshot *snapshot)
{
	int			n = 0;

	read_placed(snapshot);
	read_ties(snapshot);
	snapshot->policy_schemas = allocate(sizeof(TesseraPolicySchema) * snapshot->nplaced);
	snapshot->schemas = allocate(sizeof(TesseraSnapshotSchema) * snapshot->nplaced);
	/* the first of several comes first */
	for (int i = 0; i < snapshot->nplaced; i++)
	{
		TesseraPlacedSchema *placed = &snapshot->placed[i];
		TesseraPlacedSchema *first = &snapshot->placed[placed->tied_to];
		TesseraPolicySchema *schema;
		TesseraSnapshotSchema *here;

		if (placed == first)
			placed->schema = first->shard < 0 ? -1 : n++;
		placed->schema = first->schema;
		if (placed->schema < 0)
			continue;
		schema = &snapshot->policy_schemas[placed->schema];
		here = &snapshot->schemas[placed->schema];
		if (placed == first)
			here->name = placed->name;
		here->names = here->names == NULL ? placed->name : psprintf("%s, %s", here->names, placed->name);
		schema->shard = first->shard;
		schema->bytes += placed->bytes;
		schema->busy |= placed->busy;
		schema->movable = schema->bytes >= WORTH_BYTES || snapshot->shards[schema->shard].draining;
	}
	snapshot->policy.nschemas = n;
	snapshot->policy.schemas = snapshot->policy_schemas;
}

TesseraClusterSnapshot *
tessera_cluster_snapshot(void)
{
	TesseraClusterSnapshot *snapshot = allocate(sizeof(TesseraClusterSnapshot));

	snapshot->context = CurrentMemoryContext;
	snapshot->routing = tessera_require_cluster();
	tessera_balancer_policy_settings(&snapshot->policy.settings);
	read_shards(snapshot);
	read_groups(snapshot);
	find_mergeable(snapshot);
	read_zones(snapshot);
	read_busy(snapshot);
	keep_growing_ends(snapshot);
	read_schemas(snapshot);
	return snapshot;
}
