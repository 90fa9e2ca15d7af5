/*
 * shardable.h
 *	  What makes a table fit to be sharded: its kind, its key columns, its constraints and indexes.
 */
#ifndef TESSERA_SHARDABLE_H
#define TESSERA_SHARDABLE_H

#include "access/attnum.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

#include "catalog/key.h"
#include "routing/routing.h"

typedef struct TesseraShardKey
{
	int			n;
	AttrNumber	attnums[TESSERA_MAX_KEY_COLUMNS];
	const char *names[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeySpace *ks;
} TesseraShardKey;

/* ERROR unless the table is of a kind that can be sharded: 42809 not a table, 0A000 what is not supported (partitioning, inheritance, unlogged, rules,
 * logical replication into it), 42P16 temporary. */
extern void tessera_check_table_kind(Relation rel);

/*
 * Key columns named as in SQL, 'a' or 'a, "B"': they exist, are plain NOT NULL columns, not twice, and their types can be a key of this strategy.
 * ERROR 42602, 42703, 42P16, 22023. In the current context.
 */
extern TesseraShardKey *tessera_parse_shard_key(Relation rel, const char *key, bool hashed);

/*
 * ERROR 42P16 naming the constraint or index: unique and exclusion constraints must contain the key; foreign keys, from and to the table, must join
 * it to a table of the same group (group NULL: a new one) on the key; updates need a replica identity to be moved.
 */
extern void tessera_check_table_constraints(Relation rel, const TesseraShardKey *key, const TesseraRouting *routing, const TesseraGroup *group);

#endif							/* TESSERA_SHARDABLE_H */
