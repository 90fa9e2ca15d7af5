/*
 * migration_diagnostics.h
 *	  Ranges for the diagnostics of a migration's data path: made of tables and key columns that need not belong to a cluster.
 */
#ifndef TESSERA_MIGRATION_DIAGNOSTICS_H
#define TESSERA_MIGRATION_DIAGNOSTICS_H

#include "postgres.h"
#include "utils/array.h"

#include "transfer/transfer.h"

/* A range without bounds (they are MINKEY and MAXKEY) over tables with these key columns, all in the current context. Catalog access. */
extern TesseraMovingRange *tessera_diagnostic_range(int ntables, const Oid *tables, int nkeys, char **keys, bool hashed);

/* Elements of arguments of types regclass[] and text[]; ERROR 22004 if one is null. */
extern Oid *tessera_diagnostic_tables(ArrayType *array, int *n);
extern char **tessera_diagnostic_keys(ArrayType *array, int *n);

#endif							/* TESSERA_MIGRATION_DIAGNOSTICS_H */
