/*
 * move_rate.c
 *	  tessera.balancer_max_rate on the config node: one rate for all moves that the balancer has begun, shared out among their donors.
 *
 * Each donor says about once a second what it has sent, and is told its share: donors that use less than an equal share keep what they use, and the
 * others have the rest in equal parts. What a donor said long ago does not count: one that is down must not keep its share. Reports are columns of
 * tessera.migration, so views show them too; no lock but the row's.
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/guc.h"

#include "common/spi_row.h"
#include "config/move_rate.h"
#include "control/calls.h"
#include "routing/routing.h"

#define REPORT_AGE "interval '15 seconds'"
#define USES_ITS_SHARE 0.9		/* who uses so much of an equal share may want more */

static int	max_rate = 0;		/* kB/s; 0: none */

/* The rates of the other donors, the lowest first, in the current context. Between tessera_spi_begin and _end. */
static double *
others(const pg_uuid_t *migration_id, uint64 *n)
{
	double	   *rates;

	*n = tessera_spi_run("SELECT rate FROM tessera.migration WHERE state = 'running' AND migration_id <> $1"
						 " AND rate_reported > clock_timestamp() - " REPORT_AGE " ORDER BY rate", SPI_OK_SELECT, 1, (Oid[]) {UUIDOID},
						 (Datum[]) {UUIDPGetDatum(migration_id)}, NULL);
	rates = palloc(sizeof(double) * Max(*n, 1));
	for (uint64 i = 0; i < *n; i++)
		rates[i] = DatumGetFloat8(spi_row_value(i, 1));
	return rates;
}

/* What is left for a donor, beside others with these rates, the lowest first. */
static double
share_of(double left, const double *rates, uint64 n)
{
	uint64		i = 0;

	while (i < n && rates[i] < USES_ITS_SHARE * left / (n - i + 1))
		left -= rates[i++];
	return left / (n - i + 1);
}

/* Bytes a second that the donor of the migration may send; 0: as much as it can. */
double
tessera_serve_move_rate(const TesseraMoveRateArgs *args)
{
	TesseraSpi	spi;
	double		share = 0;
	uint64		n;

	tessera_spi_begin(&spi);
	tessera_spi_run("UPDATE tessera.migration SET rate = $2, rate_reported = clock_timestamp() WHERE migration_id = $1 AND state = 'running'",
					SPI_OK_UPDATE, 2, (Oid[]) {UUIDOID, FLOAT8OID}, (Datum[]) {UUIDPGetDatum(args->migration_id), Float8GetDatum(args->sent)}, NULL);
	if (max_rate > 0)
	{
		double	   *rates = others(args->migration_id, &n);

		share = share_of(max_rate * 1024.0, rates, n);
	}
	tessera_spi_end(&spi);
	return share;
}

void
tessera_move_rate_init(void)
{
	DefineCustomIntVariable("tessera.balancer_max_rate",
							"What all moves that the balancer has begun send in a second, together; 0: no limit. Counts on the config node.", NULL,
							&max_rate, 0, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
}
