/*
 * move_requests.c
 *	  Moves that the balancer is asked to make: rows of tessera.balancer_action, which src/balancer/ carries out in its own time (config node).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "balance/move_reasons.h"
#include "catalog/bound_array.h"
#include "common/errors.h"
#include "common/spi_row.h"
#include "common/worker_registry.h"
#include "config/authority.h"
#include "config/move_requests.h"
#include "control/calls.h"

typedef struct Request
{
	const TesseraGroup *group;
	const TesseraTable *table;
	TesseraBound *min;			/* canonical */
	TesseraBound *max;
	int32		recipient;		/* 0: the balancer chooses */
} Request;

static void
find_table(const TesseraRouting *routing, const pg_uuid_t *table_id, Request *request)
{
	request->table = tessera_routing_table_by_id(routing, table_id);
	if (request->table == NULL || request->table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table is not sharded according to the config node")));
	request->group = tessera_routing_group(routing, request->table->group);
}

static void
find_range(const TesseraRouting *routing, const TesseraBound *min, const TesseraBound *max, Request *request)
{
	TesseraKeySpace *ks = tessera_group_keyspace(routing, request->group);
	TesseraKeyBound low;
	TesseraKeyBound high;

	tessera_key_from_bound(ks, min, &low);
	tessera_key_from_bound(ks, max, &high);
	request->min = tessera_key_to_bound(ks, &low);
	request->max = tessera_key_to_bound(ks, &high);
	if (tessera_key_compare(ks, &low, &high) >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min %s is not below max %s", tessera_bound_to_cstring(request->min), tessera_bound_to_cstring(request->max))));
}

int32
tessera_shard_to_move_to(const TesseraRouting *routing, const char *name)
{
	const TesseraNode *node = tessera_routing_node_by_name(routing, name);

	if (node == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("shard \"%s\" does not exist", name),
				 errhint("tessera.shards lists the shards.")));
	if (!node->is_shard)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("node \"%s\" is not a shard", name)));
	if (node->draining)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shard \"%s\" is being removed", name),
				 errhint("Call it off with tessera.cancel_remove_shard(), or name another shard.")));
	return node->node_id;
}

/* The same request that is queued or under way already; NULL: there is none. */
static pg_uuid_t *
find_same(const Request *request, const char *reason)
{
	Oid			bound = tessera_bound_type();
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *id = NULL;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT action_id FROM tessera.balancer_action WHERE state IN ('queued', 'running') AND kind = 'move' AND group_id = $1"
						" AND min OPERATOR(tessera.=) $2 AND max OPERATOR(tessera.=) $3 AND coalesce(recipient, 0) = $4 AND reason = $5",
						SPI_OK_SELECT, 5, (Oid[]) {UUIDOID, bound, bound, INT4OID, TEXTOID},
						(Datum[]) {UUIDPGetDatum(&request->group->group_id), PointerGetDatum(request->min), PointerGetDatum(request->max),
		Int32GetDatum(request->recipient), CStringGetTextDatum(reason)}, NULL) > 0)
	{
		id = MemoryContextAlloc(caller, UUID_LEN);
		*id = *DatumGetUUIDP(spi_row_value(0, 1));
	}
	tessera_spi_end(&spi);
	return id;
}

/*
 * An end of the key space is asked for again and again while rows come in there: one that waits is narrowed to what is empty now, one that runs is
 * enough, as long as its migration does: what has moved may be what is asked for to move on. NULL: there is none.
 */
static pg_uuid_t *
find_top(const Request *request)
{
	Oid			bound = tessera_bound_type();
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *id = NULL;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("UPDATE tessera.balancer_action AS a SET min = CASE state WHEN 'queued' THEN $2 ELSE min END,"
						" max = CASE state WHEN 'queued' THEN $3 ELSE max END WHERE reason = 'top' AND group_id = $1 AND (state = 'queued' OR"
						"  state = 'running' AND EXISTS (SELECT FROM tessera.migration AS m WHERE m.migration_id = a.migration_id"
						"   AND m.state = 'running'))"
						" AND (min OPERATOR(tessera.=) $2 OR max OPERATOR(tessera.=) $3) RETURNING action_id", SPI_OK_UPDATE_RETURNING, 3,
						(Oid[]) {UUIDOID, bound, bound},
						(Datum[]) {UUIDPGetDatum(&request->group->group_id), PointerGetDatum(request->min), PointerGetDatum(request->max)}, NULL) > 0)
	{
		id = MemoryContextAlloc(caller, UUID_LEN);
		*id = *DatumGetUUIDP(spi_row_value(0, 1));
	}
	tessera_spi_end(&spi);
	return id;
}

static bool
is_balanced(const pg_uuid_t *group_id)
{
	TesseraSpi	spi;
	bool		result;

	tessera_spi_begin(&spi);
	result = tessera_spi_run("SELECT FROM tessera.table_group WHERE group_id = $1 AND balancing", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
							 (Datum[]) {UUIDPGetDatum(group_id)}, NULL) > 0;
	tessera_spi_end(&spi);
	return result;
}

static pg_uuid_t *
insert_request(const Request *request, const TesseraRequestMoveArgs *args)
{
	Oid			bound = tessera_bound_type();
	MemoryContext caller = CurrentMemoryContext;
	pg_uuid_t  *id;
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	tessera_spi_run("INSERT INTO tessera.balancer_action (kind, group_id, table_id, min, max, recipient, reason, by, verify)"
					" VALUES ('move', $1, $2, $3, $4, nullif($5, 0), $6, $7, $8) RETURNING action_id", SPI_OK_INSERT_RETURNING, 8,
					(Oid[]) {UUIDOID, UUIDOID, bound, bound, INT4OID, TEXTOID, NAMEOID, BOOLOID},
					(Datum[]) {UUIDPGetDatum(&request->group->group_id), UUIDPGetDatum(&request->table->table_id), PointerGetDatum(request->min),
		PointerGetDatum(request->max), Int32GetDatum(request->recipient), CStringGetTextDatum(args->reason),
		DirectFunctionCall1(namein, CStringGetDatum(args->by)), BoolGetDatum(args->verify)}, NULL);
	id = MemoryContextAlloc(caller, UUID_LEN);
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
	tessera_spi_end(&spi);
	return id;
}

pg_uuid_t *
tessera_serve_request_move(const TesseraRequestMoveArgs *args)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	bool		top = strcmp(args->reason, TESSERA_REASON_TOP) == 0;
	TesseraGroupRow row;
	Request		request = {0};
	pg_uuid_t  *id;

	find_table(routing, args->table_id, &request);
	tessera_group_lock(&request.group->group_id, &row); /* two that ask for the same */
	/* a shard asks for that by itself, nobody else */
	if (top && !is_balanced(&request.group->group_id))
		return NULL;
	find_range(routing, args->min, args->max, &request);
	if (args->to_shard != NULL)
		request.recipient = tessera_shard_to_move_to(routing, args->to_shard);
	id = top ? find_top(&request) : find_same(&request, args->reason);
	if (id == NULL)
		id = insert_request(&request, args);
	(void) tessera_worker_wake(TESSERA_BALANCER);
	return id;
}

/* A schema: two that ask for the same wait for each other at its row. */
pg_uuid_t *
tessera_serve_request_schema_move(const TesseraRequestSchemaMoveArgs *args)
{
	const TesseraRouting *routing = tessera_config_routing(args->term);
	int32		recipient = args->to_shard != NULL ? tessera_shard_to_move_to(routing, args->to_shard) : 0;
	MemoryContext caller = CurrentMemoryContext;
	Datum		name = DirectFunctionCall1(namein, CStringGetDatum(args->schema_name));
	pg_uuid_t  *id = MemoryContextAlloc(caller, UUID_LEN);
	TesseraSpi	spi;

	tessera_spi_begin(&spi);
	if (tessera_spi_run("SELECT FROM tessera.schema_placement WHERE schema_name = $1 FOR UPDATE", SPI_OK_SELECT, 1, (Oid[]) {NAMEOID}, &name,
						NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema \"%s\" is not one of the cluster", args->schema_name),
				 errhint("tessera.schemas lists the schemas that have a shard.")));
	if (tessera_spi_run("SELECT action_id FROM tessera.balancer_action WHERE state IN ('queued', 'running') AND kind = 'move' AND schema_name = $1"
						" AND coalesce(recipient, 0) = $2 AND reason = $3", SPI_OK_SELECT, 3, (Oid[]) {NAMEOID, INT4OID, TEXTOID},
						(Datum[]) {name, Int32GetDatum(recipient), CStringGetTextDatum(args->reason)}, NULL) == 0)
		tessera_spi_run("INSERT INTO tessera.balancer_action (kind, schema_name, recipient, reason, by, verify)"
						" VALUES ('move', $1, nullif($2, 0), $3, $4, $5) RETURNING action_id", SPI_OK_INSERT_RETURNING, 5,
						(Oid[]) {NAMEOID, INT4OID, TEXTOID, NAMEOID, BOOLOID},
						(Datum[]) {name, Int32GetDatum(recipient), CStringGetTextDatum(args->reason),
			DirectFunctionCall1(namein, CStringGetDatum(args->by)), BoolGetDatum(args->verify)}, NULL);
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
	tessera_spi_end(&spi);
	(void) tessera_worker_wake(TESSERA_BALANCER);
	return id;
}
