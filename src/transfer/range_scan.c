/*
 * range_scan.c
 *	  The rows of one table whose keys lie in some ranges.
 *
 * The index narrows the scan by the first key column only; whether a row belongs to a range is decided by the key space, for every row, so that the
 * answer never depends on which index there is. Ranges that meet in a value of the first column are scanned by the index as one, so that no row comes
 * twice. Under the hash strategy no index is in the order of the positions: the scan is sequential.
 *
 * The scan owns a context for what comparing keys leaks, emptied for each row. Its index is locked AccessShare until the scan ends. Nothing is
 * written.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "common/version_compat.h"
#include "transfer/range_scan.h"

struct TesseraRangeScan
{
	Relation	relation;
	TesseraKeySpace *ks;
	const AttrNumber *keys;
	int			nranges;
	const TesseraKeyRange *ranges;	/* NULL: no filter */
	int			next_range;		/* by index: the first range not begun */
	Snapshot	snapshot;
	Relation	index;			/* NULL: sequential */
	IndexScanDesc by_index;
	TableScanDesc sequential;
	ScanKeyData scankeys[INDEX_MAX_KEYS];
	int			nscankeys;
	MemoryContext context;		/* of the scan: the index keeps what it allocates on the way (dead items) until its end */
	MemoryContext row_context;
};


/* Valid, btree, whole, and not younger than the snapshot if HOT chains were broken when it was built. */
static bool
index_is_usable(Relation index)
{
	Form_pg_index form = index->rd_index;

	if (!form->indisvalid || !form->indisready || index->rd_rel->relam != BTREE_AM_OID ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;
	return !form->indcheckxmin || TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data), TransactionXmin);
}

/* Key columns in front of the index, 0 if it cannot be used. */
static int
index_key_columns(Relation index, TesseraKeySpace *ks, const AttrNumber *keys)
{
	Form_pg_index form = index->rd_index;
	int			n = 0;

	if (!index_is_usable(index))
		return 0;
	while (n < ks->ncolumns && n < form->indnkeyatts &&
		   form->indkey.values[n] == keys[n] &&
		   index->rd_opfamily[n] == ks->columns[n].btree_opfamily &&
		   index->rd_indcollation[n] == ks->columns[n].collation)
		n++;
	return n;
}

/*
 * The index to scan: valid, btree, whole, the first key column in front and ordered as the keys are; the one with most key columns in front. Unlike
 * catalog/key_index.h it takes an index of some of the key columns too, and minds how old the snapshot is. InvalidOid if there is none.
 */
static Oid
find_index(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys)
{
	List	   *indexes = RelationGetIndexList(relation);
	Oid			best = InvalidOid;
	int			best_columns = 0;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		int			columns = index_key_columns(index, ks, keys);

		if (columns > best_columns)
		{
			best = lfirst_oid(lc);
			best_columns = columns;
		}
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return best;
}

void
tessera_index_scankey(ScanKey key, Relation index, int column, StrategyNumber strategy, Datum value)
{
	Oid			type = index->rd_opcintype[column];
	Oid			operator = get_opfamily_member(index->rd_opfamily[column], type, type, strategy);

	if (!OidIsValid(operator))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("operator family %u has no operator for strategy %d of type %u", index->rd_opfamily[column], strategy, type)));
	ScanKeyEntryInitialize(key, 0, column + 1, strategy, InvalidOid, index->rd_indcollation[column], get_opcode(operator), value);
}

static void
add_scankey(TesseraRangeScan *scan, int column, StrategyNumber strategy, Datum value)
{
	tessera_index_scankey(&scan->scankeys[scan->nscankeys++], scan->index, column, strategy, value);
}

static TesseraRangeScan *
scan_create(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, Snapshot snapshot)
{
	TesseraRangeScan *scan = palloc0(sizeof(TesseraRangeScan));

	scan->context = CurrentMemoryContext;
	scan->relation = relation;
	scan->ks = ks;
	scan->keys = keys;
	scan->snapshot = snapshot;
	scan->row_context = AllocSetContextCreate(CurrentMemoryContext, "tessera range scan row", ALLOCSET_SMALL_SIZES);
	return scan;
}

static void
scan_start(TesseraRangeScan *scan)
{
	if (scan->nscankeys > 0)
	{
		scan->by_index = tessera_index_scan(scan->relation, scan->index, scan->snapshot, scan->nscankeys);
		index_rescan(scan->by_index, scan->scankeys, scan->nscankeys, NULL, 0);
		return;
	}
	if (scan->index != NULL)
	{
		index_close(scan->index, AccessShareLock);
		scan->index = NULL;
	}
	scan->sequential = table_beginscan(scan->relation, scan->snapshot, 0, NULL);
}

static void
open_key_index(TesseraRangeScan *scan)
{
	Oid			index = find_index(scan->relation, scan->ks, scan->keys);

	if (OidIsValid(index))
		scan->index = index_open(index, AccessShareLock);
}

/* True if keys on both sides of the gap between the ranges may have the same value in the first column. */
static bool
ranges_meet(TesseraKeySpace *ks, const TesseraKeyRange *before, const TesseraKeyRange *behind)
{
	TesseraKeyBound end = {{before->max.elements[0], {TESSERA_MAXKEY}}};
	TesseraKeyBound start = {{behind->min.elements[0], {TESSERA_MINKEY}}};

	return ks->nelements > 1 && tessera_key_compare(ks, &start, &end) <= 0;
}

/* Scan keys of the ranges that come next. */
static void
take_next_ranges(TesseraRangeScan *scan)
{
	const TesseraKeyDatum *min = &scan->ranges[scan->next_range++].min.elements[0];
	const TesseraKeyDatum *max;

	while (scan->next_range < scan->nranges && ranges_meet(scan->ks, &scan->ranges[scan->next_range - 1], &scan->ranges[scan->next_range]))
		scan->next_range++;
	max = &scan->ranges[scan->next_range - 1].max.elements[0];
	scan->nscankeys = 0;
	if (min->kind == TESSERA_VALUE)
		add_scankey(scan, 0, BTGreaterEqualStrategyNumber, min->value);
	if (max->kind == TESSERA_VALUE)
		add_scankey(scan, 0, scan->ks->nelements == 1 ? BTLessStrategyNumber : BTLessEqualStrategyNumber, max->value);
}

TesseraRangeScan *
tessera_range_scan_begin(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, int nranges, const TesseraKeyRange *ranges,
						 Snapshot snapshot)
{
	TesseraRangeScan *scan = scan_create(relation, ks, keys, snapshot);

	scan->nranges = nranges;
	scan->ranges = ranges;
	if (!ks->hashed && (ranges[0].min.elements[0].kind == TESSERA_VALUE || ranges[0].max.elements[0].kind == TESSERA_VALUE))
		open_key_index(scan);
	if (scan->index != NULL)
		take_next_ranges(scan);
	scan_start(scan);
	return scan;
}

TesseraRangeScan *
tessera_key_scan_begin(Relation relation, TesseraKeySpace *ks, const AttrNumber *keys, const Datum *key, Snapshot snapshot)
{
	TesseraRangeScan *scan = scan_create(relation, ks, keys, snapshot);

	open_key_index(scan);
	if (scan->index != NULL)
	{
		int			columns = index_key_columns(scan->index, ks, keys);

		for (int i = 0; i < columns; i++)
			add_scankey(scan, i, BTEqualStrategyNumber, key[i]);
	}
	scan_start(scan);
	return scan;
}

TesseraRangeScan *
tessera_identity_scan_begin(Relation relation, Oid index, const Datum *values, Snapshot snapshot)
{
	TesseraRangeScan *scan = scan_create(relation, NULL, NULL, snapshot);

	scan->index = index_open(index, AccessShareLock);
	if (!index_is_usable(scan->index))
	{
		index_close(scan->index, AccessShareLock);
		MemoryContextDelete(scan->row_context);
		pfree(scan);
		return NULL;
	}
	for (int i = 0; i < scan->index->rd_index->indnkeyatts; i++)
		add_scankey(scan, i, BTEqualStrategyNumber, values[scan->index->rd_index->indkey.values[i] - 1]);
	scan_start(scan);
	return scan;
}

static bool
row_in_ranges(TesseraRangeScan *scan, TupleTableSlot *slot)
{
	Datum		key[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	MemoryContext old;
	bool		result;

	if (scan->ranges == NULL)
		return true;
	for (int i = 0; i < scan->ks->ncolumns; i++)
	{
		bool		isnull;

		key[i] = slot_getattr(slot, scan->keys[i], &isnull);
		if (isnull)
			return false;
	}
	old = MemoryContextSwitchTo(scan->row_context);
	tessera_key_position(scan->ks, key, &position);
	result = tessera_key_ranges_hold(scan->ks, scan->nranges, scan->ranges, &position);
	MemoryContextSwitchTo(old);
	MemoryContextReset(scan->row_context);
	return result;
}

/* The next row that the index or the table brings. */
static bool
next_row(TesseraRangeScan *scan, TupleTableSlot *slot)
{
	if (scan->by_index == NULL)
		return table_scan_getnextslot(scan->sequential, ForwardScanDirection, slot);
	while (!index_getnext_slot(scan->by_index, ForwardScanDirection, slot))
	{
		if (scan->next_range == scan->nranges)
			return false;
		index_endscan(scan->by_index);
		take_next_ranges(scan);
		scan_start(scan);
	}
	return true;
}

bool
tessera_range_scan_next(TesseraRangeScan *scan, TupleTableSlot *slot)
{
	for (;;)
	{
		MemoryContext old = MemoryContextSwitchTo(scan->context);
		bool		found = next_row(scan, slot);

		MemoryContextSwitchTo(old);
		CHECK_FOR_INTERRUPTS();
		if (!found)
			return false;
		if (row_in_ranges(scan, slot))
			return true;
	}
}

void
tessera_range_scan_end(TesseraRangeScan *scan)
{
	if (scan->by_index != NULL)
	{
		index_endscan(scan->by_index);
		index_close(scan->index, AccessShareLock);
	}
	else
		table_endscan(scan->sequential);
	MemoryContextDelete(scan->row_context);
	pfree(scan);
}
