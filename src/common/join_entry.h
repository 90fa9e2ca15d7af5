/*
 * join_entry.h
 *	  Range table entries of joins.
 */
#ifndef TESSERA_JOIN_ENTRY_H
#define TESSERA_JOIN_ENTRY_H

#include "postgres.h"
#include "nodes/parsenodes.h"

/*
 * Makes the entry that of a join with ON of two entries of the query's range table: what the deparser wants to know of it are the columns of its
 * sides, but for dropped ones. What it had before of columns is forgotten.
 */
extern void tessera_set_join_columns(RangeTblEntry *join, const Query *query, Node *left, Node *right);

#endif							/* TESSERA_JOIN_ENTRY_H */
