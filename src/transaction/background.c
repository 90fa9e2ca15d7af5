/*
 * background.c
 *	  Short transactions of the background processes of migrations; see background.h.
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
#include "common/text.h"
#include "control/call.h"
#include "transaction/background.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000

const TesseraProcessDisplay *tessera_process_display = NULL;

static MemoryContext caller_context = NULL;


void
tessera_background_begin(void)
{
	caller_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	tessera_commit_durably();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
tessera_background_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	MemoryContextSwitchTo(caller_context ? caller_context : TopMemoryContext);
	caller_context = NULL;
}

void
tessera_background_commit_lazily(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

bool
tessera_background_try(bool (*step) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		done = step(arg);
	}
	PG_CATCH();
	{
		if (ProcDiePending)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
	return done;
}

const TesseraRouting *
tessera_background_known_group(const pg_uuid_t *group_id, const TesseraGroup **group)
{
	const TesseraRouting *routing = tessera_routing();

	*group = routing ? tessera_routing_group_by_id(routing, group_id) : NULL;
	if (*group == NULL)
	{
		char	   *error = tessera_routing_refresh_error();

		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table group %s is not known on this node", tessera_uuid_text(group_id)),
				 error != NULL ? errdetail("It could not be fetched from the config node: %s", error) : 0));
	}
	return routing;
}

const TesseraRouting *
tessera_background_group(const pg_uuid_t *group_id, const TesseraGroup **group)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL || tessera_routing_group_by_id(routing, group_id) == NULL)
		(void) tessera_routing_refresh(REFRESH_MS);
	return tessera_background_known_group(group_id, group);
}

/* Shows whose answer is waited for, unless something else is shown already. */
static void
show_call(int32 node_id, bool begins)
{
	static bool shown = false;

	if (begins)
	{
		const TesseraRouting *routing = tessera_routing();
		const TesseraNode *node;

		shown = tessera_process_display != NULL && !tessera_process_display->shows_waiting() && routing != NULL;
		if (!shown)
			return;
		node = node_id != 0 ? tessera_routing_node(routing, node_id) : tessera_routing_config(routing);
		shown = node != NULL;
		if (shown)
			tessera_background_waiting(psprintf("answer of node %s", NameStr(node->name)));
	}
	else if (shown)
	{
		tessera_background_waiting(NULL);
		shown = false;
	}
}

void
tessera_background_show_calls(void)
{
	tessera_call_observer = show_call;
}

int64
tessera_background_term(void)
{
	bool		own = !IsTransactionState();
	int64		term;

	if (own)
		tessera_background_begin();
	term = tessera_routing()->promised_term;
	if (own)
		tessera_background_commit();
	return term;
}

void
tessera_background_require_incarnation(int32 registered)
{
	int32		own;

	tessera_background_begin();
	own = tessera_routing()->incarnation;
	tessera_background_commit();
	if (own != registered)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this is another server than the one that was registered for the migration"),
				 errdetail("Registered is incarnation %d, this is %d.", registered, own)));
}

void
tessera_background_refresh(void)
{
	tessera_background_begin();
	(void) tessera_routing_refresh(REFRESH_MS);
	tessera_background_commit();
}

TimestampTz
tessera_now(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (TimestampTz) INSTR_TIME_GET_MICROSEC(now);
}

void
tessera_background_waiting(const char *what)
{
	if (tessera_process_display != NULL)
		tessera_process_display->waiting(what);
}

void
tessera_background_note_memory(void)
{
	if (tessera_process_display != NULL)
		tessera_process_display->memory();
}

void
tessera_background_sleep(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	tessera_background_handle_interrupts();
}

void
tessera_background_handle_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}
