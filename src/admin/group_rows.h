/*
 * group_rows.h
 *	  What the commands on sharded tables share: the config node's check of a call, hints, and keys of a group.
 */
#ifndef TESSERA_GROUP_ROWS_H
#define TESSERA_GROUP_ROWS_H

#include "utils/array.h"
#include "utils/uuid.h"

#include "catalog/chunk.h"
#include "routing/routing.h"

/* On the config node: its routing table. ERROR 55000 if this is another node, TS003 if the caller has seen a higher config term. */
extern const TesseraRouting *tessera_config_routing(int64 term);

/* The group in the routing table, ERROR TS002 if it is not there or of another epoch (epoch NULL: any). */
extern const TesseraGroup *tessera_config_group(const TesseraRouting *routing, const pg_uuid_t *group_id, const pg_uuid_t *epoch);

/* min of the chunk that holds the position by this routing table: the hint for catalog/chunk.h. */
extern TesseraBound *tessera_chunk_hint(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks,
										const TesseraKeyBound *position);

/* A bound from its text form. */
extern TesseraBound *tessera_bound_of_text(const char *text);

/* Bounds of a tessera.bound[]; palloc'd. ERROR 22004 if one is null. */
extern TesseraBound **tessera_bounds_of_array(ArrayType *array, int *n);

/* A tessera.bound[] of bounds, and its text form. */
extern ArrayType *tessera_array_of_bounds(int n, TesseraBound **bounds);
extern char *tessera_bounds_text(int n, TesseraBound **bounds);

#endif							/* TESSERA_GROUP_ROWS_H */
