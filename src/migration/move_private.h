/*
 * move_private.h
 *	  What the moves of ranges (move.c) and of schemas (move_schema.c) share, in the session that asks for them.
 */
#ifndef TESSERA_MIGRATION_MOVE_PRIVATE_H
#define TESSERA_MIGRATION_MOVE_PRIVATE_H

#include "postgres.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "routing/routing.h"

#define POLL_MS 500
#define REFRESH_MS 2000

typedef struct TesseraMove
{
	const TesseraRouting *routing;
	const TesseraTable *table;	/* NULL, and so the next two: a schema moves */
	const TesseraGroup *group;
	TesseraKeySpace *ks;
	bool		verify;			/* by content */
	bool		yields;			/* makes way for clients and standbys */
	const char *shard;			/* where to */
	pg_uuid_t	migration_id;
	char	   *id;				/* the same as text */
	char	   *part_min;		/* what it moves: the whole range, or the part of one shard */
	char	   *part_max;
	char	   *cross_table_code;		/* what of the group may reach rows of other shards; NULL: nothing */
	int32		donor;
	bool		joined;			/* another session began it */
	bool		cancelled;		/* too late for this part */
	bool		quiet;			/* nothing is said about code that may reach rows of other shards */
	bool		tell;			/* about each part, also if it is the only one */
	TimestampTz told;			/* when its progress was last told, or when the wait began */
	TimestampTz lost;			/* since when the donor cannot be reached; 0: it can */
} TesseraMove;

/* True if this transaction holds a lock on the relation. */
extern bool tessera_move_holds_lock(Oid relid);

/* ERROR 25001: the transaction may not ask for a move. */
extern void tessera_move_refuse_transaction(const char *why);

/* Tells the donor of a registered migration. Errors go through, and the config node is told that the migration was abandoned. */
extern void tessera_move_hand_over(const TesseraMove *move, const char *request);

/* Waits until it is committed; ERROR if it is aborted. A cancellation that came too late is noted in the move. */
extern void tessera_move_wait(TesseraMove *move);

#endif							/* TESSERA_MIGRATION_MOVE_PRIVATE_H */
