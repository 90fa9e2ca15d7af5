/*
 * key_visibility.h
 *	  Who is shown values of shard keys.
 */
#ifndef TESSERA_KEY_VISIBILITY_H
#define TESSERA_KEY_VISIBILITY_H

#include "postgres.h"
#include "utils/uuid.h"

/*
 * True if the effective user may see bounds of the group's ranges (see key_visibility.c). NULL: those of any group, also of one that is gone. Reads
 * the routing image, whose tables it goes through once, and the system caches; takes no locks.
 */
extern bool tessera_keys_visible(const pg_uuid_t *group_id);

#endif							/* TESSERA_KEY_VISIBILITY_H */
