/*
 * range_table.h
 *	  Parts of queries that are made here: entries of the range table, references to them, and a SELECT around a query.
 *
 * What is returned is in the current context, and has what it is given as a part of it.
 */
#ifndef TESSERA_RANGE_TABLE_H
#define TESSERA_RANGE_TABLE_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/* A member of FROM. */
extern RangeTblRef *tessera_reference_to(int rtindex);

/* An entry without an alias; columns: their names. */
extern RangeTblEntry *tessera_subquery_entry(Query *subquery, const char *name, List *columns);

/* SELECT, without output columns yet, FROM the entry alone. */
extern Query *tessera_select_from(RangeTblEntry *rows);

/* SELECT the query's output columns FROM (query) AS name, with columns c1, c2, ... Its references to queries around it are not moved. */
extern Query *tessera_select_around(Query *query, const char *name);

/*
 * Makes the entry that of a join with ON of two entries of the query's range table: what the deparser wants to know of it are the columns of its
 * sides, but for dropped ones. What it had before of columns is forgotten.
 */
extern void tessera_set_join_columns(RangeTblEntry *join, const Query *query, Node *left, Node *right);

#endif							/* TESSERA_RANGE_TABLE_H */
