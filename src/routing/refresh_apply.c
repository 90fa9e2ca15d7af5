/*
 * refresh_apply.c
 *	  The refresher's dealings with the catalog of this node: what is known, and writing what is newer.
 *
 * The rows of an answer come in an order in which they can be written. Small tables come whole when their digests differ; a group's chunks come
 * whole, or only those above the version that this node has. Then a chunk replaces what it overlaps: as split, merge and move give each piece a new
 * version, any chunk here whose lower bound lies inside an incoming one is gone. Order of bounds is that of the key's types, so this goes by
 * the chunk map of the image from which `known` was made; the group's row is locked and must still have that version. Whether the outcome is
 * sound is seen from the private image that shows it; if it is not, the group is fetched whole.
 *
 * Everything happens in the caller's transaction. Only copies of the config node's rows are written: never coordinator, recipient, decision, identity
 * but for its term, or placement but for its version.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/fmgrprotos.h"
#include "utils/uuid.h"

#include "catalog/change.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi.h"
#include "common/text.h"
#include "routing/image.h"
#include "routing/refresh.h"


/* What this node has */

static bool
is_listed(List *ids, const pg_uuid_t *id)
{
	ListCell   *cell;

	foreach(cell, ids)
		if (memcmp(lfirst(cell), id, sizeof(pg_uuid_t)) == 0)
			return true;
	return false;
}

static void
remember(List **ids, const pg_uuid_t *id, MemoryContext context)
{
	MemoryContext caller = MemoryContextSwitchTo(context);

	*ids = lappend(*ids, memcpy(palloc(sizeof(pg_uuid_t)), id, sizeof(pg_uuid_t)));
	MemoryContextSwitchTo(caller);
}

char *
tessera_refresh_known(TesseraRefresh *refresh)
{
	const TesseraRouting *routing = refresh->routing;
	StringInfoData known;
	TesseraSpi	spi;
	bool		first = true;

	initStringInfo(&known);
	appendStringInfo(&known, "{\"cluster_id\": \"%s\", \"term\": " INT64_FORMAT ", \"groups\": {", tessera_uuid_text(&routing->cluster_id),
					 routing->term);
	for (int i = 0; i < routing->ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);
		const TesseraChunkMap *map = tessera_group_map(group);

		/* S10: what cannot be patched is fetched whole */
		if (map == NULL || !map->sound || is_listed(refresh->distrusted, &group->group_id))
			continue;
		appendStringInfo(&known, "%s\"%s\": [\"%s\", " INT64_FORMAT ", " INT64_FORMAT "]", first ? "" : ", ", tessera_uuid_text(&group->group_id),
						 tessera_uuid_text(&group->epoch), group->group_major, group->group_minor);
		first = false;
	}
	appendStringInfoString(&known, "}, \"digests\": ");

	tessera_spi_begin(&spi);
	tessera_spi_run_saved("SELECT tessera_internal.catalog_digests()", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	appendStringInfoString(&known, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&spi);

	appendStringInfoChar(&known, '}');
	return known.data;
}


/* Writing */

/* Statement with the row's JSON as $1 and the group's id as $2; its plan is kept. */
static uint64
write_rows(TesseraRefresh *refresh, const char *sql, int expected, Datum json, Datum group_id)
{
	Oid			types[2] = {JSONBOID, UUIDOID};
	Datum		values[2] = {json, group_id};
	bool		nulls[2] = {DatumGetPointer(json) == NULL, DatumGetPointer(group_id) == NULL};
	uint64		rows = tessera_spi_run_saved(sql, expected, 2, types, values, nulls);

	if (expected != SPI_OK_SELECT && rows > 0)
		refresh->changed = true;
	return rows;
}

/* An UPDATE that finds no row would count as a change of the catalog all the same: so it is only run if there is something to change. */
static void
apply_source(TesseraRefresh *refresh, Datum json)
{
	bool		isnull;

	if (write_rows(refresh, "SELECT promised_term > ($1->>'term')::int8, term < ($1->>'term')::int8 FROM tessera.identity", SPI_OK_SELECT, json,
				   (Datum) 0) != 1)
		return;
	if (DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("the config node's term is older than one that this node has seen"),
				 errhint("Another server was promoted in its place, and has not compared its catalog with all shards yet.")));
	if (DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull)))
		write_rows(refresh, "UPDATE tessera.identity SET term = ($1->>'term')::int8 WHERE term < ($1->>'term')::int8", SPI_OK_UPDATE, json,
				   (Datum) 0);
	/* an earlier version says none; as it is no part of the image, nothing has changed for that */
	tessera_spi_run("UPDATE tessera.topology SET changed = ($1->>'topology')::int8 WHERE changed < ($1->>'topology')::int8", SPI_OK_UPDATE, 1,
					(Oid[]) {JSONBOID}, &json, NULL);
}

static void
apply_nodes(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "DELETE FROM tessera.node n WHERE NOT EXISTS"
			   " (SELECT FROM jsonb_populate_recordset(NULL::tessera.node, $1) i WHERE i.node_id = n.node_id AND i.name = n.name)",
			   SPI_OK_DELETE, json, (Datum) 0);
	write_rows(refresh, "INSERT INTO tessera.node AS n SELECT * FROM jsonb_populate_recordset(NULL::tessera.node, $1)"
			   " ON CONFLICT (node_id) DO UPDATE SET conninfo = excluded.conninfo, is_shard = excluded.is_shard, is_config = excluded.is_config,"
			   "  draining = excluded.draining, system_id = excluded.system_id, database = excluded.database, timeline = excluded.timeline,"
			   "  incarnation = greatest(n.incarnation, excluded.incarnation), added = excluded.added,"
			   "  server_start = excluded.server_start"
			   " WHERE (n.conninfo, n.is_shard, n.is_config, n.draining, n.system_id, n.database, n.timeline, n.added, n.server_start) IS DISTINCT "
			   "FROM  (excluded.conninfo, excluded.is_shard, excluded.is_config, excluded.draining, excluded.system_id, excluded.database,"
			   "   excluded.timeline, excluded.added, excluded.server_start) OR n.incarnation < excluded.incarnation",
			   SPI_OK_INSERT, json, (Datum) 0);
}

static void
apply_schemas(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "DELETE FROM tessera.schema_placement s WHERE NOT EXISTS"
			   " (SELECT FROM jsonb_populate_recordset(NULL::tessera.schema_placement, $1) i WHERE i IS NOT DISTINCT FROM s)",
			   SPI_OK_DELETE, json, (Datum) 0);
	write_rows(refresh, "INSERT INTO tessera.schema_placement SELECT * FROM jsonb_populate_recordset(NULL::tessera.schema_placement, $1)"
			   " ON CONFLICT DO NOTHING",
			   SPI_OK_INSERT, json, (Datum) 0);
}

/* A row with an older version than this node's own is ignored: otherwise two nodes could take themselves for a slot's home. */
static void
apply_advisory_homes(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "INSERT INTO tessera.advisory_home AS a SELECT * FROM jsonb_populate_recordset(NULL::tessera.advisory_home, $1)"
			   " ON CONFLICT (slot) DO UPDATE SET node_id = excluded.node_id, version = excluded.version WHERE a.version < excluded.version",
			   SPI_OK_INSERT, json, (Datum) 0);
}

/* They never change, and none goes. */
static void
apply_keys(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "INSERT INTO tessera.signing_key SELECT * FROM jsonb_populate_recordset(NULL::tessera.signing_key, $1)"
			   " ON CONFLICT (key_id) DO NOTHING", SPI_OK_INSERT, json, (Datum) 0);
}

/* A row of before its fields are read: a node of an earlier version says nothing of copies. */
#define NEW_TABLE "ROW(NULL, NULL, NULL, NULL, NULL, NULL, false)::tessera.cluster_table"

static void
apply_tables(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "DELETE FROM tessera.cluster_table t WHERE NOT EXISTS"
			   " (SELECT FROM jsonb_populate_recordset(" NEW_TABLE ", $1) i"
			   "  WHERE (i.table_id, i.schema_name, i.table_name, i.replicated) = (t.table_id, t.schema_name, t.table_name, t.replicated)"
			   "   AND i.group_id IS NOT DISTINCT FROM t.group_id AND i.key_columns IS NOT DISTINCT FROM t.key_columns)",
			   SPI_OK_DELETE, json, (Datum) 0);
	write_rows(refresh, "INSERT INTO tessera.cluster_table SELECT * FROM jsonb_populate_recordset(" NEW_TABLE ", $1)"
			   " ON CONFLICT (table_id) DO NOTHING",
			   SPI_OK_INSERT, json, (Datum) 0);
}

static void
apply_groups(TesseraRefresh *refresh, Datum json)
{
	write_rows(refresh, "DELETE FROM tessera.table_group g WHERE NOT EXISTS"
			   " (SELECT FROM jsonb_populate_recordset(NULL::tessera.table_group, $1) i WHERE i.group_id = g.group_id)",
			   SPI_OK_DELETE, json, (Datum) 0);
	write_rows(refresh, "UPDATE tessera.table_group g SET ts = i.ts, max_chunk_size = i.max_chunk_size, balancing = i.balancing,"
			   "  allow_migrations = i.allow_migrations"
			   " FROM jsonb_populate_recordset(NULL::tessera.table_group, $1) i WHERE i.group_id = g.group_id"
			   "  AND (g.ts, g.max_chunk_size, g.balancing, g.allow_migrations) IS DISTINCT FROM (i.ts, i.max_chunk_size, i.balancing, "
			   "i.allow_migrations)", SPI_OK_UPDATE, json, (Datum) 0);
}

/* The row of a group whose chunks follow. */
static void
apply_group(TesseraRefresh *refresh, Datum json, const pg_uuid_t *group_id, bool whole)
{
	Datum		id = UUIDPGetDatum(group_id);

	refresh->whole = whole;
	if (whole)
		write_rows(refresh, "DELETE FROM tessera.chunk WHERE group_id = $2", SPI_OK_DELETE, json, id);
	else
	{
		const TesseraGroup *known = tessera_routing_group_by_id(refresh->routing, group_id);
		Oid			types[4] = {UUIDOID, UUIDOID, INT8OID, INT8OID};
		Datum		values[4] = {id, UUIDPGetDatum(&known->epoch), Int64GetDatum(known->group_major), Int64GetDatum(known->group_minor)};

		if (tessera_spi_run_saved("SELECT FROM tessera.table_group WHERE (group_id, epoch, group_major, group_minor) = ($1, $2, $3, $4) FOR UPDATE",
								  SPI_OK_SELECT, 4, types, values, NULL) != 1 || tessera_injection_skips("refresh_unchanged"))
		{
			/* a migration that settles here was faster; or the image was not told of a commit, and is to be made anew before the next attempt */
			tessera_catalog_bump();
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("a table group changed during the refresh")));
		}
		remember(&refresh->patched, group_id, TopTransactionContext);
	}
	write_rows(refresh, "INSERT INTO tessera.table_group SELECT * FROM jsonb_populate_record(NULL::tessera.table_group, $1)"
			   " ON CONFLICT (group_id) DO UPDATE SET epoch = excluded.epoch, ts = excluded.ts, group_major = excluded.group_major,"
			   "  group_minor = excluded.group_minor, strategy = excluded.strategy, key_types = excluded.key_types,"
			   "  key_collations = excluded.key_collations, max_chunk_size = excluded.max_chunk_size, balancing = excluded.balancing,"
			   "  allow_migrations = excluded.allow_migrations",
			   SPI_OK_INSERT, json, id);
}

static void
delete_chunk(TesseraRefresh *refresh, const pg_uuid_t *group_id, TesseraBound *min, Oid bound_type)
{
	Oid			types[2] = {UUIDOID, bound_type};
	Datum		values[2] = {UUIDPGetDatum(group_id), PointerGetDatum(min)};

	tessera_spi_run_saved("DELETE FROM tessera.chunk WHERE group_id = $1 AND min OPERATOR(tessera.=) $2", SPI_OK_DELETE, 2, types, values, NULL);
}

/* Deletes the chunks here that begin inside an incoming one. */
static void
delete_overlapped(TesseraRefresh *refresh, Datum json, const pg_uuid_t *group_id)
{
	const TesseraRouting *routing = refresh->routing;
	const TesseraGroup *group = tessera_routing_group_by_id(routing, group_id);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	uint64		n = write_rows(refresh, "SELECT min, max FROM jsonb_populate_recordset(NULL::tessera.chunk, $1)", SPI_OK_SELECT, json, (Datum) 0);
	SPITupleTable *incoming = SPI_tuptable;

	for (uint64 row = 0; row < n; row++)
	{
		bool		null;
		TesseraKeyBound min;
		TesseraKeyBound max;

		tessera_key_from_bound(ks, DatumGetTesseraBoundP(SPI_getbinval(incoming->vals[row], incoming->tupdesc, 1, &null)), &min);
		tessera_key_from_bound(ks, DatumGetTesseraBoundP(SPI_getbinval(incoming->vals[row], incoming->tupdesc, 2, &null)), &max);
		/* the chunk that holds min keeps its row: it begins at or before min, and is then replaced or cut by another incoming one */
		for (int i = tessera_routing_find_chunk(routing, group, &min) + 1; i < tessera_routing_nchunks(routing, group); i++)
		{
			TesseraChunk chunk;

			tessera_routing_chunk(routing, group, i, &chunk);
			if (tessera_key_compare(ks, &chunk.min, &max) >= 0)
				break;
			delete_chunk(refresh, group_id, tessera_key_to_bound(ks, &chunk.min), SPI_gettypeid(incoming->tupdesc, 1));
		}
	}
}

static void
apply_chunks(TesseraRefresh *refresh, Datum json, const pg_uuid_t *group_id)
{
	if (!refresh->whole)
		delete_overlapped(refresh, json, group_id);
	write_rows(refresh, "INSERT INTO tessera.chunk AS c (group_id, min, max, node_id, major, minor, jumbo, moved, history)"
			   " SELECT $2, min, max, node_id, major, minor, jumbo, moved, history FROM jsonb_populate_recordset(NULL::tessera.chunk, $1)"
			   " ON CONFLICT (group_id, min) DO UPDATE SET max = excluded.max, node_id = excluded.node_id, major = excluded.major,"
			   "  minor = excluded.minor, jumbo = excluded.jumbo, moved = excluded.moved, history = excluded.history"
			   " WHERE (c.major, c.minor) < (excluded.major, excluded.minor)",
			   SPI_OK_INSERT, json, UUIDPGetDatum(group_id));
}

void
tessera_refresh_apply(TesseraRefresh *refresh, const char *kind, const char *group_id, const char *data)
{
	MemoryContext work = AllocSetContextCreate(CurrentMemoryContext, "tessera refresh row", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(work);
	Datum		json = data ? DirectFunctionCall1(jsonb_in, CStringGetDatum(data)) : (Datum) 0;
	pg_uuid_t  *id = group_id ? DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(group_id))) : NULL;
	bool		before = refresh->changed;
	TesseraSpi	spi;

	refresh->changed = false;
	MemoryContextSwitchTo(caller);
	tessera_spi_begin(&spi);
	if (strcmp(kind, "end") == 0)
		refresh->ended = true;
	else if (strcmp(kind, "source") == 0 && data)
		apply_source(refresh, json);
	else if (strcmp(kind, "nodes") == 0 && data)
		apply_nodes(refresh, json);
	else if (strcmp(kind, "schemas") == 0 && data)
		apply_schemas(refresh, json);
	else if (strcmp(kind, "advisory_homes") == 0 && data)
		apply_advisory_homes(refresh, json);
	else if (strcmp(kind, "keys") == 0 && data)
		apply_keys(refresh, json);
	else if (strcmp(kind, "tables") == 0 && data)
		apply_tables(refresh, json);
	else if (strcmp(kind, "groups") == 0 && data)
		apply_groups(refresh, json);
	else if (strcmp(kind, "group") == 0 && data && id)
		apply_group(refresh, json, id, false);
	else if (strcmp(kind, "whole") == 0 && data && id)
		apply_group(refresh, json, id, true);
	else if (strcmp(kind, "chunks") == 0 && id)
	{
		if (data)
			apply_chunks(refresh, json, id);
	}
	else
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unknown kind of row \"%s\" from the config node", kind),
				 errhint("Run the same version of the extension on all nodes.")));
	tessera_spi_end(&spi);
	refresh->lasting |= refresh->changed && strcmp(kind, "group") != 0 && strcmp(kind, "chunks") != 0;
	refresh->changed |= before;
	MemoryContextDelete(work);
}

bool
tessera_refresh_finish(TesseraRefresh *refresh)
{
	const TesseraRouting *routing;
	TesseraSpi	spi;
	ListCell   *cell;
	bool		sound = true;

	tessera_spi_begin(&spi);
	/* as in apply_source */
	if (write_rows(refresh, "SELECT FROM tessera.cluster_table t JOIN pg_namespace n ON n.nspname = t.schema_name"
				   " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name WHERE t.relid IS DISTINCT FROM c.oid LIMIT 1",
				   SPI_OK_SELECT, (Datum) 0, (Datum) 0) > 0)
		write_rows(refresh, "UPDATE tessera.cluster_table t SET relid = c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
				   " WHERE c.relname = t.table_name AND n.nspname = t.schema_name AND t.relid IS DISTINCT FROM c.oid",
				   SPI_OK_UPDATE, (Datum) 0, (Datum) 0);
	tessera_spi_end(&spi);
	if (refresh->patched == NIL)
		return true;

	tessera_catalog_changed();
	routing = tessera_routing();
	foreach(cell, refresh->patched)
	{
		const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, lfirst(cell)) : NULL;
		const TesseraChunkMap *map = group ? tessera_group_map(group) : NULL;

		if (map != NULL && map->sound)
			continue;
		sound = false;
		remember(&refresh->distrusted, lfirst(cell), refresh->context);
	}
	return sound;
}

/*
 * The group of a schema is made on the config node alone, when the schema is to move for the first time: as long as it has not moved, its shard
 * writes its placement record itself, in the transaction in which it hears of the group. No statement is checked by the group before.
 */
static bool
begin_placement(const TesseraRouting *routing, const TesseraGroup *group)
{
	TesseraChunk chunk;

	if (!group->of_schema || group->group_major != 1 || tessera_routing_nchunks(routing, group) != 1)
		return false;
	tessera_routing_chunk(routing, group, 0, &chunk);
	if (chunk.node_id != routing->self)
		return false;
	tessera_placement_begin_schema(routing, group);
	return true;
}

/* Locks a placement row unless another transaction holds it: a fetch must not wait for a migration or a prepared transaction. */
static bool
lock_placement_if_free(const pg_uuid_t *group_id)
{
	Oid			types[1] = {UUIDOID};
	Datum		values[1] = {UUIDPGetDatum(group_id)};
	TesseraSpi	spi;
	bool		locked;

	tessera_spi_begin(&spi);
	locked = tessera_spi_run("SELECT FROM tessera.placement WHERE group_id = $1 FOR UPDATE SKIP LOCKED", SPI_OK_SELECT, 1, types, values, NULL) == 1;
	tessera_spi_end(&spi);
	return locked;
}

bool
tessera_refresh_raise_versions(void)
{
	const TesseraRouting *routing = tessera_routing();
	bool		written = false;

	for (int i = 0; routing != NULL && !routing->placements_unknown && i < routing->ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);
		const TesseraChunkMap *map = tessera_group_map(group);
		const TesseraPlacement *placement;
		TesseraPlacementRow *row;
		bool		newest;

		if ((group->ncolumns == 0 && !group->of_schema) || map == NULL || !map->sound)
			continue;
		placement = tessera_placement_as_of(routing, group, InvalidSnapshot, &newest);
		if (placement == NULL)
			written |= begin_placement(routing, group);
		if (placement == NULL ||
			(placement->term >= routing->term && placement->major >= tessera_routing_shard_major(routing, group, routing->self)) ||
			!lock_placement_if_free(&group->group_id))
			continue;
		row = tessera_placement_lock(&group->group_id);
		if (tessera_placement_raise_version(routing, group, row))
		{
			tessera_placement_write(row);
			written = true;
		}
	}
	return written;
}
