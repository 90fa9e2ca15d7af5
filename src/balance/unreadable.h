/*
 * unreadable.h
 *	  Table groups whose chunks this shard cannot read: they are left out, and named in tessera.unreadable_group, which tessera.health shows.
 */
#ifndef TESSERA_UNREADABLE_H
#define TESSERA_UNREADABLE_H

#include "postgres.h"
#include "nodes/pg_list.h"
#include "utils/uuid.h"

typedef struct TesseraUnreadable
{
	pg_uuid_t	group_id;
	char	   *reason;			/* for a person */
} TesseraUnreadable;

/*
 * The groups of this round, a list of TesseraUnreadable, take the place of those of the last one; a new one is told in the log. In a transaction
 * of the splitter.
 */
extern void tessera_note_unreadable(List *groups);

#endif							/* TESSERA_UNREADABLE_H */
