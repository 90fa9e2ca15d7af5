/*
 * table_checks.h
 *	  Checks that the tables of a group are alike on donor and recipient, and can be moved.
 */
#ifndef TESSERA_MIGRATION_TABLE_CHECKS_H
#define TESSERA_MIGRATION_TABLE_CHECKS_H

#include "postgres.h"

#include "transfer/transfer.h"

/* The request with the columns of the group's tables, as they are on this node, put in. jsonb text, palloc'd. */
extern char *tessera_describe_tables(const char *request);

/*
 * True if this node's catalog has each table of the request in its group. A table that has just joined the group may be unknown to a shard that owns
 * nothing of it.
 */
extern bool tessera_tables_known(const char *request);

/*
 * True if the group has the same tables in this node's catalog as on the config node when the migration was registered. False until a transaction in
 * which a table has joined the group is over here, too. A request of an older version does not say: true.
 */
extern bool tessera_members_known(const char *request);

/* ERROR 55000 if tables or columns here differ from those of the request. */
extern void tessera_compare_tables(const char *request);

/* ERROR 55000 if a table lacks an index on the key, or (donor) a replica identity. Locks the tables AccessShare to the end of the transaction. */
extern void tessera_check_tables(const TesseraMovingRanges *moving, bool donor);

#endif							/* TESSERA_MIGRATION_TABLE_CHECKS_H */
