/*
 * advisory.h
 *	  Advisory locks of the cluster: each key is locked at its home node, where the lock is the server's own.
 *
 * A key belongs to one of TESSERA_ADVISORY_SLOTS slots, and a slot to a node (tessera.advisory_home). On the home the lock is held by the backend behind the
 * session's internal connection, or by the session itself. Beside a key its slot is locked in share mode, for as long; a slot is given to another node only by who
 * has it exclusively. So whoever has the slot, and is its home then, has it until the lock goes.
 */
#ifndef TESSERA_ADVISORY_H
#define TESSERA_ADVISORY_H

#include "postgres.h"
#include "storage/lock.h"

/* A key as the server knows it: objsubid 1: one int8; 2: two int4, the first one in the upper half. */
typedef struct TesseraAdvisoryKey
{
	int32		class;
	int64		key;
} TesseraAdvisoryKey;

typedef enum TesseraAdvisoryAnswer
{
	TESSERA_ADVISORY_BUSY = 0,	/* not available; of an unlock: not held */
	TESSERA_ADVISORY_DONE = 1,
	TESSERA_ADVISORY_STALE = 2	/* this node is not the home */
} TesseraAdvisoryAnswer;

/* ---- advisory_home.c: the home's side ---- */

extern int	tessera_advisory_slot(const TesseraAdvisoryKey *key);

/*
 * Takes the lock in this backend, waiting as the server's functions do unless `try`. With it the slot's. STALE: *home is the node that keeps it, as far as is known
 * here; home NULL: the lock is of this node alone, and never stale. Errors leave nothing held that was not before.
 */
extern TesseraAdvisoryAnswer tessera_advisory_take(const TesseraAdvisoryKey *key, bool shared, bool session, bool try, int32 *home);

/* Releases a session-level lock of this backend; false, with the server's WARNING, if it is not held. */
extern bool tessera_advisory_release(const TesseraAdvisoryKey *key, bool shared);

/* Releases all session-level locks of this backend. */
extern void tessera_advisory_release_all(void);

/* ---- advisory.c: the session's side ---- */

/* DISCARD ALL has released this backend's own: those on other nodes follow. */
extern void tessera_advisory_discard(void);

extern void tessera_advisory_init(void);	/* from _PG_init */

#endif							/* TESSERA_ADVISORY_H */
