/*
 * group_changes.c
 *	  Changes of table groups on the config node: a table gets a group of its own, joins another one, or leaves its own for another one.
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
 * Locks: the table in SHARE ROW EXCLUSIVE on its primary shard; on the config node its owner (owner_limits.c), the registry in SHARE (no shard comes
 * or goes, no promoted server registers), the table's row, and the row of the group that is joined. A crash before the decision leaves nothing, after
 * it everything: that is the distributed transaction's business.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"

#include "catalog/change.h"
#include "catalog/group_spec.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "config/authority.h"
#include "config/chunks.h"
#include "config/owner_limits.h"
#include "control/calls.h"
#include "routing/owner_differences.h"

#define MERGE_LOCK_TIMEOUT "500ms"
#define CHUNKS_PER_ANSWER 50000	/* some 15 MB as text */


/* Locks the row of the table that is to be sharded, and checks that all is as the caller saw it. */
static void
lock_table_row(Datum spec)
{
	bool		isnull;

	spec_run("LOCK TABLE tessera.node IN SHARE MODE", SPI_OK_UTILITY, spec);
	if (spec_run("SELECT t.group_id, p.node_id = ($1->>'primary')::int4 FROM tessera.cluster_table AS t"
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

/* Under the lock of the owner, so that what two sessions ask for at once is counted together. */
static void
require_owner_limits(Datum spec)
{
	TesseraOwnerRequest request = {.table = spec_field(spec, "object"),.by = spec_field(spec, "by")};

	spec_run("SELECT jsonb_array_length($1->'points') + 1, coalesce(($1->>'max_chunk_size')::int8, 0), coalesce(($1->>'apart')::bool, false)",
			 SPI_OK_SELECT, spec);
	request.chunks = DatumGetInt32(spi_row_value(0, 1));
	request.max_chunk_size = DatumGetInt64(spi_row_value(0, 2));
	request.apart = DatumGetBool(spi_row_value(0, 3));
	tessera_owner_limits_require(&request, true);
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

/* In the caller's context, what the command of SPI has returned. */
static Datum
returned(MemoryContext caller)
{
	MemoryContext old = MemoryContextSwitchTo(caller);
	Datum		result = PointerGetDatum(PG_DETOAST_DATUM_COPY(spi_row_value(0, 1)));

	MemoryContextSwitchTo(old);
	return result;
}

/* Chunks of group g above the version $2|$3, and the last one's version; in order of versions, so that each portion is read by the index alone. */
#define PORTION \
	"(SELECT jsonb_agg(to_jsonb(c) ORDER BY c.major, c.minor) AS chunks, max(ARRAY[c.major, c.minor]) AS last" \
	" FROM (SELECT * FROM tessera.chunk AS c WHERE c.group_id = $1 AND (c.major, c.minor) > ($2, $3)" \
	" ORDER BY c.major, c.minor FETCH FIRST " CppAsString2(CHUNKS_PER_ANSWER) " ROWS WITH TIES) AS c) AS p"
/* That version, if there are chunks behind it. */
#define MORE "CASE WHEN (p.last[1], p.last[2]) < (g.group_major, g.group_minor) THEN p.last END"

/* Group and chunks above a version, as described above; between tessera_spi_begin and _end, result in the caller's context. */
static Datum
describe_chunks(Datum group_id, int64 major, int64 minor, MemoryContext caller)
{
	if (tessera_spi_run("SELECT jsonb_build_object('group', jsonb_build_object('group_id', g.group_id), 'chunks', p.chunks, 'more', " MORE ")"
						" FROM tessera.table_group AS g, " PORTION " WHERE g.group_id = $1", SPI_OK_SELECT, 3, (Oid[]) {UUIDOID, INT8OID, INT8OID},
						(Datum[]) {group_id, Int64GetDatum(major), Int64GetDatum(minor)}, NULL) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table or its group is gone")));
	return returned(caller);
}

/*
 * The group and the table as JSON, for internal_apply_group: with chunks, as many as fit, and how far they go if there are more; with the placements
 * of a new group, each one range. Between tessera_spi_begin and _end, result in the caller's context.
 */
static Datum
describe(Datum group_id, Datum table_id, bool chunks, bool placements, MemoryContext caller)
{
	Datum		portion = chunks ? describe_chunks(group_id, -1, 0, CurrentMemoryContext) : (Datum) 0;

	if (tessera_spi_run("SELECT coalesce($3, '{}') || jsonb_build_object('group', to_jsonb(g), 'table', to_jsonb(t) - 'relid',"
						" 'placements', CASE WHEN $4 THEN (SELECT jsonb_agg(jsonb_build_object('node_id', o.node_id, 'placement', jsonb_build_object("
						"   'group_id', g.group_id, 'epoch', g.epoch, 'term', (SELECT i.term FROM tessera.identity AS i), 'major', g.group_major,"
						"   'owned', jsonb_build_array(jsonb_build_object('min', o.min, 'max', o.max))))) FROM"
						"   (SELECT f.node_id, f.min, l.max FROM (SELECT DISTINCT ON (c.node_id) c.node_id, c.min FROM tessera.chunk AS c"
						"       WHERE c.group_id = g.group_id ORDER BY c.node_id, c.minor) AS f"
						"     JOIN (SELECT DISTINCT ON (c.node_id) c.node_id, c.max FROM tessera.chunk AS c"
						"       WHERE c.group_id = g.group_id ORDER BY c.node_id, c.minor DESC) AS l USING (node_id)) AS o) END)"
						" FROM tessera.table_group AS g, tessera.cluster_table AS t WHERE g.group_id = $1 AND t.table_id = $2", SPI_OK_SELECT, 4,
						(Oid[]) {UUIDOID, UUIDOID, JSONBOID, BOOLOID}, (Datum[]) {group_id, table_id, portion, BoolGetDatum(placements)},
						(bool[]) {false, false, portion == 0, false}) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table or its group is gone")));
	return returned(caller);
}

/* What the changelog keeps of a new group: the number of its chunks rather than each one's bounds. */
static void
log_new_group(Datum spec, Datum group_id)
{
	char	   *kept;

	spec_run("SELECT ($1 - 'points') || jsonb_build_object('chunks', jsonb_array_length($1->'points') + 1)", SPI_OK_SELECT, spec);
	kept = spi_row_text(0, 1);
	tessera_changelog_add("shard_table", spec_field(spec, "object"), DatumGetUUIDP(group_id), spec_field(spec, "by"), NULL, kept);
}

/*
 * Makes the group of a table. spec: table_id, object, by, term, primary, strategy, key_types,
 * key_collations, key_columns, max_chunk_size (or null), balancing (or not there: true), points (inner bounds of the
 * chunks, in key order), spread (over all active shards, else all are the primary's), apart (or not there: false; it is to join another group).
 * Returns group, table, placements, and chunks, with how far they
 * go if there are more.
 */
Jsonb *
tessera_serve_create_group(const TesseraCreateGroupArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Datum		group_id,
				result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(spec_field(spec, "term")));
	require_owner_limits(spec);
	lock_table_row(spec);

	spec_run("INSERT INTO tessera.table_group (group_id, epoch, ts, group_major, group_minor, strategy, key_types, key_collations, max_chunk_size, "
			 "balancing) VALUES (gen_random_uuid(), gen_random_uuid(), now(), 1, jsonb_array_length($1->'points'), $1->>'strategy',"
			 " ARRAY(SELECT jsonb_array_elements_text($1->'key_types')), ARRAY(SELECT jsonb_array_elements_text($1->'key_collations')),"
			 " coalesce(($1->>'max_chunk_size')::int8, (SELECT value::int8 FROM tessera.setting WHERE name = 'max_chunk_size'), 134217728),"
			 " coalesce(($1->>'balancing')::bool, true))"
			 " RETURNING group_id", SPI_OK_INSERT_RETURNING, spec);
	group_id = UUIDPGetDatum(DatumGetUUIDP(spi_row_value(0, 1)));

	/* neighbours in key order go to one shard, so that each owns one range */
	tessera_spi_run("INSERT INTO tessera.chunk (group_id, min, max, node_id, major, minor)"
					" SELECT $2, c.min, c.max, CASE WHEN s.spread THEN s.nodes[1 + c.nr * cardinality(s.nodes) / s.n] ELSE s.home END, 1, c.nr"
					" FROM (SELECT lag(e.point, 1, 'MINKEY') OVER (ORDER BY e.nr) AS min, e.point AS max, e.nr - 1 AS nr"
					"     FROM ROWS FROM (jsonb_to_recordset(($1->'points') || '[{\"point\": \"MAXKEY\"}]') AS (point tessera.bound))"
					"       WITH ORDINALITY AS e(point, nr)) AS c,"
					"   (SELECT ARRAY(SELECT node_id FROM tessera.node WHERE is_shard AND NOT draining ORDER BY node_id) AS nodes,"
					"     jsonb_array_length($1->'points') + 1 AS n, ($1->>'spread')::bool AS spread, ($1->>'primary')::int4 AS home) AS s",
					SPI_OK_INSERT, 2, (Oid[]) {JSONBOID, UUIDOID}, (Datum[]) {spec, group_id}, NULL);
	relid = write_table_row(spec, group_id);
	result = describe(group_id, spec_uuid(spec, "table_id"), true, true, caller);
	log_new_group(spec, group_id);
	tessera_spi_end(&spi);
	spec_table_changed(relid);
	return DatumGetJsonbP(result);
}

/*
 * Makes the table one more of a group. spec: table_id, object, by, term, primary, key_columns,
 * group_id, epoch, has_rows. Returns group and table.
 */
Jsonb *
tessera_serve_join_group(const TesseraJoinGroupArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	TesseraGroupRow group;
	Datum		result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(spec_field(spec, "term")));
	lock_table_row(spec);
	tessera_group_lock(DatumGetUUIDP(spec_uuid(spec, "group_id")), &group);
	if (memcmp(&group.epoch, DatumGetUUIDP(spec_uuid(spec, "epoch")), sizeof(pg_uuid_t)) != 0)
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
				 errmsg("table %s has rows, and chunks of the group have moved to other shards meanwhile", spec_field(spec, "object")),
				 errhint("Try again.")));

	relid = write_table_row(spec, UUIDPGetDatum(&group.group_id));
	result = describe(UUIDPGetDatum(&group.group_id), spec_uuid(spec, "table_id"), false, false, caller);
	tessera_changelog_add("shard_table", spec_field(spec, "object"), &group.group_id, spec_field(spec, "by"), NULL,
						  JsonbToCString(NULL, &DatumGetJsonbP(spec)->root, -1));
	tessera_spi_end(&spi);
	spec_table_changed(relid);
	return DatumGetJsonbP(result);
}

/* What a merge asks of the two groups, both locked; ids in order, so that two merges do not meet. */
static void
lock_both(Datum spec, TesseraGroupRow *from, TesseraGroupRow *target)
{
	pg_uuid_t	from_id = *DatumGetUUIDP(spec_uuid(spec, "from"));
	pg_uuid_t	target_id = *DatumGetUUIDP(spec_uuid(spec, "group_id"));
	pg_uuid_t	from_epoch = *DatumGetUUIDP(spec_uuid(spec, "from_epoch"));
	pg_uuid_t	target_epoch = *DatumGetUUIDP(spec_uuid(spec, "epoch"));

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
	if (spec_run("SELECT 1 FROM tessera.cluster_table AS t WHERE t.table_id = ($1->>'table_id')::uuid AND t.group_id = ($1->>'from')::uuid FOR "
				 "UPDATE", SPI_OK_SELECT, spec) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table was dropped, or has joined another table group meanwhile"),
				 errhint("Try again.")));
	if (spec_run("SELECT format('%I.%I', t.schema_name, t.table_name) FROM tessera.cluster_table AS t"
				 " WHERE t.table_id <> ($1->>'table_id')::uuid AND t.group_id = ($1->>'from')::uuid LIMIT 1", SPI_OK_SELECT, spec) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table %s is colocated with table %s", spec_field(spec, "object"), spi_row_text(0, 1)),
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
		spec_run("SELECT 1 FROM tessera.table_group AS f, tessera.table_group AS g WHERE f.group_id = ($1->>'from')::uuid AND g.group_id = "
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
 * A table that is alone in its group joins another one of like key and owners, and its own is gone.
 * spec: table_id, object, by, term, from, from_epoch, group_id, epoch, self. The version of the group is raised for every owner: who goes by the one
 * before does not know of the table. Returns group, table, and what each shard has to do. ERROR TS002: owners differ, or something was changed;
 * 55006: a migration runs; 55P03.
 */
Jsonb *
tessera_serve_merge_group(const TesseraMergeGroupArgs *args)
{
	Datum		spec = JsonbPGetDatum(args->spec);
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	TesseraGroupRow from;
	TesseraGroupRow target;
	Datum		result;
	Oid			relid;

	tessera_spi_begin(&spi);
	tessera_config_routing(pg_strtoint64(spec_field(spec, "term")));
	spec_run("LOCK TABLE tessera.node IN SHARE MODE", SPI_OK_UTILITY, spec);
	lock_both(spec, &from, &target);
	lock_member(spec);
	require_alike(spec, &from, &target);

	spec_run("UPDATE tessera.cluster_table SET group_id = ($1->>'group_id')::uuid WHERE table_id = ($1->>'table_id')::uuid"
			 " RETURNING coalesce(to_regclass(format('%I.%I', schema_name, table_name))::oid, 0::oid)", SPI_OK_UPDATE_RETURNING, spec);
	relid = DatumGetObjectId(spi_row_value(0, 1));
	tessera_group_raise(&target);
	spec_run("DELETE FROM tessera.table_group WHERE group_id = ($1->>'from')::uuid", SPI_OK_DELETE, spec);
	result = with_merges(describe(UUIDPGetDatum(&target.group_id), spec_uuid(spec, "table_id"), true, false, CurrentMemoryContext), spec, caller);
	tessera_changelog_add("shard_table", spec_field(spec, "object"), &target.group_id, spec_field(spec, "by"), NULL,
						  JsonbToCString(NULL, &DatumGetJsonbP(spec)->root, -1));
	tessera_spi_end(&spi);
	spec_table_changed(relid);
	tessera_injection("config_merged");
	return DatumGetJsonbP(result);
}

/* Group, table and chunks, or the first of them, for a node that lacks them. */
Jsonb *
tessera_serve_describe_group(const TesseraDescribeGroupArgs *args)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Datum		result;

	tessera_spi_begin(&spi);
	result = describe(UUIDPGetDatum(args->group_id), UUIDPGetDatum(args->table_id), true, false, caller);
	tessera_spi_end(&spi);
	return DatumGetJsonbP(result);
}

/* More chunks, for a node that has got those up to a version. */
Jsonb *
tessera_serve_describe_chunks(const TesseraDescribeChunksArgs *args)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	Datum		result;

	tessera_spi_begin(&spi);
	result = describe_chunks(UUIDPGetDatum(args->group_id), args->major, args->minor, caller);
	tessera_spi_end(&spi);
	return DatumGetJsonbP(result);
}
