/*
 * migration.h
 *	  Live migration: what the workers and init.c call.
 */
#ifndef TESSERA_MIGRATION_H
#define TESSERA_MIGRATION_H

#include "postgres.h"

#include "catalog/bound.h"
#include "routing/routing.h"

/* Runs the migration of a reserved slot to its end, in the worker started for it (bgworkers/migration_cloner.c). Outside a transaction. */
extern void tessera_migration_run(int slot, uint32 generation);

/* That worker's SIGINT: the migration is asked to end. */
extern void tessera_migration_interrupt(SIGNAL_ARGS);

/* Settles what has a row but no process: after a crash or a restart (step of a worker; ms until the next). */
extern long tessera_migration_recovery_step(void);

/*
 * config/abandoned_migrations.c, set by init.c: on the config node fences migrations that never reached their donor; returns how many are to be
 * looked at again soon. Outside a transaction.
 */
extern int	(*tessera_recovery_fence_abandoned) (void);

/* Deletes rows of ranges that this shard no longer owns (step of a worker; ms until the next). */
extern long tessera_range_deleter_step(void);

/*
 * Asks the running migrations of the groups (text of a uuid[]) to end for the statement named, and waits until the config node knows of none; past
 * its decision one is waited for. On any node, in a transaction, which may hold locks of the tables: the end of a migration needs none. ERROR 55006
 * at the timeout.
 */
extern void tessera_migrations_end(const char *groups, const char *by, int timeout_ms);

/* True if the process is one of this node's that run migrations, of either side. */
extern bool tessera_is_of_migration(int pid);

/*
 * ERROR 25001 if this transaction holds, or has open on other nodes, what a migration would wait for; relid: a table that it must not have locked,
 * or InvalidOid.
 */
extern void tessera_move_require_free(Oid relid);

/*
 * tessera.move_range for who has checked the rights of the caller: moves what is not there yet, one verified migration after the other, and waits
 * for it, in a transaction that tessera_move_require_free accepts. false: all of it was there. NOTICE for each part; errors as move_range; a
 * cancellation that came too late is pending afterwards.
 */
extern bool tessera_move_to(Oid relid, const TesseraBound *min, const TesseraBound *max, const char *shard);

/*
 * Begins the migration of the first part of the range that is not at the shard yet, and does not wait for it; or finds the same one running. yields:
 * it makes way for clients and standbys. In a transaction that has not written; errors as move_range. false: all of the range is there.
 */
typedef struct TesseraMoveBegun
{
	pg_uuid_t	migration_id;
	int32		donor;
} TesseraMoveBegun;
extern bool tessera_move_begin(const TesseraRouting *routing, const TesseraTable *table, const TesseraBound *min, const TesseraBound *max,
							   const char *shard, bool verify, bool yields, TesseraMoveBegun *begun);

/*
 * The same for the placed tables of a schema, and of those that are tied to it. Errors as move_schema. false: they are there.
 */
extern bool tessera_schema_move_begin(const char *schema, const char *shard, bool verify, bool yields, TesseraMoveBegun *begun);

/*
 * The same in one migration of what the donor owns of n ranges, in order, disjoint; another one of a part of them is an error (55006). false: it owns
 * nothing of them.
 */
extern bool tessera_move_begin_ranges(const TesseraRouting *routing, const TesseraTable *table, int n, TesseraBound **mins, TesseraBound **maxs,
									  int32 donor, const char *shard, bool verify, TesseraMoveBegun *begun);

/* Exit step of the session that has a donor's slot reserved: withdraws it if the donor was not started. */
extern void tessera_migration_withdraw(int code, Datum arg);

/* Steps: where the transaction has carried out a migration's outcome, the recipient's worker may end; or that is forgotten. Never raise. */
extern void tessera_migration_control_committed(void);
extern void tessera_migration_control_forget(void);

#endif							/* TESSERA_MIGRATION_H */
