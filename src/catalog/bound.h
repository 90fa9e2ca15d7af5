/*
 * bound.h
 *	  tessera.bound: one end of a range of keys, as users write it and as the catalog keeps it.
 *
 * A bound is a list of elements, one for each key column (one for all columns under the hash strategy). An element is MINKEY, MAXKEY or a value
 * kept as the text that the type's input function accepts (written under fixed DateStyle, IntervalStyle and extra_float_digits, so the round
 * trip is exact) with a mark whether it is a number. It is independent of node-local OIDs; catalog/key.h makes it typed.
 *
 * The text form keeps the mark, so that a dump, COPY or a text-mode connection loses nothing: a number is written bare, and another value that
 * reads like a number is quoted ("100" of a text key). A bare literal that reads like a number is therefore marked as one; its text stays as it
 * was typed, and tessera_key_from_bound looks at the text alone. What follows a MINKEY or MAXKEY in a bound means nothing: no key lies between.
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

#define TESSERA_MAX_BOUND_ELEMENTS 32

/* A new bound of n (1 to TESSERA_MAX_BOUND_ELEMENTS) elements, in the current memory context. ERROR 22023 for another n. The numeric mark is kept
 * only where the text has the form of a number. */
extern TesseraBound *tessera_bound_make(int n, const TesseraBoundElement *elements);

/* Elements of a bound (palloc'd array; texts too); returns their count. */
extern int	tessera_bound_elements(const TesseraBound *bound, TesseraBoundElement **elements);

/* Text form, as bound_out writes it; palloc'd. */
extern char *tessera_bound_to_cstring(const TesseraBound *bound);

/* The element for a value of this type, whatever the session's settings; its text in the current memory context. Errors are those of the type's
 * output function. (bound_cast.c) */
extern void tessera_bound_element_of(Oid type, Datum value, TesseraBoundElement *element);

#endif							/* TESSERA_BOUND_H */
