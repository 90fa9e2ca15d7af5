/*
 * group_rows.c
 *	  The two ends of sharding a table: rows of the new group on the config node, and their copies and the placement on the shards.
 *
 * tessera.shard_table (shard_table.c) calls these functions on the nodes concerned, all in its one distributed transaction:
 *
 *	primary shard	internal_lock_for_sharding	no writer is in flight from here to the commit
 *	config node		internal_create_group		the authoritative rows: versions 1|0, 1|1... (S26)
 *				or	internal_join_group			the table becomes one more of a group
 *	shards, caller	internal_apply_group		the same rows in the node's copy of the catalog
 *	owners			internal_set_placement		the shard accepts the group's statements from the commit on
 *
 * A table that was placed by moving (colocate.c) leaves its own group for another one that has the same owners: internal_merge_group on the config
 * node, internal_apply_group and internal_merge_placement on all shards.
 *
 * Locks: the table in SHARE ROW EXCLUSIVE on its primary shard; on the config node the registry in SHARE (no shard comes or goes), the table's row,
 * and the row of the group that is joined. A crash before the decision leaves nothing, after it everything: that is the distributed transaction's
 * business.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "admin/colocate.h"
#include "admin/group_rows.h"
#include "admin/shardable.h"
#include "balance/key_sample.h"
#include "catalog/change.h"
#include "catalog/placement.h"
#include "catalog/placement_ranges.h"
#include "catalog/relation.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "ddl/attempts.h"
#include "session/internal_connection.h"

/* Keys kept per piece when a range is sampled: the sizes of the pieces differ by about one part in so many. */
#define SAMPLES_PER_PIECE 256
#define MAX_SAMPLES 1000000

#define MERGE_LOCK_TIMEOUT "500ms"

PG_FUNCTION_INFO_V1(tessera_internal_lock_for_sharding);
PG_FUNCTION_INFO_V1(tessera_internal_create_group);
PG_FUNCTION_INFO_V1(tessera_internal_join_group);
PG_FUNCTION_INFO_V1(tessera_internal_merge_group);
PG_FUNCTION_INFO_V1(tessera_internal_describe_group);
PG_FUNCTION_INFO_V1(tessera_internal_apply_group);
PG_FUNCTION_INFO_V1(tessera_internal_set_placement);
PG_FUNCTION_INFO_V1(tessera_internal_merge_placement);
PG_FUNCTION_INFO_V1(tessera_internal_has_rows);
PG_FUNCTION_INFO_V1(tessera_internal_sample_keys);
PG_FUNCTION_INFO_V1(tessera_internal_require_config);


/* Shared */

const TesseraRouting *
tessera_config_routing(int64 term)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL || !routing->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node is not the config node")));
	tessera_require_metadata(routing);
	term = Max(term, tessera_internal_caller_term());
	if (term > routing->term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("this config node is of term " INT64_FORMAT ", but the caller has seen term " INT64_FORMAT, routing->term, term),
				 errdetail("Another server was promoted in its place.")));
	return routing;
}

/* internal_require_config(term int8) */
Datum
tessera_internal_require_config(PG_FUNCTION_ARGS)
{
	(void) tessera_config_routing(PG_GETARG_INT64(0));
	PG_RETURN_VOID();
}

const TesseraGroup *
tessera_config_group(const TesseraRouting *routing, const pg_uuid_t *group_id, const pg_uuid_t *epoch)
{
	const TesseraGroup *group = tessera_routing_group_by_id(routing, group_id);

	if (group == NULL || (epoch != NULL && memcmp(&group->epoch, epoch, sizeof(pg_uuid_t)) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("table group %s was changed meanwhile", tessera_uuid_text(group_id)),
				 errhint("Try again.")));
	return group;
}

TesseraBound *
tessera_chunk_hint(const TesseraRouting *routing, const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *position)
{
	TesseraChunk chunk;

	if (position->elements[0].kind == TESSERA_MAXKEY)
		return NULL;
	tessera_routing_chunk(routing, group, tessera_routing_find_chunk(routing, group, position), &chunk);
	return tessera_key_to_bound(ks, &chunk.min);
}

TesseraBound *
tessera_bound_of_text(const char *text)
{
	Oid			input,
				ioparam;

	getTypeInputInfo(tessera_bound_type(), &input, &ioparam);
	return DatumGetTesseraBoundP(OidInputFunctionCall(input, unconstify(char *, text), ioparam, -1));
}

TesseraBound **
tessera_bounds_of_array(ArrayType *array, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	TesseraBound **bounds;

	deconstruct_array(array, ARR_ELEMTYPE(array), -1, false, TYPALIGN_INT, &elements, &nulls, n);
	bounds = palloc(sizeof(TesseraBound *) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("a bound must not be null")));
		bounds[i] = DatumGetTesseraBoundP(elements[i]);
	}
	return bounds;
}

ArrayType *
tessera_array_of_bounds(int n, TesseraBound **bounds)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elements[i] = PointerGetDatum(bounds[i]);
	return construct_array(elements, n, tessera_bound_type(), -1, false, TYPALIGN_INT);
}

char *
tessera_bounds_text(int n, TesseraBound **bounds)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(get_array_type(tessera_bound_type()), &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(tessera_array_of_bounds(n, bounds)));
}

/* Runs a command with one jsonb parameter. */
static uint64
run_jsonb(const char *sql, int expected, Datum spec)
{
	return tessera_spi_run(sql, expected, 1, (Oid[]) {JSONBOID}, &spec, NULL);
}

/* Plans of the table are made anew from the commit on. */
static void
table_changed(Oid relid)
{
	tessera_catalog_changed();
	if (OidIsValid(relid))
		CacheInvalidateRelcacheByRelid(relid);
}


/* The table on its primary shard */

/* True if the table has any row that is visible now, by a newer snapshot than the statement's: the lock was waited for since. */
static bool
has_rows(Relation rel)
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

/* internal_lock_for_sharding(table regclass) returns bool: locks out writers to the end of the transaction; true if the table has rows */
Datum
tessera_internal_lock_for_sharding(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	rel;
	bool		result;

	tessera_lock_table_here(relid, ShareRowExclusiveLock);
	rel = table_open(relid, NoLock);
	tessera_check_table_kind(rel);
	result = has_rows(rel);
	table_close(rel, NoLock);
	PG_RETURN_BOOL(result);
}

/* internal_has_rows(table regclass) returns bool: now, without a lock that outlasts the call */
Datum
tessera_internal_has_rows(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	bool		result;

	tessera_check_table_kind(rel);
	result = has_rows(rel);
	table_close(rel, AccessShareLock);
	PG_RETURN_BOOL(result);
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
		appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", quote_identifier(NameStr(*DatumGetName(elements[i]))));
	return list.data;
}

/*
 * internal_sample_keys(table regclass, key name[], hashed bool, min bound, max bound, pieces int) returns bound[]: split points that divide the range
 * into at most so many pieces of about equally many of this shard's rows.
 */
Datum
tessera_internal_sample_keys(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	TesseraShardKey *key = tessera_parse_shard_key(rel, key_list(PG_GETARG_ARRAYTYPE_P(1)), PG_GETARG_BOOL(2));
	int			pieces = PG_GETARG_INT32(5);
	TesseraKeyBound min,
				max;
	TesseraKeySample *sample;
	TesseraKeyBound *points;
	TesseraBound **bounds;
	int			n;

	if (pieces < 1 || pieces > MAX_SAMPLES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a range can be split into 1 to %d pieces, not %d", MAX_SAMPLES, pieces)));
	tessera_key_from_bound(key->ks, PG_GETARG_TESSERA_BOUND_P(3), &min);
	tessera_key_from_bound(key->ks, PG_GETARG_TESSERA_BOUND_P(4), &max);

	sample = tessera_sample_keys(rel, key->ks, key->attnums, &min, &max, Min((int64) pieces * SAMPLES_PER_PIECE, MAX_SAMPLES),
								 GetActiveSnapshot());
	points = palloc(sizeof(TesseraKeyBound) * pieces);
	n = tessera_split_points(key->ks, sample->keys, sample->n, pieces, points);
	bounds = palloc(sizeof(TesseraBound *) * pieces);
	for (int i = 0; i < n; i++)
		bounds[i] = tessera_key_to_bound(key->ks, &points[i]);
	table_close(rel, AccessShareLock);
	PG_RETURN_ARRAYTYPE_P(tessera_array_of_bounds(n, bounds));
}


/* The config node */

/* Locks the row of the table that is to be sharded, and checks that all is as the caller saw it. */
static void
lock_table_row(Datum spec)
{
	bool		isnull;

	run_jsonb("LOCK TABLE tessera.node IN SHARE MODE", SPI_OK_UTILITY, spec);
	if (run_jsonb("SELECT t.group_id, p.node_id = ($1->>'primary')::int4 FROM tessera.cluster_table AS t"
				  " JOIN tessera.schema_placement AS p USING (schema_name) WHERE t.table_id = ($1->>'table_id')::uuid"
				  " FOR UPDATE OF t FOR SHARE OF p", SPI_OK_SELECT, spec) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the config node does not know the table"),
				 errhint("It was probably dropped meanwhile.")));
	(void) spi_row_datum(0, 1, &isnull);
	if (!isnull)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("the table is already sharded")));
	if (!DatumGetBool(spi_row_value(0, 2)))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table's schema was moved to another shard meanwhile"),
				 errhint("Try again.")));
}

/* Writes the table's row; group_id is $2. Returns the table's OID here. */
static Oid
write_table_row(Datum spec, Datum group_id)
{
	tessera_spi_run("UPDATE tessera.cluster_table SET group_id = $2, key_columns = ARRAY(SELECT jsonb_array_elements_text($1->'key_columns'))::name[]"
					" WHERE table_id = ($1->>'table_id')::uuid"
					" RETURNING coalesce(to_regclass(format('%I.%I', schema_name, table_name))::oid, 0::oid)", SPI_OK_UPDATE_RETURNING, 2,
					(Oid[]) {JSONBOID, UUIDOID}, (Datum[]) {spec, group_id}, NULL);
	return DatumGetObjectId(spi_row_value(0, 1));
}

/* The group and the table as JSON, for internal_apply_group; between tessera_spi_begin and _end, result in the caller's context. */
static Datum
describe(Datum group_id, Datum table_id, bool chunks, bool placements, MemoryContext caller)
{
	MemoryContext old;
	Datum		result;

	if (tessera_spi_run("SELECT jsonb_build_object('group', to_jsonb(g), 'table', to_jsonb(t) - 'relid',"
						" 'chunks', CASE WHEN $3 THEN (SELECT jsonb_agg(to_jsonb(c)) FROM tessera.chunk AS c WHERE c.group_id = g.group_id) END,"
						" 'placements', CASE WHEN $4 THEN (SELECT jsonb_agg(jsonb_build_object('node_id', o.node_id, 'placement', jsonb_build_object("
						"   'group_id', g.group_id, 'epoch', g.epoch, 'term', (SELECT i.term FROM tessera.identity AS i), 'major', g.group_major,"
						"   'owned', o.owned))) FROM (SELECT c.node_id, jsonb_build_array(jsonb_build_object("
						"     'min', (array_agg(c.min ORDER BY c.minor))[1], 'max', (array_agg(c.max ORDER BY c.minor DESC))[1])) AS owned"
						"   FROM tessera.chunk AS c WHERE c.group_id = g.group_id GROUP BY c.node_id) AS o) END)"
						" FROM tessera.table_group AS g, tessera.cluster_table AS t WHERE g.group_id = $1 AND t.table_id = $2", SPI_OK_SELECT, 4,
						(Oid[]) {UUIDOID, UUIDOID, BOOLOID, BOOLOID},
						(Datum[]) {group_id, table_id, BoolGetDatum(chunks), BoolGetDatum(placements)}, NULL) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table or its group is gone")));
	old = MemoryContextSwitchTo(caller);
	result = PointerGetDatum(PG_DETOAST_DATUM_COPY(spi_row_value(0, 1)));
	MemoryContextSwitchTo(old);
	return result;
}

/* Field of a jsonb as text, in SPI's context; between tessera_spi_begin and _end. ERROR 22023 if it is not there. */
static char *
field(Datum spec, const char *name)
{
	char	   *text = NULL;

	if (tessera_spi_run("SELECT $1->>$2", SPI_OK_SELECT, 2, (Oid[]) {JSONBOID, TEXTOID},
						(Datum[]) {spec, CStringGetTextDatum(name)}, NULL) == 1)
		text = spi_row_text(0, 1);
	if (text == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" is missing", name)));
	return text;
}

static Datum
uuid_field(Datum spec, const char *name)
{
	return DirectFunctionCall1(uuid_in, CStringGetDatum(field(spec, name)));
}

/*
 * internal_create_group(spec jsonb) returns jsonb: makes the group of a table. spec: table_id, object, by, term, primary, strategy, key_types,
 * key_collations, key_columns, max_chunk_size (or null), balancing (or not there: true), chunks (array of min, max, in key order), spread (over all
 * active shards, else all are the primary's). Returns group, table, chunks and placements.
 */
Datum
tessera_internal_create_group(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Datum		group_id,
				result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(field(spec, "term")));
	lock_table_row(spec);

	run_jsonb("INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations, max_chunk_size, "
			  "balancing) VALUES (gen_random_uuid(), gen_random_uuid(), now(), 1, jsonb_array_length($1->'chunks') - 1, $1->>'strategy',"
			  " ARRAY(SELECT jsonb_array_elements_text($1->'key_types')), ARRAY(SELECT jsonb_array_elements_text($1->'key_collations')),"
			  " coalesce(($1->>'max_chunk_size')::int8, (SELECT value::int8 FROM tessera.setting WHERE name = 'max_chunk_size'), 134217728),"
			  " coalesce(($1->>'balancing')::bool, true))"
			  " RETURNING group_id", SPI_OK_INSERT_RETURNING, spec);
	group_id = UUIDPGetDatum(DatumGetUUIDP(spi_row_value(0, 1)));

	/* neighbours in key order go to one shard, so that each owns one range */
	tessera_spi_run("INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor)"
					" SELECT $2, c.min, c.max, CASE WHEN ($1->>'spread')::bool THEN s.nodes[1 + (c.nr - 1) * cardinality(s.nodes) / s.n]"
					"   ELSE ($1->>'primary')::int4 END, 1, c.nr - 1"
					" FROM ROWS FROM (jsonb_to_recordset($1->'chunks') AS (min tessera.bound, max tessera.bound)) WITH ORDINALITY AS c(min, max, nr),"
					" (SELECT ARRAY(SELECT node_id FROM tessera.node WHERE is_shard AND NOT draining ORDER BY node_id),"
					"   jsonb_array_length($1->'chunks')) AS s(nodes, n)", SPI_OK_INSERT, 2,
					(Oid[]) {JSONBOID, UUIDOID}, (Datum[]) {spec, group_id}, NULL);
	relid = write_table_row(spec, group_id);
	result = describe(group_id, uuid_field(spec, "table_id"), true, true, caller);
	tessera_changelog_add("shard_table", field(spec, "object"), field(spec, "by"), NULL, JsonbToCString(NULL, &DatumGetJsonbP(spec)->root, -1));
	tessera_spi_end(&spi);
	table_changed(relid);
	PG_RETURN_DATUM(result);
}

/*
 * internal_join_group(spec jsonb) returns jsonb: makes the table one more of a group. spec: table_id, object, by, term, primary, key_columns,
 * group_id, epoch, has_rows. Returns group and table.
 */
Datum
tessera_internal_join_group(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	TesseraGroupRow group;
	Datum		result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(field(spec, "term")));
	lock_table_row(spec);
	tessera_group_lock(DatumGetUUIDP(uuid_field(spec, "group_id")), &group);
	if (memcmp(&group.epoch, DatumGetUUIDP(uuid_field(spec, "epoch")), sizeof(pg_uuid_t)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table group was changed meanwhile"),
				 errhint("Try again.")));

	/* a move under way neither clones nor gates a table that comes later (doc/design.md#moves-and-ddl) */
	tessera_group_check_idle(&group, NULL, NULL, NULL);
	if (tessera_spi_run("SELECT 1 FROM tessera.chunk"
						" WHERE ($1->>'has_rows')::bool AND group_id = $2 AND node_id <> ($1->>'primary')::int4 LIMIT 1",
						SPI_OK_SELECT, 2, (Oid[]) {JSONBOID, UUIDOID}, (Datum[]) {spec, UUIDPGetDatum(&group.group_id)}, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("table %s has rows, and chunks of the group have moved to other shards meanwhile", field(spec, "object")),
				 errhint("Try again.")));

	relid = write_table_row(spec, UUIDPGetDatum(&group.group_id));
	result = describe(UUIDPGetDatum(&group.group_id), uuid_field(spec, "table_id"), false, false, caller);
	tessera_changelog_add("shard_table", field(spec, "object"), field(spec, "by"), NULL, JsonbToCString(NULL, &DatumGetJsonbP(spec)->root, -1));
	tessera_spi_end(&spi);
	table_changed(relid);
	PG_RETURN_DATUM(result);
}

/* What a merge asks of the two groups, both locked; ids in order, so that two merges do not meet. */
static void
lock_both(Datum spec, TesseraGroupRow *from, TesseraGroupRow *target)
{
	pg_uuid_t	from_id = *DatumGetUUIDP(uuid_field(spec, "from"));
	pg_uuid_t	target_id = *DatumGetUUIDP(uuid_field(spec, "group_id"));
	pg_uuid_t	from_epoch = *DatumGetUUIDP(uuid_field(spec, "from_epoch"));
	pg_uuid_t	target_epoch = *DatumGetUUIDP(uuid_field(spec, "epoch"));

	/* the table is locked everywhere meanwhile: nobody shall wait for long */
	(void) set_config_option("lock_timeout", MERGE_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	if (memcmp(&from_id, &target_id, sizeof(pg_uuid_t)) > 0)
		tessera_group_lock(&target_id, target);
	tessera_group_lock(&from_id, from);
	if (memcmp(&from_id, &target_id, sizeof(pg_uuid_t)) <= 0)
		tessera_group_lock(&target_id, target);
	if (memcmp(&from->epoch, &from_epoch, sizeof(pg_uuid_t)) != 0 || memcmp(&target->epoch, &target_epoch, sizeof(pg_uuid_t)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table group was changed meanwhile"),
				 errhint("Try again.")));
	tessera_group_check_idle(from, NULL, NULL, NULL);
	tessera_group_check_idle(target, NULL, NULL, NULL);
}

/* The table's row: still alone in its group. */
static void
lock_member(Datum spec)
{
	if (run_jsonb("SELECT 1 FROM tessera.cluster_table AS t WHERE t.table_id = ($1->>'table_id')::uuid AND t.group_id = ($1->>'from')::uuid FOR "
				  "UPDATE", SPI_OK_SELECT, spec) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table was dropped, or has joined another table group meanwhile"),
				 errhint("Try again.")));
	if (run_jsonb("SELECT format('%I.%I', t.schema_name, t.table_name) FROM tessera.cluster_table AS t"
				  " WHERE t.table_id <> ($1->>'table_id')::uuid AND t.group_id = ($1->>'from')::uuid LIMIT 1", SPI_OK_SELECT, spec) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table %s is colocated with table %s", field(spec, "object"), spi_row_text(0, 1)),
				 errhint("Only a table that is alone in its table group can join another one.")));
}

/* Under the locks of both groups nothing of them changes: keys and owners are compared as they are now. */
static void
require_alike(Datum spec, const TesseraGroupRow *from, const TesseraGroupRow *target)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *first = tessera_routing_group_by_id(routing, &from->group_id);
	const TesseraGroup *second = tessera_routing_group_by_id(routing, &target->group_id);

	if (first == NULL || second == NULL ||
		run_jsonb("SELECT 1 FROM tessera.table_group AS f, tessera.table_group AS g WHERE f.group_id = ($1->>'from')::uuid AND g.group_id = "
				  "($1->>'group_id')::uuid"
				  " AND (f.strategy, f.key_types, f.key_collations) = (g.strategy, g.key_types, g.key_collations)", SPI_OK_SELECT, spec) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("the shard keys of the table groups differ")));
	if (tessera_ownership_differences(routing, first, second) != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("ranges of the table groups lie on different shards")));
}

/* Adds what each shard, and the node that asks, is to do about its placements. In the caller's context. */
static Datum
with_merges(Datum answer, Datum spec, MemoryContext caller)
{
	MemoryContext old;
	Datum		result;

	tessera_spi_run("SELECT $2 || jsonb_build_object('placements', (SELECT jsonb_agg(jsonb_build_object('node_id', n.node_id, 'placement', "
					"jsonb_build_object("
					"   'from', $1->>'from', 'group_id', g.group_id, 'epoch', g.epoch, 'term', (SELECT i.term FROM tessera.identity AS i), 'major', "
					"coalesce(o.major, 0))))"
					"  FROM tessera.node AS n LEFT JOIN (SELECT c.node_id, max(c.major) AS major FROM tessera.chunk AS c WHERE c.group_id = "
					"($1->>'group_id')::uuid   GROUP BY c.node_id) AS o USING (node_id) WHERE n.is_shard OR n.node_id = ($1->>'self')::int4))"
					" FROM tessera.table_group AS g WHERE g.group_id = ($1->>'group_id')::uuid", SPI_OK_SELECT, 2, (Oid[]) {JSONBOID, JSONBOID},
					(Datum[]) {spec, answer}, NULL);
	old = MemoryContextSwitchTo(caller);
	result = PointerGetDatum(PG_DETOAST_DATUM_COPY(spi_row_value(0, 1)));
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * internal_merge_group(spec jsonb) returns jsonb: a table that is alone in its group joins another one of like key and owners, and its own is gone.
 * spec: table_id, object, by, term, from, from_epoch, group_id, epoch, self. The version of the group is raised for every owner: who goes by the one
 * before does not know of the table. Returns group, table, and what each shard has to do. ERROR TS002: owners differ, or something was changed;
 * 55006: a migration runs; 55P03.
 */
Datum
tessera_internal_merge_group(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	TesseraGroupRow from;
	TesseraGroupRow target;
	Datum		result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(field(spec, "term")));
	run_jsonb("LOCK TABLE tessera.node IN SHARE MODE", SPI_OK_UTILITY, spec);
	lock_both(spec, &from, &target);
	lock_member(spec);
	require_alike(spec, &from, &target);

	run_jsonb("UPDATE tessera.cluster_table SET group_id = ($1->>'group_id')::uuid WHERE table_id = ($1->>'table_id')::uuid"
			  " RETURNING coalesce(to_regclass(format('%I.%I', schema_name, table_name))::oid, 0::oid)", SPI_OK_UPDATE_RETURNING, spec);
	relid = DatumGetObjectId(spi_row_value(0, 1));
	tessera_group_raise(&target);
	run_jsonb("DELETE FROM tessera.table_group WHERE group_id = ($1->>'from')::uuid", SPI_OK_DELETE, spec);
	result = with_merges(describe(UUIDPGetDatum(&target.group_id), uuid_field(spec, "table_id"), true, false, CurrentMemoryContext), spec, caller);
	tessera_changelog_add("shard_table", field(spec, "object"), field(spec, "by"), NULL, JsonbToCString(NULL, &DatumGetJsonbP(spec)->root, -1));
	tessera_spi_end(&spi);
	table_changed(relid);
	tessera_injection("config_merged");
	PG_RETURN_DATUM(result);
}

/* internal_describe_group(group_id uuid, table_id uuid) returns jsonb: group, table and all chunks, for a node that lacks them. */
Datum
tessera_internal_describe_group(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Datum		result;

	tessera_spi_begin(&spi);
	result = describe(PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), true, false, caller);
	tessera_spi_end(&spi);
	PG_RETURN_DATUM(result);
}


/* Copies on the shards */

/*
 * A copy of the group that is older than what comes with all chunks is replaced whole, so that rows of two versions do not mix: a table that has
 * joined with rows must not be looked for by the versions of before.
 */
static void
replace_older_copy(Datum spec)
{
	if (run_jsonb("UPDATE tessera.table_group AS g SET group_major = n.group_major, group_minor = n.group_minor"
				  " FROM jsonb_populate_record(NULL::tessera.table_group, $1->'group') AS n WHERE g.group_id = n.group_id AND g.epoch = n.epoch"
				  " AND (g.group_major, g.group_minor) < (n.group_major, n.group_minor) AND jsonb_typeof($1->'chunks') = 'array'",
				  SPI_OK_UPDATE, spec) == 0)
		return;
	run_jsonb("DELETE FROM tessera.chunk WHERE group_id = ($1->'group'->>'group_id')::uuid", SPI_OK_DELETE, spec);
	run_jsonb("INSERT INTO tessera.chunk SELECT * FROM jsonb_populate_recordset(NULL::tessera.chunk, $1->'chunks')", SPI_OK_INSERT, spec);
}

/* Group and chunks, if the node has not got them, or, where all chunks come along, has older ones. false: it needs the chunks. */
static bool
apply_group_rows(Datum spec)
{
	if (run_jsonb("SELECT 1 FROM tessera.table_group WHERE group_id = ($1->'group'->>'group_id')::uuid", SPI_OK_SELECT, spec) > 0)
	{
		replace_older_copy(spec);
		return true;
	}
	if (run_jsonb("SELECT 1 WHERE jsonb_typeof($1->'chunks') = 'array'", SPI_OK_SELECT, spec) == 0)
		return false;
	run_jsonb("INSERT INTO tessera.table_group SELECT * FROM jsonb_populate_record(NULL::tessera.table_group, $1->'group')", SPI_OK_INSERT, spec);
	run_jsonb("INSERT INTO tessera.chunk SELECT * FROM jsonb_populate_recordset(NULL::tessera.chunk, $1->'chunks')", SPI_OK_INSERT, spec);
	return true;
}

/*
 * internal_apply_group(spec jsonb) returns bool: puts what the config node wrote into this node's catalog. Again does no harm. false: chunks are
 * needed.
 */
Datum
tessera_internal_apply_group(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	TesseraSpi	spi;
	Oid			relid = InvalidOid;
	bool		known;

	tessera_spi_begin(&spi);
	known = apply_group_rows(spec);
	if (known)
	{
		run_jsonb("DELETE FROM tessera.cluster_table AS t USING jsonb_populate_record(NULL::tessera.cluster_table, $1->'table') AS n"
				  " WHERE t.schema_name = n.schema_name AND t.table_name = n.table_name AND t.table_id <> n.table_id", SPI_OK_DELETE, spec);
		run_jsonb("INSERT INTO tessera.cluster_table (table_id, schema_name, table_name, relid, group_id, key_columns)"
				  " SELECT n.table_id, n.schema_name, n.table_name, to_regclass(format('%I.%I', n.schema_name, n.table_name))::oid, n.group_id,"
				  "   n.key_columns FROM jsonb_populate_record(NULL::tessera.cluster_table, $1->'table') AS n"
				  " ON CONFLICT (table_id) DO UPDATE SET relid = excluded.relid, group_id = excluded.group_id, key_columns = excluded.key_columns"
				  " RETURNING coalesce(relid, 0::oid)", SPI_OK_INSERT_RETURNING, spec);
		relid = DatumGetObjectId(spi_row_value(0, 1));
	}
	tessera_spi_end(&spi);
	table_changed(relid);
	PG_RETURN_BOOL(known);
}

/*
 * internal_set_placement(spec jsonb) returns void: this shard owns these ranges of a new group. spec: group_id, epoch, term, major, owned (min, max).
 */
Datum
tessera_internal_set_placement(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	TesseraSpi	spi;
	TesseraPlacementRow *row;
	pg_uuid_t	group_id;

	tessera_spi_begin(&spi);
	group_id = *DatumGetUUIDP(uuid_field(spec, "group_id"));
	row = tessera_placement_lock(&group_id);
	row->epoch = *DatumGetUUIDP(uuid_field(spec, "epoch"));
	row->term = pg_strtoint64(field(spec, "term"));
	row->major = pg_strtoint64(field(spec, "major"));
	row->nowned = run_jsonb("SELECT o.min, o.max FROM jsonb_to_recordset($1->'owned') AS o(min tessera.bound, max tessera.bound)",
							SPI_OK_SELECT, spec);
	row->owned = palloc(sizeof(TesseraRange) * Max(row->nowned, 1));
	for (int i = 0; i < row->nowned; i++)
	{
		row->owned[i].min = DatumGetTesseraBoundP(spi_row_value(i, 1));
		row->owned[i].max = DatumGetTesseraBoundP(spi_row_value(i, 2));
	}
	tessera_placement_write(row);
	tessera_spi_end(&spi);
	PG_RETURN_VOID();
}

/* ERROR 55006 if a migration of the group, or rows that one has left, are not done with on this shard. from: its placement, or NULL. */
static void
require_settled(Datum spec, const TesseraPlacementRow *from, const TesseraPlacementRow *target)
{
	if ((from != NULL && (from->ndeletions > 0 || from->has_migration)) || (target != NULL && target->has_migration) ||
		run_jsonb("SELECT 1 FROM tessera.migration_coordinator WHERE group_id IN (($1->>'from')::uuid, ($1->>'group_id')::uuid)"
				  " UNION ALL SELECT 1 FROM tessera.migration_recipient WHERE group_id IN (($1->>'from')::uuid, ($1->>'group_id')::uuid)",
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

	if (ks == NULL || from == NULL || memcmp(&target->epoch, DatumGetUUIDP(uuid_field(spec, "epoch")), sizeof(pg_uuid_t)) != 0 ||
		!owns_all_of(ks, from, target) || !owns_all_of(ks, target, from))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the same ranges of both table groups")));
	target->major = Max(target->major, major);
	target->term = Max(target->term, pg_strtoint64(field(spec, "term")));
	tessera_placement_write(target);
}

/* The row of a group's placement, locked; NULL: there is none. */
static TesseraPlacementRow *
lock_existing(const pg_uuid_t *group_id)
{
	return tessera_placement_read(group_id, NULL) != NULL ? tessera_placement_lock(group_id) : NULL;
}

/*
 * internal_merge_placement(spec jsonb) returns void: on a shard, after internal_apply_group: the group from is gone, the table's rows are of group
 * group_id, with shard version major (0: this shard owns nothing of either). spec: from, group_id, epoch, term, major. The table is locked, so
 * nobody goes by the old placement any more. ERROR TS002 if the two placements do not own the same, 55006 if one of them is not at rest, TS003 for a
 * term that is over.
 */
Datum
tessera_internal_merge_placement(PG_FUNCTION_ARGS)
{
	Datum		spec = PG_GETARG_DATUM(0);
	TesseraSpi	spi;
	TesseraPlacementRow *from;
	TesseraPlacementRow *target;
	pg_uuid_t	target_id;
	int64		major;

	/* against a promoted config node that asks what this shard owns */
	LockRelationOid(tessera_catalog_relid(TESSERA_PLACEMENT), RowExclusiveLock);
	tessera_spi_begin(&spi);
	if (pg_strtoint64(field(spec, "term")) < tessera_routing()->promised_term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("the config node's term is over")));
	target_id = *DatumGetUUIDP(uuid_field(spec, "group_id"));
	from = lock_existing(DatumGetUUIDP(uuid_field(spec, "from")));
	target = lock_existing(&target_id);
	require_settled(spec, from, target);
	major = pg_strtoint64(field(spec, "major"));
	if (target != NULL && (major > 0 || target->nowned > 0))
		raise_target(spec, from, target, major);
	else if (major > 0 || (from != NULL && from->nowned > 0))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("this shard does not own the same ranges of both table groups")));
	run_jsonb("DELETE FROM tessera.placement WHERE group_id = ($1->>'from')::uuid", SPI_OK_DELETE, spec);
	/* where internal_apply_group has found no group to join, the table stays in its own until this node refreshes */
	run_jsonb("DELETE FROM tessera.table_group AS g WHERE g.group_id = ($1->>'from')::uuid"
			  " AND NOT EXISTS (SELECT FROM tessera.cluster_table AS t WHERE t.group_id = g.group_id)", SPI_OK_DELETE, spec);
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	tessera_injection("placement_merged");
	PG_RETURN_VOID();
}
