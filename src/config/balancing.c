/*
 * balancing.c
 *	  What the balancer goes by in the catalog: its switches, zones, weights of shards, and requests that are not wanted any more (config node).
 *
 * Each call is a transaction of its own. Changes of zones are serial by a lock on tessera.zone_range, so that no two ranges overlap.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "catalog/bound_array.h"
#include "common/errors.h"
#include "common/spi_row.h"
#include "common/spi_text.h"
#include "config/authority.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "config/round_request.h"
#include "control/calls.h"

/* Requests */

void
tessera_serve_drop_request(const TesseraDropRequestArgs *args, TesseraDropRequestResult *result)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;

	(void) tessera_config_routing(0);
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.balancer_action SET state = 'dropped', finished = clock_timestamp() WHERE action_id = $1 AND state = 'queued'",
					SPI_OK_UPDATE, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(args->action_id)}, NULL);
	if (tessera_spi_run("SELECT state, CASE WHEN state = 'running' THEN migration_id END FROM tessera.balancer_action WHERE action_id = $1",
						SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(args->action_id)}, NULL) > 0)
	{
		bool		isnull;
		Datum		id = spi_row_datum(0, 2, &isnull);

		result->state = MemoryContextStrdup(caller, spi_row_text(0, 1));
		if (!isnull)
		{
			result->migration_id = MemoryContextAlloc(caller, UUID_LEN);
			*result->migration_id = *DatumGetUUIDP(id);
		}
	}
	tessera_spi_end(&spi);
}


/* Switches */

void
tessera_serve_balancer_switch(const TesseraBalancerSwitchArgs *args)
{
	const char *values[] = {args->name, args->value};
	TesseraSpi	access;
	const char *before;

	(void) tessera_config_routing(0);
	tessera_spi_begin(&access);
	before = tessera_admin_value("SELECT to_jsonb(value) FROM tessera.setting WHERE name = $1", 1, values);
	if (args->value == NULL)
		tessera_admin_exec("DELETE FROM tessera.setting WHERE name = $1", 1, values);
	else
		tessera_admin_exec("INSERT INTO tessera.setting VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value", 2, values);
	tessera_changelog_add(args->name, "cluster", NULL, args->by, before,
						  args->value ? tessera_admin_value("SELECT to_jsonb($2::text) FROM (VALUES ($1)) AS v", 2, values) : NULL);
	tessera_spi_end(&access);
	tessera_round_after_commit();
}


/* Weights */

void
tessera_serve_shard_weight(const TesseraShardWeightArgs *args)
{
	char	   *weight = psprintf("%.17g", args->weight);
	const char *values[] = {NULL, weight};
	TesseraRegistered *node;
	TesseraSpi	access;
	const char *before;

	(void) tessera_config_routing(0);
	tessera_spi_begin(&access);
	node = tessera_registered_or_error(args->shard);
	if (!node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("node \"%s\" is not a shard", args->shard)));
	if (!(args->weight > 0 && args->weight <= 1000000))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the weight of a shard must be above 0, and at most 1000000"),
				 errhint("To empty a shard, remove it: tessera.remove_shard().")));
	values[0] = psprintf("%d", node->node_id);
	before = tessera_admin_value("SELECT to_jsonb(weight) FROM tessera.shard_weight WHERE node_id = $1::int4", 1, values);
	tessera_admin_exec("INSERT INTO tessera.shard_weight VALUES ($1::int4, $2::float8) ON CONFLICT (node_id) DO UPDATE SET weight = excluded.weight",
					   2,
					   values);
	tessera_changelog_add("set_shard_weight", node->name, NULL, args->by, before, weight);
	tessera_spi_end(&access);
	tessera_round_after_commit();
}


/* Zones */

static void
lock_zones(void)
{
	tessera_admin_exec("LOCK TABLE tessera.zone_range IN SHARE ROW EXCLUSIVE MODE", 0, NULL);
}

static void
add_to_zone(const TesseraZoneShardArgs *args)
{
	TesseraRegistered *node = tessera_registered_or_error(args->shard);
	const char *values[] = {args->zone, psprintf("%d", node->node_id)};

	if (!node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("node \"%s\" is not a shard", args->shard)));
	if (tessera_admin_exec("INSERT INTO tessera.zone_shard VALUES ($1, $2::int4) ON CONFLICT DO NOTHING", 2, values) > 0)
		tessera_changelog_add("add_zone", args->zone, NULL, args->by, NULL,
							  tessera_admin_value("SELECT jsonb_build_object('shard', $1)", 1, (const char *[]) {args->shard}));
}

static void
take_out_of_zone(const TesseraZoneShardArgs *args)
{
	const char *values[] = {args->zone, args->shard};

	if (tessera_admin_exec("DELETE FROM tessera.zone_shard AS z WHERE z.zone = $1 AND z.node_id IN (SELECT n.node_id FROM tessera.node AS n"
						   " WHERE n.name = coalesce($2, n.name))", 2, values) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 args->shard != NULL ? errmsg("shard \"%s\" is not in zone \"%s\"", args->shard, args->zone) :
				 errmsg("zone \"%s\" does not exist", args->zone),
				 errhint("tessera.zones lists the zones.")));
	if (tessera_admin_value("SELECT true FROM tessera.zone_range AS r WHERE r.zone = $1 AND NOT EXISTS"
							" (SELECT FROM tessera.zone_shard AS z WHERE z.zone = $1) LIMIT 1", 1, values) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("zone \"%s\" would be left without a shard, but has ranges", args->zone),
				 errhint("Give them up first: tessera.set_zone_range() with zone NULL. tessera.zone_ranges lists them.")));
	tessera_changelog_add("remove_zone", args->zone, NULL, args->by,
						  args->shard ? tessera_admin_value("SELECT jsonb_build_object('shard', $2) FROM (VALUES ($1)) AS v", 2, values) : NULL,
							  NULL);
}

void
tessera_serve_zone_shard(const TesseraZoneShardArgs *args)
{
	TesseraSpi	access;

	(void) tessera_config_routing(0);
	tessera_spi_begin(&access);
	lock_zones();
	if (args->add)
		add_to_zone(args);
	else
		take_out_of_zone(args);
	tessera_spi_end(&access);
	tessera_round_after_commit();
}

/* ERROR 22023 if another range overlaps. */
static void
check_overlap(const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	uint64		n = tessera_spi_run("SELECT min, max, zone FROM tessera.zone_range WHERE group_id = $1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
									(Datum[]) {UUIDPGetDatum(&group->group_id)}, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		TesseraKeyBound low;
		TesseraKeyBound high;

		tessera_key_from_bound(ks, DatumGetTesseraBoundP(spi_row_value(i, 1)), &low);
		tessera_key_from_bound(ks, DatumGetTesseraBoundP(spi_row_value(i, 2)), &high);
		if (tessera_key_compare(ks, min, &high) < 0 && tessera_key_compare(ks, &low, max) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the range overlaps one of zone \"%s\"", spi_row_text(i, 3)),
					 errdetail("That is the range from %s to %s.", spi_row_text(i, 1), spi_row_text(i, 2)),
					 errhint("Give that up first: tessera.set_zone_range() with the same range and zone NULL.")));
	}
}

static void
set_range(const TesseraZoneRangeArgs *args, const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	Oid			bound = tessera_bound_type();
	const char *zone[] = {args->zone};

	if (tessera_admin_value("SELECT true FROM tessera.zone_shard WHERE zone = $1 LIMIT 1", 1, zone) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("zone \"%s\" does not exist", args->zone),
				 errhint("Give it a shard first: tessera.add_zone().")));
	check_overlap(group, ks, min, max);
	tessera_spi_run("INSERT INTO tessera.zone_range (group_id, min, max, zone) VALUES ($1, $2, $3, $4)", SPI_OK_INSERT, 4,
					(Oid[]) {UUIDOID, bound, bound, NAMEOID},
					(Datum[]) {UUIDPGetDatum(&group->group_id), PointerGetDatum(tessera_key_to_bound(ks, min)),
		PointerGetDatum(tessera_key_to_bound(ks, max)), DirectFunctionCall1(namein, CStringGetDatum(args->zone))}, NULL);
}

static void
clear_range(const TesseraGroup *group, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	Oid			bound = tessera_bound_type();
	TesseraBound *low = tessera_key_to_bound(ks, min);
	TesseraBound *high = tessera_key_to_bound(ks, max);

	if (tessera_spi_run("DELETE FROM tessera.zone_range WHERE group_id = $1 AND min OPERATOR(tessera.=) $2 AND max OPERATOR(tessera.=) $3",
						SPI_OK_DELETE, 3, (Oid[]) {UUIDOID, bound, bound},
						(Datum[]) {UUIDPGetDatum(&group->group_id), PointerGetDatum(low), PointerGetDatum(high)}, NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("no zone has the range from %s to %s", tessera_bound_to_cstring(low), tessera_bound_to_cstring(high)),
				 errhint("tessera.zone_ranges lists the ranges of zones.")));
}

void
tessera_serve_zone_range(const TesseraZoneRangeArgs *args)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	const TesseraGroup *group = tessera_config_group(routing, args->group_id, args->epoch);
	TesseraKeySpace *ks = tessera_group_keyspace(routing, group);
	TesseraKeyBound min;
	TesseraKeyBound max;
	TesseraSpi	access;
	const char *values[] = {tessera_bound_to_cstring(args->min), tessera_bound_to_cstring(args->max), args->zone};

	tessera_key_from_bound(ks, args->min, &min);
	tessera_key_from_bound(ks, args->max, &max);
	if (tessera_key_compare(ks, &min, &max) >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min %s is not below max %s", values[0], values[1])));
	tessera_spi_begin(&access);
	lock_zones();
	if (args->zone != NULL)
		set_range(args, group, ks, &min, &max);
	else
		clear_range(group, ks, &min, &max);
	tessera_changelog_add("set_zone_range", args->object, &group->group_id, args->by, NULL,
						  tessera_admin_value("SELECT jsonb_build_object('min', $1, 'max', $2, 'zone', $3)", 3, values));
	tessera_spi_end(&access);
	tessera_round_after_commit();
}
