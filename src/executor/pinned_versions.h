/*
 * pinned_versions.h
 *	  The group versions that a transaction with one snapshot goes by (REPEATABLE READ and SERIALIZABLE).
 */
#ifndef TESSERA_PINNED_VERSIONS_H
#define TESSERA_PINNED_VERSIONS_H

#include "postgres.h"
#include "nodes/pg_list.h"

#include "routing/routing.h"

/*
 * Before a statement on these tables goes to these shards: ERROR 40001 if one of them has received a chunk since the transaction first used the
 * table's group. Does nothing below REPEATABLE READ.
 */
extern void tessera_pinned_check(const TesseraRouting *routing, List *relids, int ntargets, const int32 *targets);

/* To be called when the shards have accepted a statement routed by this image: pins its groups that are not pinned yet. */
extern void tessera_pinned_note(const TesseraRouting *routing, List *relids);

#endif							/* TESSERA_PINNED_VERSIONS_H */
