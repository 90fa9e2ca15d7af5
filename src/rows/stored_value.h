/*
 * stored_value.h
 *	  A stored value is not a new one: rows that nodes copy from each other are read and written without judging them again.
 *
 * What lies in a table was checked where it was made, by the rules and by the role of then. A copy of it (a move, a replicated table's row on another
 * node) runs no CHECK of a domain or of a table: their code is users', a rule may be newer than the row (NOT VALID), and it may say something else
 * today. Generated columns are copied as well. What remains to be computed, index expressions, runs as the table's owner in a restricted operation,
 * which is the caller's to see to.
 */
#ifndef TESSERA_STORED_VALUE_H
#define TESSERA_STORED_VALUE_H

#include "postgres.h"
#include "nodes/execnodes.h"

typedef struct TesseraStoredType TesseraStoredType;

/*
 * How stored values of a type are read from their text; in the current context, catalog access. Domains are read as what they are made of, also in
 * arrays, rows and ranges, however deep, and ranges as they are: no code of users runs. ERROR 0A000 for arrays of domains over arrays whose separator
 * is no comma (box).
 */
extern TesseraStoredType *tessera_stored_type(Oid type, int32 typmod);

/*
 * Reads a value that the type's output function wrote; palloc'd. It was written under the settings that the type's text depends on
 * (exact_text.h), whatever this session's are.
 */
extern Datum tessera_stored_input(TesseraStoredType *stored, char *text);

/*
 * Rows that are written by this state keep NOT NULL, but no CHECK is run for them; and, where those are given as well, no generated column is
 * computed. Before the first row; memory in the current context.
 */
extern void tessera_stored_rows_only(ResultRelInfo *result);
extern void tessera_stored_generated_given(ResultRelInfo *result);

#endif							/* TESSERA_STORED_VALUE_H */
