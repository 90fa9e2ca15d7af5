/*
 * update_node.c
 *	  update_node on the config node: a node's new address (S33), and the timeline of a promoted standby. The only way an address changes.
 *
 * If it is the config node that has moved, other nodes know only its old address: then the node that was asked finds it at the new one, hands the
 * change on, and keeps the new address itself (admin/membership_commands.c); the config node tells the rest.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "catalog/change.h"
#include "common/errors.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "common/text.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "control/calls.h"

PG_FUNCTION_INFO_V1(tessera_internal_check_address);

_Noreturn static void
refuse_other(const TesseraRegistered *node, const TesseraNodeFacts *there, const char *server)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("conninfo does not lead to node \"%s\"", node->name),
			 errdetail("It reaches database \"%s\" of %s.", there->database, server)));
}

void
tessera_check_same_node(const TesseraRegistered *node, const TesseraNodeFacts *there, const char *cluster_id)
{
	if (strcmp(node->system_id, there->system_id) != 0)
		refuse_other(node, there, "another server");
	if (there->in_recovery)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("conninfo of node \"%s\" reaches a standby", node->name),
				 errhint("Name the primary, or all hosts with target_session_attrs=read-write.")));
	if (!there->superuser && !there->internal)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" of the conninfo cannot open internal connections", there->role),
				 errhint("Use a superuser, or GRANT tessera_internal TO %s.", tessera_quote(there->role))));
	if (there->cluster_id == NULL || !there->is_node || (strcmp(there->cluster_id, cluster_id) == 0 && there->node_id != node->node_id))
		refuse_other(node, there, "its server");
	if (strcmp(there->cluster_id, cluster_id) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the database at the conninfo is not node \"%s\" of this cluster", node->name)));
}

/* A server that takes itself for the node with a lower incarnation was replaced; one on another timeline is to become the node. */
static void
check_server(const TesseraRegistered *node, const TesseraNodeFacts *there, bool force)
{
	if (there->is_known && there->incarnation < node->incarnation)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("conninfo of node \"%s\" reaches a server that was replaced", node->name),
				 errdetail("It is incarnation %d, the node is incarnation %d.", there->incarnation, node->incarnation),
				 errhint("If it is to be the node again: stop the other one for good, and tessera.recover_node(force => true) there.")));
	if ((!there->is_known || there->timeline != node->timeline) && !force)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conninfo of node \"%s\" reaches a promoted standby", node->name),
				 errdetail("It is on timeline %d, the node on timeline %d.", there->timeline, node->timeline),
				 errhint("If the old primary is stopped for good, use tessera.update_node(..., force => true).")));
}

/*
 * True if it is the server that was registered last and is still finding out what the node owns. Another registration of it must not make it count as
 * replaced.
 */
static bool
is_registered(const TesseraRegistered *node, const TesseraNodeFacts *there)
{
	return node->server_start != NULL && strcmp(node->server_start, there->started) == 0;
}

/* Access must be open. */
static void
update_here(const TesseraChange *change)
{
	TesseraRegistered *node;
	TesseraConnection *connection;
	TesseraNodeFacts *there;
	const char *row[] = {change->name, change->conninfo, NULL, NULL, NULL};
	const char *logged[4];
	int			incarnation;

	tessera_registry_lock_against(ShareRowExclusiveLock);	/* not against DDL (membership.c) */
	node = tessera_registered_or_error(change->name);
	if (!node->is_config)		/* its own address it has to know before it can find out anything else */
		tessera_require_metadata(tessera_require_cluster());
	connection = tessera_probe_open(change->name, change->conninfo);
	there = tessera_node_facts(connection);
	tessera_probe_close(connection);
	tessera_check_same_node(node, there, tessera_admin_value("SELECT cluster_id FROM tessera.identity", 0, NULL));
	check_server(node, there, change->force);

	/* the config node's own is written when it has compared its catalog with the shards (promotion_merge.c) */
	row[2] = psprintf("%d", node->is_config ? node->timeline : there->timeline);
	row[3] = there->database;	/* it may have been renamed */
	incarnation = Max(node->incarnation, there->is_known ? there->incarnation : 0);
	if (!there->is_known && !is_registered(node, there))
		incarnation++;
	row[4] = psprintf("%d", incarnation);
	tessera_admin_exec("UPDATE tessera.node SET conninfo = $2, timeline = $3::int4, database = $4, incarnation = $5::int4 WHERE name = $1", 5, row);
	/* Addresses can hold passwords: the changelog says only that it changed. */
	logged[0] = psprintf("%d", node->timeline);
	logged[1] = strcmp(node->conninfo, change->conninfo) == 0 ? "false" : "true";
	tessera_changelog_add("update_node", change->name, NULL, change->by,
					  tessera_admin_value("SELECT jsonb_build_object('timeline', $1::int4)", 1, logged),
					  tessera_admin_value("SELECT jsonb_build_object('timeline', $1::int4, 'conninfo_changed', $2::bool)", 2,
											(const char *[]) {row[2], logged[1]}));
	tessera_catalog_changed();
	if (incarnation > node->incarnation)
		tessera_announce_incarnation(node->name, node->conninfo, incarnation);
	if (node->is_config)
	{
		tessera_set_config_conninfo(change->conninfo);
		tessera_announce_others(0, tessera_call_literal(&tessera_call_specs[TESSERA_CALL_CONFIG_MOVED], &change->conninfo));
	}
	else
		tessera_announce_others(0, tessera_reload_call());
}

/* Returns NULL: there is no answer. */
char *
tessera_update_node_change(TesseraChange *change)
{
	TesseraSpi	access;

	tessera_spi_begin(&access);
	update_here(change);
	tessera_spi_end(&access);
	return NULL;
}

/*
 * internal_check_address(node int4, timeline int4, started text): the node's registered address leads to its server of that timeline, started then
 * (two standbys that were both promoted may be on timelines of the same number). Who promotes a standby to look at it, beside a primary that lives,
 * must not have it take the node over.
 */
Datum
tessera_internal_check_address(PG_FUNCTION_ARGS)
{
	const char *values[] = {psprintf("%d", PG_GETARG_INT32(0))};
	TesseraSpi	access;
	TesseraRegistered *node;
	TesseraConnection *connection;
	TesseraNodeFacts *there;
	const char *name;

	tessera_spi_begin(&access);
	name = tessera_admin_value("SELECT name FROM tessera.node WHERE node_id = $1::int4", 1, values);
	node = tessera_registered_or_error(name != NULL ? name : values[0]);
	connection = tessera_probe_open(node->name, node->conninfo);
	there = tessera_node_facts(connection);
	tessera_probe_close(connection);
	if (strcmp(node->system_id, there->system_id) != 0 || there->timeline != PG_GETARG_INT32(1) ||
		strcmp(there->started, text_to_cstring(PG_GETARG_TEXT_PP(2))) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the address of node \"%s\" leads to another server than the promoted one", node->name),
				 errdetail("That one is on timeline %d, this one on timeline %d.", there->timeline, PG_GETARG_INT32(1)),
				 errhint("If the old primary is stopped for good, use tessera.update_node(..., force => true).")));
	tessera_spi_end(&access);
	PG_RETURN_VOID();
}
