/*
 * exact_text.h
 *	  Values as text that is the same whatever a session has set, and that loses nothing.
 *
 * What a value says must not depend on who looks at it: DateStyle, IntervalStyle, extra_float_digits, search_path and the like are about showing.
 */
#ifndef TESSERA_EXACT_TEXT_H
#define TESSERA_EXACT_TEXT_H

#include "postgres.h"

/* True if a value's binary form means the same on every node, and is all of it. An XML document loses its declaration in it. */
extern bool tessera_binary_is_exact(Oid type);

/* The settings that the text of a type's values depends on, and under which it is written and read: TesseraFixedSettings. Catalog access. */
extern int	tessera_text_settings(Oid type);

/* How values of a type are written as such text; in this context, catalog access. */
typedef struct TesseraExactText TesseraExactText;
extern TesseraExactText *tessera_exact_text_of(Oid type, MemoryContext context);

/* The text of a value, palloc'd. Runs the type's output function. */
extern char *tessera_exact_text(TesseraExactText *exact, Datum value);

#endif							/* TESSERA_EXACT_TEXT_H */
