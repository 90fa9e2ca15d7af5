/*
 * verify_recipient.c
 *	  The recipient's part in a move that is verified by content; see verify.h.
 *
 * Each comparison is a transaction that only reads, under one snapshot: AccessShareLock on the tables, memory in the transaction's contexts. It is
 * taken between two batches, by the process that applies them, so that what it sees is what was applied up to there. A crash leaves nothing.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "common/text.h"
#include "transaction/background.h"
#include "transfer/range_scan.h"
#include "transfer/rows_by_key.h"
#include "transfer/verify.h"


static const char *
table_name(Relation relation)
{
	return tessera_quote_qualified(get_namespace_name(RelationGetNamespace(relation)), RelationGetRelationName(relation));
}


/* The clone */

/* Digest of the rows of a table that lie in its group's ranges. */
static void
sum_table(TesseraMovingRanges *moving, int table, Relation relation, TesseraDigest *digest)
{
	const TesseraMovingGroup *group = tessera_moving_group(moving, table);
	TesseraRowWriter *writer = tessera_row_writer_create(CurrentMemoryContext, RelationGetDescr(relation), table,
														 moving->tables[table].generated, moving->tables[table].xml_as_text);
	TupleTableSlot *slot = table_slot_create(relation, NULL);
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "tessera verified row", ALLOCSET_DEFAULT_SIZES);
	TesseraRangeScan *scan;
	StringInfoData row;

	initStringInfo(&row);
	scan = tessera_range_scan_begin(relation, group->ks, moving->tables[table].keys, group->nranges, group->ranges, GetActiveSnapshot());
	while (tessera_range_scan_next(scan, slot))
	{
		MemoryContext old;

		slot_getallattrs(slot);
		resetStringInfo(&row);
		old = MemoryContextSwitchTo(row_context);
		tessera_row_write(writer, &row, slot->tts_values, slot->tts_isnull, NULL);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
		tessera_digest_add(digest, row.data, row.len);
	}
	tessera_range_scan_end(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(row_context);
	tessera_row_writer_free(writer);
	pfree(row.data);
}

static void
compare_table(TesseraMovingRanges *moving, int table, const TesseraDigest *donors)
{
	Relation	relation = table_open(moving->tables[table].relid, AccessShareLock);
	TesseraDigest ours = {0};

	sum_table(moving, table, relation, &ours);
	if (!tessera_digest_equal(&ours, donors))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("verification of the clone: rows of table \"%s\" differ (donor: " INT64_FORMAT " rows, recipient: " INT64_FORMAT " rows)",
						table_name(relation), donors->rows, ours.rows)));
	table_close(relation, NoLock);
}

void
tessera_verify_clone(TesseraMovingRanges *moving, const char *payload, Size size)
{
	TesseraPayloadCursor cursor = {.data = payload, .size = size};
	char		type;
	int			table;
	int			nestlevel;

	tessera_background_begin();
	nestlevel = tessera_codec_push_settings();
	while (tessera_record_next(&cursor, moving->ntables, &type, &table))
	{
		TesseraDigest donors;

		if (type != TESSERA_RECORD_SUM)
			tessera_payload_damaged("A record of digests is of another type.");
		tessera_digest_read(&cursor, &donors);
		compare_table(moving, table, &donors);
	}
	tessera_codec_pop_settings(nestlevel);
	tessera_background_commit();
}


/* Keys that have changed */

static void
compare_key(TesseraKeyRows *rows, TesseraPayloadCursor *cursor, bool last)
{
	TesseraDigest ours = {0};
	TesseraDigest donors;

	if (rows == NULL)
		tessera_payload_damaged("A key comes before its table's description.");
	tessera_key_rows_digest(rows, cursor, &ours);
	tessera_digest_read(cursor, &donors);
	if (!tessera_digest_equal(&ours, &donors))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("verification of changes%s: rows of table \"%s\" with key (%s) differ (donor: " INT64_FORMAT " rows, recipient: "
						"" INT64_FORMAT " rows)",
						last ? " in the pause" : "", tessera_key_rows_table(rows), tessera_key_rows_text(rows), donors.rows, ours.rows)));
}

void
tessera_verify_keys(TesseraMovingRanges *moving, const char *payload, Size size, bool last)
{
	TesseraPayloadCursor cursor = {.data = payload, .size = size};
	TesseraKeyRows *rows = NULL;
	char		type;
	int			table;
	int			nestlevel;

	tessera_background_begin();
	nestlevel = tessera_codec_push_settings();
	while (tessera_record_next(&cursor, moving->ntables, &type, &table))
	{
		CHECK_FOR_INTERRUPTS();
		if (type == TESSERA_RECORD_KEY)
			compare_key(rows, &cursor, last);
		else if (type == TESSERA_RECORD_TABLE)
		{
			if (rows != NULL)
				tessera_key_rows_end(rows);
			rows = tessera_key_rows_begin(moving, table, &cursor);
		}
		else
			tessera_payload_damaged("A record of keys is of another type.");
	}
	if (rows != NULL)
		tessera_key_rows_end(rows);
	tessera_codec_pop_settings(nestlevel);
	tessera_background_commit();
}
