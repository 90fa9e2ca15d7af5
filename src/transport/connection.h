/*
 * connection.h
 *	  libpq connections to other nodes: one per (backend, node), non-blocking, in pipeline mode, with a cache of named prepared statements.
 *
 * Commands are queued, sent by a sync, and answered in order: each result goes to its command's handler, whichever call reads the connection at that
 * moment. So if the connection is needed for another command, the handler of a command whose rows have not been read yet spools them.
 *
 * Memory: connections live in their own context until the backend exits. A TesseraCommand and all it points to is the caller's, and must live until
 * its `done` is set or the connection is reset. Errors thrown by handlers leave the connection consistent (the rest is read later).
 */
#ifndef TESSERA_CONNECTION_H
#define TESSERA_CONNECTION_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "libpq-fe.h"
#include "utils/uuid.h"

#include "clock/time_value.h"

typedef struct TesseraConnection TesseraConnection;
typedef struct TesseraCommand TesseraCommand;

/* Gets each PGresult of its command (single-tuple ones too) and owns it (PQclear); must not ereport for remote errors (keep the result; see
 * tessera_connection_raise). The command's `done` is set after its last result. */
typedef void (*TesseraResultHandler) (TesseraCommand *command, PGresult *result);

struct TesseraCommand
{
	/* question */
	const char *sql;
	int			nparams;
	const Oid  *types;			/* may be NULL, or 0 for unknown */
	const char *const *values;
	const int  *lengths;
	const int  *formats;		/* NULL: text */
	int			result_format;	/* 0 text, 1 binary */
	bool		prepare;		/* through the connection's LRU cache of named statements, keyed by sql, types and shape */
	uint32		shape;			/* of the rows expected: a statement prepared for rows of other types is not used again (0: no matter) */
	bool		single_row;
	TesseraResultHandler handler;	/* NULL: results are dropped, the first error is kept in `error` */
	void	   *arg;
	/* answer */
	bool		sent;
	bool		done;
	bool		aborted;		/* not run: an earlier command of its pipeline failed */
	bool		stale;			/* the shard did not run it: routed by another version (TS001 notice) */
	PGresult   *error;			/* kept by the default handling; owned by the connection until its reset; see tessera_connection_raise */
	char	   *tag;			/* command tag, e.g. "UPDATE 3"; in the connection's context, valid until the next sync */
	TesseraCommand *next;		/* private */
};

/*
 * What is known about the session at the other end. The transport keeps it, session/ and transaction/ give it meaning; all of it becomes
 * unknown (zeroed, settings_known = false) when the connection is opened and after any error or rollback there.
 */
typedef struct TesseraRemoteState
{
	int			xact_depth;		/* 0: no transaction; 1: in one; n: n-1 savepoints (transaction/) */
	bool		wrote;			/* a writing command was queued in this remote transaction */
	bool		unpreparable;	/* and it said that it cannot be prepared (TS008 notice) */
	bool		captured;		/* it has said that rows of replicated tables were changed there (TS007 notice), and they have not been fetched */
	bool		known;			/* user and settings below are as sent */
	Oid			user;
	int			security;		/* flags of the security context that it runs in */
	Oid			session_user;
	uint64		settings;		/* fingerprint of the mirrored settings */
	bool		nulls_off;		/* array_nulls may be off there: it once was in a session that was mirrored */
	int64		greeting;		/* the number that hello answered */
	int			protocol;		/* which both ends speak, as hello answered; 0: it has not said hello */
	char		time_text[TESSERA_TIMES_SIZE];	/* how it has said it last */
	TesseraTimes heard;			/* the newest that it has said; of a clock that is too far ahead, too */
	TesseraTime time_told;		/* the newest cluster time that was stated to it while `known` */
	int64		session_locks;	/* transaction/: session-level advisory locks that the backend there keeps for this session */
	void	   *told;			/* transaction/: versions told; survives rollbacks (backend-local at the other end) */
} TesseraRemoteState;

/*
 * The connection of this backend to a node, opened if need be (conninfo: of the registry; options added: application_name 'tessera <our node>' until
 * a client's own is stated, client_encoding = server encoding, connect_timeout). A broken idle one is opened anew. `hello` (NULL: none) makes the
 * statement that is run once after opening, and answers two numbers, the greeting and the protocol; its failure closes the connection. ERROR 08006
 * naming the node (DETAIL: libpq's message). lane: 0 the transaction's connection, 1 the control connection (autocommit, never part of the user's
 * transaction), 2 the one on which a call's transaction is held open, 3 that of commands outside a transaction block.
 */
extern TesseraConnection *tessera_connection_open(int32 node_id, const char *name, const char *conninfo, int lane, char *(*hello) (void *arg),
												  void *arg);

/* The same connection if it is there and was not closed; else NULL. */
extern TesseraConnection *tessera_connection_find(int32 node_id, int lane);

/* The two numbers of an answer to hello, "{greeting,protocol}"; false if it is none. */
extern bool tessera_greeting_read(const char *answer, int64 *greeting, int *protocol);

/* A connection outside the cache, to a conninfo that may not be a node yet; closed by tessera_connection_close or at abort. */
extern TesseraConnection *tessera_connection_open_unlisted(const char *name, const char *conninfo);

/*
 * Begins to open a connection outside the cache, with the options that all connections have, for callers that drive it by libpq themselves
 * (PQconnectPoll). NULL: out of memory. The caller counts it as an external file descriptor, and closes it.
 */
extern PGconn *tessera_connection_start(const char *conninfo);

/* What to do with a notification that a shard has told of (TS009 notice); set once. May raise. */
extern void (*tessera_notification_handler) (const char *channel, const char *payload);

/* Hands the notifications that have arrived to the handler: those of answers that were read where nothing may be raised. May raise. */
extern void tessera_connection_deliver_notifications(TesseraConnection *connection);

extern int32 tessera_connection_node(TesseraConnection *connection);
extern const char *tessera_connection_name(TesseraConnection *connection);
extern TesseraRemoteState *tessera_connection_state(TesseraConnection *connection);
extern PGconn *tessera_connection_pg(TesseraConnection *connection);	/* for COPY, outside the pipeline; see leave/enter */

/* Queue one command behind those queued; nothing need be sent before the sync. */
extern void tessera_connection_queue(TesseraConnection *connection, TesseraCommand *command);
/* Queue a command without parameters whose answer only matters if it is an error; the call that reads the answer raises that error. */
extern void tessera_connection_queue_sql(TesseraConnection *connection, const char *sql);
/* End of the pipeline: send all. Does not wait for answers; only for the socket to take the data (reading meanwhile). */
extern void tessera_connection_sync(TesseraConnection *connection);

/*
 * From now on opening a connection, sync, finish, drain and run wait until the deadline at most; then they close the connection and raise ERROR
 * 08006. 0: no limit. Holds for all connections of this process. Returns the previous limit, which the caller must restore, also after an error.
 */
extern TimestampTz tessera_connections_limit(TimestampTz deadline);

/* Read until the command is done (or, with first, until it has given its first result). Interruptible; ERROR 08006 if the connection breaks. */
extern void tessera_connection_finish(TesseraConnection *connection, TesseraCommand *command);
/* True if nothing is unanswered but what this layer, or the end of a transaction, has sent by itself: a ROLLBACK, say. */
extern bool tessera_connection_nobody_waits(const TesseraConnection *connection);

/* busy: true if anything is unanswered. drain: reads all of it. */
extern bool tessera_connection_busy(TesseraConnection *connection);
extern void tessera_connection_drain(TesseraConnection *connection);

/* Handle what has arrived on any of n connections; if nothing had, wait for one (timeout_ms < 0: no limit but interrupts). false: timeout. Uses one
 * persistent wait set. */
extern bool tessera_connections_pump(TesseraConnection **connections, int n, int timeout_ms);

/*
 * Raise a remote error as if local: SQLSTATE, message, DETAIL, HINT kept; CONTEXT names the node. With tessera.verbose_errors also the SQL, if
 * given, and the position in it. Clears result.
 */
extern _Noreturn void tessera_connection_raise(TesseraConnection *connection, PGresult *result, const char *sql);
/* Raise the command's kept error, if it has one. */
extern void tessera_connection_check(TesseraConnection *connection, TesseraCommand *command);

/* Run one command alone and wait: queue, sync, finish, check. Result (first PGresult) is palloc-registered: freed with the current memory context. */
extern PGresult *tessera_connection_run(TesseraConnection *connection, const char *sql, int nparams, const char *const *values);

/*
 * For COPY, which uses libpq directly: waits until the socket is ready for one of the events (WL_SOCKET_...). ERROR 08006 if the node stands still,
 * as in all waits that may raise. Interruptible.
 */
extern void tessera_connection_await_socket(TesseraConnection *connection, int events);

/*
 * For waits that may not be interrupted and so are made in short slices. *looked: since when nothing has come (at first the beginning of the wait).
 * Once that is tessera.node_timeout ago, opens a second connection to see whether the node answers, which may take tessera.connect_timeout. Returns
 * true if it does not; sets *looked to now if it does. Raises only if memory is short.
 */
extern bool tessera_connection_stands_still(TesseraConnection *connection, TimestampTz *looked);

/* Leave pipeline mode (after a drain) for COPY, and enter again. */
extern void tessera_connection_leave_pipeline(TesseraConnection *connection);
extern void tessera_connection_enter_pipeline(TesseraConnection *connection);

/*
 * Cancels what runs, and reads what is left within timeout_ms; false (and the connection is closed) if that fails. Never raises: for abort callbacks.
 */
extern bool tessera_connection_reset(TesseraConnection *connection, int timeout_ms);
extern void tessera_connection_close(TesseraConnection *connection);

/*
 * Closes all cached connections of a lane. For a process that is idle for long: its sessions would count as users of the other databases. Never
 * raises.
 */
extern void tessera_connections_close(int lane);

/*
 * The transaction at hand uses the connection (of lane 0): it is not given up before its end. at_end, a step: the transaction has ended:
 * what it used is idle now, connections that others wait for are given up, and those that have been idle for too long are closed. Never raise.
 */
extern void tessera_connection_begin_use(TesseraConnection *connection);
extern void tessera_connections_at_end(void);

/* All open cached connections of lane 0, for transaction callbacks. The array is valid until the next call or opening. */
extern int	tessera_connections_open(TesseraConnection ***connections);

/* ---- for transaction/ ---- */

/* The same as queue_sql, with text parameters (copied) and through the statement cache. */
extern void tessera_connection_queue_control(TesseraConnection *connection, const char *sql, int nparams, const char *const *values);

/* The same, but an error of the command is ignored. Never raises; false if the connection is broken. */
extern bool tessera_connection_queue_quietly(TesseraConnection *connection, const char *sql);

/* One command alone: queue and sync, raising nothing; false if the connection is broken. */
extern bool tessera_connection_queue_command_quietly(TesseraConnection *connection, TesseraCommand *command);

/* End the pipeline without raising anything; false if the connection is broken. */
extern bool tessera_connection_sync_quietly(TesseraConnection *connection);

/*
 * Drops the results of the command when they come (NULL: of all commands in flight, and their errors). The caller may free the command's memory
 * afterwards.
 */
extern void tessera_connection_forget(TesseraConnection *connection, TesseraCommand *command);

/*
 * Read all that is unanswered on n connections until the deadline (GetCurrentTimestamp() units). Raises nothing and checks no interrupts. Commands
 * get their results, so those whose memory may be gone must be forgotten before. Returns how many are still busy; broken ones are not.
 */
extern int	tessera_connections_await_answers(TesseraConnection **connections, int n, TimestampTz deadline);

/* The same for who may be interrupted, which is all that it raises. */
extern int	tessera_connections_await_in_time(TesseraConnection **connections, int n, TimestampTz deadline);

/*
 * Nobody reads what was asked for: it is dropped when it comes, which is not waited for. false: the connection is broken, and closed. Never raises.
 */
extern bool tessera_connection_drop_results(TesseraConnection *connection);

/* tessera_connection_reset of n connections at once; those that are still busy then are closed. */
extern void tessera_connections_reset(TesseraConnection **connections, int n, TimestampTz deadline);

/* Asks the other server to cancel what it runs. The command then ends with an error, unless it was finished before. Never raises, never waits. */
extern void tessera_connection_cancel(TesseraConnection *connection);

/* True if it is open, as far as is known without a system call. */
extern bool tessera_connection_alive(TesseraConnection *connection);

/*
 * True if it broke, or the other server has ended it, and nobody has closed it since: what was asked for last may have been done. False if this side
 * has closed it, because a limit of time was reached, say.
 */
extern bool tessera_connection_broken(TesseraConnection *connection);

/* True if it is closed or broken, or one poll shows that the other end has closed it. Never raises, never waits. */
extern bool tessera_connection_lost(TesseraConnection *connection);

/* Sets the name of this node, shown as application_name at the other end. Copied. */
extern void tessera_connection_introduce(const char *node);

/* Exit step: says goodbye on all of the process's connections. */
extern void tessera_connections_end(int code, Datum arg);

extern void tessera_connection_init(void);	/* from _PG_init: settings */

#endif							/* TESSERA_CONNECTION_H */
