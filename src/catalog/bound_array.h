/*
 * bound_array.h
 *	  Type tessera.bound and arrays of it.
 */
#ifndef TESSERA_BOUND_ARRAY_H
#define TESSERA_BOUND_ARRAY_H

#include "postgres.h"
#include "utils/array.h"

#include "catalog/bound.h"

/* OID of type tessera.bound. ERROR 42704 if it is not there. */
extern Oid	tessera_bound_type(void);

/* A bound from its text form. */
extern TesseraBound *tessera_bound_of_text(const char *text);

/* Bounds of a tessera.bound[]; palloc'd. ERROR 22004 if one is null. */
extern TesseraBound **tessera_bounds_of_array(ArrayType *array, int *n);

/* A tessera.bound[] of bounds, and its text form. */
extern ArrayType *tessera_array_of_bounds(int n, TesseraBound **bounds);
extern char *tessera_bounds_text(int n, TesseraBound **bounds);

#endif							/* TESSERA_BOUND_ARRAY_H */
