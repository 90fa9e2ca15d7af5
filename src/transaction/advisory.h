/*
 * advisory.h
 *	  Advisory locks of the cluster: each key is locked at its home node, where the lock is the server's own.
 *
 * A key belongs to one of TESSERA_ADVISORY_SLOTS slots, and a slot to a node (tessera.advisory_home). On the home the lock is held by the backend
 * behind the session's internal connection, or by the session itself. Together with a key its slot is locked in share mode, for the same time. A slot
 * moves to another node only under an exclusive lock of the slot. So a node that has locked the slot, and is its home at that moment, stays its home
 * until the lock goes.
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
 * Takes the lock, and that of its slot, in this backend; waits as the server's functions do unless `try`. STALE: *home is the slot's home as far as
 * is known here. home NULL: the lock is of this node alone, and never stale. An error leaves no lock that was not held before.
 */
extern TesseraAdvisoryAnswer tessera_advisory_take(const TesseraAdvisoryKey *key, bool shared, bool session, bool try, int32 *home);

/* Releases a session-level lock of this backend; false, with the server's WARNING, if it is not held. */
extern bool tessera_advisory_release(const TesseraAdvisoryKey *key, bool shared);

/* Releases all session-level locks of this backend. */
extern void tessera_advisory_release_all(void);

/* ---- advisory.c: the session's side ---- */

/* After DISCARD ALL has released this backend's own locks: releases those on other nodes. */
extern void tessera_advisory_discard(void);

extern void tessera_advisory_init(void);	/* from _PG_init */

#endif							/* TESSERA_ADVISORY_H */
