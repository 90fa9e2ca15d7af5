/*
 * local_origin.h
 *	  Marks WAL of rows that a migration moves, so that consumers of logical decoding can tell it from what users wrote.
 *
 * DoNotReplicateId is core's origin for writes that are not to be replicated: it needs no row in pg_replication_origin and keeps no progress. A
 * consumer that filters by origin skips such records; others see them as ordinary changes.
 */
#ifndef TESSERA_TRANSFER_LOCAL_ORIGIN_H
#define TESSERA_TRANSFER_LOCAL_ORIGIN_H

#include "postgres.h"
#include "replication/origin.h"

/* Returns what to give back to tessera_local_origin_end, which must be called also after an error. */
static inline RepOriginId
tessera_local_origin_begin(void)
{
	RepOriginId before = replorigin_session_origin;

	replorigin_session_origin = DoNotReplicateId;
	return before;
}

static inline void
tessera_local_origin_end(RepOriginId before)
{
	replorigin_session_origin = before;
}

#endif							/* TESSERA_TRANSFER_LOCAL_ORIGIN_H */
