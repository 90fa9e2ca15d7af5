/*
 * image.h
 *	  Inside of routing images: what lies behind the public structs of routing.h. For routing/ only.
 *
 * An image is one flat block: header, nodes, tables, table positions sorted by table_id, groups, conninfo strings, placements; all by offset from its
 * beginning, so it can lie in shared memory (mapped at different addresses) or in a backend's own. A chunk map is a block of its own: a directory of
 * pages, which are blocks too. Maps and pages never change; successive images share the maps, and successive maps the pages, that stayed the same
 * (doc/design.md#image). An image holds one reference to each of its groups' maps, a map one to each of its pages.
 */
#ifndef TESSERA_IMAGE_H
#define TESSERA_IMAGE_H

#include "postgres.h"
#include "port/atomics.h"
#include "utils/dsa.h"

#include "routing/routing.h"

/* Header of an image; the public part comes first. */
typedef struct TesseraImage
{
	TesseraRouting routing;
	bool		shared;			/* in the DSA area; else in this backend's memory */
	SubTransactionId lost_in;	/* a key cannot be read, since this transaction has dropped what it is made of: not for others. Else 0 */
	bool		in_recovery;	/* loaded on a standby: loaded again after promotion (doc/design.md#lost-commits) */
	uint64		changes;		/* private images: tessera_catalog_changed_here() when it was loaded */
	Size		by_id_offset;	/* int32[ntables]: positions of tables, sorted by table_id */
} TesseraImage;

typedef struct TesseraChunkOwner
{
	int64		major;
	int64		minor;
	int32		node_id;
	bool		jumbo;
} TesseraChunkOwner;

/* A run of neighbouring chunks: one flat block, never changed. */
typedef struct TesseraChunkPage
{
	int32		nchunks;
	int32		nelements;
	int32		nversions;
	Size		versions_offset;	/* TesseraShardVersion[nversions], sorted by node_id: highest major of each owner */
	Size		owners_offset;	/* TesseraChunkOwner[nchunks] */
	Size		mins_offset;	/* TesseraKeyDatum[nchunks * nelements], flat, base = the page */
	Size		size;
} TesseraChunkPage;

/*
 * Where a page is: in the DSA area, or in this backend's memory. How many maps hold a shared one is counted outside of it, in a block of the DSA area
 * that has nothing else: the area lays small blocks side by side, so that a new map counts its thousands of pages in a few pages of memory. In the
 * pages themselves each count would cost a process that has not touched them yet a page fault.
 */
typedef struct TesseraPageRef
{
	dsa_pointer shared;
	dsa_pointer references;		/* pg_atomic_uint32; of a shared page */
	const TesseraChunkPage *private;
} TesseraPageRef;

/* Chunk map of a group: the directory, one flat block. */
typedef struct TesseraChunkMap
{
	pg_atomic_uint32 references;	/* images that hold it (shared maps) */
	bool		sound;			/* chunks cover MINKEY to MAXKEY without gap or overlap */
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		term;			/* of the catalog: the same version may mean other chunks in another term */
	int64		group_major;
	int64		group_minor;
	int32		nchunks;
	int32		npages;
	int32		nwritten;		/* pages that were made for this map; the others are those of the one before */
	int32		nversions;
	Size		versions_offset;	/* TesseraShardVersion[nversions], sorted by node_id */
	Size		starts_offset;	/* int32[npages + 1]: chunks before each page; last: nchunks */
	Size		pages_offset;	/* TesseraPageRef[npages] */
	Size		size;
} TesseraChunkMap;

#define TESSERA_AT(base, offset, type) ((type *) ((char *) (base) + (offset)))
#define TESSERA_MAP_VERSIONS(map) TESSERA_AT(map, (map)->versions_offset, const TesseraShardVersion)
#define TESSERA_MAP_STARTS(map) TESSERA_AT(map, (map)->starts_offset, const int32)
#define TESSERA_MAP_PAGES(map) TESSERA_AT(map, (map)->pages_offset, TesseraPageRef)
#define TESSERA_PAGE_VERSIONS(page) TESSERA_AT(page, (page)->versions_offset, const TesseraShardVersion)
#define TESSERA_PAGE_OWNERS(page) TESSERA_AT(page, (page)->owners_offset, const TesseraChunkOwner)
/* Only the first nelements elements of the result are there. */
#define TESSERA_PAGE_MIN_OF(page, i) \
	((const TesseraKeyBound *) (TESSERA_AT(page, (page)->mins_offset, const TesseraKeyDatum) + (Size) (i) * (page)->nelements))

/* ---- chunk_map_loader.c ---- */

/*
 * Chunk map of a group as the snapshot sees it: directory and new pages palloc'd in the context `result`; working memory in the current one. old
 * (NULL: none) is a sound shared map of the same group, epoch and term, and an older version: then only what changed since is read, and pages of
 * `old` are taken over, without a reference.
 */
extern TesseraChunkMap *tessera_chunk_map_load(const TesseraGroup *group, int64 term, TesseraKeySpace *ks, const TesseraChunkMap *old,
											   Snapshot snapshot, MemoryContext result);

/* ---- chunk_map.c ---- */

/* The map of a group of an image. */
extern const TesseraChunkMap *tessera_group_map(const TesseraGroup *group);

/* Page i of a map. May raise: a shared one may have to be attached. */
extern const TesseraChunkPage *tessera_map_page(const TesseraChunkMap *map, int32 i);

/* The last chunk of the map whose min is not above the position; 0 if there is none. *equal: its min is the position. */
extern int32 tessera_map_find(const TesseraChunkMap *map, TesseraKeySpace *ks, const TesseraKeyBound *position, bool *equal);

/* The page that holds chunk i of a map that is not empty. */
extern int32 tessera_map_page_of(const TesseraChunkMap *map, int32 i);

/* Order of shard versions by node_id, for qsort and bsearch. */
extern int	tessera_compare_shard_versions(const void *a, const void *b);

/* ---- shared_image.c ---- */

/*
 * A shared copy of a private image, with its maps and pages (references counted); InvalidDsaPointer if there is no room, whatever says so. The image
 * that it has taken maps and pages over from is pinned by the caller. On error or lack of room nothing is left behind. `pages` counts the shared
 * pages there are. No LWLock may be held.
 */
extern dsa_pointer tessera_image_share(const TesseraImage *image, pg_atomic_uint32 *pages);

/*
 * Frees a shared image that nobody can see, with what no other image uses. After an error it can be called again; what was being freed then is lost,
 * the rest is not. No LWLock may be held.
 */
extern void tessera_image_free(dsa_pointer pointer, pg_atomic_uint32 *pages);

/* ---- keyspace.c ---- */

/* False if a type or a collation of the key, by its OID in the group, does not exist (any more). */
extern bool tessera_group_key_exists(const TesseraGroup *group);

/* As tessera_group_keyspace; NULL if a key type or collation does not exist on this node. */
extern TesseraKeySpace *tessera_group_keyspace_if_any(const TesseraGroup *group);

/* Fills types, typmods and collations of a group from their texts; ncolumns = 0 if one does not exist on this node. */
extern void tessera_group_resolve_key(TesseraGroup *group, int ncolumns, char **types, char **collations);

/* ---- placement_image.c ---- */

/* A change's xid as an image keeps it: InvalidTransactionId (visible to all) if it is from before `oldest`. */
extern TransactionId tessera_image_xid(TransactionId xid, TransactionId oldest);

/* Flat form of a row, palloc'd in the current context. Change xids before `oldest` become InvalidTransactionId (visible to all). */
extern TesseraPlacement *tessera_placement_image(const TesseraPlacementRow *row, TesseraKeySpace *ks, TransactionId oldest);

/* ---- image_loader.c ---- */

/*
 * Loads the catalog as one block palloc'd in the current context; NULL if this database is not a node of a cluster. Chunk maps are taken from the
 * image `previous` (NULL: none) where the version is the same (map_shared is copied, without a reference), else loaded, palloc'd (map_private).
 * Includes what this transaction has changed.
 */
extern TesseraImage *tessera_image_load(const TesseraImage *previous);

#endif							/* TESSERA_IMAGE_H */
