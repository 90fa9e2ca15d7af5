/*
 * ownership.c
 *	  The ownership filter's function; see ownership.h.
 *
 * tessera.owned(group uuid, VARIADIC key "any"): true unless the row's key lies in a deletion range that is not owned, by the placement that the active
 * snapshot sees. Per call site the key space and, per snapshot, the placement are cached in fn_extra.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/supportnodes.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/uuid.h"

#include "executor/ownership.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_owned);
PG_FUNCTION_INFO_V1(tessera_owned_support);

typedef struct OwnedState
{
	const TesseraRouting *routing;
	uint64		sequence;
	TransactionId xmin;			/* of the snapshot the placement was chosen for */
	TransactionId xmax;
	CommandId	curcid;
	const TesseraPlacement *placement;
	TesseraKeySpace *ks;
	MemoryContext context;		/* placements read from the catalog */
} OwnedState;

static Oid	owned_function = InvalidOid;
static bool callback_registered = false;

static void
forget_function(Datum arg, int cache, uint32 hash)
{
	owned_function = InvalidOid;
}

Oid
tessera_ownership_function(void)
{
	if (!OidIsValid(owned_function))
	{
		Oid			namespace = get_namespace_oid("tessera", true);
		Oid			types[2] = {UUIDOID, ANYOID};

		if (!callback_registered)
		{
			CacheRegisterSyscacheCallback(PROCOID, forget_function, (Datum) 0);
			callback_registered = true;
		}
		if (OidIsValid(namespace))
			owned_function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum("owned"),
											 PointerGetDatum(buildoidvector(types, 2)), ObjectIdGetDatum(namespace));
	}
	return owned_function;
}

bool
tessera_has_ownership_filter(List *quals)
{
	ListCell   *cell;

	foreach(cell, quals)
	{
		FuncExpr   *call = (FuncExpr *) lfirst(cell);

		if (IsA(call, FuncExpr) && call->funcid == tessera_ownership_function())
			return true;
	}
	return false;
}

/* Choose the placement anew when the snapshot or the image is another one. */
static void
choose_placement(OwnedState *state, const pg_uuid_t *group_id, Snapshot snapshot)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, group_id) : NULL;
	MemoryContext before;
	bool		newest;

	state->routing = routing;
	state->sequence = routing ? routing->sequence : 0;
	state->xmin = snapshot->xmin;
	state->xmax = snapshot->xmax;
	state->curcid = snapshot->curcid;
	state->placement = NULL;
	if (group == NULL)
		return;
	MemoryContextReset(state->context);
	before = MemoryContextSwitchTo(state->context);
	state->ks = tessera_group_keyspace(routing, group);
	state->placement = tessera_placement_as_of(routing, group, snapshot, &newest);
	MemoryContextSwitchTo(before);
}

Datum
tessera_owned(PG_FUNCTION_ARGS)
{
	OwnedState *state = fcinfo->flinfo->fn_extra;
	Snapshot	snapshot = GetActiveSnapshot();
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	int			nkeys = PG_NARGS() - 1;

	if (state == NULL)
	{
		state = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(OwnedState));
		state->context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "tessera ownership", ALLOCSET_SMALL_SIZES);
		state->curcid = InvalidCommandId;
		fcinfo->flinfo->fn_extra = state;
	}
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(true);
	if (state->xmin != snapshot->xmin || state->xmax != snapshot->xmax || state->curcid != snapshot->curcid || state->routing == NULL ||
		!tessera_routing_is_current(state->routing))
		choose_placement(state, PG_GETARG_UUID_P(0), snapshot);
	if (state->placement == NULL || !state->placement->hides)
		PG_RETURN_BOOL(true);

	for (int i = 0; i < nkeys && i < TESSERA_MAX_KEY_COLUMNS; i++)
	{
		if (PG_ARGISNULL(i + 1))
			PG_RETURN_BOOL(true);
		values[i] = PG_GETARG_DATUM(i + 1);
		if (state->ks->columns[i].typlen == -1)
			values[i] = PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i]));
	}
	tessera_key_position(state->ks, values, &position);
	PG_RETURN_BOOL(!tessera_placement_hides(state->placement, state->ks, &position));
}

/* Nearly every row is owned: the filter must not change the plan. */
Datum
tessera_owned_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (IsA(request, SupportRequestSelectivity))
	{
		((SupportRequestSelectivity *) request)->selectivity = 0.99;
		PG_RETURN_POINTER(request);
	}
	PG_RETURN_POINTER(NULL);
}
