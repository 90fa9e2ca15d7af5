/*
 * sequence_functions.c
 *	  nextval, currval, lastval and setval of cluster sequences, and sequences read as tables, in the session that calls them; see sequence.h.
 *
 * On the home the server's own functions do the work. Elsewhere nextval takes a value of this node's pool, which is filled over the control
 * connection (autocommit: values are never given back, as ever); it holds the server's lock on the local shell, so that ALTER SEQUENCE, which runs
 * on every node, finds no fetch on its way when it empties the pool. A sequence that this transaction itself created or altered is asked within the
 * transaction. setval changes the home and empties every node's pool.
 *
 * Crash of the home: the server logs a sequence ahead of its values, perhaps in a transaction that is still open, which nothing flushes; so the log
 * that a value drawn on the home rests on is flushed before a row is committed elsewhere.
 *
 * Memory: last values of the session in a hash table that lives until the backend exits; blocks of the transaction's own sequences, in the same
 * table, until it (or a subtransaction) ends.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/sequence.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/stand_in.h"
#include "ddl/sequence.h"
#include "ddl/sequence_private.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

PG_FUNCTION_INFO_V1(tessera_nextval);
PG_FUNCTION_INFO_V1(tessera_identity_nextval);
PG_FUNCTION_INFO_V1(tessera_currval);
PG_FUNCTION_INFO_V1(tessera_lastval);
PG_FUNCTION_INFO_V1(tessera_setval);
PG_FUNCTION_INFO_V1(tessera_sequence_row);
PG_FUNCTION_INFO_V1(tessera_sequence_last_value);

#define OWN_BLOCK 32			/* values drawn at once of a sequence of this transaction */

/* What this session knows of a sequence. */
typedef struct Known
{
	Oid			sequence;		/* key */
	bool		has_last;
	int64		last;
	TesseraBlock own;			/* of this transaction */
} Known;

/* What this session has drawn; DISCARD SEQUENCES makes it forget the values. */
typedef struct SessionSequences
{
	HTAB	   *known;			/* Oid -> Known */
	Oid			last;			/* for lastval() */
	bool		own_blocks;		/* one of them has a block of this transaction, which goes at its end */
} SessionSequences;

static SessionSequences session = {0};

static Known *
know(Oid sequence)
{
	Known	   *entry;
	bool		found;

	if (session.known == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(Known)};

		session.known = hash_create("tessera sequences", 32, &control, HASH_ELEM | HASH_BLOBS);
	}
	entry = hash_search(session.known, &sequence, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(Known));
		entry->sequence = sequence;
	}
	return entry;
}

static void
remember(Oid sequence, int64 value)
{
	Known	   *entry = know(sequence);

	entry->last = value;
	entry->has_last = true;
	session.last = sequence;
}

void
tessera_sequences_discard(void)
{
	HASH_SEQ_STATUS status;
	Known	   *entry;

	session.last = InvalidOid;
	if (session.known == NULL)
		return;
	hash_seq_init(&status, session.known);
	while ((entry = hash_seq_search(&status)))
		entry->has_last = false;
}

/* ---- the local shell ---- */

static void
check_privilege(Relation rel, AclMode mode)
{
	if (pg_class_aclcheck(RelationGetRelid(rel), GetUserId(), mode) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for sequence %s", RelationGetRelationName(rel))));
}

/*
 * For a call that the home answers: opens the local shell with the lock that the server's functions take, to the end of the transaction, and checks
 * what they check. mode 0: no privilege is needed. Returns whether the sequence is this transaction's own.
 */
static bool
check_shell(Oid sequence, AclMode mode, const char *command)
{
	Relation	rel = tessera_sequence_open(sequence, RowExclusiveLock);
	bool		own = tessera_sequence_is_own(rel);

	if (mode != 0)
		check_privilege(rel, mode);
	PreventCommandIfReadOnly(command);
	PreventCommandIfParallelMode(command);
	relation_close(rel, NoLock);
	return own;
}

/* True if this node answers itself, by the server's own functions, which also refuse what is no sequence. Else *home is another node. */
static bool
is_served_here(const TesseraRouting *routing, Oid sequence, int32 *home)
{
	*home = routing && get_rel_relkind(sequence) == RELKIND_SEQUENCE ? tessera_sequence_home(routing, sequence) : 0;
	return *home == 0 || *home == routing->self;
}

/* Once for each place in a plan: whether the server's function may be called. */
static void
check_execution(FunctionCallInfo fcinfo)
{
	static const char checked = 0;

	if (fcinfo->flinfo->fn_extra != NULL)
		return;
	tessera_stand_in_check(fcinfo->flinfo->fn_oid);
	fcinfo->flinfo->fn_extra = (void *) &checked;
}

/* ---- nextval ---- */

void
tessera_sequences_ended(void)
{
	HASH_SEQ_STATUS status;
	Known	   *entry;

	if (!session.own_blocks)
		return;
	session.own_blocks = false;
	hash_seq_init(&status, session.known);
	while ((entry = hash_seq_search(&status)))
		entry->own.nruns = 0;
}

void
tessera_sequences_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	tessera_sequences_ended();
}

void
tessera_sequence_drop_own(Oid sequence)
{
	Known	   *entry = session.known ? hash_search(session.known, &sequence, HASH_FIND, NULL) : NULL;

	if (entry)
		entry->own.nruns = 0;
}

typedef struct Question
{
	const TesseraRouting *routing;
	Oid			sequence;
	int32		home;
} Question;

/* A value drawn on its home: what is written elsewhere with it waits for what the sequence has logged, perhaps in an open transaction. */
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

/* The server's own nextval, on this node; false: it is not the home any more. */
static bool
draw_here(Oid sequence, bool check, int64 *value)
{
	const TesseraRouting *routing = tessera_routing();
	bool		guarded = tessera_sequence_moves(routing, sequence);

	if (guarded)
		LockRelationOid(sequence, RowExclusiveLock);
	if (guarded && !tessera_sequence_begin(sequence, ShareLock))
		return false;
	*value = nextval_internal(sequence, check);
	if (guarded)
		tessera_sequence_end(sequence, ShareLock);
	if (routing)
		rely_on_log(sequence);
	return true;
}

/* For the pool: its values are drawn outside the transaction. */
static void
fetch_block(void *arg, int n, TesseraBlock *block)
{
	Question   *question = arg;
	TimestampTz since = 0;
	int			attempts = 0;
	int64		value;

	while (!tessera_sequence_draw(question->routing, question->home, false, question->sequence, n, block))
	{
		for (;;)
		{
			question->home = tessera_sequence_await_home(question->sequence, &since, &attempts);
			question->routing = tessera_routing();
			if (question->home != question->routing->self)
				break;
			/* it has come here meanwhile */
			if (draw_here(question->sequence, false, &value))
			{
				block->nruns = 1;
				block->runs[0] = (TesseraRun64) {.first = value,.count = 1};
				return;
			}
		}
	}
}

/* The next value of a sequence that this transaction has made or changed: no other sees it so, and its values come from a block of its own. */
static int64
next_of_own(const Question *question)
{
	Known	   *entry = know(question->sequence);
	int64		value;

	if (!tessera_block_take(&entry->own, &value))
	{
		TesseraBlock block = {0};

		/* the transaction has locked the schema's group, so the home that it found stays */
		if (!tessera_sequence_draw(question->routing, question->home, true, question->sequence, OWN_BLOCK, &block))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("sequence \"%s\" has another home than when this transaction changed it", get_rel_name(question->sequence)),
					 errhint("Try again.")));
		if (!tessera_block_take(&block, &value))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("the home of a sequence gave no values")));
		entry->own = block;
		session.own_blocks = true;
	}
	return value;
}

static int64
next_value(Oid sequence, bool check)
{
	const TesseraRouting *routing = tessera_routing();
	Question	question = {.routing = routing, .sequence = sequence};
	TimestampTz since = 0;
	int			attempts = 0;
	int64		value = 0;
	bool		here = is_served_here(routing, sequence, &question.home);

	while (here && !draw_here(sequence, check, &value))
	{
		question.home = tessera_sequence_await_home(sequence, &since, &attempts);
		question.routing = tessera_routing();
		here = question.home == question.routing->self;
	}
	if (here)
		;						/* drawn */
	else if (check_shell(sequence, check ? ACL_USAGE | ACL_UPDATE : 0, "nextval()"))
		value = next_of_own(&question);
	else
		value = tessera_pool_next(sequence, fetch_block, &question);
	remember(sequence, value);
	return value;
}

/* nextval(regclass) */
Datum
tessera_nextval(PG_FUNCTION_ARGS)
{
	check_execution(fcinfo);
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
	Relation	rel = tessera_sequence_open(sequence, RowExclusiveLock);
	Known	   *entry = know(sequence);

	check_execution(fcinfo);
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

	check_execution(fcinfo);
	if (!OidIsValid(session.last) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(session.last)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lastval is not yet defined in this session")));
	rel = tessera_sequence_open(session.last, RowExclusiveLock);
	check_privilege(rel, ACL_SELECT | ACL_USAGE);
	relation_close(rel, NoLock);
	PG_RETURN_INT64(know(session.last)->last);
}

/* ---- setval ---- */

/* setval(regclass, int8, bool) */
Datum
tessera_setval(PG_FUNCTION_ARGS)
{
	Oid			sequence = PG_GETARG_OID(0);
	int64		value = PG_GETARG_INT64(1);
	bool		called = PG_NARGS() < 3 || PG_GETARG_BOOL(2);
	const TesseraRouting *routing = tessera_routing();
	int32		home;
	bool		here = is_served_here(routing, sequence, &home);
	bool		cluster = home != 0 && tessera_is_cluster_sequence(routing, sequence);
	TimestampTz since = 0;
	int			attempts = 0;
	Known	   *entry;

	check_execution(fcinfo);
	/* rights on all sequences are none on those that number the cluster's own things */
	if (get_rel_namespace(sequence) == get_namespace_oid("tessera", true) && !pg_class_ownercheck(sequence, GetUserId()))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SEQUENCE, get_rel_name(sequence));
	if (cluster)
	{
		(void) check_shell(sequence, ACL_UPDATE, "setval()");
		/* before: ends fetches that nodes have asked for; again afterwards: drops values that were fetched meanwhile */
		tessera_sequence_forget_everywhere(routing, sequence);
	}
	while (here ? !tessera_sequence_set_here(sequence, value, called) :
		   !tessera_sequence_set(routing, home, check_shell(sequence, ACL_UPDATE, "setval()"), sequence, value, called))
	{
		home = tessera_sequence_await_home(sequence, &since, &attempts);
		routing = tessera_routing();
		here = home == routing->self;
	}
	if (cluster)
		tessera_sequence_forget_everywhere(routing, sequence);
	entry = know(sequence);
	if (called)
	{
		entry->last = value;
		entry->has_last = true;
	}
	PG_RETURN_INT64(value);
}

/* ---- a sequence read as a table ---- */

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
	bool		own = tessera_sequence_is_own(rel);
	TimestampTz since = 0;
	int			attempts = 0;
	int32		home;
	bool		here = is_served_here(routing, sequence, &home);

	while (true)
	{
		int32		asked = home;
		bool		found = true;
		bool		current;

		if (here)
			found = tessera_sequence_read_current(sequence, values, nulls, &current);
		else
			current = tessera_sequence_state(routing, home, own, sequence, values, nulls);
		if (current || own)
			return found;
		/* what a home that hands it over has is final: it counts as long as the config node knows no other */
		home = tessera_sequence_await_home(sequence, &since, &attempts);
		if (home == asked)
			return found;
		routing = tessera_routing();
		here = home == routing->self;
	}
}

/* sequence_row(regclass): last_value, log_cnt, is_called, as the home has them */
Datum
tessera_sequence_row(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = tessera_sequence_open(PG_GETARG_OID(0), AccessShareLock);
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
	Relation	rel = tessera_sequence_open(PG_GETARG_OID(0), AccessShareLock);
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
