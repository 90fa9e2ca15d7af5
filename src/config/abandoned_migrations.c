/*
 * abandoned_migrations.c
 *	  Abandoned migrations on the config node: their caller has gone before their donor was told.
 *
 * The caller's backend registers a migration on the config node, in a session of its own there (control lane), and then tells the donor. From the
 * donor's first report on (migration.phase) the donor brings it to its end. Before that the caller does; migration.caller_pid is the config node's
 * end of its session. The caller has gone if that session has ended, or if it says so after an error (internal_abandon_migration). Either wakes the
 * worker "migration recovery", which asks the donor, and fences what the donor does not know. A caller that is not heard of for 30 s counts as gone,
 * too, whatever its session does.
 *
 * The fence alone decides (S63): a donor that is told after it learns, when it asks the config node, that its migration is aborted. So a donor that
 * cannot be reached need not be waited for; then the outcome stays until it can be asked.
 *
 * Locks: none across calls. A crash of the config node ends all its sessions.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "catalog/migration_state.h"
#include "common/injection.h"
#include "common/process_exit.h"
#include "common/spi_row.h"
#include "common/worker_registry.h"
#include "config/abandoned_migrations.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"

#define ASK_MS 5000
#define GONE "NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = m.caller_pid AND a.backend_start <= m.started)"


typedef struct Unclaimed
{
	pg_uuid_t	migration_id;
	int32		donor;
	bool		abandoned;		/* its caller has gone, its donor has not said anything */
	bool		suspect;		/* that, or it is an old one, or fenced without an answer of its donor */
} Unclaimed;


void
tessera_migration_caller_gone(int code, Datum arg)
{
	(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
}

void
tessera_migration_watch_caller(void)
{
	tessera_at_exit(tessera_migration_caller_gone);
}

/* Its caller says that it has gone. */
void
tessera_serve_abandon_migration(const TesseraAbandonMigrationArgs *args)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.migration SET caller_pid = NULL WHERE migration_id = $1 AND state = 'running' AND phase IS NULL", SPI_OK_UPDATE,
					1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(args->migration_id)}, NULL);
	tessera_spi_end(&spi);
	/* when this session ends, too: now the worker may look before the commit */
	tessera_migration_watch_caller();
	(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
}

/* Those whose donor has not said anything yet, and those of before that run; in the current context. */
static Unclaimed *
find_unclaimed(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Unclaimed  *unclaimed;
	TesseraSpi	spi;

	*n = 0;
	tessera_background_begin();
	if (tessera_routing() == NULL || !tessera_routing()->is_config)
	{
		tessera_background_commit();
		return NULL;
	}
	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT migration_id, donor, abandoned, abandoned OR state = 'aborted' OR started < clock_timestamp() - interval '30 "
							   "seconds' FROM"
							   " (SELECT m.*, m.state = 'running' AND m.phase IS NULL AND " GONE " AS abandoned FROM tessera.migration AS m"
							   "  WHERE m.state = 'running' OR m.state = 'aborted' AND m.phase IS NULL"
							   "   AND EXISTS (SELECT FROM tessera.migration_outcome AS o WHERE o.migration_id = m.migration_id)) AS q"
							   " WHERE phase IS NULL OR started < clock_timestamp() - interval '30 seconds'", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	unclaimed = MemoryContextAlloc(caller, sizeof(Unclaimed) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		unclaimed[i].migration_id = *DatumGetUUIDP(spi_row_value(i, 1));
		unclaimed[i].donor = DatumGetInt32(spi_row_value(i, 2));
		unclaimed[i].abandoned = DatumGetBool(spi_row_value(i, 3));
		unclaimed[i].suspect = DatumGetBool(spi_row_value(i, 4));
	}
	tessera_spi_end(&spi);
	tessera_background_commit();
	return unclaimed;
}

static bool
fence_unclaimed(void *arg)
{
	const Unclaimed *unclaimed = arg;
	const pg_uuid_t *id = &unclaimed->migration_id;
	const char *why = "57P01: the migration never reached its donor";
	bool		known = true;
	bool		answered = tessera_call_knows_migration(tessera_ask(tessera_within(tessera_to_node(unclaimed->donor), ASK_MS),
																	TESSERA_TOLERATE_ERRORS), id, &known);
	char	   *outcome;

	if (answered ? known : !unclaimed->abandoned)
		return true;
	tessera_call_fence_migration(tessera_to_config(), id, why, tessera_background_term(), &outcome);
	if (!answered || tessera_migration_result_of(outcome) != TESSERA_RESULT_ABORTED)
		return true;
	tessera_call_migration_progress(tessera_to_config(), id, tessera_migration_state_name(TESSERA_ABORTED), 0, 0, 0, NULL, why, NULL, NULL);
	tessera_call_acknowledge_migration(tessera_to_config(), id, tessera_migration_result_text(TESSERA_RESULT_ABORTED), NULL);
	return true;
}

int
tessera_fence_abandoned_migrations(void)
{
	int			n;
	int			young = 0;
	Unclaimed  *unclaimed = find_unclaimed(&n);

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (unclaimed[i].suspect)
			(void) tessera_background_try(fence_unclaimed, &unclaimed[i]);
		else
			young++;
	}
	return young;
}
