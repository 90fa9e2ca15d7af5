/*
 * chunk_map.c
 *	  The sorted array of a group's chunks: made from catalog rows, patched from an older one, searched.
 *
 * A map keeps the lower bounds alone (a chunk ends where the next begins) and each chunk's owner and version. A full load reads all rows of the
 * group; a patch reads those of a higher version than the old map and puts them over it: what they overlap is gone (the catalog keeps no tombstones;
 * split, merge and move give every piece a new version). Rows that do not cover the key space exactly make an unsound map: look-ups in it error,
 * statements on other groups go on.
 *
 * Memory: working arrays in the caller's context, which the caller resets; the map in the context it names. Locks: AccessShareLock on the catalog
 * table while it is read.
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

#include "catalog/relation.h"
#include "routing/image.h"

typedef struct Row
{
	TesseraKeyBound min;
	TesseraKeyBound max;
	TesseraChunkOwner owner;
} Row;

typedef struct Rows
{
	Size		n;
	Size		room;
	Row		   *rows;
} Rows;

/* The map being made. */
typedef struct Builder
{
	TesseraKeySpace *ks;
	int32		n;
	int32		room;
	TesseraChunkOwner *owners;
	TesseraKeyDatum *mins;
	char	   *bytes;			/* by-reference bytes, offsets from here */
	Size		nbytes;
	Size		bytes_room;
	bool		sound;
} Builder;


/* Reading rows */

static void
add_row(Rows *rows, TesseraKeySpace *ks, HeapTuple tuple, TupleDesc desc)
{
	Row		   *row;
	bool		null;

	if (rows->n == rows->room)
	{
		rows->room = Max(64, rows->room * 2);
		rows->rows = rows->rows == NULL ? palloc(rows->room * sizeof(Row)) : repalloc_huge(rows->rows, rows->room * sizeof(Row));
	}
	row = &rows->rows[rows->n++];
	tessera_key_from_bound(ks, DatumGetTesseraBoundP(heap_getattr(tuple, Anum_chunk_min, desc, &null)), &row->min);
	tessera_key_from_bound(ks, DatumGetTesseraBoundP(heap_getattr(tuple, Anum_chunk_max, desc, &null)), &row->max);
	row->owner.major = DatumGetInt64(heap_getattr(tuple, Anum_chunk_major, desc, &null));
	row->owner.minor = DatumGetInt64(heap_getattr(tuple, Anum_chunk_minor, desc, &null));
	row->owner.node_id = DatumGetInt32(heap_getattr(tuple, Anum_chunk_node_id, desc, &null));
	row->owner.jumbo = DatumGetBool(heap_getattr(tuple, Anum_chunk_jumbo, desc, &null));
}

static void
scan_rows(Rows *rows, TesseraKeySpace *ks, TesseraCatalogRelation index, int nkeys, ScanKey keys, Snapshot snapshot)
{
	Relation	rel = tessera_catalog_open(TESSERA_CHUNK, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, tessera_catalog_relid(index), true, snapshot, nkeys, keys);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		add_row(rows, ks, tuple, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* All rows of the group. */
static void
read_rows(Rows *rows, const pg_uuid_t *group_id, TesseraKeySpace *ks, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	scan_rows(rows, ks, TESSERA_CHUNK_KEY, 1, &key, snapshot);
}

/* Rows above a version: of its major with a higher minor, then of higher majors. */
static void
read_rows_above(Rows *rows, const pg_uuid_t *group_id, TesseraKeySpace *ks, int64 major, int64 minor, Snapshot snapshot)
{
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	ScanKeyInit(&keys[1], Anum_chunk_major, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(major));
	ScanKeyInit(&keys[2], Anum_chunk_minor, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(minor));
	scan_rows(rows, ks, TESSERA_CHUNK_VERSION, 3, keys, snapshot);

	/* a scan changes its keys' attribute numbers */
	ScanKeyInit(&keys[0], Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	ScanKeyInit(&keys[1], Anum_chunk_major, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(major));
	scan_rows(rows, ks, TESSERA_CHUNK_VERSION, 2, keys, snapshot);
}

static int
compare_rows(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, &((const Row *) a)->min, &((const Row *) b)->min);
}

/* Catalog order is not the keys' order for every type. */
static void
sort_rows(Rows *rows, TesseraKeySpace *ks)
{
	for (Size i = 1; i < rows->n; i++)
		if (compare_rows(&rows->rows[i - 1], &rows->rows[i], ks) > 0)
		{
			qsort_arg(rows->rows, rows->n, sizeof(Row), compare_rows, ks);
			return;
		}
}


/* Making a map */

static void
builder_reserve_bytes(Builder *builder, Size more)
{
	if (builder->nbytes + more <= builder->bytes_room)
		return;
	builder->bytes_room = Max(builder->bytes_room * 2, builder->nbytes + more + 1024);
	builder->bytes = builder->bytes == NULL ? MemoryContextAllocHuge(CurrentMemoryContext, builder->bytes_room) :
		repalloc_huge(builder->bytes, builder->bytes_room);
}

/* Makes room for n chunks in all. */
static void
builder_reserve(Builder *builder, Size n)
{
	Size		element = builder->ks->nelements * sizeof(TesseraKeyDatum);

	if (n <= builder->room)
		return;
	if (n > INT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a table group has too many chunks")));
	builder->room = n;
	if (builder->owners == NULL)
	{
		builder->owners = MemoryContextAllocHuge(CurrentMemoryContext, n * sizeof(TesseraChunkOwner));
		builder->mins = MemoryContextAllocHuge(CurrentMemoryContext, n * element);
	}
	else
	{
		builder->owners = repalloc_huge(builder->owners, n * sizeof(TesseraChunkOwner));
		builder->mins = repalloc_huge(builder->mins, n * element);
	}
}

static void
builder_add(Builder *builder, const TesseraKeyBound *min, const TesseraChunkOwner *owner)
{
	int			nelements = builder->ks->nelements;
	TesseraKeyBound flat;

	if (builder->n == builder->room)
		builder_reserve(builder, Max(64, (Size) builder->room * 2));
	builder_reserve_bytes(builder, tessera_key_flat_size(builder->ks, min));
	builder->nbytes = tessera_key_flatten(builder->ks, min, &flat, builder->bytes, builder->nbytes);
	memcpy(builder->mins + (Size) builder->n * nelements, flat.elements, nelements * sizeof(TesseraKeyDatum));
	builder->owners[builder->n++] = *owner;
}

/* True if the values of bounds are kept in place, with no bytes elsewhere. */
static bool
all_by_value(TesseraKeySpace *ks)
{
	for (int i = 0; i < ks->nelements; i++)
		if (!TESSERA_KEY_ELEMENT_COLUMN(ks, i)->typbyval)
			return false;
	return true;
}

/* Copies chunks first to last - 1 of an old map. */
static void
builder_copy(Builder *builder, const TesseraChunkMap *old, int32 first, int32 last)
{
	TesseraKeySpace *ks = builder->ks;
	TesseraKeyBound min;

	if (first < last && all_by_value(ks))
	{
		builder_reserve(builder, (Size) builder->n + last - first);
		memcpy(builder->owners + builder->n, TESSERA_MAP_OWNERS(old) + first, (Size) (last - first) * sizeof(TesseraChunkOwner));
		memcpy(builder->mins + (Size) builder->n * ks->nelements, TESSERA_MAP_MIN(old, first),
			   (Size) (last - first) * ks->nelements * sizeof(TesseraKeyDatum));
		builder->n += last - first;
		return;
	}
	for (int32 i = first; i < last; i++)
	{
		tessera_key_unflatten(ks, TESSERA_MAP_MIN(old, i), (const char *) old, &min);
		builder_add(builder, &min, &TESSERA_MAP_OWNERS(old)[i]);
	}
}

static void
set_extreme(TesseraKeySpace *ks, TesseraBoundKind kind, TesseraKeyBound *bound)
{
	memset(bound, 0, sizeof(*bound));
	for (int i = 0; i < ks->nelements; i++)
		bound->elements[i].kind = kind;
}

static bool
is_maxkey(TesseraKeySpace *ks, const TesseraKeyBound *bound)
{
	TesseraKeyBound end;

	set_extreme(ks, TESSERA_MAXKEY, &end);
	return tessera_key_compare(ks, bound, &end) == 0;
}

/* First chunk of the map whose min is not below the position; nchunks if there is none. *exact: its min is the position. */
static int32
first_from(const TesseraChunkMap *map, TesseraKeySpace *ks, const TesseraKeyBound *position, bool *exact)
{
	int32		low = 0;
	int32		high = map->nchunks;

	while (low < high)
	{
		int32		middle = low + (high - low) / 2;

		if (tessera_key_compare_flat(ks, TESSERA_MAP_MIN(map, middle), (const char *) map, position) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*exact = low < map->nchunks && tessera_key_compare_flat(ks, TESSERA_MAP_MIN(map, low), (const char *) map, position) == 0;
	return low;
}

/* Adds what the old map has from position to limit; moves position there. A chunk that only one of them cuts: not a patch that we understand. */
static void
add_old(Builder *builder, const TesseraChunkMap *old, TesseraKeyBound *position, const TesseraKeyBound *limit)
{
	TesseraKeySpace *ks = builder->ks;
	int32		first;
	int32		last;
	bool		begins;
	bool		ends;

	if (tessera_key_compare(ks, position, limit) >= 0)
		return;
	first = first_from(old, ks, position, &begins);
	last = first_from(old, ks, limit, &ends);
	if (last == old->nchunks)
		ends = is_maxkey(ks, limit);
	if (begins && ends)
		builder_copy(builder, old, first, last);
	else
		builder->sound = false;
	*position = *limit;
}

/* Lays rows (sorted), and between them chunks of the old map (NULL: none), end to end from MINKEY to MAXKEY. */
static void
lay_out(Builder *builder, const Rows *rows, const TesseraChunkMap *old)
{
	TesseraKeySpace *ks = builder->ks;
	TesseraKeyBound position;
	TesseraKeyBound end;

	builder->sound = true;
	set_extreme(ks, TESSERA_MINKEY, &position);
	set_extreme(ks, TESSERA_MAXKEY, &end);
	for (Size i = 0; i < rows->n; i++)
	{
		const Row  *row = &rows->rows[i];

		if (old != NULL)
			add_old(builder, old, &position, &row->min);
		if (tessera_key_compare(ks, &position, &row->min) != 0 || tessera_key_compare(ks, &row->min, &row->max) >= 0)
			builder->sound = false;
		builder_add(builder, &row->min, &row->owner);
		position = row->max;
	}
	if (old != NULL)
		add_old(builder, old, &position, &end);
	if (tessera_key_compare(ks, &position, &end) != 0)
		builder->sound = false;
}

static int
compare_versions(const void *a, const void *b)
{
	int32		x = ((const TesseraShardVersion *) a)->node_id;
	int32		y = ((const TesseraShardVersion *) b)->node_id;

	return (x > y) - (x < y);
}

/* Shard versions (S14): highest major of each owner; palloc'd, sorted. */
static TesseraShardVersion *
shard_versions(const Builder *builder, int32 *n)
{
	int32		room = 16;
	TesseraShardVersion *versions = palloc(room * sizeof(TesseraShardVersion));

	TesseraShardVersion *known = NULL;

	*n = 0;
	for (int32 i = 0; i < builder->n; i++)
	{
		TesseraShardVersion probe = {builder->owners[i].node_id, builder->owners[i].major};

		if (known == NULL || known->node_id != probe.node_id)
			known = bsearch(&probe, versions, *n, sizeof(TesseraShardVersion), compare_versions);
		if (known != NULL)
		{
			known->major = Max(known->major, probe.major);
			continue;
		}
		if (*n == room)
			versions = repalloc(versions, (room *= 2) * sizeof(TesseraShardVersion));
		versions[(*n)++] = probe;
		qsort(versions, *n, sizeof(TesseraShardVersion), compare_versions);
	}
	return versions;
}

static TesseraChunkMap *
builder_finish(Builder *builder, const TesseraGroup *group, MemoryContext result)
{
	int			nelements = builder->ks->nelements;
	int32		nversions;
	TesseraShardVersion *versions = shard_versions(builder, &nversions);
	Size		versions_offset = MAXALIGN(sizeof(TesseraChunkMap));
	Size		owners_offset = versions_offset + MAXALIGN(nversions * sizeof(TesseraShardVersion));
	Size		mins_offset = owners_offset + MAXALIGN(builder->n * sizeof(TesseraChunkOwner));
	Size		bytes_offset = mins_offset + MAXALIGN((Size) builder->n * nelements * sizeof(TesseraKeyDatum));
	Size		size = bytes_offset + builder->nbytes;
	TesseraChunkMap *map = MemoryContextAllocHuge(result, size);
	TesseraKeyDatum *mins;

	memset(map, 0, sizeof(*map));
	pg_atomic_init_u32(&map->references, 0);
	map->sound = builder->sound;
	map->group_id = group->group_id;
	map->epoch = group->epoch;
	map->group_major = group->group_major;
	map->group_minor = group->group_minor;
	map->nchunks = builder->n;
	map->nelements = nelements;
	map->nversions = nversions;
	map->versions_offset = versions_offset;
	map->owners_offset = owners_offset;
	map->mins_offset = mins_offset;
	map->size = size;
	memcpy(TESSERA_AT(map, versions_offset, char), versions, nversions * sizeof(TesseraShardVersion));
	if (builder->n > 0)
	{
		memcpy(TESSERA_AT(map, owners_offset, char), builder->owners, builder->n * sizeof(TesseraChunkOwner));
		memcpy(TESSERA_AT(map, mins_offset, char), builder->mins, (Size) builder->n * nelements * sizeof(TesseraKeyDatum));
	}
	if (builder->nbytes > 0)
		memcpy(TESSERA_AT(map, bytes_offset, char), builder->bytes, builder->nbytes);

	/* offsets of by-reference values count from the map's beginning */
	mins = TESSERA_AT(map, mins_offset, TesseraKeyDatum);
	for (Size i = 0; i < (Size) builder->n * nelements; i++)
		if (mins[i].kind == TESSERA_VALUE && !TESSERA_KEY_ELEMENT_COLUMN(builder->ks, i % nelements)->typbyval)
			mins[i].value += bytes_offset;
	return map;
}

TesseraChunkMap *
tessera_chunk_map_load(const TesseraGroup *group, TesseraKeySpace *ks, const TesseraChunkMap *old, Snapshot snapshot,
					   MemoryContext result)
{
	Rows		rows = {0};
	Builder		builder = {0};

	builder.ks = ks;
	if (old != NULL)
	{
		read_rows_above(&rows, &group->group_id, ks, old->group_major, old->group_minor, snapshot);
		sort_rows(&rows, ks);
		builder_reserve(&builder, old->nchunks + rows.n);
		lay_out(&builder, &rows, old);
		if (builder.sound)
			return builder_finish(&builder, group, result);
		/* not what was expected: read everything */
		memset(&rows, 0, sizeof(rows));
		memset(&builder, 0, sizeof(builder));
		builder.ks = ks;
	}
	read_rows(&rows, &group->group_id, ks, snapshot);
	sort_rows(&rows, ks);
	builder_reserve(&builder, rows.n);
	lay_out(&builder, &rows, NULL);
	return builder_finish(&builder, group, result);
}


/* Searching */

/* The group's map, fit for look-ups. */
static const TesseraChunkMap *
sound_map(const TesseraGroup *group)
{
	const TesseraChunkMap *map = tessera_group_map(group);

	if (map == NULL || !map->sound)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the chunks of a table group do not cover its keys"),
				 errhint("Run tessera.reload_routing() to fetch them from the config node.")));
	return map;
}

static int
find(const TesseraChunkMap *map, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	int			low = 0;
	int			high = map->nchunks - 1;

	/* the last chunk whose min is not above the position; the first one's is MINKEY */
	while (low < high)
	{
		int			middle = low + (high - low + 1) / 2;

		if (tessera_key_compare_flat(ks, TESSERA_MAP_MIN(map, middle), (const char *) map, position) <= 0)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

int32
tessera_routing_owner(const TesseraRouting *routing, const TesseraGroup *group, const Datum *key)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraKeyBound position;

	tessera_key_position(ks, key, &position);
	return TESSERA_MAP_OWNERS(map)[find(map, ks, &position)].node_id;
}

int
tessera_routing_nchunks(const TesseraRouting *routing, const TesseraGroup *group)
{
	const TesseraChunkMap *map = tessera_group_map(group);

	return map == NULL ? 0 : map->nchunks;
}

void
tessera_routing_chunk(const TesseraRouting *routing, const TesseraGroup *group, int i, TesseraChunk *chunk)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	const TesseraChunkOwner *owner = &TESSERA_MAP_OWNERS(map)[i];

	Assert(i >= 0 && i < map->nchunks);
	chunk->node_id = owner->node_id;
	chunk->major = owner->major;
	chunk->minor = owner->minor;
	chunk->jumbo = owner->jumbo;
	memset(&chunk->min, 0, sizeof(chunk->min));
	tessera_key_unflatten(ks, TESSERA_MAP_MIN(map, i), (const char *) map, &chunk->min);
	if (i + 1 < map->nchunks)
	{
		memset(&chunk->max, 0, sizeof(chunk->max));
		tessera_key_unflatten(ks, TESSERA_MAP_MIN(map, i + 1), (const char *) map, &chunk->max);
	}
	else
		set_extreme(ks, TESSERA_MAXKEY, &chunk->max);
}

int
tessera_routing_find_chunk(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *position)
{
	return find(sound_map(group), tessera_group_keyspace(routing, group), position);
}

TesseraTargets *
tessera_routing_owners(const TesseraRouting *routing, const TesseraGroup *group)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraTargets *targets = palloc(offsetof(TesseraTargets, node_ids) + map->nversions * sizeof(int32));

	targets->n = map->nversions;
	for (int i = 0; i < map->nversions; i++)
		targets->node_ids[i] = TESSERA_MAP_VERSIONS(map)[i].node_id;
	return targets;
}

TesseraTargets *
tessera_routing_owners_of_range(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	const TesseraShardVersion *versions = TESSERA_MAP_VERSIONS(map);
	TesseraTargets *targets = palloc(offsetof(TesseraTargets, node_ids) + map->nversions * sizeof(int32));
	bool	   *wanted = palloc0(map->nversions * sizeof(bool));
	int			found = 0;

	targets->n = 0;
	if (tessera_key_compare(ks, min, max) < 0)
		for (int i = find(map, ks, min); i < map->nchunks && found < map->nversions; i++)
		{
			TesseraShardVersion probe = {TESSERA_MAP_OWNERS(map)[i].node_id, 0};
			const TesseraShardVersion *version;

			if (tessera_key_compare_flat(ks, TESSERA_MAP_MIN(map, i), (const char *) map, max) >= 0)
				break;
			version = bsearch(&probe, versions, map->nversions, sizeof(TesseraShardVersion), compare_versions);
			if (!wanted[version - versions])
			{
				wanted[version - versions] = true;
				found++;
			}
		}
	for (int i = 0; i < map->nversions; i++)
		if (wanted[i])
			targets->node_ids[targets->n++] = versions[i].node_id;
	pfree(wanted);
	return targets;
}

int64
tessera_routing_shard_major(const TesseraRouting *routing, const TesseraGroup *group, int32 node_id)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraShardVersion probe = {node_id, 0};
	const TesseraShardVersion *version = bsearch(&probe, TESSERA_MAP_VERSIONS(map), map->nversions, sizeof(TesseraShardVersion), compare_versions);

	return version == NULL ? 0 : version->major;
}
