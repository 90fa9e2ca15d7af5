/*
 * migration_row.c
 *	  The local rows of migrations; see migration_row.h.
 *
 * A writer of a migration's placement locks the placement row first and this row after it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "catalog/migration_row.h"
#include "common/spi_row.h"
#include "common/text.h"

/* Both tables, alike but for a few names. */
static const char *const insert_sql[] = {
	[TESSERA_DONOR] = "INSERT INTO tessera.migration_coordinator (migration_id, ranges, recipient, slot, phase, request)"
	" SELECT $1, tessera_internal.request_ranges(r), (r->>'recipient')::int4, $3, $4, r FROM (SELECT $2::jsonb AS r) AS q ON CONFLICT DO NOTHING",
	[TESSERA_RECIPIENT] = "INSERT INTO tessera.migration_recipient (migration_id, ranges, donor, state, request)"
	" SELECT $1, tessera_internal.request_ranges(r), (r->>'donor')::int4, $4, r FROM (SELECT $2::jsonb AS r, $3::name AS slot) AS q"
	" ON CONFLICT DO NOTHING",
};

/* A row for each range, in order. */
#define SELECT_ROW(peer, state, decision, slot, table) \
	"SELECT r.group_id, r.epoch, r.min, r.max, (m.request->>'term')::int8, (m.request->>'donor_incarnation')::int4," \
	" (m.request->>'recipient_incarnation')::int4, m.request::text, coalesce((m.request->>'verify')::bool, false), " peer ", " state ", " decision \
	", " slot ", coalesce((m.request->>'yields')::bool, false), coalesce((m.request->>'share')::float8, -1)" \
	" FROM " table " AS m, unnest(m.ranges) WITH ORDINALITY AS r (group_id, epoch, min, max, n) WHERE m.migration_id = $1 ORDER BY r.n"
#define SELECT_DONATED SELECT_ROW("m.recipient", "m.phase", "m.decision", "m.slot::text", "tessera.migration_coordinator")
#define SELECT_RECEIVED SELECT_ROW("m.donor", "m.state", "NULL::text", "NULL::text", "tessera.migration_recipient")

static const char *const select_sql[] = {
	[TESSERA_DONOR] = SELECT_DONATED,
	[TESSERA_RECIPIENT] = SELECT_RECEIVED,
};

static const char *const select_lock_sql[] = {
	[TESSERA_DONOR] = SELECT_DONATED " FOR UPDATE OF m",
	[TESSERA_RECIPIENT] = SELECT_RECEIVED " FOR UPDATE OF m",
};

/* $4, and the deletion's $2: the states from which the table of transitions allows it. */
static const char *const update_sql[] = {
	[TESSERA_DONOR] = "UPDATE tessera.migration_coordinator SET phase = $2, decision = coalesce($3, decision)"
	" WHERE migration_id = $1 AND phase = ANY ($4)",
	[TESSERA_RECIPIENT] = "UPDATE tessera.migration_recipient SET state = $2 WHERE migration_id = $1 AND $3::text IS NULL AND state = ANY ($4)",
};

static const char *const delete_sql[] = {
	[TESSERA_DONOR] = "DELETE FROM tessera.migration_coordinator WHERE migration_id = $1 AND phase = ANY ($2)",
	[TESSERA_RECIPIENT] = "DELETE FROM tessera.migration_recipient WHERE migration_id = $1 AND state = ANY ($2)",
};

static const char *const ids_sql[] = {
	[TESSERA_DONOR] = "SELECT migration_id FROM tessera.migration_coordinator ORDER BY created",
	[TESSERA_RECIPIENT] = "SELECT migration_id FROM tessera.migration_recipient ORDER BY created",
};


static const Oid select_types[] = {UUIDOID};
static const Oid update_types[] = {UUIDOID, TEXTOID, TEXTOID, TEXTARRAYOID};
static const Oid delete_types[] = {UUIDOID, TEXTARRAYOID};


bool
tessera_migration_row_insert(TesseraMigrationSide side, const pg_uuid_t *migration_id, const char *request, const char *slot)
{
	TesseraMigrationState first = side == TESSERA_DONOR ? TESSERA_REGISTERED : TESSERA_PREPARED;
	TesseraSpi	spi;
	uint64		n;

	tessera_migration_check_transition(side, TESSERA_IN_ROW, TESSERA_NONE, first);
	tessera_spi_begin(&spi);
	n = tessera_spi_run(insert_sql[side], SPI_OK_INSERT, 4, (Oid[]) {UUIDOID, TEXTOID, NAMEOID, TEXTOID},
						(Datum[]) {UUIDPGetDatum(migration_id), CStringGetTextDatum(request),
		slot ? DirectFunctionCall1(namein, CStringGetDatum(slot)) : (Datum) 0,
		CStringGetTextDatum(tessera_migration_state_name(first))},
						(bool[]) {false, false, slot == NULL, false});
	tessera_spi_end(&spi);
	return n == 1;
}

/* The range whose min and max are in a column of the answer and in the next; its bounds are copied into the current context. */
static TesseraRange
range_of_columns(int row, int column)
{
	return (TesseraRange) {
		.min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(row, column)),
		.max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(row, column + 1))
	};
}

TesseraMigrationRow *
tessera_migration_row(TesseraMigrationSide side, const pg_uuid_t *migration_id, bool lock)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraMigrationRow *row = NULL;
	TesseraSpi	spi;
	int			n;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run_saved(lock ? select_lock_sql[side] : select_sql[side], SPI_OK_SELECT, 1, select_types,
							  (Datum[]) {UUIDPGetDatum(migration_id)}, NULL);
	if (n > 0)
	{
		MemoryContext own = MemoryContextSwitchTo(caller);

		row = palloc0(sizeof(TesseraMigrationRow));
		row->migration_id = *migration_id;
		row->ranges = palloc(sizeof(TesseraOperationRange) * n);
		for (row->nranges = 0; row->nranges < n; row->nranges++)
			row->ranges[row->nranges] = (TesseraOperationRange) {
				.group_id = *DatumGetUUIDP(spi_row_value(row->nranges, 1)), .epoch = *DatumGetUUIDP(spi_row_value(row->nranges, 2)),
				.range = range_of_columns(row->nranges, 3)
			};
		row->term = DatumGetInt64(spi_row_value(0, 5));
		row->donor_incarnation = DatumGetInt32(spi_row_value(0, 6));
		row->recipient_incarnation = DatumGetInt32(spi_row_value(0, 7));
		row->request = spi_row_text(0, 8);
		row->verify = DatumGetBool(spi_row_value(0, 9));
		row->peer = DatumGetInt32(spi_row_value(0, 10));
		row->state = tessera_migration_state_of(spi_row_text(0, 11));
		row->decision = tessera_migration_result_of(spi_row_text(0, 12));
		row->slot = spi_row_text(0, 13);
		row->yields = DatumGetBool(spi_row_value(0, 14));
		row->share = DatumGetFloat8(spi_row_value(0, 15));
		MemoryContextSwitchTo(own);
	}
	tessera_spi_end(&spi);
	return row;
}

bool
tessera_migration_row_has_group(const TesseraMigrationRow *row, const pg_uuid_t *group_id)
{
	for (int i = 0; i < row->nranges; i++)
		if (memcmp(&row->ranges[i].group_id, group_id, sizeof(pg_uuid_t)) == 0)
			return true;
	return false;
}

const int64 *
tessera_migration_majors(const TesseraMigrationRow *row, ArrayType *array)
{
	Datum	   *elements;
	int64	   *majors;
	int			n;
	int			groups = 0;

	for (int i = 0; i < row->nranges; i = tessera_next_group(row, i))
		groups++;
	deconstruct_array(array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &elements, NULL, &n);
	if (n != groups)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("migration %s moves ranges of %d table groups, but was decided with %d versions", tessera_uuid_text(&row->migration_id),
						groups, n)));
	majors = palloc(sizeof(int64) * n);
	for (int i = 0; i < n; i++)
		majors[i] = DatumGetInt64(elements[i]);
	return majors;
}

ArrayType *
tessera_majors_of_text(const char *text)
{
	return DatumGetArrayTypeP(OidInputFunctionCall(F_ARRAY_IN, unconstify(char *, text), INT8OID, -1));
}

/* A change to this state has found no row: ERROR XX000 if that is because of the state of the row; false: there is none. */
static bool
check_row(TesseraMigrationSide side, const pg_uuid_t *migration_id, TesseraMigrationState to)
{
	TesseraMigrationRow *row = tessera_migration_row(side, migration_id, true);

	if (row != NULL)
		tessera_migration_check_transition(side, TESSERA_IN_ROW, row->state, to);
	return row != NULL;
}

void
tessera_migration_row_set(TesseraMigrationSide side, const pg_uuid_t *migration_id, TesseraMigrationState state, TesseraMigrationResult decision)
{
	bool		decided = decision != TESSERA_RESULT_NONE;
	uint64		n;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	n = tessera_spi_run_saved(update_sql[side], SPI_OK_UPDATE, 4, update_types,
							  (Datum[]) {UUIDPGetDatum(migration_id), CStringGetTextDatum(tessera_migration_state_name(state)),
		decided ? CStringGetTextDatum(tessera_migration_result_text(decision)) : (Datum) 0, tessera_migration_states_before(side, state)},
						(bool[]) {false, false, !decided, false});
	tessera_spi_end(&spi);
	if (n != 1 && !check_row(side, migration_id, state))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the migration's row is gone: it was ended by another process")));
}

void
tessera_migration_row_delete(TesseraMigrationSide side, const pg_uuid_t *migration_id, TesseraMigrationState state)
{
	uint64		n;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	n = tessera_spi_run_saved(delete_sql[side], SPI_OK_DELETE, 2, delete_types,
							  (Datum[]) {UUIDPGetDatum(migration_id), tessera_migration_states_before(side, state)}, NULL);
	tessera_spi_end(&spi);
	if (n != 1)
		(void) check_row(side, migration_id, state);
}

void
tessera_migration_row_plan(TesseraMigrationSide side)
{
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_plan(select_sql[side], lengthof(select_types), select_types);
	tessera_spi_plan(select_lock_sql[side], lengthof(select_types), select_types);
	tessera_spi_plan(update_sql[side], lengthof(update_types), update_types);
	tessera_spi_plan(delete_sql[side], lengthof(delete_types), delete_types);
	tessera_spi_end(&spi);
}

pg_uuid_t *
tessera_migration_row_ids(TesseraMigrationSide side, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *ids;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run(ids_sql[side], SPI_OK_SELECT, 0, NULL, NULL, NULL);
	ids = MemoryContextAlloc(caller, sizeof(pg_uuid_t) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
		ids[i] = *DatumGetUUIDP(spi_row_value(i, 1));
	tessera_spi_end(&spi);
	return ids;
}

/* Rows min, max, migration_id of a query, in the context `caller`; ids may be NULL. Between tessera_spi_begin and _end. */
static TesseraRange *
ranges_of_rows(int n, pg_uuid_t **ids, MemoryContext caller)
{
	MemoryContext own = MemoryContextSwitchTo(caller);
	TesseraRange *ranges = palloc(sizeof(TesseraRange) * Max(n, 1));

	if (ids)
		*ids = palloc(sizeof(pg_uuid_t) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		ranges[i] = range_of_columns(i, 1);
		if (ids)
			(*ids)[i] = *DatumGetUUIDP(spi_row_value(i, 3));
	}
	MemoryContextSwitchTo(own);
	return ranges;
}

TesseraRange *
tessera_received_ranges(const pg_uuid_t *group_id, const pg_uuid_t *except, pg_uuid_t **ids, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraRange *ranges;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT r.min, r.max, m.migration_id FROM tessera.migration_recipient AS m, unnest(m.ranges) AS r"
							   " WHERE r.group_id = $1 AND m.migration_id IS DISTINCT FROM $2", SPI_OK_SELECT, 2, (Oid[]) {UUIDOID, UUIDOID},
							   (Datum[]) {UUIDPGetDatum(group_id), UUIDPGetDatum(except)}, (bool[]) {false, except == NULL});
	ranges = ranges_of_rows(*n, ids, caller);
	tessera_spi_end(&spi);
	return ranges;
}

TesseraRange *
tessera_donated_ranges(const pg_uuid_t *group_id, int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraRange *ranges;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	*n = (int) tessera_spi_run("SELECT r.min, r.max FROM tessera.migration_coordinator AS m, unnest(m.ranges) AS r WHERE r.group_id = $1",
							   SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(group_id)}, NULL);
	ranges = ranges_of_rows(*n, NULL, caller);
	tessera_spi_end(&spi);
	return ranges;
}
