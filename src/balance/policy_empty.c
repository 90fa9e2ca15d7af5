/*
 * policy_empty.c
 *	  Empty chunks, or nearly so, which weigh nothing by bytes, wherever they are: rows come into them some day, so each shard is to have as many of
 *	  them.
 *
 * It comes last, when it is known what moves for its bytes. All that goes from one shard to another is one action.
 */
#include "balance/policy_private.h"

#include <string.h>

/* Whether the chunk may move as an empty one; counts: it counts as such where it is. */
static bool
is_empty(const Policy *policy, const PolicyGroup *group, size_t i, int32_t zone, bool *counts)
{
	const TesseraPolicyChunk *chunk = &group->chunks[i];

	*counts = tessera_policy_is_empty(group, chunk) && chunk->zone == zone;
	return *counts && policy->state[group->offset + i] == POLICY_WEIGHTLESS;
}

/*
 * How many empty chunks each of the shards has to give (or, negative, to take) so that they have as many by weight; what does not divide stays where
 * most are. excess comes in with their numbers; n is the sum.
 */
static void
set_excess(const Policy *policy, const PolicyShards *shards, int64_t n, int64_t *excess)
{
	double		weight = 0;
	int64_t		rest = n;

	for (size_t i = 0; i < shards->n; i++)
		weight += policy->weight[shards->all[i]];
	for (size_t i = 0; i < shards->n; i++)
	{
		int64_t		share = (int64_t) ((double) n * (policy->weight[shards->all[i]] / weight));

		excess[shards->all[i]] -= share;
		rest -= share;
	}
	for (; rest > 0; rest--)
	{
		int32_t		most = shards->all[0];

		for (size_t i = 1; i < shards->n; i++)
			if (excess[shards->all[i]] > excess[most])
				most = shards->all[i];
		excess[most]--;
	}
}

/* Moves empty neighbours of one shard from the first on, as many as one has to give and the other to take; returns their number. */
static size_t
move_empty(Policy *policy, size_t row, size_t first, int32_t zone, int32_t to, int64_t *excess)
{
	const PolicyGroup *group = &policy->groups[row];
	int32_t		from = group->chunks[first].shard;
	int64_t		most = excess[from] < -excess[to] ? excess[from] : -excess[to];
	double		bytes = tessera_policy_bytes(&group->chunks[first]);
	size_t		limit = tessera_policy_run_chunks(policy);
	size_t		count = 1;
	bool		counts;

	while ((int64_t) count < most && count < limit && first + count < group->nchunks && group->chunks[first + count].shard == from &&
		   is_empty(policy, group, first + count, zone, &counts))
		bytes += tessera_policy_bytes(&group->chunks[first + count++]);
	policy->limited = true;
	policy->limited = (policy->room[from] > 0 && policy->room[to] > 0) ||
		tessera_policy_action_to_join(policy, TESSERA_POLICY_EMPTY, row, from, to, count, bytes) != NULL;
	if (!tessera_policy_move(policy, TESSERA_POLICY_EMPTY, row, first, count, to))
		return 0;
	excess[from] -= (int64_t) count;
	excess[to] += (int64_t) count;
	return count;
}

/* Evens out the number of a group's empty chunks among the shards of a zone. */
static void
spread_empty_of_zone(Policy *policy, size_t row, int32_t zone, int64_t *excess)
{
	const PolicyGroup *group = &policy->groups[row];
	const PolicyShards *shards = &policy->zones[zone + 1];
	int64_t		n = 0;
	size_t		at = 0;			/* the shard that takes now */
	bool		counts;

	memset(excess, 0, policy->nshards * sizeof(int64_t));
	for (size_t i = 0; i < group->nchunks; i++)
	{
		(void) is_empty(policy, group, i, zone, &counts);
		excess[group->chunks[i].shard] += counts;
	}
	for (size_t i = 0; i < shards->n; i++)
		n += excess[shards->all[i]];
	if (shards->n < 2 || n < 2)
		return;
	set_excess(policy, shards, n, excess);
	for (size_t i = 0; i < group->nchunks && !policy->full; i++)
	{
		if (!is_empty(policy, group, i, zone, &counts) || excess[group->chunks[i].shard] <= 0)
			continue;
		while (at < shards->n && excess[shards->all[at]] >= 0)
			at++;
		if (at == shards->n)
			break;
		i += move_empty(policy, row, i, zone, shards->all[at], excess);
		i--;
	}
}

void
tessera_policy_spread_empty(Policy *policy)
{
	size_t		nzones = policy->snapshot->nzones;
	int64_t    *excess = tessera_policy_zeroed(policy, policy->nshards, sizeof(int64_t));
	bool	   *has = tessera_policy_zeroed(policy, nzones + 1, sizeof(bool));

	for (size_t row = 0; row + 1 < policy->ngroups; row++)
	{
		const PolicyGroup *group = &policy->groups[row];

		memset(has, 0, (nzones + 1) * sizeof(bool));
		for (size_t i = 0; i < group->nchunks; i++)
			has[group->chunks[i].zone + 1] |= policy->state[group->offset + i] == POLICY_WEIGHTLESS && group->chunks[i].measured;
		for (size_t zone = 0; zone <= nzones && !policy->full; zone++)
			if (has[zone])
				spread_empty_of_zone(policy, row, (int32_t) zone - 1, excess);
	}
}
