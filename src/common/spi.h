/*
 * spi.h
 *	  SPI for the extension's own SQL: as the owner of the extension's objects, under a fixed search path, whoever the user is.
 */
#ifndef TESSERA_SPI_H
#define TESSERA_SPI_H

#include "postgres.h"
#include "executor/spi.h"

typedef struct TesseraSpi
{
	Oid			user;
	int			security;
	int			guc_level;
	bool		snapshot;		/* pushed one, as there was none */
} TesseraSpi;

/*
 * Connects; until the end the effective user is the bootstrap superuser and search_path is pg_catalog, pg_temp. SQL must not call functions that
 * users can define. On error the transaction's (or subtransaction's) abort restores everything.
 */
extern void tessera_spi_begin(TesseraSpi *spi);
extern void tessera_spi_end(TesseraSpi *spi);

/* Runs one statement with parameters; ERROR XX000 if SPI returns anything but the expected code. Returns the number of rows. */
extern uint64 tessera_spi_run(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls);

#endif							/* TESSERA_SPI_H */
