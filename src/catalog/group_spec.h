/*
 * group_spec.h
 *	  Reads the JSON that says how a table group is to change, as the config node and the shards get it (config/group_changes.c,
 *	  admin/group_on_shard.c). All of it between tessera_spi_begin and tessera_spi_end.
 */
#ifndef TESSERA_GROUP_SPEC_H
#define TESSERA_GROUP_SPEC_H

#include "postgres.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "catalog/change.h"
#include "catalog/relation.h"
#include "common/spi_row.h"

/* Runs a command whose one parameter is the jsonb; as tessera_spi_run. */
static inline uint64
spec_run(const char *sql, int expected, Datum spec)
{
	return tessera_spi_run(sql, expected, 1, (Oid[]) {JSONBOID}, &spec, NULL);
}

/* A field as text, in SPI's context. ERROR 22023 if it is not there. */
static inline char *
spec_field(Datum spec, const char *name)
{
	char	   *text = NULL;

	if (tessera_spi_run("SELECT $1->>$2", SPI_OK_SELECT, 2, (Oid[]) {JSONBOID, TEXTOID},
						(Datum[]) {spec, CStringGetTextDatum(name)}, NULL) == 1)
		text = spi_row_text(0, 1);
	if (text == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" is missing", name)));
	return text;
}

/* The same as a Datum of type uuid. */
static inline Datum
spec_uuid(Datum spec, const char *name)
{
	return DirectFunctionCall1(uuid_in, CStringGetDatum(spec_field(spec, name)));
}

/* The catalog has changed for a table of this node (InvalidOid: of none): plans of it are made anew from the commit on. */
static inline void
spec_table_changed(Oid relid)
{
	tessera_catalog_changed();
	tessera_invalidate_tree(relid);
}

#endif							/* TESSERA_GROUP_SPEC_H */
