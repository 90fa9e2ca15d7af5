/*
 * wire.c
 *	  Values between nodes; see wire.h.
 *
 * The server's send and receive functions convert characters between the database's encoding and the client's. Links between nodes speak the
 * database's, so the client's encoding is put aside while such a function runs, and put back before anything can be said to the client: errors are
 * reported when the stack has been unwound, and types that go in binary (catalog/portable_types.h) run no code of users. Output and input functions
 * convert nothing, but go by settings of the session, which are mirrored to the other node as the statement there may depend on them. So those that
 * a type's text depends on are fixed while such a function runs (fixed_settings.c), where what it writes or reads must not depend on them.
 *
 * Memory: results in the current context.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"

#include "common/fixed_settings.h"
#include "common/version_compat.h"
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

/* What a value's text is written or read under. */
typedef struct Fixing
{
	int			path;			/* of tessera_catalog_path_begin */
	int			nest;
	bool		names;
	bool		others;
} Fixing;

/*
 * For each value by itself, as between two of them the session's settings hold. Names are what it is needed for most often; they have a way of their
 * own, as changing a setting and back takes longer than writing a value.
 */
static void
fix(Fixing *fixing, int settings)
{
	fixing->names = (settings & TESSERA_FIXED_NAMES) && !tessera_settings_are_fixed(TESSERA_FIXED_NAMES);
	if (fixing->names)
		fixing->path = tessera_catalog_path_begin();
	settings &= ~TESSERA_FIXED_NAMES;
	fixing->others = !tessera_settings_are_fixed(settings);
	if (fixing->others)
		fixing->nest = tessera_fixed_settings_push(settings);
}

static void
unfix(const Fixing *fixing)
{
	if (fixing->others)
		AtEOXact_GUC(true, fixing->nest);
	if (fixing->names)
		tessera_catalog_path_end(fixing->path);
}

static Datum
receive_value(FmgrInfo *function, StringInfo buffer, Oid ioparam, int32 typmod)
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

Datum
tessera_wire_receive(FmgrInfo *function, StringInfo buffer, Oid ioparam, int32 typmod)
{
	Datum		result;
	Fixing		fixing;

	fix(&fixing, TESSERA_FIXED_READING);
	result = receive_value(function, buffer, ioparam, typmod);
	unfix(&fixing);
	return result;
}

Datum
tessera_wire_input(FmgrInfo *function, char *text, Oid ioparam, int32 typmod, int settings)
{
	Datum		result;
	Fixing		fixing;

	fix(&fixing, settings | TESSERA_FIXED_READING);
	result = InputFunctionCall(function, text, ioparam, typmod);
	unfix(&fixing);
	return result;
}

char *
tessera_wire_fixed_output(FmgrInfo *function, Datum value, int settings)
{
	char	   *result;
	Fixing		fixing;

	/* which writes a document's declaration anew, or not at all */
	if (function->fn_oid == F_XML_OUT)
		return TextDatumGetCString(value);
	fix(&fixing, settings);
	result = OutputFunctionCall(function, value);
	unfix(&fixing);
	return result;
}

/*
 * The other node reads a parameter under the session's settings. While array_nulls is off, no text says that an element of an array is NULL: it would
 * become the string. Arrays may lie within what these functions write.
 */
static void
require_nulls_read(const FmgrInfo *function, const char *text)
{
	switch (function->fn_oid)
	{
		case F_ARRAY_OUT:
		case F_RECORD_OUT:
		case F_RANGE_OUT:
		case F_MULTIRANGE_OUT:
			break;
		default:
			return;
	}
	if (strcasestr(text, "null") != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("an array with NULL cannot be sent to another node while array_nulls is off"),
				 errhint("SET array_nulls = on.")));
}

char *
tessera_wire_output(FmgrInfo *function, Datum value)
{
	char	   *result = tessera_wire_fixed_output(function, value, TESSERA_FIXED_STYLES);

	if (!Array_nulls)
		require_nulls_read(function, result);
	return result;
}
