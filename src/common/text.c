/*
 * text.c
 *	  Text forms of values; see text.h.
 *
 * Memory: the caller's. No locks, no catalog.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "common/text.h"

char *
tessera_uuid_text(const pg_uuid_t *uuid)
{
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(uuid)));
}

void
tessera_append_array_element(StringInfo array, const char *value)
{
	appendStringInfoString(array, array->len > 1 ? ",\"" : "\"");
	for (; *value; value++)
	{
		if (*value == '"' || *value == '\\')
			appendStringInfoChar(array, '\\');
		appendStringInfoChar(array, *value);
	}
	appendStringInfoChar(array, '"');
}
