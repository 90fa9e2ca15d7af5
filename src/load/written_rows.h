/*
 * written_rows.h
 *	  Samples of the rows that are written to sharded tables on this shard, by whatever way: plans, COPY, migrations.
 */
#ifndef TESSERA_WRITTEN_ROWS_H
#define TESSERA_WRITTEN_ROWS_H

#include "postgres.h"
#include "executor/execdesc.h"
#include "executor/tuptable.h"
#include "utils/rel.h"

/* After ExecutorStart of a plan: its INSERT, UPDATE, DELETE and MERGE of sharded tables are watched until it ends. Where tessera_load_sampled. */
extern void tessera_watch_writes(QueryDesc *query);

/* A row has been written, or is about to be, outside of a plan. */
extern void tessera_note_written(Relation rel, TupleTableSlot *slot);

/* COPY FROM into a table of this shard, by the server: before its first row, and after its last. */
typedef struct TesseraCopyWatch
{
	Relation	rel;			/* NULL: the table is not sharded, or nothing is sampled */
	BlockNumber before;			/* length of the table */
	int			npartitions;	/* of a partitioned table: one for each partition that has rows */
	struct TesseraCopyWatch *partitions;
} TesseraCopyWatch;

extern void tessera_copy_watch_begin(TesseraCopyWatch *watch, Relation rel);
extern void tessera_copy_watch_end(TesseraCopyWatch *watch, uint64 rows);

#endif							/* TESSERA_WRITTEN_ROWS_H */
