/*
 * routing.h
 *	  The mirror of the catalog in shared memory: nodes, tables, groups with their chunks, and this shard's placements.
 *
 * One immutable image per database, replaced whole when the catalog sequence has grown (catalog/change.h), freed when its last reader lets go. The
 * chunks of a group lie in pages, and successive images share those that stayed the same. A backend pins the image it uses to the end of its
 * transaction; a hundred backends read it without copying. A transaction that has itself changed the catalog gets a private image, which includes its
 * changes.
 *
 * Locks: a loader holds no LWLock while it reads the catalog; one loads, others wait on a condition variable (with interrupts). Pins are atomic
 * counters. Crash: nothing here is durable; the image is loaded again from the catalog by the backend that needs it first.
 */
#ifndef TESSERA_ROUTING_H
#define TESSERA_ROUTING_H

#include "postgres.h"
#include "access/attnum.h"
#include "nodes/pg_list.h"
#include "utils/dsa.h"
#include "utils/snapshot.h"
#include "utils/dsa.h"
#include "utils/uuid.h"

#include "catalog/key.h"
#include "catalog/placement.h"

typedef struct TesseraNode
{
	int32		node_id;
	NameData	name;
	bool		is_shard;
	bool		is_config;
	bool		draining;
	int32		incarnation;	/* see catalog/incarnation.h */
	Size		conninfo_offset;	/* see tessera_node_conninfo */
} TesseraNode;

typedef struct TesseraTable
{
	Oid			relid;
	int32		group;			/* index of its group, or -1: a placed table */
	/* of the group whose placement record is about its rows: its own, or that of its schema; -1: a placed table of a schema that has none */
	int32		placement_group;
	int32		node_id;		/* placed: the primary shard of its schema */
	Oid			root;			/* of a partition: the table that has a row of the catalog; else the table itself */
	pg_uuid_t	table_id;		/* of a partition: derived from its root's and its name, alike on every node */
	int32		nkeys;			/* sharded: key columns, in key order */
	AttrNumber	keys[TESSERA_MAX_KEY_COLUMNS];
	/*
	 * A placed table with copies: whole on every node. Written on its node_id (its lead) first, read where the statement runs. Snapshots that do not
	 * see replicated_since may not see the copy's rows; InvalidTransactionId: all do.
	 */
	bool		replicated;
	TransactionId replicated_since;
} TesseraTable;

typedef struct TesseraShardVersion
{
	int32		node_id;
	int64		major;
} TesseraShardVersion;

/* Placement of this shard, typed, ranges flattened (min of range i at ranges[2*i*nelements], max at ranges[(2*i+1)*nelements]). */
typedef struct TesseraPlacement TesseraPlacement;

typedef struct TesseraGroup
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		group_major;
	int64		group_minor;
	bool		hashed;
	bool		of_schema;		/* of the placed tables of a schema: no key columns, one chunk */
	int32		ncolumns;
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	int32		typmods[TESSERA_MAX_KEY_COLUMNS];
	Oid			collations[TESSERA_MAX_KEY_COLUMNS];
	int32		index;			/* own index in the image */
	/* the rest is private to routing.c: chunk map, shard versions, placement */
	dsa_pointer map_shared;
	struct TesseraChunkMap *map_private;
	Size		placement_offset;	/* 0: none on this node */
} TesseraGroup;

/* Where the placed tables of a schema live. */
typedef struct TesseraSchema
{
	NameData	name;
	int32		node_id;		/* its primary shard; -1: not known */
	int32		group;			/* index of its group; -1: it has none */
} TesseraSchema;

#define TESSERA_ADVISORY_SLOTS 64

typedef struct TesseraRouting
{
	uint64		sequence;		/* catalog sequence at which it was loaded */
	int64		term;			/* config term of this catalog */
	/* the highest one seen: words of an older one do not count; above term while a promoted config node compares its catalog */
	int64		promised_term;
	int32		self;			/* node_id of this node */
	pg_uuid_t	cluster_id;
	bool		is_config;
	/*
	 * After a promotion, until it is settled (failover/promotion.c): what this shard owns, and on the config node the catalog, may lack the newest
	 * commits.
	 */
	bool		placements_unknown;
	bool		metadata_unknown;
	int32		incarnation;	/* of this server */
	bool		restored;		/* from a base backup, since this was known: see tessera_backup_restored */
	bool		replaced;		/* another server has become this node: nothing of the cluster is answered here any more */
	bool		removed;		/* so is nothing where the registry does not know this node any more */
	/* xid that made the placements known; snapshots that do not see it are of before. InvalidTransactionId: visible to all */
	TransactionId known_since;
	int32		nnodes;			/* sorted by node_id */
	int32		ntables;		/* sorted by relid */
	int32		nreplicated;	/* so many of them are replicated */
	int32		ngroups;		/* sorted by group_id */
	int32		nschemas;		/* sorted by name */
	Size		schemas_offset;
	Size		nodes_offset;
	Size		tables_offset;
	Size		groups_offset;
	Size		size;
	int32		advisory_homes[TESSERA_ADVISORY_SLOTS]; /* node_id that keeps the advisory locks of each slot of keys; 0: not known */
} TesseraRouting;

/* Which shards a set of keys or ranges needs, as a set of node_ids. */
typedef struct TesseraTargets
{
	int			n;
	int32		node_ids[FLEXIBLE_ARRAY_MEMBER];
} TesseraTargets;

/*
 * The current image, pinned to the end of the transaction (a newer one is pinned when the sequence has grown: older ones stay valid until the end of
 * the transaction). NULL if this database is not a member of a cluster: costs one shared-memory read. Loads if need be: may take
 * AccessShareLocks on the catalog. Never call inside a critical section or with an LWLock held.
 */
extern const TesseraRouting *tessera_routing(void);

/*
 * For hooks, before all else: true if it has been found out that this database is no node, and none has become one since. Costs a look at a shared
 * number; never raises, also outside of a transaction. false: tessera_routing() knows.
 */
extern bool tessera_known_no_node(void);

/* The same as tessera_routing; ERROR 55000 if this database is not a node of a cluster. */
extern const TesseraRouting *tessera_routing_or_error(void);

/* True if the snapshot sees the placements that were written after the last promotion. Older ones may be wrong. */
extern bool tessera_placements_known(const TesseraRouting *routing, Snapshot snapshot);

#define TESSERA_REMOVED_HINT \
	"Connect to a node of the cluster. DROP EXTENSION tessera CASCADE makes a plain database of this one, with the rows that it has."

/* ERROR TS003 if another server has become this node, or the node was removed. */
extern void tessera_require_own_node(const TesseraRouting *routing);

/*
 * True if this database was a node that was removed from its cluster: it has been told so, and has no routing image any more, or has found it out by
 * its registry. It is so until it joins again, or the extension is dropped. Costs as tessera_routing().
 */
extern bool tessera_node_was_removed(void);

/*
 * ERROR TS003 if that is so, for a statement of a client on a table: its rows are not the cluster's. Not for temporary tables, those of the system
 * and of extensions. The first is about the relations of a plan's range table. (removed_node.c)
 */
extern void tessera_refuse_removed_tables(List *rtable);
extern void tessera_refuse_removed_table(Oid relid);

/* The same, and ERROR 57P03 while this node is the config node, was promoted, and has not compared its catalog with the shards yet. */
extern void tessera_require_metadata(const TesseraRouting *routing);

/* True if the image is still the newest. One atomic read. */
extern bool tessera_routing_is_current(const TesseraRouting *routing);

/* Look-ups: binary searches; NULL if there is none. */
extern const TesseraTable *tessera_routing_table(const TesseraRouting *routing, Oid relid);
extern const TesseraTable *tessera_routing_table_at(const TesseraRouting *routing, int i);	/* i < ntables */
/* The table that the catalog has a row of: of a partition its root, else the table itself. Never NULL. */
extern const TesseraTable *tessera_routing_root(const TesseraRouting *routing, const TesseraTable *table);
extern const TesseraTable *tessera_routing_table_by_id(const TesseraRouting *routing, const pg_uuid_t *table_id);
extern const TesseraGroup *tessera_routing_group(const TesseraRouting *routing, int index);
extern const TesseraGroup *tessera_routing_group_by_id(const TesseraRouting *routing, const pg_uuid_t *group_id);
extern const TesseraSchema *tessera_routing_schema(const TesseraRouting *routing, const char *name);
/* The group whose placement record is about the table's rows (placement_group); NULL: there is none. */
extern const TesseraGroup *tessera_table_placement_group(const TesseraRouting *routing, const TesseraTable *table);
extern const TesseraNode *tessera_routing_node(const TesseraRouting *routing, int32 node_id);
extern const TesseraNode *tessera_routing_node_at(const TesseraRouting *routing, int i);	/* i < nnodes */
extern const TesseraNode *tessera_routing_node_by_name(const TesseraRouting *routing, const char *name);
extern const TesseraNode *tessera_routing_config(const TesseraRouting *routing);
extern const char *tessera_node_conninfo(const TesseraRouting *routing, const TesseraNode *node);

/* The group's key space: cached in this backend by group and epoch, lives until the backend exits. */
extern TesseraKeySpace *tessera_group_keyspace(const TesseraRouting *routing, const TesseraGroup *group);

/* Owner (node_id) of a key: ncolumns non-null datums of the key columns' types. One binary search. */
extern int32 tessera_routing_owner(const TesseraRouting *routing, const TesseraGroup *group, const Datum *key);

/* Chunks in key order. Bounds point into the image. max of the last is MAXKEY. */
extern int	tessera_routing_nchunks(const TesseraRouting *routing, const TesseraGroup *group);
typedef struct TesseraChunk
{
	int32		node_id;
	int64		major;
	int64		minor;
	bool		jumbo;
	TesseraKeyBound min;
	TesseraKeyBound max;
} TesseraChunk;
extern void tessera_routing_chunk(const TesseraRouting *routing, const TesseraGroup *group, int i, TesseraChunk *chunk);
/* Index of the chunk that holds the position. */
extern int	tessera_routing_find_chunk(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *position);
/* First chunk behind i that another shard than i's owns; nchunks if there is none. Costs little for long runs of one shard. */
extern int	tessera_routing_run_end(const TesseraRouting *routing, const TesseraGroup *group, int i);
/* First chunk from i on that the shard owns; nchunks if there is none. */
extern int	tessera_routing_next_of(const TesseraRouting *routing, const TesseraGroup *group, int32 node_id, int i);

/* Shards that own any chunk of the group (palloc'd, sorted). */
extern TesseraTargets *tessera_routing_owners(const TesseraRouting *routing, const TesseraGroup *group);
/* Shards that own any part of [min, max). */
extern TesseraTargets *tessera_routing_owners_of_range(const TesseraRouting *routing, const TesseraGroup *group, const TesseraKeyBound *min,
													   const TesseraKeyBound *max);

/* Shard version (major) of a node for a group: 0 if it owns nothing (S14, S20). */
extern int64 tessera_routing_shard_major(const TesseraRouting *routing, const TesseraGroup *group, int32 node_id);

/* ---- placements of this shard ---- */

/* A range that a migration gives away here, or has brought (TesseraGatedRange). */
typedef struct TesseraGateImage
{
	pg_uuid_t	migration_id;
	TesseraGate gate;
	TesseraKeyBound min;		/* flat, base = the placement itself */
	TesseraKeyBound max;
} TesseraGateImage;

struct TesseraPlacement
{
	int64		term;
	pg_uuid_t	epoch;
	int64		major;
	TransactionId xid;			/* of the change; InvalidTransactionId: visible to every snapshot */
	int32		ngates;
	Size		gates_offset;	/* of TesseraGateImage[ngates] */
	int32		nowned;
	int32		ndeletions;
	bool		hides;			/* deletion ranges minus owned ranges is not empty: scans need the ownership filter */
	int32		nelements;
	Size		size;			/* whole, with ranges and by-reference bytes behind */
	TesseraKeyDatum ranges[FLEXIBLE_ARRAY_MEMBER];	/* owned, then deletions */
};

/*
 * The newest placement that the snapshot sees (doc/design.md#snapshot-and-placement). *newest: it is also the newest there is. In the steady state
 * one comparison with the snapshot's xmin; else the catalog row is read under the snapshot into the current context. NULL: this node has none (owns
 * nothing, hides nothing). InvalidSnapshot: the newest.
 */
extern const TesseraPlacement *tessera_placement_as_of(const TesseraRouting *routing, const TesseraGroup *group, Snapshot snapshot, bool *newest);

/*
 * owns: true if the placement owns the key's position. hides: true if a row at the position is hidden (in deletions, not in owned). Both are false
 * for a NULL placement.
 */
extern bool tessera_placement_owns(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraKeyBound *position);
extern bool tessera_placement_hides(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraKeyBound *position);
/*
 * True if two placements of one group have the same term, epoch, version and owned ranges; flags, gates and deletions may differ. False if one is
 * NULL.
 */
extern bool tessera_placement_owns_same(const TesseraPlacement *a, const TesseraPlacement *b, TesseraKeySpace *ks);
/* Gate i of a placement, 0 .. ngates - 1. */
extern const TesseraGateImage *tessera_placement_gate_image(const TesseraPlacement *placement, int i);
/* True if the range of gate i holds the position. */
extern bool tessera_placement_gate_holds(const TesseraPlacement *placement, TesseraKeySpace *ks, int i, const TesseraKeyBound *position);

/*
 * Raises the version in a locked placement row to what the chunks say; true if it was lower. A split or merge gives its pieces the group's major
 * (S21, S22), which can be above that of a shard that was in no move of late; a promotion of the config node raises the term. Only if the row owns
 * exactly this shard's chunks: never while a move changes that.
 */
extern bool tessera_placement_raise_version(const TesseraRouting *routing, const TesseraGroup *group, TesseraPlacementRow *row);

/*
 * Writes the first placement record of a schema's group, on the schema's shard: it owns all of it, version 1. Nothing if there is a record.
 */
extern void tessera_placement_begin_schema(const TesseraRouting *routing, const TesseraGroup *group);

/* ---- refresh from the config node ---- */

/*
 * Asks the refresher worker to fetch what changed from the config node (incrementally, S9) and waits until it has (or timeout_ms; or it failed).
 * Returns true if a fetch that began after this call has ended well. Concurrent callers share one fetch. On the config node: true at once.
 */
extern bool tessera_routing_refresh(int timeout_ms);

/*
 * After a promotion of this shard: waits until it is known again what it owns, timeout_ms at most; then false. true at once where there is nothing to
 * wait for. Interruptible.
 */
extern bool tessera_routing_await_placements(int timeout_ms);

/* Error of the last fetch, palloc'd; NULL: it went well. */
extern char *tessera_routing_refresh_error(void);

/*
 * The refresher's step: one fetch if one is due (asked for, or the 30 s job of S32); returns milliseconds until the next is due. Runs its own
 * transactions.
 */
extern long tessera_refresher_step(void);

/* Step at the end of a transaction, also of a parallel worker's part: the images that it has used are let go of. Never raises. */
extern void tessera_routing_unpin(void);

extern void tessera_routing_init(void); /* from _PG_init: shared memory */

#endif							/* TESSERA_ROUTING_H */
