/*
 * pipe.c
 *	  Messages of a migration over its exchange; see pipe.h.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "codec/frame.h"
#include "common/injection.h"
#include "transaction/background.h"
#include "transfer/pipe.h"

/* Largest payload, uncompressed. */
#define PAYLOAD_LIMIT ((Size) 1024 * 1024 * 1024 - 1024)

/* The peer gets so long to hear of an error. */
#define FAIL_MS 200

static void *
allocate(size_t size, void *context)
{
	return MemoryContextAllocHuge(context, size);
}

static void
refuse(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("bad message of a migration"),
			 errdetail("%s", why)));
}

void
tessera_pipe_init(TesseraPipe *pipe, TesseraExchange *exchange, const pg_uuid_t *migration_id)
{
	memset(pipe, 0, sizeof(TesseraPipe));
	pipe->exchange = exchange;
	pipe->migration_id = *migration_id;
	pipe->context = CurrentMemoryContext;
}

bool
tessera_pipe_flush(TesseraPipe *pipe)
{
	if (pipe->rest == NULL)
		return true;
	if (!tessera_exchange_send(pipe->exchange, pipe->rest, pipe->rest_size))
		return false;
	pfree(pipe->rest);
	pipe->rest = NULL;
	return true;
}

Size
tessera_pipe_send(TesseraPipe *pipe, TesseraMessage *message, StringInfo payload)
{
	const char *error = NULL;
	void	   *frame = NULL;
	void	   *data;
	Size		size;

	/* it would be lost */
	if (pipe->rest != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("a migration's message was not sent before the next one")));
	memcpy(message->migration, pipe->migration_id.data, UUID_LEN);
	message->payload = NULL;
	message->payload_size = 0;
	if (payload != NULL && payload->len > 0)
	{
		Size		bound = tessera_frame_bound(payload->len);

		frame = MemoryContextAllocHuge(pipe->context, bound);
		message->payload_size = tessera_frame_compress(frame, bound, payload->data, payload->len, &error);
		if (message->payload_size == 0)
			refuse(error ? error : "compression failed");
		message->payload = frame;
	}
	data = tessera_message_encode(message, &size, allocate, pipe->context, &error);
	if (data == NULL)
		refuse(error ? error : "encoding failed");
	if (frame)
		pfree(frame);
	if (tessera_exchange_send(pipe->exchange, data, size))
		pfree(data);
	else
	{
		pipe->rest = data;
		pipe->rest_size = size;
	}
	return size;
}

bool
tessera_pipe_receive(TesseraPipe *pipe, TesseraMessage *message, const char **payload, Size *size)
{
	const char *error = NULL;
	const void *data;
	Size		data_size;

	*payload = NULL;
	*size = 0;
	if (!tessera_exchange_receive(pipe->exchange, &data, &data_size))
		return false;
	if (!tessera_message_decode(message, data, data_size, &error))
		refuse(error);
	if (memcmp(message->migration, pipe->migration_id.data, UUID_LEN) != 0)
		refuse("it is of another migration");
	if (message->kind == TESSERA_MSG_ERROR)
		ereport(ERROR,
				(errcode(MAKE_SQLSTATE(message->sqlstate[0], message->sqlstate[1], message->sqlstate[2], message->sqlstate[3],
									   message->sqlstate[4])),
				 errmsg("%s", message->text),
				 errcontext("migration's peer")));
	if (message->payload == NULL)
		return true;
	if (!tessera_frame_content_size(message->payload, message->payload_size, PAYLOAD_LIMIT, size, &error))
		refuse(error);
	if (*size > pipe->buffer_size)
	{
		if (pipe->buffer)
			pfree(pipe->buffer);
		pipe->buffer = NULL;
		pipe->buffer = MemoryContextAllocHuge(pipe->context, *size);
		pipe->buffer_size = *size;
	}
	if (!tessera_frame_decompress(pipe->buffer, *size, message->payload, message->payload_size, &error))
		refuse(error);
	*payload = pipe->buffer;
	return true;
}

void
tessera_pipe_fail(TesseraPipe *pipe, const ErrorData *error)
{
	MemoryContext caller = CurrentMemoryContext;

	if (pipe->exchange == NULL)
		return;
	PG_TRY();
	{
		TesseraMessage message = {.kind = TESSERA_MSG_ERROR};
		TimestampTz deadline = tessera_now() + FAIL_MS * 1000;
		char		sqlstate[6];
		const void *data;
		Size		size;
		bool		sent = false;

		strlcpy(sqlstate, unpack_sql_state(error->sqlerrcode), sizeof(sqlstate));
		message.sqlstate = sqlstate;
		message.text = error->message ? error->message : "unknown error";
		if (error->detail != NULL)
			message.text = psprintf("%s (%s)", message.text, error->detail);
		/*
		 * Until the peer has closed the connection (an error, here), or for a while: closing it would drop what libzmq's thread has not put on the
		 * wire yet. What the peer has sent meanwhile is of no use any more.
		 */
		while (!tessera_injection_skips("pipe_fail_message") && tessera_now() < deadline)
		{
			if (!sent && tessera_pipe_flush(pipe))
			{
				(void) tessera_pipe_send(pipe, &message, NULL);
				sent = true;
			}
			while (tessera_exchange_receive(pipe->exchange, &data, &size))
				;
			(void) tessera_exchange_wait(pipe->exchange, pipe->rest != NULL, (deadline - tessera_now()) / 1000 + 1);
		}
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
}
