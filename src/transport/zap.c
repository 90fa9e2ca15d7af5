/*
 * zap.c
 *	  Admits one client key to the CURVE servers of a libzmq context.
 *
 * libzmq asks over an inproc socket, once per handshake, and holds the connection back until the answer comes. A thread answers, rather than the wait
 * loop of the exchange's owner: a donor that scans a table or waits for its slot for minutes would let the recipient's handshake run into its time
 * limit. The thread is simple because of what it may not do: this file does not include the server's headers, so no memory context, error or latch
 * can be reached from here. The thread calls libzmq alone, has all signals blocked from before it starts, and ends when its context is shut down.
 *
 * Memory: TesseraZap is the caller's; the thread reads only `socket` and `admitted`, set before it starts, and they are not written while it runs.
 * Locks: none. A crash leaves nothing. The socket is bound before the CURVE server is, and outlives it: libzmq admits everybody where no handler is
 * bound.
 */
#include "transport/zap.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include <zmq.h>

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"

/* Parts of a request that are looked at; the mechanism's credentials follow them. */
typedef enum RequestPart
{
	PART_VERSION,
	PART_REQUEST_ID,
	PART_DOMAIN,
	PART_ADDRESS,
	PART_ROUTING_ID,
	PART_MECHANISM,
	PART_KEY,
	PART_COUNT
} RequestPart;

#define PART_LIMIT 64

typedef struct Request
{
	char		parts[PART_COUNT][PART_LIMIT];
	int			sizes[PART_COUNT];	/* PART_LIMIT + 1 if the part was longer */
	int			count;			/* of all parts received */
} Request;

/*
 * Reads one request to its end. False when the context is being shut down.
 */
static bool
read_request(void *socket, Request *request)
{
	int			more = 1;
	size_t		size = sizeof(more);

	memset(request, 0, sizeof(*request));
	while (more)
	{
		char		ignored[PART_LIMIT];
		bool		wanted = request->count < PART_COUNT;
		int			length;

		do
			length = zmq_recv(socket, wanted ? request->parts[request->count] : ignored, PART_LIMIT, 0);
		while (length < 0 && zmq_errno() == EINTR);
		if (length < 0)
			return false;
		if (wanted)
			request->sizes[request->count] = length > PART_LIMIT ? PART_LIMIT + 1 : length;
		request->count++;
		if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0)
			return false;
	}
	return true;
}

static bool
part_is(const Request *request, RequestPart part, const void *value, int size)
{
	return request->sizes[part] == size && memcmp(request->parts[part], value, (size_t) size) == 0;
}

static bool
is_admitted(const Request *request, const uint8_t *admitted)
{
	return request->count == PART_COUNT && part_is(request, PART_VERSION, "1.0", 3) && part_is(request, PART_MECHANISM, "CURVE", 5) &&
		part_is(request, PART_KEY, admitted, TESSERA_CURVE_KEY_BYTES);
}

static bool
send_part(void *socket, const void *data, size_t size, int flags)
{
	int			sent;

	do
		sent = zmq_send(socket, data, size, flags);
	while (sent < 0 && zmq_errno() == EINTR);
	return sent >= 0;
}

/*
 * Answers a request: version, its id, status, text, user id, metadata (none). False when the context is being shut down.
 */
static bool
answer(void *socket, const Request *request, bool admit)
{
	const char *status = admit ? "200" : "400";
	const char *text = admit ? "OK" : "key is not admitted";
	const char *user = admit ? TESSERA_ZAP_USER : "";
	int			id_size = request->sizes[PART_REQUEST_ID];

	return send_part(socket, "1.0", 3, ZMQ_SNDMORE) &&
		send_part(socket, request->parts[PART_REQUEST_ID], id_size > PART_LIMIT ? PART_LIMIT : (size_t) id_size, ZMQ_SNDMORE) &&
		send_part(socket, status, 3, ZMQ_SNDMORE) &&
		send_part(socket, text, strlen(text), ZMQ_SNDMORE) &&
		send_part(socket, user, strlen(user), ZMQ_SNDMORE) &&
		send_part(socket, "", 0, 0);
}

/*
 * The thread. Ends when the context is shut down. Leaves its socket bound: should it ever end before that, handshakes get no answer and time out,
 * whereas without a handler bound libzmq would admit everybody.
 */
static void *
handle_requests(void *arg)
{
	TesseraZap *zap = arg;
	Request		request;

	while (read_request(zap->socket, &request))
	{
		if (!answer(zap->socket, &request, is_admitted(&request, zap->admitted)))
			break;
	}
	return NULL;
}

static bool
bind_handler(TesseraZap *zap, void *zmq)
{
	int			linger = 0;

	zap->socket = zmq_socket(zmq, ZMQ_REP);
	return zap->socket != NULL && zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof(linger)) == 0 &&
		zmq_bind(zap->socket, ZAP_ENDPOINT) == 0;
}

/*
 * Starts the handler thread in the context zmq; it admits clients whose public key is admitted (32 bytes), and no other. *zap must stay where it is
 * until tessera_zap_join. False and errno set on failure; tessera_zap_join must be called then too.
 */
bool
tessera_zap_start(TesseraZap *zap, void *zmq, const uint8_t *admitted)
{
	sigset_t	all;
	sigset_t	before;
	pthread_t	thread;
	int			failure;

	memset(zap, 0, sizeof(*zap));
	memcpy(zap->admitted, admitted, TESSERA_CURVE_KEY_BYTES);
	if (!bind_handler(zap, zmq))
	{
		errno = zmq_errno();
		return false;
	}
	/* A thread starts with the mask of its maker. */
	sigfillset(&all);
	(void) pthread_sigmask(SIG_SETMASK, &all, &before);
	failure = pthread_create(&thread, NULL, handle_requests, zap);
	(void) pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failure != 0)
	{
		errno = failure;
		return false;
	}
	zap->thread = thread;
	zap->running = true;
	return true;
}

/*
 * Waits until the handler has ended, and closes its socket. zmq_ctx_shutdown of its context must have been called: then the wait is short. Does
 * nothing the second time.
 */
void
tessera_zap_join(TesseraZap *zap)
{
	if (zap->running)
		(void) pthread_join(zap->thread, NULL);
	if (zap->socket != NULL)
		(void) zmq_close(zap->socket);
	zap->running = false;
	zap->socket = NULL;
}
