/*
 * block_rows.c
 *	  Rows of chosen blocks, by the table AM's scan for TABLESAMPLE; see block_rows.h.
 *
 * Nothing is kept. Locks: the caller's on the table, pins as any scan.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/tsmapi.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "utils/snapmgr.h"

#include "common/version_compat.h"
#include "load/block_rows.h"

struct TesseraBlockRows
{
	SampleScanState state;		/* what the table AM looks at: the method, and this struct as its state */
	TsmRoutine	method;
	TableScanDesc scan;
	TesseraNextBlock next;
	void	   *arg;
	OffsetNumber offset;		/* last one given of the block at hand */
	bool		in_block;
};

static BlockNumber
next_block(SampleScanState *state, BlockNumber nblocks)
{
	TesseraBlockRows *rows = state->tsm_state;

	rows->offset = InvalidOffsetNumber;
	return rows->next(rows->arg, nblocks);
}

static OffsetNumber
next_tuple(SampleScanState *state, BlockNumber block, OffsetNumber max)
{
	TesseraBlockRows *rows = state->tsm_state;

	if (rows->offset >= max)
		return InvalidOffsetNumber;
	return ++rows->offset;
}

TesseraBlockRows *
tessera_block_rows_begin(Relation rel, Snapshot snapshot, TesseraNextBlock next, void *arg)
{
	TesseraBlockRows *rows = palloc0(sizeof(TesseraBlockRows));

	NodeSetTag(&rows->state, T_SampleScanState);
	rows->method.type = T_TsmRoutine;
	rows->method.NextSampleBlock = next_block;
	rows->method.NextSampleTuple = next_tuple;
	rows->state.tsmroutine = &rows->method;
	rows->state.tsm_state = rows;
	rows->next = next;
	rows->arg = arg;
	rows->scan = table_beginscan_sampling(rel, snapshot, 0, NULL, true, false, IsMVCCSnapshot(snapshot));
	return rows;
}

bool
tessera_block_rows_next(TesseraBlockRows *rows, TupleTableSlot *slot)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!rows->in_block && !table_scan_sample_next_block(rows->scan, &rows->state))
			return false;
		rows->in_block = table_scan_sample_next_tuple(rows->scan, &rows->state, slot);
		if (rows->in_block)
			return true;
	}
}

void
tessera_block_rows_end(TesseraBlockRows *rows)
{
	table_endscan(rows->scan);
	pfree(rows);
}

BlockNumber
tessera_choose_block(void *arg, BlockNumber nblocks)
{
	TesseraBlockChooser *chooser = arg;
	BlockNumber block;

	if (!chooser->begun)
	{
		chooser->begun = true;
		chooser->length = nblocks;
		(void) BlockSampler_Init(&chooser->sampler, nblocks, chooser->most, pg_prng_uint32(&pg_global_prng_state));
	}
	if (!BlockSampler_HasMore(&chooser->sampler))
		return InvalidBlockNumber;
	block = BlockSampler_Next(&chooser->sampler);
	chooser->read++;
	return block < nblocks ? block : InvalidBlockNumber;	/* the table has become shorter */
}


/* ---- bytes ---- */

static double
toasted_bytes(HeapTuple tuple, TupleTableSlot *slot)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	double		bytes = 0;

	if (!HeapTupleHasExternal(tuple))
		return 0;
	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		struct varatt_external pointer;

		if (TupleDescAttr(desc, i)->attlen != -1 || slot->tts_isnull[i] || !VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(slot->tts_values[i])))
			continue;
		VARATT_EXTERNAL_GET_POINTER(pointer, DatumGetPointer(slot->tts_values[i]));
		bytes += VARATT_EXTERNAL_GET_EXTSIZE(pointer);
	}
	return bytes;
}

double
tessera_stored_row_bytes(TupleTableSlot *slot)
{
	bool		free;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, &free);
	double		bytes = MAXALIGN(tuple->t_len) + sizeof(ItemIdData) + toasted_bytes(tuple, slot);

	if (free)
		heap_freetuple(tuple);
	return bytes;
}

double
tessera_value_bytes(Form_pg_attribute attribute, Datum value, bool isnull)
{
	if (isnull)
		return 0;
	if (attribute->attlen > 0)
		return attribute->attlen;
	if (attribute->attlen == -2)
		return strlen(DatumGetCString(value)) + 1;
	return toast_datum_size(value);
}

double
tessera_new_row_bytes(TupleTableSlot *slot, TupleDesc desc)
{
	double		bytes = 0;

	slot_getsomeattrs(slot, Min(desc->natts, slot->tts_tupleDescriptor->natts));
	for (int i = 0; i < desc->natts && i < slot->tts_tupleDescriptor->natts; i++)
		bytes += tessera_value_bytes(TupleDescAttr(desc, i), slot->tts_values[i], slot->tts_isnull[i]);
	return MAXALIGN(SizeofHeapTupleHeader) + MAXALIGN((Size) bytes) + sizeof(ItemIdData);
}
