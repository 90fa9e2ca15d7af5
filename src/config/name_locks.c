/*
 * name_locks.c
 *	  The config node's side of a DDL statement: names are locked here first, so that two statements on one object never meet elsewhere.
 *
 * Locks last to the end of the distributed transaction (a prepared one keeps them): ROW SHARE on tessera.node, which holds off nodes that come and
 * go (not their new addresses: membership.c); a lock on the hash of each name, which no other node has; FOR SHARE on the groups concerned, which
 * holds off new migrations, and commits of splits, merges and moves. Waits are bounded by the timeout given. Where a migration runs the groups are
 * not locked, so that it can be committed if it is past its decision: the router has it end first.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "catalog/relation.h"
#include "common/spi.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "routing/routing.h"


/*
 * Locks of names are locks of objects with this number of a column, which core's have not (tessera.health finds them by it). Class and object are 64
 * bits of the name's SHA-256: whoever could choose a name with the hash of another could hold that.
 */
#define NAME_COLUMN 3537

static void
hash_name(const char *name, uint64 *hash)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);

	if (context == NULL || pg_cryptohash_init(context) < 0 || pg_cryptohash_update(context, (const uint8 *) name, strlen(name)) < 0 ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("could not compute hash: %s", context != NULL ? pg_cryptohash_error(context) : "out of memory")));
	pg_cryptohash_free(context);
	memcpy(hash, digest, sizeof(*hash));
}

static int
compare_hashes(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return (x > y) - (x < y);
}

/* NULL, or who holds one of them (node_lock.c). All lock names in the order of their hashes. */
static char *
lock_names(ArrayType *names, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	Datum	   *values;
	int			n;
	uint64	   *hashes;

	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &values, NULL, &n);
	hashes = palloc(sizeof(uint64) * Max(n, 1));
	for (int i = 0; i < n; i++)
		hash_name(TextDatumGetCString(values[i]), &hashes[i]);
	qsort(hashes, n, sizeof(uint64), compare_hashes);
	for (int i = 0; i < n; i++)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		LOCKTAG		tag;
		StringInfoData holders;

		initStringInfo(&holders);
		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, (uint32) (hashes[i] >> 32), (uint32) hashes[i], NAME_COLUMN);
		if (!tessera_try_lock(&tag, ExclusiveLock, Max((int) left, 1), &holders))
			return psprintf("held the names of what the statement changes%s", holders.data);
	}
	return NULL;
}

/* True if the caller knows the same nodes as the registry here. */
static bool
knows_nodes(Datum nodes)
{
	static const Oid types[] = {INT4ARRAYOID};

	return tessera_spi_run("SELECT 1 FROM tessera.node HAVING array_agg(node_id ORDER BY node_id) = $1", SPI_OK_SELECT, 1, types, &nodes, NULL) > 0;
}

/*
 * False if the caller takes a sharded table for a placed one, which come as the name "placed schema.table", or does not know that a schema has a
 * group, with which it may be moving.
 */
static bool
knows_groups(Datum names, Datum groups)
{
	static const Oid types[] = {TEXTARRAYOID, UUIDARRAYOID};
	Datum		values[] = {names, groups};

	return tessera_spi_run("SELECT 1 FROM tessera.schema_placement AS p, unnest($1) AS n WHERE p.group_id IS NOT NULL AND p.group_id <> ALL ($2)"
						   " AND (n ^@ format('placed %I.', p.schema_name) OR n ^@ format('relation %I.', p.schema_name))", SPI_OK_SELECT, 2, types,
						   values, NULL) == 0 &&
		tessera_spi_run("SELECT 1 FROM tessera.cluster_table t WHERE t.group_id IS NOT NULL AND 'placed ' || format('%I.%I', t.schema_name, "
						   "t.table_name) = ANY ($1)", SPI_OK_SELECT, 1, types, &names, NULL) == 0;
}

/*
 * Are the groups there? A table may have joined another one meanwhile. Without names the call comes after the statement, which may have dropped them
 * here.
 */
static bool
groups_exist(ArrayType *names, Datum groups)
{
	static const Oid types[] = {UUIDARRAYOID};

	return ArrayGetNItems(ARR_NDIM(names), ARR_DIMS(names)) == 0 ||
		tessera_spi_run("SELECT 1 FROM unnest($1) AS i(group_id) WHERE NOT EXISTS (SELECT FROM tessera.table_group AS g WHERE g.group_id = "
						"i.group_id)",
						   SPI_OK_SELECT, 1, types, &groups, NULL) == 0;
}

static bool
migration_runs(Datum groups)
{
	static const Oid types[] = {UUIDARRAYOID};

	return tessera_spi_run("SELECT 1 FROM tessera.migration AS m, unnest(m.ranges) AS r WHERE m.state = 'running' AND r.group_id = ANY ($1)",
						   SPI_OK_SELECT, 1, types, &groups, NULL) > 0;
}

static const char *
lock_groups(Datum groups)
{
	static const Oid types[] = {UUIDARRAYOID};

	if (migration_runs(groups))
		return "busy";
	(void) tessera_spi_run("SELECT 1 FROM tessera.table_group WHERE group_id = ANY ($1) ORDER BY group_id FOR SHARE", SPI_OK_SELECT, 1, types,
						   &groups, NULL);
	/* registered while we waited for the lock */
	if (migration_runs(groups))
		return "again";
	/* those who draw in the statement's transaction keep the home that they find: nothing else holds off the hand-over, which is short */
	if (tessera_spi_run("SELECT schema_name FROM tessera.schema_placement WHERE group_id = ANY ($1) AND sequence_home <> node_id", SPI_OK_SELECT, 1,
						types, &groups, NULL) > 0)
	{
		(void) tessera_worker_wake(TESSERA_BALANCER);
		return psprintf("sequences %s", SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	}
	return "ok";
}

/*
 * 'ok'; 'sequences <schema>' if those of a schema that has moved have not followed it yet; 'stale' if the caller does not know all nodes, or what is
 * sharded; 'busy' if a migration of the groups runs: they are not locked; 'again' if one has begun meanwhile: the caller undoes this; 'held ...' if
 * another statement has one of the names.
 */
const char *
tessera_serve_ddl_lock(const TesseraDdlLockArgs *args)
{
	ArrayType  *names = args->names;
	char		timeout[16];
	int			level = NewGUCNestLevel();
	const char *answer = "stale";
	char	   *held;
	TesseraSpi	access;

	if (array_contains_nulls(names))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("names must not be null")));
	if (tessera_routing() != NULL)
		tessera_require_metadata(tessera_routing());
	snprintf(timeout, sizeof(timeout), "%d", args->timeout);
	(void) set_config_option("lock_timeout", timeout, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	LockRelationOid(tessera_catalog_relid(TESSERA_NODE), RowShareLock);
	held = lock_names(names, args->timeout);
	tessera_spi_begin(&access);
	if (held != NULL)
		answer = held;
	else if (knows_nodes(PointerGetDatum(args->nodes)) && knows_groups(PointerGetDatum(names), PointerGetDatum(args->groups)) &&
			 groups_exist(names, PointerGetDatum(args->groups)))
		answer = lock_groups(PointerGetDatum(args->groups));
	tessera_spi_end(&access);
	AtEOXact_GUC(true, level);
	return answer;
}
