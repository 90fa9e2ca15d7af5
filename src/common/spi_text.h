/*
 * spi_text.h
 *	  SQL on the catalog with texts for parameters and results. "Access must be open": between tessera_spi_begin and tessera_spi_end.
 */
#ifndef TESSERA_SPI_TEXT_H
#define TESSERA_SPI_TEXT_H

#include "common/spi.h"

/*
 * One SQL command with text parameters, between tessera_spi_begin and tessera_spi_end. Returns the number of rows; rows of a SELECT or RETURNING are
 * in SPI_tuptable until the next command. ERROR of the command itself.
 */
extern uint64 tessera_admin_exec(const char *sql, int nparams, const char *const *values);

/* The same; returns the first column of the first row as text in the context that was current at tessera_spi_begin, NULL if none or null. */
extern char *tessera_admin_value(const char *sql, int nparams, const char *const *values);

/* Column (from 1) of row (from 0) of SPI_tuptable as text, in the current memory context; NULL if null. */
extern char *tessera_admin_field(uint64 row, int column);

/* Memory in the context that was current at tessera_spi_begin. */
extern void *tessera_admin_alloc(Size size);

/* Copy of a text (or NULL) in the context that was current at tessera_spi_begin. */
extern char *tessera_admin_keep(const char *value);

#endif							/* TESSERA_SPI_TEXT_H */
