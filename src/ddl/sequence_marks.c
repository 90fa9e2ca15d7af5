/*
 * sequence_marks.c
 *	  How far sequences have come whose home is lost for good, as far as another node can tell (config/give_up_shard.c): where its own copy of each
 *	  stands, which is where it was when that node was the home; and the furthest value in the columns that are filled from it. What nobody has stored
 *	  here is not found: the config node adds a margin.
 *
 * All rows that lie in the heaps count, also those that this node does not own. The end of a btree index, or the whole of a table without one.
 *
 * Locks: ACCESS SHARE on sequences, tables and indexes, to the end of the call. Nothing is changed.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "common/spi_row.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/sequence_private.h"


/* The furthest value so far. */
typedef struct Mark
{
	bool		ascends;
	bool		found;
	int64		value;
} Mark;

static void
reach(Mark *mark, int64 value)
{
	if (!mark->found || (mark->ascends ? value > mark->value : value < mark->value))
		mark->value = value;
	mark->found = true;
}

static void
reach_column(Mark *mark, TupleTableSlot *slot, AttrNumber column, Oid type)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	if (!isnull)
		reach(mark, type == INT8OID ? DatumGetInt64(value) : type == INT4OID ? DatumGetInt32(value) : DatumGetInt16(value));
}

/* A btree index of all rows whose first column it is; InvalidOid: there is none. */
static Oid
find_index(Relation rel, AttrNumber column)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		bool		fits = index->rd_rel->relam == BTREE_AM_OID && index->rd_index->indisvalid && index->rd_index->indkey.values[0] == column &&
			RelationGetIndexPredicate(index) == NIL;

		index_close(index, NoLock);
		if (fits)
			return lfirst_oid(cell);
	}
	return InvalidOid;
}

static void
reach_end_of_index(Mark *mark, Relation rel, Oid index_oid, AttrNumber column, Oid type, Snapshot snapshot)
{
	Relation	index = index_open(index_oid, AccessShareLock);
	bool		descends = (index->rd_indoption[0] & INDOPTION_DESC) != 0;
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	IndexScanDesc scan = tessera_index_scan(rel, index, snapshot, 1);
	ScanKeyData not_null;

	ScanKeyEntryInitialize(&not_null, SK_ISNULL | SK_SEARCHNOTNULL, 1, InvalidStrategy, InvalidOid, InvalidOid, InvalidOid, (Datum) 0);
	index_rescan(scan, &not_null, 1, NULL, 0);
	if (index_getnext_slot(scan, mark->ascends == descends ? ForwardScanDirection : BackwardScanDirection, slot))
		reach_column(mark, slot, column, type);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
}

static void
reach_all_rows(Mark *mark, Relation rel, AttrNumber column, Oid type, Snapshot snapshot)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		reach_column(mark, slot, column, type);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

static void
reach_table(Mark *mark, Oid relid, AttrNumber column, Oid type)
{
	Relation	rel = try_table_open(relid, AccessShareLock);
	Snapshot	snapshot;
	Oid			index;

	if (rel == NULL)
		return;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	index = find_index(rel, column);
	if (OidIsValid(index))
		reach_end_of_index(mark, rel, index, column, type, snapshot);
	else
		reach_all_rows(mark, rel, column, type, snapshot);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/* Columns that own the sequence, or whose default draws from it; of all partitions that have rows. */
static const char *const columns_sql =
	"SELECT DISTINCT a.attrelid, a.attnum, a.atttypid FROM"
	" (SELECT d.refobjid AS relid, d.refobjsubid::int2 AS attnum FROM pg_catalog.pg_depend AS d WHERE d.classid = 'pg_catalog.pg_class'::regclass"
	"   AND d.objid = $1 AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')"
	"  UNION SELECT f.adrelid, f.adnum FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_attrdef AS f ON f.oid = d.objid"
	"   WHERE d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = $1) AS c"
	" JOIN pg_catalog.pg_attribute AS o ON o.attrelid = c.relid AND o.attnum = c.attnum"
	" CROSS JOIN LATERAL (SELECT c.relid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(c.relid) AS t) AS t"
	" JOIN pg_catalog.pg_class AS k ON k.oid = t.relid AND k.relkind = 'r'"
	" JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.relid AND a.attname = o.attname"
	" WHERE a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) ORDER BY 1, 2";

static void
reach_columns(Mark *mark, Oid sequence)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid		   *tables;
	AttrNumber *columns;
	Oid		   *types;
	TesseraSpi	spi;
	int			n;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run(columns_sql, SPI_OK_SELECT, 1, (Oid[]) {OIDOID}, (Datum[]) {ObjectIdGetDatum(sequence)}, NULL);
	MemoryContextSwitchTo(caller);
	tables = palloc(sizeof(Oid) * Max(n, 1));
	columns = palloc(sizeof(AttrNumber) * Max(n, 1));
	types = palloc(sizeof(Oid) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		tables[i] = DatumGetObjectId(spi_row_value(i, 1));
		columns[i] = DatumGetInt16(spi_row_value(i, 2));
		types[i] = DatumGetObjectId(spi_row_value(i, 3));
	}
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	for (int i = 0; i < n; i++)
		reach_table(mark, tables[i], columns[i], types[i]);
}

/* Appends "name": value, if anything is known of the sequence. */
static void
append_mark(StringInfo json, Oid sequence)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Mark		mark = {0};
	Datum		values[3];
	bool		nulls[3];

	if (!HeapTupleIsValid(tuple))
		return;
	mark.ascends = ((Form_pg_sequence) GETSTRUCT(tuple))->seqincrement > 0;
	ReleaseSysCache(tuple);
	if (tessera_sequence_read_here(sequence, values, nulls) && DatumGetBool(values[2]))
		reach(&mark, DatumGetInt64(values[0]));
	reach_columns(&mark, sequence);
	if (!mark.found)
		return;
	if (json->data[json->len - 1] != '{')
		appendStringInfoString(json, ", ");
	escape_json(json, get_rel_name(sequence));
	appendStringInfo(json, ": " INT64_FORMAT, mark.value);
}

Jsonb *
tessera_serve_sequence_marks(const TesseraSequenceMarksArgs *args)
{
	StringInfoData json;
	Datum	   *schemas;
	int			n;

	deconstruct_array(args->schemas, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &schemas, NULL, &n);
	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	for (int i = 0; i < n; i++)
	{
		char	   *schema = NameStr(*DatumGetName(schemas[i]));
		List	   *sequences = tessera_sequences_of(schema);
		ListCell   *cell;

		appendStringInfoString(&json, i > 0 ? ", " : "");
		escape_json(&json, schema);
		appendStringInfoString(&json, ": {");
		foreach(cell, sequences)
			append_mark(&json, lfirst_oid(cell));
		appendStringInfoChar(&json, '}');
	}
	appendStringInfoChar(&json, '}');
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
}
