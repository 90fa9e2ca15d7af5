/*
 * pruning_conditions.c
 *	  Conditions on the key that bound the shards; see pruning_conditions.h.
 */
#include "postgres.h"

#include "access/stratnum.h"
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

static bool
is_key(Node *node, Index rti, AttrNumber key)
{
	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return IsA(node, Var) && ((Var *) node)->varno == rti && ((Var *) node)->varattno == key && ((Var *) node)->varlevelsup == 0;
}

/* An expression that can be evaluated before the scan. */
static bool
is_value(Node *node)
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

/* A comparison of the leading key column with a value of its own type; an integer of a narrower type is widened. */
static void
use_comparison(OpExpr *op, Index rti, AttrNumber key, TesseraKeyColumn *column, List **conditions, List **exprs)
{
	Oid			operator = op->opno;
	Node	   *value;
	Oid			type;
	int			strategy;

	if (is_key(linitial(op->args), rti, key))
		value = lsecond(op->args);
	else if (is_key(lsecond(op->args), rti, key))
	{
		value = linitial(op->args);
		operator = get_commutator(operator);
	}
	else
		return;
	strategy = OidIsValid(operator) ? get_op_opfamily_strategy(operator, column->btree_opfamily) : InvalidStrategy;
	if (strategy == InvalidStrategy || !is_value(value) || (OidIsValid(op->inputcollid) && op->inputcollid != column->collation))
		return;
	type = getBaseType(exprType(value));
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

static void
use_array(ScalarArrayOpExpr *op, Index rti, AttrNumber key, TesseraKeyColumn *column, List **conditions, List **exprs)
{
	Node	   *array = lsecond(op->args);
	Oid			element = getBaseType(get_element_type(exprType(array)));

	if (!op->useOr || !is_key(linitial(op->args), rti, key) || !is_value(array) || element != column->type ||
		get_op_opfamily_strategy(op->opno, column->btree_opfamily) != BTEqualStrategyNumber ||
		(OidIsValid(op->inputcollid) && !get_collation_isdeterministic(op->inputcollid)))
		return;
	add_condition(conditions, exprs, TESSERA_PRUNE_IN, array);
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
		Node	   *clause = lfirst(cell);

		if (IsA(clause, OpExpr) && list_length(((OpExpr *) clause)->args) == 2 && !ks->hashed)
			use_comparison((OpExpr *) clause, rti, table->keys[0], &ks->columns[0], &conditions, exprs);
		else if (IsA(clause, ScalarArrayOpExpr) && table->nkeys == 1)
			use_array((ScalarArrayOpExpr *) clause, rti, table->keys[0], &ks->columns[0], &conditions, exprs);
	}
	return conditions;
}
