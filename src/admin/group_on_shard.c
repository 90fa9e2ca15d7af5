/*
 * group_on_shard.c
 *	  A shard's part when a table is sharded, or joins a table group: its rows are locked and sampled, and it gets its copy of the group's rows and
 *	  its placement. The rows that count are the config node's (config/group_changes.c, which says what is called where, and which locks are held).
 *
 * All but internal_has_rows and internal_sample_keys are part of the distributed transaction of tessera.shard_table: a crash before its decision
 * leaves nothing, after it everything.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "control/calls.h"
#include "executor/tuptable.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "admin/shardable.h"
#include "balance/key_sample.h"
#include "catalog/bound_array.h"
#include "catalog/group_spec.h"
#include "catalog/placement.h"
#include "catalog/placement_ranges.h"
#include "catalog/relation.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/text.h"
#include "ddl/attempts.h"

/* Keys kept per piece when a range is sampled: the sizes of the pieces differ by about one part in so many. */
#define SAMPLES_PER_PIECE 256
#define MAX_SAMPLES 1000000



/* The table on its primary shard */

/* True if the table has any row that is visible now, by a newer snapshot than the statement's: the lock was waited for since. */
static bool
has_own_rows(Relation rel)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	bool		found = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	return found;
}

/* The same of a table or its partitions, which are of a kind that can be sharded. */
static bool
has_rows(Relation rel, List *partitions)
{
	bool		found = false;
	ListCell   *cell;

	tessera_check_table_kind(rel);
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return has_own_rows(rel);
	foreach(cell, partitions)
	{
		Relation	partition = table_open(lfirst_oid(cell), NoLock);

		if (!found && partition->rd_rel->relkind == RELKIND_RELATION)
			found = has_own_rows(partition);
		table_close(partition, NoLock);
	}
	return found;
}

/* Locks out writers to the end of the transaction; true if the table has rows */
bool
tessera_serve_lock_for_sharding(const TesseraLockForShardingArgs *args)
{
	Oid			relid = args->table_name;
	List	   *partitions;
	Relation	rel;
	bool		result;
	ListCell   *cell;

	tessera_lock_table_here(relid, ShareRowExclusiveLock);
	/* who names a partition locks that alone; none comes or goes, by the lock on the parent */
	partitions = tessera_partitions(relid, NoLock);
	foreach(cell, partitions)
		tessera_lock_table_here(lfirst_oid(cell), ShareRowExclusiveLock);
	rel = table_open(relid, NoLock);
	result = has_rows(rel, partitions);
	table_close(rel, NoLock);
	return result;
}

/* Now, without a lock that outlasts the call */
bool
tessera_serve_has_rows(const TesseraHasRowsArgs *args)
{
	Relation	rel = table_open(args->table_name, AccessShareLock);
	List	   *partitions = tessera_partitions(args->table_name, AccessShareLock);
	bool		result = has_rows(rel, partitions);
	ListCell   *cell;

	foreach(cell, partitions)
		UnlockRelationOid(lfirst_oid(cell), AccessShareLock);
	table_close(rel, AccessShareLock);
	return result;
}

/* Names of a name[] as a list for tessera_parse_shard_key. */
static char *
key_list(ArrayType *names)
{
	StringInfoData list;
	Datum	   *elements;
	int			n;

	deconstruct_array(names, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &elements, NULL, &n);
	initStringInfo(&list);
	for (int i = 0; i < n; i++)
		appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", tessera_quote(NameStr(*DatumGetName(elements[i]))));
	return list.data;
}

/* The tables that hold the rows, open: the table itself, or its partitions. */
static TesseraSampledTable *
tables_with_rows(Relation rel, const char *key, bool hashed, int *n)
{
	List	   *partitions = tessera_partitions(RelationGetRelid(rel), AccessShareLock);
	TesseraSampledTable *tables = palloc(sizeof(TesseraSampledTable) * (list_length(partitions) + 1));
	ListCell   *cell;

	*n = 0;
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		tables[(*n)++] = (TesseraSampledTable) {rel, tessera_parse_shard_key(rel, key, hashed)->attnums};
	foreach(cell, partitions)
	{
		Relation	partition = table_open(lfirst_oid(cell), NoLock);

		if (partition->rd_rel->relkind == RELKIND_RELATION)
			tables[(*n)++] = (TesseraSampledTable) {partition, tessera_parse_shard_key(partition, key, hashed)->attnums};
		else
			table_close(partition, NoLock);
	}
	return tables;
}

/*
 * Split points that divide the range
 * into at most so many pieces of about equally many of this shard's rows.
 */
ArrayType *
tessera_serve_sample_keys(const TesseraSampleKeysArgs *args)
{
	Relation	rel = table_open(args->table_name, AccessShareLock);
	const char *names = key_list(args->key);
	TesseraShardKey *key = tessera_parse_shard_key(rel, names, args->hashed);
	int			pieces = args->pieces;
	TesseraKeyBound min,
				max;
	TesseraSampledTable *tables;
	TesseraKeySample *sample;
	TesseraKeyBound *points;
	TesseraBound **bounds;
	int			ntables;
	int			n;

	if (pieces < 1 || pieces > MAX_SAMPLES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a range can be split into 1 to %d pieces, not %d", MAX_SAMPLES, pieces)));
	tessera_key_from_bound(key->ks, args->min, &min);
	tessera_key_from_bound(key->ks, args->max, &max);

	tables = tables_with_rows(rel, names, args->hashed, &ntables);
	sample = tessera_sample_keys(ntables, tables, key->ks, &min, &max, Min((int64) pieces * SAMPLES_PER_PIECE, MAX_SAMPLES), GetActiveSnapshot());
	points = palloc(sizeof(TesseraKeyBound) * pieces);
	n = tessera_split_points(key->ks, sample->keys, sample->n, pieces, points);
	bounds = palloc(sizeof(TesseraBound *) * pieces);
	for (int i = 0; i < n; i++)
		bounds[i] = tessera_key_to_bound(key->ks, &points[i]);
	for (int i = 0; i < ntables; i++)
		if (tables[i].rel != rel)
			table_close(tables[i].rel, AccessShareLock);
	table_close(rel, AccessShareLock);
	return tessera_array_of_bounds(n, bounds);
}


/* Copies on the shards */

static void
insert_chunks(Datum spec)
{
	spec_run("INSERT INTO tessera.chunk SELECT * FROM jsonb_populate_recordset(NULL::tessera.chunk, $1->'chunks')", SPI_OK_INSERT, spec);
}

/*
 * A copy of the group that is older than what comes with chunks is replaced whole, so that rows of two versions do not mix: a table that has
 * joined with rows must not be looked for by the versions of before. False: it is not older.
 */
static bool
replace_older_copy(Datum spec)
{
	if (spec_run("UPDATE tessera.table_group AS g SET group_major = n.group_major, group_minor = n.group_minor"
				 " FROM jsonb_populate_record(NULL::tessera.table_group, $1->'group') AS n WHERE g.group_id = n.group_id AND g.epoch = n.epoch"
				 " AND (g.group_major, g.group_minor) < (n.group_major, n.group_minor) AND jsonb_typeof($1->'chunks') = 'array'",
				 SPI_OK_UPDATE, spec) == 0)
		return false;
	spec_run("DELETE FROM tessera.chunk WHERE group_id = ($1->'group'->>'group_id')::uuid", SPI_OK_DELETE, spec);
	insert_chunks(spec);
	return true;
}

/* ERROR 55006 if rows of the table, which has moved with its schema, are still to be deleted here: that goes by the group which it is to leave. */
static void
require_no_leftovers(Datum spec)
{
	if (spec_run("SELECT 1 FROM tessera.cluster_table AS t JOIN tessera.schema_placement AS s USING (schema_name) JOIN tessera.placement AS p"
				 " ON p.group_id = s.group_id WHERE t.table_id = ($1->'table'->>'table_id')::uuid AND t.group_id IS NULL"
				 " AND cardinality(p.deletions) > 0 AND cardinality(p.owned) = 0", SPI_OK_SELECT, spec) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("rows of the table that moved away with its schema have not been deleted yet"),
				 errhint("Try again when tessera.range_deletions is empty on every shard.")));
}

/*
 * Group and chunks, if the node has not got them, or, where chunks come along, has older ones. False: it has neither, nor do chunks come along.
 * *complete: no chunks are missing behind those that have come.
 */
static bool
apply_group_rows(Datum spec, bool *complete)
{
	bool		all = spec_run("SELECT 1 WHERE jsonb_typeof($1->'more') = 'array'", SPI_OK_SELECT, spec) == 0;
	bool		known = spec_run("SELECT 1 FROM tessera.table_group WHERE group_id = ($1->'group'->>'group_id')::uuid", SPI_OK_SELECT, spec) > 0;

	*complete = false;
	if (!known && spec_run("SELECT 1 WHERE jsonb_typeof($1->'chunks') = 'array'", SPI_OK_SELECT, spec) == 0)
		return false;
	tessera_injection("group_looked_for");
	/* the refresher may bring it meanwhile */
	if (!known && spec_run("INSERT INTO tessera.table_group SELECT * FROM jsonb_populate_record(NULL::tessera.table_group, $1->'group')"
						   " ON CONFLICT (group_id) DO NOTHING", SPI_OK_INSERT, spec) > 0)
	{
		insert_chunks(spec);
		*complete = all;
	}
	else
		*complete = !replace_older_copy(spec) || all;
	return true;
}

/*
 * Puts what the config node wrote into this node's catalog. Again does no harm. false: chunks are needed, all or those behind the ones that came.
 */
bool
tessera_serve_apply_group(const TesseraApplyGroupArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	TesseraSpi	spi;
	Oid			relid = InvalidOid;
	bool		complete;

	tessera_spi_begin(&spi);
	require_no_leftovers(spec);
	if (apply_group_rows(spec, &complete))
	{
		spec_run("DELETE FROM tessera.cluster_table AS t USING jsonb_populate_record(NULL::tessera.cluster_table, $1->'table') AS n"
				 " WHERE t.schema_name = n.schema_name AND t.table_name = n.table_name AND t.table_id <> n.table_id", SPI_OK_DELETE, spec);
		spec_run("INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, relid, group_id, key_columns)"
				 " SELECT n.table_id, n.schema_name, n.table_name, to_regclass(format('%I.%I', n.schema_name, n.table_name))::oid, n.group_id,"
				 "   n.key_columns FROM jsonb_populate_record(NULL::tessera.cluster_table, $1->'table') AS n"
				 " ON CONFLICT (table_id) DO UPDATE SET relid = excluded.relid, group_id = excluded.group_id, key_columns = excluded.key_columns"
				 " RETURNING coalesce(relid, 0::oid)", SPI_OK_INSERT_RETURNING, spec);
		relid = DatumGetObjectId(spi_row_value(0, 1));
	}
	tessera_spi_end(&spi);
	spec_table_changed(relid);
	return complete;
}

/* After apply_group has taken the group with its first chunks. */
void
tessera_serve_apply_chunks(const TesseraApplyChunksArgs *args)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	insert_chunks(JsonbPGetDatum(args->spec));
	tessera_spi_end(&spi);
	tessera_catalog_changed();
}

/*
 * This shard owns these ranges of a new group. spec: group_id, epoch, term, major, owned (min, max).
 */
void
tessera_serve_set_placement(const TesseraSetPlacementArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	TesseraSpi	spi;
	TesseraPlacementRow *row;
	pg_uuid_t	group_id;

	tessera_spi_begin(&spi);
	group_id = *DatumGetUUIDP(spec_uuid(spec, "group_id"));
	row = tessera_placement_lock(&group_id);
	row->epoch = *DatumGetUUIDP(spec_uuid(spec, "epoch"));
	row->term = pg_strtoint64(spec_field(spec, "term"));
	row->major = pg_strtoint64(spec_field(spec, "major"));
	row->nowned = spec_run("SELECT o.min, o.max FROM jsonb_to_recordset($1->'owned') AS o(min tessera.bound, max tessera.bound)",
						   SPI_OK_SELECT, spec);
	row->owned = palloc(sizeof(TesseraRange) * Max(row->nowned, 1));
	for (int i = 0; i < row->nowned; i++)
	{
		row->owned[i].min = DatumGetTesseraBoundP(spi_row_value(i, 1));
		row->owned[i].max = DatumGetTesseraBoundP(spi_row_value(i, 2));
	}
	tessera_placement_write(row);
	tessera_spi_end(&spi);
}

/* ERROR 55006 if a migration of the group, or rows that one has left, are still on this shard. from: its placement, or NULL. */
static void
require_no_migration(Datum spec, const TesseraPlacementRow *from, const TesseraPlacementRow *target)
{
	if ((from != NULL && (from->ndeletions > 0 || from->ngates > 0)) || (target != NULL && target->ngates > 0) ||
		spec_run("SELECT 1 FROM (SELECT ranges FROM tessera.migration_coordinator UNION ALL SELECT ranges FROM tessera.migration_recipient) AS m,"
				 " unnest(m.ranges) AS r WHERE r.group_id IN (($1->>'from')::uuid, ($1->>'group_id')::uuid)",
				 SPI_OK_SELECT, spec) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a migration of the table groups is not over on this shard"),
				 errhint("Wait for it; tessera.migrations and tessera.range_deletions show what is left.")));
}

/* Do the ranges of the one hold those of the other? */
static bool
owns_all_of(TesseraKeySpace *ks, const TesseraPlacementRow *a, const TesseraPlacementRow *b)
{
	for (int i = 0; i < b->nowned; i++)
		if (!tessera_ranges_cover(ks, a->nowned, a->owned, &b->owned[i]))
			return false;
	return true;
}

static void
raise_target(Datum spec, const TesseraPlacementRow *from, TesseraPlacementRow *target, int64 major)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = tessera_routing_group_by_id(routing, &target->group_id);
	TesseraKeySpace *ks = group ? tessera_group_keyspace(routing, group) : NULL;

	if (ks == NULL || from == NULL || memcmp(&target->epoch, DatumGetUUIDP(spec_uuid(spec, "epoch")), sizeof(pg_uuid_t)) != 0 ||
		!owns_all_of(ks, from, target) || !owns_all_of(ks, target, from))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the same ranges of both table groups")));
	target->major = Max(target->major, major);
	target->term = Max(target->term, pg_strtoint64(spec_field(spec, "term")));
	tessera_placement_write(target);
}

/* The row of a group's placement, locked; NULL: there is none. */
static TesseraPlacementRow *
lock_existing(const pg_uuid_t *group_id)
{
	return tessera_placement_read(group_id, NULL) != NULL ? tessera_placement_lock(group_id) : NULL;
}

/*
 * On a shard, after internal_apply_group: the group from is gone, the table's rows are of group
 * group_id, with shard version major (0: this shard owns nothing of either). spec: from, group_id, epoch, term, major. The table is locked, so
 * nobody goes by the old placement any more. ERROR TS002 if the two placements do not own the same, 55006 if one of them is not at rest, TS003 for a
 * term that is over.
 */
void
tessera_serve_merge_placement(const TesseraMergePlacementArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	TesseraSpi	spi;
	TesseraPlacementRow *from;
	TesseraPlacementRow *target;
	pg_uuid_t	target_id;
	int64		major;

	/* against a promoted config node that asks what this shard owns */
	LockRelationOid(tessera_catalog_relid(TESSERA_PLACEMENT), RowExclusiveLock);
	tessera_spi_begin(&spi);
	if (pg_strtoint64(spec_field(spec, "term")) < tessera_routing()->promised_term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("the config node's term is over")));
	target_id = *DatumGetUUIDP(spec_uuid(spec, "group_id"));
	from = lock_existing(DatumGetUUIDP(spec_uuid(spec, "from")));
	target = lock_existing(&target_id);
	require_no_migration(spec, from, target);
	major = pg_strtoint64(spec_field(spec, "major"));
	if (target != NULL && (major > 0 || target->nowned > 0))
		raise_target(spec, from, target, major);
	else if (major > 0 || (from != NULL && from->nowned > 0))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the same ranges of both table groups")));
	spec_run("DELETE FROM tessera.placement WHERE group_id = ($1->>'from')::uuid", SPI_OK_DELETE, spec);
	/* where internal_apply_group has found no group to join, the table stays in its own until this node refreshes */
	spec_run("DELETE FROM tessera.table_group AS g WHERE g.group_id = ($1->>'from')::uuid"
			 " AND NOT EXISTS (SELECT FROM tessera.cluster_table AS t WHERE t.group_id = g.group_id)", SPI_OK_DELETE, spec);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	tessera_injection("placement_merged");
}
