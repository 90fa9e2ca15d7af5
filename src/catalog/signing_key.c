/*
 * signing_key.c
 *	  Keys by which cluster times are signed; see signing_key.h.
 *
 * Numbers of keys are random: one that a config node has lost with its newest commits is not given again to another key.
 *
 * Memory: the key found last is kept until the session ends.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "catalog/identity.h"
#include "catalog/signing_key.h"
#include "clock/clock.h"
#include "common/spi.h"

#define LOOK_MS 10000			/* how often the worker looks whether a key is due */

static int	key_lifetime;

/* Of the session; id 0: none. */
static TesseraSigningKey found = {0};


void
tessera_signing_key_init(void)
{
	DefineCustomIntVariable("tessera.signing_key_lifetime", "How long a key signs cluster times for clients, before the next one does.",
							"Tokens that it has signed stay good.",
							&key_lifetime, 90 * 24 * 3600, 1, INT_MAX / 2, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}

/* The only row (key_id, key) of the last answer. */
static void
read_key(TesseraSigningKey *key)
{
	bool		null;
	bytea	   *bytes = DatumGetByteaPP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &null));

	if (VARSIZE_ANY_EXHDR(bytes) != TESSERA_SIGNING_KEY_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a key in tessera.signing_key has %d bytes instead of %d", (int) VARSIZE_ANY_EXHDR(bytes), TESSERA_SIGNING_KEY_BYTES)));
	key->id = (uint64) DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	memcpy(key->key, VARDATA_ANY(bytes), TESSERA_SIGNING_KEY_BYTES);
}

bool
tessera_signing_key_current(TesseraSigningKey *key)
{
	TesseraSpi	spi;
	bool		known;

	tessera_spi_begin(&spi);
	known = tessera_spi_look("SELECT key_id, key FROM tessera.signing_key WHERE purpose = 'cluster time' AND expires > pg_catalog.clock_timestamp() "
							 "ORDER BY expires, key_id LIMIT 1", 0, NULL, NULL) == 1;
	if (known)
		read_key(key);
	tessera_spi_end(&spi);
	return known;
}

bool
tessera_signing_key_find(uint64 id, TesseraSigningKey *key)
{
	Datum		values[1] = {Int64GetDatum((int64) id)};
	TesseraSpi	spi;

	if (found.id == 0 || found.id != id)
	{
		TesseraSigningKey read = {0};

		tessera_spi_begin(&spi);
		if (tessera_spi_look("SELECT key_id, key FROM tessera.signing_key WHERE key_id = $1 AND purpose = 'cluster time'", 1, (Oid[]) {INT8OID},
							 values) == 1)
			read_key(&read);
		tessera_spi_end(&spi);
		if (read.id == 0)
			return false;
		found = read;
	}
	*key = found;
	return true;
}

static void
make_key(void)
{
	uint8		random[TESSERA_SIGNING_KEY_BYTES + 8];
	int64		id;
	bytea	   *bytes = palloc(VARHDRSZ + TESSERA_SIGNING_KEY_BYTES);
	Datum		values[3];

	if (!pg_strong_random(random, sizeof(random)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random bytes")));
	memcpy(&id, random + TESSERA_SIGNING_KEY_BYTES, sizeof(id));
	SET_VARSIZE(bytes, VARHDRSZ + TESSERA_SIGNING_KEY_BYTES);
	memcpy(VARDATA(bytes), random, TESSERA_SIGNING_KEY_BYTES);
	values[0] = Int64GetDatum((id & PG_INT64_MAX) | 1);
	values[1] = PointerGetDatum(bytes);
	values[2] = Float8GetDatum(key_lifetime);
	tessera_spi_run("INSERT INTO tessera.signing_key (key_id, key, expires) SELECT $1, $2, greatest(max(k.expires), pg_catalog.clock_timestamp()) + "
					"pg_catalog.make_interval(secs => $3) FROM tessera.signing_key AS k", SPI_OK_INSERT, 3, (Oid[]) {INT8OID, BYTEAOID, FLOAT8OID},
					values, NULL);
}

int
tessera_signing_keys_make(void)
{
	Datum		values[1] = {Float8GetDatum(key_lifetime)};
	TesseraSpi	spi;
	int			made = 0;

	tessera_spi_begin(&spi);
	/* two are not made for one by two sessions */
	tessera_spi_run("LOCK TABLE tessera.signing_key IN SHARE ROW EXCLUSIVE MODE", SPI_OK_UTILITY, 0, NULL, NULL, NULL);
	while (made < 2 && tessera_spi_look("SELECT FROM tessera.signing_key WHERE expires > pg_catalog.clock_timestamp() + "
										"pg_catalog.make_interval(secs => $1)", 1, (Oid[]) {FLOAT8OID}, values) == 0)
	{
		make_key();
		made++;
	}
	tessera_spi_end(&spi);
	if (made > 0)
		tessera_catalog_changed();
	return made;
}

void
tessera_signing_keys_keep(void)
{
	static TimestampTz due = 0;
	TesseraIdentity identity;
	int			made = 0;

	if (tessera_clock_role() != TESSERA_CLOCK_TICKS_CONFIG || GetCurrentTimestamp() < due)
		return;
	due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(LOOK_MS, key_lifetime * 250.0));
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (tessera_identity_read(&identity) && identity.is_config)
		made = tessera_signing_keys_make();
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (made > 0)
		ereport(LOG,
				(errmsg("made %d keys to sign cluster times with", made)));
}
