/*
 * message.h
 *	  The messages of a migration's exchange, as BSON documents. No sockets, no catalog: fuzzable, and usable outside the server.
 *
 * The recipient asks (request), the donor answers (batch). A batch carries rows as one binary field, an LZ4 frame (frame.h) of a payload
 * (transfer/row_codec.h). Every field is checked at decoding: an unknown kind, a missing, doubled or wrongly typed field is an error, never a guess.
 */
#ifndef TESSERA_MESSAGE_H
#define TESSERA_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TESSERA_MESSAGE_VERSION 1

typedef enum TesseraMessageKind
{
	TESSERA_MSG_CLONE_REQUEST = 1,	/* recipient: next clone batch please */
	TESSERA_MSG_CLONE_BATCH,		/* donor: rows of one table; last = the clone is over */
	TESSERA_MSG_MODS_REQUEST,		/* recipient: next changes please; applied = LSN applied and committed so far */
	TESSERA_MSG_MODS_BATCH,			/* donor: changes in commit order up to lsn; may be empty; last = lsn is the gate position */
	TESSERA_MSG_ERROR,				/* either side: the migration failed; text says why, sqlstate how */
	TESSERA_MSG_VERIFY,				/* donor: keys, and digests of its rows, to be compared; behind the changes they are of; last = in the pause */
	TESSERA_MSG_VERIFIED			/* recipient: they are equal */
} TesseraMessageKind;

typedef struct TesseraMessage
{
	TesseraMessageKind kind;
	uint8_t		migration[16];	/* id of the migration: a message of another one is refused */
	int64_t		sequence;		/* of the request; the batch repeats it */
	int32_t		table;			/* batches: index of the table in the group; -1 if several or none */
	int64_t		rows;			/* batches: rows or changes in the payload; verify: keys */
	uint64_t	lsn;			/* mods batch: changes up to here are in this or earlier batches; mods request: applied */
	bool		last;
	const char *sqlstate;		/* error: five characters */
	const char *text;			/* error */
	const void *payload;		/* batches: LZ4 frame; NULL if empty */
	size_t		payload_size;
} TesseraMessage;

/* Encodes into a malloc-free buffer supplied by alloc(size, arg); returns the buffer, *size its length; NULL and *error on failure. */
extern void *tessera_message_encode(const TesseraMessage *message, size_t *size, void *(*alloc) (size_t, void *), void *arg, const char **error);

/* Decodes; pointers in *message point into data. false and *error (static text) on anything unexpected. */
extern bool tessera_message_decode(TesseraMessage *message, const void *data, size_t size, const char **error);

/* libbson aborts the process when memory runs out: route its allocations through palloc's no-oom form once at process start of a worker. */
extern void tessera_message_init(void *(*malloc_) (size_t), void *(*calloc_) (size_t, size_t), void *(*realloc_) (void *, size_t),
								 void (*free_) (void *));

#endif							/* TESSERA_MESSAGE_H */
