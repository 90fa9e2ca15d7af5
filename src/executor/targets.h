/*
 * targets.h
 *	  From pins and tables to shards, at execution.
 */
#ifndef TESSERA_TARGETS_H
#define TESSERA_TARGETS_H

#define TESSERA_MAX_NODES 1024

#include "postgres.h"
#include "nodes/execnodes.h"

#include "routing/routing.h"

/*
 * Converts values of expressions (types as exprType) to the key columns of a sharded table and finds the owner. *no_row: a value is null or out of
 * range, so no row can have this key, and any shard may answer. ERROR 42P01-like if the table is no longer sharded as planned: see caller.
 */
extern int32 tessera_target_of_key(const TesseraRouting *routing, const TesseraTable *table, const Datum *values, const bool *nulls, const Oid *types,
								   bool *no_row);

/* The same for a pin, as planned (plan_private.h); values, nulls and types are of all of custom_exprs. */
extern int32 tessera_target_of_pin(const TesseraRouting *routing, const TesseraTable *table, const List *pin, const Datum *values, const bool *nulls,
								   const Oid *types, bool *no_row);

/*
 * Shards of a whole statement, each once, into targets (room for TESSERA_MAX_NODES); private: its plan's custom_private (plan_private.h). Returns how
 * many; -1: a table's placement is of another nature than when the statement was planned (sharded meanwhile): plan again.
 */
extern int	tessera_targets_of_statement(const List *private, const TesseraRouting *routing, const Datum *values, const bool *nulls, const Oid *types,
										 int32 *targets);

/* True if this node has all rows of the table, or the table is none of the cluster. */
extern bool tessera_all_rows_are_here(const TesseraRouting *routing, Oid relid);

#endif							/* TESSERA_TARGETS_H */
