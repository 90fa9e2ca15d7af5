/*
 * written_rows.c
 *	  Which rows are sampled, and what they stand for; see written_rows.h.
 *
 * Plans: the rows that come out of the plan below a ModifyTable node are counted one by one, each with the average width of a row of its table. When
 * a sample is due, the row at hand is looked at: it stands for so many rows like it. An INSERT's row has its key and all columns; that of an UPDATE
 * or DELETE names the old row, which is read. What a MERGE does with a row is seen when it asks for the next one.
 * COPY: nobody sees its rows go by. Afterwards some blocks are chosen of those by which the table has grown, and one own row in each of them.
 *
 * Rows are counted when they are written, not when that is committed: the splitter measures before it acts.
 *
 * Memory: a watch lives in its executor's context, and leaves the list of watches with it, also by an error. Average widths are kept by table, for
 * the session: a wrong one costs precision, not truth. Locks: none but those of the statement. Nothing is left by a crash.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "nodes/nodeFuncs.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relation.h"
#include "load/block_rows.h"
#include "load/load_sample.h"
#include "load/written_rows.h"

#define FIRST_WIDTH 128			/* bytes of a row of a table of which none was looked at yet */
#define COPY_SAMPLES 64			/* of one COPY at most */

typedef struct TableWidth
{
	Oid			relid;			/* key */
	double		width;			/* of a row, in bytes */
	bool		guessed;		/* no row was looked at */
} TableWidth;

/* A ModifyTable node whose input is watched. */
typedef struct Watch
{
	dlist_node	node;
	PlanState  *input;
	ExecProcNodeMtd next;		/* the input's own function */
	ModifyTableState *modify;
	TableWidth *width;
	MemoryContextCallback forget;
	/* MERGE: a sample that waits for what becomes of its row */
	double		rows;			/* that it stands for; 0: none waits */
	ItemPointerData old;		/* invalid: no row was matched */
	double		old_bytes;
} Watch;

static dlist_head watches = DLIST_STATIC_INIT(watches);
static HTAB *widths = NULL;


/* ---- samples ---- */

static TableWidth *
width_of(Oid relid)
{
	TableWidth *width;
	bool		found;

	if (widths == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(TableWidth)};

		widths = hash_create("tessera row widths", 64, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	width = hash_search(widths, &relid, HASH_ENTER, &found);
	if (!found)
	{
		width->width = FIRST_WIDTH;
		width->guessed = true;
	}
	return width;
}

/* Takes a row's width into the average. */
static void
learn(TableWidth *width, double bytes)
{
	width->width = Max(width->guessed ? bytes : width->width + (bytes - width->width) / 8, 1);
	width->guessed = false;
}

/* Puts a sample of a row, whose key columns are in the slot; bytes: by which all the rows that it stands for have grown. */
static void
put_row(Relation rel, TupleTableSlot *slot, double bytes)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, RelationGetRelid(rel)) : NULL;
	const TesseraGroup *group;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeyBound position;

	if (table == NULL || table->group < 0)
		return;
	group = tessera_routing_group(routing, table->group);
	for (int i = 0; i < table->nkeys; i++)
	{
		bool		isnull;

		values[i] = slot_getattr(slot, table->keys[i], &isnull);
		if (isnull)
			return;				/* it will be refused */
	}
	tessera_key_position(tessera_group_keyspace(routing, group), values, &position);
	tessera_load_put(routing, group, &position, bytes, 0, 0);
}

static bool
is_sharded(Oid relid)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;

	return table != NULL && table->group >= 0;
}


/* ---- plans ---- */

static Watch *
find_watch(PlanState *input)
{
	dlist_iter	iter;

	dlist_foreach(iter, &watches)
	{
		Watch	   *watch = dlist_container(Watch, node, iter.cur);

		if (watch->input == input)
			return watch;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg_internal("the input of a ModifyTable node is not watched")));
	return NULL;
}

static Relation
relation_of(const Watch *watch)
{
	return watch->modify->resultRelInfo[0].ri_RelationDesc;
}

/* The row that the input's row names by its ctid; false: none, or it cannot be read. */
static bool
find_old(Watch *watch, TupleTableSlot *slot, ItemPointer tid, TupleTableSlot *old)
{
	AttrNumber	column = watch->modify->resultRelInfo[0].ri_RowIdAttNo;
	Datum		value;
	bool		isnull = true;

	ItemPointerSetInvalid(tid);
	if (!AttributeNumberIsValid(column))
		return false;
	value = slot_getattr(slot, column, &isnull);
	if (isnull)
		return false;
	*tid = *(ItemPointer) DatumGetPointer(value);
	return table_tuple_fetch_row_version(relation_of(watch), tid, SnapshotAny, old);
}

/* By how many bytes the UPDATE makes a row grow. */
static double
growth_of_update(Watch *watch, TupleTableSlot *slot, TupleTableSlot *old)
{
	ModifyTable *plan = (ModifyTable *) watch->modify->ps.plan;
	List	   *columns = linitial(plan->updateColnosLists);
	ListCell   *cell;
	double		growth = 0;

	foreach(cell, columns)
	{
		int			column = lfirst_int(cell);
		Form_pg_attribute attribute = TupleDescAttr(old->tts_tupleDescriptor, column - 1);
		bool		isnull;
		Datum		value = slot_getattr(slot, foreach_current_index(cell) + 1, &isnull);

		growth += tessera_value_bytes(attribute, value, isnull);
		value = slot_getattr(old, column, &isnull);
		growth -= tessera_value_bytes(attribute, value, isnull);
	}
	return growth;
}

static void
sample_insert(Watch *watch, TupleTableSlot *slot, double rows)
{
	double		bytes = tessera_new_row_bytes(slot, RelationGetDescr(relation_of(watch)));

	learn(watch->width, bytes);
	put_row(relation_of(watch), slot, rows * bytes);
}

/* UPDATE, DELETE; of a MERGE it is only noted. */
static void
sample_old(Watch *watch, TupleTableSlot *slot, double rows)
{
	TupleTableSlot *old = table_slot_create(relation_of(watch), NULL);
	ItemPointerData tid;
	bool		found = find_old(watch, slot, &tid, old);
	double		bytes = found ? tessera_stored_row_bytes(old) : 0;

	if (found)
		learn(watch->width, bytes);
	if (watch->modify->operation == CMD_MERGE)
	{
		watch->rows = rows;
		watch->old = tid;
		watch->old_bytes = bytes;
	}
	else if (found && watch->modify->operation == CMD_UPDATE)
		put_row(relation_of(watch), old, rows * growth_of_update(watch, slot, old));
	else if (found)
		put_row(relation_of(watch), old, -rows * bytes);
	ExecDropSingleTupleTableSlot(old);
}

static BlockNumber
next_of_list(void *arg, BlockNumber nblocks)
{
	BlockNumber **next = arg;
	BlockNumber block = *(*next);

	if (block == InvalidBlockNumber || block >= nblocks)
		return InvalidBlockNumber;
	(*next)++;
	return block;
}

/* The last row in the block that this transaction has written; false: there is none. */
static bool
find_own(Relation rel, BlockNumber block, TupleTableSlot *found)
{
	BlockNumber blocks[] = {block, InvalidBlockNumber};
	BlockNumber *next = blocks;
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TesseraBlockRows *rows = tessera_block_rows_begin(rel, SnapshotSelf, next_of_list, &next);
	bool		any = false;

	while (tessera_block_rows_next(rows, slot))
	{
		bool		isnull;
		TransactionId xmin = DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull));

		if (!TransactionIdIsCurrentTransactionId(xmin))
			continue;
		ExecCopySlot(found, slot);
		any = true;
	}
	tessera_block_rows_end(rows);
	ExecDropSingleTupleTableSlot(slot);
	return any;
}

/* The newest version of a row. */
static bool
find_new(Relation rel, ItemPointer tid, TupleTableSlot *found)
{
	TableScanDesc scan = table_beginscan_tid(rel, SnapshotSelf);

	table_tuple_get_latest_tid(scan, tid);
	table_endscan(scan);
	return table_tuple_fetch_row_version(rel, tid, SnapshotSelf, found);
}

/* What a MERGE has done with the row that was sampled. */
static void
sample_merged(Watch *watch)
{
	Relation	rel = relation_of(watch);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	double		rows = watch->rows;
	ItemPointerData tid = watch->old;

	watch->rows = 0;
	if (!ItemPointerIsValid(&tid))
	{
		BlockNumber block = RelationGetTargetBlock(rel);

		if (block != InvalidBlockNumber && find_own(rel, block, slot))
			put_row(rel, slot, rows * tessera_stored_row_bytes(slot));
	}
	else if (find_new(rel, &tid, slot))
		put_row(rel, slot, rows * (tessera_stored_row_bytes(slot) - watch->old_bytes));
	else if (table_tuple_fetch_row_version(rel, &tid, SnapshotAny, slot))
		put_row(rel, slot, -rows * watch->old_bytes);
	ExecDropSingleTupleTableSlot(slot);
}

/* The input's next row, on its way to the ModifyTable node. */
static TupleTableSlot *
next_row(PlanState *input)
{
	Watch	   *watch = find_watch(input);
	TupleTableSlot *slot;
	double		bytes;

	if (watch->rows > 0)
		sample_merged(watch);
	slot = watch->next(input);
	if (TupIsNull(slot))
		return slot;
	/* a short session would count all its rows by the guess */
	if (unlikely(watch->width->guessed) && watch->modify->operation == CMD_INSERT)
		learn(watch->width, tessera_new_row_bytes(slot, RelationGetDescr(relation_of(watch))));
	bytes = tessera_load_count_bytes(watch->width->width);
	if (likely(bytes == 0))
		return slot;
	if (watch->modify->operation == CMD_INSERT)
		sample_insert(watch, slot, bytes / watch->width->width);
	else
		sample_old(watch, slot, bytes / watch->width->width);
	return slot;
}

static void
forget(void *watch)
{
	dlist_delete(&((Watch *) watch)->node);
}

static bool
watch_node(PlanState *node, void *query)
{
	ModifyTableState *modify = (ModifyTableState *) node;
	Relation	rel;
	Watch	   *watch;

	if (node == NULL)
		return false;
	if (!IsA(node, ModifyTableState))
		return planstate_tree_walker(node, watch_node, query);
	rel = modify->resultRelInfo[0].ri_RelationDesc;
	/* a WITH query is come by twice: below the plan that reads it, and as a plan of the statement's */
	if (outerPlanState(modify) == NULL || outerPlanState(modify)->ExecProcNodeReal == next_row ||
		list_length(((ModifyTable *) node->plan)->resultRelations) != 1 || !is_sharded(RelationGetRelid(rel)) ||
		(rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE && modify->operation != CMD_INSERT))
		return planstate_tree_walker(node, watch_node, query);
	watch = MemoryContextAllocZero(((QueryDesc *) query)->estate->es_query_cxt, sizeof(Watch));
	watch->input = outerPlanState(modify);
	watch->modify = modify;
	watch->width = width_of(RelationGetRelid(rel));
	watch->next = watch->input->ExecProcNodeReal;
	watch->input->ExecProcNodeReal = next_row;
	dlist_push_head(&watches, &watch->node);
	watch->forget.func = forget;
	watch->forget.arg = watch;
	MemoryContextRegisterResetCallback(((QueryDesc *) query)->estate->es_query_cxt, &watch->forget);
	return planstate_tree_walker(node, watch_node, query);
}

void
tessera_watch_writes(QueryDesc *query)
{
	PlannedStmt *plan = query->plannedstmt;
	ListCell   *cell;

	if (plan->resultRelations == NIL)
		return;
	(void) watch_node(query->planstate, query);
	foreach(cell, query->estate->es_subplanstates)
		(void) watch_node(lfirst(cell), query);
}


/* ---- migrations ---- */

void
tessera_note_written(Relation rel, TupleTableSlot *slot)
{
	TableWidth *width;
	double		bytes;
	double		row;

	if (!tessera_load_sampled())
		return;
	width = width_of(RelationGetRelid(rel));
	bytes = tessera_load_count_bytes(width->width);
	if (bytes == 0)
		return;
	bytes /= width->width;
	row = tessera_new_row_bytes(slot, RelationGetDescr(rel));
	learn(width, row);
	put_row(rel, slot, bytes * row);
}


/* ---- COPY ---- */

static void
begin_partitions(TesseraCopyWatch *watch, Relation rel)
{
	List	   *partitions = tessera_partitions(RelationGetRelid(rel), AccessShareLock);
	ListCell   *cell;

	watch->partitions = palloc(sizeof(TesseraCopyWatch) * Max(list_length(partitions), 1));
	foreach(cell, partitions)
	{
		Relation	partition = table_open(lfirst_oid(cell), NoLock);

		if (partition->rd_rel->relkind == RELKIND_RELATION)
			watch->partitions[watch->npartitions++] = (TesseraCopyWatch) {.rel = partition, .before = RelationGetNumberOfBlocks(partition)};
		else
			table_close(partition, NoLock);
	}
}

void
tessera_copy_watch_begin(TesseraCopyWatch *watch, Relation rel)
{
	memset(watch, 0, sizeof(*watch));
	if (!tessera_load_sampled() || !is_sharded(RelationGetRelid(rel)))
		return;
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		begin_partitions(watch, rel);
	else if (rel->rd_rel->relkind == RELKIND_RELATION)
	{
		watch->rel = rel;
		watch->before = RelationGetNumberOfBlocks(rel);
	}
}

static int
compare_blocks(const void *a, const void *b)
{
	BlockNumber left = *(const BlockNumber *) a;
	BlockNumber right = *(const BlockNumber *) b;

	return left < right ? -1 : left > right ? 1 : 0;
}

/* Chooses up to n blocks of those that are new, in their order; the block written last, if none is. Returns how many. */
static int
choose_blocks(TesseraCopyWatch *watch, int n, BlockNumber *blocks)
{
	BlockNumber after = RelationGetNumberOfBlocks(watch->rel);
	int			distinct = 0;

	if (after <= watch->before)
	{
		blocks[0] = RelationGetTargetBlock(watch->rel);
		return blocks[0] == InvalidBlockNumber || blocks[0] >= after ? 0 : 1;
	}
	for (int i = 0; i < n; i++)
		blocks[i] = watch->before + (BlockNumber) pg_prng_uint64_range(&pg_global_prng_state, 0, after - watch->before - 1);
	qsort(blocks, n, sizeof(BlockNumber), compare_blocks);
	for (int i = 0; i < n; i++)
		if (distinct == 0 || blocks[i] != blocks[distinct - 1])
			blocks[distinct++] = blocks[i];
	return distinct;
}

static void
sample_copied(TesseraCopyWatch *watch, uint64 rows)
{
	TupleTableSlot *slots[COPY_SAMPLES];
	BlockNumber blocks[COPY_SAMPLES];
	TableWidth *width;
	double		bytes;
	int			n;
	int			found = 0;

	if (watch->rel == NULL || rows == 0)
		return;
	width = width_of(RelationGetRelid(watch->rel));
	bytes = tessera_load_count_bytes(rows * width->width);
	if (bytes == 0)
		return;
	n = choose_blocks(watch, (int) Min(bytes / TESSERA_LOAD_STEP * 16 + 1, COPY_SAMPLES), blocks);
	bytes /= width->width;		/* rows that all samples stand for */
	for (int i = 0; i < n; i++)
	{
		slots[found] = table_slot_create(watch->rel, NULL);
		if (find_own(watch->rel, blocks[i], slots[found]))
			found++;
		else
			ExecDropSingleTupleTableSlot(slots[found]);
	}
	for (int i = 0; i < found; i++)
	{
		double		row = tessera_stored_row_bytes(slots[i]);

		learn(width, row);
		put_row(watch->rel, slots[i], bytes / found * row);
		ExecDropSingleTupleTableSlot(slots[i]);
	}
}

/* The rows went to partitions about as these have grown; where none has, to any. */
static void
end_partitions(TesseraCopyWatch *watch, uint64 rows)
{
	double	   *growth = palloc(sizeof(double) * Max(watch->npartitions, 1));
	double		total = 0;

	for (int i = 0; i < watch->npartitions; i++)
		total += growth[i] = Max((double) RelationGetNumberOfBlocks(watch->partitions[i].rel) - watch->partitions[i].before, 0);
	for (int i = 0; i < watch->npartitions; i++)
	{
		sample_copied(&watch->partitions[i], (uint64) (rows * (total > 0 ? growth[i] / total : 1.0 / watch->npartitions)));
		table_close(watch->partitions[i].rel, NoLock);
	}
}

void
tessera_copy_watch_end(TesseraCopyWatch *watch, uint64 rows)
{
	if (watch->partitions != NULL)
		end_partitions(watch, rows);
	else
		sample_copied(watch, rows);
}
