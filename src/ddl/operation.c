/*
 * operation.c
 *	  A statement that cannot run in a transaction, in phases over all nodes; see operation.h.
 *
 * The row on the config node is there before any node runs the command, and ends after all have: so a crash of any process between finds a row that
 * says what is left to do. Each node's command can be repeated. The claim is a lock without a table, which the server releases when its session ends,
 * however that does.
 *
 * Memory: the caller's. Locks: the claim; nothing while this process waits for other nodes.
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "common/injection.h"
#include "common/privilege.h"
#include "control/calls.h"
#include "ddl/node_parts.h"
#include "ddl/operation.h"

PG_FUNCTION_INFO_V1(tessera_internal_ddl_operations);

/* Objects of a class that no catalog has. */
#define OPERATION_CLASS ((Oid) 0xFFFFFFF3)

#define FIRST_PAUSE_MS 20
#define LAST_PAUSE_MS 1000

/* ---- the claim ---- */

static void
claim_tag(const pg_uuid_t *id, LOCKTAG *tag)
{
	uint32		words[3];

	memcpy(words, id->data, sizeof(words));
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, OPERATION_CLASS, words[0], words[1] & 0xFFFF);
}

bool
tessera_operation_claim(const pg_uuid_t *id)
{
	LOCKTAG		tag;

	claim_tag(id, &tag);
	return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
tessera_operation_release(const pg_uuid_t *id)
{
	LOCKTAG		tag;

	claim_tag(id, &tag);
	(void) LockRelease(&tag, ExclusiveLock, true);
}

void
tessera_operation_begin_new(TesseraOperation *operation)
{
	if (!pg_strong_random(operation->id.data, UUID_LEN))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not get random bytes")));
	operation->search_path = pstrdup(GetConfigOption("search_path", false, false));
	if (!tessera_operation_claim(&operation->id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another operation is claimed like this one"),
				 errhint("Try again.")));
}

/* True if a process of this node has claimed it. */
bool
tessera_serve_ddl_operation_runs(const TesseraDdlOperationRunsArgs *args)
{
	LOCKTAG		tag;

	claim_tag(args->id, &tag);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&tag, ExclusiveLock, false);
	return false;
}

/* ---- the row ---- */

void
tessera_operation_record(const TesseraOperation *operation, bool in_transaction)
{
	TesseraCallTarget target = tessera_writing(tessera_to_config());

	if (!in_transaction)
		target = tessera_on_lane(target, TESSERA_LANE_CONTROL);
	tessera_call_begin_ddl_operation(target, &operation->id, operation->kind, &operation->table_id, operation->schema, operation->object,
									 operation->statement, operation->search_path, operation->command, GetUserNameFromId(GetUserId(), false),
									 tessera_routing()->self);
}

static const char *
code_text(const ErrorData *error)
{
	return error != NULL ? pstrdup(unpack_sql_state(error->sqlerrcode)) : NULL;
}

void
tessera_operation_finished(const TesseraOperation *operation, const ErrorData *error)
{
	ErrorData  *lost = NULL;
	bool		ended;

	if (!tessera_call_end_ddl_operation(tessera_keep_error(tessera_ask(tessera_to_config(), TESSERA_TOLERATE_ERRORS), &lost), &operation->id,
										code_text(error), error != NULL ? error->message : NULL, &ended))
		ereport(LOG,
				(errmsg("the config node was not told that an operation on \"%s\" has ended: %s", operation->object, lost->message),
				 errdetail("It will find out by itself.")));
}

bool
tessera_operation_failed(const TesseraOperation *operation, const ErrorData *error)
{
	bool		ended;

	tessera_call_end_ddl_operation(tessera_on_lane(tessera_writing(tessera_to_config()), TESSERA_LANE_TRANSACTION), &operation->id,
								   code_text(error), error->message, &ended);
	return ended;
}

bool
tessera_operation_may_go_on(const ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	return category == ERRCODE_CONNECTION_EXCEPTION || category == ERRCODE_TRANSACTION_ROLLBACK ||
		category == ERRCODE_INSUFFICIENT_RESOURCES || error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE || error->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
		error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN || error->sqlerrcode == ERRCODE_CRASH_SHUTDOWN ||
		error->sqlerrcode == ERRCODE_CANNOT_CONNECT_NOW || error->sqlerrcode == ERRCODE_IDLE_SESSION_TIMEOUT;
}

/* ---- on all nodes ---- */

static const TesseraRouting *
routing_of_member(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster")));
	return routing;
}

static void
run_parts(TesseraNodeParts *parts, const TesseraRouting *routing)
{
	PG_TRY();
	{
		tessera_node_parts_open(parts, routing);
		tessera_node_parts_send(parts);
		/* this node's part waits for all snapshots that are older than its own transactions */
		InvalidateCatalogSnapshot();
		tessera_node_parts_await(parts);
	}
	PG_CATCH();
	{
		tessera_node_parts_end(parts);
		PG_RE_THROW();
	}
	PG_END_TRY();
	tessera_node_parts_end(parts);
}

static bool
is_done(const TesseraOperation *operation, int32 node_id)
{
	for (int i = 0; i < operation->ndone; i++)
		if (operation->done[i] == node_id)
			return true;
	return false;
}

/* If the config node does not hear it, the node runs the command once more when the operation is carried on. */
static void
note_done(int32 node_id, void *arg)
{
	const TesseraOperation *operation = arg;

	(void) tessera_call_note_ddl_operation(tessera_ask(tessera_to_config(), TESSERA_TOLERATE_ERRORS), &operation->id, NULL, &node_id, NULL);
	InvalidateCatalogSnapshot();
}

void
tessera_operation_run(const TesseraOperation *operation)
{
	const TesseraRouting *routing = routing_of_member();
	TesseraNodeParts parts;

	tessera_injection("index_build");
	tessera_node_parts_init(&parts, routing);
	parts.answered = note_done;
	parts.arg = unconstify(TesseraOperation *, operation);
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		if (!is_done(operation, node_id))
			tessera_node_parts_add(&parts, node_id, operation->command);
	}
	run_parts(&parts, routing);
	tessera_injection("index_built");
}

/* One leftover of each node goes at a time; there is seldom more than one. */
static bool
clean_once(const TesseraOperation *operation, const TesseraRouting *routing)
{
	bool		of_table = strcmp(operation->kind, TESSERA_OPERATION_REINDEX_TABLE) == 0;
	TesseraNodeParts parts;

	tessera_node_parts_init(&parts, routing);
	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;
		TesseraDdlOperationPartAnswer part;

		tessera_call_ddl_operation_part(tessera_to_node(node_id), &operation->table_id, operation->schema,
										of_table ? NULL : operation->object, &part);
		if (part.leftover != NULL)
			tessera_node_parts_add(&parts, node_id, psprintf("DROP INDEX CONCURRENTLY IF EXISTS %s", part.leftover));
	}
	if (parts.n == 0)
		return false;
	run_parts(&parts, routing);
	return true;
}

void
tessera_operation_clean(const TesseraOperation *operation)
{
	const TesseraRouting *routing = routing_of_member();

	while (clean_once(operation, routing))
		CHECK_FOR_INTERRUPTS();
}

void
tessera_operation_next_transaction(void)
{
	while (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	StartTransactionCommand();
	MemoryContextSwitchTo(PortalContext);
}

/* ---- the same once more ---- */

static int
code_of(const char *text)
{
	return text != NULL && strlen(text) == 5 ? MAKE_SQLSTATE(text[0], text[1], text[2], text[3], text[4]) : ERRCODE_INTERNAL_ERROR;
}

/* True when it is done. ERROR: that with which it has failed. */
static bool
has_ended(const pg_uuid_t *id, const char *object)
{
	TesseraDdlOperationStateAnswer *row;
	int			n;

	tessera_call_ddl_operation_state(tessera_to_config(), id, &row, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the config node knows no more of the operation on \"%s\"", object),
				 errhint("See tessera.health, whether an index is not valid.")));
	if (strcmp(row->state, "failed") == 0)
		ereport(ERROR,
				(errcode(code_of(row->code)),
				 errmsg("%s", row->error != NULL ? row->error : "the operation has failed"),
				 errdetail("Another session had asked for the same on \"%s\", and this one waited for its end.", object)));
	return strcmp(row->state, "done") == 0;
}

static void
await_end(const pg_uuid_t *id, const char *object)
{
	long		pause = FIRST_PAUSE_MS;

	while (!has_ended(id, object))
	{
		/* the operation waits for older snapshots: this session has none meanwhile */
		InvalidateCatalogSnapshot();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		pause = Min(pause * 2, LAST_PAUSE_MS);
	}
}

static bool
is_same(const TesseraFindDdlOperationAnswer *found, const char *statement, const char *command)
{
	if (command != NULL && strcmp(found->command, command) == 0)
		return true;
	return strcmp(found->statement, statement) == 0 && strcmp(found->search_path, GetConfigOption("search_path", false, false)) == 0;
}

bool
tessera_operation_join(const char *schema, const char *object, const char *statement, const char *command)
{
	TesseraFindDdlOperationAnswer *found;
	int			n;

	tessera_call_find_ddl_operation(tessera_to_config(), schema, object, &found, &n);
	if (n == 0 || !is_same(found, statement, command))
		return false;
	ereport(NOTICE,
			(errmsg("the same operation on \"%s\" is under way: waiting for its end", object)));
	tessera_operation_next_transaction();
	await_end(found->id, object);
	return true;
}

/* ---- the view ---- */

/* Errors of an index's build may name values of rows. */
static bool
may_see_error(const char *asked_by)
{
	Oid			role = get_role_oid(asked_by, true);

	return tessera_may_read_catalog() || (OidIsValid(role) && has_privs_of_role(GetUserId(), role));
}

/* internal_ddl_operations(); error is null to others than administrators and who asked for the operation */
Datum
tessera_internal_ddl_operations(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	AttInMetadata *metadata;
	TesseraListDdlOperationsAnswer *rows;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	if (tessera_routing() == NULL)
		return (Datum) 0;
	metadata = TupleDescGetAttInMetadata(info->setDesc);
	tessera_call_list_ddl_operations(tessera_to_config(), &rows, &n);
	for (int i = 0; i < n; i++)
	{
		char	   *values[] = {rows[i].id, rows[i].kind, rows[i].table_name, rows[i].object_name, rows[i].statement, rows[i].asked_by,
			rows[i].runner, rows[i].state, rows[i].phase, psprintf("%d", rows[i].nodes), psprintf("%d", rows[i].nodes_done), rows[i].waiting,
			psprintf("%d", rows[i].attempts), may_see_error(rows[i].asked_by) ? rows[i].error : NULL, rows[i].started, rows[i].finished};

		tuplestore_puttuple(info->setResult, BuildTupleFromCStrings(metadata, values));
	}
	return (Datum) 0;
}
