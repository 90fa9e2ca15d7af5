/*
 * retryable.c
 *	  Statements and transactions under a number: recorded where they run, answered from the record when they are repeated; see retryable.h.
 *
 * A statement that writes and commits by itself: before it starts its session is taken (session_tables.h) and its record looked for. If there is one,
 * nothing is run and the recorded answer is sent; else it runs, and what it has answered is recorded in its own transaction before that ends. A
 * transaction block: its first statement takes the session and writes a record of the whole; if there was one before, that statement is an error
 * (TS005) by which the client knows that it has committed. Whatever ends the transaction, the record ends with it.
 *
 * What could write without a record is refused under a number: statements within others that are not recorded themselves (a function in a SELECT
 * outside a block), COPY FROM and DDL.
 *
 * The hooks act on what the client has sent to this node. They are the outermost: a statement that is not run is run by none of the others. On
 * connections of other nodes they do nothing, as settings of sessions are not carried there.
 *
 * Memory: an attempt lives in the context that is current at ExecutorStart, which is above the executor's own and is its portal's.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#include "common/errors.h"
#include "common/injection.h"
#include "common/spi.h"
#include "common/text.h"
#include "common/utility_statement.h"
#include "common/version_compat.h"
#include "logical_session/answer.h"
#include "logical_session/numbering.h"
#include "logical_session/retryable.h"
#include "logical_session/session_tables.h"
#include "logical_session/session_uses.h"
#include "session/internal_connection.h"

/* One statement that commits by itself. */
typedef struct Attempt
{
	dlist_node	node;
	QueryDesc  *query;
	pg_uuid_t	session;
	int64		number;
	int			statement;
	bool		first;			/* of a number that is new to the session */
	bool		done_before;
	TesseraSessionRecord record;	/* of before, or to be written */
	TesseraAnswer *answer;		/* rows as they come; NULL: it returns none */
	MemoryContextCallback forget;
} Attempt;

/* Of the transaction at hand; emptied at its end. */
typedef struct Numbered
{
	pg_uuid_t	session;		/* that was taken */
	int64		number;			/* under this number; 0: none was */
	int			level;			/* of the subtransaction that has taken it */
	bool		whole;			/* a record of the whole transaction was written */
} Numbered;

static Numbered at_hand = {0};

/* What runs: an attempt leaves its list with its memory, and EXPLAIN in any case. */
typedef struct Running
{
	dlist_head	attempts;
	bool		explains;		/* EXPLAIN, whose answer is no statement's */
} Running;

static Running running = {.attempts = DLIST_STATIC_INIT(running.attempts)};

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorRun_hook_type previous_run = NULL;
static ExecutorFinish_hook_type previous_finish = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

static void
forget(void *attempt)
{
	dlist_delete(&((Attempt *) attempt)->node);
}

static Attempt *
attempt_of(const QueryDesc *query)
{
	dlist_iter	iter;

	dlist_foreach(iter, &running.attempts)
	{
		Attempt    *attempt = dlist_container(Attempt, node, iter.cur);

		if (attempt->query == query)
			return attempt;
	}
	return NULL;
}

/*
 * True if what runs here now is the client's, and to be done once. A transaction that cannot write does nothing that could be done twice; what the
 * extension itself runs is a part of something that was looked at before.
 */
static bool
is_numbered(void)
{
	return tessera_transaction_number() > 0 && !tessera_internal_connection() && !IsParallelWorker() && !XactReadOnly && !RecoveryInProgress() &&
		!tessera_spi_at_work();
}

static bool
has_taken(void)
{
	return at_hand.number == tessera_transaction_number() && memcmp(&at_hand.session, tessera_numbered_session(), sizeof(pg_uuid_t)) == 0;
}

/* Takes the session for the number, unless the transaction has it. True if the number may have records. */
static bool
take_session(void)
{
	int64		number = tessera_transaction_number();
	int64		before;

	if (at_hand.number > 0)
	{
		if (!has_taken())
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("the transaction runs under number " INT64_FORMAT " of its session", at_hand.number),
					 errhint("Set tessera.session and tessera.txn_number before its first statement.")));
		return true;
	}
	tessera_session_use_state(TESSERA_SESSION_WAITING);
	before = tessera_session_check_out(tessera_numbered_session(), number);
	tessera_session_use_state(TESSERA_SESSION_TAKEN);
	at_hand.session = *tessera_numbered_session();
	at_hand.number = number;
	at_hand.level = GetCurrentTransactionNestLevel();
	tessera_injection("session_taken");
	return before == number;
}

/* ---- transaction blocks ---- */

/* Before anything runs in a block. */
static void
record_whole(void)
{
	TesseraSessionRecord record = {0};
	bool		known;

	if (at_hand.whole && has_taken())
		return;
	known = take_session();
	if (known && tessera_session_find_record(&at_hand.session, at_hand.number, TESSERA_WHOLE_TRANSACTION, &record))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_COMMITTED_BEFORE),
				 errmsg("transaction number " INT64_FORMAT " was committed before", at_hand.number),
				 errdetail("Its first statement began at %s.", tessera_timestamp_text(record.at)),
				 errhint("Nothing of it is to be repeated: go on as if COMMIT had been answered.")));
	record.at = GetCurrentTimestamp();
	record.identity = DatumGetByteaP(DirectFunctionCall1(byteain, CStringGetDatum("")));
	record.answer = record.identity;
	tessera_session_add_record(&at_hand.session, at_hand.number, TESSERA_WHOLE_TRANSACTION, !known, &record);
	at_hand.whole = true;
	tessera_injection("session_transaction_recorded");
}

/* ---- statements that commit by themselves ---- */

static bool
writes(const QueryDesc *query)
{
	return query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE;
}

/* True for what the client has sent, also by EXECUTE; false for what runs inside of that, or while its parameters are read. */
static bool
is_outermost(const QueryDesc *query)
{
	return tessera_nesting() == 0 && ActivePortal != NULL && ActivePortal->sourceText == query->sourceText;
}

static void
begin_attempt(QueryDesc *query)
{
	Attempt    *attempt = palloc0(sizeof(Attempt));
	bytea	   *identity;
	bool		known;

	attempt->query = query;
	attempt->number = tessera_transaction_number();
	attempt->session = *tessera_numbered_session();
	attempt->statement = tessera_statement_number_take();
	identity = tessera_statement_identity(query);
	known = take_session();
	attempt->first = !known;
	if (known && tessera_session_find_record(&attempt->session, attempt->number, attempt->statement, &attempt->record))
	{
		if (VARSIZE_ANY(identity) != VARSIZE_ANY(attempt->record.identity) ||
			memcmp(VARDATA_ANY(identity), VARDATA_ANY(attempt->record.identity), VARSIZE_ANY_EXHDR(identity)) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("statement %d of transaction number " INT64_FORMAT " was another one", attempt->statement, attempt->number),
					 errdetail("A repeated statement has the same text, parameters, role and search_path."),
					 errhint("What is new is done under a new number.")));
		if (attempt->record.answer == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_TESSERA_ANSWER_LOST),
					 errmsg("statement %d of transaction number " INT64_FORMAT " was done before, and its answer was not kept",
							attempt->statement, attempt->number),
					 errhint("Raise tessera.max_recorded_answer for statements that return so much.")));
		attempt->done_before = true;
	}
	attempt->record.identity = identity;
	dlist_push_head(&running.attempts, &attempt->node);
	attempt->forget.func = forget;
	attempt->forget.arg = attempt;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &attempt->forget);
}

/* In the statement's own transaction, when all that it does is done. */
static void
record_attempt(Attempt *attempt)
{
	attempt->record.at = GetCurrentTimestamp();
	attempt->record.count = attempt->query->estate->es_processed;
	attempt->record.answer = attempt->answer != NULL ? tessera_answer_take(attempt->answer) :
		DatumGetByteaP(DirectFunctionCall1(byteain, CStringGetDatum("")));
	tessera_session_add_record(&attempt->session, attempt->number, attempt->statement, attempt->first, &attempt->record);
	tessera_injection("session_statement_recorded");
}

/* ---- executor hooks ---- */

static void
before_start(QueryDesc *query)
{
	if (IsTransactionBlock())
		record_whole();
	else if (!writes(query))
		return;
	else if (is_outermost(query) && !running.explains)
		begin_attempt(query);
	else if (dlist_is_empty(&running.attempts) && DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, (Datum) 0)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("what writes inside of another statement can be done once only in a transaction block"),
				 errdetail("tessera.txn_number is set, and the statement around it is none that is recorded."),
				 errhint("Put it between BEGIN and COMMIT, or SET tessera.txn_number = 0.")));
}

static void
executor_start(QueryDesc *query, int eflags)
{
	if (is_outermost(query))
		tessera_session_use_note();
	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY) && is_numbered())
		before_start(query);
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

static bool
returns_rows(const QueryDesc *query)
{
	return query->operation == CMD_SELECT || query->plannedstmt->hasReturning;
}

static void
executor_run(TESSERA_RUN_PARAMETERS)
{
	Attempt    *attempt = dlist_is_empty(&running.attempts) ? NULL : attempt_of(query);

	if (attempt != NULL && attempt->done_before)
	{
		tessera_answer_give(attempt->record.answer, query);
		query->estate->es_processed = attempt->record.count;
		return;
	}
	if (attempt != NULL && returns_rows(query))
	{
		/* it runs to its end at once: it writes */
		attempt->answer = tessera_answer_begin(query->tupDesc, query->dest, (Size) tessera_max_recorded_answer * 1024);
		query->dest = tessera_answer_receiver(attempt->answer);
	}
	if (previous_run)
		previous_run(TESSERA_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(TESSERA_RUN_ARGUMENTS);
}

/* Of a query that was started and not run: nothing is left to be done, but what the start has begun ends. */
static void
finish_without_run(QueryDesc *query)
{
	EState	   *estate = query->estate;

	if (!(estate->es_top_eflags & EXEC_FLAG_SKIP_TRIGGERS))
		AfterTriggerEndQuery(estate);
	estate->es_finished = true;
}

static void
executor_finish(QueryDesc *query)
{
	Attempt    *attempt = dlist_is_empty(&running.attempts) ? NULL : attempt_of(query);

	if (attempt != NULL && attempt->done_before)
	{
		finish_without_run(query);
		return;
	}
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
	if (attempt != NULL)
		record_attempt(attempt);
}

/* ---- utility statements ---- */

/* True if it may write what no record speaks of. */
static bool
is_refused(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_TransactionStmt:
		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_DiscardStmt:
		case T_PrepareStmt:
		case T_ExecuteStmt:
		case T_DeallocateStmt:
		case T_DeclareCursorStmt:
		case T_FetchStmt:
		case T_ClosePortalStmt:
		case T_ExplainStmt:
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_NotifyStmt:
		case T_LockStmt:
		case T_ConstraintsSetStmt:
		case T_CheckPointStmt:
		case T_LoadStmt:
			return false;
		case T_CopyStmt:
			return ((CopyStmt *) statement)->is_from;
		case T_CallStmt:
		case T_DoStmt:
			return !IsTransactionBlock();
		default:
			return true;
	}
}

static void
utility(PlannedStmt *statement, const char *string, bool read_only, ProcessUtilityContext context, ParamListInfo params,
		QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	Node	   *node = statement->utilityStmt;
	bool		before = running.explains;

	if (context == PROCESS_UTILITY_TOPLEVEL)
		tessera_session_use_note();
	if (context == PROCESS_UTILITY_TOPLEVEL && tessera_transaction_number() > 0 && IsTransactionState() && is_numbered() && is_refused(node))
	{
		bool		code = IsA(node, CallStmt) || IsA(node, DoStmt);

		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 code ? errmsg("%s can be done once only in a transaction block", GetCommandTagName(CreateCommandTag(node))) :
				 errmsg("%s cannot be done under a transaction number", GetCommandTagName(CreateCommandTag(node))),
				 code ? errhint("Put it between BEGIN and COMMIT, or SET tessera.txn_number = 0.") : errhint("SET tessera.txn_number = 0.")));
	}
	running.explains = IsA(node, ExplainStmt);
	PG_TRY();
	{
		if (previous_utility)
			previous_utility(statement, string, read_only, context, params, environment, receiver, completion);
		else
			standard_ProcessUtility(statement, string, read_only, context, params, environment, receiver, completion);
	}
	PG_FINALLY();
	{
		running.explains = before;
	}
	PG_END_TRY();
}

/* ---- end of transaction ---- */

static void
end_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			tessera_session_use_end();
			tessera_numbering_commit();
			memset(&at_hand, 0, sizeof(at_hand));
			break;
		case XACT_EVENT_ABORT:
			tessera_session_use_end();
			tessera_numbering_abort();
			memset(&at_hand, 0, sizeof(at_hand));
			break;
		default:
			break;
	}
}

/* What a subtransaction has taken and written goes with it, or is its parent's. */
static void
end_subtransaction(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (at_hand.number == 0 || at_hand.level < level)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		at_hand.level = level - 1;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		memset(&at_hand, 0, sizeof(at_hand));
		tessera_session_use_state(TESSERA_SESSION_IN_USE);
	}
}

bool
tessera_session_is_taken(const pg_uuid_t *session)
{
	return at_hand.number > 0 && memcmp(&at_hand.session, session, sizeof(pg_uuid_t)) == 0;
}

void
tessera_retryable_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = executor_finish;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility;
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_subtransaction, NULL);
}
