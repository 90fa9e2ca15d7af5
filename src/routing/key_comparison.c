/*
 * key_comparison.c
 *	  Conditions that compare a column of a shard key with something; see key_comparison.h.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_coerce.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "routing/key_comparison.h"

/* ---- operators ---- */

bool
tessera_is_equality(Oid operator, Oid inputcollid, Oid type, Oid collation)
{
	TypeCacheEntry *entry;

	/* types of the system's own are equal by their bytes under all deterministic collations; others may be equal by the column's alone */
	if (OidIsValid(inputcollid) &&
		(!get_collation_isdeterministic(inputcollid) || (inputcollid != collation && type >= FirstNormalObjectId)))
		return false;
	entry = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_BTREE_OPFAMILY);
	if (OidIsValid(operator) && operator == entry->eq_opr)
		return true;
	return OidIsValid(entry->btree_opf) && get_op_opfamily_strategy(operator, entry->btree_opf) == BTEqualStrategyNumber;
}

/* Of the key's own order; InvalidStrategy: it is another operator. */
static int
strategy_of(Oid operator, Oid inputcollid, const TesseraKeyColumn *column)
{
	int			strategy;

	if (tessera_is_equality(operator, inputcollid, column->type, column->collation))
		return BTEqualStrategyNumber;
	strategy = OidIsValid(column->btree_opfamily) ? get_op_opfamily_strategy(operator, column->btree_opfamily) : InvalidStrategy;
	/* another collation is another order */
	return strategy != BTEqualStrategyNumber && (!OidIsValid(inputcollid) || inputcollid == column->collation) ? strategy : InvalidStrategy;
}

/* ---- conditions ---- */

Node *
tessera_unlabelled(Node *node)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return node;
}

static bool
is_column(Node *node, Index rti, AttrNumber attribute, List *index_columns)
{
	Var		   *var = (Var *) tessera_unlabelled(node);

	if (!IsA(var, Var) || var->varlevelsup != 0)
		return false;
	if (var->varno == INDEX_VAR && var->varattno > 0 && var->varattno <= list_length(index_columns))
		return is_column((Node *) list_nth_node(TargetEntry, index_columns, var->varattno - 1)->expr, rti, attribute, NIL);
	return var->varno == rti && var->varattno == attribute;
}

bool
tessera_compares_key(Node *condition, const TesseraKeyColumn *column, Index rti, AttrNumber attribute, List *index_columns,
					 TesseraKeyComparison *comparison)
{
	Oid			type;

	if (IsA(condition, OpExpr) && list_length(((OpExpr *) condition)->args) == 2)
	{
		OpExpr	   *op = (OpExpr *) condition;
		bool		right = !is_column(linitial(op->args), rti, attribute, index_columns);

		if (right && !is_column(lsecond(op->args), rti, attribute, index_columns))
			return false;
		comparison->any = false;
		comparison->value = right ? linitial(op->args) : lsecond(op->args);
		comparison->strategy = strategy_of(op->opno, op->inputcollid, column);
		if (right && comparison->strategy != InvalidStrategy)
			comparison->strategy = BTCommuteStrategyNumber(comparison->strategy);
		type = exprType(comparison->value);
	}
	else if (IsA(condition, ScalarArrayOpExpr) && ((ScalarArrayOpExpr *) condition)->useOr)
	{
		ScalarArrayOpExpr *op = (ScalarArrayOpExpr *) condition;

		if (!is_column(linitial(op->args), rti, attribute, index_columns))
			return false;
		comparison->any = true;
		comparison->value = lsecond(op->args);
		comparison->strategy = strategy_of(op->opno, op->inputcollid, column);
		if (comparison->strategy != BTEqualStrategyNumber)
			return false;
		type = get_element_type(getBaseType(exprType(comparison->value)));
	}
	else
		return false;
	return comparison->strategy != InvalidStrategy && OidIsValid(type) && tessera_key_types_compatible(type, column->type);
}

/* ---- values ---- */

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

bool
tessera_key_types_compatible(Oid value_type, Oid key_type)
{
	value_type = getBaseType(value_type);
	if (value_type == key_type)
		return true;
	if (is_integer(value_type) && is_integer(key_type))
		return true;
	return !is_integer(key_type) && IsBinaryCoercible(value_type, key_type);
}

/* An integer of one width as one of another; false if it does not fit. */
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

bool
tessera_value_of_key(Datum value, Oid type, Oid key_type, Datum *result)
{
	bool		same = type == key_type;
	Oid			from = same ? type : getBaseType(type);
	Oid			to = same ? type : getBaseType(key_type);

	if (is_integer(from) && is_integer(to) && from != to)
		return convert_integer(value, from, to, result);
	*result = !is_integer(to) && get_typlen(to) == -1 ? PointerGetDatum(PG_DETOAST_DATUM_PACKED(value)) : value;
	return true;
}
