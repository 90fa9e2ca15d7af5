/*
 * shardable.h
 *	  What makes a table fit to be sharded: its kind, its key columns, its constraints and indexes. One list of checks yields findings.
 */
#ifndef TESSERA_SHARDABLE_H
#define TESSERA_SHARDABLE_H

#include "access/attnum.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

#include "admin/findings.h"
#include "catalog/key.h"
#include "routing/routing.h"

typedef struct TesseraShardKey
{
	int			n;
	AttrNumber	attnums[TESSERA_MAX_KEY_COLUMNS];
	const char *names[TESSERA_MAX_KEY_COLUMNS];
	TesseraKeySpace *ks;
} TesseraShardKey;

/* Columns by which a table is to be sharded that is not sharded yet. */
typedef struct TesseraIntendedKey
{
	Oid			relid;
	int			n;
	AttrNumber	attnums[TESSERA_MAX_KEY_COLUMNS];
} TesseraIntendedKey;

/* What is asked for, and what the checks have found out on the way. In the caller's context. */
typedef struct TesseraShardable
{
	/* given */
	Relation	rel;			/* locked against DDL, if what is found must stay true */
	const TesseraRouting *routing;
	const char *key_text;		/* as the caller gave it */
	bool		hashed;
	Oid			with;			/* colocate_with, or InvalidOid */
	bool		create_index;	/* the key index will be made if there is none */
	List	   *subscribed;		/* tessera_subscribed_anywhere, asked before anything was locked */
	List	   *intended;		/* TesseraIntendedKey of other tables, for the text of foreign keys; NIL: not known */
	/* found: NULL where something is in the way */
	const TesseraTable *table;
	bool		apart;			/* it is sharded already, by that key, but not in the group of colocate_with: it may join that by moving */
	const TesseraGroup *group;	/* of colocate_with */
	TesseraShardKey *key;
	bool		has_key_index;
} TesseraShardable;

/*
 * All checks of one table with its partitions (not of those around it), by what is known here; no other node is asked. Findings are in an
 * order in which their statements can be run. Errors: 42809 not a table, 0A000 what is not supported (foreign partitions, inheritance, unlogged,
 * rules, logical replication into it), 42P16 temporary, a partition, constraints, key columns, group; 42602, 42703, 42701, 22023 the key.
 */
extern void tessera_shardable(TesseraShardable *shardable, TesseraFindings *findings);

/*
 * True if the key columns have these types and collations, in order. Otherwise adds a finding for each that has not; `with`: the table whose key it
 * is.
 */
extern bool tessera_key_columns_alike(const TesseraShardable *shardable, Oid with, const Oid *types, const int32 *typmods, const Oid *collations,
									  TesseraFindings *findings);

/* ERROR unless the table is of a kind that can be sharded: the first part of the above. */
extern void tessera_check_table_kind(Relation rel);

/* This node leaves: its copies of replicated tables are emptied, and are plain tables then. Locks each ACCESS EXCLUSIVE. (replicate_table.c) */
extern void tessera_empty_copies(void);

/* ERROR as above unless a placed table can be sharded like the root of which it is to be a partition; its rows are not looked at. */
extern void tessera_check_new_partition(Oid partition, const TesseraTable *root, const TesseraRouting *routing);

/*
 * Key columns named as in SQL, 'a' or 'a, "B"': they exist, are plain NOT NULL columns, not twice, and their types can be a key of this strategy.
 * ERROR 42602, 42703, 42701, 42P16, 22023. In the current context.
 */
extern TesseraShardKey *tessera_parse_shard_key(Relation rel, const char *key, bool hashed);

/* ---- foreign_keys.c ---- */

/* Foreign keys from and to the table must join it to a table of the same group on the key. */
extern void tessera_find_foreign_keys(const TesseraShardable *shardable, TesseraFindings *findings);

/*
 * Columns of `other` that foreign keys between it and the table pair with the table's key columns, as text of a key; else its columns of the same
 * names; NULL: none.
 */
extern char *tessera_foreign_key_of_other(const TesseraShardable *shardable, Oid other);

/* ---- check_table.c ---- */

/* Findings where the key columns of a table differ from those of another one that is to be sharded first. Both keys were found. */
extern void tessera_find_differing_keys(const TesseraShardable *shardable, const TesseraShardable *other, TesseraFindings *findings);

/* What will differ once it is sharded, of a table for which tessera_shardable has found no obstacle that has to do with its kind. */
extern void tessera_find_differences(const TesseraShardable *shardable, TesseraFindings *findings);

/* ---- shard_table.c ---- */

/* ERROR 42501 unless the effective user owns the table or is a member of tessera_admin, 42P01 if there is none. */
extern void tessera_require_table_owner(Oid relid);

/* ERROR 22023 if it is below what a group's max_chunk_size (bytes) may be, whoever asks. */
extern void tessera_require_chunk_size(int64 max_chunk_size);

/* The newest routing table; ERROR 55000 if this database is not a node. */
extern const TesseraRouting *tessera_sharding_routing(void);

/* 'range' or 'hash'; ERROR 22023 if it is neither. */
extern bool tessera_strategy_is_hash(const char *strategy);

#endif							/* TESSERA_SHARDABLE_H */
