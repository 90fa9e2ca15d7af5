/*
 * cluster_snapshot.h
 *	  What the balancer's policy is told (balance/policy.h): shards, chunks with size and load, zones, what is under way. Config node.
 */
#ifndef TESSERA_CLUSTER_SNAPSHOT_H
#define TESSERA_CLUSTER_SNAPSHOT_H

#include "postgres.h"

#include "balance/policy.h"
#include "catalog/key.h"
#include "routing/routing.h"

/* A table group of the snapshot, by the same index as in policy.groups. */
typedef struct TesseraSnapshotGroup
{
	const TesseraGroup *group;	/* in routing */
	const TesseraTable *table;	/* one of its tables, to name it by; NULL: it has none */
	TesseraKeySpace *ks;
	TesseraPolicyChunk *chunks; /* the policy's, writable */
	char	   *unreadable;		/* why it cannot be read, for a person: the policy sees no chunk of it; NULL: it can be */
} TesseraSnapshotGroup;

/* Schemas that are tied to each other by foreign keys or inheritance are one. */
typedef struct TesseraSnapshotSchema
{
	char	   *name;			/* the first of them */
	char	   *names;			/* all of them, for a person */
} TesseraSnapshotSchema;

/* A single schema. */
typedef struct TesseraPlacedSchema
{
	char	   *name;
	int			tied_to;		/* number of another one, or its own; in the end number of the first of those that are tied */
	int			schema;			/* index among the schemas */
	int			shard;			/* -1: of a node that is no shard any more; of one that is under way: its recipient */
	int			owner;			/* the shard that has it now; -1 as well */
	double		bytes;
	bool		busy;
} TesseraPlacedSchema;

typedef struct TesseraClusterSnapshot
{
	TesseraPolicySnapshot policy;
	MemoryContext context;		/* in which it lives */
	const TesseraRouting *routing;
	TesseraPolicyShard *shards; /* the policy's, writable */
	TesseraSnapshotGroup *groups;
	TesseraPolicyGroup *policy_groups;	/* the policy's, writable */
	TesseraSnapshotSchema *schemas;
	TesseraPolicySchema *policy_schemas;	/* the policy's, writable */
	int			nplaced;
	TesseraPlacedSchema *placed;	/* single schemas, by name */
	char	  **zones;			/* names */
	double	   *bytes;			/* of chunks on each shard, once they were asked for */
} TesseraClusterSnapshot;

/*
 * Reads it, in a transaction on the config node, by its current routing image; in the current memory context. Room of a shard: what
 * tessera.max_moves_per_shard leaves it. A group whose chunks, estimates or zones cannot be read is left out, and says so.
 */
extern TesseraClusterSnapshot *tessera_cluster_snapshot(void);

/* Index of a node among the shards; -1: it is none. */
extern int	tessera_snapshot_shard(const TesseraClusterSnapshot *snapshot, int32 node_id);

/* Index of a table group; -1: it is not there. */
extern int	tessera_snapshot_group(const TesseraClusterSnapshot *snapshot, const pg_uuid_t *group_id);

/* A single schema; NULL: it is not there. */
extern const TesseraPlacedSchema *tessera_snapshot_placed(const TesseraClusterSnapshot *snapshot, const char *name);

/* Bounds of neighbouring chunks of a group, together; palloc'd. */
extern void tessera_snapshot_range(const TesseraClusterSnapshot *snapshot, int group, size_t first, size_t count, TesseraBound **min,
								   TesseraBound **max);

/* Bytes of the chunks of each shard, added up at the first call; in the current context then. */
extern const double *tessera_snapshot_bytes(TesseraClusterSnapshot *snapshot);

/* Memory for the policy, in the current context. */
extern void *tessera_policy_alloc(size_t size);

#endif							/* TESSERA_CLUSTER_SNAPSHOT_H */
