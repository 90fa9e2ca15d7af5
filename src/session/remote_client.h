/*
 * remote_client.h
 *	  The client that a backend of this server works for: the backend of another node at the far end of its internal connection.
 */
#ifndef TESSERA_REMOTE_CLIENT_H
#define TESSERA_REMOTE_CLIENT_H

#include "postgres.h"

/* A backend somewhere in the cluster. */
typedef struct TesseraRemoteClient
{
	int32		node_id;
	int32		pid;
} TesseraRemoteClient;

/* From internal_hello: sets the origin of this backend, until it exits. pid 0: what runs here are transactions of their own. */
extern void tessera_remote_client_set(int32 node_id, int32 pid);

/* Exit step: the backend has no internal connection any more. */
extern void tessera_remote_client_clear(int code, Datum arg);

/* Returns true if the process is a backend whose transactions are another node's, and whose in *origin. Never raises. */
extern bool tessera_remote_client_of(int32 pid, TesseraRemoteClient *origin);

/*
 * internal_session_origins(): rows (pid, node_id, client_pid) of this database's internal connections, whose application_name is the client's while
 * they serve one. Source of the view tessera.internal_sessions.
 */

/* From _PG_init. */
extern void tessera_remote_client_init(void);

#endif							/* TESSERA_REMOTE_CLIENT_H */
