/*
 * policy_scan.c
 *	  Reading a snapshot for the balancer's policy: who may have what, how much is where, what must move and cannot.
 *
 * Two scans over the chunks: the first sums and says of each chunk what may happen to it, the second makes the lists that this gives, at their exact
 * sizes: runs of chunks that are forced to move, and for each group and shard those that may move for balance.
 */
#include "balance/policy_private.h"

#include <stdlib.h>
#include <string.h>

/* Weights outside of these bounds are taken for the bound, as amounts are: sums stay finite, and nothing is divided by zero. */
#define MIN_WEIGHT 1e-6
#define MAX_WEIGHT 1e12

/* Of max_chunk_bytes: a few dozen rows, where chunks have 128 MB. */
#define NEARLY_EMPTY (1.0 / 8192)

/* Chunks count a little where bytes alone tell shards apart. */
#define CHUNK_SHARE 0.01

void *
tessera_policy_zeroed(Policy *policy, size_t n, size_t size)
{
	size_t		bytes = (n > 0 ? n : 1) * size;

	return memset(policy->alloc(bytes), 0, bytes);
}

void *
tessera_policy_grow(Policy *policy, void *array, size_t n, size_t *max, size_t size)
{
	void	   *larger;

	if (n < *max)
		return array;
	*max = *max > 0 ? *max * 2 : 16;
	larger = policy->alloc(*max * size);
	if (n > 0)
		memcpy(larger, array, n * size);
	return larger;
}

static double
bounded(double value, double low, double high)
{
	if (!(value > low))
		return low;
	return value < high ? value : high;
}

double
tessera_policy_bytes(const TesseraPolicyChunk *chunk)
{
	return bounded(chunk->bytes, 0, POLICY_MAX_AMOUNT);
}

double
tessera_policy_amount(const Policy *policy, const PolicyGroup *group, const TesseraPolicyChunk *chunk)
{
	switch (policy->snapshot->settings.measure)
	{
		case TESSERA_BY_COUNT:
			return group->number >= 0 ? 1 : 0;
		case TESSERA_BY_LOAD:
			return bounded(chunk->load, 0, POLICY_MAX_AMOUNT);
		case TESSERA_BY_BYTES:
			break;
	}
	return tessera_policy_bytes(chunk);
}

bool
tessera_policy_is_empty(const PolicyGroup *group, const TesseraPolicyChunk *chunk)
{
	return chunk->measured && group->number >= 0 && tessera_policy_bytes(chunk) <= group->max_chunk_bytes * NEARLY_EMPTY;
}

bool
tessera_policy_forced(const Policy *policy, int32_t shard, int32_t zone, TesseraPolicyReason *reason)
{
	const TesseraPolicySnapshot *snapshot = policy->snapshot;

	*reason = snapshot->shards[shard].draining ? TESSERA_POLICY_DRAINING : TESSERA_POLICY_ZONE;
	return snapshot->shards[shard].draining || (zone >= 0 && !snapshot->zone_shards[(size_t) zone * policy->nshards + shard]);
}

/* ---- shards ---- */

/* Which shards may receive chunks of a zone; zone -1: of none. */
static void
scan_zone(Policy *policy, int32_t zone)
{
	const TesseraPolicySnapshot *snapshot = policy->snapshot;
	PolicyShards *shards = &policy->zones[zone + 1];

	for (int pass = 0; pass < 2; pass++)
	{
		if (pass == 1)
			shards->all = policy->alloc((shards->n > 0 ? shards->n : 1) * sizeof(int32_t));
		shards->n = 0;
		for (size_t i = 0; i < policy->nshards; i++)
		{
			if (snapshot->shards[i].draining || (zone >= 0 && !snapshot->zone_shards[(size_t) zone * policy->nshards + i]))
				continue;
			shards->others = true;
			if (!snapshot->shards[i].usable)
				continue;
			if (pass == 1)
				shards->all[shards->n] = (int32_t) i;
			shards->n++;
		}
	}
}

static void
scan_shards(Policy *policy)
{
	const TesseraPolicySnapshot *snapshot = policy->snapshot;

	policy->nshards = snapshot->nshards;
	policy->weight = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	policy->room = tessera_policy_zeroed(policy, policy->nshards, sizeof(int32_t));
	policy->newest = tessera_policy_zeroed(policy, policy->nshards, sizeof(int32_t));
	for (size_t i = 0; i < policy->nshards; i++)
	{
		policy->weight[i] = bounded(snapshot->shards[i].weight, MIN_WEIGHT, MAX_WEIGHT);
		policy->room[i] = snapshot->shards[i].room;
		policy->newest[i] = -1;
		if (snapshot->shards[i].draining)
			continue;
		policy->total_weight += policy->weight[i];
		policy->nrecipients++;
	}
	policy->zones = tessera_policy_zeroed(policy, snapshot->nzones + 1, sizeof(PolicyShards));
	for (size_t zone = 0; zone <= snapshot->nzones; zone++)
		scan_zone(policy, (int32_t) zone - 1);
}

/* ---- groups ---- */

/* The placed schemas as chunks of one more group. */
static void
schemas_as_group(Policy *policy, PolicyGroup *group)
{
	const TesseraPolicySnapshot *snapshot = policy->snapshot;
	TesseraPolicyChunk *chunks = tessera_policy_zeroed(policy, snapshot->nschemas, sizeof(TesseraPolicyChunk));

	for (size_t i = 0; i < snapshot->nschemas; i++)
	{
		const TesseraPolicySchema *schema = &snapshot->schemas[i];

		chunks[i].bytes = schema->bytes;
		chunks[i].load = schema->load;
		chunks[i].shard = schema->shard;
		chunks[i].zone = -1;
		chunks[i].busy = schema->busy;
	}
	group->number = -1;
	group->balancing = true;
	group->nchunks = snapshot->nschemas;
	group->chunks = chunks;
}

static void
list_groups(Policy *policy)
{
	const TesseraPolicySnapshot *snapshot = policy->snapshot;
	size_t		offset = 0;

	policy->ngroups = snapshot->ngroups + 1;
	policy->groups = tessera_policy_zeroed(policy, policy->ngroups, sizeof(PolicyGroup));
	for (size_t i = 0; i < snapshot->ngroups; i++)
	{
		PolicyGroup *group = &policy->groups[i];

		group->number = (int32_t) i;
		group->balancing = snapshot->groups[i].balancing;
		group->max_chunk_bytes = snapshot->groups[i].max_chunk_bytes;
		group->nchunks = snapshot->groups[i].nchunks;
		group->chunks = snapshot->groups[i].chunks;
	}
	schemas_as_group(policy, &policy->groups[snapshot->ngroups]);
	for (size_t i = 0; i < policy->ngroups; i++)
	{
		policy->groups[i].offset = offset;
		offset += policy->groups[i].nchunks;
	}
}

static void
add_problem(Policy *policy, TesseraPolicyObstacle obstacle, const PolicyGroup *group, size_t i)
{
	TesseraPolicyPlan *plan = policy->plan;
	const TesseraPolicyChunk *chunk = &group->chunks[i];
	TesseraPolicyProblem *problem = plan->nproblems > 0 ? &plan->problems[plan->nproblems - 1] : NULL;

	if (problem != NULL && problem->obstacle == obstacle && problem->group == group->number && problem->shard == chunk->shard &&
		problem->zone == chunk->zone && problem->first + problem->count == i)
	{
		problem->count++;
		return;
	}
	plan->problems = tessera_policy_grow(policy, plan->problems, plan->nproblems, &policy->max_problems, sizeof(TesseraPolicyProblem));
	problem = &plan->problems[plan->nproblems++];
	problem->obstacle = obstacle;
	problem->group = group->number;
	problem->first = i;
	problem->count = 1;
	problem->shard = chunk->shard;
	problem->zone = chunk->zone;
}

/* A chunk that must leave its shard: whether it can. */
static PolicyChunkState
judge_forced(Policy *policy, const PolicyGroup *group, size_t i)
{
	const TesseraPolicyChunk *chunk = &group->chunks[i];
	const PolicyShards *shards = &policy->zones[chunk->zone + 1];

	if (group->number < 0 && !policy->snapshot->schemas[i].movable)
		add_problem(policy, TESSERA_POLICY_IMMOVABLE, group, i);
	else if (!shards->others)
		add_problem(policy, TESSERA_POLICY_NO_SHARD, group, i);
	else if (shards->n == 0 || !policy->snapshot->shards[chunk->shard].usable)
		add_problem(policy, TESSERA_POLICY_UNUSABLE, group, i);
	else
		return POLICY_FORCED;
	return POLICY_FIXED;
}

static PolicyChunkState
judge_chunk(Policy *policy, const PolicyGroup *group, size_t i, double amount)
{
	const TesseraPolicyChunk *chunk = &group->chunks[i];
	const TesseraPolicySettings *settings = &policy->snapshot->settings;
	TesseraPolicyReason reason;

	if (chunk->busy)
		return POLICY_FIXED;
	if (tessera_policy_forced(policy, chunk->shard, chunk->zone, &reason))
		return judge_forced(policy, group, i);
	if (!settings->balance || !group->balancing || chunk->jumbo || chunk->pinned || !policy->snapshot->shards[chunk->shard].usable ||
		policy->zones[chunk->zone + 1].n < 2 || (group->number < 0 && !policy->snapshot->schemas[i].movable))
		return POLICY_FIXED;
	if (settings->measure == TESSERA_BY_BYTES && tessera_policy_is_empty(group, chunk))
		return POLICY_WEIGHTLESS;
	if (amount <= 0)
		return settings->measure == TESSERA_BY_BYTES ? POLICY_WEIGHTLESS : POLICY_FIXED;
	if (settings->measure == TESSERA_BY_LOAD && tessera_policy_bytes(chunk) <= 0)
		return POLICY_FIXED;
	return POLICY_LOOSE;
}

/*
 * The block of a zone in a group that is being scanned. numbers: [zone + 1], one more than the number of the block, of this group or an earlier one.
 */
static PolicyBlock *
find_block(Policy *policy, PolicyGroup *group, int32_t zone, size_t *numbers)
{
	PolicyBlock *block;

	if (numbers[zone + 1] <= group->first_block)
	{
		policy->blocks = tessera_policy_grow(policy, policy->blocks, policy->nblocks, &policy->max_blocks, sizeof(PolicyBlock));
		block = &policy->blocks[policy->nblocks];
		block->zone = zone;
		block->forced = 0;
		block->loose = 0;
		block->part = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
		numbers[zone + 1] = ++policy->nblocks;
		group->nblocks++;
	}
	return &policy->blocks[numbers[zone + 1] - 1];
}

/* First scan of a group. Of ideal, here: what is where, without what is forced to move. */
static void
sum_group(Policy *policy, size_t row, size_t *numbers)
{
	PolicyGroup *group = &policy->groups[row];
	double	   *amounts = policy->amount + row * policy->nshards;
	double	   *ideal = policy->ideal + row * policy->nshards;
	size_t	   *cell = policy->cell + row * policy->nshards;

	group->first_block = policy->nblocks;
	for (size_t i = 0; i < group->nchunks; i++)
	{
		const TesseraPolicyChunk *chunk = &group->chunks[i];
		double		amount = tessera_policy_amount(policy, group, chunk);
		PolicyChunkState state = judge_chunk(policy, group, i, amount);

		policy->state[group->offset + i] = (uint8_t) state;
		amounts[chunk->shard] += amount;
		group->total += amount;
		if (state == POLICY_FORCED)
		{
			find_block(policy, group, chunk->zone, numbers)->forced += amount;
			continue;
		}
		ideal[chunk->shard] += amount;
		if (state == POLICY_LOOSE)
		{
			PolicyBlock *block = find_block(policy, group, chunk->zone, numbers);

			block->loose += amount;
			block->part[chunk->shard] += amount;
			cell[chunk->shard]++;
		}
	}
}

/* What the sums give: whole nodes, means, and what the evenness of each group counts for. */
static void
scale_groups(Policy *policy)
{
	double		weight = policy->total_weight;

	for (size_t row = 0; row < policy->ngroups; row++)
	{
		PolicyGroup *group = &policy->groups[row];

		for (size_t shard = 0; shard < policy->nshards; shard++)
		{
			policy->node[shard] += policy->amount[row * policy->nshards + shard];
			policy->node_ideal[shard] += policy->ideal[row * policy->nshards + shard];
		}
		policy->node_total += group->total;
		if (group->total <= 0 || weight <= 0)
			continue;
		group->mean = group->total / weight;
		if (group->number >= 0)
			group->scale = bounded((group->nchunks - 1) / (double) policy->nrecipients, 0, 1) / group->mean;
	}
	if (policy->node_total > 0 && weight > 0)
	{
		policy->node_mean = policy->node_total / weight;
		policy->node_scale = 1 / policy->node_mean;
	}
}

/* Bytes and chunks of each shard, as shares of all. */
static void
sum_placed(Policy *policy)
{
	double		bytes = 0;
	size_t		n = 0;

	for (size_t row = 0; row < policy->ngroups; row++)
	{
		for (size_t i = 0; i < policy->groups[row].nchunks; i++)
			bytes += tessera_policy_bytes(&policy->groups[row].chunks[i]);
		n += policy->groups[row].nchunks;
	}
	policy->byte_share = bytes > 0 ? 1 / bytes : 0;
	policy->chunk_share = n > 0 ? CHUNK_SHARE / n : 0;
	for (size_t row = 0; row < policy->ngroups; row++)
		for (size_t i = 0; i < policy->groups[row].nchunks; i++)
		{
			const TesseraPolicyChunk *chunk = &policy->groups[row].chunks[i];

			policy->placed[chunk->shard] += tessera_policy_bytes(chunk) * policy->byte_share + policy->chunk_share;
		}
}

/* ---- lists ---- */

/*
 * No run is to have more than its recipient's part of what must move, or half of what the threshold leaves open: larger ones would make the shards
 * uneven.
 */
static double
run_limit(const Policy *policy, const PolicyGroup *group, const PolicyBlock *block)
{
	double		part = block->forced;
	double		open = policy->snapshot->settings.threshold * group->total / 2;

	return (part > open ? part : open) / (double) policy->zones[block->zone + 1].n;
}

/* Whether chunk i of the group, forced to move, joins the run of its predecessors. */
static bool
joins(const Policy *policy, const PolicyGroup *group, size_t i, const PolicyRun *run, double limit)
{
	const TesseraPolicyChunk *chunk = &group->chunks[i];

	return group->number >= 0 && run->first + run->count == i && run->count < tessera_policy_run_chunks(policy) &&
		group->chunks[i - 1].shard == chunk->shard && run->zone == chunk->zone &&
		run->bytes + tessera_policy_bytes(chunk) <= policy->snapshot->settings.run_bytes &&
		run->amount + tessera_policy_amount(policy, group, chunk) <= limit;
}

/* Second scan of a group: counts its runs, and makes them if there is memory for them. */
static size_t
list_runs(Policy *policy, size_t row, size_t *numbers, PolicyRun *runs)
{
	PolicyGroup *group = &policy->groups[row];
	PolicyRun	run;
	size_t		n = 0;

	memset(&run, 0, sizeof(run));
	for (size_t i = 0; i < group->nchunks; i++)
	{
		const TesseraPolicyChunk *chunk = &group->chunks[i];

		if (policy->state[group->offset + i] != POLICY_FORCED)
			continue;
		if (run.count == 0 || !joins(policy, group, i, &run, run_limit(policy, group, find_block(policy, group, chunk->zone, numbers))))
		{
			memset(&run, 0, sizeof(run));
			tessera_policy_forced(policy, chunk->shard, chunk->zone, &run.reason);
			run.group = (int32_t) row;
			run.zone = chunk->zone;
			run.first = i;
			n++;
		}
		run.count++;
		run.amount += tessera_policy_amount(policy, group, chunk);
		run.bytes += tessera_policy_bytes(chunk);
		if (runs != NULL)
			runs[n - 1] = run;
	}
	return n;
}

static int
compare_runs(const void *a, const void *b)
{
	const PolicyRun *x = a;
	const PolicyRun *y = b;

	if (x->reason != y->reason)
		return x->reason < y->reason ? -1 : 1;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	if (x->zone != y->zone)
		return x->zone < y->zone ? -1 : 1;
	if (x->amount != y->amount)
		return x->amount > y->amount ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return x->first < y->first ? -1 : 1;
}

/* The numbers that find_block has given to the blocks of a group. */
static void
number_blocks(const Policy *policy, const PolicyGroup *group, size_t *numbers)
{
	for (size_t i = 0; i < group->nblocks; i++)
		numbers[policy->blocks[group->first_block + i].zone + 1] = group->first_block + i + 1;
}

static void
make_runs(Policy *policy, size_t *numbers)
{
	size_t		n = 0;

	for (int pass = 0; pass < 2; pass++)
	{
		if (pass == 1)
			policy->runs = tessera_policy_zeroed(policy, n, sizeof(PolicyRun));
		n = 0;
		for (size_t row = 0; row < policy->ngroups; row++)
		{
			number_blocks(policy, &policy->groups[row], numbers);
			n += list_runs(policy, row, numbers, pass == 1 ? policy->runs + n : NULL);
		}
	}
	policy->nruns = n;
	qsort(policy->runs, n, sizeof(PolicyRun), compare_runs);
}

/* cell: counts become positions of the ends, and, while entries are put in from the last on, of the beginnings. */
static void
make_entries(Policy *policy, size_t *numbers)
{
	size_t		ncells = policy->ngroups * policy->nshards;
	size_t		n = 0;

	for (size_t i = 0; i < ncells; i++)
	{
		n += policy->cell[i];
		policy->cell[i] = n;
	}
	policy->cell[ncells] = n;
	policy->entries = tessera_policy_zeroed(policy, n, sizeof(PolicyEntry));
	for (size_t row = 0; row < policy->ngroups; row++)
	{
		const PolicyGroup *group = &policy->groups[row];

		number_blocks(policy, group, numbers);
		for (size_t i = group->nchunks; i-- > 0;)
			if (policy->state[group->offset + i] == POLICY_LOOSE)
			{
				const TesseraPolicyChunk *chunk = &group->chunks[i];
				PolicyEntry *entry = &policy->entries[--policy->cell[row * policy->nshards + chunk->shard]];

				entry->amount = tessera_policy_amount(policy, group, chunk);
				entry->bytes = tessera_policy_bytes(chunk);
				entry->chunk = (uint32_t) (group->offset + i);
				entry->block = (int32_t) (numbers[chunk->zone + 1] - 1);
			}
	}
}

void
tessera_policy_scan(Policy *policy)
{
	size_t		ncells;
	size_t	   *numbers;
	const PolicyGroup *last;

	scan_shards(policy);
	list_groups(policy);
	last = &policy->groups[policy->ngroups - 1];
	ncells = policy->ngroups * policy->nshards;
	numbers = tessera_policy_zeroed(policy, policy->snapshot->nzones + 1, sizeof(size_t));
	policy->state = tessera_policy_zeroed(policy, last->offset + last->nchunks, sizeof(uint8_t));
	policy->amount = tessera_policy_zeroed(policy, ncells, sizeof(double));
	policy->ideal = tessera_policy_zeroed(policy, ncells, sizeof(double));
	policy->cell = tessera_policy_zeroed(policy, ncells + 1, sizeof(size_t));
	policy->cell_sorted = tessera_policy_zeroed(policy, ncells, sizeof(bool));
	policy->node = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	policy->node_ideal = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	policy->placed = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	for (size_t row = 0; row < policy->ngroups; row++)
		sum_group(policy, row, numbers);
	scale_groups(policy);
	sum_placed(policy);
	make_runs(policy, numbers);
	make_entries(policy, numbers);
}
