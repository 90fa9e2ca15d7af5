/*
 * secrets.c
 *	  Errors of functions that take a conninfo say nothing of its passwords; see secrets.h.
 *
 * An error's own texts, its context (an SQL function or DO block quotes its statement there) and libpq's words are searched for the values of the
 * secret options and for what looks like one; the log does not get the statement. Nothing is kept.
 */
#include "postgres.h"

#include <ctype.h>

#include "libpq-fe.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "common/secrets.h"

#define MASK "********"

static const char *const secret_options[] = {"password", "sslpassword"};

/* A copy of the text with every occurrence of the secret masked; the text itself if there is none. */
static char *
mask_value(char *text, const char *secret)
{
	StringInfoData out;
	char	   *found;

	if (secret[0] == '\0' || strstr(text, secret) == NULL)
		return text;
	initStringInfo(&out);
	while ((found = strstr(text, secret)) != NULL)
	{
		appendBinaryStringInfo(&out, text, found - text);
		appendStringInfoString(&out, MASK);
		text = found + strlen(secret);
	}
	appendStringInfoString(&out, text);
	return out.data;
}

/* Behind a value that begins here: quoted ones end with their quote, others with a blank or a quote. */
static const char *
end_of_value(const char *p)
{
	bool		quoted = *p == '\'' || *p == '"';

	if (quoted)
		p++;
	for (; *p != '\0'; p++)
	{
		if (*p == '\\' && p[1] != '\0')
			p++;
		else if (quoted ? *p == '\'' || *p == '"' : isspace((unsigned char) *p) || strchr("'\"&", *p) != NULL)
			break;
	}
	return p;
}

/* Masks what follows "password =" in any spelling, and the password of a URI. */
static char *
mask_pattern(char *text)
{
	StringInfoData out;
	const char *p = text;

	initStringInfo(&out);
	while (*p != '\0')
	{
		if (pg_strncasecmp(p, "password", 8) == 0)
		{
			const char *value = p + 8;

			while (isspace((unsigned char) *value))
				value++;
			if (*value == '=')
			{
				value++;
				while (isspace((unsigned char) *value))
					value++;
				appendStringInfoString(&out, "password=" MASK);
				p = end_of_value(value);
				continue;
			}
		}
		if (strncmp(p, "://", 3) == 0)
		{
			size_t		authority = strcspn(p + 3, "/ \t\n\"'");
			const char *at = memchr(p + 3, '@', authority);
			const char *colon = at == NULL ? NULL : memchr(p + 3, ':', at - (p + 3));

			if (colon != NULL)
			{
				appendBinaryStringInfo(&out, p, colon + 1 - p);
				appendStringInfoString(&out, MASK);
				p = at;
				continue;
			}
		}
		appendStringInfoChar(&out, *p++);
	}
	return out.data;
}

static void
mask_text(char **text, PQconninfoOption *options)
{
	if (*text == NULL)
		return;
	*text = mask_pattern(*text);
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
		for (int i = 0; i < lengthof(secret_options); i++)
			if (option->val != NULL && strcmp(option->keyword, secret_options[i]) == 0)
				*text = mask_value(*text, option->val);
}

static bool
has_secret(const char *conninfo, PQconninfoOption *options)
{
	if (options == NULL)
		return true;			/* not valid: not known */
	for (PQconninfoOption *option = options; option->keyword != NULL; option++)
		for (int i = 0; i < lengthof(secret_options); i++)
			if (option->val != NULL && option->val[0] != '\0' && strcmp(option->keyword, secret_options[i]) == 0)
				return true;
	return false;
}

Datum
tessera_without_secrets(FunctionCallInfo fcinfo, int argument, PGFunction function)
{
	MemoryContext caller = CurrentMemoryContext;
	Datum		result = (Datum) 0;

	PG_TRY();
	{
		result = function(fcinfo);
	}
	PG_CATCH();
	{
		char	   *conninfo;
		PQconninfoOption *options;
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		if (PG_ARGISNULL(argument))
			PG_RE_THROW();
		conninfo = text_to_cstring(PG_GETARG_TEXT_PP(argument));
		options = PQconninfoParse(conninfo, NULL);
		if (!has_secret(conninfo, options))
		{
			PQconninfoFree(options);
			PG_RE_THROW();
		}
		error = CopyErrorData();
		FlushErrorState();
		mask_text(&error->message, options);
		mask_text(&error->detail, options);
		mask_text(&error->detail_log, options);
		mask_text(&error->hint, options);
		mask_text(&error->context, options);
		mask_text(&error->internalquery, options);
		error->hide_stmt = true;
		PQconninfoFree(options);
		ReThrowError(error);
	}
	PG_END_TRY();
	return result;
}
