/*
 * values.c
 *	  Evaluation of parameters and keys; see values.h.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "nodes/nodeFuncs.h"

#include "executor/values.h"
#include "routing/key_comparison.h"

/* A constant, or a parameter of the statement: whose value is there without an expression to be compiled and run. NULL: it is neither. */
static Node *
plain_value(Node *node)
{
	node = tessera_unlabelled(node);
	return IsA(node, Const) || (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXTERN) ? node : NULL;
}

bool
tessera_value_given(Node *node, ParamListInfo params, Datum *value, bool *isnull)
{
	Param	   *param;
	ParamExternData workspace;
	ParamExternData *given;

	node = plain_value(node);
	if (node == NULL)
		return false;
	if (IsA(node, Const))
	{
		*value = ((Const *) node)->constvalue;
		*isnull = ((Const *) node)->constisnull;
		return true;
	}
	param = (Param *) node;
	if (params == NULL || param->paramid <= 0 || param->paramid > params->numParams)
		return false;
	given = params->paramFetch ? params->paramFetch(params, param->paramid, true, &workspace) : &params->params[param->paramid - 1];
	*value = given->value;
	*isnull = given->isnull;
	return given->ptype == param->paramtype;
}

static void
compile(TesseraValues *values, CustomScanState *node)
{
	MemoryContext before = MemoryContextSwitchTo(node->ss.ps.state->es_query_cxt);

	values->exprs = ExecInitExprList(((CustomScan *) node->ss.ps.plan)->custom_exprs, &node->ss.ps);
	MemoryContextSwitchTo(before);
}

void
tessera_values_init(TesseraValues *values, CustomScanState *node)
{
	List	   *exprs = ((CustomScan *) node->ss.ps.plan)->custom_exprs;
	bool		plain = true;
	ListCell   *cell;

	values->n = list_length(exprs);
	values->values = palloc0(sizeof(Datum) * Max(values->n, 1));
	values->nulls = palloc0(sizeof(bool) * Max(values->n, 1));
	values->types = palloc0(sizeof(Oid) * Max(values->n, 1));
	foreach(cell, exprs)
	{
		values->types[foreach_current_index(cell)] = exprType(lfirst(cell));
		plain &= plain_value(lfirst(cell)) != NULL;
	}
	values->exprs = NIL;
	if (!plain)
		compile(values, node);
}

/* False: they are not all given. */
static bool
take_given(TesseraValues *values, CustomScanState *node)
{
	ParamListInfo params = node->ss.ps.state->es_param_list_info;
	ListCell   *cell;

	foreach(cell, ((CustomScan *) node->ss.ps.plan)->custom_exprs)
	{
		int			i = foreach_current_index(cell);

		if (!tessera_value_given(lfirst(cell), params, &values->values[i], &values->nulls[i]))
			return false;
	}
	return true;
}

void
tessera_values_evaluate(TesseraValues *values, CustomScanState *node)
{
	ListCell   *cell;

	if (values->exprs == NIL)
	{
		if (take_given(values, node))
			return;
		compile(values, node);	/* core's error of a parameter that is not given, or of another type */
	}
	foreach(cell, values->exprs)
	{
		int			i = foreach_current_index(cell);

		values->values[i] = ExecEvalExpr((ExprState *) lfirst(cell), node->ss.ps.ps_ExprContext, &values->nulls[i]);
	}
}
