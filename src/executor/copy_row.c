/*
 * copy_row.c
 *	  Rows as COPY data: binary where every column's binary form means the same on every node, else text.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "libpq/pqformat.h"
#include "port/pg_bswap.h"
#include "utils/lsyscache.h"

#include "common/wire.h"
#include "executor/copy.h"
#include "rows/exact_text.h"

#define SIGNATURE "PGCOPY\n\377\r\n\0"

TesseraCopyRow *
tessera_copy_row_make(TupleDesc desc, List *columns, bool binary)
{
	TesseraCopyRow *row = palloc0(sizeof(TesseraCopyRow));
	ListCell   *cell;

	row->ncolumns = list_length(columns);
	row->columns = palloc(sizeof(AttrNumber) * Max(row->ncolumns, 1));
	row->types = palloc(sizeof(Oid) * Max(row->ncolumns, 1));
	row->functions = palloc0(sizeof(FmgrInfo) * Max(row->ncolumns, 1));
	row->binary = binary;
	foreach(cell, columns)
	{
		int			i = foreach_current_index(cell);

		row->columns[i] = lfirst_int(cell);
		row->types[i] = TupleDescAttr(desc, row->columns[i] - 1)->atttypid;
		if (!tessera_binary_is_exact(row->types[i]))
			row->binary = false;
	}
	for (int i = 0; i < row->ncolumns; i++)
	{
		Oid			function;
		bool		varlena;

		if (row->binary)
			getTypeBinaryOutputInfo(row->types[i], &function, &varlena);
		else
			getTypeOutputInfo(row->types[i], &function, &varlena);
		fmgr_info(function, &row->functions[i]);
	}
	return row;
}

void
tessera_copy_row_header(TesseraCopyRow *row, StringInfo out)
{
	if (row->binary)
	{
		appendBinaryStringInfo(out, SIGNATURE, 11);
		pq_sendint32(out, 0);
		pq_sendint32(out, 0);
	}
}

void
tessera_copy_row_trailer(TesseraCopyRow *row, StringInfo out)
{
	if (row->binary)
		pq_sendint16(out, (uint16) -1);
}

/* The commonest types without a function call. */
static bool
append_fast(StringInfo out, Oid type, Datum value)
{
	switch (type)
	{
		case INT4OID:
		case DATEOID:
		case OIDOID:
			pq_sendint32(out, 4);
			pq_sendint32(out, DatumGetUInt32(value));
			return true;
		case INT8OID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case FLOAT8OID:
			pq_sendint32(out, 8);
			pq_sendint64(out, (uint64) DatumGetInt64(value));
			return true;
		case INT2OID:
			pq_sendint32(out, 2);
			pq_sendint16(out, DatumGetUInt16(value));
			return true;
		case BOOLOID:
			pq_sendint32(out, 1);
			pq_sendint8(out, DatumGetBool(value) ? 1 : 0);
			return true;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case BYTEAOID:
			{
				/* The connection's encoding is the database's. */
				struct varlena *data = PG_DETOAST_DATUM_PACKED(value);

				pq_sendint32(out, VARSIZE_ANY_EXHDR(data));
				appendBinaryStringInfo(out, VARDATA_ANY(data), VARSIZE_ANY_EXHDR(data));
				return true;
			}
		default:
			return false;
	}
}

static void
append_binary(TesseraCopyRow *row, StringInfo out, const Datum *values, const bool *nulls)
{
	pq_sendint16(out, row->ncolumns);
	for (int i = 0; i < row->ncolumns; i++)
	{
		int			column = row->columns[i] - 1;
		bytea	   *data;

		if (nulls[column])
			pq_sendint32(out, (uint32) -1);
		else if (!append_fast(out, row->types[i], values[column]))
		{
			data = tessera_wire_send(&row->functions[i], values[column]);
			pq_sendint32(out, VARSIZE(data) - VARHDRSZ);
			appendBinaryStringInfo(out, VARDATA(data), VARSIZE(data) - VARHDRSZ);
		}
	}
}

static void
append_escaped(StringInfo out, const char *text)
{
	static const char specials[] = "\b\f\n\r\t\v\\";
	static const char names[] = "bfnrtv\\";

	for (const char *c = text; *c; c++)
	{
		const char *found = strchr(specials, *c);

		if (found)
			appendStringInfoCharMacro(out, '\\');
		appendStringInfoCharMacro(out, found ? names[found - specials] : *c);
	}
}

void
tessera_copy_row_append(TesseraCopyRow *row, StringInfo out, const Datum *values, const bool *nulls)
{
	if (row->binary)
	{
		append_binary(row, out, values, nulls);
		return;
	}
	for (int i = 0; i < row->ncolumns; i++)
	{
		int			column = row->columns[i] - 1;

		if (i > 0)
			appendStringInfoChar(out, '\t');
		if (nulls[column])
			appendStringInfoString(out, "\\N");
		else
			append_escaped(out, tessera_wire_output(&row->functions[i], values[column]));
	}
	appendStringInfoChar(out, '\n');
}
