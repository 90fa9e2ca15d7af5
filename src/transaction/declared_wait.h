/*
 * declared_wait.h
 *	  Waits for locks that no lock queue shows: of a statement that asks for locks on several nodes in short attempts (ddl/attempts.c).
 */
#ifndef TESSERA_DECLARED_WAIT_H
#define TESSERA_DECLARED_WAIT_H

#include "postgres.h"
#include "datatype/timestamp.h"

#include "session/remote_client.h"

#define TESSERA_MOST_AWAITED 8

/* What a backend of this server has declared. */
typedef struct TesseraDeclaredWait
{
	int32		pid;
	Oid			database;
	TimestampTz since;
	int			n;
	TesseraRemoteClient awaited[TESSERA_MOST_AWAITED];	/* backends somewhere in the cluster */
	TimestampTz seen[TESSERA_MOST_AWAITED]; /* since when each attempt has found it */
} TesseraDeclaredWait;

/*
 * Declares that this backend has waited since `since` for locks of the backends `awaited`; each has been seen to hold one in all attempts since its
 * moment in `seen`. Replaces what was declared before. The caller must call tessera_wait_over in any case, also after an error. Never raises.
 */
extern void tessera_wait_declare(TimestampTz since, int n, const TesseraRemoteClient *awaited, const TimestampTz *seen);
extern void tessera_wait_over(void);

/* Ends the declared wait, if there is one. Exit step, too. */
extern void tessera_wait_clear(int code, Datum arg);

/* True if this backend's declared wait was chosen as the victim of a deadlock. */
extern bool tessera_wait_is_victim(void);

/* Chooses a backend's declared wait as the victim of a deadlock, and tells it. Returns false if the wait has ended meanwhile. Never raises. */
extern bool tessera_wait_choose_victim(int32 pid, TimestampTz since);

/* Calls `see` for every declared wait of this server. */
extern void tessera_waits_each(void (*see) (const TesseraDeclaredWait *wait, void *arg), void *arg);

/* From _PG_init. */
extern void tessera_declared_wait_init(void);

#endif							/* TESSERA_DECLARED_WAIT_H */
