/*
 * moving_ranges.c
 *	  What an operation moves: groups, ranges, tables and key columns, read from the routing image into the caller's memory.
 *
 * The image is pinned only to the end of a transaction and an operation takes many: hence the copy. Locks nothing; a crash leaves nothing.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/lsyscache.h"
#include "utils/uuid.h"

#include "transfer/transfer.h"

static int
compare_groups(const void *a, const void *b)
{
	return memcmp(((const TesseraOperationRange *) a)->group_id.data, ((const TesseraOperationRange *) b)->group_id.data, UUID_LEN);
}

static int
compare_tables(const void *a, const void *b)
{
	return memcmp(((const TesseraMovingTable *) a)->table_id.data, ((const TesseraMovingTable *) b)->table_id.data, UUID_LEN);
}

static int
compare_mins(const void *a, const void *b, void *ks)
{
	return tessera_key_compare(ks, &((const TesseraKeyRange *) a)->min, &((const TesseraKeyRange *) b)->min);
}

/* Orders the group's ranges, and joins those that adjoin. */
static void
order_ranges(TesseraMovingGroup *group)
{
	int			last = 0;

	qsort_arg(group->ranges, group->nranges, sizeof(TesseraKeyRange), compare_mins, group->ks);
	for (int i = 1; i < group->nranges; i++)
	{
		int			gap = tessera_key_compare(group->ks, &group->ranges[i].min, &group->ranges[last].max);

		if (gap < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg_internal("two ranges of one operation overlap")));
		if (gap == 0)
			group->ranges[last].max = group->ranges[i].max;
		else
			group->ranges[++last] = group->ranges[i];
	}
	group->nranges = last + 1;
}

/* The group of the first of the ranges, with all of them that are its; returns how many those are. */
static int
take_group(TesseraMovingGroup *moving, const TesseraRouting *routing, const TesseraGroup *group, int n, const TesseraOperationRange *ranges)
{
	moving->group_id = group->group_id;
	moving->ks = tessera_group_keyspace(routing, group);
	moving->nranges = 0;
	moving->ranges = palloc(n * sizeof(TesseraKeyRange));
	while (moving->nranges < n && compare_groups(&ranges[moving->nranges], &ranges[0]) == 0)
	{
		const TesseraRange *range = &ranges[moving->nranges].range;
		TesseraKeyRange *typed = &moving->ranges[moving->nranges++];

		tessera_key_from_bound(moving->ks, range->min, &typed->min);
		tessera_key_from_bound(moving->ks, range->max, &typed->max);
	}
	n = moving->nranges;
	order_ranges(moving);
	return n;
}

/* The tables of the groups, in order of table_id. moving_group: by a group's index in the image, its index among those that move, or -1. */
static void
take_tables(TesseraMovingRanges *moving, const TesseraRouting *routing, const int *moving_group)
{
	moving->tables = palloc(Max(routing->ntables, 1) * sizeof(TesseraMovingTable));
	moving->roots = palloc(Max(routing->ntables, 1) * sizeof(Oid));
	for (int i = 0; i < routing->ntables; i++)
	{
		const TesseraTable *table = tessera_routing_table_at(routing, i);
		TesseraMovingTable *taken = &moving->tables[moving->ntables];

		/* a replicated table has its rows everywhere: they neither come nor go with its schema */
		if (table->placement_group < 0 || moving_group[table->placement_group] < 0 || table->replicated)
			continue;
		if (get_rel_relkind(table->relid) == RELKIND_PARTITIONED_TABLE)
		{
			moving->roots[moving->nroots++] = table->relid;
			continue;
		}
		taken->table_id = table->table_id;
		taken->relid = table->relid;
		taken->group = moving_group[table->placement_group];
		memcpy(taken->keys, table->keys, sizeof(taken->keys));
		taken->generated = false;
		taken->xml_as_text = false;
		moving->ntables++;
	}
	if (moving->ntables > PG_INT16_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("one migration cannot move more than %d tables", PG_INT16_MAX)));
	qsort(moving->tables, moving->ntables, sizeof(TesseraMovingTable), compare_tables);
}

TesseraMovingRanges *
tessera_moving_ranges(const pg_uuid_t *migration_id, int n, const TesseraOperationRange *ranges)
{
	const TesseraRouting *routing = tessera_routing();
	TesseraMovingRanges *moving = palloc0(sizeof(TesseraMovingRanges));
	TesseraOperationRange *sorted = palloc(Max(n, 1) * sizeof(TesseraOperationRange));
	int			ngroups = routing == NULL ? 0 : routing->ngroups;
	int		   *moving_group = palloc(Max(ngroups, 1) * sizeof(int));

	memcpy(sorted, ranges, n * sizeof(TesseraOperationRange));
	qsort(sorted, n, sizeof(TesseraOperationRange), compare_groups);
	for (int i = 0; i < ngroups; i++)
		moving_group[i] = -1;
	moving->migration_id = *migration_id;
	moving->groups = palloc(Max(n, 1) * sizeof(TesseraMovingGroup));
	for (int i = 0; i < n;)
	{
		const TesseraGroup *group = routing == NULL ? NULL : tessera_routing_group_by_id(routing, &sorted[i].group_id);

		if (group == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("this node does not know the table group of the migration")));
		moving_group[group->index] = moving->ngroups;
		i += take_group(&moving->groups[moving->ngroups++], routing, group, n - i, &sorted[i]);
	}
	if (routing != NULL)
		take_tables(moving, routing, moving_group);
	pfree(moving_group);
	pfree(sorted);
	return moving;
}

Oid *
tessera_moving_relids(const TesseraMovingRanges *moving, int *n)
{
	Oid		   *relids = palloc(Max(moving->ntables + moving->nroots, 1) * sizeof(Oid));

	*n = 0;
	for (int i = 0; i < moving->ntables; i++)
		relids[(*n)++] = moving->tables[i].relid;
	for (int i = 0; i < moving->nroots; i++)
		relids[(*n)++] = moving->roots[i];
	return relids;
}

bool
tessera_key_ranges_hold(TesseraKeySpace *ks, int n, const TesseraKeyRange *ranges, const TesseraKeyBound *position)
{
	int			low = 0;
	int			high = n;		/* ranges[low - 1].min <= position < ranges[high].min */

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (tessera_key_compare(ks, position, &ranges[middle].min) < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return low > 0 && tessera_key_compare(ks, position, &ranges[low - 1].max) < 0;
}
