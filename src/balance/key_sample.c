/*
 * key_sample.c
 *	  Samples the keys of a table by its key index (S87). See key_sample.h.
 *
 * The scan goes through no planner: what it reads is what lies on this shard, whether it owns it or not. Under range it starts at the range's first
 * value and stops behind its end; under hash, where the index is in another order, it reads the index whole.
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
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "balance/key_sample.h"
#include "catalog/key_index.h"
#include "common/version_compat.h"

#define RESET_ROWS 1024

typedef struct KeyScan
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	Buffer		vmbuffer;
	ScanDirection direction;
	bool		from_index;		/* index tuples carry the keys as they are */
	const AttrNumber *keys;
	int			nkeys;
} KeyScan;

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

/* Condition "first key column >= the range's first value"; false if there is no such value to begin at. */
static bool
start_condition(Relation index, TesseraKeySpace *ks, const TesseraKeyBound *min, ScanKey key)
{
	Oid			type = index->rd_opcintype[0];
	Oid			operator;

	if (ks->hashed || min->elements[0].kind != TESSERA_VALUE)
		return false;
	operator = get_opfamily_member(index->rd_opfamily[0], type, type, BTGreaterEqualStrategyNumber);
	if (!OidIsValid(operator))
		return false;
	ScanKeyEntryInitialize(key, 0, 1, BTGreaterEqualStrategyNumber, type, index->rd_indcollation[0], get_opcode(operator),
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

	while ((tid = index_getnext_tid(ks->scan, ks->direction)) != NULL)
	{
		if (ks->from_index && VM_ALL_VISIBLE(ks->rel, ItemPointerGetBlockNumber(tid), &ks->vmbuffer))
		{
			index_deform_tuple(ks->scan->xs_itup, ks->scan->xs_itupdesc, index_values, isnull);
			memcpy(values, index_values, sizeof(Datum) * ks->nkeys);
			return true;
		}
		if (!index_fetch_heap(ks->scan, ks->slot))
			continue;
		for (int i = 0; i < ks->nkeys; i++)
			values[i] = slot_getattr(ks->slot, ks->keys[i], &isnull[i]);
		return true;
	}
	return false;
}

/* Reads the keys in the range; under range in order, so that the first key behind the end ends the scan. */
static void
read_keys(KeyScan *scan, TesseraKeySample *sample, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	TesseraKeySpace *ks = sample->ks;
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera key sample", ALLOCSET_SMALL_SIZES);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	bool		behind = false;
	int64		rows = 0;

	while (!behind && next_key(scan, values))
	{
		MemoryContext old = MemoryContextSwitchTo(scratch);

		CHECK_FOR_INTERRUPTS();
		tessera_key_position(ks, values, &position);
		if (tessera_key_compare(ks, &position, max) >= 0)
			behind = !ks->hashed;
		else if (tessera_key_compare(ks, &position, min) >= 0)
			tessera_key_sample_add(sample, &position);
		MemoryContextSwitchTo(old);
		if (++rows % RESET_ROWS == 0)
			MemoryContextReset(scratch);
	}
	MemoryContextDelete(scratch);
}

TesseraKeySample *
tessera_sample_keys(Relation rel, TesseraKeySpace *ks, const AttrNumber *keys, const TesseraKeyBound *min, const TesseraKeyBound *max,
					int capacity, Snapshot snapshot)
{
	TesseraKeySample *sample = tessera_key_sample_create(ks, capacity);
	KeyScan		scan = {.rel = rel, .keys = keys, .nkeys = ks->ncolumns, .vmbuffer = InvalidBuffer};
	ScanKeyData condition;
	int			nconditions;
	Oid			index = tessera_key_index(rel, ks, keys, &scan.direction);

	if (!OidIsValid(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no index that begins with its shard key", RelationGetRelationName(rel)),
				 errhint("Create a btree index on the key columns.")));

	scan.index = index_open(index, AccessShareLock);
	scan.from_index = index_has_keys(scan.index, ks);
	scan.slot = table_slot_create(rel, NULL);
	nconditions = start_condition(scan.index, ks, min, &condition) ? 1 : 0;
	scan.scan = tessera_index_scan(rel, scan.index, snapshot, nconditions);
	scan.scan->xs_want_itup = scan.from_index;
	index_rescan(scan.scan, &condition, nconditions, NULL, 0);

	read_keys(&scan, sample, min, max);

	index_endscan(scan.scan);
	if (BufferIsValid(scan.vmbuffer))
		ReleaseBuffer(scan.vmbuffer);
	ExecDropSingleTupleTableSlot(scan.slot);
	index_close(scan.index, AccessShareLock);
	tessera_key_sample_finish(sample);
	return sample;
}
