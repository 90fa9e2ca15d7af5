/*
 * chunk_bytes.c
 *	  Estimated size of each chunk: source of the column bytes of tessera.chunks and chunk_distribution. Chunks are named by their versions, as their
 *	  bounds are not for everybody.
 *
 * What a shard's part of a table takes (tessera.table_statistics) is shared out among the shard's chunks of the group: under hash by the width of
 * their ranges, under range by the share of rows that the statistics of the first key column see in them, alike if there are none. All tables of the
 * group are summed. No other node is asked, nothing is kept; working memory goes after each table.
 *
 * On the config node what the shards have measured (tessera.chunk_estimate) comes first. An estimate is about the keys from its min to the next
 * one's, as chunks may have been split, merged or moved since: it is divided equally among the chunks that begin there, or goes to the one it lies
 * in.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_statistic.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/typcache.h"

#include "common/spi_row.h"
#include "common/subtransaction.h"
#include "statistics/statistics_json.h"
#include "statistics/table_statistics.h"

PG_FUNCTION_INFO_V1(tessera_internal_chunk_bytes);

/* A chunk of the group at hand. */
typedef struct ChunkSize
{
	TesseraChunk chunk;
	double		weight;			/* within its shard, of the table at hand */
	double		bytes;			/* of all tables */
	bool		known;
	TimestampTz collected;		/* the oldest that went in */
} ChunkSize;

/* The first key column of a shard's part. */
typedef struct KeyStatistics
{
	VariableStatData vardata;
	Oid			type;
	Oid			collation;
	Oid			less;
	FmgrInfo	less_function;
	FmgrInfo	equal_function;
} KeyStatistics;

static bool
find_key_statistics(const TesseraStatisticsRow *row, const TesseraTable *table, const TesseraKeySpace *ks, Relation rel, KeyStatistics *key)
{
	int			n;
	TesseraColumnStatistics *columns = tessera_statistics_from_json(rel, row->columns, &n);
	TypeCacheEntry *type = lookup_type_cache(ks->columns[0].type, TYPECACHE_LT_OPR | TYPECACHE_EQ_OPR);

	memset(key, 0, sizeof(*key));
	if (!OidIsValid(type->lt_opr) || !OidIsValid(type->eq_opr))
		return false;
	for (int i = 0; i < n && key->vardata.statsTuple == NULL; i++)
		if (columns[i].attnum == table->keys[0])
			key->vardata.statsTuple = tessera_statistics_tuple(table->relid, &columns[i]);
	if (key->vardata.statsTuple == NULL)
		return false;
	key->vardata.acl_ok = true;	/* only sizes of chunks go out, which everybody may see */
	key->vardata.vartype = key->vardata.atttype = key->type = ks->columns[0].type;
	key->vardata.atttypmod = -1;
	key->collation = ks->columns[0].collation;
	key->less = type->lt_opr;
	fmgr_info(get_opcode(type->lt_opr), &key->less_function);
	fmgr_info(get_opcode(type->eq_opr), &key->equal_function);
	return true;
}

/* Share of the shard's rows below a bound; -1: the statistics have no values. */
static double
share_below(KeyStatistics *key, const TesseraKeySpace *ks, const TesseraKeyBound *bound)
{
	const TesseraKeyDatum *first = &bound->elements[0];
	double		common;
	double		listed;
	double		share;
	double		between;

	if (first->kind != TESSERA_VALUE)
		return first->kind == TESSERA_MINKEY ? 0 : 1;
	share = mcv_selectivity(&key->vardata, &key->less_function, key->collation, first->value, true, &common);
	between = ineq_histogram_selectivity(NULL, &key->vardata, key->less, &key->less_function, false, false, key->collation, first->value, key->type);
	if (between < 0 && common <= 0)
		return -1;
	share += Max(between, 0) * (1 - common);
	if (ks->nelements > 1 && bound->elements[1].kind != TESSERA_MINKEY)
	{
		listed = mcv_selectivity(&key->vardata, &key->equal_function, key->collation, first->value, true, &common);
		share += bound->elements[1].kind == TESSERA_MAXKEY ? listed : listed / 2;
	}
	return Min(share, 1);
}

static double
width_of(const TesseraChunk *chunk)
{
	const TesseraKeyDatum *min = &chunk->min.elements[0];
	const TesseraKeyDatum *max = &chunk->max.elements[0];
	double		low = min->kind == TESSERA_VALUE ? (double) DatumGetInt64(min->value) : (double) PG_INT64_MIN;
	double		high = max->kind == TESSERA_VALUE ? (double) DatumGetInt64(max->value) : (double) PG_INT64_MAX;

	return Max(high - low, 0);
}

/* Sets the weights of the shard's chunks; returns their sum. */
static double
weigh(const TesseraStatisticsRow *row, const TesseraTable *table, TesseraKeySpace *ks, Relation rel, ChunkSize *chunks, int n)
{
	KeyStatistics key;
	bool		known = !ks->hashed && find_key_statistics(row, table, ks, rel, &key);
	double		sum = 0;

	for (int i = 0; i < n; i++)
	{
		if (chunks[i].chunk.node_id != row->node_id)
			continue;
		chunks[i].weight = 1;
		if (ks->hashed)
			chunks[i].weight = width_of(&chunks[i].chunk);
		else if (known)
		{
			double		low = share_below(&key, ks, &chunks[i].chunk.min);
			double		high = share_below(&key, ks, &chunks[i].chunk.max);

			if (low < 0 || high < 0)
				known = false;
			else
				chunks[i].weight = Max(high - low, 0);
		}
		sum += chunks[i].weight;
	}
	if ((!known && !ks->hashed) || sum <= 0)
	{
		sum = 0;
		for (int i = 0; i < n; i++)
			if (chunks[i].chunk.node_id == row->node_id)
				sum += chunks[i].weight = 1;
	}
	return sum;
}

static void
add_table(const TesseraTable *table, TesseraKeySpace *ks, ChunkSize *chunks, int n)
{
	Relation	rel = try_relation_open(table->relid, AccessShareLock);
	List	   *rows = rel ? tessera_statistics_rows(&table->table_id) : NIL;
	ListCell   *cell;

	foreach(cell, rows)
	{
		const TesseraStatisticsRow *row = lfirst(cell);
		double		sum = weigh(row, table, ks, rel, chunks, n);

		for (int i = 0; i < n && sum > 0; i++)
		{
			if (chunks[i].chunk.node_id != row->node_id)
				continue;
			chunks[i].bytes += row->bytes * (chunks[i].weight / sum);
			chunks[i].collected = chunks[i].known ? Min(chunks[i].collected, row->collected) : row->collected;
			chunks[i].known = true;
		}
	}
	if (rel)
		relation_close(rel, AccessShareLock);
}

/* What the shards have said of keys from here on. */
typedef struct Estimate
{
	TesseraKeyBound min;
	double		bytes;
	TimestampTz measured;
} Estimate;

static int
compare_estimates(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, &((const Estimate *) a)->min, &((const Estimate *) b)->min);
}

/* The group's estimates in the order of their keys. */
static Estimate *
read_estimates(const TesseraGroup *group, TesseraKeySpace *ks, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Estimate   *estimates;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT min, bytes, measured FROM tessera.chunk_estimate WHERE group_id = $1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
							   (Datum[]) {UUIDPGetDatum(&group->group_id)}, NULL);
	MemoryContextSwitchTo(caller);
	estimates = MemoryContextAllocHuge(caller, sizeof(Estimate) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		tessera_key_from_bound(ks, DatumGetTesseraBoundP(spi_row_value(i, 1)), &estimates[i].min);
		estimates[i].bytes = (double) DatumGetInt64(spi_row_value(i, 2));
		estimates[i].measured = DatumGetTimestampTz(spi_row_value(i, 3));
	}
	tessera_spi_end(&spi);
	qsort_arg(estimates, *n, sizeof(Estimate), compare_estimates, ks);
	return estimates;
}

static void
add_estimate(ChunkSize *chunk, const Estimate *estimate, double share)
{
	chunk->bytes += estimate->bytes * share;
	chunk->collected = chunk->known ? Min(chunk->collected, estimate->measured) : estimate->measured;
	chunk->known = true;
}

/* Fills the chunks by the shards' estimates; false: there are none. Chunks below the first estimate stay unknown. */
static bool
estimate_chunks(const TesseraGroup *group, TesseraKeySpace *ks, ChunkSize *chunks, int n)
{
	int			nestimates;
	Estimate   *estimates = read_estimates(group, ks, &nestimates);
	int			next = 0;		/* first chunk that begins at or above the estimate at hand's end */

	while (nestimates > 0 && next < n && tessera_key_compare(ks, &chunks[next].chunk.min, &estimates[0].min) < 0)
		next++;
	for (int i = 0; i < nestimates; i++)
	{
		int			first = next;

		while (next < n && (i + 1 == nestimates || tessera_key_compare(ks, &chunks[next].chunk.min, &estimates[i + 1].min) < 0))
			next++;
		if (next == first && next > 0)
			add_estimate(&chunks[next - 1], &estimates[i], 1);
		for (int j = first; j < next; j++)
			add_estimate(&chunks[j], &estimates[i], 1.0 / (next - first));
	}
	return nestimates > 0;
}

typedef struct GroupSizes
{
	const TesseraRouting *routing;
	const TesseraGroup *group;
	ReturnSetInfo *result;
} GroupSizes;

static void
put_group(void *arg)
{
	const TesseraRouting *routing = ((GroupSizes *) arg)->routing;
	const TesseraGroup *group = ((GroupSizes *) arg)->group;
	ReturnSetInfo *result = ((GroupSizes *) arg)->result;
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	int			n = tessera_routing_nchunks(routing, group);
	ChunkSize  *chunks = MemoryContextAllocExtended(CurrentMemoryContext, sizeof(ChunkSize) * Max(n, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	bool		measured;

	for (int i = 0; i < n; i++)
		tessera_routing_chunk(routing, group, i, &chunks[i].chunk);
	measured = routing->is_config && estimate_chunks(group, ks, chunks, n);
	for (int i = 0; !measured && i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		CHECK_FOR_INTERRUPTS();
		if (table->group == group->index && OidIsValid(table->relid))
			add_table(table, ks, chunks, n);
	}
	for (int i = 0; i < n; i++)
	{
		Datum		values[] = {UUIDPGetDatum(&group->group_id), Int64GetDatum(chunks[i].chunk.major), Int64GetDatum(chunks[i].chunk.minor),
			Int64GetDatum((int64) chunks[i].bytes), TimestampTzGetDatum(chunks[i].collected)};
		bool		nulls[lengthof(values)] = {false};

		if (chunks[i].known)
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/*
 * internal_chunk_bytes() returns (group_id uuid, major int8, minor int8, bytes int8, collected timestamptz) of the chunks of which something is
 * known. Of a group whose chunks or estimates cannot be read nothing is: the balancer's row of kind read says why, and the views of the others go on.
 */
Datum
tessera_internal_chunk_bytes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = tessera_routing();
	MemoryContext before = CurrentMemoryContext;
	MemoryContext context;

	InitMaterializedSRF(fcinfo, 0);
	context = AllocSetContextCreate(before, "tessera chunk bytes", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; routing != NULL && i < routing->ngroups; i++)
	{
		GroupSizes	sizes = {routing, tessera_routing_group(routing, i), result};
		ErrorData  *error;
		int			category;

		MemoryContextSwitchTo(context);
		error = tessera_try(put_group, &sizes);
		category = error != NULL ? ERRCODE_TO_CATEGORY(error->sqlerrcode) : 0;
		if (category == ERRCODE_OPERATOR_INTERVENTION || category == ERRCODE_INSUFFICIENT_RESOURCES)
			ReThrowError(error);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
	return (Datum) 0;
}
