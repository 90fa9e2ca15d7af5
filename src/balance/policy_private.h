/*
 * policy_private.h
 *	  What the files of the balancer's policy share: policy_scan.c reads the snapshot, policy_ideal.c computes how much each shard ought to have,
 *	  policy.c chooses actions, policy_empty.c those of empty chunks.
 *
 * Amounts are in the unit of the measure. Matrices have a row for each group and a column for each shard. The placed schemas are one more group, the
 * last: each is a chunk that may be anywhere, and only whole nodes are to be even by them.
 */
#ifndef TESSERA_POLICY_PRIVATE_H
#define TESSERA_POLICY_PRIVATE_H

#include "balance/policy.h"

/* No chunk counts for more. */
#define POLICY_MAX_AMOUNT 1e18

/* What may happen to a chunk. */
typedef enum PolicyChunkState
{
	POLICY_FIXED,				/* it stays */
	POLICY_FORCED,				/* it is to leave its shard: draining, or not in the zone; somebody may have it */
	POLICY_LOOSE,				/* it may move for balance */
	POLICY_WEIGHTLESS,			/* it has no bytes, or hardly any: it goes along with a neighbour, or is spread by number */
	POLICY_TAKEN				/* an action of this plan has it */
} PolicyChunkState;

typedef struct PolicyGroup
{
	int32_t		number;			/* in the snapshot; -1: the placed schemas */
	bool		balancing;
	double		max_chunk_bytes;
	size_t		nchunks;
	const TesseraPolicyChunk *chunks;
	size_t		offset;			/* of its first chunk among those of all groups */
	double		total;			/* amount */
	double		mean;			/* fill, if all were even */
	double		scale;			/* what its evenness counts for: factor of its sum of (amount squared / weight) */
	size_t		first_block;	/* its blocks are consecutive */
	size_t		nblocks;
} PolicyGroup;

/* Chunks of a group that may lie on the same shards: those of one zone, or of none. Only what may move counts here. */
typedef struct PolicyBlock
{
	int32_t		zone;			/* -1: none */
	double		forced;			/* amount of the chunks that are forced to move */
	double		loose;			/* amount of those that may move for balance */
	double	   *part;			/* of each shard: what it has of the block; ideally has, after tessera_policy_ideal */
} PolicyBlock;

/* Neighbouring chunks that are forced to move, together. */
typedef struct PolicyRun
{
	TesseraPolicyReason reason;
	int32_t		group;			/* row */
	int32_t		zone;
	size_t		first;
	size_t		count;
	double		amount;
	double		bytes;
} PolicyRun;

/* A chunk that may move for balance, in the list of its group and shard. */
typedef struct PolicyEntry
{
	double		amount;
	double		bytes;
	uint32_t	chunk;			/* among those of all groups */
	int32_t		block;
} PolicyEntry;

/* What belongs to an action while the plan is made. */
typedef struct PolicyLink
{
	int32_t		previous;		/* action of the same donor that starts now; -1: none */
	size_t		max_ranges;		/* that there is memory for */
} PolicyLink;

typedef struct PolicyShards
{
	size_t		n;
	int32_t	   *all;			/* that may receive, in order */
	bool		others;			/* there are shards that are not draining, usable or not */
} PolicyShards;

typedef struct Policy
{
	const TesseraPolicySnapshot *snapshot;
	void	   *(*alloc) (size_t size);
	size_t		nshards;
	size_t		ngroups;		/* with that of the schemas */
	PolicyGroup *groups;
	double	   *weight;			/* of each shard */
	double		total_weight;	/* of those that are not draining */
	size_t		nrecipients;	/* shards that are not draining */
	PolicyShards *zones;		/* [zone + 1] */

	double	   *amount;			/* matrix; as the plan goes on */
	double	   *ideal;			/* matrix; what ought to be where */
	double	   *node;			/* of each shard: sum of its column of amount */
	double	   *node_ideal;
	double		node_total;
	double		node_mean;
	double		node_scale;
	double	   *placed;			/* of each shard: share of all bytes, and a little for each chunk: tells apart what the measure does not */
	double		byte_share;		/* what one byte, and one chunk, adds to it */
	double		chunk_share;

	uint8_t    *state;			/* of each chunk, PolicyChunkState */
	size_t		nblocks;
	size_t		max_blocks;
	PolicyBlock *blocks;
	size_t		nruns;
	PolicyRun  *runs;			/* by reason, group, zone, then the largest first */
	size_t	   *cell;			/* [row * nshards + shard]: where its entries begin; one more at the end */
	bool	   *cell_sorted;
	PolicyEntry *entries;

	int32_t    *room;			/* of each shard: what is left */
	bool		limited;		/* this pass obeys it */
	bool		waiting;		/* something waits for room */
	bool		full;			/* max_actions is reached */
	size_t		max_actions;	/* that there is memory for */
	int32_t    *newest;			/* of each shard: its newest action as donor that starts now; -1: none */
	PolicyLink *links;			/* of each action */
	size_t		max_links;
	size_t		max_problems;
	TesseraPolicyPlan *plan;
} Policy;

/* Memory for n elements, at least one, zeroed. */
extern void *tessera_policy_zeroed(Policy *policy, size_t n, size_t size);

/* Room for one more element at the end of an array of n; *max is what it has memory for. */
extern void *tessera_policy_grow(Policy *policy, void *array, size_t n, size_t *max, size_t size);

/* What a chunk of the row counts for, in the unit of the measure; its bytes, never negative. */
extern double tessera_policy_amount(const Policy *policy, const PolicyGroup *group, const TesseraPolicyChunk *chunk);
extern double tessera_policy_bytes(const TesseraPolicyChunk *chunk);

/* Whether so little is in the chunk that its bytes do not matter: it counts by number. It was measured. */
extern bool tessera_policy_is_empty(const PolicyGroup *group, const TesseraPolicyChunk *chunk);

/* Whether shard must not keep a chunk of the zone, and why. */
extern bool tessera_policy_forced(const Policy *policy, int32_t shard, int32_t zone, TesseraPolicyReason *reason);

/* Moves count chunks from the first on to another shard, in an action of their own or with one that they may join. False: the plan is full. */
extern bool tessera_policy_move(Policy *policy, TesseraPolicyReason reason, size_t row, size_t first, size_t count, int32_t to);

/* So many chunks at most move in one action. */
extern size_t tessera_policy_run_chunks(const Policy *policy);

/* The action that such a move of so many chunks and bytes may join; NULL: none. */
extern TesseraPolicyAction *tessera_policy_action_to_join(const Policy *policy, TesseraPolicyReason reason, size_t row, int32_t from, int32_t to,
														  size_t count, double bytes);

/* Evens out the number of the empty chunks of each group. */
extern void tessera_policy_spread_empty(Policy *policy);

/* Reads the snapshot: everything of a Policy but ideal and node_ideal; the plan's problems. */
extern void tessera_policy_scan(Policy *policy);

/* Computes ideal and node_ideal. Schemas that may move for balance are spread like chunks, unless schemas_stay. */
extern void tessera_policy_ideal(Policy *policy, bool schemas_stay);

#endif							/* TESSERA_POLICY_PRIVATE_H */
