/*
 * node_link.c
 *	  Connections to nodes, and what runs on them: the hello that opens one, whether the server at the other end is the node, the lanes of calls
 *	  (control/call.h): the control lane with its envelope, the transaction's lane, and the calls whose transaction is held open there.
 *
 * A call on the control lane has the envelope in front of it, in the same pipeline: the config node's term that this node has seen. Whether the
 * server is the node is settled by hello when the connection is opened, and compared with the registry each time the connection is used.
 *
 * A held call has a connection of its own, since others go to the same node meanwhile; its xact_depth is 1 while the transaction there is open.
 *
 * Memory: the extension's version is kept until a hello fails.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/clock_store.h"
#include "catalog/identity.h"
#include "catalog/incarnation.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/spi.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "transaction/background.h"
#include "transaction/cluster_time.h"
#include "transaction/transaction_private.h"

/* How long a look-up of a node that is not in the registry waits for news from the config node, in ms. */
#define UNKNOWN_NODE_TIMEOUT 5000

/* An open connection to a server that was replaced, a new one to the same, one to the node. */
#define OPEN_ATTEMPTS 3

/* Lanes of transport/connection.h beside the transaction's. */
#define CONTROL_CONNECTION 1
#define HELD_CONNECTION 2
#define OUTSIDE_CONNECTION 3


/* ---- opening ---- */

/*
 * True if the server at the other end is the node, as far as is known here. If not, the connection is closed; ERROR 08006 if a transaction is open on
 * it, because that cannot be committed any more. ERROR TS003 if the other end says that this server was replaced.
 */
bool
tessera_is_node_itself(TesseraConnection *connection, const TesseraNode *node)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	int64		greeting = state->greeting;

	if (greeting > 0 && greeting >= node->incarnation)
		return true;
	if (state->xact_depth > 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("another server of node \"%s\" was promoted in the middle of this transaction", NameStr(node->name)),
				 errhint("Roll back and run the transaction again.")));
	tessera_connection_close(connection);
	if (greeting < 0)
	{
		tessera_incarnation_outdone((int32) -greeting);
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("another server was promoted in the place of this one"),
				 errdetail("Node \"%s\" says so.", NameStr(node->name)),
				 errhint("Connect to that one.")));
	}
	return false;
}

static char *version = NULL;	/* of the extension, until a hello fails: perhaps it has been updated meanwhile */

char *
tessera_hello_text(const TesseraRouting *routing, int32 expected, int pid)
{
	const TesseraNode *self = tessera_routing_node(routing, routing->self);
	const char *values[] = {
		tessera_call_from_uuid(&routing->cluster_id), self ? NameStr(self->name) : "unknown", NULL, NULL,
		tessera_call_from_int4(routing->self), tessera_call_from_int4(pid),
		/* a server that does not know yet whether it is the node does not claim to be it */
		tessera_call_from_int4(routing->placements_unknown ? 0 : routing->incarnation), tessera_call_from_int4(expected)
	};

	if (version == NULL)
	{
		char	   *installed = tessera_extension_version();

		version = MemoryContextStrdup(TopMemoryContext, installed ? installed : "");
	}
	values[2] = version;
	values[3] = tessera_call_from_int4(tessera_own_protocol() | (tessera_works_for_client() ? 0 : TESSERA_CALLER_IS_WORKER));
	return tessera_call_literal(&tessera_call_specs[TESSERA_CALL_HELLO], values);
}

typedef struct HelloArg
{
	const TesseraRouting *routing;
	const TesseraNode *node;
	int			pid;
} HelloArg;

static char *
make_hello(void *arg)
{
	HelloArg   *to = arg;

	return tessera_hello_text(to->routing, to->node->incarnation, to->pid);
}

static TesseraConnection *
connect_node(const TesseraRouting *routing, const TesseraNode *node, int lane)
{
	HelloArg	arg = {routing, node, lane == OUTSIDE_CONNECTION ? 0 : MyProcPid};
	const TesseraNode *self = tessera_routing_node(routing, routing->self);
	TesseraConnection *connection;

	if (tessera_is_background_worker())
		tessera_injection("worker_connecting");
	if (self != NULL)
		tessera_connection_introduce(NameStr(self->name));
	PG_TRY();
	{
		connection = tessera_connection_open(node->node_id, NameStr(node->name), tessera_node_conninfo(routing, node), lane, make_hello, &arg);
	}
	PG_CATCH();
	{
		if (version)
			pfree(version);
		version = NULL;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return connection;
}

static void
refuse_outsider(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("this database is not a node of a cluster")));
}

/*
 * Tries twice: a server that was replaced, and has found that out by the first attempt, makes its sessions read-only, so that a conninfo with several
 * hosts and target_session_attrs=read-write leads to the other one.
 */
TesseraConnection *
tessera_open_node(const TesseraRouting *routing, int32 node_id, int lane)
{
	const TesseraNode *node;

	if (routing == NULL)
		refuse_outsider();		/* it has left the cluster just now */
	tessera_clock_load();
	node = tessera_routing_node(routing, node_id);
	tessera_require_own_node(routing);
	if (node == NULL && tessera_routing_refresh(UNKNOWN_NODE_TIMEOUT))
	{
		routing = tessera_routing();	/* a look-up that misses refreshes the registry (S32) */
		node = routing ? tessera_routing_node(routing, node_id) : NULL;
	}
	if (node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("node %d is not in the cluster", node_id)));
	for (int attempt = 0; attempt < OPEN_ATTEMPTS; attempt++)
	{
		TesseraConnection *connection = connect_node(routing, node, lane);

		if (tessera_is_node_itself(connection, node))
			return connection;
	}
	(void) tessera_routing_refresh(0);	/* perhaps its address has changed */
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_FENCED),
			 errmsg("the address of node \"%s\" leads to a server that was replaced", NameStr(node->name)),
			 errhint("Stop that server; tessera.update_node() changes the node's conninfo.")));
}

/* ---- commands outside a transaction block ---- */

TesseraConnection *
tessera_outside_block(const TesseraRouting *routing, int32 node_id)
{
	TesseraConnection *connection = tessera_connection_find(node_id, OUTSIDE_CONNECTION);

	if (connection != NULL)
		tessera_connection_close(connection);
	connection = tessera_open_node(routing, node_id, OUTSIDE_CONNECTION);
	PG_TRY();
	{
		/* in a pipeline of its own: a command behind it would seem to be in a block */
		tessera_queue_current_session(connection);
		tessera_connection_sync(connection);
		tessera_connection_drain(connection);
	}
	PG_CATCH();
	{
		tessera_connection_close(connection);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return connection;
}

void
tessera_outside_block_end(TesseraConnection **connections, int n)
{
	tessera_connections_reset(connections, n, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout));
	for (int i = 0; i < n; i++)
		tessera_connection_close(connections[i]);
}

/* ---- calls ---- */

/* On this node itself, in the transaction at hand. */
static void
call_here(const char *sql, int nparams, const char *const *values, MemoryContext context, TesseraCallAnswer *answer)
{
	char	   *text = tessera_sql_with_literals(sql, nparams, values);
	MemoryContext old;
	TesseraSpi	spi;
	int			code;

	tessera_spi_begin(&spi);
	code = SPI_execute(text, false, 0);
	if (code < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("SPI failed: %s", SPI_result_code_string(code))));
	answer->nrows = SPI_tuptable ? (int) SPI_processed : 0;
	answer->ncolumns = SPI_tuptable ? SPI_tuptable->tupdesc->natts : 0;
	old = MemoryContextSwitchTo(context);
	answer->values = palloc0(sizeof(char *) * Max(answer->nrows * answer->ncolumns, 1));
	for (int row = 0; row < answer->nrows; row++)
		for (int column = 0; column < answer->ncolumns; column++)
		{
			char	   *value = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column + 1);

			answer->values[row * answer->ncolumns + column] = value != NULL ? MemoryContextStrdup(context, value) : NULL;
		}
	MemoryContextSwitchTo(old);
	tessera_spi_end(&spi);
}

/* The control connection to a node, with nothing unanswered on it. */
static TesseraConnection *
open_control(const TesseraRouting *routing, int32 node_id)
{
	TesseraConnection *connection = tessera_open_node(routing, node_id, CONTROL_CONNECTION);

	if (tessera_connection_busy(connection) && !tessera_connection_reset(connection, tessera_abort_timeout))
		connection = tessera_open_node(routing, node_id, CONTROL_CONNECTION);
	return connection;
}

/*
 * The connection on which a call's transaction is held, with a new transaction in front of what follows. The database's settings must not make
 * another one of it than a call on the control lane has.
 */
static TesseraConnection *
open_held(const TesseraRouting *routing, int32 node_id, int hold_ms, int timeout_ms)
{
	TesseraConnection *connection = tessera_connection_find(node_id, HELD_CONNECTION);

	if (connection != NULL && (tessera_connection_busy(connection) || tessera_connection_state(connection)->xact_depth > 0))
		tessera_connection_close(connection);
	connection = tessera_open_node(routing, node_id, HELD_CONNECTION);
	tessera_connection_queue_sql(connection, "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE");
	tessera_connection_queue_sql(connection, psprintf("SET LOCAL idle_in_transaction_session_timeout = %d", hold_ms));
	/* it does not go on waiting when the caller no longer does */
	tessera_connection_queue_sql(connection, psprintf("SET LOCAL lock_timeout = %d", timeout_ms - timeout_ms / 8));
	return connection;
}

static PGresult *
run_call(TesseraConnection *connection, const TesseraRouting *routing, const TesseraCallSpec *spec, const char *const *values)
{
	int			nparams;
	const char *text = tessera_call_text(spec, tessera_connection_protocol(connection), &nparams);
	TesseraTimes times = {0};

	/* asking for a clock states none, so that it works where one is wrong */
	if (spec != &tessera_call_specs[TESSERA_CALL_CLOCK])
	{
		tessera_require_clock(connection);
		(void) tessera_clock_read(&times);
	}
	tessera_queue_envelope(connection, routing->promised_term, (int64) times.cluster, (int64) times.config, (int64) times.topology);
	return tessera_connection_run(connection, text, nparams, values);
}

/* What runs on the control lane: a call, with its values, or a command without parameters, which needs no envelope. */
typedef struct ControlRequest
{
	const TesseraRouting *routing;
	int32		node_id;
	const TesseraCallSpec *spec;	/* NULL: a command */
	const char *const *values;
	const char *command;
	int			timeout_ms;		/* 0: none */
	bool		held;			/* on the lane held */
	int			hold_ms;
	int		   *protocol;		/* where to put the one that is spoken; NULL: nowhere */
} ControlRequest;

/*
 * One attempt. Errors are raised, but that the connection broke under a call that may be repeated: then NULL, if `again`. That error comes from the
 * transport, which holds nothing when it raises it, so no subtransaction is needed to go on.
 */
static PGresult *
run_once(const ControlRequest *request, bool again)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraConnection *volatile connection = NULL;
	PGresult   *volatile result = NULL;

	PG_TRY();
	{
		if (request->held)
			connection = open_held(request->routing, request->node_id, request->hold_ms, request->timeout_ms);
		else
			connection = open_control(request->routing, request->node_id);
		if (request->spec != NULL)
			result = run_call(connection, request->routing, request->spec, request->values);
		else
			result = tessera_connection_run(connection, request->command, 0, NULL);
		if (request->held)
			tessera_connection_state(connection)->xact_depth = 1;
		if (request->protocol != NULL)
			*request->protocol = tessera_connection_protocol(connection);
	}
	PG_CATCH();
	{
		bool		broke = connection != NULL && geterrcode() == ERRCODE_CONNECTION_FAILURE && tessera_connection_broken(connection);

		/* within a limit of time, a node that may not answer is not asked to stop, either */
		if (connection != NULL && (broke || request->held || (request->timeout_ms > 0 && tessera_connection_busy(connection))))
			tessera_connection_close(connection);
		else if (connection != NULL)
			(void) tessera_connection_reset(connection, tessera_abort_timeout);
		if (!broke || !again)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
	return result;
}

/* The limit of time is that of both attempts together. */
static PGresult *
run_within(const ControlRequest *request)
{
	TimestampTz deadline = request->timeout_ms > 0 ? TimestampTzPlusMilliseconds(GetCurrentTimestamp(), request->timeout_ms) : 0;
	TimestampTz before = tessera_connections_limit(deadline);
	PGresult   *volatile result = NULL;

	PG_TRY();
	{
		result = run_once(request, request->spec != NULL && request->spec->repeatable);
		if (result == NULL)
		{
			ereport(DEBUG1,
					(errmsg_internal("call %s of node %d is repeated: the connection broke", request->spec->name, request->node_id)));
			CHECK_FOR_INTERRUPTS();
			result = run_once(request, false);
		}
	}
	PG_FINALLY();
	{
		(void) tessera_connections_limit(before);
	}
	PG_END_TRY();
	return result;
}

void
tessera_finish_part(const TesseraRouting *routing, int32 node_id, const char *gid, bool commit, TesseraTime time, int timeout_ms)
{
	const char *command = psprintf("%s PREPARED %s", commit ? "COMMIT" : "ROLLBACK", quote_literal_cstr(gid));

	if (commit && time != 0)
		tessera_call_commit_time(tessera_within(tessera_to_node(node_id), timeout_ms), gid, (int64) time);
	(void) run_within(&(ControlRequest) {.routing = routing,.node_id = node_id,.command = command,.timeout_ms = timeout_ms});
}

/* ---- whom a call goes to ---- */

static const TesseraRouting *
routing_of_member(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		refuse_outsider();
	return routing;
}

/* 0: the config node. */
static int32
resolve_node(const TesseraRouting *routing, int32 node_id)
{
	const TesseraNode *config;

	if (node_id != 0)
		return node_id;
	config = tessera_routing_config(routing);
	if (config == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the config node is not known here")));
	return config->node_id;
}


/* ---- calls that are held ---- */

typedef struct HeldCommit
{
	int32		node_id;
	int			timeout_ms;
} HeldCommit;

/* A server that has ended the transaction meanwhile, or could not commit it, answers with another tag, or not at all. */
static bool
commit_held(void *arg)
{
	const HeldCommit *held = arg;
	int32		node_id;
	TesseraConnection *connection;
	TimestampTz before = tessera_connections_limit(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), held->timeout_ms));
	volatile bool committed = false;

	PG_TRY();
	{
		tessera_background_begin();
		node_id = resolve_node(routing_of_member(), held->node_id);
		connection = tessera_connection_find(node_id, HELD_CONNECTION);
		if (connection != NULL && tessera_connection_state(connection)->xact_depth > 0)
			committed = strcmp(PQcmdStatus(tessera_connection_run(connection, "COMMIT", 0, NULL)), "COMMIT") == 0;
		if (connection != NULL)
			tessera_connection_state(connection)->xact_depth = 0;
		tessera_background_commit();
	}
	PG_FINALLY();
	{
		(void) tessera_connections_limit(before);
	}
	PG_END_TRY();
	return committed;
}

bool
tessera_commit_held(int32 node_id, int timeout_ms)
{
	HeldCommit	held = {node_id, timeout_ms};
	bool		committed = tessera_background_try(commit_held, &held);

	if (!committed)
		tessera_release_held();
	return committed;
}

void
tessera_release_held(void)
{
	tessera_connections_close(HELD_CONNECTION);
}


/* ---- lanes of calls ---- */

static void
answer_in(MemoryContext context, const PGresult *result, TesseraCallAnswer *answer)
{
	MemoryContext old = MemoryContextSwitchTo(context);

	tessera_answer_of_result(result, answer);
	MemoryContextSwitchTo(old);
}

/* The lanes beside the transaction: control, and held, where the target says for how long. */
static void
run_beside(const TesseraCallSpec *spec, const TesseraCallTarget *target, int timeout_ms, const char *const *values, MemoryContext context,
		   TesseraCallAnswer *answer)
{
	const TesseraRouting *routing = routing_of_member();
	ControlRequest request = {.routing = routing,.spec = spec,.values = values,.timeout_ms = timeout_ms,.hold_ms = target->hold_ms};

	request.held = target->lane == TESSERA_LANE_HELD;
	request.protocol = target->protocol;
	Assert(!request.held || (request.hold_ms > 0 && timeout_ms > 0));
	request.node_id = resolve_node(routing, target->node_id);
	answer_in(context, run_within(&request), answer);
}

static void
run_in_transaction(const TesseraCallSpec *spec, const TesseraCallTarget *target, int timeout_ms, const char *const *values, MemoryContext context,
				   TesseraCallAnswer *answer)
{
	const TesseraRouting *routing = routing_of_member();
	int32		node_id = resolve_node(routing, target->node_id);
	int			nparams;
	TesseraConnection *connection;

	if (node_id == routing->self)
	{
		const char *text = tessera_call_text(spec, tessera_own_protocol(), &nparams);

		call_here(text, nparams, values, context, answer);
		return;
	}
	if (target->as_user)
		connection = tessera_participant(routing, node_id, &(TesseraCommandNeeds) {.write = target->write});
	else
		connection = tessera_participant_as_cluster(routing, node_id, target->write);
	{
		const char *text = tessera_call_text(spec, tessera_connection_protocol(connection), &nparams);

		answer_in(context, tessera_connection_run(connection, text, nparams, values), answer);
	}
}

void
tessera_node_link_init(void)
{
	tessera_call_lanes[TESSERA_LANE_CONTROL] = run_beside;
	tessera_call_lanes[TESSERA_LANE_TRANSACTION] = run_in_transaction;
	tessera_call_lanes[TESSERA_LANE_HELD] = run_beside;
}
