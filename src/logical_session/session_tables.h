/*
 * session_tables.h
 *	  The tables of logical sessions: which sessions there are, and what was done under their numbers (doc/design.md#sessions).
 *
 * Two sharded tables of schema tessera_session, in one group by the session's id: so that a session's rows lie on one shard, its home, go with their
 * chunk when that moves, and follow a failover, as any table's do. What is written here is a part of the transaction at hand, on whatever shard that
 * writes: it is committed with what it speaks of, or not at all.
 *
 * All of this runs as role tessera_internal, which owns the tables: nobody else but superusers can read them. No code of users runs. It must be
 * called in a transaction; ERROR 55000 if the cluster has no sessions (tessera.enable_sessions).
 */
#ifndef TESSERA_SESSION_TABLES_H
#define TESSERA_SESSION_TABLES_H

#include "postgres.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* Statement of the record of a whole transaction; those of statements that commit by themselves are numbered from 0. */
#define TESSERA_WHOLE_TRANSACTION (-1)

/* What was done under a number. */
typedef struct TesseraSessionRecord
{
	TimestampTz at;				/* when it was written, by the clock of the node that ran it */
	bytea	   *identity;		/* of the statement: its text, parameters, role and search_path */
	int64		count;			/* rows that it has reported */
	bytea	   *answer;			/* the rows that it has returned (answer.h); NULL: not kept */
	int			statement;		/* its own, or TESSERA_WHOLE_TRANSACTION */
	const char *digits;			/* of the transaction that has written it (transaction/participant.h) */
} TesseraSessionRecord;

/* True if the cluster has sessions: the schema and the tables are there, and are the cluster's. */
extern bool tessera_sessions_enabled(void);

/* Makes a session of the client's current role (its name, whatever function runs); ERROR 53400 if it has as many as tessera.max_sessions_per_role. */
extern void tessera_session_create(const pg_uuid_t *session);

/*
 * Takes the session for this transaction, until its end: another one that uses it waits, wherever it runs. Its number is this one then, if it was not
 * a later one, and it counts as used now. Returns the number before. ERROR TS006 if that role has no such session (any more), 22023 if the
 * number is older than the session's, TS003 if tessera.transaction_outcome has said of it that it was not committed.
 */
extern int64 tessera_session_check_out(const pg_uuid_t *session, int64 number);

/*
 * The record of a statement, or else of the whole transaction; for TESSERA_WHOLE_TRANSACTION any one of the number, the whole's before those of
 * statements. As the session has it now, whatever snapshot the transaction goes by; palloc'd. False: there is none. What the record's transaction has
 * left prepared on any node is finished first, so that all that it has written is there to be seen.
 */
extern bool tessera_session_find_record(const pg_uuid_t *session, int64 number, int statement, TesseraSessionRecord *record);

/* Writes a record. first: of a number that is new to the session, whose records of older numbers go. */
extern void tessera_session_add_record(const pg_uuid_t *session, int64 number, int statement, bool first, const TesseraSessionRecord *record);

/* What became of a number; the session is taken as above. */
typedef enum TesseraOutcome
{
	TESSERA_OUTCOME_COMMITTED,
	TESSERA_OUTCOME_ABORTED,	/* nothing was, and nothing will be: from now on the number is refused */
	TESSERA_OUTCOME_RUNNING,	/* somebody has taken the session */
	TESSERA_OUTCOME_EXPIRED		/* the session, or the records of an older number, are gone */
} TesseraOutcome;
extern TesseraOutcome tessera_session_outcome(const pg_uuid_t *session, int64 number, TimestampTz *at);

/* The session of that role, or of anybody, and its records are no more. False: there was none. Waits for who has taken it. */
extern bool tessera_session_delete(const pg_uuid_t *session, bool anybodys);

/* A session; role: palloc'd. */
typedef struct TesseraSessionRow
{
	pg_uuid_t	session;
	char	   *role;
	int64		number;
	TimestampTz started;
	TimestampTz last_use;
} TesseraSessionRow;

/* The current user's sessions, or all; palloc'd. And one of them: false: there is none. */
extern TesseraSessionRow *tessera_sessions_list(bool anybodys, int *n);
extern bool tessera_session_find(const pg_uuid_t *session, bool anybodys, TesseraSessionRow *row);

/* A role, by name, that has used a session. */
typedef struct TesseraSessionUser
{
	pg_uuid_t	session;
	const char *role;
} TesseraSessionUser;

/*
 * Sessions that were not used since then end, but those that somebody has taken and those that their role, of the array, has used; so many at most.
 * Returns how many. Waits for nobody.
 */
extern uint64 tessera_sessions_delete_unused(TimestampTz since, int limit, int n, const TesseraSessionUser *users);

/* Records without a session go, of so many sessions at most. Returns of how many. */
extern uint64 tessera_sessions_delete_orphans(int limit);

/* The last use of a session by a role. */
typedef struct TesseraLastUse
{
	pg_uuid_t	session;
	Oid			role;
	TimestampTz used;
} TesseraLastUse;

/*
 * Writes the last uses, each session at most once in the array, where the row says an earlier one. Waits for nobody: somebody_has[i] says that the
 * session was left as it is, as somebody has taken it. What is no session of that role (any more) is passed over. Returns how many were written.
 */
extern uint64 tessera_sessions_used(int n, const TesseraLastUse *uses, bool *somebody_has);

#endif							/* TESSERA_SESSION_TABLES_H */
