/*
 * remove_node.c
 *	  remove_shard and remove_router on the config node: a node leaves the cluster.
 *
 * remove_shard of a shard that holds chunks or schemas only marks it as draining: the balancer moves them away, and asks for the removal again when
 * nothing is left (balancer/drain.c). cancel_remove_shard takes the mark back.
 *
 * A shard leaves only when it holds nothing: no chunk, no schema, no migration, no row that it does not own any more, no transaction whose outcome it
 * decides or waits for. The registry row goes in this transaction; after its commit the node is told to forget the cluster. One that is not reached
 * finds out when it next fetches the registry. Either way it refuses what its clients do with its tables (routing/removed_node.c).
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/spi_text.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "config/round_request.h"
#include "control/calls.h"
#include "transaction/background.h"
#include "transaction/participant.h"

#define DELETIONS_MS 60000		/* for the deletion of rows that have moved away */
#define DELETIONS_POLL_MS 100

/* A chunk c that is no schema's. */
#define NO_SCHEMA "NOT EXISTS (SELECT FROM tessera.schema_placement AS s WHERE s.group_id = c.group_id)"

static void
refuse_in_use(const char *name, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("node \"%s\" cannot be removed: it is still in use", name),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/* What the catalog says it holds. Access must be open. */
static void
check_holds_nothing(const TesseraRegistered *node)
{
	const char *values[] = {NULL};
	const char *found;

	values[0] = psprintf("%d", node->node_id);
	found = tessera_admin_value("SELECT nullif(count(*), 0) FROM tessera.chunk AS c WHERE node_id = $1::int4 AND " NO_SCHEMA, 1, values);
	if (found != NULL)
		refuse_in_use(node->name, psprintf("It owns %s chunks.", found), "Call tessera.remove_shard() without force: its chunks are moved away.");
	found = tessera_admin_value("SELECT min(schema_name::text) FROM tessera.schema_placement WHERE $1::int4 IN (node_id, sequence_home)", 1, values);
	if (found != NULL)
		refuse_in_use(node->name, psprintf("Schema \"%s\" lives there, or its sequences do.", found),
					  "Call tessera.remove_shard() without force: its schemas are moved away.");
	found = tessera_admin_value("SELECT min(s.zone::text) FROM tessera.zone_shard AS s JOIN tessera.zone_range AS r USING (zone)"
								" WHERE s.node_id = $1::int4 AND NOT EXISTS"
								" (SELECT FROM tessera.zone_shard AS o WHERE o.zone = s.zone AND o.node_id <> s.node_id)", 1, values);
	if (found != NULL)
		refuse_in_use(node->name, psprintf("Zone \"%s\" has ranges, and would be left without a shard.", found),
					  "Give it another shard with tessera.add_zone(), or its ranges up: tessera.set_zone_range() with zone NULL.");
	found = tessera_admin_value("SELECT migration_id FROM tessera.migration WHERE state = 'running' AND $1::int4 IN (donor, recipient) LIMIT 1", 1,
								values);
	if (found != NULL)
		refuse_in_use(node->name, psprintf("Migration %s is running.", found), "Wait for it, or use tessera.cancel_migration().");
}

/* What the node itself still has to end. ERROR 08006 if it is unreachable. */
static void
check_settled(const TesseraRegistered *node)
{
	int64		prepared;

	(void) tessera_call_prepared_count(tessera_to_node(node->node_id), &prepared);
	if (prepared > 0)
		refuse_in_use(node->name, psprintf("It has " INT64_FORMAT " prepared transactions.", prepared),
					  "Run tessera.resolve_transactions() there; COMMIT PREPARED or ROLLBACK PREPARED those of clients.");
}

/*
 * Waits until the rows of all ranges that have moved away from the node are deleted: its tables stay, and would show them as all there are. ERROR
 * 55006 if they are not in time, 08006 if it is unreachable. No lock is held.
 */
static void
await_deletions(const TesseraRouting *routing, const TesseraRegistered *node)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), DELETIONS_MS);

	for (;;)
	{
		int64		left;

		tessera_call_unsettled_ranges(tessera_to_node(node->node_id), &left);
		if (left == 0)
			return;
		if (GetCurrentTimestamp() >= deadline || tessera_injection_skips("remove_node_deadline"))
			refuse_in_use(node->name, psprintf("Rows of " INT64_FORMAT " ranges that have moved away are still to be deleted there.", left),
						  "Try again when tessera.range_deletions is empty there; what is in the way is in its server's log.");
		tessera_background_sleep(DELETIONS_POLL_MS);
	}
}

/* Transactions that it coordinated and that another node still has prepared: only it can say how they end. Access must be open. */
static void
check_not_awaited(const TesseraRouting *routing, const TesseraRegistered *node)
{
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *other = tessera_routing_node_at(routing, i);
		char	   *gid;

		if (other->node_id == node->node_id)
			continue;
		(void) tessera_call_part_awaiting(tessera_to_node(other->node_id), node->node_id, &gid);
		if (gid != NULL)
			refuse_in_use(node->name,
						  psprintf("Node \"%s\" has prepared transaction \"%s\", which it decides.", NameStr(other->name), gid),
						  "Run tessera.resolve_transactions() there; COMMIT PREPARED or ROLLBACK PREPARED those of clients.");
	}
}

/* The change itself. Access must be open. */
static void
unregister(const TesseraChange *change, const TesseraRegistered *node)
{
	const char *values[] = {NULL, node->is_shard ? "true" : "false"};

	values[0] = psprintf("%d", node->node_id);
	tessera_admin_exec("DELETE FROM tessera.node WHERE node_id = $1::int4", 1, values);
	tessera_admin_exec("DELETE FROM tessera.chunk_estimate WHERE node_id = $1::int4", 1, values);
	tessera_admin_exec("DELETE FROM tessera.zone_shard WHERE node_id = $1::int4", 1, values);
	tessera_admin_exec("DELETE FROM tessera.shard_weight WHERE node_id = $1::int4", 1, values);
	tessera_changelog_add(node->is_shard ? "remove_shard" : "remove_router", node->name, NULL, change->by,
					  tessera_admin_value("SELECT jsonb_build_object('node_id', $1::int4, 'shard', $2::bool)", 2, values), NULL);
	tessera_catalog_changed();
}

static void
check_kind(const TesseraRegistered *node, bool shard)
{
	if (shard && !node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("node \"%s\" is not a shard", node->name),
				 node->is_config ? 0 : errhint("Use tessera.remove_router().")));
	if (!shard && node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("node \"%s\" is a shard", node->name),
				 errhint("Use tessera.remove_shard().")));
}

/* ERROR unless the node is of that kind, and not the config node: what it decides is nobody else's, and it could not become a shard again. */
static void
check_removable(const TesseraRegistered *node, bool shard)
{
	if (node->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("node \"%s\" cannot be removed: it is the config node", node->name),
				 errhint("To move it to another server, promote a standby of it, and name that with tessera.update_node(). To have less on it, see "
						 "tessera.set_shard_weight() and tessera.add_zone().")));
	check_kind(node, shard);
}

/* What a draining shard still has, in words. Access must be open. */
static char *
describe_rest(const TesseraRegistered *node)
{
	const char *values[] = {psprintf("%d", node->node_id)};

	return tessera_admin_value("SELECT format('draining: %s chunks (%s)%s are left, %s moves run', count(*),"
							   " pg_size_pretty(coalesce(sum(e.bytes), 0)),"
							   " (SELECT format(' and %s schemas', nullif(count(*), 0)) FROM tessera.schema_placement AS p"
							   "  WHERE $1::int4 IN (p.node_id, p.sequence_home) HAVING count(*) > 0),"
							   " (SELECT count(*) FROM tessera.migration AS m WHERE m.state = 'running' AND m.donor = $1::int4))"
							   " FROM tessera.chunk AS c LEFT JOIN tessera.chunk_estimate AS e ON e.group_id = c.group_id AND e.min "
								   "OPERATOR(tessera.=) c.min"
							   " WHERE c.node_id = $1::int4 AND " NO_SCHEMA, 1, values);
}

/* ERROR unless there is another shard to take what it has. Access must be open. */
static void
check_others(const TesseraRegistered *node)
{
	const char *values[] = {psprintf("%d", node->node_id)};

	if (tessera_admin_value("SELECT true FROM tessera.node WHERE is_shard AND NOT draining AND node_id <> $1::int4 LIMIT 1", 1, values) == NULL)
		refuse_in_use(node->name, "There is no other shard that its chunks and schemas could go to.", "Add one with tessera.add_shard().");
}

/* Sets or clears the mark. Access must be open, the registry locked. */
static void
set_draining(const TesseraChange *change, const TesseraRegistered *node, bool draining)
{
	const char *values[] = {psprintf("%d", node->node_id), draining ? "true" : "false"};

	tessera_admin_exec("UPDATE tessera.node SET draining = $2::bool WHERE node_id = $1::int4", 2, values);
	tessera_changelog_add(draining ? "drain_shard" : "cancel_remove_shard", node->name, NULL, change->by, NULL, NULL);
	tessera_catalog_changed();
	tessera_announce_others(0, tessera_reload_call());
	tessera_round_after_commit();
}

/*
 * The first half of a removal, for a shard that has chunks or schemas: it is marked, and the balancer moves them. Returns what is left; NULL: it has
 * nothing. Access must be open.
 */
static char *
drain(const TesseraChange *change)
{
	TesseraRegistered *node;
	const char *values[] = {NULL};

	node = tessera_registered_or_error(change->name);
	check_removable(node, true);
	values[0] = psprintf("%d", node->node_id);
	if (tessera_admin_value("SELECT true FROM tessera.chunk WHERE node_id = $1::int4 UNION ALL"
							" SELECT true FROM tessera.schema_placement WHERE $1::int4 IN (node_id, sequence_home) LIMIT 1", 1, values) == NULL)
		return NULL;
	tessera_registry_lock();
	node = tessera_registered_or_error(change->name);
	if (!node->draining)
	{
		check_others(node);
		set_draining(change, node, true);
	}
	return describe_rest(node);
}

/* Returns what it was doing. */
char *
tessera_cancel_removal(TesseraChange *change)
{
	TesseraRegistered *node;
	TesseraSpi	access;

	tessera_spi_begin(&access);
	tessera_registry_lock();
	node = tessera_registered_or_error(change->name);
	check_kind(node, true);
	if (!node->draining)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("shard \"%s\" is not being removed", node->name)));
	set_draining(change, node, false);
	tessera_spi_end(&access);
	return "called off";
}

/* Returns 'removed', or what a draining shard still has. */
char *
tessera_remove_node(TesseraChange *change, bool shard)
{
	const TesseraRouting *routing = tessera_require_cluster();
	TesseraSpi	access;
	TesseraRegistered *node;
	const char *leave[2];
	bool		draining = false;

	tessera_spi_begin(&access);
	if (shard && !change->force && !change->drained)
	{
		char	   *rest = drain(change);

		if (rest != NULL)
		{
			tessera_spi_end(&access);
			return rest;
		}
	}
	if (!change->force)
	{
		node = tessera_registered_or_error(change->name);
		check_removable(node, shard);
		draining = node->draining || change->drained;
		check_holds_nothing(node);
		if (!change->drained)	/* the balancer has looked just now, and waits for nothing */
			await_deletions(routing, node);
	}
	tessera_registry_lock();
	node = tessera_registered_or_error(change->name);
	check_removable(node, shard);
	if (draining && !node->draining)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the removal of shard \"%s\" was called off", node->name)));
	check_holds_nothing(node);
	if (!change->force)
	{
		routing = tessera_routing();
		check_settled(node);
		check_not_awaited(routing, node);
	}
	if (!tessera_advisory_move_off(tessera_routing(), node->node_id, change->force))
		refuse_in_use(node->name, "It keeps advisory locks that sessions hold or wait for.",
					  "End those sessions: tessera.advisory_locks shows them, with home = this node.");
	unregister(change, node);
	leave[0] = tessera_admin_value("SELECT cluster_id FROM tessera.identity", 0, NULL);
	leave[1] = psprintf("%d", node->node_id);
	tessera_announce(node->name, node->conninfo, tessera_call_literal(&tessera_call_specs[TESSERA_CALL_LEAVE], leave));
	tessera_announce_others(node->node_id, tessera_reload_call());
	tessera_spi_end(&access);
	return "removed";
}
