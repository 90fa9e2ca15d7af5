/*
 * declared_wait.h
 *	  Waits for locks that no lock queue shows: of a statement that asks for locks on several nodes in short attempts (ddl/attempts.c).
 */
#ifndef TESSERA_DECLARED_WAIT_H
#define TESSERA_DECLARED_WAIT_H

#include "postgres.h"
#include "datatype/timestamp.h"

#include "session/origin.h"

#define TESSERA_MOST_AWAITED 8

/* What a backend of this server has declared. */
typedef struct TesseraDeclaredWait
{
	int32		pid;
	Oid			database;
	TimestampTz since;
	int			n;
	TesseraOrigin awaited[TESSERA_MOST_AWAITED];	/* backends somewhere in the cluster */
	TimestampTz seen[TESSERA_MOST_AWAITED]; /* each in all attempts since then */
} TesseraDeclaredWait;

/*
 * This backend waits since then for what these hold, as all its attempts saw since the moments `seen`; in place of what it declared before. Never errors. Whoever declares a wait
 * calls tessera_wait_over, whatever happens.
 */
extern void tessera_wait_declare(TimestampTz since, int n, const TesseraOrigin *awaited, const TimestampTz *seen);
extern void tessera_wait_over(void);

/* Ends the declared wait, if there is one. Exit step, too. */
extern void tessera_wait_clear(int code, Datum arg);

/* Has a deadlock been found that this backend's declared wait is part of, and is to end? */
extern bool tessera_wait_is_victim(void);

/* The wait is part of a deadlock: tells its backend. false: it has ended meanwhile. Never errors. */
extern bool tessera_wait_choose_victim(int32 pid, TimestampTz since);

/* Calls `see` for every declared wait of this server. */
extern void tessera_waits_each(void (*see) (const TesseraDeclaredWait *wait, void *arg), void *arg);

/* From _PG_init. */
extern void tessera_declared_wait_init(void);

#endif							/* TESSERA_DECLARED_WAIT_H */
