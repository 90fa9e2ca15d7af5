/*
 * source_position.h
 *	  tessera.source_position(): which of the rows that an INSERT of a router was given is the one that it returns.
 *
 * Of several rows some may be left out (ON CONFLICT, BEFORE triggers), and nothing that RETURNING can name tells which.
 */
#ifndef TESSERA_SOURCE_POSITION_H
#define TESSERA_SOURCE_POSITION_H

#include "postgres.h"
#include "executor/execdesc.h"

/* Oid of tessera.source_position(), an int8; InvalidOid: the extension's SQL does not have it yet, or is gone. Catalog access. */
extern Oid	tessera_source_position_function(void);

/* After the start of a statement that a router has sent, or of a local part. */
extern void tessera_source_position_started(QueryDesc *query);

#endif							/* TESSERA_SOURCE_POSITION_H */
