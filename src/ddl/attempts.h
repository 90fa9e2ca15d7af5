/*
 * attempts.h
 *	  A statement of the whole cluster takes its locks in short attempts (doc/design.md#ddl-attempts).
 *
 * A lock queue belongs to one node. A statement that holds a table's lock on one node and waits for it on another could wait without end for a
 * transaction that waits behind it on the first; later statements would wait behind both. So an attempt first locks the tables on all nodes, each
 * wait bounded. If one lock is not had in time, all are released. After a pause the next attempt begins with the node where the last one failed:
 * there it may wait in the queue, because it holds no lock yet that others could wait for. The statement runs only when it holds the locks of all
 * nodes. Attempts are short at first, and get longer.
 */
#ifndef TESSERA_DDL_ATTEMPTS_H
#define TESSERA_DDL_ATTEMPTS_H

#include "postgres.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/timestamp.h"

#include "routing/routing.h"
#include "transaction/declared_wait.h"

/* ---- attempts.c ---- */

/* Setting tessera.ddl_lock_timeout, in milliseconds; 0: one attempt. */
extern int	tessera_ddl_lock_timeout;

/* From _PG_init: the setting. */
extern void tessera_attempts_init(void);

typedef enum TesseraPatience
{
	TESSERA_PATIENCE_DDL,		/* tessera.ddl_lock_timeout, or lock_timeout if that is shorter */
	TESSERA_PATIENCE_LOCK,		/* LOCK TABLE: lock_timeout; without, no limit */
	TESSERA_PATIENCE_NONE		/* NOWAIT: one attempt that waits for nothing */
} TesseraPatience;

/*
 * Runs attempt(arg) in a subtransaction with a short lock_timeout, again after a pause while it fails for a lock (55P03, 40P01), for stale routing,
 * or for a migration or rows in the way (TS004, in the end 55006), until the time limit of `patience` has passed; then 55P03 that names the holder of
 * the lock. ERROR 40P01 if others wait for what this transaction holds, and it waits for them.
 */
extern void tessera_ddl_attempts(void (*attempt) (void *arg), void *arg, TesseraPatience patience);

/* Milliseconds that an attempt waits at most for names and groups on the config node, and for a refresh from there. */
extern int	tessera_ddl_attempt_timeout(void);

/*
 * Within an attempt: a node's answer that is not "ok" (node_lock.c). ERROR 55P03; the holders are remembered for the final error, and for the search
 * for deadlocks.
 */
extern _Noreturn void tessera_ddl_held(int32 node_id, const char *answer);

/*
 * A prepared transaction for a message, by its identifier on one node: the name that a client gave it, and its owner, asked of the config node; else
 * that identifier. In quotes, palloc'd. Runs a subtransaction.
 */
extern char *tessera_describe_prepared(const char *gid);

/* A table of this node's, to be locked on every node under its name. */
typedef struct TesseraTableLock
{
	Oid			relid;
	LOCKMODE	mode;
} TesseraTableLock;

/*
 * Within an attempt: locks the tables (TesseraTableLock *) on all nodes, or on this one and all shards, to the end of the transaction. ERROR 55P03:
 * another attempt may succeed; 08006.
 */
extern void tessera_ddl_lock_tables(const TesseraRouting *routing, List *locks, bool shards_only);

/*
 * Within an attempt, before migrations of the tables are ended for the statement: waits on the same nodes, without standing in any queue, for the
 * transactions that hold what tessera_ddl_lock_tables would wait for, but for those of migrations. ERROR 55P03 if one has not ended in time: the
 * statement would not get its locks either; 08006. Holds nothing afterwards.
 */
extern void tessera_ddl_await_holders(const TesseraRouting *routing, List *locks, bool shards_only);

/* ---- table_locks.c ---- */

/* The tables of the cluster that a statement will lock against writers, as far as its user may (TesseraTableLock *). */
extern List *tessera_ddl_table_locks(Node *statement, const TesseraRouting *routing);

/* ---- node_lock.c ---- */

/*
 * Locks to the end of the (sub)transaction; waits timeout_ms at most (0: not at all). Returns false if the lock was not had, and appends a line for
 * each holder.
 */
extern bool tessera_try_lock(const LOCKTAG *tag, LOCKMODE mode, int timeout_ms, StringInfo holders);

/*
 * Locks a table on this node alone to the end of the transaction, in short attempts. Runs subtransactions. Interruptible. When
 * tessera.ddl_lock_timeout has passed: ERROR 55P03 that names the holders; the second one returns them instead, as a DETAIL (palloc'd; else NULL).
 */
extern void tessera_lock_table_here(Oid relid, LOCKMODE mode);
extern char *tessera_lock_table_or_holders(Oid relid, LOCKMODE mode);

/* Tables of this node by qualified name: "ok", or "held ...". palloc'd. The second waits for who holds them, and locks nothing. */
extern char *tessera_lock_tables_here(int n, char *const *names, const LOCKMODE *modes, int timeout_ms);
extern char *tessera_await_holders_here(int n, char *const *names, const LOCKMODE *modes, int timeout_ms);

#endif							/* TESSERA_DDL_ATTEMPTS_H */
