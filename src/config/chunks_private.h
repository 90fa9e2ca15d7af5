/*
 * chunks_private.h
 *	  What chunk_rows.c, chunks.c and commit_move.c share. All of it with the group locked; what runs SQL between tessera_spi_begin and _end.
 */
#ifndef TESSERA_CONFIG_CHUNKS_PRIVATE_H
#define TESSERA_CONFIG_CHUNKS_PRIVATE_H

#include "datatype/timestamp.h"

#include "config/chunks.h"
#include "routing/routing.h"

/* Stores a new group version, higher than the old one. */
extern void tessera_group_write_version(TesseraGroupRow *group, int64 major, int64 minor);

/* The chunks that overlap [min, max), in order; palloc'd. ERROR 22023 if the range is empty. */
extern TesseraChunkRow *tessera_chunks_of_range(const TesseraGroupRow *group, TesseraKeySpace *ks, const TesseraBound *hint,
												const TesseraKeyBound *min, const TesseraKeyBound *max, int *n);

/*
 * Any chunk of the group that is the shard's now. routing: an image that shows chunks of before, which is asked first, from the position on. False:
 * it has none.
 */
extern bool tessera_chunk_of_shard(const TesseraRouting *routing, const pg_uuid_t *group_id, TesseraKeySpace *ks, int32 node_id,
								   const TesseraKeyBound *from, TesseraChunkRow *chunk);

/* Puts n pieces, in order, which together are the chunk, into its place. moves[i] (NULL: none): piece i changes its owner; that goes into its
 * history. Of a piece min, max, node_id, version and jumbo are written. */
extern void tessera_chunk_replace(const pg_uuid_t *group_id, const TesseraChunkRow *chunk, int n, const TesseraChunkRow *pieces,
								  const bool *moves);

/* A changelog row with the chunks of the group before and after. */
extern void tessera_chunk_log(const char *what, const char *object, const pg_uuid_t *group_id, const char *by, int nbefore,
							  const TesseraChunkRow *before, int nafter, const TesseraChunkRow *after);

/* ---- chunk_jsonb.c ---- */

/* Former owners are kept in a chunk's history for this long (snapshot_history_window), and at least the last one. */
#define TESSERA_HISTORY_SECONDS 300

/* Chunks, for the changelog. */
extern Datum tessera_chunks_jsonb(int n, const TesseraChunkRow *chunks);

/* The history of a chunk that leaves its owner now: that one in front of those of the last TESSERA_HISTORY_SECONDS. */
extern Datum tessera_chunk_history(Datum history, int32 owner, TimestampTz now);

#endif							/* TESSERA_CONFIG_CHUNKS_PRIVATE_H */
