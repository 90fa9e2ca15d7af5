/*
 * sequences.c
 *	  Sequences of the cluster in statements; see sequences.h.
 *
 * A first walk only looks (most statements have nothing); a second one replaces: calls of the server's functions by oid, identity defaults, and sequences read
 * as tables, which become calls of tessera.sequence_row. What the catalogs hold stays as it is.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "utils/fmgroids.h"

#include "ddl/sequence.h"
#include "planner/sequences.h"

static inline bool
is_sequence_function(Oid function)
{
	return function == F_NEXTVAL || function == F_CURRVAL || function == F_LASTVAL || function == F_SETVAL_REGCLASS_INT8 ||
		function == F_SETVAL_REGCLASS_INT8_BOOL;
}

static bool
looks(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_FuncExpr:
			if (is_sequence_function(((FuncExpr *) node)->funcid))
				return true;
			break;
		case T_NextValueExpr:
			return true;
		case T_RangeTblEntry:
			return ((RangeTblEntry *) node)->rtekind == RTE_RELATION && ((RangeTblEntry *) node)->relkind == RELKIND_SEQUENCE;
		case T_Query:
			return query_tree_walker((Query *) node, looks, context, QTW_EXAMINE_RTES_BEFORE);
		case T_Var:
		case T_Const:
		case T_Param:
			return false;
		default:
			break;
	}
	return expression_tree_walker(node, looks, context);
}

static Expr *
regclass(Oid sequence)
{
	return (Expr *) makeConst(REGCLASSOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(sequence), false, true);
}

/* The next value in the column's type. */
static Node *
identity_call(NextValueExpr *expression)
{
	FuncExpr   *call = makeFuncExpr(tessera_identity_function(), INT8OID, list_make1(regclass(expression->seqid)), InvalidOid, InvalidOid,
									COERCE_EXPLICIT_CALL);
	Oid			cast = expression->typeId == INT4OID ? F_INT4_INT8 : expression->typeId == INT2OID ? F_INT2_INT8 : InvalidOid;

	if (!OidIsValid(cast))
		return (Node *) call;
	return (Node *) makeFuncExpr(cast, expression->typeId, list_make1(call), InvalidOid, InvalidOid, COERCE_IMPLICIT_CAST);
}

static void
sequence_as_function(RangeTblEntry *rte)
{
	RangeTblFunction *function = makeNode(RangeTblFunction);

	function->funcexpr = (Node *) makeFuncExpr(tessera_sequence_row_function(), RECORDOID, list_make1(regclass(rte->relid)), InvalidOid, InvalidOid,
											   COERCE_EXPLICIT_CALL);
	((FuncExpr *) function->funcexpr)->funcretset = true;
	function->funccolcount = 3;
	rte->rtekind = RTE_FUNCTION;
	rte->functions = list_make1(function);
	rte->relid = InvalidOid;
	rte->relkind = 0;
	rte->rellockmode = 0;
	rte->inh = false;
	rte->requiredPerms = 0;
	rte->selectedCols = NULL;
}

static Node *
replace(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, NextValueExpr))
		return identity_call((NextValueExpr *) node);
	if (IsA(node, Query))
	{
		Query	   *query = query_tree_mutator((Query *) node, replace, context, 0);
		ListCell   *cell;

		foreach(cell, query->rtable)
		{
			RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

			if (rte->rtekind == RTE_RELATION && rte->relkind == RELKIND_SEQUENCE)
				sequence_as_function(rte);
		}
		return (Node *) query;
	}
	node = expression_tree_mutator(node, replace, context);
	if (IsA(node, FuncExpr) && is_sequence_function(((FuncExpr *) node)->funcid))
	{
		Oid			function = tessera_sequence_function(((FuncExpr *) node)->funcid);

		if (OidIsValid(function))
			((FuncExpr *) node)->funcid = function;
	}
	return node;
}

void
tessera_route_sequences(Query *query, const TesseraRouting *routing)
{
	if (!query_tree_walker(query, looks, NULL, QTW_EXAMINE_RTES_BEFORE))
		return;
	if (!OidIsValid(tessera_identity_function()) || !OidIsValid(tessera_sequence_row_function()))
		return;					/* the extension is being dropped or updated */
	memcpy(query, replace((Node *) query, NULL), sizeof(Query));
}

Node *
tessera_route_sequences_of_default(Node *expression)
{
	if (expression == NULL || !looks(expression, NULL) || !OidIsValid(tessera_identity_function()))
		return expression;
	return replace(expression, NULL);
}
