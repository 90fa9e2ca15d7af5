/*
 * removed_node.c
 *	  What a database refuses that was a node, and was removed from its cluster: a client that still connects to it would take its tables, which have
 *	  no rows any more, for the cluster's, and what it writes would be lost to that.
 *
 * It keeps the tables, so that the cluster can take it back (admin/join.c). The way out is DROP EXTENSION: then it is a plain database. One that was
 * told has no identity any more, and a row in tessera.former_membership. One that was not finds a registry without itself; it keeps its identity and
 * its placements, as a config node that was restored from an older backup may lack it, too, and forgets nothing by that.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/lsyscache.h"

#include "catalog/relation.h"
#include "common/errors.h"
#include "routing/routing.h"

/* True if the table may have been one of the cluster: as tessera_user_tables_sql has it, and partitions. */
static bool
may_have_been_shared(Oid relid)
{
	char		kind = get_rel_relkind(relid);

	return relid >= FirstNormalObjectId && (kind == RELKIND_RELATION || kind == RELKIND_PARTITIONED_TABLE || kind == RELKIND_MATVIEW) &&
		get_rel_persistence(relid) != RELPERSISTENCE_TEMP && !tessera_is_own_schema(get_rel_namespace(relid)) &&
		!OidIsValid(getExtensionOfObject(RelationRelationId, relid));
}

static void
refuse(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_TESSERA_FENCED),
			 errmsg("this node was removed from its cluster"),
			 errdetail("Table \"%s\" is not the cluster's any more: what is written to it would be lost to the cluster.", get_rel_name(relid)),
			 errhint(TESSERA_REMOVED_HINT)));
}

void
tessera_refuse_removed_table(Oid relid)
{
	if (MyBackendType == B_BACKEND && tessera_node_was_removed() && may_have_been_shared(relid))
		refuse(relid);
}

void
tessera_refuse_removed_tables(List *rtable)
{
	ListCell   *cell;

	if (MyBackendType != B_BACKEND || rtable == NIL || !tessera_node_was_removed())
		return;
	foreach(cell, rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (rte->rtekind == RTE_RELATION && may_have_been_shared(rte->relid))
			refuse(rte->relid);
	}
}
