/*
 * token.h
 *	  Cluster times that clients keep and hand in: signed, so that nobody can make one up.
 *
 * A token is text: v1.TIME.KEY.SIGNATURE, each hexadecimal; the signature is HMAC-SHA-256 of what stands before it, by the key of that number.
 */
#ifndef TESSERA_TOKEN_H
#define TESSERA_TOKEN_H

#include "postgres.h"

#include "clock/time_value.h"

#define TESSERA_SIGNING_KEY_BYTES 32

typedef struct TesseraSigningKey
{
	uint64		id;
	uint8		key[TESSERA_SIGNING_KEY_BYTES];
} TesseraSigningKey;

/* Palloc'd. */
extern char *tessera_token_sign(TesseraTime time, const TesseraSigningKey *key);

/* What it says, without a look at the signature; false if it is no token. */
extern bool tessera_token_read(const char *token, TesseraTime *time, uint64 *key_id);

/* True if it was signed by the key. */
extern bool tessera_token_is_signed(const char *token, const TesseraSigningKey *key);

#endif							/* TESSERA_TOKEN_H */
