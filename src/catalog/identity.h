/*
 * identity.h
 *	  Who this node is (tessera.identity), for code below routing/ and for backends that have no routing image yet.
 */
#ifndef TESSERA_IDENTITY_H
#define TESSERA_IDENTITY_H

#include "postgres.h"
#include "utils/uuid.h"

typedef struct TesseraIdentity
{
	pg_uuid_t	cluster_id;
	int32		node_id;
	NameData	node;
	bool		is_config;
	int64		term;
	int32		timeline;		/* on which it knows what it owns */
	int32		incarnation;	/* see incarnation.h */
	bool		restored;		/* see tessera_backup_restored */
} TesseraIdentity;

/*
 * Reads the row under the active snapshot (the newest committed row if there is none). Returns false if the database is not a node of a cluster, or
 * the extension is not installed. AccessShareLock on the table to the end of the transaction.
 */
extern bool tessera_identity_read(TesseraIdentity *identity);

/*
 * True if this server's label differs from `known`, that of tessera.identity. Then the server was restored from a base backup after this node last
 * knew what it owns, so its rows may be older.
 */
extern bool tessera_backup_restored(const char *known);

/* Version of the extension installed in this database (its objects, not the library), palloc'd; NULL if it is not installed. */
extern char *tessera_extension_version(void);

/*
 * The newest protocol (common/protocol.h) that this database can speak: the library's, or the oldest one while the extension's SQL is of another
 * version than the library, between the start of a server with a new library and ALTER EXTENSION tessera UPDATE. In a transaction.
 */
extern int	tessera_own_protocol(void);

#endif							/* TESSERA_IDENTITY_H */
