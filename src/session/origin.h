/*
 * origin.h
 *	  The client that a backend of this server works for: the backend of another node at the far end of its internal connection.
 */
#ifndef TESSERA_ORIGIN_H
#define TESSERA_ORIGIN_H

#include "postgres.h"

/* A backend somewhere in the cluster. */
typedef struct TesseraOrigin
{
	int32		node_id;
	int32		pid;
} TesseraOrigin;

/* From internal_hello: sets the origin of this backend, until it exits. */
extern void tessera_origin_set(int32 node_id, int32 pid);

/* Exit step: the backend has no internal connection any more. */
extern void tessera_origin_clear(int code, Datum arg);

/* Returns true if the process is a backend with an internal connection, and whose in *origin. Never raises. */
extern bool tessera_origin_of(int32 pid, TesseraOrigin *origin);

/*
 * internal_session_origins(): rows (pid, node_id, client_pid) of this database's internal connections, whose application_name is the client's while
 * they serve one. Source of the view tessera.internal_sessions.
 */

/* From _PG_init. */
extern void tessera_origin_init(void);

#endif							/* TESSERA_ORIGIN_H */
