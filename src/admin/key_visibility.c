/*
 * key_visibility.c
 *	  Who is shown values of shard keys. Bounds of chunks are keys of rows (medians, samples), and so are those of moves, zones and deletions: they
 *	  are data of the group's tables, not metadata.
 *
 * The rule is that of pg_stats: who may read the key columns, of the whole table or by column, under no row security. One range is about the rows of
 * all tables of its group, so it must hold for each of them. Of a partition the table at the root counts, through which rows are read. Administrators
 * and nodes, which read the catalog, see all. Counts, shards and sizes are everybody's.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/rls.h"

#include "admin/key_visibility.h"
#include "common/privilege.h"
#include "routing/routing.h"

PG_FUNCTION_INFO_V1(tessera_internal_keys_visible);

/* A table that is just being dropped counts as one that may not be read. */
static bool
may_read_key(const TesseraTable *table)
{
	bool		missing = false;

	if (check_enable_rls(table->relid, InvalidOid, true) == RLS_ENABLED)
		return false;
	if (pg_class_aclcheck_ext(table->relid, GetUserId(), ACL_SELECT, &missing) == ACLCHECK_OK)
		return true;
	for (int i = 0; i < table->nkeys; i++)
		if (pg_attribute_aclcheck_ext(table->relid, table->keys[i], GetUserId(), ACL_SELECT, &missing) != ACLCHECK_OK)
			return false;
	return table->nkeys > 0;
}

bool
tessera_keys_visible(const pg_uuid_t *group_id)
{
	const TesseraRouting *routing;
	const TesseraGroup *group;
	bool		known = false;

	if (tessera_may_read_catalog())
		return true;
	routing = tessera_routing();
	group = routing != NULL && group_id != NULL ? tessera_routing_group_by_id(routing, group_id) : NULL;
	if (group == NULL)
		return false;
	if (group->of_schema)
		return true;			/* its one chunk has no bounds */
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);

		if (table->group != group->index || table->root != table->relid)
			continue;
		if (!may_read_key(table))
			return false;
		known = true;
	}
	return known;
}

/* tessera_internal.keys_visible(group_id uuid) returns bool; null: see tessera_keys_visible */
Datum
tessera_internal_keys_visible(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(tessera_keys_visible(PG_ARGISNULL(0) ? NULL : PG_GETARG_UUID_P(0)));
}
