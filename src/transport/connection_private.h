/*
 * connection_private.h
 *	  Shared inside transport/: the connection and its queue of commands in flight.
 */
#ifndef TESSERA_CONNECTION_PRIVATE_H
#define TESSERA_CONNECTION_PRIVATE_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "nodes/pg_list.h"
#include "utils/hsearch.h"

#include "transport/cancel.h"
#include "transport/connection.h"
#include "transport/connection_slots.h"

/* A named prepared statement at the other end. */
typedef struct TesseraStatement
{
	dlist_node	lru;			/* in the cache's list, most recently used first, while cached */
	uint32		hash;
	struct TesseraStatement *next;	/* in its hash bucket */
	char	   *sql;
	int			nparams;
	Oid		   *types;
	uint32		shape;
	uint32		number;			/* its name is tessera_<number> */
	int			refs;			/* entries of the queue that name it */
	bool		cached;			/* in the cache; else it is freed with its last reference */
	bool		prepared;		/* its Parse was answered */
	bool		doomed;			/* dropped before that: to deallocate when it comes */
} TesseraStatement;

typedef enum TesseraEntryKind
{
	TESSERA_ENTRY_COMMAND,		/* a caller's command */
	TESSERA_ENTRY_PREPARE,		/* Parse of its statement; an error is the command's */
	TESSERA_ENTRY_INTERNAL,		/* a command of ours: an error is raised by the reader */
	TESSERA_ENTRY_QUIET,		/* a command of ours: an error is of no interest */
	TESSERA_ENTRY_DEALLOCATE,
	TESSERA_ENTRY_SYNC
} TesseraEntryKind;

/* Something sent whose answer has not been read yet, in order. */
typedef struct TesseraEntry
{
	TesseraEntryKind kind;
	bool		row_mode;		/* single-row mode has been asked for */
	bool		quiet;			/* an error is of no interest any more */
	bool		failed;			/* an error was given to the command or raised */
	TesseraCommand *command;	/* COMMAND, PREPARE; NULL if forgotten */
	TesseraStatement *statement;	/* COMMAND, PREPARE, INTERNAL, QUIET: referenced */
	uint32		number;			/* DEALLOCATE */
} TesseraEntry;

typedef struct TesseraConnectionKey
{
	int32		node_id;
	int32		lane;
} TesseraConnectionKey;

struct TesseraConnection
{
	TesseraConnectionKey key;	/* node_id -1: unlisted */
	NameData	name;
	char	   *conninfo;
	PGconn	   *pg;				/* NULL: closed */
	bool		broken;			/* libpq found it broken: closed at its next use or the transaction's end */
	MemoryContext context;		/* of the connection; lives until the backend exits */
	TesseraRemoteState state;
	TimestampTz used;			/* when its last use ended, or it was last looked at */
	TesseraSlot slot;			/* of a node: it counts against the caps, from before it is open until it is closed */
	bool		in_use;			/* lane 0: by the transaction at hand */

	/* the queue: a ring of `size` entries (a power of two), `count` from `head` on */
	TesseraEntry *entries;
	uint32		size;
	uint32		head;
	uint32		count;
	bool		unsynced;		/* entries behind the last sync */
	bool		unflushed;		/* libpq could not hand everything to the socket */
	TesseraCommand *held;		/* ended, but not done before the sync that follows has been answered (deferred errors) */
	uint64		handled;		/* results handled so far */

	/* statement cache (statement_cache.c) */
	TesseraStatement **buckets;
	uint32		nbuckets;
	dlist_head	lru;
	int			nstatements;
	uint32		last_number;
	uint32	   *leftovers;		/* numbers to deallocate */
	int			nleftovers;
	int			leftovers_size;

	List	   *notices;		/* ErrorData of notices not emitted yet */
	List	   *notifications;	/* ErrorData of notifications not handed over yet */
	List	   *errors;			/* PGresults kept for commands without handler */
	char	   *last_words;		/* message of a FATAL error, for the DETAIL of the loss */
	int			last_state;		/* and its SQLSTATE */
	MemoryContext tags;			/* command tags; reset by a sync when nothing is in flight */

	TesseraCancel *cancel;		/* a request to cancel that the other end may not have taken in yet; NULL: none */

	int			wait_position;	/* in the persistent wait set, or -1 */
	uint32		wait_events;
};

#define TESSERA_UNLISTED_NODE (-1)

static inline TesseraEntry *
tessera_entry_head(TesseraConnection *connection)
{
	return &connection->entries[connection->head];
}

/* connection_queue.c */
extern void tessera_entries_discard(TesseraConnection *connection);
/* Handle all that libpq has parsed or can parse without reading. quiet: raise nothing. Returns whether any result was handled. */
extern bool tessera_connection_process(TesseraConnection *connection, bool quiet);
/* Read from the socket once; false if the connection broke (then it is marked and its queue is empty). Never errors. */
extern bool tessera_connection_read(TesseraConnection *connection);
/* Send what libpq holds; false if the connection broke. Never errors. */
extern bool tessera_connection_flush(TesseraConnection *connection);
extern void tessera_connection_broke(TesseraConnection *connection);
extern _Noreturn void tessera_connection_raise_broken(TesseraConnection *connection);
extern void tessera_connection_emit_notices(TesseraConnection *connection);
extern void tessera_connection_notice(void *arg, const PGresult *result);
extern void tessera_connection_clear_errors(TesseraConnection *connection);
/* Forgets notices, and notifications that were not handed over. */
extern void tessera_connection_clear_all_notices(TesseraConnection *connection);

/* statement_cache.c */
extern TesseraStatement *tessera_statement_find(TesseraConnection *connection, const char *sql, int nparams, const Oid *types, uint32 shape,
											   bool *found);
extern void tessera_statement_release(TesseraConnection *connection, TesseraStatement *statement);
/* Removes it from the cache: it does not exist at the other end, or (deallocate) must not be used any more. */
extern void tessera_statement_drop(TesseraConnection *connection, TesseraStatement *statement, bool deallocate);
extern void tessera_statements_forget(TesseraConnection *connection);
extern void tessera_leftover_add(TesseraConnection *connection, uint32 number);

/* While this session waits for a slot: closes connections that its transaction does not use and others wait for. Never raises. */
extern void tessera_connections_give_up_unused(void);

/* True if the server at the other end answers a new connection within tessera.connect_timeout; a refusal is an answer, too. Interruptible. */
extern bool tessera_connection_answers(TesseraConnection *connection);

/* connection_wait.c */
extern void tessera_wait_forget(TesseraConnection *connection);
/* Milliseconds that may still be waited, at most timeout_ms (< 0: any), by the limit of tessera_connections_limit; 0: it has passed; -1: no limit. */
extern long tessera_wait_left(long timeout_ms);
/* Waits for the end of a request to cancel, if one is under way. Returns false if the other server may still act on it later. Never raises. */
extern bool tessera_cancel_await(TesseraConnection *connection, long timeout_ms);

/* settings */
extern int	tessera_statement_cache_size;
extern int	tessera_connect_timeout;
extern int	tessera_node_timeout;

#endif							/* TESSERA_CONNECTION_PRIVATE_H */
