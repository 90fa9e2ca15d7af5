/*
 * values.h
 *	  The values that a scan of the cluster evaluates before it is routed: the parameters of its text, then the keys of its pins.
 */
#ifndef TESSERA_VALUES_H
#define TESSERA_VALUES_H

#include "postgres.h"
#include "nodes/execnodes.h"

/* values and nulls are those of the last tessera_values_evaluate. */
typedef struct TesseraValues
{
	int			n;
	Datum	   *values;
	bool	   *nulls;
	Oid		   *types;
	List	   *exprs;			/* ExprStates */
} TesseraValues;

/* custom_exprs of the node's plan; the arrays are palloc'd in the current context (the executor's, in BeginCustomScan). */
extern void tessera_values_init(TesseraValues *values, CustomScanState *node);

/* In the node's expression context; values are allocated in the current one. */
extern void tessera_values_evaluate(TesseraValues *values, CustomScanState *node);

#endif							/* TESSERA_VALUES_H */
