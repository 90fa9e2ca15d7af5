/*
 * answer.c
 *	  Answers of statements, kept and given again; see answer.h.
 *
 * The form, integers in network order: int32 number of columns, for each its name and its type's full name, each ended by a zero byte; then for each
 * row a byte 'R' and for each column an int32 length, -1 for NULL, and the text. A statement that returns no rows has an empty answer.
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
#include "parser/scansup.h"
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

/* Gives up keeping the answer if it is too large with so many bytes more. */
static void
keep_within(TesseraAnswer *answer, Size more)
{
	if (answer->data.len + more <= answer->limit || !answer->kept)
		return;
	answer->kept = false;
	pfree(answer->data.data);
}

static bool
receive_row(TupleTableSlot *slot, DestReceiver *self)
{
	TesseraAnswer *answer = (TesseraAnswer *) self;

	if (answer->kept)
	{
		MemoryContext before = MemoryContextSwitchTo(answer->row_context);

		slot_getallattrs(slot);
		pq_sendbyte(&answer->data, 'R');
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
			keep_within(answer, length + sizeof(int32));
			if (!answer->kept)
				break;
			pq_sendint32(&answer->data, (int32) length);
			appendBinaryStringInfo(&answer->data, text, (int) length);
		}
		keep_within(answer, 0);
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
	answer->limit = limit;
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
		if (attribute->atttypid == RECORDOID || element == RECORDOID)
			keep_within(answer, limit + 1);
		if (!answer->kept)
			break;
		answer->columns[i] = tessera_exact_text_of(attribute->atttypid, CurrentMemoryContext);
		pq_sendstring(&answer->data, NameStr(attribute->attname));
		pq_sendstring(&answer->data, type_name(attribute->atttypid));
		keep_within(answer, 0);
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

/* The slot's values from the text; ERROR TS006 if that is no value of its type any more (an object that was dropped, a label that was renamed). */
static void
read_row(StringInfo data, TesseraStoredType **types, TupleTableSlot *slot, MemoryContext context)
{
	MemoryContext before = MemoryContextSwitchTo(context);

	PG_TRY();
	{
		(void) pq_getmsgbyte(data);
		for (int i = 0; i < slot->tts_tupleDescriptor->natts; i++)
		{
			int32		length = (int32) pq_getmsgint(data, 4);

			slot->tts_isnull[i] = length < 0;
			slot->tts_values[i] = length < 0 ? (Datum) 0 : tessera_stored_input(types[i], pnstrdup(pq_getmsgbytes(data, length), length));
		}
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(before);
		error = CopyErrorData();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_ANSWER_LOST),
				 errmsg("the statement was done before, and its answer cannot be given any more"),
				 errdetail_internal("%s", error->message)));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(before);
}

void
tessera_answer_give(const bytea *kept, QueryDesc *query)
{
	StringInfoData data;
	TupleDesc	desc = query->tupDesc;
	TesseraStoredType **types;
	TupleTableSlot *slot;
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "tessera row of an answer", ALLOCSET_DEFAULT_SIZES);

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
		MemoryContextReset(row_context);
		ExecClearTuple(slot);
		read_row(&data, types, slot, row_context);
		ExecStoreVirtualTuple(slot);
		if (!query->dest->receiveSlot(slot, query->dest))
			break;
	}
	query->dest->rShutdown(query->dest);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(row_context);
}

/* ---- identity ---- */

/* A statement's own part of its message, without what stands around it. */
static const char *
own_text(const PlannedStmt *plan, const char *text, int *length)
{
	int			all = (int) strlen(text);
	int			location = Min(Max(plan->stmt_location, 0), all);

	*length = plan->stmt_len > 0 ? Min(plan->stmt_len, all - location) : all - location;
	text += location;
	while (*length > 0 && scanner_isspace(text[0]))
	{
		text++;
		(*length)--;
	}
	while (*length > 0 && (text[*length - 1] == ';' || scanner_isspace(text[*length - 1])))
		(*length)--;
	return text;
}

static void
add_text(StringInfo all, const char *text, int length)
{
	pq_sendint32(all, length);
	appendBinaryStringInfo(all, text, length);
}

bytea *
tessera_statement_identity(const PlannedStmt *plan, const char *text, ParamListInfo params)
{
	const char *user = GetUserNameFromId(GetOuterUserId(), false);
	int			length;
	pg_cryptohash_ctx *context;
	StringInfoData all;
	bytea	   *result = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	initStringInfo(&all);
	text = own_text(plan, text, &length);
	add_text(&all, text, length);
	for (int i = 0; params != NULL && i < params->numParams; i++)
	{
		ParamExternData *param = &params->params[i];
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
