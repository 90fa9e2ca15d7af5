/*
 * shard_check.h
 *	  The check before a statement touches a row of this shard: it must be routed by the placement that its snapshot sees
 *	  (doc/design.md#stale-answers).
 *
 * Called with the statement's table locks held (parser or plan cache took them) and its snapshot taken, by the ExecutorStart hook for statements of
 * internal connections and by local parts. A statement inside a range whose gate is closed waits here, with a deadline.
 */
#ifndef TESSERA_SHARD_CHECK_H
#define TESSERA_SHARD_CHECK_H

#include "postgres.h"
#include "nodes/params.h"
#include "nodes/plannodes.h"
#include "utils/snapshot.h"

#include "routing/routing.h"
#include "session/internal_connection.h"

/* What a statement is routed by, when the router is this very backend. */
typedef struct TesseraRoutedBy
{
	const TesseraRouting *routing;	/* the image that routed it */
} TesseraRoutedBy;

typedef enum TesseraVerdict
{
	TESSERA_ACCEPTED,
	TESSERA_STALE				/* routed by another version, or the snapshot is of another placement: route again with a new snapshot */
} TesseraVerdict;

/*
 * routed NULL: the versions told on this internal connection. ERROR 40001 instead of STALE where a new snapshot cannot be had (REPEATABLE READ and
 * above); ERROR 57014-like (55P03) when the gate stays closed past tessera.gate_timeout.
 */
extern TesseraVerdict tessera_shard_check(PlannedStmt *plan, Snapshot snapshot, ParamListInfo params, const TesseraRoutedBy *routed);

/* The same for a table that is about to be read, lock held, under this snapshot: every range. */
extern TesseraVerdict tessera_shard_check_read(Oid relid, Snapshot snapshot, const TesseraRoutedBy *routed);

/* The same for a utility command that writes the table (COPY FROM, TRUNCATE), lock held: every range. */
extern TesseraVerdict tessera_shard_check_table(Oid relid, const TesseraRoutedBy *routed);

/* Executor hooks: nesting, check of internal connections' statements, shared statement snapshots. From _PG_init. */
extern void tessera_shard_check_init(void);

#endif							/* TESSERA_SHARD_CHECK_H */
