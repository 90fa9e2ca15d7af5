/*
 * exact_columns.h
 *	  Output columns whose values cannot go to another node in binary go as text that depends on no setting.
 */
#ifndef TESSERA_EXACT_COLUMNS_H
#define TESSERA_EXACT_COLUMNS_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/*
 * The same query, prepared for deparsing, as another node is to run it: with tessera_internal.exact_text around such columns. It returns the same
 * rows, in the same order. A copy, in the current context; NULL: all columns go in binary, or the extension's
 * objects are of a version without the function.
 */
extern Query *tessera_exact_query(const Query *query);

/* True if the expression is such a call. */
extern bool tessera_is_exact_text(const Expr *expr);

#endif							/* TESSERA_EXACT_COLUMNS_H */
