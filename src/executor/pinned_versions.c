/*
 * pinned_versions.c
 *	  The group versions that a transaction with one snapshot goes by; see pinned_versions.h.
 *
 * A shard takes its snapshot when the transaction first comes to it. If a range moves before that, to a shard the transaction has not used, that
 * shard has no older snapshot to tell by: it would show the range as it is now, and let it be changed, though the transaction has seen it as it was.
 * So the router remembers the version of each group at its first accepted statement; what has received a chunk since cannot be used any more.
 *
 * The list lives in TopTransactionContext; it is of the transaction whose local id it carries, and goes with it. A version seen by a failed attempt
 * is not pinned: it may be older than the transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "common/version_compat.h"
#include "executor/pinned_versions.h"

typedef struct PinnedVersion
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		term;
	int64		major;
} PinnedVersion;

/* Of the transaction with this id; empty for any other. */
typedef struct PinnedVersions
{
	LocalTransactionId transaction;
	List	   *versions;		/* PinnedVersion, in TopTransactionContext */
} PinnedVersions;

static PinnedVersions pinned = {InvalidLocalTransactionId, NIL};

static PinnedVersion *
find_pinned(const pg_uuid_t *group_id)
{
	ListCell   *cell;

	if (pinned.transaction != tessera_proc_lxid(MyProc))
	{
		pinned.versions = NIL;
		pinned.transaction = tessera_proc_lxid(MyProc);
	}
	foreach(cell, pinned.versions)
	{
		PinnedVersion *version = lfirst(cell);

		if (memcmp(&version->group_id, group_id, sizeof(pg_uuid_t)) == 0)
			return version;
	}
	return NULL;
}

static const TesseraGroup *
group_of(const TesseraRouting *routing, Oid relid)
{
	const TesseraTable *table = tessera_routing_table(routing, relid);

	return table == NULL ? NULL : tessera_table_placement_group(routing, table);
}

/*
 * A placed table of a schema that has no group is noted by its schema, in the place of a group: the schema may get one, and move, within the
 * transaction.
 */
static pg_uuid_t
schema_id(Oid relid)
{
	pg_uuid_t	id = {{0}};
	Oid			namespace = get_rel_namespace(relid);

	memcpy(id.data, &namespace, sizeof(Oid));
	return id;
}

/* The version by which the transaction has used the group, or the schema whose first version is 1. */
static PinnedVersion *
pinned_version(const TesseraGroup *group, Oid relid)
{
	PinnedVersion *version = find_pinned(&group->group_id);
	pg_uuid_t	id;

	if (version != NULL || !group->of_schema)
		return version;
	id = schema_id(relid);
	return find_pinned(&id);
}

void
tessera_pinned_check(const TesseraRouting *routing, List *relids, int ntargets, const int32 *targets)
{
	ListCell   *cell;

	if (!IsolationUsesXactSnapshot())
		return;
	foreach(cell, relids)
	{
		const TesseraGroup *group = group_of(routing, lfirst_oid(cell));
		PinnedVersion *version = group ? pinned_version(group, lfirst_oid(cell)) : NULL;
		bool		moved;

		if (version == NULL)
			continue;
		moved = version->term != routing->term ||
			(memcmp(&version->epoch, &group->epoch, sizeof(pg_uuid_t)) != 0 &&
			 memcmp(&version->group_id, &group->group_id, sizeof(pg_uuid_t)) == 0);
		for (int i = 0; i < ntargets && !moved; i++)
			moved = tessera_routing_shard_major(routing, group, targets[i]) > version->major;
		if (moved)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access: a chunk was moved after the transaction's first use of the table"),
					 errhint("Retry the transaction.")));
	}
}

void
tessera_pinned_note(const TesseraRouting *routing, List *relids)
{
	ListCell   *cell;

	if (!IsolationUsesXactSnapshot())
		return;
	foreach(cell, relids)
	{
		const TesseraGroup *group = group_of(routing, lfirst_oid(cell));
		pg_uuid_t	id = group != NULL ? group->group_id : schema_id(lfirst_oid(cell));
		MemoryContext caller;
		PinnedVersion *version;

		if (group == NULL ? find_pinned(&id) != NULL : pinned_version(group, lfirst_oid(cell)) != NULL)
			continue;
		caller = MemoryContextSwitchTo(TopTransactionContext);
		version = palloc0(sizeof(PinnedVersion));
		version->group_id = id;
		version->term = routing->term;
		version->major = 1;
		if (group != NULL)
		{
			version->epoch = group->epoch;
			version->major = group->group_major;
		}
		pinned.versions = lappend(pinned.versions, version);
		MemoryContextSwitchTo(caller);
	}
}
