/*
 * work.c
 *	  Short transactions and control calls of the background processes of migrations; see work.h.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "common/durable.h"
#include "common/injection.h"
#include "common/version_compat.h"
#include "migration/slot.h"
#include "migration/work.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000
#define CALL_MS 30000			/* a background process waits for an answer so long at most */

static MemoryContext caller_context = NULL;


void
tessera_work_begin(void)
{
	caller_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	tessera_commit_durably();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
tessera_work_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	MemoryContextSwitchTo(caller_context ? caller_context : TopMemoryContext);
	caller_context = NULL;
}

void
tessera_work_commit_lazily(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

const TesseraRouting *
tessera_work_known_group(const pg_uuid_t *group_id, const TesseraGroup **group)
{
	const TesseraRouting *routing = tessera_routing();

	*group = routing ? tessera_routing_group_by_id(routing, group_id) : NULL;
	if (*group == NULL)
	{
		char	   *error = tessera_routing_refresh_error();

		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table group %s is not known on this node", tessera_work_uuid(group_id)),
				 error != NULL ? errdetail("It could not be fetched from the config node: %s", error) : 0));
	}
	return routing;
}

const TesseraRouting *
tessera_work_group(const pg_uuid_t *group_id, const TesseraGroup **group)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL || tessera_routing_group_by_id(routing, group_id) == NULL)
		(void) tessera_routing_refresh(REFRESH_MS);
	return tessera_work_known_group(group_id, group);
}

/* S45. Who has locked a row has a transaction id; who holds an LWLock holds interrupts off. Callers' own transactions may have anything. */
static void
check_unlocked(void)
{
	if (!tessera_injection_points || !tessera_is_background_worker())
		return;
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) || InterruptHoldoffCount > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("a migration's process calls another node while it may hold locks")));
}

char **
tessera_work_call(int32 node_id, const char *sql, int nparams, const char *const *values)
{
	return tessera_work_call_within(node_id, sql, nparams, values, tessera_is_background_worker() ? CALL_MS : 0);
}

/* Shows whose answer is waited for, unless something else is shown already. */
static PGresult *
call_visibly(const TesseraRouting *routing, int32 node_id, const char *sql, int nparams, const char *const *values, int timeout_ms)
{
	bool		shown = tessera_my_migration != NULL && tessera_my_migration->waiting_for[0] == '\0';
	const TesseraNode *node = shown ? tessera_routing_node(routing, node_id) : NULL;
	PGresult   *volatile result = NULL;

	if (node != NULL)
		tessera_slot_waiting(psprintf("answer of node %s", NameStr(node->name)));
	PG_TRY();
	{
		result = tessera_control_call_within(routing, node_id, sql, nparams, values, timeout_ms);
	}
	PG_FINALLY();
	{
		if (node != NULL)
			tessera_slot_waiting(NULL);
	}
	PG_END_TRY();
	return result;
}

char **
tessera_work_call_within(int32 node_id, const char *sql, int nparams, const char *const *values, int timeout_ms)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		own = !IsTransactionState();
	const TesseraRouting *routing;
	PGresult   *result;
	char	  **columns = NULL;

	check_unlocked();
	if (own)
		tessera_work_begin();
	routing = tessera_routing();
	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster")));
	if (node_id == 0)
		node_id = tessera_routing_config(routing)->node_id;
	result = call_visibly(routing, node_id, sql, nparams, values, timeout_ms);
	if (PQntuples(result) > 0)
	{
		columns = MemoryContextAlloc(caller, sizeof(char *) * Max(PQnfields(result), 1));
		for (int i = 0; i < PQnfields(result); i++)
			columns[i] = PQgetisnull(result, 0, i) ? NULL : MemoryContextStrdup(caller, PQgetvalue(result, 0, i));
	}
	if (own)
		tessera_work_commit();
	return columns;
}

bool
tessera_work_ask(int32 node_id, const char *sql, int nparams, const char *const *values, int timeout_ms, bool any_error, char ***columns)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	bool		inside = IsTransactionState();
	char	  **volatile answer = NULL;
	volatile bool done = false;

	if (inside)
		BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		answer = tessera_work_call_within(node_id, sql, nparams, values, timeout_ms);
		if (inside)
			ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;
		bool		ends;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		ends = error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
			(!any_error && ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_CONNECTION_EXCEPTION);
		if (ends && !inside)
			PG_RE_THROW();
		FlushErrorState();
		if (inside)
			RollbackAndReleaseCurrentSubTransaction();
		else
			AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(caller);
		if (ends)
			ReThrowError(error);
		ereport(DEBUG1,
				(errmsg_internal("call of node %d failed: %s", node_id, error->message)));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	if (columns != NULL)
		*columns = answer;
	return done;
}

char *
tessera_work_term(void)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		own = !IsTransactionState();
	char	   *term;

	if (own)
		tessera_work_begin();
	term = MemoryContextStrdup(caller, psprintf(INT64_FORMAT, tessera_routing()->promised_term));
	if (own)
		tessera_work_commit();
	return term;
}

void
tessera_work_require_incarnation(int32 registered)
{
	int32		own;

	tessera_work_begin();
	own = tessera_routing()->incarnation;
	tessera_work_commit();
	if (own != registered)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this is another server than the one that was registered for the migration"),
				 errdetail("Registered is incarnation %d, this is %d.", registered, own)));
}

void
tessera_work_refresh(void)
{
	tessera_work_begin();
	(void) tessera_routing_refresh(REFRESH_MS);
	tessera_work_commit();
}

TimestampTz
tessera_now(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (TimestampTz) INSTR_TIME_GET_MICROSEC(now);
}

char *
tessera_work_uuid(const pg_uuid_t *uuid)
{
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(uuid)));
}

void
tessera_work_sleep(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	tessera_work_take_in();
}

void
tessera_work_take_in(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}
