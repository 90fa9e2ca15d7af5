/*
 * policy_simulation.c
 *	  How good and how fast the balancer's policy is, on clusters in memory: no server, and no time passes while rows move.
 *
 *	  policy_simulation [SHARDS CHUNKS GROUPS]
 *
 * The cluster is skewed: sizes of chunks are log-normal up to the size at which they would be split, sizes of groups fall by rank (Zipf), each
 * group lies on few shards, some chunks must lie in zones, one shard in a hundred is draining. It prints how long one decision takes; how many
 * bytes move until the policy asks for nothing more, against what no policy could do with less; and how many moves follow in more rounds, with
 * sizes that stay and with sizes that vary from round to round.
 */
#include "../unit/policy_model.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#define ZONES 4
#define NOISE 0.02
#define ROOM 2
#define GB (1024.0 * 1024.0 * 1024.0)

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Log-normal, median 1. */
static double
skewed(double sigma)
{
	double		u = model_random();
	double		v = model_random();

	return exp(sigma * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
}

/* Zone z has the shards that are z modulo the number of zones, so each has a share of those that are draining. */
static void
make_shards(Model *model)
{
	size_t		nshards = model->snapshot.nshards;

	for (size_t i = 0; i < nshards; i++)
	{
		model->shards[i].weight = i % 10 == 0 ? 2 : 1;
		model->shards[i].draining = i % 100 == 7;
		model->shards[i].room = ROOM;
		for (size_t zone = 0; zone < ZONES; zone++)
			model->zone_shards[zone * nshards + i] = i % ZONES == zone;
	}
}

/*
 * A fifth of the chunks belongs to zones, in long ranges. Neighbours lie together more often than not. Each group begins on 30 to 80 % of
 * the shards.
 */
static void
make_group(Model *model, size_t group, size_t nchunks)
{
	TesseraPolicyChunk *chunks = model->chunks[group];
	int32_t		nshards = (int32_t) model->snapshot.nshards;
	int32_t		used = (int32_t) (nshards * (0.3 + 0.5 * model_random())) + 1;
	int32_t		start = model_random_below(nshards);
	int32_t		shard = start;

	for (size_t i = 0; i < nchunks; i++)
	{
		if (model_random() < 0.2)
			shard = (start + (int32_t) (used * model_random() * model_random())) % nshards;
		chunks[i].bytes = model_random() < 0.05 ? 0 : 1024 * 1024 * fmin(128, 32 * skewed(0.8));
		chunks[i].load = 0;
		chunks[i].shard = shard;
		chunks[i].zone = i * 10 / nchunks >= 8 ? (int32_t) (i * 1000 / nchunks % ZONES) : -1;
		/* most chunks of zones are where they must be: the others have been given a zone since */
		if (chunks[i].zone >= 0 && model_random() < 0.8)
			chunks[i].shard = (shard / ZONES * ZONES + chunks[i].zone) % nshards;
	}
	model->groups[group].nchunks = nchunks;
	model->groups[group].max_chunk_bytes = 128.0 * 1024 * 1024;
}

static void
make_cluster(Model *model, size_t nshards, size_t nchunks, size_t ngroups)
{
	double		ranks = 0;

	model_seed = 42;
	for (size_t i = 0; i < ngroups; i++)
		ranks += 1.0 / (i + 1);
	model_create(model, nshards, ZONES, ngroups, nchunks, 0);
	model->snapshot.settings.threshold = 0.05;
	model->snapshot.settings.run_bytes = 256.0 * 1024 * 1024;
	model->snapshot.settings.run_chunks = 2000;
	model->snapshot.settings.max_actions = 2 * ROOM * nshards;
	make_shards(model);
	for (size_t i = 0; i < ngroups; i++)
		make_group(model, i, (size_t) (nchunks / ranks / (i + 1)) + 1);
}

/* ---- the lower bound ---- */

/*
 * The least number of bytes that any policy must move, for one group.
 *
 * 1. What lies on a draining shard or outside of its zone moves in any case: forced bytes.
 * 2. In the end no fill is above another by more than band (0: all are even). Let the fills of the end lie in [low, low + band]. Every shard that has
 *    more than (low + band) * weight without its forced bytes has to give the excess, and that is not counted in 1. Every shard that has less than
 *    low * weight has to receive what it lacks, and forced bytes may be what it receives; so at least that much less the forced bytes moves besides.
 *    The bound is the larger of both, for the low that makes it smallest: excess falls with low, lack grows, so it is where they meet.
 *
 * Each byte of 2 is another than each of 1, and one move per byte is assumed. Zones are left out of 2: they only make it harder.
 */
static double
excess(const Model *model, const double *amounts, double low, double band, double forced)
{
	double		above = 0;
	double		below = 0;

	for (size_t i = 0; i < model->snapshot.nshards; i++)
	{
		double		weight = model->shards[i].weight;

		if (model->shards[i].draining)
			continue;
		if (amounts[i] > (low + band) * weight)
			above += amounts[i] - (low + band) * weight;
		if (amounts[i] < low * weight)
			below += low * weight - amounts[i];
	}
	return above - (below - forced);
}

static double
group_bound(const Model *model, size_t group, double relative_band)
{
	double	   *amounts = calloc(model->snapshot.nshards, sizeof(double));
	double		forced = 0;
	double		total = 0;
	double		low = 0;
	double		high;
	double		above = 0;
	double		band;

	for (size_t i = 0; i < model->groups[group].nchunks; i++)
	{
		const TesseraPolicyChunk *chunk = &model->chunks[group][i];

		total += chunk->bytes;
		if (model->shards[chunk->shard].draining || !model_in_zone(model, chunk->zone, chunk->shard))
			forced += chunk->bytes;
		else
			amounts[chunk->shard] += chunk->bytes;
	}
	high = total / model_weight(model);
	band = relative_band * high;
	for (int i = 0; i < 60; i++)
	{
		double		middle = (low + high) / 2;

		if (excess(model, amounts, middle, band, forced) > 0)
			low = middle;
		else
			high = middle;
	}
	for (size_t i = 0; i < model->snapshot.nshards; i++)
		if (!model->shards[i].draining && amounts[i] > (high + band) * model->shards[i].weight)
			above += amounts[i] - (high + band) * model->shards[i].weight;
	free(amounts);
	return forced + above;
}

static double
lower_bound(const Model *model, double relative_band)
{
	double		bound = 0;

	for (size_t i = 0; i < model->snapshot.ngroups; i++)
		bound += group_bound(model, i, relative_band);
	return bound;
}

/* ---- runs ---- */

static double
largest_group_spread(const Model *model)
{
	double		largest = 0;

	for (size_t group = 0; group < model->snapshot.ngroups; group++)
	{
		double	   *amounts = calloc(model->snapshot.nshards, sizeof(double));
		double		low = INFINITY;
		double		high = 0;
		double		total = 0;

		model_add_amounts(model, group, amounts);
		for (size_t i = 0; i < model->snapshot.nshards; i++)
		{
			total += amounts[i];
			if (model->shards[i].draining)
				continue;
			low = fmin(low, amounts[i] / model->shards[i].weight);
			high = fmax(high, amounts[i] / model->shards[i].weight);
		}
		largest = fmax(largest, (high - low) / (total / model_weight(model)));
		free(amounts);
	}
	return largest;
}

static int
compare_times(const void *a, const void *b)
{
	const double *x = a;
	const double *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Rounds until nothing is asked for. Each starts when the last one's moves are done. */
static void
run_until_balanced(Model *model)
{
	static double times[100000];
	double		even = lower_bound(model, 0);
	double		band = lower_bound(model, model->snapshot.settings.threshold);
	double		moved = 0;
	double		spread = 0;
	size_t		moves = 0;
	size_t		twice = 0;
	size_t		rounds = 0;
	bool		done = false;
	bool	  **touched = calloc(model->snapshot.ngroups, sizeof(bool *));

	for (size_t i = 0; i < model->snapshot.ngroups; i++)
		touched[i] = calloc(model->groups[i].nchunks, sizeof(bool));
	printf("  spread of groups at the start, at most: %.3f of the mean\n", largest_group_spread(model));
	while (!done && rounds < 100000)
	{
		double		start = seconds();
		TesseraPolicyPlan *plan = tessera_policy_plan(&model->snapshot, model_alloc);

		times[rounds++] = seconds() - start;
		spread = plan->spread;
		done = plan->nactions == 0;
		for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
		{
			const TesseraPolicyAction *action = &plan->actions[i];

			model_apply(model, action);
			moved += action->bytes;
			moves++;
			for (size_t range = 0; range < action->nranges; range++)
				for (size_t j = 0; j < action->ranges[range].count; j++)
				{
					size_t		chunk = action->ranges[range].first + j;

					twice += touched[action->group][chunk];
					touched[action->group][chunk] = true;
				}
		}
		model_free();
	}
	printf("  first decision %.0f ms; ", times[0] * 1000);
	qsort(times, rounds, sizeof(double), compare_times);
	printf("median of %zu decisions %.0f ms, longest %.0f ms\n", rounds, times[rounds / 2] * 1000, times[rounds - 1] * 1000);
	printf("  %zu rounds, %zu moves, %.1f GB moved, %zu chunks more than once\n", rounds, moves, moved / GB, twice);
	printf("  lower bound for all even: %.1f GB, moved / bound = %.3f\n", even / GB, moved / even);
	printf("  lower bound for a spread of the threshold: %.1f GB, moved / bound = %.3f\n", band / GB, moved / band);
	printf("  spread at the end: nodes %.3f, groups at most %.3f of the mean; threshold %.3f\n", spread, largest_group_spread(model),
		   model->snapshot.settings.threshold);
	for (size_t i = 0; i < model->snapshot.ngroups; i++)
		free(touched[i]);
	free(touched);
}

/* More rounds; noise: each chunk's size differs from what it was at first by up to so large a part, at random in each round. */
static void
run_on(Model *model, int rounds, double noise)
{
	double	  **bytes = calloc(model->snapshot.ngroups, sizeof(double *));
	double		moved = 0;
	size_t		moves = 0;
	size_t		late = 0;

	for (size_t group = 0; group < model->snapshot.ngroups; group++)
	{
		bytes[group] = calloc(model->groups[group].nchunks, sizeof(double));
		for (size_t i = 0; i < model->groups[group].nchunks; i++)
			bytes[group][i] = model->chunks[group][i].bytes;
	}
	for (int round = 0; round < rounds; round++)
	{
		TesseraPolicyPlan *plan;

		for (size_t group = 0; group < model->snapshot.ngroups; group++)
			for (size_t i = 0; i < model->groups[group].nchunks; i++)
				model->chunks[group][i].bytes = bytes[group][i] * (1 + noise * (2 * model_random() - 1));
		plan = tessera_policy_plan(&model->snapshot, model_alloc);
		for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
		{
			model_apply(model, &plan->actions[i]);
			moved += plan->actions[i].bytes;
			moves++;
			late += round >= rounds / 2;
		}
		model_free();
	}
	printf("  %d more rounds, sizes vary by %.0f %%: %zu moves, %.2f GB; of them %zu in the second half\n",
		   rounds, noise * 100, moves, moved / GB, late);
	for (size_t group = 0; group < model->snapshot.ngroups; group++)
	{
		for (size_t i = 0; i < model->groups[group].nchunks; i++)
			model->chunks[group][i].bytes = bytes[group][i];
		free(bytes[group]);
	}
	free(bytes);
}

static void
simulate(size_t nshards, size_t nchunks, size_t ngroups)
{
	Model		model;

	make_cluster(&model, nshards, nchunks, ngroups);
	printf("%zu shards, %zu chunks, %zu groups\n", nshards, nchunks, ngroups);
	run_until_balanced(&model);
	run_on(&model, 1000, 0);
	run_on(&model, 1000, NOISE);
	model_drop(&model);
}

int
main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4)
		simulate(strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	else
	{
		simulate(100, 20000, 20);
		simulate(1000, 1000000, 20);
	}
	return 0;
}
