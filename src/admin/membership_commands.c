/*
 * membership_commands.c
 *	  add_shard, add_router, remove_shard, remove_router and update_node, on the node that was asked: who may, and the way to the config node, which
 *	  makes the change (config/membership.h).
 *
 * On the config node a change is part of the caller's transaction. From another node it is called over the control lane, in a transaction of its own
 * that is committed when the call returns, so it is refused inside a transaction block. Nothing is kept here but the config node's new address.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "common/privilege.h"
#include "common/secrets.h"
#include "common/spi_text.h"
#include "config/membership.h"
#include "control/calls.h"

PG_FUNCTION_INFO_V1(tessera_add_shard);
PG_FUNCTION_INFO_V1(tessera_add_router);
PG_FUNCTION_INFO_V1(tessera_remove_shard);
PG_FUNCTION_INFO_V1(tessera_cancel_remove_shard);
PG_FUNCTION_INFO_V1(tessera_remove_router);
PG_FUNCTION_INFO_V1(tessera_update_node);
PG_FUNCTION_INFO_V1(tessera_node_conninfo_sql);


/* The way to the config node */

/* What another node does is not undone by a rollback here. */
static void
refuse_block(void)
{
	if (IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("the cluster cannot be changed from this node inside a transaction block"),
				 errdetail("The config node makes the change, and a rollback here would not undo it."),
				 errhint("Run it by itself, or on the config node.")));
}

/* Has the config node, which the target is, make a change; returns its answer (palloc'd, may be NULL). */
static char *
hand_on(TesseraCallTarget target, const TesseraChange *change)
{
	char	   *answer;

	tessera_call_membership(target, change->action, change->name, change->conninfo, change->force, change->by, &answer);
	return answer;
}

/* On another node, of the config node: hand it on at the new address, keep the address. */
static void
update_config_elsewhere(const TesseraChange *change)
{
	TesseraRegistered *node = tessera_registered_or_error(change->name);
	TesseraConnection *connection = tessera_probe_open(change->name, change->conninfo);
	TesseraNodeFacts *there = tessera_node_facts(connection);

	refuse_block();
	tessera_check_same_node(node, there, tessera_admin_value("SELECT cluster_id FROM tessera.identity", 0, NULL));
	(void) hand_on(tessera_over(connection), change);
	tessera_probe_close(connection);
	tessera_set_config_conninfo(change->conninfo);
}

/* Runs a change, here or on the config node; returns its answer (palloc'd) or NULL. Privileges were checked. */
static char *
make_change(TesseraChange *change)
{
	const TesseraRouting *routing;
	const TesseraNode *config;

	tessera_refuse_read_only(change->action);
	change->by = GetUserNameFromId(GetSessionUserId(), false);
	routing = tessera_require_cluster();
	config = tessera_routing_config(routing);
	if (!routing->is_config && config != NULL && strcmp(change->action, "update_node") == 0 && strcmp(NameStr(config->name), change->name) == 0)
	{
		TesseraSpi	access;

		tessera_spi_begin(&access);
		update_config_elsewhere(change);
		tessera_spi_end(&access);
		return NULL;
	}
	if (!routing->is_config)
		refuse_block();
	if (routing->is_config || config == NULL)	/* it refuses where no config node is known */
		return tessera_membership_change(change);
	return hand_on(tessera_on_lane(tessera_to_config(), TESSERA_LANE_CONTROL), change);
}


/* The commands */

static Datum
add_node_sql(FunctionCallInfo fcinfo, const char *action)
{
	TesseraChange change = {.action = action};

	tessera_require_admin();
	change.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	change.conninfo = text_to_cstring(PG_GETARG_TEXT_PP(1));
	tessera_name_check("node", change.name);
	tessera_conninfo_check(change.conninfo);
	return Int32GetDatum(atoi(make_change(&change)));
}

static Datum
add_shard(PG_FUNCTION_ARGS)
{
	return add_node_sql(fcinfo, "add_shard");
}

static Datum
add_router(PG_FUNCTION_ARGS)
{
	return add_node_sql(fcinfo, "add_router");
}

/* add_shard(name, conninfo) */
Datum
tessera_add_shard(PG_FUNCTION_ARGS)
{
	return tessera_without_secrets(fcinfo, 1, add_shard);
}

/* add_router(name, conninfo) */
Datum
tessera_add_router(PG_FUNCTION_ARGS)
{
	return tessera_without_secrets(fcinfo, 1, add_router);
}

static Datum
remove_node_sql(FunctionCallInfo fcinfo, const char *action)
{
	TesseraChange change = {.action = action};

	tessera_require_admin();
	change.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	change.force = PG_GETARG_BOOL(1);
	return PointerGetDatum(cstring_to_text(make_change(&change)));
}

/* remove_shard(name, force) */
Datum
tessera_remove_shard(PG_FUNCTION_ARGS)
{
	return remove_node_sql(fcinfo, "remove_shard");
}

/* cancel_remove_shard(name) */
Datum
tessera_cancel_remove_shard(PG_FUNCTION_ARGS)
{
	TesseraChange change = {.action = "cancel_remove_shard"};

	tessera_require_admin();
	change.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	(void) make_change(&change);
	PG_RETURN_VOID();
}

/* remove_router(name, force) */
Datum
tessera_remove_router(PG_FUNCTION_ARGS)
{
	return remove_node_sql(fcinfo, "remove_router");
}

static Datum
update_node(PG_FUNCTION_ARGS)
{
	TesseraChange change = {.action = "update_node"};

	tessera_require_admin();
	change.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	change.conninfo = text_to_cstring(PG_GETARG_TEXT_PP(1));
	change.force = PG_GETARG_BOOL(2);
	tessera_conninfo_check(change.conninfo);
	(void) make_change(&change);
	PG_RETURN_VOID();
}

/* update_node(name, conninfo, force) */
Datum
tessera_update_node(PG_FUNCTION_ARGS)
{
	return tessera_without_secrets(fcinfo, 1, update_node);
}

/* node_conninfo(name): the address of a node, for administrators: it may hold a password. */
Datum
tessera_node_conninfo_sql(PG_FUNCTION_ARGS)
{
	TesseraSpi	access;
	TesseraRegistered *node;

	tessera_require_admin();
	tessera_spi_begin(&access);
	node = tessera_registered_or_error(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	tessera_spi_end(&access);
	PG_RETURN_TEXT_P(cstring_to_text(node->conninfo));
}
