/*
 * reference_check.c
 *	  By which placement nodes look for rows that refer to a row of a replicated table; see reference_check.h.
 *
 * Without it: a range with a row that refers to R moves from A to B. R is deleted on B, which does not own that range yet; it moves; R is deleted on
 * A, which does not own it any more. While R is deleted on a node and not committed no row that refers to it can come there, so it is enough that all
 * nodes look by one placement.
 *
 * Memory: the versions, in that of the transaction. Locks: none of its own.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "executor/reference_check.h"
#include "executor/shard_check.h"

#define REFRESH_MS 5000

/* By which version this node looks at a table or a group. */
typedef struct Kept
{
	pg_uuid_t	id;				/* of a group: the node's major; of a table: whether it has one */
	int64		major;
} Kept;

static struct
{
	Kept	   *items;
	int			n;
	int			size;
} kept = {0};

/* As core writes them (ri_triggers.c): all names quoted, parameters on the left, operators qualified. Nobody else writes so. */
bool
tessera_is_reference_query(const char *text)
{
	static const char *const beginnings[] = {
		"SELECT 1 FROM ONLY \"", "SELECT 1 FROM \"", "DELETE FROM ONLY \"", "DELETE FROM \"", "UPDATE ONLY \"", "UPDATE \""
	};
	const char *condition;
	bool		begins = false;

	for (int i = 0; i < lengthof(beginnings) && text != NULL && !begins; i++)
		begins = strncmp(text, beginnings[i], strlen(beginnings[i])) == 0;
	condition = begins ? strstr(text, " WHERE $") : NULL;
	return condition != NULL && strstr(condition, " OPERATOR(") != NULL;
}

_Noreturn static void
raise_moved(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: rows that refer to a replicated table were moved meanwhile"),
			 errhint("Retry the transaction.")));
}

/* ---- versions ---- */

static void
keep(const pg_uuid_t *id, int64 major)
{
	for (int i = 0; i < kept.n; i++)
		if (memcmp(&kept.items[i].id, id, sizeof(pg_uuid_t)) == 0)
		{
			if (kept.items[i].major == major)
				return;
			raise_moved();
		}
	if (kept.n == kept.size)
	{
		MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);

		kept.size = Max(8, kept.size * 2);
		kept.items = kept.items == NULL ? palloc(kept.size * sizeof(Kept)) : repalloc(kept.items, kept.size * sizeof(Kept));
		MemoryContextSwitchTo(before);
	}
	kept.items[kept.n].id = *id;
	kept.items[kept.n].major = major;
	kept.n++;
}

static int64
major_of(const TesseraRouting *routing, const TesseraTable *table, int32 node_id)
{
	return tessera_routing_shard_major(routing, tessera_table_placement_group(routing, table), node_id);
}

static bool
keeps_other(const pg_uuid_t *id, int64 major)
{
	for (int i = 0; i < kept.n; i++)
		if (memcmp(&kept.items[i].id, id, sizeof(pg_uuid_t)) == 0)
			return kept.items[i].major != major;
	return false;
}

static void
keep_table(const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);

	keep(&table->table_id, group != NULL);
	if (group != NULL)
		keep(&group->group_id, major_of(routing, table, routing->self));
}

/* True if this node's image has other versions than those kept: it may only be behind. */
static bool
is_behind(const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);

	return keeps_other(&table->table_id, group != NULL) ||
		(group != NULL && keeps_other(&group->group_id, major_of(routing, table, routing->self)));
}

static void
add_version(StringInfo versions, const pg_uuid_t *id, int64 major)
{
	appendStringInfo(versions, "%s " INT64_FORMAT "\n", DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id))), major);
}

/* The next of a list of versions; false: that was all. */
static bool
next_version(const char **versions, pg_uuid_t *id, int64 *major)
{
	const char *end = strchr(*versions, '\n');
	const char *space = strchr(*versions, ' ');

	if (end == NULL || space == NULL || space > end)
		return false;
	*id = *DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(pnstrdup(*versions, space - *versions))));
	*major = pg_strtoint64(pnstrdup(space + 1, end - space - 1));
	*versions = end + 1;
	return true;
}

/* ---- which tables refer ---- */

/* Adds tables with foreign keys to this one; from those that are replicated themselves it goes on, as cascades do. */
static void
add_referring(const TesseraRouting *routing, Oid relid, List **seen, List **referring)
{
	Relation	rel;

	if (list_member_oid(*seen, relid))
		return;
	*seen = lappend_oid(*seen, relid);
	rel = RelationIdGetRelation(relid);
	if (rel == NULL)
		return;
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];
		const TesseraTable *table;

		if (RI_FKey_trigger_type(trigger->tgfoid) != RI_TRIGGER_PK)
			continue;
		table = tessera_routing_table(routing, trigger->tgconstrrelid);
		if (table != NULL && table->replicated)
			add_referring(routing, trigger->tgconstrrelid, seen, referring);
		else if (table != NULL)
			*referring = list_append_unique_oid(*referring, trigger->tgconstrrelid);
	}
	RelationClose(rel);
}

char *
tessera_reference_versions(const TesseraRouting *routing, const List *relids, int32 node_id)
{
	List	   *seen = NIL;
	List	   *referring = NIL;
	StringInfoData versions;
	ListCell   *cell;

	foreach(cell, relids)
		add_referring(routing, lfirst_oid(cell), &seen, &referring);
	initStringInfo(&versions);
	foreach(cell, referring)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));
		const TesseraGroup *group = tessera_table_placement_group(routing, table);

		add_version(&versions, &table->table_id, group != NULL);
		if (group != NULL)
			add_version(&versions, &group->group_id, major_of(routing, table, node_id));
	}
	return versions.data;
}

void
tessera_reference_keep(const char *versions)
{
	pg_uuid_t	id;
	int64		major;

	while (next_version(&versions, &id, &major))
		keep(&id, major);
}

void
tessera_reference_keep_own(const TesseraRouting *routing, Oid relid)
{
	List	   *seen = NIL;
	List	   *referring = NIL;
	ListCell   *cell;

	add_referring(routing, relid, &seen, &referring);
	foreach(cell, referring)
		keep_table(routing, tessera_routing_table(routing, lfirst_oid(cell)));
	list_free(seen);
	list_free(referring);
}

char *
tessera_reference_kept(void)
{
	StringInfoData versions;

	initStringInfo(&versions);
	for (int i = 0; i < kept.n; i++)
		add_version(&versions, &kept.items[i].id, kept.items[i].major);
	return versions.data;
}

void
tessera_reference_compare(const TesseraRouting *routing, const char *versions, int32 node_id)
{
	pg_uuid_t	id;
	int64		major;

	while (next_version(&versions, &id, &major))
	{
		const TesseraTable *table = tessera_routing_table_by_id(routing, &id);
		const TesseraGroup *group = tessera_routing_group_by_id(routing, &id);

		if (table != NULL ? (tessera_table_placement_group(routing, table) != NULL) != (major == 1) :
			group == NULL || tessera_routing_shard_major(routing, group, node_id) != major)
			raise_moved();
	}
}

/* ---- before a node looks ---- */

static bool
any_behind(const TesseraRouting *routing, const PlannedStmt *plan)
{
	ListCell   *cell;

	foreach(cell, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		const TesseraTable *table = rte->rtekind == RTE_RELATION ? tessera_routing_table(routing, rte->relid) : NULL;

		if (table != NULL && !table->replicated && is_behind(routing, table))
			return true;
	}
	return false;
}

void
tessera_reference_check(QueryDesc *query)
{
	TesseraRoutedBy routed = {.routing = tessera_routing()};
	ListCell   *cell;

	/* what is routed is checked where it goes */
	if (routed.routing == NULL || routed.routing->nreplicated == 0 || IsA(query->plannedstmt->planTree, CustomScan))
		return;
	if (any_behind(routed.routing, query->plannedstmt))
	{
		(void) tessera_routing_refresh(REFRESH_MS);
		AcceptInvalidationMessages();
		routed.routing = tessera_routing_or_error();
	}
	foreach(cell, query->plannedstmt->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		const TesseraTable *table = rte->rtekind == RTE_RELATION ? tessera_routing_table(routed.routing, rte->relid) : NULL;

		if (table == NULL || table->replicated)
			return;				/* nothing here is in doubt: a copy, or no row at all */
		keep_table(routed.routing, table);
		if (table->placement_group < 0 && table->node_id != routed.routing->self)
			return;
	}
	if (tessera_shard_check(query->plannedstmt, query->snapshot, query->params, &routed) == TESSERA_STALE)
		raise_moved();
}

void
tessera_reference_forget(void)
{
	memset(&kept, 0, sizeof(kept));
}
