/*
 * decision.c
 *	  Writes tessera.transaction_decision without SPI, because it runs at the end of a transaction, as the current user, whoever that is.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/generic_xlog.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
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

/* What this transaction has inserted; of an earlier one if the transaction id is another. */
typedef struct Decided
{
	char		gid[NAMEDATALEN * 2];
	TransactionId xid;
	ItemPointerData place;
} Decided;

static Decided decided;

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
open_decisions(LOCKMODE mode)
{
	Oid			relid = get_relname_relid("transaction_decision", get_namespace_oid("tessera", false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation tessera.transaction_decision is missing")));
	return table_open(relid, mode);
}

void
tessera_decision_insert(const char *gid, const int32 *participants, int nparticipants)
{
	Datum	   *elements = palloc(Max(nparticipants, 1) * sizeof(Datum));
	Relation	relation = open_decisions(RowExclusiveLock);
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
	set_column(relation, values, nulls, "commit_time", Int64GetDatum(0));	/* a place for it */
	tuple = heap_form_tuple(RelationGetDescr(relation), values, nulls);
	CatalogTupleInsert(relation, tuple);
	strlcpy(decided.gid, gid, sizeof(decided.gid));
	decided.xid = GetTopTransactionId();
	decided.place = tuple->t_self;
	heap_freetuple(tuple);
	table_close(relation, NoLock);
	ForceSyncCommit();
}

/*
 * Over the place that the row has for it: nobody can have seen the row, and an update would leave a dead one behind for each transaction. As a change
 * of the page: core's record of a row that is overwritten makes logical decoding take the transaction for one that has changed the server's catalogs.
 */
static void
write_time(Relation relation, TesseraTime time)
{
	int			natts = RelationGetNumberOfAttributes(relation);
	Datum	   *values = palloc0(natts * sizeof(Datum));
	bool	   *nulls = palloc0(natts * sizeof(bool));
	bool	   *replace = palloc0(natts * sizeof(bool));
	HeapTupleData row = {.t_self = decided.place};
	HeapTuple	changed;
	Buffer		buffer;
	GenericXLogState *state;
	Page		page;
	ItemId		item;
	HeapTupleHeader there;

	if (!heap_fetch(relation, SnapshotSelf, &row, &buffer, false))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the decision of transaction %s is not where it was written", decided.gid)));
	set_column(relation, values, nulls, "commit_time", Int64GetDatum((int64) time));
	replace[get_attnum(RelationGetRelid(relation), "commit_time") - 1] = true;
	changed = heap_modify_tuple(&row, RelationGetDescr(relation), values, nulls, replace);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(relation);
	page = GenericXLogRegisterBuffer(state, buffer, 0);
	item = PageGetItemId(page, ItemPointerGetOffsetNumber(&decided.place));
	there = (HeapTupleHeader) PageGetItem(page, item);
	if (ItemIdGetLength(item) != changed->t_len || there->t_hoff != changed->t_data->t_hoff)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the decision of transaction %s has no place for its time", decided.gid)));
	memcpy((char *) there + there->t_hoff, (char *) changed->t_data + there->t_hoff, changed->t_len - there->t_hoff);
	(void) GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

TesseraTime
tessera_decision_take_time(const char *gid)
{
	Relation	relation = open_decisions(RowExclusiveLock);
	TesseraTime time;

	if (strcmp(decided.gid, gid) != 0 || !TransactionIdIsValid(decided.xid) || decided.xid != GetTopTransactionIdIfAny())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transaction %s has no decision in this transaction", gid)));
	time = tessera_clock_take_commit_time(tessera_catalog_changed_here() > 0, true);
	if (time != 0)
		write_time(relation, time);
	table_close(relation, NoLock);
	return time;
}

/* ---- looking ---- */

/* Who has locked the row, to change it; invalid: nobody who still runs. */
static TransactionId
who_has_locked(HeapTuple row)
{
	TransactionId xmax = HeapTupleHeaderGetRawXmax(row->t_data);
	MultiXactMember *members;
	int			n;

	if (row->t_data->t_infomask & HEAP_XMAX_INVALID)
		return InvalidTransactionId;
	if (!(row->t_data->t_infomask & HEAP_XMAX_IS_MULTI))
		return TransactionIdIsInProgress(xmax) ? xmax : InvalidTransactionId;
	n = GetMultiXactIdMembers(xmax, &members, false, HEAP_XMAX_IS_LOCKED_ONLY(row->t_data->t_infomask));
	for (int i = 0; i < n; i++)
		if (TransactionIdIsInProgress(members[i].xid))
			return members[i].xid;
	return InvalidTransactionId;
}

static Datum
column(Relation relation, HeapTuple row, const char *name, bool *null)
{
	return heap_getattr(row, get_attnum(RelationGetRelid(relation), name), RelationGetDescr(relation), null);
}

/* Only of a row whose inserter is committed: nobody writes into it any more. */
static TesseraTime
commit_time_of(Relation relation, HeapTuple row)
{
	bool		null;
	Datum		commit_time = column(relation, row, "commit_time", &null);

	return null ? 0 : (TesseraTime) DatumGetInt64(commit_time);
}

/*
 * One version of a row. What is committed as `commit` or `abort` is final, whoever is at it now; a client's decision is taken by who is at its
 * `prepared`. Of what is not committed only a `commit` is somebody's who may decide: the others note that nobody has.
 */
static TesseraDecisionState
judge(Relation relation, HeapTuple row, const SnapshotData *dirty, TransactionId *xid, TesseraTime *time)
{
	bool		null;
	char	   *outcome = TextDatumGetCString(column(relation, row, "outcome", &null));
	bool		commit = strcmp(outcome, "commit") == 0;

	if (TransactionIdIsValid(dirty->xmin))
	{
		*xid = SubTransGetTopmostTransaction(dirty->xmin);
		return commit ? TESSERA_DECISION_RUNS : TESSERA_DECISION_NONE;
	}
	if (commit)
	{
		*time = commit_time_of(relation, row);
		return TESSERA_DECISION_COMMIT;
	}
	if (strcmp(outcome, "abort") == 0)
		return TESSERA_DECISION_ABORT;
	*xid = TransactionIdIsValid(dirty->xmax) ? dirty->xmax : who_has_locked(row);
	if (!TransactionIdIsValid(*xid))
		return TESSERA_DECISION_CLIENT;
	*xid = SubTransGetTopmostTransaction(*xid);
	return TESSERA_DECISION_RUNS;
}

/* All that there is under the gid: a row that is just being changed has two versions, and what is final, or may be, counts. */
static TesseraDecisionState
look(Relation relation, const char *gid, TransactionId *xid, TesseraTime *time)
{
	TesseraDecisionState state = TESSERA_DECISION_NONE;
	SnapshotData dirty;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	row;

	InitDirtySnapshot(dirty);
	ScanKeyEntryInitialize(&key, 0, get_attnum(RelationGetRelid(relation), "gid"), BTEqualStrategyNumber, InvalidOid, DEFAULT_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(gid));
	scan = systable_beginscan(relation, RelationGetPrimaryKeyIndex(relation), true, &dirty, 1, &key);
	while (state != TESSERA_DECISION_COMMIT && state != TESSERA_DECISION_ABORT && (row = systable_getnext(scan)) != NULL)
	{
		TransactionId at = InvalidTransactionId;
		TesseraDecisionState of_row = judge(relation, row, &dirty, &at, time);

		if (of_row == TESSERA_DECISION_NONE || (of_row == TESSERA_DECISION_CLIENT && state == TESSERA_DECISION_RUNS))
			continue;
		state = of_row;
		*xid = at;
	}
	systable_endscan(scan);
	return state;
}

TesseraDecisionState
tessera_decision_look(const char *gid, TransactionId *xid, TesseraTime *time)
{
	Relation	relation = open_decisions(AccessShareLock);
	TesseraDecisionState state = look(relation, gid, xid, time);

	/* it may have been changed while both of its versions were looked for; only once in its life is it */
	if (state == TESSERA_DECISION_NONE)
		state = look(relation, gid, xid, time);
	table_close(relation, AccessShareLock);
	return state;
}
