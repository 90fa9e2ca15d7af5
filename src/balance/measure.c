/*
 * measure.c
 *	  Sizes of this shard's chunks; see measure.h.
 *
 * Of each table so many blocks are read at random, and what is found in them is scaled up by the table's length: dead rows, free space and rows that
 * this shard does not own do not count. Rows of a block often share a chunk, so it is the number of blocks that says how much a chunk's figure is
 * worth.
 *
 * Locks: AccessShareLock on each table, if it is free, to the end of the transaction. Memory: a scratch context for comparisons, emptied block by
 * block. Nothing is kept.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "balance/give_way.h"
#include "balance/measure.h"
#include "load/block_rows.h"

#define MEASURED_BLOCKS 2000
#define LOOK_BLOCKS 64			/* after so many: does anybody wait for the table? */

/* Rows found in blocks of one table. */
typedef struct Found
{
	const TesseraRouting *routing;
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	const TesseraTable *table;
	double	   *bytes;			/* of each chunk, in the blocks read */
	BlockNumber *last;			/* of each chunk: last block in which a row of it was */
	TesseraMeasure *measure;
} Found;

static void
count_row(Found *found, TupleTableSlot *slot)
{
	BlockNumber block = ItemPointerGetBlockNumber(&slot->tts_tid);
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;
	TesseraChunk chunk;
	int			i;

	for (int column = 0; column < found->table->nkeys; column++)
	{
		bool		isnull;

		values[column] = slot_getattr(slot, found->table->keys[column], &isnull);
		if (isnull)
			return;
	}
	tessera_key_position(found->ks, values, &position);
	i = tessera_routing_find_chunk(found->routing, found->group, &position);
	tessera_routing_chunk(found->routing, found->group, i, &chunk);
	if (chunk.node_id != found->routing->self)
		return;
	found->bytes[i] += tessera_stored_row_bytes(slot);
	if (found->last[i] != block)
		found->measure->blocks[i]++;
	found->last[i] = block;
}

/* False: somebody waits for the table. */
static bool
read_blocks(Found *found, Relation rel, TesseraBlockChooser *chooser)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera measure row", ALLOCSET_SMALL_SIZES);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TesseraBlockRows *rows = tessera_block_rows_begin(rel, GetActiveSnapshot(), tessera_choose_block, chooser);
	BlockNumber block = InvalidBlockNumber;
	bool		given_way = false;

	while (!given_way && tessera_block_rows_next(rows, slot))
	{
		MemoryContext before;

		if (ItemPointerGetBlockNumber(&slot->tts_tid) != block)
		{
			MemoryContextReset(scratch);
			given_way = chooser->read % LOOK_BLOCKS == 0 && tessera_table_is_awaited(RelationGetRelid(rel));
		}
		block = ItemPointerGetBlockNumber(&slot->tts_tid);
		before = MemoryContextSwitchTo(scratch);
		count_row(found, slot);
		MemoryContextSwitchTo(before);
	}
	tessera_block_rows_end(rows);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(scratch);
	return !given_way;
}

static void
measure_table(Found *found, Relation rel, int nchunks)
{
	TesseraBlockChooser chooser = {.most = MEASURED_BLOCKS};
	double		scale;

	memset(found->bytes, 0, sizeof(double) * nchunks);
	memset(found->last, 0xff, sizeof(BlockNumber) * nchunks);	/* InvalidBlockNumber */
	if (!read_blocks(found, rel, &chooser))
	{
		found->measure->skipped = true;
		return;
	}
	if (chooser.read == 0)
		return;
	if (chooser.read < chooser.length)
		found->measure->complete = false;
	scale = (double) chooser.length / chooser.read;
	for (int i = 0; i < nchunks; i++)
	{
		found->measure->bytes[i] += found->bytes[i] * scale;
		found->measure->total += found->bytes[i] * scale;
	}
}

void
tessera_measure_group(const TesseraRouting *routing, const TesseraGroup *group, TesseraMeasure *measure)
{
	int			nchunks = tessera_routing_nchunks(routing, group);
	Found		found = {.routing = routing, .group = group, .ks = tessera_group_keyspace(routing, group), .measure = measure};

	measure->complete = true;
	measure->skipped = false;
	measure->total = 0;
	measure->bytes = MemoryContextAllocExtended(CurrentMemoryContext, sizeof(double) * Max(nchunks, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	measure->blocks = MemoryContextAllocExtended(CurrentMemoryContext, sizeof(int32) * Max(nchunks, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	found.bytes = MemoryContextAllocHuge(CurrentMemoryContext, sizeof(double) * Max(nchunks, 1));
	found.last = MemoryContextAllocHuge(CurrentMemoryContext, sizeof(BlockNumber) * Max(nchunks, 1));
	for (int i = 0; i < routing->ntables; i++)
	{
		Relation	rel;

		found.table = tessera_routing_table_at(routing, i);
		if (found.table->group != group->index || !OidIsValid(found.table->relid))
			continue;
		if (!ConditionalLockRelationOid(found.table->relid, AccessShareLock))
		{
			measure->skipped = true;
			continue;
		}
		rel = try_relation_open(found.table->relid, NoLock);
		if (rel == NULL)
			continue;
		if (rel->rd_rel->relkind == RELKIND_RELATION)
			measure_table(&found, rel, nchunks);
		relation_close(rel, NoLock);
	}
	pfree(found.bytes);
	pfree(found.last);
}
