/*
 * verify_donor.c
 *	  The donor's part in a move that is verified by content; see verify.h.
 */
#include "postgres.h"

#include "libpq/pqformat.h"

#include "migration/verify.h"


void
tessera_verify_write_sums(const TesseraMovingRange *range, const TesseraDigest *sums, StringInfo out)
{
	for (int i = 0; i < range->ntables; i++)
	{
		pq_sendbyte(out, TESSERA_RECORD_SUM);
		pq_sendint16(out, i);
		tessera_digest_write(&sums[i], out);
	}
}
