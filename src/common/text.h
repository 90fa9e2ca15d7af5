/*
 * text.h
 *	  Text forms of values and names, as literals and in calls between nodes.
 */
#ifndef TESSERA_TEXT_H
#define TESSERA_TEXT_H

#include "postgres.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "utils/uuid.h"

/* Text form of a uuid, palloc'd. */
extern char *tessera_uuid_text(const pg_uuid_t *uuid);

/* A time that any DateStyle and TimeZone reads alike, palloc'd. */
extern char *tessera_timestamp_text(TimestampTz time);

/*
 * quote_identifier, quote_qualified_identifier and format_type_extended of the server, whatever quote_all_identifiers says: names and types that
 * nodes compare, and what is made of them, are the same in every session. The result is palloc'd, or name itself. They need a transaction.
 */
extern const char *tessera_quote(const char *name);
extern char *tessera_quote_qualified(const char *schema, const char *name);
extern char *tessera_type_text(Oid type, int32 typmod, bits16 flags);

/* Name of a table, view or sequence with its schema, quoted where needed; palloc'd. ERROR 42P01 if there is none. */
extern char *tessera_qualified_name(Oid relid);

/* Adds an element, quoted, to the literal of a text array that began with "{"; a comma in front of all but the first. The caller adds the "}". */
extern void tessera_append_array_element(StringInfo array, const char *value);

#endif							/* TESSERA_TEXT_H */
