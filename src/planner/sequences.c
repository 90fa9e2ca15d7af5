/*
 * sequences.c
 *	  Sequences of the cluster, and other functions that mean the whole cluster, in statements; see sequences.h.
 *
 * A first walk only looks (most statements have nothing); a second one replaces: calls of the server's functions by oid, identity defaults, and
 * sequences read as tables, which become calls of tessera.sequence_row. What the catalogs hold stays as it is.
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "storage/itemptr.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "common/stand_in.h"
#include "common/version_compat.h"
#include "ddl/sequence.h"
#include "planner/sequences.h"

bool
tessera_is_replaced(Oid function)
{
	return tessera_stand_in_kind(function) != TESSERA_NO_STAND_IN;
}

static bool
looks(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_FuncExpr:
			if (tessera_is_replaced(((FuncExpr *) node)->funcid))
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

/* ---- sequences read as tables ---- */

/*
 * The entry becomes a call that reads the row at the sequence's home. A copy of the entry, which nothing refers to, stays behind all others: core
 * checks the privileges by it, as the user whom the entry names (a view's owner), and locks the sequence.
 */
static RangeTblEntry *
sequence_as_function(RangeTblEntry *rte)
{
	RangeTblEntry *checked = copyObject(rte);
	RangeTblFunction *function = makeNode(RangeTblFunction);
	FuncExpr   *call = makeFuncExpr(tessera_sequence_row_function(), RECORDOID, list_make1(regclass(rte->relid)), InvalidOid, InvalidOid,
									COERCE_EXPLICIT_CALL);

	call->funcretset = true;
	call->location = TESSERA_SEQUENCE_CHECKED;
	function->funcexpr = (Node *) call;
	function->funccolcount = 3;
	rte->rtekind = RTE_FUNCTION;
	rte->functions = list_make1(function);
	rte->relid = InvalidOid;
	rte->relkind = 0;
	rte->rellockmode = 0;
	rte->inh = false;
	tessera_forget_permissions(rte);
	checked->inh = false;
	checked->inFromCl = false;
	return checked;
}

static bool
is_sequence(RangeTblEntry *rte)
{
	return rte->rtekind == RTE_RELATION && rte->relkind == RELKIND_SEQUENCE;
}

/* The row of a sequence has the same system columns for ever: it is written frozen, at one place, and updated there. */
static Node *
system_column(Var *var, Oid sequence)
{
	ItemPointer place;

	switch (var->varattno)
	{
		case TableOidAttributeNumber:
			return (Node *) makeConst(OIDOID, -1, InvalidOid, sizeof(Oid), ObjectIdGetDatum(sequence), false, true);
		case SelfItemPointerAttributeNumber:
			place = palloc(sizeof(ItemPointerData));
			ItemPointerSet(place, 0, FirstOffsetNumber);
			return (Node *) makeConst(TIDOID, -1, InvalidOid, sizeof(ItemPointerData), PointerGetDatum(place), false, false);
		case MinTransactionIdAttributeNumber:
			return (Node *) makeConst(XIDOID, -1, InvalidOid, sizeof(TransactionId), TransactionIdGetDatum(FrozenTransactionId), false, true);
		case MaxTransactionIdAttributeNumber:
			return (Node *) makeConst(XIDOID, -1, InvalidOid, sizeof(TransactionId), TransactionIdGetDatum(InvalidTransactionId), false, true);
		case MinCommandIdAttributeNumber:
		case MaxCommandIdAttributeNumber:
			return (Node *) makeConst(CIDOID, -1, InvalidOid, sizeof(CommandId), CommandIdGetDatum(FirstCommandId), false, true);
		default:
			return (Node *) var;
	}
}

static void
refuse_row_marks(Query *query)
{
	ListCell   *cell;

	foreach(cell, query->rowMarks)
	{
		RangeTblEntry *rte = rt_fetch(lfirst_node(RowMarkClause, cell)->rti, query->rtable);

		if (is_sequence(rte))
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("cannot lock rows in sequence \"%s\"", get_rel_name(rte->relid))));
	}
}

/* ---- replacing ---- */

/* context: the queries around the expression, innermost first. */
static Node *
replace(Node *node, List *queries)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, NextValueExpr))
		return identity_call((NextValueExpr *) node);
	if (IsA(node, Var))
	{
		Var		   *var = (Var *) node;
		RangeTblEntry *rte = var->varattno < 0 && var->varlevelsup < list_length(queries) ?
			rt_fetch(var->varno, list_nth_node(Query, queries, var->varlevelsup)->rtable) : NULL;

		return rte && is_sequence(rte) ? system_column(var, rte->relid) : copyObject(node);
	}
	if (IsA(node, Query))
	{
		Query	   *query;
		List	   *checked = NIL;
		ListCell   *cell;

		refuse_row_marks((Query *) node);
		queries = lcons(node, queries);
		query = query_tree_mutator((Query *) node, replace, queries, 0);
		/* one that is to be changed stays: core says that it cannot be */
		foreach(cell, query->rtable)
			if (is_sequence(lfirst_node(RangeTblEntry, cell)) && foreach_current_index(cell) + 1 != query->resultRelation)
				checked = lappend(checked, sequence_as_function(lfirst(cell)));
		query->rtable = list_concat(query->rtable, checked);
		return (Node *) query;
	}
	node = expression_tree_mutator(node, replace, queries);
	if (IsA(node, FuncExpr) && tessera_is_replaced(((FuncExpr *) node)->funcid))
	{
		Oid			function = tessera_stand_in(((FuncExpr *) node)->funcid);

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
	memcpy(query, replace((Node *) query, NIL), sizeof(Query));
}

Node *
tessera_route_sequences_of_default(Node *expression)
{
	if (expression == NULL || !looks(expression, NULL) || !OidIsValid(tessera_identity_function()))
		return expression;
	return replace(expression, NIL);
}
