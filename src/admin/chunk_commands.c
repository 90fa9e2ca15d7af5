/*
 * chunk_commands.c
 *	  Commands on the chunks of a sharded table: split, merge, jumbo flag, settings, owner of a key; and the decision of a migration.
 *
 * A command runs on any node. It reads bounds under the caller's settings, makes them canonical, and calls the config node over the control lane, in
 * a transaction of its own that is committed when the call returns; then this node fetches what changed. So a command is not undone by the rollback
 * of the caller's transaction, and refuses to run in one that has itself changed the catalog, which the config node could not see.
 *
 * A split or merge gives its pieces the group's highest major (S21, S22), which can be above the shard's own: the config node raises its own in the
 * same transaction, another owner is told at once (internal_raise_major). If that does not reach it, its next refresh finds out.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"

#include "admin/group_rows.h"
#include "catalog/change.h"
#include "catalog/placement.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "control/calls.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000
#define MIN_CHUNK_SIZE 1024

PG_FUNCTION_INFO_V1(tessera_split_chunk);
PG_FUNCTION_INFO_V1(tessera_split_find);
PG_FUNCTION_INFO_V1(tessera_merge_chunks);
PG_FUNCTION_INFO_V1(tessera_clear_jumbo);
PG_FUNCTION_INFO_V1(tessera_configure_table);
PG_FUNCTION_INFO_V1(tessera_range_owner);
PG_FUNCTION_INFO_V1(tessera_internal_split);
PG_FUNCTION_INFO_V1(tessera_internal_merge);
PG_FUNCTION_INFO_V1(tessera_internal_clear_jumbo);
PG_FUNCTION_INFO_V1(tessera_internal_configure_group);
PG_FUNCTION_INFO_V1(tessera_internal_raise_major);
PG_FUNCTION_INFO_V1(tessera_internal_commit_move);
PG_FUNCTION_INFO_V1(tessera_internal_rehearse_move);
PG_FUNCTION_INFO_V1(tessera_internal_fence_migration);
PG_FUNCTION_INFO_V1(tessera_internal_return_move);

/* The sharded table a command is about. */
typedef struct Target
{
	const TesseraRouting *routing;
	const TesseraTable *table;
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	/* what every call to the config node carries */
	const pg_uuid_t *group_id;
	const pg_uuid_t *epoch;
	int64		term;
	const char *by;
	const char *object;
} Target;


/* Shared by the commands */

static const TesseraRouting *
member_routing(void)
{
	const TesseraRouting *routing = tessera_routing();

	if (routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is not a node of a cluster"),
				 errhint("Make a cluster of it: tessera.create_cluster.")));
	return routing;
}

static const char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid));
}

static void
find_target(Oid relid, Target *target)
{
	target->routing = member_routing();
	if (get_rel_name(relid) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	target->table = tessera_routing_table(target->routing, relid);
	if (target->table == NULL || target->table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not sharded", get_rel_name(relid)),
				 errhint("Shard it first: tessera.shard_table.")));
	target->group = tessera_routing_group(target->routing, target->table->group);
	target->ks = tessera_group_keyspace(target->routing, target->group);
	target->group_id = &target->group->group_id;
	target->epoch = &target->group->epoch;
	target->term = target->routing->promised_term;
	target->by = GetUserNameFromId(GetUserId(), false);
	target->object = qualified_name(relid);
}

/* The same for a command that changes something. */
static void
find_target_to_change(Oid relid, Target *target)
{
	Oid			admin = get_role_oid("tessera_admin", true);

	if (!superuser() && !(OidIsValid(admin) && has_privs_of_role(GetUserId(), admin)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change chunks"),
				 errhint("Ask a superuser or a member of tessera_admin.")));
	if (tessera_catalog_changed_here() != 0)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("chunks cannot be changed in a transaction that has changed the cluster's catalog"),
				 errhint("Commit it first.")));
	(void) tessera_routing_refresh(REFRESH_MS);	/* if it fails, the config node tells what is stale */
	find_target(relid, target);
}

/* A bound that the caller gave, in canonical form. */
static TesseraBound *
canonical(const Target *target, const TesseraBound *bound, TesseraKeyBound *typed)
{
	tessera_key_from_bound(target->ks, bound, typed);
	return tessera_key_to_bound(target->ks, typed);
}

/* Position of a key that the caller gave as its values. */
static void
key_position(const Target *target, const TesseraBound *key, TesseraKeyBound *position)
{
	Datum		values[TESSERA_MAX_KEY_COLUMNS];

	tessera_key_values_from_bound(target->ks, key, values);
	tessera_key_position(target->ks, values, position);
}

/* After a change on the config node: owner (0: none) gets to know its shard version, this node the change. */
static void
settle(const Target *target, int32 owner, int64 major)
{
	if (owner != 0)
		tessera_call_raise_major(tessera_to_node(owner), target->group_id, target->epoch, major, NULL);
	if (!tessera_routing_refresh(REFRESH_MS))
		ereport(WARNING,
				(errmsg("this node could not fetch the change from the config node yet"),
				 errdetail("The change is made.")));
}

static void
split_at(const Target *target, TesseraBound *point)
{
	TesseraSplitAnswer split;

	tessera_call_split(tessera_to_config(), target->group_id, target->epoch, target->term, tessera_bounds_text(1, &point), target->by, target->object,
					   &split);
	settle(target, split.node_id, split.major);
}


/* The commands */

/* tessera.split_chunk(table_name regclass, at bound) */
Datum
tessera_split_chunk(PG_FUNCTION_ARGS)
{
	Target		target;
	TesseraKeyBound at;
	TesseraBound *point;

	find_target_to_change(PG_GETARG_OID(0), &target);
	point = canonical(&target, PG_GETARG_TESSERA_BOUND_P(1), &at);
	split_at(&target, point);
	PG_RETURN_VOID();
}

/* Text of a name[] with the table's key columns. */
static char *
key_names_text(const Target *target)
{
	Datum		names[TESSERA_MAX_KEY_COLUMNS];
	Oid			output;
	bool		is_varlena;

	for (int i = 0; i < target->table->nkeys; i++)
		names[i] = CStringGetTextDatum(get_attname(target->table->relid, target->table->keys[i], false));
	getTypeOutputInfo(TEXTARRAYOID, &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(construct_array(names, target->table->nkeys, TEXTOID, -1, false, TYPALIGN_INT)));
}

/* The first of the bounds of an array in text form, of which there are n. */
static TesseraBound *
first_bound(char *array, int *n)
{
	Oid			type = tessera_bound_type();
	Oid			input;
	Oid			param;
	Datum	   *values;

	*n = 0;
	if (array == NULL)
		return NULL;
	getTypeInputInfo(get_array_type(type), &input, &param);
	deconstruct_array(DatumGetArrayTypeP(OidInputFunctionCall(input, array, param, -1)), type, -1, false, TYPALIGN_INT, &values, NULL, n);
	return *n > 0 ? (TesseraBound *) DatumGetPointer(values[0]) : NULL;
}

/* tessera.split_find(table_name regclass, key bound) returns bound: splits the chunk that holds the key at the median of its keys. */
Datum
tessera_split_find(PG_FUNCTION_ARGS)
{
	Target		target;
	TesseraKeyBound position;
	TesseraChunk chunk;
	const char *min,
			   *max;
	char	   *points;
	TesseraBound *point;
	int			n;

	find_target_to_change(PG_GETARG_OID(0), &target);
	key_position(&target, PG_GETARG_TESSERA_BOUND_P(1), &position);
	tessera_routing_chunk(target.routing, target.group, tessera_routing_find_chunk(target.routing, target.group, &position), &chunk);

	min = tessera_bound_to_cstring(tessera_key_to_bound(target.ks, &chunk.min));
	max = tessera_bound_to_cstring(tessera_key_to_bound(target.ks, &chunk.max));
	tessera_call_sample_keys(tessera_on_lane(tessera_to_node(chunk.node_id), TESSERA_LANE_CONTROL), target.object, key_names_text(&target),
							 target.ks->hashed, min, max, 2, &points);
	point = first_bound(points, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the chunk from %s to %s has no key to split at", min, max),
				 errdetail("It holds no row of table %s, or all of them share one key.", target.object)));
	split_at(&target, point);
	PG_RETURN_POINTER(point);
}

/* tessera.merge_chunks(table_name regclass, min bound, max bound) returns int4: how many were merged. */
Datum
tessera_merge_chunks(PG_FUNCTION_ARGS)
{
	Target		target;
	TesseraKeyBound min,
				max;
	TesseraMergeAnswer merged;

	find_target_to_change(PG_GETARG_OID(0), &target);
	tessera_call_merge(tessera_to_config(), target.group_id, target.epoch, target.term,
					   tessera_bound_to_cstring(canonical(&target, PG_GETARG_TESSERA_BOUND_P(1), &min)),
					   tessera_bound_to_cstring(canonical(&target, PG_GETARG_TESSERA_BOUND_P(2), &max)), target.by, target.object, &merged);
	settle(&target, merged.node_id, merged.major);
	PG_RETURN_INT32(merged.merged);
}

/* tessera.clear_jumbo(table_name regclass, key bound) returns bool: true if it was set */
Datum
tessera_clear_jumbo(PG_FUNCTION_ARGS)
{
	Target		target;
	TesseraKeyBound position;
	bool		was_set;

	find_target_to_change(PG_GETARG_OID(0), &target);
	key_position(&target, PG_GETARG_TESSERA_BOUND_P(1), &position);
	tessera_call_clear_jumbo(tessera_to_config(), target.group_id, target.epoch, target.term,
							 tessera_bound_to_cstring(tessera_key_to_bound(target.ks, &position)), target.by, target.object, &was_set);
	settle(&target, 0, 0);
	PG_RETURN_BOOL(was_set);
}

/* tessera.configure_table(table_name regclass, balancing bool, max_chunk_size int8): settings of the table's group; NULL leaves one as it is. */
Datum
tessera_configure_table(PG_FUNCTION_ARGS)
{
	Target		target;
	bool		balancing = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	int64		max_chunk_size = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT64(2);

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table_name must not be null")));
	if (!PG_ARGISNULL(2) && PG_GETARG_INT64(2) < MIN_CHUNK_SIZE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_chunk_size must be at least %d bytes", MIN_CHUNK_SIZE)));
	find_target_to_change(PG_GETARG_OID(0), &target);
	tessera_call_configure_group(tessera_to_config(), target.group_id, target.epoch, target.term, PG_ARGISNULL(1) ? NULL : &balancing,
								 PG_ARGISNULL(2) ? NULL : &max_chunk_size, target.by, target.object);
	settle(&target, 0, 0);
	PG_RETURN_VOID();
}

/* tessera.range_owner(table_name regclass, key bound) returns text: the shard that owns the key, by this node's routing table. */
Datum
tessera_range_owner(PG_FUNCTION_ARGS)
{
	Target		target;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	const TesseraNode *node;

	find_target(PG_GETARG_OID(0), &target);
	tessera_key_values_from_bound(target.ks, PG_GETARG_TESSERA_BOUND_P(1), values);
	node = tessera_routing_node(target.routing, tessera_routing_owner(target.routing, target.group, values));
	if (node == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(NameStr(node->name)));
}


/*
 * A split or merge has given a chunk of this shard a higher major: so has its placement. What it owns is the same, and a migration of another range
 * does not mind; but one that is about to change that gives the version itself, whether it commits or not.
 */
static bool
raise_major(const pg_uuid_t *group_id, const pg_uuid_t *epoch, int64 major)
{
	TesseraPlacementRow *row = tessera_placement_lock(group_id);

	if (memcmp(&row->epoch, epoch, sizeof(pg_uuid_t)) != 0 || row->nowned == 0 || row->major >= major || row->gate == TESSERA_GATE_READ)
		return false;
	row->major = major;
	tessera_placement_write(row);
	return true;
}


/* The config node's side: the group's row is locked first, then its chunks are read */

/* Locks the group, and checks that it is of the epoch that the caller knows. */
static const TesseraGroup *
lock_group(FunctionCallInfo fcinfo, TesseraGroupRow *row)
{
	const pg_uuid_t *group_id = PG_GETARG_UUID_P(0);
	const TesseraRouting *routing = tessera_config_routing(PG_GETARG_INT64(2));

	tessera_group_lock(group_id, row);
	return tessera_config_group(routing, group_id, PG_GETARG_UUID_P(1));
}

static Datum
record_of(FunctionCallInfo fcinfo, int n, const Datum *values)
{
	TupleDesc	desc;
	bool		nulls[3] = {false, false, false};

	Assert(n <= 3);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts != n)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), unconstify(Datum *, values), nulls));
}

/* internal_split(group_id, epoch, term, points bound[], by, object, OUT node_id int4, OUT major int8) */
Datum
tessera_internal_split(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	int			n;
	TesseraBound **bounds = tessera_bounds_of_array(PG_GETARG_ARRAYTYPE_P(3), &n);
	TesseraKeyBound *points = palloc(sizeof(TesseraKeyBound) * Max(n, 1));
	TesseraChunkRow chunk;
	Datum		values[2];

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no split points are given")));
	for (int i = 0; i < n; i++)
		tessera_key_from_bound(ks, bounds[i], &points[i]);
	tessera_chunk_split(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &points[0]), n, points,
						text_to_cstring(PG_GETARG_TEXT_PP(4)), text_to_cstring(PG_GETARG_TEXT_PP(5)), &chunk);
	if (chunk.node_id == tessera_routing()->self)
		(void) raise_major(&row.group_id, PG_GETARG_UUID_P(1), row.major);
	values[0] = Int32GetDatum(chunk.node_id);
	values[1] = Int64GetDatum(row.major);
	return record_of(fcinfo, 2, values);
}

/* internal_merge(group_id, epoch, term, min bound, max bound, by, object, OUT merged int4, OUT node_id int4, OUT major int8) */
Datum
tessera_internal_merge(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound min,
				max;
	int32		node_id;
	Datum		values[3];

	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(3), &min);
	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(4), &max);
	values[0] = Int32GetDatum(tessera_chunk_merge(&row, ks, tessera_chunk_hint(tessera_routing(), group, ks, &min), &min, &max,
												  text_to_cstring(PG_GETARG_TEXT_PP(5)), text_to_cstring(PG_GETARG_TEXT_PP(6)), &node_id));
	if (node_id == tessera_routing()->self)
		(void) raise_major(&row.group_id, PG_GETARG_UUID_P(1), row.major);
	values[1] = Int32GetDatum(node_id);
	values[2] = Int64GetDatum(row.major);
	return record_of(fcinfo, 3, values);
}

/* internal_clear_jumbo(group_id, epoch, term, position bound, by, object) returns bool */
Datum
tessera_internal_clear_jumbo(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	const TesseraGroup *group = lock_group(fcinfo, &row);
	TesseraKeySpace *ks = tessera_group_keyspace(tessera_routing(), group);
	TesseraKeyBound position;
	TesseraChunkRow chunk;

	tessera_key_from_bound(ks, PG_GETARG_TESSERA_BOUND_P(3), &position);
	tessera_chunk_find(&row.group_id, ks, &position, tessera_chunk_hint(tessera_routing(), group, ks, &position), &chunk);
	PG_RETURN_BOOL(tessera_chunk_clear_jumbo(&row, &chunk, text_to_cstring(PG_GETARG_TEXT_PP(4)), text_to_cstring(PG_GETARG_TEXT_PP(5))));
}

/* internal_configure_group(group_id, epoch, term, balancing bool, max_chunk_size int8, by, object) returns void */
Datum
tessera_internal_configure_group(PG_FUNCTION_ARGS)
{
	TesseraGroupRow row;
	TesseraSpi	spi;
	Datum		values[] = {PG_GETARG_DATUM(0), PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3), PG_ARGISNULL(4) ? (Datum) 0 : PG_GETARG_DATUM(4)};
	bool		nulls[] = {false, PG_ARGISNULL(3), PG_ARGISNULL(4)};
	char	   *before;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) || PG_ARGISNULL(5) || PG_ARGISNULL(6))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("group_id, epoch, term, by and object must not be null")));
	lock_group(fcinfo, &row);
	tessera_spi_begin(&spi);
	tessera_spi_run("SELECT jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size) FROM tessera.table_group WHERE group_id = "
					"$1", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, values, NULL);
	before = spi_row_text(0, 1);
	tessera_spi_run("UPDATE tessera.table_group SET balancing = coalesce($2, balancing), max_chunk_size = coalesce($3, max_chunk_size)"
					" WHERE group_id = $1 RETURNING jsonb_build_object('balancing', balancing, 'max_chunk_size', max_chunk_size)",
					SPI_OK_UPDATE_RETURNING, 3, (Oid[]) {UUIDOID, BOOLOID, INT8OID}, values, nulls);
	tessera_changelog_add("configure_table", text_to_cstring(PG_GETARG_TEXT_PP(6)), text_to_cstring(PG_GETARG_TEXT_PP(5)), before,
						  spi_row_text(0, 1));
	tessera_spi_end(&spi);
	tessera_catalog_changed();
	PG_RETURN_VOID();
}

/* The version commit of a migration, in the current transaction. */
static void
commit_move(const pg_uuid_t *migration_id, int64 term, int64 *donor_major, int64 *recipient_major)
{
	const TesseraRouting *routing = tessera_config_routing(term);
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	TesseraBound *min,
			   *max;
	TesseraKeyBound position;
	pg_uuid_t	group_id;

	tessera_commit_durably();
	tessera_migration_range(migration_id, &group_id, &min, &max);
	group = tessera_config_group(routing, &group_id, NULL);
	ks = tessera_group_keyspace(routing, group);
	tessera_key_from_bound(ks, min, &position);
	tessera_chunk_commit_move(migration_id, ks, tessera_chunk_hint(routing, group, ks, &position), donor_major, recipient_major);
}

/* internal_commit_move(migration_id uuid, term int8, OUT donor_major int8, OUT recipient_major int8): see catalog/chunk.h. */
Datum
tessera_internal_commit_move(PG_FUNCTION_ARGS)
{
	int64		donor_major,
				recipient_major;
	Datum		values[3];

	commit_move(PG_GETARG_UUID_P(0), PG_GETARG_INT64(1), &donor_major, &recipient_major);
	tessera_injection("config_deciding");
	values[0] = Int64GetDatum(donor_major);
	values[1] = Int64GetDatum(recipient_major);
	values[2] = Int64GetDatum(tessera_routing()->term);
	return record_of(fcinfo, 3, values);
}

/*
 * internal_rehearse_move(migration_id uuid, term int8): the same, undone again. What would be refused is refused before a gate is closed; and this
 * session, which will run the commit itself, has its caches filled.
 */
Datum
tessera_internal_rehearse_move(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	int64		donor_major,
				recipient_major;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		commit_move(PG_GETARG_UUID_P(0), PG_GETARG_INT64(1), &donor_major, &recipient_major);
	}
	PG_CATCH();
	{
		/* the subtransaction would be left open */
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(caller);
	CurrentResourceOwner = owner;
	if (error != NULL)
		ReThrowError(error);
	PG_RETURN_VOID();
}

/*
 * internal_fence_migration(migration_id uuid, error text, term int8) returns text: the outcome, 'aborted' (for that error) if nothing was decided
 * before.
 */
Datum
tessera_internal_fence_migration(PG_FUNCTION_ARGS)
{
	const char *outcome;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	tessera_config_routing(PG_ARGISNULL(2) ? 0 : PG_GETARG_INT64(2));
	tessera_commit_durably();
	outcome = tessera_migration_fence(PG_GETARG_UUID_P(0), PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)));
	tessera_injection("config_fencing");
	PG_RETURN_TEXT_P(cstring_to_text(outcome));
}

/* internal_return_move(migration_id uuid, term int8) returns bool: see catalog/chunk.h. */
Datum
tessera_internal_return_move(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *migration_id = PG_GETARG_UUID_P(0);
	const TesseraRouting *routing = tessera_config_routing(PG_GETARG_INT64(1));
	TesseraBound *min,
			   *max;
	pg_uuid_t	group_id;
	bool		returned;

	tessera_commit_durably();
	tessera_migration_range(migration_id, &group_id, &min, &max);
	returned = tessera_chunk_return_move(migration_id, tessera_group_keyspace(routing, tessera_config_group(routing, &group_id, NULL)));
	tessera_injection("config_returning");
	PG_RETURN_BOOL(returned);
}


/* The shard's side */

/* internal_raise_major(group_id uuid, epoch uuid, major int8) returns bool: a split or merge has given a chunk of this shard a higher major. */
Datum
tessera_internal_raise_major(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(raise_major(PG_GETARG_UUID_P(0), PG_GETARG_UUID_P(1), PG_GETARG_INT64(2)));
}
