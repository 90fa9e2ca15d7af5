/*
 * drain.c
 *	  The end of a removal; see drain.h. The policy moves chunks off a draining shard; what is left of it here is to see that nothing is, and to
 *	  remove it, as tessera.remove_shard() would (config/remove_node.c), unless that was called off in the last moment.
 *
 * The removal is a call to this very node over the control lane: a session of its own, with the rights and the locks of one. Before it, the shard is
 * asked, without a lock, for what would refuse it, so that one that is not done yet costs a moment and no error. A crash leaves it draining.
 *
 * Nobody tells when what is in the way has gone (a prepared transaction, an advisory lock, rows to be deleted), so it is tried again, soon at first,
 * then less often; what may keep the balancer waiting is left alone for longer from the start. Obstacles are this process's memory: the next round
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
#include "transaction/advisory.h"
#include "transaction/background.h"

#define ASK_MS 2000
#define REMOVE_MS 30000
/* Until the next attempt: doubled by each that meets the same kind of obstacle. */
#define QUICK_AGAIN_MS 1000		/* after what takes a moment only */
#define SLOW_AGAIN_MS 20000		/* after what may have kept the balancer waiting */
#define LONGEST_AGAIN_MS 60000

typedef struct Drained
{
	int32		node_id;
	char	   *name;
} Drained;

typedef enum ObstacleKind
{
	DELETIONS,					/* rows that have moved away are still there */
	IN_USE,						/* the shard keeps something that others use */
	SILENT,						/* it does not answer */
	FAILED						/* the removal has, in another way */
} ObstacleKind;

/* What is in the way of a shard's removal, from its first step until it has left or its removal is called off. */
typedef struct Obstacle
{
	int32		node_id;
	ObstacleKind kind;
	char	   *text;			/* NULL: nothing is known */
	long		again_ms;		/* between the last attempt and the next, which is at: */
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
note_obstacle(Obstacle *obstacle, ObstacleKind kind, const char *text)
{
	bool		same_kind = obstacle->text != NULL && obstacle->kind == kind;
	char	   *former = obstacle->text;

	if (same_kind)
		obstacle->again_ms = Min(obstacle->again_ms * 2, LONGEST_AGAIN_MS);
	else
		obstacle->again_ms = kind == DELETIONS || kind == IN_USE ? QUICK_AGAIN_MS : SLOW_AGAIN_MS;
	obstacle->kind = kind;
	obstacle->again = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), obstacle->again_ms);
	if (former != NULL && strcmp(former, text) == 0)
		return false;
	obstacle->text = MemoryContextStrdup(TopMemoryContext, text);
	if (former != NULL)
		pfree(former);
	return true;
}

/* As note_obstacle(), and in the log if it is new. hint: NULL: none. */
static bool
log_obstacle(Obstacle *obstacle, const Drained *node, ObstacleKind kind, const char *text, const char *hint)
{
	if (!note_obstacle(obstacle, kind, text))
		return false;
	ereport(LOG,
			(errmsg("shard \"%s\" is empty, but cannot be removed yet: %s", node->name, text),
			 hint != NULL ? errhint("%s", hint) : 0));
	return true;
}

/* Is any of the locks one of the cluster's that the shard keeps? Outside of a transaction. */
static bool
keeps_one(const Drained *node, const TesseraAdvisoryLocksAnswer *locks, int nlocks)
{
	Oid			type = INT4OID;
	Datum		value = Int32GetDatum(node->node_id);
	bool		found = false;
	TesseraSpi	spi;
	uint64		n;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT slot FROM tessera.advisory_home WHERE node_id = $1", SPI_OK_SELECT, 1, &type, &value, NULL);
	for (uint64 i = 0; i < n; i++)
		for (int j = 0; j < nlocks && !found; j++)
		{
			TesseraAdvisoryKey key = {locks[j].objsubid, (int64) ((uint64) locks[j].classid << 32 | (uint64) locks[j].objid)};

			found = tessera_advisory_slot(&key) == DatumGetInt32(spi_row_value(i, 1));
		}
	tessera_spi_end(&spi);
	tessera_background_commit();
	return found;
}

/*
 * Asks the shard for what tessera_remove_node() would refuse; true: there is nothing. *new: an obstacle that is not what was in the way before. The
 * words are those of the refusals.
 */
static bool
is_done(const Drained *node, Obstacle *obstacle, bool *new)
{
	TesseraCallTarget shard = tessera_ask(tessera_within(tessera_to_node(node->node_id), ASK_MS), TESSERA_TOLERATE_ERRORS);
	int64		ranges;
	int64		prepared;
	TesseraAdvisoryLocksAnswer *locks;
	int			nlocks;

	if (!tessera_call_unsettled_ranges(shard, &ranges) || !tessera_call_prepared_count(shard, &prepared) ||
		!tessera_call_advisory_locks(shard, &locks, &nlocks))
		*new = log_obstacle(obstacle, node, SILENT, "it does not answer", NULL);
	else if (ranges > 0)
		*new = note_obstacle(obstacle, DELETIONS,
							 psprintf("rows of " INT64_FORMAT " ranges that have moved away are still to be deleted there", ranges));
	else if (prepared > 0)
		*new = log_obstacle(obstacle, node, IN_USE, psprintf("It has " INT64_FORMAT " prepared transactions.", prepared), NULL);
	else if (nlocks > 0 && keeps_one(node, locks, nlocks))
		*new = log_obstacle(obstacle, node, IN_USE, "It keeps advisory locks that sessions hold or wait for.", NULL);
	else
		return true;
	return false;
}

/* Why the removal did not succeed. Only a refusal, by what the shard keeps, is known to be quick when it is tried again. */
static bool
note_failure(Obstacle *obstacle, const Drained *node, const ErrorData *error)
{
	if (error == NULL)
		return log_obstacle(obstacle, node, FAILED, "the config node has not answered in time", NULL);
	if (error->sqlerrcode == ERRCODE_OBJECT_IN_USE)
		return log_obstacle(obstacle, node, IN_USE, error->detail != NULL ? error->detail : error->message, error->hint);
	return log_obstacle(obstacle, node, FAILED, error->message, error->hint);
}

/* true: something else is in the way than before. */
static bool
remove_drained(const Drained *node, Obstacle *obstacle)
{
	ErrorData  *error = NULL;
	bool		new = false;
	TesseraCallTarget here = tessera_within(tessera_on_lane(tessera_to_config(), TESSERA_LANE_CONTROL), REMOVE_MS);

	if (!is_done(node, obstacle, &new))
		return new;
	tessera_injection("balancer_removing");
	if (tessera_call_membership(tessera_keep_error(tessera_ask(here, TESSERA_TOLERATE_ERRORS), &error), "remove_drained", node->name, NULL, false,
								"tessera", NULL))
		return false;
	return note_failure(obstacle, node, error);
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

		if (obstacle->again <= GetCurrentTimestamp() && remove_drained(node, obstacle))
			next = began;		/* the next round's plan shows it */
		if (obstacle->text != NULL)
			next = Min(next, obstacle->again);
	}
	forget_others(began);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return next;
}
