/*
 * row_conflict.c
 *	  ON CONFLICT DO UPDATE of a table whose triggers fire on the router; see row_conflict.h.
 *
 * The shard is asked to insert, and to do nothing if there is a conflict. Then the row that is in the way is found by the columns of the unique
 * index and locked; what is assigned to it is computed on the router, from it and the new row. Everything is palloc'd in the planner's context.
 */
#include "postgres.h"

#include "access/genam.h"
#include "catalog/pg_am.h"
#include "commands/defrem.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/primnodes.h"
#include "optimizer/optimizer.h"
#include "parser/parsetree.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "common/range_table.h"
#include "common/version_compat.h"
#include "executor/plan_private.h"
#include "planner/row_conflict.h"

/* ---- the index ---- */

/* Attribute numbers of an index that finds its rows by plain equality of columns; NIL: it is another one. */
static List *
columns_of_index(Relation index, Relation table)
{
	List	   *columns = NIL;

	if (!index->rd_index->indisunique || !index->rd_index->indimmediate || !index->rd_index->indisvalid ||
		index->rd_rel->relam != BTREE_AM_OID || index->rd_index->indnullsnotdistinct ||
		RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL)
		return NIL;
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), index->rd_index->indkey.values[i] - 1);
		Oid			class = GetDefaultOpClass(att->atttypid, BTREE_AM_OID);

		if (!OidIsValid(class) || get_opclass_family(class) != index->rd_opfamily[i] || att->attcollation != index->rd_indcollation[i])
			return NIL;
		columns = lappend_int(columns, att->attnum);
	}
	return columns;
}

/* What ON CONFLICT names: NIL and false if it is more than columns. */
static bool
named_columns(const OnConflictExpr *conflict, List **columns)
{
	ListCell   *cell;

	if (conflict->arbiterWhere != NULL)
		return false;
	foreach(cell, conflict->arbiterElems)
	{
		InferenceElem *element = lfirst_node(InferenceElem, cell);

		if (!IsA(element->expr, Var) || OidIsValid(element->infercollid) || OidIsValid(element->inferopclass))
			return false;
		*columns = list_append_unique_int(*columns, ((Var *) element->expr)->varattno);
	}
	return true;
}

/* Columns by which the row that is in the way is found; NIL: it cannot be by columns alone, or by several indexes. */
static List *
arbiter_columns(const OnConflictExpr *conflict, Relation table)
{
	List	   *named = NIL;
	List	   *found = NIL;
	int			matches = 0;
	ListCell   *cell;

	if (!named_columns(conflict, &named))
		return NIL;
	foreach(cell, RelationGetIndexList(table))
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		List	   *columns = columns_of_index(index, table);
		bool		fits = OidIsValid(conflict->constraint) ? get_constraint_index(conflict->constraint) == RelationGetRelid(index) :
			columns != NIL && list_length(columns) == list_length(named) && list_difference_int(columns, named) == NIL;

		if (fits && matches++ == 0)
			found = columns;
		index_close(index, NoLock);
	}
	return matches == 1 ? found : NIL;
}

/* ---- the row that is in the way ---- */

/* SELECT ctid, columns FROM t WHERE column = the new row's ... FOR UPDATE; NULL: the columns cannot be compared. */
static Query *
find_query(Query *query, Relation table, List *columns, List *arbiter, List *assigned)
{
	RangeTblEntry *row;
	Query	   *select;
	List	   *permissions = NIL;
	List	   *conditions = NIL;
	ListCell   *cell;

	foreach(cell, arbiter)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(table), lfirst_int(cell) - 1);
		Oid			equal = lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR)->eq_opr;
		Expr	   *column = (Expr *) makeVar(1, att->attnum, att->atttypid, att->atttypmod, att->attcollation, 0);

		if (!OidIsValid(equal))
			return NULL;
		conditions = lappend(conditions, make_opclause(equal, BOOLOID, false, column, tessera_row_value(table, att->attnum), InvalidOid,
													   att->attcollation));
	}
	row = tessera_row_entry(query, table);
	row->inFromCl = true;
	select = tessera_select_from(row);
	select->jointree->quals = (Node *) make_ands_explicit(conditions);
	tessera_move_permissions(query, row, &permissions);
	tessera_set_query_permissions(select, permissions);
	select->targetList = tessera_place_and_columns(table, columns);
	tessera_lock_for_update(select, 1, assigned, table);
	return select;
}

/* ---- what is assigned to it ---- */

typedef struct SidesContext
{
	Index		old;			/* range table entries of the row in the way, and of the new one */
	Index		new;
	bool		refused;
} SidesContext;

static Node *
sides_mutator(Node *node, SidesContext *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Var))
	{
		Var		   *var = copyObject((Var *) node);

		context->refused |= var->varattno <= 0 || (var->varno != context->old && var->varno != context->new);
		var->varno = var->varno == context->old ? INNER_VAR : OUTER_VAR;
		return (Node *) var;
	}
	return expression_tree_mutator(node, sides_mutator, context);
}

static Node *
compute(Node *expr, SidesContext *context)
{
	return (Node *) expression_planner((Expr *) sides_mutator(expr, context));
}

List *
tessera_plan_row_conflict(Query *query, Relation table, List *columns)
{
	const OnConflictExpr *conflict = query->onConflict;
	SidesContext sides = {.old = query->resultRelation, .new = conflict->exclRelIndex};
	List	   *assigned = tessera_assigned_columns(conflict->onConflictSet);
	List	   *arbiter = arbiter_columns(conflict, table);
	Query	   *find = arbiter == NIL ? NULL : find_query(query, table, columns, arbiter, assigned);
	List	   *find_params = NIL;
	List	   *update_params = NIL;
	List	   *find_texts = find ? tessera_row_texts(find, &find_params) : NIL;
	List	   *update_texts = tessera_write_texts(query, table, columns, CMD_UPDATE, assigned, &update_params);
	List	   *values = NIL;
	List	   *where = conflict->onConflictWhere ? list_make1(compute(conflict->onConflictWhere, &sides)) : NIL;
	List	   *result;
	ListCell   *cell;

	foreach(cell, conflict->onConflictSet)
	{
		sides.refused |= lfirst_node(TargetEntry, cell)->resjunk;
		values = lappend(values, compute((Node *) lfirst_node(TargetEntry, cell)->expr, &sides));
	}
	if (find_texts == NIL || update_texts == NIL || sides.refused)
		return NIL;
	result = list_make5(find_texts, find_params, makeInteger((int) table->rd_rel->relowner), update_texts, update_params);
	result = lappend(result, assigned);
	result = lappend(result, values);
	result = lappend(result, where);
	Assert(list_length(result) == CONFLICT_COUNT);
	return result;
}
