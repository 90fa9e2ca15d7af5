/*
 * range_deleter.h
 *	  Range deletion, for others of this folder.
 */
#ifndef TESSERA_MIGRATION_RANGE_DELETER_H
#define TESSERA_MIGRATION_RANGE_DELETER_H

#include "postgres.h"

#include "catalog/migration_row.h"

/*
 * Deletes now what is to be deleted within the range of a migration that has not received anything yet, and takes it off the placement's deletions.
 * Outside a transaction; runs its own. ERROR 55000 if there is nothing (another migration uses a part of the range).
 */
extern void tessera_delete_overlap(const TesseraMigrationRow *receiver);

#endif							/* TESSERA_MIGRATION_RANGE_DELETER_H */
