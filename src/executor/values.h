/*
 * values.h
 *	  The values that a scan of the cluster evaluates before it is routed: the parameters of its text, then the keys of its pins.
 */
#ifndef TESSERA_VALUES_H
#define TESSERA_VALUES_H

#include "postgres.h"
#include "nodes/execnodes.h"
#include "nodes/params.h"

/* values and nulls are those of the last tessera_values_evaluate. */
typedef struct TesseraValues
{
	int			n;
	Datum	   *values;
	bool	   *nulls;
	Oid		   *types;
	List	   *exprs;			/* ExprStates; NIL while all of them are constants and parameters of the statement */
} TesseraValues;

/*
 * The value of a constant or of a parameter of the statement, also below a change of its label alone. False: it is something else, or the parameter
 * is not given, or is of another type. The value is the parameters' or the constant's own.
 */
extern bool tessera_value_given(Node *node, ParamListInfo params, Datum *value, bool *isnull);

/* custom_exprs of the node's plan; the arrays are palloc'd in the current context (the executor's, in BeginCustomScan). */
extern void tessera_values_init(TesseraValues *values, CustomScanState *node);

/* In the node's expression context; values are allocated in the current one. */
extern void tessera_values_evaluate(TesseraValues *values, CustomScanState *node);

#endif							/* TESSERA_VALUES_H */
