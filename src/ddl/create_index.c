/*
 * create_index.c
 *	  CREATE INDEX CONCURRENTLY of a table of the cluster: the index comes into being on all nodes at once, not valid, and then each node builds its
 *	  own beside running statements.
 *
 * Phases: (1) one distributed transaction makes the index on every node without building it (fan_out.c calls tessera_make_unbuilt_index there), and
 * the operation's row on the config node (operation.h); the index is neither ready for insertions nor valid, so nothing uses it. (2) Each node runs
 * REINDEX INDEX CONCURRENTLY by itself, which builds another one and puts it in the place of the first, valid. (3) If one fails for good, the phase
 * is noted; then what REINDEX has left goes, and then, in one distributed transaction, the index on all nodes and the operation; the client gets the
 * error. If what it failed for passes (a node is down), the client gets the error, too, and the operation goes on by itself.
 *
 * A crash of the client's node or of another one between (1) and the end: the config node's worker goes on with (2), or with (3)
 * (config/ddl_operation_worker.c).
 *
 * Locks: (1) takes those of CREATE INDEX, in short attempts, for the time of a change of the catalog. In (2) this session has no snapshot and no
 * lock but the operation's claim: its own node's build waits for all older snapshots. Memory: the portal's, which outlives the transactions that end
 * here.
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
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "common/fixed_settings.h"
#include "common/injection.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/ddl.h"
#include "ddl/operation.h"
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
	bool		complete = utility->context != PROCESS_UTILITY_SUBCOMMAND;	/* as for core: else no event trigger fires */
	bool		cleanup = complete && EventTriggerBeginCompleteQuery();

	tessera_nesting_enter();
	PG_TRY();
	{
		if (complete)
			EventTriggerDDLCommandStart((Node *) statement);
		define_unbuilt(utility, statement);
		if (complete)
		{
			EventTriggerSQLDrop((Node *) statement);
			EventTriggerDDLCommandEnd((Node *) statement);
		}
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
	int			nest = tessera_fixed_settings_push(TESSERA_FIXED_QUOTES);
	char	   *definition = pg_get_indexdef_string(statement->indexOid);
	const char *start = statement->unique ? "CREATE UNIQUE INDEX " : "CREATE INDEX ";

	AtEOXact_GUC(true, nest);
	if (strncmp(definition, start, strlen(start)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("unexpected definition of an index: %s", definition)));
	return psprintf("%sCONCURRENTLY %s", start, definition + strlen(start));
}

/* ---- (2) and (3), in the client's session ---- */

typedef struct Build
{
	TesseraOperation operation;
	TesseraUtility *utility;
	const TesseraRouting *routing;
	TesseraStatementObjects *named;
	const char *name;			/* of the index, qualified */
} Build;

static void
make_index(void *arg)
{
	Build	   *build = arg;

	tessera_fan_out(build->utility, build->routing, build->named);
}

static void
build_index(void *arg)
{
	tessera_operation_run(&((Build *) arg)->operation);
}

static void
drop_leftovers(void *arg)
{
	tessera_operation_clean(&((Build *) arg)->operation);
}

typedef struct TakeBack
{
	const TesseraOperation *operation;
	const ErrorData *error;
} TakeBack;

static void
drop_index(void *arg)
{
	TakeBack   *taken = arg;

	tessera_injection("index_drop");
	tessera_drop_unbuilt_index(taken->operation, taken->error);
}

void
tessera_drop_unbuilt_index(const TesseraOperation *operation, const ErrorData *error)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	if (tessera_operation_failed(operation, error))
		tessera_run_utility_text(psprintf("DROP INDEX IF EXISTS %s", tessera_quote_qualified(operation->schema, operation->object)));
	PopActiveSnapshot();
}

/* The config node's worker looks after it, whether this call arrives or not. */
static void
note(const TesseraOperation *operation, const char *phase, const char *error)
{
	(void) tessera_call_note_ddl_operation(tessera_ask(tessera_to_config(), TESSERA_TOLERATE_ERRORS), &operation->id, phase, NULL, error);
	InvalidateCatalogSnapshot();
}

/* The build has failed: it goes on later, or nothing is left of the index, or that is seen to later. */
static void
take_back(Build *build, ErrorData *error)
{
	TakeBack	taken = {&build->operation, error};
	ErrorData  *other;

	tessera_operation_next_transaction();
	if (tessera_operation_may_go_on(error))
	{
		note(&build->operation, NULL, error->message);
		error->hint = psprintf("The build of index %s goes on by itself: see tessera.ddl_operations. The same statement waits for its end, "
							   "and DROP INDEX takes it back.", build->name);
		ReThrowError(error);
	}
	note(&build->operation, TESSERA_PHASE_TAKE_BACK, error->message);
	(void) tessera_try(drop_leftovers, build);
	other = tessera_try(drop_index, &taken);
	if (other == NULL)
		tessera_operation_next_transaction();
	else
	{
		error->detail_log = psprintf("It could not be dropped: %s", other->message);
		error->hint = psprintf("Index %s is left for now, not valid; it is taken back by itself: see tessera.ddl_operations.", build->name);
	}
	ReThrowError(error);
}

/* Names, while the catalog of this transaction is to be had. */
static void
name_build(Build *build, Oid index)
{
	const TesseraTable *table = tessera_routing_table(tessera_routing(), tessera_cluster_root(tessera_routing(), index));

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the table of index \"%s\" is none of the cluster any more", get_rel_name(index))));
	build->name = tessera_qualified_name(index);
	build->operation.kind = TESSERA_OPERATION_CREATE;
	build->operation.table_id = table->table_id;
	build->operation.schema = get_namespace_name(get_rel_namespace(index));
	build->operation.object = get_rel_name(index);
	build->operation.command = psprintf("REINDEX INDEX CONCURRENTLY %s", build->name);
}

/*
 * An index of the statement's name may be there because the same statement is under way: then this waits for its end. The table must be the user's,
 * as for the statement itself.
 */
static bool
join_same(IndexStmt *statement, const char *text)
{
	Oid			table = statement->idxname != NULL ? RangeVarGetRelid(statement->relation, NoLock, true) : InvalidOid;

	if (!OidIsValid(table) || !OidIsValid(get_relname_relid(statement->idxname, get_rel_namespace(table))) ||
		!tessera_owns_relation(table, GetUserId()))
		return false;
	return tessera_operation_join(get_namespace_name(get_rel_namespace(table)), statement->idxname, text, NULL);
}

static void
carry_out(Build *build, IndexStmt *statement)
{
	ErrorData  *error = tessera_try(make_index, build);

	if (error != NULL && (error->sqlerrcode != ERRCODE_DUPLICATE_TABLE || !join_same(statement, build->operation.statement)))
		ReThrowError(error);
	if (!OidIsValid(statement->indexOid))	/* there is one: IF NOT EXISTS, or made by the same statement */
		return;
	name_build(build, statement->indexOid);
	tessera_operation_record(&build->operation, true);
	tessera_injection("index_recorded");
	tessera_operation_next_transaction();
	error = tessera_try(build_index, build);
	if (error != NULL)
		take_back(build, error);
	tessera_operation_finished(&build->operation, NULL);
}

void
tessera_create_index_concurrently(TesseraUtility *utility, const TesseraRouting *routing, TesseraStatementObjects *named)
{
	TesseraUtility copy = *utility;
	MemoryContext before;
	Build		build = {.utility = &copy, .routing = routing, .named = named};
	IndexStmt  *statement;

	PreventInTransactionBlock(utility->context == PROCESS_UTILITY_TOPLEVEL, "CREATE INDEX CONCURRENTLY");
	before = MemoryContextSwitchTo(PortalContext);
	copy.statement = copyObject(utility->statement);
	statement = castNode(IndexStmt, copy.statement->utilityStmt);
	build.operation.statement = tessera_utility_text(utility);
	if (!join_same(statement, build.operation.statement))
	{
		tessera_operation_begin_new(&build.operation);
		PG_TRY();
		{
			carry_out(&build, statement);
		}
		PG_FINALLY();
		{
			tessera_operation_release(&build.operation.id);
		}
		PG_END_TRY();
	}
	MemoryContextSwitchTo(before);
}
