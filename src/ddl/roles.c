/*
 * roles.c
 *	  Roles belong to servers, not databases: a statement about roles runs once on each server of the cluster (doc/design.md#ddl-roles).
 *
 * It runs here first, then on one node of every other server, in the same distributed transaction. A role that a server has already is not created
 * again there; one that it lacks is not dropped there. The statement's text may hold a password: it is not shown in errors.
 *
 * First it locks the names of the roles that it names (statement_names.c), to the end of the transaction, so two statements on one role go in one
 * order on all servers, and of two that create it one finds it there. That is enough: rows of the shared catalogs belong to one role, or to all
 * roles, but for memberships. Two DROP ROLE of different names may want the row of one membership, and meet on two servers in two orders: that is a
 * wait with a limit, after which the attempt begins anew (attempts.h). Two grants at once that close a cycle of memberships are not found, as on one
 * server: core locks nothing there.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "common/spi.h"
#include "common/text.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "transaction/participant.h"

typedef struct RoleStatement
{
	TesseraUtility *utility;
	const TesseraRouting *routing;
	List	   *nodes;			/* one per other server */
} RoleStatement;

/* One node of each server but this one's. */
static List *
other_servers(void)
{
	TesseraSpi	access;
	List	   *nodes = NIL;
	uint64		n;
	MemoryContext context = CurrentMemoryContext;

	tessera_spi_begin(&access);
	n = tessera_spi_run("SELECT min(n.node_id) FROM tessera.node n WHERE n.system_id <> "
						"(SELECT m.system_id FROM tessera.node m JOIN tessera.identity i USING (node_id)) GROUP BY n.system_id ORDER BY 1",
						SPI_OK_SELECT, 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int32		node_id = pg_strtoint32(SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
		MemoryContext before = MemoryContextSwitchTo(context);

		nodes = lappend_int(nodes, node_id);
		MemoryContextSwitchTo(before);
	}
	tessera_spi_end(&access);
	return nodes;
}

static bool
role_exists(int32 node_id, const char *role)
{
	bool		found;

	(void) tessera_call_role_exists(tessera_to_node(node_id), role, &found);
	return found;
}

/* What the other server has to run; NULL: nothing. */
static char *
text_for(RoleStatement *r, int32 node_id)
{
	Node	   *statement = r->utility->statement->utilityStmt;

	if (IsA(statement, CreateRoleStmt) && role_exists(node_id, ((CreateRoleStmt *) statement)->role))
		return NULL;
	if (IsA(statement, DropRoleStmt))
	{
		StringInfoData text;
		ListCell   *cell;

		initStringInfo(&text);
		foreach(cell, ((DropRoleStmt *) statement)->roles)
		{
			RoleSpec   *role = lfirst_node(RoleSpec, cell);

			if (role->roletype != ROLESPEC_CSTRING)
				return tessera_utility_text(r->utility);
			if (role_exists(node_id, role->rolename))
				appendStringInfo(&text, "%s%s", text.len ? ", " : "DROP ROLE ", tessera_quote(role->rolename));
		}
		return text.len ? text.data : NULL;
	}
	return tessera_utility_text(r->utility);
}

static void
attempt_role(void *arg)
{
	RoleStatement *r = arg;
	TesseraUtility copy = *r->utility;
	ListCell   *cell;
	int			level;

	tessera_ddl_lock(r->routing, tessera_statement_names(r->utility->statement->utilityStmt), NIL, NULL, NULL, NULL);
	copy.read_only = true;
	tessera_utility_run(&copy);
	level = NewGUCNestLevel();
	tessera_utility_set_lexer(r->utility, tessera_utility_text(r->utility));
	tessera_ddl_set_here("client_min_messages", "error");	/* this node has said it all */
	foreach(cell, r->nodes)
	{
		char	   *sql = text_for(r, lfirst_int(cell));
		TesseraCommandNeeds needs = {.write = true};
		TesseraConnection *connection;
		TesseraCommand *command;

		if (sql == NULL)
			continue;
		connection = tessera_participant(r->routing, lfirst_int(cell), &needs);
		command = MemoryContextAllocZero(TopTransactionContext, sizeof(TesseraCommand));
		command->sql = MemoryContextStrdup(TopTransactionContext, sql);
		tessera_connection_queue(connection, command);
		tessera_connection_sync(connection);
		tessera_connection_finish(connection, command);
		if (command->error)
		{
			PGresult   *error = command->error;

			command->error = NULL;
			tessera_connection_raise(connection, error, NULL);
		}
		tessera_connection_check(connection, command);
	}
	AtEOXact_GUC(true, level);
}

void
tessera_role_statement(TesseraUtility *utility, const TesseraRouting *routing)
{
	RoleStatement r = {.utility = utility, .routing = routing};

	r.nodes = other_servers();
	if (r.nodes == NIL)
	{
		tessera_utility_run(utility);
		return;
	}
	tessera_fan_out_pending();
	tessera_ddl_attempts(attempt_role, &r, TESSERA_PATIENCE_DDL);
}
