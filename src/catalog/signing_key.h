/*
 * signing_key.h
 *	  Keys by which cluster times are signed for clients (tessera.signing_key): made on the config node ahead of use, copied to all nodes by the
 *	  refresh, never deleted, so that a token stays good for ever.
 *
 * Signed is by the key that expires first of those that have not: a new one has reached every node long before.
 */
#ifndef TESSERA_SIGNING_KEY_H
#define TESSERA_SIGNING_KEY_H

#include "postgres.h"

#include "clock/token.h"

/* The key to sign by now; false: this node knows none that has not expired. In a transaction. */
extern bool tessera_signing_key_current(TesseraSigningKey *key);

/* The key of this number; false: this node does not know it. In a transaction. Kept by the session. */
extern bool tessera_signing_key_find(uint64 id, TesseraSigningKey *key);

/* On the config node, in a transaction that writes: makes keys until there are a present one and one that follows it. Returns how many it made. */
extern int	tessera_signing_keys_make(void);

/* On the config node, by a worker: the same, in a transaction of its own, now and then. */
extern void tessera_signing_keys_keep(void);

/* From _PG_init: the setting. */
extern void tessera_signing_key_init(void);

#endif							/* TESSERA_SIGNING_KEY_H */
