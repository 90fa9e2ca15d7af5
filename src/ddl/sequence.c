/*
 * sequence.c
 *	  nextval, currval, lastval and setval of cluster sequences; see sequence.h.
 *
 * On the home the server's own functions do the work. Elsewhere nextval takes a value of this node's pool, which is filled over the control
 * connection (autocommit: values are never given back, as ever); it holds the server's lock on the local shell, so that ALTER SEQUENCE, which runs on
 * every node, finds no fetch on its way when it empties the pool. A sequence that this transaction itself created or altered is asked within the
 * transaction. setval changes the home and empties every node's pool.
 *
 * Crash of the home: no value comes again that left it. The server logs a sequence ahead of its values, perhaps in a transaction that is still open,
 * which nothing flushes; so a block is flushed before it is answered, and the log that a value drawn on the home rests on before a row is committed
 * elsewhere.
 *
 * Memory: last values of the session and what is known of each sequence, in hash tables that live until the backend exits; blocks of the
 * transaction's own sequences until it (or a subtransaction) ends.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "common/durable.h"
#include "common/spi.h"
#include "common/version_compat.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "session/internal.h"
#include "transaction/participant.h"

PG_FUNCTION_INFO_V1(tessera_nextval);
PG_FUNCTION_INFO_V1(tessera_identity_nextval);
PG_FUNCTION_INFO_V1(tessera_currval);
PG_FUNCTION_INFO_V1(tessera_lastval);
PG_FUNCTION_INFO_V1(tessera_setval);
PG_FUNCTION_INFO_V1(tessera_sequence_row);
PG_FUNCTION_INFO_V1(tessera_sequence_last_value);
PG_FUNCTION_INFO_V1(tessera_internal_sequence_block);
PG_FUNCTION_INFO_V1(tessera_internal_sequence_set);
PG_FUNCTION_INFO_V1(tessera_internal_sequence_state);
PG_FUNCTION_INFO_V1(tessera_internal_sequence_forget);

#define BLOCK_SQL "SELECT tessera.internal_sequence_block($1, $2)"
#define SET_SQL "SELECT tessera.internal_sequence_set($1, $2, $3)"
#define STATE_SQL "SELECT tessera.internal_sequence_state($1)"
#define FORGET_SQL "SELECT tessera.internal_sequence_forget($1)"
#define BLOCK_CLASS ((Oid) 0xFFFFFFF2)	/* objects that no catalog has: a sequence whose values are drawn for another node */
#define OWN_BLOCK 32			/* of a sequence of this transaction */
#define FAIR_BLOCK 32			/* so many values a node gets in any case */
#define FAIR_SHARE 16			/* more than those: at most one in so many of what is left */

/* What this session knows of a sequence. */
typedef struct Known
{
	Oid			sequence;		/* key */
	bool		has_last;
	int64		last;
	/* valid while the routing image has this number and the sequence is in this schema */
	uint64		image;
	Oid			namespace;
	bool		cluster;
	int32		home;
	/* of this transaction */
	TesseraBlock own;
} Known;

static HTAB *known = NULL;
static Oid	last_sequence = InvalidOid;
static bool own_blocks = false;

static Known *
know(Oid sequence)
{
	Known	   *entry;
	bool		found;

	if (known == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Known)};

		known = hash_create("tessera sequences", 32, &control, HASH_ELEM | HASH_BLOBS);
	}
	entry = hash_search(known, &sequence, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(Known));
		entry->sequence = sequence;
		entry->image = PG_UINT64_MAX;
	}
	return entry;
}

static void
remember(Oid sequence, int64 value)
{
	Known	   *entry = know(sequence);

	entry->last = value;
	entry->has_last = true;
	last_sequence = sequence;
}

void
tessera_sequences_discard(void)
{
	HASH_SEQ_STATUS status;
	Known	   *entry;

	last_sequence = InvalidOid;
	if (known == NULL)
		return;
	hash_seq_init(&status, known);
	while ((entry = hash_seq_search(&status)))
		entry->has_last = false;
}

/* ---- whose sequence ---- */

static int32
home_of_schema(const TesseraRouting *routing, const char *schema)
{
	static const Oid types[] = {NAMEOID};
	const TesseraNode *config = tessera_routing_config(routing);
	int32		home = config ? config->node_id : routing->self;
	NameData	name;
	Datum		value = NameGetDatum(&name);
	TesseraSpi	access;

	namestrcpy(&name, schema);
	tessera_spi_begin(&access);
	if (tessera_spi_run("SELECT coalesce(sequence_home, node_id) FROM tessera.schema_placement WHERE schema_name = $1", SPI_OK_SELECT, 1, types,
						&value, NULL) > 0)
		home = pg_strtoint32(SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&access);
	return home;
}

static bool
belongs_to_cluster(const TesseraRouting *routing, Oid sequence)
{
	Oid			owner;
	int32		column;

	if (get_rel_relkind(sequence) != RELKIND_SEQUENCE || get_rel_persistence(sequence) == RELPERSISTENCE_TEMP ||
		get_rel_namespace(sequence) == get_namespace_oid("tessera", true) || OidIsValid(getExtensionOfObject(RelationRelationId, sequence)))
		return false;
	if (sequenceIsOwned(sequence, DEPENDENCY_AUTO, &owner, &column) || sequenceIsOwned(sequence, DEPENDENCY_INTERNAL, &owner, &column))
		return OidIsValid(tessera_cluster_root(routing, owner));
	return true;
}

static Known *
know_home(const TesseraRouting *routing, Oid sequence)
{
	Known	   *entry = know(sequence);
	Oid			namespace = get_rel_namespace(sequence);

	if (entry->image != routing->sequence || entry->namespace != namespace)
	{
		entry->cluster = belongs_to_cluster(routing, sequence);
		entry->home = entry->cluster ? home_of_schema(routing, get_namespace_name(namespace)) : routing->self;
		entry->image = routing->sequence;
		entry->namespace = namespace;
	}
	return entry;
}

bool
tessera_is_cluster_sequence(const TesseraRouting *routing, Oid sequence)
{
	return know_home(routing, sequence)->cluster;
}

int32
tessera_sequence_home(const TesseraRouting *routing, Oid sequence)
{
	return know_home(routing, sequence)->home;
}

/* ---- questions to the home ---- */

static char *
qualified_name(Oid sequence)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(sequence)), get_rel_name(sequence));
}

/* First column of the first row from the home: in the transaction, or outside it. */
static char *
ask_home(const TesseraRouting *routing, int32 home, bool inside, const char *sql, int nparams, const char *const *values)
{
	PGresult   *result;

	if (inside)
		return tessera_participant_call(routing, home, true, sql, nparams, values);
	result = tessera_control_call(routing, home, sql, nparams, values);
	return PQntuples(result) > 0 && !PQgetisnull(result, 0, 0) ? pstrdup(PQgetvalue(result, 0, 0)) : NULL;
}

typedef struct Question
{
	const TesseraRouting *routing;
	Oid			sequence;
	int32		home;
	bool		inside;
} Question;

/* {first, step, count, ...} */
static void
read_block(const char *text, TesseraBlock *block)
{
	ArrayType  *array = DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, unconstify(char *, text), INT8OID, -1));
	Datum	   *values;
	int			n;

	deconstruct_array(array, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &values, NULL, &n);
	block->nruns = 0;
	for (int i = 0; i + 2 < n && block->nruns < TESSERA_POOL_RUNS; i += 3)
	{
		TesseraRun64 *run = &block->runs[block->nruns];

		run->first = DatumGetInt64(values[i]);
		run->step = DatumGetInt64(values[i + 1]);
		run->count = (int32) DatumGetInt64(values[i + 2]);
		if (run->count > 0)
			block->nruns++;
	}
}

static void
fetch_block(void *arg, int n, TesseraBlock *block)
{
	Question   *question = arg;
	const char *values[] = {qualified_name(question->sequence), psprintf("%d", n)};
	char	   *answer = ask_home(question->routing, question->home, question->inside, BLOCK_SQL, 2, values);

	if (answer)
		read_block(answer, block);
}

/* ---- the fetcher ---- */

#define FETCH_TIMEOUT 5000		/* ms that a home may take to answer */
#define FETCH_PAUSE 1000L		/* ms until a home that did not answer is asked again: at first, and in the end */
#define FETCH_PAUSE_MAX 30000L
#define FETCHER_IDLE 60000		/* ms that the worker stays without work */

/* What the home gives for one pool; empty if it is not to be asked any more. In a transaction. */
static void
fetch_reserve(Oid sequence, int n, TesseraBlock *block)
{
	const TesseraRouting *routing = tessera_routing();
	const char *values[] = {NULL, psprintf("%d", n)};
	int32		home = routing && get_rel_relkind(sequence) == RELKIND_SEQUENCE ? tessera_sequence_home(routing, sequence) : 0;
	PGresult   *result;

	if (home == 0 || home == routing->self)
		return;
	/*
	 * as nextval does, so that ALTER SEQUENCE, here or elsewhere, finds no fetch on its way; the holder of the lock may be about to drop it: later
	 * then
	 */
	if (!ConditionalLockRelationOid(sequence, RowExclusiveLock))
		return;
	values[0] = qualified_name(sequence);
	result = tessera_control_call_within(routing, home, BLOCK_SQL, lengthof(values), values, FETCH_TIMEOUT);
	if (PQntuples(result) > 0 && !PQgetisnull(result, 0, 0))
		read_block(PQgetvalue(result, 0, 0), block);
}

/*
 * True if the error says that the home did not answer. Other errors (the sequence has reached its end) would come again: then the pool is not filled
 * ahead.
 */
static bool
is_unreachable(int code)
{
	return ERRCODE_TO_CATEGORY(code) == ERRCODE_CONNECTION_EXCEPTION || ERRCODE_TO_CATEGORY(code) == ERRCODE_OPERATOR_INTERVENTION;
}

/* One pool, in a transaction of its own; false if the home did not answer. */
static bool
fill_pool(Oid sequence, int n, uint64 generation)
{
	MemoryContext context = CurrentMemoryContext;
	TesseraBlock block = {0};
	volatile bool answered = true;

	StartTransactionCommand();
	PG_TRY();
	{
		fetch_reserve(sequence, n, &block);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		/* who needs a value gets the error; the log need not have it each time */
		ereport(DEBUG1, (errmsg_internal("no values fetched: %s", error->message)));
		answered = !is_unreachable(error->sqlerrcode);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	tessera_pool_bring(sequence, generation, answered ? &block : NULL);
	return answered;
}

long
tessera_sequence_fetcher_step(void)
{
	static TimestampTz busy = 0;
	static long pause = FETCH_PAUSE;
	TimestampTz now = GetCurrentTimestamp();
	bool		failed = false;
	bool		more = false;
	int			position = 0;
	uint64		generation;
	Oid			sequence;
	int			n;

	while ((n = tessera_pool_next_wish(&position, &sequence, &generation)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		busy = now;
		if (fill_pool(sequence, n, generation))
			more = true;
		else
			failed = true;
	}
	if (failed)
	{
		pause = Min(pause * 2, FETCH_PAUSE_MAX);
		return pause / 2;
	}
	pause = FETCH_PAUSE;
	if (more)
		return 0;				/* the pools may still want more */
	return now - busy > FETCHER_IDLE * INT64CONST(1000) ? -1 : FETCHER_IDLE;
}

/* ---- nextval ---- */

static void
drop_own_blocks(void)
{
	HASH_SEQ_STATUS status;
	Known	   *entry;

	if (!own_blocks)
		return;
	own_blocks = false;
	hash_seq_init(&status, known);
	while ((entry = hash_seq_search(&status)))
		entry->own.nruns = 0;
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE || event == XACT_EVENT_ABORT)
		drop_own_blocks();
}

static void
end_subtransaction(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		drop_own_blocks();
}

void
tessera_sequence_changed(Oid sequence)
{
	Known	   *entry = known ? hash_search(known, &sequence, HASH_FIND, NULL) : NULL;

	if (entry)
		entry->own.nruns = 0;
	tessera_pool_forget(sequence);
}

/* Of a sequence that only this transaction sees as it is. */
static int64
next_of_own(Known *entry, Question *question)
{
	int64		value;

	if (!tessera_block_take(&entry->own, &value))
	{
		TesseraBlock block = {0};

		fetch_block(question, OWN_BLOCK, &block);
		if (!tessera_block_take(&block, &value))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("the home of a sequence gave no values")));
		entry = know(question->sequence);
		entry->own = block;
		own_blocks = true;
	}
	return value;
}

static void
check_privilege(Relation rel, AclMode mode)
{
	if (pg_class_aclcheck(RelationGetRelid(rel), GetUserId(), mode) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for sequence %s", RelationGetRelationName(rel))));
}

/* Opens the local shell with the lock the server's functions take, to the end of the transaction. */
static Relation
open_sequence(Oid sequence)
{
	Relation	rel = relation_open(sequence, RowExclusiveLock);

	if (rel->rd_rel->relkind != RELKIND_SEQUENCE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sequence", RelationGetRelationName(rel))));
	return rel;
}

static bool
is_own(Relation rel)
{
	return tessera_made_here(rel);
}

/*
 * A value drawn on its home: what is written elsewhere with it waits for what the sequence has logged, perhaps in a transaction that is still open.
 */
static void
rely_on_log(Oid sequence)
{
	Relation	rel = relation_open(sequence, NoLock);	/* nextval has locked it */

	if (RelationNeedsWAL(rel))
	{
		Buffer		buffer = ReadBuffer(rel, 0);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		tessera_participants_rely_on(PageGetLSN(BufferGetPage(buffer)));
		UnlockReleaseBuffer(buffer);
	}
	relation_close(rel, NoLock);
}

static int64
next_value(Oid sequence, bool check)
{
	const TesseraRouting *routing = tessera_routing();
	Relation	rel;
	Question	question;
	Known	   *entry;
	int64		value;

	if (routing == NULL || get_rel_relkind(sequence) != RELKIND_SEQUENCE || (entry = know_home(routing, sequence))->home == routing->self)
	{
		value = nextval_internal(sequence, check);
		if (routing)
			rely_on_log(sequence);
		remember(sequence, value);
		return value;
	}
	rel = open_sequence(sequence);
	if (check)
		check_privilege(rel, ACL_USAGE | ACL_UPDATE);
	PreventCommandIfReadOnly("nextval()");
	PreventCommandIfParallelMode("nextval()");
	question.routing = routing;
	question.sequence = sequence;
	question.home = entry->home;
	question.inside = is_own(rel);
	relation_close(rel, NoLock);
	value = question.inside ? next_of_own(entry, &question) : tessera_pool_next(sequence, fetch_block, &question);
	remember(sequence, value);
	return value;
}

/* nextval(regclass) */
Datum
tessera_nextval(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(next_value(PG_GETARG_OID(0), true));
}

/* identity_nextval(regclass): the default of an identity column; who may insert into the table may draw */
Datum
tessera_identity_nextval(PG_FUNCTION_ARGS)
{
	Oid			sequence = PG_GETARG_OID(0);
	Oid			table;
	int32		column;

	if (!sequenceIsOwned(sequence, DEPENDENCY_INTERNAL, &table, &column))
		PG_RETURN_INT64(next_value(sequence, true));
	if (pg_class_aclcheck(table, GetUserId(), ACL_INSERT) != ACLCHECK_OK &&
		pg_attribute_aclcheck_all(table, GetUserId(), ACL_INSERT, ACLMASK_ANY) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(table));
	PG_RETURN_INT64(next_value(sequence, false));
}

/* ---- currval, lastval ---- */

/* currval(regclass) */
Datum
tessera_currval(PG_FUNCTION_ARGS)
{
	Oid			sequence = PG_GETARG_OID(0);
	Relation	rel = open_sequence(sequence);
	Known	   *entry = know(sequence);

	check_privilege(rel, ACL_SELECT | ACL_USAGE);
	if (!entry->has_last)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("currval of sequence \"%s\" is not yet defined in this session", RelationGetRelationName(rel))));
	relation_close(rel, NoLock);
	PG_RETURN_INT64(entry->last);
}

/* lastval() */
Datum
tessera_lastval(PG_FUNCTION_ARGS)
{
	Relation	rel;

	if (!OidIsValid(last_sequence) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(last_sequence)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lastval is not yet defined in this session")));
	rel = open_sequence(last_sequence);
	check_privilege(rel, ACL_SELECT | ACL_USAGE);
	relation_close(rel, NoLock);
	PG_RETURN_INT64(know(last_sequence)->last);
}

/* ---- setval ---- */

static void
forget_everywhere(const TesseraRouting *routing, Oid sequence)
{
	const char *values[] = {qualified_name(sequence)};

	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		if (node_id != routing->self)
			(void) tessera_control_call(routing, node_id, FORGET_SQL, 1, values);
	}
	tessera_sequence_changed(sequence);
}

/*
 * On the home: not while it draws values for another node, which would begin with the value set here. The lock is an object's that no catalog has; no
 * lock is held across a call.
 */
static void
set_here(Oid sequence, int64 value, bool called)
{
	LockRelationOid(sequence, RowExclusiveLock);	/* before the other, as who draws a block */
	LockDatabaseObject(BLOCK_CLASS, sequence, 0, ExclusiveLock);
	(void) DirectFunctionCall3(setval3_oid, ObjectIdGetDatum(sequence), Int64GetDatum(value), BoolGetDatum(called));
	UnlockDatabaseObject(BLOCK_CLASS, sequence, 0, ExclusiveLock);
}

/* setval(regclass, int8, bool) */
Datum
tessera_setval(PG_FUNCTION_ARGS)
{
	Oid			sequence = PG_GETARG_OID(0);
	int64		value = PG_GETARG_INT64(1);
	bool		called = PG_NARGS() < 3 || PG_GETARG_BOOL(2);
	const TesseraRouting *routing = tessera_routing();
	Known	   *entry = routing && get_rel_relkind(sequence) == RELKIND_SEQUENCE ? know_home(routing, sequence) : NULL;

	/* before: no node fetches any more because it wanted to; after: what it got meanwhile goes */
	if (entry && entry->cluster)
		forget_everywhere(routing, sequence);
	if (entry == NULL || entry->home == routing->self)
		set_here(sequence, value, called);
	else
	{
		Relation	rel = open_sequence(sequence);
		const char *values[] = {qualified_name(sequence), psprintf(INT64_FORMAT, value), called ? "t" : "f"};
		bool		own = is_own(rel);

		check_privilege(rel, ACL_UPDATE);
		PreventCommandIfReadOnly("setval()");
		PreventCommandIfParallelMode("setval()");
		relation_close(rel, NoLock);
		(void) ask_home(routing, entry->home, own, SET_SQL, 3, values);
	}
	if (entry && entry->cluster)
		forget_everywhere(routing, sequence);
	entry = know(sequence);
	if (called)
	{
		entry->last = value;
		entry->has_last = true;
	}
	PG_RETURN_INT64(value);
}

/* ---- a sequence read as a table ---- */

static bool
read_row_here(Oid sequence, Datum *values, bool *nulls)
{
	Relation	rel = relation_open(sequence, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);
	bool		found = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	if (found)
	{
		slot_getallattrs(slot);
		memcpy(values, slot->tts_values, sizeof(Datum) * 3);
		memcpy(nulls, slot->tts_isnull, sizeof(bool) * 3);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	relation_close(rel, AccessShareLock);
	return found;
}

static void
read_row_home(const TesseraRouting *routing, int32 home, Oid sequence, bool own, Datum *values, bool *nulls)
{
	const char *name[] = {qualified_name(sequence)};
	char	   *answer = ask_home(routing, home, own, STATE_SQL, 1, name);
	long long	last;
	long long	count;
	int			called;

	if (answer == NULL || sscanf(answer, "%lld %lld %d", &last, &count, &called) != 3)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("the home of sequence \"%s\" did not say where it stands", get_rel_name(sequence))));
	values[0] = Int64GetDatum(last);
	values[1] = Int64GetDatum(count);
	values[2] = BoolGetDatum(called != 0);
	memset(nulls, 0, sizeof(bool) * 3);
}

static Relation
open_for_reading(Oid sequence)
{
	Relation	rel = relation_open(sequence, AccessShareLock);

	if (rel->rd_rel->relkind != RELKIND_SEQUENCE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a sequence", RelationGetRelationName(rel))));
	return rel;
}

/* A call that the planner has put in the place of the sequence itself. */
static bool
is_checked(FunctionCallInfo fcinfo)
{
	Node	   *call = fcinfo->flinfo->fn_expr;

	return call && IsA(call, FuncExpr) && ((FuncExpr *) call)->location == TESSERA_SEQUENCE_CHECKED;
}

/* Where the sequence stands, as its home has it; false: it has no row. */
static bool
read_row(Relation rel, Datum *values, bool *nulls)
{
	const TesseraRouting *routing = tessera_routing();
	Oid			sequence = RelationGetRelid(rel);
	int32		home = routing ? tessera_sequence_home(routing, sequence) : 0;

	if (routing == NULL || home == routing->self)
		return read_row_here(sequence, values, nulls);
	read_row_home(routing, home, sequence, is_own(rel), values, nulls);
	return true;
}

/* sequence_row(regclass): last_value, log_cnt, is_called, as the home has them */
Datum
tessera_sequence_row(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = open_for_reading(PG_GETARG_OID(0));
	Datum		values[3];
	bool		nulls[3];

	if (!is_checked(fcinfo))
		check_privilege(rel, ACL_SELECT);
	InitMaterializedSRF(fcinfo, 0);
	if (read_row(rel, values, nulls))
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	relation_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* sequence_last_value(regclass): the last value drawn from the home, by whichever node; NULL if none was (pg_sequences) */
Datum
tessera_sequence_last_value(PG_FUNCTION_ARGS)
{
	Relation	rel = open_for_reading(PG_GETARG_OID(0));
	Datum		values[3];
	bool		nulls[3];
	bool		found;

	check_privilege(rel, ACL_SELECT | ACL_USAGE);
	found = read_row(rel, values, nulls);
	relation_close(rel, AccessShareLock);
	if (!found || !DatumGetBool(values[2]))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(values[0]);
}

/* ---- another schema, another home ---- */

typedef struct Resettled
{
	Oid			sequence;
	int32		home;			/* before */
} Resettled;

List *
tessera_sequences_before(Node *statement, const TesseraRouting *routing)
{
	RangeVar   *relation = IsA(statement, AlterObjectSchemaStmt) ? ((AlterObjectSchemaStmt *) statement)->relation : NULL;
	Oid			relid = relation ? RangeVarGetRelid(relation, NoLock, true) : InvalidOid;
	List	   *sequences = NIL;
	List	   *result = NIL;
	ListCell   *cell;

	if (OidIsValid(relid))
		sequences = get_rel_relkind(relid) == RELKIND_SEQUENCE ? list_make1_oid(relid) : getOwnedSequences(relid);
	foreach(cell, sequences)
	{
		Resettled  *one = palloc(sizeof(Resettled));

		if (!tessera_is_cluster_sequence(routing, lfirst_oid(cell)))
			continue;
		one->sequence = lfirst_oid(cell);
		one->home = tessera_sequence_home(routing, one->sequence);
		result = lappend(result, one);
	}
	return result;
}

void
tessera_sequences_after(List *before)
{
	const TesseraRouting *routing = tessera_routing();
	ListCell   *cell;

	foreach(cell, before)
	{
		Resettled  *one = lfirst(cell);
		int32		home = tessera_sequence_home(routing, one->sequence);
		Datum		row[3];
		bool		nulls[3];
		const char *values[3];

		if (home == one->home)
			continue;
		read_row_home(routing, one->home, one->sequence, true, row, nulls);
		values[0] = qualified_name(one->sequence);
		values[1] = psprintf(INT64_FORMAT, DatumGetInt64(row[0]));
		values[2] = DatumGetBool(row[2]) ? "t" : "f";
		(void) ask_home(routing, home, true, SET_SQL, 3, values);
	}
}

/* ---- the home's side ---- */

static Oid
sequence_of_text(text *name, LOCKMODE mode, bool missing_ok)
{
	List	   *names = textToQualifiedNameList(name);

	return RangeVarGetRelid(makeRangeVarFromNameList(names), mode, missing_ok);
}

/* How many values one node may have at once, of those that the sequence has left behind this one: it must not take them from all others. */
static int32
fair_share(Oid sequence, int64 value, int32 n)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Form_pg_sequence form;
	uint64		left;
	uint64		step;

	if (!HeapTupleIsValid(tuple))
		return n;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	step = form->seqincrement > 0 ? (uint64) form->seqincrement : (uint64) 0 - (uint64) form->seqincrement;
	if (form->seqcycle)
		left = (uint64) form->seqmax - (uint64) form->seqmin;
	else
		left = form->seqincrement > 0 ? (uint64) form->seqmax - (uint64) value : (uint64) value - (uint64) form->seqmin;
	ReleaseSysCache(tuple);
	return (int32) Min((uint64) n, Max((uint64) FAIR_BLOCK, left / step / FAIR_SHARE));
}

/*
 * True if the sequence has a value after this one, unless others draw it first. Without this look, drawing beyond the end would raise an error and
 * lose the values that were drawn for the block.
 */
static bool
has_next(Oid sequence, int64 value)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Form_pg_sequence form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	result = form->seqcycle ||
		(!pg_add_s64_overflow(value, form->seqincrement, &value) && value <= form->seqmax && value >= form->seqmin);
	ReleaseSysCache(tuple);
	return result;
}

/* internal_sequence_block(sequence text, n int4): draws n values (fewer at the end of the sequence) as runs {first, step, count, ...} */
Datum
tessera_internal_sequence_block(PG_FUNCTION_ARGS)
{
	/* nextval's lock first: who waits for ALTER SEQUENCE must not keep that transaction from setval */
	Oid			sequence = sequence_of_text(PG_GETARG_TEXT_PP(0), RowExclusiveLock, false);
	int32		n = PG_GETARG_INT32(1);
	Datum		values[TESSERA_POOL_RUNS * 3];
	TesseraRun64 run = {0};
	int			nvalues = 0;
	int64		value = 0;

	/* another transaction may draw from what an open one has logged: the values leave this node only when that is flushed */
	tessera_commit_all_durably();
	LockDatabaseObject(BLOCK_CLASS, sequence, 0, ShareLock);
	for (int i = 0; i < n && (i == 0 || has_next(sequence, value)); i++)
	{
		int64		next = nextval_internal(sequence, false);

		CHECK_FOR_INTERRUPTS();
		if (i == 0)
			n = fair_share(sequence, next, n);
		if (run.count == 1 && !pg_sub_s64_overflow(next, value, &run.step))
			run.count = 2;
		else if (run.count > 1 && (int64) ((uint64) value + (uint64) run.step) == next)
			run.count++;
		else
		{
			if (run.count > 0)
			{
				values[nvalues++] = Int64GetDatum(run.first);
				values[nvalues++] = Int64GetDatum(run.step);
				values[nvalues++] = Int64GetDatum(run.count);
			}
			run.first = next;
			run.step = 0;
			run.count = 1;
			if (nvalues + 3 >= lengthof(values))
				n = i + 1;		/* the last run there is room for */
		}
		value = next;
	}
	UnlockDatabaseObject(BLOCK_CLASS, sequence, 0, ShareLock);
	values[nvalues++] = Int64GetDatum(run.first);
	values[nvalues++] = Int64GetDatum(run.step);
	values[nvalues++] = Int64GetDatum(run.count);
	PG_RETURN_ARRAYTYPE_P(construct_array(values, nvalues, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* internal_sequence_set(sequence text, value int8, is_called bool) */
Datum
tessera_internal_sequence_set(PG_FUNCTION_ARGS)
{
	set_here(sequence_of_text(PG_GETARG_TEXT_PP(0), NoLock, false), PG_GETARG_INT64(1), PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}

/* internal_sequence_state(sequence text): 'last_value log_cnt is_called' as they stand on this node, whichever node is the home */
Datum
tessera_internal_sequence_state(PG_FUNCTION_ARGS)
{
	Relation	rel = open_for_reading(sequence_of_text(PG_GETARG_TEXT_PP(0), NoLock, false));
	Datum		values[3];
	bool		nulls[3];
	bool		found = read_row_here(RelationGetRelid(rel), values, nulls);

	relation_close(rel, AccessShareLock);
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(psprintf(INT64_FORMAT " " INT64_FORMAT " %d", DatumGetInt64(values[0]), DatumGetInt64(values[1]),
											  DatumGetBool(values[2]) ? 1 : 0)));
}

/* internal_sequence_forget(sequence text): the pool of this node is emptied */
Datum
tessera_internal_sequence_forget(PG_FUNCTION_ARGS)
{
	Oid			sequence = sequence_of_text(PG_GETARG_TEXT_PP(0), NoLock, true);

	if (OidIsValid(sequence))
		tessera_pool_forget(sequence);
	PG_RETURN_VOID();
}

/* ---- functions that stand in ---- */

typedef struct StandIn
{
	Oid			original;		/* InvalidOid: none */
	const char *name;
	int			nargs;
	Oid			args[3];
	Oid			function;		/* InvalidOid: not looked up */
} StandIn;

static StandIn stand_ins[] = {
	{F_NEXTVAL, "nextval", 1, {REGCLASSOID}, InvalidOid},
	{F_CURRVAL, "currval", 1, {REGCLASSOID}, InvalidOid},
	{F_LASTVAL, "lastval", 0, {InvalidOid}, InvalidOid},
	{F_SETVAL_REGCLASS_INT8, "setval", 2, {REGCLASSOID, INT8OID}, InvalidOid},
	{F_SETVAL_REGCLASS_INT8_BOOL, "setval", 3, {REGCLASSOID, INT8OID, BOOLOID}, InvalidOid},
	{F_PG_SEQUENCE_LAST_VALUE, "sequence_last_value", 1, {REGCLASSOID}, InvalidOid},
	{InvalidOid, "identity_nextval", 1, {REGCLASSOID}, InvalidOid},
	{InvalidOid, "sequence_row", 1, {REGCLASSOID}, InvalidOid},
};

#define IDENTITY_STAND_IN 6
#define ROW_STAND_IN 7

static void
forget_functions(Datum arg, int cache, uint32 hash)
{
	for (int i = 0; i < lengthof(stand_ins); i++)
		stand_ins[i].function = InvalidOid;
}

void
tessera_sequence_init(void)
{
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_subtransaction, NULL);
	CacheRegisterSyscacheCallback(PROCOID, forget_functions, (Datum) 0);
}

static Oid
function_of(StandIn *stand_in)
{
	if (!OidIsValid(stand_in->function))
	{
		Oid			namespace = get_namespace_oid("tessera", true);

		if (OidIsValid(namespace))
			stand_in->function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(stand_in->name),
												 PointerGetDatum(buildoidvector(stand_in->args, stand_in->nargs)), ObjectIdGetDatum(namespace));
	}
	return stand_in->function;
}

Oid
tessera_sequence_function(Oid function)
{
	for (int i = 0; i < IDENTITY_STAND_IN; i++)
		if (stand_ins[i].original == function)
			return function_of(&stand_ins[i]);
	return InvalidOid;
}

Oid
tessera_identity_function(void)
{
	return function_of(&stand_ins[IDENTITY_STAND_IN]);
}

Oid
tessera_sequence_row_function(void)
{
	return function_of(&stand_ins[ROW_STAND_IN]);
}
