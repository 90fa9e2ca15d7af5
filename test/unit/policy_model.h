/*
 * policy_model.h
 *	  A cluster in memory for the balancer's policy: makes snapshots, carries out plans, and measures amounts. For unit tests and the simulation
 *	  (test/bench/policy_simulation.c).
 */
#ifndef TESSERA_TEST_POLICY_MODEL_H
#define TESSERA_TEST_POLICY_MODEL_H

#include "balance/policy.h"

#include <stdlib.h>
#include <string.h>

typedef struct Model
{
	TesseraPolicySnapshot snapshot; /* its arrays are those below */
	TesseraPolicyShard *shards;
	bool	   *zone_shards;
	TesseraPolicyGroup *groups;
	TesseraPolicyChunk **chunks;	/* of each group */
	TesseraPolicySchema *schemas;
} Model;

/* ---- memory of plans: one after the other, all freed at once ---- */

#define BLOCKS_MAX 100000

static void *model_blocks[BLOCKS_MAX];
static size_t model_nblocks;

/* Memory comes dirty, as the policy must be able to bear. */
static void *
model_alloc(size_t size)
{
	void	   *block = malloc(size);

	if (block == NULL || model_nblocks == BLOCKS_MAX)
		abort();
	memset(block, 0x7f, size < 4096 ? size : 4096);
	model_blocks[model_nblocks++] = block;
	return block;
}

static void
model_free(void)
{
	while (model_nblocks > 0)
		free(model_blocks[--model_nblocks]);
}

/* ---- random numbers ---- */

static uint64_t model_seed = 1;

/* In [0, 1). */
static double
model_random(void)
{
	model_seed = model_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double) (model_seed >> 33) / (double) (UINT64_C(1) << 31);
}

static int32_t
model_random_below(int32_t n)
{
	return (int32_t) (model_random() * n);
}

/* ---- the cluster ---- */

static void
model_create(Model *model, size_t nshards, size_t nzones, size_t ngroups, size_t nchunks, size_t nschemas)
{
	memset(model, 0, sizeof(*model));
	model->shards = calloc(nshards + 1, sizeof(TesseraPolicyShard));
	model->zone_shards = calloc(nzones * nshards + 1, sizeof(bool));
	model->groups = calloc(ngroups + 1, sizeof(TesseraPolicyGroup));
	model->chunks = calloc(ngroups + 1, sizeof(TesseraPolicyChunk *));
	model->schemas = calloc(nschemas + 1, sizeof(TesseraPolicySchema));
	for (size_t i = 0; i < nshards; i++)
	{
		model->shards[i].node_id = (int32_t) i + 1;
		model->shards[i].weight = 1;
		model->shards[i].usable = true;
		model->shards[i].room = 1000;
	}
	for (size_t i = 0; i < ngroups; i++)
	{
		model->chunks[i] = calloc(nchunks + 1, sizeof(TesseraPolicyChunk));
		model->groups[i].balancing = true;
		model->groups[i].max_chunk_bytes = 128;
		model->groups[i].chunks = model->chunks[i];
	}
	model->snapshot.settings.balance = true;
	model->snapshot.settings.threshold = 0.1;
	model->snapshot.settings.max_actions = 100000;
	model->snapshot.nshards = nshards;
	model->snapshot.shards = model->shards;
	model->snapshot.nzones = nzones;
	model->snapshot.zone_shards = model->zone_shards;
	model->snapshot.ngroups = ngroups;
	model->snapshot.groups = model->groups;
	model->snapshot.nschemas = nschemas;
	model->snapshot.schemas = model->schemas;
}

static void
model_drop(Model *model)
{
	for (size_t i = 0; i < model->snapshot.ngroups; i++)
		free(model->chunks[i]);
	free(model->shards);
	free(model->zone_shards);
	free(model->groups);
	free(model->chunks);
	free(model->schemas);
}

static bool
model_in_zone(const Model *model, int32_t zone, int32_t shard)
{
	return zone < 0 || model->zone_shards[(size_t) zone * model->snapshot.nshards + shard];
}

static double
model_amount(const Model *model, const TesseraPolicyChunk *chunk)
{
	switch (model->snapshot.settings.measure)
	{
		case TESSERA_BY_COUNT:
			return 1;
		case TESSERA_BY_LOAD:
			return chunk->load;
		case TESSERA_BY_BYTES:
			break;
	}
	return chunk->bytes;
}

static double
model_schema_amount(const Model *model, const TesseraPolicySchema *schema)
{
	switch (model->snapshot.settings.measure)
	{
		case TESSERA_BY_COUNT:
			return 0;
		case TESSERA_BY_LOAD:
			return schema->load;
		case TESSERA_BY_BYTES:
			break;
	}
	return schema->bytes;
}

/* Amount of a group on each shard, added to amounts; group ngroups: the schemas. */
static void
model_add_amounts(const Model *model, size_t group, double *amounts)
{
	if (group == model->snapshot.ngroups)
		for (size_t i = 0; i < model->snapshot.nschemas; i++)
			amounts[model->schemas[i].shard] += model_schema_amount(model, &model->schemas[i]);
	else
		for (size_t i = 0; i < model->groups[group].nchunks; i++)
			amounts[model->chunks[group][i].shard] += model_amount(model, &model->chunks[group][i]);
}

static double
model_weight(const Model *model)
{
	double		weight = 0;

	for (size_t i = 0; i < model->snapshot.nshards; i++)
		weight += model->shards[i].draining ? 0 : model->shards[i].weight;
	return weight;
}

/* Carries out one action. Chunks that are merged stay, the first with the bytes of all. */
static void
model_apply(Model *model, const TesseraPolicyAction *action)
{
	if (action->kind == TESSERA_POLICY_MOVE_SCHEMA)
		model->schemas[action->first].shard = action->to;
	else if (action->kind == TESSERA_POLICY_MOVE)
		for (size_t range = 0; range < action->nranges; range++)
			for (size_t i = 0; i < action->ranges[range].count; i++)
				model->chunks[action->group][action->ranges[range].first + i].shard = action->to;
	else
	{
		TesseraPolicyChunk *chunks = model->chunks[action->group];
		size_t		left = model->groups[action->group].nchunks - action->first - action->count;

		for (size_t i = 1; i < action->count; i++)
			chunks[action->first].bytes += chunks[action->first + i].bytes;
		memmove(&chunks[action->first + 1], &chunks[action->first + action->count], left * sizeof(TesseraPolicyChunk));
		model->groups[action->group].nchunks -= action->count - 1;
	}
}

#endif							/* TESSERA_TEST_POLICY_MODEL_H */
