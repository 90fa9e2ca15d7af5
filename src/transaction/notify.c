/*
 * notify.c
 *	  Sending notifications; see notify.h.
 *
 * Wrapped: 'w', two digits for the length of the channel's name, the name, the payload. What would be longer than the server allows goes in two
 * halves, 'a' and 'b', each with the MD5 of the whole, so that the server takes only equal ones for duplicates. Both are queued together and leave
 * the queue one after the other.
 *
 * From a shard: an INFO of SQLSTATE TS009, channel and payload as message and detail. The transport keeps it until the router's session reads the
 * connection, in the subtransaction that the statement ran in, or, of deferred triggers, at COMMIT or PREPARE. At that time the session's own
 * notifications can still be queued: the server sends them after the PRE_COMMIT callbacks.
 *
 * When a single shard has committed, the session's own commit, which sends the notifications, must not fail: it cannot be interrupted then, and if
 * the server's queue is filling up this node coordinates a two-phase commit instead.
 *
 * Memory: two flags of the transaction. A crash loses what has not been forwarded, as it does the queue itself.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "common/protocol.h"
#include "common/hashfn.h"
#include "common/md5.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/errors.h"
#include "common/stand_in.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "transaction/notify.h"
#include "transaction/transaction_private.h"

PG_FUNCTION_INFO_V1(tessera_pg_notify);

#define PAYLOAD_LIMIT (BLCKSZ - NAMEDATALEN - 128)	/* the server's */
#define HALF 4000				/* bytes of the first half, at most */
#define MD5_LENGTH 32
#define LISTEN_MS 2000			/* a forwarder that has just been started is waited for */
#define FILLS_AT 0.5

/* Of the transaction at hand; emptied at its end. */
typedef struct Notifying
{
	bool		notified;		/* it has queued a notification */
	bool		uninterrupted;	/* interrupts are held until its commit */
} Notifying;

static Notifying this_transaction = {0};

/* ---- wrapping ---- */

static void
queue_wrapped(const char *channel, const char *payload)
{
	size_t		channel_length = strlen(channel);
	size_t		payload_length = strlen(payload);
	char	   *whole;
	char	   *text;
	const char *error = NULL;
	char		md5[MD5_LENGTH + 1];
	int			half;

	if (3 + channel_length + payload_length < PAYLOAD_LIMIT)
	{
		text = psprintf("w%02d%s%s", (int) channel_length, channel, payload);
		Async_Notify(TESSERA_NOTIFY_CHANNEL, text);
		pfree(text);
		return;
	}
	whole = psprintf("%02d%s%s", (int) channel_length, channel, payload);
	if (!pg_md5_hash(whole, strlen(whole), md5, &error))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute MD5 hash: %s", error)));
	half = pg_mbcliplen(payload, payload_length, HALF);
	text = psprintf("a%s%.*s", md5, half, payload);
	Async_Notify(TESSERA_NOTIFY_CHANNEL, text);
	pfree(text);
	text = psprintf("b%s%02d%s%s", md5, (int) channel_length, channel, payload + half);
	Async_Notify(TESSERA_NOTIFY_CHANNEL, text);
	pfree(text);
	pfree(whole);
}

/* Two digits, the channel, the payload. */
static bool
read_channel(const char *text, char **channel, char **payload)
{
	int			length;

	if (text[0] < '0' || text[0] > '9' || text[1] < '0' || text[1] > '9')
		return false;
	length = (text[0] - '0') * 10 + text[1] - '0';
	if (length == 0 || strlen(text + 2) < length)
		return false;
	*channel = pnstrdup(text + 2, length);
	*payload = pstrdup(text + 2 + length);
	return true;
}

TesseraUnwrapped
tessera_notify_unwrap(const char *text, char **half, char **channel, char **payload)
{
	char	   *first = *half;

	*half = NULL;
	if (text[0] == 'w' && read_channel(text + 1, channel, payload))
		return TESSERA_WRAPPED_WHOLE;
	if (text[0] == 'a' && strlen(text) > MD5_LENGTH)
	{
		*half = pstrdup(text + 1);
		return TESSERA_WRAPPED_FIRST;
	}
	if (text[0] == 'b' && strlen(text) > MD5_LENGTH && first != NULL && strncmp(first, text + 1, MD5_LENGTH) == 0 &&
		read_channel(text + 1 + MD5_LENGTH, channel, payload))
	{
		*payload = psprintf("%s%s", first + MD5_LENGTH, *payload);
		return TESSERA_WRAPPED_WHOLE;
	}
	return TESSERA_WRAPPED_BROKEN;
}

/* ---- sending ---- */

/* Waits LISTEN_MS at most for a forwarder that is about to start; WARNING if none runs then. */
static void
await_forwarder(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LISTEN_MS);

	if (tessera_notify_forwarder_listens())
		return;
	(void) tessera_worker_wake(TESSERA_NOTIFICATION_FORWARDER);
	while (!tessera_notify_forwarder_listens() && GetCurrentTimestamp() < deadline)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (!tessera_notify_forwarder_listens())
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("a notification may not reach the listeners of other nodes: the forwarder of this node does not run"),
				 errhint("Look at the server's log, and whether max_worker_processes leaves room for it.")));
}

/* As the server checks them, before anything is sent over the network. */
static void
check_notification(const char *channel, const char *payload)
{
	if (channel[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name cannot be empty")));
	if (strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name too long")));
	if (strlen(payload) >= PAYLOAD_LIMIT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload string too long")));
}

_Noreturn static void
refuse_channel(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_RESERVED_NAME),
			 errmsg("channel \"%s\" is reserved for the extension", TESSERA_NOTIFY_CHANNEL),
			 errhint("Use another name.")));
}

bool
tessera_notify_begins(const char *channel, const char *payload)
{
	const TesseraRouting *routing = tessera_routing();

	if (payload == NULL)
		payload = "";
	if (routing == NULL)
		return true;
	if (strcmp(channel, TESSERA_NOTIFY_CHANNEL) == 0)
		refuse_channel();
	if (!tessera_internal_connection())
		return true;
	PreventCommandDuringRecovery("NOTIFY");
	check_notification(channel, payload);
	ereport(INFO,
			(errcode(tessera_internal_protocol() < TESSERA_WORDS_PROTOCOL ? ERRCODE_TESSERA_OLD_NOTIFICATION : ERRCODE_TESSERA_NOTIFICATION),
			 errmsg_internal("%s", channel),
			 errdetail_internal("%s", payload)));
	return false;
}

void
tessera_notify_ran(const char *channel, const char *payload)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		return;
	this_transaction.notified = true;
	if (routing->nnodes < 2)
		return;
	await_forwarder();
	queue_wrapped(channel, payload ? payload : "");
}

static void
send_notification(const char *channel, const char *payload)
{
	if (!tessera_notify_begins(channel, payload))
		return;
	PreventCommandDuringRecovery("NOTIFY");
	Async_Notify(channel, payload);
	tessera_notify_ran(channel, payload);
}

/*
 * What a shard has sent. The shard may have committed, so it must not fail on what the server would not take: that is a message of a user's function
 * which only looks like a notification, and goes on as the message that it is.
 */
static void
deliver_notification(const char *channel, const char *payload)
{
	if (channel[0] != '\0' && strlen(channel) < NAMEDATALEN && strlen(payload) < PAYLOAD_LIMIT && strcmp(channel, TESSERA_NOTIFY_CHANNEL) != 0)
		send_notification(channel, payload);
	else
		ereport(INFO,
				(errcode(ERRCODE_TESSERA_NOTIFICATION),
				 errmsg_internal("%s", channel),
				 payload[0] ? errdetail_internal("%s", payload) : 0));
}

/* pg_notify(channel, payload), in whose place this stands */
Datum
tessera_pg_notify(PG_FUNCTION_ARGS)
{
	char	   *channel = PG_ARGISNULL(0) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *payload = PG_ARGISNULL(1) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(1));

	tessera_stand_in_check(fcinfo->flinfo->fn_oid);
	send_notification(channel, payload);
	PG_RETURN_VOID();
}

void
tessera_listen_check(const TesseraUtility *utility)
{
	const char *channel = castNode(ListenStmt, utility->statement->utilityStmt)->conditionname;

	if (strcmp(channel, TESSERA_NOTIFY_CHANNEL) == 0 && !tessera_received(utility->text) && tessera_routing() != NULL)
		refuse_channel();
}

/* Notifications of another node, for the listeners of this one; in order, no two alike */
void
tessera_serve_notify(const TesseraNotifyArgs *args)
{
	Datum	   *channels;
	Datum	   *payloads;
	int			n[2];

	if (array_contains_nulls(args->channels) || array_contains_nulls(args->payloads))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("channels and payloads must not be null")));
	deconstruct_array(args->channels, TEXTOID, -1, false, TYPALIGN_INT, &channels, NULL, &n[0]);
	deconstruct_array(args->payloads, TEXTOID, -1, false, TYPALIGN_INT, &payloads, NULL, &n[1]);
	if (n[0] != n[1])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d channels but %d payloads", n[0], n[1])));
	for (int i = 0; i < n[0]; i++)
		Async_Notify(TextDatumGetCString(channels[i]), TextDatumGetCString(payloads[i]));
}

/* ---- the transaction's end ---- */

bool
tessera_notified(void)
{
	return this_transaction.notified;
}

bool
tessera_notify_queue_fills(void)
{
	return DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0)) > FILLS_AT;
}

void
tessera_notify_no_interrupts(void)
{
	if (this_transaction.uninterrupted)
		return;
	HOLD_INTERRUPTS();
	this_transaction.uninterrupted = true;
}

void
tessera_notify_committed(void)
{
	if (this_transaction.uninterrupted)
		RESUME_INTERRUPTS();
	tessera_notify_forget();
}

/* An error has let interrupts in already. */
void
tessera_notify_forget(void)
{
	this_transaction.uninterrupted = false;
	this_transaction.notified = false;
}

void
tessera_notify_init(void)
{
	tessera_notification_handler = deliver_notification;
}
