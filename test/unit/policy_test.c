/*
 * policy_test.c
 *	  The balancer's choice (S94-S103): each rule in a small cluster, then its promises in random ones: a plan can be carried out as it stands, every
 *	  action for balance makes the cluster less uneven, and after some rounds there is nothing left to do.
 */
#include "policy_model.h"

#include <math.h>

#include "tap.h"

/* The most that random clusters have. */
#define SHARDS 12
#define CHUNKS 120

static Model model;
static TesseraPolicyPlan *plan;

/* n more chunks of a group, all alike; returns the first's number. */
static size_t
add(size_t group, int32_t shard, size_t n, double bytes)
{
	size_t		first = model.groups[group].nchunks;

	for (size_t i = 0; i < n; i++)
	{
		TesseraPolicyChunk *chunk = &model.chunks[group][model.groups[group].nchunks++];

		memset(chunk, 0, sizeof(*chunk));
		chunk->bytes = bytes;
		chunk->shard = shard;
		chunk->zone = -1;
	}
	return first;
}

/* A cluster of shards of weight 1, and groups without chunks. */
static void
begin(size_t nshards, size_t nzones, size_t ngroups, size_t nschemas)
{
	model_create(&model, nshards, nzones, ngroups, 1000, nschemas);
}

static TesseraPolicyPlan *
make_plan(void)
{
	model_free();
	plan = tessera_policy_plan(&model.snapshot, model_alloc);
	return plan;
}

static void
end(void)
{
	model_free();
	model_drop(&model);
}

/* Number of actions with the reason. */
static size_t
actions(TesseraPolicyReason reason)
{
	size_t		n = 0;

	for (size_t i = 0; i < plan->nactions; i++)
		n += plan->actions[i].reason == reason;
	return n;
}

static bool
is_action(size_t i, TesseraPolicyReason reason, size_t first, size_t count, int32_t from, int32_t to)
{
	const TesseraPolicyAction *action = &plan->actions[i];

	return i < plan->nactions && action->reason == reason && action->first == first && action->count == count &&
		action->from == from && action->to == to;
}

static bool
is_problem(size_t i, TesseraPolicyObstacle obstacle, int32_t group, size_t first, size_t count)
{
	const TesseraPolicyProblem *problem = &plan->problems[i];

	return i < plan->nproblems && problem->obstacle == obstacle && problem->group == group && problem->first == first && problem->count == count;
}

/* Makes plans and carries out what starts now, until nothing does. Returns the number of rounds. */
static int
run_rounds(int most)
{
	int			round;

	for (round = 0; round < most; round++)
	{
		make_plan();
		if (plan->nactions == 0 || !plan->actions[0].now)
			break;
		for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
			model_apply(&model, &plan->actions[i]);
	}
	return round;
}

static double
group_amount(size_t group, int32_t shard)
{
	double		amounts[1000] = {0};

	model_add_amounts(&model, group, amounts);
	return amounts[shard];
}

/* ---- rules ---- */

/* How many chunks of a group a shard has. */
static int
chunks_of(size_t group, int32_t shard)
{
	int			n = 0;

	for (size_t i = 0; i < model.groups[group].nchunks; i++)
		n += model.chunks[group][i].shard == shard;
	return n;
}

static void
test_joined_moves(void)
{
	bool		two;

	/* every third one is the draining shard's, which has room for two moves */
	begin(3, 0, 1, 0);
	model.shards[2].draining = true;
	model.shards[2].room = 2;
	for (int i = 0; i < 85; i++)
	{
		add(0, 2, 1, i % 5 == 0 ? 1 : 0);
		add(0, 0, 1, 1);
		add(0, 1, 1, 1);
	}
	model.snapshot.settings.run_bytes = 100;
	make_plan();
	two = plan->nactions == 2 && plan->actions[0].now && plan->actions[1].now && plan->actions[0].nranges + plan->actions[1].nranges == 85;
	check(two && plan->actions[0].ranges[1].first > plan->actions[0].ranges[0].first && plan->actions[0].bytes + plan->actions[1].bytes == 17,
		  "what must leave a shard goes along with what leaves it for the same one, though they are no neighbours");
	run_rounds(2);
	check(plan->nactions == 0 && chunks_of(0, 2) == 0, "all of it");
	end();

	begin(2, 0, 1, 0);
	model.shards[0].draining = true;
	model.shards[0].room = 1;
	for (int i = 0; i < 10; i++)
	{
		add(0, 0, 1, 10);
		add(0, 1, 1, 10);
	}
	model.snapshot.settings.run_bytes = 45;
	make_plan();
	check(plan->actions[0].now && plan->actions[0].nranges == 4 && plan->actions[0].bytes == 40 && !plan->actions[1].now,
		  "up to run_bytes; the rest comes later");
	end();

	/* of what is chosen for balance in a row, what is no neighbour goes along, too */
	begin(2, 0, 1, 0);
	for (int i = 0; i < 10; i++)
	{
		add(0, 0, 1, 10);
		add(0, 1, 1, 0);
	}
	model.snapshot.settings.run_bytes = 100;
	make_plan();
	check(plan->nactions == 1 && plan->actions[0].bytes == 50 && plan->actions[0].nranges == 5 && plan->spread_after == 0,
		  "moves for balance between the same shards are one");
	end();
}

static void
test_empty(void)
{
	size_t		first;

	begin(3, 0, 1, 0);
	first = add(0, 0, 256, 0);
	for (size_t i = 0; i < 256; i++)
		model.chunks[0][first + i].measured = true;
	make_plan();
	check(plan->nactions == 2 && actions(TESSERA_POLICY_EMPTY) == 2 && plan->actions[0].count == 85 && plan->actions[0].nranges == 1,
		  "empty chunks are evened out by their number, in one move for each shard");
	run_rounds(2);
	check(plan->nactions == 0 && chunks_of(0, 0) == 86 && chunks_of(0, 1) == 85 && chunks_of(0, 2) == 85, "and rest then");
	model.shards[1].draining = true;
	run_rounds(3);
	check(plan->nactions == 0 && chunks_of(0, 0) == 128 && chunks_of(0, 2) == 128, "so when a shard leaves");
	model.shards[1].draining = false;
	model.snapshot.settings.run_chunks = 10;
	make_plan();
	for (size_t i = 0; i < plan->nactions; i++)
		check(plan->actions[i].nchunks <= 10, "in actions of run_chunks at most");
	run_rounds(30);
	check(plan->nactions == 0 && chunks_of(0, 0) == 86 && chunks_of(0, 1) == 85 && chunks_of(0, 2) == 85, "so they come back");
	end();

	/* a few rows each, beside a shard that has much more */
	begin(2, 0, 1, 0);
	first = add(0, 0, 20, 128.0 / 10000);
	add(0, 1, 1, 60);
	for (size_t i = 0; i < 20; i++)
		model.chunks[0][first + i].measured = true;
	run_rounds(2);
	check(plan->nactions == 0 && chunks_of(0, 0) == 10 && chunks_of(0, 1) == 11, "so are nearly empty ones, whatever else a shard has");
	end();

	/* pieces that are no neighbours */
	begin(2, 0, 1, 0);
	for (int i = 0; i < 20; i++)
	{
		first = add(0, 0, 2, 0);
		model.chunks[0][first].measured = true;
		model.chunks[0][first + 1].measured = i % 2 == 0;
		model.chunks[0][first + 1].pinned = i % 4 == 0;
	}
	model.shards[0].room = 1;
	make_plan();
	check(plan->nactions == 1 && plan->actions[0].now && plan->actions[0].nranges > 1, "in one action, whether they are neighbours or not");
	run_rounds(1);
	check(chunks_of(0, 1) == 15, "what is not measured or is pinned stays");
	end();

	begin(2, 1, 1, 0);
	model.zone_shards[0] = true;
	first = add(0, 0, 10, 0);
	for (size_t i = 0; i < 10; i++)
	{
		model.chunks[0][first + i].measured = true;
		model.chunks[0][first + i].zone = 0;
	}
	make_plan();
	check(plan->nactions == 0, "nor does what its zone keeps there");
	end();
}

static void
test_nothing_to_do(void)
{
	begin(0, 0, 0, 0);
	make_plan();
	check(plan->nactions == 0 && plan->complete && plan->spread == 0, "no shard: nothing to do");
	end();

	begin(1, 0, 1, 0);
	add(0, 0, 10, 100);
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 0 && plan->fill[0] == 1000 && plan->mean_fill == 1000, "one shard has it all");
	end();

	begin(3, 0, 1, 0);
	add(0, 0, 10, 0);
	make_plan();
	check(plan->nactions == 0 && plan->spread == 0, "empty chunks are even by bytes");
	end();

	test_empty();

	begin(2, 0, 1, 0);
	add(0, 0, 11, 10);
	add(0, 1, 10, 10);
	make_plan();
	check(plan->nactions == 0 && plan->spread > 0.09 && plan->spread < 0.1, "a difference below the threshold stays");
	end();
}

static void
test_groups(void)
{
	bool		good = true;

	begin(2, 0, 1, 0);
	add(0, 0, 10, 10);
	make_plan();
	check(plan->nactions == 5 && actions(TESSERA_POLICY_GROUP) == 5, "a group is made even (S94)");
	check(plan->actions[0].from_fill == 100 && plan->actions[0].to_fill == 0 && plan->spread == 2 && plan->spread_after == 0, "fills and spreads");
	check(plan->actions[0].bytes == 10 && plan->actions[0].kind == TESSERA_POLICY_MOVE && plan->complete, "what an action says");
	end();

	begin(2, 0, 2, 0);
	add(0, 0, 10, 10);
	add(1, 1, 10, 10);
	make_plan();
	check(plan->spread == 0 && actions(TESSERA_POLICY_GROUP) == 10, "each group is made even where the nodes are already");
	end();

	begin(10, 0, 2, 0);
	for (int32_t i = 0; i < 10; i++)
		add(0, i, 100, i == 0 ? 95 : 100);
	add(1, 0, 20, 5);
	run_rounds(10);
	check(group_amount(1, 0) == 10 && group_amount(1, 9) == 10, "a small group is spread even if a large one leaves its shard emptier");
	end();

	begin(3, 0, 1, 0);
	model.shards[0].weight = 2;
	add(0, 2, 40, 10);
	run_rounds(10);
	check(group_amount(0, 0) == 200 && group_amount(0, 1) == 100 && group_amount(0, 2) == 100, "shares follow weights");
	end();

	begin(2, 0, 2, 0);
	add(0, 0, 10, 10);
	add(1, 0, 20, 10);
	model.groups[0].balancing = false;
	make_plan();
	for (size_t i = 0; i < plan->nactions; i++)
		good = good && plan->actions[i].group == 1;
	check(good && plan->nactions >= 10, "a group that is not balanced stays");
	end();
}

static void
test_best_fit(void)
{
	begin(2, 0, 1, 0);
	add(0, 0, 1, 30);
	add(0, 1, 1, 1);
	add(0, 0, 1, 50);
	add(0, 1, 1, 1);
	add(0, 0, 1, 28);
	make_plan();
	check(plan->nactions == 1 && is_action(0, TESSERA_POLICY_GROUP, 2, 1, 0, 1), "the chunk that fits best moves, alone");
	end();

	begin(2, 0, 1, 0);
	add(0, 0, 1, 30);
	add(0, 1, 1, 1);
	make_plan();
	check(plan->nactions == 0, "a chunk does not move to make the other shard as full");
	end();

	begin(2, 0, 1, 0);
	add(0, 0, 2, 30);
	add(0, 1, 1, 20);
	make_plan();
	check(plan->nactions == 0, "nor to exchange what they differ by");
	end();

	begin(3, 0, 1, 0);
	add(0, 0, 100, 1);
	add(0, 1, 100, 1);
	add(0, 2, 10, 1);
	model.snapshot.settings.run_bytes = 1000;
	make_plan();
	check(plan->nactions == 2 && plan->actions[0].count == 30 && plan->actions[1].count == 30,
		  "small neighbours move together, no more than are even");
	model.snapshot.settings.run_bytes = 10;
	make_plan();
	check(plan->nactions == 6 && plan->actions[0].count == 10, "and no more than run_bytes");
	end();
}

static void
test_jumbo_and_busy(void)
{
	size_t		first;

	begin(2, 0, 1, 0);
	first = add(0, 0, 10, 10);
	for (size_t i = 0; i < 10; i++)
		model.chunks[0][first + i].jumbo = i != 5;
	model.snapshot.settings.run_bytes = 1000;
	make_plan();
	check(plan->nactions == 1 && is_action(0, TESSERA_POLICY_GROUP, 5, 1, 0, 1),
		  "a jumbo chunk does not move for balance (S102), nor with a neighbour");
	model.shards[0].draining = true;
	make_plan();
	check(plan->nactions == 1 && is_action(0, TESSERA_POLICY_DRAINING, 0, 10, 0, 1), "off a draining shard it does");
	end();

	begin(2, 0, 1, 0);
	add(0, 0, 6, 10);
	first = add(0, 1, 4, 10);
	for (size_t i = 0; i < 4; i++)
		model.chunks[0][first + i].busy = true;
	make_plan();
	check(plan->nactions == 1, "a busy chunk counts for its recipient");
	model.shards[1].draining = true;
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 0, "and nothing touches it");
	end();
}

static void
test_draining(void)
{
	begin(3, 0, 2, 0);
	model.shards[0].draining = true;
	model.snapshot.settings.balance = false;
	model.groups[0].balancing = false;
	add(0, 0, 10, 10);
	add(0, 1, 10, 10);
	add(0, 2, 4, 10);
	make_plan();
	check(actions(TESSERA_POLICY_DRAINING) == 10 && plan->nactions == 10, "a draining shard is emptied, balanced or not (S96)");
	run_rounds(10);
	check(group_amount(0, 0) == 0 && group_amount(0, 1) == 120 && group_amount(0, 2) == 120, "its chunks go where the fill is lowest (S98)");
	end();

	begin(3, 0, 1, 0);
	model.shards[0].draining = true;
	add(0, 0, 1000, 0);
	model.snapshot.settings.run_bytes = 100;
	make_plan();
	check(plan->nactions == 1 && is_action(0, TESSERA_POLICY_DRAINING, 0, 1000, 0, 1), "empty chunks move in one action");
	model.snapshot.settings.run_chunks = 300;
	make_plan();
	check(is_action(0, TESSERA_POLICY_DRAINING, 0, 300, 0, 1) && plan->actions[1].nchunks <= 300, "of run_chunks at most");
	run_rounds(10);
	check(plan->nactions == 0 && chunks_of(0, 0) == 0, "the rest follows");
	end();

	begin(3, 0, 1, 0);
	model.shards[0].draining = true;
	for (int i = 0; i < 20; i++)
	{
		add(0, 0, 1, 0);
		add(0, 1, 1, 0);
		add(0, 2, 1, 0);
	}
	run_rounds(10);
	model.snapshot.settings.measure = TESSERA_BY_COUNT;
	check(fabs(group_amount(0, 1) - group_amount(0, 2)) <= 2, "empty chunks that are no neighbours do not all go to one shard");
	end();

	begin(2, 0, 1, 0);
	model.shards[0].draining = model.shards[1].draining = true;
	add(0, 0, 3, 10);
	add(0, 1, 4, 10);
	add(0, 0, 2, 10);
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 3 && plan->mean_fill == 0 && plan->spread == 0, "all shards draining: no recipient");
	check(is_problem(1, TESSERA_POLICY_NO_SHARD, 0, 3, 4) && plan->problems[1].shard == 1 && plan->problems[1].zone == -1,
		  "neighbours are one problem");
	end();

	begin(3, 0, 1, 0);
	model.shards[0].draining = true;
	model.shards[1].usable = false;
	model.shards[2].draining = true;
	add(0, 0, 3, 10);
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 1 && is_problem(0, TESSERA_POLICY_UNUSABLE, 0, 0, 3), "no recipient can be reached");
	model.shards[0].usable = false;
	model.shards[1].usable = true;
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 1 && is_problem(0, TESSERA_POLICY_UNUSABLE, 0, 0, 3), "a donor that cannot be reached");
	end();
}

static void
test_unusable(void)
{
	begin(3, 0, 1, 0);
	model.shards[1].usable = false;
	add(0, 0, 12, 10);
	run_rounds(10);
	check(group_amount(0, 0) == 60 && group_amount(0, 1) == 0 && group_amount(0, 2) == 60, "a shard that cannot be reached receives nothing");
	model.shards[0].usable = false;
	make_plan();
	check(plan->nactions == 0, "and gives nothing");
	end();
}

static void
test_zones(void)
{
	begin(4, 2, 1, 0);
	model.zone_shards[0 * 4 + 0] = model.zone_shards[0 * 4 + 1] = true;
	model.zone_shards[1 * 4 + 3] = true;
	model.snapshot.settings.balance = false;
	add(0, 2, 4, 10);
	add(0, 0, 2, 10);
	for (size_t i = 0; i < 4; i++)
		model.chunks[0][i].zone = 0;
	make_plan();
	check(plan->nactions == 4 && actions(TESSERA_POLICY_ZONE) == 4, "what is outside of its zone moves into it");
	run_rounds(10);
	check(group_amount(0, 0) == 30 && group_amount(0, 1) == 30, "to the emptiest shard of the zone");
	model.shards[3].draining = true;
	model.chunks[0][5].zone = 1;
	model.chunks[0][4].zone = 1;
	make_plan();
	check(plan->nactions == 0 && plan->nproblems == 1 && is_problem(0, TESSERA_POLICY_NO_SHARD, 0, 4, 2) && plan->problems[0].zone == 1,
		  "a zone whose shards are all draining");
	end();

	begin(3, 1, 1, 0);
	model.zone_shards[0] = model.zone_shards[1] = true;
	add(0, 0, 20, 10);
	for (size_t i = 0; i < 20; i++)
		model.chunks[0][i].zone = 0;
	run_rounds(10);
	check(group_amount(0, 0) == 100 && group_amount(0, 1) == 100 && group_amount(0, 2) == 0, "balance stays within the zone (S97)");
	end();

	/* the fullest shard has nothing that may go to the emptiest: by way of the third */
	begin(3, 1, 1, 0);
	model.zone_shards[0] = model.zone_shards[1] = true;
	add(0, 0, 18, 10);
	for (size_t i = 0; i < 18; i++)
		model.chunks[0][i].zone = 0;
	add(0, 1, 12, 10);
	run_rounds(20);
	check(fabs(group_amount(0, 0) - 100) <= 10 && fabs(group_amount(0, 1) - 100) <= 10 && fabs(group_amount(0, 2) - 100) <= 10,
		  "by way of a third shard");
	end();
}

static void
test_order(void)
{
	begin(6, 1, 2, 0);
	for (int32_t i = 0; i < 5; i++)
		model.zone_shards[i] = true;
	model.shards[0].draining = true;
	add(0, 1, 40, 10);
	add(0, 5, 1, 10);
	model.chunks[0][40].zone = 0;
	add(1, 0, 1, 10);
	make_plan();
	check(plan->nactions > 3 && plan->actions[0].reason == TESSERA_POLICY_DRAINING && plan->actions[1].reason == TESSERA_POLICY_ZONE &&
		  plan->actions[2].reason == TESSERA_POLICY_GROUP, "draining, then zones, then balance (S96)");
	end();
}

static void
test_room(void)
{
	size_t		now = 0;

	begin(3, 0, 1, 0);
	add(0, 0, 30, 10);
	model.shards[0].room = 3;
	model.shards[1].room = 1;
	make_plan();
	for (size_t i = 0; i < plan->nactions; i++)
		now += plan->actions[i].now;
	check(now == 3 && plan->nactions == 20 && !plan->actions[3].now && plan->spread_after == 0,
		  "as many start now as both shards have room for (S99)");
	model.snapshot.settings.max_actions = 7;
	make_plan();
	check(plan->nactions == 7 && !plan->complete, "the list is no longer than asked for");
	model.snapshot.settings.max_actions = 0;
	make_plan();
	check(plan->nactions == 0 && !plan->complete, "nor than nothing");
	end();

	/* shard 1 is full already: what shard 0 has is to wait for shard 2 */
	begin(3, 0, 1, 0);
	model.shards[0].draining = true;
	model.shards[2].room = 1;
	add(0, 0, 10, 10);
	add(0, 1, 10, 10);
	make_plan();
	check(plan->actions[0].now && plan->actions[0].to == 2 && !plan->actions[1].now && plan->nactions == 10,
		  "a shard above its ideal receives nothing (S99)");
	end();
}

static void
test_nodes(void)
{
	bool		good = true;

	/* groups of one chunk each */
	begin(4, 0, 40, 0);
	for (size_t i = 0; i < 40; i++)
		add(i, 0, 1, 10);
	make_plan();
	check(plan->nactions == 30 && actions(TESSERA_POLICY_NODE) == 30 && plan->spread_after == 0, "groups that cannot be even make the nodes even");
	check(plan->actions[0].from_fill == 400 && plan->actions[0].to_fill == 0, "with the fills of nodes");
	end();

	/* a schema that cannot move, and a group that can */
	begin(2, 0, 1, 1);
	model.schemas[0].bytes = 100;
	add(0, 0, 20, 10);
	add(0, 1, 20, 10);
	run_rounds(20);
	good = group_amount(0, 0) < 200 && group_amount(0, 0) > 100;
	check(good, "a group yields to a placed schema, in part");
	end();

	begin(2, 0, 1, 4);
	for (int i = 0; i < 4; i++)
	{
		model.schemas[i].bytes = 100;
		model.schemas[i].movable = true;
	}
	add(0, 0, 20, 10);
	add(0, 1, 20, 10);
	make_plan();
	check(plan->nactions == 2 && plan->actions[0].kind == TESSERA_POLICY_MOVE_SCHEMA && plan->actions[0].reason == TESSERA_POLICY_NODE &&
		  plan->actions[0].group == -1 && plan->spread_after == 0, "schemas that may move do, and the group stays");
	end();
}

static void
test_schemas(void)
{
	begin(3, 0, 0, 4);
	model.shards[0].draining = true;
	for (int i = 0; i < 4; i++)
		model.schemas[i].bytes = 100;
	model.schemas[0].movable = model.schemas[3].movable = true;
	make_plan();
	check(plan->nactions == 2 && actions(TESSERA_POLICY_DRAINING) == 2 && plan->actions[0].to != plan->actions[1].to,
		  "schemas leave a draining shard");
	check(plan->nproblems == 1 && is_problem(0, TESSERA_POLICY_IMMOVABLE, -1, 1, 2), "unless they cannot");
	model.snapshot.settings.measure = TESSERA_BY_COUNT;
	make_plan();
	check(plan->nactions == 2 && plan->fill[0] == 0, "schemas count nothing by count, but leave, too");
	end();
}

static void
test_measures(void)
{
	begin(2, 0, 1, 0);
	model.snapshot.settings.measure = TESSERA_BY_COUNT;
	model.snapshot.settings.run_bytes = 1000;
	add(0, 0, 5, 100);
	add(0, 0, 3, 1);
	add(0, 1, 4, 1);
	make_plan();
	check(plan->nactions == 1 && plan->actions[0].count == 2 && plan->actions[0].bytes <= 101 && plan->spread_after == 0,
		  "by count: no more than are even");
	end();

	begin(2, 0, 1, 0);
	model.snapshot.settings.measure = TESSERA_BY_COUNT;
	add(0, 0, 5, 1);
	add(0, 1, 4, 1);
	make_plan();
	check(plan->nactions == 0, "by count: a difference of one stays");
	end();

	begin(2, 0, 1, 0);
	model.snapshot.settings.measure = TESSERA_BY_LOAD;
	add(0, 0, 3, 100);
	add(0, 0, 4, 50);
	add(0, 1, 3, 10000);
	model.chunks[0][0].load = model.chunks[0][1].load = 1;
	model.chunks[0][3].load = model.chunks[0][4].load = 1;
	model.snapshot.settings.run_bytes = 1000000;
	make_plan();
	check(plan->nactions == 1 && is_action(0, TESSERA_POLICY_GROUP, 3, 2, 0, 1), "by load: idle chunks stay, bytes break ties");
	for (size_t i = 0; i < 7; i++)
		model.chunks[0][i].load *= 0.01;
	make_plan();
	check(plan->nactions == 0, "by load: a load that is negligible moves nothing");
	model.shards[0].draining = true;
	make_plan();
	check(actions(TESSERA_POLICY_DRAINING) > 0 && plan->spread_after == 0, "by load: draining goes on");
	end();

	begin(5, 0, 1, 0);
	model.snapshot.settings.measure = TESSERA_BY_LOAD;
	model.snapshot.settings.run_bytes = 10;
	model.shards[0].draining = true;
	add(0, 0, 40, 10);
	run_rounds(100);
	model.snapshot.settings.measure = TESSERA_BY_BYTES;
	check(group_amount(0, 1) == 100 && group_amount(0, 4) == 100, "by load: what is idle leaves a draining shard evenly by bytes");
	end();
}

static void
test_merges(void)
{
	begin(2, 1, 1, 0);
	model.snapshot.settings.merge = true;
	add(0, 0, 3, 10);
	add(0, 1, 6, 10);
	add(0, 0, 3, 10);
	for (size_t i = 0; i < 12; i++)
		model.chunks[0][i].mergeable = i != 9;
	model.groups[0].max_chunk_bytes = 60;
	make_plan();
	check(plan->nactions == 4 && actions(TESSERA_POLICY_COLD) == 4 && is_action(0, TESSERA_POLICY_COLD, 0, 3, 0, 0) &&
		  is_action(1, TESSERA_POLICY_COLD, 3, 3, 1, 1) && is_action(3, TESSERA_POLICY_COLD, 10, 2, 0, 0),
		  "cold neighbours are merged, up to half the largest size");
	check(plan->actions[0].kind == TESSERA_POLICY_MERGE && plan->actions[0].bytes == 30 && plan->actions[0].now, "what a merge says");
	model.chunks[0][1].busy = true;
	model.shards[1].draining = true;
	make_plan();
	check(actions(TESSERA_POLICY_COLD) == 1 && plan->actions[plan->nactions - 1].first == 10, "what moves, or is busy, is not merged");
	model.groups[0].balancing = false;
	make_plan();
	check(actions(TESSERA_POLICY_COLD) == 0, "nor what is not balanced");
	end();
}

/* Values that nobody should send: no crash, no division by zero (the sanitizers see both), and actions that make sense. */
static void
test_odd_values(void)
{
	begin(4, 0, 2, 0);
	model.shards[0].weight = 1e300;
	model.shards[1].weight = 0;
	model.shards[2].weight = NAN;
	add(0, 3, 10, 1e300);
	add(0, 3, 10, NAN);
	add(1, 3, 10, -5);
	make_plan();
	check(isfinite(plan->spread) && isfinite(plan->spread_after) && isfinite(plan->mean_fill) && isfinite(plan->fill[1]), "odd values do no harm");
	end();
}

static void
test_deterministic(void)
{
	TesseraPolicyPlan *first;
	bool		same = true;

	begin(8, 0, 3, 0);
	model_seed = 7;
	for (size_t i = 0; i < 300; i++)
		add(i % 3, model_random_below(5), 1, model_random() * 100);
	model_free();
	first = tessera_policy_plan(&model.snapshot, model_alloc);
	plan = tessera_policy_plan(&model.snapshot, model_alloc);
	same = first->nactions == plan->nactions && plan->nactions > 10;
	for (size_t i = 0; same && i < plan->nactions; i++)
		same = is_action(i, first->actions[i].reason, first->actions[i].first, first->actions[i].count, first->actions[i].from, first->actions[i].to);
	check(same, "the same snapshot gives the same plan");
	end();
}

/* Many small chunks, skewed, a shard that drains, room for one action: everything moves at most once, and no more than must. */
static void
test_moves_once(void)
{
	double		moved_bytes = 0;
	double		excess = 0;
	bool		once = true;

	begin(6, 0, 2, 0);
	model_seed = 11;
	model.shards[5].draining = true;
	model.snapshot.settings.run_bytes = 20;
	for (size_t i = 0; i < 2000; i++)
		add(i % 2, (i / 20) % 7 < 3 ? 0 : (int32_t) (i / 20) % 6, 1, 0.5 + model_random());
	for (size_t group = 0; group < 2; group++)
	{
		double		total = 0;

		for (int32_t shard = 0; shard < 6; shard++)
		{
			model.shards[shard].room = 1;
			total += group_amount(group, shard);
		}
		excess += group_amount(group, 5);
		for (int32_t shard = 0; shard < 5; shard++)
			excess += fmax(0, group_amount(group, shard) - total / 5);
	}
	for (int round = 0; round < 1000; round++)
	{
		make_plan();
		for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
		{
			for (size_t range = 0; range < plan->actions[i].nranges; range++)
				for (size_t j = 0; j < plan->actions[i].ranges[range].count; j++)
				{
					TesseraPolicyChunk *chunk = &model.chunks[plan->actions[i].group][plan->actions[i].ranges[range].first + j];

					/* load counts for nothing here: it says what has moved */
					once = once && chunk->load == 0;
					chunk->load = 1;
				}
			moved_bytes += plan->actions[i].bytes;
			model_apply(&model, &plan->actions[i]);
		}
		if (plan->nactions == 0)
			break;
	}
	check(plan->nactions == 0 && plan->spread < 0.1, "small chunks: even in the end");
	check(once, "small chunks: none moves twice");
	check(moved_bytes < 1.05 * excess, "small chunks: no more moves than has to");
	end();
}

/* ---- random clusters ---- */

/* What is found wrong in random clusters, by promise. */
static struct
{
	bool		sound;			/* actions are of chunks as they are, to shards that may have them, none twice */
	bool		room;
	bool		useful;			/* balance: by more than the threshold, without overshooting, less uneven afterwards */
	bool		order;			/* now first */
	bool		ends;
	bool		clean;			/* nothing is left on draining shards and outside of zones but what a problem says */
	bool		even;
	bool		calm;			/* with sizes that vary */
} promise;

/* Chunks that moved for balance; how many moves there were in all clusters of a kind, of one chunk each; how many of chunks that had moved before. */
static bool moved[5][CHUNKS];
static size_t moves;
static size_t moved_again;

typedef enum Kind
{
	PLAIN,						/* nothing but chunks that may move */
	MIXED						/* zones, draining, unusable, busy, jumbo, schemas, groups that are not balanced */
} Kind;

static void
mix(void)
{
	size_t		nshards = model.snapshot.nshards;

	for (size_t i = 0; i < nshards; i++)
	{
		model.shards[i].draining = model_random() < 0.15;
		model.shards[i].usable = model_random() > 0.1;
		for (size_t zone = 0; zone < model.snapshot.nzones; zone++)
			model.zone_shards[zone * nshards + i] = model_random() < 0.4;
	}
	for (size_t group = 0; group < model.snapshot.ngroups; group++)
	{
		model.groups[group].balancing = model_random() > 0.2;
		for (size_t i = 0; i < model.groups[group].nchunks; i++)
		{
			TesseraPolicyChunk *chunk = &model.chunks[group][i];

			chunk->zone = i % 40 < 10 ? model_random_below((int32_t) model.snapshot.nzones + 1) - 1 : -1;
			chunk->busy = model_random() < 0.05;
			chunk->jumbo = model_random() < 0.1;
			chunk->pinned = model_random() < 0.05;
		}
	}
	for (size_t i = 0; i < model.snapshot.nschemas; i++)
	{
		model.schemas[i].bytes = model_random() * 300;
		model.schemas[i].load = model_random();
		model.schemas[i].shard = model_random_below((int32_t) nshards);
		model.schemas[i].movable = model_random() < 0.5;
	}
}

static void
make_random(Kind kind, uint64_t seed)
{
	size_t		nshards;
	size_t		ngroups;
	double		skew;

	model_seed = seed * 7919 + 13;
	nshards = 2 + (size_t) model_random_below(SHARDS - 1);
	ngroups = 1 + (size_t) model_random_below(5);
	begin(nshards, kind == MIXED ? 3 : 0, ngroups, kind == MIXED ? 4 : 0);
	model.snapshot.settings.measure = (TesseraPolicyMeasure) model_random_below(3);
	model.snapshot.settings.run_bytes = model_random_below(3) * 30;
	skew = model_random() * 3;
	for (size_t i = 0; i < nshards; i++)
	{
		model.shards[i].weight = model_random() < 0.3 ? 2 : 1;
		model.shards[i].room = 1 + model_random_below(3);
	}
	for (size_t group = 0; group < ngroups; group++)
	{
		int32_t		used = 1 + model_random_below((int32_t) nshards);
		size_t		nchunks = 1 + (size_t) model_random_below(CHUNKS);

		for (size_t i = 0; i < nchunks; i++)
		{
			add(group, model_random_below(used), 1, model_random() < 0.1 ? (i % 3) * 0.005 : 10 * exp(skew * (model_random() - 0.5)));
			if (model.chunks[group][i].bytes > 0)
				model.chunks[group][i].load = model_random() < 0.3 ? 0 : model_random() * 3;
			model.chunks[group][i].measured = i % 8 != 0;
		}
	}
	if (kind == MIXED)
		mix();
}

/* The number that policy.h describes. */
static double
unevenness(void)
{
	double		node[SHARDS] = {0};
	double		all = 0;
	double		sum = 0;
	double		weight = model_weight(&model);
	double		recipients = 0;

	for (size_t i = 0; i < model.snapshot.nshards; i++)
		recipients += !model.shards[i].draining;
	for (size_t group = 0; group <= model.snapshot.ngroups; group++)
	{
		double		amounts[SHARDS] = {0};
		double		total = 0;
		double		squares = 0;

		model_add_amounts(&model, group, amounts);
		for (size_t i = 0; i < model.snapshot.nshards; i++)
		{
			node[i] += amounts[i];
			total += amounts[i];
			squares += amounts[i] * amounts[i] / model.shards[i].weight;
		}
		all += total;
		if (group < model.snapshot.ngroups && total > 0)
			sum += squares * weight / total * fmin(1, (model.groups[group].nchunks - 1) / recipients);
	}
	for (size_t i = 0; i < model.snapshot.nshards && all > 0; i++)
		sum += node[i] * node[i] / model.shards[i].weight * weight / all;
	return sum;
}

/* Of one group, or ngroups + 1: of whole nodes. */
static void
fills_of(size_t group, double *fills, double *mean)
{
	size_t		n = model.snapshot.ngroups;

	memset(fills, 0, SHARDS * sizeof(double));
	*mean = 0;
	for (size_t i = group > n ? 0 : group; i <= (group > n ? n : group); i++)
		model_add_amounts(&model, i, fills);
	for (size_t i = 0; i < model.snapshot.nshards; i++)
	{
		*mean += fills[i] / model_weight(&model);
		fills[i] /= model.shards[i].weight;
	}
}

/* A move for balance as it stands, before it is carried out. */
static void
check_useful(const TesseraPolicyAction *action)
{
	bool		schema = action->kind == TESSERA_POLICY_MOVE_SCHEMA;
	bool		by_group = action->reason == TESSERA_POLICY_GROUP;
	double		fills[SHARDS];
	double		mean;
	double		amount = 0;
	double		difference;
	double		weights = 1 / model.shards[action->from].weight + 1 / model.shards[action->to].weight;

	fills_of(by_group ? (size_t) action->group : model.snapshot.ngroups + 1, fills, &mean);
	difference = fills[action->from] - fills[action->to];
	if (schema)
		amount = model_schema_amount(&model, &model.schemas[action->first]);
	else
		for (size_t range = 0; range < action->nranges; range++)
			for (size_t i = 0; i < action->ranges[range].count; i++)
				amount += model_amount(&model, &model.chunks[action->group][action->ranges[range].first + i]);
	if (difference <= model.snapshot.settings.threshold * mean || amount <= 0 || amount > 1.5 * difference / weights + 1e-9 ||
		(amount > difference / weights + 1e-9 && action->count > 1 && action->nranges == 1) || fabs(fills[action->from] - action->from_fill) > 1e-6)
		promise.useful = false;
}

/* One chunk of a move. */
static void
check_chunk(const TesseraPolicyAction *action, size_t i, bool taken[5][CHUNKS])
{
	const TesseraPolicyChunk *chunk = &model.chunks[action->group][i];
	bool		balance = action->reason == TESSERA_POLICY_GROUP || action->reason == TESSERA_POLICY_NODE;
	bool		empty = action->reason == TESSERA_POLICY_EMPTY;

	if (taken[action->group][i] || chunk->busy || (empty && (chunk->bytes > 128.0 / 8192 || !chunk->measured)) || chunk->shard != action->from || !model_in_zone(&model, chunk->zone, action->to))
		promise.sound = false;
	if ((balance || empty) && (chunk->jumbo || chunk->pinned || !model.groups[action->group].balancing || model.shards[action->from].draining))
		promise.sound = false;
	if (!balance && !empty && !model.shards[action->from].draining && model_in_zone(&model, chunk->zone, action->from))
		promise.sound = false;
	taken[action->group][i] = true;
	moves += balance;
	moved_again += balance && moved[action->group][i];
	moved[action->group][i] |= balance;
}

/* Checks and carries out an action. */
static void
carry_out(const TesseraPolicyAction *action, bool taken[5][CHUNKS], int32_t *room)
{
	bool		balance = action->reason == TESSERA_POLICY_GROUP || action->reason == TESSERA_POLICY_NODE;
	double		before = unevenness();

	if (action->from == action->to || model.shards[action->to].draining || !model.shards[action->to].usable || !model.shards[action->from].usable)
		promise.sound = false;
	if (action->kind == TESSERA_POLICY_MOVE)
		for (size_t range = 0; range < action->nranges; range++)
			for (size_t i = 0; i < action->ranges[range].count; i++)
				check_chunk(action, action->ranges[range].first + i, taken);
	else if (model.schemas[action->first].shard != action->from || !model.schemas[action->first].movable)
		promise.sound = false;
	if (--room[action->from] < 0 || --room[action->to] < 0)
		promise.room = false;
	if (balance)
		check_useful(action);
	model_apply(&model, action);
	if (balance && unevenness() >= before)
		promise.useful = false;
}

/* One round. Returns the number of actions. */
static size_t
play_round(void)
{
	bool		taken[5][CHUNKS] = {{false}};
	int32_t		room[SHARDS];
	bool		later = false;
	size_t		n = 0;

	for (size_t i = 0; i < model.snapshot.nshards; i++)
		room[i] = model.shards[i].room;
	make_plan();
	for (size_t i = 0; i < plan->nactions; i++)
	{
		if (!plan->actions[i].now)
			later = true;
		else if (later)
			promise.order = false;
		else
		{
			carry_out(&plan->actions[i], taken, room);
			n++;
		}
	}
	/* shards with room for nothing would wait for ever: here all have some */
	if (n == 0 && plan->nactions > 0)
		promise.ends = false;
	return n;
}

static void
check_clean(void)
{
	size_t		stuck = 0;
	size_t		explained = 0;

	for (size_t group = 0; group < model.snapshot.ngroups; group++)
		for (size_t i = 0; i < model.groups[group].nchunks; i++)
		{
			const TesseraPolicyChunk *chunk = &model.chunks[group][i];

			stuck += !chunk->busy && (model.shards[chunk->shard].draining || !model_in_zone(&model, chunk->zone, chunk->shard));
		}
	for (size_t i = 0; i < model.snapshot.nschemas; i++)
		stuck += !model.schemas[i].busy && model.shards[model.schemas[i].shard].draining;
	for (size_t i = 0; i < plan->nproblems; i++)
		explained += plan->problems[i].count;
	if (stuck != explained)
		promise.clean = false;
}

/* In the end, in a plain cluster: fills differ by the threshold, or what the largest chunk makes of it. */
static void
check_even(void)
{
	for (size_t group = 0; group < model.snapshot.ngroups; group++)
	{
		double		fills[SHARDS];
		double		mean;
		double		largest = 0;
		double		low = INFINITY;
		double		high = 0;

		fills_of(group, fills, &mean);
		for (size_t i = 0; i < model.groups[group].nchunks; i++)
			largest = fmax(largest, model_amount(&model, &model.chunks[group][i]));
		for (size_t i = 0; i < model.snapshot.nshards; i++)
		{
			low = fmin(low, fills[i]);
			high = fmax(high, fills[i]);
		}
		/* a load that is negligible stays, too */
		if (high - low > model.snapshot.settings.threshold * mean + 2 * largest + 0.1)
			promise.even = false;
	}
}

/* More rounds with sizes that vary by 2 %: moves must become rare. */
static void
check_calm(int rounds)
{
	static double bytes[5][CHUNKS];
	static double load[5][CHUNKS];
	size_t		late = 0;

	for (size_t group = 0; group < model.snapshot.ngroups; group++)
		for (size_t i = 0; i < model.groups[group].nchunks; i++)
		{
			bytes[group][i] = model.chunks[group][i].bytes;
			load[group][i] = model.chunks[group][i].load;
		}
	for (int round = 0; round < rounds; round++)
	{
		for (size_t group = 0; group < model.snapshot.ngroups; group++)
			for (size_t i = 0; i < model.groups[group].nchunks; i++)
			{
				model.chunks[group][i].bytes = bytes[group][i] * (0.98 + 0.04 * model_random());
				model.chunks[group][i].load = load[group][i] * (0.98 + 0.04 * model_random());
			}
		make_plan();
		for (size_t i = 0; i < plan->nactions && plan->actions[i].now; i++)
		{
			model_apply(&model, &plan->actions[i]);
			late += round >= rounds / 2;
		}
	}
	if (late * 100 > (size_t) rounds)
		promise.calm = false;
}

static void
play(Kind kind, uint64_t seed, int noisy_rounds)
{
	int			round = 0;

	make_random(kind, seed);
	memset(moved, 0, sizeof(moved));
	while (round < 2000 && play_round() > 0)
		round++;
	if (round == 2000)
		promise.ends = false;
	check_clean();
	if (kind == PLAIN)
		check_even();
	if (noisy_rounds > 0)
		check_calm(noisy_rounds);
	end();
}

static void
test_random(Kind kind, const char *name, int clusters, int noisy)
{
	char		text[100];

	memset(&promise, true, sizeof(promise));
	moves = moved_again = 0;
	for (int i = 0; i < clusters; i++)
		play(kind, (uint64_t) i + 1000 * kind, i < noisy ? 1000 : 0);
#define CHECK_PROMISE(field, what) (snprintf(text, sizeof(text), "%s: %s", name, what), check(promise.field, text))
	CHECK_PROMISE(sound, "actions can be carried out");
	CHECK_PROMISE(room, "room is respected");
	CHECK_PROMISE(order, "what starts now comes first");
	CHECK_PROMISE(useful, "every move for balance makes the cluster less uneven, and does not overshoot");
	CHECK_PROMISE(ends, "nothing is left to do after some rounds");
	CHECK_PROMISE(clean, "all is drained, and zones are honoured");
	CHECK_PROMISE(even, "fills differ by the threshold and a chunk at most");
	/* where a chunk is a large part of what a shard has, one can take the wrong way once in a while */
	snprintf(text, sizeof(text), "%s: next to no chunk moves twice for balance", name);
	check(moves > 1000 && moved_again * 100 < moves * (kind == PLAIN ? 1 : 3), text);
	printf("# %zu of %zu chunks that moved had moved before\n", moved_again, moves);
	CHECK_PROMISE(calm, "sizes that vary by 2 % move next to nothing in 1000 rounds");
}

int
main(void)
{
	test_nothing_to_do();
	test_joined_moves();
	test_groups();
	test_best_fit();
	test_jumbo_and_busy();
	test_draining();
	test_unusable();
	test_zones();
	test_order();
	test_room();
	test_nodes();
	test_schemas();
	test_measures();
	test_merges();
	test_odd_values();
	test_deterministic();
	test_moves_once();
	test_random(PLAIN, "plain clusters", 300, 10);
	test_random(MIXED, "mixed clusters", 300, 10);
	return finish();
}
