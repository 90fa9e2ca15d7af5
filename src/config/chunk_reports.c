/*
 * chunk_reports.c
 *	  What shards tell the config node of their chunks: estimates of size and load, and that one is too large to be split.
 *
 * Estimates are tessera.chunk_estimate, a table of its own: they change all the time, and neither the mirror nor another node needs them. Each report
 * is whole: it takes the place of the shard's last one for the group. One about a chunk that has moved away since stays until its new owner reports.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "catalog/bound_array.h"
#include "catalog/placement.h"
#include "common/spi_row.h"
#include "config/authority.h"
#include "config/chunks.h"
#include "control/calls.h"

bool
tessera_serve_report_chunks(const TesseraReportChunksArgs *args)
{
	Oid			bounds = get_array_type(tessera_bound_type());
	Oid			types[] = {UUIDOID, INT4OID, bounds, INT8ARRAYOID, FLOAT8ARRAYOID, FLOAT8ARRAYOID, bounds, FLOAT8ARRAYOID};
	Datum		values[] = {
		UUIDPGetDatum(args->group_id), Int32GetDatum(args->node_id), PointerGetDatum(args->mins), PointerGetDatum(args->bytes),
		PointerGetDatum(args->statements), PointerGetDatum(args->loads), PointerGetDatum(args->hot_keys), PointerGetDatum(args->hot_shares)
	};
	TesseraSpi	spi;

	(void) tessera_config_group(tessera_config_routing(0), args->group_id, args->epoch);
	tessera_spi_begin(&spi);
	/* looked up in a hash table of the array, whatever statistics the table has: both may be of a million */
	tessera_spi_run("DELETE FROM tessera.chunk_estimate WHERE group_id = $1 AND node_id = $2 AND min OPERATOR(tessera.<>) ALL ($3)", SPI_OK_DELETE,
					3, types, values, NULL);
	tessera_spi_run("INSERT INTO tessera.chunk_estimate AS e (group_id, node_id, min, bytes, statements, load, hot_key, hot_share)"
					" SELECT $1, $2, r.* FROM unnest($3, $4, $5, $6, $7, $8) AS r (min, bytes, statements, load, hot_key, hot_share)"
					" ON CONFLICT (group_id, min) DO UPDATE SET node_id = excluded.node_id, bytes = excluded.bytes,"
					"  statements = excluded.statements, load = excluded.load, hot_key = excluded.hot_key, hot_share = excluded.hot_share,"
					"  measured = excluded.measured WHERE e.node_id <> excluded.node_id OR abs(e.bytes - excluded.bytes) > e.bytes / 50"
					"  OR abs(e.load - excluded.load) > e.load / 20 + 0.0005 OR abs(e.statements - excluded.statements) > e.statements / 20 + 0.05"
					"  OR"
					"  coalesce(e.hot_key OPERATOR(tessera.<>) excluded.hot_key, (e.hot_key IS NULL) <> (excluded.hot_key IS NULL))",
					SPI_OK_INSERT, 8, types, values, NULL);
	tessera_spi_end(&spi);
	/* a setting of a higher layer; shards have no need of it but where they have something to report */
	return strcmp(GetConfigOption("tessera.balancer_policy", false, false), "load") == 0;
}

bool
tessera_serve_mark_jumbo(const TesseraMarkJumboArgs *args)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	const TesseraGroup *group;
	TesseraGroupRow row;
	TesseraKeySpace *ks;
	TesseraKeyBound position;
	TesseraChunkRow chunk;

	tessera_group_lock(args->group_id, &row);
	group = tessera_config_group(routing, args->group_id, args->epoch);
	ks = tessera_group_keyspace(routing, group);
	tessera_key_from_bound(ks, args->position, &position);
	tessera_chunk_find(&row.group_id, ks, &position, tessera_chunk_hint(routing, group, ks, &position), &chunk);
	if (chunk.node_id != args->node_id || !tessera_chunk_set_jumbo(&row, &chunk, true, args->by, args->object))
		return false;
	if (chunk.node_id == routing->self)
		(void) tessera_placement_raise(&row.group_id, args->epoch, row.major);
	return true;
}
