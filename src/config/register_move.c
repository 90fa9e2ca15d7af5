/*
 * register_move.c
 *	  The registration of a move on the config node: who may move what where, and the row that says so (S35-S38, S42).
 *
 * Migrations of one group that run at the same time have disjoint ranges: its registrations are serial by the group's row lock. A shard takes part in
 * at most tessera.max_moves_per_shard: registrations that want the same shard are serial by a lock on it. How it is decided is in commit_move.c.
 *
 * A migration is registered of one range (its first part that is not at the recipient, as far as one shard owns it), or, by the balancer, of several
 * of one group: of what the donor owns of each. Ranges that touch each other become one, so that no chunk is cut where they meet.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "catalog/bound_array.h"
#include "catalog/migration_state.h"
#include "catalog/relation.h"
#include "common/durable.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "config/abandoned_migrations.h"
#include "config/chunks.h"
#include "config/membership.h"
#include "config/move_requests.h"
#include "config/registration.h"
#include "control/calls.h"
#include "routing/routing.h"
#include "transaction/background.h"


#define LOCK_GROUP_MS 5000
#define MAX_NOTED 1000			/* chunks whose estimates are looked up */

static int	max_moves_per_shard;

/* What a migration moves. */
typedef struct Part
{
	TesseraKeyBound min;
	TesseraKeyBound max;
} Part;

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
	int			nparts;
	Part	   *parts;			/* in order, disjoint, none touches the next */
	int32		donor;
	int32		recipient;
	bool		verify;
	bool		yields;
	bool		whole;			/* it is of whole chunks */
	int			nchunks;
	TesseraBound **chunks;		/* where they begin */
} Request;


void
tessera_limit_lock_waits(void)
{
	char		timeout[16];

	snprintf(timeout, sizeof(timeout), "%d", LOCK_GROUP_MS);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

void
tessera_group_lock_soon(const pg_uuid_t *group_id, TesseraGroupRow *row)
{
	tessera_limit_lock_waits();
	PG_TRY();
	{
		tessera_group_lock(group_id, row);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a DDL statement on the table, or on one of its group, is under way"),
				 errdetail("Or the commit of another move of the group is."),
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
	tessera_group_lock_soon(&tessera_routing_group(request->routing, table->group)->group_id, &request->row);
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

/* Notes the chunks of a part, by their beginnings; a part that does not end where chunks do is not of whole ones, nor is one of very many. */
static void
note_chunks(Request *request, const Part *part)
{
	int			n = tessera_routing_nchunks(request->routing, request->group);
	int			first = tessera_routing_find_chunk(request->routing, request->group, &part->min);
	TesseraChunk chunk;

	if (request->chunks == NULL)
	{
		request->chunks = palloc(sizeof(TesseraBound *) * MAX_NOTED);
		request->whole = true;
	}
	for (int i = first; i < n && request->whole; i++)
	{
		tessera_routing_chunk(request->routing, request->group, i, &chunk);
		if (tessera_key_compare(request->ks, &chunk.min, &part->max) >= 0)
			break;
		request->whole = request->nchunks < MAX_NOTED && tessera_key_compare(request->ks, &chunk.max, &part->max) <= 0 &&
			(i > first || tessera_key_compare(request->ks, &chunk.min, &part->min) == 0);
		if (request->whole)
			request->chunks[request->nchunks++] = tessera_key_to_bound(request->ks, &chunk.min);
	}
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
	request->nparts = 1;
	request->parts = palloc(sizeof(Part));
	request->parts[0] = (Part) {request->min, request->max};
	note_chunks(request, &request->parts[0]);
}

/* What the donor owns of a range: more parts; the first may belong to the one before it. */
static void
add_parts(Request *request, const Part *range)
{
	TesseraKeySpace *ks = request->ks;
	int			n = tessera_routing_nchunks(request->routing, request->group);

	for (int i = tessera_routing_find_chunk(request->routing, request->group, &range->min); i < n; i++)
	{
		Part	   *last = request->nparts > 0 ? &request->parts[request->nparts - 1] : NULL;
		TesseraChunk chunk;
		Part		part;

		tessera_routing_chunk(request->routing, request->group, i, &chunk);
		if (tessera_key_compare(ks, &chunk.min, &range->max) >= 0)
			break;
		if (chunk.node_id != request->donor)
			continue;
		part.min = tessera_key_compare(ks, &chunk.min, &range->min) < 0 ? range->min : chunk.min;
		part.max = tessera_key_compare(ks, &chunk.max, &range->max) > 0 ? range->max : chunk.max;
		if (last != NULL && tessera_key_compare(ks, &last->max, &part.min) == 0)
			last->max = part.max;
		else
		{
			request->parts = repalloc_huge(request->parts, sizeof(Part) * (request->nparts + 1));
			request->parts[request->nparts++] = part;
		}
	}
}

/* The parts of several ranges that the donor owns. ERROR 22023 if the ranges are not in order. */
static void
find_parts(Request *request, ArrayType *mins, ArrayType *maxs)
{
	int			n;
	int			nmaxs;
	TesseraBound **min_bounds = tessera_bounds_of_array(mins, &n);
	TesseraBound **max_bounds = tessera_bounds_of_array(maxs, &nmaxs);
	Part		before;

	if (n != nmaxs)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ranges have as many lower bounds as upper ones")));
	request->parts = palloc(sizeof(Part));
	for (int i = 0; i < n; i++)
	{
		Part		range;

		tessera_key_from_bound(request->ks, min_bounds[i], &range.min);
		tessera_key_from_bound(request->ks, max_bounds[i], &range.max);
		if (tessera_key_compare(request->ks, &range.min, &range.max) >= 0 ||
			(i > 0 && tessera_key_compare(request->ks, &before.max, &range.min) > 0))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("ranges must be in order and must not overlap")));
		add_parts(request, &range);
		before = range;
	}
	for (int i = 0; i < request->nparts; i++)
		note_chunks(request, &request->parts[i]);
}

/* One that overlaps a range; NULL: none. */
static const Part *
part_in_range(const Request *request, const TesseraKeyBound *min, const TesseraKeyBound *max)
{
	for (int i = 0; i < request->nparts; i++)
		if (tessera_key_compare(request->ks, min, &request->parts[i].max) < 0 && tessera_key_compare(request->ks, &request->parts[i].min, max) < 0)
			return &request->parts[i];
	return NULL;
}

/*
 * The running migration of the same range between the same shards (S38): true, and its id. ERROR 55006 if another one moves a part of the range. The
 * group is locked. Between tessera_spi_begin and _end.
 */
static bool
find_same(const Request *request, pg_uuid_t *id)
{
	uint64		n = tessera_spi_run("SELECT m.migration_id, r.min, r.max, m.donor, m.recipient, cardinality(m.ranges) FROM tessera.migration AS m,"
									" unnest(m.ranges) AS r WHERE r.group_id = $1 AND m.state = 'running'",
									SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(&request->group->group_id)}, NULL);

	for (uint64 i = 0; i < n; i++)
	{
		TesseraKeyBound min,
					max;
		bool		same_shards = DatumGetInt32(spi_row_value(i, 4)) == request->donor && DatumGetInt32(spi_row_value(i, 5)) == request->recipient;
		bool		alone = DatumGetInt32(spi_row_value(i, 6)) == 1 && request->nparts == 1;
		const Part *part;

		tessera_key_from_bound(request->ks, DatumGetTesseraBoundP(spi_row_value(i, 2)), &min);
		tessera_key_from_bound(request->ks, DatumGetTesseraBoundP(spi_row_value(i, 3)), &max);
		part = part_in_range(request, &min, &max);
		if (part == NULL)
			continue;
		*id = *DatumGetUUIDP(spi_row_value(i, 1));
		if (same_shards && alone && tessera_key_compare(request->ks, &min, &part->min) == 0 &&
			tessera_key_compare(request->ks, &max, &part->max) == 0)
			return true;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("a part of the range is being moved already"),
				 errdetail("Migration %s moves %s to %s.", tessera_uuid_text(id), spi_row_text(i, 2), spi_row_text(i, 3)),
				 errhint("Wait for it, or end it with tessera.cancel_migration.")));
	}
	return false;
}

/* Registrations that count the migrations of a shard are serial. After the group's lock; the lower number first. To the end of the transaction. */
static void
lock_shards(int32 donor, int32 recipient)
{
	Oid			nodes = tessera_catalog_relid(TESSERA_NODE);

	LockDatabaseObject(nodes, Min(donor, recipient), 0, ExclusiveLock);
	LockDatabaseObject(nodes, Max(donor, recipient), 0, ExclusiveLock);
}

/* ERROR 55006 if the shard takes part in as many migrations as it may (S37). It is locked. Between tessera_spi_begin and _end. */
static void
require_room(const TesseraRouting *routing, int32 node_id)
{
	int			n = (int) tessera_spi_run("SELECT FROM tessera.migration WHERE state = 'running' AND $1 IN (donor, recipient)", SPI_OK_SELECT, 1,
										  (Oid[]) {INT4OID}, (Datum[]) {Int32GetDatum(node_id)}, NULL);

	if (n >= max_moves_per_shard)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg_plural("shard \"%s\" takes part in %d migration already", "shard \"%s\" takes part in %d migrations already", n,
							   NameStr(tessera_routing_node(routing, node_id)->name), n),
				 errdetail("tessera.max_moves_per_shard of the config node allows %d.", max_moves_per_shard),
				 errhint("Look at tessera.migrations; wait for one, or end it with tessera.cancel_migration.")));
}

void
tessera_take_room(const TesseraRouting *routing, int32 donor, int32 recipient)
{
	lock_shards(donor, recipient);
	require_room(routing, donor);
	require_room(routing, recipient);
}

static void
insert_migration(const Request *request, pg_uuid_t *id)
{
	Oid			bounds = get_array_type(tessera_bound_type());
	Oid			types[] = {UUIDOID, UUIDOID, bounds, bounds, INT4OID, INT4OID, UUIDOID, BOOLOID, BOOLOID, bounds};
	TesseraBound **mins = palloc(sizeof(TesseraBound *) * request->nparts);
	TesseraBound **maxs = palloc(sizeof(TesseraBound *) * request->nparts);
	Datum		values[] = {
		UUIDPGetDatum(&request->group->group_id), UUIDPGetDatum(&request->table_id), 0, 0, Int32GetDatum(request->donor),
		Int32GetDatum(request->recipient), UUIDPGetDatum(&request->group->epoch), BoolGetDatum(request->verify), BoolGetDatum(request->yields),
		PointerGetDatum(tessera_array_of_bounds(request->nchunks, request->chunks))
	};
	bool		nulls[lengthof(values)] = {[9] = !request->whole};

	for (int i = 0; i < request->nparts; i++)
	{
		mins[i] = tessera_key_to_bound(request->ks, &request->parts[i].min);
		maxs[i] = tessera_key_to_bound(request->ks, &request->parts[i].max);
	}
	values[2] = PointerGetDatum(tessera_array_of_bounds(request->nparts, mins));
	values[3] = PointerGetDatum(tessera_array_of_bounds(request->nparts, maxs));
	tessera_migration_check_transition(TESSERA_CONFIG, TESSERA_IN_ROW, TESSERA_NONE, TESSERA_RUNNING);
	tessera_spi_run("INSERT INTO tessera.migration (migration_id, ranges, table_id, donor, recipient, term, donor_incarnation, recipient_incarnation,"
					"  verify, caller_pid, yields, bytes_total, share)"
					" SELECT gen_random_uuid(), (SELECT array_agg(($1, $7, p.min, p.max)::tessera.operation_range ORDER BY p.n)"
					"   FROM unnest($3, $4) WITH ORDINALITY AS p (min, max, n)), $2, $5, $6, i.term, d.incarnation, r.incarnation,"
					"  $8, pg_backend_pid(), $9, e.bytes, e.share"
					" FROM tessera.identity AS i, tessera.node AS d, tessera.node AS r, "
					/* sizes are known only when all chunks' are; else, each chunk counts for the same share */
					" (SELECT CASE WHEN count(*) = cardinality($10) THEN sum(c.bytes)::int8 END AS bytes, coalesce("
					"   CASE WHEN count(*) = cardinality($10) THEN sum(c.bytes) / nullif("
					"    (SELECT sum(o.bytes) FROM tessera.chunk_estimate AS o WHERE o.group_id = $1 AND o.node_id = $5), 0)"
					"   END::float8, least(1, coalesce(cardinality($10), cardinality($3))::float8"
					"   / (SELECT greatest(count(*), 1) FROM tessera.chunk AS o WHERE o.group_id = $1 AND o.node_id = $5))) AS share"
					"  FROM tessera.chunk_estimate AS c WHERE c.group_id = $1 AND c.node_id = $5 AND c.min OPERATOR(tessera.=) ANY ($10)) AS e"
					" WHERE d.node_id = $5 AND r.node_id = $6 RETURNING migration_id", SPI_OK_INSERT_RETURNING, 10, types, values, nulls);
	*id = *DatumGetUUIDP(spi_row_value(0, 1));
}

char *
tessera_registered_request(const pg_uuid_t *id)
{
	tessera_spi_run("SELECT tessera_internal.migration_request($1)::text", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(id)}, NULL);
	return spi_row_text(0, 1);
}

void
tessera_join_migration(const pg_uuid_t *id)
{
	tessera_spi_run("UPDATE tessera.migration SET caller_pid = pg_backend_pid() WHERE migration_id = $1 AND phase IS NULL", SPI_OK_UPDATE, 1,
					(Oid[]) {UUIDOID}, (Datum[]) {UUIDPGetDatum(id)}, NULL);
}

/* The row of the migration: new, or of the same one that runs (*joined). */
static char *
register_migration(const Request *request, pg_uuid_t *id, bool *joined)
{
	MemoryContext caller = CurrentMemoryContext;
	TesseraSpi	spi;
	char	   *text;

	tessera_spi_begin(&spi);
	*joined = find_same(request, id);
	if (!*joined)
	{
		tessera_take_room(request->routing, request->donor, request->recipient);
		insert_migration(request, id);
	}
	else
		tessera_join_migration(id);
	tessera_migration_watch_caller();
	text = MemoryContextStrdup(caller, tessera_registered_request(id));
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
	request.yields = args->yields;
	find_table(&request, args->term);
	request.recipient = tessera_shard_to_move_to(request.routing, args->to_shard);
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

/* What the donor owns of several ranges, in one migration; migration_id null: it owns nothing of them. */
void
tessera_serve_register_ranges(const TesseraRegisterRangesArgs *args, TesseraRegisterRangesResult *result)
{
	Request		request = {.table_id = *args->table_id,.donor = args->donor,.verify = args->verify,.yields = true};
	bool		joined;

	tessera_commit_durably();
	find_table(&request, args->term);
	request.recipient = tessera_shard_to_move_to(request.routing, args->to_shard);
	find_parts(&request, args->mins, args->maxs);
	if (request.nparts == 0 || request.donor == request.recipient)
		return;
	result->migration_id = palloc(UUID_LEN);
	result->request = register_migration(&request, result->migration_id, &joined);
	tessera_injection("config_registered");
}

int
tessera_max_moves_per_shard(void)
{
	return max_moves_per_shard;
}

void
tessera_register_move_init(void)
{
	DefineCustomIntVariable("tessera.max_moves_per_shard",
							"Migrations that a shard takes part in at the same time, as donor or recipient. Counts on the config node.", NULL,
							&max_moves_per_shard, 2, 1, 32, PGC_SIGHUP, 0, NULL, NULL, NULL);
}
