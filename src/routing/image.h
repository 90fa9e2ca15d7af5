/*
 * image.h
 *	  Inside of routing images: what lies behind the public structs of routing.h. For routing/ only.
 *
 * An image is one flat block: header, nodes, tables, table positions sorted by table_id, groups, conninfo strings, placements; all by offset from its
 * beginning, so it can lie in shared memory (mapped at different addresses) or in a backend's own. Chunk maps are blocks of their own, because they
 * are large and live longer than an image: each image holds one reference to each of its groups' maps.
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

/* Chunk map of a group: one flat block, never changed but for its count of references. */
typedef struct TesseraChunkMap
{
	pg_atomic_uint32 references;	/* images that hold it (shared maps) */
	bool		sound;			/* chunks cover MINKEY to MAXKEY without gap or overlap */
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		group_major;
	int64		group_minor;
	int32		nchunks;
	int32		nelements;
	int32		nversions;
	Size		versions_offset;	/* TesseraShardVersion[nversions], sorted by node_id */
	Size		owners_offset;	/* TesseraChunkOwner[nchunks] */
	Size		mins_offset;	/* TesseraKeyDatum[nchunks * nelements], flat, base = the map */
	Size		size;
} TesseraChunkMap;

#define TESSERA_AT(base, offset, type) ((type *) ((char *) (base) + (offset)))
#define TESSERA_MAP_OWNERS(map) TESSERA_AT(map, (map)->owners_offset, const TesseraChunkOwner)
#define TESSERA_MAP_VERSIONS(map) TESSERA_AT(map, (map)->versions_offset, const TesseraShardVersion)
/* Only the first nelements elements of the result are there. */
#define TESSERA_MAP_MIN(map, i) \
	((const TesseraKeyBound *) (TESSERA_AT(map, (map)->mins_offset, const TesseraKeyDatum) + (Size) (i) * (map)->nelements))

/* ---- chunk_map.c ---- */

/*
 * Chunk map of a group as the snapshot sees it, palloc'd (huge) in the context `result`; working memory in the current one. old (NULL: none) is a
 * sound map of the same group and epoch and an older version: then only what changed since is read.
 */
extern TesseraChunkMap *tessera_chunk_map_load(const TesseraGroup *group, TesseraKeySpace *ks, const TesseraChunkMap *old, Snapshot snapshot,
											   MemoryContext result);

/* The map of a group of an image. */
extern const TesseraChunkMap *tessera_group_map(const TesseraGroup *group);

/* ---- keyspace.c ---- */

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
