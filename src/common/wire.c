/*
 * wire.c
 *	  Values between nodes; see wire.h.
 *
 * The server's send and receive functions convert characters between the database's encoding and the client's. Links between nodes speak the
 * database's, so the client's encoding is put aside while such a function runs, and put back before anything can be said to the client: errors are
 * reported when the stack has been unwound, and types that go in binary (catalog/portable_types.h) run no code of users. Output and input functions
 * convert nothing.
 *
 * Memory: results in the current context.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/float.h"
#include "utils/guc.h"

#include "common/wire.h"

bool
tessera_wire_same_encoding(void)
{
	return pg_get_client_encoding() == GetDatabaseEncoding();
}

/* It was the client's a moment ago, so its conversions are known. */
static void
put_back(int client_encoding)
{
	if (SetClientEncoding(client_encoding) < 0)
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not go back to the client's encoding %s", pg_encoding_to_char(client_encoding))));
}

bytea *
tessera_wire_send(FmgrInfo *function, Datum value)
{
	int			client_encoding = pg_get_client_encoding();
	bytea	   *result;

	if (tessera_wire_same_encoding())
		return SendFunctionCall(function, value);
	(void) SetClientEncoding(GetDatabaseEncoding());
	PG_TRY();
	{
		result = SendFunctionCall(function, value);
	}
	PG_FINALLY();
	{
		put_back(client_encoding);
	}
	PG_END_TRY();
	return result;
}

Datum
tessera_wire_receive(FmgrInfo *function, StringInfo buffer, Oid ioparam, int32 typmod)
{
	int			client_encoding = pg_get_client_encoding();
	Datum		result;

	if (tessera_wire_same_encoding())
		return ReceiveFunctionCall(function, buffer, ioparam, typmod);
	(void) SetClientEncoding(GetDatabaseEncoding());
	PG_TRY();
	{
		result = ReceiveFunctionCall(function, buffer, ioparam, typmod);
	}
	PG_FINALLY();
	{
		put_back(client_encoding);
	}
	PG_END_TRY();
	return result;
}

char *
tessera_wire_output(FmgrInfo *function, Datum value)
{
	int			nest;
	char	   *result;

	if (DateStyle == USE_ISO_DATES && IntervalStyle == INTSTYLE_POSTGRES && extra_float_digits > 0)
		return OutputFunctionCall(function, value);
	nest = NewGUCNestLevel();	/* an error ends it with the transaction or subtransaction */
	(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("intervalstyle", "postgres", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("extra_float_digits", "3", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	result = OutputFunctionCall(function, value);
	AtEOXact_GUC(true, nest);
	return result;
}
