/*
 * bound.h
 *	  tessera.bound: one end of a range of keys, as users write it and as the catalog keeps it.
 *
 * A bound is a list of elements, one for each key column (one for all columns under the hash strategy). An element is MINKEY, MAXKEY or a value
 * kept as the text that the type's input function accepts (written under fixed DateStyle, IntervalStyle and extra_float_digits, so the round
 * trip is exact) with a mark whether it is a number. It is independent of node-local OIDs; catalog/key.h makes it typed.
 */
#ifndef TESSERA_BOUND_H
#define TESSERA_BOUND_H

#include "fmgr.h"

typedef struct varlena TesseraBound;

typedef enum TesseraBoundKind
{
	TESSERA_MINKEY = -1,
	TESSERA_VALUE = 0,
	TESSERA_MAXKEY = 1
} TesseraBoundKind;

typedef struct TesseraBoundElement
{
	TesseraBoundKind kind;
	bool		numeric;		/* of a number type: ordered as numeric, else bytewise */
	const char *text;			/* TESSERA_VALUE only: nul-terminated */
} TesseraBoundElement;

#define DatumGetTesseraBoundP(d) ((TesseraBound *) PG_DETOAST_DATUM(d))
#define PG_GETARG_TESSERA_BOUND_P(n) DatumGetTesseraBoundP(PG_GETARG_DATUM(n))

/* A new bound of n (1 to 32) elements, in the current memory context. */
extern TesseraBound *tessera_bound_make(int n, const TesseraBoundElement *elements);

/* Elements of a bound (palloc'd array; texts too); returns their count. */
extern int	tessera_bound_elements(const TesseraBound *bound, TesseraBoundElement **elements);

/* Order of canonical bounds: MINKEY < numbers < other values < MAXKEY, element by element; a shorter one is filled with MINKEY. For display and
 * uniqueness in the catalog; the order of keys is tessera_key_compare's alone. */
extern int	tessera_bound_compare(const TesseraBound *a, const TesseraBound *b);

/* Text form, as bound_out writes it; palloc'd. */
extern char *tessera_bound_to_cstring(const TesseraBound *bound);

#endif							/* TESSERA_BOUND_H */
