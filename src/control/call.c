/*
 * call.c
 *	  How a call between nodes is run: in which transaction, with which deadline, what becomes of its error; see call.h. Lanes bring it to its node.
 *
 * Memory: answers are the caller's. Texts of calls for this node's own protocol are made once and kept until the process ends.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/shortest_dec.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"

#define BACKGROUND_DEADLINE_MS 30000

TesseraCallRunner tessera_call_lanes[TESSERA_LANES];
void		(*tessera_call_observer) (int32 node_id, bool begins) = NULL;
void		(*tessera_call_admit) (FunctionCallInfo fcinfo, bool said) = NULL;

static char *own_texts[TESSERA_CALLS];	/* for TESSERA_PROTOCOL */


/* ---- targets ---- */

TesseraCallTarget
tessera_to_config(void)
{
	return tessera_to_node(0);
}

TesseraCallTarget
tessera_to_node(int32 node_id)
{
	return (TesseraCallTarget) {.node_id = node_id,.timeout_ms = TESSERA_USUAL_DEADLINE,.lane = TESSERA_LANES};
}

TesseraCallTarget
tessera_within(TesseraCallTarget target, int timeout_ms)
{
	target.timeout_ms = timeout_ms;
	return target;
}

TesseraCallTarget
tessera_ask(TesseraCallTarget target, TesseraCallTolerance tolerance)
{
	target.tolerance = tolerance;
	return target;
}

TesseraCallTarget
tessera_writing(TesseraCallTarget target)
{
	target.write = true;
	return target;
}

TesseraCallTarget
tessera_as_user(TesseraCallTarget target)
{
	target.as_user = true;
	return target;
}

TesseraCallTarget
tessera_on_lane(TesseraCallTarget target, TesseraCallLane lane)
{
	target.lane = lane;
	return target;
}

TesseraCallTarget
tessera_over(TesseraConnection *connection)
{
	TesseraCallTarget target = tessera_to_node(tessera_connection_node(connection));

	target.connection = connection;
	return target;
}

TesseraCallTarget
tessera_holding(TesseraCallTarget target, int hold_ms)
{
	target.lane = TESSERA_LANE_HELD;
	target.hold_ms = hold_ms;
	return target;
}

TesseraCallTarget
tessera_keep_error(TesseraCallTarget target, ErrorData **error)
{
	*error = NULL;
	target.error = error;
	return target;
}

TesseraCallTarget
tessera_say_protocol(TesseraCallTarget target, int *protocol)
{
	*protocol = 0;
	target.protocol = protocol;
	return target;
}

/* ---- the text of a call ---- */

int
tessera_connection_protocol(TesseraConnection *connection)
{
	int			protocol = tessera_connection_state(connection)->protocol;

	return protocol != 0 ? protocol : TESSERA_OLDEST_PROTOCOL;
}

static int
known_fields(const TesseraCallField *fields, int n, int protocol)
{
	int			known = 0;

	for (int i = 0; i < n; i++)
		known += fields[i].since <= protocol;
	return known;
}

static void
append_call(StringInfo text, const TesseraCallSpec *spec, int nparams)
{
	appendStringInfo(text, "tessera_internal.%s(", spec->name);
	for (int i = 0; i < nparams; i++)
		appendStringInfo(text, "%s$%d::%s", i > 0 ? ", " : "", i + 1, spec->args[i].type);
	appendStringInfoChar(text, ')');
}

/* A function of one value is called as the only column, one of several columns stands in FROM. */
static char *
make_text(const TesseraCallSpec *spec, int protocol, int nparams)
{
	int			nresults = known_fields(spec->results, spec->nresults, protocol);
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, "SELECT ");
	if (spec->many || spec->nresults > 1)
	{
		for (int i = 0; i < nresults; i++)
			appendStringInfo(&text, "%sc.%s", i > 0 ? ", " : "", spec->results[i].name);
		appendStringInfoString(&text, " FROM ");
		append_call(&text, spec, nparams);
		appendStringInfoString(&text, " AS c");
	}
	else
		append_call(&text, spec, nparams);
	return text.data;
}

const char *
tessera_call_text(const TesseraCallSpec *spec, int protocol, int *nparams)
{
	int			n = known_fields(spec->args, spec->nargs, protocol);
	char	  **own = &own_texts[spec - tessera_call_specs];

	if (spec->since > protocol)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the other node has an older version of the extension, which cannot do this"),
				 errdetail("Call %s came with protocol %d, the nodes speak %d.", spec->name, spec->since, protocol),
				 errhint("Install the newest version everywhere, and run ALTER EXTENSION tessera UPDATE on each node.")));
	if (nparams != NULL)
		*nparams = n;
	if (protocol != TESSERA_PROTOCOL)
		return make_text(spec, protocol, n);
	if (*own == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		*own = make_text(spec, protocol, n);
		MemoryContextSwitchTo(old);
	}
	return *own;
}

void
tessera_call_queue(const TesseraCallSpec *spec, TesseraConnection *connection, const char *const *values)
{
	int			nparams;
	const char *text = tessera_call_text(spec, tessera_connection_protocol(connection), &nparams);

	tessera_connection_queue_control(connection, text, nparams, values);
}

char *
tessera_sql_with_literals(const char *sql, int nparams, const char *const *values)
{
	StringInfoData text;

	initStringInfo(&text);
	for (const char *c = sql; *c;)
	{
		char	   *end;
		long		number;

		if (*c != '$' || c[1] < '0' || c[1] > '9')
		{
			appendStringInfoChar(&text, *c++);
			continue;
		}
		number = strtol(c + 1, &end, 10);
		if (number < 1 || number > nparams)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_PARAMETER),
					 errmsg_internal("there is no parameter $%ld", number)));
		appendStringInfoString(&text, values[number - 1] ? quote_literal_cstr(values[number - 1]) : "NULL");
		c = end;
	}
	return text.data;
}

char *
tessera_call_literal_for(const TesseraCallSpec *spec, int protocol, const char *const *values)
{
	int			nparams;
	const char *text = tessera_call_text(spec, protocol, &nparams);

	return tessera_sql_with_literals(text, nparams, values);
}

char *
tessera_call_literal(const TesseraCallSpec *spec, const char *const *values)
{
	return tessera_call_literal_for(spec, TESSERA_OLDEST_PROTOCOL, values);
}

/* ---- calls ---- */

/* S45. Who has locked a row has a transaction id; who holds an LWLock holds interrupts off. Callers' own transactions may have anything. */
static void
check_unlocked(void)
{
	if (!tessera_under_test() || !tessera_is_background_worker())
		return;
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) || InterruptHoldoffCount > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("a background process calls another node while it may hold locks")));
}

static int
deadline_of(const TesseraCallSpec *spec, const TesseraCallTarget *target)
{
	int			timeout_ms = target->timeout_ms == TESSERA_USUAL_DEADLINE ? spec->deadline_ms : target->timeout_ms;

	if (timeout_ms != TESSERA_USUAL_DEADLINE)
		return timeout_ms;
	return tessera_is_background_worker() ? BACKGROUND_DEADLINE_MS : 0;
}

static TesseraCallLane
lane_of(const TesseraCallSpec *spec, const TesseraCallTarget *target)
{
	return target->lane == TESSERA_LANES ? spec->lane : (TesseraCallLane) target->lane;
}

/* It is not part of this process's transaction, and its answer is waited for. */
static bool
is_beside(const TesseraCallSpec *spec, const TesseraCallTarget *target)
{
	TesseraCallLane lane = lane_of(spec, target);

	return target->connection == NULL && (lane == TESSERA_LANE_CONTROL || lane == TESSERA_LANE_HELD);
}

/* On the connection of the caller, which it has prepared. */
static void
run_over(const TesseraCallSpec *spec, TesseraConnection *connection, const char *const *values, MemoryContext caller, TesseraCallAnswer *answer)
{
	int			nparams;
	const char *text = tessera_call_text(spec, tessera_connection_protocol(connection), &nparams);
	PGresult   *result = tessera_connection_run(connection, text, nparams, values);
	MemoryContext old = MemoryContextSwitchTo(caller);

	tessera_answer_of_result(result, answer);
	MemoryContextSwitchTo(old);
}

static void
run_on_lane(const TesseraCallSpec *spec, const TesseraCallTarget *target, const char *const *values, MemoryContext caller, TesseraCallAnswer *answer)
{
	if (target->connection != NULL)
		run_over(spec, target->connection, values, caller, answer);
	else
		tessera_call_lanes[lane_of(spec, target)] (spec, target, deadline_of(spec, target), values, caller, answer);
}

static void
run_observed(const TesseraCallSpec *spec, const TesseraCallTarget *target, const char *const *values, MemoryContext caller, TesseraCallAnswer *answer)
{
	volatile bool observed = tessera_call_observer != NULL && is_beside(spec, target);

	if (observed)
		tessera_call_observer(target->node_id, true);
	PG_TRY();
	{
		run_on_lane(spec, target, values, caller, answer);
	}
	PG_FINALLY();
	{
		if (observed)
			tessera_call_observer(target->node_id, false);
	}
	PG_END_TRY();
}

static void
call_or_raise(const TesseraCallSpec *spec, const TesseraCallTarget *target, const char *const *values, TesseraCallAnswer *answer)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		own = !IsTransactionState();

	if (own)
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		tessera_commit_durably();
		PushActiveSnapshot(GetTransactionSnapshot());
	}
	run_observed(spec, target, values, caller, answer);
	if (own)
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		pgstat_report_stat(false);
	}
	MemoryContextSwitchTo(caller);
}

static bool
is_tolerated(const ErrorData *error, TesseraCallTolerance tolerance)
{
	if (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		return false;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && tolerance != TESSERA_TOLERATE_ALL)
		return false;
	return tolerance == TESSERA_TOLERATE_ALL || tolerance == TESSERA_TOLERATE_ERRORS || tessera_error_is_unreachable(error->sqlerrcode);
}

/* In a subtransaction, or the short transaction of the call itself. */
static bool
call_tolerantly(const TesseraCallSpec *spec, const TesseraCallTarget *target, const char *const *values, TesseraCallAnswer *answer)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	bool		inside = IsTransactionState();
	volatile bool done = false;

	if (inside)
		BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		call_or_raise(spec, target, values, answer);
		if (inside)
			ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		if (!inside && !is_tolerated(error, target->tolerance))
			PG_RE_THROW();
		FlushErrorState();
		if (inside)
			RollbackAndReleaseCurrentSubTransaction();
		else
			AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		if (!is_tolerated(error, target->tolerance))
			ReThrowError(error);
		ereport(DEBUG1,
				(errmsg_internal("call %s of node %d failed: %s", spec->name, target->node_id, error->message)));
		if (target->error != NULL)
			*target->error = error;
		else
			FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return done;
}

bool
tessera_call(const TesseraCallSpec *spec, TesseraCallTarget target, const char *const *values, TesseraCallAnswer *answer)
{
	Assert(!spec->to_config || target.node_id == 0 || spec->lane == TESSERA_LANE_TRANSACTION);
	memset(answer, 0, sizeof(TesseraCallAnswer));
	if (is_beside(spec, &target))
		check_unlocked();		/* before errors are tolerated */
	if (target.tolerance != TESSERA_RAISE)
		return call_tolerantly(spec, &target, values, answer);
	call_or_raise(spec, &target, values, answer);
	return true;
}

/* ---- the answering side ---- */

void
tessera_call_require_argument(FunctionCallInfo fcinfo, int number, const char *name)
{
	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

Datum
tessera_call_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* ---- answers and values ---- */

char *
tessera_answer_value(const TesseraCallAnswer *answer, int row, int column)
{
	return row < answer->nrows && column < answer->ncolumns ? answer->values[row * answer->ncolumns + column] : NULL;
}

void
tessera_answer_of_result(const PGresult *result, TesseraCallAnswer *answer)
{
	answer->nrows = PQntuples(result);
	answer->ncolumns = PQnfields(result);
	answer->values = palloc(sizeof(char *) * Max(answer->nrows * answer->ncolumns, 1));
	for (int row = 0; row < answer->nrows; row++)
		for (int column = 0; column < answer->ncolumns; column++)
			answer->values[row * answer->ncolumns + column] = PQgetisnull(result, row, column) ? NULL : pstrdup(PQgetvalue(result, row, column));
}

char *
tessera_call_from_uuid(const pg_uuid_t *value)
{
	return value != NULL ? tessera_uuid_text(value) : NULL;
}

char *
tessera_call_from_int4(int32 value)
{
	return psprintf("%d", value);
}

char *
tessera_call_from_int8(int64 value)
{
	return psprintf(INT64_FORMAT, value);
}

char *
tessera_call_from_float8(double value)
{
	char		text[DOUBLE_SHORTEST_DECIMAL_LEN];

	double_to_shortest_decimal_buf(value, text);
	return pstrdup(text);
}

char *
tessera_call_from_bool(bool value)
{
	return pstrdup(value ? "true" : "false");
}

char *
tessera_call_from_lsn(XLogRecPtr value)
{
	return psprintf("%X/%X", LSN_FORMAT_ARGS(value));
}

pg_uuid_t *
tessera_call_to_uuid(const char *text)
{
	return text != NULL ? DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(text))) : NULL;
}

int32
tessera_call_to_int4(const char *text)
{
	return text != NULL ? pg_strtoint32(text) : 0;
}

int64
tessera_call_to_int8(const char *text)
{
	return text != NULL ? pg_strtoint64(text) : 0;
}

double
tessera_call_to_float8(const char *text)
{
	return text != NULL ? DatumGetFloat8(DirectFunctionCall1(float8in, CStringGetDatum(text))) : 0;
}

bool
tessera_call_to_bool(const char *text)
{
	return text != NULL && text[0] == 't';
}

XLogRecPtr
tessera_call_to_lsn(const char *text)
{
	return text != NULL ? DatumGetLSN(DirectFunctionCall1(pg_lsn_in, CStringGetDatum(text))) : InvalidXLogRecPtr;
}
