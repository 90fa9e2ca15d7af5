/*
 * owner_differences.h
 *	  Where two table groups of like keys have different owners.
 */
#ifndef TESSERA_OWNER_DIFFERENCES_H
#define TESSERA_OWNER_DIFFERENCES_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "catalog/bound.h"
#include "routing/routing.h"

/* A range whose chunks in two groups of like keys have different owners. Bounds palloc'd. */
typedef struct TesseraDifference
{
	TesseraBound *min;
	TesseraBound *max;
	int32		from;			/* owner by the first group */
	int32		to;				/* owner by the second one */
} TesseraDifference;

/*
 * All of them (TesseraDifference *), in key order, as long as can be: by routing; chunks may be cut differently. NIL: the owners are the same
 * everywhere.
 */
extern List *tessera_ownership_differences(const TesseraRouting *routing, const TesseraGroup *first, const TesseraGroup *second);

#endif							/* TESSERA_OWNER_DIFFERENCES_H */
