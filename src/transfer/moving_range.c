/*
 * moving_range.c
 *	  What a migration moves: group, tables, key columns and bounds, read from the routing image into the caller's memory.
 *
 * The image is pinned only to the end of a transaction and a migration takes many: hence the copy. Locks nothing; a crash leaves nothing.
 */
#include "postgres.h"

#include "utils/uuid.h"

#include "transfer/transfer.h"

typedef struct TableOfGroup
{
	pg_uuid_t	table_id;
	const TesseraTable *table;
} TableOfGroup;

static int
compare_tables(const void *a, const void *b)
{
	return memcmp(((const TableOfGroup *) a)->table_id.data, ((const TableOfGroup *) b)->table_id.data, UUID_LEN);
}

/* The group's tables in order of table_id. */
static TableOfGroup *
tables_of_group(const TesseraRouting *routing, const TesseraGroup *group, int *n)
{
	const TesseraTable *tables = (const TesseraTable *) ((const char *) routing + routing->tables_offset);
	TableOfGroup *found = palloc(Max(routing->ntables, 1) * sizeof(TableOfGroup));

	*n = 0;
	for (int i = 0; i < routing->ntables; i++)
	{
		if (tables[i].group != group->index)
			continue;
		found[*n].table_id = tables[i].table_id;
		found[*n].table = &tables[i];
		(*n)++;
	}
	qsort(found, *n, sizeof(TableOfGroup), compare_tables);
	return found;
}

TesseraMovingRange *
tessera_moving_range(const pg_uuid_t *migration_id, const pg_uuid_t *group_id, const TesseraBound *min, const TesseraBound *max)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing == NULL ? NULL : tessera_routing_group_by_id(routing, group_id);
	TesseraMovingRange *range;
	TableOfGroup *tables;

	if (group == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this node does not know the table group of the migration")));

	range = palloc0(sizeof(TesseraMovingRange));
	range->migration_id = *migration_id;
	range->group_id = *group_id;
	range->ks = tessera_group_keyspace(routing, group);
	tessera_key_from_bound(range->ks, min, &range->min);
	tessera_key_from_bound(range->ks, max, &range->max);

	tables = tables_of_group(routing, group, &range->ntables);
	range->table_ids = palloc(Max(range->ntables, 1) * sizeof(pg_uuid_t));
	range->relids = palloc(Max(range->ntables, 1) * sizeof(Oid));
	range->keys = palloc(Max(range->ntables, 1) * sizeof(*range->keys));
	for (int i = 0; i < range->ntables; i++)
	{
		range->table_ids[i] = tables[i].table_id;
		range->relids[i] = tables[i].table->relid;
		memcpy(range->keys[i], tables[i].table->keys, sizeof(range->keys[i]));
	}
	pfree(tables);
	return range;
}
