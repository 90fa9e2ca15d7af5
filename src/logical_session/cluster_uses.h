/*
 * cluster_uses.h
 *	  Which logical sessions are in use anywhere in the cluster: what all nodes have noted (session_uses.h).
 */
#ifndef TESSERA_CLUSTER_USES_H
#define TESSERA_CLUSTER_USES_H

#include "postgres.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "logical_session/session_uses.h"

typedef struct TesseraClusterUse
{
	int32		node_id;
	pg_uuid_t	session;
	const char *role;			/* name of who has used it */
	TimestampTz used;
	bool		written;
	int			pid;			/* 0: no backend uses it any more */
	TesseraSessionState state;
} TesseraClusterUse;

/*
 * Asks all nodes, in a transaction that holds no lock. Palloc'd. *unasked: how many have not answered within 3 s; what is used there is missing.
 */
extern TesseraClusterUse *tessera_cluster_uses(int *n, int *unasked);

#endif							/* TESSERA_CLUSTER_USES_H */
