/*
 * exact_columns.c
 *	  Output columns as text that depends on no setting; see exact_columns.h.
 *
 * The function must not change what the query sorts, groups, compares or counts. So it stands in a SELECT of its own around the query, whose rows
 * come through in their order. RETURNING is nobody's but the client's: there it stands in the list itself. So it does where a shard's planner takes
 * the query for one that sends states of aggregates (group_path.c): that has a list of its own kind, without an order.
 *
 * Nothing is kept.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_func.h"
#include "utils/lsyscache.h"

#include "catalog/portable_types.h"
#include "common/range_table.h"
#include "planner/exact_columns.h"
#include "planner/table_path.h"
#include "rows/exact_text.h"

/* Of functions that differ in where they may run: parallel workers call output functions only if those say that they can. */
static const char *const function_names[] = {"exact_text", "exact_text_in_leader"};

/* InvalidOid: the extension's objects are of an older version, without it. */
static Oid
exact_function(int i)
{
	Oid			type = ANYOID;

	return LookupFuncName(list_make2(makeString("tessera_internal"), makeString(pstrdup(function_names[i]))), 1, &type, true);
}

static bool
output_needs_leader(Oid type)
{
	Oid			output;
	bool		varlena;

	getTypeOutputInfo(type, &output, &varlena);
	return type == RECORDOID || func_parallel(output) != PROPARALLEL_SAFE;	/* what is in a record is not known */
}

bool
tessera_is_exact_text(const Expr *expr)
{
	const FuncExpr *call = (const FuncExpr *) expr;

	return IsA(expr, FuncExpr) && call->funcid >= FirstNormalObjectId &&
		(call->funcid == exact_function(0) || call->funcid == exact_function(1));
}

static bool
needs_text(const TargetEntry *column)
{
	return !column->resjunk && !tessera_binary_is_exact(exprType((Node *) column->expr));
}

/* twins: gets what the query groups by, if that is what becomes text. */
static void
make_exact(TargetEntry *column, List **twins)
{
	Oid			type = exprType((Node *) column->expr);

	if (!needs_text(column))
		return;
	if (column->ressortgroupref != 0)
	{
		TargetEntry *twin = flatCopyTargetEntry(column);

		twin->expr = copyObject(column->expr);
		twin->resjunk = true;
		column->ressortgroupref = 0;
		*twins = lappend(*twins, twin);
	}
	column->expr = (Expr *) makeFuncExpr(exact_function(tessera_type_is_made_of(type, output_needs_leader) ? 1 : 0), TEXTOID,
										 list_make1(column->expr), InvalidOid, exprCollation((Node *) column->expr), COERCE_EXPLICIT_CALL);
}

/* The WITH queries of the query around this one, *depth levels up, are one level further away. */
static bool
move_references(Node *node, Index *depth)
{
	bool		result;

	if (node == NULL)
		return false;
	if (IsA(node, RangeTblEntry))
	{
		RangeTblEntry *rte = (RangeTblEntry *) node;

		if (rte->rtekind == RTE_CTE && rte->ctelevelsup == *depth)
			rte->ctelevelsup++;
		return false;
	}
	if (!IsA(node, Query))
		return expression_tree_walker(node, move_references, depth);
	(*depth)++;
	result = query_tree_walker((Query *) node, move_references, depth, QTW_EXAMINE_RTES_BEFORE);
	(*depth)--;
	return result;
}

/* Those that modify data may stand in the outermost query only. */
static void
move_modifying_with(Query *from, Query *to)
{
	Index		depth = 0;

	if (!from->hasModifyingCTE)
		return;
	to->cteList = from->cteList;
	to->hasModifyingCTE = true;
	to->hasRecursive = from->hasRecursive;
	from->cteList = NIL;
	from->hasModifyingCTE = from->hasRecursive = false;
	(void) query_tree_walker(from, move_references, &depth, QTW_EXAMINE_RTES_BEFORE);
}

/* SELECT its columns FROM (the query). */
static Query *
select_around(Query *query)
{
	Query	   *around = tessera_select_around(query, "shipped");

	move_modifying_with(query, around);
	return around;
}

Query *
tessera_exact_query(const Query *query)
{
	bool		is_select = query->commandType == CMD_SELECT;
	List	   *columns = is_select ? query->targetList : query->returningList;
	bool		needed = false;
	List	   *twins = NIL;
	Query	   *exact;
	ListCell   *cell;

	foreach(cell, columns)
		needed |= needs_text(lfirst_node(TargetEntry, cell));
	if (!needed || !OidIsValid(exact_function(0)))
		return NULL;
	exact = copyObject((Query *) query);
	if (is_select && !tessera_sends_states(query))
		exact = select_around(exact);
	foreach(cell, is_select ? exact->targetList : exact->returningList)
		make_exact(lfirst_node(TargetEntry, cell), &twins);
	foreach(cell, twins)
	{
		lfirst_node(TargetEntry, cell)->resno = list_length(exact->targetList) + 1;
		exact->targetList = lappend(exact->targetList, lfirst(cell));
	}
	return exact;
}
