/*
 * exchange.c
 *	  The data plane of a migration: a ROUTER (donor) and a DEALER (recipient) of libzmq, under CURVE with keys of this one migration.
 *
 * Phases: make keys (both sides swap the public ones over the control plane), bind or connect, send and receive, close.
 *
 * One exchange is one connection, made once. The DEALER does not reconnect: what was under way when a connection broke is lost, and its owner must
 * learn that instead of waiting for it. The recipient learns of a break (or of a failed connect or handshake) from the socket's monitor: the next
 * send, and the receive after what had arrived was taken, raise 08006. The donor learns of it by a send that has no route any more; its receive just
 * finds nothing, since a recipient that has what it needs may leave. The recipient's routing id is fixed, so that the donor can tell "not yet here"
 * from "gone".
 *
 * Threads: libzmq starts two in the owning process (an I/O thread, a reaper), and a donor's exchange one more that admits the client key (zap.c says
 * why it is a thread). All of them start with every signal blocked, none runs server code. Sockets are used by the owning process's main thread
 * alone.
 *
 * Waiting: libzmq's file descriptor says only that something happened since the events were last asked for. So the events are asked for before each
 * sleep and after each wake-up, whatever woke it, and no sleep is longer than RECHECK_MS.
 *
 * Backpressure: a send queue of SEND_QUEUE messages. The receive queue is so long that requests in flight never fill it: a full one would stop libzmq
 * from reading, with the peer's heartbeats behind. Heartbeats count whole messages, so their time limit must let the largest message pass over a slow
 * link.
 *
 * Memory: an exchange lives in a memory context of its own, below its maker's. Resetting or deleting either closes it, by a reset callback; sockets
 * linger 0, so closing does not wait for the network. Messages in libzmq's queues are malloc'ed by libzmq. Locks: none. A crash closes the sockets
 * with the process; nothing is on disk.
 */
#include "postgres.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>

#include <zmq.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "common/version_compat.h"
#include "transport/exchange.h"
#include "transport/zap.h"
#include "utils/memutils.h"

/* Largest message, in bytes; libzmq counts what CURVE adds, too. */
#define MESSAGE_LIMIT ((Size) 256 * 1024 * 1024)
#define CURVE_OVERHEAD 1024

/* In messages. */
#define SEND_QUEUE 16
#define RECEIVE_QUEUE 1000

/* In milliseconds. A handshake needs the peer's libzmq threads only, not its owner. */
#define CONNECT_MS 10000
#define HANDSHAKE_MS 10000
#define HEARTBEAT_MS 10000
#define HEARTBEAT_TIMEOUT_MS 60000
#define RECHECK_MS 1000

/* libzmq reports a broken connection before it hands over what came last; in milliseconds. */
#define LOSS_GRACE_MS 100

/* What libzmq opens for one exchange at most: its threads' and sockets' event descriptors, the listener, connections. */
#define DESCRIPTORS 16

#define PEER_ID "recipient"
#define ZAP_DOMAIN "tessera"
#define MONITOR_ENDPOINT "inproc://monitor"
#define MONITOR_EVENTS (ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | \
						ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED)

struct TesseraExchange
{
	/* Set once, by bind or connect. */
	MemoryContext context;		/* this struct's own */
	MemoryContextCallback callback;
	bool		donor;
	void	   *zmq;
	void	   *socket;
	void	   *monitor;		/* recipient: the socket's events */
	TesseraZap	zap;			/* donor */
	bool		has_zap;
	WaitEventSet *wait_set;
	int			descriptors;	/* reserved at fd.c */

	/* What is known of the peer. */
	bool		peer_seen;		/* donor: a message went to it or came from it */
	bool		addressed;		/* donor: a message was begun, only its content is missing */
	bool		connected;		/* recipient: the handshake is done */
	instr_time	started;		/* recipient: the connect */
	const char *loss;			/* why the connection is over; NULL while it is not */
	instr_time	lost_at;

	/* Between calls. */
	bool		has_message;
	zmq_msg_t	message;		/* the one received last */
	bool		input_reported; /* wait has said that there is input, and nothing was received since */
};

static double
elapsed_ms(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return INSTR_TIME_GET_MILLISEC(now);
}

/*
 * Raises the error of the libzmq call just made.
 */
_Noreturn static void
raise_zmq(const char *what)
{
	int			code = zmq_errno();
	int			sqlstate = ERRCODE_CONNECTION_FAILURE;

	if (code == EMFILE || code == ENFILE)
		sqlstate = ERRCODE_INSUFFICIENT_RESOURCES;
	else if (code == ENOMEM)
		sqlstate = ERRCODE_OUT_OF_MEMORY;
	else if (code == EINVAL || code == ENODEV || code == EADDRNOTAVAIL || code == EPROTONOSUPPORT || code == ENOCOMPATPROTO)
		sqlstate = ERRCODE_INVALID_PARAMETER_VALUE;
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("could not %s: %s", what, zmq_strerror(code))));
}

/*
 * Closes whatever the exchange has open: the callback of its memory context, also for one that was made only in part. Must not raise errors. Waits
 * for libzmq's threads, which only need to notice.
 */
static void
release(void *arg)
{
	TesseraExchange *exchange = arg;

	if (exchange->has_message)
		(void) zmq_msg_close(&exchange->message);
	exchange->has_message = false;
	if (exchange->wait_set != NULL)
		FreeWaitEventSet(exchange->wait_set);
	exchange->wait_set = NULL;
	if (exchange->monitor != NULL)
	{
		/* The monitor is switched off before its reader is closed: an I/O thread would wait for a reader. */
		(void) zmq_socket_monitor(exchange->socket, NULL, 0);
		(void) zmq_close(exchange->monitor);
	}
	if (exchange->socket != NULL)
		(void) zmq_close(exchange->socket);
	if (exchange->zmq != NULL)
	{
		(void) zmq_ctx_shutdown(exchange->zmq);
		if (exchange->has_zap)
			tessera_zap_join(&exchange->zap);
		while (zmq_ctx_term(exchange->zmq) != 0 && zmq_errno() == EINTR)
			;
	}
	exchange->monitor = NULL;
	exchange->socket = NULL;
	exchange->zmq = NULL;
	for (; exchange->descriptors > 0; exchange->descriptors--)
		ReleaseExternalFD();
}

/*
 * An exchange without sockets, in a context of its own that releases it.
 */
static TesseraExchange *
make_exchange(bool donor)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera exchange", ALLOCSET_SMALL_SIZES);
	TesseraExchange *exchange = MemoryContextAllocZero(context, sizeof(TesseraExchange));

	exchange->context = context;
	exchange->donor = donor;
	exchange->callback.func = release;
	exchange->callback.arg = exchange;
	MemoryContextRegisterResetCallback(context, &exchange->callback);
	return exchange;
}

static void
reserve_descriptors(TesseraExchange *exchange)
{
	while (exchange->descriptors < DESCRIPTORS)
	{
		if (!AcquireExternalFD())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("too many open files for another exchange: %m"),
					 errhint("Raise max_files_per_process, or close exchanges of this process.")));
		exchange->descriptors++;
	}
}

/*
 * Starts libzmq and makes the socket. The threads start with the first socket of a context, and inherit the mask of who makes it.
 */
static void
start_zmq(TesseraExchange *exchange)
{
	sigset_t	all;
	sigset_t	before;

	reserve_descriptors(exchange);
	sigfillset(&all);
	(void) pthread_sigmask(SIG_SETMASK, &all, &before);
	exchange->zmq = zmq_ctx_new();
	if (exchange->zmq != NULL)
	{
		(void) zmq_ctx_set(exchange->zmq, ZMQ_IO_THREADS, 1);
		(void) zmq_ctx_set(exchange->zmq, ZMQ_MAX_SOCKETS, 8);
		(void) zmq_ctx_set(exchange->zmq, ZMQ_BLOCKY, 0);
		exchange->socket = zmq_socket(exchange->zmq, exchange->donor ? ZMQ_ROUTER : ZMQ_DEALER);
	}
	(void) pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (exchange->socket == NULL)
		raise_zmq("start libzmq");
}

static void
set_option(TesseraExchange *exchange, int option, const void *value, size_t size)
{
	if (zmq_setsockopt(exchange->socket, option, value, size) != 0)
		raise_zmq("set up the exchange");
}

static void
set_int(TesseraExchange *exchange, int option, int value)
{
	set_option(exchange, option, &value, sizeof(value));
}

static void
set_common_options(TesseraExchange *exchange, const TesseraExchangeKeys *keys, bool ipv6)
{
	int64		limit = MESSAGE_LIMIT + CURVE_OVERHEAD;

	set_int(exchange, ZMQ_LINGER, 0);
	set_int(exchange, ZMQ_SNDHWM, SEND_QUEUE);
	set_int(exchange, ZMQ_RCVHWM, RECEIVE_QUEUE);
	set_option(exchange, ZMQ_MAXMSGSIZE, &limit, sizeof(limit));
	set_int(exchange, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
	set_int(exchange, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS);
	set_int(exchange, ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS);
	set_int(exchange, ZMQ_IPV6, ipv6 ? 1 : 0);
	set_option(exchange, ZMQ_CURVE_PUBLICKEY, keys->public_key, TESSERA_CURVE_KEY_SIZE);
	set_option(exchange, ZMQ_CURVE_SECRETKEY, keys->secret_key, TESSERA_CURVE_KEY_SIZE);
}

/*
 * Reads a key's text into 32 bytes. The text is not repeated in the error: it might be the secret one.
 */
static void
decode_key(const char *key, uint8 *bytes)
{
	if (strlen(key) != TESSERA_CURVE_KEY_SIZE - 1 || zmq_z85_decode(bytes, key) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed exchange key"),
				 errdetail("A key has %d characters of the Z85 alphabet.", TESSERA_CURVE_KEY_SIZE - 1)));
}

static void
check_keys(const TesseraExchangeKeys *keys)
{
	uint8		bytes[TESSERA_CURVE_KEY_BYTES];

	if (!zmq_has("curve"))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("libzmq was built without CURVE")));
	decode_key(keys->public_key, bytes);
	decode_key(keys->secret_key, bytes);
	explicit_bzero(bytes, sizeof(bytes));
}

static pgsocket
descriptor_of(void *socket)
{
	pgsocket	descriptor;
	size_t		size = sizeof(descriptor);

	if (zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size) != 0)
		raise_zmq("wait for the exchange");
	return descriptor;
}

/*
 * The set that all waits of this exchange use.
 */
static void
make_wait_set(TesseraExchange *exchange)
{
	exchange->wait_set = tessera_wait_event_set(exchange->context, 4);
	AddWaitEventToSet(exchange->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(exchange->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(exchange->wait_set, WL_SOCKET_READABLE, descriptor_of(exchange->socket), NULL, NULL);
	if (exchange->monitor != NULL)
		AddWaitEventToSet(exchange->wait_set, WL_SOCKET_READABLE, descriptor_of(exchange->monitor), NULL, NULL);
}

/*
 * A new key pair, from the system's random source, into *keys. ERROR 0A000 if libzmq was built without CURVE. The caller keeps the secret key out of
 * tables and logs.
 */
void
tessera_exchange_make_keys(TesseraExchangeKeys *keys)
{
	if (zmq_curve_keypair(keys->public_key, keys->secret_key) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("libzmq was built without CURVE")));
}

/*
 * Binds to one port of an address ("*": any); false if it is taken.
 */
static bool
bind_port(TesseraExchange *exchange, const char *address, const char *port)
{
	bool		bare_ipv6 = strchr(address, ':') != NULL && address[0] != '[';
	char	   *endpoint = psprintf(bare_ipv6 ? "tcp://[%s]:%s" : "tcp://%s:%s", address, port);
	bool		bound = zmq_bind(exchange->socket, endpoint) == 0;

	if (!bound && zmq_errno() != EADDRINUSE)
		raise_zmq("bind the exchange");
	pfree(endpoint);
	return bound;
}

/*
 * Binds to the first of the ports that is free.
 */
static void
bind_one_of(TesseraExchange *exchange, const char *address, TesseraPorts ports)
{
	bool		bound = ports.first == 0 && bind_port(exchange, address, "*");

	for (int port = ports.first; !bound && port > 0 && port <= ports.last; port++)
	{
		char		text[16];

		snprintf(text, sizeof(text), "%d", port);
		bound = bind_port(exchange, address, text);
	}
	if (!bound)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no port is free for the data exchange of another migration"),
				 errhint("Widen tessera.exchange_ports: every migration needs one on its donor while it runs.")));
}

static void
bind_socket(TesseraExchange *exchange, const char *address, TesseraPorts ports, const TesseraExchangeKeys *keys, const uint8 *admitted)
{
	start_zmq(exchange);
	exchange->has_zap = true;
	if (!tessera_zap_start(&exchange->zap, exchange->zmq, admitted))
		raise_zmq("start the key check of the exchange");
	set_common_options(exchange, keys, strchr(address, ':') != NULL);
	set_int(exchange, ZMQ_CURVE_SERVER, 1);
	set_option(exchange, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN));
	set_int(exchange, ZMQ_ROUTER_MANDATORY, 1);
	bind_one_of(exchange, address, ports);
	make_wait_set(exchange);
}

/*
 * Donor: an exchange that listens on one of the ports of address (numeric, or the name of an interface; IPv6 with or without brackets), and admits
 * one client: the one with the secret key of peer_public_key. In its own memory context below the current one. ERROR 22023 for a bad address or key,
 * 53000 if all ports are taken or no file descriptors are left, 08006 otherwise.
 */
TesseraExchange *
tessera_exchange_bind(const char *address, TesseraPorts ports, const TesseraExchangeKeys *keys, const char *peer_public_key)
{
	uint8		admitted[TESSERA_CURVE_KEY_BYTES];
	TesseraExchange *exchange;

	check_keys(keys);
	decode_key(peer_public_key, admitted);
	exchange = make_exchange(true);
	PG_TRY();
	{
		bind_socket(exchange, address, ports, keys, admitted);
	}
	PG_CATCH();
	{
		tessera_exchange_close(exchange);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return exchange;
}

/*
 * The endpoint a donor's exchange is bound to, or the one a recipient's connects to: "tcp://127.0.0.1:40123". In the current memory context.
 */
char *
tessera_exchange_endpoint(TesseraExchange *exchange)
{
	char		endpoint[256];
	size_t		size = sizeof(endpoint);

	if (zmq_getsockopt(exchange->socket, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0)
		raise_zmq("read the endpoint of the exchange");
	return pstrdup(endpoint);
}

static void
connect_socket(TesseraExchange *exchange, const char *endpoint, const TesseraExchangeKeys *keys, const char *peer_public_key)
{
	start_zmq(exchange);
	set_common_options(exchange, keys, strchr(endpoint, '[') != NULL);
	set_option(exchange, ZMQ_CURVE_SERVERKEY, peer_public_key, TESSERA_CURVE_KEY_SIZE);
	set_option(exchange, ZMQ_ROUTING_ID, PEER_ID, strlen(PEER_ID));
	set_int(exchange, ZMQ_CONNECT_TIMEOUT, CONNECT_MS);
	set_int(exchange, ZMQ_RECONNECT_IVL, -1);
	if (zmq_socket_monitor(exchange->socket, MONITOR_ENDPOINT, MONITOR_EVENTS) != 0)
		raise_zmq("watch the exchange");
	exchange->monitor = zmq_socket(exchange->zmq, ZMQ_PAIR);
	if (exchange->monitor == NULL || zmq_connect(exchange->monitor, MONITOR_ENDPOINT) != 0)
		raise_zmq("watch the exchange");
	INSTR_TIME_SET_CURRENT(exchange->started);
	if (zmq_connect(exchange->socket, endpoint) != 0)
		raise_zmq("connect the exchange");
	make_wait_set(exchange);
}

/*
 * Recipient: an exchange that connects to a donor's endpoint and talks only to the peer with the secret key of peer_public_key. Returns at once:
 * messages may be sent before the connection stands. In its own memory context below the current one. ERROR 22023 for a bad endpoint or key, 53000
 * without file descriptors left, 08006 otherwise; a donor that cannot be reached shows later.
 */
TesseraExchange *
tessera_exchange_connect(const char *endpoint, const TesseraExchangeKeys *keys, const char *peer_public_key)
{
	uint8		bytes[TESSERA_CURVE_KEY_BYTES];
	TesseraExchange *exchange;

	check_keys(keys);
	decode_key(peer_public_key, bytes);
	if (strncmp(endpoint, "tcp://", 6) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not an endpoint of an exchange", endpoint)));
	exchange = make_exchange(false);
	PG_TRY();
	{
		connect_socket(exchange, endpoint, keys, peer_public_key);
	}
	PG_CATCH();
	{
		tessera_exchange_close(exchange);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return exchange;
}

static void
note_loss(TesseraExchange *exchange, const char *reason)
{
	if (exchange->loss != NULL)
		return;
	exchange->loss = reason;
	INSTR_TIME_SET_CURRENT(exchange->lost_at);
}

_Noreturn static void
raise_loss(TesseraExchange *exchange)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("connection of the exchange to the %s is lost", exchange->donor ? "recipient" : "donor"),
			 errdetail("%s", exchange->loss)));
}

/*
 * Receives one event of the socket's monitor (an event number and a value, then an endpoint); 0 if there is none.
 */
static uint16
next_monitor_event(TesseraExchange *exchange)
{
	char		data[6];
	char		endpoint[1];
	uint16		event;
	int			length = zmq_recv(exchange->monitor, data, sizeof(data), ZMQ_DONTWAIT);

	if (length != (int) sizeof(data))
		return 0;
	(void) zmq_recv(exchange->monitor, endpoint, sizeof(endpoint), ZMQ_DONTWAIT);
	memcpy(&event, data, sizeof(event));
	return event;
}

/*
 * Recipient: reads what the monitor reported. The first report of an end is the connection's end, since it is not made again.
 */
static void
read_monitor(TesseraExchange *exchange)
{
	uint16		event;

	if (exchange->monitor == NULL)
		return;
	while ((event = next_monitor_event(exchange)) != 0)
	{
		if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
			exchange->connected = true;
		else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
			note_loss(exchange, "The donor does not admit this key.");
		else if (event == ZMQ_EVENT_CLOSED)
			note_loss(exchange, "The donor could not be reached.");
		else if (event == ZMQ_EVENT_DISCONNECTED && exchange->connected)
			note_loss(exchange, "The connection was closed or timed out.");
		else
			note_loss(exchange, "The handshake failed.");
	}
	if (!exchange->connected && exchange->loss == NULL && elapsed_ms(exchange->started) > CONNECT_MS + HANDSHAKE_MS)
		note_loss(exchange, "The donor could not be reached in time.");
}

/*
 * True if the connection is lost and nothing of it can still arrive.
 */
static bool
loss_is_final(TesseraExchange *exchange)
{
	return exchange->loss != NULL && elapsed_ms(exchange->lost_at) >= LOSS_GRACE_MS;
}

/*
 * ZMQ_POLLIN and ZMQ_POLLOUT as they stand. Asking is also what makes libzmq take note of what its descriptor announced.
 */
static int
events_of(TesseraExchange *exchange)
{
	int			events = 0;
	size_t		size = sizeof(events);

	while (zmq_getsockopt(exchange->socket, ZMQ_EVENTS, &events, &size) != 0)
	{
		if (zmq_errno() != EINTR)
			raise_zmq("read the state of the exchange");
	}
	return events;
}

static int
send_frame(TesseraExchange *exchange, zmq_msg_t *frame, int flags)
{
	int			sent;

	do
		sent = zmq_msg_send(frame, exchange->socket, flags | ZMQ_DONTWAIT);
	while (sent < 0 && zmq_errno() == EINTR);
	return sent;
}

/*
 * Donor: begins a message to the recipient, if none is begun. False if its queue is full, or if it is not here yet. Notes the loss if it was here and
 * is gone.
 */
static bool
address_recipient(TesseraExchange *exchange)
{
	zmq_msg_t	frame;

	if (exchange->addressed)
		return true;
	if (zmq_msg_init_size(&frame, strlen(PEER_ID)) != 0)
		return false;
	memcpy(zmq_msg_data(&frame), PEER_ID, strlen(PEER_ID));
	if (send_frame(exchange, &frame, ZMQ_SNDMORE) >= 0)
	{
		exchange->peer_seen = true;
		exchange->addressed = true;
		return true;
	}
	if (zmq_errno() == EHOSTUNREACH && exchange->peer_seen)
		note_loss(exchange, "The recipient has closed the connection, or it broke.");
	else if (zmq_errno() != EHOSTUNREACH && zmq_errno() != EAGAIN)
		note_loss(exchange, "The socket failed.");
	(void) zmq_msg_close(&frame);
	return false;
}

/*
 * Sends one message of size bytes, copied from data. False if the queue is full, or if the recipient has not connected yet: wait for writable and
 * call again. ERROR 08006 if the connection is lost (it is not made again), 54000 for a message over 256 MB, 53200 without memory. No message is sent
 * by half. True says that it is queued; a connection that breaks loses what is queued.
 */
bool
tessera_exchange_send(TesseraExchange *exchange, const void *data, Size size)
{
	zmq_msg_t	message;

	if (size > MESSAGE_LIMIT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("message of %zu bytes is too large for the exchange", size)));
	read_monitor(exchange);
	if (exchange->loss != NULL)
		raise_loss(exchange);
	if (!exchange->donor && (events_of(exchange) & ZMQ_POLLOUT) == 0)
		return false;
	if (zmq_msg_init_size(&message, size) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory for a message of %zu bytes", size)));
	if (exchange->donor && !address_recipient(exchange))
	{
		(void) zmq_msg_close(&message);
		if (exchange->loss != NULL)
			raise_loss(exchange);
		return false;
	}
	if (size > 0)
		memcpy(zmq_msg_data(&message), data, size);
	if (send_frame(exchange, &message, 0) >= 0)
	{
		exchange->addressed = false;
		return true;
	}
	(void) zmq_msg_close(&message);
	if (!exchange->donor && zmq_errno() == EAGAIN)
		return false;
	/* A donor's message that was begun cannot be taken back. */
	note_loss(exchange, "The socket failed.");
	raise_loss(exchange);
}

/*
 * Receives one part into exchange->message. False if there is none.
 */
static bool
receive_part(TesseraExchange *exchange)
{
	int			length;

	if (exchange->has_message)
		(void) zmq_msg_close(&exchange->message);
	(void) zmq_msg_init(&exchange->message);
	exchange->has_message = true;
	do
		length = zmq_msg_recv(&exchange->message, exchange->socket, ZMQ_DONTWAIT);
	while (length < 0 && zmq_errno() == EINTR);
	if (length < 0 && zmq_errno() != EAGAIN)
		raise_zmq("receive from the exchange");
	return length >= 0;
}

/*
 * Donor: true if the part received is the recipient's routing id, with its message behind.
 */
static bool
is_recipient(TesseraExchange *exchange)
{
	return zmq_msg_size(&exchange->message) == strlen(PEER_ID) &&
		memcmp(zmq_msg_data(&exchange->message), PEER_ID, strlen(PEER_ID)) == 0 &&
		zmq_msg_more(&exchange->message);
}

/*
 * Donor: true if the part received came over a connection that zap.c admitted.
 */
static bool
is_admitted(TesseraExchange *exchange)
{
	const char *user = zmq_msg_gets(&exchange->message, "User-Id");

	return user != NULL && strcmp(user, TESSERA_ZAP_USER) == 0;
}

/*
 * Receives one message if there is one. *data and *size are the exchange's until the next receive or close. False if there is none. ERROR 54000 for a
 * message over 256 MB (one that is larger by far breaks the connection instead), 08P01 for one that no exchange sends; the message is dropped then.
 * Recipient: ERROR 08006 if the connection is lost and everything that came over it was received.
 */
bool
tessera_exchange_receive(TesseraExchange *exchange, const void **data, Size *size)
{
	bool		good = true;

	exchange->input_reported = false;
	read_monitor(exchange);
	if (!receive_part(exchange))
	{
		if (loss_is_final(exchange) && !exchange->donor)
			raise_loss(exchange);
		return false;
	}
	if (exchange->donor)
		good = is_recipient(exchange) && receive_part(exchange) && is_admitted(exchange);
	if (zmq_msg_more(&exchange->message))
	{
		good = false;
		/* All parts of a message arrive together. */
		while (zmq_msg_more(&exchange->message) && receive_part(exchange))
			;
	}
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("unexpected message on the exchange")));
	exchange->peer_seen = true;
	if (zmq_msg_size(&exchange->message) > MESSAGE_LIMIT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("message of %zu bytes is too large for the exchange", zmq_msg_size(&exchange->message))));
	*data = zmq_msg_data(&exchange->message);
	*size = zmq_msg_size(&exchange->message);
	return true;
}

/*
 * True if there is room to send, or none will come any more. libzmq does not announce that a queue is gone that was full; a donor finds out by
 * beginning its next message.
 */
static bool
can_send(TesseraExchange *exchange, int events)
{
	if (exchange->loss == NULL && (events & ZMQ_POLLOUT) == 0 && exchange->donor)
		return address_recipient(exchange) || exchange->loss != NULL;
	return exchange->loss != NULL || (events & ZMQ_POLLOUT) != 0;
}

/*
 * True if a wait for input (and room, if want_write) is over. For a caller that wants to write, input that it leaves unread ends one wait only: a
 * loop around send alone then sleeps until there is room.
 */
static bool
is_ready(TesseraExchange *exchange, bool want_write)
{
	int			events = events_of(exchange);

	read_monitor(exchange);
	if (!exchange->donor && loss_is_final(exchange))
		return true;
	if (want_write && can_send(exchange, events))
		return true;
	if ((events & ZMQ_POLLIN) == 0 || (want_write && exchange->input_reported))
		return false;
	exchange->input_reported = true;
	return true;
}

/*
 * Longest sleep, in milliseconds, with left_ms to go.
 */
static long
sleep_ms(TesseraExchange *exchange, double left_ms)
{
	double		result = Min(left_ms, RECHECK_MS);

	if (exchange->loss != NULL && !loss_is_final(exchange))
		result = Min(result, LOSS_GRACE_MS - elapsed_ms(exchange->lost_at));
	return Max((long) ceil(result), 1);
}

/*
 * Waits until there is a message to receive (or, if want_write, until there is room to send, whichever comes first), the process latch is set (it is
 * reset), the postmaster dies (the process exits), or timeout_ms milliseconds, 0 or more, have passed. True if there is input or,
 * if wanted, room, or if the next call will raise 08006. Interrupts are checked. Wait event: Extension.
 */
bool
tessera_exchange_wait(TesseraExchange *exchange, bool want_write, long timeout_ms)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		WaitEvent	events[4];
		double		left_ms;
		int			count;
		bool		latch_set = false;

		CHECK_FOR_INTERRUPTS();
		if (is_ready(exchange, want_write))
			return true;
		left_ms = timeout_ms - elapsed_ms(start);
		if (left_ms <= 0)
			return false;
		count = WaitEventSetWait(exchange->wait_set, sleep_ms(exchange, left_ms), events, lengthof(events), PG_WAIT_EXTENSION);
		for (int i = 0; i < count; i++)
			latch_set = latch_set || (events[i].events & WL_LATCH_SET) != 0;
		if (latch_set)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			return is_ready(exchange, want_write);
		}
	}
}

/*
 * Closes an exchange and frees it; what was received from it is gone. Messages not sent yet are dropped. Does not wait for the peer.
 */
void
tessera_exchange_close(TesseraExchange *exchange)
{
	MemoryContextDelete(exchange->context);
}
