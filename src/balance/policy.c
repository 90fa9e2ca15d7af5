/*
 * policy.c
 *	  The balancer's choice of actions. See policy.h for what it promises, policy_ideal.c for what it steers to.
 *
 * A plan is made in two passes over the same reasons. The first chooses among shards that have room: those actions start now. The second goes on
 * from there as if room were unlimited. Each action changes the amounts that the next one is judged by. No chunk is in two actions of a plan.
 *
 * Moves for balance come in two stages for each group. In the first, a shard above its ideal gives to one below, and no more than takes either of
 * them there: so nothing has to move again. Where chunks are too large for that, the second compares pairs of shards alone, until no chunk makes the
 * fuller of a pair emptier without making the other as full. The second begins when the first has nothing left to do in a group, not even for want
 * of room.
 *
 * A move may take several ranges along that are no neighbours, up to run_bytes: what is forced to leave a shard, and empty chunks, join any action
 * that starts now between the same shards, and so need no room of their own; a move for balance only joins the one before it, since each is judged by
 * what is left by those before it.
 *
 * Memory is allocated and never freed; the caller drops it all. The largest arrays have a few dozen bytes for each chunk.
 */
#include "balance/policy_private.h"

#include <stdlib.h>
#include <string.h>

/*
 * A single chunk may be so much larger than what would make two shards equal. At 2 they would change roles. Sizes are estimates and vary: a part of
 * the threshold is left out of what would make them equal, so that a chunk does not go to and fro between shards that differ by noise.
 */
#define OVERSHOOT 1.5
#define NOISE 0.5

/* What an action for one reason wins, the other may lose at most by this part. */
#define TOLERATED_LOSS 0.5

/* Sessions at work: a difference that is not worth a move. */
#define NEGLIGIBLE_LOAD 0.05

/* How much bytes count where a shard is chosen for a forced move, beside the measure: as much as load, or to break ties. */
#define PLACED_BY_LOAD 1.0
#define PLACED_TIES 1e-3

/* A forced move waits for a shard without room only if that is so far below its ideal, as a part of the threshold. */
#define WORTH_WAITING 0.5

/* In a comparison of fills relative to the mean: comes after all others. */
#define LATE 1e6

/* A move of one group can make way for one of another, so groups come in turns. */
#define MAX_TURNS 4

/* Ranges of one move: its migration keeps them all in each of its rows. */
#define MAX_RANGES 500

/* Merged chunks are at most so large a part of what is split: else they would be split again soon. */
#define MERGED_PART 0.5

/* Finds the shard with the lowest key among some: winners of a knock-out, leaves last. */
typedef struct Tree
{
	size_t		leaves;
	int32_t    *winner;
} Tree;

/* Moves of a group for balance. */
typedef struct Stage
{
	size_t		row;
	TesseraPolicyReason reason;
	bool		to_ideal;		/* first stage; else pairs */
	bool		dry;			/* only whether there is one, with unlimited room */
	bool		one_block;		/* all chunks that may move may lie on the same shards */
	double	   *key;			/* of each shard: how far above its ideal */
	double	   *opposite;
	Tree		donors;
	Tree	   *recipients;		/* by block of the group */
} Stage;

/* A move for balance that is being considered. */
typedef struct Candidate
{
	size_t		entry;
	int32_t		to;
	double		want;			/* amount that may move */
	double		tolerated;		/* by a single chunk, if none fits */
	double		gain;
} Candidate;

/* Working memory of the choice. */
typedef struct Choice
{
	Policy	   *policy;
	Stage		stage;
	uint32_t   *down;			/* [entry + 1]: one more than the next lower entry that may not be taken, 0: none */
	uint32_t   *up;				/* [entry]: the next higher one */
} Choice;

/* ---- trees ---- */

static int32_t
lower(const double *key, int32_t a, int32_t b)
{
	if (a < 0)
		return b;
	if (b < 0)
		return a;
	return key[b] < key[a] ? b : a;
}

static void
tree_make(Policy *policy, Tree *tree)
{
	tree->leaves = 1;
	while (tree->leaves < policy->nshards)
		tree->leaves *= 2;
	tree->winner = policy->alloc(2 * tree->leaves * sizeof(int32_t));
}

static void
tree_clear(Tree *tree)
{
	memset(tree->winner, -1, 2 * tree->leaves * sizeof(int32_t));
}

/* Puts a shard in without comparing; tree_build follows. */
static void
tree_put(Tree *tree, int32_t shard)
{
	tree->winner[tree->leaves + shard] = shard;
}

static void
tree_build(Tree *tree, const double *key)
{
	for (size_t i = tree->leaves - 1; i > 0; i--)
		tree->winner[i] = lower(key, tree->winner[2 * i], tree->winner[2 * i + 1]);
}

/* The key of a shard has changed, or it is to go. */
static void
tree_update(Tree *tree, const double *key, int32_t shard, bool keep)
{
	size_t		i = tree->leaves + shard;

	if (tree->winner[i] < 0)
		return;
	if (!keep)
		tree->winner[i] = -1;
	for (i /= 2; i > 0; i /= 2)
		tree->winner[i] = lower(key, tree->winner[2 * i], tree->winner[2 * i + 1]);
}

/* -1: it is empty. */
static int32_t
tree_lowest(const Tree *tree)
{
	return tree->winner[1];
}

/* ---- actions ---- */

static double *
amount_at(const Policy *policy, size_t row, int32_t shard)
{
	return &policy->amount[row * policy->nshards + shard];
}

/* A new action, its fields set but for sums; NULL and full if the plan has no place for it. */
static TesseraPolicyAction *
add_action(Policy *policy, TesseraPolicyKind kind, TesseraPolicyReason reason, size_t row, int32_t from, int32_t to)
{
	TesseraPolicyPlan *plan = policy->plan;
	TesseraPolicyAction *action;
	bool		by_group = reason == TESSERA_POLICY_GROUP;

	if (plan->nactions >= policy->snapshot->settings.max_actions)
	{
		policy->full = true;
		return NULL;
	}
	plan->actions = tessera_policy_grow(policy, plan->actions, plan->nactions, &policy->max_actions, sizeof(TesseraPolicyAction));
	policy->links = tessera_policy_grow(policy, policy->links, plan->nactions, &policy->max_links, sizeof(PolicyLink));
	policy->links[plan->nactions] = (PolicyLink) {.previous = policy->newest[from]};
	if (policy->limited)
		policy->newest[from] = (int32_t) plan->nactions;
	action = &plan->actions[plan->nactions++];
	memset(action, 0, sizeof(*action));
	action->kind = kind;
	action->reason = reason;
	action->now = policy->limited;
	action->group = policy->groups[row].number;
	action->from = from;
	action->to = to;
	action->from_fill = (by_group ? *amount_at(policy, row, from) : policy->node[from]) / policy->weight[from];
	action->to_fill = (by_group ? *amount_at(policy, row, to) : policy->node[to]) / policy->weight[to];
	return action;
}

static void
add_load(TesseraPolicyAction *action, const TesseraPolicyChunk *chunk)
{
	action->bytes += tessera_policy_bytes(chunk);
	action->load += chunk->load > 0 ? chunk->load : 0;
}

static void
add_range(Policy *policy, TesseraPolicyAction *action, size_t first, size_t count)
{
	PolicyLink *link = &policy->links[action - policy->plan->actions];

	action->ranges = tessera_policy_grow(policy, action->ranges, action->nranges, &link->max_ranges, sizeof(TesseraPolicyRange));
	action->ranges[action->nranges++] = (TesseraPolicyRange) {first, count};
	action->nchunks += count;
}

size_t
tessera_policy_run_chunks(const Policy *policy)
{
	return policy->snapshot->settings.run_chunks > 0 ? policy->snapshot->settings.run_chunks : SIZE_MAX;
}

/* Whether so many more of a group's chunks, of so many bytes, may go along with an action, for its reason. */
static bool
may_join(const Policy *policy, const TesseraPolicyAction *action, TesseraPolicyReason reason, size_t row, size_t count, double bytes)
{
	return action->kind == TESSERA_POLICY_MOVE && action->reason == reason && action->group == policy->groups[row].number &&
		action->nranges < MAX_RANGES && action->nchunks + count <= tessera_policy_run_chunks(policy) &&
		(bytes <= 0 || action->bytes + bytes <= policy->snapshot->settings.run_bytes);
}

TesseraPolicyAction *
tessera_policy_action_to_join(const Policy *policy, TesseraPolicyReason reason, size_t row, int32_t from, int32_t to, size_t count,
							  double bytes)
{
	TesseraPolicyPlan *plan = policy->plan;
	TesseraPolicyAction *last = plan->nactions > 0 ? &plan->actions[plan->nactions - 1] : NULL;

	if (policy->groups[row].number < 0)
		return NULL;
	if (last != NULL && last->now == policy->limited && last->from == from && last->to == to && may_join(policy, last, reason, row, count, bytes))
		return last;
	if (reason == TESSERA_POLICY_GROUP || reason == TESSERA_POLICY_NODE || !policy->limited)
		return NULL;
	for (int32_t i = policy->newest[from]; i >= 0; i = policy->links[i].previous)
		if (plan->actions[i].to == to && may_join(policy, &plan->actions[i], reason, row, count, bytes))
			return &plan->actions[i];
	return NULL;
}

static double
bytes_of(const PolicyGroup *group, size_t first, size_t count)
{
	double		bytes = 0;

	for (size_t i = first; i < first + count; i++)
		bytes += tessera_policy_bytes(&group->chunks[i]);
	return bytes;
}

bool
tessera_policy_move(Policy *policy, TesseraPolicyReason reason, size_t row, size_t first, size_t count, int32_t to)
{
	const PolicyGroup *group = &policy->groups[row];
	int32_t		from = group->chunks[first].shard;
	double		bytes = bytes_of(group, first, count);
	TesseraPolicyAction *action = tessera_policy_action_to_join(policy, reason, row, from, to, count, bytes);
	bool		joined = action != NULL;
	double		amount = 0;
	double		share;

	if (!joined)
		action = add_action(policy, group->number < 0 ? TESSERA_POLICY_MOVE_SCHEMA : TESSERA_POLICY_MOVE, reason, row, from, to);
	if (action == NULL)
		return false;
	add_range(policy, action, first, count);
	for (size_t i = first; i < first + count; i++)
	{
		add_load(action, &group->chunks[i]);
		amount += tessera_policy_amount(policy, group, &group->chunks[i]);
		policy->state[group->offset + i] = POLICY_TAKEN;
	}
	*amount_at(policy, row, from) -= amount;
	*amount_at(policy, row, to) += amount;
	policy->node[from] -= amount;
	policy->node[to] += amount;
	share = bytes * policy->byte_share + count * policy->chunk_share;
	policy->placed[from] -= share;
	policy->placed[to] += share;
	if (policy->limited && !joined)
	{
		policy->room[from]--;
		policy->room[to]--;
	}
	return true;
}

static bool
has_room(const Policy *policy, int32_t shard)
{
	return !policy->limited || policy->room[shard] > 0;
}

/* How far a shard is above its ideal, by the group and by the whole node, relative to the mean. */
static double
above_ideal(const Policy *policy, size_t row, int32_t shard)
{
	double		by_group = *amount_at(policy, row, shard) - policy->ideal[row * policy->nshards + shard];
	double		by_node = policy->node[shard] - policy->node_ideal[shard];

	return (policy->groups[row].scale * by_group + policy->node_scale * by_node) / policy->weight[shard];
}

/* ---- what must move ---- */

/* Recipients of forced runs of one group and zone. */
typedef struct Shelter
{
	Tree		tree;
	double	   *key;
	double		amount;			/* of a run, by which the fills after it were computed */
	bool		better_later;	/* a shard well below its ideal has no room now */
} Shelter;

static void
set_shelter_key(const Policy *policy, Shelter *shelter, const PolicyRun *run, int32_t shard)
{
	double		scale = policy->groups[run->group].scale + policy->node_scale;
	double		placed = policy->snapshot->settings.measure == TESSERA_BY_LOAD ? PLACED_BY_LOAD : PLACED_TIES;

	shelter->key[shard] = above_ideal(policy, run->group, shard) +
		(scale * shelter->amount + placed * policy->total_weight * policy->placed[shard]) / policy->weight[shard];
}

/* Whether what must move should rather wait for this shard than go to one that is above its ideal. */
static bool
worth_waiting(const Policy *policy, const PolicyRun *run, int32_t shard)
{
	return above_ideal(policy, run->group, shard) < -WORTH_WAITING * policy->snapshot->settings.threshold;
}

static void
make_shelter(const Policy *policy, Shelter *shelter, const PolicyRun *run)
{
	const PolicyShards *shards = &policy->zones[run->zone + 1];

	shelter->amount = run->amount;
	shelter->better_later = false;
	tree_clear(&shelter->tree);
	for (size_t i = 0; i < shards->n; i++)
	{
		int32_t		shard = shards->all[i];

		set_shelter_key(policy, shelter, run, shard);
		if (has_room(policy, shard))
			tree_put(&shelter->tree, shard);
		else if (worth_waiting(policy, run, shard))
			shelter->better_later = true;
	}
	tree_build(&shelter->tree, shelter->key);
}

/* Puts a run where the fill is lowest after it. A shard above its ideal has to wait while one below is only short of room (S99). */
static void
shelter_run(Policy *policy, Shelter *shelter, const PolicyRun *run)
{
	int32_t		to = tree_lowest(&shelter->tree);

	if (to < 0 || (shelter->better_later && above_ideal(policy, run->group, to) >= 0))
		return;
	if (!tessera_policy_move(policy, run->reason, run->group, run->first, run->count, to))
		return;
	if (has_room(policy, to))
		set_shelter_key(policy, shelter, run, to);
	else if (worth_waiting(policy, run, to))
		shelter->better_later = true;
	tree_update(&shelter->tree, shelter->key, to, has_room(policy, to));
}

/* Of shards to which something of the run's donor moves now anyway, the one where the fill is lowest with the run, too. */
static void
join_forced(Policy *policy, Shelter *shelter, const PolicyRun *run)
{
	int32_t		from = policy->groups[run->group].chunks[run->first].shard;
	int32_t		best = -1;

	for (int32_t i = policy->newest[from]; policy->limited && i >= 0; i = policy->links[i].previous)
	{
		int32_t		to = policy->plan->actions[i].to;

		if (!may_join(policy, &policy->plan->actions[i], run->reason, run->group, run->count, run->bytes) ||
			(run->zone >= 0 && !policy->snapshot->zone_shards[(size_t) run->zone * policy->nshards + to]))
			continue;
		set_shelter_key(policy, shelter, run, to);
		if (best < 0 || shelter->key[to] < shelter->key[best])
			best = to;
	}
	if (best >= 0 && !(shelter->better_later && above_ideal(policy, run->group, best) >= 0))
		(void) tessera_policy_move(policy, run->reason, run->group, run->first, run->count, best);
}

static void
move_forced(Policy *policy)
{
	const PolicyRun *last = NULL;
	Shelter		shelter = {0};

	tree_make(policy, &shelter.tree);
	shelter.key = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	for (size_t i = 0; i < policy->nruns && !policy->full; i++)
	{
		const PolicyRun *run = &policy->runs[i];
		const PolicyGroup *group = &policy->groups[run->group];

		if (policy->state[group->offset + run->first] == POLICY_TAKEN)
			continue;
		/* runs of a batch get smaller and smaller */
		if (last == NULL || last->reason != run->reason || last->group != run->group || last->zone != run->zone ||
			run->amount < shelter.amount / 2)
			make_shelter(policy, &shelter, run);
		last = run;
		if (has_room(policy, group->chunks[run->first].shard))
			shelter_run(policy, &shelter, run);
		if (policy->state[group->offset + run->first] != POLICY_TAKEN)
			join_forced(policy, &shelter, run);
	}
}

/* ---- chunks that may move for balance ---- */

/* By block, then the smallest first; of equals that with the fewest bytes last, where it is found first. */
static int
compare_entries(const void *a, const void *b)
{
	const PolicyEntry *x = a;
	const PolicyEntry *y = b;

	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	if (x->amount != y->amount)
		return x->amount < y->amount ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return x->chunk < y->chunk ? -1 : 1;
}

static void
sort_cell(Policy *policy, size_t cell)
{
	if (policy->cell_sorted[cell])
		return;
	policy->cell_sorted[cell] = true;
	qsort(policy->entries + policy->cell[cell], policy->cell[cell + 1] - policy->cell[cell], sizeof(PolicyEntry), compare_entries);
}

/* First entry in [low, high), sorted, that is of a later block than this, or of this one and larger than amount. */
static size_t
entries_up_to(const Policy *policy, size_t low, size_t high, int32_t block, double amount)
{
	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;
		const PolicyEntry *entry = &policy->entries[middle];

		if (entry->block < block || (entry->block == block && entry->amount <= amount))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool
entry_taken(const Policy *policy, size_t entry)
{
	return policy->state[policy->entries[entry].chunk] == POLICY_TAKEN;
}

/* The last entry in [low, high) that is not taken; high if there is none. Shortens the way for the next search. */
static size_t
last_free(Choice *choice, size_t low, size_t high)
{
	size_t		found = high;

	while (found > low && entry_taken(choice->policy, found - 1))
		found = choice->down[found] > low ? choice->down[found] : low;
	for (size_t i = high; i > found && i > low;)
	{
		size_t		next = choice->down[i];

		choice->down[i] = (uint32_t) found;
		i = next;
	}
	return found > low ? found - 1 : high;
}

/* The first one; high if there is none. */
static size_t
first_free(Choice *choice, size_t low, size_t high)
{
	size_t		found = low;

	while (found < high && entry_taken(choice->policy, found))
		found = choice->up[found] < high ? choice->up[found] : high;
	for (size_t i = low; i < found;)
	{
		size_t		next = choice->up[i];

		choice->up[i] = (uint32_t) found;
		i = next;
	}
	return found;
}

/* The largest free entry of a block that is not larger than wanted; else the smallest, if it is not too large. high: none. */
static size_t
best_fit(Choice *choice, size_t low, size_t high, const Candidate *candidate)
{
	const PolicyEntry *entries = choice->policy->entries;
	size_t		above = entries_up_to(choice->policy, low, high, entries[low].block, candidate->want);
	size_t		found = last_free(choice, low, above);

	if (found < above)
		return found;
	found = first_free(choice, above, high);
	return found < high && entries[found].amount <= candidate->tolerated ? found : high;
}

/* ---- moves for balance ---- */

static double
fill_difference(const Policy *policy, const double *amounts, int32_t from, int32_t to)
{
	return amounts[from] / policy->weight[from] - amounts[to] / policy->weight[to];
}

static double
smaller(double a, double b)
{
	return a < b ? a : b;
}

/*
 * How much of the group may go from one shard to another: what makes them equal by the reason, in the first stage no more than takes one of them to
 * its ideal. False: they do not differ by enough.
 */
static bool
set_amount(const Policy *policy, const Stage *stage, int32_t from, Candidate *candidate)
{
	const TesseraPolicySettings *settings = &policy->snapshot->settings;
	const PolicyGroup *group = &policy->groups[stage->row];
	const double *amounts = amount_at(policy, stage->row, 0);
	const double *ideal = policy->ideal + stage->row * policy->nshards;
	bool		by_group = stage->reason == TESSERA_POLICY_GROUP;
	int32_t		to = candidate->to;
	double		difference = fill_difference(policy, by_group ? amounts : policy->node, from, to);
	double		least = settings->threshold * (by_group ? group->mean : policy->node_mean);
	double		weights = 1 / policy->weight[from] + 1 / policy->weight[to];
	double		noise = settings->measure == TESSERA_BY_COUNT ? 0 : NOISE * least / weights;

	if (!(difference > least))
		return false;
	candidate->want = difference / weights;
	if (settings->measure == TESSERA_BY_LOAD && candidate->want < NEGLIGIBLE_LOAD)
		return false;
	if (stage->to_ideal)
		candidate->want = smaller(candidate->want, smaller(amounts[from] - ideal[from], ideal[to] - amounts[to]));
	candidate->tolerated = OVERSHOOT * (candidate->want - noise);
	return candidate->want > 0;
}

/*
 * By how much a move makes the cluster less uneven, as policy.h has it. 0 if it does not, or if what it wins for its reason is mostly lost by the
 * other. *even: the amount that would win most.
 */
static double
gain_of(const Policy *policy, const Stage *stage, int32_t from, int32_t to, double amount, double *even)
{
	double		group_scale = policy->groups[stage->row].scale;
	double		group_difference = fill_difference(policy, amount_at(policy, stage->row, 0), from, to);
	double		node_difference = fill_difference(policy, policy->node, from, to);
	double		weights = 1 / policy->weight[from] + 1 / policy->weight[to];
	double		group_gain = group_scale * amount * (2 * group_difference - amount * weights);
	double		node_gain = policy->node_scale * amount * (2 * node_difference - amount * weights);
	double		own_gain = stage->reason == TESSERA_POLICY_GROUP ? group_gain : node_gain;
	double		gain = group_gain + node_gain;

	*even = (group_scale * group_difference + policy->node_scale * node_difference) / ((group_scale + policy->node_scale) * weights);
	return own_gain > 0 && gain >= TOLERATED_LOSS * own_gain ? gain : 0;
}

/* The best chunk of entries [low, high), all of one block, for the best recipient. False: none. */
static bool
consider_block(Choice *choice, size_t low, size_t high, Candidate *candidate)
{
	Policy	   *policy = choice->policy;
	Stage	   *stage = &choice->stage;
	const PolicyEntry *entries = policy->entries;
	const PolicyGroup *group = &policy->groups[stage->row];
	int32_t		from = group->chunks[entries[low].chunk - group->offset].shard;
	double		even;

	candidate->to = tree_lowest(&stage->recipients[entries[low].block - group->first_block]);
	if (candidate->to < 0 || candidate->to == from || !set_amount(policy, stage, from, candidate))
		return false;
	for (int attempt = 0; attempt < 2; attempt++)
	{
		candidate->entry = best_fit(choice, low, high, candidate);
		if (candidate->entry == high)
			return false;
		candidate->gain = gain_of(policy, stage, from, candidate->to, entries[candidate->entry].amount, &even);
		if (candidate->gain > 0)
		{
			/* for its neighbours */
			candidate->want = smaller(candidate->want, even);
			break;
		}
		/* perhaps less of it is better */
		if (!(even > 0 && even < candidate->want))
			return false;
		candidate->want = even;
		candidate->tolerated = 0;
	}
	if (candidate->gain > 0 && !stage->dry && !has_room(policy, candidate->to))
	{
		policy->waiting = true;
		return false;
	}
	return candidate->gain > 0;
}

/* The best move from a shard; best comes in with no gain. False: none. */
static bool
consider_donor(Choice *choice, int32_t from, Candidate *best)
{
	Policy	   *policy = choice->policy;
	size_t		cell = choice->stage.row * policy->nshards + from;
	size_t		end = policy->cell[cell + 1];

	sort_cell(policy, cell);
	for (size_t low = policy->cell[cell]; low < end;)
	{
		size_t		high = entries_up_to(policy, low, end, policy->entries[low].block, POLICY_MAX_AMOUNT);
		Candidate	candidate;

		if (consider_block(choice, low, high, &candidate) && candidate.gain > best->gain)
			*best = candidate;
		low = high;
	}
	return best->gain > 0;
}

/* Whether chunk i of the group goes along with one of the shard and zone that moves. */
static bool
goes_along(const Policy *policy, const PolicyGroup *group, size_t i, const TesseraPolicyChunk *chunk)
{
	uint8_t		state = policy->state[group->offset + i];

	return (state == POLICY_LOOSE || state == POLICY_WEIGHTLESS) && group->chunks[i].shard == chunk->shard && group->chunks[i].zone == chunk->zone;
}

/* Makes a move of the chosen chunk and as many of its neighbours as may move with it. */
static void
move_with_neighbours(Choice *choice, const Candidate *candidate)
{
	Policy	   *policy = choice->policy;
	const PolicyGroup *group = &policy->groups[choice->stage.row];
	size_t		first = policy->entries[candidate->entry].chunk - group->offset;
	size_t		end = first + 1;
	const TesseraPolicyChunk *chunk = &group->chunks[first];
	double		amount_left = candidate->want - tessera_policy_amount(policy, group, chunk);
	double		bytes_left = policy->snapshot->settings.run_bytes - tessera_policy_bytes(chunk);
	bool		after = true;

	/* first those after it, then those before it */
	while (group->number >= 0 && end - first < tessera_policy_run_chunks(policy))
	{
		bool		at_edge = after ? end == group->nchunks : first == 0;
		size_t		next = after ? end : first - 1;

		if (!at_edge && goes_along(policy, group, next, chunk) &&
			tessera_policy_amount(policy, group, &group->chunks[next]) <= amount_left &&
			tessera_policy_bytes(&group->chunks[next]) <= bytes_left)
		{
			amount_left -= tessera_policy_amount(policy, group, &group->chunks[next]);
			bytes_left -= tessera_policy_bytes(&group->chunks[next]);
			if (after)
				end++;
			else
				first--;
		}
		else if (after)
			after = false;
		else
			break;
	}
	tessera_policy_move(policy, choice->stage.reason, choice->stage.row, first, end - first, candidate->to);
}

/* Computes the key of a shard. Returns whether it may still receive. */
static bool
set_stage_key(const Policy *policy, Stage *stage, int32_t shard)
{
	double		excess = *amount_at(policy, stage->row, shard) - policy->ideal[stage->row * policy->nshards + shard];
	double		key = stage->to_ideal ? excess / policy->weight[shard] : above_ideal(policy, stage->row, shard);

	stage->opposite[shard] = -key;
	/* where blocks overlap, a shard at its ideal may take of one block to give of another: only if no other can take it */
	stage->key[shard] = excess < 0 ? key : key + LATE;
	if (stage->to_ideal)
		return excess < 0 && (stage->dry || has_room(policy, shard));
	return excess < 0 || !stage->one_block;
}

static void
prepare_stage(Choice *choice, size_t row, TesseraPolicyReason reason, bool to_ideal, bool dry)
{
	Policy	   *policy = choice->policy;
	const PolicyGroup *group = &policy->groups[row];
	Stage	   *stage = &choice->stage;

	stage->row = row;
	stage->reason = reason;
	stage->to_ideal = to_ideal;
	stage->dry = dry;
	stage->one_block = group->nblocks == 1 && policy->blocks[group->first_block].zone < 0;
	tree_clear(&stage->donors);
	for (size_t i = 0; i < policy->nshards; i++)
	{
		size_t		cell = row * policy->nshards + i;

		set_stage_key(policy, stage, (int32_t) i);
		if (policy->cell[cell] < policy->cell[cell + 1] && policy->amount[cell] > policy->ideal[cell] &&
			(dry || has_room(policy, (int32_t) i)))
			tree_put(&stage->donors, (int32_t) i);
	}
	tree_build(&stage->donors, stage->opposite);
	for (size_t block = 0; block < group->nblocks; block++)
	{
		const PolicyShards *shards = &policy->zones[policy->blocks[group->first_block + block].zone + 1];
		Tree	   *tree = &stage->recipients[block];

		tree_clear(tree);
		for (size_t i = 0; i < shards->n; i++)
			if (set_stage_key(policy, stage, shards->all[i]))
				tree_put(tree, shards->all[i]);
		tree_build(tree, stage->key);
	}
}

/* After a move from or to the shard. */
static void
update_stage(Choice *choice, int32_t shard)
{
	Policy	   *policy = choice->policy;
	Stage	   *stage = &choice->stage;
	bool		receives = set_stage_key(policy, stage, shard);
	size_t		cell = stage->row * policy->nshards + shard;

	tree_update(&stage->donors, stage->opposite, shard, has_room(policy, shard) && policy->amount[cell] > policy->ideal[cell]);
	for (size_t block = 0; block < policy->groups[stage->row].nblocks; block++)
		tree_update(&stage->recipients[block], stage->key, shard, receives);
}

/*
 * One stage of a group. The donor that is furthest above its ideal gives to the recipient that is furthest below, until none can. A donor that could
 * not is left out from then on: recipients only get fuller. dry: returns whether there is a move to make, and makes none.
 */
static bool
run_stage(Choice *choice, size_t row, TesseraPolicyReason reason, bool to_ideal, bool dry)
{
	Policy	   *policy = choice->policy;
	Stage	   *stage = &choice->stage;
	int32_t		from;

	if (policy->groups[row].nblocks == 0 || (reason == TESSERA_POLICY_GROUP && policy->groups[row].scale <= 0))
		return false;
	prepare_stage(choice, row, reason, to_ideal, dry);
	while (!policy->full && (from = tree_lowest(&stage->donors)) >= 0)
	{
		Candidate	best = {0};

		if (!consider_donor(choice, from, &best))
		{
			tree_update(&stage->donors, stage->opposite, from, false);
			continue;
		}
		if (dry)
			return true;
		move_with_neighbours(choice, &best);
		update_stage(choice, from);
		update_stage(choice, best.to);
	}
	return false;
}

/* Both stages of a group. */
static void
balance_group(Choice *choice, size_t row, TesseraPolicyReason reason)
{
	Policy	   *policy = choice->policy;

	run_stage(choice, row, reason, true, false);
	if (policy->limited && !policy->full && run_stage(choice, row, reason, true, true))
		policy->waiting = true;
	else if (reason == TESSERA_POLICY_GROUP || !policy->waiting)
		run_stage(choice, row, reason, false, false);
}

/* How uneven a group is: the largest excess of a shard over its ideal, relative to the mean. */
static double
unevenness(const Policy *policy, size_t row)
{
	const PolicyGroup *group = &policy->groups[row];
	double		largest = 0;

	for (size_t shard = 0; shard < policy->nshards && group->mean > 0; shard++)
	{
		size_t		cell = row * policy->nshards + shard;
		double		excess = (policy->amount[cell] - policy->ideal[cell]) / (policy->weight[shard] * group->mean);

		if (policy->cell[cell] < policy->cell[cell + 1] && excess > largest)
			largest = excess;
	}
	return largest;
}

typedef struct Urgency
{
	double		unevenness;
	size_t		row;
} Urgency;

static int
compare_urgency(const void *a, const void *b)
{
	const Urgency *x = a;
	const Urgency *y = b;

	if (x->unevenness != y->unevenness)
		return x->unevenness > y->unevenness ? -1 : 1;
	return x->row < y->row ? -1 : 1;
}

/* Groups, the most uneven one first. */
static void
balance_groups(Choice *choice)
{
	Policy	   *policy = choice->policy;
	Urgency    *order = tessera_policy_zeroed(policy, policy->ngroups, sizeof(Urgency));
	size_t		before;

	for (size_t row = 0; row < policy->ngroups; row++)
	{
		order[row].unevenness = unevenness(policy, row);
		order[row].row = row;
	}
	qsort(order, policy->ngroups, sizeof(Urgency), compare_urgency);
	policy->waiting = false;
	for (int turn = 0; turn < MAX_TURNS; turn++)
	{
		before = policy->plan->nactions;
		for (size_t i = 0; i < policy->ngroups && !policy->full; i++)
			balance_group(choice, order[i].row, TESSERA_POLICY_GROUP);
		if (policy->plan->nactions == before)
			break;
	}
	for (size_t i = 0; i < policy->ngroups && !policy->full; i++)
		balance_group(choice, order[i].row, TESSERA_POLICY_NODE);
}

/* ---- merges ---- */

static bool
may_merge(const Policy *policy, const PolicyGroup *group, size_t i)
{
	const TesseraPolicyChunk *chunk = &group->chunks[i];
	TesseraPolicyReason reason;

	return chunk->mergeable && !chunk->busy && !chunk->jumbo && !chunk->pinned && policy->state[group->offset + i] != POLICY_TAKEN &&
		policy->snapshot->shards[chunk->shard].usable && !tessera_policy_forced(policy, chunk->shard, chunk->zone, &reason);
}

static void
merge_run(Policy *policy, size_t row, size_t first, size_t end)
{
	const PolicyGroup *group = &policy->groups[row];
	int32_t		shard = group->chunks[first].shard;
	TesseraPolicyAction *action;

	policy->limited = policy->room[shard] > 0;
	action = add_action(policy, TESSERA_POLICY_MERGE, TESSERA_POLICY_COLD, row, shard, shard);
	if (action == NULL)
		return;
	if (action->now)
		policy->room[shard]--;
	add_range(policy, action, first, end - first);
	for (size_t i = first; i < end; i++)
		add_load(action, &group->chunks[i]);
}

static void
merge_group(Policy *policy, size_t row)
{
	const PolicyGroup *group = &policy->groups[row];
	double		limit = group->max_chunk_bytes * MERGED_PART;

	for (size_t first = 0; first < group->nchunks && !policy->full;)
	{
		const TesseraPolicyChunk *chunk = &group->chunks[first];
		double		bytes = tessera_policy_bytes(chunk);
		size_t		end = first + 1;

		if (may_merge(policy, group, first))
			while (end < group->nchunks && end - first < tessera_policy_run_chunks(policy) &&
				   group->chunks[end].shard == chunk->shard && group->chunks[end].zone == chunk->zone &&
				   may_merge(policy, group, end) && bytes + tessera_policy_bytes(&group->chunks[end]) <= limit)
				bytes += tessera_policy_bytes(&group->chunks[end++]);
		if (end > first + 1)
			merge_run(policy, row, first, end);
		first = end;
	}
}

/* Last, when it is known what moves; with a list that is full it is not. */
static void
merge_groups(Policy *policy)
{
	const TesseraPolicySettings *settings = &policy->snapshot->settings;

	if (!settings->merge || !settings->balance)
		return;
	for (size_t row = 0; row + 1 < policy->ngroups && !policy->full; row++)
		if (policy->groups[row].balancing)
			merge_group(policy, row);
}

/* ---- the plan ---- */

static int
compare_ranges(const void *a, const void *b)
{
	const TesseraPolicyRange *x = a;
	const TesseraPolicyRange *y = b;

	return x->first < y->first ? -1 : x->first > y->first ? 1 : 0;
}

/* Ranges in order, adjacent ones as one. */
static void
finish_actions(Policy *policy)
{
	for (size_t i = 0; i < policy->plan->nactions; i++)
	{
		TesseraPolicyAction *action = &policy->plan->actions[i];
		TesseraPolicyRange *ranges = action->ranges;
		size_t		n = 1;

		qsort(ranges, action->nranges, sizeof(TesseraPolicyRange), compare_ranges);
		for (size_t j = 1; j < action->nranges; j++)
		{
			if (ranges[n - 1].first + ranges[n - 1].count == ranges[j].first)
				ranges[n - 1].count += ranges[j].count;
			else
				ranges[n++] = ranges[j];
		}
		action->nranges = n;
		action->first = ranges[0].first;
		action->count = ranges[0].count;
	}
}

/* Those that start now come first; else the order stays. */
static void
sort_actions(Policy *policy)
{
	TesseraPolicyPlan *plan = policy->plan;
	TesseraPolicyAction *sorted = tessera_policy_zeroed(policy, plan->nactions, sizeof(TesseraPolicyAction));
	size_t		n = 0;

	for (int now = 1; now >= 0; now--)
		for (size_t i = 0; i < plan->nactions; i++)
			if (plan->actions[i].now == (now == 1))
				sorted[n++] = plan->actions[i];
	plan->actions = sorted;
}

static double
spread(const Policy *policy)
{
	double		highest = 0;
	double		lowest = 0;
	bool		first = true;

	for (size_t i = 0; i < policy->nshards; i++)
	{
		double		fill = policy->node[i] / policy->weight[i];

		if (policy->snapshot->shards[i].draining)
			continue;
		if (first || fill > highest)
			highest = fill;
		if (first || fill < lowest)
			lowest = fill;
		first = false;
	}
	return policy->node_mean > 0 ? (highest - lowest) / policy->node_mean : 0;
}

static void
prepare_choice(Choice *choice, Policy *policy)
{
	Stage	   *stage = &choice->stage;
	size_t		nentries = policy->cell[policy->ngroups * policy->nshards];
	size_t		ntrees = 0;

	memset(choice, 0, sizeof(*choice));
	choice->policy = policy;
	stage->key = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	stage->opposite = tessera_policy_zeroed(policy, policy->nshards, sizeof(double));
	tree_make(policy, &stage->donors);
	for (size_t row = 0; row < policy->ngroups; row++)
		if (policy->groups[row].nblocks > ntrees)
			ntrees = policy->groups[row].nblocks;
	stage->recipients = tessera_policy_zeroed(policy, ntrees, sizeof(Tree));
	for (size_t i = 0; i < ntrees; i++)
		tree_make(policy, &stage->recipients[i]);
	choice->down = tessera_policy_zeroed(policy, nentries + 1, sizeof(uint32_t));
	choice->up = tessera_policy_zeroed(policy, nentries, sizeof(uint32_t));
	for (size_t i = 0; i < nentries; i++)
	{
		choice->down[i + 1] = (uint32_t) i;
		choice->up[i] = (uint32_t) i + 1;
	}
}

/*
 * The ideal, with schemas that move to even out the nodes while one can; when none can any more, chunks even out what the schemas leave uneven.
 */
static void
set_ideal(Choice *choice)
{
	Policy	   *policy = choice->policy;
	size_t		schemas = policy->ngroups - 1;

	tessera_policy_ideal(policy, false);
	if (policy->groups[schemas].nblocks > 0 &&
		!run_stage(choice, schemas, TESSERA_POLICY_NODE, true, true) && !run_stage(choice, schemas, TESSERA_POLICY_NODE, false, true))
		tessera_policy_ideal(policy, true);
}

static void
choose_actions(Policy *policy)
{
	Choice		choice;

	prepare_choice(&choice, policy);
	set_ideal(&choice);
	for (int pass = 0; pass < 2; pass++)
	{
		policy->limited = pass == 0;
		move_forced(policy);
		balance_groups(&choice);
	}
	tessera_policy_spread_empty(policy);
	merge_groups(policy);
	finish_actions(policy);
	sort_actions(policy);
}

TesseraPolicyPlan *
tessera_policy_plan(const TesseraPolicySnapshot *snapshot, void *(*alloc) (size_t size))
{
	Policy		policy;
	TesseraPolicyPlan *plan;

	memset(&policy, 0, sizeof(policy));
	policy.snapshot = snapshot;
	policy.alloc = alloc;
	plan = tessera_policy_zeroed(&policy, 1, sizeof(TesseraPolicyPlan));
	policy.plan = plan;
	plan->complete = true;
	plan->fill = tessera_policy_zeroed(&policy, snapshot->nshards, sizeof(double));
	if (snapshot->nshards == 0)
		return plan;
	tessera_policy_scan(&policy);
	for (size_t i = 0; i < policy.nshards; i++)
		plan->fill[i] = policy.node[i] / policy.weight[i];
	plan->mean_fill = policy.node_mean;
	plan->spread = spread(&policy);
	choose_actions(&policy);
	plan->spread_after = spread(&policy);
	plan->complete = !policy.full;
	return plan;
}
