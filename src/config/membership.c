/*
 * membership.c
 *	  What every membership change begins with: the registry's lock, a node of the registry, and who carries it out.
 *
 * Changes run on the config node only, one at a time: each locks tessera.node to the end of its transaction, against each other and whoever else
 * writes it. DDL that must reach every node takes ROW SHARE on tessera.node of the config node before it picks its nodes. EXCLUSIVE meets that, so no
 * node joins or leaves in the middle of it. What shards or replicates a table takes SHARE: no promoted server registers either (ROW EXCLUSIVE). A new
 * address (SHARE ROW EXCLUSIVE) does not meet DDL: that is a distributed transaction like that of any write, which takes no lock here at all. It goes
 * by the numbers of nodes; the connections that it has lead where they led, and a part that is prepared is ended by the address of the day. A
 * failover must not wait for it: it may be what DDL waits for, and what a user has prepared would hold it up for as long as the user likes.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "common/privilege.h"
#include "common/secrets.h"
#include "common/spi_text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "ddl/attempts.h"

#define DRAINED_LOCK_MS 1000	/* the balancer waits meanwhile, and tries again */


void
tessera_refuse_read_only(const char *action)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("the cluster cannot be changed on a standby"),
				 errhint("Connect to the primary.")));
	PreventCommandIfReadOnly(psprintf("tessera.%s()", action));
}

void
tessera_registry_lock_against(LOCKMODE mode)
{
	char	   *holders = tessera_lock_table_or_holders(tessera_catalog_relid(TESSERA_NODE), mode);

	if (holders != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not lock the registry of nodes within %d ms", tessera_ddl_lock_timeout),
				 errdetail_internal("%s", holders),
				 errhint("DDL and changes of the cluster's nodes wait for each other. Try again when these transactions have ended; COMMIT PREPARED"
						 " or ROLLBACK PREPARED ends a prepared one.")));
}

void
tessera_registry_lock(void)
{
	const TesseraRouting *routing = tessera_routing();

	tessera_registry_lock_against(ExclusiveLock);
	if (routing != NULL)
		tessera_require_metadata(routing);
}

TesseraRegistered *
tessera_registered(const char *name)
{
	const char *values[] = {name};
	TesseraRegistered node;
	TesseraRegistered *kept;

	if (tessera_admin_exec("SELECT node_id, name, conninfo, is_shard, is_config, draining, system_id, database, timeline, incarnation, server_start "
							 "FROM tessera.node WHERE name = $1", 1, values) == 0)
		return NULL;
	kept = (TesseraRegistered *) tessera_admin_alloc(sizeof(TesseraRegistered));
	node.node_id = atoi(tessera_admin_field(0, 1));
	node.name = tessera_admin_keep(tessera_admin_field(0, 2));
	node.conninfo = tessera_admin_keep(tessera_admin_field(0, 3));
	node.is_shard = tessera_admin_field(0, 4)[0] == 't';
	node.is_config = tessera_admin_field(0, 5)[0] == 't';
	node.draining = tessera_admin_field(0, 6)[0] == 't';
	node.system_id = tessera_admin_keep(tessera_admin_field(0, 7));
	node.database = tessera_admin_keep(tessera_admin_field(0, 8));
	node.timeline = atoi(tessera_admin_field(0, 9));
	node.incarnation = atoi(tessera_admin_field(0, 10));
	node.server_start = tessera_admin_keep(tessera_admin_field(0, 11));
	*kept = node;
	return kept;
}

TesseraRegistered *
tessera_registered_or_error(const char *name)
{
	TesseraRegistered *node = tessera_registered(name);

	if (node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("node \"%s\" does not exist", name),
				 errhint("tessera.shards and tessera.routers list the nodes.")));
	return node;
}

const TesseraRouting *
tessera_require_cluster(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not in a cluster"),
				 errhint("Make one with tessera.create_cluster(), or join one with tessera.add_shard() on a node of it.")));
	return routing;
}

void
tessera_set_config_conninfo(const char *conninfo)
{
	tessera_admin_exec("UPDATE tessera.identity SET config_conninfo = $1", 1, &conninfo);
	tessera_admin_exec("UPDATE tessera.node SET conninfo = $1 WHERE is_config", 1, &conninfo);
	tessera_catalog_changed();
}

/* A change that another node forwarded. Its caller's privilege was checked there. */
const char *
tessera_serve_membership(const TesseraMembershipArgs *args)
{
	TesseraChange change = {.action = args->action,.name = args->name,.conninfo = args->conninfo,.force = args->force,.by = args->by};

	tessera_require_internal();
	return tessera_membership_change(&change);
}

char *
tessera_membership_change(TesseraChange *change)
{
	tessera_refuse_read_only(change->action);
	if (!tessera_require_cluster()->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node does not know the config node"),
				 errhint("Run tessera.update_node() for the config node here.")));
	if (change->by == NULL)
		change->by = GetUserNameFromId(GetSessionUserId(), false);
	if (strcmp(change->action, "add_shard") == 0)
		return tessera_add_node(change, true);
	if (strcmp(change->action, "add_router") == 0)
		return tessera_add_node(change, false);
	if (strcmp(change->action, "update_node") == 0)
		return tessera_update_node_change(change);
	if (strcmp(change->action, "remove_shard") == 0)
		return tessera_remove_node(change, true);
	if (strcmp(change->action, "remove_drained") == 0)
	{
		change->drained = true;
		(void) set_config_option("tessera.ddl_lock_timeout", psprintf("%d", Min(tessera_ddl_lock_timeout, DRAINED_LOCK_MS)), PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
		return tessera_remove_node(change, true);
	}
	if (strcmp(change->action, "cancel_remove_shard") == 0)
		return tessera_cancel_removal(change);
	if (strcmp(change->action, "remove_router") == 0)
		return tessera_remove_node(change, false);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown membership change \"%s\"", change->action)));
}
