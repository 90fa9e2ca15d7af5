/*
 * create_index.c
 *	  CREATE INDEX CONCURRENTLY of a table of the cluster: the index comes into being on all nodes at once, not valid, and then each node builds its
 *	  own beside running statements.
 *
 * Phases: (1) one distributed transaction makes the index on every node without building it (fan_out.c calls tessera_make_unbuilt_index there); it is
 * neither ready for insertions nor valid, so nothing uses it. That commit is the durable state: pg_index of each node says from then on what is done
 * there. (2) Each node runs REINDEX INDEX CONCURRENTLY by itself (node_parts.h), which builds another one and puts it in the place of the first,
 * valid. (3) If one fails, what REINDEX has left there is dropped, and then the index, on all nodes in one distributed transaction; the client gets
 * the error.
 *
 * A crash of the client's node or of another one between (1) and the end leaves the index on all nodes, valid on those that were through with it. As
 * on one server REINDEX INDEX CONCURRENTLY, which reaches every node, ends the work; DROP INDEX takes it back.
 *
 * Locks: (1) takes those of CREATE INDEX, in short attempts, for the time of a change of the catalog. In (2) this session has no snapshot and no
 * lock: its own node's build waits for all older snapshots. Memory: the portal's, which outlives the transactions that end here.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "commands/event_trigger.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "parser/parse_utilcmd.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "common/injection.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "ddl/ddl.h"
#include "ddl/node_parts.h"
#include "session/internal_connection.h"

/* ---- (1) on each node ---- */

static void
mark_unbuilt(Oid index)
{
	Relation	rel = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("cache lookup failed for index %u", index)));
	form = (Form_pg_index) GETSTRUCT(tuple);
	form->indisvalid = false;
	form->indisready = false;
	CatalogTupleUpdate(rel, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

/* What core's ProcessUtility does for CREATE INDEX, but for the build. */
static void
define_unbuilt(TesseraUtility *utility, IndexStmt *statement)
{
	IndexStmt  *copy = copyObject(statement);
	Oid			relid;
	ObjectAddress address;

	copy->concurrent = false;
	relid = RangeVarGetRelidExtended(copy->relation, ShareLock, 0, RangeVarCallbackOwnsRelation, NULL);
	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot create index on partitioned table \"%s\" concurrently", copy->relation->relname)));
	copy = transformIndexStmt(relid, copy, utility->text);
	EventTriggerAlterTableStart((Node *) statement);
	address = DefineIndex(relid, copy, InvalidOid, InvalidOid, InvalidOid, false, true, true, true, false);
	if (OidIsValid(address.objectId))
		mark_unbuilt(address.objectId);
	EventTriggerCollectSimpleCommand(address, InvalidObjectAddress, (Node *) statement);
	EventTriggerAlterTableEnd();
	statement->indexOid = address.objectId;
}

void
tessera_make_unbuilt_index(TesseraUtility *utility)
{
	IndexStmt  *statement = castNode(IndexStmt, utility->statement->utilityStmt);
	bool		cleanup = EventTriggerBeginCompleteQuery();

	tessera_nesting_enter();
	PG_TRY();
	{
		EventTriggerDDLCommandStart((Node *) statement);
		define_unbuilt(utility, statement);
		EventTriggerSQLDrop((Node *) statement);
		EventTriggerDDLCommandEnd((Node *) statement);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
		if (cleanup)
			EventTriggerEndCompleteQuery();
	}
	PG_END_TRY();
}

bool
tessera_is_unbuilt_index(Node *statement)
{
	return IsA(statement, IndexStmt) && ((IndexStmt *) statement)->concurrent && OidIsValid(((IndexStmt *) statement)->indexOid);
}

char *
tessera_unbuilt_index_text(const IndexStmt *statement)
{
	char	   *definition = pg_get_indexdef_string(statement->indexOid);
	const char *start = statement->unique ? "CREATE UNIQUE INDEX " : "CREATE INDEX ";

	if (strncmp(definition, start, strlen(start)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("unexpected definition of an index: %s", definition)));
	return psprintf("%sCONCURRENTLY %s", start, definition + strlen(start));
}

/* ---- (2) and (3), in the client's session ---- */

typedef struct Build
{
	const char *name;			/* of the index, qualified */
	const char *leftover;		/* what a REINDEX CONCURRENTLY that fails leaves; NULL: there was something of that name before */
} Build;

/* A statement on all nodes, this one included. */
static void
run_on_all(const char *sql)
{
	const TesseraRouting *routing = tessera_routing();
	TesseraNodeParts parts;

	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster")));
	tessera_node_parts_init(&parts, routing);
	for (int i = 0; i < routing->nnodes; i++)
		tessera_node_parts_add(&parts, tessera_routing_node_at(routing, i)->node_id, sql);
	PG_TRY();
	{
		tessera_node_parts_open(&parts, routing);
		tessera_node_parts_send(&parts);
		/* this node's part waits for all snapshots that are older than its own transactions */
		InvalidateCatalogSnapshot();
		tessera_node_parts_await(&parts);
	}
	PG_CATCH();
	{
		tessera_node_parts_end(&parts);
		PG_RE_THROW();
	}
	PG_END_TRY();
	tessera_node_parts_end(&parts);
}

static void
build_index(void *arg)
{
	Build	   *build = arg;

	tessera_injection("index_build");
	run_on_all(psprintf("REINDEX INDEX CONCURRENTLY %s", build->name));
	tessera_injection("index_built");
}

static void
drop_leftovers(void *arg)
{
	Build	   *build = arg;

	if (build->leftover != NULL)
		run_on_all(psprintf("DROP INDEX CONCURRENTLY IF EXISTS %s", build->leftover));
}

static void
drop_index(void *arg)
{
	Build	   *build = arg;

	tessera_injection("index_drop");
	PushActiveSnapshot(GetTransactionSnapshot());
	tessera_run_utility_text(psprintf("DROP INDEX IF EXISTS %s", build->name));
	PopActiveSnapshot();
}

static void
end_transaction(void)
{
	while (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	MemoryContextSwitchTo(PortalContext);
}

/* The build has failed: nothing is left of the index, or the error says that it is. */
static void
take_back(Build *build, ErrorData *error)
{
	ErrorData  *other;

	end_transaction();
	(void) tessera_try(drop_leftovers, build);
	other = tessera_try(drop_index, build);
	if (other == NULL)
		end_transaction();
	else
	{
		error->detail_log = psprintf("It could not be dropped: %s", other->message);
		error->hint = psprintf("The index is left, not valid on all nodes: REINDEX INDEX CONCURRENTLY %s ends the work, DROP INDEX takes it back.",
							   build->name);
	}
	ReThrowError(error);
}

/* Names, while the catalog of this transaction is to be had. */
static void
name_build(Build *build, Oid index)
{
	Oid			namespace = get_rel_namespace(index);
	char	   *leftover = makeObjectName(get_rel_name(index), NULL, "ccnew");

	build->name = tessera_qualified_name(index);
	if (!OidIsValid(get_relname_relid(leftover, namespace)))
		build->leftover = quote_qualified_identifier(get_namespace_name(namespace), leftover);
}

void
tessera_create_index_concurrently(TesseraUtility *utility, const TesseraRouting *routing, TesseraStatementObjects *named)
{
	TesseraUtility copy = *utility;
	MemoryContext before;
	Build		build = {0};
	IndexStmt  *statement;
	ErrorData  *error;

	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "CREATE INDEX CONCURRENTLY");
	before = MemoryContextSwitchTo(PortalContext);
	copy.statement = copyObject(utility->statement);
	statement = castNode(IndexStmt, copy.statement->utilityStmt);
	tessera_fan_out(&copy, routing, named);
	if (OidIsValid(statement->indexOid))	/* else there is one: IF NOT EXISTS */
	{
		name_build(&build, statement->indexOid);
		end_transaction();
		error = tessera_try(build_index, &build);
		if (error != NULL)
			take_back(&build, error);
	}
	MemoryContextSwitchTo(before);
}
