/*
 * abandoned_migrations.h
 *	  Abandoned migrations on the config node: their caller has gone before their donor was told.
 */
#ifndef TESSERA_CONFIG_ABANDONED_MIGRATIONS_H
#define TESSERA_CONFIG_ABANDONED_MIGRATIONS_H

#include "postgres.h"
#include "utils/uuid.h"

/* In the session that registered a migration: when the session ends it is looked whether the donor knows of it. */
extern void tessera_migration_watch_caller(void);

/* Exit step of such a session: recovery looks. */
extern void tessera_migration_caller_gone(int code, Datum arg);

/*
 * Fences what never reached its donor. Returns how many migrations are to be looked at again soon, as their donor has said nothing yet.
 * Errors of one are logged. Outside a transaction.
 */
extern int	tessera_fence_abandoned_migrations(void);

#endif							/* TESSERA_CONFIG_ABANDONED_MIGRATIONS_H */
