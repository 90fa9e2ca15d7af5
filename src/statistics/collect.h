/*
 * collect.h
 *	  What this shard knows of its part of a table.
 */
#ifndef TESSERA_STATISTICS_COLLECT_H
#define TESSERA_STATISTICS_COLLECT_H

#include "postgres.h"

#include "routing/routing.h"
#include "statistics/statistics_rows.h"

/*
 * True if the table's statistics or size have changed since the row with this stamp was collected. Cheap; waits for no lock: a table (or partition)
 * that is locked counts as unchanged. relid and placement as of the routing image.
 */
extern bool tessera_statistics_changed(const TesseraRouting *routing, const TesseraTable *table, const char *stamp);

/*
 * Collects and writes this node's row, or deletes it where nothing of the table lies here; NULL then, or if the table is gone. wait: for locks on the
 * table; else NULL if one is not had. The rows are locked by the caller. palloc'd.
 */
extern TesseraStatisticsRow *tessera_statistics_collect(const TesseraRouting *routing, const TesseraTable *table, bool wait);

#endif							/* TESSERA_STATISTICS_COLLECT_H */
