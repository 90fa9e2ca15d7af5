/*
 * pipe.h
 *	  Messages of a migration over its exchange: encoded, compressed, checked to be of this migration.
 *
 * One process owns a pipe. What could not be sent because the queue was full is kept, and sent before anything else; tessera_pipe_send must not be
 * called while there is such a rest.
 */
#ifndef TESSERA_TRANSFER_PIPE_H
#define TESSERA_TRANSFER_PIPE_H

#include "postgres.h"
#include "lib/stringinfo.h"
#include "utils/uuid.h"

#include "codec/message.h"
#include "transport/exchange.h"

typedef struct TesseraPipe
{
	TesseraExchange *exchange;
	pg_uuid_t	migration_id;
	MemoryContext context;		/* of the kept rest and of buffers */
	void	   *rest;			/* NULL: none */
	Size		rest_size;
	char	   *buffer;			/* decompressed payload of the last message received */
	Size		buffer_size;
} TesseraPipe;

/* The current context owns it. */
extern void tessera_pipe_init(TesseraPipe *pipe, TesseraExchange *exchange, const pg_uuid_t *migration_id);

/* Sends a message; payload (NULL or empty: none) is compressed into it. Returns the bytes put on the wire. ERROR 08P01 if it cannot be encoded. */
extern Size tessera_pipe_send(TesseraPipe *pipe, TesseraMessage *message, StringInfo payload);

/* Sends the rest, if there is one; false if the queue is still full. */
extern bool tessera_pipe_flush(TesseraPipe *pipe);

/*
 * Receives a message; false if there is none. The message, and its payload (decompressed, *payload NULL if there is none), are valid until the next
 * call. ERROR 08P01 for a damaged one or one of another migration; the peer's own error for an error message.
 */
extern bool tessera_pipe_receive(TesseraPipe *pipe, TesseraMessage *message, const char **payload, Size *size);

/* Tells the peer that this side failed, best effort. Never errors. */
extern void tessera_pipe_fail(TesseraPipe *pipe, const ErrorData *error);

#endif							/* TESSERA_TRANSFER_PIPE_H */
