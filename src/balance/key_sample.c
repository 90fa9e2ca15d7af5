/*
 * key_sample.c
 *	  Samples the keys of a table by its key index (S87), or from random blocks. See key_sample.h.
 *
 * The scan goes through no planner: what it reads is what lies on this shard, whether it owns it or not. Under range it starts at the range's first
 * value and stops behind its end. Under hash the index is in another order: for one range it is read whole; for many, blocks are enough, as each has
 * rows of all of them.
 *
 * Memory: a scratch context, reset every so many rows, takes what comparisons leave; kept keys are the sample's. The scan is advanced outside of it:
 * what the index keeps from row to row (which entries are dead, for one) must last as long as the scan.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "balance/give_way.h"
#include "balance/key_sample.h"
#include "catalog/key_index.h"
#include "common/version_compat.h"
#include "load/block_rows.h"

#define RESET_ROWS 1024
#define BLOCKS_PER_SNAPSHOT 64	/* also: after so many, does anybody wait for the table? */
#define NEXT_ROWS 10000			/* so many rows are passed over in search of the next key */
#define UNSEEN_ROWS 16			/* times as many as are wanted does the index name, and the search is given up */
#define WIDTH_ROWS 16			/* of so many rows, one is read from the table to see how wide it is */

typedef struct KeyScan
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	Buffer		vmbuffer;
	ScanDirection direction;
	bool		from_index;		/* index tuples carry the keys as they are */
	int64		rows;			/* that the index has named */
	int64		most_rows;		/* so many, and the scan ends; 0: no limit */
	double		bytes;			/* of the row at hand; 0: it was not looked at */
	const AttrNumber *keys;
	int			nkeys;
} KeyScan;

/* Random blocks, of which some are read at a time. */
typedef struct BlockPart
{
	TesseraBlockChooser chooser;
	int			left;			/* blocks of this part; negative: the part has ended */
	bool		end;			/* there are no more blocks */
} BlockPart;

/* A btree of type name, for one, keeps its keys in another form. */
static bool
index_has_keys(Relation index, const TesseraKeySpace *ks)
{
	for (int i = 0; i < ks->ncolumns; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index), i);

		if (att->attlen != ks->columns[i].typlen || att->attbyval != ks->columns[i].typbyval)
			return false;
	}
	return true;
}

/* Condition "first key column >= (or >: the strategy) the range's first value"; false if there is no such value to begin at. */
static bool
start_condition(Relation index, TesseraKeySpace *ks, const TesseraKeyBound *min, StrategyNumber strategy, ScanKey key)
{
	Oid			type = index->rd_opcintype[0];
	Oid			operator;

	if (ks->hashed || min->elements[0].kind != TESSERA_VALUE)
		return false;
	operator = get_opfamily_member(index->rd_opfamily[0], type, type, strategy);
	if (!OidIsValid(operator))
		return false;
	ScanKeyEntryInitialize(key, 0, 1, strategy, type, index->rd_indcollation[0], get_opcode(operator),
						   min->elements[0].value);
	return true;
}

/* Values of the key columns of the next row that the snapshot sees; false at the end. They are valid until the next call. */
static bool
next_key(KeyScan *ks, Datum *values)
{
	ItemPointer tid;
	Datum		index_values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	while ((ks->most_rows == 0 || ks->rows < ks->most_rows) && (tid = index_getnext_tid(ks->scan, ks->direction)) != NULL)
	{
		bool		wide = ks->rows++ % WIDTH_ROWS == 0;

		ks->bytes = 0;
		if (ks->from_index && !wide && VM_ALL_VISIBLE(ks->rel, ItemPointerGetBlockNumber(tid), &ks->vmbuffer))
		{
			index_deform_tuple(ks->scan->xs_itup, ks->scan->xs_itupdesc, index_values, isnull);
			memcpy(values, index_values, sizeof(Datum) * ks->nkeys);
			return true;
		}
		if (!index_fetch_heap(ks->scan, ks->slot))
			continue;
		for (int i = 0; i < ks->nkeys; i++)
			values[i] = slot_getattr(ks->slot, ks->keys[i], &isnull[i]);
		if (wide)
			ks->bytes = tessera_stored_row_bytes(ks->slot);
		return true;
	}
	return false;
}

/* The range that holds the position: its number; -1: none. The ranges ascend, and are disjoint. */
static int
range_of(TesseraKeySpace *ks, const TesseraSampledRange *ranges, int n, const TesseraKeyBound *position)
{
	int			low = 0;
	int			high = n;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (tessera_key_compare(ks, &ranges[middle].max, position) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && tessera_key_compare(ks, &ranges[low].min, position) <= 0 ? low : -1;
}

static void
begin_ranges(TesseraKeySpace *ks, TesseraSampledRange *ranges, int n)
{
	for (int i = 0; i < n; i++)
	{
		ranges[i].sample = tessera_key_sample_create(ks, ranges[i].capacity);
		ranges[i].bytes = 0;
	}
}


/* ---- the index ---- */

/* Reads the range's keys; under range in order, so that the first key behind the end ends the scan. False: it has given way to somebody. */
static bool
read_keys(KeyScan *scan, TesseraKeySpace *ks, TesseraSampledRange *range, bool give_way)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera key sample", ALLOCSET_SMALL_SIZES);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	bool		behind = false;
	bool		given_way = false;
	int64		rows = 0;
	int64		measured = 0;	/* rows whose width was looked at */

	while (!behind && !given_way && next_key(scan, values))
	{
		MemoryContext old = MemoryContextSwitchTo(scratch);

		CHECK_FOR_INTERRUPTS();
		tessera_key_position(ks, values, &position);
		if (range_of(ks, range, 1, &position) == 0)
		{
			tessera_key_sample_add(range->sample, &position);
			measured += scan->bytes > 0 ? 1 : 0;
			range->bytes += scan->bytes;
		}
		else if (!ks->hashed)
			behind = tessera_key_compare(ks, &position, &range->max) >= 0;
		MemoryContextSwitchTo(old);
		if (++rows % RESET_ROWS != 0)
			continue;
		MemoryContextReset(scratch);
		given_way = give_way && tessera_table_is_awaited(RelationGetRelid(scan->rel));
	}
	MemoryContextDelete(scratch);
	range->bytes = measured > 0 ? range->sample->seen * (range->bytes / measured) : 0;
	range->whole = true;
	return !given_way;
}

/* Begins a scan of the key index at min, or, by that strategy, behind all keys with its first value. False: there is no key index. */
static bool
begin_scan(KeyScan *scan, Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *min, StrategyNumber strategy,
		   Snapshot snapshot)
{
	ScanKeyData condition;
	int			nconditions;
	Oid			index;

	*scan = (KeyScan) {.rel = rel,.keys = keys,.nkeys = ks->ncolumns,.vmbuffer = InvalidBuffer};
	index = tessera_key_index(rel, ks, keys, &scan->direction);
	if (!OidIsValid(index))
		return false;
	scan->index = index_open(index, AccessShareLock);
	scan->from_index = index_has_keys(scan->index, ks);
	scan->slot = table_slot_create(rel, NULL);
	nconditions = start_condition(scan->index, ks, min, strategy, &condition) ? 1 : 0;
	scan->scan = tessera_index_scan(rel, scan->index, snapshot, nconditions);
	scan->scan->xs_want_itup = scan->from_index;
	index_rescan(scan->scan, &condition, nconditions, NULL, 0);
	return true;
}

static void
end_scan(KeyScan *scan)
{
	index_endscan(scan->scan);
	if (BufferIsValid(scan->vmbuffer))
		ReleaseBuffer(scan->vmbuffer);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
}

/* Adds the keys of one table to the range's sample. */
static bool
add_by_index(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *range, Snapshot snapshot, bool give_way)
{
	bool		whole;
	KeyScan		scan;

	if (!begin_scan(&scan, rel, ks, keys, &range->min, BTGreaterEqualStrategyNumber, snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no index that begins with its shard key", RelationGetRelationName(rel)),
				 errhint("Create a btree index on the key columns.")));
	whole = read_keys(&scan, ks, range, give_way);
	end_scan(&scan);
	return whole;
}

int
tessera_rows_up_to(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *min, const TesseraKeyBound *max, int most,
				   Snapshot snapshot)
{
	KeyScan		scan;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	int			n = 0;

	Assert(!ks->hashed);
	if (!begin_scan(&scan, rel, ks, keys, min, BTGreaterEqualStrategyNumber, snapshot))
		return -1;
	scan.most_rows = (int64) most * UNSEEN_ROWS;
	while (n < most && next_key(&scan, values))
	{
		CHECK_FOR_INTERRUPTS();
		tessera_key_position(ks, values, &position);
		if (tessera_key_compare(ks, &position, max) >= 0)
			break;
		n += tessera_key_compare(ks, &position, min) >= 0 ? 1 : 0;
	}
	/* what was not looked at may be anything */
	if (scan.rows >= scan.most_rows)
		n = most;
	end_scan(&scan);
	return n;
}

bool
tessera_sample_range(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *range, Snapshot snapshot)
{
	bool		whole;

	begin_ranges(ks, range, 1);
	whole = add_by_index(rel, ks, keys, range, snapshot, true);
	tessera_key_sample_finish(range->sample);
	return whole;
}

TesseraKeySample *
tessera_sample_keys(int n, const TesseraSampledTable *tables, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max,
					int capacity, Snapshot snapshot)
{
	TesseraSampledRange range = {.min = *min, .max = *max, .capacity = capacity};

	begin_ranges(ks, &range, 1);
	for (int i = 0; i < n; i++)
		(void) add_by_index(tables[i].rel, ks, tables[i].keys, &range, snapshot, false);
	tessera_key_sample_finish(range.sample);
	return range.sample;
}

TesseraNextKey
tessera_next_key(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *after, const TesseraKeyBound *max,
				 Snapshot snapshot, TesseraKeyBound *next)
{
	KeyScan		scan;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	TesseraNextKey found = TESSERA_NEXT_NONE;

	Assert(!ks->hashed);
	/* of one column the index skips all rows of the key, however many they are */
	if (!begin_scan(&scan, rel, ks, keys, after, ks->ncolumns == 1 ? BTGreaterStrategyNumber : BTGreaterEqualStrategyNumber, snapshot))
		return TESSERA_NEXT_UNKNOWN;
	scan.most_rows = NEXT_ROWS;
	while (found == TESSERA_NEXT_NONE && next_key(&scan, values))
	{
		CHECK_FOR_INTERRUPTS();
		tessera_key_position(ks, values, &position);
		if (tessera_key_compare(ks, &position, after) <= 0)
			continue;
		if (tessera_key_compare(ks, &position, max) >= 0)
			break;
		*next = position;
		for (int i = 0; i < ks->nelements; i++)
			if (!ks->columns[i].typbyval)
				next->elements[i].value = ks->columns[i].typlen == -1 ? PointerGetDatum(PG_DETOAST_DATUM_COPY(position.elements[i].value)) :
					datumCopy(position.elements[i].value, false, ks->columns[i].typlen);
		found = TESSERA_NEXT_FOUND;
	}
	if (found == TESSERA_NEXT_NONE && scan.rows >= scan.most_rows)
		found = TESSERA_NEXT_UNKNOWN;
	end_scan(&scan);
	return found;
}


/* ---- random blocks ---- */

/* The next block of those that are read under one snapshot. */
static BlockNumber
next_of_part(void *arg, BlockNumber nblocks)
{
	BlockPart  *part = arg;
	BlockNumber block = part->left > 0 ? tessera_choose_block(&part->chooser, nblocks) : InvalidBlockNumber;

	part->left--;
	part->end = block == InvalidBlockNumber && part->left >= 0;
	return block;
}

static void
add_row(TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *ranges, int n, TupleTableSlot *slot)
{
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	int			i;

	for (int column = 0; column < ks->ncolumns; column++)
	{
		bool		isnull;

		values[column] = slot_getattr(slot, keys[column], &isnull);
		if (isnull)
			return;
	}
	tessera_key_position(ks, values, &position);
	i = range_of(ks, ranges, n, &position);
	if (i < 0)
		return;
	tessera_key_sample_add(ranges[i].sample, &position);
	ranges[i].bytes += tessera_stored_row_bytes(slot);
}

/* Reads so many blocks under a snapshot of its own. */
static void
read_part(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *ranges, int n, BlockPart *part)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera key sample", ALLOCSET_SMALL_SIZES);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TesseraBlockRows *rows;
	int64		seen = 0;

	PopActiveSnapshot();
	InvalidateCatalogSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	part->left = BLOCKS_PER_SNAPSHOT;
	rows = tessera_block_rows_begin(rel, GetActiveSnapshot(), next_of_part, part);
	while (tessera_block_rows_next(rows, slot))
	{
		MemoryContext old = MemoryContextSwitchTo(scratch);

		add_row(ks, keys, ranges, n, slot);
		MemoryContextSwitchTo(old);
		if (++seen % RESET_ROWS == 0)
			MemoryContextReset(scratch);
	}
	tessera_block_rows_end(rows);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(scratch);
}

bool
tessera_sample_hashes(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, TesseraSampledRange *ranges, int n, BlockNumber most)
{
	BlockPart	part = {.chooser = {.most = most}};
	bool		given_way = false;

	Assert(ks->hashed);
	begin_ranges(ks, ranges, n);
	while (!part.end && !given_way)
	{
		read_part(rel, ks, keys, ranges, n, &part);
		given_way = tessera_table_is_awaited(RelationGetRelid(rel));
	}
	for (int i = 0; i < n; i++)
	{
		tessera_key_sample_finish(ranges[i].sample);
		ranges[i].whole = part.chooser.length <= most;
		if (!ranges[i].whole)
			ranges[i].bytes *= (double) part.chooser.length / most;
	}
	return !given_way;
}
