/*
 * change.c
 *	  The catalog sequence of each database, and what bumps it.
 *
 * A writer counts its changes in this backend; the commit callback bumps the sequence: after the commit is visible (ProcArrayEndTransaction), before
 * the transaction's locks go. At PREPARE it is remembered whether the transaction changed the catalog; COMMIT PREPARED bumps for one that did, or
 * that is not known (prepared_change.c). DROP EXTENSION counts as a change, DROP DATABASE gives the database's slot back. Whatever wants a database
 * without connections (DROP, RENAME, SET TABLESPACE, TEMPLATE) has its workers step aside for a while.
 *
 * Between the two a reader could have a snapshot that sees the change and an image that does not; and COMMIT PREPARED gives the locks back first, so
 * that who waited for one would go on by the old image. So whoever is about to commit a change announces its transaction id, and whoever reads the
 * sequence and finds that an announced transaction has ended bumps it himself, once for each.
 *
 * On a hot standby there are no writers: the writer also invalidates the relcache entry of tessera.node, once per transaction. The commit's replay
 * sends that to the standby's backends, and each bumps the sequence when it takes it in.
 *
 * Shared: one atomic counter for each slot; it never goes back, also when the slot gets another database; and for each backend, by the number of its
 * PGPROC, what it announces, which only it writes, but for the mark of who has seen to it. Crash: the server starts with new counters and without
 * images.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "tcop/utility.h"
#include "storage/condition_variable.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"
#include "utils/inval.h"
#include "utils/syscache.h"

#include "catalog/change.h"
#include "catalog/clock_store.h"
#include "catalog/incarnation.h"
#include "catalog/prepared_change.h"
#include "catalog/relation.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/spi.h"
#include "common/transaction_steps.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"

typedef struct Sequence
{
	pg_atomic_uint64 value;
	pg_atomic_uint32 announced; /* backends that announce a commit */
	ConditionVariable changed;	/* broadcast at each bump: waiters at a gate */
} Sequence;

/* What a backend announces: the slot of the database and the transaction id; 0: nothing. */
#define ANNOUNCEMENT(slot, xid) ((uint64) ((slot) + 1) << 32 | (xid))
#define ANNOUNCED_SLOT(announcement) ((int) ((announcement) >> 32 & 0x7FFFFFFF) - 1)
#define ANNOUNCED_XID(announcement) ((TransactionId) (announcement))
#define SEEN_TO (UINT64CONST(1) << 63)	/* it has ended, and the sequence was bumped */

typedef struct Sequences
{
	Sequence	of[TESSERA_MAX_DATABASES];
	pg_atomic_uint64 announcements[FLEXIBLE_ARRAY_MEMBER];	/* of the backends */
} Sequences;

static Sequences *sequences = NULL;

/* What the current top transaction has changed; the steps at its end empty it. */
typedef struct Changed
{
	uint64		changes;
	bool		invalidated;
	bool		role;
	bool		ending;			/* callbacks before the commit are being called */
	bool		announced;
	char		prepared_gid[GIDSIZE];	/* of the PREPARE TRANSACTION under way */
	Oid			dropped_database;
} Changed;

static Changed changed = {0};

static object_access_hook_type previous_object_access_hook = NULL;
static ProcessUtility_hook_type previous_utility = NULL;


static Size
sequences_size(void)
{
	return add_size(offsetof(Sequences, announcements), mul_size(sizeof(pg_atomic_uint64), MaxBackends));
}

static void
sequences_init(void *memory, LWLockPadded *locks, bool found)
{
	sequences = memory;
	if (found)
		return;
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		pg_atomic_init_u64(&sequences->of[i].value, 1);
		pg_atomic_init_u32(&sequences->of[i].announced, 0);
		ConditionVariableInit(&sequences->of[i].changed);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&sequences->announcements[i], 0);
}

static void
sequences_reset(int slot)
{
	pg_atomic_fetch_add_u64(&sequences->of[slot].value, 1);
}

static const TesseraShmemModule change_module = {"tessera_catalog_sequences", sequences_size, 0, sequences_init, sequences_reset};

/* Before a change of the catalog can be seen. */
static void
announce(TransactionId xid)
{
	int			slot = tessera_database_slot_if_any();

	if (slot < 0 || !TransactionIdIsValid(xid) || changed.announced || tessera_proc_number(MyProc) >= MaxBackends ||
		tessera_injection_skips("announcement"))
		return;
	pg_atomic_write_u64(&sequences->announcements[tessera_proc_number(MyProc)], ANNOUNCEMENT(slot, xid));
	pg_atomic_fetch_add_u32(&sequences->of[slot].announced, 1);
	changed.announced = true;
	tessera_transaction_involved();
}

/* After the sequence was bumped, or when there will be nothing to see. Never raises. */
static void
take_back_announcement(void)
{
	pg_atomic_uint64 *own;
	int			slot;

	if (!changed.announced)
		return;
	own = &sequences->announcements[tessera_proc_number(MyProc)];
	slot = ANNOUNCED_SLOT(pg_atomic_exchange_u64(own, 0));
	pg_atomic_fetch_sub_u32(&sequences->of[slot].announced, 1);
	changed.announced = false;
}

/* Commits are under way: of those that can be seen already the sequence is to tell. */
static void
see_to_announcements(int slot)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		announcement = pg_atomic_read_u64(&sequences->announcements[i]);

		if (announcement == 0 || (announcement & SEEN_TO) || ANNOUNCED_SLOT(announcement) != slot ||
			TransactionIdIsInProgress(ANNOUNCED_XID(announcement)))
			continue;
		tessera_catalog_bump();
		(void) pg_atomic_compare_exchange_u64(&sequences->announcements[i], &announcement, announcement | SEEN_TO);
	}
}

void
tessera_catalog_changed(void)
{
	(void) tessera_database_slot();	/* may error: here, not at commit */
	changed.changes++;
	tessera_transaction_involved();
	if (changed.ending)
		announce(GetTopTransactionId());
	if (!changed.invalidated)
	{
		Oid			relid = tessera_catalog_relid(TESSERA_NODE);

		if (OidIsValid(relid) && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
			CacheInvalidateRelcacheByRelid(relid);
		changed.invalidated = true;
	}
}

void
tessera_catalog_role_changed(void)
{
	tessera_catalog_changed();
	changed.role = true;
}

uint64
tessera_catalog_changed_here(void)
{
	return changed.changes;
}

uint64
tessera_catalog_sequence(void)
{
	int			slot = tessera_database_slot_if_any();

	if (slot < 0)
		return 0;
	if (unlikely(pg_atomic_read_u32(&sequences->of[slot].announced) != 0))
		see_to_announcements(slot);
	pg_read_barrier();
	return pg_atomic_read_u64(&sequences->of[slot].value);
}

void
tessera_catalog_bump(void)
{
	int			slot = tessera_database_slot_if_any();

	if (slot < 0)
		tessera_database_slots_changed();
	else
	{
		pg_atomic_fetch_add_u64(&sequences->of[slot].value, 1);
		ConditionVariableBroadcast(&sequences->of[slot].changed);
	}
}

bool
tessera_catalog_wait(uint64 seen, TimestampTz deadline)
{
	Sequence   *sequence = &sequences->of[tessera_database_slot()];
	bool		changed;

	ConditionVariablePrepareToSleep(&sequence->changed);
	while (!(changed = pg_atomic_read_u64(&sequence->value) != seen))
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		if (left <= 0)
			break;
		(void) ConditionVariableTimedSleep(&sequence->changed, left, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return changed;
}


/* Callbacks */

void
tessera_catalog_before_commit(void)
{
	changed.ending = true;
	if (changed.changes > 0)
		announce(GetTopTransactionIdIfAny());
}

static void
end_changes(void)
{
	take_back_announcement();
	memset(&changed, 0, sizeof(changed));
}

void
tessera_catalog_committed(void)
{
	if (changed.changes > 0)
		tessera_catalog_bump();
	if (changed.role)
		tessera_worker_roles_changed();
	if (OidIsValid(changed.dropped_database))
		tessera_database_slot_release(changed.dropped_database);
	end_changes();
}

void
tessera_catalog_prepared(void)
{
	if (changed.prepared_gid[0] != '\0')
		tessera_prepared_note(changed.prepared_gid, (TesseraPreparedChange) {.catalog = changed.changes > 0,.role = changed.role,
							  .xid = GetTopTransactionIdIfAny()});
	end_changes();
}

void
tessera_catalog_aborted(void)
{
	/* COMMIT PREPARED may have been done before the error */
	if (changed.announced)
		tessera_catalog_bump();
	end_changes();
}

void
tessera_catalog_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	if (changed.announced && !changed.ending)
	{
		tessera_catalog_bump();
		take_back_announcement();	/* of a COMMIT PREPARED */
	}
	if (changed.changes == 0)
		return;
	changed.changes++;					/* what a private image shows may be gone */
	changed.invalidated = false;		/* its message may have gone with it */
}

static void
at_relcache_invalidation(Datum arg, Oid relid)
{
	Oid			node;

	if (!RecoveryInProgress())
		return;
	/* No catalog access here. A backend that does not know the table yet cannot tell: it looks again at its next statement. */
	node = tessera_catalog_known_relid(TESSERA_NODE);
	if (!OidIsValid(relid) || !OidIsValid(node) || relid == node)
		tessera_catalog_bump();
}

static void
at_object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, class, object, sub, arg);

	if (access != OAT_DROP)
		return;
	if (class == DatabaseRelationId)
	{
		changed.dropped_database = object;
		tessera_transaction_involved();
		tessera_workers_stop(object);
	}
	else if (class == ExtensionRelationId && tessera_database_slot_if_any() >= 0 && object == get_extension_oid("tessera", true))
		tessera_catalog_role_changed();
}

static Oid
owned_database(const char *name)
{
	Oid			database = name ? get_database_oid(name, true) : InvalidOid;

	return OidIsValid(database) && tessera_owns_database(database, GetUserId()) ? database : InvalidOid;
}

/* The database that the statement wants to have without connections; InvalidOid: none, or it is not the user's. */
static Oid
wanted_alone(Node *statement)
{
	ListCell   *cell;

	switch (nodeTag(statement))
	{
		case T_RenameStmt:
			return castNode(RenameStmt, statement)->renameType == OBJECT_DATABASE ? owned_database(castNode(RenameStmt, statement)->subname) :
			InvalidOid;
		case T_CreatedbStmt:
			foreach(cell, castNode(CreatedbStmt, statement)->options)
				if (strcmp(lfirst_node(DefElem, cell)->defname, "template") == 0 && lfirst_node(DefElem, cell)->arg)
					return owned_database(defGetString(lfirst_node(DefElem, cell)));
			return InvalidOid;
		case T_AlterDatabaseStmt:
			foreach(cell, castNode(AlterDatabaseStmt, statement)->options)
				if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0)
					return owned_database(castNode(AlterDatabaseStmt, statement)->dbname);
			return InvalidOid;
		default:
			return InvalidOid;
	}
}

/* The id of a prepared transaction of this database that changes the catalog, or may; InvalidTransactionId: there is none. */
static TransactionId
prepared_changer(const char *gid)
{
	TesseraPreparedChange change = tessera_prepared_look(gid);
	TesseraSpi	spi;
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(gid)};
	TransactionId xid = InvalidTransactionId;
	bool		null;

	if (!change.catalog || TransactionIdIsValid(change.xid))
		return change.catalog ? change.xid : InvalidTransactionId;
	tessera_spi_begin(&spi);
	if (tessera_spi_look("SELECT transaction FROM pg_catalog.pg_prepared_xact() WHERE gid = $1", 1, types, values) > 0)
		xid = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	tessera_spi_end(&spi);
	return xid;
}

/* PREPARE remembers what the transaction did; COMMIT PREPARED, in whatever session, makes up for it. */
static void
at_utility(PlannedStmt *statement, const char *query, bool read_only_tree, ProcessUtilityContext context, ParamListInfo params,
		   QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	TransactionStmt *transaction = IsA(statement->utilityStmt, TransactionStmt) ? (TransactionStmt *) statement->utilityStmt : NULL;
	TransactionStmtKind kind = transaction ? transaction->kind : TRANS_STMT_BEGIN;
	char		gid[GIDSIZE] = "";
	Oid			alone = wanted_alone(statement->utilityStmt);

	if (OidIsValid(alone))
		tessera_workers_stop(alone);
	/* the statement may be gone afterwards */
	if (transaction && transaction->gid)
		strlcpy(gid, transaction->gid, GIDSIZE);
	if (kind == TRANS_STMT_COMMIT_PREPARED && tessera_database_slot_if_any() >= 0)
		announce(prepared_changer(gid));
	if (previous_utility)
		previous_utility(statement, query, read_only_tree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(statement, query, read_only_tree, context, params, environment, dest, completion);
	if (kind == TRANS_STMT_PREPARE)
	{
		strlcpy(changed.prepared_gid, gid, GIDSIZE);	/* prepared after this returns */
		tessera_transaction_involved();
	}
	else if (kind == TRANS_STMT_COMMIT_PREPARED)
	{
		TesseraPreparedChange change;

		tessera_injection("prepared_commit_seen");
		change = tessera_prepared_take(gid);
		if (change.catalog)
		{
			tessera_catalog_bump();
			take_back_announcement();
			if (tessera_clock_role() >= TESSERA_CLOCK_TICKS)
				(void) tessera_clock_commit(true);
		}
		if (change.role)
			tessera_worker_roles_changed();
	}
	else if (kind == TRANS_STMT_ROLLBACK_PREPARED)
		(void) tessera_prepared_take(gid);
}

void
tessera_catalog_change_init(void)
{
	tessera_shmem_register(&change_module);
	CacheRegisterRelcacheCallback(at_relcache_invalidation, (Datum) 0);
	previous_object_access_hook = object_access_hook;
	object_access_hook = at_object_access;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = at_utility;
}
