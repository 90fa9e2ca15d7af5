/*
 * incarnation.c
 *	  Which of a node's servers is the node; see incarnation.h.
 *
 * A server that was replaced learns it by its refresher, which fetches tessera.node from the config node; by any node that connects to it or that it
 * connects to (tessera_incarnation_greet); and by the config node, which connects to all addresses of a node when it registers another server. The
 * backend that hears of it notes the number in shared memory; the refresher writes it into this node's row of tessera.node. From that commit on the
 * routing image says `replaced`.
 *
 * Shared: for each database the highest number heard, under a spinlock. Crash: what was written down stays; what was not is said again.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/spin.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "catalog/database_setting.h"
#include "catalog/incarnation.h"
#include "catalog/relation.h"
#include "common/shmem.h"
#include "common/spi.h"
#include "common/worker_registry.h"

#define WRITE_MS 5000			/* who is told that it was replaced waits so long until that is written down */

typedef struct HeardSlot
{
	slock_t		mutex;
	int32		incarnation;	/* of this node; 0: nothing heard */
} HeardSlot;

static HeardSlot *slots = NULL;

/* of the refresher: sessions are read-only by default */
static bool read_only = false;


static Size
heard_size(void)
{
	return sizeof(HeardSlot) * TESSERA_MAX_DATABASES;
}

static void
reset_slot(int slot)
{
	SpinLockAcquire(&slots[slot].mutex);
	slots[slot].incarnation = 0;
	SpinLockRelease(&slots[slot].mutex);
}

static void
heard_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	for (int i = 0; !found && i < TESSERA_MAX_DATABASES; i++)
	{
		SpinLockInit(&slots[i].mutex);
		slots[i].incarnation = 0;
	}
}

static const TesseraShmemModule heard_module = {"tessera_incarnation", heard_size, 0, heard_init, reset_slot};

void
tessera_incarnation_init(void)
{
	tessera_shmem_register(&heard_module);
}


/* Hearing of it */

/* The highest incarnation of a node that is known here, by the newest committed rows; 0: no such node. */
static int32
registered_incarnation(int32 node_id)
{
	Oid			relid = tessera_catalog_relid(TESSERA_NODE);
	Relation	relation = OidIsValid(relid) ? table_open(relid, AccessShareLock) : NULL;
	Snapshot	snapshot;
	TableScanDesc scan;
	HeapTuple	tuple;
	int32		incarnation = 0;

	if (relation == NULL)
		return 0;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = table_beginscan(relation, snapshot, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		bool		null;

		if (DatumGetInt32(heap_getattr(tuple, Anum_node_node_id, RelationGetDescr(relation), &null)) == node_id)
			incarnation = DatumGetInt32(heap_getattr(tuple, Anum_node_incarnation, RelationGetDescr(relation), &null));
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(relation, AccessShareLock);
	return incarnation;
}

void
tessera_incarnation_outdone(int32 incarnation)
{
	HeardSlot  *slot = &slots[tessera_database_slot()];

	SpinLockAcquire(&slot->mutex);
	slot->incarnation = Max(slot->incarnation, incarnation);
	SpinLockRelease(&slot->mutex);
	(void) tessera_worker_wake(TESSERA_REFRESHER);
}

static int32
heard_incarnation(void)
{
	HeardSlot  *slot = &slots[tessera_database_slot()];
	int32		heard;

	SpinLockAcquire(&slot->mutex);
	heard = slot->incarnation;
	SpinLockRelease(&slot->mutex);
	return heard;
}

bool
tessera_incarnation_is_outdone(int32 own)
{
	return heard_incarnation() > own;
}

/* Waits until it is written down; goes on without after a while: the answer is the same. */
static void
await_written(int32 node_id, int32 incarnation)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), WRITE_MS);

	for (;;)
	{
		uint64		sequence = tessera_catalog_sequence();

		if (registered_incarnation(node_id) >= incarnation || !tessera_catalog_wait(sequence, deadline))
			return;
	}
}

/* True if this server is on the timeline that its identity names, so that it takes itself for the node. Otherwise it is yet to be registered. */
static bool
takes_itself_for_node(const TesseraIdentity *identity)
{
	return identity->timeline == (int32) GetWALInsertionTimeLine() && !identity->restored;
}

int32
tessera_incarnation_greet(const TesseraIdentity *identity, int32 caller, int32 claimed, int32 expected)
{
	int32		theirs = claimed > 0 ? registered_incarnation(caller) : 0;

	if (theirs > claimed)
		return -theirs;
	if (!takes_itself_for_node(identity))
		return Max(identity->incarnation + 1, expected);
	if (registered_incarnation(identity->node_id) > identity->incarnation)
		return 0;
	if (expected > identity->incarnation)
	{
		tessera_incarnation_outdone(expected);
		await_written(identity->node_id, expected);
		return 0;
	}
	return identity->incarnation;
}


/* Writing it down */

void
tessera_incarnation_read_only(bool on)
{
	tessera_database_setting("default_transaction_read_only", on ? list_make1(pstrdup("on")) : NIL);
}

/* Returns whether this server was replaced. */
static bool
write_heard(int32 heard)
{
	TesseraIdentity identity;
	bool		replaced;

	if (!tessera_identity_read(&identity) || !takes_itself_for_node(&identity))
		return false;
	replaced = registered_incarnation(identity.node_id) > identity.incarnation;
	if (!replaced && heard > identity.incarnation)
	{
		TesseraSpi	spi;

		tessera_spi_begin(&spi);
		tessera_spi_run("UPDATE tessera.node SET incarnation = $2 WHERE node_id = $1 AND incarnation < $2", SPI_OK_UPDATE, 2,
						(Oid[]) {INT4OID, INT4OID}, (Datum[]) {Int32GetDatum(identity.node_id), Int32GetDatum(heard)}, NULL);
		tessera_spi_end(&spi);
		tessera_catalog_changed();
		replaced = true;
	}
	if (replaced && !read_only)
	{
		tessera_incarnation_read_only(true);
		ereport(LOG,
				(errmsg("another server was promoted in the place of this one: statements of the cluster are refused")));
	}
	return replaced;
}

void
tessera_incarnation_step(void)
{
	if (RecoveryInProgress())
		return;
	StartTransactionCommand();
	(void) set_config_option("synchronous_commit", "local", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	read_only = write_heard(heard_incarnation());
	CommitTransactionCommand();
}
