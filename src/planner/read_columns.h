/*
 * read_columns.h
 *	  Which columns of an entry of its range table a query reads, in whatever depth.
 */
#ifndef TESSERA_READ_COLUMNS_H
#define TESSERA_READ_COLUMNS_H

#include "postgres.h"
#include "nodes/parsenodes.h"

typedef struct TesseraReadColumns
{
	Bitmapset  *columns;		/* by their numbers */
	bool		whole;			/* the row as a value */
	Bitmapset  *system;			/* system columns, by their numbers less FirstLowInvalidHeapAttributeNumber */
} TesseraReadColumns;

/*
 * What the query, and what is given as `more` beside it (NULL: nothing), reads of the entry. unread: output columns that do not count. In the current
 * context.
 */
extern TesseraReadColumns tessera_read_columns(Query *query, Node *more, Index rti, const List *unread);

/* The output columns (TargetEntry) of subqueries in FROM, in whatever depth of a statement, that nothing reads. In the current context. */
extern List *tessera_unread_outputs(Query *statement);

/* True if it reads xmin, xmax, cmin or cmax of the entry. Arguments as above. */
extern bool tessera_reads_row_version(Query *query, Node *more, Index rti, const List *unread);

#endif							/* TESSERA_READ_COLUMNS_H */
