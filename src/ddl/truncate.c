/*
 * truncate.c
 *	  TRUNCATE of tables of the cluster: on every node, in one distributed transaction.
 *
 * The router locks the names on the config node (which ends the running migrations of the groups), locks the tables on all nodes concerned
 * (attempts.h), truncates its own heaps, then sends the statement with the versions it routes by to all others. A shard takes the table locks first
 * and looks at versions and gates after that (doc/design.md#flag-after-lock); a shard that finds the versions stale runs nothing and says so (INFO
 * TS001), and the whole attempt is undone and made again.
 *
 * Memory: commands in flight in TopTransactionContext. Locks: those of TRUNCATE, to the end of the transaction.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "common/errors.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "load/load_sample.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

bool		(*tessera_table_check) (Oid relid, const TesseraRouting *image) = NULL;

typedef struct Truncate
{
	TesseraUtility *utility;
	List	   *keys;
	List	   *namespaces;		/* of what is named */
	char	   *by;				/* reason in the error of migrations that must end */
} Truncate;

/* ---- on each node: locks first, then versions ---- */

static void
check_privilege(const RangeVar *relation, Oid relid, Oid old, void *arg)
{
	AclResult	result;

	if (!OidIsValid(relid))
		return;
	result = pg_class_aclcheck(relid, GetUserId(), ACL_TRUNCATE);
	if (result != ACLCHECK_OK)
		aclcheck_error(result, get_relkind_objtype(get_rel_relkind(relid)), relation->relname);
}

/* Tables named, and with CASCADE those that refer to them; all locked. */
static List *
lock_tables(TruncateStmt *statement)
{
	List	   *relids = NIL;
	List	   *more;
	ListCell   *cell;

	foreach(cell, statement->relations)
		relids = list_append_unique_oid(relids, RangeVarGetRelidExtended(lfirst_node(RangeVar, cell), AccessExclusiveLock, 0, check_privilege, NULL));
	while (statement->behavior == DROP_CASCADE && (more = heap_truncate_find_FKs(relids)) != NIL)
	{
		foreach(cell, more)
			LockRelationOid(lfirst_oid(cell), AccessExclusiveLock);
		relids = list_concat(relids, more);
	}
	return relids;
}

/* The tables they belong to that a migration may move. */
static List *
movable_roots(const TesseraRouting *routing, List *relids)
{
	List	   *roots = NIL;
	ListCell   *cell;

	foreach(cell, relids)
	{
		Oid			root = tessera_cluster_root(routing, lfirst_oid(cell));

		if (OidIsValid(root) && tessera_routing_table(routing, root)->placement_group >= 0)
			roots = list_append_unique_oid(roots, root);
	}
	return roots;
}

/* image NULL: on an internal connection. false: stale. */
static bool
versions_fit(const TesseraRouting *routing, List *roots, const TesseraRouting *image)
{
	ListCell   *cell;

	foreach(cell, roots)
		if (tessera_table_check && !tessera_table_check(lfirst_oid(cell), image))
			return false;
	foreach(cell, roots)
		tessera_load_emptied(routing, tessera_routing_table(routing, lfirst_oid(cell)));
	return true;
}

/* RESTART IDENTITY: values drawn before must not be given out any more. The sequences are locked until the transaction ends. */
static void
forget_sequences(TruncateStmt *statement, List *relids)
{
	ListCell   *cell;
	ListCell   *sequence;

	if (!statement->restart_seqs)
		return;
	foreach(cell, relids)
		foreach(sequence, getOwnedSequences(lfirst_oid(cell)))
			tessera_sequence_changed(lfirst_oid(sequence));
}

/* ---- the router ---- */

_Noreturn static void
raise_stale(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_STALE_ROUTING),
			 errmsg("could not route the statement: placements kept changing"),
			 errhint("Look at tessera.migrations; retry the transaction.")));
}

static void
send_to_node(const TesseraRouting *routing, int32 node_id, const char *sql, List *roots)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	TesseraToldVersion *versions = palloc(sizeof(TesseraToldVersion) * (TESSERA_TOLD_VERSIONS * list_length(roots) + 1));
	TesseraCommand *command = palloc0(sizeof(TesseraCommand));
	TesseraCommandNeeds needs = {.write = true, .versions = versions};
	TesseraConnection *connection;
	ListCell   *cell;

	foreach(cell, roots)
		needs.nversions += tessera_told_versions(routing, tessera_routing_table(routing, lfirst_oid(cell)), node_id,
													&versions[needs.nversions]);
	connection = tessera_participant(routing, node_id, &needs);
	command->sql = sql;
	tessera_connection_queue(connection, command);
	tessera_connection_sync(connection);
	MemoryContextSwitchTo(before);
	tessera_connection_finish(connection, command);
	tessera_connection_check(connection, command);
	if (command->stale)
		raise_stale();
}

/* True if one of the tables has rows on routers, too. */
static bool
has_copies(const TesseraRouting *routing, List *relids)
{
	ListCell   *cell;

	foreach(cell, relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table != NULL && table->replicated)
			return true;
	}
	return false;
}

/* As for other DDL (fan_out.c). */
static void
await_holders(void *arg)
{
	TruncateStmt *statement = castNode(TruncateStmt, ((Truncate *) arg)->utility->statement->utilityStmt);
	const TesseraRouting *routing = tessera_routing();

	tessera_ddl_await_holders(routing, tessera_ddl_table_locks((Node *) statement, routing), !statement->restart_seqs);
}

static void
attempt_truncate(void *arg)
{
	Truncate   *truncate = arg;
	TruncateStmt *statement = castNode(TruncateStmt, truncate->utility->statement->utilityStmt);
	const TesseraRouting *routing = tessera_routing();
	TesseraUtility copy = *truncate->utility;
	List	   *relids = NIL;
	List	   *roots;
	ListCell   *cell;
	char	   *sql;

	/* Before any lock on a table: a migration of it holds a lock for long (doc/design.md#moves-and-ddl). */
	foreach(cell, statement->relations)
		relids = list_append_unique_oid(relids, RangeVarGetRelid(lfirst_node(RangeVar, cell), NoLock, false));
	tessera_ddl_lock(routing, truncate->keys, tessera_ddl_groups(routing, movable_roots(routing, relids), truncate->namespaces), truncate->by,
					 await_holders, truncate);
	tessera_ddl_lock_tables(routing, tessera_ddl_table_locks((Node *) statement, routing), !statement->restart_seqs);
	relids = lock_tables(statement);
	routing = tessera_routing();
	roots = movable_roots(routing, relids);
	if (list_length(relids) > list_length(statement->relations))
		tessera_ddl_lock(routing, NIL, tessera_ddl_groups(routing, roots, NIL), truncate->by, NULL, NULL);
	if (!versions_fit(routing, roots, routing))
		raise_stale();
	copy.read_only = true;
	tessera_utility_run(&copy);
	forget_sequences(statement, relids);

	sql = MemoryContextStrdup(TopTransactionContext, tessera_utility_text(truncate->utility));
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		CHECK_FOR_INTERRUPTS();
		if (node->node_id != routing->self && (node->is_shard || statement->restart_seqs || has_copies(routing, relids)))
			send_to_node(routing, node->node_id, sql, roots);
	}
}

/* On an internal connection: as it is, if the versions fit. */
static void
truncate_received(TesseraUtility *utility, const TesseraRouting *routing)
{
	List	   *relids = lock_tables(castNode(TruncateStmt, utility->statement->utilityStmt));
	int			level = NewGUCNestLevel();

	routing = tessera_routing();
	tessera_ddl_set_here("client_min_messages", "error");	/* the router says the same */
	if (versions_fit(routing, movable_roots(routing, relids), NULL))
	{
		tessera_utility_run(utility);
		forget_sequences(castNode(TruncateStmt, utility->statement->utilityStmt), relids);
	}
	else
		ereport(INFO,
				(errcode(ERRCODE_TESSERA_STALE_ROUTING),
				 errmsg("stale routing: the statement was not run")));
	AtEOXact_GUC(true, level);
}

void
tessera_truncate(TesseraUtility *utility, const TesseraRouting *routing, bool received)
{
	TruncateStmt *statement = castNode(TruncateStmt, utility->statement->utilityStmt);
	Truncate	truncate = {.utility = utility};
	TesseraStatementObjects named = {0};

	tessera_statement_objects((Node *) statement, routing, &named);
	if (named.relids == NIL)
		tessera_utility_run(utility);
	else if (named.local != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("one statement cannot truncate both \"%s\", which every node has, and \"%s\", which only this node has",
						named.cluster, named.local),
				 errhint("Use a statement for each.")));
	else if (received)
		truncate_received(utility, routing);
	else
	{
		if (tessera_internal_connection())
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a function or trigger that runs on a shard cannot run TRUNCATE"),
					 errhint("Run it in the client, or in a function called outside the statement.")));
		PreventCommandIfReadOnly("TRUNCATE TABLE");
		tessera_ddl_check_rights((Node *) statement, &named);
		truncate.keys = named.keys;
		truncate.namespaces = named.namespaces;
		truncate.by = tessera_ddl_by(utility, &named);
		tessera_fan_out_pending();
		tessera_ddl_attempts(attempt_truncate, &truncate, TESSERA_PATIENCE_DDL);
	}
}
