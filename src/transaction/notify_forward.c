/*
 * notify_forward.c
 *	  The forwarder: passes the notifications of this node to all others; one worker for each database that is a node.
 *
 * It listens to the extension's channel over a connection of its own to this node, and has a queue and a connection for each other node. A connection
 * goes through DOWN - CONNECTING - GREETING (hello) - GREETED, LISTENING (this node only) - READY - BUSY (a batch is on its way). All of them are
 * served by one loop, which waits for any socket or the latch: a node that does not answer does not delay the others.
 *
 * A batch is one transaction there, in which the server drops duplicates: so it ends before a notification that it has already. One that failed is
 * sent again, one whose answer is lost is not, since it may have arrived. Queues are bounded. While a full one still shrinks, what comes waits in the
 * server's own queue; if it does not, what does not fit is dropped for that node, counted in tessera.stat_notifications, and said in the log.
 *
 * Memory: queues and names in a context of the process, until it exits. Shared: whether it listens, and the counters of each node, written by it
 * alone under the slot's spinlock. Crash: what is queued is lost, and what is notified before it listens again.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "catalog/change.h"
#include "common/process_exit.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "transaction/notify.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_internal_stat_notifications);

#define LISTEN_SQL "LISTEN " TESSERA_NOTIFY_CHANNEL

#define BATCH 200				/* notifications */
#define MOST_QUEUED 10000		/* for one node */
#define MOST_BYTES (32 * 1024 * 1024)
#define MOST_TAKEN 1000			/* at once, before something is sent */
#define STALLED_MS 1000			/* a full queue that does not shrink for so long no longer delays the others */
#define CONNECT_MS 10000
#define ANSWER_MS 30000
#define FIRST_PAUSE 500L
#define LONGEST_PAUSE 10000L
#define LOOK_AROUND 5000L		/* ms; whether nodes have come or gone */
#define MOST_FAILURES 20		/* of one batch, by errors of the other node */
#define MOST_NODES 64			/* with counters */

typedef enum LinkState
{
	LINK_DOWN,
	LINK_CONNECTING,
	LINK_GREETING,
	LINK_GREETED,				/* this node only: LISTEN comes next */
	LINK_LISTENING,
	LINK_READY,
	LINK_BUSY
} LinkState;

typedef struct Message
{
	dlist_node	node;
	char	   *channel;
	char	   *payload;
	Size		size;
} Message;

typedef struct Link
{
	dlist_node	node;
	int32		node_id;
	NameData	name;
	char	   *conninfo;
	char	   *hello;
	int			expected;		/* incarnation */
	int			protocol;		/* that both speak, once it is greeted */
	bool		present;		/* in the registry, as of the last look */
	LinkState	state;
	bool		answered;		/* and is in state `next` when the other end is ready for another query */
	LinkState	next;
	PGconn	   *pg;
	PostgresPollingStatusType poll;
	TimestampTz deadline;		/* of what it is at */
	TimestampTz again;			/* not before that, when it is down */
	long		pause;
	dlist_head	queue;
	int			queued;
	Size		bytes;
	TimestampTz progress;		/* when the queue last shrank, or was empty */
	int			batch;			/* messages at the head of the queue that are on their way */
	int			failures;
	bool		dropping;
	char	   *trouble;		/* the last one that was logged; NULL: none */
} Link;

typedef struct Counters
{
	int32		node_id;		/* 0: unused */
	int64		queued;
	int64		forwarded;
	int64		dropped;
} Counters;

typedef struct ForwarderSlot
{
	slock_t		mutex;
	int			listening;		/* process id of the forwarder, while it listens; 0: none */
	Counters	nodes[MOST_NODES];
} ForwarderSlot;

static ForwarderSlot *slots = NULL;

/* Of the forwarder, while it runs. */
typedef struct Forwarder
{
	MemoryContext context;
	Link		own;			/* to this node */
	dlist_head	links;			/* to the others */
	char	   *half;			/* the first half of a notification in two */
	uint64		looked_at;		/* catalog sequence */
} Forwarder;

static Forwarder worker = {.links = DLIST_STATIC_INIT(worker.links)};

/* ---- shared ---- */

static Size
forward_size(void)
{
	return sizeof(ForwarderSlot) * TESSERA_MAX_DATABASES;
}

static void
forward_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	if (found)
		return;
	memset(slots, 0, forward_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
		SpinLockInit(&slots[i].mutex);
}

static void
forward_reset_slot(int slot)
{
	SpinLockAcquire(&slots[slot].mutex);
	slots[slot].listening = 0;
	memset(slots[slot].nodes, 0, sizeof(slots[slot].nodes));
	SpinLockRelease(&slots[slot].mutex);
}

static const TesseraShmemModule forward_module = {"tessera_notifications", forward_size, 0, forward_shmem_init, forward_reset_slot};

bool
tessera_notify_forwarder_listens(void)
{
	int			slot = tessera_database_slot_if_any();

	return slot >= 0 && *(volatile int *) &slots[slot].listening != 0;
}

static void
say_listening(int pid)
{
	ForwarderSlot *slot = &slots[tessera_database_slot()];

	SpinLockAcquire(&slot->mutex);
	slot->listening = pid;
	SpinLockRelease(&slot->mutex);
}

/* Exit step of the forwarder: closes its connections, so that the servers at their other ends do not wait for it. */
void
tessera_notify_forward_leave(int code, Datum arg)
{
	dlist_iter	iter;

	say_listening(0);
	if (worker.own.pg)
		PQfinish(worker.own.pg);
	dlist_foreach(iter, &worker.links)
		if (dlist_container(Link, node, iter.cur)->pg)
			PQfinish(dlist_container(Link, node, iter.cur)->pg);
}

/* Counts for a node; gone: it has left, its counters are free. */
static void
count(const Link *link, int64 forwarded, int64 dropped, bool gone)
{
	ForwarderSlot *slot = &slots[tessera_database_slot()];
	Counters   *counters = NULL;

	SpinLockAcquire(&slot->mutex);
	for (int i = 0; i < MOST_NODES && counters == NULL; i++)
		if (slot->nodes[i].node_id == link->node_id)
			counters = &slot->nodes[i];
	for (int i = 0; i < MOST_NODES && counters == NULL; i++)
		if (slot->nodes[i].node_id == 0)
			counters = &slot->nodes[i];
	if (counters != NULL && gone)
		memset(counters, 0, sizeof(Counters));
	else if (counters != NULL)
	{
		counters->node_id = link->node_id;
		counters->queued = link->queued;
		counters->forwarded += forwarded;
		counters->dropped += dropped;
	}
	SpinLockRelease(&slot->mutex);
}

/* internal_stat_notifications(): node_id, queued, forwarded, dropped, listening */
Datum
tessera_internal_stat_notifications(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int			number = tessera_database_slot_if_any();
	Counters	nodes[MOST_NODES];
	bool		listening;

	InitMaterializedSRF(fcinfo, 0);
	if (number < 0)
		return (Datum) 0;
	SpinLockAcquire(&slots[number].mutex);
	memcpy(nodes, slots[number].nodes, sizeof(nodes));
	listening = slots[number].listening != 0;
	SpinLockRelease(&slots[number].mutex);
	for (int i = 0; i < MOST_NODES; i++)
	{
		Datum		values[5] = {Int32GetDatum(nodes[i].node_id), Int64GetDatum(nodes[i].queued), Int64GetDatum(nodes[i].forwarded),
		Int64GetDatum(nodes[i].dropped), BoolGetDatum(listening)};
		bool		nulls[5] = {false, false, false, false, false};

		if (nodes[i].node_id != 0)
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* ---- queues ---- */

static void
drop_head(Link *link, int n)
{
	for (int i = 0; i < n && !dlist_is_empty(&link->queue); i++)
	{
		Message    *message = dlist_container(Message, node, dlist_pop_head_node(&link->queue));

		link->queued--;
		link->bytes -= message->size;
		pfree(message);
	}
}

static bool
is_full(const Link *link, Size size)
{
	return link->queued >= MOST_QUEUED || link->bytes + size > MOST_BYTES;
}

/* True if a full queue still shrinks. Then new notifications wait in the server's queue: a burst is no reason to drop anything. */
static bool
room_comes(TimestampTz now)
{
	dlist_iter	iter;

	dlist_foreach(iter, &worker.links)
	{
		Link	   *link = dlist_container(Link, node, iter.cur);

		if (is_full(link, BLCKSZ) && !TimestampDifferenceExceeds(link->progress, now, STALLED_MS))
			return true;
	}
	return false;
}

static void
enqueue(Link *link, const char *channel, const char *payload)
{
	Size		size = sizeof(Message) + strlen(channel) + strlen(payload) + 2;
	Message    *message;

	if (is_full(link, size))
	{
		if (!link->dropping)
			ereport(WARNING,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("notifications for node \"%s\" are dropped: it does not take them fast enough", NameStr(link->name)),
					 errdetail("%d are queued.", link->queued),
					 errhint("Check that the node runs; tessera.stat_notifications counts what is dropped.")));
		link->dropping = true;
		count(link, 0, 1, false);
		return;
	}
	if (link->dropping)
		ereport(LOG,
				(errmsg("notifications for node \"%s\" are no longer dropped", NameStr(link->name))));
	link->dropping = false;
	if (link->queued == 0)
		link->progress = GetCurrentTimestamp();
	message = MemoryContextAlloc(worker.context, size);
	message->size = size;
	message->channel = (char *) (message + 1);
	strcpy(message->channel, channel);
	message->payload = message->channel + strlen(channel) + 1;
	strcpy(message->payload, payload);
	dlist_push_tail(&link->queue, &message->node);
	link->queued++;
	link->bytes += size;
}

/* ---- one connection ---- */

/* Closes the connection; it is opened again after a pause. What was sent without an answer may have arrived, so it is not sent again. */
static void
take_down(Link *link, const char *trouble)
{
	int			lost = link->batch;

	if (link == &worker.own)
		say_listening(0);
	if (link->pg)
	{
		PQfinish(link->pg);
		ReleaseExternalFD();
	}
	link->pg = NULL;
	link->state = LINK_DOWN;
	link->answered = false;
	link->batch = 0;
	link->again = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), link->pause);
	link->pause = Min(link->pause * 2, LONGEST_PAUSE);
	if (lost > 0)
	{
		drop_head(link, lost);
		count(link, 0, lost, false);
	}
	/* the same trouble is logged once */
	if (trouble == NULL || (link->trouble && strcmp(link->trouble, trouble) == 0))
		return;
	ereport(LOG,
			(errmsg("notifications cannot be passed to node \"%s\": %s", NameStr(link->name), trouble),
			 lost > 0 ? errdetail("%d of them may or may not have arrived.", lost) : 0));
	if (link->trouble)
		pfree(link->trouble);
	link->trouble = MemoryContextStrdup(worker.context, trouble);
}

static const char *
libpq_trouble(const Link *link)
{
	return link->pg && PQerrorMessage(link->pg)[0] ? pchomp(PQerrorMessage(link->pg)) : "the connection was lost";
}

static void
begin_connecting(Link *link)
{
	tessera_injection("worker_connecting");
	if (!AcquireExternalFD())
	{
		take_down(link, "too many open files");
		return;
	}
	link->pg = tessera_connection_start(link->conninfo);
	if (link->pg == NULL)
	{
		ReleaseExternalFD();
		take_down(link, "out of memory");
		return;
	}
	link->state = LINK_CONNECTING;
	link->poll = PGRES_POLLING_WRITING;
	link->deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), CONNECT_MS);
	if (PQstatus(link->pg) == CONNECTION_BAD)
		take_down(link, libpq_trouble(link));
}

static void
send_query(Link *link, LinkState state, const char *sql, int nparams, const char *const *values)
{
	if (!PQsendQueryParams(link->pg, sql, nparams, NULL, values, NULL, NULL, 0) || PQflush(link->pg) < 0)
	{
		take_down(link, libpq_trouble(link));
		return;
	}
	link->state = state;
	link->deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ANSWER_MS);
}

static void
go_on_connecting(Link *link)
{
	link->poll = PQconnectPoll(link->pg);
	if (link->poll == PGRES_POLLING_FAILED)
		take_down(link, libpq_trouble(link));
	else if (link->poll == PGRES_POLLING_OK)
	{
		(void) PQsetnonblocking(link->pg, 1);
		send_query(link, LINK_GREETING, link->hello, 0, NULL);
	}
}

static bool
is_in_batch(Link *link, const Message *message, int n)
{
	dlist_iter	iter;

	dlist_foreach(iter, &link->queue)
	{
		Message    *other = dlist_container(Message, node, iter.cur);

		if (n-- == 0)
			break;
		if (strcmp(other->channel, message->channel) == 0 && strcmp(other->payload, message->payload) == 0)
			return true;
	}
	return false;
}

static void
send_batch(Link *link)
{
	StringInfoData channels;
	StringInfoData payloads;
	const char *values[2];
	dlist_iter	iter;
	int			n = 0;

	initStringInfo(&channels);
	initStringInfo(&payloads);
	appendStringInfoChar(&channels, '{');
	appendStringInfoChar(&payloads, '{');
	dlist_foreach(iter, &link->queue)
	{
		Message    *message = dlist_container(Message, node, iter.cur);

		if (n == BATCH || is_in_batch(link, message, n))
			break;
		tessera_append_array_element(&channels, message->channel);
		tessera_append_array_element(&payloads, message->payload);
		n++;
	}
	appendStringInfoChar(&channels, '}');
	appendStringInfoChar(&payloads, '}');
	values[0] = channels.data;
	values[1] = payloads.data;
	link->batch = n;
	send_query(link, LINK_BUSY, tessera_call_text(&tessera_call_specs[TESSERA_CALL_NOTIFY], link->protocol, NULL), 2, values);
	pfree(channels.data);
	pfree(payloads.data);
}

static void
becomes(Link *link, LinkState state)
{
	link->answered = true;
	link->next = state;
}

/* The answer to what the connection is at. */
static void
take_answer(Link *link, const PGresult *result)
{
	bool		good = PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK;
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	int64		greeting;

	switch (link->state)
	{
		case LINK_GREETING:
			if (good && PQntuples(result) == 1 && tessera_greeting_read(PQgetvalue(result, 0, 0), &greeting, &link->protocol) &&
				greeting >= link->expected)
			{
				becomes(link, link == &worker.own ? LINK_GREETED : LINK_READY);
				link->pause = FIRST_PAUSE;
				return;
			}
			take_down(link, good ? "another server was promoted in its place" : message ? message : "it did not answer as a node");
			return;
		case LINK_LISTENING:
			if (!good)
			{
				take_down(link, message ? message : "it cannot be listened to");
				return;
			}
			becomes(link, LINK_READY);
			say_listening(MyProcPid);
			return;
		case LINK_BUSY:
			if (good)
			{
				int			n = link->batch;

				link->batch = 0;
				link->failures = 0;
				becomes(link, LINK_READY);
				drop_head(link, n);
				link->progress = GetCurrentTimestamp();
				count(link, n, 0, false);
				if (link->trouble)
					pfree(link->trouble);
				link->trouble = NULL;
				return;
			}
			/* rolled back there: it is sent again, but not for ever */
			if (++link->failures < MOST_FAILURES)
				link->batch = 0;
			else
				link->failures = 0;
			take_down(link, message ? message : "it refuses notifications");
			return;
		default:
			return;
	}
}

/* Takes what has come, as far as there is room. True: perhaps there is more. */
static bool
take_notifications(void)
{
	PGnotify   *notify;

	for (int taken = 0; worker.own.pg != NULL; taken++)
	{
		MemoryContext before;
		char	   *first = worker.half;
		char	   *channel = NULL;
		char	   *payload = NULL;
		TesseraUnwrapped unwrapped;
		dlist_iter	iter;

		if (taken == MOST_TAKEN)
			return true;
		if (room_comes(GetCurrentTimestamp()) || (notify = PQnotifies(worker.own.pg)) == NULL)
			return false;
		before = MemoryContextSwitchTo(worker.context);
		unwrapped = tessera_notify_unwrap(notify->extra, &worker.half, &channel, &payload);
		MemoryContextSwitchTo(before);
		if (first)
			pfree(first);
		PQfreemem(notify);
		if (unwrapped == TESSERA_WRAPPED_BROKEN)
			ereport(LOG,
					(errmsg("a notification in the channel \"%s\" cannot be read", TESSERA_NOTIFY_CHANNEL)));
		if (unwrapped != TESSERA_WRAPPED_WHOLE)
			continue;
		dlist_foreach(iter, &worker.links)
			enqueue(dlist_container(Link, node, iter.cur), channel, payload);
		pfree(channel);
		pfree(payload);
	}
	return false;
}

/* Reads and writes a connection whose socket is ready. */
static void
serve(Link *link, uint32 events)
{
	PGresult   *result;

	if (link->state == LINK_CONNECTING)
	{
		go_on_connecting(link);
		return;
	}
	if (((events & WL_SOCKET_WRITEABLE) && PQflush(link->pg) < 0) || ((events & WL_SOCKET_READABLE) && !PQconsumeInput(link->pg)))
	{
		take_down(link, libpq_trouble(link));
		return;
	}
	while (link->pg && !PQisBusy(link->pg))
	{
		result = PQgetResult(link->pg);
		if (result == NULL)
		{
			if (link->answered)
				link->state = link->next;
			link->answered = false;
			break;
		}
		take_answer(link, result);
		PQclear(result);
	}
	if (link->pg && PQstatus(link->pg) == CONNECTION_BAD)
		take_down(link, libpq_trouble(link));
}

/* ---- the nodes ---- */

static void
describe(Link *link, const TesseraRouting *routing, const TesseraNode *node)
{
	const char *conninfo = tessera_node_conninfo(routing, node);

	link->present = true;
	link->expected = node->incarnation;
	namestrcpy(&link->name, NameStr(node->name));
	if (link->hello)
		pfree(link->hello);
	link->hello = MemoryContextStrdup(worker.context, tessera_hello_text(routing, node->incarnation, MyProcPid));
	if (link->conninfo && strcmp(link->conninfo, conninfo) == 0)
		return;
	if (link->conninfo)
		pfree(link->conninfo);
	link->conninfo = MemoryContextStrdup(worker.context, conninfo);
	if (link->pg && link->state != LINK_BUSY)
		take_down(link, NULL);
	link->pause = FIRST_PAUSE;
	link->again = 0;
}

static Link *
link_to(int32 node_id)
{
	Link	   *link;
	dlist_iter	iter;

	dlist_foreach(iter, &worker.links)
	{
		link = dlist_container(Link, node, iter.cur);
		if (link->node_id == node_id)
			return link;
	}
	link = MemoryContextAllocZero(worker.context, sizeof(Link));
	link->node_id = node_id;
	link->pause = FIRST_PAUSE;
	dlist_init(&link->queue);
	dlist_push_tail(&worker.links, &link->node);
	return link;
}

static void
forget(Link *link)
{
	take_down(link, NULL);
	drop_head(link, link->queued);
	count(link, 0, 0, true);
	dlist_delete(&link->node);
	if (link->conninfo)
		pfree(link->conninfo);
	if (link->hello)
		pfree(link->hello);
	if (link->trouble)
		pfree(link->trouble);
	pfree(link);
}

/* Brings the list of connections in line with the nodes of the cluster. False if there is no other node. */
static bool
look_around(void)
{
	const TesseraRouting *routing;
	dlist_mutable_iter iter;
	uint64		sequence = tessera_catalog_sequence();
	bool		others = false;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	routing = tessera_routing();
	dlist_foreach_modify(iter, &worker.links)
		dlist_container(Link, node, iter.cur)->present = false;
	worker.own.present = false;
	for (int i = 0; routing != NULL && i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		if (node->node_id == routing->self)
			describe(&worker.own, routing, node);
		else
		{
			Link	   *link = link_to(node->node_id);

			describe(link, routing, node);
			count(link, 0, 0, false);
			others = true;
		}
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(worker.context);
	dlist_foreach_modify(iter, &worker.links)
		if (!dlist_container(Link, node, iter.cur)->present)
			forget(dlist_container(Link, node, iter.cur));
	worker.looked_at = sequence;
	return others && worker.own.present;
}

/* ---- the loop ---- */

static void
lower_wait(long *wait, TimestampTz when, TimestampTz now)
{
	*wait = Min(*wait, when <= now ? 0 : TimestampDifferenceMilliseconds(now, when));
}

/* Does what is due on a connection by the time, its state or its queue: connects, listens, sends, or closes it where no answer came in time. */
static void
drive(Link *link, TimestampTz now)
{
	if (link->state == LINK_DOWN && now >= link->again && (link == &worker.own || link->queued > 0))
		begin_connecting(link);
	else if (link->state != LINK_DOWN && link->state != LINK_READY && now >= link->deadline)
		take_down(link, "it did not answer in time");
	if (link->state == LINK_GREETED)
		send_query(link, LINK_LISTENING, LISTEN_SQL, 0, NULL);
	if (link != &worker.own && link->state == LINK_READY && link->queued > 0)
		send_batch(link);
}

static void
add_to_wait(WaitEventSet *set, Link *link, TimestampTz now, long *wait)
{
	uint32		events = WL_SOCKET_READABLE;

	if (link == &worker.own && link->state == LINK_READY && room_comes(now))
	{
		lower_wait(wait, TimestampTzPlusMilliseconds(now, STALLED_MS / 10), now);
		return;
	}

	if (link->state == LINK_DOWN)
	{
		if (link == &worker.own || link->queued > 0)
			lower_wait(wait, link->again, now);
		return;
	}
	if (link->state == LINK_CONNECTING)
		events = link->poll == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE;
	else
	{
		int			flushed = PQflush(link->pg);

		if (flushed > 0)
			events |= WL_SOCKET_WRITEABLE;
	}
	if (link->state != LINK_READY)
		lower_wait(wait, link->deadline, now);
	AddWaitEventToSet(set, events, PQsocket(link->pg), NULL, link);
}

/* Waits for one of the connections, the latch, or the time; false: the latch. */
static bool
wait_and_serve(int nlinks, long wait)
{
	WaitEventSet *set = tessera_wait_event_set(CurrentMemoryContext, nlinks + 3);
	WaitEvent  *ready = palloc(sizeof(WaitEvent) * (nlinks + 3));
	TimestampTz now = GetCurrentTimestamp();
	bool		latch = false;
	dlist_iter	iter;
	int			n;

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	add_to_wait(set, &worker.own, now, &wait);
	dlist_foreach(iter, &worker.links)
		add_to_wait(set, dlist_container(Link, node, iter.cur), now, &wait);
	n = WaitEventSetWait(set, wait, ready, nlinks + 3, PG_WAIT_EXTENSION);
	FreeWaitEventSet(set);
	for (int i = 0; i < n; i++)
	{
		if (ready[i].events & WL_LATCH_SET)
			latch = true;
		else if (ready[i].user_data)
			serve(ready[i].user_data, ready[i].events);
	}
	pfree(ready);
	return !latch;
}

static void
end_links(void)
{
	dlist_mutable_iter iter;

	take_down(&worker.own, NULL);
	dlist_foreach_modify(iter, &worker.links)
		forget(dlist_container(Link, node, iter.cur));
	worker.half = NULL;
}

/*
 * Serves the connections until there is something for the worker's main to see to. An error leaves them as they are: the next step goes on.
 */
long
tessera_notify_forward_step(void)
{
	MemoryContext work;
	MemoryContext before;

	if (worker.context == NULL)
	{
		worker.context = AllocSetContextCreate(TopMemoryContext, "tessera notifications", ALLOCSET_DEFAULT_SIZES);
		worker.own.pause = FIRST_PAUSE;
		dlist_init(&worker.own.queue);
	}
	tessera_at_exit(tessera_notify_forward_leave);
	if (!look_around())
	{
		end_links();
		return LOOK_AROUND;
	}
	work = AllocSetContextCreate(worker.context, "tessera notification forwarder", ALLOCSET_DEFAULT_SIZES);
	before = MemoryContextSwitchTo(work);
	PG_TRY();
	{
		bool		go_on = true;
		bool		more = true;	/* taken by the server's library, maybe, and not by us */

		while (go_on && tessera_catalog_sequence() == worker.looked_at)
		{
			TimestampTz now = GetCurrentTimestamp();
			int			nlinks = 1;
			dlist_iter	iter;

			CHECK_FOR_INTERRUPTS();
			drive(&worker.own, now);
			dlist_foreach(iter, &worker.links)
			{
				drive(dlist_container(Link, node, iter.cur), now);
				nlinks++;
			}
			go_on = wait_and_serve(nlinks, more ? 0 : LOOK_AROUND);
			/* a node that has come meanwhile is to get what was heard since */
			if (tessera_catalog_sequence() != worker.looked_at)
				break;
			more = take_notifications();
			dlist_foreach(iter, &worker.links)
				count(dlist_container(Link, node, iter.cur), 0, 0, false);
			MemoryContextReset(work);
		}
	}
	PG_FINALLY();
	{
		MemoryContextSwitchTo(before);
		MemoryContextDelete(work);
	}
	PG_END_TRY();
	return 0;
}

void
tessera_notify_forward_init(void)
{
	tessera_shmem_register(&forward_module);
}
