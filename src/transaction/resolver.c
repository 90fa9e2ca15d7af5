/*
 * resolver.c
 *	  In-doubt prepared transactions: whom to ask stands in the gid (tessera_<32 hex>_<node id of the coordinator>_<node id of the participant>: gids
 *	  are unique in a server, and nodes can be databases of one server). Its decision is kept under the part without the participant.
 *
 * Asking is inserting (gid, abort) into tessera.transaction_decision of the coordinator unless there is a row: the unique index waits for a
 * coordinator that is still at it, fences one that is gone, and gives the answer (doc/design.md#asking-for-the-outcome). COMMIT PREPARED cannot run
 * inside a transaction, so it goes over a control connection to this node itself. Safe to run at any time, by several at once; a crash leaves nothing
 * but what was there.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "catalog/clock_store.h"
#include "catalog/decision.h"
#include "catalog/signing_key.h"
#include "common/spi.h"
#include "common/subtransaction.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "transaction/deadlock.h"
#include "transaction/decision_pruning.h"
#include "transaction/prepared.h"
#include "transaction/resolver.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_resolve_transactions);

/* Prepared transactions below this age are left alone: their commit is still running, and asking about one may abort it. */
#define RESOLVER_AGE_MS 10000.0
#define RESOLVER_PAUSE_MS 10000L
#define RESOLVER_AGAIN_MS 5000L
#define PRUNE_PAUSE_MS 30000L
#define PRUNE_AGAIN_MS 100L
#define BUSY_MS 10L				/* until a part that another one finishes is looked at again */

/* Of this database, oldest first. */
#define LIST_SQL \
	"SELECT gid FROM pg_catalog.pg_prepared_xact() " \
	"WHERE dbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) " \
	"AND gid ~ '^tessera_[0-9a-f]{32}_[0-9]{1,9}_[0-9]{1,9}$' " \
	"AND prepared <= pg_catalog.clock_timestamp() - $1 * interval '1 millisecond' ORDER BY prepared"

/* What the coordinator answers: an outcome, and for a client's transaction the timeline behind it. */
static char
read_outcome(const char *answer, const char *gid, int32 *timeline)
{
	static const char *const outcomes[] = {"commit", "abort", "prepared", "check"};
	const char *space = strchr(answer, ' ');
	size_t		length = space ? space - answer : strlen(answer);

	*timeline = space ? pg_strtoint32(space + 1) : 0;
	for (int i = 0; i < lengthof(outcomes); i++)
		if (length == strlen(outcomes[i]) && strncmp(answer, outcomes[i], length) == 0)
			return i == 3 ? '?' : outcomes[i][0];
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("unexpected outcome \"%s\" of transaction %s", answer, gid)));
}

char
tessera_ask_outcome(const TesseraRouting *routing, int32 coordinator, const char *gid, int32 *timeline)
{
	int32		asked;
	char	   *answer;
	char		outcome;

	tessera_call_transaction_outcome(tessera_to_node(coordinator), gid, &answer);
	outcome = read_outcome(answer != NULL ? answer : "", gid, &asked);
	if (outcome == '?')
	{
		tessera_call_settle_transaction(tessera_to_node(coordinator), gid, tessera_prepared_evidence(routing, coordinator, gid, asked), &answer);
		outcome = read_outcome(answer != NULL ? answer : "", gid, &asked);
	}
	if (timeline != NULL)
		*timeline = asked;
	return outcome;
}

TesseraTime
tessera_ask_commit_time(int32 coordinator, const char *gid)
{
	ErrorData  *error;
	int64		time;

	if (tessera_call_decided_time(tessera_keep_error(tessera_ask(tessera_to_node(coordinator), TESSERA_TOLERATE_ERRORS), &error), gid, &time))
		return (TesseraTime) time;
	/* a coordinator of an earlier version has none */
	if (error->sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
		return 0;
	ReThrowError(error);
}

/* The coordinator's side of a commit: its decision row, in the transaction that is about to commit. */
void
tessera_serve_decide(const TesseraDecideArgs *args)
{
	const char *gid = args->gid;
	ArrayType  *array = args->participants;
	Datum	   *elements;
	int32	   *participants;
	int			n;

	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("participants must not be null")));
	deconstruct_array(array, INT4OID, sizeof(int32), true, TYPALIGN_INT, &elements, NULL, &n);
	participants = palloc(Max(n, 1) * sizeof(int32));
	for (int i = 0; i < n; i++)
		participants[i] = DatumGetInt32(elements[i]);
	tessera_decision_insert(gid, participants, n);
}

/* Gids to look at, in the current context. */
static char **
list_prepared(double age_ms, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			types[1] = {FLOAT8OID};
	Datum		values[1] = {Float8GetDatum(age_ms)};
	TesseraSpi	spi;
	char	  **gids;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run(LIST_SQL, SPI_OK_SELECT, 1, types, values, NULL);
	gids = MemoryContextAlloc(caller, Max(*n, 1) * sizeof(char *));
	for (int i = 0; i < *n; i++)
		gids[i] = MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
	tessera_spi_end(&spi);
	return gids;
}

/* Ask and finish. Another may have finished it meanwhile: that is an error, too. What a client has prepared stays until the client decides. */
static const char *
resolve(const TesseraRouting *routing, const char *gid)
{
	char	   *transaction = pnstrdup(gid, strrchr(gid, '_') - gid);
	int32		coordinator = pg_strtoint32(strrchr(transaction, '_') + 1);
	int32		timeline;
	char		outcome = tessera_ask_outcome(routing, coordinator, transaction, &timeline);
	TesseraTime time = outcome == 'c' ? tessera_ask_commit_time(coordinator, transaction) : 0;

	if (outcome == 'p')
		return "prepared";
	if (strncmp(gid, TESSERA_GID_PREFIX TESSERA_CLIENT_GID, strlen(TESSERA_GID_PREFIX TESSERA_CLIENT_GID)) == 0)
		tessera_prepared_carry_out(routing, routing->self, transaction, outcome == 'c', time, timeline);
	else
		tessera_finish_part(routing, routing->self, gid, outcome == 'c', time, 0);
	return outcome == 'c' ? "commit" : "abort";
}

typedef struct Resolution
{
	const TesseraRouting *routing;
	const char *gid;
	const char *outcome;
} Resolution;

static void
run_resolution(void *arg)
{
	Resolution *resolution = arg;

	resolution->outcome = resolve(resolution->routing, resolution->gid);
}

/* The same; an error becomes a WARNING, so that the others are still looked at. */
static const char *
try_to_resolve(const TesseraRouting *routing, const char *gid)
{
	Resolution	resolution = {routing, gid, "in doubt"};
	ErrorData  *error = tessera_try(run_resolution, &resolution);

	if (error == NULL)
		return resolution.outcome;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not finish prepared transaction %s: %s", gid, error->message),
			 errhint("It is tried again by tessera.resolve_transactions().")));
	return "in doubt";
}

/* One node's share of tessera_finish_committed. */
typedef struct Finishing
{
	const TesseraRouting *routing;
	const char *digits;
	int32		node_id;
} Finishing;

/* The part of a transaction on the node, if its coordinator says that it was committed. */
static void
finish_part(const Finishing *finishing, const char *gid)
{
	char	   *transaction = pnstrdup(gid, strrchr(gid, '_') - gid);
	int32		coordinator = pg_strtoint32(strrchr(transaction, '_') + 1);

	if (tessera_ask_outcome(finishing->routing, coordinator, transaction, NULL) == 'c')
		tessera_finish_part(finishing->routing, finishing->node_id, gid, true, tessera_ask_commit_time(coordinator, transaction),
							tessera_commit_timeout);
}

static void
run_finishing(void *arg)
{
	Finishing  *finishing = arg;
	const TesseraRouting *routing = finishing->routing;
	StringInfoData gids;
	char	   *unfinished;
	Datum	   *elements;
	int			n;

	/* who coordinates is not known before the commit */
	initStringInfo(&gids);
	for (int i = 0; i < routing->nnodes; i++)
		appendStringInfo(&gids, "%c" TESSERA_GID_PREFIX "%s_%d_%d", i > 0 ? ',' : '{', finishing->digits,
						 tessera_routing_node_at(routing, i)->node_id, finishing->node_id);
	appendStringInfoChar(&gids, '}');
	tessera_call_unfinished_transactions(tessera_within(tessera_to_node(finishing->node_id), tessera_commit_timeout), gids.data, &unfinished);
	deconstruct_array(DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, unfinished, TEXTOID, -1)), TEXTOID, -1, false, TYPALIGN_INT, &elements,
					  NULL, &n);
	for (int i = 0; i < n; i++)
		finish_part(finishing, TextDatumGetCString(elements[i]));
}

/* Until nobody has a part of it there any more: another one, who finishes it at the moment, is waited for as long as it may take. */
static ErrorData *
finish_there(Finishing *finishing)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tessera_commit_timeout);

	for (;;)
	{
		ErrorData  *error = tessera_try(run_finishing, finishing);

		/* another one was faster */
		if (error == NULL || error->sqlerrcode == ERRCODE_UNDEFINED_OBJECT)
			return NULL;
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		if (error->sqlerrcode != ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE || GetCurrentTimestamp() >= deadline)
			return error;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, BUSY_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
tessera_finish_committed(const char *digits)
{
	const TesseraRouting *routing = tessera_routing_or_error();

	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		Finishing	finishing = {routing, digits, node->node_id};
		ErrorData  *error = finish_there(&finishing);

		if (error == NULL)
			continue;
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("the transaction was committed, but what it has written on node \"%s\" may not be visible yet: %s",
						NameStr(node->name), error->message)));
	}
}

/* What became of a prepared transaction. */
typedef struct Resolved
{
	char	   *gid;
	/* "commit", "abort", "prepared": by a client, who has yet to decide; or "in doubt": the coordinator could not be asked; a WARNING says why */
	const char *outcome;
} Resolved;

/*
 * Asks the coordinators of this node's prepared transactions that are older than age_ms and finishes those whose outcome is known. In a transaction;
 * each is finished by itself on another connection. Array of n, palloc'd. Waits for coordinators that have not decided yet, at most 10 s each.
 */
static Resolved *
resolve_older(double age_ms, int *n)
{
	const TesseraRouting *routing = tessera_routing();
	Resolved *resolved;
	char	  **gids;

	*n = 0;
	if (routing == NULL)
		return NULL;
	gids = list_prepared(age_ms, n);
	resolved = palloc(Max(*n, 1) * sizeof(Resolved));
	for (int i = 0; i < *n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		resolved[i].gid = gids[i];
		resolved[i].outcome = try_to_resolve(routing, gids[i]);
	}
	return resolved;
}

static long
resolver_round(void)
{
	bool		doubt = false;
	Resolved *resolved;
	int			n;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	resolved = resolve_older(RESOLVER_AGE_MS, &n);
	for (int i = 0; i < n; i++)
		if (strcmp(resolved[i].outcome, "in doubt") == 0)
			doubt = true;
	PopActiveSnapshot();
	CommitTransactionCommand();
	return doubt ? RESOLVER_AGAIN_MS : RESOLVER_PAUSE_MS;
}

/* Two transactions: what the first has written is not locked while the second asks other nodes. true: there is more to do. */
static bool
prune_round(void)
{
	static TesseraDecisionPlace place = {.decided = DT_NOBEGIN};
	double		retention_ms = tessera_decision_retention * 1000.0;
	bool		more = false;
	uint64		deleted = 0;

	for (int step = 0; step < 2; step++)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		more |= step == 0 ? tessera_decisions_finish(retention_ms, &place) : tessera_decisions_delete(retention_ms, &deleted);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	return more;
}

long
tessera_resolver_step(void)
{
	static TimestampTz due = 0;
	static TimestampTz prune_due = 0;
	long		pause;

	tessera_clock_keep();
	tessera_signing_keys_keep();
	pause = tessera_deadlock_step();
	if (GetCurrentTimestamp() >= due)
		due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), resolver_round());
	if (GetCurrentTimestamp() >= prune_due)
	{
		long		wait = prune_round() ? PRUNE_AGAIN_MS : PRUNE_PAUSE_MS;

		prune_due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait);
		pause = Min(pause, wait);
	}
	return pause;
}

/* resolve_transactions(older_than interval) */
Datum
tessera_resolve_transactions(PG_FUNCTION_ARGS)
{
	Interval   *age = PG_GETARG_INTERVAL_P(0);
	double		ms = age->time / 1000.0 + (age->day + age->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	Resolved *resolved;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	resolved = resolve_older(ms, &n);
	for (int i = 0; i < n; i++)
	{
		Datum		values[2] = {CStringGetTextDatum(resolved[i].gid), CStringGetTextDatum(resolved[i].outcome)};
		bool		nulls[2] = {false, false};

		tuplestore_putvalues(info->setResult, info->setDesc, values, nulls);
	}
	return (Datum) 0;
}
