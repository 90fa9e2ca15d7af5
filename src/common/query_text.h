/*
 * query_text.h
 *	  SQL text of a query that is to be parsed again.
 */
#ifndef TESSERA_QUERY_TEXT_H
#define TESSERA_QUERY_TEXT_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/*
 * Text by PostgreSQL's own deparser, palloc'd, in which names mean what they mean in the query; it depends on settings as core's does. Scribbles
 * on the query as that does.
 */
extern char *tessera_query_text(Query *query);

#endif							/* TESSERA_QUERY_TEXT_H */
