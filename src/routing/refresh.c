/*
 * refresh.c
 *	  Fetching what changed from the config node, by the refresher worker, for all backends that ask.
 *
 * Backends ask by raising `requested` and waiting until `done` has reached their number; the worker notes `requested` when a fetch begins and sets
 * `done` to that when it ends, `succeeded` too if it went well: so each caller waits for a fetch that began after its call, and callers at the same
 * time share one (S9). Without callers a fetch is due every tessera.registry_refresh_interval (S32).
 *
 * A fetch: (1) ask the config node for its token, which changes with its catalog; the same as at the last good fetch: nothing to do. (2) Tell it what
 * we have (term, digests of the small tables, version of each group), get what is newer, write it, all in one local transaction; at its commit the
 * catalog sequence grows and backends load the image anew (S4). Errors: twice more (S11), then what we have is served on. That a migration that
 * settles here changes the same rows meanwhile is no error: that counts as no attempt, for so long as COLLISIONS_MS. A lower term than ours, another
 * cluster: refused.
 *
 * Locks: the slot's spinlock guards the counters; no lock is held across the network but what the local transaction holds on catalog rows, once rows
 * come in. Crash: the transaction was committed or not; the next fetch begins with what is there.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/incarnation.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/spi.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "routing/image.h"
#include "routing/refresh.h"
#include "transport/connection.h"

#define ATTEMPTS 3				/* S11 */
#define COLLISIONS_MS 30000		/* ms since the begin of a fetch after which those that others' changes here undo count as attempts, too */
#define COLLISION_PAUSE_MS 10
#define SILENCE_MS 30000		/* ms without an answer after which the config node counts as down */
#define RELOAD_MS 10000			/* tessera.reload_routing waits that long */
#define TRUST 10				/* one in so many fetches asks for everything, even if the token says that nothing has changed */

typedef struct RefreshSlot
{
	slock_t		mutex;
	uint64		requested;
	uint64		done;
	uint64		succeeded;
	uint64		doubted;		/* number of the last request that does not trust the token */
	TimestampTz last_success;
	char		error[256];		/* of the last fetch; empty: it went well */
	ConditionVariable ended;
} RefreshSlot;

static RefreshSlot *slots = NULL;

static int	refresh_interval = 30;

/* Of the refresher, which alone changes it. */
typedef struct Refresher
{
	TimestampTz next_due;
	char	   *last_token;		/* at the last good fetch; in TopMemoryContext */
	int			fetches;
	bool		by_registry;	/* address of the config node to try */
	TesseraTime topology;		/* the newest topology time heard that a fetch was made for */
} Refresher;

static Refresher worker = {.by_registry = true};

PG_FUNCTION_INFO_V1(tessera_reload_routing);
PG_FUNCTION_INFO_V1(tessera_refresh_status);


static Size
refresh_size(void)
{
	return sizeof(RefreshSlot) * TESSERA_MAX_DATABASES;
}

static void
refresh_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	if (found)
		return;
	memset(slots, 0, refresh_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		SpinLockInit(&slots[i].mutex);
		ConditionVariableInit(&slots[i].ended);
	}
}

static const TesseraShmemModule refresh_module = {"tessera_refresh", refresh_size, 0, refresh_shmem_init, NULL};

void
tessera_refresh_init(void)
{
	tessera_shmem_register(&refresh_module);
	DefineCustomIntVariable("tessera.registry_refresh_interval", "How often a node asks the config node for changes.",
							"Stale routing is noticed and refreshed at once; this is for what nobody asks for.",
							&refresh_interval, 30, 1, 3600, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}


/* Asking for a fetch */

static bool
request_fetch(int timeout_ms, bool doubt)
{
	const TesseraRouting *routing = tessera_routing();
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	RefreshSlot *slot;
	uint64		number;
	bool		done;
	bool		good;

	if (routing == NULL || RecoveryInProgress())
		return false;
	if (routing->is_config)
		return true;

	slot = &slots[tessera_database_slot()];
	SpinLockAcquire(&slot->mutex);
	number = ++slot->requested;
	if (doubt)
		slot->doubted = number;
	SpinLockRelease(&slot->mutex);
	(void) tessera_worker_wake(TESSERA_REFRESHER);

	ConditionVariablePrepareToSleep(&slot->ended);
	for (;;)
	{
		long		left;

		SpinLockAcquire(&slot->mutex);
		done = slot->done >= number;
		good = slot->succeeded >= number;
		SpinLockRelease(&slot->mutex);
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (done || left <= 0)
			break;
		/* now and then look whether there still is a worker */
		if (ConditionVariableTimedSleep(&slot->ended, Min(left, 1000), PG_WAIT_EXTENSION))
			(void) tessera_worker_wake(TESSERA_REFRESHER);
	}
	ConditionVariableCancelSleep();
	return done && good;
}

bool
tessera_routing_refresh(int timeout_ms)
{
	return request_fetch(timeout_ms, false);
}

bool
tessera_routing_await_placements(int timeout_ms)
{
	const TesseraRouting *routing = tessera_routing();
	TimestampTz deadline;

	if (routing == NULL || !routing->placements_unknown)
		return true;
	deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	for (; routing != NULL && routing->placements_unknown; routing = tessera_routing())
	{
		(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
		if (!tessera_catalog_wait(routing->sequence, deadline))
			return false;
	}
	return true;
}


/* One fetch */

/* Takes the rows of the answer; data is applied as it comes, so that a large one is never whole in memory. */
static void
take_rows(TesseraCommand *command, PGresult *result)
{
	TesseraRefresh *refresh = command->arg;
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_SINGLE_TUPLE && status != PGRES_TUPLES_OK)
	{
		if (status == PGRES_FATAL_ERROR && command->error == NULL)
			command->error = result;
		else
			PQclear(result);
		return;
	}
	PG_TRY();
	{
		tessera_injection("refresh_fetched");
		for (int i = 0; i < PQntuples(result); i++)
			tessera_refresh_apply(refresh, PQgetvalue(result, i, 0), PQgetisnull(result, i, 1) ? NULL : PQgetvalue(result, i, 1),
								  PQgetisnull(result, i, 2) ? NULL : PQgetvalue(result, i, 2));
	}
	PG_FINALLY();
	{
		PQclear(result);
	}
	PG_END_TRY();
}

/* Runs a query on the config node with a limit to its silence. first (NULL: none) goes before it, in the same round trip. */
static void
ask(TesseraConnection *connection, TesseraCommand *first, TesseraCommand *command)
{
	if (first != NULL)
		tessera_connection_queue(connection, first);
	tessera_connection_queue(connection, command);
	tessera_connection_sync(connection);
	while (!command->done)
		if (!tessera_connections_pump(&connection, 1, SILENCE_MS))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("config node \"%s\" does not answer", tessera_connection_name(connection))));
	if (first != NULL)
		tessera_connection_check(connection, first);
	tessera_connection_check(connection, command);
}

/* Address of the config node where the registry does not know it; palloc'd. */
static char *
stored_address(void)
{
	TesseraSpi	spi;
	char	   *address = NULL;
	MemoryContext caller = CurrentMemoryContext;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT config_conninfo FROM tessera.identity", SPI_OK_SELECT, 0, NULL, NULL, NULL) == 1)
	{
		char	   *value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);

		address = MemoryContextStrdup(caller, value);
	}
	tessera_spi_end(&spi);
	return address;
}

/* By the registry's address, or the one this node joined with: after a failure by the other one, as one of them may be out of date. */
static TesseraConnection *
connect_config(const TesseraRouting *routing)
{
	const TesseraNode *config = tessera_routing_config(routing);
	char	   *address;

	address = config != NULL && worker.by_registry ? pstrdup(tessera_node_conninfo(routing, config)) : stored_address();
	if (address == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the address of the config node is not known")));
	return tessera_connection_open(config != NULL ? config->node_id : 0, config != NULL ? NameStr(config->name) : "config node", address, 1, NULL,
								   NULL);
}

/* True if the chunks of all groups are sound here. */
static bool
all_sound(const TesseraRouting *routing)
{
	for (int i = 0; i < routing->ngroups; i++)
	{
		const TesseraGroup *group = tessera_routing_group(routing, i);
		const TesseraChunkMap *map = tessera_group_map(group);

		if ((group->ncolumns > 0 || group->of_schema) && (map == NULL || !map->sound))
			return false;
	}
	return true;
}

/* Asks for what is new, after `first`, and writes it; false if chunks here turned out to be wrong (then listed as distrusted). */
static bool
fetch_changes(TesseraConnection *connection, TesseraCommand *first, TesseraRefresh *refresh)
{
	const char *values[1] = {tessera_refresh_known(refresh)};
	TesseraCommand changes = {
		.sql = tessera_call_text(&tessera_call_specs[TESSERA_CALL_CATALOG_CHANGES], tessera_connection_protocol(connection), NULL),
		.nparams = 1,.values = values,.single_row = true,.handler = take_rows,.arg = refresh
	};

	refresh->ended = false;
	refresh->patched = NIL;
	ask(connection, first, &changes);
	if (!refresh->ended)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the config node's answer is not complete")));
	return tessera_refresh_finish(refresh);
}

static void
keep_token(TesseraCommand *command, PGresult *result)
{
	char	  **token = command->arg;

	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
		*token = pstrdup(PQgetvalue(result, 0, 0));
	else if (PQresultStatus(result) == PGRES_FATAL_ERROR && command->error == NULL)
	{
		command->error = result;
		return;
	}
	PQclear(result);
}

static void
forget_token(void)
{
	if (worker.last_token != NULL)
		pfree(worker.last_token);
	worker.last_token = NULL;
}

/* One fetch, in one transaction. Errors are thrown, with the connection closed. */
static void
fetch(TesseraRefresh *refresh)
{
	TesseraConnection *volatile connection = NULL;
	char	   *token = NULL;
	TesseraCommand ask_token = {.handler = keep_token,.arg = &token};
	bool		everything;

	StartTransactionCommand();
	refresh->changed = refresh->lasting = false;
	refresh->routing = tessera_routing();
	if (refresh->routing == NULL || refresh->routing->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database has left its cluster")));
	PG_TRY();
	{
		connection = connect_config(refresh->routing);
		ask_token.sql = tessera_call_text(&tessera_call_specs[TESSERA_CALL_CATALOG_TOKEN], tessera_connection_protocol(connection), NULL);
		everything = worker.last_token == NULL || ++worker.fetches % TRUST == 0 || !all_sound(refresh->routing);
		/* the token is read by an earlier statement than the changes, which may then be newer than it says, never older */
		if (!everything)
			ask(connection, NULL, &ask_token);
		if (everything || token == NULL || strcmp(token, worker.last_token) != 0)
		{
			if (!fetch_changes(connection, everything ? &ask_token : NULL, refresh))
				ereport(ERROR,
						(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						 errmsg("chunks of a table group had to be fetched whole")));
			if (refresh->changed)
				tessera_catalog_changed();
		}
		/* Even if nothing is new: what stood in the way then may be over. */
		refresh->lasting |= tessera_refresh_raise_versions();
		/* what a crash would lose is fetched again: an older image is noticed and mended like any other one */
		if (refresh->changed && !refresh->lasting)
			(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	}
	PG_CATCH();
	{
		if (connection != NULL)
			tessera_connection_close(connection);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (token != NULL)
		token = MemoryContextStrdup(TopMemoryContext, token);
	CommitTransactionCommand();

	StartTransactionCommand();
	tessera_clock_registry_read();
	CommitTransactionCommand();
	forget_token();
	worker.last_token = token;
}

/*
 * The same, errors caught: false, with the message in `error`. *collided: others were faster with changes of the rows here, the next attempt sees
 * theirs.
 */
static bool
try_fetch(TesseraRefresh *refresh, char *error, Size room, bool *collided)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool good = true;

	*collided = false;
	PG_TRY();
	{
		fetch(refresh);
	}
	PG_CATCH();
	{
		ErrorData  *data;

		MemoryContextSwitchTo(context);
		data = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
		snprintf(error, room, "%s%s%s", data->message, data->detail ? ": " : "", data->detail ? data->detail : "");
		*collided = data->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE || data->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
		FreeErrorData(data);
		if (!*collided)
			worker.by_registry = !worker.by_registry;
		good = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return good;
}

static void
run_fetch(RefreshSlot *slot)
{
	MemoryContext work = AllocSetContextCreate(TopMemoryContext, "tessera refresh", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(work);
	TesseraRefresh refresh = {.context = work};
	char		error[sizeof(slot->error)] = "";
	uint64		number;
	TimestampTz began = GetCurrentTimestamp();
	int			attempts = 0;
	bool		doubted;
	bool		collided;
	bool		good;

	worker.topology = tessera_clock_topology_heard();
	SpinLockAcquire(&slot->mutex);
	number = slot->requested;
	doubted = slot->doubted > slot->done;
	SpinLockRelease(&slot->mutex);
	if (doubted)
		forget_token();

	while (!(good = try_fetch(&refresh, error, sizeof(error), &collided)))
	{
		long		pause = COLLISION_PAUSE_MS;

		if (!collided || TimestampDifferenceExceeds(began, GetCurrentTimestamp(), COLLISIONS_MS))
		{
			if (++attempts == ATTEMPTS)
				break;
			pause = 100L * (attempts + 1);
		}
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, pause, PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}

	/* the same trouble is logged once */
	if (!good && strcmp(slot->error, error) != 0)
		ereport(LOG,
				(errmsg("could not refresh the routing tables: %s", error)));

	SpinLockAcquire(&slot->mutex);
	slot->done = number;
	if (good)
	{
		slot->succeeded = number;
		slot->last_success = GetCurrentTimestamp();
	}
	memcpy(slot->error, good ? "" : error, good ? 1 : sizeof(error));
	SpinLockRelease(&slot->mutex);
	ConditionVariableBroadcast(&slot->ended);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(work);
}

/* True if there is a config node to refresh from. */
static bool
have_config(void)
{
	const TesseraRouting *routing;
	bool		have;

	StartTransactionCommand();
	routing = tessera_routing();
	have = routing != NULL && !routing->is_config;
	CommitTransactionCommand();
	return have;
}

long
tessera_refresher_step(void)
{
	RefreshSlot *slot = &slots[tessera_database_slot()];
	TimestampTz now = GetCurrentTimestamp();
	bool		asked;

	tessera_incarnation_step();
	if (!have_config())
		return -1;
	SpinLockAcquire(&slot->mutex);
	asked = slot->requested > slot->done;
	SpinLockRelease(&slot->mutex);
	/* the membership has changed (S133) */
	asked |= tessera_clock_topology_heard() > worker.topology;
	if (asked || now >= worker.next_due)
	{
		run_fetch(slot);
		tessera_incarnation_step();
		now = GetCurrentTimestamp();
		worker.next_due = TimestampTzPlusMilliseconds(now, refresh_interval * INT64CONST(1000));
	}
	return Max(1, TimestampDifferenceMilliseconds(now, worker.next_due));
}


/* SQL functions */

/* Grows with every change of the catalog here; another one after a restart. Read it in a statement before the one that reads the catalog. */
const char *
tessera_serve_catalog_token(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing != NULL)
		tessera_require_metadata(routing);
	return psprintf(INT64_FORMAT "." UINT64_FORMAT, PgStartTime, tessera_catalog_sequence());
}

/* tessera.reload_routing() returns bool */
Datum
tessera_reload_routing(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(tessera_serve_reload_routing());
}

bool
tessera_serve_reload_routing(void)
{
	tessera_catalog_bump();
	return request_fetch(RELOAD_MS, true);
}

char *
tessera_routing_refresh_error(void)
{
	int			number = tessera_database_slot_if_any();
	char		error[sizeof(slots->error)] = "";

	if (number < 0)
		return NULL;
	SpinLockAcquire(&slots[number].mutex);
	memcpy(error, slots[number].error, sizeof(error));
	SpinLockRelease(&slots[number].mutex);
	return error[0] != '\0' ? pstrdup(error) : NULL;
}

Datum
tessera_refresh_status(PG_FUNCTION_ARGS)
{
	int			number = tessera_database_slot_if_any();
	TupleDesc	desc;
	RefreshSlot copy;
	Datum		values[4] = {0};
	bool		nulls[4] = {0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	if (number < 0)
		PG_RETURN_NULL();
	SpinLockAcquire(&slots[number].mutex);
	memcpy(&copy, &slots[number], sizeof(copy));
	SpinLockRelease(&slots[number].mutex);
	values[0] = Int64GetDatum((int64) copy.requested);
	values[1] = Int64GetDatum((int64) copy.succeeded);
	values[2] = TimestampTzGetDatum(copy.last_success);
	nulls[2] = copy.last_success == 0;
	values[3] = CStringGetTextDatum(copy.error);
	nulls[3] = copy.error[0] == '\0';
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
