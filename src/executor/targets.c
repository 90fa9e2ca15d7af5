/*
 * targets.c
 *	  From pins and tables to shards, at execution; see targets.h.
 */
#include "postgres.h"

#include "executor/plan_private.h"
#include "executor/shard_pruning.h"
#include "executor/targets.h"
#include "routing/key_comparison.h"

int32
tessera_target_of_key(const TesseraRouting *routing, const TesseraTable *table, const Datum *values, const bool *nulls, const Oid *types,
					  bool *no_row)
{
	const TesseraGroup *group = tessera_routing_group(routing, table->group);
	Datum		key[TESSERA_MAX_KEY_COLUMNS];

	*no_row = false;
	for (int i = 0; i < table->nkeys; i++)
		if (nulls[i] || !tessera_value_of_key(values[i], types[i], group->types[i], &key[i]))
			*no_row = true;
	if (*no_row)
	{
		TesseraTargets *owners = tessera_routing_owners(routing, group);
		int32		target = owners->node_ids[0];

		/* Any shard can say that there is no such row: this one, if it can. */
		for (int i = 0; i < owners->n; i++)
			if (owners->node_ids[i] == routing->self)
				target = routing->self;
		return target;
	}
	return tessera_routing_owner(routing, group, key);
}

int32
tessera_target_of_pin(const TesseraRouting *routing, const TesseraTable *table, const List *pin, const Datum *values, const bool *nulls,
					  const Oid *types, bool *no_row)
{
	Datum		key_values[TESSERA_MAX_KEY_COLUMNS];
	bool		key_nulls[TESSERA_MAX_KEY_COLUMNS];
	Oid			key_types[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < table->nkeys; i++)
	{
		int			index = list_nth_int(pin, i + 1);

		key_values[i] = values[index];
		key_nulls[i] = nulls[index];
		key_types[i] = types[index];
	}
	return tessera_target_of_key(routing, table, key_values, key_nulls, key_types, no_row);
}

static int
add_target(int32 *targets, int n, int32 node_id)
{
	for (int i = 0; i < n; i++)
		if (targets[i] == node_id)
			return n;
	targets[n] = node_id;
	return n + 1;
}

/* True if the tables that were sharded at planning still are; together: and all in one group. */
static bool
sharded_as_planned(const List *relids, bool together, const TesseraRouting *routing)
{
	int			group = -1;
	ListCell   *cell;

	foreach(cell, relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table == NULL || table->group < 0 || (together && group >= 0 && table->group != group))
			return false;
		group = table->group;
	}
	return true;
}

int
tessera_targets_of_statement(const List *private, const TesseraRouting *routing, const Datum *values, const bool *nulls, const Oid *types,
							 int32 *targets)
{
	List	   *sharded = list_nth(private, STATEMENT_SHARDED);
	bool		many = (intVal(list_nth(private, STATEMENT_FLAGS)) & STATEMENT_MANY) != 0;
	int			n = 0;
	ListCell   *cell;

	if (!sharded_as_planned(sharded, many, routing))
		return -1;
	foreach(cell, (List *) list_nth(private, STATEMENT_PLACED))
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table == NULL || table->group >= 0)
			return -1;
		n = add_target(targets, n, table->node_id);
	}
	foreach(cell, (List *) list_nth(private, STATEMENT_PINS))
	{
		List	   *pin = lfirst(cell);
		const TesseraTable *table = tessera_routing_table(routing, (Oid) linitial_int(pin));
		bool		no_row;

		if (table->nkeys != list_length(pin) - 1)
			return -1;
		n = add_target(targets, n, tessera_target_of_pin(routing, table, pin, values, nulls, types, &no_row));
	}
	if (n == 0 && many)
	{
		const TesseraTable *table = tessera_routing_table(routing, linitial_oid(sharded));
		TesseraTargets *owners = tessera_prune_shards(routing, table, list_nth(private, STATEMENT_CONDITIONS), values, nulls, types);

		for (int i = 0; i < owners->n; i++)
			n = add_target(targets, n, owners->node_ids[i]);
	}
	Assert(n > 0);
	return n;
}

bool
tessera_all_rows_are_here(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;
	TesseraTargets *owners;

	if (table == NULL)
		return true;
	if (table->group < 0)
		return table->node_id == routing->self;
	owners = tessera_routing_owners(routing, tessera_routing_group(routing, table->group));
	return owners->n == 1 && owners->node_ids[0] == routing->self;
}
