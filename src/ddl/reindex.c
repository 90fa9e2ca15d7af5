/*
 * reindex.c
 *	  REINDEX INDEX and REINDEX TABLE CONCURRENTLY of a table of the cluster: an operation of all nodes (operation.h).
 *
 * Phases: (1) the operation's row on the config node; (2) each node runs the statement by itself, beside writers, with core's own checks; (3) if one
 * fails for good, what it has left there goes, on all nodes, and the operation ends with the error. An index that was valid stays so throughout. What
 * fails for something that passes (a node is down) goes on by itself, and so does what a crash of any node has interrupted.
 *
 * Locks: the operation's claim; each node's part has its own. Memory: the portal's.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "common/subtransaction.h"
#include "control/calls.h"
#include "ddl/ddl.h"
#include "ddl/operation.h"

static void
run(void *arg)
{
	tessera_operation_run(arg);
}

static void
clean(void *arg)
{
	tessera_operation_clean(arg);
}

_Noreturn static void
end_failed(TesseraOperation *operation, ErrorData *error)
{
	tessera_operation_next_transaction();
	if (tessera_operation_may_go_on(error))
	{
		(void) tessera_call_note_ddl_operation(tessera_ask(tessera_to_config(), TESSERA_TOLERATE_ERRORS), &operation->id, NULL, NULL,
											   error->message);
		error->hint = pstrdup("The operation goes on by itself: see tessera.ddl_operations. The same statement waits for its end.");
		ReThrowError(error);
	}
	if (tessera_try(clean, operation) != NULL)
		error->hint = pstrdup("What it has left could not be dropped everywhere: see tessera.health on each node.");
	InvalidateCatalogSnapshot();
	tessera_operation_finished(operation, error);
	ReThrowError(error);
}

static void
carry_out(TesseraOperation *operation)
{
	ErrorData  *error;

	tessera_operation_record(operation, false);
	tessera_operation_next_transaction();
	error = tessera_try(run, operation);
	if (error != NULL)
		end_failed(operation, error);
	tessera_operation_finished(operation, NULL);
}

void
tessera_reindex_concurrently(Oid relid, const TesseraTable *table, const char *command)
{
	bool		of_index = get_rel_relkind(relid) == RELKIND_INDEX || get_rel_relkind(relid) == RELKIND_PARTITIONED_INDEX;
	TesseraOperation operation = {.table_id = table->table_id,.statement = command,.command = command};

	operation.kind = of_index ? TESSERA_OPERATION_REINDEX_INDEX : TESSERA_OPERATION_REINDEX_TABLE;
	operation.schema = get_namespace_name(get_rel_namespace(relid));
	operation.object = get_rel_name(relid);
	if (tessera_operation_join(operation.schema, operation.object, command, command))
		return;
	tessera_operation_begin_new(&operation);
	PG_TRY();
	{
		carry_out(&operation);
	}
	PG_FINALLY();
	{
		tessera_operation_release(&operation.id);
	}
	PG_END_TRY();
}
