/*
 * range_scan.h
 *	  The rows of one table whose keys lie in some ranges: for the clone, the range deleter and the applier.
 */
#ifndef TESSERA_TRANSFER_RANGE_SCAN_H
#define TESSERA_TRANSFER_RANGE_SCAN_H

#include "postgres.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "executor/tuptable.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

#include "catalog/key.h"
#include "transfer/transfer.h"

/* Scan key of a btree index's column (from 0), by the column's own operator family. */
extern void tessera_index_scankey(ScanKey key, Relation index, int column, StrategyNumber strategy, Datum value);

typedef struct TesseraRangeScan TesseraRangeScan;

/*
 * Begins a scan of the rows in the ranges (at least one; ascending, disjoint; the pointer is kept) under a snapshot that stays registered. By the key
 * index, one range after the other, where the strategy and the bounds allow; else sequential, once for all ranges. Each row comes once. The relation
 * is open and locked by the caller; the index is locked AccessShare. In the current context and resource owner.
 */
extern TesseraRangeScan *tessera_range_scan_begin(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, int nranges,
												  const TesseraKeyRange *ranges, Snapshot snapshot);

/* A scan that brings every row with this key, and perhaps others. The key's values are kept. */
extern TesseraRangeScan *tessera_key_scan_begin(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, const Datum *key, Snapshot snapshot);

/*
 * A scan by an index of its rows with these values of the key columns (by attnum - 1, kept); NULL if the snapshot cannot use the index. The index is
 * of a replica identity or a primary key.
 */
extern TesseraRangeScan *tessera_identity_scan_begin(Relation relation, Oid index, const Datum *values, Snapshot snapshot);

/* The next row, into a slot of the table (table_slot_create); false at the end. */
extern bool tessera_range_scan_next(TesseraRangeScan *scan, TupleTableSlot *slot);
extern void tessera_range_scan_end(TesseraRangeScan *scan);

#endif							/* TESSERA_TRANSFER_RANGE_SCAN_H */
