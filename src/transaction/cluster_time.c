/*
 * cluster_time.c
 *	  Cluster time in transactions; see cluster_time.h.
 *
 * A commit that writes takes its time before it becomes visible: whoever sees it reads a clock that is at least as late. So the callback is the
 * last of those before a commit, and COMMIT PREPARED takes its time before the server's own.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "tcop/utility.h"
#include "utils/guc.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/signing_key.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transaction/cluster_time.h"

static ProcessUtility_hook_type previous_utility = NULL;


/* On a shard or the config node. Starts the clock if it does not go. */
static bool
ticks_here(void)
{
	if (tessera_clock_role() == TESSERA_CLOCK_STOPPED && !IsAutoVacuumWorkerProcess() && tessera_routing() != NULL)
		tessera_clock_load();
	return tessera_clock_role() >= TESSERA_CLOCK_TICKS;
}

static void
end_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (TransactionIdIsValid(GetTopTransactionIdIfAny()) && ticks_here())
				(void) tessera_clock_commit(tessera_catalog_changed_here() > 0);
			break;
		case XACT_EVENT_COMMIT:
			tessera_clock_end_transaction(true);
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			tessera_clock_end_transaction(false);
			break;
		default:
			break;
	}
}

static void
utility(PlannedStmt *statement, const char *query, bool read_only_tree, ProcessUtilityContext context, ParamListInfo params,
		QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	TransactionStmt *transaction = IsA(statement->utilityStmt, TransactionStmt) ? (TransactionStmt *) statement->utilityStmt : NULL;
	bool		is_transaction = transaction != NULL;

	if (is_transaction && transaction->kind == TRANS_STMT_COMMIT_PREPARED && ticks_here())
		(void) tessera_clock_commit(false);
	if (previous_utility)
		previous_utility(statement, query, read_only_tree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(statement, query, read_only_tree, context, params, environment, dest, completion);
	/* the statement may be gone by now */
	if (!is_transaction && IsTransactionBlock())
		tessera_internal_tell_time();
}

/* ---- what is stated to other nodes ---- */

void
tessera_queue_time(TesseraConnection *connection)
{
	TesseraRemoteState *state = tessera_connection_state(connection);
	TesseraTimes times;

	if (tessera_connection_protocol(connection) < TESSERA_TIME_PROTOCOL || !tessera_clock_read(&times) || times.cluster <= state->heard.cluster ||
		(state->known && times.cluster <= state->time_told) || tessera_injection_skips("gossip"))
		return;
	tessera_queue_tell_time(connection, (int64) times.cluster, (int64) times.config, (int64) times.topology);
	state->time_told = times.cluster;
}

void
tessera_require_clock(TesseraConnection *connection)
{
	double		ahead;

	if (!tessera_clock_is_off(tessera_connection_state(connection)->heard.cluster, &ahead))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the clock of node \"%s\" is %.0f s ahead of this node's", tessera_connection_name(connection), ahead),
			 errdetail("The limit is tessera.max_clock_drift, %d s.", tessera_max_clock_drift),
			 errhint("Compare the clocks of both servers; tessera.clocks shows those of all nodes.")));
}

/* ---- what clients hand in, and see ---- */

#define KEY_TIMEOUT 5000		/* ms that a key is waited for */

static char *after_setting;

/* Verified with tessera.after_cluster_time. */
static TesseraTime after_time = 0;

TesseraTime
tessera_after_cluster_time(void)
{
	return after_setting != NULL && after_setting[0] != '\0' ? after_time : 0;
}

/*
 * The time that a token says, if it is one of this cluster; a key that is not known is fetched from the config node. false: *why says why not,
 * palloc'd.
 */
static bool
verify(const char *token, TesseraTime *time, char **why)
{
	TesseraSigningKey key;
	uint64		key_id;
	double		ahead;

	if (!tessera_token_read(token, time, &key_id))
		*why = pstrdup("It is not what tessera.cluster_time_token() returns.");
	else if (!tessera_signing_key_find(key_id, &key) && !(tessera_routing_refresh(KEY_TIMEOUT) && tessera_signing_key_find(key_id, &key)))
		*why = pstrdup("It was signed by a key that this cluster does not have.");
	else if (!tessera_token_is_signed(token, &key))
		*why = pstrdup("Its signature is wrong.");
	else if (tessera_clock_is_off(*time, &ahead))
		*why = psprintf("It is %.0f s ahead of this server's clock, more than tessera.max_clock_drift.", ahead);
	else
		return true;
	return false;
}

/* In the session itself the token is verified, and counts at once. */
static bool
check_after(char **value, void **extra, GucSource source)
{
	TesseraTime *time = malloc(sizeof(TesseraTime));
	char	   *why = NULL;

	if (time == NULL)
		return false;
	*time = 0;
	*extra = time;
	if (**value == '\0' || InitializingParallelWorker)
		return true;
	if (!IsTransactionState() || source < PGC_S_INTERACTIVE)
		why = pstrdup("It can be set by a session's statements alone.");
	else if (tessera_routing() == NULL || RecoveryInProgress())
		why = pstrdup("This database is not a node of a cluster, or the server is a standby.");
	if (why == NULL)
		(void) verify(*value, time, &why);
	if (why != NULL)
	{
		GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
		GUC_check_errmsg("invalid cluster time token");
		GUC_check_errdetail("%s", why);
		return false;
	}
	tessera_clock_load();
	(void) tessera_clock_hear(&(TesseraTimes) {.cluster = *time}, true);
	return true;
}

static void
assign_after(const char *value, void *extra)
{
	after_time = extra != NULL ? *(TesseraTime *) extra : 0;
}

/* This session's statements have seen nothing that was committed later. */
static TesseraTime
operation_time(void)
{
	TesseraTimes times;

	/* what they have read here is of this node's clock */
	(void) tessera_clock_read(&times);
	return Max(tessera_clock_session(), tessera_clock_role() >= TESSERA_CLOCK_TICKS ? times.cluster : 0);
}

static const char *
show_operation_time(void)
{
	static char text[24];

	snprintf(text, sizeof(text), UINT64_FORMAT, operation_time());
	return text;
}

void
tessera_cluster_time_init(void)
{
	static char *no_value;

	DefineCustomStringVariable("tessera.after_cluster_time", "Token of a cluster time: statements see what was committed by then.", NULL,
							   &after_setting, "", PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, check_after, assign_after, NULL);
	DefineCustomStringVariable("tessera.operation_time", "Shows the cluster time up to which this session's statements have seen commits.",
							   NULL, &no_value, "", PGC_INTERNAL, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, NULL, NULL, show_operation_time);
	RegisterXactCallback(end_transaction, NULL);
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}
