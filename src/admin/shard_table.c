/*
 * shard_table.c
 *	  tessera.shard_table: turns a placed table into a sharded one, in place, by metadata alone (S26).
 *
 * Phases, on the node that was asked: (1) check the table, its key, constraints and key index; (2) on its primary shard sample the key, if chunks are
 * wanted, and lock writers out; (3) on the config node write the group, or join one; (4) write the copies here and on the shards concerned, and the
 * owners' placements. 2 to 4 are one distributed transaction with whatever else the caller's transaction does: rows that it has written
 * count, and its rollback undoes the sharding.
 *
 * No row moves: what the table holds stays on its primary shard, as the chunks of that shard. Only a table without rows can be spread at once, or
 * join a group that is spread; one with rows gets a group of its own first (internal_shard_apart), and is placed by moving (colocate.c).
 *
 * Locks: SHARE UPDATE EXCLUSIVE on the table and its partitions here (no DDL meanwhile); those of config/group_changes.c elsewhere, first the table,
 * then the config node's rows.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "admin/colocate.h"
#include "admin/shardable.h"
#include "balance/split_points.h"
#include "catalog/bound_array.h"
#include "catalog/change.h"
#include "catalog/cross_table_code.h"
#include "catalog/relation.h"
#include "common/acting_as.h"
#include "common/injection.h"
#include "common/privilege.h"
#include "common/protocol.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/subscription.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

#define REFRESH_MS 10000
#define MAX_CHUNKS 1000000
#define MIN_CHUNK_SIZE 1024	/* also for administrators; what others may ask for is config/owner_limits.c's */

PG_FUNCTION_INFO_V1(tessera_shard_table);

/* One call. Everything lives in the function's memory context. */
typedef struct Sharding
{
	Oid			relid;
	const char *qualified;		/* schema.table, quoted */
	const TesseraRouting *routing;
	const TesseraTable *table;
	const TesseraGroup *group;	/* to join; NULL: a new one */
	TesseraShardKey *key;
	bool		hashed;
	int			nchunks;		/* wanted; 0: not said */
	int64		max_chunk_size; /* 0: not said */
	bool		has_rows;
	bool		apart;			/* to get a group of its own, in chunks like those of the group */
	bool		done;			/* has one already */
	int			npoints;		/* inner bounds of the chunks */
	TesseraBound **points;
	char	   *cross_table_code;		/* what may reach rows of other tables; NULL: nothing */
} Sharding;


/* Phase 1: the checks */

const TesseraRouting *
tessera_sharding_routing(void)
{
	(void) tessera_routing_or_error();
	/* a rare command can afford to look at the newest state; but what this transaction changed itself is not to be fetched from elsewhere */
	if (tessera_catalog_changed_here() == 0)
		(void) tessera_routing_refresh(REFRESH_MS);
	return tessera_routing_or_error();
}

void
tessera_require_table_owner(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));

	if (tessera_is_admin(GetUserId()) || tessera_owns_relation(relid, GetUserId()))
		return;
	aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, name);
}

void
tessera_require_chunk_size(int64 max_chunk_size)
{
	if (max_chunk_size < MIN_CHUNK_SIZE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_chunk_size must be at least %d bytes", MIN_CHUNK_SIZE)));
}

bool
tessera_strategy_is_hash(const char *strategy)
{
	if (strcmp(strategy, "range") != 0 && strcmp(strategy, "hash") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown strategy \"%s\"", strategy),
				 errhint("Use 'range' or 'hash'.")));
	return strcmp(strategy, "hash") == 0;
}

/*
 * May the user have so many chunks and table groups, and of that size? The config node says so again when it makes them (config/owner_limits.c), from
 * what it knows then and under a lock; here it is asked before anything else is done.
 */
static void
check_owner_limits(const Sharding *sharding)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	const TesseraNode *config = tessera_routing_config(routing);
	TesseraCommandNeeds needs = {0};

	tessera_require_table_owner(sharding->relid);
	if (config != NULL && config->node_id != routing->self &&
		tessera_connection_protocol(tessera_participant(routing, config->node_id, &needs)) < TESSERA_LIMITS_PROTOCOL)
		return;
	tessera_call_check_owner_limits(tessera_to_config(), tessera_qualified_name(sharding->relid), GetUserNameFromId(GetUserId(), false),
									Max(sharding->nchunks, 1), sharding->max_chunk_size > 0 ? &sharding->max_chunk_size : NULL);
}

/* CREATE INDEX as the caller, through SQL, so that it goes wherever DDL goes. */
static void
create_key_index(const Sharding *sharding)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "CREATE INDEX ON %s (", sharding->qualified);
	for (int i = 0; i < sharding->key->n; i++)
		appendStringInfo(&sql, "%s%s", i > 0 ? ", " : "", tessera_quote(sharding->key->names[i]));
	appendStringInfoChar(&sql, ')');

	SPI_connect();
	if (SPI_execute(sql.data, false, 0) != SPI_OK_UTILITY)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("could not create the key index: %s", sql.data)));
	SPI_finish();
}

/* Where all obstacles are listed: the call of tessera.check_table with the arguments of this one. */
static char *
report_hint(const Sharding *sharding, const TesseraShardable *shardable)
{
	StringInfoData hint;

	initStringInfo(&hint);
	appendStringInfo(&hint, "SELECT * FROM tessera.check_table(%s, %s", quote_literal_cstr(RelationUsesLocalBuffers(shardable->rel) ?
																						   tessera_quote(RelationGetRelationName(shardable->rel)) :
																						   sharding->qualified),
																						   quote_literal_cstr(shardable->key_text));
	if (shardable->hashed)
		appendStringInfoString(&hint, ", strategy => 'hash'");
	if (OidIsValid(shardable->with) && get_rel_name(shardable->with) != NULL)
		appendStringInfo(&hint, ", colocate_with => %s", quote_literal_cstr(tessera_qualified_name(shardable->with)));
	appendStringInfoString(&hint, ") lists all that is in the way, with the statements that mend it.");
	return hint.data;
}

/* DDL on the table, from whatever node, goes before or after: what that may do depends on whether the table is sharded. */
static void
lock_name(void *arg)
{
	Sharding   *sharding = arg;

	tessera_ddl_lock(tessera_routing(), list_make1(psprintf("relation %s", sharding->qualified)),
					 tessera_ddl_groups(tessera_routing(), NIL, list_make1_oid(get_rel_namespace(sharding->relid))), "tessera.shard_table", NULL,
					 NULL);
}

/* All checks; fills routing, table, key, group. */
static void
check_table(Sharding *sharding, const char *key, Oid colocate_with, bool create_index)
{
	char	   *name = get_rel_name(sharding->relid);
	TesseraShardable shardable = {.key_text = key, .hashed = sharding->hashed, .with = colocate_with, .create_index = create_index};
	TesseraFindings findings = {0};
	Relation	rel;

	/* Who owns a table of a group can stand in the way of its moves: it is the owner's of the others to say who joins. */
	if (OidIsValid(colocate_with))
		tessera_require_table_owner(colocate_with);
	if (name != NULL)
	{
		tessera_require_table_owner(sharding->relid);
		shardable.subscribed = tessera_subscribed_anywhere(tessera_sharding_routing());
		sharding->qualified = tessera_quote_qualified(get_namespace_name(get_rel_namespace(sharding->relid)), name);
		tessera_ddl_attempts(lock_name, sharding, TESSERA_PATIENCE_DDL);
	}
	rel = table_open(sharding->relid, ShareUpdateExclusiveLock);
	(void) tessera_partitions(sharding->relid, ShareUpdateExclusiveLock);
	tessera_require_table_owner(sharding->relid);
	sharding->qualified = tessera_quote_qualified(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel));
	sharding->routing = tessera_sharding_routing();
	shardable.rel = rel;
	shardable.routing = sharding->routing;
	tessera_shardable(&shardable, &findings);
	tessera_findings_raise(&findings, report_hint(sharding, &shardable));
	sharding->table = shardable.table;
	sharding->group = shardable.group;
	sharding->key = shardable.key;
	if (shardable.apart && !sharding->apart)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table \"%s\" is already sharded", RelationGetRelationName(rel))));
	sharding->done = shardable.apart;
	sharding->cross_table_code = tessera_cross_table_code_text(tessera_cross_table_code_of_tree(rel));
	table_close(rel, NoLock);
	/* by a session of another node the statement would be taken for one of that node's */
	if (!shardable.has_key_index && sharding->apart)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table %s has no index that begins with its shard key, and rows that have to be moved", sharding->qualified),
				 errhint("First CREATE INDEX ON %s (%s).", sharding->qualified, key)));
	if (!shardable.has_key_index)
		create_key_index(sharding);
}


/* Phase 2: the primary shard */

/* Names of the key columns as text of a name[]. */
static char *
key_names_text(const TesseraShardKey *key)
{
	Datum		names[TESSERA_MAX_KEY_COLUMNS];
	Oid			output;
	bool		is_varlena;

	for (int i = 0; i < key->n; i++)
		names[i] = CStringGetTextDatum(key->names[i]);
	getTypeOutputInfo(TEXTARRAYOID, &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(construct_array(names, key->n, TEXTOID, -1, false, TYPALIGN_INT)));
}

static TesseraBound **
bounds_of_text(const char *text, int *n)
{
	Oid			input,
				ioparam;

	getTypeInputInfo(get_array_type(tessera_bound_type()), &input, &ioparam);
	return tessera_bounds_of_array(DatumGetArrayTypeP(OidInputFunctionCall(input, unconstify(char *, text), ioparam, -1)), n);
}

/* Points from the table's own keys, sampled on its primary shard before anything is locked. */
static void
sample_points(Sharding *sharding)
{
	char	   *points;

	tessera_call_sample_keys(tessera_to_node(sharding->table->node_id), sharding->qualified, key_names_text(sharding->key), false, "MINKEY", "MAXKEY",
							 sharding->nchunks, &points);
	sharding->points = bounds_of_text(points, &sharding->npoints);
}

static void
hash_points(Sharding *sharding)
{
	TesseraKeyBound *points = palloc(sizeof(TesseraKeyBound) * sharding->nchunks);

	tessera_split_points_of_hash(sharding->nchunks, points);
	sharding->npoints = sharding->nchunks - 1;
	sharding->points = palloc(sizeof(TesseraBound *) * sharding->nchunks);
	for (int i = 0; i < sharding->npoints; i++)
		sharding->points[i] = tessera_key_to_bound(sharding->key->ks, &points[i]);
}

/* As the chunks of the group that it is to join; what the table will be moved by is all of the same size then. */
static void
points_of_group(Sharding *sharding)
{
	int			n = tessera_routing_nchunks(sharding->routing, sharding->group);

	sharding->points = palloc(sizeof(TesseraBound *) * n);
	sharding->npoints = n - 1;
	for (int i = 1; i < n; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(sharding->routing, sharding->group, i, &chunk);
		sharding->points[i - 1] = tessera_key_to_bound(tessera_group_keyspace(sharding->routing, sharding->group), &chunk.min);
	}
	sharding->group = NULL;
}

static void
choose_points(Sharding *sharding)
{
	if (sharding->apart)
		points_of_group(sharding);
	if (sharding->nchunks < 2)
		return;
	if (sharding->hashed)
		hash_points(sharding);
	else
		sample_points(sharding);
}

/* Do other shards than the table's own have chunks of the group? */
static bool
is_spread(const Sharding *sharding)
{
	TesseraTargets *owners = tessera_routing_owners(sharding->routing, sharding->group);

	return owners->n != 1 || owners->node_ids[0] != sharding->table->node_id;
}

static void
lock_primary(Sharding *sharding)
{
	tessera_call_lock_for_sharding(tessera_writing(tessera_to_node(sharding->table->node_id)), sharding->qualified, &sharding->has_rows);
	if (sharding->has_rows && sharding->group != NULL && is_spread(sharding))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("table %s has rows, which have to be moved to where the chunks of the table group are", sharding->qualified),
				 errdetail("The migrations would wait for this transaction, which has written, and the transaction for the migrations."),
				 errhint("Commit first; call the function in a transaction of its own.")));
	if (sharding->nchunks > 1 && !sharding->hashed)
	{
		if (!sharding->has_rows)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("table %s is empty: there are no keys to choose %d chunks by", sharding->qualified, sharding->nchunks),
					 errhint("Use strategy => 'hash', or shard it without chunks and split it with tessera.split_chunk.")));
		if (sharding->npoints + 1 < sharding->nchunks)
			ereport(NOTICE,
					(errmsg("table %s has too few different keys for %d chunks", sharding->qualified, sharding->nchunks),
					 errdetail("It gets %d.", sharding->npoints + 1)));
	}
}


/* Phase 3: the config node */

static void
json_text(StringInfo json, const char *name, const char *value)
{
	appendStringInfo(json, "%s\"%s\": ", json->len > 1 ? ", " : "", name);
	if (value != NULL)
		escape_json(json, value);
	else
		appendStringInfoString(json, "null");
}

/* Type and collation of a key column as every node can read them; of a domain its base type. */
static const char *
type_text(const TesseraKeyColumn *column)
{
	return tessera_type_text(column->type, column->typmod, FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY);
}

static const char *
collation_text(const TesseraKeyColumn *column)
{
	HeapTuple	tuple;
	Form_pg_collation form;
	const char *text;

	if (!OidIsValid(column->collation))
		return "";
	tuple = SearchSysCache1(COLLOID, ObjectIdGetDatum(column->collation));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("collation with OID %u does not exist", column->collation)));
	form = (Form_pg_collation) GETSTRUCT(tuple);
	text = psprintf("%s.%s", tessera_quote(get_namespace_name(form->collnamespace)), tessera_quote(NameStr(form->collname)));
	ReleaseSysCache(tuple);
	return text;
}

static void
json_key(StringInfo json, const TesseraShardKey *key)
{
	appendStringInfoString(json, ", \"key_columns\": [");
	for (int i = 0; i < key->n; i++)
	{
		appendStringInfoString(json, i > 0 ? ", " : "");
		escape_json(json, key->names[i]);
	}
	appendStringInfoString(json, "], \"key_types\": [");
	for (int i = 0; i < key->n; i++)
	{
		appendStringInfoString(json, i > 0 ? ", " : "");
		escape_json(json, type_text(&key->ks->columns[i]));
	}
	appendStringInfoString(json, "], \"key_collations\": [");
	for (int i = 0; i < key->n; i++)
	{
		appendStringInfoString(json, i > 0 ? ", " : "");
		escape_json(json, collation_text(&key->ks->columns[i]));
	}
	appendStringInfoChar(json, ']');
}

/* Inner bounds of the chunks, in key order. */
static void
json_points(StringInfo json, const Sharding *sharding)
{
	appendStringInfoString(json, ", \"points\": [");
	for (int i = 0; i < sharding->npoints; i++)
	{
		char	   *point = tessera_bound_to_cstring(sharding->points[i]);

		appendStringInfoString(json, i > 0 ? ", {\"point\": " : "{\"point\": ");
		escape_json(json, point);
		appendStringInfoChar(json, '}');
		pfree(point);
	}
	appendStringInfoChar(json, ']');
}

/* What the config node is asked to write; see config/group_changes.c. */
static char *
specification(const Sharding *sharding)
{
	StringInfoData json;

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	json_text(&json, "table_id", tessera_uuid_text(&sharding->table->table_id));
	json_text(&json, "object", sharding->qualified);
	json_text(&json, "by", GetUserNameFromId(GetUserId(), false));
	json_text(&json, "term", psprintf(INT64_FORMAT, sharding->routing->promised_term));
	json_text(&json, "primary", psprintf("%d", sharding->table->node_id));
	json_key(&json, sharding->key);
	if (sharding->group != NULL)
	{
		json_text(&json, "group_id", tessera_uuid_text(&sharding->group->group_id));
		json_text(&json, "epoch", tessera_uuid_text(&sharding->group->epoch));
		json_text(&json, "has_rows", sharding->has_rows ? "true" : "false");
	}
	else
	{
		json_text(&json, "strategy", sharding->hashed ? "hash" : "range");
		json_text(&json, "max_chunk_size", sharding->max_chunk_size > 0 ? psprintf(INT64_FORMAT, sharding->max_chunk_size) : NULL);
		json_text(&json, "spread", !sharding->apart && !sharding->has_rows && sharding->npoints > 0 ? "true" : "false");
		json_text(&json, "balancing", sharding->apart ? "false" : "true");
		json_text(&json, "apart", sharding->apart ? "true" : "false");
		json_points(&json, sharding);
	}
	appendStringInfoChar(&json, '}');
	return json.data;
}


/* Phase 4: the copies */

int
tessera_placements_of(const char *rows, int32 **nodes, char ***placements)
{
	MemoryContext caller = CurrentMemoryContext,
				old;
	TesseraSpi	spi;
	int			n;

	tessera_spi_begin(&spi);
	n = (int) tessera_spi_run("SELECT p.node_id, p.placement FROM jsonb_to_recordset(nullif($1::jsonb->'placements', 'null')) AS p(node_id int4, "
							  "placement jsonb)"
							  " ORDER BY p.node_id", SPI_OK_SELECT, 1, (Oid[]) {TEXTOID}, (Datum[]) {CStringGetTextDatum(rows)}, NULL);
	old = MemoryContextSwitchTo(caller);
	*nodes = palloc(sizeof(int32) * Max(n, 1));
	*placements = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		(*nodes)[i] = DatumGetInt32(spi_row_value(i, 1));
		(*placements)[i] = spi_row_text(i, 2);
	}
	MemoryContextSwitchTo(old);
	tessera_spi_end(&spi);
	return n;
}

static int
add_node(int32 *nodes, int n, int32 node_id)
{
	for (int i = 0; i < n; i++)
		if (nodes[i] == node_id)
			return n;
	nodes[n] = node_id;
	return n + 1;
}

/*
 * Owners, the table's primary shard, this node. Of a group that is joined, shards that own its chunks hear of the table now: a router tells them what
 * it takes the table for, but a trigger that runs there is not told.
 */
static void
apply(const Sharding *sharding, const char *rows)
{
	int32	   *owners;
	char	  **placements;
	int			nowners = tessera_placements_of(rows, &owners, &placements);
	TesseraTargets *joined = sharding->group != NULL ? tessera_routing_owners(sharding->routing, sharding->group) : NULL;
	int32	   *nodes = palloc(sizeof(int32) * (nowners + 2 + (joined ? joined->n : 0)));
	int			n = 0;

	for (int i = 0; i < nowners; i++)
		n = add_node(nodes, n, owners[i]);
	n = add_node(nodes, n, sharding->table->node_id);
	n = add_node(nodes, n, sharding->routing->self);
	for (int i = 0; joined != NULL && i < joined->n; i++)
		n = add_node(nodes, n, joined->node_ids[i]);

	tessera_group_copies(rows, &sharding->table->table_id, n, nodes);
	for (int i = 0; i < nowners; i++)
		tessera_call_set_placement(tessera_writing(tessera_to_node(owners[i])), placements[i]);
}


/* The phases. */
static void
shard(Sharding *sharding, const char *key, Oid colocate_with, bool create_index)
{
	const char *spec;
	char	   *rows;

	check_table(sharding, key, colocate_with, create_index);
	if (sharding->done)
		return;
	choose_points(sharding);
	lock_primary(sharding);
	spec = specification(sharding);
	if (sharding->group != NULL)
		tessera_call_join_group(tessera_writing(tessera_to_config()), spec, &rows);
	else
		tessera_call_create_group(tessera_writing(tessera_to_config()), spec, &rows);
	apply(sharding, rows);
}

/*
 * In a session that the caller of shard_table has opened to
 * its own node, as that user: the table gets a group of its own, in chunks like those of the group that it is to join, all on its primary shard.
 * Nothing if it has one.
 * His rights are asked for again. No index is made, and of rows only whether there is one is read: of the table's code, what can run is constant
 * parts of its indexes' expressions, as when he names the table in any statement.
 */
void
tessera_serve_shard_apart(const TesseraShardApartArgs *args)
{
	Sharding	sharding = {.relid = (Oid) args->relation, .hashed = args->hashed, .apart = true};
	TesseraActing before;

	tessera_act_as_user(&before, (Oid) args->by);
	shard(&sharding, args->key, (Oid) args->colocate_with, true);
	tessera_act_end(&before);
	tessera_injection("apart_applied");
}

void
tessera_warn_cross_table_code(const char *table, const char *cross_table_code)
{
	if (cross_table_code != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("code of table %s may reach rows of other tables: %s", table, cross_table_code),
				 errdetail("What runs on the shard of the row (policies, checks, triggers that fire there) fails with 0A000 when it needs a row "
						   "of another shard."),
				 errhint("See \"Triggers, policies, functions\" in doc/differences.md before ranges are moved.")));
}

/* tessera.shard_table(table_name, key, strategy, colocate_with, chunks, create_index, max_chunk_size) */
Datum
tessera_shard_table(PG_FUNCTION_ARGS)
{
	Sharding	sharding = {0};
	const char *key;
	Oid			colocate_with;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("table_name, key and strategy must not be null")));
	sharding.relid = PG_GETARG_OID(0);
	sharding.hashed = tessera_strategy_is_hash(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	sharding.nchunks = PG_ARGISNULL(4) ? 0 : PG_GETARG_INT32(4);
	sharding.max_chunk_size = PG_ARGISNULL(6) ? 0 : PG_GETARG_INT64(6);
	if (!PG_ARGISNULL(4) && (sharding.nchunks < 1 || sharding.nchunks > MAX_CHUNKS))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("chunks must be between 1 and %d", MAX_CHUNKS)));
	if (!PG_ARGISNULL(6))
		tessera_require_chunk_size(sharding.max_chunk_size);
	if (!PG_ARGISNULL(3) && !(PG_ARGISNULL(4) && PG_ARGISNULL(6)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("chunks and max_chunk_size are those of the group that the table joins"),
				 errhint("Leave them out, or leave out colocate_with.")));

	key = text_to_cstring(PG_GETARG_TEXT_PP(1));
	colocate_with = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3);
	tessera_fan_out_settle_tables();
	if (OidIsValid(colocate_with) && tessera_colocate(sharding.relid, key, sharding.hashed, colocate_with))
		PG_RETURN_VOID();
	if (!OidIsValid(colocate_with))
		check_owner_limits(&sharding);
	shard(&sharding, key, colocate_with, !PG_ARGISNULL(5) && PG_GETARG_BOOL(5));
	tessera_warn_cross_table_code(sharding.qualified, sharding.cross_table_code);
	PG_RETURN_VOID();
}
