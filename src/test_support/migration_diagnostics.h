/*
 * migration_diagnostics.h
 *	  What the diagnostics of a migration's data path move: tables and key columns that need not belong to a cluster, or ranges of its groups.
 */
#ifndef TESSERA_MIGRATION_DIAGNOSTICS_H
#define TESSERA_MIGRATION_DIAGNOSTICS_H

#include "postgres.h"
#include "utils/array.h"

#include "transfer/transfer.h"

/* One range, of a group of tables with these key columns; all in the current context. NULL bounds: MINKEY, MAXKEY. Catalog access. */
extern TesseraMovingRanges *tessera_diagnostic_range(int ntables, const Oid *tables, int nkeys, char **keys, bool hashed, const TesseraBound *min,
													 const TesseraBound *max);

/* Ranges of the cluster's groups: a tessera_test.group_range[]; in the current context. ERROR 22004 if anything in it is null. */
extern TesseraMovingRanges *tessera_diagnostic_operation(ArrayType *ranges);

/* Elements of arguments of types regclass[] and text[]; ERROR 22004 if one is null. */
extern Oid *tessera_diagnostic_tables(ArrayType *array, int *n);
extern char **tessera_diagnostic_keys(ArrayType *array, int *n);

#endif							/* TESSERA_MIGRATION_DIAGNOSTICS_H */
