/*
 * operator_names.h
 *	  Operators that SQL has no place for the schema of: IS DISTINCT FROM, NULLIF, CASE x WHEN, comparisons of rows, JOIN ... USING.
 *
 * Core's deparser prints them without the operator, or with the name of the first one for all, and who reads the text looks them up by the search
 * path. A view or a function in SQL-standard form means those of the path under which it was made. An operator that the session's path does not find
 * is hidden here; such forms are written by others, which name it.
 */
#ifndef TESSERA_OPERATOR_NAMES_H
#define TESSERA_OPERATOR_NAMES_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/* True if the node itself is printed without the name of an operator that the session's search path does not find for it. */
extern bool tessera_hides_operator(Node *node);

/* True if all such nodes of an expression or Query can be written otherwise. Worth asking only if there is one. */
extern bool tessera_operators_print(Node *node);

/* The Query, or a copy in which hidden operators are named. ERROR 0A000 if they cannot be. */
extern Query *tessera_name_operators(Query *query);

#endif							/* TESSERA_OPERATOR_NAMES_H */
