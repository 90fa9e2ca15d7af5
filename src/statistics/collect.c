/*
 * collect.c
 *	  What this shard knows of its part of a table: size as the planner would estimate it, bytes, and the columns' statistics. See collect.h.
 *
 * A partitioned table is the sum of its partitions. Locks: AccessShareLock on each relation while it is looked at. Nothing is kept.
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "optimizer/plancat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "control/calls.h"
#include "session/internal_connection.h"
#include "statistics/collect.h"
#include "statistics/statistics_json.h"


/* A core's table that has no rows counts as so many pages if it was never analyzed: see table_block_relation_estimate_size. */
#define YOUNG_PAGES 10

/* What stamp and row are made of. */
typedef struct Sizes
{
	double		pages;
	double		tuples;			/* -1: not known */
	int64		bytes;
	uint64		hash;			/* of what ANALYZE and VACUUM have written, and roughly of the size */
} Sizes;

/* True if this node owns rows of the table. */
static bool
lies_here(const TesseraRouting *routing, const TesseraTable *table)
{
	if (table->group < 0)
		return table->node_id == routing->self;
	return tessera_routing_shard_major(routing, tessera_routing_group(routing, table->group), routing->self) > 0;
}

static Relation
open_table(Oid relid, bool wait)
{
	if (!wait && !ConditionalLockRelationOid(relid, AccessShareLock))
		return NULL;
	if (wait)
		return try_relation_open(relid, AccessShareLock);
	return try_relation_open(relid, NoLock);
}

static uint64
combine(uint64 hash, uint64 value)
{
	return hash_combine64(hash, hash_bytes_extended((const unsigned char *) &value, sizeof(value), 0));
}

/* A relation with storage of its own. The size in steps of about a fifth: what grows is looked at now and then. */
static void
add_relation(Relation rel, bool bytes, Sizes *sizes)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	BlockNumber pages;
	double		tuples;
	double		visible;

	sizes->hash = combine(sizes->hash, (uint32) rel->rd_rel->relpages);
	sizes->hash = combine(sizes->hash, (uint64) (int64) rel->rd_rel->reltuples);
	sizes->hash = combine(sizes->hash, (uint64) (log2((double) blocks + 1) * 4));
	if (bytes)
		sizes->bytes += DatumGetInt64(DirectFunctionCall1(pg_table_size, ObjectIdGetDatum(RelationGetRelid(rel))));
	if (blocks == 0 && rel->rd_rel->reltuples < 0)
		return;					/* never had a row, as far as is known */
	estimate_rel_size(rel, NULL, &pages, &tuples, &visible);
	if (rel->rd_rel->reltuples < 0 && blocks < YOUNG_PAGES && pages >= blocks)
	{
		tuples = pages > 0 ? tuples * blocks / pages : 0;
		pages = blocks;
	}
	sizes->pages += pages;
	sizes->tuples = Max(sizes->tuples, 0) + tuples;
}

/* All relations of a table; false if one is locked and wait is off. */
static bool
measure(Relation rel, bool wait, bool bytes, Sizes *sizes)
{
	List	   *relids = rel->rd_rel->relhassubclass ? find_all_inheritors(RelationGetRelid(rel), NoLock, NULL) :
		list_make1_oid(RelationGetRelid(rel));
	ListCell   *cell;

	*sizes = (Sizes) {.tuples = -1};
	foreach(cell, relids)
	{
		Relation	child = lfirst_oid(cell) == RelationGetRelid(rel) ? rel : open_table(lfirst_oid(cell), wait);

		if (child == NULL && !wait)
			return false;
		if (child == NULL)
			continue;
		if (RELKIND_HAS_TABLE_AM(child->rd_rel->relkind))
			add_relation(child, bytes, sizes);
		if (child != rel)
			relation_close(child, AccessShareLock);
	}
	sizes->hash = combine(sizes->hash, tessera_statistics_hash(rel));
	return true;
}

static char *
stamp_of(const TesseraRouting *routing, const TesseraTable *table, const Sizes *sizes)
{
	int64		major = table->group < 0 ? 0 : tessera_routing_shard_major(routing, tessera_routing_group(routing, table->group), routing->self);

	return psprintf("%016llx", (unsigned long long) combine(sizes->hash, (uint64) major));
}

bool
tessera_statistics_changed(const TesseraRouting *routing, const TesseraTable *table, const char *stamp)
{
	Relation	rel;
	Sizes		sizes;
	bool		changed;

	if (!lies_here(routing, table))
		return stamp != NULL;
	rel = open_table(table->relid, false);
	if (rel == NULL)
		return false;
	changed = measure(rel, false, false, &sizes) && (stamp == NULL || strcmp(stamp_of(routing, table, &sizes), stamp) != 0);
	relation_close(rel, AccessShareLock);
	return changed;
}

TesseraStatisticsRow *
tessera_statistics_collect(const TesseraRouting *routing, const TesseraTable *table, bool wait)
{
	Relation	rel = lies_here(routing, table) ? open_table(table->relid, wait) : NULL;
	TesseraStatisticsRow *row;
	Sizes		sizes;

	if (rel == NULL)
	{
		if (!lies_here(routing, table))
			tessera_statistics_delete(&table->table_id, routing->self);
		return NULL;
	}
	if (!measure(rel, wait, true, &sizes))
	{
		relation_close(rel, AccessShareLock);
		return NULL;
	}
	row = palloc0(sizeof(TesseraStatisticsRow));
	row->table_id = table->table_id;
	row->node_id = routing->self;
	row->stamp = stamp_of(routing, table, &sizes);
	row->pages = sizes.pages;
	row->tuples = sizes.tuples;
	row->bytes = sizes.bytes;
	row->columns = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(tessera_statistics_to_json(rel))));
	row->collected = GetCurrentTimestamp();
	relation_close(rel, AccessShareLock);
	tessera_statistics_write(row, table->relid);
	return row;
}

/*
 * To the end of the transaction; first of all, on one shard, so that two ANALYZE of a table wait there and
 * nowhere else.
 */
void
tessera_serve_lock_statistics(const TesseraLockStatisticsArgs *args)
{
	(void) tessera_statistics_lock(args->table_id, true);
}

/*
 * Stamp, pages, tuples, bytes, columns, collected of this shard's row; null: nothing of
 * the table lies here
 */
ArrayType *
tessera_serve_collect_statistics(const TesseraCollectStatisticsArgs *args)
{
	const TesseraRouting *routing;
	const TesseraTable *table;
	TesseraStatisticsRow *row;
	Datum		values[6];

	(void) tessera_statistics_lock(args->table_id, true);
	routing = tessera_routing();
	table = routing ? tessera_routing_table_by_id(routing, args->table_id) : NULL;
	row = table ? tessera_statistics_collect(routing, table, true) : NULL;
	if (row == NULL)
		return NULL;
	values[0] = CStringGetTextDatum(row->stamp);
	values[1] = CStringGetTextDatum(psprintf("%.17g", row->pages));
	values[2] = CStringGetTextDatum(psprintf("%.17g", row->tuples));
	values[3] = CStringGetTextDatum(psprintf(INT64_FORMAT, row->bytes));
	values[4] = CStringGetTextDatum(JsonbToCString(NULL, &row->columns->root, VARSIZE(row->columns)));
	values[5] = CStringGetTextDatum(psprintf(INT64_FORMAT, row->collected));
	return construct_array(values, lengthof(values), TEXTOID, -1, false, TYPALIGN_INT);
}
