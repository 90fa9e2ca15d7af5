/*
 * plan_keys.c
 *	  Reads the keys that a plan can touch off its scans; see plan_keys.h.
 *
 * A scan's conditions are conjuncts, so one equality on each key column with a constant or parameter bounds all its rows. An INSERT is bounded by the
 * values of its single row. Whatever is not recognised counts as "everything".
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"

#include "executor/ownership.h"
#include "executor/plan_keys.h"

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

/* The value of a constant or external parameter of exactly this type; false if it is not known (or null: then no row qualifies, but be safe). */
static bool
known_value(Walk *walk, Node *node, Oid type, Datum *value)
{
	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	if (IsA(node, Const))
	{
		Const	   *constant = (Const *) node;

		*value = constant->constvalue;
		return !constant->constisnull && getBaseType(constant->consttype) == type;
	}
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXTERN && walk->params && walk->params->paramFetch == NULL)
	{
		Param	   *param = (Param *) node;

		if (param->paramid <= 0 || param->paramid > walk->params->numParams || getBaseType(param->paramtype) != type)
			return false;
		*value = walk->params->params[param->paramid - 1].value;
		return !walk->params->params[param->paramid - 1].isnull;
	}
	return false;
}

/*
 * True if the Var is this column of the table. In an index-only scan a Var is a column of the index, which index_columns (NIL in other scans)
 * translates.
 */
static bool
is_column(Node *node, Index rti, AttrNumber attribute, List *index_columns)
{
	Var		   *var;

	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	if (!IsA(node, Var))
		return false;
	var = (Var *) node;
	if (var->varno == INDEX_VAR && var->varattno > 0 && var->varattno <= list_length(index_columns))
		return is_column((Node *) list_nth_node(TargetEntry, index_columns, var->varattno - 1)->expr, rti, attribute, NIL);
	return var->varno == rti && var->varattno == attribute;
}

static bool
qual_gives(Walk *walk, List *quals, Index rti, AttrNumber attribute, int column, List *index_columns, Datum *value)
{
	TesseraKeyColumn *key = &walk->ks->columns[column];
	ListCell   *cell;

	foreach(cell, quals)
	{
		OpExpr	   *op = (OpExpr *) lfirst(cell);
		Node	   *left;
		Node	   *right;

		if (!IsA(op, OpExpr) || list_length(op->args) != 2)
			continue;
		if (get_op_opfamily_strategy(op->opno, key->btree_opfamily) != BTEqualStrategyNumber)
			continue;
		left = linitial(op->args);
		right = lsecond(op->args);
		for (int side = 0; side < 2; side++)
		{
			Node	   *var = side == 0 ? left : right;

			if (is_column(var, rti, attribute, index_columns) &&
				known_value(walk, side == 0 ? right : left, key->type, value))
				return true;
		}
	}
	return false;
}

static void
add_position(Walk *walk, const Datum *values)
{
	TesseraKeyBound *position = palloc(sizeof(TesseraKeyBound));

	tessera_key_position(walk->ks, values, position);
	walk->keys->positions = lappend(walk->keys->positions, position);
}

static void
visit_scan(Walk *walk, Index rti, List *quals, List *more, List *index_columns)
{
	const TesseraTable *table = table_of(walk, rti);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];

	if (table == NULL)
		return;
	if (!tessera_has_ownership_filter(quals) && !tessera_has_ownership_filter(more))
		walk->keys->filtered = false;
	for (int i = 0; i < table->nkeys; i++)
		if (!qual_gives(walk, quals, rti, table->keys[i], i, index_columns, &values[i]) &&
			!qual_gives(walk, more, rti, table->keys[i], i, index_columns, &values[i]))
		{
			walk->keys->everything = true;
			return;
		}
	add_position(walk, values);
}

/* INSERT of one row: the key values stand in the target list of the plan below. */
static void
visit_insert(Walk *walk, ModifyTable *modify)
{
	Index		rti = linitial_int(modify->resultRelations);
	const TesseraTable *table = table_of(walk, rti);
	Plan	   *source = outerPlan(modify);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];

	if (table == NULL)
		return;
	for (int i = 0; i < table->nkeys; i++)
	{
		TargetEntry *entry;

		if (!IsA(source, Result) || table->keys[i] > list_length(source->targetlist))
		{
			walk->keys->everything = true;
			return;
		}
		entry = list_nth(source->targetlist, table->keys[i] - 1);
		if (!known_value(walk, (Node *) entry->expr, walk->ks->columns[i].type, &values[i]))
		{
			walk->keys->everything = true;
			return;
		}
	}
	add_position(walk, values);
}

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
