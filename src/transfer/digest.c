/*
 * digest.c
 *	  Digests of sets of rows; see digest.h.
 *
 * The two hashes are of one function under two seeds. A sum, unlike an exclusive or, counts a row that is there twice twice. No memory, no locks.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "libpq/pqformat.h"

#include "transfer/digest.h"

/* Any two numbers; the same on all nodes. */
#define FIRST_SEED UINT64CONST(0x7465737365726131)
#define SECOND_SEED UINT64CONST(0x9e3779b97f4a7c15)


void
tessera_digest_add(TesseraDigest *digest, const char *row, Size size)
{
	digest->rows++;
	digest->sums[0] += hash_bytes_extended((const unsigned char *) row, (int) size, FIRST_SEED);
	digest->sums[1] += hash_bytes_extended((const unsigned char *) row, (int) size, SECOND_SEED);
}

bool
tessera_digest_equal(const TesseraDigest *a, const TesseraDigest *b)
{
	return a->rows == b->rows && a->sums[0] == b->sums[0] && a->sums[1] == b->sums[1];
}

void
tessera_digest_write(const TesseraDigest *digest, StringInfo out)
{
	pq_sendint64(out, digest->rows);
	pq_sendint64(out, digest->sums[0]);
	pq_sendint64(out, digest->sums[1]);
}

void
tessera_digest_read(TesseraPayloadCursor *cursor, TesseraDigest *digest)
{
	digest->rows = (int64) tessera_payload_int64(cursor);
	digest->sums[0] = tessera_payload_int64(cursor);
	digest->sums[1] = tessera_payload_int64(cursor);
}
