/*
 * targets.c
 *	  From pins and tables to shards, at execution; see targets.h.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "parser/parse_coerce.h"
#include "utils/lsyscache.h"

#include "executor/plan_private.h"
#include "executor/shard_pruning.h"
#include "executor/targets.h"

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

bool
tessera_pin_types_compatible(Oid value_type, Oid key_type)
{
	value_type = getBaseType(value_type);
	if (value_type == key_type)
		return true;
	if (is_integer(value_type) && is_integer(key_type))
		return true;
	return !is_integer(key_type) && IsBinaryCoercible(value_type, key_type);
}

/* An integer of one width as one of another; false if it does not fit: then no row has this key. */
static bool
convert_integer(Datum value, Oid from, Oid to, Datum *result)
{
	int64		v = from == INT2OID ? DatumGetInt16(value) : from == INT4OID ? DatumGetInt32(value) : DatumGetInt64(value);

	if (to == INT2OID)
	{
		*result = Int16GetDatum((int16) v);
		return v >= PG_INT16_MIN && v <= PG_INT16_MAX;
	}
	if (to == INT4OID)
	{
		*result = Int32GetDatum((int32) v);
		return v >= PG_INT32_MIN && v <= PG_INT32_MAX;
	}
	*result = Int64GetDatum(v);
	return true;
}

int32
tessera_target_of_key(const TesseraRouting *routing, const TesseraTable *table, const Datum *values, const bool *nulls, const Oid *types,
					  bool *no_row)
{
	const TesseraGroup *group = tessera_routing_group(routing, table->group);
	Datum		key[TESSERA_MAX_KEY_COLUMNS];

	*no_row = false;
	for (int i = 0; i < table->nkeys; i++)
	{
		bool		same = types[i] == group->types[i];
		Oid			from = same ? types[i] : getBaseType(types[i]);
		Oid			to = same ? types[i] : getBaseType(group->types[i]);

		if (nulls[i])
			*no_row = true;
		else if (from == to && is_integer(to))
			key[i] = values[i];
		else if (is_integer(from) && is_integer(to))
		{
			if (!convert_integer(values[i], from, to, &key[i]))
				*no_row = true;
		}
		else if (get_typlen(to) == -1)
			key[i] = PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i]));
		else
			key[i] = values[i];
	}
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
