/*
 * spi.h
 *	  SPI for the extension's own SQL: as the owner of the extension's objects, under a fixed search path, whoever the user is.
 */
#ifndef TESSERA_SPI_H
#define TESSERA_SPI_H

#include "postgres.h"
#include "executor/spi.h"

#include "common/acting_as.h"

typedef struct TesseraSpi
{
	TesseraActing before;
	int			guc_level;
	bool		snapshot;		/* pushed one, as there was none */
} TesseraSpi;

/*
 * Connects; until the end the effective user is the bootstrap superuser and search_path is pg_catalog, pg_temp. SQL must not call functions that
 * users can define. On error the transaction's (or subtransaction's) abort restores everything.
 */
extern void tessera_spi_begin(TesseraSpi *spi);

/* The same as another role: one that owns what the SQL names, or holds it for the cluster. */
extern void tessera_spi_begin_as(TesseraSpi *spi, Oid role);
extern void tessera_spi_end(TesseraSpi *spi);

/* True between the two, at any depth: what runs is the extension's own SQL. */
extern bool tessera_spi_at_work(void);

/* Runs one statement with parameters; ERROR XX000 if SPI returns anything but the expected code. Returns the number of rows. */
extern uint64 tessera_spi_run(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls);

/* SELECT as of now, also in a transaction that goes by an older snapshot. */
extern uint64 tessera_spi_look(const char *sql, int nargs, const Oid *types, const Datum *values);

/*
 * The same as tessera_spi_run, with a plan that this session keeps: the statement is parsed and planned at its first use, or before that by
 * tessera_spi_plan, and again only when one of its tables has changed. sql must be a string literal: the plan is found by its address. For what runs
 * while others wait.
 */
extern uint64 tessera_spi_run_saved(const char *sql, int expected, int nargs, const Oid *types, const Datum *values, const bool *nulls);

/* Parses and plans a statement for tessera_spi_run_saved, without running it. Between tessera_spi_begin and _end. */
extern void tessera_spi_plan(const char *sql, int nargs, const Oid *types);

#endif							/* TESSERA_SPI_H */
