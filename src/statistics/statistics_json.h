/*
 * statistics_json.h
 *	  What the server knows of one table's columns (its pg_statistic rows), in a form that reads the same on every node: names in the place of numbers
 *	  and OIDs, values as text.
 *
 * Only values of built-in types (no OIDs inside) and of enums travel; of any other type there are width, share of nulls and number of distinct
 * values. What is of another type on the node that reads it is skipped.
 */
#ifndef TESSERA_PORTABLE_STATISTICS_H
#define TESSERA_PORTABLE_STATISTICS_H

#include "postgres.h"
#include "access/attnum.h"
#include "catalog/pg_statistic.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

/* One kind of statistics, as pg_statistic has it in a slot. */
typedef struct TesseraStatisticsSlot
{
	int			kind;
	Oid			op;				/* InvalidOid: none */
	Oid			collation;
	int			nnumbers;
	float4	   *numbers;
	Oid			type;			/* of the values; base type of a domain */
	int			nvalues;
	Datum	   *values;
} TesseraStatisticsSlot;

typedef struct TesseraColumnStatistics
{
	AttrNumber	attnum;
	bool		inherit;		/* of the table with its children */
	float4		nullfrac;
	int32		width;
	float4		distinct;		/* as pg_statistic.stadistinct */
	int			nslots;
	TesseraStatisticsSlot slots[STATISTIC_NUM_SLOTS];
} TesseraColumnStatistics;

/* Text of a JSON array, an object for each column and inheritance flag; palloc'd. The relation is open and locked. */
extern char *tessera_statistics_to_json(Relation rel);

/* The reverse, on this node's table. Values are palloc'd in the current context and may point into the JSON. */
extern TesseraColumnStatistics *tessera_statistics_from_json(Relation rel, Jsonb *json, int *n);

/* A number that changes with every ANALYZE of the table (from the xids of its pg_statistic rows), and when a column gets another name. */
extern uint64 tessera_statistics_hash(Relation rel);

#endif							/* TESSERA_PORTABLE_STATISTICS_H */
