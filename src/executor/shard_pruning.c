/*
 * shard_pruning.c
 *	  Which shards conditions on the key leave; see shard_pruning.h.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "utils/array.h"
#include "utils/lsyscache.h"

#include "executor/shard_pruning.h"
#include "executor/targets.h"

typedef struct KeyInterval
{
	bool		has_min;
	bool		has_max;
	TesseraKeyBound min;		/* inclusive */
	TesseraKeyBound max;		/* exclusive, but for the position itself if max_inclusive */
	bool		max_inclusive;
	Datum		max_value;
	bool		empty;
} KeyInterval;

static void
bound_at(TesseraKeySpace *ks, Datum value, TesseraBoundKind rest, TesseraKeyBound *bound)
{
	bound->elements[0].kind = TESSERA_VALUE;
	bound->elements[0].value = value;
	for (int i = 1; i < ks->nelements; i++)
	{
		bound->elements[i].kind = rest;
		bound->elements[i].value = (Datum) 0;
	}
}

static void
bound_of(TesseraKeySpace *ks, TesseraBoundKind kind, TesseraKeyBound *bound)
{
	for (int i = 0; i < ks->nelements; i++)
	{
		bound->elements[i].kind = kind;
		bound->elements[i].value = (Datum) 0;
	}
}

static void
narrow(TesseraKeySpace *ks, KeyInterval *interval, int strategy, Datum value)
{
	TesseraKeyBound bound;

	if (strategy == BTGreaterStrategyNumber || strategy == BTGreaterEqualStrategyNumber || strategy == BTEqualStrategyNumber)
	{
		/* "greater" keeps the shard of the value itself: harmless */
		bound_at(ks, value, TESSERA_MINKEY, &bound);
		if (!interval->has_min || tessera_key_compare(ks, &bound, &interval->min) > 0)
			interval->min = bound;
		interval->has_min = true;
	}
	if (strategy == BTLessStrategyNumber || strategy == BTLessEqualStrategyNumber || strategy == BTEqualStrategyNumber)
	{
		bool		inclusive = strategy != BTLessStrategyNumber;
		int			order;

		bound_at(ks, value, inclusive ? TESSERA_MAXKEY : TESSERA_MINKEY, &bound);
		order = interval->has_max ? tessera_key_compare(ks, &bound, &interval->max) : -1;
		if (order < 0 || (order == 0 && !inclusive))
		{
			interval->max = bound;
			interval->max_inclusive = inclusive && ks->nelements == 1;
			interval->max_value = value;
		}
		interval->has_max = true;
	}
}

static bool
contains(const TesseraTargets *targets, int32 node_id)
{
	for (int i = 0; i < targets->n; i++)
		if (targets->node_ids[i] == node_id)
			return true;
	return false;
}

static TesseraTargets *
targets_of_interval(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, KeyInterval *interval)
{
	TesseraTargets *targets;

	if (!interval->has_min)
		bound_of(ks, TESSERA_MINKEY, &interval->min);
	if (!interval->has_max)
		bound_of(ks, TESSERA_MAXKEY, &interval->max);
	targets = tessera_routing_owners_of_range(routing, group, &interval->min, &interval->max);
	if (interval->has_max && interval->max_inclusive && tessera_key_compare(ks, &interval->min, &interval->max) <= 0)
	{
		int32		owner = tessera_routing_owner(routing, group, &interval->max_value);

		if (!contains(targets, owner))
		{
			TesseraTargets *more = palloc(offsetof(TesseraTargets, node_ids) + sizeof(int32) * (targets->n + 1));

			memcpy(more->node_ids, targets->node_ids, sizeof(int32) * targets->n);
			more->n = targets->n;
			more->node_ids[more->n++] = owner;
			targets = more;
		}
	}
	return targets;
}

/* Owners of an array's elements. */
static TesseraTargets *
targets_of_array(const TesseraRouting *routing, const TesseraTable *table, Datum array, Oid element_type)
{
	ArrayType  *values = DatumGetArrayTypeP(array);
	TesseraTargets *owners = tessera_routing_owners(routing, tessera_routing_group(routing, table->group));
	TesseraTargets *targets = palloc(offsetof(TesseraTargets, node_ids) + sizeof(int32) * owners->n);
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	get_typlenbyvalalign(element_type, &typlen, &typbyval, &typalign);
	deconstruct_array(values, ARR_ELEMTYPE(values), typlen, typbyval, typalign, &elements, &nulls, &n);
	targets->n = 0;
	for (int i = 0; i < n && targets->n < owners->n; i++)
	{
		bool		no_row;
		int32		owner = tessera_target_of_key(routing, table, &elements[i], &nulls[i], &element_type, &no_row);

		if (!no_row && !contains(targets, owner))
			targets->node_ids[targets->n++] = owner;
	}
	return targets;
}

static TesseraTargets *
intersect(TesseraTargets *a, TesseraTargets *b)
{
	TesseraTargets *both;

	if (a == NULL)
		return b;
	both = palloc(offsetof(TesseraTargets, node_ids) + sizeof(int32) * Max(a->n, 1));
	both->n = 0;
	for (int i = 0; i < a->n; i++)
		if (contains(b, a->node_ids[i]))
			both->node_ids[both->n++] = a->node_ids[i];
	return both;
}

TesseraTargets *
tessera_prune_shards(const TesseraRouting *routing, const TesseraTable *table, List *conditions, const Datum *values, const bool *nulls,
					 const Oid *types)
{
	const TesseraGroup *group = tessera_routing_group(routing, table->group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraTargets *targets = NULL;
	TesseraTargets *owners;
	KeyInterval	interval = {0};
	ListCell   *cell;

	foreach(cell, conditions)
	{
		int			strategy = linitial_int(lfirst(cell));
		int			i = lsecond_int(lfirst(cell));

		if (nulls[i])
			interval.empty = true;
		else if (strategy == TESSERA_PRUNE_IN)
			targets = intersect(targets, targets_of_array(routing, table, values[i], get_element_type(getBaseType(types[i]))));
		else
			narrow(ks, &interval, strategy, get_typlen(types[i]) == -1 ? PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i])) : values[i]);
	}
	if (!interval.empty && (interval.has_min || interval.has_max))
		targets = intersect(targets, targets_of_interval(routing, group, ks, &interval));
	if (!interval.empty && targets != NULL && targets->n > 0)
		return targets;

	owners = tessera_routing_owners(routing, group);
	if (interval.empty || targets != NULL)
		owners->n = 1;			/* no row can qualify: one shard says so */
	return owners;
}
