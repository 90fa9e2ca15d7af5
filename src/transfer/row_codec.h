/*
 * row_codec.h
 *	  The row encoding: how rows are encoded as bytes in a migration's payloads, and read from them.
 *
 * A payload is a run of records, integers in network order:
 *
 *	  'T' int16 table, int16 columns, then for each column its name and its type's name, each ended by a zero byte
 *	  'C' int16 table, row							a cloned row
 *	  'I' int16 table, row							an insert
 *	  'U' int16 table, 'N' | 'K' row | 'O' row, row	an update: old row not given (its identity is that of the new row), identity only, or whole
 *	  'D' int16 table, 'K' row | 'O' row			a delete
 *	  'S' int16 table, digest						digest of all rows of the clone (verify.h)
 *	  'V' int16 table, row, digest					a key, the other columns not given, and the digest of the donor's rows with that key (verify.h)
 *
 * A row is one value for each column of the table's last description: a mark, then for 'b' and 't' an int32 length and the bytes. Dropped columns are
 * not described, generated ones only if both nodes know how (TESSERA_GENERATED_PROTOCOL); the others in order of their names, so that a row has the
 * same bytes on every node. The last description before a row counts; each payload has its own. A digest is three int64 (digest.h).
 *
 * XML goes as text if both nodes know how (TESSERA_XML_PROTOCOL): " as text" follows the type's name then.
 */
#ifndef TESSERA_TRANSFER_ROW_CODEC_H
#define TESSERA_TRANSFER_ROW_CODEC_H

#include "postgres.h"
#include "access/tupdesc.h"
#include "lib/stringinfo.h"
#include "utils/rel.h"

#define TESSERA_RECORD_TABLE	'T'
#define TESSERA_RECORD_CLONE	'C'
#define TESSERA_RECORD_INSERT	'I'
#define TESSERA_RECORD_UPDATE	'U'
#define TESSERA_RECORD_DELETE	'D'
#define TESSERA_RECORD_SUM	'S'
#define TESSERA_RECORD_KEY	'V'

#define TESSERA_OLD_NONE	'N'
#define TESSERA_OLD_IDENTITY 'K'
#define TESSERA_OLD_ROW		'O'

#define TESSERA_VALUE_NULL	'n'
#define TESSERA_VALUE_BINARY 'b'
#define TESSERA_VALUE_TEXT	't'
#define TESSERA_VALUE_UNCHANGED 'u' /* not given: unchanged TOAST, or not part of the identity */

/* ---- settings under which values are written and read ---- */

/*
 * Sets what text and encoding of values depend on (common/fixed_settings.h), until the pop (or the end of the transaction or subtransaction). Needs a
 * transaction. Returns the nest level for the pop. That undoes every setting since, also those that a table's own code has made for the session.
 */
extern int	tessera_codec_push_settings(void);
extern void tessera_codec_pop_settings(int nestlevel);

/* ---- writing ---- */

typedef struct TesseraRowWriter TesseraRowWriter;

/* Writer of rows of a table, with or without its generated columns, XML as text or binary; a context of its own below mcxt. Catalog access. */
extern TesseraRowWriter *tessera_row_writer_create(MemoryContext mcxt, TupleDesc desc, int table, bool generated, bool xml_as_text);
extern void tessera_row_writer_free(TesseraRowWriter *writer);

/* True if the writer still fits the table. */
extern bool tessera_row_writer_fits(const TesseraRowWriter *writer, TupleDesc desc);

extern void tessera_row_describe(const TesseraRowWriter *writer, StringInfo out);
extern void tessera_record_begin(const TesseraRowWriter *writer, StringInfo out, char type);

/*
 * Appends a row; values and nulls by attnum - 1. given (NULL: all): false for columns to be marked as not given. External values are fetched. Leaks
 * into the current context.
 */
extern void tessera_row_write(TesseraRowWriter *writer, StringInfo out, const Datum *values, const bool *nulls, const bool *given);

/* Appends one value as a row would have it; its column must be described. For comparing. */
extern void tessera_row_write_value(TesseraRowWriter *writer, StringInfo out, AttrNumber attnum, Datum value, bool isnull);

/* ---- reading ---- */

/* A position in a payload; the bytes are the caller's and are not changed. All reading is checked: what does not fit is ERROR 08P01. */
typedef struct TesseraPayloadCursor
{
	const char *data;
	Size		size;
	Size		at;
} TesseraPayloadCursor;

/* A value where it lies in the payload. */
typedef struct TesseraWireValue
{
	char		mark;
	uint32		length;
	const char *data;
} TesseraWireValue;

typedef struct TesseraRowReader TesseraRowReader;

extern void tessera_value_read(TesseraPayloadCursor *cursor, TesseraWireValue *value);

/* The next record's type and table (0 <= *table < ntables); false at the end. */
extern bool tessera_record_next(TesseraPayloadCursor *cursor, int ntables, char *type, int *table);
extern char tessera_payload_byte(TesseraPayloadCursor *cursor);

/* ERROR 08P01: what was read does not fit. */
extern _Noreturn void tessera_payload_damaged(const char *what);
extern uint64 tessera_payload_int64(TesseraPayloadCursor *cursor);

/*
 * Reads a table's description (behind its 'T' and index) and makes a reader for rows of the local table, in a context of its own below mcxt. ERROR
 * 55000 if its columns are not those of the local table.
 */
extern TesseraRowReader *tessera_row_reader_create(MemoryContext mcxt, TesseraPayloadCursor *cursor, Relation relation);
extern void tessera_row_reader_free(TesseraRowReader *reader);
extern int	tessera_row_reader_columns(const TesseraRowReader *reader);
extern AttrNumber tessera_row_reader_attnum(const TesseraRowReader *reader, int column);

/* True if all generated columns are described; also if there are none. */
extern bool tessera_row_reader_generated(const TesseraRowReader *reader);

/* True if XML columns are described as text; false if there are none. */
extern bool tessera_row_reader_xml_as_text(const TesseraRowReader *reader);

/* Finds the next row's values, without decoding; values has room for as many as the reader has columns. */
extern void tessera_row_read(const TesseraRowReader *reader, TesseraPayloadCursor *cursor, TesseraWireValue *values);

/*
 * Decodes values into arrays by attnum - 1, data in the current context. Columns not given are left alone. Columns of the table that are not
 * described are the caller's. The settings must be pushed.
 */
extern void tessera_row_decode(TesseraRowReader *reader, const TesseraWireValue *wire, Datum *values, bool *nulls);

#endif							/* TESSERA_TRANSFER_ROW_CODEC_H */
