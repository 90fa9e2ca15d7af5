/*
 * session_functions.c
 *	  SQL functions of logical sessions: start_session, end_session, transaction_outcome.
 *
 * Each acts for the current user on sessions of its own, but end_session, which ends anybody's for a member of tessera_admin.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/privilege.h"
#include "logical_session/session_tables.h"

PG_FUNCTION_INFO_V1(tessera_start_session);
PG_FUNCTION_INFO_V1(tessera_end_session);
PG_FUNCTION_INFO_V1(tessera_session_transaction_outcome);

/* tessera.start_session() */
Datum
tessera_start_session(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *session = DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, (Datum) 0));

	tessera_session_create(session);
	PG_RETURN_UUID_P(session);
}

/* tessera.end_session(session) */
Datum
tessera_end_session(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(tessera_session_delete(PG_GETARG_UUID_P(0), tessera_is_admin(GetUserId())));
}

/* tessera.transaction_outcome(session, number, OUT outcome, OUT at) */
Datum
tessera_session_transaction_outcome(PG_FUNCTION_ARGS)
{
	static const char *const words[] = {
		[TESSERA_OUTCOME_COMMITTED] = "committed",
		[TESSERA_OUTCOME_ABORTED] = "aborted",
		[TESSERA_OUTCOME_RUNNING] = "running",
		[TESSERA_OUTCOME_EXPIRED] = "expired",
	};
	const pg_uuid_t *session = PG_GETARG_UUID_P(0);
	int64		number = PG_GETARG_INT64(1);
	TimestampTz at = 0;
	TesseraOutcome outcome;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("return type must be a row type")));
	if (number < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transaction numbers begin with 1")));
	/* that a number is refused from now on must not be rolled back */
	PreventInTransactionBlock(true, "tessera.transaction_outcome()");
	outcome = tessera_session_outcome(session, number, &at);
	values[0] = CStringGetTextDatum(words[outcome]);
	values[1] = TimestampTzGetDatum(at);
	nulls[0] = false;
	nulls[1] = outcome != TESSERA_OUTCOME_COMMITTED;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
