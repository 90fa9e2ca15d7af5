/*
 * decision.c
 *	  Writes tessera.transaction_decision without SPI, because it runs at the end of a transaction, as the current user, whoever that is.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/decision.h"

static void
set_column(Relation relation, Datum *values, bool *nulls, const char *name, Datum value)
{
	AttrNumber	attribute = get_attnum(RelationGetRelid(relation), name);

	if (attribute == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of tessera.transaction_decision is missing", name)));
	values[attribute - 1] = value;
	nulls[attribute - 1] = false;
}

static Relation
open_decisions(void)
{
	Oid			relid = get_relname_relid("transaction_decision", get_namespace_oid("tessera", false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation tessera.transaction_decision is missing")));
	return table_open(relid, RowExclusiveLock);
}

void
tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants)
{
	Datum	   *elements = palloc(Max(nparticipants, 1) * sizeof(Datum));
	Relation	relation = open_decisions();
	Datum	   *values;
	bool	   *nulls;
	HeapTuple	tuple;

	values = palloc0(RelationGetNumberOfAttributes(relation) * sizeof(Datum));
	nulls = palloc(RelationGetNumberOfAttributes(relation) * sizeof(bool));
	memset(nulls, true, RelationGetNumberOfAttributes(relation) * sizeof(bool));

	for (int i = 0; i < nparticipants; i++)
		elements[i] = Int32GetDatum(participants[i]);
	set_column(relation, values, nulls, "gid", CStringGetTextDatum(gid));
	set_column(relation, values, nulls, "outcome", CStringGetTextDatum("commit"));
	set_column(relation, values, nulls, "participants",
			   PointerGetDatum(construct_array(elements, nparticipants, INT4OID, sizeof(int32), true, TYPALIGN_INT)));
	set_column(relation, values, nulls, "decided", TimestampTzGetDatum(GetCurrentTimestamp()));
	tuple = heap_form_tuple(RelationGetDescr(relation), values, nulls);
	CatalogTupleInsert(relation, tuple);
	heap_freetuple(tuple);
	table_close(relation, NoLock);
	ForceSyncCommit();
}

TesseraTime
tessera_decision_take_time(const char *gid)
{
	Relation	relation = open_decisions();
	Relation	index = index_open(RelationGetPrimaryKeyIndex(relation), AccessShareLock);
	TesseraTime time;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;

	CommandCounterIncrement();
	ScanKeyInit(&key, get_attnum(RelationGetRelid(relation), "gid"), BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(gid));
	key.sk_collation = index->rd_indcollation[0];
	scan = systable_beginscan(relation, RelationGetRelid(index), true, NULL, 1, &key);
	row = systable_getnext(scan);
	if (!HeapTupleIsValid(row))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transaction %s has no decision in this transaction", gid)));
	time = tessera_clock_take_commit_time(tessera_catalog_changed_here() > 0, true);
	if (time != 0)
	{
		int			natts = RelationGetNumberOfAttributes(relation);
		Datum	   *values = palloc0(natts * sizeof(Datum));
		bool	   *nulls = palloc0(natts * sizeof(bool));
		bool	   *replace = palloc0(natts * sizeof(bool));

		set_column(relation, values, nulls, "commit_time", Int64GetDatum((int64) time));
		replace[get_attnum(RelationGetRelid(relation), "commit_time") - 1] = true;
		CatalogTupleUpdate(relation, &row->t_self, heap_modify_tuple(row, RelationGetDescr(relation), values, nulls, replace));
	}
	systable_endscan(scan);
	index_close(index, NoLock);
	table_close(relation, NoLock);
	return time;
}
