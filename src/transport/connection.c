/*
 * connection.c
 *	  Opening and closing connections to other nodes, and raising their errors here.
 *
 * One connection per (node, lane), kept until the backend exits, others wait for it (connection_slots.h), or it has been idle for
 * tessera.idle_connection_timeout. A connection that was closed keeps its struct: code that still points to it finds it empty instead of freed, and
 * it is opened anew by the next tessera_connection_open. A connection that has been idle for more than a moment is looked at before it is used (one
 * poll), so that a node that was restarted meanwhile, or has ended the session, costs no error.
 *
 * A backend that sits idle is woken by a timer, whose handler does no more than to ask for the server's own catching up with invalidations: an idle
 * backend does that by an empty transaction, at whose end connections are looked at. In a transaction that comes at its end.
 *
 * Memory: the structs and all they hold live in one context each below the cache's, until the backend exits. Open sockets count as external files
 * (fd.c). No locks. At exit of the process the connections are closed properly, so that the other ends roll back without a message in their logs.
 */
#include "postgres.h"

#include <limits.h>
#include <poll.h>

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/sinval.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/process_exit.h"
#include "common/protocol.h"
#include "common/stat_routing.h"
#include "common/transaction_steps.h"
#include "transport/connection_private.h"

/*
 * A connection whose last use ended less than so long ago is used without a look. A session that is as busy as that is in the middle of a statement
 * for much of the time anyway, where a loss is an error; and one poll for each statement costs some hundredths of the throughput of short ones.
 */
#define FRESH_US INT64CONST(5000)

int			tessera_statement_cache_size = 256;
int			tessera_connect_timeout = 10000;
static int	idle_connection_timeout = 600000;
static bool verbose_errors = false;

/* The timer of this process that has idle connections looked at. */
typedef struct IdleTimer
{
	TimeoutId	id;
	bool		registered;
	int			delay_ms;		/* with which it was set */
	bool		used;			/* the transaction at hand has used a connection; at_end resets it */
	volatile sig_atomic_t due;	/* it has fired */
} IdleTimer;

static IdleTimer idle_timer = {0};

static MemoryContext connections_context = NULL;
static HTAB *connections = NULL;	/* TesseraConnectionKey -> TesseraConnection * */
static List *unlisted = NIL;	/* connections outside the cache, open or to be used again */
static TesseraConnection **open_array = NULL;
static int	open_array_size = 0;
static NameData introduction;

typedef struct CacheEntry
{
	TesseraConnectionKey key;	/* must be first */
	TesseraConnection *connection;
} CacheEntry;

/* ---- the cache ---- */

void
tessera_connections_end(int code, Datum arg)
{
	HASH_SEQ_STATUS status;
	CacheEntry *entry;
	ListCell   *cell;

	hash_seq_init(&status, connections);
	while ((entry = hash_seq_search(&status)))
		if (entry->connection)
		{
			PQfinish(entry->connection->pg);
			tessera_slot_return(&entry->connection->slot);	/* also of one that was being opened */
		}
	foreach(cell, unlisted)
	{
		TesseraConnection *connection = lfirst(cell);

		if (connection->pg)
			PQfinish(connection->pg);
	}
}

static void
make_cache(void)
{
	HASHCTL		control = {0};

	connections_context = AllocSetContextCreate(TopMemoryContext, "tessera connections", ALLOCSET_DEFAULT_SIZES);
	control.keysize = sizeof(TesseraConnectionKey);
	control.entrysize = sizeof(CacheEntry);
	control.hcxt = connections_context;
	connections = hash_create("tessera connections", 32, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	tessera_at_exit(tessera_connections_end);
	tessera_session_involved();
}

static TesseraConnection *
make_connection(int32 node_id, int lane)
{
	MemoryContext context = AllocSetContextCreate(connections_context, "tessera connection", ALLOCSET_SMALL_SIZES);
	TesseraConnection *connection = MemoryContextAllocZero(context, sizeof(TesseraConnection));

	connection->key.node_id = node_id;
	connection->key.lane = lane;
	connection->context = context;
	connection->tags = AllocSetContextCreate(context, "tessera command tags", ALLOCSET_SMALL_SIZES);
	connection->wait_position = -1;
	dlist_init(&connection->lru);
	return connection;
}

/* ---- opening ---- */

/* Hosts of a conninfo are tried one after the other: each gets the connect timeout. */
static int
count_hosts(const char *conninfo)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	int			hosts = 1;

	for (PQconninfoOption *option = options; option && option->keyword; option++)
		if (option->val && (strcmp(option->keyword, "host") == 0 || strcmp(option->keyword, "hostaddr") == 0))
		{
			int			n = 1;

			for (const char *c = option->val; *c; c++)
				if (*c == ',')
					n++;
			hosts = Max(hosts, n);
		}
	if (options)
		PQconninfoFree(options);
	return hosts;
}

static void
name_ourselves(char *application, Size size)
{
	snprintf(application, size, "tessera%s%s", NameStr(introduction)[0] ? " " : "", NameStr(introduction));
}

/*
 * What the other server, database or role sets must not count: for the first statement, which introduces this node (hello sets the same,
 * internal_connection.c), for the parameters and answers of calls, nor for a statement whose session has not said anything else. Not
 * default_transaction_read_only, by which libpq tells an old primary that was fenced from the one that a conninfo means (target_session_attrs).
 */
#define SESSION_OPTIONS \
	"-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0" \
	" -c default_transaction_deferrable=off -c default_transaction_isolation=read\\ committed" \
	" -c quote_all_identifiers=off -c array_nulls=on -c standard_conforming_strings=on -c xmloption=content -c bytea_output=hex" \
	" -c DateStyle=ISO,MDY -c IntervalStyle=postgres -c extra_float_digits=3 -c row_security=on"

PGconn *
tessera_connection_start(const char *conninfo)
{
	char		application[NAMEDATALEN + 16];

	/*
	 * Keywords in front of dbname are defaults, those behind it override the conninfo. No tcp_user_timeout: a shard that does not read while its
	 * statement waits (COPY behind a lock) looks to TCP like one that stands still. connection_wait.c tells them apart.
	 */
	const char *keywords[] = {"keepalives_idle", "keepalives_interval", "keepalives_count", "options", "dbname", "application_name",
							  "client_encoding", "fallback_application_name", NULL};
	const char *values[] = {"30", "10", "3", SESSION_OPTIONS, conninfo, application, GetDatabaseEncodingName(), "tessera", NULL};

	name_ourselves(application, sizeof(application));
	return PQconnectStartParams(keywords, values, 1);
}

/* Advance until connected, failed or too late. Interruptible; the caller closes pg whatever happens. False: too late. */
static bool
await_connection(PGconn *pg, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	while (status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED)
	{
		int			wanted = status == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE;
		long		wait = tessera_wait_left(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline));
		int			ready;

		if (wait <= 0)
			return false;
		ready = WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_TIMEOUT | wanted, PQsocket(pg), wait, PG_WAIT_EXTENSION);
		if (ready & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		if (ready & wanted)
			status = PQconnectPoll(pg);
	}
	return true;
}

static void
raise_unreachable(const char *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not connect to node \"%s\"", name),
			 errdetail_internal("%s", detail),
			 errhint("Check that the node runs; tessera.update_node() changes its conninfo.")));
}

/* The node has no slot left but for its superusers: one more reason why a node cannot be reached (tessera_error_is_unreachable). */
static void
raise_full(const char *name, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
			 errmsg("node \"%s\" has no connection slot left for sessions of other nodes", name),
			 errdetail_internal("%s", detail),
			 errhint("Raise max_connections of that node, or limit what sessions have there: tessera.max_connections_per_shard, "
					 "tessera.max_connections_per_user.")));
}

/* A new libpq connection in non-blocking pipeline mode. ERROR 08006. */
static PGconn *
connect_to(const char *name, const char *conninfo)
{
	PGconn	   *volatile pg = NULL;
	volatile bool in_time = true;

	if (!AcquireExternalFD())
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to node \"%s\"", name),
				 errdetail("There are too many open files on this server."),
				 errhint("Raise max_files_per_process, or the limit of open files of the server's user.")));
	PG_TRY();
	{
		pg = tessera_connection_start(conninfo);
		if (pg && PQstatus(pg) != CONNECTION_BAD)
			in_time = await_connection(pg, tessera_connect_timeout * count_hosts(conninfo));
		if (pg && in_time && PQstatus(pg) == CONNECTION_OK && (PQsetnonblocking(pg, 1) != 0 || !PQenterPipelineMode(pg)))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not prepare the connection to node \"%s\"", name)));
	}
	PG_CATCH();
	{
		PQfinish(pg);
		ReleaseExternalFD();
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (pg == NULL || !in_time || PQstatus(pg) != CONNECTION_OK)
	{
		char	   *detail = pg == NULL ? "out of memory" :
		!in_time ? "It did not answer in time." : pchomp(PQerrorMessage(pg));

		PQfinish(pg);
		ReleaseExternalFD();
		raise_unreachable(name, detail);
	}
	return pg;
}

/* To the very server that the connection leads to, whatever else its conninfo names. */
static PGconn *
start_connecting_again(TesseraConnection *connection)
{
	const char *address = PQhostaddr(connection->pg);
	char		application[NAMEDATALEN + 16];
	const char *keywords[] = {"dbname", "application_name", "target_session_attrs", "port", "host", address && *address ? "hostaddr" : NULL, NULL};
	const char *values[] = {connection->conninfo, application, "any", PQport(connection->pg), PQhost(connection->pg), address, NULL};

	name_ourselves(application, sizeof(application));
	return PQconnectStartParams(keywords, values, 1);
}

bool
tessera_connection_answers(TesseraConnection *connection)
{
	PGconn	   *volatile pg = NULL;
	volatile bool in_time = true;

	/* a caller that has set a limit of its own is bounded by that */
	if (tessera_wait_left(-1) == 0 || !AcquireExternalFD())
		return true;
	PG_TRY();
	{
		pg = start_connecting_again(connection);
		if (pg && PQstatus(pg) != CONNECTION_BAD)
			in_time = await_connection(pg, tessera_connect_timeout) || tessera_wait_left(-1) == 0;
		if (pg && PQstatus(pg) == CONNECTION_OK && connection->key.node_id > 0)
			tessera_node_reached(connection->key.node_id, true);
	}
	PG_FINALLY();
	{
		PQfinish(pg);
		ReleaseExternalFD();
	}
	PG_END_TRY();
	return in_time;
}

/* Make the struct an open connection. */
static void
open_connection(TesseraConnection *connection, const char *name, const char *conninfo)
{
	void	   *told = connection->state.told;
	PGconn	   *pg;
	char	   *copy = MemoryContextStrdup(connection->context, conninfo);

	namestrcpy(&connection->name, name);
	if (connection->key.node_id > 0)
		tessera_slot_take(&connection->slot, connection->key.node_id, name, tessera_wait_left(-1), connection->key.lane == 0);
	PG_TRY();
	{
		pg = connect_to(name, conninfo);
	}
	PG_CATCH();
	{
		tessera_slot_return(&connection->slot);
		/* a caller who had no time left has not found out whether the node is there */
		if (connection->key.node_id > 0 && geterrcode() == ERRCODE_CONNECTION_FAILURE && tessera_wait_left(-1) != 0)
			tessera_node_reached(connection->key.node_id, false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (connection->key.node_id > 0)
		tessera_node_reached(connection->key.node_id, true);
	connection->pg = pg;
	connection->in_use = false;
	connection->broken = false;
	if (connection->conninfo)
		pfree(connection->conninfo);
	connection->conninfo = copy;
	memset(&connection->state, 0, sizeof(connection->state));
	connection->state.told = told;
	if (connection->last_words)
		pfree(connection->last_words);
	connection->last_words = NULL;
	connection->used = GetCurrentTimestamp();
	PQsetNoticeReceiver(pg, tessera_connection_notice, connection);
}

bool
tessera_connection_broken(TesseraConnection *connection)
{
	return connection->pg != NULL && (connection->broken || connection->last_words != NULL || PQstatus(connection->pg) == CONNECTION_BAD);
}

bool
tessera_connection_lost(TesseraConnection *connection)
{
	struct pollfd fd;

	if (!tessera_connection_alive(connection) || PQstatus(connection->pg) == CONNECTION_BAD)
		return true;
	fd.fd = PQsocket(connection->pg);
	fd.events = POLLIN;
	fd.revents = 0;
	connection->used = GetCurrentTimestamp();
	/* Input on an idle connection may be a changed setting or a notice as well as its end: it is read to find out. */
	for (int i = 0; i < 10 && poll(&fd, 1, 0) > 0; i++)
	{
		if (!tessera_connection_read(connection))
			return true;
		(void) PQisBusy(connection->pg);
		if (PQstatus(connection->pg) == CONNECTION_BAD)
			return true;
	}
	return false;
}

/* True if the other end has ended the connection, which is idle. Of a transaction's that was in use a moment ago, that is not known. */
static bool
lost_while_idle(TesseraConnection *connection)
{
	TimestampTz idle = GetCurrentTimestamp() - connection->used;

	/* below 0: the server's clock was set back */
	return (connection->key.lane != 0 || idle < 0 || idle >= FRESH_US) && tessera_connection_lost(connection);
}

/* True if it can be used as it is. Closes it if it is dead, or if it is idle and the node has another address. */
static bool
still_good(TesseraConnection *connection, const char *conninfo)
{
	bool		idle = connection->state.xact_depth == 0 && tessera_connection_nobody_waits(connection);

	if (connection->pg == NULL)
		return false;
	if (connection->broken || PQstatus(connection->pg) == CONNECTION_BAD ||
		!tessera_cancel_await(connection, tessera_wait_left(tessera_connect_timeout)) ||
		(idle && ((connection->state.session_locks == 0 && strcmp(connection->conninfo, conninfo) != 0) || lost_while_idle(connection))))
	{
		tessera_connection_close(connection);
		return false;
	}
	return true;
}

bool
tessera_greeting_read(const char *answer, int64 *greeting, int *protocol)
{
	return sscanf(answer, "{" INT64_FORMAT ",%d}", greeting, protocol) == 2;
}

TesseraConnection *
tessera_connection_open(int32 node_id, const char *name, const char *conninfo, int lane, char *(*hello) (void *arg), void *arg)
{
	TesseraConnectionKey key = {.node_id = node_id,.lane = lane};
	CacheEntry *entry;
	bool		found;
	MemoryContext caller = CurrentMemoryContext;

	if (connections == NULL)
		make_cache();
	entry = hash_search(connections, &key, HASH_ENTER, &found);
	if (!found)
		entry->connection = NULL;
	if (entry->connection == NULL)
		entry->connection = make_connection(node_id, lane);
	if (still_good(entry->connection, conninfo))
		return entry->connection;

	open_connection(entry->connection, name, conninfo);
	tessera_stat_count(TESSERA_STAT_CONNECTIONS);
	if (hello)
	{
		PG_TRY();
		{
			PGresult   *answer = tessera_connection_run(entry->connection, hello(arg), 0, NULL);

			if (!tessera_greeting_read(PQgetvalue(answer, 0, 0), &entry->connection->state.greeting, &entry->connection->state.protocol))
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("node \"%s\" answers the first call with \"%s\"", name, PQgetvalue(answer, 0, 0)),
						 errhint("Install one version of the extension everywhere.")));
			if (entry->connection->state.protocol < TESSERA_OLDEST_PROTOCOL)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("node \"%s\" has another version of the extension", name),
						 errdetail("It speaks protocol %d, this node %d to %d.", entry->connection->state.protocol, TESSERA_OLDEST_PROTOCOL,
								   TESSERA_PROTOCOL),
						 errhint("Install one version everywhere and run ALTER EXTENSION tessera UPDATE on each node.")));
		}
		PG_CATCH();
		{
			tessera_connection_close(entry->connection);
			if (entry->connection->last_words == NULL || entry->connection->last_state != ERRCODE_TOO_MANY_CONNECTIONS)
				PG_RE_THROW();
			MemoryContextSwitchTo(caller);
			FlushErrorState();
			raise_full(name, entry->connection->last_words);
		}
		PG_END_TRY();
	}
	return entry->connection;
}

TesseraConnection *
tessera_connection_find(int32 node_id, int lane)
{
	TesseraConnectionKey key = {.node_id = node_id,.lane = lane};
	CacheEntry *entry = connections == NULL ? NULL : hash_search(connections, &key, HASH_FIND, NULL);

	return entry != NULL && entry->connection != NULL && entry->connection->pg != NULL ? entry->connection : NULL;
}

void
tessera_connections_close(int lane)
{
	HASH_SEQ_STATUS status;
	CacheEntry *entry;

	if (connections == NULL)
		return;
	hash_seq_init(&status, connections);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->key.lane == lane && entry->connection != NULL)
			tessera_connection_close(entry->connection);
}

TesseraConnection *
tessera_connection_open_unlisted(const char *name, const char *conninfo)
{
	TesseraConnection *connection = NULL;
	ListCell   *cell;

	if (connections == NULL)
		make_cache();
	foreach(cell, unlisted)
		if (((TesseraConnection *) lfirst(cell))->pg == NULL)
			connection = lfirst(cell);
	if (connection == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(connections_context);

		connection = make_connection(TESSERA_UNLISTED_NODE, 0);
		unlisted = lappend(unlisted, connection);
		MemoryContextSwitchTo(before);
	}
	open_connection(connection, name, conninfo);
	return connection;
}

/* ---- closing ---- */

/* libpq found the connection broken: nothing will be answered any more. It is closed when it is next used, or at the end of the transaction. */
void
tessera_connection_broke(TesseraConnection *connection)
{
	connection->broken = true;
	tessera_wait_forget(connection);
	tessera_entries_discard(connection);
}

void
tessera_connection_close(TesseraConnection *connection)
{
	void	   *told = connection->state.told;

	if (connection->pg == NULL)
		return;
	tessera_wait_forget(connection);
	(void) tessera_cancel_await(connection, 0);
	tessera_entries_discard(connection);
	tessera_statements_forget(connection);
	tessera_connection_clear_errors(connection);
	tessera_connection_clear_all_notices(connection);
	PQfinish(connection->pg);
	ReleaseExternalFD();
	tessera_slot_return(&connection->slot);
	connection->pg = NULL;
	connection->broken = false;
	connection->in_use = false;
	memset(&connection->state, 0, sizeof(connection->state));
	connection->state.told = told;
}

/* ---- idle connections ---- */

static void
idle_timer_fires(void)
{
	idle_timer.due = true;
	HandleCatchupInterrupt();
}

/* So that idle connections are looked at when the first of them may have been idle for too long. Only sessions of clients sit idle. */
static void
arm_idle_timer(int delay_ms)
{
	if (MyBackendType != B_BACKEND)
		return;
	if (!idle_timer.registered)
		idle_timer.id = RegisterTimeout(USER_TIMEOUT, idle_timer_fires);
	idle_timer.registered = true;
	if (get_timeout_active(idle_timer.id) && idle_timer.delay_ms <= delay_ms)
		return;
	idle_timer.delay_ms = delay_ms;
	enable_timeout_after(idle_timer.id, delay_ms);
}

void
tessera_connection_begin_use(TesseraConnection *connection)
{
	if (connection->in_use)
		return;
	connection->in_use = true;
	idle_timer.used = true;
	tessera_slot_busy(&connection->slot);
}

/* Session-level advisory locks would go with it. */
static bool
may_close(const TesseraConnection *connection)
{
	return connection->pg != NULL && connection->state.session_locks == 0 && connection->state.xact_depth == 0;
}

/* One of the lanes that are kept between transactions. Returns for how many ms it may still be idle; -1: it is closed. */
static long
look_at_idle(TesseraConnection *connection, TimestampTz now)
{
	long		left = idle_connection_timeout - TimestampDifferenceMilliseconds(connection->used, now);

	if (!may_close(connection))
		return idle_connection_timeout;
	if (connection->broken || (idle_connection_timeout > 0 && left <= 0))
	{
		tessera_connection_close(connection);
		return -1;
	}
	return left;
}

/* When the timer has fired. */
static void
close_idle(void)
{
	TimestampTz now = GetCurrentTimestamp();
	long		next = -1;
	HASH_SEQ_STATUS status;
	CacheEntry *entry;

	idle_timer.due = false;
	hash_seq_init(&status, connections);
	while ((entry = hash_seq_search(&status)))
		if (entry->connection && entry->connection->pg && entry->key.lane <= 1)
		{
			long		left = look_at_idle(entry->connection, now);

			if (left >= 0 && (next < 0 || left < next))
				next = left;
		}
	if (next >= 0 && idle_connection_timeout > 0)
		arm_idle_timer((int) next + 1);
}

void
tessera_connections_give_up_unused(void)
{
	TesseraConnection **array;
	int			n = tessera_connections_open(&array);

	for (int i = 0; i < n; i++)
		if (!array[i]->in_use && array[i]->count == 0 && may_close(array[i]) && tessera_slot_is_awaited(&array[i]->slot))
			tessera_connection_close(array[i]);
}

void
tessera_connections_at_end(void)
{
	TesseraConnection **array;
	TimestampTz now;
	int			n;

	if (connections == NULL || !(idle_timer.used || idle_timer.due || tessera_slots_awaited()))
		return;
	idle_timer.used = false;
	now = GetCurrentTimestamp();
	n = tessera_connections_open(&array);
	for (int i = 0; i < n; i++)
	{
		TesseraConnection *connection = array[i];

		if (connection->in_use)
		{
			connection->in_use = false;
			connection->used = now;
			tessera_slot_idle(&connection->slot, now);
		}
		if (tessera_slots_awaited() && may_close(connection) && tessera_slot_is_awaited(&connection->slot))
			tessera_connection_close(connection);
	}
	if (idle_timer.due)
		close_idle();
	else if (idle_connection_timeout > 0)
		arm_idle_timer(idle_connection_timeout);
}

bool
tessera_connection_alive(TesseraConnection *connection)
{
	return connection->pg != NULL && !connection->broken;
}

int
tessera_connections_open(TesseraConnection ***array)
{
	HASH_SEQ_STATUS status;
	CacheEntry *entry;
	int			n = 0;

	*array = open_array;
	if (connections == NULL)
		return 0;
	if (open_array_size < hash_get_num_entries(connections))
	{
		int			size = hash_get_num_entries(connections) * 2;

		if (open_array)
			pfree(open_array);
		open_array = NULL;
		open_array_size = 0;
		open_array = MemoryContextAlloc(connections_context, size * sizeof(TesseraConnection *));
		open_array_size = size;
	}
	hash_seq_init(&status, connections);
	while ((entry = hash_seq_search(&status)))
		if (entry->key.lane == 0 && entry->connection && entry->connection->pg)
			open_array[n++] = entry->connection;
	*array = open_array;
	return n;
}

/* ---- what it is ---- */

int32
tessera_connection_node(TesseraConnection *connection)
{
	return connection->key.node_id;
}

const char *
tessera_connection_name(TesseraConnection *connection)
{
	return NameStr(connection->name);
}

TesseraRemoteState *
tessera_connection_state(TesseraConnection *connection)
{
	return &connection->state;
}

PGconn *
tessera_connection_pg(TesseraConnection *connection)
{
	return connection->pg;
}

void
tessera_connection_introduce(const char *node)
{
	namestrcpy(&introduction, node);
}

/* ---- errors ---- */

void
tessera_connection_raise_broken(TesseraConnection *connection)
{
	const char *detail = connection->last_words ? connection->last_words :
	connection->pg ? pchomp(PQerrorMessage(connection->pg)) : "";

	connection->state.known = false;
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("the connection to node \"%s\" was lost", NameStr(connection->name)),
			 *detail ? errdetail_internal("%s", detail) : 0));
}

/* An error field as a string of ours, NULL if there is none. */
static char *
error_field(const PGresult *result, int code)
{
	const char *value = PQresultErrorField(result, code);

	return value ? pstrdup(value) : NULL;
}

static int
error_number(const PGresult *result, int code)
{
	const char *value = PQresultErrorField(result, code);

	return value ? pg_strtoint32(value) : 0;
}

void
tessera_connection_raise(TesseraConnection *connection, PGresult *result, const char *sql)
{
	char	   *state = error_field(result, PG_DIAG_SQLSTATE);
	char	   *message = error_field(result, PG_DIAG_MESSAGE_PRIMARY);
	char	   *detail = error_field(result, PG_DIAG_MESSAGE_DETAIL);
	char	   *hint = error_field(result, PG_DIAG_MESSAGE_HINT);
	char	   *context = error_field(result, PG_DIAG_CONTEXT);
	char	   *internal_query = error_field(result, PG_DIAG_INTERNAL_QUERY);
	int			internal_position = error_number(result, PG_DIAG_INTERNAL_POSITION);
	int			position = error_number(result, PG_DIAG_STATEMENT_POSITION);
	char	   *names[] = {
		error_field(result, PG_DIAG_SCHEMA_NAME), error_field(result, PG_DIAG_TABLE_NAME), error_field(result, PG_DIAG_COLUMN_NAME),
		error_field(result, PG_DIAG_DATATYPE_NAME), error_field(result, PG_DIAG_CONSTRAINT_NAME)
	};
	int			code = ERRCODE_CONNECTION_FAILURE;

	if (state && strlen(state) == 5)
		code = MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
	/* The other end shuts down, not this one. */
	if (code == ERRCODE_ADMIN_SHUTDOWN || code == ERRCODE_CRASH_SHUTDOWN || code == ERRCODE_CANNOT_CONNECT_NOW || code == ERRCODE_DATABASE_DROPPED)
		code = ERRCODE_CONNECTION_FAILURE;
	if (message == NULL)
		message = pchomp(PQresultErrorMessage(result));
	/* what was sent is ours, not the client's */
	if (!verbose_errors)
		sql = NULL;
	if (internal_query == NULL && position > 0 && sql)
	{
		internal_query = pstrdup(sql);
		internal_position = position;
		sql = NULL;
	}

	{
		MemoryContext before = MemoryContextSwitchTo(connection->context);

		connection->errors = list_delete_ptr(connection->errors, result);
		MemoryContextSwitchTo(before);
	}
	PQclear(result);

	ereport(ERROR,
			(errcode(code),
			 errmsg_internal("%s", message),
			 detail ? errdetail_internal("%s", detail) : 0,
			 hint ? errhint("%s", hint) : 0,
			 internal_query ? internalerrquery(internal_query) : 0,
			 internal_query && internal_position > 0 ? internalerrposition(internal_position) : 0,
			 names[0] ? err_generic_string(PG_DIAG_SCHEMA_NAME, names[0]) : 0,
			 names[1] ? err_generic_string(PG_DIAG_TABLE_NAME, names[1]) : 0,
			 names[2] ? err_generic_string(PG_DIAG_COLUMN_NAME, names[2]) : 0,
			 names[3] ? err_generic_string(PG_DIAG_DATATYPE_NAME, names[3]) : 0,
			 names[4] ? err_generic_string(PG_DIAG_CONSTRAINT_NAME, names[4]) : 0,
			 context ? errcontext("%s", context) : 0,
			 errcontext("node \"%s\"%s%s", NameStr(connection->name), sql ? ", statement: " : "", sql ? sql : "")));
}

void
tessera_connection_check(TesseraConnection *connection, TesseraCommand *command)
{
	PGresult   *error = command->error;

	command->error = NULL;
	if (error)
		tessera_connection_raise(connection, error, command->sql);
	if (command->aborted)
		ereport(ERROR,
				(errcode(ERRCODE_IN_FAILED_SQL_TRANSACTION),
				 errmsg("the statement on node \"%s\" was not run: one before it failed", NameStr(connection->name))));
}

/* ---- one command ---- */

static void
clear_result(void *result)
{
	PQclear(result);
}

typedef struct RunAnswer
{
	PGresult   *result;			/* first one */
	PGresult   *error;
} RunAnswer;

static void
keep_first(TesseraCommand *command, PGresult *result)
{
	RunAnswer  *answer = command->arg;
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY && answer->error == NULL)
		answer->error = result;
	else if (answer->result == NULL)
		answer->result = result;
	else
		PQclear(result);
}

PGresult *
tessera_connection_run(TesseraConnection *connection, const char *sql, int nparams, const char *const *values)
{
	RunAnswer	answer = {0};
	TesseraCommand command = {.sql = sql,.nparams = nparams,.values = values,.handler = keep_first,.arg = &answer};
	MemoryContextCallback *callback = palloc(sizeof(MemoryContextCallback));

	PG_TRY();
	{
		tessera_connection_queue(connection, &command);
		tessera_connection_sync(connection);
		tessera_connection_finish(connection, &command);
		if (answer.error)
		{
			PGresult   *error = answer.error;

			answer.error = NULL;
			tessera_connection_raise(connection, error, sql);
		}
		tessera_connection_check(connection, &command);
	}
	PG_CATCH();
	{
		/* The command is on this function's stack. */
		tessera_connection_forget(connection, &command);
		PQclear(answer.result);
		PQclear(answer.error);
		PG_RE_THROW();
	}
	PG_END_TRY();

	callback->func = clear_result;
	callback->arg = answer.result;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
	return answer.result;
}

/* ---- COPY ---- */

void
tessera_connection_leave_pipeline(TesseraConnection *connection)
{
	tessera_connection_drain(connection);
	if (!PQexitPipelineMode(connection->pg))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not leave pipeline mode on the connection to node \"%s\"", NameStr(connection->name)),
				 errdetail_internal("%s", pchomp(PQerrorMessage(connection->pg)))));
}

void
tessera_connection_enter_pipeline(TesseraConnection *connection)
{
	if (PQpipelineStatus(connection->pg) == PQ_PIPELINE_OFF && !PQenterPipelineMode(connection->pg))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not enter pipeline mode on the connection to node \"%s\"", NameStr(connection->name)),
				 errdetail_internal("%s", pchomp(PQerrorMessage(connection->pg)))));
	tessera_connection_emit_notices(connection);	/* of the COPY */
}

void
tessera_connection_init(void)
{
	DefineCustomIntVariable("tessera.statement_cache_size", "Prepared statements kept on each connection to another node; 0 keeps none.", NULL,
							&tessera_statement_cache_size, 256, 0, 100000, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.connect_timeout", "How long a connection to another node may take to open, for each of its hosts.", NULL,
							&tessera_connect_timeout, 10000, 100, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.idle_connection_timeout", "How long a session keeps a connection to another node that it does not use.",
							"0: to the session's end.",
							&idle_connection_timeout, 600000, 0, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.node_timeout", "How long a node may be silent before it is looked at whether it answers a new connection.",
							"If it does, its answer is waited for further; if not, the statement fails. 0: it is never looked at.",
							&tessera_node_timeout, 15000, 0, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("tessera.verbose_errors", "Errors of other nodes say which statement this node has sent there.", NULL,
							 &verbose_errors, false, PGC_USERSET, 0, NULL, NULL, NULL);
}
