/*
 * chunk_rows.c
 *	  Rows of tessera.chunk on the config node: find them, put pieces into a chunk's place. Straight on the table, without SQL: the commit of a move
 *	  does it for each chunk while statements wait at the move's gate.
 *
 * Who calls holds the group's row lock (tessera_group_lock), so nobody else changes the rows; the newest ones are read, own changes included.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "catalog/relation.h"
#include "common/text.h"
#include "config/chunks_private.h"


/* Reading */

static Datum
column(HeapTuple tuple, TupleDesc desc, AttrNumber number)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, number, desc, &isnull);

	Assert(!isnull);
	return value;
}

/* Copies a row into the current memory context. */
static void
chunk_of_row(HeapTuple tuple, TupleDesc desc, TesseraKeySpace *ks, TesseraChunkRow *chunk)
{
	chunk->min = (TesseraBound *) PG_DETOAST_DATUM_COPY(column(tuple, desc, Anum_chunk_min));
	chunk->max = (TesseraBound *) PG_DETOAST_DATUM_COPY(column(tuple, desc, Anum_chunk_max));
	tessera_key_from_bound(ks, chunk->min, &chunk->key_min);
	tessera_key_from_bound(ks, chunk->max, &chunk->key_max);
	chunk->node_id = DatumGetInt32(column(tuple, desc, Anum_chunk_node_id));
	chunk->major = DatumGetInt64(column(tuple, desc, Anum_chunk_major));
	chunk->minor = DatumGetInt64(column(tuple, desc, Anum_chunk_minor));
	chunk->jumbo = DatumGetBool(column(tuple, desc, Anum_chunk_jumbo));
}

/* A copy of the row of the chunk that begins at min; NULL: none does. */
static HeapTuple
find_row(Relation rel, const pg_uuid_t *group_id, const TesseraBound *min)
{
	Oid			bound = TupleDescAttr(RelationGetDescr(rel), Anum_chunk_min - 1)->atttypid;
	Snapshot	snapshot = tessera_catalog_snapshot();
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_chunk_group_id, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(group_id));
	ScanKeyInit(&keys[1], Anum_chunk_min, BTEqualStrategyNumber, lookup_type_cache(bound, TYPECACHE_EQ_OPR_FINFO)->eq_opr_finfo.fn_oid,
				PointerGetDatum(min));
	scan = systable_beginscan(rel, tessera_catalog_relid(TESSERA_CHUNK_KEY), true, snapshot, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/* The chunk that begins at min exactly; false if none does. */
static bool
read_chunk(const pg_uuid_t *group_id, TesseraKeySpace *ks, const TesseraBound *min, TesseraChunkRow *chunk)
{
	Relation	rel = tessera_catalog_open(TESSERA_CHUNK, AccessShareLock);
	HeapTuple	tuple = find_row(rel, group_id, min);

	if (HeapTupleIsValid(tuple))
	{
		chunk_of_row(tuple, RelationGetDescr(rel), ks, chunk);
		heap_freetuple(tuple);
	}
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

static void
refuse_gap(const pg_uuid_t *group_id, TesseraKeySpace *ks, const TesseraKeyBound *at)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("no chunk of table group %s holds %s", tessera_uuid_text(group_id),
					tessera_bound_to_cstring(tessera_key_to_bound(ks, at))),
			 errhint("See tessera.check_consistency().")));
}

static bool
holds(TesseraKeySpace *ks, const TesseraChunkRow *chunk, const TesseraKeyBound *position)
{
	return tessera_key_compare(ks, &chunk->key_min, position) <= 0 && tessera_key_compare(ks, position, &chunk->key_max) < 0;
}

/* Reads all chunks of the group until one holds the position, or without one is the shard's: for when nothing is known about where it is. */
static bool
search_all(const pg_uuid_t *group_id, TesseraKeySpace *ks, int32 node_id, const TesseraKeyBound *position, TesseraChunkRow *chunk)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller, "tessera chunk search", ALLOCSET_SMALL_SIZES);
	Relation	rel = tessera_catalog_open(TESSERA_CHUNK, AccessShareLock);
	Snapshot	snapshot = tessera_catalog_snapshot();
	SysScanDesc scan = tessera_catalog_scan(rel, TESSERA_CHUNK_KEY, Anum_chunk_group_id, group_id, snapshot);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(scratch);
		chunk_of_row(tuple, RelationGetDescr(rel), ks, chunk);
		found = position != NULL ? holds(ks, chunk, position) : chunk->node_id == node_id;
		MemoryContextSwitchTo(caller);
		if (found)
			chunk_of_row(tuple, RelationGetDescr(rel), ks, chunk);
		MemoryContextReset(scratch);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	MemoryContextDelete(scratch);
	return found;
}

void
tessera_chunk_find(const pg_uuid_t *group_id, TesseraKeySpace *ks, const TesseraKeyBound *position, const TesseraBound *hint,
				   TesseraChunkRow *chunk)
{
	if (position->elements[0].kind == TESSERA_MAXKEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("MAXKEY lies in no chunk")));
	if (!(hint != NULL && read_chunk(group_id, ks, hint, chunk) && holds(ks, chunk, position)) && !search_all(group_id, ks, 0, position, chunk))
		refuse_gap(group_id, ks, position);
}

TesseraChunkRow *
tessera_chunks_of_range(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, const TesseraKeyBound *min,
						const TesseraKeyBound *max, int *n)
{
	int			room = 4;
	TesseraChunkRow *chunks = palloc(sizeof(TesseraChunkRow) * room);

	if (tessera_key_compare(ks, min, max) >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the range from %s to %s is empty", tessera_bound_to_cstring(tessera_key_to_bound(ks, min)),
						tessera_bound_to_cstring(tessera_key_to_bound(ks, max)))));
	tessera_chunk_find(&group->group_id, ks, min, hint, &chunks[0]);
	*n = 1;

	while (tessera_key_compare(ks, &chunks[*n - 1].key_max, max) < 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (*n == room)
			chunks = repalloc(chunks, sizeof(TesseraChunkRow) * (room *= 2));
		if (!read_chunk(&group->group_id, ks, chunks[*n - 1].max, &chunks[*n]))
			refuse_gap(&group->group_id, ks, &chunks[*n - 1].key_max);
		(*n)++;
	}
	return chunks;
}

bool
tessera_chunk_of_shard(const TesseraRouting *routing, const pg_uuid_t *group_id, TesseraKeySpace *ks, int32 node_id, const TesseraKeyBound *from,
					   TesseraChunkRow *chunk)
{
	const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, group_id) : NULL;
	int			n = group ? tessera_routing_nchunks(routing, group) : 0;
	int			first = n > 0 && from->elements[0].kind != TESSERA_MAXKEY ? tessera_routing_find_chunk(routing, group, from) : 0;

	/* from there to the end, then from the beginning to there; what is no longer the shard's is passed over */
	for (int half = 0; half < 2; half++)
	{
		int			end = half == 0 ? n : first;

		for (int i = half == 0 ? first : 0; (i = tessera_routing_next_of(routing, group, node_id, i)) < end; i++)
		{
			TesseraChunk known;

			CHECK_FOR_INTERRUPTS();
			tessera_routing_chunk(routing, group, i, &known);
			if (read_chunk(group_id, ks, tessera_key_to_bound(ks, &known.min), chunk) && chunk->node_id == node_id)
				return true;
		}
	}
	return search_all(group_id, ks, node_id, NULL, chunk);
}


/* Writing */

/* The row of a piece of the chunk of an old row. moves: it has left its owner. */
static HeapTuple
row_of_piece(HeapTuple old, TupleDesc desc, const TesseraChunkRow *piece, bool moves)
{
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc0(desc->natts * sizeof(bool));
	bool	   *replace = palloc0(desc->natts * sizeof(bool));
	TimestampTz now = GetCurrentTransactionStartTimestamp();

	for (int i = Anum_chunk_min; i <= Anum_chunk_jumbo; i++)
		replace[i - 1] = true;
	values[Anum_chunk_min - 1] = PointerGetDatum(piece->min);
	values[Anum_chunk_max - 1] = PointerGetDatum(piece->max);
	values[Anum_chunk_node_id - 1] = Int32GetDatum(piece->node_id);
	values[Anum_chunk_major - 1] = Int64GetDatum(piece->major);
	values[Anum_chunk_minor - 1] = Int64GetDatum(piece->minor);
	values[Anum_chunk_jumbo - 1] = BoolGetDatum(piece->jumbo);
	if (moves)
	{
		replace[Anum_chunk_moved - 1] = replace[Anum_chunk_history - 1] = true;
		values[Anum_chunk_moved - 1] = TimestampTzGetDatum(now);
		values[Anum_chunk_history - 1] = tessera_chunk_history(column(old, desc, Anum_chunk_history),
														DatumGetInt32(column(old, desc, Anum_chunk_node_id)), now);
	}
	return heap_modify_tuple(old, desc, values, nulls, replace);
}

void
tessera_chunk_replace(const pg_uuid_t *group_id, const TesseraChunkRow *chunk, int n, const TesseraChunkRow *pieces, const bool *moves)
{
	Relation	rel = tessera_catalog_open(TESSERA_CHUNK, RowExclusiveLock);
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	HeapTuple	old = find_row(rel, group_id, chunk->min);

	if (!HeapTupleIsValid(old))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the chunk of table group %s that begins at %s is gone", tessera_uuid_text(group_id), tessera_bound_to_cstring(chunk->min))));
	for (int i = 0; i < n; i++)
	{
		HeapTuple	new = row_of_piece(old, RelationGetDescr(rel), &pieces[i], moves != NULL && moves[i]);

		/* the first piece keeps the row */
		if (i == 0)
			CatalogTupleUpdateWithInfo(rel, &old->t_self, new, indexes);
		else
			CatalogTupleInsertWithInfo(rel, new, indexes);
	}
	CatalogCloseIndexes(indexes);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
