/*
 * cut_snapshot.c
 *	  Snapshots as of a cluster time; see cut_snapshot.h.
 *
 * What is hidden in such a snapshot was committed after the one that was taken when it was asked for, which is kept: so no row version that it needs
 * is pruned, no page is marked as visible to all, no index entry dropped, and an index that was made since is not used. Of a statement a copy is made
 * and kept under its number (session/internal_connection.h); the snapshot of a transaction is changed in place, as whoever asks for it later gets a
 * copy of it.
 *
 * Hidden transactions are known by their top-level ids, so the snapshot says that it does not know all subtransactions: they are looked up.
 *
 * Memory: in the top transaction's context.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "catalog/clock_store.h"
#include "clock/clock.h"
#include "clock/commit_times.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "executor/cut_serializable.h"
#include "executor/cut_snapshot.h"
#include "executor/cut_writers.h"
#include "executor/executor_settings.h"
#include "executor/open_doubts.h"
#include "executor/shard_check.h"
#include "session/internal_connection.h"
#include "transaction/cluster_time.h"

/* How often a snapshot is taken anew as a commit became visible meanwhile, before the caller asks again. */
#define MOST_ATTEMPTS 100

/* Time for a reservation of the clock, in ms. */
#define RESERVE_MS 5000


/* ---- the first step ---- */

List *
tessera_cut_lock(List *relids)
{
	List	   *all = NIL;
	ListCell   *cell;

	foreach(cell, relids)
	{
		LockRelationOid(lfirst_oid(cell), AccessShareLock);
		/* it may have been dropped while it was waited for; what runs then says so */
		if (get_rel_relkind(lfirst_oid(cell)) != '\0')
			all = list_concat_unique_oid(all, find_all_inheritors(lfirst_oid(cell), AccessShareLock, NULL));
	}
	return all;
}

static void
note_doubts(TesseraCutAsk *ask, const List *doubts)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	ListCell   *cell;

	ask->clients = ask->named = NIL;
	foreach(cell, doubts)
	{
		const TesseraDoubt *doubt = lfirst(cell);
		List	  **list = doubt->of_client ? &ask->clients : &ask->named;

		*list = lappend_int(*list, (int) doubt->xid);
	}
	MemoryContextSwitchTo(before);
}

TesseraTime
tessera_cut_ask(TesseraCutAsk *ask, List *relids, ResourceOwner owner, List **doubts)
{
	TesseraWriters writers = {.relids = relids};
	List	   *found;
	Snapshot	seen;

	tessera_clock_load();
	tessera_clock_find_prepared();
	ask->relids = relids;
	ask->owner = owner;
	ask->position = tessera_commit_position();
	if (IsolationUsesXactSnapshot())
	{
		ask->held = GetTransactionSnapshot();
		tessera_serializable_track();
		/* the transaction's own may have been taken before the position: what it does not see is found from there on all the same */
		seen = GetLatestSnapshot();
	}
	else
		seen = ask->held = RegisterSnapshotOnOwner(GetTransactionSnapshot(), owner);
	found = tessera_commit_doubts(seen, IsolationUsesXactSnapshot() ? NULL : tessera_writes_what_is_read, &writers);
	note_doubts(ask, found);
	*doubts = list_concat(*doubts, found);
	return tessera_commit_newest(seen);
}

void
tessera_cut_release(TesseraCutAsk *ask)
{
	if (ask->held != NULL && !IsolationUsesXactSnapshot())
		UnregisterSnapshotFromOwner(ask->held, ask->owner);
	ask->held = NULL;
	list_free(ask->clients);
	list_free(ask->named);
	ask->clients = ask->named = NIL;
}

/* ---- the second step ---- */

/* Room that the lists of `from` and n more take, in bytes. */
static Size
lists_size(Snapshot from, int n)
{
	return sizeof(TransactionId) * (from->xcnt + n + from->subxcnt);
}

/* The lists of `from` and what is hidden, into that room. */
static void
set_lists(Snapshot to, Snapshot from, const TransactionId *hidden, int n, TransactionId *room)
{
	to->xmax = from->xmax;
	to->xcnt = from->xcnt + n;
	to->xip = to->xcnt > 0 ? room : NULL;
	if (from->xcnt > 0)
		memcpy(to->xip, from->xip, sizeof(TransactionId) * from->xcnt);
	if (n > 0)
		memcpy(to->xip + from->xcnt, hidden, sizeof(TransactionId) * n);
	to->suboverflowed = from->suboverflowed || n > 0;
	to->subxcnt = to->suboverflowed ? 0 : from->subxcnt;
	to->subxip = to->subxcnt > 0 ? room + to->xcnt : NULL;
	if (to->subxcnt > 0)
		memcpy(to->subxip, from->subxip, sizeof(TransactionId) * to->subxcnt);
}

/* Another number for each: what is cached by snapshot is not taken for that of another one of the same bounds. */
static uint64
next_serial(void)
{
	static uint64 serial = 0;

	return ++serial;
}

static Snapshot
make_copy(Snapshot from, Snapshot held, const TransactionId *hidden, int n, ResourceOwner owner)
{
	/* one chunk, as the server frees it so */
	Snapshot	copy = MemoryContextAlloc(TopTransactionContext, sizeof(SnapshotData) + lists_size(from, n));

	*copy = *from;
	copy->regd_count = 0;
	copy->active_count = 0;
	copy->copied = true;
	set_lists(copy, from, hidden, n, (TransactionId *) (copy + 1));
	/* all that is hidden was in progress in the one that is held */
	if (n > 0)
		copy->xmin = TransactionIdPrecedes(held->xmin, from->xmin) ? held->xmin : from->xmin;
	copy->snapXactCompletionCount = next_serial();
	return RegisterSnapshotOnOwner(copy, owner);
}

/* How the own snapshot of the transaction with this id was before it was changed; copies of it may be about. In TopTransactionContext. */
typedef struct Former
{
	LocalTransactionId transaction;
	TransactionId xmax;
	uint32		xcnt;
	TransactionId *xip;
} Former;

static Former former = {InvalidLocalTransactionId};

static void
note_former(Snapshot own)
{
	if (former.transaction == tessera_proc_lxid(MyProc))
		return;
	/* set_lists leaves them alone: they are the server's, and stay */
	former = (Former) {.transaction = tessera_proc_lxid(MyProc),.xmax = own->xmax,.xcnt = own->xcnt,.xip = own->xip};
}

/* (One that was taken by itself, and is the same, shows the same.) */
static bool
is_former(Snapshot snapshot)
{
	return snapshot->snapshot_type == SNAPSHOT_MVCC && snapshot->xmax == former.xmax && snapshot->xcnt == former.xcnt &&
		(former.xcnt == 0 || memcmp(snapshot->xip, former.xip, sizeof(TransactionId) * former.xcnt) == 0);
}

void
tessera_cut_renew(Snapshot snapshot)
{
	if (former.transaction != tessera_proc_lxid(MyProc) || snapshot == NULL || snapshot == GetTransactionSnapshot() || !is_former(snapshot))
		return;
	tessera_cut_copy(snapshot, GetTransactionSnapshot());
}

/* The transaction's own becomes the one that is as of the moment. */
static Snapshot
change_own(Snapshot now, const TesseraCutResult *result)
{
	Snapshot	own = GetTransactionSnapshot();

	note_former(own);
	set_lists(own, now, result->hidden, result->nhidden, MemoryContextAlloc(TopTransactionContext, lists_size(now, result->nhidden)));
	own->snapXactCompletionCount = next_serial();
	tessera_serializable_snapshot_taken();
	return own;
}

void
tessera_cut_copy(Snapshot to, Snapshot from)
{
	set_lists(to, from, NULL, 0, MemoryContextAlloc(TopTransactionContext, lists_size(from, 0)));
	to->snapXactCompletionCount = from->snapXactCompletionCount;
}

/* A reservation that the clock is short of: a reader that makes commits later needs one. */
static void
reserve(void)
{
	TesseraTime needed;

	if (tessera_clock_wants_reservation(&needed))
		(void) tessera_clock_await(needed, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RESERVE_MS));
}

Snapshot
tessera_cut_take(TesseraCutAsk *ask, const TesseraCutMoment *moment)
{
	TesseraCutRequest request = {.time = moment->time,.position = ask->position,.doubts = moment->doubts,.clients = ask->clients,
	.serializable = IsolationIsSerializable()};
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_gate_timeout);
	bool		whole = IsolationUsesXactSnapshot();

	/* which tables a transaction is going to read is not known: each of its statements looks at what was left open */
	if (whole)
		request.named = ask->named;
	else
		request.concerns = tessera_writes_what_is_read;
	(void) tessera_clock_hear(&(TesseraTimes) {.cluster = moment->time}, true);
	tessera_injection("cut_take");
	for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++)
	{
		Snapshot	now = whole ? GetLatestSnapshot() : GetTransactionSnapshot();
		TesseraWriters writers = {.relids = ask->relids};
		TesseraCutResult result;

		CHECK_FOR_INTERRUPTS();
		request.arg = &writers;
		switch (tessera_commit_cut(now, &request, &result))
		{
			case TESSERA_CUT_MADE:
				if (tessera_injection_skips("cut"))
					result.nhidden = 0;
				if (!whole)
					return make_copy(now, ask->held, result.hidden, result.nhidden, ask->owner);
				if (!tessera_open_doubts_note(result.open, moment->time, ask->position))
					break;
				return change_own(now, &result);
			case TESSERA_CUT_LATE:
				return NULL;
			case TESSERA_CUT_AGAIN:
				reserve();
				break;
			case TESSERA_CUT_WAIT:
				for (int i = 0; i < result.nwaits; i++)
					tessera_await_writer(result.waits[i], deadline);
				break;
		}
	}
	return NULL;
}

/* ---- on an internal connection ---- */

/* What a router has asked for: for the statement of this number; number 0: for the transaction. Emptied with the transaction's id. */
typedef struct Asked
{
	LocalTransactionId transaction;
	uint64		number;
	TesseraCutAsk ask;
	List	   *tables;			/* of a statement: those that were named */
	bool		missing;		/* it could not be had */
	Snapshot	met;			/* made without a question before: of the next statement, under no number */
} Asked;

static Asked asked = {InvalidLocalTransactionId};

static bool
is_at_hand(void)
{
	return asked.transaction == tessera_proc_lxid(MyProc) &&
		asked.number == (IsolationUsesXactSnapshot() ? 0 : tessera_internal_statement());
}

bool
tessera_cut_missing(void)
{
	bool		missing = is_at_hand() && asked.missing;

	/* without a number it was of this statement alone */
	if (missing && asked.number == 0 && !IsolationUsesXactSnapshot())
		asked.missing = false;
	return missing;
}

/* The tables that are known here by these ids; others are found to be stale when the statement comes. */
static List *
find_tables(ArrayType *ids)
{
	const TesseraRouting *routing = tessera_routing();
	List	   *relids = NIL;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	deconstruct_array(ids, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &values, &nulls, &n);
	for (int i = 0; i < n && routing != NULL; i++)
	{
		const TesseraTable *table = nulls[i] ? NULL : tessera_routing_table_by_id(routing, DatumGetUUIDP(values[i]));

		if (table != NULL)
			relids = lappend_oid(relids, table->relid);
	}
	return relids;
}

static void
release_asked(void)
{
	if (asked.transaction != tessera_proc_lxid(MyProc))
		return;
	tessera_cut_release(&asked.ask);
	if (asked.met != NULL)
		UnregisterSnapshotFromOwner(asked.met, TopTransactionResourceOwner);
	asked.met = NULL;
}

/* True if a snapshot shows the rows of all tables where the router looks for them. */
static bool
tables_fit(Snapshot snapshot)
{
	ListCell   *cell;

	foreach(cell, asked.tables)
		if (tessera_shard_check_read(lfirst_oid(cell), snapshot, NULL) == TESSERA_STALE)
			return false;
	return true;
}

/* 0: this shard and the router differ in where the tables' rows are. */
static TesseraTime
serve_ask(ArrayType *tables, List **doubts)
{
	bool		whole = IsolationUsesXactSnapshot();
	MemoryContext before;
	TesseraTime newest;

	if (asked.transaction == tessera_proc_lxid(MyProc))
	{
		release_asked();
		list_free(asked.ask.relids);
		list_free(asked.tables);
	}
	memset(&asked, 0, sizeof(asked));
	before = MemoryContextSwitchTo(TopTransactionContext);
	asked.tables = whole ? NIL : find_tables(tables);
	asked.ask.relids = whole ? NIL : tessera_cut_lock(asked.tables);
	MemoryContextSwitchTo(before);
	newest = tessera_cut_ask(&asked.ask, asked.ask.relids, TopTransactionResourceOwner, doubts);
	asked.transaction = tessera_proc_lxid(MyProc);
	asked.number = whole ? 0 : tessera_internal_statement();
	asked.missing = true;
	return tables_fit(asked.ask.held) ? newest : 0;
}

int64
tessera_serve_ask(const TesseraAskArgs *args)
{
	List	   *doubts = NIL;

	tessera_injection("cut_ask");
	return (int64) serve_ask(args->tables, &doubts);
}

ArrayType *
tessera_serve_ask_moment(const TesseraAskMomentArgs *args)
{
	List	   *doubts = NIL;
	TesseraTime newest;
	Datum	   *answer;
	int			n = 0;
	ListCell   *cell;

	tessera_injection("cut_ask");
	newest = serve_ask(args->tables, &doubts);
	answer = palloc(sizeof(Datum) * (2 * list_length(doubts) + 1));
	answer[n++] = CStringGetTextDatum(tessera_call_from_int8((int64) newest));
	foreach(cell, doubts)
	{
		const TesseraDoubt *doubt = lfirst(cell);

		answer[n++] = CStringGetTextDatum(doubt->gid);
		answer[n++] = CStringGetTextDatum(tessera_call_from_int8((int64) doubt->prepared));
	}
	return construct_array(answer, n, TEXTOID, -1, false, TYPALIGN_INT);
}

/* What the router has found out about them. */
static List *
read_doubts(ArrayType *doubts, ArrayType *answers)
{
	List	   *list = NIL;
	Datum	   *gids;
	Datum	   *values;
	int			n;
	int			nvalues;

	if (doubts == NULL || answers == NULL)
		return NIL;
	if (array_contains_nulls(doubts) || array_contains_nulls(answers))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("transactions in doubt must not be null")));
	deconstruct_array(doubts, TEXTOID, -1, false, TYPALIGN_INT, &gids, NULL, &n);
	deconstruct_array(answers, INT4OID, sizeof(int32), true, TYPALIGN_INT, &values, NULL, &nvalues);
	for (int i = 0; i < Min(n, nvalues); i++)
	{
		TesseraDoubt *doubt = palloc0(sizeof(TesseraDoubt));

		strlcpy(doubt->gid, TextDatumGetCString(gids[i]), sizeof(doubt->gid));
		doubt->decided = (TesseraDecided) DatumGetInt32(values[i]);
		list = lappend(list, doubt);
	}
	return list;
}

/* The snapshot that was asked for as of the moment; of a statement it is kept under its number. NULL: it cannot be had. */
static Snapshot
take(const TesseraCutMoment *moment)
{
	Snapshot	cut;

	if (!is_at_hand())
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("a common snapshot is stated that was not asked for")));
	cut = tessera_cut_take(&asked.ask, moment);
	tessera_cut_release(&asked.ask);
	asked.missing = cut == NULL;
	if (cut == NULL || IsolationUsesXactSnapshot())
		return cut;
	tessera_internal_keep_snapshot(cut);
	UnregisterSnapshotFromOwner(cut, TopTransactionResourceOwner);
	return cut;
}

void
tessera_serve_take(const TesseraTakeArgs *args)
{
	TesseraCutMoment moment = {.time = (TesseraTime) args->cluster_time,.doubts = read_doubts(args->doubts, args->answers)};

	(void) take(&moment);
}

bool
tessera_serve_settle(const TesseraSettleArgs *args)
{
	TesseraCutMoment moment = {.time = (TesseraTime) args->cluster_time,.doubts = read_doubts(args->doubts, args->answers)};
	Snapshot	cut = take(&moment);

	/* a range may have moved between the question and the time; later it does not matter */
	asked.missing = cut == NULL || !tables_fit(cut);
	return !asked.missing;
}

/* ---- without a question ---- */

bool
tessera_cut_in_doubt(const TesseraCutMoment *moment)
{
	ListCell   *cell;

	foreach(cell, moment->doubts)
		if (((TesseraDoubt *) lfirst(cell))->prepared <= moment->time)
			return true;
	return false;
}

/* A commit that was seen, and is later than the moment, may have been acknowledged before the statement began: it must not be hidden. */
static void
meet(ArrayType *tables, TesseraCutMoment *moment)
{
	TesseraTime newest = serve_ask(tables, &moment->doubts);

	if (newest != 0 && newest <= moment->time && !tessera_cut_in_doubt(moment))
		asked.met = tessera_cut_take(&asked.ask, moment);
	tessera_cut_release(&asked.ask);
	if (asked.met != NULL && !tables_fit(asked.met))
		release_asked();
	asked.missing = asked.met == NULL;
}

/* The clock is raised first: what takes its time, or is prepared, after that is later than the router's. */
bool
tessera_serve_meet(const TesseraMeetArgs *args)
{
	TesseraCutMoment moment = {.time = (TesseraTime) args->cluster_time};

	tessera_injection("cut_meet");
	if (IsolationUsesXactSnapshot() || tessera_internal_statement() != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("a common snapshot is stated for what goes by another one")));
	tessera_clock_load();
	if (tessera_clock_raise(moment.time))
		meet(args->tables, &moment);
	else
	{
		release_asked();
		asked = (Asked) {.transaction = tessera_proc_lxid(MyProc),.missing = true};
	}
	return !asked.missing;
}

Snapshot
tessera_cut_met(void)
{
	Snapshot	met = is_at_hand() ? asked.met : NULL;

	asked.met = NULL;
	return met;
}

void
tessera_cut_snapshot_release(void)
{
	release_asked();
}

/* An error between the call and its statement: what comes next on the connection is another one. */
void
tessera_cut_snapshot_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	if (IsolationUsesXactSnapshot() || !is_at_hand() || asked.number != 0)
		return;
	release_asked();
	asked.missing = false;
}

void
tessera_cut_snapshot_forget(void)
{
	memset(&asked, 0, sizeof(asked));
}
