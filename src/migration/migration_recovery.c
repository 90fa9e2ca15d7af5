/*
 * migration_recovery.c
 *	  Migrations that have a row but no process: after a crash, a restart, or the end of a worker (S62, S63).
 *
 * Donor: settled from its row alone; the config node is asked, with a fence, where the row leaves the outcome open. Recipient: follows an outcome
 * that the config node has; never fences. Config node: a migration that was registered but never reached its donor is fenced
 * (config/abandoned_migrations.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/migration_row.h"
#include "common/spi_row.h"
#include "failover/promotion.h"
#include "migration/migration.h"
#include "migration/migration_outcome.h"
#include "migration/migration_slot.h"
#include "transaction/background.h"

#define PERIOD_MS 5000L
#define RETRY_MS 500L

int			(*tessera_recovery_fence_abandoned) (void) = NULL;

typedef bool (*Settle) (const pg_uuid_t *migration_id);

static bool
settle_donor(const pg_uuid_t *migration_id)
{
	TesseraSettle known = {.pause_ms = -1, .error = "57P01: the donor's worker ended before the decision"};
	TesseraMigrationSlot slot;

	/* it had an error of its own before */
	if (tessera_slot_find(TESSERA_DONOR, migration_id, NULL, &slot) && slot.sqlstate[0] != '\0')
		known.error = tessera_settle_error(slot.sqlstate, slot.message, slot.detail);
	ereport(LOG,
			(errmsg("settling migration %s, which has no worker", tessera_work_uuid(migration_id))));
	(void) tessera_settle_donor(migration_id, &known);
	return true;
}

/* Runs one settlement; an error is logged and the transaction it was in ended. true: nothing is left to do for it. */
static bool
attempt(Settle settle, const pg_uuid_t *migration_id)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		done = settle(migration_id);
	}
	PG_CATCH();
	{
		if (ProcDiePending)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
	return done;
}

/* All rows of a side without a live slot. Returns how many are left. */
static int
settle_all(TesseraMigrationSide side, Settle settle)
{
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *ids;
	int			n;
	int			left = 0;

	tessera_work_begin();
	MemoryContextSwitchTo(caller);
	ids = tessera_migration_row_ids(side, &n);
	tessera_work_commit();
	for (int i = 0; i < n; i++)
	{
		TesseraMigrationSlot slot;

		CHECK_FOR_INTERRUPTS();
		if (tessera_slot_find(side, &ids[i], NULL, &slot) && tessera_slot_live(&slot))
			continue;
		if (!attempt(settle, &ids[i]))
			left++;
	}
	return left;
}

/*
 * Replication slots of migrations that have no row here: a primary that was replaced by a standby, and comes back as one itself, still has those of
 * before. A slot is made after its coordinator row and dropped before it.
 */
static void
drop_leftover_slots(void)
{
	TesseraSpi	spi;

	tessera_work_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots AS s WHERE slot_name ~ '^tessera_[0-9a-f]{32}$' AND NOT "
					"active"
					" AND database = current_database() AND NOT EXISTS (SELECT FROM tessera.migration_coordinator AS c WHERE c.slot = s.slot_name)",
					SPI_OK_SELECT, 0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
	tessera_work_commit();
}

static bool
is_node(void)
{
	bool		node;

	tessera_work_begin();
	node = tessera_routing() != NULL;
	tessera_work_commit();
	return node;
}

long
tessera_migration_recovery_step(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tessera migration recovery", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	int			left;

	if (!tessera_promotion_step())
		left = 1;
	else
	{
		left = settle_all(TESSERA_DONOR, settle_donor);
		left += settle_all(TESSERA_RECIPIENT, tessera_follow_outcome);
		left += tessera_recovery_fence_abandoned();
		if (is_node())
			drop_leftover_slots();
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return left > 0 ? RETRY_MS : PERIOD_MS;
}
