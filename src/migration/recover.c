/*
 * recover.c
 *	  Migrations that have a row but no process: after a crash, a restart, or the end of a worker (S62, S63).
 *
 * Donor: settled from its row alone; the config node is asked, with a fence, where the row leaves the outcome open. Recipient: follows an outcome that the
 * config node has; never fences. Config node: a migration that was registered but never reached its donor (the caller died in between) is fenced.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "common/spi_row.h"
#include "migration/migration.h"
#include "migration/promotion.h"
#include "migration/rows.h"
#include "migration/settle.h"
#include "migration/slot.h"
#include "migration/work.h"

#define PERIOD_MS 5000L
#define RETRY_MS 1000L

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

/* Config node: the donor says that it knows nothing of a migration that runs by our row. */
static bool
fence_orphan(const pg_uuid_t *migration_id)
{
	const char *id = tessera_work_uuid(migration_id);
	const char *why = "57P01: the migration never reached its donor";
	const char *values[] = {id, NULL, tessera_work_term()};
	const char *progress[] = {id, "aborted", "0", "0", "0", NULL, why, NULL};
	char	  **columns = tessera_work_call(0, "SELECT donor FROM tessera.internal_migration_state($1::uuid)", 1, values);

	if (columns == NULL || columns[0] == NULL)
		return true;
	columns = tessera_work_call(pg_strtoint32(columns[0]), "SELECT tessera.internal_knows_migration($1::uuid)", 1, values);
	if (columns == NULL || columns[0] == NULL || columns[0][0] == 't')
		return true;
	values[1] = why;
	columns = tessera_work_call(0, "SELECT tessera.internal_fence_migration($1::uuid, $2, $3::int8)", 3, values);
	if (columns != NULL && columns[0] != NULL && strcmp(columns[0], "aborted") == 0)
	{
		tessera_work_call(0, "SELECT tessera.internal_migration_progress($1::uuid, $2, $3::int8, $4::int8, $5::int8, $6::float8, $7, $8)", 8, progress);
		tessera_work_call(0, "SELECT tessera.internal_acknowledge_migration($1::uuid, 'aborted')", 1, values);
	}
	return true;
}

static void
fence_orphans(void)
{
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *ids;
	int			n = 0;
	TesseraSpi	spi;

	tessera_work_begin();
	if (tessera_routing() == NULL || !tessera_routing()->is_config)
	{
		tessera_work_commit();
		return;
	}
	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run("SELECT migration_id FROM tessera.migration WHERE state = 'running' AND started < clock_timestamp() - interval '30 seconds'",
							  SPI_OK_SELECT, 0, NULL, NULL, NULL);
	ids = MemoryContextAlloc(caller, sizeof(pg_uuid_t) * Max(n, 1));
	for (int i = 0; i < n; i++)
		ids[i] = *DatumGetUUIDP(spi_row_value(i, 1));
	tessera_spi_end(&spi);
	tessera_work_commit();
	for (int i = 0; i < n; i++)
		(void) attempt(fence_orphan, &ids[i]);
}

/*
 * Replication slots of migrations that have no row here: a primary that was replaced by a standby, and comes back as one itself, still has those of before. A slot is
 * made after its coordinator row and dropped before it.
 */
static void
drop_leftover_slots(void)
{
	TesseraSpi	spi;

	tessera_work_begin();
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots AS s WHERE slot_name ~ '^tessera_[0-9a-f]{32}$' AND NOT active"
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
		fence_orphans();
		if (is_node())
			drop_leftover_slots();
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	return left > 0 ? RETRY_MS : PERIOD_MS;
}
