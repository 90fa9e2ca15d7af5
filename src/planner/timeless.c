/*
 * timeless.c
 *	  What a shard can run without being told when transaction and statement began; see timeless.h.
 *
 * In doubt it is told: that costs a call in front of the statement, no more. A user's function that is declared immutable counts as one that asks.
 * (That of an index is not looked at: an index whose values hang on the time is of no use on one server either.)
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/reltrigger.h"

#include "catalog/relation.h"
#include "planner/timeless.h"

static bool asks_walker(Node *node, void *context);

/* tessera.partial, which is volatile so that it is not folded: what it calls is in the aggregate that it stands around. */
static bool
is_partial(Oid function)
{
	return tessera_is_own_schema(get_func_namespace(function)) && strcmp(get_func_name(function), "partial") == 0;
}

/* For check_functions_in_node. */
static bool
function_asks(Oid function, void *context)
{
	if (function >= FirstNormalObjectId)
		return !is_partial(function);
	return func_volatile(function) != PROVOLATILE_IMMUTABLE;
}

/* A value of the type is made by checks that a user has written. */
static bool
type_asks(Oid type)
{
	Oid			element;

	if (type < FirstNormalObjectId)
		return false;
	element = get_element_type(type);
	switch (get_typtype(OidIsValid(element) ? element : type))
	{
		case TYPTYPE_BASE:
		case TYPTYPE_ENUM:
			return false;
		default:
			return true;
	}
}

/* Those of foreign keys that look for rows, and change none. */
static bool
is_lookup(Oid function)
{
	switch (function)
	{
		case F_RI_FKEY_CHECK_INS:
		case F_RI_FKEY_CHECK_UPD:
		case F_RI_FKEY_NOACTION_DEL:
		case F_RI_FKEY_NOACTION_UPD:
		case F_RI_FKEY_RESTRICT_DEL:
		case F_RI_FKEY_RESTRICT_UPD:
			return true;
		default:
			return false;
	}
}

/* Rows of partitions and children go by what these have of their own. */
static bool
writing_asks(Relation table)
{
	const TupleConstr *constraints = RelationGetDescr(table)->constr;

	if (table->rd_rel->relkind != RELKIND_RELATION || table->rd_rel->relhassubclass)
		return true;
	for (int i = 0; table->trigdesc != NULL && i < table->trigdesc->numtriggers; i++)
		if (!is_lookup(table->trigdesc->triggers[i].tgfoid))
			return true;
	if (constraints == NULL)
		return false;
	for (int i = 0; i < constraints->num_check; i++)
		if (asks_walker(stringToNode(constraints->check[i].ccbin), NULL))
			return true;
	return constraints->has_generated_stored;
}

static bool
table_asks(Relation table, bool writes)
{
	const Form_pg_class form = table->rd_rel;

	if (form->relkind != RELKIND_RELATION && form->relkind != RELKIND_PARTITIONED_TABLE && form->relkind != RELKIND_MATVIEW)
		return true;
	return form->relrowsecurity || (writes && writing_asks(table));
}

static bool
entry_asks(RangeTblEntry *rte, bool writes)
{
	Relation	table;
	bool		asks;

	if (rte->rtekind != RTE_RELATION)
		return false;
	table = relation_open(rte->relid, AccessShareLock);
	asks = table_asks(table, writes);
	relation_close(table, NoLock);
	return asks;
}

static bool
asks_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, function_asks, NULL))
		return true;
	switch (nodeTag(node))
	{
		case T_SQLValueFunction:
		case T_CoerceToDomain:
		case T_TableFunc:
			return true;
		case T_Param:
			return type_asks(((Param *) node)->paramtype);
		case T_Const:
			return type_asks(((Const *) node)->consttype);
		case T_RangeTblEntry:
			return entry_asks((RangeTblEntry *) node, false);
		case T_Query:
			{
				Query	   *query = (Query *) node;

				if (query->resultRelation > 0 && entry_asks(rt_fetch(query->resultRelation, query->rtable), true))
					return true;
				return query_tree_walker(query, asks_walker, context, QTW_EXAMINE_RTES_BEFORE);
			}
		default:
			return expression_tree_walker(node, asks_walker, context);
	}
}

bool
tessera_query_is_timeless(Query *query)
{
	return !asks_walker((Node *) query, NULL);
}

bool
tessera_scan_is_timeless(Relation table, Node *conditions)
{
	return !table_asks(table, false) && !asks_walker(conditions, NULL);
}
