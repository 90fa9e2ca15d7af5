/*
 * drain.c
 *	  The end of a removal; see drain.h. The policy moves chunks off a draining shard; what is left of it here is to see that nothing is, and to
 *	  remove it, as tessera.remove_shard() would (config/remove_node.c), unless that was called off in the last moment.
 *
 * The removal is a call to this very node over the control lane: a session of its own, with the rights and the locks of one. Before it, all that it
 * would wait for is looked at, so that a shard that is not done yet costs a moment. A crash leaves it draining.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "balancer/balancer_settings.h"
#include "balancer/drain.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "config/membership.h"
#include "control/calls.h"
#include "transaction/background.h"

#define ASK_MS 2000
#define REMOVE_MS 30000

typedef struct Drained
{
	int32		node_id;
	char	   *name;
} Drained;

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

/* true: it still has rows to delete. */
static bool
remove_drained(const Drained *node)
{
	ErrorData  *error = NULL;
	int64		left;
	TesseraCallTarget here = tessera_within(tessera_on_lane(tessera_to_config(), TESSERA_LANE_CONTROL), REMOVE_MS);

	if (!tessera_balancer_node_usable(node->node_id))
		return false;
	if (!tessera_call_unsettled_ranges(tessera_ask(tessera_within(tessera_to_node(node->node_id), ASK_MS), TESSERA_TOLERATE_ERRORS), &left))
	{
		tessera_balancer_node_failed(node->node_id);
		return false;
	}
	if (left > 0)
		return true;
	tessera_injection("balancer_removing");
	if (tessera_call_membership(tessera_keep_error(tessera_ask(here, TESSERA_TOLERATE_ERRORS), &error), "remove_drained", node->name, NULL, false,
								"tessera", NULL))
		return false;
	tessera_balancer_node_failed(node->node_id);
	ereport(LOG,
			(errmsg("shard \"%s\" is empty, but cannot be removed yet: %s", node->name, error != NULL ? error->message : "no answer"),
			 error != NULL && error->detail != NULL ? errdetail_internal("%s", error->detail) : 0));
	return false;
}

bool
tessera_drain_step(void)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera drain", ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	bool		waits = false;
	ListCell   *cell;

	foreach(cell, find_drained())
		waits = remove_drained(lfirst(cell)) || waits;
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return waits;
}
