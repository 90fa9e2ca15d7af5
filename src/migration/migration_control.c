/*
 * migration_control.c
 *	  The control plane of a migration on donor and recipient: SQL functions that other nodes call over the control lane.
 *
 * Each call is a transaction of its own. Those that start a worker (internal_start_*) come after the one that wrote the row, so that the worker finds
 * the row committed. A slot is reserved before its row is written, so that recovery leaves the row alone; a reservation that is not used ends after
 * 30 s.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "catalog/migration_row.h"
#include "common/durable.h"
#include "common/injection.h"
#include "common/process_exit.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "migration/burden.h"
#include "migration/migration.h"
#include "migration/migration_outcome.h"
#include "migration/migration_slot.h"
#include "migration/placement_change.h"
#include "migration/table_checks.h"
#include "transaction/background.h"
#include "transfer/transfer.h"

/* A waiter does not wait longer than this for the rest once the outcome is known and carried out here. */
#define LINGER_MS 5000

#define REFRESH_MS 10000			/* a recipient fetches what it does not know from the config node */

PG_FUNCTION_INFO_V1(tessera_internal_migration_slots);


static char *
jsonb_text(Datum jsonb)
{
	return DatumGetCString(DirectFunctionCall1(jsonb_out, jsonb));
}

/* The row of a migration that must be there. */
static TesseraMigrationRow *
row_or_error(TesseraMigrationSide side, const pg_uuid_t *migration_id)
{
	TesseraMigrationRow *row = tessera_migration_row(side, migration_id, false);

	if (row == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("migration %s is not known on this node", tessera_uuid_text(migration_id))));
	return row;
}

/* A text of a slot, palloc'd; NULL: it is empty. */
static const char *
slot_text(const char *text)
{
	return text == NULL || text[0] == '\0' ? NULL : pstrdup(text);
}


/* After a promotion a migration neither begins nor ends here before it is known again what this shard owns. */
static void
require_placements(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing != NULL)
		tessera_require_own_node(routing);
	if (routing != NULL && routing->placements_unknown)
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("this node was promoted, and what it owns is not known yet"),
				 errhint("tessera.recover_node() says what is in the way.")));
}


/* Donor */

/* The slot that this session has reserved, for a donor that it has not started yet; generation 0: none. */
static int	offered_slot;
static uint32 offered = 0;

/* The session ends: if it has not started the donor, no other session will, and recovery need not wait until the reservation is over. */
void
tessera_migration_withdraw(int code, Datum arg)
{
	if (offered == 0)
		return;
	tessera_migration_slot_unreserve(offered_slot, offered);
	(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
}

static void
offer(int slot)
{
	TesseraMigrationSlot copy;

	tessera_at_exit(tessera_migration_withdraw);
	tessera_migration_slot_copy(slot, &copy);
	offered_slot = slot;
	offered = copy.generation;
}

/* The donor is started, or will not be: then its slot is free again. */
static void
end_offer(bool withdraw)
{
	if (withdraw)
		tessera_migration_slot_unreserve(offered_slot, offered);
	offered = 0;
}

/* The coordinator row. Again: nothing. */
void
tessera_serve_donate(const TesseraDonateArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	StringInfoData name;
	bool		existing;
	int			slot;
	pg_uuid_t	nobody = {{0}};

	require_placements();
	tessera_commit_durably();
	initStringInfo(&name);
	appendStringInfoString(&name, "tessera_");
	for (int i = 0; i < UUID_LEN; i++)
		appendStringInfo(&name, "%02x", id->data[i]);
	slot = tessera_migration_slot_reserve(TESSERA_DONOR, id, &nobody, &existing);
	if (existing)
		return;
	offer(slot);
	PG_TRY();
	{
		/* if it is there already, without a process, it is recovery's */
		if (!tessera_migration_row_insert(TESSERA_DONOR, id, jsonb_text(JsonbPGetDatum(args->request)), name.data))
			end_offer(true);
		tessera_injection("donor_noted");
	}
	PG_CATCH();
	{
		end_offer(true);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Starts the worker of a reserved slot; nothing if it runs, or has run, or if its row is not committed: then
 * the session that is writing the row starts it.
 */
void
tessera_serve_start_donor(const TesseraStartDonorArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	TesseraMigrationSlot copy;
	int			slot;

	if (!tessera_migration_slot_find(TESSERA_DONOR, id, &slot, &copy) || copy.use != TESSERA_SLOT_RESERVED ||
		tessera_migration_row(TESSERA_DONOR, id, false) == NULL)
		return;
	PG_TRY();
	{
		tessera_migration_slot_start_worker(slot, copy.generation);
	}
	PG_CATCH();
	{
		tessera_migration_slot_unreserve(slot, copy.generation);
		(void) tessera_worker_wake(TESSERA_MIGRATION_RECOVERY);
		PG_RE_THROW();
	}
	PG_END_TRY();
	end_offer(false);
}

/*
 * How far a donor's migration is, for who waits for it: the answer that it runs still has this as its detail. In the current context. The time left
 * is by the mean rate since its begin, and only of the clone.
 */
static char *
progress_text(const TesseraMigrationSlot *slot)
{
	double		seconds = Max((GetCurrentTimestamp() - slot->started) / 1000000.0, 0.001);
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfoString(&text, tessera_migration_state_name(slot->state));
	if (slot->rows_total > 0 && slot->state == TESSERA_CLONING)
		appendStringInfo(&text, ", " INT64_FORMAT " of about " INT64_FORMAT " rows (%d %%)", slot->rows, Max(slot->rows_total, slot->rows),
						 (int) Min(99, slot->rows * 100.0 / slot->rows_total));
	else if (slot->rows > 0)
		appendStringInfo(&text, ", " INT64_FORMAT " rows", slot->rows);
	if (slot->bytes > 0)
		appendStringInfo(&text, ", %.1f MB, %.1f MB/s", slot->bytes / 1048576.0, slot->bytes / 1048576.0 / seconds);
	if (slot->rows > 0 && slot->rows_total > slot->rows && slot->state == TESSERA_CLONING)
		appendStringInfo(&text, ", about %.0f s left", seconds / slot->rows * (slot->rows_total - slot->rows));
	if (slot->waiting_for[0] != '\0')
		appendStringInfo(&text, "; waiting for %s", slot->waiting_for);
	/* a client's text in it, such as a prepared transaction's name, may have no counterpart in the caller's encoding */
	for (char *c = text.data; *c != '\0'; c++)
		if (IS_HIGHBIT_SET(*c))
			*c = '?';
	return text.data;
}

/* State: running, committed, aborted; unknown: this donor has no process for it (any more) */
void
tessera_serve_wait_migration(const TesseraWaitMigrationArgs *args, TesseraWaitMigrationResult *result)
{
	TesseraMigrationSlot slot;
	const char *state = tessera_migration_result_text(TESSERA_RESULT_NONE);

	if (!tessera_migration_slot_wait(TESSERA_DONOR, args->migration_id, args->timeout_ms, &slot))
	{
		memset(&slot, 0, sizeof(slot));
		state = "unknown";
	}
	else if (tessera_migration_slot_live(&slot) && !(slot.decided != 0 && TimestampDifferenceExceeds(slot.decided, GetCurrentTimestamp(), LINGER_MS)))
		state = tessera_migration_result_text(TESSERA_RESULT_NONE);
	else if (slot.result == TESSERA_RESULT_NONE)
		state = "unknown";
	else
		state = tessera_migration_result_text(slot.result);
	result->state = state;
	result->sqlstate = slot_text(slot.sqlstate);
	result->message = slot_text(slot.message);
	result->detail = slot_text(slot.detail);
	result->hint = slot_text(slot.hint);
	if (strcmp(state, tessera_migration_result_text(TESSERA_RESULT_NONE)) == 0)
		result->detail = progress_text(&slot);
}

/* True if its process was asked to end; by: the statement it makes way for, or NULL. */
bool
tessera_serve_cancel_migration(const TesseraCancelMigrationArgs *args)
{
	return tessera_migration_slot_cancel(TESSERA_DONOR, args->migration_id, args->by);
}

/* True if this donor has a row or a process of it */
bool
tessera_serve_knows_migration(const TesseraKnowsMigrationArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	TesseraMigrationSlot slot;

	return (tessera_migration_slot_find(TESSERA_DONOR, id, NULL, &slot) && tessera_migration_slot_live(&slot)) ||
				   tessera_migration_row(TESSERA_DONOR, id, false) != NULL;
}


/* Recipient */

/* A group that a request names is fetched if it, or one of its tables, is not known here: now, as nothing is locked yet. */
static void
fetch_groups(const char *request)
{
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *ids;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT DISTINCT r.group_id FROM unnest(tessera_internal.request_ranges($1::jsonb)) AS r", SPI_OK_SELECT, 1,
						(Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(request)}, NULL);
	ids = MemoryContextAlloc(caller, sizeof(pg_uuid_t) * n);
	for (uint64 i = 0; i < n; i++)
		ids[i] = *DatumGetUUIDP(spi_row_value(i, 1));
	tessera_spi_end(&spi);
	for (uint64 i = 0; i < n; i++)
	{
		const TesseraGroup *group;

		(void) tessera_background_group(&ids[i], &group);
	}
	if (!tessera_tables_known(request))
		(void) tessera_routing_refresh(REFRESH_MS);
}

/* Checks; the row; the public key of this side. */
const char *
tessera_serve_prepare_recipient(const TesseraPrepareRecipientArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	char	   *request = jsonb_text(JsonbPGetDatum(args->request));
	TesseraMigrationRow *row;
	TesseraExchangeKeys keys;
	bool		existing;
	int			slot;

	require_placements();
	tessera_commit_durably();
	fetch_groups(request);
	if (!tessera_migration_row_insert(TESSERA_RECIPIENT, id, request, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration %s is already known on this node", tessera_uuid_text(id))));
	row = row_or_error(TESSERA_RECIPIENT, id);
	tessera_placement_require_free(row);
	tessera_compare_tables(request);
	tessera_check_tables(tessera_moving_ranges(id, row->nranges, row->ranges), false);

	tessera_exchange_make_keys(&keys);
	slot = tessera_migration_slot_reserve(TESSERA_RECIPIENT, id, &row->ranges[0].group_id, &existing);
	if (existing)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration %s is already received on this node", tessera_uuid_text(id))));
	tessera_migration_slot_set_keys(slot, &keys);
	explicit_bzero(keys.secret_key, sizeof(keys.secret_key));
	tessera_injection("recipient_noted");
	return pstrdup(keys.public_key);
}

void
tessera_serve_start_recipient(const TesseraStartRecipientArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	TesseraMigrationSlot copy;
	int			slot;

	(void) row_or_error(TESSERA_RECIPIENT, id);
	if (!tessera_migration_slot_find(TESSERA_RECIPIENT, id, &slot, &copy) || copy.use != TESSERA_SLOT_RESERVED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s was not prepared on this node", tessera_uuid_text(id))));
	tessera_migration_slot_set_peer(slot, args->endpoint, args->donor_key);
	tessera_migration_slot_start_worker(slot, copy.generation);
	/* the donor will tell the outcome to this session, behind its closed gates */
	tessera_placement_plan();
	tessera_migration_row_plan(TESSERA_RECIPIENT);
}

/* State null: it is not known */
void
tessera_serve_recipient_status(const TesseraRecipientStatusArgs *args, TesseraRecipientStatusResult *result)
{
	TesseraMigrationSlot slot;
	char		who[TESSERA_BURDEN_TEXT];

	result->live_null = true;
	if (!tessera_migration_slot_find(TESSERA_RECIPIENT, args->migration_id, NULL, &slot))
		return;
	result->burden = tessera_shard_burden(who);
	result->burden_text = slot_text(who);
	result->live_null = false;
	result->live = tessera_migration_slot_live(&slot);
	result->state = tessera_migration_state_name(slot.state);
	result->rows = slot.rows;
	result->mods = slot.mods;
	result->sqlstate = slot_text(slot.sqlstate);
	result->message = slot_text(slot.message);
	result->detail = slot_text(slot.detail);
	result->hint = slot_text(slot.hint);
	result->waiting_for = slot_text(slot.waiting_for);
}

/*
 * The donor has opened its gate again. It has told the worker, too; but if that stands still,
 * the gate here would stay closed. The next step of the worker finds that the attempt is over.
 */
void
tessera_serve_take_back(const TesseraTakeBackArgs *args)
{
	TesseraMigrationRow *row = tessera_migration_row(TESSERA_RECIPIENT, args->migration_id, false);

	require_placements();
	tessera_commit_durably();
	if (row != NULL)
		tessera_placement_undo_confirmation(row, args->attempt);
}

/* The migration whose outcome the current transaction carries out: once that is committed, the recipient's worker may end. */
static pg_uuid_t completing;
static bool is_completing = false;

void
tessera_migration_control_committed(void)
{
	if (is_completing)
		tessera_migration_slot_completed(&completing);
	is_completing = false;
}

void
tessera_migration_control_forget(void)
{
	is_completing = false;
}

/*
 * Carries an outcome out here. Again: nothing.
 * lazily: need not be flushed, it will be told again; without, everything told before is durable when this is.
 */
void
tessera_serve_release_recipient(const TesseraReleaseRecipientArgs *args)
{
	pg_uuid_t  *id = args->migration_id;
	TesseraMigrationResult outcome = tessera_migration_result_of(args->outcome);
	bool		committed = outcome == TESSERA_RESULT_COMMITTED;

	if (outcome == TESSERA_RESULT_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a migration that has not ended has no outcome")));
	require_placements();
	if (args->lazily)
		tessera_background_commit_lazily();
	else
		tessera_commit_all_durably();
	if (!committed)
		(void) tessera_migration_slot_cancel(TESSERA_RECIPIENT, id, NULL);
	tessera_outcome_complete_recipient(id, committed, args->majors, args->term);
	tessera_injection(committed ? "recipient_releasing" : "recipient_discarding");

	completing = *id;
	is_completing = true;
}


/* Views */

/*
 * internal_migration_slots(OUT pid int4, OUT migration_id uuid, OUT side text, OUT phase text, OUT rows int8, OUT bytes int8, OUT mods int8,
 * OUT backlog int8, OUT lag_ms float8, OUT gate_attempts int4, OUT pause_ms float8, OUT waiting_for text, OUT started timestamptz, OUT memory int8,
 * OUT memory_peak int8, OUT rows_total int8): those that run.
 */
Datum
tessera_internal_migration_slots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < TESSERA_MIGRATION_SLOTS; i++)
	{
		TesseraMigrationSlot slot;
		Datum		values[16];
		bool		nulls[16] = {false};

		tessera_migration_slot_copy(i, &slot);
		if (slot.use != TESSERA_SLOT_RUNNING || slot.database != MyDatabaseId)
			continue;
		values[0] = Int32GetDatum(slot.pid);
		values[1] = UUIDPGetDatum(&slot.migration_id);
		values[2] = CStringGetTextDatum(slot.side == TESSERA_DONOR ? "donor" : "recipient");
		values[3] = CStringGetTextDatum(tessera_migration_state_name(slot.state));
		values[4] = Int64GetDatum(slot.rows);
		values[5] = Int64GetDatum(slot.bytes);
		values[6] = Int64GetDatum(slot.mods);
		values[7] = Int64GetDatum((int64) slot.backlog);
		values[8] = Float8GetDatum(slot.lag_ms);
		nulls[8] = slot.lag_ms < 0;
		values[9] = Int32GetDatum(slot.gate_attempts);
		values[10] = Float8GetDatum(slot.pause_ms);
		nulls[10] = slot.pause_ms <= 0;
		nulls[11] = slot.waiting_for[0] == '\0';
		values[11] = CStringGetTextDatum(slot.waiting_for);
		values[12] = TimestampTzGetDatum(slot.started);
		values[13] = Int64GetDatum(slot.memory);
		values[14] = Int64GetDatum(slot.memory_peak);
		values[15] = Int64GetDatum(slot.rows_total);
		nulls[15] = slot.rows_total < 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
