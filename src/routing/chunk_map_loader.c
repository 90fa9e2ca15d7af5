/*
 * chunk_map_loader.c
 *	  Makes a group's chunk map from catalog rows, or from an older one and the rows that are newer.
 *
 * A full load reads all rows of the group; a patch reads those of a higher version than the old map and puts them over it: what they overlap is gone
 * (the catalog keeps no tombstones; split, merge and move give every piece a new version). Only pages that this touches are written anew
 * (page_plan.c), the others are the old map's. If the rows do not fit the old chunks' bounds, all are read.
 *
 * Memory: working data in the caller's context, which the caller resets; directory and new pages in the context it names. Rows are kept flat, as
 * there may be a million. Locks: AccessShareLock on the catalog table while it is read.
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
#include "routing/page_plan.h"

#define ROWS_PER_RESET 256		/* rows that are parsed before the parsers' leavings are freed */

/* Bytes of by-reference values, offsets from their beginning. */
typedef struct Bytes
{
	char	   *data;
	Size		n;
	Size		room;
} Bytes;

/* Rows, flat: min and max of row i at bounds[2 * i * nelements]. */
typedef struct Rows
{
	TesseraKeySpace *ks;
	int32		n;
	int32		room;
	TesseraChunkOwner *owners;
	TesseraKeyDatum *bounds;
	Bytes		bytes;
	int32	   *order;			/* row numbers in key order */
	MemoryContext parsing;
} Rows;

/* Versions of shards, sorted by node_id. */
typedef struct Versions
{
	int32		n;
	int32		room;
	TesseraShardVersion *list;
} Versions;

/* The pages being made. */
typedef struct Writer
{
	TesseraKeySpace *ks;
	MemoryContext result;
	int32		npages;			/* so far */
	int32		room;
	TesseraPageRef *pages;
	int32	   *starts;
	int32		nwritten;
	Versions	fresh;			/* of the pages written */
	/* the page at hand */
	int32		n;
	TesseraChunkOwner owners[TESSERA_PAGE_MAX];
	TesseraKeyDatum *mins;
	Bytes		bytes;
	/* the run at hand */
	const TesseraPageRun *run;
	int32		page;			/* of the run */
} Writer;


/* Versions */

static void
raise_version(Versions *versions, int32 node_id, int64 major)
{
	int32		low = 0;
	int32		high = versions->n;

	while (low < high)
	{
		int32		middle = low + (high - low) / 2;

		if (versions->list[middle].node_id < node_id)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < versions->n && versions->list[low].node_id == node_id)
	{
		versions->list[low].major = Max(versions->list[low].major, major);
		return;
	}
	if (versions->n == versions->room)
	{
		versions->room = Max(16, versions->room * 2);
		versions->list = versions->list == NULL ? palloc(versions->room * sizeof(TesseraShardVersion)) :
			repalloc(versions->list, versions->room * sizeof(TesseraShardVersion));
	}
	memmove(&versions->list[low + 1], &versions->list[low], (versions->n - low) * sizeof(TesseraShardVersion));
	versions->list[low] = (TesseraShardVersion) {node_id, major};
	versions->n++;
}

/* Of a node; 0: not there. */
static int64
version_of(const TesseraShardVersion *list, int32 n, int32 node_id)
{
	TesseraShardVersion probe = {node_id, 0};
	const TesseraShardVersion *found = n == 0 ? NULL : bsearch(&probe, list, n, sizeof(TesseraShardVersion), tessera_compare_shard_versions);

	return found == NULL ? 0 : found->major;
}

static void
raise_versions(Versions *versions, const TesseraChunkPage *page)
{
	for (int i = 0; i < page->nversions; i++)
		raise_version(versions, TESSERA_PAGE_VERSIONS(page)[i].node_id, TESSERA_PAGE_VERSIONS(page)[i].major);
}

/* Highest version of a node in the pages that are not in any of the runs: 0 if there is none; not above `most`. */
static int64
version_in_kept(const TesseraChunkMap *old, int32 nruns, const TesseraPageRun *runs, int32 node_id, int64 most)
{
	int64		major = 0;
	int32		page = 0;

	for (int32 i = 0; i <= nruns; i++)
	{
		for (; page < (i < nruns ? runs[i].from : old->npages) && major < most; page++)
		{
			const TesseraChunkPage *kept = tessera_map_page(old, page);

			major = Max(major, version_of(TESSERA_PAGE_VERSIONS(kept), kept->nversions, node_id));
		}
		if (i < nruns)
			page = runs[i].to;
	}
	return major;
}

/*
 * Shard versions (S14) of a patched map: highest major of each owner. The old map's stay unless a page that had them is gone; then the new pages
 * mostly have them or higher ones, and only else all pages are asked.
 */
static void
patch_versions(Versions *versions, const Versions *fresh, const TesseraChunkMap *old, int32 nruns, const TesseraPageRun *runs)
{
	Versions	gone = {0};

	for (int32 i = 0; i < nruns; i++)
		for (int32 page = runs[i].from; page < runs[i].to; page++)
			raise_versions(&gone, tessera_map_page(old, page));
	for (int i = 0; i < old->nversions; i++)
	{
		TesseraShardVersion known = TESSERA_MAP_VERSIONS(old)[i];

		if (version_of(gone.list, gone.n, known.node_id) == known.major &&
			version_of(fresh->list, fresh->n, known.node_id) < known.major)
			known.major = version_in_kept(old, nruns, runs, known.node_id, known.major);
		if (known.major > 0)
			raise_version(versions, known.node_id, known.major);
	}
	for (int i = 0; i < fresh->n; i++)
		raise_version(versions, fresh->list[i].node_id, fresh->list[i].major);
}


/* Flat bounds */

/* Flat form of a bound, by-reference bytes put behind the others. */
static void
flatten(TesseraKeySpace *ks, const TesseraKeyBound *bound, TesseraKeyDatum *flat, Bytes *bytes)
{
	Size		more = tessera_key_flat_size(ks, bound);
	TesseraKeyBound copy;

	if (bytes->n + more > bytes->room)
	{
		bytes->room = Max(bytes->room * 2, bytes->n + more + 1024);
		bytes->data = bytes->data == NULL ? MemoryContextAllocHuge(CurrentMemoryContext, bytes->room) : repalloc_huge(bytes->data, bytes->room);
	}
	bytes->n = tessera_key_flatten(ks, bound, &copy, bytes->data, bytes->n);
	memcpy(flat, copy.elements, ks->nelements * sizeof(TesseraKeyDatum));
}

static void
set_extreme(TesseraKeySpace *ks, TesseraBoundKind kind, TesseraKeyBound *bound)
{
	memset(bound, 0, sizeof(*bound));
	for (int i = 0; i < ks->nelements; i++)
		bound->elements[i].kind = kind;
}

static bool
is_extreme(TesseraKeySpace *ks, TesseraBoundKind kind, const TesseraKeyBound *bound)
{
	TesseraKeyBound extreme;

	set_extreme(ks, kind, &extreme);
	return tessera_key_compare(ks, bound, &extreme) == 0;
}

/* Min (which = 0) or max (1) of a row, by its number in reading order. */
static void
row_bound(const Rows *rows, int32 row, int which, TesseraKeyBound *bound)
{
	const TesseraKeyDatum *flat = rows->bounds + ((Size) 2 * row + which) * rows->ks->nelements;

	memset(bound, 0, sizeof(*bound));
	tessera_key_unflatten(rows->ks, (const TesseraKeyBound *) flat, rows->bytes.data, bound);
}


/* Reading rows */

static void
make_room(Rows *rows)
{
	Size		bound = Max(2 * rows->ks->nelements, 1) * sizeof(TesseraKeyDatum);

	if (rows->n == INT_MAX / 2)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a table group has too many chunks")));
	rows->room = Max(64, rows->room * 2);
	if (rows->owners == NULL)
	{
		rows->owners = palloc(rows->room * sizeof(TesseraChunkOwner));
		rows->bounds = palloc(rows->room * bound);
	}
	else
	{
		rows->owners = repalloc_huge(rows->owners, rows->room * sizeof(TesseraChunkOwner));
		rows->bounds = repalloc_huge(rows->bounds, rows->room * bound);
	}
}

static void
add_row(Rows *rows, HeapTuple tuple, TupleDesc desc)
{
	MemoryContext caller;
	TesseraKeyBound min;
	TesseraKeyBound max;
	TesseraChunkOwner *owner;
	TesseraKeyDatum *flat;
	bool		null;

	if (rows->n == rows->room)
		make_room(rows);
	caller = MemoryContextSwitchTo(rows->parsing);
	tessera_key_from_bound(rows->ks, DatumGetTesseraBoundP(heap_getattr(tuple, Anum_chunk_min, desc, &null)), &min);
	tessera_key_from_bound(rows->ks, DatumGetTesseraBoundP(heap_getattr(tuple, Anum_chunk_max, desc, &null)), &max);
	MemoryContextSwitchTo(caller);

	flat = rows->bounds + (Size) 2 * rows->n * rows->ks->nelements;
	flatten(rows->ks, &min, flat, &rows->bytes);
	flatten(rows->ks, &max, flat + rows->ks->nelements, &rows->bytes);
	owner = &rows->owners[rows->n++];
	owner->major = DatumGetInt64(heap_getattr(tuple, Anum_chunk_major, desc, &null));
	owner->minor = DatumGetInt64(heap_getattr(tuple, Anum_chunk_minor, desc, &null));
	owner->node_id = DatumGetInt32(heap_getattr(tuple, Anum_chunk_node_id, desc, &null));
	owner->jumbo = DatumGetBool(heap_getattr(tuple, Anum_chunk_jumbo, desc, &null));
	if (rows->n % ROWS_PER_RESET == 0)
		MemoryContextReset(rows->parsing);
}

static void
scan_rows(Rows *rows, TesseraCatalogRelation index, int nkeys, ScanKey keys, Snapshot snapshot)
{
	Relation	rel = tessera_catalog_open(TESSERA_CHUNK, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, tessera_catalog_relid(index), true, snapshot, nkeys, keys);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		add_row(rows, tuple, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* All rows of the group. */
static void
read_rows(Rows *rows, const pg_uuid_t *group_id, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	scan_rows(rows, TESSERA_CHUNK_KEY, 1, &key, snapshot);
}

/* Rows above a version: of its major with a higher minor, then of higher majors. */
static void
read_rows_above(Rows *rows, const pg_uuid_t *group_id, int64 major, int64 minor, Snapshot snapshot)
{
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	ScanKeyInit(&keys[1], Anum_chunk_major, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(major));
	ScanKeyInit(&keys[2], Anum_chunk_minor, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(minor));
	scan_rows(rows, TESSERA_CHUNK_VERSION, 3, keys, snapshot);

	/* a scan changes its keys' attribute numbers */
	ScanKeyInit(&keys[0], Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	ScanKeyInit(&keys[1], Anum_chunk_major, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(major));
	scan_rows(rows, TESSERA_CHUNK_VERSION, 2, keys, snapshot);
}

static int
compare_rows(const void *a, const void *b, void *arg)
{
	const Rows *rows = arg;
	TesseraKeyBound x;

	row_bound(rows, *(const int32 *) a, 0, &x);
	return -tessera_key_compare_flat(rows->ks, (const TesseraKeyBound *) (rows->bounds + (Size) 2 * *(const int32 *) b * rows->ks->nelements),
									 rows->bytes.data, &x);
}

/* Catalog order is not the keys' order for every type. */
static void
sort_rows(Rows *rows)
{
	bool		sorted = true;

	rows->order = MemoryContextAllocHuge(CurrentMemoryContext, Max(rows->n, 1) * sizeof(int32));
	for (int32 i = 0; i < rows->n; i++)
	{
		rows->order[i] = i;
		sorted = sorted && (i == 0 || compare_rows(&rows->order[i - 1], &rows->order[i], rows) <= 0);
	}
	if (!sorted)
		qsort_arg(rows->order, rows->n, sizeof(int32), compare_rows, rows);
}


/* What is to change */

/* True if the rows, sorted, lie end to end from MINKEY to MAXKEY. Without key columns there is one chunk, whatever its bounds. */
static bool
rows_cover(const Rows *rows)
{
	TesseraKeyBound position;
	TesseraKeyBound min;

	if (rows->n == 0 || rows->ks->nelements == 0)
		return rows->n == 1;
	set_extreme(rows->ks, TESSERA_MINKEY, &position);
	for (int32 i = 0; i < rows->n; i++)
	{
		row_bound(rows, rows->order[i], 0, &min);
		if (tessera_key_compare(rows->ks, &position, &min) != 0)
			return false;
		row_bound(rows, rows->order[i], 1, &position);
		if (tessera_key_compare(rows->ks, &min, &position) >= 0)
			return false;
	}
	return is_extreme(rows->ks, TESSERA_MAXKEY, &position);
}

/* The old chunks that rows from `min` to `max`, end to end, take the place of; false if they cut one. */
static bool
edit_of(const TesseraChunkMap *old, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max, TesseraPageEdit *edit)
{
	bool		begins;
	bool		ends;

	edit->from = tessera_map_find(old, ks, min, &begins);
	edit->to = tessera_map_find(old, ks, max, &ends);
	if (!ends && is_extreme(ks, TESSERA_MAXKEY, max))
	{
		edit->to = old->nchunks;
		ends = true;
	}
	return begins && ends && edit->from < edit->to;
}

/* What the rows, sorted, change in the old map; -1 if they do not fit it. Rows that lie end to end are one edit. */
static int32
edits_of(const Rows *rows, const TesseraChunkMap *old, TesseraPageEdit *edits)
{
	TesseraKeySpace *ks = rows->ks;
	TesseraKeyBound first;		/* min of the edit at hand */
	TesseraKeyBound position;	/* max of the row before */
	int32		nedits = 0;

	if (ks->nelements == 0)
	{
		edits[0] = (TesseraPageEdit) {0, old->nchunks, 1};
		return rows->n > 1 ? -1 : rows->n;
	}
	for (int32 i = 0; i < rows->n; i++)
	{
		TesseraKeyBound min;
		TesseraKeyBound max;

		row_bound(rows, rows->order[i], 0, &min);
		row_bound(rows, rows->order[i], 1, &max);
		if (tessera_key_compare(ks, &min, &max) >= 0 || (i > 0 && tessera_key_compare(ks, &position, &min) > 0))
			return -1;
		if (i == 0 || tessera_key_compare(ks, &position, &min) < 0)
		{
			if (nedits > 0 && !edit_of(old, ks, &first, &position, &edits[nedits - 1]))
				return -1;
			edits[nedits++].n = 0;
			first = min;
		}
		edits[nedits - 1].n++;
		position = max;
	}
	return nedits > 0 && !edit_of(old, ks, &first, &position, &edits[nedits - 1]) ? -1 : nedits;
}


/* Writing pages */

static void
add_page(Writer *writer, TesseraPageRef ref, int32 nchunks)
{
	if (writer->npages == writer->room)
	{
		writer->room = Max(16, writer->room * 2);
		if (writer->pages == NULL)
		{
			writer->pages = palloc(writer->room * sizeof(TesseraPageRef));
			writer->starts = palloc((writer->room + 1) * sizeof(int32));
			writer->starts[0] = 0;
		}
		else
		{
			writer->pages = repalloc(writer->pages, writer->room * sizeof(TesseraPageRef));
			writer->starts = repalloc(writer->starts, (writer->room + 1) * sizeof(int32));
		}
	}
	writer->pages[writer->npages++] = ref;
	writer->starts[writer->npages] = writer->starts[writer->npages - 1] + nchunks;
}

static void
finish_page(Writer *writer)
{
	int			nelements = writer->ks->nelements;
	Versions	versions = {0};
	TesseraPageRef ref = {InvalidDsaPointer, InvalidDsaPointer, NULL};
	TesseraChunkPage *page;
	Size		versions_offset = MAXALIGN(sizeof(TesseraChunkPage));
	Size		owners_offset;
	Size		mins_offset;
	Size		bytes_offset;
	TesseraKeyDatum *mins;

	for (int32 i = 0; i < writer->n; i++)
		raise_version(&versions, writer->owners[i].node_id, writer->owners[i].major);
	owners_offset = versions_offset + MAXALIGN(versions.n * sizeof(TesseraShardVersion));
	mins_offset = owners_offset + MAXALIGN(writer->n * sizeof(TesseraChunkOwner));
	bytes_offset = mins_offset + MAXALIGN(writer->n * nelements * sizeof(TesseraKeyDatum));

	page = MemoryContextAllocHuge(writer->result, bytes_offset + writer->bytes.n);
	memset(page, 0, sizeof(*page));
	page->nchunks = writer->n;
	page->nelements = nelements;
	page->nversions = versions.n;
	page->versions_offset = versions_offset;
	page->owners_offset = owners_offset;
	page->mins_offset = mins_offset;
	page->size = bytes_offset + writer->bytes.n;
	memcpy(TESSERA_AT(page, versions_offset, char), versions.list, versions.n * sizeof(TesseraShardVersion));
	memcpy(TESSERA_AT(page, owners_offset, char), writer->owners, writer->n * sizeof(TesseraChunkOwner));
	memcpy(TESSERA_AT(page, mins_offset, char), writer->mins, writer->n * nelements * sizeof(TesseraKeyDatum));
	if (writer->bytes.n > 0)
		memcpy(TESSERA_AT(page, bytes_offset, char), writer->bytes.data, writer->bytes.n);

	/* offsets of by-reference values count from the page's beginning */
	mins = TESSERA_AT(page, mins_offset, TesseraKeyDatum);
	for (int i = 0; i < writer->n * nelements; i++)
		if (mins[i].kind == TESSERA_VALUE && !TESSERA_KEY_ELEMENT_COLUMN(writer->ks, i % nelements)->typbyval)
			mins[i].value += bytes_offset;

	pfree(versions.list);
	raise_versions(&writer->fresh, page);
	ref.private = page;
	add_page(writer, ref, writer->n);
	writer->nwritten++;
	writer->n = 0;
	writer->bytes.n = 0;
	writer->page++;
}

static void
begin_run(Writer *writer, const TesseraPageRun *run)
{
	writer->run = run;
	writer->page = 0;
}

/* One more chunk of the run at hand. */
static void
add_chunk(Writer *writer, const TesseraKeyBound *min, const TesseraChunkOwner *owner)
{
	flatten(writer->ks, min, writer->mins + writer->n * writer->ks->nelements, &writer->bytes);
	writer->owners[writer->n++] = *owner;
	if (writer->n == tessera_page_run_size(writer->run, writer->page))
		finish_page(writer);
}

static void
add_rows(Writer *writer, const Rows *rows, int32 first, int32 n)
{
	TesseraKeyBound min;

	for (int32 i = first; i < first + n; i++)
	{
		row_bound(rows, rows->order[i], 0, &min);
		add_chunk(writer, &min, &rows->owners[rows->order[i]]);
	}
}

/* Chunks of the old map, from `from` to before `to`. */
static void
add_old(Writer *writer, const TesseraChunkMap *old, int32 from, int32 to)
{
	const int32 *starts = TESSERA_MAP_STARTS(old);

	while (from < to)
	{
		int32		number = tessera_map_page_of(old, from);
		const TesseraChunkPage *page = tessera_map_page(old, number);

		for (; from < to && from < starts[number + 1]; from++)
		{
			TesseraKeyBound min;

			memset(&min, 0, sizeof(min));
			tessera_key_unflatten(writer->ks, TESSERA_PAGE_MIN_OF(page, from - starts[number]), (const char *) page, &min);
			add_chunk(writer, &min, &TESSERA_PAGE_OWNERS(page)[from - starts[number]]);
		}
	}
}

static void
keep_pages(Writer *writer, const TesseraChunkMap *old, int32 from, int32 to)
{
	const int32 *starts = TESSERA_MAP_STARTS(old);

	for (int32 i = from; i < to; i++)
	{
		Assert(DsaPointerIsValid(TESSERA_MAP_PAGES(old)[i].shared));
		add_page(writer, TESSERA_MAP_PAGES(old)[i], starts[i + 1] - starts[i]);
	}
}

static void
init_writer(Writer *writer, TesseraKeySpace *ks, MemoryContext result)
{
	memset(writer, 0, sizeof(*writer));
	writer->ks = ks;
	writer->result = result;
	writer->mins = palloc(TESSERA_PAGE_MAX * Max(ks->nelements, 1) * sizeof(TesseraKeyDatum));
}


/* The directory */

static TesseraChunkMap *
make_map(const Writer *writer, const TesseraGroup *group, int64 term, bool sound, const Versions *versions)
{
	Size		versions_offset = MAXALIGN(sizeof(TesseraChunkMap));
	Size		starts_offset = versions_offset + MAXALIGN(versions->n * sizeof(TesseraShardVersion));
	Size		pages_offset = starts_offset + MAXALIGN((writer->npages + 1) * sizeof(int32));
	Size		size = pages_offset + writer->npages * sizeof(TesseraPageRef);
	TesseraChunkMap *map = MemoryContextAllocHuge(writer->result, size);

	memset(map, 0, pages_offset);
	pg_atomic_init_u32(&map->references, 0);
	map->sound = sound;
	map->group_id = group->group_id;
	map->epoch = group->epoch;
	map->term = term;
	map->group_major = group->group_major;
	map->group_minor = group->group_minor;
	map->nchunks = writer->npages == 0 ? 0 : writer->starts[writer->npages];
	map->npages = writer->npages;
	map->nwritten = writer->nwritten;
	map->nversions = versions->n;
	map->versions_offset = versions_offset;
	map->starts_offset = starts_offset;
	map->pages_offset = pages_offset;
	map->size = size;
	if (versions->n > 0)
		memcpy(TESSERA_AT(map, versions_offset, char), versions->list, versions->n * sizeof(TesseraShardVersion));
	if (writer->npages > 0)
	{
		memcpy(TESSERA_AT(map, starts_offset, char), writer->starts, (writer->npages + 1) * sizeof(int32));
		memcpy(TESSERA_AT(map, pages_offset, char), writer->pages, writer->npages * sizeof(TesseraPageRef));
	}
	return map;
}

/* The old map with the rows, sorted, over it; NULL if they do not fit it. */
static TesseraChunkMap *
patch(const TesseraGroup *group, int64 term, const TesseraChunkMap *old, const Rows *rows, MemoryContext result)
{
	TesseraPageEdit *edits = palloc(Max(rows->n, 1) * sizeof(TesseraPageEdit));
	TesseraPageRun *runs = palloc(Max(rows->n, 1) * sizeof(TesseraPageRun));
	int32		nedits = edits_of(rows, old, edits);
	int32		nruns;
	int32		edit = 0;
	int32		row = 0;
	int32		page = 0;
	Versions	versions = {0};
	Writer	   *writer;

	if (nedits < 0)
		return NULL;
	nruns = tessera_page_plan(old->npages, TESSERA_MAP_STARTS(old), nedits, edits, runs);
	writer = palloc(sizeof(Writer));
	init_writer(writer, rows->ks, result);
	for (int32 i = 0; i < nruns; i++)
	{
		int32		chunk = TESSERA_MAP_STARTS(old)[runs[i].from];
		int32		end = TESSERA_MAP_STARTS(old)[runs[i].to];

		keep_pages(writer, old, page, runs[i].from);
		begin_run(writer, &runs[i]);
		for (; edit < nedits && edits[edit].to <= end; edit++)
		{
			add_old(writer, old, chunk, edits[edit].from);
			add_rows(writer, rows, row, edits[edit].n);
			row += edits[edit].n;
			chunk = edits[edit].to;
		}
		add_old(writer, old, chunk, end);
		page = runs[i].to;
	}
	keep_pages(writer, old, page, old->npages);
	patch_versions(&versions, &writer->fresh, old, nruns, runs);
	return make_map(writer, group, term, true, &versions);
}

/* A map of the rows, sorted, alone. */
static TesseraChunkMap *
make_whole(const TesseraGroup *group, int64 term, const Rows *rows, MemoryContext result)
{
	TesseraPageRun run = tessera_page_plan_whole(rows->n);
	Writer	   *writer = palloc(sizeof(Writer));

	init_writer(writer, rows->ks, result);
	begin_run(writer, &run);
	add_rows(writer, rows, 0, rows->n);
	return make_map(writer, group, term, rows_cover(rows), &writer->fresh);
}

TesseraChunkMap *
tessera_chunk_map_load(const TesseraGroup *group, int64 term, TesseraKeySpace *ks, const TesseraChunkMap *old, Snapshot snapshot,
					   MemoryContext result)
{
	Rows		rows = {.ks = ks};
	TesseraChunkMap *map = NULL;

	rows.parsing = AllocSetContextCreate(CurrentMemoryContext, "tessera chunk rows", ALLOCSET_DEFAULT_SIZES);
	if (old != NULL)
	{
		read_rows_above(&rows, &group->group_id, old->group_major, old->group_minor, snapshot);
		sort_rows(&rows);
		map = patch(group, term, old, &rows, result);
		rows.n = 0;
		rows.bytes.n = 0;
	}
	if (map == NULL)
	{
		read_rows(&rows, &group->group_id, snapshot);
		sort_rows(&rows);
		map = make_whole(group, term, &rows, result);
	}
	return map;
}
