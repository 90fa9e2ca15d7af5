/*
 * ship.h
 *	  What may run on a shard, and how a Query becomes SQL text for it.
 *
 * "Cannot ship" is a returned value (a reason), never an exception.
 */
#ifndef TESSERA_SHIP_H
#define TESSERA_SHIP_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "routing/routing.h"

/* Reasons why something cannot run on a shard; primary text of a 0A000 if there is no other way. NULL text: it can. */
typedef struct TesseraReason
{
	const char *text;			/* "uses function f(), which is volatile" */
	const char *hint;
} TesseraReason;

/* True if an expression of a planned scan (Vars of one relation, Params), or a whole Query, gives the same answer when a shard evaluates it. */
extern bool tessera_expression_ships(Node *node);

/*
 * True if a shard puts values of the type into the same order, and takes the same ones for equal, as this node: they hold no OIDs of the node, and
 * what compares them may run there.
 */
extern bool tessera_order_ships(const SortGroupClause *clause, Oid type);

/*
 * Prepares a private copy of an unplanned Query for deparsing (it is scribbled on): views become views again, tableoid is folded, expressions that
 * need no row and are not immutable become parameters, external parameters are numbered densely. params receives the expressions of $1..$n. writing:
 * user functions may ship (they run on the shard; what they touch beyond it is refused there).
 */
extern bool tessera_prepare_query(Query *query, bool writing, List **params, TesseraReason *reason);

/* Of the constants of a statement. */
typedef struct TesseraConstants
{
	bool		many;			/* so many that some stay in the text: it will hardly be seen again */
	bool		large_array;	/* an array among them is so large that a plan should know its values */
} TesseraConstants;

/*
 * Before tessera_prepare_query: the constants of conditions and of written values become parameters (appended to *params), so that statements that
 * differ in them share one text, one prepared statement, one cached plan. A long list of them becomes one array.
 */
extern TesseraConstants tessera_lift_constants(Query *query, List **params);

/*
 * True if it is a constant array with a NULL, whose text is read otherwise while array_nulls is off, and which ARRAY[...] can say: its subscripts
 * begin at 1.
 */
extern bool tessera_is_array_with_null(const Node *node);

/*
 * SQL texts of a prepared query, with every value in a form that reads the same under all settings. List of String: the query; then, if it has
 * columns that cannot go in binary, the text that returns them as exact text (exact_columns.h). tessera_remote_query_make takes them. once: they are
 * not kept for the next such query. The query is scribbled on.
 */
extern List *tessera_deparse(Query *query);
extern List *tessera_deparse_once(Query *query);

extern void tessera_deparse_init(void); /* from _PG_init: what makes its cache forget */

/*
 * True if the expression is to be evaluated once, here, and to travel as a parameter: it is stable but not immutable, or an external parameter, and
 * needs no row; current_query() is volatile, but one value for the client's statement, too. conditional: it stands inside CASE or COALESCE, where the
 * statement may never evaluate it; then only what cannot fail counts.
 */
extern bool tessera_becomes_param(Node *node, bool conditional);

/*
 * Index (1..) of the parameter for this expression in *params, appended if it is not there; and the node that stands for it in the text: ($n)::type.
 */
extern Node *tessera_make_param(Expr *expr, List **params);

#endif							/* TESSERA_SHIP_H */
