/*
 * drain.c
 *	  The end of a removal; see drain.h. The policy moves chunks off a draining shard; what is left of it here is to see that nothing is, and to
 *	  remove it, as tessera.remove_shard() would (config/remove_node.c), unless that was called off in the last moment.
 *
 * The removal is a call to this very node over the control lane: a session of its own, with the rights and the locks of one. Before it, all that it
 * would wait for is looked at, so that a shard that is not done yet costs a moment. A crash leaves it draining.
 *
 * Nobody tells when what is in the way has gone (a prepared transaction, an advisory lock, rows to be deleted), so it is tried again every second; a
 * node that does not answer is left alone for longer, as each attempt may keep the balancer waiting. Obstacles are this process's memory: the round
 * writes them into its plan (round_plan.c), where tessera.draining_shards finds them.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "balancer/drain.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "config/membership.h"
#include "control/calls.h"
#include "transaction/background.h"

#define ASK_MS 2000
#define REMOVE_MS 30000
#define AGAIN_MS 1000			/* after a refusal */
#define UNREACHABLE_AGAIN_MS 20000	/* after a call that was not answered */

typedef struct Drained
{
	int32		node_id;
	char	   *name;
} Drained;

/* What is in the way of a shard's removal, from its first step until it has left or its removal is called off. */
typedef struct Obstacle
{
	int32		node_id;
	char	   *text;			/* NULL: nothing is known */
	TimestampTz again;
	TimestampTz seen;			/* the last step in which the shard was drained: when that began */
} Obstacle;

static HTAB *obstacles = NULL;	/* lives as long as the process, as its texts do */

/* Draining shards of which the catalog knows nothing any more, in the current context. */
static List *
find_drained(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *drained = NIL;
	TesseraSpi	spi;
	uint64		n;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT n.node_id, n.name FROM tessera.node AS n WHERE n.is_shard AND n.draining"
						" AND NOT EXISTS (SELECT FROM tessera.chunk AS c WHERE c.node_id = n.node_id)"
						" AND NOT EXISTS (SELECT FROM tessera.schema_placement AS p WHERE n.node_id IN (p.node_id, p.sequence_home))"
						" AND NOT EXISTS (SELECT FROM tessera.migration AS m WHERE m.state = 'running' AND n.node_id IN (m.donor, m.recipient))",
						SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext spi_context = MemoryContextSwitchTo(caller);
		Drained    *node = palloc(sizeof(Drained));

		node->node_id = DatumGetInt32(spi_row_value(i, 1));
		node->name = spi_row_text(i, 2);
		drained = lappend(drained, node);
		MemoryContextSwitchTo(spi_context);
	}
	tessera_spi_end(&spi);
	tessera_background_commit();
	return drained;
}

static Obstacle *
obstacle_of(int32 node_id, TimestampTz step)
{
	Obstacle   *obstacle;
	bool		found;

	if (obstacles == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(int32),.entrysize = sizeof(Obstacle),.hcxt = TopMemoryContext};

		obstacles = hash_create("tessera obstacles of removals", 8, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	obstacle = hash_search(obstacles, &node_id, HASH_ENTER, &found);
	if (!found)
	{
		obstacle->text = NULL;
		obstacle->again = 0;
	}
	obstacle->seen = step;
	return obstacle;
}

/* Shards that have left, or stay. */
static void
forget_others(TimestampTz step)
{
	HASH_SEQ_STATUS scan;
	Obstacle   *obstacle;

	if (obstacles == NULL)
		return;
	hash_seq_init(&scan, obstacles);
	while ((obstacle = hash_seq_search(&scan)) != NULL)
	{
		if (obstacle->seen == step)
			continue;
		if (obstacle->text != NULL)
			pfree(obstacle->text);
		(void) hash_search(obstacles, &obstacle->node_id, HASH_REMOVE, NULL);
	}
}

const char *
tessera_drain_obstacle(int32 node_id)
{
	const Obstacle *obstacle = obstacles != NULL ? hash_search(obstacles, &node_id, HASH_FIND, NULL) : NULL;

	return obstacle != NULL ? obstacle->text : NULL;
}

/* true: it is not what was in the way before. */
static bool
note_obstacle(Obstacle *obstacle, const char *text, long again_ms)
{
	bool		changed = obstacle->text == NULL || strcmp(obstacle->text, text) != 0;

	obstacle->again = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), again_ms);
	if (!changed)
		return false;
	if (obstacle->text != NULL)
		pfree(obstacle->text);
	obstacle->text = MemoryContextStrdup(TopMemoryContext, text);
	return true;
}

/* Why the removal did not succeed. Only a refusal by the config node is known to be quick when it is tried again. */
static void
note_failure(Obstacle *obstacle, const Drained *node, const ErrorData *error)
{
	bool		refused = error != NULL && ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
	const char *what = error == NULL ? "the config node has not answered in time" : refused && error->detail != NULL ? error->detail : error->message;

	if (note_obstacle(obstacle, what, refused ? AGAIN_MS : UNREACHABLE_AGAIN_MS))
		ereport(LOG,
				(errmsg("shard \"%s\" is empty, but cannot be removed yet: %s", node->name, what),
				 error != NULL && error->hint != NULL ? errhint("%s", error->hint) : 0));
}

static void
remove_drained(const Drained *node, Obstacle *obstacle)
{
	ErrorData  *error = NULL;
	int64		left;
	TesseraCallTarget here = tessera_within(tessera_on_lane(tessera_to_config(), TESSERA_LANE_CONTROL), REMOVE_MS);

	if (!tessera_call_unsettled_ranges(tessera_ask(tessera_within(tessera_to_node(node->node_id), ASK_MS), TESSERA_TOLERATE_ERRORS), &left))
	{
		if (note_obstacle(obstacle, "it does not answer", UNREACHABLE_AGAIN_MS))
			ereport(LOG,
					(errmsg("shard \"%s\" is empty, but cannot be removed yet: it does not answer", node->name)));
	}
	else if (left > 0)
		(void) note_obstacle(obstacle, psprintf("rows of " INT64_FORMAT " ranges that have moved away are still to be deleted there", left),
							 AGAIN_MS);
	else
	{
		tessera_injection("balancer_removing");
		if (!tessera_call_membership(tessera_keep_error(tessera_ask(here, TESSERA_TOLERATE_ERRORS), &error), "remove_drained", node->name, NULL,
									 false, "tessera", NULL))
			note_failure(obstacle, node, error);
	}
}

TimestampTz
tessera_drain_step(void)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera drain", ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	ListCell   *cell;

	foreach(cell, find_drained())
	{
		const Drained *node = lfirst(cell);
		Obstacle   *obstacle = obstacle_of(node->node_id, began);

		if (obstacle->again <= GetCurrentTimestamp())
			remove_drained(node, obstacle);
		if (obstacle->text != NULL)
			next = Min(next, obstacle->again);
	}
	forget_others(began);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return next;
}
