/*
 * remote_query.c
 *	  Parameters and rows on the wire; see remote_query.h.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "nodes/value.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "catalog/portable_types.h"
#include "common/fixed_settings.h"
#include "common/protocol.h"
#include "common/wire.h"
#include "executor/remote_query.h"
#include "rows/exact_text.h"
#include "session/check_as.h"

/* Read and written here: no function is looked up for them. */
static bool
goes_without_function(Oid type)
{
	return type == INT4OID || type == INT8OID;
}

static void
prepare_params(TesseraRemoteQuery *query)
{
	int			n = query->nparams;

	query->wire_types = palloc0(sizeof(Oid) * Max(n, 1));
	query->formats = palloc0(sizeof(int) * Max(n, 1));
	query->out = palloc0(sizeof(FmgrInfo) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		Oid			function;
		bool		varlena;

		if (tessera_binary_is_exact(query->types[i]))
		{
			query->formats[i] = 1;
			query->wire_types[i] = query->types[i];
			if (goes_without_function(query->types[i]))
				continue;
			getTypeBinaryOutputInfo(query->types[i], &function, &varlena);
		}
		else
		{
			getTypeOutputInfo(query->types[i], &function, &varlena);
			/*
			 * The other end has found out the parameter's type by itself, when the statement was prepared, and stays with it. A type that was dropped
			 * and made anew has the same name, in the same text; here, as there, it is known by another OID.
			 */
			query->shape = hash_combine(query->shape, query->types[i]);
		}
		fmgr_info(function, &query->out[i]);
	}
}

static void
prepare_result(TesseraRemoteQuery *query)
{
	int			natts = query->natts;

	query->in = palloc0(sizeof(FmgrInfo) * Max(natts, 1));
	query->ioparams = palloc0(sizeof(Oid) * Max(natts, 1));
	query->typmods = palloc0(sizeof(int32) * Max(natts, 1));
	query->stored = palloc0(sizeof(TesseraStoredType *) * Max(natts, 1));
	query->plain = palloc0(sizeof(TesseraStoredType *) * Max(natts, 1));
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att;
		Oid			function;

		if (query->attnums[i] <= 0)
			continue;			/* ctid: handled by the caller of tessera_wire_row */
		att = TupleDescAttr(query->desc, query->attnums[i] - 1);
		query->typmods[i] = att->atttypmod;
		query->shape = hash_combine(hash_combine(query->shape, att->atttypid), hash_combine((uint32) att->atttypmod, att->attcollation));
		if (goes_without_function(att->atttypid))
			continue;
		if (!tessera_binary_is_exact(att->atttypid))
		{
			/* the input function of pg_node_tree takes nothing; what it is made of is a text's */
			query->stored[i] = tessera_stored_type(att->atttypid == PG_NODE_TREEOID ? TEXTOID : att->atttypid, att->atttypmod);
			query->has_text = true;
			continue;
		}
		getTypeBinaryInputInfo(att->atttypid, &function, &query->ioparams[i]);
		fmgr_info(function, &query->in[i]);
	}
}

TesseraRemoteQuery *
tessera_remote_query_make(const List *texts, int nparams, const Oid *types, TupleDesc desc, int natts, const AttrNumber *attnums)
{
	TesseraRemoteQuery *query = palloc0(sizeof(TesseraRemoteQuery));

	query->local = query->text = strVal(linitial(texts));
	query->sql = query->exact = strVal(llast(texts));
	query->nparams = nparams;
	query->types = palloc(sizeof(Oid) * Max(nparams, 1));
	memcpy(query->types, types, sizeof(Oid) * nparams);
	if (desc == NULL)
		return query;
	query->desc = desc;
	query->natts = natts;
	query->attnums = palloc(sizeof(AttrNumber) * Max(natts, 1));
	for (int i = 0; i < natts; i++)
		query->attnums[i] = attnums ? attnums[i] : i + 1;
	return query;
}

void
tessera_remote_query_check_as(TesseraRemoteQuery *query, Oid role)
{
	query->check_as = role;
	query->local = tessera_check_as(role, query->text);
	query->sql = query->exact == query->text ? query->local : tessera_check_as(role, query->exact);
}

TesseraRemoteQuery *
tessera_remote_query_probe(const TesseraRemoteQuery *query)
{
	TesseraRemoteQuery *probe;

	probe = tessera_remote_query_make(list_make1(makeString(psprintf("SELECT FROM (%s) AS held WHERE false", query->text))), query->nparams,
									  query->types, NULL, 0, NULL);
	if (OidIsValid(query->check_as))
		tessera_remote_query_check_as(probe, query->check_as);
	probe->once = query->once;
	return probe;
}

/* What only other nodes need: not done for a statement that stays here. */
static void
prepare(TesseraRemoteQuery *query)
{
	MemoryContext before;

	if (query->prepared)
		return;
	before = MemoryContextSwitchTo(GetMemoryChunkContext(query));
	prepare_params(query);
	if (query->desc != NULL)
		prepare_result(query);
	query->prepared = true;
	MemoryContextSwitchTo(before);
}

/* An integer's bytes as they are sent; palloc'd. */
static char *
integer_bytes(Oid type, Datum value)
{
	char	   *bytes = palloc(sizeof(uint64));

	if (type == INT4OID)
	{
		uint32		v = pg_hton32((uint32) DatumGetInt32(value));

		memcpy(bytes, &v, sizeof(v));
	}
	else
	{
		uint64		v = pg_hton64((uint64) DatumGetInt64(value));

		memcpy(bytes, &v, sizeof(v));
	}
	return bytes;
}

void
tessera_wire_params(TesseraRemoteQuery *query, const Datum *values, const bool *nulls, TesseraWireParams *out)
{
	prepare(query);
	out->values = palloc0(sizeof(char *) * Max(query->nparams, 1));
	out->lengths = palloc0(sizeof(int) * Max(query->nparams, 1));
	for (int i = 0; i < query->nparams; i++)
	{
		if (nulls[i])
			continue;
		if (query->formats[i] == 1 && goes_without_function(query->types[i]))
		{
			out->values[i] = integer_bytes(query->types[i], values[i]);
			out->lengths[i] = query->types[i] == INT4OID ? sizeof(uint32) : sizeof(uint64);
		}
		else if (query->formats[i] == 1)
		{
			bytea	   *bytes = tessera_wire_send(&query->out[i], values[i]);

			out->values[i] = VARDATA(bytes);
			out->lengths[i] = VARSIZE(bytes) - VARHDRSZ;
		}
		else if (query->types[i] == PG_NODE_TREEOID)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a value of type %s cannot be sent to another node", format_type_be(query->types[i])),
					 errhint("Cast it to text.")));
		else
			out->values[i] = tessera_wire_output(&query->out[i], values[i]);
	}
}

/* True if the session writes all columns as text that says all of them, and that is read alike under other settings. */
static bool
text_is_exact(const TesseraRemoteQuery *query)
{
	int			settings = 0;

	for (int i = 0; i < query->natts; i++)
		if (query->attnums[i] > 0)
			settings |= tessera_text_settings(TupleDescAttr(query->desc, query->attnums[i] - 1)->atttypid);
	return tessera_settings_are_fixed(settings & ~TESSERA_FIXED_BYTES);
}

const char *
tessera_remote_query_sql(const TesseraRemoteQuery *query, int protocol, int *result_format)
{
	*result_format = 1;
	if (!query->has_text)
		return query->sql;
	if (query->exact != query->text && protocol >= TESSERA_EXACT_PROTOCOL)
		return query->sql;
	if (!text_is_exact(query))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of an older version of the extension cannot be read under this session's settings"),
				 errdetail("Some columns come as text, which DateStyle, IntervalStyle, extra_float_digits, bytea_output or search_path changes."),
				 errhint("Upgrade all nodes, and run ALTER EXTENSION tessera UPDATE, or set these settings back.")));
	*result_format = 0;
	return query->local;
}

_Noreturn static void
raise_bad_format(int column)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
			 errmsg("incorrect binary data format from a shard in column %d", column + 1)));
}

static Datum
receive_integer(Oid type, int column, const char *bytes, int length)
{
	uint32		narrow;
	uint64		wide;

	if (length != (type == INT4OID ? sizeof(narrow) : sizeof(wide)))
		raise_bad_format(column);
	if (type == INT4OID)
	{
		memcpy(&narrow, bytes, sizeof(narrow));
		return Int32GetDatum((int32) pg_ntoh32(narrow));
	}
	memcpy(&wide, bytes, sizeof(wide));
	return Int64GetDatum((int64) pg_ntoh64(wide));
}

/* One binary value by its type's receive function; the commonest fixed-width types without a function call. */
static Datum
receive_binary(TesseraRemoteQuery *query, int column, const char *bytes, int length)
{
	Oid			type = TupleDescAttr(query->desc, query->attnums[column] - 1)->atttypid;
	StringInfoData buffer;
	Datum		value;

	if (goes_without_function(type))
		return receive_integer(type, column, bytes, length);
	/* The receive functions may write a terminator behind the value: give them a copy. */
	buffer.data = palloc(length + 1);
	memcpy(buffer.data, bytes, length);
	buffer.data[length] = '\0';
	buffer.len = length;
	buffer.maxlen = length + 1;
	buffer.cursor = 0;
	value = tessera_wire_receive(&query->in[column], &buffer, query->ioparams[column], query->typmods[column]);
	if (buffer.cursor != length)
		raise_bad_format(column);
	return value;
}

/* One value as its type's output function has written it, in a shard of an older version. */
static Datum
receive_text(TesseraRemoteQuery *query, int column, char *text)
{
	if (query->stored[column] != NULL)
		return tessera_stored_input(query->stored[column], text);
	if (query->plain[column] == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(query->plain));
		Oid			type = TupleDescAttr(query->desc, query->attnums[column] - 1)->atttypid;

		query->plain[column] = tessera_stored_type(type, query->typmods[column]);
		MemoryContextSwitchTo(before);
	}
	return tessera_stored_input(query->plain[column], text);
}

void
tessera_wire_row(TesseraRemoteQuery *query, PGresult *result, int row, TupleTableSlot *slot)
{
	if (PQnfields(result) != query->natts)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a shard returned %d columns where %d were expected", PQnfields(result), query->natts),
				 errhint("Check that the table has the same columns on every node: tessera.check_consistency().")));

	ExecClearTuple(slot);
	if (query->natts < slot->tts_tupleDescriptor->natts)
		memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts);
	for (int i = 0; i < query->natts; i++)
	{
		int			attribute = query->attnums[i] - 1;

		if (attribute < 0)
			continue;
		slot->tts_isnull[attribute] = PQgetisnull(result, row, i);
		if (slot->tts_isnull[attribute])
			slot->tts_values[attribute] = (Datum) 0;
		else if (PQfformat(result, i) == 0)
			slot->tts_values[attribute] = receive_text(query, i, PQgetvalue(result, row, i));
		else if (query->stored[i] == NULL)
			slot->tts_values[attribute] = receive_binary(query, i, PQgetvalue(result, row, i), PQgetlength(result, row, i));
		else
			slot->tts_values[attribute] = tessera_stored_input(query->stored[i], PQgetvalue(result, row, i));
	}
	ExecStoreVirtualTuple(slot);
}
