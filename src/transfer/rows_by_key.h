/*
 * rows_by_key.h
 *	  The rows that have a given key, on either side of a move: what verification compares key by key (verify.h).
 *
 * A key is the row's identity if it has one, else its shard key: several rows may have it. It is given as a row whose other columns are not given
 * (row_codec.h), and a row has it if its own bytes of these columns are the same: so 1.0 and 1.00, equal to an index, are two keys, and a change of
 * one says nothing about the other.
 */
#ifndef TESSERA_TRANSFER_ROWS_BY_KEY_H
#define TESSERA_TRANSFER_ROWS_BY_KEY_H

#include "postgres.h"
#include "nodes/bitmapset.h"
#include "utils/rel.h"

#include "transfer/digest.h"
#include "transfer/row_codec.h"
#include "transfer/transfer.h"

/*
 * How a row is found again: the index of the replica identity, or of the primary key, and the numbers of its columns; without them InvalidOid, and
 * those of the shard key. *columns in the current context.
 */
extern Oid	tessera_row_identity(Relation relation, const TesseraMovingRanges *moving, int table, Bitmapset **columns);

typedef struct TesseraKeyRows TesseraKeyRows;

/*
 * Opens a table (AccessShareLock, to the end of the transaction) to look up keys of this description, behind its 'T' and index; reads under the
 * active snapshot, as the table's owner, until the end. The settings of row_codec.h must be pushed. In a context of its own below the current one.
 */
extern TesseraKeyRows *tessera_key_rows_begin(TesseraMovingRanges *moving, int table, TesseraPayloadCursor *cursor);

/* Reads a key, and adds the rows that have it to the digest. */
extern void tessera_key_rows_digest(TesseraKeyRows *rows, TesseraPayloadCursor *cursor, TesseraDigest *digest);

/* The table, and the key read last as text, for messages; palloc'd. */
extern char *tessera_key_rows_table(const TesseraKeyRows *rows);
extern char *tessera_key_rows_text(const TesseraKeyRows *rows);

extern void tessera_key_rows_end(TesseraKeyRows *rows);

#endif							/* TESSERA_TRANSFER_ROWS_BY_KEY_H */
