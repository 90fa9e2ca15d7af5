/*
 * table_copy.h
 *	  SELECT of columns of one table, as COPY of a table becomes one: planned without a look at its indexes and statistics.
 *
 * Core's COPY of a table reads its heap and plans nothing, so whoever dumps a database runs no code of those who own its tables. Core's planner does
 * run it: it computes constant calls in index expressions and predicates, and in expressions of statistics, of each table that a query reads.
 */
#ifndef TESSERA_TABLE_COPY_H
#define TESSERA_TABLE_COPY_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

/* True if the query reads columns of all rows of ONLY one table, as they are or as exact text, and does nothing else. */
extern bool tessera_copies_table(const Query *query);

/* The plan of such a query in shard mode: a sequential scan of the rows that this shard owns. */
extern PlannedStmt *tessera_plan_table_copy(Query *query);

#endif							/* TESSERA_TABLE_COPY_H */
