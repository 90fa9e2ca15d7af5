/*
 * owner_limits.c
 *	  Limits of the administrator to what owners of tables may ask the cluster for; see owner_limits.h.
 *
 * Every chunk and table group is a row on every node, an entry of every node's routing table, and work for each round of the splitter and the
 * balancer; and any owner of a table may ask for them, by tessera.shard_table. (Who splits chunks or changes a group's settings is an administrator.)
 * So the config node asks what there would be before it makes them: for the role that owns the table, in whatever role's name it is asked. What the
 * cluster does itself is not counted against the limits: the splitter is bounded by the rows that there are, and the size of chunks.
 *
 * Asked twice: before anything is done for the table, without a lock (internal_check_owner_limits), and when the group is made, under the lock of the
 * owner (a heavy lock of the config node, held to the end of the distributed transaction), which makes the requests of one owner serial. So a refusal
 * comes before any effect, but to the loser of two that ask at the same time, whose transaction is rolled back everywhere. What others have committed
 * counts at every isolation level.
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "catalog/relation.h"
#include "common/privilege.h"
#include "common/spi_row.h"
#include "config/owner_limits.h"
#include "control/calls.h"

static int	max_chunks_per_owner = 10000;
static int	max_groups_per_owner = 1000;
static int	min_chunk_size = 1024;	/* kB */

#define RAISE_HINT "An administrator can do it, or raise %s on the config node."
#define APART_HINT "First let the role's tables join their groups whose colocation was begun: the same call goes on with it. " RAISE_HINT


/* Owner of the table as this node has it; InvalidOid if it has none of this name. Between tessera_spi_begin and _end. */
static Oid
owner_of(const char *table)
{
	if (tessera_spi_look("SELECT c.relowner FROM pg_class AS c WHERE c.oid = to_regclass($1)", 1, (Oid[]) {TEXTOID},
						 (Datum[]) {CStringGetTextDatum(table)}) != 1)
		return InvalidOid;
	return DatumGetObjectId(spi_row_value(0, 1));
}

/* Groups in which the role owns a table, as of now. */
typedef struct Owned
{
	int64		groups;
	int64		chunks;			/* of these groups */
	int64		apart;			/* groups that are not balanced: but for an administrator's, those of colocations that have not ended */
} Owned;

static Owned
count_owned(Oid owner)
{
	Owned		owned;

	tessera_spi_look("SELECT count(*), coalesce(sum((SELECT count(*) FROM tessera.chunk AS c WHERE c.group_id = g.group_id)), 0)::int8,"
					 " count(*) FILTER (WHERE NOT g.balancing)"
					 " FROM (SELECT DISTINCT t.group_id FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
					 "     JOIN tessera.cluster_table AS t ON t.schema_name = n.nspname AND t.table_name = c.relname"
					 "   WHERE c.relowner = $1 AND t.group_id IS NOT NULL) AS o JOIN tessera.table_group AS g USING (group_id)", 1,
					 (Oid[]) {OIDOID}, (Datum[]) {ObjectIdGetDatum(owner)});
	owned.groups = DatumGetInt64(spi_row_value(0, 1));
	owned.chunks = DatumGetInt64(spi_row_value(0, 2));
	owned.apart = DatumGetInt64(spi_row_value(0, 3));
	return owned;
}

static void
require_chunk_size(int64 max_chunk_size)
{
	int64		least = (int64) min_chunk_size * 1024;

	if (max_chunk_size == 0 || max_chunk_size >= least)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("max_chunk_size would be %lld bytes, and must be at least %lld", (long long) max_chunk_size, (long long) least),
			 errdetail("The smaller chunks are, the more of them the cluster makes."),
			 errhint(RAISE_HINT, "tessera.min_chunk_size")));
}

/*
 * A table with rows that joins another group has one of its own until it is placed, cut like that one. It is allowed beyond the limits, else who has
 * reached them could not even colocate tables; but one at a time, which only an administrator can make a group like others. So calls that are begun
 * and cancelled leave at most one group beyond the limits.
 */
static void
require_room(const TesseraOwnerRequest *request, Oid owner)
{
	const char *name = GetUserNameFromId(owner, false);
	Owned		owned = count_owned(owner);

	if (request->apart && owned.apart == 0)
		return;
	if (max_groups_per_owner > 0 && owned.groups + 1 > max_groups_per_owner)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("tables of role \"%s\" would be in %lld table groups, and may be in %d", name, (long long) owned.groups + 1,
						max_groups_per_owner),
				 request->apart ? errhint(APART_HINT, "tessera.max_groups_per_owner") :
				 errhint("Colocate tables (colocate_with). " RAISE_HINT, "tessera.max_groups_per_owner")));
	if (max_chunks_per_owner > 0 && owned.chunks + request->chunks > max_chunks_per_owner)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("tables of role \"%s\" would have %lld chunks, and may have %d", name, (long long) owned.chunks + request->chunks,
						max_chunks_per_owner),
				 errdetail("They have %lld; table %s would have %d.", (long long) owned.chunks, request->table, request->chunks),
				 request->apart ? errhint(APART_HINT, "tessera.max_chunks_per_owner") :
				 errhint("Ask for fewer chunks. " RAISE_HINT, "tessera.max_chunks_per_owner")));
}

void
tessera_owner_limits_require(const TesseraOwnerRequest *request, bool lock)
{
	Oid			owner = owner_of(request->table);
	Oid			by = get_role_oid(request->by, true);

	if (!OidIsValid(owner) || (OidIsValid(by) && tessera_is_admin(by)))
		return;
	require_chunk_size(request->max_chunk_size);
	if (lock)
		LockDatabaseObject(tessera_catalog_relid(TESSERA_TABLE_GROUP), owner, 0, ExclusiveLock);
	require_room(request, owner);
}

void
tessera_serve_check_owner_limits(const TesseraCheckOwnerLimitsArgs *args)
{
	TesseraOwnerRequest request = {.table = args->table_name,.by = args->by_name,.chunks = args->chunks};
	TesseraSpi	spi;

	if (!args->max_chunk_size_null)
		request.max_chunk_size = args->max_chunk_size;
	tessera_spi_begin(&spi);
	tessera_owner_limits_require(&request, false);
	tessera_spi_end(&spi);
}

void
tessera_owner_limits_init(void)
{
	DefineCustomIntVariable("tessera.max_chunks_per_owner",
							"Chunks that the tables of one owner may have when more are asked for; 0: no limit. Counts on the config node.",
							"Administrators are not limited, nor is what the cluster splits by itself.",
							&max_chunks_per_owner, 10000, 0, INT_MAX / 2, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.max_groups_per_owner",
							"Table groups that the tables of one owner may be in when one more is asked for; 0: no limit. Counts on the config node.",
							"Administrators are not limited.",
							&max_groups_per_owner, 1000, 0, INT_MAX / 2, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tessera.min_chunk_size",
							"The least max_chunk_size that an owner may give to a table group. Counts on the config node.",
							"Administrators may go down to 1 kB.",
							&min_chunk_size, 1024, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
}
