/*
 * verify.h
 *	  A move verified by content: the recipient's rows are compared with the donor's while both are in use, and once more inside the pause.
 *
 * Three comparisons, each of both sides at one and the same position of the donor's changes:
 *	  - the clone: a digest (digest.h) of each table, on the donor of the rows as they were cloned under the slot's snapshot, on the recipient of what it holds after
 *		the clone's last commit and before the first change is applied
 *	  - rounds, while the recipient catches up: keys that have changed since the slot's snapshot, and the donor's rows with these keys (verify_donor.c)
 *	  - the rest, behind the closed write gate: the keys that have changed since they were last compared
 * The recipient compares; a difference is an ERROR XX001 there that names the table, and ends the migration as any other error of the recipient does.
 */
#ifndef TESSERA_VERIFY_H
#define TESSERA_VERIFY_H

#include "postgres.h"

#include "migration/data.h"
#include "migration/digest.h"

/* ---- donor ---- */

/* Appends the digests of the clone, one for each table of the range. */
extern void tessera_verify_write_sums(const TesseraMovingRange *range, const TesseraDigest *sums, StringInfo out);

/* ---- recipient ---- */

/* Compares the rows of the range, as they are now, with the donor's digests of the clone. In a transaction of its own. */
extern void tessera_verify_clone(TesseraMovingRange *range, const char *payload, Size size);

#endif							/* TESSERA_VERIFY_H */
