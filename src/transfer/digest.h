/*
 * digest.h
 *	  A digest of a set of rows that does not depend on their order: how many there are, and two sums, modulo 2^64, of hashes of each row's bytes.
 *
 * The bytes are those of row_codec.h, whose columns are in order of their names: the same row has the same bytes on every node. Equal sets have equal
 * digests; sets that differ by accident have equal ones with a probability of about 2^-128. The hashes are not cryptographic: who chooses rows on
 * purpose may find two such sets.
 */
#ifndef TESSERA_TRANSFER_DIGEST_H
#define TESSERA_TRANSFER_DIGEST_H

#include "postgres.h"
#include "lib/stringinfo.h"

#include "transfer/row_codec.h"

typedef struct TesseraDigest
{
	int64		rows;
	uint64		sums[2];
} TesseraDigest;

/* Adds a row, as tessera_row_write has written it. */
extern void tessera_digest_add(TesseraDigest *digest, const char *row, Size size);

extern bool tessera_digest_equal(const TesseraDigest *a, const TesseraDigest *b);

/* To and from a payload; damaged: ERROR 08P01. */
extern void tessera_digest_write(const TesseraDigest *digest, StringInfo out);
extern void tessera_digest_read(TesseraPayloadCursor *cursor, TesseraDigest *digest);

#endif							/* TESSERA_TRANSFER_DIGEST_H */
