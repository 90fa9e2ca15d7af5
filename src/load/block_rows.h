/*
 * block_rows.h
 *	  The rows of chosen blocks of a table, and how many bytes a row takes.
 */
#ifndef TESSERA_BLOCK_ROWS_H
#define TESSERA_BLOCK_ROWS_H

#include "postgres.h"
#include "executor/tuptable.h"
#include "storage/block.h"
#include "utils/rel.h"
#include "utils/sampling.h"
#include "utils/snapshot.h"

typedef struct TesseraBlockRows TesseraBlockRows;

/* The next block to read, of a table of so many; InvalidBlockNumber: no more. */
typedef BlockNumber (*TesseraNextBlock) (void *arg, BlockNumber nblocks);

/* A TesseraNextBlock whose arg is a chooser: random blocks, in their order, no more than `most`; all if there are not more. Begins as {.most = n}. */
typedef struct TesseraBlockChooser
{
	BlockNumber most;
	bool		begun;
	BlockNumber length;			/* of the table, when it began */
	BlockNumber read;			/* blocks chosen so far */
	BlockSamplerData sampler;
} TesseraBlockChooser;

extern BlockNumber tessera_choose_block(void *chooser, BlockNumber nblocks);

/* Reads the rows that the snapshot sees, in the table, which the caller has locked. In the current context. */
extern TesseraBlockRows *tessera_block_rows_begin(Relation rel, Snapshot snapshot, TesseraNextBlock next, void *arg);

/* The next row (slot: of the table, by table_slot_create); false at the end. Interruptible. */
extern bool tessera_block_rows_next(TesseraBlockRows *rows, TupleTableSlot *slot);

extern void tessera_block_rows_end(TesseraBlockRows *rows);

/* What a row takes in the table, in bytes, with what it has in TOAST. */
extern double tessera_stored_row_bytes(TupleTableSlot *slot);

/* What a new row of the first natts columns of the slot will take; what TOAST compresses counts as it is. */
extern double tessera_new_row_bytes(TupleTableSlot *slot, TupleDesc desc);

/* A value's part of it. */
extern double tessera_value_bytes(Form_pg_attribute attribute, Datum value, bool isnull);

#endif							/* TESSERA_BLOCK_ROWS_H */
