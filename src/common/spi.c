/*
 * spi.c
 *	  SPI for the extension's own SQL. Nothing is kept; errors are cleaned up by the abort of the transaction or subtransaction.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "common/spi.h"

void
tessera_spi_begin(TesseraSpi *spi)
{
	GetUserIdAndSecContext(&spi->user, &spi->security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, spi->security | SECURITY_LOCAL_USERID_CHANGE);
	spi->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	/* background workers have none */
	spi->snapshot = !ActiveSnapshotSet();
	if (spi->snapshot)
		PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not connect to SPI")));
}

void
tessera_spi_end(TesseraSpi *spi)
{
	SPI_finish();
	if (spi->snapshot)
		PopActiveSnapshot();
	AtEOXact_GUC(true, spi->guc_level);
	SetUserIdAndSecContext(spi->user, spi->security);
}

uint64
tessera_spi_run(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls)
{
	char		marks[FUNC_MAX_ARGS] = {0};
	int			code;

	Assert(nargs <= FUNC_MAX_ARGS);
	for (int i = 0; i < nargs; i++)
		marks[i] = nulls != NULL && nulls[i] ? 'n' : ' ';
	code = SPI_execute_with_args(sql, nargs, unconstify(Oid *, types), unconstify(Datum *, values), marks, false, 0);
	if (code != expected)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("unexpected result of SPI: %s", SPI_result_code_string(code)),
				 errcontext("SQL statement \"%s\"", sql)));
	return SPI_processed;
}
