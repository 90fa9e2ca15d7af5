/*
 * migration_recovery.c
 *	  Migrations that have a row but no process: after a crash, a restart, or the end of a worker (S62, S63).
 *
 * Donor: completed from its row alone; the config node is asked, with a fence, where the row leaves the outcome open. Recipient: follows an outcome
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
#include "common/text.h"
#include "failover/promotion.h"
#include "migration/migration.h"
#include "migration/migration_outcome.h"
#include "migration/migration_slot.h"
#include "transaction/background.h"

#define PERIOD_MS 5000L
#define RETRY_MS 500L

int			(*tessera_recovery_fence_abandoned) (void) = NULL;

static bool
complete_donor(void *arg)
{
	const pg_uuid_t *migration_id = arg;
	TesseraDonorResult known = {.pause_ms = -1, .error = "57P01: the donor's worker ended before the decision"};
	TesseraMigrationSlot slot;

	/* it had an error of its own before */
	if (tessera_migration_slot_find(TESSERA_DONOR, migration_id, NULL, &slot) && slot.sqlstate[0] != '\0')
		known.error = tessera_outcome_error(slot.sqlstate, slot.message, slot.detail);
	ereport(LOG,
			(errmsg("settling migration %s, which has no worker", tessera_uuid_text(migration_id))));
	(void) tessera_outcome_complete_donor(migration_id, &known);
	return true;
}

static bool
complete_recipient(void *arg)
{
	return tessera_outcome_follow(arg);
}

/* All rows of a side without a live slot. Returns how many are left. */
static int
complete_all(TesseraMigrationSide side, bool (*complete) (void *migration_id))
{
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *ids;
	int			n;
	int			left = 0;

	tessera_background_begin();
	MemoryContextSwitchTo(caller);
	ids = tessera_migration_row_ids(side, &n);
	tessera_background_commit();
	for (int i = 0; i < n; i++)
	{
		TesseraMigrationSlot slot;

		CHECK_FOR_INTERRUPTS();
		if (tessera_migration_slot_find(side, &ids[i], NULL, &slot) && tessera_migration_slot_live(&slot))
			continue;
		if (!tessera_background_try(complete, &ids[i]))
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

	tessera_background_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots AS s WHERE slot_name ~ '^tessera_[0-9a-f]{32}$' AND NOT "
					"active"
					" AND database = current_database() AND NOT EXISTS (SELECT FROM tessera.migration_coordinator AS c WHERE c.slot = s.slot_name)",
					SPI_OK_SELECT, 0, NULL, NULL, NULL);
	tessera_spi_end(&spi);
	tessera_background_commit();
}

static bool
is_node(void)
{
	bool		node;

	tessera_background_begin();
	node = tessera_routing() != NULL;
	tessera_background_commit();
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
		left = complete_all(TESSERA_DONOR, complete_donor);
		left += complete_all(TESSERA_RECIPIENT, complete_recipient);
		left += tessera_recovery_fence_abandoned();
		if (is_node())
			drop_leftover_slots();
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return left > 0 ? RETRY_MS : PERIOD_MS;
}
