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
#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
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
#include "common/text.h"
#include "common/worker_registry.h"
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

PG_FUNCTION_INFO_V1(tessera_internal_donate);
PG_FUNCTION_INFO_V1(tessera_internal_start_donor);
PG_FUNCTION_INFO_V1(tessera_internal_wait_migration);
PG_FUNCTION_INFO_V1(tessera_internal_cancel_migration);
PG_FUNCTION_INFO_V1(tessera_internal_knows_migration);
PG_FUNCTION_INFO_V1(tessera_internal_prepare_recipient);
PG_FUNCTION_INFO_V1(tessera_internal_start_recipient);
PG_FUNCTION_INFO_V1(tessera_internal_recipient_status);
PG_FUNCTION_INFO_V1(tessera_internal_take_back);
PG_FUNCTION_INFO_V1(tessera_internal_release_recipient);
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

static Datum
record_of(FunctionCallInfo fcinfo, int n, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != n)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

static void
put_text(Datum *values, bool *nulls, int i, const char *text)
{
	nulls[i] = text == NULL || text[0] == '\0';
	if (!nulls[i])
		values[i] = CStringGetTextDatum(text);
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

/* internal_donate(migration_id uuid, request jsonb): the coordinator row. Again: nothing. */
Datum
tessera_internal_donate(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
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
		PG_RETURN_VOID();
	offer(slot);
	PG_TRY();
	{
		/* if it is there already, without a process, it is recovery's */
		if (!tessera_migration_row_insert(TESSERA_DONOR, id, jsonb_text(PG_GETARG_DATUM(1)), name.data))
			end_offer(true);
		tessera_injection("donor_noted");
	}
	PG_CATCH();
	{
		end_offer(true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

/*
 * internal_start_donor(migration_id uuid): starts the worker of a reserved slot; nothing if it runs, or has run, or if its row is not committed: then
 * the session that is writing the row starts it.
 */
Datum
tessera_internal_start_donor(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	TesseraMigrationSlot copy;
	int			slot;

	if (!tessera_migration_slot_find(TESSERA_DONOR, id, &slot, &copy) || copy.use != TESSERA_SLOT_RESERVED ||
		tessera_migration_row(TESSERA_DONOR, id, false) == NULL)
		PG_RETURN_VOID();
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
	PG_RETURN_VOID();
}

/*
 * internal_wait_migration(migration_id uuid, timeout_ms int4, OUT state text, OUT sqlstate text, OUT message text, OUT detail text, OUT hint text)
 * state: running, committed, aborted; unknown: this donor has no process for it (any more).
 */
Datum
tessera_internal_wait_migration(PG_FUNCTION_ARGS)
{
	TesseraMigrationSlot slot;
	Datum		values[5];
	bool		nulls[5] = {false};
	const char *state = tessera_migration_result_text(TESSERA_RESULT_NONE);

	if (!tessera_migration_slot_wait(TESSERA_DONOR, PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), &slot))
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
	put_text(values, nulls, 0, state);
	put_text(values, nulls, 1, slot.sqlstate);
	put_text(values, nulls, 2, slot.message);
	put_text(values, nulls, 3, slot.detail);
	put_text(values, nulls, 4, slot.hint);
	return record_of(fcinfo, 5, values, nulls);
}

/*
 * internal_cancel_migration(migration_id uuid, by text) returns bool: true if its process was asked to end; by: the statement it makes way for, or
 * null.
 */
Datum
tessera_internal_cancel_migration(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(tessera_migration_slot_cancel(TESSERA_DONOR, PG_GETARG_UUID_P(0), PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1))));
}

/* internal_knows_migration(migration_id uuid) returns bool: true if this donor has a row or a process of it */
Datum
tessera_internal_knows_migration(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	TesseraMigrationSlot slot;

	PG_RETURN_BOOL((tessera_migration_slot_find(TESSERA_DONOR, id, NULL, &slot) && tessera_migration_slot_live(&slot)) ||
				   tessera_migration_row(TESSERA_DONOR, id, false) != NULL);
}


/* Recipient */

/* The group that a request names is fetched if it, or one of its tables, is not known here: now, as nothing is locked yet. */
static void
fetch_group(Datum request, const char *json)
{
	JsonbValue	value;
	const TesseraGroup *group;
	char	   *id;

	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(request)) ||
		getKeyJsonValueFromContainer(&DatumGetJsonbP(request)->root, "group_id", strlen("group_id"), &value) == NULL || value.type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the request names no table group")));
	id = pnstrdup(value.val.string.val, value.val.string.len);
	(void) tessera_background_group(DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(id))), &group);
	if (!tessera_tables_known(json))
		(void) tessera_routing_refresh(REFRESH_MS);
}

/* internal_prepare_recipient(migration_id uuid, request jsonb) returns text: checks; the row; the public key of this side. */
Datum
tessera_internal_prepare_recipient(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	char	   *request = jsonb_text(PG_GETARG_DATUM(1));
	TesseraMigrationRow *row;
	TesseraExchangeKeys keys;
	bool		existing;
	int			slot;

	require_placements();
	tessera_commit_durably();
	fetch_group(PG_GETARG_DATUM(1), request);
	if (!tessera_migration_row_insert(TESSERA_RECIPIENT, id, request, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration %s is already known on this node", tessera_uuid_text(id))));
	row = row_or_error(TESSERA_RECIPIENT, id);
	tessera_placement_require_free(row);
	tessera_compare_tables(request);
	tessera_check_tables(tessera_moving_ranges(id, 1, &(TesseraOperationRange) {row->group_id, row->epoch, row->range}), false);

	tessera_exchange_make_keys(&keys);
	slot = tessera_migration_slot_reserve(TESSERA_RECIPIENT, id, &row->group_id, &existing);
	if (existing)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migration %s is already received on this node", tessera_uuid_text(id))));
	tessera_migration_slot_set_keys(slot, &keys);
	explicit_bzero(keys.secret_key, sizeof(keys.secret_key));
	tessera_injection("recipient_noted");
	PG_RETURN_TEXT_P(cstring_to_text(keys.public_key));
}

/* internal_start_recipient(migration_id uuid, endpoint text, donor_key text) */
Datum
tessera_internal_start_recipient(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	TesseraMigrationSlot copy;
	int			slot;

	(void) row_or_error(TESSERA_RECIPIENT, id);
	if (!tessera_migration_slot_find(TESSERA_RECIPIENT, id, &slot, &copy) || copy.use != TESSERA_SLOT_RESERVED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("migration %s was not prepared on this node", tessera_uuid_text(id))));
	tessera_migration_slot_set_peer(slot, text_to_cstring(PG_GETARG_TEXT_PP(1)), text_to_cstring(PG_GETARG_TEXT_PP(2)));
	tessera_migration_slot_start_worker(slot, copy.generation);
	/* the donor will tell the outcome to this session, behind its closed gates */
	tessera_placement_plan();
	tessera_migration_row_plan(TESSERA_RECIPIENT);
	PG_RETURN_VOID();
}

/*
 * internal_recipient_status(migration_id uuid, OUT live bool, OUT state text, OUT rows int8, OUT mods int8, OUT sqlstate text, OUT message text,
 * OUT detail text, OUT hint text, OUT waiting_for text); all null if it is not known.
 */
Datum
tessera_internal_recipient_status(PG_FUNCTION_ARGS)
{
	TesseraMigrationSlot slot;
	Datum		values[9] = {0};
	bool		nulls[9];

	memset(nulls, true, sizeof(nulls));
	if (tessera_migration_slot_find(TESSERA_RECIPIENT, PG_GETARG_UUID_P(0), NULL, &slot))
	{
		nulls[0] = nulls[2] = nulls[3] = false;
		values[0] = BoolGetDatum(tessera_migration_slot_live(&slot));
		put_text(values, nulls, 1, tessera_migration_state_name(slot.state));
		values[2] = Int64GetDatum(slot.rows);
		values[3] = Int64GetDatum(slot.mods);
		put_text(values, nulls, 4, slot.sqlstate);
		put_text(values, nulls, 5, slot.message);
		put_text(values, nulls, 6, slot.detail);
		put_text(values, nulls, 7, slot.hint);
		put_text(values, nulls, 8, slot.waiting_for);
	}
	return record_of(fcinfo, 9, values, nulls);
}

/*
 * internal_take_back(migration_id uuid, attempt pg_lsn): the donor has opened its gate again. It has told the worker, too; but if that stands still,
 * the gate here would stay closed. The next step of the worker finds that the attempt is over.
 */
Datum
tessera_internal_take_back(PG_FUNCTION_ARGS)
{
	TesseraMigrationRow *row = tessera_migration_row(TESSERA_RECIPIENT, PG_GETARG_UUID_P(0), false);

	require_placements();
	tessera_commit_durably();
	if (row != NULL)
		tessera_placement_undo_confirmation(row, PG_GETARG_LSN(1));
	PG_RETURN_VOID();
}

/* The migration whose outcome the current transaction carries out: once that is committed, the recipient's worker may end. */
static pg_uuid_t completing;
static bool is_completing = false;

static void
completed_at_commit(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (is_completing && event == XACT_EVENT_COMMIT)
		tessera_migration_slot_completed(&completing);
	is_completing = false;
}

void
tessera_migration_control_init(void)
{
	RegisterXactCallback(completed_at_commit, NULL);
}

/*
 * internal_release_recipient(migration_id uuid, outcome text, major int8, term int8, lazily bool): carries an outcome out here. Again: nothing.
 * lazily: need not be flushed, it will be told again; without, everything told before is durable when this is.
 */
Datum
tessera_internal_release_recipient(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	TesseraMigrationResult outcome = tessera_migration_result_of(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	bool		committed = outcome == TESSERA_RESULT_COMMITTED;

	if (outcome == TESSERA_RESULT_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a migration that has not ended has no outcome")));
	require_placements();
	if (PG_GETARG_BOOL(4))
		tessera_background_commit_lazily();
	else
		tessera_commit_all_durably();
	if (!committed)
		(void) tessera_migration_slot_cancel(TESSERA_RECIPIENT, id, NULL);
	tessera_outcome_complete_recipient(id, committed, PG_GETARG_INT64(2), PG_GETARG_INT64(3));
	tessera_injection(committed ? "recipient_releasing" : "recipient_discarding");

	completing = *id;
	is_completing = true;
	PG_RETURN_VOID();
}


/* Views */

/*
 * internal_migration_slots(OUT pid int4, OUT migration_id uuid, OUT side text, OUT phase text, OUT rows int8, OUT bytes int8, OUT mods int8,
 * OUT backlog int8, OUT lag_ms float8, OUT gate_attempts int4, OUT pause_ms float8, OUT waiting_for text, OUT started timestamptz, OUT memory int8,
 * OUT memory_peak int8): those that run.
 */
Datum
tessera_internal_migration_slots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < TESSERA_MIGRATION_SLOTS; i++)
	{
		TesseraMigrationSlot slot;
		Datum		values[15];
		bool		nulls[15] = {false};

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
		put_text(values, nulls, 11, slot.waiting_for);
		values[12] = TimestampTzGetDatum(slot.started);
		values[13] = Int64GetDatum(slot.memory);
		values[14] = Int64GetDatum(slot.memory_peak);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
