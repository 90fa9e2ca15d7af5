/*
 * chunk_commands.c
 *	  Commands on the chunks of a sharded table: split, merge, jumbo flag, settings, owner of a key. What the config node does for them is in
 *	  config/chunk_calls.c.
 *
 * A command runs on any node. It reads bounds under the caller's settings, makes them canonical, and calls the config node over the control lane, in
 * a transaction of its own that is committed when the call returns; then this node fetches what changed. So a command is not undone by the rollback
 * of the caller's transaction, and refuses to run in one that has itself changed the catalog, which the config node could not see.
 *
 * A split or merge gives its pieces the group's highest major (S21, S22), which can be above the shard's own: the config node raises its own in the
 * same transaction, another owner is told at once (internal_raise_major). If that does not reach it, its next refresh finds out.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "admin/key_visibility.h"
#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/placement.h"
#include "admin/shardable.h"
#include "control/calls.h"
#include "common/privilege.h"
#include "common/text.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000

PG_FUNCTION_INFO_V1(tessera_split_chunk);
PG_FUNCTION_INFO_V1(tessera_split_find);
PG_FUNCTION_INFO_V1(tessera_merge_chunks);
PG_FUNCTION_INFO_V1(tessera_clear_jumbo);
PG_FUNCTION_INFO_V1(tessera_configure_table);
PG_FUNCTION_INFO_V1(tessera_range_owner);

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

static void
find_target(Oid relid, Target *target)
{
	target->routing = tessera_routing_or_error();
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
	target->table = tessera_routing_root(target->routing, target->table);
	target->group = tessera_routing_group(target->routing, target->table->group);
	target->ks = tessera_group_keyspace(target->routing, target->group);
	target->group_id = &target->group->group_id;
	target->epoch = &target->group->epoch;
	target->term = target->routing->promised_term;
	target->by = GetUserNameFromId(GetUserId(), false);
	target->object = tessera_qualified_name(target->table->relid);
}

/* The same for a command that changes something. */
static void
find_target_to_change(Oid relid, Target *target)
{
	if (!tessera_is_admin(GetUserId()))
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

/* After a change on the config node: the owner (0: none) is told its shard version, and this node fetches the change. */
static void
distribute_change(const Target *target, int32 owner, int64 major)
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
	distribute_change(target, split.node_id, split.major);
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
	distribute_change(&target, merged.node_id, merged.major);
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
	distribute_change(&target, 0, 0);
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
	if (!PG_ARGISNULL(2))
		tessera_require_chunk_size(max_chunk_size);
	find_target_to_change(PG_GETARG_OID(0), &target);
	tessera_call_configure_group(tessera_to_config(), target.group_id, target.epoch, target.term, PG_ARGISNULL(1) ? NULL : &balancing,
								 PG_ARGISNULL(2) ? NULL : &max_chunk_size, target.by, target.object);
	distribute_change(&target, 0, 0);
	PG_RETURN_VOID();
}

/*
 * tessera.range_owner(table_name regclass, key bound) returns text: the shard that owns the key, by this node's routing table. Who may not see the
 * table's keys could find bounds with it, by bisection.
 */
Datum
tessera_range_owner(PG_FUNCTION_ARGS)
{
	Target		target;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	const TesseraNode *node;

	find_target(PG_GETARG_OID(0), &target);
	if (!tessera_keys_visible(target.group_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to see where keys of table %s lie", target.object),
				 errhint("It takes the right to read the shard key of each table of its group without row security, or membership in "
						 "tessera_admin.")));
	tessera_key_values_from_bound(target.ks, PG_GETARG_TESSERA_BOUND_P(1), values);
	node = tessera_routing_node(target.routing, tessera_routing_owner(target.routing, target.group, values));
	if (node == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(NameStr(node->name)));
}


/* The shard's side */

/* A split or merge has given a chunk of this shard a higher major. */
bool
tessera_serve_raise_major(const TesseraRaiseMajorArgs *args)
{
	return tessera_placement_raise(args->group_id, args->epoch, args->major);
}
