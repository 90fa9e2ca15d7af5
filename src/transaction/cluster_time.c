/*
 * cluster_time.c
 *	  Cluster time in transactions; see cluster_time.h.
 *
 * A commit that writes takes its time before it becomes visible: whoever sees it reads a clock that is at least as late. So one step is the last of
 * those before a commit; another is among the first of those after it, as readers look for the time until then where it is under way
 * (clock/commit_times.h). A transaction over several nodes has one time on all of them: its coordinator takes it before it commits, and writes it
 * into the decision; who commits a prepared part is told it first.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "parser/analyze.h"
#include "postmaster/autovacuum.h"
#include "tcop/utility.h"
#include "utils/guc.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/decision.h"
#include "clock/commit_times.h"
#include "catalog/signing_key.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/spi.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "session/internal_connection.h"
#include "transaction/cluster_time.h"
#include "transaction/commit_hold.h"
#include "transaction/prepared.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_own_commit_time);

/* In a COMMIT PREPARED between the identifier and the time of the transaction: no identifier of ours has it. */
#define TIME_MARK " at "

static ProcessUtility_hook_type previous_utility = NULL;
static post_parse_analyze_hook_type previous_analyze = NULL;


/* On a shard or the config node. Starts the clock if it does not go. */
static bool
ticks_here(void)
{
	if (tessera_clock_role() == TESSERA_CLOCK_STOPPED && !IsAutoVacuumWorkerProcess() && tessera_routing() != NULL)
		tessera_clock_load();
	return tessera_clock_role() >= TESSERA_CLOCK_TICKS;
}

/* Of this session: what it prepares, until it has; and what the other end of its connection says of the prepared part that it commits next. */
typedef struct PreparedPart
{
	char		preparing[GIDSIZE];
	char		commits[GIDSIZE];
	TesseraTime time;
} PreparedPart;

static PreparedPart part;

static bool
is_of_client(const char *gid)
{
	static const char prefix[] = TESSERA_GID_PREFIX TESSERA_CLIENT_GID;

	return strncmp(gid, prefix, strlen(prefix)) == 0 || strncmp(gid, TESSERA_GID_PREFIX, strlen(TESSERA_GID_PREFIX)) != 0;
}

void
tessera_cluster_time_before_commit(void)
{
	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) || !ticks_here())
		return;
	(void) tessera_clock_take_commit_time(tessera_catalog_changed_here() > 0, false);
	tessera_injection("commit_timed");
}

/* A router has rows of the cluster's only where it takes part in a transaction with others. */
void
tessera_cluster_time_before_prepare(void)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) && (ticks_here() || tessera_clock_role() != TESSERA_CLOCK_STOPPED))
		(void) tessera_clock_take_commit_time(tessera_catalog_changed_here() > 0, false);
}

void
tessera_cluster_time_committed(void)
{
	(void) tessera_commit_seen();
	tessera_clock_end_transaction(true);
}

void
tessera_cluster_time_prepared(void)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		tessera_commit_prepared(tessera_proc_number(TwoPhaseGetDummyProc(GetTopTransactionIdIfAny(), false)), part.preparing,
								is_of_client(part.preparing));
	tessera_clock_end_transaction(false);
}

void
tessera_cluster_time_aborted(void)
{
	tessera_commit_given_up();
	tessera_clock_end_transaction(false);
}

/* ---- prepared parts ---- */

void
tessera_clock_find_prepared(void)
{
	TesseraSpi	spi;
	uint64		n;

	if (tessera_commit_knows_found() || RecoveryInProgress())
		return;
	tessera_spi_begin(&spi);
	n = tessera_spi_look("SELECT p.transaction, p.gid FROM pg_catalog.pg_prepared_xact() AS p, pg_catalog.pg_database AS d "
						 "WHERE d.oid = p.dbid AND d.datname = pg_catalog.current_database()", 0, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		bool		null;
		TransactionId xid = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null));
		const char *gid = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);

		tessera_commit_found_prepared(xid, gid, is_of_client(gid));
	}
	tessera_spi_end(&spi);
	tessera_commit_all_found();
}

/* What the other end has said beforehand: control connections and older versions do. */
void
tessera_serve_commit_time(const TesseraCommitTimeArgs *args)
{
	strlcpy(part.commits, args->gid, sizeof(part.commits));
	part.time = (TesseraTime) args->commit_time;
}

char *
tessera_commit_prepared_text(const char *gid, TesseraTime time)
{
	return time == 0 ? psprintf("COMMIT PREPARED '%s'", gid) : psprintf("COMMIT PREPARED '%s" TIME_MARK UINT64_FORMAT "'", gid, time);
}

/* By another node, with a text that may never come again: about a prepared part of a transaction of nodes, or the limits of a call. */
static bool
is_of_one_use(const char *text, const Node *node)
{
	const TransactionStmt *statement = (const TransactionStmt *) node;

	if (!tessera_internal_connection())
		return false;
	if (!IsA(node, TransactionStmt))
		return IsA(node, VariableSetStmt) && tessera_received(text);
	switch (statement->kind)
	{
		case TRANS_STMT_PREPARE:
		case TRANS_STMT_COMMIT_PREPARED:
		case TRANS_STMT_ROLLBACK_PREPARED:
			return strncmp(statement->gid, TESSERA_GID_PREFIX, strlen(TESSERA_GID_PREFIX)) == 0;
		default:
			return false;
	}
}

/*
 * A statement of one use gets no query identifier: pg_stat_statements would keep each text as a statement of its own, and throw out those of users
 * for it. COMMIT PREPARED has the time behind the identifier: takes it away. Clients' identifiers are theirs, whatever stands in them.
 */
static void
analysed(ParseState *state, Query *query, JumbleState *jumble)
{
	if (query->commandType == CMD_UTILITY && is_of_one_use(state->p_sourcetext, query->utilityStmt))
	{
		TransactionStmt *statement = (TransactionStmt *) query->utilityStmt;
		char	   *mark;

		query->queryId = UINT64CONST(0);
		if (IsA(statement, TransactionStmt) && statement->kind == TRANS_STMT_COMMIT_PREPARED && (mark = strstr(statement->gid, TIME_MARK)) != NULL)
		{
			part.time = (TesseraTime) strtoull(mark + strlen(TIME_MARK), NULL, 10);
			*mark = '\0';
			strlcpy(part.commits, statement->gid, sizeof(part.commits));
		}
	}
	if (previous_analyze)
		previous_analyze(state, query, jumble);
}

/* The coordinator's part of a commit: what it answers is the transaction's time everywhere. */
int64
tessera_serve_decision_time(const TesseraDecisionTimeArgs *args)
{
	tessera_commit_hold_before_commit();
	return (int64) tessera_decision_take_time(args->gid);
}

/* take_commit_time() */
Datum
tessera_own_commit_time(PG_FUNCTION_ARGS)
{
	TesseraTime time = tessera_clock_take_commit_time(tessera_catalog_changed_here() > 0, true);

	if (time == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) time);
}

/* COMMIT PREPARED, on a node. The time of an older node's transaction is not the same everywhere. */
static void
commit_prepared(const char *gid, void (*run) (void *arg), void *arg)
{
	TransactionId xid;
	TesseraTime prepared;
	TesseraTime time = strcmp(part.commits, gid) == 0 ? part.time : 0;
	bool		known;

	tessera_clock_find_prepared();
	known = tessera_commit_find_prepared(gid, &xid, &prepared);
	part.commits[0] = '\0';
	if (time == 0)
		time = tessera_clock_commit(false);
	else
		(void) tessera_clock_hear(&(TesseraTimes) {.cluster = time}, true);
	if (known)
		tessera_commit_begin_prepared(xid, time);
	PG_TRY();
	{
		run(arg);
	}
	PG_FINALLY();
	{
		if (known)
			tessera_commit_end_prepared(xid);
	}
	PG_END_TRY();
}

typedef struct Utility
{
	PlannedStmt *statement;
	const char *query;
	bool		read_only_tree;
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *environment;
	DestReceiver *dest;
	QueryCompletion *completion;
} Utility;

static void
run_utility(void *arg)
{
	Utility    *u = arg;

	(previous_utility ? previous_utility : standard_ProcessUtility) (u->statement, u->query, u->read_only_tree, u->context, u->params, u->environment,
																	 u->dest, u->completion);
}

static void
utility(PlannedStmt *statement, const char *query, bool read_only_tree, ProcessUtilityContext context, ParamListInfo params,
		QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	TransactionStmt *transaction = IsA(statement->utilityStmt, TransactionStmt) ? (TransactionStmt *) statement->utilityStmt : NULL;
	bool		is_transaction = transaction != NULL;
	Utility		u = {statement, query, read_only_tree, context, params, environment, dest, completion};

	if (is_transaction && transaction->kind == TRANS_STMT_PREPARE)
		strlcpy(part.preparing, transaction->gid, sizeof(part.preparing));
	if (is_transaction && transaction->kind == TRANS_STMT_COMMIT_PREPARED && (ticks_here() || tessera_clock_role() != TESSERA_CLOCK_STOPPED))
		commit_prepared(transaction->gid, run_utility, &u);
	else
		run_utility(&u);
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
	previous_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = analysed;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility;
}
