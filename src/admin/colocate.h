/*
 * colocate.h
 *	  tessera.shard_table(..., colocate_with) of a table whose rows have to be moved: what its parts share.
 */
#ifndef TESSERA_COLOCATE_H
#define TESSERA_COLOCATE_H

#include "postgres.h"
#include "nodes/pg_list.h"
#include "utils/uuid.h"

#include "catalog/bound.h"
#include "routing/routing.h"

/* ---- colocate.c ---- */

/*
 * For tessera.shard_table: a table with rows that is to join a group which is spread over other shards, or one that is sharded alike but apart, is
 * placed by moving. Returns true when it has joined; false: there is nothing to move, or the caller's transaction cannot move (it has written):
 * shard_table says what it says then. ERROR 42501 unless the user owns both tables; 25001 as move_range; 55006 when it could not be ended in time:
 * the same call goes on. Holds no lock while it moves; what it does is not undone by a rollback.
 */
extern bool tessera_colocate(Oid relid, const char *key, bool hashed, Oid with);

/* ---- group_copies.c ---- */

/*
 * Puts the rows of a group, and of a table of it, that the config node has answered (create_group, join_group, merge_group) into the catalogs of
 * these nodes, in the caller's distributed transaction: with all chunks where a node has none, or older ones.
 */
extern void tessera_group_copies(const char *rows, const pg_uuid_t *table_id, int n, const int32 *nodes);

/* ---- shard_table.c ---- */

/* Nodes and placements (jsonb texts) of what the config node answered; palloc'd. Returns how many. */
extern int	tessera_placements_of(const char *rows, int32 **nodes, char ***placements);

/* WARNING if code of the table may reach rows of other shards; cross_table_code NULL: it does not. */
extern void tessera_warn_cross_table_code(const char *table, const char *cross_table_code);

#endif							/* TESSERA_COLOCATE_H */
