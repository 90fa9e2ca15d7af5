/*
 * decision.c
 *	  Writes tessera.transaction_decision without SPI, because it runs at the end of a transaction, as the current user, whoever that is.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

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

void
tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants)
{
	Oid			relid = get_relname_relid("transaction_decision", get_namespace_oid("tessera", false));
	Datum	   *elements = palloc(Max(nparticipants, 1) * sizeof(Datum));
	Relation	relation;
	Datum	   *values;
	bool	   *nulls;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation tessera.transaction_decision is missing")));
	relation = table_open(relid, RowExclusiveLock);
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
