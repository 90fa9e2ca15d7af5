/*
 * ddl_operations.c
 *	  Rows of tessera.ddl_operation: where an operation begins. What is said of it later is plain SQL (extension/install/35_ddl.sql).
 *
 * At most one operation of an object runs (a unique index); two that begin at once wait for each other there. No other locks; memory: the caller's.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "common/spi_row.h"
#include "config/authority.h"
#include "control/calls.h"

static const char insert_sql[] =
"INSERT INTO tessera.ddl_operation (operation_id, kind, table_id, schema_name, object_name, statement, search_path, command, asked_by, runner)"
" VALUES ($1, $2, $3, $4::name, $5::name, $6, $7, $8, $9::name, $10) ON CONFLICT DO NOTHING";

/* NULL: none runs, so it was one that has ended just now. */
static char *
running_statement(Datum schema, Datum object)
{
	Oid			types[] = {TEXTOID, TEXTOID};
	Datum		values[] = {schema, object};

	if (tessera_spi_look("SELECT statement FROM tessera.ddl_operation WHERE state = 'running' AND schema_name = $1::name"
						 " AND object_name = $2::name", 2,
						 types, values) == 0)
		return NULL;
	return spi_row_text(0, 1);
}

void
tessera_serve_begin_ddl_operation(const TesseraBeginDdlOperationArgs *args)
{
	Oid			types[] = {UUIDOID, TEXTOID, UUIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID};
	Datum		values[] = {UUIDPGetDatum(args->id), CStringGetTextDatum(args->kind), UUIDPGetDatum(args->table_id),
		CStringGetTextDatum(args->schema_name), CStringGetTextDatum(args->object_name), CStringGetTextDatum(args->statement),
	CStringGetTextDatum(args->search_path), CStringGetTextDatum(args->command), CStringGetTextDatum(args->asked_by), Int32GetDatum(args->runner)};
	TesseraSpi	spi;

	(void) tessera_config_routing(0);
	tessera_spi_begin(&spi);
	/* this transaction has made the index: the one of another operation was dropped */
	if (strcmp(args->kind, "create index") == 0)
		(void) tessera_spi_run("UPDATE tessera.ddl_operation SET state = 'failed', code = '42704', error = 'the index was dropped',"
							   " finished = clock_timestamp() WHERE state = 'running' AND schema_name = $4::name AND object_name = $5::name AND $1"
							   " IS NOT NULL AND $2 IS NOT NULL AND $3 IS NOT NULL", SPI_OK_UPDATE, 5, types, values, NULL);
	if (tessera_spi_run(insert_sql, SPI_OK_INSERT, 10, types, values, NULL) == 0)
	{
		char	   *other = running_statement(values[3], values[4]);

		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another operation on \"%s\" is under way", args->object_name),
				 other != NULL ? errdetail("It is: %s", other) : 0,
				 errhint("See tessera.ddl_operations; try again when it has ended.")));
	}
	tessera_spi_end(&spi);
}
