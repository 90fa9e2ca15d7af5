/*
 * session_tables.c
 *	  SQL on the tables of logical sessions; see session_tables.h.
 *
 * The statements are routed as a client's are. A session is taken by the lock of its row: the UPDATE that moves its number waits for the transaction
 * that has done the same, on whatever node, also for one that is prepared. Whether that has left a record is looked for by a statement of its own
 * after the wait: it must see what was committed meanwhile.
 *
 * Nothing here may commit by itself on its shard: the nesting level says that there is a statement around it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/syscache.h"
#include "utils/uuid.h"

#include "common/errors.h"
#include "common/fixed_settings.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "logical_session/numbering.h"
#include "logical_session/session_tables.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"
#include "transaction/resolver.h"

#define SCHEMA "tessera_session"
#define OWNER "tessera_internal"

PG_FUNCTION_INFO_V1(tessera_enable_sessions);

/* One use of the tables: what is asked for, and what came of it. */
typedef struct Use
{
	void		(*run) (struct Use *use);
	const pg_uuid_t *session;
	int64		number;
	int			statement;
	bool		first;
	bool		anybodys;
	const char *user;			/* name of the client's role: no function's owner */
	int			limit;
	TimestampTz since;
	int			n;
	const TesseraSessionUser *users;
	const TesseraLastUse *last_uses;
	bool	   *somebody_has;
	TesseraSessionRecord *record;
	TesseraSessionRow *rows;	/* NULL: to be made */
	MemoryContext context;		/* the caller's */
	/* results */
	int64		before;
	bool		found;
	uint64		changed;
	TesseraOutcome outcome;
	List	   *digits;			/* of the transactions of the records */
} Use;

/* A plain table of the cluster's role: what anybody else has put there is not to be run as that role. */
static bool
is_ours(Oid schema, const char *name, Oid owner)
{
	HeapTuple	tuple = SearchSysCache2(RELNAMENSP, CStringGetDatum(name), ObjectIdGetDatum(schema));
	Form_pg_class form;
	bool		ours;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	ours = form->relkind == RELKIND_RELATION && form->relowner == owner;
	ReleaseSysCache(tuple);
	return ours;
}

static Oid
owner_of_schema(Oid schema)
{
	HeapTuple	tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	ReleaseSysCache(tuple);
	return owner;
}

bool
tessera_sessions_enabled(void)
{
	Oid			schema = get_namespace_oid(SCHEMA, true);
	Oid			owner = get_role_oid(OWNER, true);

	return OidIsValid(schema) && OidIsValid(owner) && owner_of_schema(schema) == owner && is_ours(schema, "session", owner) &&
		is_ours(schema, "record", owner);
}

/* As the owner of the tables, two levels below any statement of the client: nothing commits by itself there. */
static void
use_tables(Use *use)
{
	TesseraSpi	spi;

	if (!tessera_sessions_enabled())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this cluster has no sessions"),
				 errhint("A superuser calls tessera.enable_sessions() once, on any node.")));
	use->user = GetUserNameFromId(GetOuterUserId(), false);
	use->context = CurrentMemoryContext;
	tessera_nesting_enter();
	tessera_nesting_enter();
	PG_TRY();
	{
		/* nobody's code: fixed texts on tables that have neither triggers nor expressions */
		tessera_spi_begin_as(&spi, get_role_oid(OWNER, false));
		use->run(use);
		tessera_spi_end(&spi);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
		tessera_nesting_leave();
	}
	PG_END_TRY();
}

static void
raise_unknown(const pg_uuid_t *session)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_ANSWER_LOST),
			 errmsg("session %s does not exist or has ended", tessera_uuid_text(session)),
			 errdetail("What was done under its numbers is not known any more."),
			 errhint("Begin another one with tessera.start_session(), after finding out what the last statement has done.")));
}

/* ---- sessions ---- */

static void
run_create(Use *use)
{
	if (tessera_max_sessions_per_role > 0)
	{
		Datum		values[2] = {CStringGetDatum(use->user), Int32GetDatum(tessera_max_sessions_per_role)};

		values[0] = DirectFunctionCall1(namein, values[0]);
		(void) tessera_spi_run_saved("SELECT count(*) FROM (SELECT FROM tessera_session.session AS s WHERE s.role = $1 LIMIT $2) AS counted",
									 SPI_OK_SELECT, 2, (Oid[]) {NAMEOID, INT4OID}, values, NULL);
		if (DatumGetInt64(spi_row_value(0, 1)) >= tessera_max_sessions_per_role)
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("role \"%s\" has %d sessions, as many as it may have", use->user, tessera_max_sessions_per_role),
					 errhint("End those that are not needed with tessera.end_session(), or raise tessera.max_sessions_per_role.")));
	}
	(void) tessera_spi_run_saved("INSERT INTO tessera_session.session (id, role, started, last_use) VALUES ($1, $2, $3, $3)",
								 SPI_OK_INSERT, 3, (Oid[]) {UUIDOID, NAMEOID, TIMESTAMPTZOID},
								 (Datum[]) {UUIDPGetDatum(use->session), DirectFunctionCall1(namein, CStringGetDatum(use->user)),
											TimestampTzGetDatum(GetCurrentTimestamp())},
								 NULL);
}

void
tessera_session_create(const pg_uuid_t *session)
{
	Use			use = {.run = run_create,.session = session};

	use_tables(&use);
}

static void
run_check_out(Use *use)
{
	static const char *const sql =
		"UPDATE tessera_session.session SET previous = number, number = greatest(number, $2), last_use = greatest(last_use, $4) "
		"WHERE id = $1 AND role = $3 RETURNING previous, refused";
	int64		refused;

	if (tessera_spi_run_saved(sql, SPI_OK_UPDATE_RETURNING, 4, (Oid[]) {UUIDOID, INT8OID, NAMEOID, TIMESTAMPTZOID},
							  (Datum[]) {UUIDPGetDatum(use->session), Int64GetDatum(use->number),
										 DirectFunctionCall1(namein, CStringGetDatum(use->user)), TimestampTzGetDatum(GetCurrentTimestamp())},
							  NULL) == 0)
		raise_unknown(use->session);
	use->before = DatumGetInt64(spi_row_value(0, 1));
	refused = DatumGetInt64(spi_row_value(0, 2));
	if (use->number < use->before)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transaction number " INT64_FORMAT " is older than " INT64_FORMAT ", the last one of the session", use->number, use->before),
				 errhint("Each transaction has a higher number than the one before; only the last one can be repeated.")));
	if (use->number <= refused)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("transaction number " INT64_FORMAT " was given up", use->number),
				 errdetail("tessera.transaction_outcome() has said of it that it was not committed."),
				 errhint("Take the next number.")));
}

int64
tessera_session_check_out(const pg_uuid_t *session, int64 number)
{
	Use			use = {.run = run_check_out,.session = session,.number = number};

	use_tables(&use);
	return use.before;
}

static void
run_delete(Use *use)
{
	(void) tessera_spi_run_saved("DELETE FROM tessera_session.session WHERE id = $1 AND (role = $2 OR $3)", SPI_OK_DELETE, 3,
								 (Oid[]) {UUIDOID, NAMEOID, BOOLOID},
								 (Datum[]) {UUIDPGetDatum(use->session), DirectFunctionCall1(namein, CStringGetDatum(use->user)),
											BoolGetDatum(use->anybodys)},
								 NULL);
	use->found = SPI_processed > 0;
	if (use->found)
		(void) tessera_spi_run_saved("DELETE FROM tessera_session.record WHERE session = $1", SPI_OK_DELETE, 1, (Oid[]) {UUIDOID},
									 (Datum[]) {UUIDPGetDatum(use->session)}, NULL);
}

bool
tessera_session_delete(const pg_uuid_t *session, bool anybodys)
{
	Use			use = {.run = run_delete,.session = session,.anybodys = anybodys};

	use_tables(&use);
	return use.found;
}

/* All, or the one that is asked for. */
static void
run_list(Use *use)
{
	MemoryContext before;

	use->changed = tessera_spi_run("SELECT s.id, s.role, s.number, s.started, s.last_use FROM tessera_session.session AS s "
								   "WHERE (s.role = $1 OR $2) AND ($3 IS NULL OR s.id = $3) ORDER BY s.started, s.id", SPI_OK_SELECT, 3,
								   (Oid[]) {NAMEOID, BOOLOID, UUIDOID},
								   (Datum[]) {DirectFunctionCall1(namein, CStringGetDatum(use->user)), BoolGetDatum(use->anybodys),
											  UUIDPGetDatum(use->session)},
								   (bool[]) {false, false, use->session == NULL});
	before = MemoryContextSwitchTo(use->context);
	if (use->rows == NULL)
		use->rows = palloc(Max(use->changed, 1) * sizeof(TesseraSessionRow));
	for (uint64 i = 0; i < use->changed; i++)
	{
		TesseraSessionRow *row = &use->rows[i];

		row->session = *DatumGetUUIDP(spi_row_value(i, 1));
		row->role = pstrdup(NameStr(*DatumGetName(spi_row_value(i, 2))));
		row->number = DatumGetInt64(spi_row_value(i, 3));
		row->started = DatumGetTimestampTz(spi_row_value(i, 4));
		row->last_use = DatumGetTimestampTz(spi_row_value(i, 5));
	}
	MemoryContextSwitchTo(before);
}

TesseraSessionRow *
tessera_sessions_list(bool anybodys, int *n)
{
	Use			use = {.run = run_list,.anybodys = anybodys};

	use_tables(&use);
	*n = (int) use.changed;
	return use.rows;
}

bool
tessera_session_find(const pg_uuid_t *session, bool anybodys, TesseraSessionRow *row)
{
	Use			use = {.run = run_list,.session = session,.anybodys = anybodys,.rows = row};

	use_tables(&use);
	return use.changed > 0;
}

/* ---- records ---- */

static void
run_find(Use *use)
{
	MemoryContext before;

	use->found = tessera_spi_run_saved("SELECT r.at, r.identity, r.count, r.answer, r.digits, r.statement FROM tessera_session.record AS r "
									   "WHERE r.session = $1 AND r.number = $2 AND (r.statement IN (-1, $3) OR $3 = -1) "
									   "ORDER BY r.statement LIMIT 1", SPI_OK_SELECT, 3,
									   (Oid[]) {UUIDOID, INT8OID, INT4OID},
									   (Datum[]) {UUIDPGetDatum(use->session), Int64GetDatum(use->number), Int32GetDatum(use->statement)},
									   NULL) > 0;
	if (!use->found)
		return;
	before = MemoryContextSwitchTo(use->context);
	use->record->at = DatumGetTimestampTz(spi_row_value(0, 1));
	use->record->identity = DatumGetByteaPCopy(spi_row_value(0, 2));
	use->record->count = DatumGetInt64(spi_row_value(0, 3));
	{
		bool		isnull;
		Datum		answer = spi_row_datum(0, 4, &isnull);

		use->record->answer = isnull ? NULL : DatumGetByteaPCopy(answer);
	}
	use->record->statement = DatumGetInt32(spi_row_value(0, 6));
	use->record->digits = TextDatumGetCString(spi_row_value(0, 5));
	MemoryContextSwitchTo(before);
}

bool
tessera_session_find_record(const pg_uuid_t *session, int64 number, int statement, TesseraSessionRecord *record)
{
	Use			use = {.run = run_find,.session = session,.number = number,.statement = statement,.record = record};

	use_tables(&use);
	if (use.found && record->digits[0] != '\0')
		tessera_finish_committed(record->digits);
	return use.found;
}

static void
run_add(Use *use)
{
	static const char *const insert =
		"INSERT INTO tessera_session.record (session, number, statement, at, identity, count, answer, digits) "
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
	static const char *const replace =
		"WITH older AS (DELETE FROM tessera_session.record AS r WHERE r.session = $1 AND r.number < $2) "
		"INSERT INTO tessera_session.record (session, number, statement, at, identity, count, answer, digits) "
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
	const TesseraSessionRecord *record = use->record;

	(void) tessera_spi_run_saved(use->first ? replace : insert, SPI_OK_INSERT, 8,
								 (Oid[]) {UUIDOID, INT8OID, INT4OID, TIMESTAMPTZOID, BYTEAOID, INT8OID, BYTEAOID, TEXTOID},
								 (Datum[]) {UUIDPGetDatum(use->session), Int64GetDatum(use->number), Int32GetDatum(use->statement),
											TimestampTzGetDatum(record->at), PointerGetDatum(record->identity), Int64GetDatum(record->count),
											PointerGetDatum(record->answer), CStringGetTextDatum(tessera_transaction_digits())},
								 (bool[]) {false, false, false, false, false, false, record->answer == NULL, false});
}

void
tessera_session_add_record(const pg_uuid_t *session, int64 number, int statement, bool first, const TesseraSessionRecord *record)
{
	TesseraSessionRecord copy = *record;
	Use			use = {.run = run_add,.session = session,.number = number,.statement = statement,.first = first,.record = &copy};

	use_tables(&use);
}

/* ---- outcomes ---- */

static void
run_outcome(Use *use)
{
	int64		number;

	/* who has taken it holds the lock of its row, and who has prepared a transaction, too */
	if (tessera_spi_run_saved("SELECT number FROM tessera_session.session WHERE id = $1 AND role = $2 FOR UPDATE SKIP LOCKED",
							  SPI_OK_SELECT, 2, (Oid[]) {UUIDOID, NAMEOID},
							  (Datum[]) {UUIDPGetDatum(use->session), DirectFunctionCall1(namein, CStringGetDatum(use->user))}, NULL) == 0)
	{
		if (tessera_spi_run_saved("SELECT number FROM tessera_session.session WHERE id = $1 AND role = $2", SPI_OK_SELECT, 2,
								  (Oid[]) {UUIDOID, NAMEOID},
								  (Datum[]) {UUIDPGetDatum(use->session), DirectFunctionCall1(namein, CStringGetDatum(use->user))}, NULL) == 0 ||
			DatumGetInt64(spi_row_value(0, 1)) > use->number)
			use->outcome = TESSERA_OUTCOME_EXPIRED;
		else
			use->outcome = TESSERA_OUTCOME_RUNNING;
		return;
	}
	number = DatumGetInt64(spi_row_value(0, 1));
	if (use->number < number)
	{
		use->outcome = TESSERA_OUTCOME_EXPIRED;
		return;
	}
	(void) tessera_spi_run_saved("SELECT r.at, r.digits FROM tessera_session.record AS r WHERE r.session = $1 AND r.number = $2 ORDER BY r.at DESC",
								 SPI_OK_SELECT, 2, (Oid[]) {UUIDOID, INT8OID},
								 (Datum[]) {UUIDPGetDatum(use->session), Int64GetDatum(use->number)}, NULL);
	if (SPI_processed > 0)
	{
		use->outcome = TESSERA_OUTCOME_COMMITTED;
		use->since = DatumGetTimestampTz(spi_row_value(0, 1));
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			MemoryContext before = MemoryContextSwitchTo(use->context);

			use->digits = lappend(use->digits, TextDatumGetCString(spi_row_value(i, 2)));
			MemoryContextSwitchTo(before);
		}
		return;
	}
	use->outcome = TESSERA_OUTCOME_ABORTED;
	(void) tessera_spi_run_saved("UPDATE tessera_session.session SET previous = number, number = $2, refused = $2 WHERE id = $1",
								 SPI_OK_UPDATE, 2, (Oid[]) {UUIDOID, INT8OID},
								 (Datum[]) {UUIDPGetDatum(use->session), Int64GetDatum(use->number)}, NULL);
}

TesseraOutcome
tessera_session_outcome(const pg_uuid_t *session, int64 number, TimestampTz *at)
{
	Use			use = {.run = run_outcome,.session = session,.number = number};
	ListCell   *cell;

	use_tables(&use);
	foreach(cell, use.digits)
		tessera_finish_committed(lfirst(cell));
	*at = use.since;
	return use.outcome;
}

/* ---- for the reaper ---- */

static Datum
uuid_array(int n, Datum *ids)
{
	return PointerGetDatum(construct_array(ids, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/* The ids that the last SELECT has returned. */
static Datum
selected_ids(void)
{
	Datum	   *ids = palloc(SPI_processed * sizeof(Datum));

	for (uint64 i = 0; i < SPI_processed; i++)
		ids[i] = spi_row_value(i, 1);
	return uuid_array((int) SPI_processed, ids);
}

static void
delete_records(Datum sessions)
{
	(void) tessera_spi_run("DELETE FROM tessera_session.record AS r WHERE r.session = ANY ($1)", SPI_OK_DELETE, 1, (Oid[]) {UUIDARRAYOID},
						   &sessions, NULL);
}

static void
run_delete_unused(Use *use)
{
	Datum	   *used = palloc(Max(use->n, 1) * sizeof(Datum));
	Datum		ids;

	for (int i = 0; i < use->n; i++)
		used[i] = CStringGetTextDatum(psprintf("%s %s", tessera_uuid_text(&use->users[i].session), use->users[i].role));
	use->changed = tessera_spi_run("SELECT s.id FROM tessera_session.session AS s WHERE s.last_use < $1 "
								   "AND s.id::text || ' ' || s.role::text <> ALL ($3) ORDER BY s.last_use LIMIT $2 FOR UPDATE SKIP LOCKED",
								   SPI_OK_SELECT, 3, (Oid[]) {TIMESTAMPTZOID, INT4OID, TEXTARRAYOID},
								   (Datum[]) {TimestampTzGetDatum(use->since), Int32GetDatum(use->limit),
											  PointerGetDatum(construct_array(used, use->n, TEXTOID, -1, false, TYPALIGN_INT))},
								   NULL);
	if (use->changed == 0)
		return;
	ids = selected_ids();
	delete_records(ids);
	(void) tessera_spi_run("DELETE FROM tessera_session.session AS s WHERE s.id = ANY ($1)", SPI_OK_DELETE, 1, (Oid[]) {UUIDARRAYOID}, &ids, NULL);
}

uint64
tessera_sessions_delete_unused(TimestampTz since, int limit, int n, const TesseraSessionUser *users)
{
	Use			use = {.run = run_delete_unused,.since = since,.limit = limit,.n = n,.users = users};

	use_tables(&use);
	return use.changed;
}

/* A session and its records are on one shard, by one snapshot there: who writes a record has the session. */
static void
run_delete_orphans(Use *use)
{
	use->changed = tessera_spi_run("SELECT DISTINCT r.session FROM tessera_session.record AS r WHERE NOT EXISTS "
								   "(SELECT FROM tessera_session.session AS s WHERE s.id = r.session) LIMIT $1", SPI_OK_SELECT, 1,
								   (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(use->limit)}, NULL);
	if (use->changed > 0)
		delete_records(selected_ids());
}

uint64
tessera_sessions_delete_orphans(int limit)
{
	Use			use = {.run = run_delete_orphans,.limit = limit};

	use_tables(&use);
	return use.changed;
}

/* Index of the session; -1: it is not among them. */
static int
find_use(const Use *use, Datum id)
{
	for (int i = 0; i < use->n; i++)
		if (memcmp(&use->last_uses[i].session, DatumGetUUIDP(id), sizeof(pg_uuid_t)) == 0)
			return i;
	return -1;
}

static void
run_used(Use *use)
{
	Datum	   *ids = palloc(use->n * sizeof(Datum));
	Datum	   *times = palloc(use->n * sizeof(Datum));
	bool	   *somebody_has = use->somebody_has;
	int			n = 0;
	Datum		all;

	for (int i = 0; i < use->n; i++)
		ids[i] = UUIDPGetDatum(&use->last_uses[i].session);
	all = uuid_array(use->n, ids);
	(void) tessera_spi_run("SELECT s.id FROM tessera_session.session AS s WHERE s.id = ANY ($1)", SPI_OK_SELECT, 1, (Oid[]) {UUIDARRAYOID}, &all,
						   NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
		somebody_has[find_use(use, spi_row_value(i, 1))] = true;
	(void) tessera_spi_run("SELECT s.id, s.role, s.last_use FROM tessera_session.session AS s WHERE s.id = ANY ($1) FOR UPDATE SKIP LOCKED",
						   SPI_OK_SELECT, 1, (Oid[]) {UUIDARRAYOID}, &all, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		int			at = find_use(use, spi_row_value(i, 1));
		const TesseraLastUse *last = &use->last_uses[at];
		const char *role = GetUserNameFromId(last->role, true);

		somebody_has[at] = false;
		if (role == NULL || strcmp(role, NameStr(*DatumGetName(spi_row_value(i, 2)))) != 0 ||
			DatumGetTimestampTz(spi_row_value(i, 3)) >= last->used)
			continue;
		ids[n] = UUIDPGetDatum(&last->session);
		times[n++] = TimestampTzGetDatum(last->used);
	}
	use->changed = n;
	if (n > 0)
		(void) tessera_spi_run("UPDATE tessera_session.session AS s SET last_use = ($2)[array_position($1, s.id)] WHERE s.id = ANY ($1)",
							   SPI_OK_UPDATE, 2, (Oid[]) {UUIDARRAYOID, TIMESTAMPTZARRAYOID},
							   (Datum[]) {uuid_array(n, ids), PointerGetDatum(construct_array(times, n, TIMESTAMPTZOID, sizeof(TimestampTz),
																							 FLOAT8PASSBYVAL, TYPALIGN_DOUBLE))},
							   NULL);
}

uint64
tessera_sessions_used(int n, const TesseraLastUse *uses, bool *somebody_has)
{
	Use			use = {.run = run_used,.n = n,.last_uses = uses,.somebody_has = somebody_has};

	memset(somebody_has, 0, n * sizeof(bool));
	use_tables(&use);
	return use.changed;
}

/* ---- making them ---- */

/*
 * tessera.enable_sessions(): as the caller, a superuser, by statements that go wherever DDL goes. The tables are nobody's but the cluster's: their
 * owner is not held by row security, which hides all rows from pg_read_all_data and pg_write_all_data.
 */
Datum
tessera_enable_sessions(PG_FUNCTION_ARGS)
{
	static const char *const statements[] = {
		"CREATE SCHEMA " SCHEMA,
		"CREATE TABLE " SCHEMA ".session (id uuid PRIMARY KEY, role name NOT NULL, number bigint NOT NULL DEFAULT 0, "
		"previous bigint NOT NULL DEFAULT 0, refused bigint NOT NULL DEFAULT 0, started timestamptz NOT NULL, last_use timestamptz NOT NULL)",
		"CREATE TABLE " SCHEMA ".record (session uuid, number bigint, statement int, at timestamptz NOT NULL, identity bytea NOT NULL, "
		"count bigint NOT NULL, answer bytea, digits text NOT NULL, PRIMARY KEY (session, number, statement))",
		"CREATE INDEX ON " SCHEMA ".session (role)",
		"CREATE INDEX ON " SCHEMA ".session (last_use)",
		"COMMENT ON SCHEMA " SCHEMA " IS 'logical sessions of the tessera cluster, and what was done under their numbers'",
		"COMMENT ON TABLE " SCHEMA ".session IS 'logical sessions; see the view tessera.sessions'",
		"COMMENT ON TABLE " SCHEMA ".record IS 'what was done under the last number of each session, with its answer'",
		"ALTER TABLE " SCHEMA ".session ENABLE ROW LEVEL SECURITY",
		"ALTER TABLE " SCHEMA ".record ENABLE ROW LEVEL SECURITY",
		"ALTER TABLE " SCHEMA ".session OWNER TO " OWNER,
		"ALTER TABLE " SCHEMA ".record OWNER TO " OWNER,
		"ALTER SCHEMA " SCHEMA " OWNER TO " OWNER,
	};
	static const char *const sharding[] = {
		"SELECT tessera.shard_table('" SCHEMA ".session', 'id', 'hash', chunks => 16)",
		"SELECT tessera.shard_table('" SCHEMA ".record', 'session', 'hash', colocate_with => '" SCHEMA ".session')",
	};

	int			nest;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to enable sessions")));
	if (tessera_sessions_enabled())
		PG_RETURN_BOOL(false);
	if (OidIsValid(get_namespace_oid(SCHEMA, true)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" exists, and is not what sessions need", SCHEMA),
				 errhint("It is somebody else's: drop or rename it.")));
	/* the names of types are the server's own */
	nest = tessera_fixed_settings_push(TESSERA_FIXED_NAMES);
	if (SPI_connect() != SPI_OK_CONNECT)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not connect to SPI")));
	for (int i = 0; i < lengthof(statements); i++)
		(void) tessera_spi_run(statements[i], SPI_OK_UTILITY, 0, NULL, NULL, NULL);
	for (int i = 0; i < lengthof(sharding); i++)
		(void) tessera_spi_run(sharding[i], SPI_OK_SELECT, 0, NULL, NULL, NULL);
	SPI_finish();
	AtEOXact_GUC(true, nest);
	PG_RETURN_BOOL(true);
}
