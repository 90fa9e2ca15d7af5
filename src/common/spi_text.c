/*
 * spi_text.c
 *	  SQL on the catalog with texts for parameters and results: for changes of membership, whose values come and go as text.
 *
 * All of it between tessera_spi_begin and tessera_spi_end. What is kept is in the memory that was current at tessera_spi_begin.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "common/spi_text.h"

#define MAX_PARAMS 16

uint64
tessera_admin_exec(const char *sql, int nparams, const char *const *values)
{
	Oid			types[MAX_PARAMS];
	Datum		datums[MAX_PARAMS];
	char		nulls[MAX_PARAMS] = {0};
	int			result;

	Assert(nparams <= MAX_PARAMS);
	for (int i = 0; i < nparams; i++)
	{
		types[i] = TEXTOID;
		nulls[i] = values[i] == NULL ? 'n' : ' ';
		datums[i] = values[i] == NULL ? (Datum) 0 : CStringGetTextDatum(values[i]);
	}
	result = SPI_execute_with_args(sql, nparams, types, datums, nulls, false, 0);
	if (result < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("catalog command failed: %s", SPI_result_code_string(result))));
	return SPI_processed;
}

char *
tessera_admin_field(uint64 row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

void *
tessera_admin_alloc(Size size)
{
	return SPI_palloc(size);
}

char *
tessera_admin_keep(const char *value)
{
	char	   *copy;

	if (value == NULL)
		return NULL;
	copy = SPI_palloc(strlen(value) + 1);
	strcpy(copy, value);
	return copy;
}

char *
tessera_admin_value(const char *sql, int nparams, const char *const *values)
{
	if (tessera_admin_exec(sql, nparams, values) == 0 || SPI_tuptable == NULL)
		return NULL;
	return tessera_admin_keep(tessera_admin_field(0, 1));
}
