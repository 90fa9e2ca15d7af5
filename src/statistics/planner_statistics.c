/*
 * planner_statistics.c
 *	  Statistics of whole tables for the planner, from this node's tessera.table_statistics: a cache in each backend.
 *
 * An entry is made at first use and dropped when the relation's cache entry is invalidated: the writer of a row of the table sends that invalidation
 * at commit. It also ends with the group's version, as rows of shards that own nothing of a table do not count. What the cache gives out are copies.
 * Each entry has a context of its own below TopMemoryContext; working memory of a load goes at its end.
 *
 * A type with an ANALYZE function of its own (PostGIS) has kinds of statistics that only its own selectivity functions know, and these take it for
 * granted that a tuple has them. They can neither be read nor merged here, so a column of such a type has no tuple: its functions know what to guess
 * of a column that was never analyzed.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "statistics/column_merge.h"
#include "statistics/table_statistics.h"

typedef struct Column
{
	AttrNumber	attnum;
	bool		inherit;
	int32		width;
	HeapTuple	tuple;			/* NULL: only functions of the type itself could read it */
} Column;

typedef struct Entry
{
	Oid			relid;			/* key */
	bool		valid;
	bool		disturbed;		/* invalidated in the middle of a load */
	MemoryContext context;		/* NULL: nothing is loaded */
	pg_uuid_t	table_id;
	int64		major;			/* version of the group; 0: placed */
	int64		minor;
	int32		node_id;		/* of a placed table */
	bool		known;
	double		pages;
	double		tuples;
	int			ncolumns;
	Column	   *columns;
} Entry;

static HTAB *cache = NULL;

static void
drop(Entry *entry)
{
	if (entry->context)
		MemoryContextDelete(entry->context);
	entry->context = NULL;
	entry->ncolumns = 0;
	entry->valid = false;
	entry->disturbed = true;
}

static void
at_invalidation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	Entry	   *entry;

	if (cache == NULL)
		return;
	if (OidIsValid(relid))
	{
		entry = hash_search(cache, &relid, HASH_FIND, NULL);
		if (entry)
			drop(entry);
		return;
	}
	hash_seq_init(&scan, cache);
	while ((entry = hash_seq_search(&scan)) != NULL)
		drop(entry);
}

static void
create_cache(void)
{
	HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Entry), .hcxt = TopMemoryContext};

	cache = hash_create("tessera statistics", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
tessera_planner_statistics_init(void)
{
	CacheRegisterRelcacheCallback(at_invalidation, (Datum) 0);
}


/* ---- loading ---- */

/* True if the node owns a part of the table now. */
static bool
owns(const TesseraRouting *routing, const TesseraTable *table, int32 node_id)
{
	if (table->group < 0)
		return table->node_id == node_id;
	return tessera_routing_shard_major(routing, tessera_routing_group(routing, table->group), node_id) > 0;
}

/*
 * The rows that count: those of owners, if one of them has rows of the table; else (all of it was just moved, and the new owners have not collected
 * yet) the rows of the old owners.
 */
static List *
counting_rows(const TesseraRouting *routing, const TesseraTable *table)
{
	List	   *rows = tessera_statistics_rows(&table->table_id);
	List	   *owned = NIL;
	double		tuples = 0;
	ListCell   *cell;

	foreach(cell, rows)
	{
		TesseraStatisticsRow *row = lfirst(cell);

		if (!owns(routing, table, row->node_id))
			continue;
		owned = lappend(owned, row);
		tuples += Max(row->tuples, 0);
	}
	return tuples > 0 || list_length(owned) == list_length(rows) ? owned : rows;
}

static HeapTuple
form_tuple(TupleDesc desc, Oid relid, const TesseraColumnStatistics *column)
{
	Datum		values[Natts_pg_statistic];
	bool		nulls[Natts_pg_statistic];

	memset(nulls, 0, sizeof(nulls));
	values[Anum_pg_statistic_starelid - 1] = ObjectIdGetDatum(relid);
	values[Anum_pg_statistic_staattnum - 1] = Int16GetDatum(column->attnum);
	values[Anum_pg_statistic_stainherit - 1] = BoolGetDatum(column->inherit);
	values[Anum_pg_statistic_stanullfrac - 1] = Float4GetDatum(column->nullfrac);
	values[Anum_pg_statistic_stawidth - 1] = Int32GetDatum(column->width);
	values[Anum_pg_statistic_stadistinct - 1] = Float4GetDatum(column->distinct);
	for (int i = 0; i < STATISTIC_NUM_SLOTS; i++)
	{
		const TesseraStatisticsSlot *slot = i < column->nslots ? &column->slots[i] : NULL;

		values[Anum_pg_statistic_stakind1 - 1 + i] = Int16GetDatum(slot ? slot->kind : 0);
		values[Anum_pg_statistic_staop1 - 1 + i] = ObjectIdGetDatum(slot ? slot->op : InvalidOid);
		values[Anum_pg_statistic_stacoll1 - 1 + i] = ObjectIdGetDatum(slot ? slot->collation : InvalidOid);
		nulls[Anum_pg_statistic_stanumbers1 - 1 + i] = slot == NULL || slot->nnumbers == 0;
		nulls[Anum_pg_statistic_stavalues1 - 1 + i] = slot == NULL || slot->nvalues == 0;
		if (slot != NULL && slot->nnumbers > 0)
		{
			Datum	   *numbers = palloc(sizeof(Datum) * slot->nnumbers);

			for (int j = 0; j < slot->nnumbers; j++)
				numbers[j] = Float4GetDatum(slot->numbers[j]);
			values[Anum_pg_statistic_stanumbers1 - 1 + i] =
				PointerGetDatum(construct_array(numbers, slot->nnumbers, FLOAT4OID, sizeof(float4), true, TYPALIGN_INT));
		}
		if (slot != NULL && slot->nvalues > 0)
		{
			int16		length;
			bool		by_value;
			char		align;

			get_typlenbyvalalign(slot->type, &length, &by_value, &align);
			values[Anum_pg_statistic_stavalues1 - 1 + i] =
				PointerGetDatum(construct_array(slot->values, slot->nvalues, slot->type, length, by_value, align));
		}
	}
	return heap_form_tuple(desc, values, nulls);
}

HeapTuple
tessera_statistics_tuple(Oid relid, const TesseraColumnStatistics *column)
{
	Relation	statistics = table_open(StatisticRelationId, AccessShareLock);
	HeapTuple	tuple = form_tuple(RelationGetDescr(statistics), relid, column);

	table_close(statistics, AccessShareLock);
	return tuple;
}

/* Statistics of one shard. */
typedef struct Shard
{
	double		tuples;
	TesseraColumnStatistics *columns;
	int			ncolumns;
} Shard;

/* True if no value of the column can be on two shards. */
static bool
is_disjoint(const TesseraTable *table, AttrNumber attnum)
{
	return table->group >= 0 && table->nkeys == 1 && table->keys[0] == attnum;
}

/* True if an ANALYZE function that is none of the server's decides what the statistics of a column of that type are. Domains have their base's. */
static bool
is_analyzed_by_others(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Oid			function;

	if (!HeapTupleIsValid(tuple))
		return true;
	function = ((Form_pg_type) GETSTRUCT(tuple))->typanalyze;
	ReleaseSysCache(tuple);
	return function >= FirstGenbkiObjectId;
}

/* Merges one column of all shards, if any has it; into entry->columns, whose tuples are made in its context. */
static void
merge_column(Entry *entry, TupleDesc desc, const TesseraTable *table, const Shard *shards, int nshards, Form_pg_attribute att, bool inherit)
{
	AttrNumber	attnum = att->attnum;
	TesseraColumnPart *parts = palloc(sizeof(TesseraColumnPart) * Max(nshards, 1));
	TesseraColumnStatistics *merged;
	Column	   *column;
	MemoryContext before;
	int			n = 0;

	for (int i = 0; i < nshards; i++)
		for (int j = 0; j < shards[i].ncolumns; j++)
			if (shards[i].columns[j].attnum == attnum && shards[i].columns[j].inherit == inherit)
			{
				parts[n].tuples = shards[i].tuples;
				parts[n++].statistics = &shards[i].columns[j];
			}
	if (n == 0)
		return;
	merged = tessera_merge_statistics(parts, n, is_disjoint(table, attnum));
	before = MemoryContextSwitchTo(entry->context);
	column = &entry->columns[entry->ncolumns++];
	column->attnum = attnum;
	column->inherit = inherit;
	column->width = merged->width;
	column->tuple = is_analyzed_by_others(att->atttypid) ? NULL : form_tuple(desc, entry->relid, merged);
	MemoryContextSwitchTo(before);
}

/* In a scratch context. */
static void
load_columns(Entry *entry, const TesseraTable *table, List *rows, Relation rel)
{
	Shard	   *shards = palloc0(sizeof(Shard) * Max(list_length(rows), 1));
	int			nshards = 0;
	int			most = 2 * RelationGetNumberOfAttributes(rel);
	Relation	statistics = table_open(StatisticRelationId, AccessShareLock);
	ListCell   *cell;

	foreach(cell, rows)
	{
		TesseraStatisticsRow *row = lfirst(cell);

		entry->pages += Max(row->pages, 0);
		if (row->tuples < 0)
			continue;
		entry->known = true;
		entry->tuples += row->tuples;
		if (row->tuples == 0)
			continue;
		shards[nshards].tuples = row->tuples;
		shards[nshards].columns = tessera_statistics_from_json(rel, row->columns, &shards[nshards].ncolumns);
		nshards++;
	}
	entry->columns = MemoryContextAlloc(entry->context, sizeof(Column) * Max(most, 1));
	for (int i = 0; i < RelationGetNumberOfAttributes(rel); i++)
	{
		merge_column(entry, RelationGetDescr(statistics), table, shards, nshards, TupleDescAttr(RelationGetDescr(rel), i), false);
		merge_column(entry, RelationGetDescr(statistics), table, shards, nshards, TupleDescAttr(RelationGetDescr(rel), i), true);
	}
	table_close(statistics, AccessShareLock);
}

/* Fills a new entry, on the side: the one in the cache may be invalidated meanwhile. */
static void
load(Entry *entry, const TesseraRouting *routing, const TesseraTable *table)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "tessera statistics load", ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(scratch);
	Relation	rel = relation_open(table->relid, AccessShareLock);
	const TesseraGroup *group = table->group < 0 ? NULL : tessera_routing_group(routing, table->group);

	entry->context = AllocSetContextCreate(scratch, "tessera statistics of a table", ALLOCSET_SMALL_SIZES);
	entry->table_id = table->table_id;
	entry->major = group ? group->group_major : 0;
	entry->minor = group ? group->group_minor : 0;
	entry->node_id = group ? 0 : table->node_id;
	load_columns(entry, table, counting_rows(routing, table), rel);
	relation_close(rel, AccessShareLock);
	MemoryContextSwitchTo(before);
	MemoryContextSetParent(entry->context, TopMemoryContext);
	MemoryContextDelete(scratch);
}

static bool
is_current(const Entry *entry, const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = table->group < 0 ? NULL : tessera_routing_group(routing, table->group);

	return entry->valid && memcmp(&entry->table_id, &table->table_id, sizeof(pg_uuid_t)) == 0 && entry->major == (group ? group->group_major : 0) &&
		entry->minor == (group ? group->group_minor : 0) && entry->node_id == (group ? 0 : table->node_id);
}

/* The entry, valid until the next catalog access. */
static Entry *
lookup(const TesseraRouting *routing, const TesseraTable *table)
{
	Entry	   *entry;
	Entry		loaded = {.relid = table->relid};
	bool		found;

	if (cache == NULL)
		create_cache();
	entry = hash_search(cache, &table->relid, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(Entry));
		entry->relid = table->relid;
	}
	if (is_current(entry, routing, table))
		return entry;
	drop(entry);
	entry->disturbed = false;
	load(&loaded, routing, table);
	loaded.valid = !entry->disturbed;
	if (entry->context)			/* loaded by a nested call */
		MemoryContextDelete(entry->context);
	*entry = loaded;
	return entry;
}


/* ---- look-ups ---- */

bool
tessera_table_size_estimate(const TesseraRouting *routing, const TesseraTable *table, double *pages, double *tuples)
{
	const Entry *entry = lookup(routing, table);

	*pages = entry->pages;
	*tuples = entry->tuples;
	return entry->known;
}

int32
tessera_column_width(const TesseraRouting *routing, const TesseraTable *table, AttrNumber attnum)
{
	const Entry *entry = lookup(routing, table);

	for (int i = 0; i < entry->ncolumns; i++)
		if (entry->columns[i].attnum == attnum)
			return entry->columns[i].width;
	return 0;
}

HeapTuple
tessera_column_statistics(const TesseraRouting *routing, const TesseraTable *table, AttrNumber attnum, bool inherit)
{
	const Entry *entry = lookup(routing, table);

	for (int i = 0; i < entry->ncolumns; i++)
		if (entry->columns[i].attnum == attnum && entry->columns[i].inherit == inherit)
			return entry->columns[i].tuple ? heap_copytuple(entry->columns[i].tuple) : NULL;
	return NULL;
}
