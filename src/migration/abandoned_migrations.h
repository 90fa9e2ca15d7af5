/*
 * abandoned_migrations.h
 *	  Abandoned migrations: their caller has gone before their donor was told.
 */
#ifndef TESSERA_MIGRATION_ABANDONED_MIGRATIONS_H
#define TESSERA_MIGRATION_ABANDONED_MIGRATIONS_H

#include "postgres.h"
#include "utils/uuid.h"

/* Config node, in the session that registered a migration: when the session ends it is looked whether the donor knows of it. */
extern void tessera_migration_watch_caller(void);

/* Exit step of such a session: recovery looks. */
extern void tessera_migration_caller_gone(int code, Datum arg);

/*
 * Config node: fences what never reached its donor. Returns how many migrations are to be looked at again soon, as their donor has said nothing yet.
 * Errors of one are logged. Outside a transaction.
 */
extern int	tessera_fence_abandoned_migrations(void);

/* The caller's node: tells the config node, best effort, that a migration was abandoned. In a transaction. */
extern void tessera_abandon_migration(const pg_uuid_t *migration_id);

#endif							/* TESSERA_MIGRATION_ABANDONED_MIGRATIONS_H */
