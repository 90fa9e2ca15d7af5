/*
 * chunk_calls.c
 *	  The config node's part of the commands on chunks (admin/chunk_commands.c): split, merge, jumbo flag, settings of a group.
 *
 * Each is a transaction of its own: the group's row is locked first, then its chunks are read (config/chunks.h). A crash leaves all of it or nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/placement.h"
#include "common/errors.h"
#include "common/spi_row.h"
#include "config/authority.h"
#include "config/chunks.h"
#include "config/round_request.h"
#include "control/calls.h"

/* Locks the group, and checks that it is of the epoch that the caller knows. */
static const TesseraGroup *
lock_group(const pg_uuid_t *group_id, const pg_uuid_t *epoch, int64 term, TesseraGroupRow *row)
{
	const TesseraRouting *routing = tessera_config_routing(term);

	tessera_group_lock(group_id, row);
	return tessera_config_group(routing, group_id, epoch);
}

void
tessera_serve_split(const TesseraSplitArgs *args, TesseraSplitResult *result)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(args->group_id, args->epoch, args->term, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	int			n;
	TesseraBound **bounds = tessera_bounds_of_array(args->points, &n);
	TesseraKeyBound *points = palloc(sizeof(TesseraKeyBound) * Max(n, 1));
	TesseraChunkRow chunk;

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no split points are given")));
	for (int i = 0; i < n; i++)
		tessera_key_from_bound(ks, bounds[i], &points[i]);
	tessera_chunk_split(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &points[0]), n, points, args->by, args->object, &chunk);
	if (chunk.node_id == tessera_routing()->self)
		(void) tessera_placement_raise(&row.group_id, args->epoch, row.major);
	result->node_id = chunk.node_id;
	result->major = row.major;
}

void
tessera_serve_merge(const TesseraMergeArgs *args, TesseraMergeResult *result)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(args->group_id, args->epoch, args->term, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound min,
				max;

	tessera_key_from_bound(ks, args->min, &min);
	tessera_key_from_bound(ks, args->max, &max);
	result->merged = tessera_chunk_merge(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &min), &min, &max, args->by, args->object,
										 &result->node_id);
	if (result->node_id == tessera_routing()->self)
		(void) tessera_placement_raise(&row.group_id, args->epoch, row.major);
	result->major = row.major;
}

bool
tessera_serve_clear_jumbo(const TesseraClearJumboArgs *args)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(args->group_id, args->epoch, args->term, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound position;
	TesseraChunkRow chunk;

	tessera_key_from_bound(ks, args->position, &position);
	tessera_chunk_find(&row.group_id, ks, &position, tessera_chunk_hint(tessera_routing(), group, ks, &position), &chunk);
	if (!tessera_chunk_set_jumbo(&row, &chunk, false, args->by, args->object))
		return false;
	if (chunk.node_id == tessera_routing()->self)
		(void) tessera_placement_raise(&row.group_id, args->epoch, row.major);
	tessera_round_after_commit();
	return true;
}

void
tessera_serve_configure_group(const TesseraConfigureGroupArgs *args)
{
	TesseraGroupRow row;
	TesseraSpi	spi;
	Datum		values[] = {UUIDPGetDatum(args->group_id), BoolGetDatum(args->balancing), Int64GetDatum(args->max_chunk_size)};
	bool		nulls[] = {false, args->balancing_null, args->max_chunk_size_null};
	char	   *before;

	lock_group(args->group_id, args->epoch, args->term, &row);
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size) FROM tessera.table_group WHERE group_id = "
					"$1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, values, NULL);
	before = spi_row_text(0, 1);
	tessera_spi_run("UPDATE tessera.table_group SET balancing = coalesce($2, balancing), max_chunk_size = coalesce($3, max_chunk_size)"
					" WHERE group_id = $1 RETURNING jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size)",
					SPI_OK_UPDATE_RETURNING, 3, (Oid[]) {UUIDOID, BOOLOID, INT8OID}, values, nulls);
	tessera_changelog_add("configure_table", args->object, args->group_id, args->by, before, spi_row_text(0, 1));
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	tessera_round_after_commit();
}
