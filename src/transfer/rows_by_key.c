/*
 * rows_by_key.c
 *	  The rows that have a given key; see rows_by_key.h.
 *
 * Found by the index of their identity, else by that of the shard key; what the index brings is compared byte by byte with the key. Values are read
 * as the table's owner in a restricted security context, as its types' functions may be users' code. An error leaves that to the transaction's abort.
 *
 * Memory: a context for all of it, one emptied for each key, one for each row. Locks: AccessShareLock on the table. Nothing is written.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"

#include "common/acting_as.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "transfer/range_scan.h"
#include "transfer/rows_by_key.h"

#define SHOWN_KEY 100			/* bytes of a key in a message */

struct TesseraKeyRows
{
	MemoryContext mcxt;
	MemoryContext key_context;
	MemoryContext row_context;
	TesseraMovingRanges *moving;
	int			table;
	Relation	relation;
	TesseraRowReader *reader;
	TesseraRowWriter *writer;
	TesseraWireValue *wire;
	TupleTableSlot *slot;
	StringInfoData encoded;
	Oid			identity;		/* index; InvalidOid: the shard key is looked up */
	Bitmapset  *columns;		/* of the identity, or of the shard key */
	/* the key */
	Datum	   *values;			/* by attnum - 1, as the following */
	bool	   *nulls;
	bool	   *given;
	TesseraActing before;		/* the caller */
};


Oid
tessera_row_identity(Relation relation, const TesseraMovingRanges *moving, int table, Bitmapset **columns)
{
	Oid			identity = RelationGetReplicaIndex(relation);

	*columns = NULL;
	if (!OidIsValid(identity))
		identity = tessera_primary_key(relation);
	if (OidIsValid(identity))
	{
		Relation	index = index_open(identity, AccessShareLock);

		for (int i = 0; i < index->rd_index->indnkeyatts; i++)
			*columns = bms_add_member(*columns, index->rd_index->indkey.values[i]);
		index_close(index, NoLock);
		return identity;
	}
	for (int i = 0; i < tessera_moving_group(moving, table)->ks->ncolumns; i++)
		*columns = bms_add_member(*columns, moving->tables[table].keys[i]);
	return InvalidOid;
}

/* As the table's owner from here to the end: input, output and comparison of its types run. */
TesseraKeyRows *
tessera_key_rows_begin(TesseraMovingRanges *moving, int table, TesseraPayloadCursor *cursor)
{
	MemoryContext mcxt = AllocSetContextCreate(CurrentMemoryContext, "tessera rows of keys", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(mcxt);
	TesseraKeyRows *rows = palloc0(sizeof(TesseraKeyRows));
	int			natts;

	rows->mcxt = mcxt;
	rows->key_context = AllocSetContextCreate(mcxt, "tessera key", ALLOCSET_DEFAULT_SIZES);
	rows->row_context = AllocSetContextCreate(mcxt, "tessera row of a key", ALLOCSET_DEFAULT_SIZES);
	rows->moving = moving;
	rows->table = table;
	rows->relation = table_open(moving->tables[table].relid, AccessShareLock);
	rows->reader = tessera_row_reader_create(mcxt, cursor, rows->relation);
	rows->writer = tessera_row_writer_create(mcxt, RelationGetDescr(rows->relation), table,
											 tessera_row_reader_generated(rows->reader), tessera_row_reader_xml_as_text(rows->reader));
	rows->wire = palloc(Max(tessera_row_reader_columns(rows->reader), 1) * sizeof(TesseraWireValue));
	rows->slot = table_slot_create(rows->relation, NULL);
	initStringInfo(&rows->encoded);
	rows->identity = tessera_row_identity(rows->relation, moving, table, &rows->columns);
	natts = Max(RelationGetNumberOfAttributes(rows->relation), 1);
	rows->values = palloc0(natts * sizeof(Datum));
	rows->nulls = palloc0(natts * sizeof(bool));
	rows->given = palloc0(natts * sizeof(bool));
	tessera_act_as_owner(&rows->before, rows->relation->rd_rel->relowner);
	MemoryContextSwitchTo(old);
	return rows;
}

/* Reads the key: the same columns as the identity here has, none of them null. Returns its bytes. */
static const char *
read_key(TesseraKeyRows *rows, TesseraPayloadCursor *cursor, Size *size)
{
	const char *key = cursor->data + cursor->at;
	int			ngiven = 0;

	tessera_row_read(rows->reader, cursor, rows->wire);
	*size = cursor->data + cursor->at - key;
	for (int i = 0; i < tessera_row_reader_columns(rows->reader); i++)
	{
		AttrNumber	attnum = tessera_row_reader_attnum(rows->reader, i);

		rows->given[attnum - 1] = rows->wire[i].mark != TESSERA_VALUE_UNCHANGED;
		if (!rows->given[attnum - 1])
			continue;
		ngiven++;
		if (!bms_is_member(attnum, rows->columns) || rows->wire[i].mark == TESSERA_VALUE_NULL)
			tessera_payload_damaged("A key has other columns than the table's identity here.");
	}
	if (ngiven != bms_num_members(rows->columns))
		tessera_payload_damaged("A key lacks columns of the table's identity here.");
	tessera_row_decode(rows->reader, rows->wire, rows->values, rows->nulls);
	return key;
}

/* Every row that may have the key. */
static TesseraRangeScan *
begin_scan(TesseraKeyRows *rows)
{
	const AttrNumber *keys = rows->moving->tables[rows->table].keys;
	TesseraKeySpace *ks = tessera_moving_group(rows->moving, rows->table)->ks;
	TesseraRangeScan *scan = NULL;
	Datum	   *key;

	if (OidIsValid(rows->identity))
		scan = tessera_identity_scan_begin(rows->relation, rows->identity, rows->values, GetActiveSnapshot());
	if (scan != NULL)
		return scan;
	key = palloc(TESSERA_MAX_KEY_COLUMNS * sizeof(Datum));
	for (int i = 0; i < ks->ncolumns; i++)
		key[i] = rows->values[keys[i] - 1];
	return tessera_key_scan_begin(rows->relation, ks, keys, key, GetActiveSnapshot());
}

void
tessera_key_rows_digest(TesseraKeyRows *rows, TesseraPayloadCursor *cursor, TesseraDigest *digest)
{
	MemoryContext old;
	TesseraRangeScan *scan;
	const char *key;
	Size		size;

	MemoryContextReset(rows->key_context);
	old = MemoryContextSwitchTo(rows->key_context);
	key = read_key(rows, cursor, &size);
	scan = begin_scan(rows);
	while (tessera_range_scan_next(scan, rows->slot))
	{
		TupleTableSlot *slot = rows->slot;

		MemoryContextReset(rows->row_context);
		MemoryContextSwitchTo(rows->row_context);
		slot_getallattrs(slot);
		resetStringInfo(&rows->encoded);
		tessera_row_write(rows->writer, &rows->encoded, slot->tts_values, slot->tts_isnull, rows->given);
		if (rows->encoded.len == size && memcmp(rows->encoded.data, key, size) == 0)
		{
			resetStringInfo(&rows->encoded);
			tessera_row_write(rows->writer, &rows->encoded, slot->tts_values, slot->tts_isnull, NULL);
			tessera_digest_add(digest, rows->encoded.data, rows->encoded.len);
		}
		MemoryContextSwitchTo(rows->key_context);
	}
	tessera_range_scan_end(scan);
	ExecClearTuple(rows->slot);
	MemoryContextSwitchTo(old);
}

char *
tessera_key_rows_table(const TesseraKeyRows *rows)
{
	return tessera_quote_qualified(get_namespace_name(RelationGetNamespace(rows->relation)), RelationGetRelationName(rows->relation));
}

char *
tessera_key_rows_text(const TesseraKeyRows *rows)
{
	StringInfoData text;
	int			attnum = -1;

	initStringInfo(&text);
	while ((attnum = bms_next_member(rows->columns, attnum)) >= 0)
	{
		Oid			function;
		bool		is_varlena;

		getTypeOutputInfo(TupleDescAttr(RelationGetDescr(rows->relation), attnum - 1)->atttypid, &function, &is_varlena);
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "", OidOutputFunctionCall(function, rows->values[attnum - 1]));
	}
	if (text.len > SHOWN_KEY)
		strcpy(text.data + pg_mbcliplen(text.data, text.len, SHOWN_KEY), "...");
	return text.data;
}

void
tessera_key_rows_end(TesseraKeyRows *rows)
{
	tessera_act_end(&rows->before);
	ExecDropSingleTupleTableSlot(rows->slot);
	table_close(rows->relation, NoLock);
	MemoryContextDelete(rows->mcxt);
}
