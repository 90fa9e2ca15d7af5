/*
 * answer.c
 *	  Answers of statements, kept and given again; see answer.h.
 *
 * The form, integers in network order: int32 number of columns, for each its name and its type's full name, each ended by a zero byte; then for each
 * row and column an int32 length, -1 for NULL, and the text. A statement that returns no rows has an empty answer.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "catalog/portable_types.h"
#include "common/errors.h"
#include "common/text.h"
#include "logical_session/answer.h"
#include "rows/exact_text.h"
#include "rows/stored_value.h"

struct TesseraAnswer
{
	DestReceiver pub;			/* first: the server knows it by this */
	DestReceiver *next;
	TupleDesc	desc;
	TesseraExactText **columns;
	MemoryContext row_context;	/* texts of one row */
	Size		limit;
	bool		kept;			/* so far */
	StringInfoData data;
};

static char *
type_name(Oid type)
{
	return tessera_type_text(type, -1, FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY);
}

/* ---- keeping ---- */

static bool
receive_row(TupleTableSlot *slot, DestReceiver *self)
{
	TesseraAnswer *answer = (TesseraAnswer *) self;

	if (answer->kept)
	{
		MemoryContext before = MemoryContextSwitchTo(answer->row_context);

		slot_getallattrs(slot);
		for (int i = 0; i < answer->desc->natts && answer->kept; i++)
		{
			char	   *text;
			Size		length;

			if (slot->tts_isnull[i])
			{
				pq_sendint32(&answer->data, -1);
				continue;
			}
			text = tessera_exact_text(answer->columns[i], slot->tts_values[i]);
			length = strlen(text);
			answer->kept = answer->data.len + length + sizeof(int32) <= answer->limit;
			if (!answer->kept)
				break;
			pq_sendint32(&answer->data, (int32) length);
			appendBinaryStringInfo(&answer->data, text, (int) length);
		}
		MemoryContextSwitchTo(before);
		MemoryContextReset(answer->row_context);
	}
	return answer->next->receiveSlot(slot, answer->next);
}

static void
start_up(DestReceiver *self, int operation, TupleDesc desc)
{
	TesseraAnswer *answer = (TesseraAnswer *) self;

	answer->next->rStartup(answer->next, operation, desc);
}

static void
shut_down(DestReceiver *self)
{
	TesseraAnswer *answer = (TesseraAnswer *) self;

	answer->next->rShutdown(answer->next);
}

/* The receiver it hands on to is somebody else's. */
static void
destroy(DestReceiver *self)
{
}

TesseraAnswer *
tessera_answer_begin(TupleDesc desc, DestReceiver *next, Size limit)
{
	TesseraAnswer *answer = palloc0(sizeof(TesseraAnswer));

	answer->pub.receiveSlot = receive_row;
	answer->pub.rStartup = start_up;
	answer->pub.rShutdown = shut_down;
	answer->pub.rDestroy = destroy;
	answer->pub.mydest = next->mydest;
	answer->next = next;
	answer->desc = desc;
	answer->limit = Min(limit, MaxAllocSize / 2);
	answer->kept = true;
	answer->row_context = AllocSetContextCreate(CurrentMemoryContext, "tessera row of an answer", ALLOCSET_DEFAULT_SIZES);
	initStringInfo(&answer->data);
	answer->columns = palloc(sizeof(TesseraExactText *) * desc->natts);
	pq_sendint32(&answer->data, desc->natts);
	for (int i = 0; i < desc->natts && answer->kept; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);
		Oid			element = get_base_element_type(attribute->atttypid);

		/* a row without a type of its own cannot be read again */
		answer->kept = attribute->atttypid != RECORDOID && element != RECORDOID;
		answer->columns[i] = tessera_exact_text_of(attribute->atttypid, CurrentMemoryContext);
		pq_sendstring(&answer->data, NameStr(attribute->attname));
		pq_sendstring(&answer->data, type_name(attribute->atttypid));
	}
	return answer;
}

DestReceiver *
tessera_answer_receiver(TesseraAnswer *answer)
{
	return &answer->pub;
}

bytea *
tessera_answer_take(TesseraAnswer *answer)
{
	bytea	   *result;

	if (!answer->kept)
		return NULL;
	result = palloc(VARHDRSZ + answer->data.len);
	SET_VARSIZE(result, VARHDRSZ + answer->data.len);
	memcpy(VARDATA(result), answer->data.data, answer->data.len);
	return result;
}

/* ---- giving ---- */

/* True if the columns are those of which the answer speaks; the bytes are read up to the first row. */
static bool
same_columns(StringInfo data, TupleDesc desc)
{
	if (pq_getmsgint(data, 4) != desc->natts)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (strcmp(pq_getmsgrawstring(data), NameStr(attribute->attname)) != 0 ||
			strcmp(pq_getmsgrawstring(data), type_name(attribute->atttypid)) != 0)
			return false;
	}
	return true;
}

void
tessera_answer_give(const bytea *kept, QueryDesc *query)
{
	StringInfoData data;
	TupleDesc	desc = query->tupDesc;
	TesseraStoredType **types;
	TupleTableSlot *slot;

	data.data = VARDATA_ANY(kept);
	data.len = data.maxlen = VARSIZE_ANY_EXHDR(kept);
	data.cursor = 0;
	if (data.len == 0)
		return;
	if (desc == NULL || !same_columns(&data, desc))
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_ANSWER_LOST),
				 errmsg("the statement was done before, and its answer does not fit any more"),
				 errdetail("Its columns have other names or types now.")));
	types = palloc(sizeof(TesseraStoredType *) * desc->natts);
	for (int i = 0; i < desc->natts; i++)
		types[i] = tessera_stored_type(TupleDescAttr(desc, i)->atttypid, TupleDescAttr(desc, i)->atttypmod);
	slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	query->dest->rStartup(query->dest, query->operation, desc);
	while (data.cursor < data.len)
	{
		CHECK_FOR_INTERRUPTS();
		ExecClearTuple(slot);
		for (int i = 0; i < desc->natts; i++)
		{
			int32		length = (int32) pq_getmsgint(&data, 4);

			slot->tts_isnull[i] = length < 0;
			slot->tts_values[i] = length < 0 ? (Datum) 0 :
				tessera_stored_input(types[i], pnstrdup(pq_getmsgbytes(&data, length), length));
		}
		ExecStoreVirtualTuple(slot);
		if (!query->dest->receiveSlot(slot, query->dest))
			break;
	}
	query->dest->rShutdown(query->dest);
	ExecDropSingleTupleTableSlot(slot);
}

/* ---- identity ---- */

static void
add_text(StringInfo all, const char *text, int length)
{
	pq_sendint32(all, length);
	appendBinaryStringInfo(all, text, length);
}

bytea *
tessera_statement_identity(const QueryDesc *query)
{
	const PlannedStmt *plan = query->plannedstmt;
	const char *text = query->sourceText;
	const char *user = GetUserNameFromId(GetUserId(), false);
	int			location = Max(plan->stmt_location, 0);
	int			length = (int) strlen(text);
	pg_cryptohash_ctx *context;
	StringInfoData all;
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	initStringInfo(&all);
	location = Min(location, length);
	add_text(&all, text + location, plan->stmt_len > 0 ? Min(plan->stmt_len, length - location) : length - location);
	for (int i = 0; query->params != NULL && i < query->params->numParams; i++)
	{
		ParamExternData *param = &query->params->params[i];
		char	   *value;

		if (!OidIsValid(param->ptype))
			continue;
		value = type_name(param->ptype);
		add_text(&all, value, (int) strlen(value));
		value = param->isnull ? NULL : tessera_exact_text(tessera_exact_text_of(param->ptype, CurrentMemoryContext), param->value);
		if (value == NULL)
			pq_sendint32(&all, -1);
		else
			add_text(&all, value, (int) strlen(value));
	}
	add_text(&all, user, (int) strlen(user));
	add_text(&all, namespace_search_path, (int) strlen(namespace_search_path));

	SET_VARSIZE(result, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	context = pg_cryptohash_create(PG_SHA256);
	if (context == NULL || pg_cryptohash_init(context) < 0 || pg_cryptohash_update(context, (const uint8 *) all.data, all.len) < 0 ||
		pg_cryptohash_final(context, (uint8 *) VARDATA(result), PG_SHA256_DIGEST_LENGTH) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("could not compute hash: %s", context != NULL ? pg_cryptohash_error(context) : "out of memory")));
	pg_cryptohash_free(context);
	pfree(all.data);
	return result;
}
