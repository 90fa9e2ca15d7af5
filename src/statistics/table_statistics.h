/*
 * table_statistics.h
 *	  Statistics of whole tables: each shard's are collected in tessera.table_statistics of every node, and merged when a router plans.
 *
 * tessera.table_statistics has a row for each table and shard. A shard writes its own when ANALYZE has run or when its worker sees that autovacuum
 * has; the other nodes' workers compare stamps now and then and fetch what is new (statistics_worker.c). ANALYZE on any node runs on every shard and
 * collects at once (analyze.c). The planner reads the node's own copy only, through a cache in each backend (planner_statistics.c): it never calls
 * another node. A shard that is down keeps its last row.
 */
#ifndef TESSERA_TABLE_STATISTICS_H
#define TESSERA_TABLE_STATISTICS_H

#include "postgres.h"
#include "access/attnum.h"
#include "access/htup.h"

#include "common/utility_statement.h"
#include "routing/routing.h"
#include "statistics/statistics_json.h"
#include "statistics/statistics_rows.h"

/* ---- planner_statistics.c ---- */

extern void tessera_planner_statistics_init(void);	/* from _PG_init: what makes its cache forget */

/*
 * Size of a table over all its shards; false if it is not known. Units: pages of the server, rows. May load the statistics: reads the catalog; works
 * in a context of its own.
 */
extern bool tessera_table_size_estimate(const TesseraRouting *routing, const TesseraTable *table, double *pages, double *tuples);

/*
 * A tuple of pg_statistic's form for a column of a table of the cluster, of all shards together; NULL: none, also if the type is analyzed by a
 * function of its own. The caller's: heap_freetuple. inherit: with its children (partitions).
 */
extern HeapTuple tessera_column_statistics(const TesseraRouting *routing, const TesseraTable *table, AttrNumber attnum, bool inherit);

/* Average width of a column in bytes; 0: not known. */
extern int32 tessera_column_width(const TesseraRouting *routing, const TesseraTable *table, AttrNumber attnum);

/* The tuple of one shard's column; palloc'd. */
extern HeapTuple tessera_statistics_tuple(Oid relid, const TesseraColumnStatistics *column);

/* ---- statistics_worker.c ---- */

/* Worker's step: this shard's own rows, then those of the others. Runs its own transactions; returns ms until the next. */
extern long tessera_statistics_step(void);

/* At the commit of this transaction the other nodes are to hear that statistics have changed. */
extern void tessera_statistics_tell_at_commit(void);

/* Steps: the worker is woken to tell them, or that is forgotten where there was no commit. Never raise. */
extern void tessera_statistics_committed(void);
extern void tessera_statistics_forget(void);

/* ---- analyze.c ---- */

/* ANALYZE on a member node, not received from another one; a TesseraUtilityHandler. */
extern bool tessera_analyze(TesseraUtility *utility);

/* Runs a statement as without the extension: tessera_utility_run of ddl/, set by init.c. */
extern void (*tessera_run_utility) (TesseraUtility *utility);

/* From _PG_init: setting, shared memory. */
extern void tessera_statistics_init(void);

#endif							/* TESSERA_TABLE_STATISTICS_H */
