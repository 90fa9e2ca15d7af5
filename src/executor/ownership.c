/*
 * ownership.c
 *	  The ownership filter's function; see ownership.h.
 *
 * tessera.owned(group uuid, VARIADIC key "any"): true unless the row's key lies in a deletion range that is not owned, by the placement that the
 * active snapshot sees. Per call site the key space and, per snapshot, the placement are cached in fn_extra. tessera.require_owned(...) is its
 * counterpart for rows to be written, after their BEFORE triggers.
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

#include "common/injection.h"
#include "executor/ownership.h"
#include "routing/routing.h"
#include "routing/write_gate.h"

PG_FUNCTION_INFO_V1(tessera_owned);
PG_FUNCTION_INFO_V1(tessera_require_owned);
PG_FUNCTION_INFO_V1(tessera_owned_support);

typedef struct OwnedState
{
	const TesseraRouting *routing;
	uint64		sequence;
	TransactionId xmin;			/* of the snapshot the placement was chosen for */
	TransactionId xmax;
	CommandId	curcid;
	uint64		serial;			/* of one as of a cluster time */
	const TesseraPlacement *placement;
	TesseraKeySpace *ks;
	MemoryContext context;		/* placements read from the catalog */
} OwnedState;

static Oid	owned_function = InvalidOid;
static Oid	require_owned_function = InvalidOid;

static void
forget_function(Datum arg, int cache, uint32 hash)
{
	owned_function = InvalidOid;
	require_owned_function = InvalidOid;
}

void
tessera_ownership_init(void)
{
	CacheRegisterSyscacheCallback(PROCOID, forget_function, (Datum) 0);
}

static Oid
find_function(Oid *cached, const char *name)
{
	if (!OidIsValid(*cached))
	{
		Oid			namespace = get_namespace_oid("tessera", true);
		Oid			types[2] = {UUIDOID, ANYOID};

		if (OidIsValid(namespace))
			*cached = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name), PointerGetDatum(buildoidvector(types, 2)),
									  ObjectIdGetDatum(namespace));
	}
	return *cached;
}

Oid
tessera_ownership_function(void)
{
	return find_function(&owned_function, "owned");
}

Oid
tessera_require_owned_function(void)
{
	return find_function(&require_owned_function, "require_owned");
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

/* Any user may call these functions: values of other types than the key's would be taken for what they are not. */
static void
check_arguments(FunctionCallInfo fcinfo, TesseraKeySpace *ks)
{
	bool		fits = PG_NARGS() == Max(ks->ncolumns, 1) + 1;	/* of a placed table its OID */

	for (int i = 0; fits && i < ks->ncolumns; i++)
		fits = getBaseType(get_fn_expr_argtype(fcinfo->flinfo, i + 1)) == ks->columns[i].type;
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the values are not of the types of the group's shard key"),
				 errhint("The planner uses this function; there is no need to call it.")));
}

/* Choose the placement anew when the snapshot or the image is another one. */
static void
choose_placement(OwnedState *state, FunctionCallInfo fcinfo, Snapshot snapshot)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, PG_GETARG_UUID_P(0)) : NULL;
	MemoryContext before;
	bool		newest;

	state->routing = routing;
	state->sequence = routing ? routing->sequence : 0;
	state->xmin = snapshot->xmin;
	state->xmax = snapshot->xmax;
	state->curcid = snapshot->curcid;
	state->serial = snapshot->snapXactCompletionCount;
	state->placement = NULL;
	if (group == NULL || tessera_injection_skips("ownership_filter"))
		return;
	MemoryContextReset(state->context);
	before = MemoryContextSwitchTo(state->context);
	state->ks = tessera_group_keyspace(routing, group);
	check_arguments(fcinfo, state->ks);
	state->placement = tessera_placement_as_of(routing, group, snapshot, &newest);
	MemoryContextSwitchTo(before);
}

/* The key's position, from the arguments behind the group. false: a column is null. */
static bool
position_of_arguments(FunctionCallInfo fcinfo, TesseraKeySpace *ks, TesseraKeyBound *position)
{
	Datum		values[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < ks->ncolumns; i++)
	{
		if (PG_ARGISNULL(i + 1))
			return false;
		values[i] = PG_GETARG_DATUM(i + 1);
		if (ks->columns[i].typlen == -1)
			values[i] = PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i]));
	}
	tessera_key_position(ks, values, position);
	return true;
}

Datum
tessera_owned(PG_FUNCTION_ARGS)
{
	OwnedState *state = fcinfo->flinfo->fn_extra;
	Snapshot	snapshot = GetActiveSnapshot();
	TesseraKeyBound position;

	if (state == NULL)
	{
		state = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(OwnedState));
		state->context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "tessera ownership", ALLOCSET_SMALL_SIZES);
		state->curcid = InvalidCommandId;
		fcinfo->flinfo->fn_extra = state;
	}
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(true);
	if (state->xmin != snapshot->xmin || state->xmax != snapshot->xmax || state->curcid != snapshot->curcid ||
		state->serial != snapshot->snapXactCompletionCount || state->routing == NULL ||
		!tessera_routing_is_current(state->routing))
		choose_placement(state, fcinfo, snapshot);
	if (state->placement == NULL || !state->placement->hides)
		PG_RETURN_BOOL(true);

	if (!position_of_arguments(fcinfo, state->ks, &position))
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL(!tessera_placement_hides(state->placement, state->ks, &position));
}

/* The gate whose range holds the position; NULL: none. */
static const TesseraGateImage *
gate_at(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	for (int i = 0; placement != NULL && i < placement->ngates; i++)
		if (tessera_placement_gate_holds(placement, ks, i, position))
			return tessera_placement_gate_image(placement, i);
	return NULL;
}

/*
 * tessera.require_owned(group uuid, VARIADIC key "any"): the statement was routed and passed the gate by the keys it named; a BEFORE trigger has
 * given the row another one, perhaps. Its owner must be this shard, and where a migration is under way the gate lock is due for it, too. ERROR 42501
 * for a call that is not the planner's.
 */
Datum
tessera_require_owned(PG_FUNCTION_ARGS)
{
	Node	   *call = fcinfo->flinfo->fn_expr;
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing && !PG_ARGISNULL(0) ? tessera_routing_group_by_id(routing, PG_GETARG_UUID_P(0)) : NULL;
	const TesseraPlacement *placement;
	const TesseraGateImage *gate;
	TesseraKeySpace *ks;
	TesseraKeyBound position;
	pg_uuid_t	migration_id;
	bool		newest;

	if (call == NULL || !IsA(call, FuncExpr) || ((FuncExpr *) call)->location != TESSERA_REQUIRES_OWNED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("tessera.require_owned() is called by plans only")));
	if (group == NULL)
		PG_RETURN_BOOL(true);
	ks = tessera_group_keyspace(routing, group);
	check_arguments(fcinfo, ks);
	if (!position_of_arguments(fcinfo, ks, &position))
		PG_RETURN_BOOL(true);	/* NOT NULL comes next */
	placement = tessera_placement_as_of(routing, group, InvalidSnapshot, &newest);
	gate = gate_at(placement, ks, &position);
	if (gate != NULL)
	{
		migration_id = gate->migration_id;
		if (tessera_gate_enter(&migration_id))
		{
			routing = tessera_routing();	/* after the lock: the mover closes first, then looks for holders */
			group = routing ? tessera_routing_group_by_id(routing, PG_GETARG_UUID_P(0)) : NULL;
			placement = group ? tessera_placement_as_of(routing, group, InvalidSnapshot, &newest) : NULL;
			gate = gate_at(placement, ks, &position);
			if (gate != NULL && (gate->gate != TESSERA_GATE_OPEN || memcmp(&gate->migration_id, &migration_id, sizeof(pg_uuid_t)) != 0))
			{
				tessera_gate_leave(&migration_id);
				ereport(ERROR,
						(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						 errmsg("the new row's key, as a trigger has changed it, is being moved to another shard"),
						 errhint("Retry the transaction.")));
			}
		}
	}
	if (placement == NULL || !tessera_placement_owns(placement, ks, &position))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a BEFORE trigger has changed the shard key of the row to one of another shard"),
				 errhint("Give the row its final shard key in the statement.")));
	PG_RETURN_BOOL(true);
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
