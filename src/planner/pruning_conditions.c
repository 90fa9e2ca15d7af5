/*
 * pruning_conditions.c
 *	  Conditions on the key that bound the shards; see pruning_conditions.h.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/primnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "executor/shard_pruning.h"
#include "planner/pruning_conditions.h"
#include "routing/key_comparison.h"

bool
tessera_known_before_scan(Node *node)
{
	return !contain_var_clause(node) && !contain_volatile_functions(node) && !contain_subplans(node) && !contain_agg_clause(node) &&
		!contain_window_function(node);
}

static void
add_condition(List **conditions, List **exprs, int strategy, Node *value)
{
	*conditions = lappend(*conditions, list_make2_int(strategy, list_length(*exprs)));
	*exprs = lappend(*exprs, copyObject(value));
}

/* An integer of a narrower type is widened. One of a wider type, which the key's may not have, bounds nothing. */
static void
use_comparison(int strategy, Node *value, const TesseraKeyColumn *column, List **conditions, List **exprs)
{
	Oid			type = getBaseType(exprType(value));

	if (type == INT2OID && column->type == INT4OID)
		value = (Node *) makeFuncExpr(F_INT4_INT2, INT4OID, list_make1(value), InvalidOid, InvalidOid, COERCE_IMPLICIT_CAST);
	else if (type == INT4OID && column->type == INT8OID)
		value = (Node *) makeFuncExpr(F_INT8_INT4, INT8OID, list_make1(value), InvalidOid, InvalidOid, COERCE_IMPLICIT_CAST);
	else if (type == INT2OID && column->type == INT8OID)
		value = (Node *) makeFuncExpr(F_INT8_INT2, INT8OID, list_make1(value), InvalidOid, InvalidOid, COERCE_IMPLICIT_CAST);
	else if (type != column->type)
		return;
	add_condition(conditions, exprs, strategy, value);
}

List *
tessera_pruning_conditions(List *clauses, Index rti, const TesseraRouting *routing, const TesseraTable *table, List **exprs)
{
	const TesseraGroup *group = tessera_routing_group(routing, table->group);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	List	   *conditions = NIL;
	ListCell   *cell;

	foreach(cell, clauses)
	{
		TesseraKeyComparison comparison;

		if (!tessera_compares_key(lfirst(cell), &ks->columns[0], rti, table->keys[0], NIL, &comparison) ||
			!tessera_known_before_scan(comparison.value))
			continue;
		if (comparison.any && table->nkeys == 1)
			add_condition(&conditions, exprs, TESSERA_PRUNE_IN, comparison.value);
		else if (!comparison.any && !ks->hashed)
			use_comparison(comparison.strategy, comparison.value, &ks->columns[0], &conditions, exprs);
	}
	return conditions;
}
