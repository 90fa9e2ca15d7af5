/*
 * advisory.c
 *	  The functions that stand in for the server's advisory lock functions; see advisory.h.
 *
 * A call goes to the key's home: one round trip on the transaction's connection there, none if this node is it. A transaction-level lock makes the
 * home a participant, whose transaction ends when the outcome is decided everywhere (two_phase.c). A session-level lock belongs to the connection. If
 * that is lost, so is the lock: the session is then ended at its next statement, as the loss of its server would have ended it. When a call fails, it
 * is not known whether the lock was granted meanwhile: the home is told to undo that before the error goes on.
 *
 * A trigger or function that runs on another shard cannot take the lock of the client's session, and is refused. So is a call that the planner has
 * not replaced.
 *
 * Memory: how many session-level locks each home keeps, and where those of each slot are, until the backend exits.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "common/stand_in.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "transaction/advisory.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_pg_advisory_lock);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_lock_shared);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_xact_lock);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_xact_lock_shared);
PG_FUNCTION_INFO_V1(tessera_pg_try_advisory_lock);
PG_FUNCTION_INFO_V1(tessera_pg_try_advisory_lock_shared);
PG_FUNCTION_INFO_V1(tessera_pg_try_advisory_xact_lock);
PG_FUNCTION_INFO_V1(tessera_pg_try_advisory_xact_lock_shared);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_unlock);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_unlock_shared);
PG_FUNCTION_INFO_V1(tessera_pg_advisory_unlock_all);
PG_FUNCTION_INFO_V1(tessera_all_advisory_locks);

#define SETTLE_MS 10000			/* so long the home of a key is looked for */
#define REFRESH_MS 2000
#define AGAIN_MS 20L

typedef enum AdvisoryMode
{
	ADVISORY_CLUSTER,
	ADVISORY_NODE
} AdvisoryMode;

static const struct config_enum_entry modes[] = {
	{"cluster", ADVISORY_CLUSTER, false},
	{"node", ADVISORY_NODE, false},
	{NULL, 0, false}
};

static int	advisory_mode = ADVISORY_CLUSTER;

/* A node that keeps session-level locks of this session. */
typedef struct Holding
{
	int32		node_id;
	NameData	name;
	TesseraConnection *connection;
	int64		locks;			/* 0: none any more */
} Holding;

/* Session-level locks that other nodes keep for this session; in TopMemoryContext. */
typedef struct SessionLocks
{
	Holding    *holdings;
	int			nholdings;
	int			size;
	bool		any;			/* one of them keeps locks */
	/* Where a lock of each slot was last taken: it is held there, if it is, whatever the image says. 0: nowhere yet. */
	int32		taken_at[TESSERA_ADVISORY_SLOTS];
	int64		last_request;	/* number of the last request to a home */
} SessionLocks;

static SessionLocks session_locks = {0};

static ExecutorStart_hook_type previous_start = NULL;
static ProcessUtility_hook_type previous_utility = NULL;
static object_access_hook_type previous_access = NULL;

/* ---- what other nodes keep for this session ---- */

static Holding *
holding_of(int32 node_id)
{
	for (int i = 0; i < session_locks.nholdings; i++)
		if (session_locks.holdings[i].node_id == node_id)
			return &session_locks.holdings[i];
	return NULL;
}

/* Room for one more is made before a lock is asked for. */
static Holding *
make_holding(int32 node_id, TesseraConnection *connection)
{
	Holding    *holding = holding_of(node_id);

	if (holding == NULL)
	{
		if (session_locks.nholdings == session_locks.size)
		{
			int			size = Max(8, session_locks.size * 2);

			session_locks.holdings = session_locks.holdings ? repalloc(session_locks.holdings, size * sizeof(Holding)) :
				MemoryContextAlloc(TopMemoryContext, size * sizeof(Holding));
			session_locks.size = size;
		}
		holding = &session_locks.holdings[session_locks.nholdings++];
		memset(holding, 0, sizeof(Holding));
		holding->node_id = node_id;
	}
	namestrcpy(&holding->name, tessera_connection_name(connection));
	holding->connection = connection;
	return holding;
}

static void
set_holding(Holding *holding, int64 locks)
{
	holding->locks = locks;
	tessera_connection_state(holding->connection)->session_locks = locks;
	session_locks.any = false;
	for (int i = 0; i < session_locks.nholdings; i++)
		session_locks.any |= session_locks.holdings[i].locks > 0;
}

/* FATAL if a connection is gone that kept session-level locks: the session must not go on as if it had them. */
static void
require_holdings(void)
{
	for (int i = 0; i < session_locks.nholdings; i++)
	{
		Holding    *holding = &session_locks.holdings[i];

		if (holding->locks == 0)
			continue;
		if (tessera_connection_lost(holding->connection) || tessera_connection_state(holding->connection)->session_locks == 0)
			ereport(FATAL,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("the connection to node \"%s\", which kept advisory locks of this session, was lost", NameStr(holding->name)),
					 errdetail("Others may hold these locks now."),
					 errhint("Connect again and take the locks anew.")));
	}
}

/* ---- one call to a home ---- */

/*
 * For a call whose answer will not be read: releases the lock if it was granted. The connection is closed if that cannot be done in time. Raises
 * nothing.
 */
static void
undo_request(TesseraConnection *connection, int64 request)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_abort_timeout);
	const char *values[] = {tessera_call_from_int8(request)};
	char	   *sql = tessera_call_literal(&tessera_call_specs[TESSERA_CALL_ADVISORY_UNDO], values);

	if (!tessera_connection_alive(connection))
		return;
	tessera_connections_reset(&connection, 1, deadline);
	if (!tessera_connection_queue_quietly(connection, sql) || !tessera_connection_sync_quietly(connection))
		return;
	if (tessera_connections_await_answers(&connection, 1, deadline) > 0)
		tessera_connection_close(connection);
}

static TesseraConnection *
connection_to(const TesseraRouting *routing, int32 home, bool session)
{
	TesseraCommandNeeds needs = {.autocommit = session, .aside = true, .timeless = true};

	return tessera_participant(routing, home, &needs);
}

static int64
ask_lock(TesseraConnection *connection, int32 home, const TesseraAdvisoryKey *key, bool shared, bool session, bool try)
{
	int64		request = ++session_locks.last_request;
	int64		result = 0;
	volatile int64 answer = 0;

	if (session)
	{
		(void) make_holding(home, connection);
		require_holdings();
	}
	PG_TRY();
	{
		tessera_call_advisory_lock(tessera_over(connection), key->class, key->key, shared, session, try, request, &result);
		answer = result;
	}
	PG_CATCH();
	{
		if (session)
			undo_request(connection, request);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (session && (answer & 3) == TESSERA_ADVISORY_DONE)
		set_holding(holding_of(home), answer >> 2);
	return answer;
}

/* A lock at its home, if that is the node; STALE: *home is another one to ask, if the node knows one, else 0. */
static TesseraAdvisoryAnswer
lock_on(const TesseraRouting *routing, const TesseraAdvisoryKey *key, bool shared, bool session, bool try, int32 *home)
{
	int32		node_id = *home;
	TesseraConnection *connection;
	int64		answer;

	if (node_id == routing->self)
		return tessera_advisory_take(key, shared, session, try, home);
	connection = connection_to(routing, node_id, session);
	if (!session)
		tessera_participant_holds_locks(node_id);
	answer = ask_lock(connection, node_id, key, shared, session, try);
	if ((answer & 3) == TESSERA_ADVISORY_STALE)
		*home = (int32) (answer >> 2);
	return (TesseraAdvisoryAnswer) (answer & 3);
}

/* The node to ask next, when the one asked is not the slot's home: the slot, or the news of its move, is on the way. ERROR 55000 at the deadline. */
static int32
look_for_home(int slot, int32 asked, int32 told, TimestampTz deadline)
{
	const TesseraRouting *routing;

	if (told != 0 && told != asked)
	{
		routing = tessera_routing();
		if (routing && tessera_routing_node(routing, told) != NULL)
			return told;
	}
	if (GetCurrentTimestamp() >= deadline)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no node is the home of this advisory lock at present"),
				 errdetail("Slot %d was last looked for on node %d.", slot, asked),
				 errhint("A node that was just promoted may not have finished its recovery yet; try again.")));
	(void) tessera_routing_refresh(REFRESH_MS);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, AGAIN_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	routing = tessera_routing();
	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database has left its cluster")));
	return routing->advisory_homes[slot];
}

static bool
lock_in_cluster(const TesseraRouting *routing, const TesseraAdvisoryKey *key, bool shared, bool session, bool try)
{
	int			slot = tessera_advisory_slot(key);
	int32		home = routing->advisory_homes[slot];
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SETTLE_MS);

	for (;;)
	{
		int32		asked = home;
		TesseraAdvisoryAnswer answer = home == 0 ? TESSERA_ADVISORY_STALE : lock_on(tessera_routing(), key, shared, session, try, &home);

		if (answer == TESSERA_ADVISORY_DONE && session)
			session_locks.taken_at[slot] = home;
		if (answer != TESSERA_ADVISORY_STALE)
			return answer == TESSERA_ADVISORY_DONE;
		home = look_for_home(slot, asked, home, deadline);
	}
}

static bool
unlock_in_cluster(const TesseraRouting *routing, const TesseraAdvisoryKey *key, bool shared)
{
	int			slot = tessera_advisory_slot(key);
	int32		home = tessera_routing_node(routing, session_locks.taken_at[slot]) ? session_locks.taken_at[slot] : routing->advisory_homes[slot];
	Holding    *holding = holding_of(home);
	int64		answer;

	/* a slot stays where it is while a lock of it is held; without any there the server's own warning is as true here */
	if (holding == NULL || holding->locks == 0)
		return tessera_advisory_release(key, shared);
	require_holdings();
	tessera_call_advisory_unlock(tessera_over(connection_to(routing, home, true)), key->class, key->key, shared, &answer);
	set_holding(holding_of(home), answer >> 2);
	return (answer & 3) == TESSERA_ADVISORY_DONE;
}

static void
unlock_all_elsewhere(const TesseraRouting *routing)
{
	for (int i = 0; i < session_locks.nholdings; i++)
	{
		if (session_locks.holdings[i].locks == 0)
			continue;
		require_holdings();
		tessera_call_advisory_unlock_all(tessera_over(connection_to(routing, session_locks.holdings[i].node_id, true)));
		set_holding(&session_locks.holdings[i], 0);
	}
}

/* ---- the functions ---- */

/* The cluster whose locks these are; NULL: this node's own. */
static const TesseraRouting *
cluster_of_call(void)
{
	const TesseraRouting *routing = advisory_mode == ADVISORY_CLUSTER ? tessera_routing() : NULL;

	if (routing == NULL)
		return NULL;
	if (tessera_internal_connection())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function or trigger that runs on a shard cannot use advisory locks: they belong to the client's session on another node"),
				 errhint("Take the lock in a statement of the client, or set tessera.advisory_locks to \"node\" for locks of each node alone.")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("advisory locks of the cluster cannot be taken on a standby"),
				 errhint("Connect to a primary, or set tessera.advisory_locks to \"node\".")));
	return routing;
}

static TesseraAdvisoryKey
key_of_call(FunctionCallInfo fcinfo)
{
	TesseraAdvisoryKey key;

	tessera_stand_in_check(fcinfo->flinfo->fn_oid);
	if (PG_NARGS() == 1)
	{
		key.class = 1;
		key.key = PG_GETARG_INT64(0);
	}
	else
	{
		key.class = 2;
		key.key = (int64) ((uint64) (uint32) PG_GETARG_INT32(0) << 32 | (uint32) PG_GETARG_INT32(1));
	}
	return key;
}

static bool
lock(FunctionCallInfo fcinfo, bool shared, bool session, bool try)
{
	TesseraAdvisoryKey key = key_of_call(fcinfo);
	const TesseraRouting *routing = cluster_of_call();

	if (routing == NULL)
		return tessera_advisory_take(&key, shared, session, try, NULL) == TESSERA_ADVISORY_DONE;
	return lock_in_cluster(routing, &key, shared, session, try);
}

static bool
unlock(FunctionCallInfo fcinfo, bool shared)
{
	TesseraAdvisoryKey key = key_of_call(fcinfo);
	const TesseraRouting *routing = cluster_of_call();

	return routing == NULL ? tessera_advisory_release(&key, shared) : unlock_in_cluster(routing, &key, shared);
}

/* Each has the name and the arguments of the server's. */

Datum
tessera_pg_advisory_lock(PG_FUNCTION_ARGS)
{
	(void) lock(fcinfo, false, true, false);
	PG_RETURN_VOID();
}

Datum
tessera_pg_advisory_lock_shared(PG_FUNCTION_ARGS)
{
	(void) lock(fcinfo, true, true, false);
	PG_RETURN_VOID();
}

Datum
tessera_pg_advisory_xact_lock(PG_FUNCTION_ARGS)
{
	(void) lock(fcinfo, false, false, false);
	PG_RETURN_VOID();
}

Datum
tessera_pg_advisory_xact_lock_shared(PG_FUNCTION_ARGS)
{
	(void) lock(fcinfo, true, false, false);
	PG_RETURN_VOID();
}

Datum
tessera_pg_try_advisory_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(lock(fcinfo, false, true, true));
}

Datum
tessera_pg_try_advisory_lock_shared(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(lock(fcinfo, true, true, true));
}

Datum
tessera_pg_try_advisory_xact_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(lock(fcinfo, false, false, true));
}

Datum
tessera_pg_try_advisory_xact_lock_shared(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(lock(fcinfo, true, false, true));
}

Datum
tessera_pg_advisory_unlock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(unlock(fcinfo, false));
}

Datum
tessera_pg_advisory_unlock_shared(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(unlock(fcinfo, true));
}

Datum
tessera_pg_advisory_unlock_all(PG_FUNCTION_ARGS)
{
	const TesseraRouting *routing;

	tessera_stand_in_check(fcinfo->flinfo->fn_oid);
	routing = cluster_of_call();
	tessera_advisory_release_all();
	if (session_locks.any && (routing || (routing = tessera_routing()) != NULL))
		unlock_all_elsewhere(routing);
	PG_RETURN_VOID();
}

void
tessera_advisory_discard(void)
{
	const TesseraRouting *routing = session_locks.any ? tessera_routing() : NULL;

	if (routing)
		unlock_all_elsewhere(routing);
}

/* ---- all locks ---- */

static void
put_lock(ReturnSetInfo *out, const TesseraRouting *routing, const TesseraNode *home, const TesseraAdvisoryLocksAnswer *lock)
{
	const TesseraNode *node = tessera_routing_node(routing, lock->node_id);
	Datum		values[8];
	bool		nulls[8] = {false};

	values[0] = ObjectIdGetDatum((Oid) lock->classid);
	values[1] = ObjectIdGetDatum((Oid) lock->objid);
	values[2] = Int16GetDatum((int16) lock->objsubid);
	values[3] = CStringGetTextDatum(lock->mode);
	values[4] = BoolGetDatum(lock->granted);
	values[5] = CStringGetTextDatum(NameStr(home->name));
	nulls[6] = node == NULL;
	values[6] = node ? CStringGetTextDatum(NameStr(node->name)) : (Datum) 0;
	nulls[7] = lock->pid_null;
	values[7] = Int32GetDatum(lock->pid);
	tuplestore_putvalues(out->setResult, out->setDesc, values, nulls);
}

/* One node's locks; a warning names a node that cannot be asked, and the others' are shown. */
static void
put_locks_of(ReturnSetInfo *out, const TesseraRouting *routing, const TesseraNode *home)
{
	ErrorData  *error;
	TesseraAdvisoryLocksAnswer *locks;
	int			n;

	if (!tessera_call_advisory_locks(tessera_keep_error(tessera_ask(tessera_to_node(home->node_id), TESSERA_TOLERATE_ERRORS), &error), &locks, &n))
	{
		ereport(WARNING,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("advisory locks of node \"%s\" are not shown", NameStr(home->name)),
				 errdetail_internal("%s", error->message)));
		return;
	}
	for (int i = 0; i < n; i++)
		put_lock(out, routing, home, &locks[i]);
}

/* all_advisory_locks(): source of the view tessera.advisory_locks */
Datum
tessera_all_advisory_locks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *out = (ReturnSetInfo *) fcinfo->resultinfo;
	const TesseraRouting *routing = tessera_routing();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; routing != NULL && i < routing->nnodes; i++)
		put_locks_of(out, routing, tessera_routing_node_at(routing, i));
	return (Datum) 0;
}

/* ---- hooks ---- */

static void
executor_start(QueryDesc *query, int eflags)
{
	if (session_locks.any && tessera_nesting() == 0)
		require_holdings();
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

static void
utility(PlannedStmt *statement, const char *text, bool read_only, ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *environment,
		DestReceiver *receiver, QueryCompletion *completion)
{
	if (session_locks.any && tessera_nesting() == 0)
		require_holdings();
	if (previous_utility)
		previous_utility(statement, text, read_only, context, params, environment, receiver, completion);
	else
		standard_ProcessUtility(statement, text, read_only, context, params, environment, receiver, completion);
}

/*
 * A call that the planner did not see (an argument of CALL or EXECUTE, a CHECK constraint, the fast path) would lock, or notify, on this node alone.
 */
static void
object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	TesseraStandInKind kind;

	if (previous_access)
		previous_access(access, class, object, sub, arg);
	if (access != OAT_FUNCTION_EXECUTE || class != ProcedureRelationId || tessera_known_no_node())
		return;
	kind = tessera_stand_in_kind(object);
	if ((kind != TESSERA_NOTIFICATION && (kind != TESSERA_ADVISORY_LOCK || advisory_mode != ADVISORY_CLUSTER)) || !IsTransactionState() ||
		tessera_routing() == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s() cannot be called here: it would have its effect on this node alone", get_func_name(object)),
			 errhint("Call it in a SELECT of its own, or by PERFORM.")));
}

void
tessera_advisory_init(void)
{
	DefineCustomEnumVariable("tessera.advisory_locks", "Whether an advisory lock is one lock in the whole cluster, or one on each node.", NULL,
							 &advisory_mode, ADVISORY_CLUSTER, modes, PGC_USERSET, 0, NULL, NULL, NULL);
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility;
	previous_access = object_access_hook;
	object_access_hook = object_access;
}
