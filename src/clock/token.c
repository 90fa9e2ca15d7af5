/*
 * token.c
 *	  Signed cluster times; see token.h. The HMAC is the server's own.
 */
#include "postgres.h"

#include "common/hmac.h"
#include "common/sha2.h"

#include "clock/token.h"

#define FIELD 16				/* digits of time and key */
#define SIGNED_LENGTH (3 + FIELD + 1 + FIELD)
#define TOKEN_LENGTH (SIGNED_LENGTH + 1 + 2 * PG_SHA256_DIGEST_LENGTH)

static void
sign(const char *text, const TesseraSigningKey *key, uint8 *signature)
{
	pg_hmac_ctx *context = pg_hmac_create(PG_SHA256);

	if (context == NULL || pg_hmac_init(context, key->key, sizeof(key->key)) < 0 ||
		pg_hmac_update(context, (const uint8 *) text, SIGNED_LENGTH) < 0 || pg_hmac_final(context, signature, PG_SHA256_DIGEST_LENGTH) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("could not compute HMAC: %s", context != NULL ? pg_hmac_error(context) : "out of memory")));
	pg_hmac_free(context);
}

/* Of the first SIGNED_LENGTH bytes of the text; with its end. */
static void
signature_text(const char *text, const TesseraSigningKey *key, char digits[2 * PG_SHA256_DIGEST_LENGTH + 1])
{
	uint8		signature[PG_SHA256_DIGEST_LENGTH];

	sign(text, key, signature);
	for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
		snprintf(digits + 2 * i, 3, "%02x", signature[i]);
}

char *
tessera_token_sign(TesseraTime time, const TesseraSigningKey *key)
{
	char		digits[2 * PG_SHA256_DIGEST_LENGTH + 1];
	char	   *text = psprintf("v1.%016" INT64_MODIFIER "x.%016" INT64_MODIFIER "x", time, key->id);

	signature_text(text, key, digits);
	return psprintf("%s.%s", text, digits);
}

bool
tessera_token_read(const char *token, TesseraTime *time, uint64 *key_id)
{
	unsigned long long values[2];

	if (strlen(token) != TOKEN_LENGTH || strncmp(token, "v1.", 3) != 0 || token[3 + FIELD] != '.' || token[SIGNED_LENGTH] != '.')
		return false;
	for (int i = 3; i < TOKEN_LENGTH; i++)
		if (i != 3 + FIELD && i != SIGNED_LENGTH && strchr("0123456789abcdef", token[i]) == NULL)
			return false;
	for (int i = 0; i < 2; i++)
		values[i] = strtoull(token + 3 + i * (FIELD + 1), NULL, 16);
	*time = values[0];
	*key_id = values[1];
	return true;
}

bool
tessera_token_is_signed(const char *token, const TesseraSigningKey *key)
{
	char		digits[2 * PG_SHA256_DIGEST_LENGTH + 1];
	const char *given = token + SIGNED_LENGTH + 1;
	int			difference = 0;

	signature_text(token, key, digits);
	/* as long for a wrong one as for a right one */
	for (int i = 0; i < 2 * PG_SHA256_DIGEST_LENGTH; i++)
		difference |= digits[i] ^ given[i];
	return difference == 0;
}
