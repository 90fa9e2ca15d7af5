/*
 * chunks.h
 *	  Rows of tessera.table_group and tessera.chunk on the config node: find, split, merge, move, and the versions these give (S12-S29).
 *
 * Every change of a group's chunks begins with tessera_group_lock: the group row's lock, held to the end of the transaction, makes the changes of a
 * group serial, and the group version read under it is the highest there is (doc/design.md#authority). All functions run SQL as the catalog's owner;
 * who may ask is decided by the caller. They work on the config node's authoritative rows only. Results are in the caller's memory context.
 */
#ifndef TESSERA_CONFIG_CHUNKS_H
#define TESSERA_CONFIG_CHUNKS_H

#include "postgres.h"
#include "utils/uuid.h"

#include "catalog/bound.h"
#include "catalog/key.h"
#include "common/text.h"

typedef struct TesseraGroupRow
{
	pg_uuid_t	group_id;
	pg_uuid_t	epoch;
	int64		major;			/* the group version: highest of its chunks (S14) */
	int64		minor;
	bool		allow_migrations;
} TesseraGroupRow;

typedef struct TesseraChunkRow
{
	TesseraBound *min;
	TesseraBound *max;
	TesseraKeyBound key_min;	/* the same, typed */
	TesseraKeyBound key_max;
	int32		node_id;
	int64		major;
	int64		minor;
	bool		jumbo;
} TesseraChunkRow;

/* Locks the group's row and reads it. ERROR TS002 if there is no such group (any more). */
extern void tessera_group_lock(const pg_uuid_t *group_id, TesseraGroupRow *group);

/* ERROR 55006 if a migration of the group runs whose range overlaps [min, max); min NULL: any migration of the group. The group is locked. */
extern void tessera_group_check_idle(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraKeyBound *min, const TesseraKeyBound *max);

/*
 * The chunk that holds a position (which may be a bound: MINKEY lies in the first chunk; MAXKEY in none: ERROR 22023). hint: min of the chunk that
 * probably does, from a routing table, or NULL; with a wrong one all chunks of the group are read. ERROR XX001 if the chunks have a gap there.
 */
extern void tessera_chunk_find(const pg_uuid_t *group_id, TesseraKeySpace *ks, const TesseraKeyBound *position, const TesseraBound *hint,
							   TesseraChunkRow *chunk);

/*
 * Splits one chunk at n points, ascending and inside it: pieces get minor+1 .. minor+n+1 (S21). Returns the chunk as it was. ERROR 22023 for points
 * that do not fit, 55006 if a migration touches it. by: who asked; object: the table, for the changelog.
 */
extern void tessera_chunk_split(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, int n, const TesseraKeyBound *points,
								const char *by, const char *object, TesseraChunkRow *before);

/*
 * Merges the chunks from min to max, all of one shard, into one of minor+1 (S22). Returns how many there were, *node_id: their owner. ERROR 22023 if
 * min or max is no boundary, there are fewer than two, or their owners differ; 55006 if a migration touches them.
 */
extern int	tessera_chunk_merge(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint, const TesseraKeyBound *min,
								const TesseraKeyBound *max, const char *by, const char *object, int32 *node_id);

/* Sets or clears the jumbo flag (S101, S103); false if it was so already. */
extern bool tessera_chunk_set_jumbo(TesseraGroupRow *group, const TesseraChunkRow *chunk, bool jumbo, const char *by, const char *object);

/*
 * Gives the range [min, max) to a shard, as a move would, whichever shards own its chunks now. For repairs after a promotion. The caller has locked
 * the group. object: for the changelog.
 */
extern void tessera_chunk_assign(TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *min, const TesseraBound *max, int32 node_id,
								 const char *object);

/*
 * Raises the group's major version by one: one chunk of each owner gets the new one, minors from 0. Who goes by the old version of any owner is
 * stale from then on. The group is locked; its placements are the caller's to raise.
 */
extern void tessera_group_raise(TesseraGroupRow *group);

/* Raises the group version above a shard version that another node knows of; does nothing if it is above already. The caller has locked the group. */
extern void tessera_group_outdo(TesseraGroupRow *group, int64 major);

/*
 * Adds a row to the changelog; before and after are JSON or NULL. group_id: the table group it is about, or NULL; who may not see the group's keys is
 * not shown before and after, and of rows about none only administrators are.
 */
extern void tessera_changelog_add(const char *what, const char *object, const pg_uuid_t *group_id, const char *by, const char *before,
								  const char *after);

#endif							/* TESSERA_CONFIG_CHUNKS_H */
