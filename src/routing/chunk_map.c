/*
 * chunk_map.c
 *	  The sorted chunks of a group: searched and read. What makes the maps is in chunk_map_loader.c.
 *
 * A map keeps the lower bounds alone (a chunk ends where the next begins) and each chunk's owner and version, in pages. A look-up is a binary search
 * for the page, by the first bounds of the pages, and one in it. Rows that do not cover the key space exactly make an unsound map: look-ups in it
 * error, statements on other groups go on.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "common/shmem.h"
#include "routing/image.h"


/* Pages */

const TesseraChunkMap *
tessera_group_map(const TesseraGroup *group)
{
	return DsaPointerIsValid(group->map_shared) ? dsa_get_address(tessera_dsa(), group->map_shared) : group->map_private;
}

const TesseraChunkPage *
tessera_map_page(const TesseraChunkMap *map, int32 i)
{
	const TesseraPageRef *ref = &TESSERA_MAP_PAGES(map)[i];

	return DsaPointerIsValid(ref->shared) ? dsa_get_address(tessera_dsa(), ref->shared) : ref->private;
}

int32
tessera_map_page_of(const TesseraChunkMap *map, int32 i)
{
	const int32 *starts = TESSERA_MAP_STARTS(map);
	int32		low = 0;
	int32		high = map->npages - 1;

	while (low < high)
	{
		int32		middle = low + (high - low + 1) / 2;

		if (starts[middle] <= i)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

int32
tessera_map_find(const TesseraChunkMap *map, TesseraKeySpace *ks, const TesseraKeyBound *position, bool *equal)
{
	const TesseraChunkPage *page;
	int32		found;
	int32		low = 0;
	int32		high = map->npages - 1;

	*equal = false;
	if (map->npages == 0)
		return 0;
	while (low < high)
	{
		int32		middle = low + (high - low + 1) / 2;

		page = tessera_map_page(map, middle);
		if (tessera_key_compare_flat(ks, TESSERA_PAGE_MIN_OF(page, 0), (const char *) page, position) <= 0)
			low = middle;
		else
			high = middle - 1;
	}
	page = tessera_map_page(map, low);
	found = TESSERA_MAP_STARTS(map)[low];

	low = 0;
	high = page->nchunks - 1;
	while (low < high)
	{
		int32		middle = low + (high - low + 1) / 2;

		if (tessera_key_compare_flat(ks, TESSERA_PAGE_MIN_OF(page, middle), (const char *) page, position) <= 0)
			low = middle;
		else
			high = middle - 1;
	}
	*equal = tessera_key_compare_flat(ks, TESSERA_PAGE_MIN_OF(page, low), (const char *) page, position) == 0;
	return found + low;
}

int
tessera_compare_shard_versions(const void *a, const void *b)
{
	int32		x = ((const TesseraShardVersion *) a)->node_id;
	int32		y = ((const TesseraShardVersion *) b)->node_id;

	return (x > y) - (x < y);
}


/* Look-ups */

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

static const TesseraChunkOwner *
owner_of(const TesseraChunkMap *map, int32 i)
{
	int32		page = tessera_map_page_of(map, i);

	return &TESSERA_PAGE_OWNERS(tessera_map_page(map, page))[i - TESSERA_MAP_STARTS(map)[page]];
}

int32
tessera_routing_owner(const TesseraRouting *routing, const TesseraGroup *group, const Datum *key)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraKeyBound position;
	bool		equal;

	tessera_key_position(ks, key, &position);
	return owner_of(map, tessera_map_find(map, ks, &position, &equal))->node_id;
}

int
tessera_routing_nchunks(const TesseraRouting *routing, const TesseraGroup *group)
{
	const TesseraChunkMap *map = tessera_group_map(group);

	return map == NULL ? 0 : map->nchunks;
}

/* Min of chunk i, or MAXKEY behind the last. */
static void
min_of(const TesseraChunkMap *map, TesseraKeySpace *ks, int32 i, TesseraKeyBound *min)
{
	memset(min, 0, sizeof(*min));
	if (i < map->nchunks)
	{
		int32		number = tessera_map_page_of(map, i);
		const TesseraChunkPage *page = tessera_map_page(map, number);

		tessera_key_unflatten(ks, TESSERA_PAGE_MIN_OF(page, i - TESSERA_MAP_STARTS(map)[number]), (const char *) page, min);
	}
	else
		for (int element = 0; element < ks->nelements; element++)
			min->elements[element].kind = TESSERA_MAXKEY;
}

void
tessera_routing_chunk(const TesseraRouting *routing, const TesseraGroup *group, int i, TesseraChunk *chunk)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	const TesseraChunkOwner *owner = owner_of(map, i);

	Assert(i >= 0 && i < map->nchunks);
	chunk->node_id = owner->node_id;
	chunk->major = owner->major;
	chunk->minor = owner->minor;
	chunk->jumbo = owner->jumbo;
	min_of(map, ks, i, &chunk->min);
	min_of(map, ks, i + 1, &chunk->max);
}

int
tessera_routing_find_chunk(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *position)
{
	bool		equal;

	return tessera_map_find(sound_map(group), tessera_group_keyspace(routing, group), position, &equal);
}

int
tessera_routing_run_end(const TesseraRouting *routing, const TesseraGroup *group, int i)
{
	const TesseraChunkMap *map = sound_map(group);
	int32		node_id = owner_of(map, i)->node_id;
	int32		number = tessera_map_page_of(map, i);

	for (i -= TESSERA_MAP_STARTS(map)[number]; number < map->npages; number++, i = 0)
	{
		const TesseraChunkPage *page = tessera_map_page(map, number);
		const TesseraChunkOwner *owners = TESSERA_PAGE_OWNERS(page);

		if (page->nversions == 1 && owners[0].node_id == node_id)
			continue;
		for (; i < page->nchunks; i++)
			if (owners[i].node_id != node_id)
				return TESSERA_MAP_STARTS(map)[number] + i;
	}
	return map->nchunks;
}

int
tessera_routing_next_of(const TesseraRouting *routing, const TesseraGroup *group, int32 node_id, int i)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraShardVersion probe = {node_id, 0};
	int32		number;

	if (i >= map->nchunks)
		return map->nchunks;
	number = tessera_map_page_of(map, i);
	for (i -= TESSERA_MAP_STARTS(map)[number]; number < map->npages; number++, i = 0)
	{
		const TesseraChunkPage *page = tessera_map_page(map, number);

		if (bsearch(&probe, TESSERA_PAGE_VERSIONS(page), page->nversions, sizeof(TesseraShardVersion), tessera_compare_shard_versions) == NULL)
			continue;
		for (; i < page->nchunks; i++)
			if (TESSERA_PAGE_OWNERS(page)[i].node_id == node_id)
				return TESSERA_MAP_STARTS(map)[number] + i;
	}
	return map->nchunks;
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

/* Owners while they are collected: wanted[i] stands for version i of the map. */
typedef struct Wanted
{
	const TesseraChunkMap *map;
	bool	   *wanted;
	int			n;
} Wanted;

static void
want(Wanted *wanted, int32 node_id)
{
	const TesseraShardVersion *versions = TESSERA_MAP_VERSIONS(wanted->map);
	TesseraShardVersion probe = {node_id, 0};
	const TesseraShardVersion *version = bsearch(&probe, versions, wanted->map->nversions, sizeof(TesseraShardVersion),
												 tessera_compare_shard_versions);

	if (!wanted->wanted[version - versions])
	{
		wanted->wanted[version - versions] = true;
		wanted->n++;
	}
}

/* Wants the owners of chunks first to last: of pages in between as the page says. */
static void
want_chunks(Wanted *wanted, int32 first, int32 last)
{
	const TesseraChunkMap *map = wanted->map;
	const int32 *starts = TESSERA_MAP_STARTS(map);

	for (int32 number = tessera_map_page_of(map, first); first <= last && wanted->n < map->nversions; first = starts[++number])
	{
		const TesseraChunkPage *page = tessera_map_page(map, number);

		if (first == starts[number] && last >= starts[number + 1] - 1)
			for (int i = 0; i < page->nversions; i++)
				want(wanted, TESSERA_PAGE_VERSIONS(page)[i].node_id);
		else
			for (int32 i = first; i <= last && i < starts[number + 1]; i++)
				want(wanted, TESSERA_PAGE_OWNERS(page)[i - starts[number]].node_id);
	}
}

TesseraTargets *
tessera_routing_owners_of_range(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	const TesseraShardVersion *versions = TESSERA_MAP_VERSIONS(map);
	TesseraTargets *targets;
	Wanted		wanted = {map, NULL, 0};

	/* without key columns there is one chunk, and no range to speak of */
	if (ks->nelements == 0)
		return tessera_routing_owners(routing, group);
	targets = palloc(offsetof(TesseraTargets, node_ids) + map->nversions * sizeof(int32));
	wanted.wanted = palloc0(map->nversions * sizeof(bool));
	if (tessera_key_compare(ks, min, max) < 0)
	{
		bool		equal;
		int32		first = tessera_map_find(map, ks, min, &equal);
		int32		last = tessera_map_find(map, ks, max, &equal);

		want_chunks(&wanted, first, equal ? last - 1 : last);
	}
	targets->n = 0;
	for (int i = 0; i < map->nversions; i++)
		if (wanted.wanted[i])
			targets->node_ids[targets->n++] = versions[i].node_id;
	pfree(wanted.wanted);
	return targets;
}

int64
tessera_routing_shard_major(const TesseraRouting *routing, const TesseraGroup *group, int32 node_id)
{
	const TesseraChunkMap *map = sound_map(group);
	TesseraShardVersion probe = {node_id, 0};
	const TesseraShardVersion *version = bsearch(&probe, TESSERA_MAP_VERSIONS(map), map->nversions, sizeof(TesseraShardVersion),
												 tessera_compare_shard_versions);

	return version == NULL ? 0 : version->major;
}
