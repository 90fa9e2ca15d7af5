/*
 * session_uses.h
 *	  Which logical sessions are in use on this node, and which were used here since their last use was written (doc/design.md#sessions).
 *
 * A use is noted in shared memory; the session reaper writes it to the session's row (reaper.h). A crash of the server forgets what was noted since.
 */
#ifndef TESSERA_SESSION_USES_H
#define TESSERA_SESSION_USES_H

#include "postgres.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* What a backend does with its session. */
typedef enum TesseraSessionState
{
	TESSERA_SESSION_IDLE,
	TESSERA_SESSION_IN_USE,		/* it runs a transaction */
	TESSERA_SESSION_WAITING,	/* for another transaction that has taken the session */
	TESSERA_SESSION_TAKEN		/* until the end of its transaction, or a rollback to before */
} TesseraSessionState;

/* A session that was used here, by a backend that is still there or by those before. */
typedef struct TesseraSessionUse
{
	pg_uuid_t	session;
	Oid			role;			/* who has used it; the session may be another role's, then it is no use of it */
	TimestampTz used;			/* now, while a transaction runs */
	bool		written;		/* no later than what the session's row says */
	int			pid;			/* 0: left by one that has ended, or has gone on to another session */
	TesseraSessionState state;
	int			place;			/* of the backend; -1: none */
} TesseraSessionUse;

/*
 * At the start of a statement that the client has sent: if tessera.session is set, it is used. A statement in a transaction that has noted it, and
 * any without a session, cost a comparison.
 */
extern void tessera_session_use_note(void);

/* True if this backend is known to use a session, also one that it has been told to use no longer. */
extern bool tessera_session_use_is_noted(void);

/* In a transaction that has noted its use: it waits for the session, has taken it, or has given it back. */
extern void tessera_session_use_state(TesseraSessionState state);

/* At the end of a transaction. Never raises. */
extern void tessera_session_use_end(void);

/* Exit step: what this backend has used is left to be written. */
extern void tessera_session_use_leave(int code, Datum arg);

/* All that is noted in this database. Palloc'd. */
extern TesseraSessionUse *tessera_session_uses(int *n);

/* These have been written, or need not be: what was left by backends is forgotten, unless it was used again meanwhile. */
extern void tessera_session_uses_written(int n, const TesseraSessionUse *uses);

/* True for the first who kills what uses a session: the backend is still there, and is to be signalled. */
extern bool tessera_session_use_kill(const TesseraSessionUse *use);

/* What the session reaper has done in this database, since the server started. */
typedef enum TesseraReaperCount
{
	TESSERA_REAPER_REFRESHED,	/* TimestampTz of the last time that it has written what was noted; 0: never */
	TESSERA_REAPER_WRITTEN,		/* last uses written */
	TESSERA_REAPER_POSTPONED,	/* last uses of sessions that somebody had taken: left for the next time */
	TESSERA_REAPER_FORGOTTEN,	/* uses for which there was no room in shared memory */
	TESSERA_REAPER_SESSIONS,	/* that it has ended */
	TESSERA_REAPER_RECORDS,		/* sessions whose records it has removed, as they were left without their session */
	TESSERA_REAPER_COUNTS
} TesseraReaperCount;

extern int64 tessera_reaper_count(TesseraReaperCount count);
extern void tessera_reaper_count_add(TesseraReaperCount count, int64 more);
extern void tessera_reaper_refreshed(TimestampTz at);

/* True, once, if so much was left that it is to be written before its time. */
extern bool tessera_session_uses_hurry(void);

/* From _PG_init: shared memory. */
extern void tessera_session_uses_init(void);

#endif							/* TESSERA_SESSION_USES_H */
