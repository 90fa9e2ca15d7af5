/*
 * actions.c
 *	  What the balancer begins and follows; see actions.h.
 *
 * A move is a migration like any other: registered here, carried out by its donor. Its row is written once the migration is registered. If this
 * process ends in between, the migration goes on without a row, and a request finds it when it is tried again (the registration answers with the same
 * one). What runs is known from tessera.migration alone, so nothing is begun twice.
 *
 * After a failure: a request stays queued and is tried again, later each time; what the balancer has chosen by itself is over, and its range is left
 * alone for as long.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "balance/move_reasons.h"
#include "balancer/actions.h"
#include "balancer/balancer_settings.h"
#include "catalog/bound_array.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/membership.h"
#include "control/calls.h"
#include "migration/migration.h"
#include "transaction/background.h"

#define CALL_MS 10000
#define ATTEMPTS 12				/* of a request */
/* 2 s after the first failure, doubling, 10 minutes at most */
#define PAUSE "make_interval(secs => least(600, power(2, least(attempts, 12) + 1)))"

static const char *const reasons[] = {
	[TESSERA_POLICY_DRAINING] = "draining",
	[TESSERA_POLICY_ZONE] = "zone",
	[TESSERA_POLICY_GROUP] = "group",
	[TESSERA_POLICY_NODE] = "node",
	[TESSERA_POLICY_EMPTY] = "empty",
	[TESSERA_POLICY_COLD] = "cold",
};

const char *
tessera_policy_reason_text(TesseraPolicyReason reason)
{
	return reasons[reason];
}


/* What is to begin */

static char *
shard_name(const TesseraRouting *routing, int32 node_id)
{
	const TesseraNode *node = tessera_routing_node(routing, node_id);

	return node != NULL ? pstrdup(NameStr(node->name)) : NULL;
}

static char *
table_name(const TesseraTable *table)
{
	return get_rel_name(table->relid) != NULL ? tessera_qualified_name(table->relid) : pstrdup("?");
}

/* The reason in figures. */
static char *
detail_of(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action)
{
	static const char *const units[] = {[TESSERA_BY_BYTES] = "bytes",[TESSERA_BY_COUNT] = "chunks",[TESSERA_BY_LOAD] = "sessions at work"};

	if (action->reason != TESSERA_POLICY_GROUP && action->reason != TESSERA_POLICY_NODE)
		return NULL;
	return psprintf("%s: %.6g %s there, %.6g here, by weight", action->reason == TESSERA_POLICY_GROUP ? "of the table group" : "of the node",
					action->from_fill, units[snapshot->policy.settings.measure], action->to_fill);
}

static void
set_ranges(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action, TesseraBalancerAction *planned)
{
	const TesseraSnapshotGroup *group = &snapshot->groups[action->group];

	planned->group_id = group->group->group_id;
	planned->epoch = group->group->epoch;
	planned->table_id = group->table->table_id;
	planned->object = table_name(group->table);
	planned->nranges = (int) action->nranges;
	planned->mins = palloc(sizeof(TesseraBound *) * action->nranges);
	planned->maxs = palloc(sizeof(TesseraBound *) * action->nranges);
	for (size_t i = 0; i < action->nranges; i++)
		tessera_snapshot_range(snapshot, action->group, action->ranges[i].first, action->ranges[i].count, &planned->mins[i], &planned->maxs[i]);
	planned->min = planned->mins[0];
	planned->max = planned->maxs[0];
}

TesseraBalancerAction *
tessera_balancer_planned(const TesseraClusterSnapshot *snapshot, const TesseraPolicyAction *action)
{
	TesseraBalancerAction *planned = palloc0(sizeof(TesseraBalancerAction));

	planned->kind = action->kind;
	if (action->kind == TESSERA_POLICY_MOVE_SCHEMA)
		planned->schema = pstrdup(snapshot->schemas[action->first].name);
	else
		set_ranges(snapshot, action, planned);
	planned->donor = snapshot->shards[action->from].node_id;
	planned->recipient = snapshot->shards[action->to].node_id;
	planned->to_shard = shard_name(snapshot->routing, planned->recipient);
	planned->reason = tessera_policy_reason_text(action->reason);
	planned->detail = detail_of(snapshot, action);
	planned->bytes = action->bytes;
	planned->verify = true;
	return planned;
}

/* When each shard was last given an end of the group's key space where rows come in; 0: not of late. In the current context. */
static TimestampTz *
ends_given(const TesseraClusterSnapshot *snapshot, const pg_uuid_t *group_id)
{
	TimestampTz *given = palloc0(sizeof(TimestampTz) * snapshot->policy.nshards);
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT recipient, max(asked) FROM tessera.balancer_action WHERE group_id = $1 AND reason = '" TESSERA_REASON_TOP "'"
						" AND state IN ('running', 'done') AND recipient IS NOT NULL GROUP BY recipient", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
						(Datum[]) {UUIDPGetDatum(group_id)}, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		int			shard = tessera_snapshot_shard(snapshot, DatumGetInt32(spi_row_value(i, 1)));

		if (shard >= 0)
			given[shard] = DatumGetTimestampTz(spi_row_value(i, 2));
	}
	tessera_spi_end(&spi);
	return given;
}

/*
 * The shard with the lowest fill that may have the range, other than its owner; -1: none has room. The end of the key space goes round: to the one
 * that has not had it for longest.
 */
static int
choose_recipient(TesseraClusterSnapshot *snapshot, const TesseraBalancerAction *action, int owner, int zone)
{
	const double *amount = tessera_snapshot_bytes(snapshot);
	bool		top = strcmp(action->reason, TESSERA_REASON_TOP) == 0;
	TimestampTz *given = top ? ends_given(snapshot, &action->group_id) : palloc0(sizeof(TimestampTz) * snapshot->policy.nshards);
	int			best = -1;

	for (int i = 0; i < (int) snapshot->policy.nshards; i++)
	{
		const TesseraPolicyShard *shard = &snapshot->shards[i];

		if (i == owner || shard->draining || !shard->usable || shard->room == 0 ||
			(zone >= 0 && !snapshot->policy.zone_shards[zone * snapshot->policy.nshards + i]))
			continue;
		if (best < 0 || given[i] < given[best] ||
			(given[i] == given[best] && amount[i] / shard->weight < amount[best] / snapshot->shards[best].weight))
			best = i;
	}
	return best;
}

/* Bytes of the chunks from the first one on that begin below the range's end, but for those that are there already. */
static double
bytes_to_move(const TesseraClusterSnapshot *snapshot, int group, size_t first, const TesseraBound *max, int to)
{
	const TesseraSnapshotGroup *here = &snapshot->groups[group];
	TesseraKeyBound high;
	double		bytes = 0;

	tessera_key_from_bound(here->ks, max, &high);
	for (size_t i = first; i < snapshot->policy.groups[group].nchunks; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(snapshot->routing, here->group, (int) i, &chunk);
		if (tessera_key_compare(here->ks, &chunk.min, &high) >= 0)
			break;
		if (chunk.node_id != snapshot->shards[to].node_id)
			bytes += here->chunks[i].bytes;
	}
	return bytes;
}

/* false: one of them has none, or cannot be reached. */
static bool
take_room(TesseraClusterSnapshot *snapshot, int from, int to)
{
	if (from < 0 || from == to)
		return true;
	if (snapshot->shards[from].room == 0 || snapshot->shards[to].room == 0 || !snapshot->shards[from].usable || !snapshot->shards[to].usable)
		return false;
	snapshot->shards[from].room--;
	snapshot->shards[to].room--;
	return true;
}

/* Finds the shards of a request, and takes their room; false: it has to wait. */
static bool
fit_request(TesseraClusterSnapshot *snapshot, TesseraBalancerAction *action)
{
	int			group = tessera_snapshot_group(snapshot, &action->group_id);
	TesseraKeyBound key;
	const TesseraPolicyChunk *chunk;
	TesseraChunk owned;
	int			from;
	int			to;

	if (group < 0)
		return true;			/* the table is gone: beginning it says so */
	if (snapshot->groups[group].unreadable != NULL)
		return false;			/* its row of kind read says why */
	tessera_key_from_bound(snapshot->groups[group].ks, action->min, &key);
	chunk = &snapshot->groups[group].chunks[tessera_routing_find_chunk(snapshot->routing, snapshot->groups[group].group, &key)];
	tessera_routing_chunk(snapshot->routing, snapshot->groups[group].group, (int) (chunk - snapshot->groups[group].chunks), &owned);
	from = tessera_snapshot_shard(snapshot, owned.node_id);
	to = action->recipient != 0 ? tessera_snapshot_shard(snapshot, action->recipient) : choose_recipient(snapshot, action, from, chunk->zone);
	if (to < 0)
		return true;			/* beginning it says why not; the end of the key space has to go at once or not at all */
	action->epoch = snapshot->groups[group].group->epoch;
	action->recipient = snapshot->shards[to].node_id;
	action->to_shard = shard_name(snapshot->routing, action->recipient);
	action->bytes = bytes_to_move(snapshot, group, chunk - snapshot->groups[group].chunks, action->max, to);
	/* if it is there, another part of the range may lie elsewhere: the registration finds it */
	return take_room(snapshot, from, to);
}

/* The same of a schema. */
static bool
fit_schema(TesseraClusterSnapshot *snapshot, TesseraBalancerAction *action)
{
	const TesseraPlacedSchema *placed = tessera_snapshot_placed(snapshot, action->schema);
	int			to;

	if (placed == NULL)
		return true;			/* it is gone: beginning it says so */
	to = action->recipient != 0 ? tessera_snapshot_shard(snapshot, action->recipient) : choose_recipient(snapshot, action, placed->owner, -1);
	if (to < 0)
		return true;			/* beginning it says why not */
	action->recipient = snapshot->shards[to].node_id;
	action->to_shard = shard_name(snapshot->routing, action->recipient);
	action->bytes = placed->schema < 0 ? -1 : snapshot->policy.schemas[placed->schema].bytes;
	return take_room(snapshot, placed->owner, to);
}

List *
tessera_balancer_requests(TesseraClusterSnapshot *snapshot)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *all = NIL;
	List	   *fitting = NIL;
	ListCell   *cell;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run("SELECT action_id, group_id, table_id, min, max, recipient, reason, verify, schema_name FROM tessera.balancer_action"
						" WHERE state = 'queued' AND coalesce(not_before <= clock_timestamp(), true) ORDER BY asked, action_id", SPI_OK_SELECT, 0,
						NULL, NULL, NULL);
	MemoryContextSwitchTo(caller);
	for (uint64 i = 0; i < n; i++)
	{
		TesseraBalancerAction *action = palloc0(sizeof(TesseraBalancerAction));
		bool		isnull;

		action->kind = TESSERA_POLICY_MOVE;
		action->asked_for = true;
		action->action_id = *DatumGetUUIDP(spi_row_value(i, 1));
		action->schema = spi_row_text(i, 9);
		if (action->schema == NULL)
		{
			action->group_id = *DatumGetUUIDP(spi_row_value(i, 2));
			action->table_id = *DatumGetUUIDP(spi_row_value(i, 3));
			action->min = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 4));
			action->max = (TesseraBound *) PG_DETOAST_DATUM_COPY(spi_row_value(i, 5));
		}
		else
			action->kind = TESSERA_POLICY_MOVE_SCHEMA;
		action->recipient = DatumGetInt32(spi_row_datum(i, 6, &isnull));
		action->reason = spi_row_text(i, 7);
		action->verify = DatumGetBool(spi_row_value(i, 8));
		action->bytes = -1;
		action->nranges = 1;
		all = lappend(all, action);
	}
	tessera_spi_end(&spi);
	MemoryContextSwitchTo(caller);
	foreach(cell, all)
	{
		TesseraBalancerAction *action = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		if (action->schema != NULL ? fit_schema(snapshot, action) : fit_request(snapshot, action))
			fitting = lappend(fitting, lfirst(cell));
	}
	return fitting;
}


/* Their rows */

/* A row of something that the balancer has chosen by itself. state: running, done or failed. */
static void
insert_row(const TesseraBalancerAction *action, const char *state, const pg_uuid_t *migration_id, const char *error)
{
	Oid			bound = tessera_bound_type();
	Oid			bounds = get_array_type(bound);
	bool		schema = action->schema != NULL;
	bool		several = action->nranges > 1;
	Oid			types[] = {TEXTOID, UUIDOID, UUIDOID, bound, bound, INT4OID, INT4OID, TEXTOID, TEXTOID, BOOLOID, TEXTOID, INT8OID, UUIDOID, TEXTOID,
	UUIDOID, bounds, bounds, NAMEOID};
	Datum		values[] = {
		CStringGetTextDatum(action->kind == TESSERA_POLICY_MERGE ? "merge" : "move"), UUIDPGetDatum(&action->group_id),
		UUIDPGetDatum(&action->table_id), PointerGetDatum(action->min), PointerGetDatum(action->max), Int32GetDatum(action->donor),
		Int32GetDatum(action->recipient), CStringGetTextDatum(action->reason), action->detail ? CStringGetTextDatum(action->detail) : 0,
		BoolGetDatum(action->verify), CStringGetTextDatum(state), Int64GetDatum((int64) action->bytes), UUIDPGetDatum(migration_id),
		error ? CStringGetTextDatum(error) : 0, UUIDPGetDatum(&action->epoch),
		several ? PointerGetDatum(tessera_array_of_bounds(action->nranges, action->mins)) : 0,
		several ? PointerGetDatum(tessera_array_of_bounds(action->nranges, action->maxs)) : 0,
		schema ? DirectFunctionCall1(namein, CStringGetDatum(action->schema)) : 0
	};
	bool		nulls[lengthof(values)] = {[1] = schema,[2] = schema,[3] = schema,[4] = schema,[8] = action->detail == NULL,
		[11] = action->bytes < 0,[12] = migration_id == NULL,[13] = error == NULL,[15] = !several,[16] = !several,[17] = !schema};
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	/* of the same range or schema: how often it has failed in a row */
	tessera_spi_run("INSERT INTO tessera.balancer_action (kind, group_id, table_id, min, max, donor, recipient, reason, detail, by, verify, state, "
					"bytes,"
					"  migration_id, error, ranges, schema_name, attempts, started, finished, not_before)"
					" SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, 'tessera', $10, $11, $12, $13, $14,"
					"  (SELECT array_agg(($2, $15, r.min, r.max)::tessera.operation_range ORDER BY r.n)"
					"   FROM unnest($16, $17) WITH ORDINALITY AS r (min, max, n)), $18, f.attempts, clock_timestamp(),"
					"  CASE WHEN $11 <> 'running' THEN clock_timestamp() END,"
					"  CASE WHEN $11 = 'failed' THEN clock_timestamp() + " PAUSE " END"
					" FROM (SELECT count(*)::int4 AS attempts FROM tessera.balancer_action WHERE state = 'failed'"
					"  AND (group_id = $2 AND min OPERATOR(tessera.=) $4 OR schema_name = $18)"
					"  AND asked > clock_timestamp() - interval '1 hour') AS f", SPI_OK_INSERT, lengthof(types), types, values, nulls);
	tessera_spi_end(&spi);
}

void
tessera_balancer_note_unreadable(const TesseraClusterSnapshot *snapshot)
{
	static const Oid types[] = {UUIDOID, UUIDOID, TEXTOID};
	Datum	   *ids = palloc(sizeof(Datum) * Max(snapshot->policy.ngroups, 1));
	int			n = 0;
	TesseraSpi	spi;
	Datum		all;

	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
		if (snapshot->groups[i].unreadable != NULL)
			ids[n++] = UUIDPGetDatum(&snapshot->groups[i].group->group_id);
	all = PointerGetDatum(construct_array(ids, n, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
	tessera_spi_begin(&spi);
	tessera_spi_run_saved("UPDATE tessera.balancer_action SET state = 'done', finished = clock_timestamp(), error = NULL"
						  " WHERE kind = 'read' AND state = 'failed' AND group_id <> ALL ($1)", SPI_OK_UPDATE, 1, (Oid[]) {UUIDARRAYOID}, &all,
						  NULL);
	for (size_t i = 0; i < snapshot->policy.ngroups; i++)
	{
		const TesseraSnapshotGroup *group = &snapshot->groups[i];
		Datum		values[] = {UUIDPGetDatum(&group->group->group_id), group->table != NULL ? UUIDPGetDatum(&group->table->table_id) : 0, 0};
		bool		nulls[] = {false, group->table == NULL, false};

		if (group->unreadable == NULL)
			continue;
		values[2] = CStringGetTextDatum(group->unreadable);
		if (tessera_spi_run("UPDATE tessera.balancer_action SET attempts = attempts + 1, error = $3, table_id = $2"
							" WHERE kind = 'read' AND state = 'failed' AND group_id = $1", SPI_OK_UPDATE, 3, types, values, nulls) > 0)
			continue;
		tessera_spi_run("INSERT INTO tessera.balancer_action (kind, group_id, table_id, reason, by, state, attempts, error)"
						" VALUES ('read', $1, $2, 'unreadable', 'tessera', 'failed', 1, $3)", SPI_OK_INSERT, 3, types, values, nulls);
		ereport(LOG,
				(errmsg("the balancer leaves out the table group of %s, which cannot be read: %s",
						group->table != NULL ? table_name(group->table) : tessera_uuid_text(&group->group->group_id), group->unreadable)));
	}
	tessera_spi_end(&spi);
}

/* A request that would fail again: its table or shard is gone, the shard is being removed. Its range must not wait for it. */
static bool
is_hopeless(const TesseraBalancerAction *action, const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_INVALID_PARAMETER_VALUE || error->sqlerrcode == ERRCODE_UNDEFINED_TABLE ||
		error->sqlerrcode == ERRCODE_UNDEFINED_SCHEMA || (error->sqlerrcode == ERRCODE_UNDEFINED_OBJECT && action->recipient != 0);
}

/* The row of a request: it runs, there is nothing (more) to do, or it is tried again, unless it is hopeless. */
static void
update_row(const TesseraBalancerAction *action, const TesseraMoveBegun *begun, const char *error, bool hopeless)
{
	TesseraSpi	spi;
	Datum		values[] = {UUIDPGetDatum(&action->action_id), UUIDPGetDatum(begun ? &begun->migration_id : NULL),
		Int32GetDatum(begun ? begun->donor : 0), Int32GetDatum(action->recipient), error ? CStringGetTextDatum(error) : 0,
		Int64GetDatum((int64) action->bytes)};
	bool		nulls[] = {false, begun == NULL, begun == NULL, action->recipient == 0, error == NULL, action->bytes < 0};

	tessera_spi_begin(&spi);
	if (error != NULL)
		tessera_spi_run("UPDATE tessera.balancer_action SET attempts = attempts + 1, error = $5,"
						" not_before = CASE WHEN $6 > 0 THEN clock_timestamp() + " PAUSE " END,"
						" state = CASE WHEN reason = 'top' THEN 'dropped' WHEN attempts + 1 >= $6 THEN 'failed' ELSE state END,"
						" finished = CASE WHEN reason = 'top' OR attempts + 1 >= $6 THEN clock_timestamp() END WHERE action_id = $1 AND state = "
							"'queued'",
						SPI_OK_UPDATE, 6, (Oid[]) {UUIDOID, UUIDOID, INT4OID, INT4OID, TEXTOID, INT4OID},
						(Datum[]) {values[0], values[1], values[2], values[3], values[4], Int32GetDatum(hopeless ? 0 : ATTEMPTS)},
						(bool[]) {nulls[0], nulls[1], nulls[2], nulls[3], nulls[4], false});
	else
		tessera_spi_run("UPDATE tessera.balancer_action SET migration_id = coalesce($2, migration_id), donor = coalesce($3, donor),"
						" bytes = coalesce(bytes, $6), recipient = coalesce(recipient, $4), started = coalesce(started, clock_timestamp()), error = "
							"$5,"
						" state = CASE WHEN $2 IS NULL THEN 'done' ELSE 'running' END,"
						" finished = CASE WHEN $2 IS NULL THEN clock_timestamp() END WHERE action_id = $1 AND state = 'queued'",
						SPI_OK_UPDATE, 6, (Oid[]) {UUIDOID, UUIDOID, INT4OID, INT4OID, TEXTOID, INT8OID}, values, nulls);
	tessera_spi_end(&spi);
}


/* Beginning */

static bool
begin_move(const TesseraBalancerAction *action, TesseraMoveBegun *begun)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing != NULL ? tessera_routing_table_by_id(routing, &action->table_id) : NULL;

	if (action->schema == NULL && (table == NULL || table->group < 0))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the table is not there any more")));
	if (action->to_shard == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 action->recipient != 0 ? errmsg("the shard is not there any more") : errmsg("no other shard may have it, or has room for it now")));
	if (action->schema != NULL)
		return tessera_schema_move_begin(action->schema, action->to_shard, action->verify, !action->asked_for, begun);
	if (action->nranges > 1)
		return tessera_move_begin_ranges(routing, table, action->nranges, action->mins, action->maxs, action->donor, action->to_shard,
										 action->verify, begun);
	return tessera_move_begin(routing, table, action->min, action->max, action->to_shard, action->verify, !action->asked_for, begun);
}

static void
merge(const TesseraBalancerAction *action)
{
	const TesseraRouting *routing = tessera_require_cluster();
	TesseraMergeAnswer merged;

	tessera_call_merge(tessera_within(tessera_to_config(), CALL_MS), &action->group_id, &action->epoch, routing->promised_term,
					   tessera_bound_to_cstring(action->min), tessera_bound_to_cstring(action->max), "tessera", action->object, &merged);
	/* the owner finds out by itself, if it is not told */
	(void) tessera_call_raise_major(tessera_ask(tessera_within(tessera_to_node(merged.node_id), CALL_MS), TESSERA_TOLERATE_ERRORS),
									&action->group_id, &action->epoch, merged.major, NULL);
}

/* true: a migration runs. *error: why not, palloc'd in the current context; NULL: it is done. In a subtransaction, which has not written. */
static bool
try_to_begin(const TesseraBalancerAction *action, TesseraMoveBegun *begun, ErrorData **error)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool runs = false;

	*error = NULL;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		if (action->kind == TESSERA_POLICY_MERGE)
			merge(action);
		else
			runs = begin_move(action, begun);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (ProcDiePending)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		*error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	return runs;
}

/* A node that cannot be reached is left alone for a while: which one of the two, nobody says, but the recipient was not asked yet. */
static void
note_reached(const TesseraBalancerAction *action, const ErrorData *error)
{
	if (action->donor == 0)
		return;
	if (error == NULL)
		tessera_balancer_node_answered(action->donor);
	else if (tessera_error_is_unreachable(error->sqlerrcode))
		tessera_balancer_node_failed(action->donor);
}

bool
tessera_balancer_begin(const TesseraBalancerAction *action)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraMoveBegun begun;
	ErrorData  *error;
	char	   *message = NULL;
	bool		hopeless;
	bool		runs;

	tessera_background_begin();
	runs = try_to_begin(action, &begun, &error);
	hopeless = error != NULL && is_hopeless(action, error);
	if (error != NULL)
		message = MemoryContextStrdup(caller, psprintf("%s: %s", unpack_sql_state(error->sqlerrcode), error->message));
	note_reached(action, error);
	tessera_background_commit();
	tessera_injection("balancer_begun");
	tessera_background_begin();
	if (action->asked_for)
		update_row(action, runs ? &begun : NULL, message, hopeless);
	else
		insert_row(action, message != NULL ? "failed" : runs ? "running" : "done", runs ? &begun.migration_id : NULL, message);
	tessera_background_commit();
	return message == NULL;
}


/* Following */

/*
 * Which nodes of the moves that have ended just now could not be reached: by the class of the error it may be either, and the donor has done its work
 * so far. In between tessera_spi_begin and _end.
 */
static void
note_recipients(void)
{
	uint64		n = tessera_spi_run("SELECT DISTINCT m.recipient, m.state = 'committed' FROM tessera.balancer_action AS a JOIN tessera.migration AS m"
									" USING (migration_id) WHERE a.state = 'running' AND (m.state = 'committed' OR m.state = 'aborted'"
									"  AND m.error ~ '^(08|57P0)')", SPI_OK_SELECT, 0, NULL, NULL, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		if (DatumGetBool(spi_row_value(i, 2)))
			tessera_balancer_node_answered(DatumGetInt32(spi_row_value(i, 1)));
		else
			tessera_balancer_node_failed(DatumGetInt32(spi_row_value(i, 1)));
	}
}

int64
tessera_balancer_follow(TimestampTz *next)
{
	TesseraSpi	spi;
	int64		open;

	tessera_spi_begin(&spi);
	note_recipients();
	/* of a request another part may be left: it is tried again, and found to be done if there is none */
	tessera_spi_run("UPDATE tessera.balancer_action AS a SET state = CASE WHEN a.reason = 'requested' THEN 'queued' ELSE 'done' END,"
					" finished = CASE WHEN a.reason = 'requested' THEN NULL ELSE clock_timestamp() END, error = NULL, not_before = NULL, attempts = 0"
					" FROM tessera.migration AS m WHERE a.state = 'running' AND m.migration_id = a.migration_id AND m.state = 'committed'",
					SPI_OK_UPDATE, 0, NULL, NULL, NULL);
	tessera_spi_run("UPDATE tessera.balancer_action AS a SET error = m.error, attempts = a.attempts + 1, not_before = clock_timestamp() + " PAUSE ","
					" state = CASE WHEN m.error LIKE '57014%' THEN 'dropped' WHEN a.reason = 'requested' AND a.attempts + 1 < $1 THEN 'queued'"
					"  ELSE 'failed' END,"
					" finished = CASE WHEN m.error LIKE '57014%' OR a.reason <> 'requested' OR a.attempts + 1 >= $1 THEN clock_timestamp() END"
					" FROM tessera.migration AS m WHERE a.state = 'running' AND m.migration_id = a.migration_id AND m.state = 'aborted'",
					SPI_OK_UPDATE, 1, (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(ATTEMPTS)}, NULL);
	/* the migration is gone with the config node's newest commits: whatever became of it, what is left to do is found anew */
	tessera_spi_run("UPDATE tessera.balancer_action AS a SET state = CASE WHEN a.reason = 'requested' THEN 'queued' ELSE 'dropped' END,"
					" finished = CASE WHEN a.reason <> 'requested' THEN clock_timestamp() END"
					" WHERE a.state = 'running' AND NOT EXISTS (SELECT FROM tessera.migration AS m WHERE m.migration_id = a.migration_id)",
					SPI_OK_UPDATE, 0, NULL, NULL, NULL);
	tessera_spi_run("SELECT count(*) FILTER (WHERE state = 'running' OR coalesce(not_before <= clock_timestamp(), true)),"
					" coalesce(min(not_before) FILTER (WHERE state = 'queued' AND not_before > clock_timestamp()), 'infinity')"
					" FROM tessera.balancer_action WHERE state IN ('queued', 'running')", SPI_OK_SELECT, 0, NULL, NULL, NULL);
	open = DatumGetInt64(spi_row_value(0, 1));
	*next = DatumGetTimestampTz(spi_row_value(0, 2));
	tessera_spi_end(&spi);
	return open;
}
