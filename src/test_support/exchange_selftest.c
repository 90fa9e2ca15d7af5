/*
 * exchange_selftest.c
 *	  tessera_test.exchange_selftest(): both ends of an exchange in one backend, over the loopback interface.
 *
 * Phases: messages of several sizes each way, a stream that fills the send queue, a client with a wrong key, a donor that leaves, a recipient that
 * leaves. Everything lives in a memory context below the caller's, which also closes the exchanges if a check raises an error. No locks, nothing
 * durable. The report names no time, so that it can be compared; the throughput of the stream is logged at DEBUG1.
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "common/subtransaction.h"
#include "transport/exchange.h"

#define ADDRESS "127.0.0.1"
#define ANY_PORT (TesseraPorts) {0, 0}

/* In milliseconds: for a step that must succeed, and for what must not happen. */
#define STEP_MS 30000
#define REFUSAL_MS 500

#define STREAM_MESSAGES 64
#define STREAM_SIZE (1024 * 1024)

typedef struct Pair
{
	TesseraExchangeKeys donor_keys;
	TesseraExchangeKeys recipient_keys;
	TesseraExchange *donor;
	TesseraExchange *recipient;
} Pair;

PG_FUNCTION_INFO_V1(tessera_exchange_selftest);

static long
left_ms(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return STEP_MS - (long) INSTR_TIME_GET_MILLISEC(now);
}

static void
make_pair(Pair *pair)
{
	tessera_exchange_make_keys(&pair->donor_keys);
	tessera_exchange_make_keys(&pair->recipient_keys);
	pair->donor = tessera_exchange_bind(ADDRESS, ANY_PORT, &pair->donor_keys, pair->recipient_keys.public_key);
	pair->recipient = tessera_exchange_connect(tessera_exchange_endpoint(pair->donor), &pair->recipient_keys, pair->donor_keys.public_key);
}

static void
close_pair(Pair *pair)
{
	tessera_exchange_close(pair->recipient);
	tessera_exchange_close(pair->donor);
}

/*
 * Content of message number `number`: pseudo-random, different for each.
 */
static char *
make_content(Size size, uint32 number)
{
	char	   *content = palloc(Max(size, 1));
	uint32		state = number * 2654435761u + 1;

	for (Size i = 0; i < size; i++)
	{
		state = state * 1664525 + 1013904223;
		content[i] = (char) (state >> 24);
	}
	return content;
}

/*
 * Sends, waiting for room; false if there is none in time.
 */
static bool
send_in_time(TesseraExchange *exchange, const char *content, Size size)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	while (!tessera_exchange_send(exchange, content, size))
	{
		if (left_ms(start) <= 0)
			return false;
		(void) tessera_exchange_wait(exchange, true, left_ms(start));
	}
	return true;
}

/*
 * Receives, waiting for a message; false if there is none in time, or not this one.
 */
static bool
receive_in_time(TesseraExchange *exchange, const char *content, Size size)
{
	instr_time	start;
	const void *data;
	Size		received;

	INSTR_TIME_SET_CURRENT(start);
	while (!tessera_exchange_receive(exchange, &data, &received))
	{
		if (left_ms(start) <= 0)
			return false;
		(void) tessera_exchange_wait(exchange, false, left_ms(start));
	}
	return received == size && memcmp(data, content, size) == 0;
}

static bool
transfer(TesseraExchange *from, TesseraExchange *to, Size size, uint32 number)
{
	char	   *content = make_content(size, number);
	bool		good = send_in_time(from, content, size) && receive_in_time(to, content, size);

	pfree(content);
	return good;
}

/*
 * One line of the report.
 */
static void
report(StringInfo lines, const char *what, bool good)
{
	appendStringInfo(lines, "%s%s: %s", lines->len > 0 ? "\n" : "", what, good ? "ok" : "FAILED");
}

static void
check_sizes(StringInfo lines, Pair *pair)
{
	static const Size sizes[] = {0, 1, 1024 * 1024, 20 * 1024 * 1024};

	for (int i = 0; i < lengthof(sizes); i++)
	{
		report(lines, psprintf("%zu bytes to the donor", sizes[i]), transfer(pair->recipient, pair->donor, sizes[i], 2 * i));
		report(lines, psprintf("%zu bytes to the recipient", sizes[i]), transfer(pair->donor, pair->recipient, sizes[i], 2 * i + 1));
	}
}

/*
 * The donor sends as fast as the queue takes it; the recipient receives whenever the queue is full, and at the end.
 */
static void
check_stream(StringInfo lines, Pair *pair)
{
	char	   *content = make_content(STREAM_SIZE, 99);
	int			sent = 0;
	int			received = 0;
	instr_time	start;
	long		used;

	INSTR_TIME_SET_CURRENT(start);
	while (received < STREAM_MESSAGES && left_ms(start) > 0)
	{
		const void *data;
		Size		size;

		while (sent < STREAM_MESSAGES && tessera_exchange_send(pair->donor, content, STREAM_SIZE))
			sent++;
		if (!tessera_exchange_receive(pair->recipient, &data, &size))
			(void) tessera_exchange_wait(pair->recipient, false, left_ms(start));
		else if (size == STREAM_SIZE && memcmp(data, content, size) == 0)
			received++;
	}
	used = STEP_MS - left_ms(start);
	report(lines, psprintf("%d messages of %d bytes", STREAM_MESSAGES, STREAM_SIZE), received == STREAM_MESSAGES);
	ereport(DEBUG1,
			(errmsg_internal("exchange: %d messages of %d bytes in %ld ms", received, STREAM_SIZE, used)));
	pfree(content);
}

static void
receive_until_it_fails(void *exchange)
{
	(void) receive_in_time(exchange, "", 0);
}

static void
send_until_it_fails(void *exchange)
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	while (left_ms(start) > 0)
	{
		if (!tessera_exchange_send(exchange, "x", 1))
			(void) tessera_exchange_wait(exchange, true, left_ms(start));
	}
}

/*
 * True if the attempt raises 08006 in time; any other error goes on.
 */
static bool
raises_lost(void (*attempt) (void *exchange), TesseraExchange *exchange)
{
	ErrorData  *error = tessera_try(attempt, exchange);

	if (error == NULL)
		return false;
	if (error->sqlerrcode != ERRCODE_CONNECTION_FAILURE)
		ReThrowError(error);
	ereport(DEBUG1,
			(errmsg_internal("exchange: %s: %s", error->message, error->detail ? error->detail : "no detail")));
	return true;
}

/*
 * A client that knows the donor's public key but has another key than the one admitted, beside the right one.
 */
static void
check_wrong_key(StringInfo lines)
{
	Pair		pair;
	TesseraExchangeKeys wrong_keys;
	TesseraExchange *intruder;
	const void *data;
	Size		size;
	bool		heard;

	tessera_exchange_make_keys(&pair.donor_keys);
	tessera_exchange_make_keys(&pair.recipient_keys);
	tessera_exchange_make_keys(&wrong_keys);
	pair.donor = tessera_exchange_bind(ADDRESS, ANY_PORT, &pair.donor_keys, pair.recipient_keys.public_key);
	intruder = tessera_exchange_connect(tessera_exchange_endpoint(pair.donor), &wrong_keys, pair.donor_keys.public_key);
	(void) tessera_exchange_send(intruder, "let me in", 9);
	heard = tessera_exchange_wait(pair.donor, false, REFUSAL_MS) || tessera_exchange_receive(pair.donor, &data, &size);
	report(lines, "a wrong client key is not admitted", !heard);
	report(lines, "a client with a wrong key is told 08006", raises_lost(receive_until_it_fails, intruder));
	tessera_exchange_close(intruder);

	intruder = tessera_exchange_connect(tessera_exchange_endpoint(pair.donor), &pair.recipient_keys, wrong_keys.public_key);
	report(lines, "another donor key than the real one is told 08006", raises_lost(receive_until_it_fails, intruder));
	tessera_exchange_close(intruder);

	pair.recipient = tessera_exchange_connect(tessera_exchange_endpoint(pair.donor), &pair.recipient_keys, pair.donor_keys.public_key);
	report(lines, "the right client is admitted after that", transfer(pair.recipient, pair.donor, 100, 1));
	close_pair(&pair);
}

/*
 * A donor that sends and closes when its message has arrived; one without a receiver; a recipient that leaves.
 */
static void
check_departures(StringInfo lines)
{
	Pair		pair;
	char	   *endpoint;

	make_pair(&pair);
	endpoint = tessera_exchange_endpoint(pair.donor);
	report(lines, "the donor may send first", transfer(pair.donor, pair.recipient, 100, 1));
	tessera_exchange_close(pair.donor);
	report(lines, "a recipient without donor is told 08006", raises_lost(receive_until_it_fails, pair.recipient));
	report(lines, "a recipient without donor sends to nobody", raises_lost(send_until_it_fails, pair.recipient));
	tessera_exchange_close(pair.recipient);

	pair.recipient = tessera_exchange_connect(endpoint, &pair.recipient_keys, pair.donor_keys.public_key);
	report(lines, "an endpoint that nobody listens on is told 08006", raises_lost(receive_until_it_fails, pair.recipient));
	tessera_exchange_close(pair.recipient);

	make_pair(&pair);
	(void) transfer(pair.recipient, pair.donor, 100, 1);
	tessera_exchange_close(pair.recipient);
	report(lines, "a donor without recipient is told 08006", raises_lost(send_until_it_fails, pair.donor));
	tessera_exchange_close(pair.donor);
}

/*
 * SQL: tessera_test.exchange_selftest() returns text, one line per check, each ending in "ok" or "FAILED".
 */
Datum
tessera_exchange_selftest(PG_FUNCTION_ARGS)
{
	MemoryContext before = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(before, "tessera exchange selftest", ALLOCSET_DEFAULT_SIZES);
	StringInfoData lines;
	Pair		pair;
	text	   *result;

	MemoryContextSwitchTo(scratch);
	initStringInfo(&lines);
	make_pair(&pair);
	check_sizes(&lines, &pair);
	check_stream(&lines, &pair);
	close_pair(&pair);
	check_wrong_key(&lines);
	check_departures(&lines);
	MemoryContextSwitchTo(before);
	result = cstring_to_text_with_len(lines.data, lines.len);
	MemoryContextDelete(scratch);
	PG_RETURN_TEXT_P(result);
}
