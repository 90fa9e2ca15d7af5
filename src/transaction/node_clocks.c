/*
 * node_clocks.c
 *	  The clocks of the other nodes; see node_clocks.h.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "utils/memutils.h"

#include "catalog/clock_store.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"
#include "transaction/node_clocks.h"

#define PROMOTION_MS 3000		/* ms that a promoted server waits for each node's clock */

static void
own_clock(TesseraTimes *times, TesseraTime *wall)
{
	if (!RecoveryInProgress())
		tessera_clock_load();
	(void) tessera_clock_read(times);
	*wall = tessera_clock_wall();
}

void
tessera_serve_clock(TesseraClockResult *result)
{
	TesseraTimes times;
	TesseraTime wall;

	own_clock(&times, &wall);
	result->cluster_time = (int64) times.cluster;
	result->config_time = (int64) times.config;
	result->topology_time = (int64) times.topology;
	result->wall = (int64) wall;
}

static void
ask_clock(const TesseraNode *node, int timeout_ms, TesseraNodeClock *clock)
{
	TesseraCallTarget target = tessera_ask(tessera_within(tessera_to_node(node->node_id), timeout_ms), TESSERA_TOLERATE_ERRORS);
	TesseraClockAnswer answer;

	clock->known = tessera_call_clock(target, &answer);
	if (!clock->known)
		return;
	clock->times.cluster = (TesseraTime) answer.cluster_time;
	clock->times.config = (TesseraTime) answer.config_time;
	clock->times.topology = (TesseraTime) answer.topology_time;
	clock->wall = (TesseraTime) answer.wall;
}

TesseraNodeClock *
tessera_node_clocks(int timeout_ms, int *n)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	TesseraNodeClock *clocks = palloc0(routing->nnodes * sizeof(TesseraNodeClock));

	*n = routing->nnodes;
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		clocks[i].name = node->name;
		clocks[i].is_self = node->node_id == routing->self;
		if (!clocks[i].is_self)
			ask_clock(node, timeout_ms, &clocks[i]);
		else
		{
			own_clock(&clocks[i].times, &clocks[i].wall);
			clocks[i].known = true;
		}
	}
	return clocks;
}

void
tessera_clock_promoted(void)
{
	TesseraNodeClock *clocks;
	int			n;

	tessera_background_begin();
	tessera_clock_load();
	clocks = tessera_node_clocks(PROMOTION_MS, &n);
	for (int i = 0; i < n; i++)
		if (clocks[i].known && !tessera_clock_hear(&clocks[i].times, true))
			ereport(LOG,
					(errmsg("the clock of node \"%s\" is too far ahead of this one's", NameStr(clocks[i].name))));
	if (tessera_clock_role() >= TESSERA_CLOCK_TICKS)
		(void) tessera_clock_commit(false);
	tessera_background_commit();
}
