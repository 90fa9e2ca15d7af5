/*
 * verify.h
 *	  A move verified by content: the recipient's rows are compared with the donor's while both are in use, and once more inside the pause.
 *
 * Three comparisons, each of both sides at one and the same position of the donor's changes:
 *	  - the clone: a digest (digest.h) of each table, on the donor of the rows as they were cloned under the slot's snapshot, on the recipient of what
 *		it holds after the clone's last commit and before the first change is applied
 *	  - rounds, while the recipient catches up: keys that have changed since the slot's snapshot, and the donor's rows with these keys
 *	    (verify_donor.c)
 *	  - the rest, behind the closed write gate: the keys that have changed since they were last compared
 * The recipient compares; a difference is an ERROR XX001 there that names the table, and ends the migration as any other error of the recipient does.
 */
#ifndef TESSERA_TRANSFER_VERIFY_H
#define TESSERA_TRANSFER_VERIFY_H

#include "postgres.h"
#include "access/tupdesc.h"
#include "access/xlogdefs.h"

#include "codec/message.h"
#include "transfer/digest.h"
#include "transfer/transfer.h"

/* ---- donor ---- */

/* Settings; migration_settings.c defines them for the server. */
extern int	tessera_migration_verify_memory;	/* kB */

/* Inside the clone's transaction; in a context of its own below the current one, for as long as that lives. */
extern TesseraVerify *tessera_verify_begin(TesseraMovingRanges *moving);

/* The digests of the clone, by table, for the clone's reader to add to; and as the payload of the clone's last batch. */
extern TesseraDigest *tessera_verify_sums(TesseraVerify *verify);
extern void tessera_verify_write_sums(TesseraVerify *verify, StringInfo out);

/*
 * A row of the ranges has changed: its key, from values by attnum - 1 (known: which of them the change tells), and the transaction that did it. The
 * settings of row_codec.h must be pushed. ERROR 53400 if there are too many keys.
 */
extern void tessera_verify_note(TesseraVerify *verify, int table, TupleDesc desc, const Datum *values, const bool *nulls, const bool *known,
								TransactionId xid);

/* Begins a round unless one is under way, or the last one ended just now, or no key can be compared; true if it did. Outside a transaction. */
extern bool tessera_verify_begin_round(TesseraVerify *verify);

/* True if the keys of the round can be sent. sent: all changes up to there are with the recipient or on their way. */
extern bool tessera_verify_round_ready(const TesseraVerify *verify, XLogRecPtr sent);

/* The message with the keys of a round that is ready, its payload appended; false: all of them have changed meanwhile, and the round is over. */
extern bool tessera_verify_write_round(TesseraVerify *verify, TesseraMessage *message, StringInfo payload);

/* The recipient has found the keys of a round equal. ERROR 08P01 if it was not asked (verify NULL: it cannot have been). */
extern void tessera_verify_answered(TesseraVerify *verify, int64 number);

/* True if what is left can be compared within half of the budget (ms). */
extern bool tessera_verify_fits(const TesseraVerify *verify, int budget);

/*
 * Behind the closed gate, all changes being with the recipient: true if nothing is left to be compared; else a round of it is begun, unless one is
 * under way.
 */
extern bool tessera_verify_rest(TesseraVerify *verify);

/* ---- recipient ---- */

/* Compares the rows of the ranges, as they are now, with the donor's digests of the clone. In a transaction of its own. */
extern void tessera_verify_clone(TesseraMovingRanges *moving, const char *payload, Size size);

/* Compares the rows of a round's keys. last: inside the pause. In a transaction of its own. */
extern void tessera_verify_keys(TesseraMovingRanges *moving, const char *payload, Size size, bool last);

#endif							/* TESSERA_TRANSFER_VERIFY_H */
