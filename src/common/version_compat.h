/*
 * version_compat.h
 *	  Everything that differs between PostgreSQL 15, 16, 17 and 18. No other file tests PG_VERSION_NUM (test/lint/versions.py).
 *
 * tessera runs on PostgreSQL 15: that is what the tests run on. Against 17 and 18 it is compiled without warnings (make compile-check, with
 * SUITE=forky for 18), not tested. The parts for 16 are written from its public source and have never been compiled.
 *
 * A difference has one name here, tessera_..., which says what is wanted; the callers know no versions. What costs nothing to tell apart is in line,
 * the rest in version_compat.c. Nothing is kept. Unless a comment says otherwise a function raises what core's raises, takes no lock and allocates in
 * the current context.
 */
#ifndef TESSERA_VERSION_COMPAT_H
#define TESSERA_VERSION_COMPAT_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "tessera is written for PostgreSQL 15 to 18"
#endif

#include "access/genam.h"
#include "catalog/objectaddress.h"
#include "executor/execdesc.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/pathnodes.h"
#include "parser/parse_node.h"
#include "replication/reorderbuffer.h"
#include "storage/latch.h"
#include "utils/rangetypes.h"
#include "utils/typcache.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"				/* VARDATA and the like; in postgres.h before */
#endif
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#include "storage/waiteventset.h"
#endif

/* ---- processes and transactions ---- */

/* Transaction number of a process within its server's life; may be another process's: read once. */
static inline LocalTransactionId
tessera_proc_lxid(const volatile PGPROC *proc)
{
#if PG_VERSION_NUM >= 170000
	return proc->vxid.lxid;
#else
	return proc->lxid;
#endif
}

/* Place of a process in the server's array of all: from 0, below MaxBackends for those that can run statements. */
static inline int
tessera_proc_number(PGPROC *proc)
{
#if PG_VERSION_NUM >= 170000
	return GetNumberFromPGProc(proc);
#else
	return proc->pgprocno;
#endif
}

/* Connection slots that the server keeps for superusers, and (16 on) members of pg_use_reserved_connections. */
extern int	tessera_reserved_slots(void);

/* True if so many slots for clients' connections are free. */
extern bool tessera_slots_are_free(int n);

/* A range of these bounds, as they are: range_serialize. */
extern RangeType *tessera_range_serialize(TypeCacheEntry *range, RangeBound *lower, RangeBound *upper, bool empty);

/* The number by which SendProcSignal finds the process. */
#if PG_VERSION_NUM >= 170000
static inline ProcNumber
tessera_proc_backend(PGPROC *proc)
{
	return GetNumberFromPGProc(proc);
}
#else
static inline BackendId
tessera_proc_backend(PGPROC *proc)
{
	return proc->backendId;
}
#endif

/* Of the transaction that holds or awaits the lock. */
static inline VirtualTransactionId
tessera_lock_vxid(const LockInstanceData *lock)
{
#if PG_VERSION_NUM >= 170000
	return lock->vxid;
#else
	return (VirtualTransactionId) {lock->backend, lock->lxid};
#endif
}

/* True if the virtual id names a prepared transaction from before a restart. Its localTransactionId is the xid then. */
static inline bool
tessera_vxid_is_recovered(VirtualTransactionId id)
{
	return VirtualTransactionIdIsRecoveredPreparedXact(id);
}

/* The process that the id is of; it may run another transaction by now. NULL: none, or tessera_vxid_is_recovered. */
extern PGPROC *tessera_vxid_proc(VirtualTransactionId id);

static inline bool
tessera_is_background_worker(void)
{
#if PG_VERSION_NUM >= 170000
	return AmBackgroundWorkerProcess();
#else
	return IsBackgroundWorker;
#endif
}

/* In exactly this mode. */
extern bool tessera_lock_held(const LOCKTAG *tag, LOCKMODE mode);

/* True if bytes of the client have been read from the socket that are not consumed yet. */
extern bool tessera_client_bytes_buffered(void);

/*
 * A set of n events, freed by FreeWaitEventSet alone: not at the end of a transaction, and on 17 and later not with the context either.
 */
extern WaitEventSet *tessera_wait_event_set(MemoryContext mcxt, int n);

/*
 * Until the end names are looked up and shown as if search_path were "pg_catalog, pg_temp", without a privilege on either. Costs little up to 16,
 * where no setting changes. An error ends it with the transaction or subtransaction.
 */
extern int	tessera_catalog_path_begin(void);
extern void tessera_catalog_path_end(int nest);

/* ---- privileges ---- */

extern bool tessera_owns_relation(Oid relid, Oid user);
extern bool tessera_owns_database(Oid database, Oid user);
extern bool tessera_may_execute(Oid function, Oid user);

/*
 * What is to be checked of a relation that a query names: requiredPerms, checkAsUser, selectedCols, insertedCols, updatedCols. On 15 these are fields
 * of the range table entry itself; from 16 on the entry has the number of an object in a list that belongs to its Query, plan or executor state.
 */
#if PG_VERSION_NUM >= 160000
typedef RTEPermissionInfo TesseraPermissions;
#else
typedef RangeTblEntry TesseraPermissions;
#endif

/* True if the entry has any. A relation has; from 16 on also the subquery of a view, which is checked itself (on 15 by an entry "old" inside). */
static inline bool
tessera_is_checked(const RangeTblEntry *rte)
{
#if PG_VERSION_NUM >= 160000
	return rte->rtekind == RTE_RELATION || rte->perminfoindex > 0;
#else
	return rte->rtekind == RTE_RELATION;
#endif
}

/* Of an entry of the query's range table. NULL: nothing is to be checked (never on 15: look at requiredPerms). */
extern TesseraPermissions *tessera_permissions(const Query *query, RangeTblEntry *rte);

/* The same in a running plan. */
extern TesseraPermissions *tessera_executor_permissions(EState *estate, RangeTblEntry *rte);

/* Role as which an entry of the query is checked; InvalidOid: the current user. */
extern Oid	tessera_check_as_user(const Query *query, RangeTblEntry *rte);

/* The same in a plan. */
extern TesseraPermissions *tessera_plan_permissions(PlannedStmt *plan, RangeTblEntry *rte);

/* Makes the permissions of a new entry; *list is the one of its query or plan (on 15 it stays NIL). */
extern TesseraPermissions *tessera_add_permissions(List **list, RangeTblEntry *rte);

/*
 * For an entry of the query that goes into another query or a plan: puts a copy of its permissions into that one's list, and their number into the
 * entry, which is a copy.
 */
extern void tessera_move_permissions(const Query *query, RangeTblEntry *rte, List **list);

/* The entry names no relation any more. */
extern void tessera_forget_permissions(RangeTblEntry *rte);

extern void tessera_set_query_permissions(Query *query, List *list);

/* Range table of a plan that core has not made, with the permissions moved to it. */
extern void tessera_set_plan_relations(PlannedStmt *plan, List *rtable, List *permissions);

/* True if any relation of the plan is checked as another role than the current user. */
extern bool tessera_plan_checks_as_user(const PlannedStmt *plan);

/* Of a relation that was just added to a ParseState. */
extern TesseraPermissions *tessera_item_permissions(ParseNamespaceItem *item);

/* Checks all of a ParseState's relations; ERROR 42501. */
extern void tessera_check_permissions(ParseState *pstate);

/* ---- names, catalog ---- */

/* "a.b" as a list of names. ERROR 42602 if it is none. */
extern List *tessera_names_of(const char *text);

/* The type and modifier that the text means; *type is InvalidOid if there is no such type. */
extern void tessera_parse_type(const char *text, Oid *type, int32 *typmod);

/* An implicit cast by a function. */
extern ObjectAddress tessera_create_cast(Oid source, Oid target, Oid function);

/* True if the collation compares bytes. */
extern bool tessera_collation_is_c(Oid collation);

/* Oid of the primary key's index if it is not deferrable, else InvalidOid. */
extern Oid	tessera_primary_key(Relation rel);

/* True if it is one of the functions random(); 17 has several. */
extern bool tessera_is_random(Oid function);

/* SQL: ICU's locale of the row d of pg_database, on a node of any version: the column was renamed in 17. */
#define TESSERA_SQL_DATABASE_LOCALE "coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale')"

/* ---- settings ---- */

/* Record of a setting; NULL: there is none of that name. */
extern struct config_generic *tessera_find_setting(const char *name);

/*
 * All settings, by name: on 15 the server's own array, later a copy (which takes the time to sort them). tessera_settings_done ends the use.
 */
extern struct config_generic **tessera_all_settings(int *n);
extern void tessera_settings_done(struct config_generic **settings);

/* ---- planner and executor ---- */

/* A condition that core did not see in the query, on one relation. */
extern RestrictInfo *tessera_make_restriction(PlannerInfo *root, Expr *clause, Relids relids);

/* True if the storage or the relation itself was made in this transaction. */
extern bool tessera_made_here(Relation rel);

/* An executor state with this one relation, which is written without a plan; permissions as by tessera_add_permissions. */
extern void tessera_init_range_table(EState *estate, RangeTblEntry *rte, List *permissions);
extern void tessera_init_epq(EPQState *epq, EState *estate);

/* Makes the index entries of a new row. */
extern void tessera_insert_index_tuples(ResultRelInfo *result, TupleTableSlot *slot, EState *estate);

/* An ordered scan of an index with n conditions, which index_rescan gives. */
extern IndexScanDesc tessera_index_scan(Relation rel, Relation index, Snapshot snapshot, int n);

/* Opens a relation of the range table until the executor ends. */
extern void tessera_open_relation(EState *estate, Index rti);

/* Of a copy of a relation: what is known of its indexes, which belongs to the original. */
extern void tessera_forget_indexes(Relation copy);

/*
 * BEFORE ROW triggers of a row that is not in the local heap: false if they suppress what is done with it. row: the new one, as they leave it.
 */
extern bool tessera_before_update(EState *estate, ResultRelInfo *result, HeapTuple old, TupleTableSlot *row);
extern bool tessera_before_delete(EState *estate, ResultRelInfo *result, HeapTuple old);

/* ExecutorRun or standard_ExecutorRun, to the end, once. */
#if PG_VERSION_NUM >= 180000
#define tessera_run_to_end(run, query) (run)((query), ForwardScanDirection, 0)
#else
#define tessera_run_to_end(run, query) (run)((query), ForwardScanDirection, 0, true)
#endif

/* What an ExecutorRun_hook gets, and hands on. */
#if PG_VERSION_NUM >= 180000
#define TESSERA_RUN_PARAMETERS QueryDesc *query, ScanDirection direction, uint64 count
#define TESSERA_RUN_ARGUMENTS query, direction, count
#define TESSERA_RUN_WITHOUT_WORKERS() (query->already_executed = true)
#else
#define TESSERA_RUN_PARAMETERS QueryDesc *query, ScanDirection direction, uint64 count, bool execute_once
#define TESSERA_RUN_ARGUMENTS query, direction, count, execute_once
#define TESSERA_RUN_WITHOUT_WORKERS() (execute_once = false)
#endif

/* ---- messages ---- */

/* Length and text in the client's encoding. */
extern void tessera_send_counted_text(StringInfo buf, const char *text);

/* ---- replication ---- */

/* Row of a decoded change; NULL: it has none. */
#if PG_VERSION_NUM >= 170000
static inline HeapTuple
tessera_change_tuple(HeapTuple tuple)
{
	return tuple;
}
#else
static inline HeapTuple
tessera_change_tuple(ReorderBufferTupleBuf *buffer)
{
	return buffer == NULL ? NULL : &buffer->tuple;
}
#endif

/* A logical slot of this database that goes when its process does. */
extern void tessera_create_ephemeral_slot(const char *name);

/* ERROR 42704 if there is no such slot, 55006 if another process has it. */
extern void tessera_acquire_slot(const char *name);

/* Connects to the publisher of a subscription, for walrcv_ calls; libpqwalreceiver is loaded. NULL: it failed, *error says why. */
extern struct WalReceiverConn *tessera_publisher_connect(const char *conninfo, const char *name, char **error);

/* Writes a message outside of transactions; its end. Not flushed. */
extern XLogRecPtr tessera_log_message(const char *prefix, const char *data, Size size);

/* ---- lexer ---- */

/*
 * What core_yylex returns, by name. From 16 on the header with these names is not installed; core promises that these come first, for PL/pgSQL, which
 * has its own list as well.
 */
typedef enum TesseraToken
{
	TESSERA_TOKEN_IDENT = 258,
	TESSERA_TOKEN_UIDENT,
	TESSERA_TOKEN_FCONST,
	TESSERA_TOKEN_SCONST,
	TESSERA_TOKEN_USCONST,
	TESSERA_TOKEN_BCONST,
	TESSERA_TOKEN_XCONST,
	TESSERA_TOKEN_OP,
	TESSERA_TOKEN_ICONST,
	TESSERA_TOKEN_PARAM,
	TESSERA_TOKEN_TYPECAST,
	TESSERA_TOKEN_DOT_DOT,
	TESSERA_TOKEN_COLON_EQUALS,
	TESSERA_TOKEN_EQUALS_GREATER,
	TESSERA_TOKEN_LESS_EQUALS,
	TESSERA_TOKEN_GREATER_EQUALS,
	TESSERA_TOKEN_NOT_EQUALS,
	TESSERA_TOKEN_LAST = TESSERA_TOKEN_NOT_EQUALS	/* the keywords follow */
} TesseraToken;

#endif							/* TESSERA_VERSION_COMPAT_H */
