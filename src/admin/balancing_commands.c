/*
 * balancing_commands.c
 *	  Commands on the balancer, on zones and on weights of shards, on any node. What the config node does for them is in config/balancing.c.
 *
 * Each calls the config node over the control lane, in a transaction of its own that is committed when the call returns; a rollback of the caller's
 * transaction does not undo it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "catalog/bound_array.h"
#include "common/privilege.h"
#include "common/text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_start_balancer);
PG_FUNCTION_INFO_V1(tessera_stop_balancer);
PG_FUNCTION_INFO_V1(tessera_pause_balancer);
PG_FUNCTION_INFO_V1(tessera_resume_balancer);
PG_FUNCTION_INFO_V1(tessera_run_balancer_round);
PG_FUNCTION_INFO_V1(tessera_add_zone);
PG_FUNCTION_INFO_V1(tessera_remove_zone);
PG_FUNCTION_INFO_V1(tessera_set_zone_range);
PG_FUNCTION_INFO_V1(tessera_set_shard_weight);

static const char *
begin_change(const char *action)
{
	tessera_refuse_read_only(action);
	tessera_require_admin();
	(void) tessera_require_cluster();
	return GetUserNameFromId(GetUserId(), false);
}

static void
require_argument(FunctionCallInfo fcinfo, int number, const char *name)
{
	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}


/* The balancer */

/* start_balancer() */
Datum
tessera_start_balancer(PG_FUNCTION_ARGS)
{
	tessera_call_balancer_switch(tessera_to_config(), "balancer", "on", begin_change("start_balancer"));
	PG_RETURN_VOID();
}

/* stop_balancer() */
Datum
tessera_stop_balancer(PG_FUNCTION_ARGS)
{
	tessera_call_balancer_switch(tessera_to_config(), "balancer", "off", begin_change("stop_balancer"));
	PG_RETURN_VOID();
}

/* pause_balancer(how_long interval) returns timestamptz: until when */
Datum
tessera_pause_balancer(PG_FUNCTION_ARGS)
{
	const char *by = begin_change("pause_balancer");
	Datum		until = DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(GetCurrentTimestamp()), PG_GETARG_DATUM(0));

	if (DatumGetTimestampTz(until) <= GetCurrentTimestamp())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the balancer can be paused for a time that is yet to come"),
				 errhint("tessera.resume_balancer() ends a pause.")));
	tessera_call_balancer_switch(tessera_to_config(), "balancer_paused_until", tessera_timestamp_text(DatumGetTimestampTz(until)), by);
	PG_RETURN_DATUM(until);
}

/* resume_balancer() */
Datum
tessera_resume_balancer(PG_FUNCTION_ARGS)
{
	tessera_call_balancer_switch(tessera_to_config(), "balancer_paused_until", NULL, begin_change("resume_balancer"));
	PG_RETURN_VOID();
}

/* balancer_round() returns timestamptz: when it began; ERROR 55000 if it did not end in time */
Datum
tessera_run_balancer_round(PG_FUNCTION_ARGS)
{
	char	   *began;

	(void) begin_change("balancer_round");
	tessera_call_balancer_round(tessera_to_config(), &began);
	if (began == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the balancer has not made a round yet"),
				 errdetail("Its worker on the config node does not run, or is busy with another round."),
				 errhint("See the config node's log; tessera.balancer_status shows what it is doing.")));
	PG_RETURN_DATUM(DirectFunctionCall3(timestamptz_in, CStringGetDatum(began), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}


/* Zones and weights */

/* add_zone(zone text, shard text) */
Datum
tessera_add_zone(PG_FUNCTION_ARGS)
{
	const char *by = begin_change("add_zone");
	const char *zone = text_to_cstring(PG_GETARG_TEXT_PP(0));

	tessera_name_check("zone", zone);
	tessera_call_zone_shard(tessera_to_config(), zone, text_to_cstring(PG_GETARG_TEXT_PP(1)), true, by);
	PG_RETURN_VOID();
}

/* remove_zone(zone text, shard text): of all shards, if that is null */
Datum
tessera_remove_zone(PG_FUNCTION_ARGS)
{
	const char *by = begin_change("remove_zone");

	require_argument(fcinfo, 0, "zone");
	tessera_call_zone_shard(tessera_to_config(), text_to_cstring(PG_GETARG_TEXT_PP(0)),
							PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)),
							false, by);
	PG_RETURN_VOID();
}

/* A bound that the caller gave, in canonical form, as text. */
static const char *
canonical(TesseraKeySpace *ks, const TesseraBound *bound)
{
	TesseraKeyBound key;

	tessera_key_from_bound(ks, bound, &key);
	return tessera_bound_to_cstring(tessera_key_to_bound(ks, &key));
}

/* set_zone_range(table_name regclass, zone text, min bound, max bound) */
Datum
tessera_set_zone_range(PG_FUNCTION_ARGS)
{
	const char *by = begin_change("set_zone_range");
	const TesseraRouting *routing = tessera_routing_or_error();
	const TesseraTable *table;
	const TesseraGroup *group;
	TesseraKeySpace *ks;

	require_argument(fcinfo, 0, "table_name");
	require_argument(fcinfo, 2, "min");
	require_argument(fcinfo, 3, "max");
	table = tessera_routing_table(routing, PG_GETARG_OID(0));
	if (table == NULL || table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not sharded", get_rel_name(PG_GETARG_OID(0)) ? get_rel_name(PG_GETARG_OID(0)) : "?"),
				 errhint("Shard it first: tessera.shard_table.")));
	group = tessera_routing_group(routing, table->group);
	ks = tessera_group_keyspace(routing, group);
	tessera_call_zone_range(tessera_to_config(), &group->group_id, &group->epoch, routing->promised_term,
							PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)), canonical(ks, PG_GETARG_TESSERA_BOUND_P(2)),
							canonical(ks, PG_GETARG_TESSERA_BOUND_P(3)), by, tessera_qualified_name(table->root));
	PG_RETURN_VOID();
}

/* set_shard_weight(shard text, weight float8) */
Datum
tessera_set_shard_weight(PG_FUNCTION_ARGS)
{
	const char *by = begin_change("set_shard_weight");

	tessera_call_shard_weight(tessera_to_config(), text_to_cstring(PG_GETARG_TEXT_PP(0)), PG_GETARG_FLOAT8(1), by);
	PG_RETURN_VOID();
}
