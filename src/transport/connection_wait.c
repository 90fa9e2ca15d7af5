/*
 * connection_wait.c
 *	  Waiting for other nodes: one persistent wait set for all connections of this backend, and what reads until something has come.
 *
 * The set holds the latch, postmaster death and the sockets waited for so far; a wait for some of them uses it as it is, so that a trip costs one
 * send, one wait and one receive. A socket that is ready but not wanted now (rows that are not read yet) makes the set be built anew, with only those
 * wanted. A connection leaves the set by having it built anew.
 *
 * Waits that may raise are bounded by tessera_connections_limit, if the caller has set one. Otherwise they last as long as the other end works, and
 * only that end knows how long: so when nothing has come for tessera.node_timeout, a second connection is opened to the same server. If that gets an
 * answer the first waits on; if not, the server (or the network) stands still, and the wait ends with an error. TCP alone would not tell: the kernel
 * of a stopped process goes on acknowledging. tessera_connections_await_answers and tessera_connection_reset run in transaction callbacks: they raise
 * nothing, check no interrupts, and are bounded by their deadline. If the postmaster dies meanwhile they give up waiting, and the process goes at its
 * next wait: to exit in the middle of a commit would be a PANIC.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/version_compat.h"
#include "transport/connection_private.h"

#define FIXED_EVENTS 2			/* latch, postmaster death */
#define MAX_READY 16

int			tessera_node_timeout = 15000;

/* The sockets that this backend waits for. In TopMemoryContext; the set is kept from one wait to the next. */
typedef struct Waiting
{
	WaitEventSet *set;
	int			size;			/* sockets it has room for */
	int			n;				/* sockets in it */
	TesseraConnection **members;	/* by position - FIXED_EVENTS */
	TimestampTz limit;			/* waits that may raise end then; 0: no limit; tessera_connections_limit sets it */
	bool		orphaned;		/* the postmaster has died */
} Waiting;

static Waiting waiting = {0};

static void
drop_wait_set(void)
{
	if (waiting.set == NULL)
		return;
	for (int i = 0; i < waiting.n; i++)
	{
		waiting.members[i]->wait_position = -1;
		waiting.members[i]->wait_events = 0;
	}
	waiting.n = 0;
	FreeWaitEventSet(waiting.set);
	waiting.set = NULL;
}

/* The connection closes its socket. */
void
tessera_wait_forget(TesseraConnection *connection)
{
	if (connection->wait_position >= 0)
		drop_wait_set();
}

static uint32
wanted_events(TesseraConnection *connection)
{
	return WL_SOCKET_READABLE | (connection->unflushed ? WL_SOCKET_WRITEABLE : 0);
}

static void
make_wait_set(int n)
{
	int			size = Max(8, n * 2);

	drop_wait_set();
	if (size > waiting.size)
	{
		if (waiting.members)
			pfree(waiting.members);
		waiting.members = NULL;
		waiting.size = 0;
		waiting.members = MemoryContextAlloc(TopMemoryContext, size * sizeof(TesseraConnection *));
		waiting.size = size;
	}
	waiting.set = tessera_wait_event_set(TopMemoryContext, waiting.size + FIXED_EVENTS);
	AddWaitEventToSet(waiting.set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(waiting.set, WL_POSTMASTER_DEATH, PGINVALID_SOCKET, NULL, NULL);
}

/* See to it that the set holds these connections and listens to what they want. */
static void
prepare_wait_set(TesseraConnection **connections, int n)
{
	int			missing = 0;

	for (int i = 0; i < n; i++)
		if (connections[i]->wait_position < 0)
			missing++;
	if (waiting.set == NULL || waiting.n + missing > waiting.size)
		make_wait_set(n);
	for (int i = 0; i < n; i++)
	{
		TesseraConnection *connection = connections[i];
		uint32		events = wanted_events(connection);

		if (connection->wait_position < 0)
		{
			connection->wait_position = AddWaitEventToSet(waiting.set, events, PQsocket(connection->pg), NULL, connection);
			waiting.members[waiting.n++] = connection;
		}
		else if (connection->wait_events != events)
			ModifyWaitEvent(waiting.set, connection->wait_position, events, NULL);
		connection->wait_events = events;
	}
}

static bool
is_wanted(TesseraConnection *connection, TesseraConnection **connections, int n)
{
	for (int i = 0; i < n; i++)
		if (connections[i] == connection)
			return true;
	return false;
}

/* Wait once, and read and write what is ready. False: timeout, or only the latch. All given connections are open. */
static bool
wait_once(TesseraConnection **connections, int n, long timeout_ms, bool quiet)
{
	WaitEvent	ready[MAX_READY];
	int			nready;
	bool		noise = false;
	bool		any = false;

	prepare_wait_set(connections, n);
	/* a build of an index on this node may be what is waited for, and it waits for older snapshots; where another one is held this does nothing */
	InvalidateCatalogSnapshotConditionally();
	nready = WaitEventSetWait(waiting.set, timeout_ms, ready, MAX_READY, PG_WAIT_EXTENSION);
	for (int i = 0; i < nready; i++)
	{
		TesseraConnection *connection = ready[i].user_data;

		if (ready[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		else if (ready[i].events & WL_POSTMASTER_DEATH)
			waiting.orphaned = true;
		else if (connection == NULL)
			continue;
		else if (!is_wanted(connection, connections, n))
			noise = true;
		else
		{
			any = true;
			if ((ready[i].events & WL_SOCKET_WRITEABLE) && !tessera_connection_flush(connection))
				continue;
			if (ready[i].events & WL_SOCKET_READABLE)
				(void) tessera_connection_read(connection);
		}
	}
	if (noise)
		drop_wait_set();
	if (!quiet)
	{
		if (waiting.orphaned)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
	}
	return any;
}

static long
milliseconds_until(TimestampTz deadline)
{
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
}

/* ---- reading that may raise ---- */

TimestampTz
tessera_connections_limit(TimestampTz deadline)
{
	TimestampTz before = waiting.limit;

	waiting.limit = deadline;
	return before;
}

long
tessera_wait_left(long timeout_ms)
{
	long		left;

	if (waiting.limit == 0)
		return timeout_ms;
	left = milliseconds_until(waiting.limit);
	return timeout_ms < 0 ? left : Min(left, timeout_ms);
}

_Noreturn static void
raise_standing_still(TesseraConnection *connection)
{
	if (tessera_connection_node(connection) > 0)
		tessera_node_reached(tessera_connection_node(connection), false);
	tessera_connection_close(connection);
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("node \"%s\" stands still", tessera_connection_name(connection)),
			 errdetail("Nothing has come from it for %d ms, and it answers no new connection in time. What it does with the request is not known.",
					   tessera_node_timeout),
			 errhint("Check that the node runs and can be reached. tessera.node_timeout says how long it may be silent.")));
}

/* How long to wait before the other end is looked at; -1: for ever. */
static long
patience(long timeout_ms)
{
	if (tessera_node_timeout == 0 || (timeout_ms >= 0 && timeout_ms <= tessera_node_timeout))
		return timeout_ms;
	return tessera_node_timeout;
}

/* Nothing has come since `began`: if that is too long ago, checks that the nodes still answer, and raises if one of them stands still. */
static void
look_after(TesseraConnection **connections, int n, TimestampTz began)
{
	if (tessera_node_timeout == 0 || !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), tessera_node_timeout))
		return;
	for (int i = 0; i < n; i++)
		if (tessera_connection_alive(connections[i]) && !tessera_connection_answers(connections[i]))
			raise_standing_still(connections[i]);
}

bool
tessera_connection_stands_still(TesseraConnection *connection, TimestampTz *looked)
{
	bool		answers;

	if (tessera_node_timeout == 0 || !tessera_connection_alive(connection) ||
		!TimestampDifferenceExceeds(*looked, GetCurrentTimestamp(), tessera_node_timeout))
		return false;
	HOLD_INTERRUPTS();
	answers = tessera_connection_answers(connection);
	RESUME_INTERRUPTS();
	*looked = GetCurrentTimestamp();
	return !answers;
}

/*
 * wait_once that may raise: waits at most timeout_ms (< 0: any) altogether, or until anything comes. False: nothing did; the latch may have been set.
 */
static bool
wait_alive(TesseraConnection **connections, int n, long timeout_ms)
{
	TimestampTz began = GetCurrentTimestamp();

	if (wait_once(connections, n, patience(timeout_ms), false))
		return true;
	look_after(connections, n, began);
	return false;
}

void
tessera_connection_await_socket(TesseraConnection *connection, int events)
{
	for (;;)
	{
		TimestampTz began = GetCurrentTimestamp();
		int			ready = WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | events | (tessera_node_timeout > 0 ? WL_TIMEOUT : 0),
											  PQsocket(connection->pg), tessera_node_timeout, PG_WAIT_EXTENSION);

		if (ready & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		if (ready & (WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE))
			break;
		look_after(&connection, 1, began);
	}
}

/* Waits once, within the limit; when that has passed, closes the connection and raises. */
static void
wait_in_time(TesseraConnection *connection)
{
	long		left = tessera_wait_left(-1);

	if (left == 0)
	{
		tessera_connection_close(connection);
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("node \"%s\" did not answer in time", tessera_connection_name(connection)),
				 errdetail("What it does with the request is not known."),
				 errhint("Check that the node runs.")));
	}
	(void) wait_alive(&connection, 1, left);
}

void
tessera_connection_sync(TesseraConnection *connection)
{
	if (!connection->unsynced && !connection->unflushed)
		return;
	if (!tessera_connection_sync_quietly(connection))
		tessera_connection_raise_broken(connection);
	/* The other end may not read while it cannot write: read meanwhile. */
	while (connection->unflushed)
	{
		wait_in_time(connection);
		if (connection->broken)
			tessera_connection_raise_broken(connection);
		(void) tessera_connection_process(connection, false);
	}
}

/* Wait until anything was handled. */
static void
wait_and_handle(TesseraConnection *connection)
{
	for (;;)
	{
		if (connection->pg == NULL || connection->broken)
			tessera_connection_raise_broken(connection);
		wait_in_time(connection);
		if (tessera_connection_process(connection, false) || connection->count == 0)
			break;
	}
	if (connection->broken)
		tessera_connection_raise_broken(connection);
}

static void
lost_command(TesseraConnection *connection)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the statement on node \"%s\" was ended by an error that came after it", tessera_connection_name(connection)),
			 errhint("Read a cursor to its end before a part of the transaction can fail and be rolled back.")));
}

void
tessera_connection_finish(TesseraConnection *connection, TesseraCommand *command)
{
	if (command->done)
		return;
	if (connection->unsynced)
		tessera_connection_sync(connection);
	(void) tessera_connection_process(connection, false);
	while (!command->done)
	{
		if (connection->count == 0 && connection->pg && !connection->broken)
			lost_command(connection);
		wait_and_handle(connection);
	}
}

bool
tessera_connection_busy(TesseraConnection *connection)
{
	return connection->count > 0;
}

void
tessera_connection_drain(TesseraConnection *connection)
{
	if (connection->unsynced)
		tessera_connection_sync(connection);
	(void) tessera_connection_process(connection, false);
	while (connection->count > 0)
		wait_and_handle(connection);
}

/* Handle what has been read of any of them. */
static bool
process_all(TesseraConnection **connections, int n)
{
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		if (connections[i]->unsynced)
			tessera_connection_sync(connections[i]);
		if (tessera_connection_process(connections[i], false))
			any = true;
		if (connections[i]->pg == NULL || connections[i]->broken)
			tessera_connection_raise_broken(connections[i]);
	}
	return any;
}

bool
tessera_connections_pump(TesseraConnection **connections, int n, int timeout_ms)
{
	TimestampTz deadline = 0;
	TesseraConnection *few[8];
	TesseraConnection **busy = n <= lengthof(few) ? few : palloc(n * sizeof(TesseraConnection *));
	bool		handled = false;

	if (timeout_ms >= 0)
		deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	while (!(handled = process_all(connections, n)))
	{
		long		wait = timeout_ms < 0 ? -1 : milliseconds_until(deadline);
		int			nbusy = 0;

		for (int i = 0; i < n; i++)
			if (connections[i]->count > 0)
				busy[nbusy++] = connections[i];
		if (nbusy == 0)
			lost_command(connections[0]);
		if (wait == 0 && timeout_ms > 0)
			break;
		(void) wait_alive(busy, nbusy, wait);
		if (timeout_ms == 0)
		{
			handled = process_all(connections, n);
			break;
		}
	}
	if (busy != few)
		pfree(busy);
	return handled;
}

/* ---- reading that raises nothing ---- */

static int
await_answers(TesseraConnection **connections, int n, TimestampTz deadline, bool interruptible)
{
	int			size = Max(n, 1);
	TesseraConnection **busy = palloc(size * sizeof(TesseraConnection *));
	int			nbusy;

	for (;;)
	{
		long		wait;

		nbusy = 0;
		for (int i = 0; i < n; i++)
		{
			if (!tessera_connection_alive(connections[i]) || !tessera_connection_sync_quietly(connections[i]))
				continue;
			(void) tessera_connection_process(connections[i], true);
			if (tessera_connection_alive(connections[i]) && (connections[i]->count > 0 || connections[i]->unflushed))
				busy[nbusy++] = connections[i];
		}
		wait = nbusy > 0 ? milliseconds_until(deadline) : 0;
		if (wait <= 0 || waiting.orphaned)
			break;
		(void) wait_once(busy, nbusy, wait, !interruptible);
	}
	pfree(busy);
	return nbusy;
}

int
tessera_connections_await_answers(TesseraConnection **connections, int n, TimestampTz deadline)
{
	return await_answers(connections, n, deadline, false);
}

int
tessera_connections_await_in_time(TesseraConnection **connections, int n, TimestampTz deadline)
{
	return await_answers(connections, n, deadline, true);
}

void
tessera_connection_cancel(TesseraConnection *connection)
{
	if (tessera_connection_alive(connection) && connection->count > 0 && connection->cancel == NULL)
		connection->cancel = tessera_cancel_start(connection->pg);
}

bool
tessera_cancel_await(TesseraConnection *connection, long timeout_ms)
{
	TesseraCancel *cancel = connection->cancel;

	connection->cancel = NULL;
	return cancel == NULL || tessera_cancel_finish(cancel, timeout_ms);
}

bool
tessera_connection_drop_results(TesseraConnection *connection)
{
	if (!tessera_connection_alive(connection) || !tessera_connection_sync_quietly(connection))
	{
		tessera_connection_close(connection);
		return false;
	}
	tessera_connection_forget(connection, NULL);
	tessera_connection_clear_errors(connection);
	tessera_connection_clear_all_notices(connection);
	if (connection->count > 0)
		connection->state.known = false;
	return true;
}

void
tessera_connections_reset(TesseraConnection **connections, int n, TimestampTz deadline)
{
	for (int i = 0; i < n; i++)
	{
		TesseraConnection *connection = connections[i];

		if (!tessera_connection_drop_results(connection) || connection->count == 0)
			continue;

		/* Often everything has been answered already. */
		if (tessera_connection_read(connection))
			(void) tessera_connections_await_answers(&connection, 1, GetCurrentTimestamp());
		tessera_connection_cancel(connection);
	}
	(void) tessera_connections_await_answers(connections, n, deadline);
	/* A request to cancel that is still on its way would cancel the next command: such a connection is closed. */
	for (int i = 0; i < n; i++)
		if (!tessera_connection_alive(connections[i]) || connections[i]->count > 0 ||
			!tessera_cancel_await(connections[i], milliseconds_until(deadline)))
			tessera_connection_close(connections[i]);
		else
			tessera_connection_clear_all_notices(connections[i]);	/* what was rolled back does not notify */
}

bool
tessera_connection_reset(TesseraConnection *connection, int timeout_ms)
{
	tessera_connections_reset(&connection, 1, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms));
	return connection->pg != NULL;
}
