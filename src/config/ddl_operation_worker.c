/*
 * ddl_operation_worker.c
 *	  The config node's worker that carries on operations that nobody runs any more (ddl/operation.h): their process or its node has ended, or a node
 *	  was down.
 *
 * For each row that runs: (1) the node that runs it is asked whether it still does; no answer counts as yes, unless the node has left the cluster.
 * (2) This worker claims it and becomes the runner. (3) Phase "build": each node says what it has of the index; what a REINDEX has left goes; the
 * nodes that are not through run the command. All through: it is done. (4) An error that passes is noted, and it is tried again after a pause that
 * grows to a minute. Any other ends it: the index of a CREATE INDEX is taken back, which is the phase "take back", durable before it begins.
 *
 * All of it runs as the role that has asked, by that role's rights now, with its search path, and on each node in a session of that role's; what the
 * index calls runs, in core, as the owner of the table. A role that is gone ends the operation.
 *
 * Memory: a context for each look. Locks: the claim alone while other nodes work, and no snapshot, which their builds would wait for. A crash at any
 * point: the next look finds the row, and begins with (1).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/acting_as.h"
#include "common/durable.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/subtransaction.h"
#include "config/authority.h"
#include "config/ddl_operations.h"
#include "control/calls.h"
#include "ddl/ddl.h"
#include "ddl/operation.h"
#include "transaction/background.h"

#define IDLE_MS 5000
#define BUSY_MS 1000
#define ASK_MS 5000
#define LONGEST_PAUSE_S 60

typedef struct Row
{
	TesseraOperation operation;
	const char *asked_by;
	const char *phase;
	const char *error;			/* noted before; NULL: none */
	int32		runner;
	bool		due;			/* the pause after an attempt that failed is over */
} Row;

/* ---- the rows ---- */

static const char running_sql[] =
"SELECT operation_id, kind, table_id, schema_name, object_name, statement, search_path, command, asked_by, runner, phase, done, error,"
" coalesce(tried + make_interval(secs => least($1, power(2, least(attempts, 10)))) <= clock_timestamp(), true)"
" FROM tessera.ddl_operation WHERE state = 'running' ORDER BY started, operation_id";

static void
read_done(Row *row, Datum done)
{
	Datum	   *nodes;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(done), INT4OID, sizeof(int32), true, TYPALIGN_INT, &nodes, NULL, &n);
	row->operation.ndone = n;
	row->operation.done = palloc(sizeof(int32) * Max(n, 1));
	for (int i = 0; i < n; i++)
		row->operation.done[i] = DatumGetInt32(nodes[i]);
}

static Row *
read_row(uint64 i)
{
	Row		   *row = palloc0(sizeof(Row));

	row->operation.id = *DatumGetUUIDP(spi_row_value(i, 1));
	row->operation.kind = spi_row_text(i, 2);
	row->operation.table_id = *DatumGetUUIDP(spi_row_value(i, 3));
	row->operation.schema = spi_row_text(i, 4);
	row->operation.object = spi_row_text(i, 5);
	row->operation.statement = spi_row_text(i, 6);
	row->operation.search_path = spi_row_text(i, 7);
	row->operation.command = spi_row_text(i, 8);
	row->asked_by = spi_row_text(i, 9);
	row->runner = DatumGetInt32(spi_row_value(i, 10));
	row->phase = spi_row_text(i, 11);
	read_done(row, spi_row_value(i, 12));
	row->error = spi_row_text(i, 13);
	row->due = DatumGetBool(spi_row_value(i, 14));
	return row;
}

/* Rows that run, in the caller's context. Old ones go. */
static List *
list_running(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *rows = NIL;
	TesseraSpi	spi;
	uint64		n;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("DELETE FROM tessera.ddl_operation WHERE finished < clock_timestamp() - interval '7 days'", SPI_OK_DELETE, 0, NULL, NULL, NULL);
	n = tessera_spi_run(running_sql, SPI_OK_SELECT, 1, (Oid[]) {FLOAT8OID}, (Datum[]) {Float8GetDatum(LONGEST_PAUSE_S)}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext before = MemoryContextSwitchTo(caller);

		rows = lappend(rows, read_row(i));
		MemoryContextSwitchTo(before);
	}
	tessera_spi_end(&spi);
	tessera_background_commit();
	return rows;
}

/* This node is the runner. False if the row is not as it was read. */
static bool
take_over(const Row *row, int32 self)
{
	Oid			types[] = {UUIDOID, INT4OID, INT4OID};
	Datum		values[] = {UUIDPGetDatum(&row->operation.id), Int32GetDatum(row->runner), Int32GetDatum(self)};
	TesseraSpi	spi;
	bool		taken;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	taken = tessera_spi_run("UPDATE tessera.ddl_operation SET runner = $3 WHERE operation_id = $1 AND runner = $2 AND state = 'running'",
							SPI_OK_UPDATE, 3, types, values, NULL) > 0;
	tessera_spi_end(&spi);
	tessera_background_commit();
	return taken;
}

static void
note(const Row *row, const char *phase, const char *error)
{
	tessera_call_note_ddl_operation(tessera_to_config(), &row->operation.id, phase, NULL, error);
}

static void
end_row(const Row *row, int code, const char *error)
{
	ErrorData	data = {.sqlerrcode = code,.message = unconstify(char *, error)};

	tessera_operation_finished(&row->operation, error != NULL ? &data : NULL);
}

/* ---- as the role that has asked ---- */

typedef struct Step
{
	void		(*run) (void *arg);
	Row		   *row;
	Oid			role;
	const ErrorData *failed;	/* what is being taken back */
} Step;

/* What the index calls runs as its table's owner, in core; else, at most, code that the role may run (event triggers of the command). */
static void
run_step(void *arg)
{
	Step	   *step = arg;
	TesseraActing before;
	int			level = NewGUCNestLevel();

	tessera_ddl_set_here("search_path", step->row->operation.search_path);
	tessera_act_as_user(&before, step->role);
	step->run(step);
	tessera_act_end(&before);
	AtEOXact_GUC(true, level);
}

/*
 * In a transaction without a snapshot. An error is returned, in the caller's context; the user is as before then, as the subtransaction has ended.
 */
static ErrorData *
run_as_asked(Step *step)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *error;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	tessera_commit_durably();
	MemoryContextSwitchTo(caller);
	error = tessera_try(run_step, step);
	if (error == NULL)
		CommitTransactionCommand();
	else
		AbortCurrentTransaction();
	MemoryContextSwitchTo(caller);
	return error;
}

static void
step_build(void *arg)
{
	tessera_operation_run(&((Step *) arg)->row->operation);
}

static void
step_clean(void *arg)
{
	tessera_operation_clean(&((Step *) arg)->row->operation);
}

static void
step_drop(void *arg)
{
	Step	   *step = arg;

	tessera_drop_unbuilt_index(&step->row->operation, step->failed);
}

/* ---- one operation ---- */

/* What passes is noted, and tried again. True if the error does. */
static bool
waits_for(const Row *row, const ErrorData *error)
{
	if (!tessera_operation_may_go_on(error))
		return false;
	ereport(LOG,
			(errmsg("\"%s\" cannot go on yet: %s", row->operation.statement, error->message)));
	note(row, NULL, error->message);
	return true;
}

/* The index of a CREATE INDEX goes; of a REINDEX what it has left. The error says why. */
static void
take_back(Row *row, Oid role, ErrorData *error)
{
	Step		step = {step_clean, row, role, error};
	ErrorData  *other = run_as_asked(&step);
	bool		create = strcmp(row->operation.kind, TESSERA_OPERATION_CREATE) == 0;

	if (other == NULL && create)
	{
		step.run = step_drop;
		other = run_as_asked(&step);
	}
	if (other == NULL)
	{
		if (!create)
			end_row(row, error->sqlerrcode, error->message);
	}
	else if (!waits_for(row, other))
		end_row(row, other->sqlerrcode, psprintf("%s; and it could not be taken back: %s", error->message, other->message));
}

/*
 * Which nodes are through, by their own word: the index of a CREATE INDEX is valid there. *found: on any node. What a node says now counts more
 * than the row, in which its end may not have been noted.
 */
static void
ask_nodes(Row *row, const TesseraRouting *routing, bool *found)
{
	TesseraOperation *operation = &row->operation;
	bool		create = strcmp(operation->kind, TESSERA_OPERATION_CREATE) == 0;
	bool		of_table = strcmp(operation->kind, TESSERA_OPERATION_REINDEX_TABLE) == 0;

	*found = of_table;
	if (create)
	{
		operation->ndone = 0;
		operation->done = palloc(sizeof(int32) * Max(routing->nnodes, 1));
	}
	for (int i = 0; i < routing->nnodes && !of_table; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;
		TesseraDdlOperationPartAnswer part;

		tessera_call_ddl_operation_part(tessera_within(tessera_to_node(node_id), ASK_MS), &operation->table_id, operation->schema,
										operation->object, &part);
		*found = *found || part.found;
		if (create && part.valid)
		{
			operation->done[operation->ndone++] = node_id;
			tessera_call_note_ddl_operation(tessera_to_config(), &operation->id, NULL, &node_id, NULL);
		}
	}
}

typedef struct Asking
{
	Row		   *row;
	bool		found;
} Asking;

static void
ask(void *arg)
{
	Asking	   *asking = arg;

	ask_nodes(asking->row, tessera_routing(), &asking->found);
}

/* The same outside of a transaction; an error is returned. */
static ErrorData *
ask_and_see(Row *row, bool *found)
{
	MemoryContext caller = CurrentMemoryContext;
	Asking		asking = {row, false};
	ErrorData  *error;

	StartTransactionCommand();
	MemoryContextSwitchTo(caller);
	error = tessera_try(ask, &asking);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	*found = asking.found;
	return error;
}

/* Phase "build". */
static void
build(Row *row, Oid role)
{
	Step		step = {step_clean, row, role, NULL};
	bool		found = true;
	ErrorData  *error = run_as_asked(&step);

	if (error == NULL)
		error = ask_and_see(row, &found);
	if (error == NULL && !found)
	{
		end_row(row, ERRCODE_UNDEFINED_OBJECT, "the index was dropped");
		return;
	}
	if (error == NULL)
	{
		step.run = step_build;
		error = run_as_asked(&step);
	}
	if (error == NULL)
		end_row(row, 0, NULL);
	else if (!waits_for(row, error))
	{
		note(row, TESSERA_PHASE_TAKE_BACK, error->message);
		take_back(row, role, error);
	}
}

/* After a crash in the phase "take back" the error is known by its text alone. */
static ErrorData *
noted_error(const Row *row)
{
	ErrorData  *error = palloc0(sizeof(ErrorData));

	error->sqlerrcode = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
	error->message = pstrdup(row->error != NULL ? row->error : "the operation was interrupted while it was taken back");
	return error;
}

static Oid
role_of(const Row *row)
{
	Oid			role;

	tessera_background_begin();
	role = get_role_oid(row->asked_by, true);
	tessera_background_commit();
	return role;
}

static void
carry_on(Row *row)
{
	Oid			role = role_of(row);

	if (!OidIsValid(role))
		end_row(row, ERRCODE_UNDEFINED_OBJECT, psprintf("role \"%s\", which had asked for it, does not exist any more", row->asked_by));
	else if (strcmp(row->phase, TESSERA_PHASE_TAKE_BACK) == 0)
		take_back(row, role, noted_error(row));
	else
		build(row, role);
}

/* False if a process of another node runs it, or may. */
static bool
is_abandoned(const Row *row, int32 self, bool is_member)
{
	bool		runs;

	if (row->runner == self || !is_member)
		return true;
	return tessera_call_ddl_operation_runs(tessera_ask(tessera_within(tessera_to_node(row->runner), ASK_MS), TESSERA_TOLERATE_ERRORS),
										   &row->operation.id, &runs) && !runs;
}

static bool
claim(const pg_uuid_t *id)
{
	bool		claimed;

	tessera_background_begin();
	claimed = tessera_operation_claim(id);
	tessera_background_commit();
	return claimed;
}

/* True if there was something to do. */
static void
look_after(Row *row)
{
	int32		self;
	bool		is_member;

	tessera_background_begin();
	self = tessera_routing_or_error()->self;
	is_member = tessera_routing_node(tessera_routing(), row->runner) != NULL;
	tessera_background_commit();
	if (!is_abandoned(row, self, is_member) || !claim(&row->operation.id))
		return;
	PG_TRY();
	{
		if (take_over(row, self))
		{
			tessera_injection("operation_taken_over");
			carry_on(row);
		}
	}
	PG_FINALLY();
	{
		tessera_operation_release(&row->operation.id);
	}
	PG_END_TRY();
}

/* ---- the worker ---- */

/* True if an operation runs. In a context of its own. */
static bool
look(void)
{
	List	   *rows = list_running();
	ListCell   *cell;

	foreach(cell, rows)
		if (((Row *) lfirst(cell))->due)
			look_after(lfirst(cell));
	return rows != NIL;
}

long
tessera_ddl_operations_step(void)
{
	int			may = tessera_config_duty();
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	volatile bool busy = false;

	if (may <= 0)
		return may < 0 ? -1 : BUSY_MS;
	context = AllocSetContextCreate(caller, "tessera DDL operations", ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		busy = look();
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(context);
		if (!busy)
			tessera_connections_close(1);	/* an idle session would keep CREATE, ALTER and DROP DATABASE there waiting */
	}
	PG_END_TRY();
	return busy ? BUSY_MS : IDLE_MS;
}
