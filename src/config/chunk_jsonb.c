/*
 * chunk_jsonb.c
 *	  What is kept of chunks as jsonb: for the changelog, and a chunk's former owners (tessera.chunk.history). Made of values, without text that
 *	  would have to be parsed.
 *
 * Results are palloc'd.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "config/chunks_private.h"


static void
push_field(JsonbParseState **state, const char *key, JsonbValue value)
{
	JsonbValue	name = {.type = jbvString,.val.string = {.len = strlen(key),.val = unconstify(char *, key)}};

	(void) pushJsonbValue(state, WJB_KEY, &name);
	(void) pushJsonbValue(state, WJB_VALUE, &value);
}

static void
push_text(JsonbParseState **state, const char *key, char *text)
{
	push_field(state, key, (JsonbValue) {.type = jbvString,.val.string = {.len = strlen(text),.val = text}});
}

static void
push_number(JsonbParseState **state, const char *key, int64 number)
{
	push_field(state, key, (JsonbValue) {.type = jbvNumeric,.val.numeric = int64_to_numeric(number)});
}

Datum
tessera_chunks_jsonb(int n, const TesseraChunkRow *chunks)
{
	JsonbParseState *state = NULL;

	(void) pushJsonbValue(&state, WJB_BEGIN_ARRAY, NULL);
	for (int i = 0; i < n; i++)
	{
		(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
		push_text(&state, "min", tessera_bound_to_cstring(chunks[i].min));
		push_text(&state, "max", tessera_bound_to_cstring(chunks[i].max));
		push_number(&state, "node_id", chunks[i].node_id);
		push_number(&state, "major", chunks[i].major);
		push_number(&state, "minor", chunks[i].minor);
		(void) pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	}
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_ARRAY, NULL)));
}


/* Former owners */

/* An entry of a chunk's history: until when the node owned it. */
static TimestampTz
owned_until(const JsonbValue *owner)
{
	JsonbValue	until;
	char	   *text;

	if (owner->type != jbvBinary || getKeyJsonValueFromContainer(owner->val.binary.data, "until", strlen("until"), &until) == NULL ||
		until.type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a former owner in tessera.chunk lacks its time")));
	text = pnstrdup(until.val.string.val, until.val.string.len);
	return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(text), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

Datum
tessera_chunk_history(Datum history, int32 owner, TimestampTz now)
{
	TimestampTz since = now - TESSERA_HISTORY_SECONDS * USECS_PER_SEC;
	JsonbParseState *state = NULL;
	JsonbIterator *former = JsonbIteratorInit(&DatumGetJsonbP(history)->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	char		until[MAXDATELEN + 1];

	JsonEncodeDateTime(until, TimestampTzGetDatum(now), TIMESTAMPTZOID, NULL);
	(void) pushJsonbValue(&state, WJB_BEGIN_ARRAY, NULL);
	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_number(&state, "node_id", owner);
	push_text(&state, "until", until);
	(void) pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	while ((token = JsonbIteratorNext(&former, &value, true)) != WJB_DONE)
		if (token == WJB_ELEM && owned_until(&value) > since)
			(void) pushJsonbValue(&state, WJB_ELEM, &value);
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_ARRAY, NULL)));
}
