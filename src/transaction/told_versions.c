/*
 * told_versions.c
 *	  What a node is told about a table before it gets a statement on it; see tessera_told_versions in participant.h.
 *
 * The version of the group alone would not do: the table may have joined that group, from another one or as a placed table, without the router's
 * knowing, while the router has told the group's version for another table.
 */
#include "postgres.h"

#include "transaction/participant.h"

int
tessera_told_versions(const TesseraRouting *routing, const TesseraTable *table, int32 node_id, TesseraToldVersion *versions)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);

	memset(versions, 0, sizeof(TesseraToldVersion) * TESSERA_TOLD_VERSIONS);
	versions[0].group_id = table->table_id;
	if (group == NULL)
		return 1;
	versions[0].epoch = group->group_id;
	versions[0].major = 1;
	versions[1].group_id = group->group_id;
	versions[1].epoch = group->epoch;
	versions[1].term = routing->term;
	versions[1].major = tessera_routing_shard_major(routing, group, node_id);
	return 2;
}
