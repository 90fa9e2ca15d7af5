/*
 * attempts.c
 *	  Short attempts to lock what a statement needs on all nodes; see attempts.h.
 *
 * Locks are taken in one order: names on the config node (ddl only; two statements on one object never meet elsewhere), then the tables, node by
 * node, then whatever the statement itself takes. The order over nodes may change between attempts, as each of them waits for a bounded time only and
 * lets go of all it got.
 *
 * Between attempts this backend waits in no queue. It declares whom it waits for (transaction/declared_wait.h), so that the search for deadlocks over
 * several nodes sees it; what it holds from before the statement is all that others can wait for then, so a cycle is a deadlock. If this wait is
 * chosen as the victim, it checks once more before it raises the error.
 *
 * LOCK TABLE at REPEATABLE READ promises that what comes after sees what was committed before the lock was had. A node that joins the transaction
 * takes its snapshot with the first command; so a lock that it did not get at once is asked for in a new transaction there, and a node that has
 * joined with the attempt says whether the snapshot is as new as the lock.
 *
 * Memory: an Attempts lives on its caller's stack; what an attempt leaves is in the context of the caller. A crash leaves nothing: locks go with
 * their transactions.
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "common/errors.h"
#include "common/protocol.h"
#include "common/subtransaction.h"
#include "common/text.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "transaction/participant.h"
#include "transaction/prepared.h"

#define FIRST_TABLE_MS 50		/* what the first attempt waits for tables beyond the first node */
#define SHORT_TABLE_MS 150		/* the most that one of the first SHORT_ATTEMPTS does; the first node of each gets that */
#define SHORT_ATTEMPTS 8
#define LONGEST_MS 500			/* less than a search for deadlocks waits: what our own locks hold up is none */
#define LEAST_RUN_MS 200		/* locks that the statement takes itself */
#define LEAST_WAIT_MS 10
#define MOST_DESCRIBED 3
#define DESCRIBE_MS 2000


/* As the caller may see it. */
typedef struct Holder
{
	int32		pid;			/* 0: a prepared transaction */
	TesseraRemoteClient client;		/* its own, or the backend that it works for */
	char		gid[200];
} Holder;

/* What the last attempt failed on. */
typedef struct Failure
{
	int32		node_id;		/* 0: not on a lock of ours */
	char		what[2 * NAMEDATALEN + 32];
	int			n;
	Holder		holders[TESSERA_MOST_AWAITED];
} Failure;

typedef struct Attempts
{
	TesseraPatience patience;
	int			limit;			/* ms; 0: none */
	bool		users_limit;	/* it is lock_timeout */
	TimestampTz began;
	TimestampTz deadline;
	bool		keeps_snapshots;	/* LOCK TABLE at REPEATABLE READ: the locks must be older than the snapshots */
	uint32		joins;			/* of nodes to the transaction, before */
	int			table_ms;
	int32		busiest;		/* the node that a lock of a table was not had on; 0: none */
	TimestampTz unseen_since;	/* attempts fail since then on locks of the statement itself; 0: not the last */
	Failure		failure;
	int			nawaited;		/* the holders of the locks that the last attempts failed on, and since when all attempts have seen each of them */
	TesseraRemoteClient awaited[TESSERA_MOST_AWAITED];
	TimestampTz seen[TESSERA_MOST_AWAITED];
	struct Attempts *outer;
} Attempts;

int			tessera_ddl_lock_timeout = 30000;
static int	prepared_ddl_warning = 60;	/* read by tessera.health */

static Attempts *current = NULL;

int
tessera_ddl_attempt_timeout(void)
{
	int			timeout = Max(100, Min(LONGEST_MS, tessera_ddl_lock_timeout / 5));

	return LockTimeout > 0 ? Min(timeout, LockTimeout) : timeout;
}

/* ---- who holds it ---- */

/* The lines behind the first. */
static void
read_holders(Failure *failure, const char *lines)
{
	failure->n = 0;
	while (lines != NULL && *lines && failure->n < TESSERA_MOST_AWAITED)
	{
		Holder	   *holder = &failure->holders[failure->n];
		const char *end = strchr(lines, '\n');
		int			used = 0;

		memset(holder, 0, sizeof(*holder));
		if (sscanf(lines, "%d %d %d %n", &holder->pid, &holder->client.node_id, &holder->client.pid, &used) < 3)
			break;
		if (holder->pid != 0 && holder->client.node_id == 0)
		{
			holder->client.node_id = failure->node_id;
			holder->client.pid = holder->pid;
		}
		snprintf(holder->gid, sizeof(holder->gid), "%.*s", (int) (end ? end - lines - used : (int) strlen(lines) - used), lines + used);
		failure->n++;
		lines = end ? end + 1 : NULL;
	}
}

void
tessera_ddl_held(int32 node_id, const char *answer)
{
	Failure		failure = {.node_id = node_id};
	const char *lines = strchr(answer, '\n');
	const char *what = strncmp(answer, "held ", 5) == 0 ? answer + 5 : answer;

	snprintf(failure.what, sizeof(failure.what), "%.*s", lines ? (int) (lines - what) : (int) strlen(what), what);
	read_holders(&failure, lines ? lines + 1 : NULL);
	if (current != NULL)
		current->failure = failure;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not obtain lock on %s", failure.what)));
}

/* The call on this node, by the rights of the current user. */
static char *
describe_session_here(int32 pid)
{
	const char *values[] = {tessera_call_from_int4(pid)};
	MemoryContext caller = CurrentMemoryContext;
	char	   *answer = NULL;

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	if (SPI_execute(tessera_call_literal(&tessera_call_specs[TESSERA_CALL_SESSION_DESCRIPTION], values), true, 1) == SPI_OK_SELECT &&
		SPI_processed == 1)
	{
		char	   *value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);

		answer = value ? MemoryContextStrdup(caller, value) : NULL;
	}
	SPI_finish();
	PopActiveSnapshot();
	return answer;
}

/* The session as pg_stat_activity shows it to the current user, on that node. May fail. */
static char *
ask_for_session(const TesseraRouting *routing, TesseraRemoteClient session)
{
	TesseraCommandNeeds needs = {.timeless = true};
	char	   *answer;

	if (session.node_id == routing->self)
		return describe_session_here(session.pid);
	(void) tessera_call_session_description(tessera_over(tessera_participant(routing, session.node_id, &needs)), session.pid, &answer);
	return answer;
}

static bool
is_clients_gid(const char *gid)
{
	return strncmp(gid, "tessera_" TESSERA_CLIENT_GID, strlen("tessera_" TESSERA_CLIENT_GID)) == 0;
}

/* The transaction of a client whose part on one node this is: '"name" of role "owner"'. NULL: it is none any more. May fail. */
static char *
ask_for_clients_name(const TesseraRouting *routing, const char *part)
{
	char	   *gid = pstrdup(part);
	char	   *last = strrchr(gid, '_');
	char	   *name = NULL;
	TesseraPreparedTransactionsAnswer *rows;
	int			n;

	*last = '\0';
	if (tessera_routing_config(routing) == NULL)
		return NULL;
	(void) tessera_call_client_gid(tessera_to_config(), gid, &name);
	if (name == NULL)
		return NULL;
	(void) tessera_call_prepared_transactions(tessera_to_config(), &rows, &n);
	for (int i = 0; i < n; i++)
		if (strcmp(rows[i].gid, name) == 0)
			return psprintf("\"%s\" of role \"%s\"", name, rows[i].owner);
	return psprintf("\"%s\"", name);
}

typedef struct Description
{
	const TesseraRouting *routing;
	const Holder *holder;
	char	   *answer;
} Description;

static void
ask_for_holder(void *arg)
{
	Description *description = arg;
	const Holder *holder = description->holder;

	if (holder->pid != 0)
		description->answer = ask_for_session(description->routing, holder->client);
	else if (is_clients_gid(holder->gid))
		description->answer = ask_for_clients_name(description->routing, holder->gid);
}

/* Who a holder is: the session, or a client's prepared transaction and its owner; NULL if that cannot be had. */
static char *
describe_holder(const TesseraRouting *routing, const Holder *holder)
{
	Description description = {routing, holder, NULL};
	TimestampTz limit = tessera_connections_limit(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), DESCRIBE_MS));
	ErrorData  *error = tessera_try(ask_for_holder, &description);

	(void) tessera_connections_limit(limit);
	return error == NULL ? description.answer : NULL;
}

char *
tessera_describe_prepared(const char *gid)
{
	Holder		holder = {0};
	char	   *who;

	strlcpy(holder.gid, gid, sizeof(holder.gid));
	who = describe_holder(tessera_routing(), &holder);
	return who != NULL ? who : psprintf("\"%s\"", gid);
}

static const char *
node_name(const TesseraRouting *routing, int32 node_id)
{
	const TesseraNode *node = tessera_routing_node(routing, node_id);

	return node ? NameStr(node->name) : "?";
}

/* DETAIL of the last error. */
static char *
describe_holders(const TesseraRouting *routing, const Failure *failure)
{
	StringInfoData text;
	const char *where = node_name(routing, failure->node_id);

	initStringInfo(&text);
	for (int i = 0; i < Min(failure->n, MOST_DESCRIBED); i++)
	{
		const Holder *holder = &failure->holders[i];
		char	   *who;

		appendStringInfo(&text, "%sOn node \"%s\", ", i ? "\n" : "", where);
		if (holder->pid == 0)
		{
			appendStringInfo(&text, "prepared transaction %s holds it.", tessera_describe_prepared(holder->gid));
			continue;
		}
		who = describe_holder(routing, holder);
		appendStringInfo(&text, "process %d holds it", holder->pid);
		if (holder->client.node_id != failure->node_id || holder->client.pid != holder->pid)
			appendStringInfo(&text, " for process %d of node \"%s\"", holder->client.pid, node_name(routing, holder->client.node_id));
		appendStringInfo(&text, "%s%s.", who ? ": " : "", who ? who : "");
	}
	if (failure->n > MOST_DESCRIBED)
		appendStringInfoString(&text, "\nOthers hold it as well.");
	if (failure->n == 0)
		appendStringInfo(&text, "On node \"%s\", others wait for it.", where);
	return text.data;
}

static char *
what_to_do(const TesseraRouting *routing, const Attempts *attempts)
{
	const char *setting = attempts->users_limit ? "lock_timeout" : "tessera.ddl_lock_timeout";
	const Holder *holder = &attempts->failure.holders[0];

	if (attempts->failure.n == 0 || attempts->patience == TESSERA_PATIENCE_NONE)
		return pstrdup("Try again when it is free.");
	if (holder->pid == 0)
		return psprintf(strncmp(holder->gid, "tessera_", 8) == 0 &&
						!is_clients_gid(holder->gid) ? "tessera.resolve_transactions('0') on node \"%s\" ends it." :
						"COMMIT PREPARED or ROLLBACK PREPARED on node \"%s\" ends it.", node_name(routing, attempts->failure.node_id));
	return psprintf("Try again when that transaction has ended, end its session by pg_terminate_backend(%d) on node \"%s\", or raise %s.",
					holder->client.pid, node_name(routing, holder->client.node_id), setting);
}

/* ---- the time limit ---- */

_Noreturn static void
raise_deadlock(const Attempts *attempts)
{
	const TesseraRouting *routing = tessera_routing();
	char	   *holders = describe_holders(routing, &attempts->failure);

	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail_internal("This session waits for %s, and its transaction holds what they wait for. %s", attempts->failure.what, holders),
			 errhint("Run the transaction again.")));
}

_Noreturn static void
give_up(const Attempts *attempts, ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_TESSERA_STALE_ROUTING)
		error->sqlerrcode = ERRCODE_T_R_SERIALIZATION_FAILURE;
	if (error->sqlerrcode == ERRCODE_TESSERA_CONFLICTING)
		error->sqlerrcode = ERRCODE_OBJECT_IN_USE;
	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE && attempts->failure.node_id != 0)
	{
		const TesseraRouting *routing = tessera_routing();

		if (attempts->patience != TESSERA_PATIENCE_NONE)
			error->message = psprintf("could not obtain lock on %s within %d ms", attempts->failure.what, attempts->limit);
		error->detail = describe_holders(routing, &attempts->failure);
		error->hint = what_to_do(routing, attempts);
	}
	else if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE && error->hint == NULL)
		error->hint = pstrdup("Other transactions hold locks on what the statement changes: pg_locks of the node shows them.");
	ReThrowError(error);
}

/* ---- attempts ---- */

/* A pause that grows, and differs from another router's. */
static void
pause_before_attempt(int attempt)
{
	long		ms = 20 + (long) (pg_prng_double(&pg_global_prng_state) * Min(20 << Min(attempt, 5), 500));

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static bool
may_try_again(int code)
{
	return code == ERRCODE_LOCK_NOT_AVAILABLE || code == ERRCODE_T_R_DEADLOCK_DETECTED || code == ERRCODE_TESSERA_STALE_ROUTING ||
		code == ERRCODE_TESSERA_CONFLICTING;
}

/* Milliseconds that are left of the statement's time limit; 0: none. */
static int
patience_left(const Attempts *attempts)
{
	if (attempts->deadline == DT_NOEND)
		return INT_MAX;
	return (int) Min(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), attempts->deadline), INT_MAX);
}

/* One attempt; NULL if it went through, else the error that undid it, in the current context. */
static ErrorData *
try_once(void (*attempt) (void *arg), void *arg)
{
	char		timeout[16];
	int			level = NewGUCNestLevel();
	ErrorData  *error;

	snprintf(timeout, sizeof(timeout), "%d", Max(1, Min(patience_left(current), Max(LEAST_RUN_MS, current->table_ms))));
	tessera_ddl_set_here("lock_timeout", timeout);
	current->failure.node_id = 0;
	error = tessera_try(attempt, arg);
	AtEOXact_GUC(true, level);
	return error;
}

/*
 * Notes who held the lock. Only a holder that successive attempts have seen counts as waited for: one that is seen now and then holds the lock for
 * moments (another attempt, a short transaction). Returns true if the last attempt saw a holder that the attempt before it had seen.
 */
static bool
note_holders(Attempts *attempts)
{
	TesseraRemoteClient awaited[TESSERA_MOST_AWAITED];
	TimestampTz seen[TESSERA_MOST_AWAITED];
	int			n = 0;
	bool		again = false;

	for (int i = 0; attempts->failure.node_id != 0 && i < attempts->failure.n; i++)
	{
		const Holder *holder = &attempts->failure.holders[i];

		if (holder->pid == 0)
			continue;
		awaited[n] = holder->client;
		seen[n] = GetCurrentTimestamp();
		for (int j = 0; j < attempts->nawaited; j++)
			if (attempts->awaited[j].node_id == holder->client.node_id && attempts->awaited[j].pid == holder->client.pid)
			{
				seen[n] = attempts->seen[j];
				again = true;
			}
		n++;
	}
	memcpy(attempts->awaited, awaited, sizeof(TesseraRemoteClient) * n);
	memcpy(attempts->seen, seen, sizeof(TimestampTz) * n);
	attempts->nawaited = n;
	return again;
}

/* A lock that only the statement itself asks for is not declared, so a deadlock over it is not found: LOCK TABLE must not wait for it without end. */
static bool
is_lost(Attempts *attempts, int code)
{
	if (code != ERRCODE_LOCK_NOT_AVAILABLE || attempts->failure.node_id != 0)
		attempts->unseen_since = 0;
	else if (attempts->unseen_since == 0)
		attempts->unseen_since = GetCurrentTimestamp();
	return attempts->unseen_since != 0 && TimestampDifferenceExceeds(attempts->unseen_since, GetCurrentTimestamp(), tessera_ddl_lock_timeout);
}

static void
try_until(Attempts *attempts, void (*attempt) (void *arg), void *arg)
{
	for (int i = 0;; i++)
	{
		bool		last = tessera_wait_is_victim();
		ErrorData  *error = try_once(attempt, arg);

		if (error == NULL)
			return;
		if (note_holders(attempts) && last && error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			raise_deadlock(attempts);
		if (last)
			tessera_wait_over();	/* a mistake: to be found anew */
		if (!may_try_again(error->sqlerrcode) || patience_left(attempts) == 0 || is_lost(attempts, error->sqlerrcode))
			give_up(attempts, error);
		if (error->sqlerrcode == ERRCODE_TESSERA_STALE_ROUTING)
			(void) tessera_routing_refresh(tessera_ddl_attempt_timeout());
		FreeErrorData(error);
		if (attempts->keeps_snapshots)
			tessera_participants_leave(attempts->joins);
		tessera_wait_declare(attempts->began, attempts->nawaited, attempts->awaited, attempts->seen);
		if (i < SHORT_ATTEMPTS)
			attempts->table_ms = Min(attempts->table_ms * 13 / 10, SHORT_TABLE_MS);
		else
			attempts->table_ms = Min(attempts->table_ms * 3 / 2, tessera_ddl_attempt_timeout());
		pause_before_attempt(i);
	}
}

static int
limit_of(TesseraPatience patience, bool *users)
{
	*users = patience == TESSERA_PATIENCE_LOCK || (LockTimeout > 0 && LockTimeout < tessera_ddl_lock_timeout);
	return *users ? LockTimeout : tessera_ddl_lock_timeout;
}

void
tessera_ddl_attempts(void (*attempt) (void *arg), void *arg, TesseraPatience patience)
{
	Attempts	attempts = {.patience = patience, .began = GetCurrentTimestamp(), .table_ms = FIRST_TABLE_MS, .outer = current};

	attempts.joins = tessera_participants_joins();
	attempts.keeps_snapshots = patience != TESSERA_PATIENCE_DDL && IsolationUsesXactSnapshot();
	if (patience == TESSERA_PATIENCE_NONE)
		attempts.deadline = attempts.began;
	else
	{
		attempts.limit = limit_of(patience, &attempts.users_limit);
		attempts.deadline = patience == TESSERA_PATIENCE_LOCK && attempts.limit == 0 ? DT_NOEND :
			TimestampTzPlusMilliseconds(attempts.began, attempts.limit);
	}
	current = &attempts;
	PG_TRY();
	{
		try_until(&attempts, attempt, arg);
	}
	PG_FINALLY();
	{
		current = attempts.outer;
		tessera_wait_over();
	}
	PG_END_TRY();
}

/* ---- tables on all nodes ---- */

typedef struct TableNames
{
	int			n;
	char	  **names;
	LOCKMODE   *modes;
	char	   *values[2];		/* the same as arrays */
} TableNames;

static void
name_tables(TableNames *tables, List *locks)
{
	Datum	   *names = palloc(sizeof(Datum) * list_length(locks));
	Datum	   *modes = palloc(sizeof(Datum) * list_length(locks));
	ListCell   *cell;

	tables->names = palloc(sizeof(char *) * list_length(locks));
	tables->modes = palloc(sizeof(LOCKMODE) * list_length(locks));
	tables->n = 0;
	foreach(cell, locks)
	{
		const TesseraTableLock *lock = lfirst(cell);
		char	   *name = get_rel_name(lock->relid);

		if (name == NULL)
			continue;
		tables->names[tables->n] = tessera_quote_qualified(get_namespace_name(get_rel_namespace(lock->relid)), name);
		tables->modes[tables->n] = lock->mode;
		names[tables->n] = CStringGetTextDatum(tables->names[tables->n]);
		modes[tables->n] = Int32GetDatum(lock->mode);
		tables->n++;
	}
	tables->values[0] = OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(construct_array(names, tables->n, TEXTOID, -1, false, TYPALIGN_INT)));
	tables->values[1] = OidOutputFunctionCall(F_ARRAY_OUT,
											  PointerGetDatum(construct_array(modes, tables->n, INT4OID, sizeof(int32), true, TYPALIGN_INT)));
}

static void
lock_on_node(const TesseraRouting *routing, int32 node_id, const TableNames *tables, int timeout_ms)
{
	char	   *answer;

	CHECK_FOR_INTERRUPTS();
	if (node_id == routing->self)
		answer = tessera_lock_tables_here(tables->n, tables->names, tables->modes, timeout_ms);
	else
		tessera_call_ddl_lock_tables(tessera_writing(tessera_to_node(node_id)), tables->values[0], tables->values[1], timeout_ms, &answer);
	if (answer == NULL || strcmp(answer, "ok") != 0)
		tessera_ddl_held(node_id, answer ? answer : "?");
}

void
tessera_ddl_lock_tables(const TesseraRouting *routing, List *locks, bool shards_only)
{
	TableNames	tables;
	TimestampTz until = 0;
	int32		busiest;

	Assert(current != NULL);
	if (locks == NIL)
		return;
	name_tables(&tables, locks);
	busiest = current->busiest;
	for (int i = -1; i < routing->nnodes; i++)
	{
		const TesseraNode *node = i < 0 ? tessera_routing_node(routing, busiest) : tessera_routing_node_at(routing, i);
		int			timeout = 0;

		if (node == NULL || (i >= 0 && node->node_id == busiest) || (shards_only && !node->is_shard && node->node_id != routing->self))
			continue;
		if (current->patience != TESSERA_PATIENCE_NONE)
			timeout = until == 0 ? Max(current->table_ms, SHORT_TABLE_MS) :
				Max((int) TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until), LEAST_WAIT_MS);
		timeout = Min(timeout, patience_left(current));
		if (current->keeps_snapshots && node->node_id != routing->self && !tessera_participant_joined_by(node->node_id, current->joins))
			timeout = -1;
		current->busiest = node->node_id;
		lock_on_node(routing, node->node_id, &tables, timeout);
		if (until == 0)
			until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), current->table_ms);
	}
	current->busiest = busiest;
	tessera_wait_over();
}

void
tessera_ddl_await_holders(const TesseraRouting *routing, List *locks, bool shards_only)
{
	TableNames	tables;

	Assert(current != NULL);
	if (locks == NIL)
		return;
	name_tables(&tables, locks);
	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		int			timeout = Min(Max(current->table_ms, SHORT_TABLE_MS), patience_left(current));
		char	   *answer;

		CHECK_FOR_INTERRUPTS();
		if (shards_only && !node->is_shard && node->node_id != routing->self)
			continue;
		if (node->node_id == routing->self)
			answer = tessera_await_holders_here(tables.n, tables.names, tables.modes, timeout);
		else
		{
			TesseraCommandNeeds needs = {.write = true};

			if (tessera_connection_protocol(tessera_participant(routing, node->node_id, &needs)) < TESSERA_HOLDERS_PROTOCOL)
				continue;
			tessera_call_ddl_await_holders(tessera_writing(tessera_to_node(node->node_id)), tables.values[0], tables.values[1], timeout, &answer);
		}
		if (answer == NULL || strcmp(answer, "ok") != 0)
			tessera_ddl_held(node->node_id, answer ? answer : "?");
	}
	tessera_wait_over();
}

void
tessera_attempts_init(void)
{
	DefineCustomIntVariable("tessera.ddl_lock_timeout",
							"Time within which a command that changes a table of the cluster must get its locks.",
							"Locks are asked for in short attempts, so that statements behind them are not held up.",
							&tessera_ddl_lock_timeout, 30000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.prepared_ddl_warning",
							"Time after which tessera.health of the config node shows a prepared transaction that holds names of DDL.",
							"It holds up DDL on the same objects, and nodes that come and go.",
							&prepared_ddl_warning, 60, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}
