/*
 * register_move.c
 *	  The registration of a move on the config node: who may move what where, and the row that says so (S35-S38, S42).
 *
 * Registrations of one group are serial by the group's row lock; those of different groups that want the same shard meet at the unique partial
 * indexes of tessera.migration. How it is decided is in commit_move.c.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "catalog/bound_array.h"
#include "catalog/migration_state.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/abandoned_migrations.h"
#include "config/chunks.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"


#define LOCK_GROUP_MS 5000

typedef struct Request
{
	const TesseraRouting *routing;
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	TesseraGroupRow row;
	pg_uuid_t	table_id;
	TesseraKeyBound min;
	TesseraKeyBound max;
	TesseraBound *min_bound;
	TesseraBound *max_bound;
	int32		donor;
	int32		recipient;
	bool		verify;
} Request;

typedef enum Found
{
	FOUND_NONE,
	FOUND_SAME,
	FOUND_OTHER
} Found;


/* Locks the group's row; not for ever: DDL on a table of the group holds it shared to the end of its transaction. */
static void
lock_group(Request *request, const pg_uuid_t *group_id)
{
	char		timeout[16];

	snprintf(timeout, sizeof(timeout), "%d", LOCK_GROUP_MS);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	PG_TRY();
	{
		tessera_group_lock(group_id, &request->row);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a DDL statement on the table, or on one of its group, is under way"),
				 errhint("Try again when its transaction has ended.")));
	}
	PG_END_TRY();
}

static void
find_table(Request *request, int64 term)
{
	const TesseraTable *table;

	request->routing = tessera_routing();
	if (request->routing == NULL || !request->routing->is_config)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node is not the config node")));
	tessera_require_metadata(request->routing);
	if (request->routing->term < term)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_FENCED),
				 errmsg("this config node is of an older term than the caller has seen")));
	table = tessera_routing_table_by_id(request->routing, &request->table_id);
	if (table == NULL || table->group < 0)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table is not sharded according to the config node")));
	lock_group(request, &tessera_routing_group(request->routing, table->group)->group_id);
	/* under the lock nothing of the group changes: read again */
	request->routing = tessera_routing();
	request->group = tessera_routing_group_by_id(request->routing, &request->row.group_id);
	if (request->group == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_TESSERA_PLACEMENT_CHANGED),
				 errmsg("the table group is gone")));
	request->ks = tessera_group_keyspace(request->routing, request->group);
	if (!request->row.allow_migrations)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("migrations of the table are not allowed at present"),
				 errhint("Column allow_migrations of tessera.table_group is false for its group, on the config node.")));
}

static void
find_recipient(Request *request, const char *name)
{
	const TesseraNode *node = tessera_routing_node_by_name(request->routing, name);

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
				 errmsg("shard \"%s\" is being removed", name)));
	request->recipient = node->node_id;
}

/* The range asked for: min to max, or the chunk that holds a position. */
static void
find_range(Request *request, const TesseraBound *min, const TesseraBound *max, const TesseraBound *position)
{
	if (position != NULL)
	{
		TesseraChunk chunk;
		TesseraKeyBound key;

		tessera_key_from_bound(request->ks, position, &key);
		tessera_routing_chunk(request->routing, request->group, tessera_routing_find_chunk(request->routing, request->group, &key), &chunk);
		request->min = chunk.min;
		request->max = chunk.max;
	}
	else
	{
		tessera_key_from_bound(request->ks, min, &request->min);
		tessera_key_from_bound(request->ks, max, &request->max);
	}
	request->min_bound = tessera_key_to_bound(request->ks, &request->min);
	request->max_bound = tessera_key_to_bound(request->ks, &request->max);
	if (tessera_key_compare(request->ks, &request->min, &request->max) >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("min %s is not below max %s", tessera_bound_to_cstring(request->min_bound), tessera_bound_to_cstring(request->max_bound))));
}

/*
 * The part of the range that is to be moved first: from its lowest key that is not at the recipient, as far as one shard owns it. Narrows the range
 * to it. If all of it is at the recipient, that is the donor.
 */
static void
find_part(Request *request)
{
	int			n = tessera_routing_nchunks(request->routing, request->group);
	TesseraKeyBound max = request->max;

	request->donor = request->recipient;
	for (int i = tessera_routing_find_chunk(request->routing, request->group, &request->min); i < n; i++)
	{
		TesseraChunk chunk;

		tessera_routing_chunk(request->routing, request->group, i, &chunk);
		if (tessera_key_compare(request->ks, &chunk.min, &max) >= 0)
			break;
		if (request->donor != request->recipient && chunk.node_id != request->donor)
		{
			request->max = chunk.min;
			break;
		}
		if (request->donor == request->recipient && chunk.node_id != request->recipient)
		{
			request->donor = chunk.node_id;
			if (tessera_key_compare(request->ks, &chunk.min, &request->min) > 0)
				request->min = chunk.min;
		}
	}
	request->min_bound = tessera_key_to_bound(request->ks, &request->min);
	request->max_bound = tessera_key_to_bound(request->ks, &request->max);
}

/* A running migration that is the same (S38), or in the way (S37). Between tessera_spi_begin and _end; *id is copied. */
static Found
find_running(const Request *request, pg_uuid_t *id, char **shard)
{
	Oid			types[] = {UUIDOID, INT4OID, INT4OID, tessera_bound_type(), tessera_bound_type()};
	Datum		values[] = {
		UUIDPGetDatum(&request->group->group_id), Int32GetDatum(request->donor), Int32GetDatum(request->recipient),
		PointerGetDatum(request->min_bound), PointerGetDatum(request->max_bound)
	};

	/* one out and one in for each shard; of one group, one migration for each shard: its placement has one flag */
	if (tessera_spi_run("SELECT m.migration_id, m.group_id = $1 AND m.donor = $2 AND m.recipient = $3 AND m.min OPERATOR(tessera.=) $4"
						"  AND m.max OPERATOR(tessera.=) $5 AS same,"
						" (SELECT n.name FROM tessera.node AS n WHERE n.node_id = CASE WHEN m.donor = $2 OR m.recipient = $2 AND m.group_id = $1"
						"  THEN $2 ELSE $3 END)"
						" FROM tessera.migration AS m WHERE m.state = 'running' AND"
						" (m.donor = $2 OR m.recipient = $3 OR m.group_id = $1 AND (m.donor = $3 OR m.recipient = $2))"
						" ORDER BY same DESC LIMIT 1", SPI_OK_SELECT, 5, types, values, NULL) == 0)
		return FOUND_NONE;
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
	*shard = spi_row_text(0, 3);
	return DatumGetBool(spi_row_value(0, 2)) ? FOUND_SAME : FOUND_OTHER;
}

static bool
insert_migration(const Request *request, pg_uuid_t *id)
{
	Oid			types[] = {UUIDOID, UUIDOID, tessera_bound_type(), tessera_bound_type(), INT4OID, INT4OID, UUIDOID, BOOLOID};
	Datum		values[] = {
		UUIDPGetDatum(&request->group->group_id), UUIDPGetDatum(&request->table_id), PointerGetDatum(request->min_bound),
		PointerGetDatum(request->max_bound), Int32GetDatum(request->donor), Int32GetDatum(request->recipient), UUIDPGetDatum(&request->group->epoch),
		BoolGetDatum(request->verify)
	};

	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_NONE, TESSERA_RUNNING);
	if (tessera_spi_run("INSERT INTO tessera.migration (migration_id, group_id, table_id, min, max, donor, recipient, epoch, term, donor_incarnation,"
						"  recipient_incarnation, verify, caller_pid)"
						" SELECT gen_random_uuid(), $1, $2, $3, $4, $5, $6, $7, i.term, d.incarnation, r.incarnation, $8, pg_backend_pid()"
						" FROM tessera.identity AS i, tessera.node AS d, tessera.node AS r WHERE d.node_id = $5 AND r.node_id = $6"
						" ON CONFLICT DO NOTHING RETURNING migration_id", SPI_OK_INSERT_RETURNING, 8, types, values, NULL) != 1)
		return false;
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
	return true;
}

/* What donor and recipient are told. */
static char *
request_text(const pg_uuid_t *id)
{
	tessera_spi_run("SELECT tessera_internal.migration_request($1)::text", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(id)}, NULL);
	return spi_row_text(0, 1);
}

/* The row of the migration: new, or of the same one that runs (*joined). */
static char *
register_migration(const Request *request, pg_uuid_t *id, bool *joined)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	char	   *shard = NULL;
	char	   *text;
	Found		found = FOUND_NONE;

	tessera_spi_begin(&spi);
	for (int attempt = 0; attempt < 3; attempt++)
	{
		found = find_running(request, id, &shard);
		if (found != FOUND_NONE || insert_migration(request, id))
			break;
	}
	if (found == FOUND_OTHER)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("shard \"%s\" takes part in another migration", shard ? shard : "?"),
				 errdetail("Migration %s runs.", tessera_uuid_text(id)),
				 errhint("Wait for it, or end it with tessera.cancel_migration.")));
	*joined = found == FOUND_SAME;
	if (*joined)
		tessera_spi_run("UPDATE tessera.migration SET caller_pid = pg_backend_pid() WHERE migration_id = $1 AND phase IS NULL", SPI_OK_UPDATE, 1,
						(Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(id)}, NULL);
	tessera_migration_watch_caller();
	text = MemoryContextStrdup(caller, request_text(id));
	tessera_spi_end(&spi);
	return text;
}

/* Of a range that several shards own, the first part that is not at the recipient; migration_id null: there is none. */
void
tessera_serve_register_migration(const TesseraRegisterMigrationArgs *args, TesseraRegisterMigrationResult *result)
{
	Request		request = {0};

	if (args->position == NULL && (args->min == NULL || args->max == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("a range must not be null")));
	tessera_commit_durably();
	request.table_id = *args->table_id;
	request.verify = args->verify;
	find_table(&request, args->term);
	find_recipient(&request, args->to_shard);
	find_range(&request, args->min, args->max, args->position);
	find_part(&request);
	result->donor = request.donor;
	if (request.donor == request.recipient)
		return;
	result->migration_id = palloc(UUID_LEN);
	result->request = register_migration(&request, result->migration_id, &result->joined);
	tessera_injection("config_registered");
	result->part_min = request.min_bound;
	result->part_max = request.max_bound;
}
