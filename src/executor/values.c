/*
 * values.c
 *	  Evaluation of parameters and keys; see values.h.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "nodes/nodeFuncs.h"

#include "executor/values.h"

void
tessera_values_init(TesseraValues *values, CustomScanState *node)
{
	List	   *exprs = ((CustomScan *) node->ss.ps.plan)->custom_exprs;
	ListCell   *cell;

	values->n = list_length(exprs);
	values->values = palloc0(sizeof(Datum) * Max(values->n, 1));
	values->nulls = palloc0(sizeof(bool) * Max(values->n, 1));
	values->types = palloc0(sizeof(Oid) * Max(values->n, 1));
	foreach(cell, exprs)
		values->types[foreach_current_index(cell)] = exprType(lfirst(cell));
	values->exprs = ExecInitExprList(exprs, &node->ss.ps);
}

void
tessera_values_evaluate(TesseraValues *values, CustomScanState *node)
{
	ListCell   *cell;

	foreach(cell, values->exprs)
	{
		int			i = foreach_current_index(cell);

		values->values[i] = ExecEvalExpr((ExprState *) lfirst(cell), node->ss.ps.ps_ExprContext, &values->nulls[i]);
	}
}
