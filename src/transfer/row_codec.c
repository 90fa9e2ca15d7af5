/*
 * row_codec.c
 *	  The row encoding of a migration's payloads, written and read. The format is in row_codec.h.
 *
 * A value goes in the form of its type's send function where that means the same on every node, else as text: enums, composites and their arrays hold
 * OIDs of one node in binary. Both depend on settings (DateStyle, client_encoding, search_path...), which are therefore fixed while values are
 * written and read. Types of plain bytes (integers, timestamps, text...) are written and read here without a function call; the bytes are those of
 * their send functions.
 *
 * A writer and a reader own a memory context each, with their function look-ups. Nothing here takes locks or writes anything; a crash leaves nothing.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "catalog/portable_types.h"
#include "common/fixed_settings.h"
#include "common/text.h"
#include "common/wire.h"
#include "rows/stored_value.h"
#include "transfer/row_codec.h"

/* How a column's values are turned into bytes. */
typedef enum WireForm
{
	FORM_BOOL,
	FORM_INT16,
	FORM_INT32,
	FORM_INT64,
	FORM_UUID,
	FORM_BYTES,					/* the bytes of a varlena */
	FORM_CHARACTERS,			/* the same, and valid in the database's encoding */
	FORM_BINARY,				/* send and receive functions */
	FORM_TEXT					/* output and input functions */
} WireForm;

typedef struct WriterColumn
{
	AttrNumber	attnum;
	WireForm	form;
	char	   *name;
	char	   *type_name;
	FmgrInfo	function;
} WriterColumn;

struct TesseraRowWriter
{
	MemoryContext mcxt;
	TupleDesc	desc;			/* copy */
	int			table;
	int			ncolumns;
	WriterColumn *columns;
};

typedef struct ReaderColumn
{
	AttrNumber	attnum;
	WireForm	form;			/* of binary values */
	Oid			type;			/* of a domain its base type */
	int32		typmod;
	bool		has_receive;
	Oid			receive_param;
	FmgrInfo	receive;		/* looked up when first used */
	TesseraStoredType *stored;	/* of values that come as text; NULL: none has come */
} ReaderColumn;

struct TesseraRowReader
{
	MemoryContext mcxt;
	bool		generated;		/* all generated columns are described */
	bool		xml_as_text;	/* an XML column is described as text */
	int			ncolumns;
	ReaderColumn *columns;
	StringInfoData scratch;		/* a value, writable and ended by a zero byte, as receive and input functions want it */
};

/* ---- settings ---- */

int
tessera_codec_push_settings(void)
{
	return tessera_fixed_settings_push(TESSERA_FIXED_ALL);
}

void
tessera_codec_pop_settings(int nestlevel)
{
	/* Not a commit: what owners' code has set for the session goes, too. */
	AtEOXact_GUC(false, nestlevel);
}


/* ---- forms ---- */

/* Characters go as they are stored if the fixed client encoding needs no conversion. */
static bool
characters_go_raw(void)
{
	return GetDatabaseEncoding() == PG_UTF8 || GetDatabaseEncoding() == PG_SQL_ASCII;
}

/* Form of a type that goes binary. Reading: a type with a length limit is left to its receive function, which enforces it. */
static WireForm
binary_form(Oid type, int32 typmod, bool reading)
{
	switch (type)
	{
		case BOOLOID:
			return FORM_BOOL;
		case INT2OID:
			return FORM_INT16;
		case INT4OID:
		case DATEOID:
		case OIDOID:
		case FLOAT4OID:
			return FORM_INT32;
		case INT8OID:
		case FLOAT8OID:
			return FORM_INT64;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return reading && typmod >= 0 ? FORM_BINARY : FORM_INT64;
		case UUIDOID:
			return FORM_UUID;
		case BYTEAOID:
			return FORM_BYTES;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			return !characters_go_raw() || (reading && typmod >= 0) ? FORM_BINARY : FORM_CHARACTERS;
		default:
			return FORM_BINARY;
	}
}

/* A domain goes as its base type does, and is read as that: it was checked where it was made. */
static bool
goes_binary(Oid type)
{
	return tessera_type_goes_binary(getBaseType(type));
}

/* Its binary form is not all of it. */
static bool
is_xml(Oid type)
{
	return getBaseType(type) == XMLOID;
}

static char *
wire_type_name(Oid type, bool xml_as_text)
{
	char	   *name = tessera_type_text(type, -1, FORMAT_TYPE_FORCE_QUALIFY);

	return xml_as_text && is_xml(type) ? psprintf("%s as text", name) : name;
}


/* ---- writing ---- */

static void
writer_column_init(TesseraRowWriter *writer, WriterColumn *column, Form_pg_attribute att, bool xml_as_text)
{
	Oid			function;
	bool		is_varlena;

	column->attnum = att->attnum;
	column->name = pstrdup(NameStr(att->attname));
	column->type_name = wire_type_name(att->atttypid, xml_as_text);
	if (goes_binary(att->atttypid) && !(xml_as_text && is_xml(att->atttypid)))
	{
		column->form = binary_form(getBaseType(att->atttypid), -1, false);
		getTypeBinaryOutputInfo(att->atttypid, &function, &is_varlena);
	}
	else
	{
		column->form = FORM_TEXT;
		getTypeOutputInfo(att->atttypid, &function, &is_varlena);
	}
	fmgr_info_cxt(function, &column->function, writer->mcxt);
}

static int
compare_columns(const void *a, const void *b)
{
	return strcmp(((const WriterColumn *) a)->name, ((const WriterColumn *) b)->name);
}

TesseraRowWriter *
tessera_row_writer_create(MemoryContext mcxt, TupleDesc desc, int table, bool generated, bool xml_as_text)
{
	MemoryContext own = AllocSetContextCreate(mcxt, "tessera row writer", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(own);
	TesseraRowWriter *writer = palloc0(sizeof(TesseraRowWriter));

	writer->mcxt = own;
	writer->desc = CreateTupleDescCopyConstr(desc);
	writer->table = table;
	writer->columns = palloc0(Max(desc->natts, 1) * sizeof(WriterColumn));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && (generated || !att->attgenerated))
			writer_column_init(writer, &writer->columns[writer->ncolumns++], att, xml_as_text);
	}
	qsort(writer->columns, writer->ncolumns, sizeof(WriterColumn), compare_columns);
	MemoryContextSwitchTo(old);
	return writer;
}

void
tessera_row_writer_free(TesseraRowWriter *writer)
{
	MemoryContextDelete(writer->mcxt);
}

bool
tessera_row_writer_fits(const TesseraRowWriter *writer, TupleDesc desc)
{
	return equalTupleDescs(writer->desc, desc);
}

void
tessera_record_begin(const TesseraRowWriter *writer, StringInfo out, char type)
{
	pq_sendbyte(out, type);
	pq_sendint16(out, writer->table);
}

void
tessera_row_describe(const TesseraRowWriter *writer, StringInfo out)
{
	tessera_record_begin(writer, out, TESSERA_RECORD_TABLE);
	pq_sendint16(out, writer->ncolumns);
	for (int i = 0; i < writer->ncolumns; i++)
	{
		/* Names go in the database's encoding: nodes of one cluster have one. */
		appendBinaryStringInfo(out, writer->columns[i].name, strlen(writer->columns[i].name) + 1);
		appendBinaryStringInfo(out, writer->columns[i].type_name, strlen(writer->columns[i].type_name) + 1);
	}
}

static void
write_bytes(StringInfo out, char mark, const void *data, Size length)
{
	pq_sendbyte(out, mark);
	pq_sendint32(out, (uint32) length);
	appendBinaryStringInfo(out, data, (int) length);
}

static void
write_value(WriterColumn *column, StringInfo out, Datum value)
{
	switch (column->form)
	{
		case FORM_BOOL:
			{
				char		byte = DatumGetBool(value) ? 1 : 0;

				write_bytes(out, TESSERA_VALUE_BINARY, &byte, 1);
				break;
			}
		case FORM_INT16:
			{
				uint16		n = pg_hton16((uint16) DatumGetInt16(value));

				write_bytes(out, TESSERA_VALUE_BINARY, &n, sizeof(n));
				break;
			}
		case FORM_INT32:
			{
				uint32		n = pg_hton32((uint32) DatumGetInt32(value));

				write_bytes(out, TESSERA_VALUE_BINARY, &n, sizeof(n));
				break;
			}
		case FORM_INT64:
			{
				uint64		n = pg_hton64((uint64) DatumGetInt64(value));

				write_bytes(out, TESSERA_VALUE_BINARY, &n, sizeof(n));
				break;
			}
		case FORM_UUID:
			write_bytes(out, TESSERA_VALUE_BINARY, DatumGetUUIDP(value)->data, UUID_LEN);
			break;
		case FORM_BYTES:
		case FORM_CHARACTERS:
			{
				struct varlena *bytes = PG_DETOAST_DATUM_PACKED(value);

				write_bytes(out, TESSERA_VALUE_BINARY, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
				break;
			}
		case FORM_BINARY:
			{
				bytea	   *bytes = SendFunctionCall(&column->function, value);

				write_bytes(out, TESSERA_VALUE_BINARY, VARDATA(bytes), VARSIZE(bytes) - VARHDRSZ);
				break;
			}
		case FORM_TEXT:
			{
				char	   *text = tessera_wire_fixed_output(&column->function, value, 0);
				char	   *converted = pg_server_to_any(text, strlen(text), PG_UTF8);

				write_bytes(out, TESSERA_VALUE_TEXT, converted, strlen(converted));
				break;
			}
	}
}

void
tessera_row_write(TesseraRowWriter *writer, StringInfo out, const Datum *values, const bool *nulls, const bool *given)
{
	for (int i = 0; i < writer->ncolumns; i++)
	{
		WriterColumn *column = &writer->columns[i];
		int			at = column->attnum - 1;

		if (given != NULL && !given[at])
			pq_sendbyte(out, TESSERA_VALUE_UNCHANGED);
		else if (nulls[at])
			pq_sendbyte(out, TESSERA_VALUE_NULL);
		else
			write_value(column, out, values[at]);
	}
}

void
tessera_row_write_value(TesseraRowWriter *writer, StringInfo out, AttrNumber attnum, Datum value, bool isnull)
{
	for (int i = 0; i < writer->ncolumns; i++)
	{
		if (writer->columns[i].attnum != attnum)
			continue;
		if (isnull)
			pq_sendbyte(out, TESSERA_VALUE_NULL);
		else
			write_value(&writer->columns[i], out, value);
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg_internal("column %d is not described", attnum)));
}


/* ---- reading ---- */

static _Noreturn void tables_differ(Relation relation, const char *column, const char *how);

void
tessera_payload_damaged(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("damaged payload of a migration"),
			 errdetail_internal("%s", what)));
}

static const char *
take(TesseraPayloadCursor *cursor, Size length)
{
	const char *result = cursor->data + cursor->at;

	if (length > cursor->size - cursor->at)
		tessera_payload_damaged("It ends in the middle of a record.");
	cursor->at += length;
	return result;
}

char
tessera_payload_byte(TesseraPayloadCursor *cursor)
{
	return *take(cursor, 1);
}

static int
take_int16(TesseraPayloadCursor *cursor)
{
	uint16		n;

	memcpy(&n, take(cursor, sizeof(n)), sizeof(n));
	return (int16) pg_ntoh16(n);
}

static uint32
take_int32(TesseraPayloadCursor *cursor)
{
	uint32		n;

	memcpy(&n, take(cursor, sizeof(n)), sizeof(n));
	return pg_ntoh32(n);
}

uint64
tessera_payload_int64(TesseraPayloadCursor *cursor)
{
	uint64		n;

	memcpy(&n, take(cursor, sizeof(n)), sizeof(n));
	return pg_ntoh64(n);
}

static const char *
take_name(TesseraPayloadCursor *cursor)
{
	const char *start = cursor->data + cursor->at;
	const char *end = memchr(start, '\0', cursor->size - cursor->at);

	if (end == NULL)
		tessera_payload_damaged("A name has no end.");
	cursor->at += end + 1 - start;
	return start;
}

bool
tessera_record_next(TesseraPayloadCursor *cursor, int ntables, char *type, int *table)
{
	if (cursor->at >= cursor->size)
		return false;
	*type = *take(cursor, 1);
	*table = take_int16(cursor);
	if (*table < 0 || *table >= ntables)
		tessera_payload_damaged("A record names a table that is not in the group.");
	return true;
}

static void
reader_column_init(ReaderColumn *column, Form_pg_attribute att)
{
	column->attnum = att->attnum;
	column->typmod = att->atttypmod;
	column->type = getBaseTypeAndTypmod(att->atttypid, &column->typmod);
	column->form = goes_binary(column->type) ? binary_form(column->type, column->typmod, true) : FORM_BINARY;
}

static void
tables_differ(Relation relation, const char *column, const char *how)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is not the same on donor and recipient", RelationGetRelationName(relation)),
			 errdetail_internal("Column \"%s\" %s.", column, how),
			 errhint("Wait until all nodes have the table's newest definition, and start the migration again.")));
}

/* Matches one described column with the local table's; *xml_as_text becomes true if it says so. */
static Form_pg_attribute
find_described(Relation relation, const char *name, const char *type_name, const bool *seen, bool *xml_as_text)
{
	TupleDesc	desc = RelationGetDescr(relation);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || strcmp(NameStr(att->attname), name) != 0)
			continue;
		if (seen[i])
			tessera_payload_damaged("A column is described twice.");
		if (is_xml(att->atttypid) && strcmp(wire_type_name(att->atttypid, true), type_name) == 0)
			*xml_as_text = true;
		else if (strcmp(wire_type_name(att->atttypid, false), type_name) != 0)
			tables_differ(relation, name, "has another type on the recipient");
		return att;
	}
	tables_differ(relation, name, "is missing on the recipient");
}

TesseraRowReader *
tessera_row_reader_create(MemoryContext mcxt, TesseraPayloadCursor *cursor, Relation relation)
{
	MemoryContext own = AllocSetContextCreate(mcxt, "tessera row reader", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(own);
	TupleDesc	desc = RelationGetDescr(relation);
	TesseraRowReader *reader = palloc0(sizeof(TesseraRowReader));
	bool	   *seen = palloc0(Max(desc->natts, 1) * sizeof(bool));
	bool		described = false;	/* a generated column */

	reader->mcxt = own;
	reader->generated = true;
	reader->ncolumns = take_int16(cursor);
	if (reader->ncolumns < 0 || reader->ncolumns > MaxTupleAttributeNumber)
		tessera_payload_damaged("A table has an impossible number of columns.");
	reader->columns = palloc0(Max(reader->ncolumns, 1) * sizeof(ReaderColumn));
	for (int i = 0; i < reader->ncolumns; i++)
	{
		const char *name = take_name(cursor);
		const char *type_name = take_name(cursor);
		Form_pg_attribute att = find_described(relation, name, type_name, seen, &reader->xml_as_text);

		seen[att->attnum - 1] = true;
		described |= att->attgenerated != '\0';
		reader_column_init(&reader->columns[i], att);
	}
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (seen[i] || att->attisdropped)
			continue;
		/* a donor of before describes none */
		if (!att->attgenerated || described)
			tables_differ(relation, NameStr(att->attname), "is missing on the donor");
		reader->generated = false;
	}
	initStringInfo(&reader->scratch);
	MemoryContextSwitchTo(old);
	return reader;
}

void
tessera_row_reader_free(TesseraRowReader *reader)
{
	MemoryContextDelete(reader->mcxt);
}

int
tessera_row_reader_columns(const TesseraRowReader *reader)
{
	return reader->ncolumns;
}

AttrNumber
tessera_row_reader_attnum(const TesseraRowReader *reader, int column)
{
	return reader->columns[column].attnum;
}

bool
tessera_row_reader_generated(const TesseraRowReader *reader)
{
	return reader->generated;
}

bool
tessera_row_reader_xml_as_text(const TesseraRowReader *reader)
{
	return reader->xml_as_text;
}

void
tessera_value_read(TesseraPayloadCursor *cursor, TesseraWireValue *value)
{
	value->mark = *take(cursor, 1);
	value->length = 0;
	value->data = NULL;
	switch (value->mark)
	{
		case TESSERA_VALUE_NULL:
		case TESSERA_VALUE_UNCHANGED:
			break;
		case TESSERA_VALUE_BINARY:
		case TESSERA_VALUE_TEXT:
			value->length = take_int32(cursor);
			value->data = take(cursor, value->length);
			break;
		default:
			tessera_payload_damaged("A value has an unknown mark.");
	}
}

void
tessera_row_read(const TesseraRowReader *reader, TesseraPayloadCursor *cursor, TesseraWireValue *values)
{
	for (int i = 0; i < reader->ncolumns; i++)
		tessera_value_read(cursor, &values[i]);
}

static void
expect_length(const TesseraWireValue *wire, uint32 length)
{
	if (wire->length != length)
		tessera_payload_damaged("A value has the wrong length for its type.");
}

static Datum
read_bytes(const TesseraWireValue *wire)
{
	struct varlena *result;

	if (wire->length > MaxAllocSize - VARHDRSZ)
		tessera_payload_damaged("A value is too long.");
	result = palloc(wire->length + VARHDRSZ);
	SET_VARSIZE(result, wire->length + VARHDRSZ);
	memcpy(VARDATA(result), wire->data, wire->length);
	return PointerGetDatum(result);
}

/* A copy of the value, writable and ended by a zero byte, in the reader's scratch buffer. */
static StringInfo
scratch_copy(TesseraRowReader *reader, const TesseraWireValue *wire)
{
	if (wire->length >= MaxAllocSize)
		tessera_payload_damaged("A value is too long.");
	resetStringInfo(&reader->scratch);
	appendBinaryStringInfo(&reader->scratch, wire->data, (int) wire->length);
	return &reader->scratch;
}

/* By the type's receive function. */
static Datum
read_by_receive(TesseraRowReader *reader, ReaderColumn *column, const TesseraWireValue *wire)
{
	StringInfo	buffer = scratch_copy(reader, wire);
	Datum		result;

	if (!column->has_receive)
	{
		Oid			function;

		if (!goes_binary(column->type))
			tessera_payload_damaged("A value is binary that cannot be.");
		getTypeBinaryInputInfo(column->type, &function, &column->receive_param);
		fmgr_info_cxt(function, &column->receive, reader->mcxt);
		column->has_receive = true;
	}
	result = ReceiveFunctionCall(&column->receive, buffer, column->receive_param, column->typmod);
	if (buffer->cursor != buffer->len)
		tessera_payload_damaged("A value is longer than its type takes.");
	return result;
}

/* By the type's input function. */
static Datum
read_by_input(TesseraRowReader *reader, ReaderColumn *column, const TesseraWireValue *wire)
{
	StringInfo	buffer = scratch_copy(reader, wire);

	if (column->stored == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(reader->mcxt);

		column->stored = tessera_stored_type(column->type, column->typmod);
		MemoryContextSwitchTo(before);
	}
	if (strlen(buffer->data) != buffer->len)
		tessera_payload_damaged("A text has a zero byte.");
	/* Checks the encoding too. */
	return tessera_stored_input(column->stored, pg_any_to_server(buffer->data, buffer->len, PG_UTF8));
}

static Datum
read_binary(TesseraRowReader *reader, ReaderColumn *column, const TesseraWireValue *wire)
{
	switch (column->form)
	{
		case FORM_BOOL:
			expect_length(wire, 1);
			return BoolGetDatum(*wire->data != 0);
		case FORM_INT16:
			{
				uint16		n;

				expect_length(wire, sizeof(n));
				memcpy(&n, wire->data, sizeof(n));
				return Int16GetDatum((int16) pg_ntoh16(n));
			}
		case FORM_INT32:
			{
				uint32		n;

				expect_length(wire, sizeof(n));
				memcpy(&n, wire->data, sizeof(n));
				return Int32GetDatum((int32) pg_ntoh32(n));
			}
		case FORM_INT64:
			{
				uint64		n;

				expect_length(wire, sizeof(n));
				memcpy(&n, wire->data, sizeof(n));
				return Int64GetDatum((int64) pg_ntoh64(n));
			}
		case FORM_UUID:
			{
				pg_uuid_t  *uuid = palloc(sizeof(pg_uuid_t));

				expect_length(wire, UUID_LEN);
				memcpy(uuid->data, wire->data, UUID_LEN);
				return UUIDPGetDatum(uuid);
			}
		case FORM_CHARACTERS:
			if (wire->length >= MaxAllocSize)
				tessera_payload_damaged("A value is too long.");
			(void) pg_verify_mbstr(GetDatabaseEncoding(), wire->data, (int) wire->length, false);
			return read_bytes(wire);
		case FORM_BYTES:
			return read_bytes(wire);
		default:
			return read_by_receive(reader, column, wire);
	}
}

void
tessera_row_decode(TesseraRowReader *reader, const TesseraWireValue *wire, Datum *values, bool *nulls)
{
	for (int i = 0; i < reader->ncolumns; i++)
	{
		ReaderColumn *column = &reader->columns[i];
		int			at = column->attnum - 1;

		switch (wire[i].mark)
		{
			case TESSERA_VALUE_UNCHANGED:
				break;
			case TESSERA_VALUE_NULL:
				values[at] = (Datum) 0;
				nulls[at] = true;
				break;
			case TESSERA_VALUE_TEXT:
				values[at] = read_by_input(reader, column, &wire[i]);
				nulls[at] = false;
				break;
			default:
				values[at] = read_binary(reader, column, &wire[i]);
				nulls[at] = false;
				break;
		}
	}
}
