/*
 * policy_ideal.c
 *	  How much of each group ought to lie on each shard.
 *
 * It is the least uneven cluster that zones allow, if chunks could be cut anywhere: the minimum of the number that policy.h describes. That is a
 * convex function, and which shards a chunk may lie on depends on its block alone. So the blocks are spread one after the other, each as well as
 * it can be while the others stay, until nothing changes any more. Spreading one block is to pour it over its shards like water over a ground of
 * other chunks: up to one level, which those shards that are above it by the others do not get wet by.
 *
 * What an earlier sweep found is the start of the next. A few sweeps suffice without zones. Their number is bounded: an ideal that is a little
 * off does no harm, as policy.c takes no action that makes the cluster less even.
 */
#include "balance/policy_private.h"

#define MAX_SWEEPS 50
#define MAX_STEPS 64

/*
 * The level up to which amount is poured: sum over the shards of max(0, level * weight - ground) = amount. Begins with all shards under water, which
 * gives a level that is too high or right, and leaves out dry ones until none is left.
 */
static double
water_level(const Policy *policy, const PolicyShards *shards, const double *ground, double amount)
{
	double		level = 0;
	size_t		wet = shards->n + 1;

	for (int step = 0; step < MAX_STEPS; step++)
	{
		double		sum = amount;
		double		weight = 0;
		size_t		n = 0;

		for (size_t i = 0; i < shards->n; i++)
		{
			int32_t		shard = shards->all[i];

			if (step > 0 && level * policy->weight[shard] <= ground[shard])
				continue;
			sum += ground[shard];
			weight += policy->weight[shard];
			n++;
		}
		if (n == wet || n == 0)
			break;
		wet = n;
		level = sum / weight;
	}
	return level;
}

/* Spreads one block. Returns by how much a fill has changed at most, relative to the mean. */
static double
spread_block(Policy *policy, size_t row, PolicyBlock *block, double *ground)
{
	const PolicyGroup *group = &policy->groups[row];
	const PolicyShards *shards = &policy->zones[block->zone + 1];
	double	   *ideal = policy->ideal + row * policy->nshards;
	double		scale = group->scale + policy->node_scale;
	double		largest = 0;
	double		level;

	if (shards->n == 0 || scale <= 0 || block->forced + block->loose <= 0)
		return 0;
	for (size_t i = 0; i < shards->n; i++)
	{
		int32_t		shard = shards->all[i];

		ground[shard] = group->scale * (ideal[shard] - block->part[shard]) +
			policy->node_scale * (policy->node_ideal[shard] - block->part[shard]);
	}
	level = water_level(policy, shards, ground, (block->forced + block->loose) * scale);
	for (size_t i = 0; i < shards->n; i++)
	{
		int32_t		shard = shards->all[i];
		double		depth = level * policy->weight[shard] - ground[shard];
		double		part = depth > 0 ? depth / scale : 0;
		double		change = part - block->part[shard];
		double		relative = (change < 0 ? -change : change) * scale / policy->weight[shard];

		block->part[shard] = part;
		ideal[shard] += change;
		policy->node_ideal[shard] += change;
		if (relative > largest)
			largest = relative;
	}
	return largest;
}

/* Schemas that may move for balance count where they are. */
static void
pin_schemas(Policy *policy)
{
	size_t		row = policy->ngroups - 1;
	const PolicyGroup *group = &policy->groups[row];
	double	   *ideal = policy->ideal + row * policy->nshards;

	for (size_t i = 0; i < group->nblocks; i++)
	{
		PolicyBlock *block = &policy->blocks[group->first_block + i];

		for (size_t shard = 0; shard < policy->nshards; shard++)
		{
			policy->node_ideal[shard] -= block->part[shard];
			ideal[shard] -= block->part[shard];
			block->part[shard] = 0;
		}
		block->loose = 0;
	}
	for (size_t i = 0; i < group->nchunks; i++)
	{
		const TesseraPolicyChunk *chunk = &group->chunks[i];

		if (policy->state[group->offset + i] == POLICY_LOOSE)
		{
			double		amount = tessera_policy_amount(policy, group, chunk);

			ideal[chunk->shard] += amount;
			policy->node_ideal[chunk->shard] += amount;
		}
	}
}

void
tessera_policy_ideal(Policy *policy, bool schemas_stay)
{
	double	   *ground = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	double		enough = policy->snapshot->settings.threshold * 1e-3;

	if (schemas_stay)
		pin_schemas(policy);
	for (int sweep = 0; sweep < MAX_SWEEPS; sweep++)
	{
		double		largest = 0;

		for (size_t row = 0; row < policy->ngroups; row++)
		{
			const PolicyGroup *group = &policy->groups[row];

			for (size_t i = 0; i < group->nblocks; i++)
			{
				double		change = spread_block(policy, row, &policy->blocks[group->first_block + i], ground);

				if (change > largest)
					largest = change;
			}
		}
		if (largest <= enough)
			break;
	}
}
