/*
 * spi_row.h
 *	  Columns (from 1) of the rows (from 0) of SPI_tuptable, after tessera_spi_run.
 */
#ifndef TESSERA_SPI_ROW_H
#define TESSERA_SPI_ROW_H

#include "common/spi.h"

/* The datum points into the row; *isnull says whether there is one. */
static inline Datum
spi_row_datum(uint64 row, int column, bool *isnull)
{
	Assert(SPI_tuptable != NULL && row < SPI_tuptable->numvals);
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, isnull);
}

/* The same of a column that is never null. */
static inline Datum
spi_row_value(uint64 row, int column)
{
	bool		isnull;
	Datum		value = spi_row_datum(row, column, &isnull);

	Assert(!isnull);
	return value;
}

/* As text, in the current memory context; NULL if null. */
static inline char *
spi_row_text(uint64 row, int column)
{
	Assert(SPI_tuptable != NULL && row < SPI_tuptable->numvals);
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

#endif							/* TESSERA_SPI_ROW_H */
