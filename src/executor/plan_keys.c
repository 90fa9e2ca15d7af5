/*
 * plan_keys.c
 *	  Reads the keys that a plan can touch off its scans; see plan_keys.h.
 *
 * A scan's conditions are conjuncts, so one equality on each key column bounds all its rows (routing/key_comparison.h), if its value is known before
 * the plan runs: constants, the statement's parameters, and what built-in functions make of them, as a plan for all parameters has it. An INSERT is
 * bounded by the values of its rows. Whatever is not recognised counts as "everything".
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "executor/ownership.h"
#include "executor/plan_keys.h"
#include "executor/values.h"
#include "routing/key_comparison.h"

/* Positions of a plan at most; beyond it counts as everything. */
#define MAX_POSITIONS 1000

typedef struct Walk
{
	PlannedStmt *plan;
	ParamListInfo params;
	const TesseraRouting *routing;
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	TesseraPlanKeys *keys;
} Walk;

static void walk_plan(Plan *plan, Walk *walk);

static const TesseraTable *
table_of(Walk *walk, Index rti)
{
	RangeTblEntry *rte = rt_fetch(rti, walk->plan->rtable);
	const TesseraTable *table;

	if (rte->rtekind != RTE_RELATION)
		return NULL;
	table = tessera_routing_table(walk->routing, rte->relid);
	return table && table->placement_group == walk->group->index ? table : NULL;
}

/* ---- values ---- */

/*
 * Casts that have a value for each value. Whatever else is computed here may fail where the statement does not: it may be guarded by a condition, or
 * stand where no row comes.
 */
static bool
may_fail(Oid function, void *context)
{
	switch (function)
	{
		case F_INT4_INT2:
		case F_INT8_INT2:
		case F_INT8_INT4:
		case F_NUMERIC_INT2:
		case F_NUMERIC_INT4:
		case F_NUMERIC_INT8:
		case F_FLOAT4_INT2:
		case F_FLOAT4_INT4:
		case F_FLOAT4_INT8:
		case F_FLOAT8_INT2:
		case F_FLOAT8_INT4:
		case F_FLOAT8_INT8:
		case F_FLOAT8_FLOAT4:
			return false;
		default:
			return true;
	}
}

/* True if the expression needs more than the statement's parameters and casts that cannot fail. */
static bool
is_unknown(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_Const:
		case T_RelabelType:
		case T_FuncExpr:
		case T_ArrayExpr:
		case T_ArrayCoerceExpr:
		case T_CaseTestExpr:	/* of an ArrayCoerceExpr */
		case T_List:
			break;
		case T_Param:
			if (((Param *) node)->paramkind != PARAM_EXTERN)
				return true;
			break;
		default:
			return true;
	}
	return check_functions_in_node(node, may_fail, NULL) || expression_tree_walker(node, is_unknown, context);
}

/* False: the value is not known. */
static bool
evaluate(Walk *walk, Node *node, Datum *value, bool *isnull)
{
	ExprContext *context;

	/* what changes no value, but may refuse it */
	while (IsA(node, RelabelType) || IsA(node, CoerceToDomain))
		node = IsA(node, RelabelType) ? (Node *) ((RelabelType *) node)->arg : (Node *) ((CoerceToDomain *) node)->arg;
	if (tessera_value_given(node, walk->params, value, isnull))
		return true;
	if (IsA(node, Param) || is_unknown(node, NULL) || contain_mutable_functions(node))
		return false;
	context = CreateStandaloneExprContext();
	context->ecxt_param_list_info = walk->params;
	*value = ExecEvalExpr(ExecInitExprWithParams((Expr *) node, walk->params), context, isnull);
	return true;
}

/* Adds what a key column of this type may be, given an array of values. */
static List *
add_elements(List *values, Datum array, Oid element_type, Oid type)
{
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	get_typlenbyvalalign(element_type, &typlen, &typbyval, &typalign);
	deconstruct_array(DatumGetArrayTypeP(array), ARR_ELEMTYPE(DatumGetArrayTypeP(array)), typlen, typbyval, typalign, &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		Datum		value;

		if (!nulls[i] && tessera_value_of_key(elements[i], element_type, type, &value))
			values = lappend(values, DatumGetPointer(value));
	}
	return values;
}

/* Values (Datums, as pointers) of which the key column has one in each row that meets the condition. False: they are not known. */
static bool
values_of(Walk *walk, const TesseraKeyComparison *comparison, const TesseraKeyColumn *column, List **values)
{
	Oid			type = exprType(comparison->value);
	Datum		value;
	bool		isnull;

	if (comparison->strategy != BTEqualStrategyNumber || !evaluate(walk, comparison->value, &value, &isnull))
		return false;
	*values = NIL;
	if (isnull)
		return true;
	if (comparison->any)
		*values = add_elements(NIL, value, get_element_type(getBaseType(type)), column->type);
	else if (tessera_value_of_key(value, type, column->type, &value))
		*values = list_make1(DatumGetPointer(value));
	return true;
}

/* ---- scans ---- */

static bool
quals_give(Walk *walk, List *quals, Index rti, AttrNumber attribute, const TesseraKeyColumn *column, List *index_columns, List **values)
{
	ListCell   *cell;

	foreach(cell, quals)
	{
		TesseraKeyComparison comparison;

		if (tessera_compares_key(lfirst(cell), column, rti, attribute, index_columns, &comparison) &&
			values_of(walk, &comparison, column, values))
			return true;
	}
	return false;
}

static void
add_position(Walk *walk, const Datum *key)
{
	TesseraKeyBound *position = palloc(sizeof(TesseraKeyBound));

	tessera_key_position(walk->ks, key, position);
	walk->keys->positions = lappend(walk->keys->positions, position);
	walk->keys->everything |= list_length(walk->keys->positions) > MAX_POSITIONS;
}

/* Each key with one of the values of each column, from this column on. */
static void
add_positions(Walk *walk, List **values, Datum *key, int column)
{
	ListCell   *cell;

	if (column == walk->ks->ncolumns)
	{
		add_position(walk, key);
		return;
	}
	foreach(cell, values[column])
	{
		if (walk->keys->everything)
			return;
		key[column] = PointerGetDatum(lfirst(cell));
		add_positions(walk, values, key, column + 1);
	}
}

static void
visit_scan(Walk *walk, Index rti, List *quals, List *more, List *index_columns)
{
	const TesseraTable *table = table_of(walk, rti);
	List	   *values[TESSERA_MAX_KEY_COLUMNS];
	Datum		key[TESSERA_MAX_KEY_COLUMNS];

	if (table == NULL)
		return;
	if (!tessera_has_ownership_filter(quals) && !tessera_has_ownership_filter(more))
		walk->keys->filtered = false;
	for (int i = 0; i < table->nkeys; i++)
	{
		const TesseraKeyColumn *column = &walk->ks->columns[i];

		if (!quals_give(walk, quals, rti, table->keys[i], column, index_columns, &values[i]) &&
			!quals_give(walk, more, rti, table->keys[i], column, index_columns, &values[i]))
		{
			walk->keys->everything = true;
			return;
		}
	}
	add_positions(walk, values, key, 0);
}

/* ---- rows that are inserted ---- */

/* What a row of the source has for the column; row: of VALUES, NIL: the source's only row. NULL: that is not to be seen. */
static Node *
inserted_value(Plan *source, List *row, AttrNumber attribute)
{
	Node	   *value;

	if (attribute > list_length(source->targetlist))
		return NULL;
	value = (Node *) list_nth_node(TargetEntry, source->targetlist, attribute - 1)->expr;
	if (row == NIL)
		return value;
	return IsA(value, Var) && ((Var *) value)->varattno > 0 ? list_nth(row, ((Var *) value)->varattno - 1) : NULL;
}

static bool
add_row(Walk *walk, const TesseraTable *table, Plan *source, List *row)
{
	Datum		key[TESSERA_MAX_KEY_COLUMNS];

	for (int i = 0; i < table->nkeys; i++)
	{
		Oid			type = walk->ks->columns[i].type;
		Node	   *value = inserted_value(source, row, table->keys[i]);
		bool		isnull;

		if (value == NULL || !tessera_key_types_compatible(exprType(value), type) || !evaluate(walk, value, &key[i], &isnull) || isnull ||
			!tessera_value_of_key(key[i], exprType(value), type, &key[i]))
			return false;
	}
	add_position(walk, key);
	return true;
}

/* INSERT ... VALUES: one row is the target list of a Result. */
static void
visit_insert(Walk *walk, ModifyTable *modify)
{
	const TesseraTable *table = table_of(walk, linitial_int(modify->resultRelations));
	Plan	   *source = outerPlan(modify);
	bool		known = IsA(source, Result) || IsA(source, ValuesScan);
	ListCell   *cell;

	if (table == NULL)
		return;
	if (IsA(source, Result))
		known = add_row(walk, table, source, NIL);
	foreach(cell, IsA(source, ValuesScan) ? ((ValuesScan *) source)->values_lists : NIL)
		known = known && !walk->keys->everything && add_row(walk, table, source, lfirst(cell));
	walk->keys->everything |= !known;
}

/* ---- plans ---- */

static void
walk_list(List *plans, Walk *walk)
{
	ListCell   *cell;

	foreach(cell, plans)
		walk_plan(lfirst(cell), walk);
}

static void
walk_plan(Plan *plan, Walk *walk)
{
	if (plan == NULL)
		return;
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			visit_scan(walk, ((Scan *) plan)->scanrelid, plan->qual, ((IndexScan *) plan)->indexqualorig, NIL);
			break;
		case T_IndexOnlyScan:
			visit_scan(walk, ((Scan *) plan)->scanrelid, plan->qual, ((IndexOnlyScan *) plan)->recheckqual, ((IndexOnlyScan *) plan)->indextlist);
			break;
		case T_BitmapHeapScan:
			visit_scan(walk, ((Scan *) plan)->scanrelid, plan->qual, ((BitmapHeapScan *) plan)->bitmapqualorig, NIL);
			break;
		case T_SeqScan:
		case T_SampleScan:
		case T_TidScan:
		case T_TidRangeScan:
			visit_scan(walk, ((Scan *) plan)->scanrelid, plan->qual, NIL, NIL);
			break;
		case T_SubqueryScan:
			walk_plan(((SubqueryScan *) plan)->subplan, walk);
			break;
		case T_Append:
			walk_list(((Append *) plan)->appendplans, walk);
			break;
		case T_MergeAppend:
			walk_list(((MergeAppend *) plan)->mergeplans, walk);
			break;
		case T_CustomScan:
			walk_list(((CustomScan *) plan)->custom_plans, walk);
			break;
		case T_ModifyTable:
			if (((ModifyTable *) plan)->operation == CMD_INSERT)
				visit_insert(walk, (ModifyTable *) plan);
			else if (((ModifyTable *) plan)->operation == CMD_MERGE)
				walk->keys->everything = true;
			break;
		default:
			break;
	}
	walk_plan(plan->lefttree, walk);
	walk_plan(plan->righttree, walk);
}

void
tessera_plan_keys(PlannedStmt *plan, ParamListInfo params, const TesseraRouting *routing, const TesseraGroup *group, TesseraPlanKeys *keys)
{
	Walk		walk = {.plan = plan, .params = params, .routing = routing, .group = group, .keys = keys};

	walk.ks = tessera_group_keyspace(routing, group);
	keys->everything = false;
	keys->positions = NIL;
	keys->filtered = true;
	walk_plan(plan->planTree, &walk);
	walk_list(plan->subplans, &walk);
}
