/*
 * cluster_uses.c
 *	  Uses of logical sessions on all nodes; see cluster_uses.h.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "common/version_compat.h"
#include "control/calls.h"
#include "logical_session/cluster_uses.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_internal_session_uses_here);

#define CALL_MS 3000			/* a node that does not answer is left out */

typedef struct Uses
{
	int			n;
	int			size;
	TesseraClusterUse *uses;
} Uses;

static void
add_use(Uses *all, const TesseraClusterUse *use)
{
	if (all->n == all->size)
	{
		all->size = Max(64, all->size * 2);
		all->uses = all->uses == NULL ? palloc(all->size * sizeof(TesseraClusterUse)) : repalloc(all->uses, all->size * sizeof(TesseraClusterUse));
	}
	all->uses[all->n++] = *use;
}

/* Of this node; without those of roles that are gone. */
static void
add_here(int32 node_id, Uses *all)
{
	int			n;
	TesseraSessionUse *uses = tessera_session_uses(&n);

	for (int i = 0; i < n; i++)
	{
		const TesseraSessionUse *use = &uses[i];
		const char *role = GetUserNameFromId(use->role, true);

		if (role != NULL)
			add_use(all, &(TesseraClusterUse) {.node_id = node_id,.session = use->session,.role = role,.used = use->used,
							  .written = use->written,.pid = use->pid,.state = use->state});
	}
	pfree(uses);
}

/* False: the node has not answered. */
static bool
add_of_node(int32 node_id, Uses *all)
{
	TesseraCallTarget node = tessera_ask(tessera_within(tessera_to_node(node_id), CALL_MS), TESSERA_TOLERATE_ERRORS);
	TesseraSessionUsesAnswer *rows;
	int			n;

	if (!tessera_call_session_uses(node, &rows, &n))
		return false;
	for (int i = 0; i < n; i++)
		add_use(all, &(TesseraClusterUse) {.node_id = node_id,.session = *rows[i].session,.role = rows[i].role,.used = rows[i].used,
						  .written = rows[i].written,.pid = rows[i].pid,.state = rows[i].state});
	return true;
}

TesseraClusterUse *
tessera_cluster_uses(int *n, int *unasked)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	Uses		all = {0};

	*unasked = 0;
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		CHECK_FOR_INTERRUPTS();
		if (node_id == routing->self)
			add_here(node_id, &all);
		else if (!add_of_node(node_id, &all))
			(*unasked)++;
	}
	*n = all.n;
	return all.uses;
}

/* tessera_internal.session_uses_here(): what the call session_uses returns */
Datum
tessera_internal_session_uses_here(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Uses		all = {0};

	InitMaterializedSRF(fcinfo, 0);
	add_here(0, &all);
	for (int i = 0; i < all.n; i++)
	{
		const TesseraClusterUse *use = &all.uses[i];
		Datum		values[6] = {UUIDPGetDatum(&use->session), CStringGetTextDatum(use->role), Int64GetDatum(use->used), BoolGetDatum(use->written),
		Int32GetDatum(use->pid), Int32GetDatum(use->state)};
		bool		nulls[6] = {false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
