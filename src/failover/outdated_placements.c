/*
 * outdated_placements.c
 *	  A shard whose placements are older than its chunks: a copy of its data directory was put in its place that is older than the node.
 *
 * Every move gives donor and recipient a higher version, in the chunks and in their placements. So other ranges than those of the chunks, with a
 * version that stays behind theirs, and no migration here that would explain it, tell that commits are missing. Looked at now and then, and acted on
 * when a look that follows a fetch from the config node still finds the same placement. Then this server finds out what it owns, as after a
 * promotion.
 *
 * Memory of this process: the placements that were behind at the last look. Nothing durable.
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/migration_row.h"
#include "failover/promotion.h"
#include "transaction/background.h"

#define PATIENCE_MS 3000
#define REFRESH_MS 10000

/* A placement that is behind. */
typedef struct Behind
{
	pg_uuid_t	group_id;
	TransactionId xmin;			/* of its row */
	TimestampTz since;
} Behind;

static List *seen = NIL;		/* of Behind *, in TopMemoryContext */


static bool
in_migration(const pg_uuid_t *group_id)
{
	int			ndonated;
	int			nreceived;

	(void) tessera_donated_ranges(group_id, &ndonated);
	(void) tessera_received_ranges(group_id, NULL, NULL, &nreceived);
	return ndonated > 0 || nreceived > 0;
}

static bool
is_behind(const TesseraRouting *routing, const TesseraGroup *group, const TesseraPlacementRow *placement)
{
	int64		major = tessera_routing_shard_major(routing, group, routing->self);

	if (placement == NULL || placement->ngates > 0 || (major <= placement->major && (major > 0 || placement->nowned == 0)))
		return false;
	return !in_migration(&group->group_id) && !tessera_owns_its_chunks(routing, group, placement);
}

static TimestampTz
first_seen(const Behind *now)
{
	ListCell   *cell;

	foreach(cell, seen)
	{
		Behind	   *before = lfirst(cell);

		if (before->xmin == now->xmin && memcmp(&before->group_id, &now->group_id, sizeof(pg_uuid_t)) == 0)
			return before->since;
	}
	return now->since;
}

/* One check. Returns since when a placement has been behind that still is; 0: none is. */
static TimestampTz
look(void)
{
	const TesseraRouting *routing;
	TimestampTz oldest = 0;
	List	   *found = NIL;

	tessera_background_begin();
	routing = tessera_routing();
	for (int i = 0; routing != NULL && !routing->placements_unknown && !routing->replaced && i < routing->ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);
		TesseraPlacementRow *placement = tessera_routing_nchunks(routing, group) > 0 ? tessera_placement_read(&group->group_id, NULL) : NULL;
		MemoryContext caller;
		Behind	   *behind;

		if (!is_behind(routing, group, placement))
			continue;
		caller = MemoryContextSwitchTo(TopMemoryContext);
		behind = palloc(sizeof(Behind));
		*behind = (Behind) {.group_id = group->group_id,.xmin = placement->xmin,.since = GetCurrentTimestamp()};
		behind->since = first_seen(behind);
		oldest = oldest == 0 ? behind->since : Min(oldest, behind->since);
		found = lappend(found, behind);
		MemoryContextSwitchTo(caller);
	}
	tessera_background_commit();
	list_free_deep(seen);
	seen = found;
	return oldest;
}

static bool
fetch(void)
{
	bool		fetched;

	tessera_background_begin();
	fetched = tessera_routing_refresh(REFRESH_MS);
	tessera_background_commit();
	return fetched;
}

bool
tessera_placements_lost(void)
{
	TimestampTz since = look();

	if (since == 0 || !TimestampDifferenceExceeds(since, GetCurrentTimestamp(), PATIENCE_MS) || !fetch())
		return false;
	return look() == since;
}
