/*
 * text.c
 *	  Text forms of values; see text.h.
 *
 * Memory: the caller's. No locks.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "common/fixed_settings.h"
#include "common/text.h"

char *
tessera_uuid_text(const pg_uuid_t *uuid)
{
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(uuid)));
}

char *
tessera_timestamp_text(TimestampTz time)
{
	struct pg_tm tm;
	fsec_t		fsec;
	char		text[MAXDATELEN + 1];

	if (timestamp2tm(time, NULL, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	EncodeDateTime(&tm, fsec, true, 0, NULL, USE_ISO_DATES, text);
	return pstrdup(text);
}

const char *
tessera_quote(const char *name)
{
	int			nest = tessera_fixed_settings_push(TESSERA_FIXED_QUOTES);
	const char *quoted = quote_identifier(name);

	AtEOXact_GUC(true, nest);
	return quoted;
}

char *
tessera_quote_qualified(const char *schema, const char *name)
{
	int			nest = tessera_fixed_settings_push(TESSERA_FIXED_QUOTES);
	char	   *quoted = quote_qualified_identifier(schema, name);

	AtEOXact_GUC(true, nest);
	return quoted;
}

char *
tessera_type_text(Oid type, int32 typmod, bits16 flags)
{
	int			nest = tessera_fixed_settings_push(TESSERA_FIXED_QUOTES);
	char	   *text = format_type_extended(type, typmod, flags);

	AtEOXact_GUC(true, nest);
	return text;
}

char *
tessera_qualified_name(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	return tessera_quote_qualified(get_namespace_name(get_rel_namespace(relid)), name);
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
