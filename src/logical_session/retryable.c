/*
 * retryable.c
 *	  Statements and transactions under a number: recorded where they run, answered from the record when they are repeated; see retryable.h.
 *
 * A statement that writes and commits by itself: before it starts its session is taken (session_tables.h) and its record looked for. If there is one,
 * nothing is run and the recorded answer is sent; else it runs, and what it has answered is recorded in its own transaction before that ends. A
 * transaction block, or a message of several statements: its first statement takes the session and writes a record of the whole; if there was one
 * before, that statement is an error (TS005) by which the client knows that it has committed. Whatever ends the transaction, the record ends with it.
 *
 * What could write without a record is refused under a number: outside a block whatever writes inside of something that is not recorded itself; COPY
 * FROM and DDL that the client has sent, anywhere.
 *
 * The hooks act on what runs on this node for its own client. They are the outermost: a statement that is not run is run by none of the others. On
 * connections of other nodes they do nothing, as settings of sessions are not carried there.
 *
 * Memory: an attempt lives in the context that is current at ExecutorStart, which is above the executor's own and is its portal's; it leaves the list
 * when its query has finished, or with its memory.
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
#include "common/transaction_steps.h"
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
	bool		listed;
	MemoryContextCallback forget;
} Attempt;

/* Of the transaction at hand; emptied at its end. */
typedef struct Numbered
{
	pg_uuid_t	session;		/* that was taken */
	int64		number;			/* under this number; 0: none was */
	int			level;			/* of the subtransaction that has taken it */
	bool		whole;			/* a record of the whole transaction was written */
	bytea	   *first;			/* identity of the block's first statement, also if that was rolled back; in TopTransactionContext */
} Numbered;

static Numbered at_hand = {0};

/* What runs: whoever enters leaves, also by an error. */
typedef struct Running
{
	dlist_head	attempts;
	int			inside;			/* of attempts' runs: what is written there is recorded with them */
	bool		explains;		/* EXPLAIN, whose answer is no statement's */
} Running;

static Running running = {.attempts = DLIST_STATIC_INIT(running.attempts)};

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorRun_hook_type previous_run = NULL;
static ExecutorFinish_hook_type previous_finish = NULL;
static ProcessUtility_hook_type previous_utility = NULL;

static void
forget(void *arg)
{
	Attempt    *attempt = arg;

	if (attempt->listed)
		dlist_delete(&attempt->node);
	attempt->listed = false;
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

/* True if the connection works for a session, or has until now. */
static bool
has_session(void)
{
	return tessera_numbered_session() != NULL || tessera_session_use_is_noted();
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

/* A number is that of one transaction, or of one statement. */
static _Noreturn void
raise_another(const char *what, const char *same)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s of transaction number " INT64_FORMAT " was another one", what, tessera_transaction_number()),
			 errdetail("%s", same),
			 errhint("What is new is done under a new number.")));
}

static bool
is_same(const bytea *one, const bytea *other)
{
	return VARSIZE_ANY_EXHDR(one) == VARSIZE_ANY_EXHDR(other) && memcmp(VARDATA_ANY(one), VARDATA_ANY(other), VARSIZE_ANY_EXHDR(one)) == 0;
}

/* Before anything runs in a block: this, to begin with. */
static void
record_whole(const PlannedStmt *plan, const char *text, ParamListInfo params)
{
	TesseraSessionRecord record = {0};
	bool		known;

	if (at_hand.whole && has_taken())
		return;
	if (tessera_number_is_used_up())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a transaction was committed under number " INT64_FORMAT " on this connection", tessera_transaction_number()),
				 errhint("Each transaction has a number of its own; to repeat one, say SET tessera.txn_number once more.")));
	tessera_transaction_involved();
	if (at_hand.first == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);

		at_hand.first = tessera_statement_identity(plan, text, params);
		MemoryContextSwitchTo(before);
	}
	known = take_session();
	if (known && tessera_session_find_record(&at_hand.session, at_hand.number, TESSERA_WHOLE_TRANSACTION, &record))
	{
		if (record.statement != TESSERA_WHOLE_TRANSACTION)
			raise_another("what was done", "It was statements that committed by themselves; this is a transaction block.");
		if (!is_same(at_hand.first, record.identity))
			raise_another("the first statement", "A repeated transaction begins with the same text, parameters, role and search_path.");
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_COMMITTED_BEFORE),
				 errmsg("transaction number " INT64_FORMAT " was committed before", at_hand.number),
				 errdetail("Its first statement began at %s.", tessera_timestamp_text(record.at)),
				 errhint("Nothing of it is to be repeated: go on as if COMMIT had been answered.")));
	}
	record.at = GetCurrentTimestamp();
	record.identity = at_hand.first;
	record.answer = DatumGetByteaP(DirectFunctionCall1(byteain, CStringGetDatum("")));
	if (!tessera_injection_skips("session_record"))
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

/*
 * True for what the client has sent, also by EXECUTE; false for what runs inside of that, while its parameters are read or computed, or while it is
 * planned: that has a text of its own, or is run through SPI.
 */
static bool
is_outermost(const char *text)
{
	return tessera_nesting() == 0 && ActivePortal != NULL && ActivePortal->sourceText == text && tessera_outside_spi();
}

static void
begin_attempt(QueryDesc *query)
{
	Attempt    *attempt = palloc0(sizeof(Attempt));
	bytea	   *identity;
	bool		known;

	/* by rules; each would be a statement of its own, which one cannot be repeated by */
	if (list_length(ActivePortal->stmts) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a statement of which rules make several can be done once only in a transaction block"),
				 errhint("Put it between BEGIN and COMMIT, or SET tessera.txn_number = 0.")));
	tessera_transaction_involved();
	attempt->query = query;
	attempt->number = tessera_transaction_number();
	attempt->session = *tessera_numbered_session();
	attempt->statement = tessera_statement_number_take();
	identity = tessera_statement_identity(query->plannedstmt, query->sourceText, query->params);
	known = take_session();
	attempt->first = !known;
	if (known && tessera_session_find_record(&attempt->session, attempt->number, attempt->statement, &attempt->record))
	{
		if (attempt->record.statement == TESSERA_WHOLE_TRANSACTION)
			raise_another("what was done", "It was a transaction block; this is a statement that commits by itself.");
		if (!is_same(identity, attempt->record.identity))
			raise_another(psprintf("statement %d", attempt->statement),
						  "A repeated statement has the same text, parameters, role and search_path.");
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
	attempt->listed = true;
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
	if (!tessera_injection_skips("session_record"))
		tessera_session_add_record(&attempt->session, attempt->number, attempt->statement, attempt->first, &attempt->record);
	tessera_injection("session_statement_recorded");
}

/* ---- executor hooks ---- */

static _Noreturn void
raise_inside(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("what writes inside of another statement can be done once only in a transaction block"),
			 errdetail("tessera.txn_number is set, and the statement around it is none that is recorded."),
			 errhint("Put it between BEGIN and COMMIT, or SET tessera.txn_number = 0.")));
}

static void
before_start(QueryDesc *query)
{
	if (IsTransactionBlock())
		record_whole(query->plannedstmt, query->sourceText, query->params);
	else if (!writes(query) || running.inside > 0)
		return;
	else if (is_outermost(query->sourceText) && !running.explains)
		begin_attempt(query);
	else if (DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, (Datum) 0)) == 0)
		raise_inside();
}

static void
executor_start(QueryDesc *query, int eflags)
{
	if (has_session() && is_outermost(query->sourceText))
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
run_next(TESSERA_RUN_PARAMETERS)
{
	if (previous_run)
		previous_run(TESSERA_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(TESSERA_RUN_ARGUMENTS);
}

static void
run_inside(TESSERA_RUN_PARAMETERS)
{
	running.inside++;
	PG_TRY();
	{
		run_next(TESSERA_RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		running.inside--;
	}
	PG_END_TRY();
}

static void
executor_run(TESSERA_RUN_PARAMETERS)
{
	Attempt    *attempt = dlist_is_empty(&running.attempts) ? NULL : attempt_of(query);
	DestReceiver *receiver = query->dest;

	if (attempt != NULL && attempt->done_before)
	{
		tessera_answer_give(attempt->record.answer, query);
		query->estate->es_processed = attempt->record.count;
		return;
	}
	if (attempt == NULL)
	{
		run_next(TESSERA_RUN_ARGUMENTS);
		return;
	}
	if (returns_rows(query))
	{
		/* it runs to its end at once: it writes */
		attempt->answer = tessera_answer_begin(query->tupDesc, receiver, (Size) tessera_max_recorded_answer * 1024);
		query->dest = tessera_answer_receiver(attempt->answer);
	}
	run_inside(TESSERA_RUN_ARGUMENTS);
	query->dest = receiver;
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
finish_next(QueryDesc *query)
{
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
}

static void
finish_inside(QueryDesc *query)
{
	running.inside++;
	PG_TRY();
	{
		finish_next(query);
	}
	PG_FINALLY();
	{
		running.inside--;
	}
	PG_END_TRY();
}

static void
executor_finish(QueryDesc *query)
{
	Attempt    *attempt = dlist_is_empty(&running.attempts) ? NULL : attempt_of(query);

	if (attempt != NULL && attempt->done_before)
	{
		finish_without_run(query);
		forget(attempt);
		return;
	}
	if (attempt == NULL)
	{
		finish_next(query);
		return;
	}
	finish_inside(query);
	record_attempt(attempt);
	forget(attempt);
}

/* ---- utility statements ---- */

typedef enum UtilityKind
{
	READS,						/* writes nothing, or carries a statement that the executor's hooks see */
	CODE,						/* runs what the executor's hooks see, and more */
	WRITES
} UtilityKind;

static UtilityKind
kind_of(Node *statement)
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
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_NotifyStmt:
		case T_LockStmt:
		case T_ConstraintsSetStmt:
		case T_CheckPointStmt:
		case T_LoadStmt:
			return READS;
		case T_ExplainStmt:
			{
				Node	   *query = ((ExplainStmt *) statement)->query;

				/* of CREATE TABLE AS: with ANALYZE it makes the table */
				return IsA(query, Query) && ((Query *) query)->commandType == CMD_UTILITY ? WRITES : READS;
			}
		case T_CopyStmt:
			return ((CopyStmt *) statement)->is_from ? WRITES : READS;
		case T_CallStmt:
		case T_DoStmt:
			return CODE;
		default:
			return WRITES;
	}
}

/* Before a utility statement, at whatever depth, that is not a part of another one. */
static void
before_utility(const PlannedStmt *statement, const char *text, ParamListInfo params)
{
	Node	   *node = statement->utilityStmt;
	UtilityKind kind = kind_of(node);
	const char *name = GetCommandTagName(CreateCommandTag(node));

	if (kind == READS || running.inside > 0)
		return;
	if (kind == WRITES && is_outermost(text))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be done under a transaction number", name),
				 errhint("SET tessera.txn_number = 0.")));
	if (IsTransactionBlock())
		record_whole(statement, text, params);
	else if (is_outermost(text))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s can be done once only in a transaction block", name),
				 errhint("Put it between BEGIN and COMMIT, or SET tessera.txn_number = 0.")));
	else
		raise_inside();
}

/* RESET ALL and DISCARD ALL pass over a setting that a rollback has set back, though what was said by it holds. */
static bool
clears(Node *statement)
{
	return (IsA(statement, VariableSetStmt) && ((VariableSetStmt *) statement)->kind == VAR_RESET_ALL) ||
		(IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL);
}

static void
utility(PlannedStmt *statement, const char *string, bool read_only, ProcessUtilityContext context, ParamListInfo params,
		QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	Node	   *node = statement->utilityStmt;
	bool		before = running.explains;
	volatile bool ends = clears(node);

	if (has_session() && context != PROCESS_UTILITY_SUBCOMMAND && is_outermost(string))
		tessera_session_use_note();
	if (context != PROCESS_UTILITY_SUBCOMMAND && tessera_transaction_number() > 0 && IsTransactionState() && is_numbered())
		before_utility(statement, string, params);
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
	if (ends)
		tessera_numbering_clear();
}

/* ---- end of transaction ---- */

void
tessera_retryable_committed(void)
{
	tessera_session_use_end();
	tessera_numbering_commit(at_hand.whole && has_taken());
	memset(&at_hand, 0, sizeof(at_hand));
}

void
tessera_retryable_aborted(void)
{
	tessera_session_use_end();
	tessera_numbering_abort();
	memset(&at_hand, 0, sizeof(at_hand));
}

/* What a subtransaction has taken and written goes with it, or is its parent's. */
void
tessera_retryable_subtransaction_committed(SubTransactionId mine, SubTransactionId parent)
{
	int			level = GetCurrentTransactionNestLevel();

	if (at_hand.number != 0 && at_hand.level >= level)
		at_hand.level = level - 1;
}

void
tessera_retryable_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	if (at_hand.number == 0 || at_hand.level < GetCurrentTransactionNestLevel())
		return;
	at_hand.number = 0;
	at_hand.whole = false;
	tessera_session_use_state(TESSERA_SESSION_IN_USE);
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
}
