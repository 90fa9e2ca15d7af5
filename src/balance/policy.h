/*
 * policy.h
 *	  The balancer's choice: from a snapshot of the cluster to a list of actions with reasons (S94-S103). Pure: no catalog, no server state, no
 *	  clock, no randomness; the same snapshot gives the same plan. It includes nothing of the server, so that unit tests can run it at any size.
 *
 * What is balanced: the measure (bytes, number of chunks, or load) on each shard, divided by the shard's weight, is its fill. Two things are to
 * be even: the fill by each table group alone, and the fill of the whole node, by all groups and placed schemas together. One number says how
 * uneven a cluster is: the sum over shards of (amount squared / weight), for each group and for the whole nodes. Each of these sums is divided by
 * the amount of its group, or of all: otherwise a small table would never leave a shard that a large table leaves a little emptier than the
 * others. What a group counts for is reduced if it has fewer chunks than there are shards, to nothing if it has one: it cannot be even. An action
 * for balance is chosen only if it makes that number smaller by enough, and the two shards differ by more than settings.threshold, so a plan
 * cannot undo what an earlier one did while sizes are the same: no oscillation. Where zones restrict who may have a chunk, the number's minimum
 * is still the most even cluster that they allow.
 *
 * Order (S96): what lies on draining shards, then what violates a zone, then imbalance, then empty chunks by their number, where bytes are balanced.
 * Merges come beside them, for chunks that nothing moves.
 */
#ifndef TESSERA_POLICY_H
#define TESSERA_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum TesseraPolicyMeasure
{
	TESSERA_BY_BYTES,
	TESSERA_BY_COUNT,			/* each chunk counts 1; placed schemas 0 */
	TESSERA_BY_LOAD				/* sessions at work, on average; bytes break ties, and empty or idle chunks stay */
} TesseraPolicyMeasure;

typedef struct TesseraPolicyShard
{
	int32_t		node_id;
	double		weight;			/* share that it is to have, relative to the others'; > 0 */
	bool		draining;		/* all of it is to go; receives nothing */
	bool		usable;			/* false: it cannot be reached, or lags: neither donor nor recipient now, but it counts */
	int32_t		room;			/* actions that it may take part in now, beside those under way; >= 0 */
} TesseraPolicyShard;

typedef struct TesseraPolicyChunk
{
	double		bytes;			/* >= 0 */
	double		load;			/* >= 0 */
	int32_t		shard;			/* index of its owner; of a chunk that is under way: its recipient */
	int32_t		zone;			/* index of the zone that it must lie in; -1: any shard */
	bool		jumbo;			/* never moved for balance (S102); off a draining shard and out of a wrong zone it is */
	bool		pinned;			/* stays where it is unless its shard is draining, or out of its zone; is not merged */
	bool		measured;		/* bytes is known: if it is 0 or nearly so, the chunk is empty */
	bool		busy;			/* under way, asked for, or waiting after a failure: no action touches it, but it counts */
	bool		mergeable;		/* small, cold, and no snapshot needs its history: may be merged with neighbours that are, too */
} TesseraPolicyChunk;

typedef struct TesseraPolicyGroup
{
	bool		balancing;		/* false: only draining and zones move its chunks, and nothing is merged */
	double		max_chunk_bytes;	/* above it chunks are split; merged ones have at most half of it */
	size_t		nchunks;		/* > 0 */
	const TesseraPolicyChunk *chunks;	/* in the order of their keys */
} TesseraPolicyGroup;

/* The placed tables of a schema: they live on one shard, together, and no zone restricts them. */
typedef struct TesseraPolicySchema
{
	double		bytes;
	double		load;
	int32_t		shard;
	bool		movable;		/* false: it can only be counted */
	bool		busy;
} TesseraPolicySchema;

typedef struct TesseraPolicySettings
{
	TesseraPolicyMeasure measure;
	bool		balance;		/* false: only draining and zones */
	bool		merge;
	double		threshold;		/* of the average fill: by less than that two shards may differ. >= 0.01 */
	double		run_bytes;		/* chunks of one shard move together, up to so many bytes; at least one chunk moves */
	size_t		run_chunks;		/* and up to so many, also when merged, 0: any number: others wait while so many rows of the catalog are written */
	size_t		max_actions;	/* no longer list than that, with those that come later */
} TesseraPolicySettings;

typedef struct TesseraPolicySnapshot
{
	TesseraPolicySettings settings;
	size_t		nshards;
	const TesseraPolicyShard *shards;
	size_t		nzones;
	const bool *zone_shards;	/* [zone * nshards + shard]: the shard is in the zone */
	size_t		ngroups;
	const TesseraPolicyGroup *groups;
	size_t		nschemas;
	const TesseraPolicySchema *schemas;
} TesseraPolicySnapshot;

typedef enum TesseraPolicyKind
{
	TESSERA_POLICY_MOVE,		/* ranges of neighbouring chunks of a group, all of shard from, together to shard to */
	TESSERA_POLICY_MERGE,		/* chunks first .. first + count - 1 of a group, all of shard from (= to) */
	TESSERA_POLICY_MOVE_SCHEMA	/* schema number first, from shard from to shard to */
} TesseraPolicyKind;

typedef enum TesseraPolicyReason
{
	TESSERA_POLICY_DRAINING,	/* the shard is being removed */
	TESSERA_POLICY_ZONE,		/* the shard is not in the zone of the range */
	TESSERA_POLICY_GROUP,		/* the group is uneven */
	TESSERA_POLICY_NODE,		/* the nodes are uneven */
	TESSERA_POLICY_EMPTY,		/* one shard has more of the group's empty chunks than others: rows that come are to find them spread */
	TESSERA_POLICY_COLD			/* merge: small and cold */
} TesseraPolicyReason;

/* Chunks first .. first + count - 1 of a group. */
typedef struct TesseraPolicyRange
{
	size_t		first;
	size_t		count;
} TesseraPolicyRange;

typedef struct TesseraPolicyAction
{
	TesseraPolicyKind kind;
	TesseraPolicyReason reason;
	bool		now;			/* both shards have room for it; false: it comes later, as things look now */
	int32_t		group;			/* index; -1: a schema */
	size_t		first;			/* its first range; the number of the schema */
	size_t		count;
	size_t		nranges;		/* in order, no two of them adjacent; 1 unless it is a move */
	TesseraPolicyRange *ranges;
	size_t		nchunks;		/* in all of its ranges */
	int32_t		from;			/* indexes of shards */
	int32_t		to;
	double		bytes;
	double		load;
	double		from_fill;		/* of the two shards before it: by the group for TESSERA_POLICY_GROUP, else of the whole node */
	double		to_fill;
} TesseraPolicyAction;

/* What ought to move and cannot. */
typedef enum TesseraPolicyObstacle
{
	TESSERA_POLICY_NO_SHARD,	/* no shard may have it: the zone has none that is not draining, or there is no other shard */
	TESSERA_POLICY_UNUSABLE,	/* its shard, or every shard that may have it, is not usable */
	TESSERA_POLICY_IMMOVABLE	/* a schema that is not movable, on a draining shard */
} TesseraPolicyObstacle;

typedef struct TesseraPolicyProblem
{
	TesseraPolicyObstacle obstacle;
	int32_t		group;			/* index; -1: a schema */
	size_t		first;			/* chunk or schema; the first of count such chunks of the shard */
	size_t		count;
	int32_t		shard;
	int32_t		zone;			/* -1: none */
} TesseraPolicyProblem;

typedef struct TesseraPolicyPlan
{
	size_t		nactions;		/* those with now set first; within them by urgency */
	TesseraPolicyAction *actions;
	size_t		nproblems;
	TesseraPolicyProblem *problems;
	double	   *fill;			/* of each shard: amount of the whole node / weight, before the plan */
	double		mean_fill;		/* amount of all / weights of the shards that are not draining */
	double		spread;			/* (highest - lowest fill of shards that are not draining) / mean_fill; 0 if there is nothing */
	double		spread_after;	/* the same when the whole plan is done */
	bool		complete;		/* false: max_actions was reached, more would follow */
} TesseraPolicyPlan;

/*
 * Makes the plan. All memory comes from alloc, which does not return NULL and need not clear it; nothing is freed. Time: O(chunks log chunks); 1,000
 * shards, 20 groups and 1,000,000 chunks take less than a second.
 */
extern TesseraPolicyPlan *tessera_policy_plan(const TesseraPolicySnapshot *snapshot, void *(*alloc) (size_t size));

#endif							/* TESSERA_POLICY_H */
