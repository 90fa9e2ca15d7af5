/*
 * promotion.c
 *	  After the promotion of a standby: when what is due is done, by the worker "migration recovery", and what SQL shows of it.
 *
 * A promotion changes the server's timeline. What the node knew on the old one is in durable rows: identity.timeline says for which timeline its
 * placements are right, the config node's own row in tessera.node for which timeline its catalog is. Both are replicated, so a standby that is
 * promoted finds them to differ from its own, whichever server was lost (the loader sees it: placements_unknown, metadata_unknown); the same after
 * point-in-time recovery. Until they are equal, statements wait and then fail, no migration is settled and no row deleted here; the config node
 * changes and gives out no metadata.
 *
 * Shared: for each database, numbers of requests and the last error, under a spinlock; a session that asks waits on a condition variable. Crash: the
 * rows say what is still due.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "catalog/change.h"
#include "catalog/incarnation.h"
#include "common/injection.h"
#include "common/privilege.h"
#include "common/shmem.h"
#include "common/spi.h"
#include "common/worker_registry.h"
#include "failover/promotion.h"
#include "transaction/background.h"
#include "transaction/node_clocks.h"

#define RECOVER_MS 30000L		/* tessera.recover_node waits so long */
#define LOOK_MS 1000L

PG_FUNCTION_INFO_V1(tessera_recover_node);
PG_FUNCTION_INFO_V1(tessera_promotion_status);
PG_FUNCTION_INFO_V1(tessera_internal_doubt_catalog);

typedef struct PromotionSlot
{
	slock_t		mutex;
	uint64		requested;		/* calls of recover_node */
	uint64		done;			/* the last one that an attempt began after */
	bool		force;
	bool		doubted;		/* a node knows newer metadata than this config node */
	char		error[512];		/* of the last attempt; empty: it went well */
	ConditionVariable ended;
} PromotionSlot;

void		(*tessera_promotion_merge) (bool force) = NULL;

static PromotionSlot *slots = NULL;


static Size
promotion_size(void)
{
	return sizeof(PromotionSlot) * TESSERA_MAX_DATABASES;
}

static void
promotion_shmem_init(void *memory, LWLockPadded *locks, bool found)
{
	slots = memory;
	if (found)
		return;
	memset(slots, 0, promotion_size());
	for (int i = 0; i < TESSERA_MAX_DATABASES; i++)
	{
		SpinLockInit(&slots[i].mutex);
		ConditionVariableInit(&slots[i].ended);
	}
}

static const TesseraShmemModule promotion_module = {"tessera_promotion", promotion_size, 0, promotion_shmem_init, NULL};

void
tessera_promotion_init(void)
{
	tessera_shmem_register(&promotion_module);
}


/* The worker's side */

typedef enum Standing
{
	IS_NODE,
	HAS_TO_RECOVER,
	WAS_RESTORED,
	WAS_REPLACED
} Standing;

static bool
take_doubt(void)
{
	PromotionSlot *slot = &slots[tessera_database_slot()];
	bool		doubted;

	SpinLockAcquire(&slot->mutex);
	doubted = slot->doubted;
	slot->doubted = false;
	SpinLockRelease(&slot->mutex);
	return doubted;
}

static Standing
look(void)
{
	const TesseraRouting *routing;
	Standing	standing = IS_NODE;

	tessera_background_begin();
	routing = tessera_routing();
	if (routing != NULL && routing->restored)
		standing = WAS_RESTORED;
	else if (routing != NULL && (routing->placements_unknown || routing->metadata_unknown))
		standing = HAS_TO_RECOVER;
	else if (routing != NULL && routing->replaced)
		standing = WAS_REPLACED;
	tessera_background_commit();
	if (standing == IS_NODE && take_doubt())
	{
		ereport(LOG,
				(errmsg("the catalog of this config node is older than what others know: it is compared with the shards"),
				 errhint("Was an older copy of its data directory put in its place?")));
		standing = WAS_RESTORED;
	}
	if (standing == IS_NODE && tessera_placements_lost())
	{
		ereport(LOG,
				(errmsg("placements of this node are older than its chunks: it asks the config node what it owns"),
				 errhint("Was an older copy of its data directory put in its place?")));
		standing = WAS_RESTORED;
	}
	return standing;
}

/*
 * This server was restored, or is to be the node again: it knows nothing, as after a promotion, until it is registered. Without an incarnation it is
 * registered anew, whatever its timeline.
 */
static void
claim_node(bool replaced)
{
	TesseraSpi	spi;

	tessera_background_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.identity SET timeline = 0, incarnation = 0, backup_label = tessera_internal.backup_label()", SPI_OK_UPDATE, 0,
					NULL, NULL, NULL);
	tessera_spi_run("UPDATE tessera.node AS n SET timeline = 0 FROM tessera.identity AS i WHERE n.node_id = i.node_id AND i.is_config", SPI_OK_UPDATE,
					0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
	if (replaced)
		tessera_incarnation_read_only(false);
	tessera_catalog_changed();
	tessera_background_commit();
}

static void
recover(bool force)
{
	const TesseraRouting *routing;
	bool		catalog;

	tessera_background_begin();
	routing = tessera_routing_or_error();
	catalog = routing->metadata_unknown;
	tessera_background_commit();
	tessera_clock_promoted();
	if (catalog)
		tessera_promotion_merge(force);
	tessera_recover_placements(force);
	(void) tessera_worker_wake(TESSERA_RANGE_DELETER);
}

/* The current error as text; ends the transaction it happened in. */
static char *
take_error(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	MemoryContextSwitchTo(context);
	return psprintf("%s%s%s", error->message, error->detail ? ": " : "", error->detail ? error->detail : "");
}

static void
note(PromotionSlot *slot, uint64 number, const char *error)
{
	SpinLockAcquire(&slot->mutex);
	slot->done = number;
	slot->force = slot->force && slot->requested > number;
	strlcpy(slot->error, error, sizeof(slot->error));
	SpinLockRelease(&slot->mutex);
	ConditionVariableBroadcast(&slot->ended);
}

bool
tessera_promotion_step(void)
{
	PromotionSlot *slot = &slots[tessera_database_slot()];
	MemoryContext context = CurrentMemoryContext;
	char	   *volatile error = NULL;
	volatile Standing standing = look();
	uint64		number;
	bool		force;

	SpinLockAcquire(&slot->mutex);
	number = slot->requested;
	force = slot->force;
	SpinLockRelease(&slot->mutex);
	if (!force && (standing == IS_NODE || standing == WAS_REPLACED))
	{
		if (number > slot->done)
			note(slot, number, standing == IS_NODE ? "" : "another server was promoted in the place of this one");
		return standing == IS_NODE;
	}
	tessera_injection("promotion_begun");	/* from here on the node may leave its cluster: what follows looks again */
	PG_TRY();
	{
		if (standing != HAS_TO_RECOVER)
			claim_node(standing == WAS_REPLACED);
		recover(force && standing == HAS_TO_RECOVER);
	}
	PG_CATCH();
	{
		if (ProcDiePending)
			PG_RE_THROW();
		error = take_error(context);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (error == NULL)
		ereport(LOG,
				(errmsg("this node was promoted, and knows again what it owns")));
	else if (strcmp(slot->error, error) != 0)
		ereport(LOG,
				(errmsg("this node was promoted, and cannot find out what it owns: %s", error)));
	note(slot, number, error ? error : "");
	return error == NULL;
}


/* SQL */

/* Asks the worker for an attempt and waits for its end; false if there was none in time. */
static bool
request_attempt(PromotionSlot *slot, bool force, char *error, Size room)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RECOVER_MS);
	uint64		number;
	bool		done;

	SpinLockAcquire(&slot->mutex);
	number = ++slot->requested;
	slot->force = slot->force || force;
	SpinLockRelease(&slot->mutex);
	(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
	ConditionVariablePrepareToSleep(&slot->ended);
	for (;;)
	{
		SpinLockAcquire(&slot->mutex);
		done = slot->done >= number;
		strlcpy(error, slot->error, room);
		SpinLockRelease(&slot->mutex);
		if (done || GetCurrentTimestamp() >= deadline)
			break;
		/* now and then look whether there still is a worker */
		if (ConditionVariableTimedSleep(&slot->ended, LOOK_MS, PG_WAIT_EXTENSION))
			(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
	}
	ConditionVariableCancelSleep();
	return done;
}

/* internal_doubt_catalog() */
Datum
tessera_internal_doubt_catalog(PG_FUNCTION_ARGS)
{
	PromotionSlot *slot = &slots[tessera_database_slot()];

	SpinLockAcquire(&slot->mutex);
	slot->doubted = true;
	SpinLockRelease(&slot->mutex);
	(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
	PG_RETURN_VOID();
}

/* recover_node(force bool) returns void */
Datum
tessera_recover_node(PG_FUNCTION_ARGS)
{
	char		error[sizeof(slots->error)];

	if (RecoveryInProgress() || tessera_routing() == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster, or the server is a standby")));
	if (!request_attempt(&slots[tessera_database_slot()], PG_GETARG_BOOL(0), error, sizeof(error)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the worker \"migration recovery\" did not answer in time"),
				 errhint("Look into the server's log, and try again.")));
	if (error[0] != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node was promoted, and cannot find out what it owns"),
				 errdetail_internal("%s", error),
				 errhint("It tries again by itself. tessera.recover_node(force => true) gives up what is missing, for good.")));
	PG_RETURN_VOID();
}

/*
 * promotion_status(OUT timeline int4, OUT placements_known bool, OUT metadata_known bool, OUT last_error text, OUT incarnation int4, OUT replaced
 * bool); metadata_known: null but on the config node
 */
Datum
tessera_promotion_status(PG_FUNCTION_ARGS)
{
	const TesseraRouting *routing = tessera_routing();
	TupleDesc	desc;
	Datum		values[6] = {0};
	bool		nulls[6] = {false};
	char		error[sizeof(slots->error)] = "";

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	if (routing != NULL)
	{
		PromotionSlot *slot = &slots[tessera_database_slot()];

		SpinLockAcquire(&slot->mutex);
		strlcpy(error, slot->error, sizeof(error));
		SpinLockRelease(&slot->mutex);
	}
	nulls[0] = RecoveryInProgress();
	values[0] = Int32GetDatum(nulls[0] ? 0 : (int32) GetWALInsertionTimeLine());
	nulls[1] = routing == NULL;
	values[1] = BoolGetDatum(routing != NULL && !routing->placements_unknown);
	nulls[2] = routing == NULL || !routing->is_config;
	values[2] = BoolGetDatum(!nulls[2] && !routing->metadata_unknown);
	nulls[3] = error[0] == '\0' || !tessera_may_read_catalog();	/* it may name bounds, and addresses */
	values[3] = CStringGetTextDatum(error);
	nulls[4] = nulls[5] = routing == NULL;
	values[4] = Int32GetDatum(routing == NULL ? 0 : routing->incarnation);
	values[5] = BoolGetDatum(routing != NULL && routing->replaced);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
