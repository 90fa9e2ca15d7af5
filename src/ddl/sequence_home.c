/*
 * sequence_home.c
 *	  What the home of a sequence does for other nodes: draws blocks of values, sets it, says where it stands.
 *
 * The server's own functions do the work. Crash: no value comes again that left this node. The server logs a sequence ahead of its values, perhaps in
 * a transaction that is still open, which nothing flushes; so a block is flushed before it is answered.
 *
 * Locks: RowExclusiveLock on the sequence, as nextval, then an object's that no catalog has (TESSERA_SEQUENCE_BLOCK_CLASS): shared while a block is
 * drawn, exclusive for setval. No lock is held across a call.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "control/calls.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "common/durable.h"
#include "ddl/sequence.h"
#include "ddl/sequence_private.h"


#define REFRESH_MS 2000
#define FAIR_BLOCK 32			/* so many values a node gets in any case */
#define FAIR_SHARE 16			/* more than those: at most one in so many of what is left */

/* Not while values are drawn for another node, which would begin with the value set here. */
bool
tessera_sequence_set_here(Oid sequence, int64 value, bool called)
{
	LockRelationOid(sequence, RowExclusiveLock);	/* the same order as in tessera_serve_sequence_block */
	if (!tessera_sequence_begin(sequence, ExclusiveLock))
		return false;
	(void) DirectFunctionCall3(setval3_oid, ObjectIdGetDatum(sequence), Int64GetDatum(value), BoolGetDatum(called));
	tessera_sequence_end(sequence, ExclusiveLock);
	return true;
}

bool
tessera_sequence_read_here(Oid sequence, Datum *values, bool *nulls)
{
	Relation	rel = relation_open(sequence, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);
	bool		found = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	if (found)
	{
		slot_getallattrs(slot);
		memcpy(values, slot->tts_values, sizeof(Datum) * 3);
		memcpy(nulls, slot->tts_isnull, sizeof(bool) * 3);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	relation_close(rel, AccessShareLock);
	return found;
}

bool
tessera_sequence_read_current(Oid sequence, Datum *values, bool *nulls, bool *current)
{
	bool		found;

	*current = tessera_sequence_begin(sequence, AccessShareLock);
	found = tessera_sequence_read_here(sequence, values, nulls);
	if (*current)
		tessera_sequence_end(sequence, AccessShareLock);
	return found;
}

static Oid
sequence_of(const char *name, LOCKMODE mode, bool missing_ok)
{
	List	   *names = textToQualifiedNameList(cstring_to_text(name));

	return RangeVarGetRelid(makeRangeVarFromNameList(names), mode, missing_ok);
}

/* How many values one node may have at once, of those that the sequence has left behind this one: it must not take them from all others. */
static int32
fair_share(Oid sequence, int64 value, int32 n)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Form_pg_sequence form;
	uint64		left;
	uint64		step;

	if (!HeapTupleIsValid(tuple))
		return n;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	step = form->seqincrement > 0 ? (uint64) form->seqincrement : (uint64) 0 - (uint64) form->seqincrement;
	if (form->seqcycle)
		left = (uint64) form->seqmax - (uint64) form->seqmin;
	else
		left = form->seqincrement > 0 ? (uint64) form->seqmax - (uint64) value : (uint64) value - (uint64) form->seqmin;
	ReleaseSysCache(tuple);
	return (int32) Min((uint64) n, Max((uint64) FAIR_BLOCK, left / step / FAIR_SHARE));
}

/*
 * True if the sequence has a value after this one, unless others draw it first. Without this look, drawing beyond the end would raise an error and
 * lose the values that were drawn for the block.
 */
static bool
has_next(Oid sequence, int64 value)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Form_pg_sequence form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	result = form->seqcycle ||
		(!pg_add_s64_overflow(value, form->seqincrement, &value) && value <= form->seqmax && value >= form->seqmin);
	ReleaseSysCache(tuple);
	return result;
}

/* The caller may know of a hand-over that this node has not heard of. */
static bool
begin_or_refresh(Oid sequence, LOCKMODE mode)
{
	return tessera_sequence_begin(sequence, mode) || (tessera_routing_refresh(REFRESH_MS) && tessera_sequence_begin(sequence, mode));
}

/* Draws n values (fewer at the end of the sequence) as runs {first, step, count, ...} */
ArrayType *
tessera_serve_sequence_block(const TesseraSequenceBlockArgs *args)
{
	/* nextval's lock first: a caller that waits for an ALTER SEQUENCE must not hold the other one, which that transaction's setval needs */
	Oid			sequence = sequence_of(args->sequence, RowExclusiveLock, false);
	int32		n = args->n;
	Datum		values[TESSERA_POOL_RUNS * 3];
	TesseraRun64 run = {0};
	int			nvalues = 0;
	int64		value = 0;

	/* another transaction may draw from what an open one has logged: the values leave this node only when that is flushed */
	tessera_commit_all_durably();
	if (!begin_or_refresh(sequence, ShareLock))
		return NULL;
	for (int i = 0; i < n && (i == 0 || has_next(sequence, value)); i++)
	{
		int64		next = nextval_internal(sequence, false);

		CHECK_FOR_INTERRUPTS();
		if (i == 0)
			n = fair_share(sequence, next, n);
		if (run.count == 1 && !pg_sub_s64_overflow(next, value, &run.step))
			run.count = 2;
		else if (run.count > 1 && (int64) ((uint64) value + (uint64) run.step) == next)
			run.count++;
		else
		{
			if (run.count > 0)
			{
				values[nvalues++] = Int64GetDatum(run.first);
				values[nvalues++] = Int64GetDatum(run.step);
				values[nvalues++] = Int64GetDatum(run.count);
			}
			run.first = next;
			run.step = 0;
			run.count = 1;
			if (nvalues + 3 >= lengthof(values))
				n = i + 1;		/* the last run there is room for */
		}
		value = next;
	}
	tessera_sequence_end(sequence, ShareLock);
	values[nvalues++] = Int64GetDatum(run.first);
	values[nvalues++] = Int64GetDatum(run.step);
	values[nvalues++] = Int64GetDatum(run.count);
	return construct_array(values, nvalues, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

bool
tessera_serve_sequence_set(const TesseraSequenceSetArgs *args)
{
	Oid			sequence = sequence_of(args->sequence, NoLock, false);

	return tessera_sequence_set_here(sequence, args->value, args->is_called) ||
		(tessera_routing_refresh(REFRESH_MS) && tessera_sequence_set_here(sequence, args->value, args->is_called));
}

/* 'last_value log_cnt is_called' as they stand on this node, whichever node is the home, and whether it is this one, as far as it knows */
const char *
tessera_serve_sequence_state(const TesseraSequenceStateArgs *args)
{
	Relation	rel = tessera_sequence_open(sequence_of(args->sequence, NoLock, false), AccessShareLock);
	Datum		values[3];
	bool		nulls[3];
	bool		current;
	bool		found = tessera_sequence_read_current(RelationGetRelid(rel), values, nulls, &current);

	relation_close(rel, AccessShareLock);
	if (!found)
		return NULL;
	return psprintf(INT64_FORMAT " " INT64_FORMAT " %d %d", DatumGetInt64(values[0]), DatumGetInt64(values[1]), DatumGetBool(values[2]) ? 1 : 0,
					current ? 1 : 0);
}

/* The pool of this node is emptied */
void
tessera_serve_sequence_forget(const TesseraSequenceForgetArgs *args)
{
	Oid			sequence = sequence_of(args->sequence, NoLock, true);

	if (OidIsValid(sequence))
		tessera_pool_forget(sequence);
}
