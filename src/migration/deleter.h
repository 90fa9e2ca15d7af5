/*
 * deleter.h
 *	  Range deletion, for others of this folder.
 */
#ifndef TESSERA_MIGRATION_DELETER_H
#define TESSERA_MIGRATION_DELETER_H

#include "postgres.h"
#include "utils/uuid.h"

#include "catalog/placement.h"

/*
 * Deletes now what is to be deleted within a range, and takes it off the placement's deletions. Outside a transaction; runs its own. ERROR 55000 if a part of
 * the range cannot be deleted at present (another migration uses it).
 */
extern void tessera_delete_overlap(const pg_uuid_t *group_id, const TesseraRange *within);

#endif							/* TESSERA_MIGRATION_DELETER_H */
