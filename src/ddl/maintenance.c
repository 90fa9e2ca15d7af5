/*
 * maintenance.c
 *	  VACUUM of tables of the cluster on this node and on every shard that has a part of them, CLUSTER and REINDEX on every node, all at once.
 *
 * Each node runs the statement outside a transaction block, as the user, with core's own checks and commits: what one node has done stays done when
 * another one fails. Phases: (1) what the statement names is looked up; of a name that means nothing core complains; (2) connections to the shards
 * are opened, of this statement alone; a shard that cannot be reached is an error before anything is done; (3) the statement is sent to all of them;
 * (4) it runs here, and what it has done here is committed; (5) all answers are awaited, then the first error is raised; (6) the ANALYZE of
 * VACUUM (ANALYZE) follows as a statement of its own, which collects the statistics of all shards.
 *
 * Locks: no node holds any for another one. This session holds none while it waits for the others, so each node's part waits for locks as a
 * transaction of its own, also for the search for deadlocks (session/remote_client.h).
 *
 * Memory: the portal's, which outlives the transactions that end here. An error or an interrupt cancels what runs on the others. A crash leaves what
 * it leaves on one server.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "common/text.h"
#include "common/version_compat.h"
#include "ddl/ddl.h"
#include "ddl/node_parts.h"
#include "ddl/operation.h"

/* A table or index that the statement names. */
typedef struct Target
{
	VacuumRelation *relation;	/* of VACUUM */
	Oid			relid;			/* InvalidOid: there is none of that name */
	const TesseraTable *table;	/* of the cluster, which the user may maintain; NULL: only this node is concerned */
} Target;

#define REFRESH_MS 5000

static bool vacuum_everywhere = true;

/* ---- what is meant ---- */

/* The rules of core, which says here what it has to say. */
static bool
may_maintain(Node *statement, Oid relid)
{
	return tessera_owns_relation(relid, GetUserId()) || (IsA(statement, VacuumStmt) && tessera_owns_database(MyDatabaseId, GetUserId()));
}

static bool
is_of_its_kind(Node *statement, Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	bool		is_index = relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX;

	return is_index == (IsA(statement, ReindexStmt) && ((ReindexStmt *) statement)->kind == REINDEX_OBJECT_INDEX);
}

static Target *
make_target(Node *statement, const TesseraRouting *routing, VacuumRelation *relation, RangeVar *name)
{
	Target	   *target = palloc0(sizeof(Target));
	Oid			root;

	target->relation = relation;
	target->relid = relation && OidIsValid(relation->oid) ? relation->oid : RangeVarGetRelid(name, NoLock, true);
	if (!OidIsValid(target->relid) || !is_of_its_kind(statement, target->relid))
		return target;
	root = tessera_cluster_root(routing, target->relid);
	if (OidIsValid(root) && may_maintain(statement, target->relid))
		target->table = tessera_routing_table(routing, root);
	return target;
}

static List *
list_targets(Node *statement, const TesseraRouting *routing)
{
	List	   *targets = NIL;
	RangeVar   *name = NULL;
	ListCell   *cell;

	if (IsA(statement, VacuumStmt))
	{
		foreach(cell, ((VacuumStmt *) statement)->rels)
		{
			VacuumRelation *relation = lfirst_node(VacuumRelation, cell);

			targets = lappend(targets, make_target(statement, routing, relation, relation->relation));
		}
		return targets;
	}
	if (IsA(statement, ClusterStmt))
		name = ((ClusterStmt *) statement)->relation;
	else if (((ReindexStmt *) statement)->kind == REINDEX_OBJECT_INDEX || ((ReindexStmt *) statement)->kind == REINDEX_OBJECT_TABLE)
		name = ((ReindexStmt *) statement)->relation;
	return name ? list_make1(make_target(statement, routing, NULL, name)) : NIL;
}

/* True if it is for the other nodes, too: each name means something, and one of them a table of the cluster. */
static bool
concerns_others(List *targets)
{
	bool		any = false;
	ListCell   *cell;

	foreach(cell, targets)
	{
		Target	   *target = lfirst(cell);

		if (!OidIsValid(target->relid))
			return false;
		any = any || target->table != NULL;
	}
	return any;
}

/* Of VACUUM; without ANALYZE core refuses it, before anything is done. */
static bool
has_columns(List *targets)
{
	ListCell   *cell;

	foreach(cell, targets)
	{
		Target	   *target = lfirst(cell);

		if (target->relation != NULL && target->relation->va_cols != NIL)
			return true;
	}
	return false;
}

/* The value that counts is the last one. */
static bool
has_option(List *options, const char *name)
{
	bool		value = false;
	ListCell   *cell;

	foreach(cell, options)
		if (strcmp(lfirst_node(DefElem, cell)->defname, name) == 0)
			value = defGetBoolean(lfirst_node(DefElem, cell));
	return value;
}

/* ---- the statement of a shard ---- */

static void
append_options(StringInfo text, List *options)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		appendStringInfo(text, "%s%s", cell == list_head(options) ? " (" : ", ", tessera_quote(option->defname));
		if (option->arg != NULL && (IsA(option->arg, Integer) || IsA(option->arg, Float)))
			appendStringInfo(text, " %s", defGetString(option));
		else if (option->arg != NULL)
			appendStringInfo(text, " %s", quote_literal_cstr(defGetString(option)));
	}
	if (options != NIL)
		appendStringInfoChar(text, ')');
}

/*
 * Is there something to do for the node? A sharded table may have left rows to vacuum on shards that own nothing of it any more. CLUSTER and REINDEX
 * change definitions (which index it was, that one is valid), which are alike on all nodes.
 */
static bool
has_part(Node *statement, const TesseraNode *node, const TesseraTable *table)
{
	if (!IsA(statement, VacuumStmt))
		return true;
	return table->group >= 0 ? node->is_shard : table->node_id == node->node_id;
}

/* What the node has to run; NULL: nothing. */
static char *
text_for(Node *statement, List *targets, const TesseraNode *node)
{
	StringInfoData text;
	bool		any = false;
	ListCell   *cell;

	initStringInfo(&text);
	appendStringInfoString(&text, IsA(statement, VacuumStmt) ? "VACUUM" : IsA(statement, ClusterStmt) ? "CLUSTER" : "REINDEX");
	append_options(&text, IsA(statement, VacuumStmt) ? ((VacuumStmt *) statement)->options :
				   IsA(statement, ClusterStmt) ? ((ClusterStmt *) statement)->params : ((ReindexStmt *) statement)->params);
	if (IsA(statement, ReindexStmt))
		appendStringInfoString(&text, ((ReindexStmt *) statement)->kind == REINDEX_OBJECT_INDEX ? " INDEX" : " TABLE");
	foreach(cell, targets)
	{
		Target	   *target = lfirst(cell);

		if (target->table == NULL || !has_part(statement, node, target->table))
			continue;
		appendStringInfo(&text, "%s%s", any ? ", " : " ", tessera_qualified_name(target->relid));
		any = true;
	}
	if (IsA(statement, ClusterStmt) && ((ClusterStmt *) statement)->indexname != NULL)
		appendStringInfo(&text, " USING %s", tessera_quote(((ClusterStmt *) statement)->indexname));
	return any ? text.data : NULL;
}

/* Every other node that has a part of a table. */
static void
add_parts(TesseraNodeParts *parts, Node *statement, List *targets, const TesseraRouting *routing)
{
	tessera_node_parts_init(parts, routing);
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		const char *text = node->node_id == routing->self ? NULL : text_for(statement, targets, node);

		if (text != NULL)
			tessera_node_parts_add(parts, node->node_id, text);
	}
}

/* ---- here ---- */

/* The statement's own tree. Lists of columns are for ANALYZE alone. */
static void
leave_analyze_out(VacuumStmt *statement)
{
	List	   *options = NIL;
	ListCell   *cell;

	foreach(cell, statement->options)
		if (strcmp(lfirst_node(DefElem, cell)->defname, "analyze") != 0)
			options = lappend(options, lfirst(cell));
	statement->options = options;
	foreach(cell, statement->rels)
		lfirst_node(VacuumRelation, cell)->va_cols = NIL;
}

/* The options that ANALYZE has, too. */
static List *
of_analyze(List *options)
{
	List	   *result = NIL;
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "verbose") == 0 || strcmp(option->defname, "skip_locked") == 0)
			result = lappend(result, option);
	}
	return result;
}

/* The same utility statement with another tree, in the portal's memory. */
static TesseraUtility
with_tree(const TesseraUtility *utility, Node *statement)
{
	TesseraUtility copy = *utility;

	copy.statement = copyObject(utility->statement);
	copy.statement->utilityStmt = statement;
	copy.read_only = false;
	return copy;
}

/* VACUUM (ANALYZE): the tables that the user may analyze; core has named the others. */
static void
analyze_after(TesseraUtility *utility, VacuumStmt *statement, List *targets)
{
	VacuumStmt *analyze = makeNode(VacuumStmt);
	TesseraUtility copy;
	ListCell   *cell;

	analyze->options = of_analyze(statement->options);
	foreach(cell, targets)
	{
		Target	   *target = lfirst(cell);

		if (get_rel_name(target->relid) != NULL && may_maintain((Node *) statement, target->relid))
			analyze->rels = lappend(analyze->rels, copyObject(target->relation));
	}
	if (analyze->rels == NIL)
		return;
	copy = with_tree(utility, (Node *) analyze);
	if (!tessera_analyze_handler(&copy))
		tessera_utility_run(&copy);
}

/* All phases but ANALYZE. */
static void
run_phases(TesseraUtility *utility, TesseraNodeParts *parts, Node *statement, const TesseraRouting *routing)
{
	TesseraUtility copy = with_tree(utility, statement);

	tessera_node_parts_open(parts, routing);
	tessera_node_parts_send(parts);
	tessera_utility_run(&copy);
	tessera_operation_next_transaction();
	tessera_node_parts_await(parts);
}

static void
run_everywhere(TesseraUtility *utility, Node *statement, List *targets, const TesseraRouting *routing)
{
	TesseraNodeParts parts;

	add_parts(&parts, statement, targets, routing);
	PG_TRY();
	{
		run_phases(utility, &parts, statement, routing);
	}
	PG_CATCH();
	{
		tessera_node_parts_end(&parts);
		PG_RE_THROW();
	}
	PG_END_TRY();
	tessera_node_parts_end(&parts);
}

/* REINDEX CONCURRENTLY: true if that is what the statement is. */
static bool
runs_as_operation(Node *statement, List *targets, const TesseraRouting *routing)
{
	ReindexStmt *reindex = (ReindexStmt *) statement;
	Target	   *target;
	char	   *command;

	if (!IsA(statement, ReindexStmt) || !has_option(reindex->params, "concurrently"))
		return false;
	target = linitial(targets);
	/* without other options, the text by which CREATE INDEX CONCURRENTLY builds its index: that is joined, too */
	if (list_length(reindex->params) == 1)
		command = psprintf("REINDEX %s CONCURRENTLY %s", reindex->kind == REINDEX_OBJECT_INDEX ? "INDEX" : "TABLE",
						   tessera_qualified_name(target->relid));
	else
		command = text_for(statement, targets, tessera_routing_node(routing, routing->self));
	tessera_reindex_concurrently(target->relid, target->table, command);
	return true;
}

static const char *
name_of(Node *statement)
{
	return IsA(statement, VacuumStmt) ? "VACUUM" : IsA(statement, ClusterStmt) ? "CLUSTER" : "REINDEX";
}

/* As core asks of VACUUM; this node's part of a table may be clustered and reindexed anywhere. */
static void
require_own_transaction(const TesseraUtility *utility, Node *statement)
{
	bool		top = utility->context == PROCESS_UTILITY_TOPLEVEL;

	if (!IsA(statement, VacuumStmt) && IsInTransactionBlock(top))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s of a table of the cluster cannot run inside a transaction block or a function", name_of(statement)),
				 errhint("Run it by itself, or for this node's part of the table alone with tessera.vacuum_everywhere = off.")));
	PreventInTransactionBlock(top, name_of(statement));
}

bool
tessera_maintenance(TesseraUtility *utility, const TesseraRouting *routing)
{
	Node	   *original = utility->statement->utilityStmt;
	Node	   *statement;
	MemoryContext before;
	List	   *targets;
	bool		analyze = false;

	if (!vacuum_everywhere || PortalContext == NULL)
		return false;
	before = MemoryContextSwitchTo(PortalContext);
	targets = list_targets(original, routing);
	statement = copyObject(original);
	if (IsA(statement, VacuumStmt))
		analyze = has_option(((VacuumStmt *) statement)->options, "analyze");
	if (!concerns_others(targets) || (has_columns(targets) && !analyze))
	{
		MemoryContextSwitchTo(before);
		return false;
	}
	require_own_transaction(utility, statement);
	/* which shards have a part may have changed; without the config node it is done where this node knows of */
	(void) tessera_routing_refresh(REFRESH_MS);
	routing = tessera_routing();
	targets = list_targets(original, routing);
	if (routing == NULL || !concerns_others(targets))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the tables of the cluster have changed meanwhile"),
				 errhint("Try again.")));
	if (analyze)
		leave_analyze_out(castNode(VacuumStmt, statement));
	if (!runs_as_operation(statement, targets, routing))
		run_everywhere(utility, statement, targets, routing);
	if (analyze)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		analyze_after(utility, castNode(VacuumStmt, original), targets);
	}
	/* the portal's own went with the first transaction */
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	MemoryContextSwitchTo(before);
	return true;
}

void
tessera_maintenance_init(void)
{
	DefineCustomBoolVariable("tessera.vacuum_everywhere",
							 "VACUUM, CLUSTER and REINDEX of named tables of the cluster run on every shard that has a part of them.",
							 "Off: they work on this node's part of a table only, as those that name no table do.",
							 &vacuum_everywhere, true, PGC_USERSET, 0, NULL, NULL, NULL);
}
