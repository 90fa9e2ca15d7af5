/*
 * row_conflict.h
 *	  What planner/row_triggers.c and row_conflict.c share: texts for one row, and ON CONFLICT DO UPDATE of a table whose triggers fire on the router.
 */
#ifndef TESSERA_ROW_CONFLICT_H
#define TESSERA_ROW_CONFLICT_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "utils/rel.h"

/*
 * TRIGGER_CONFLICT of the plan (executor/plan_private.h); NIL: the conflict cannot be found by plain columns, or what is done then not be computed
 * here. columns: all of the table.
 */
extern List *tessera_plan_row_conflict(Query *query, Relation table, List *columns);

/* Attribute numbers of assignments. */
extern List *tessera_assigned_columns(List *targets);

/* The parameter of a text that stands for a column of the row at hand, or for its ctid (SelfItemPointerAttributeNumber). */
extern Expr *tessera_row_value(Relation table, AttrNumber attribute);

/* The table as the first entry of a range table; a target list of its ctid and these columns. */
extern RangeTblEntry *tessera_row_entry(Query *query, Relation table);
extern List *tessera_place_and_columns(Relation table, List *columns);

/* Locks the rows as core locks those of an UPDATE that assigns these columns; NIL: of a DELETE. */
extern void tessera_lock_for_update(Query *select, Index rti, List *assigned, Relation table);

/* The text of a query (scribbled on) whose parameters are tessera_row_value's, and in *attributes what they stand for; NULL: there is none. */
extern List *tessera_row_texts(Query *query, List **attributes);

/* The same of a statement that writes one row. */
extern List *tessera_write_texts(Query *query, Relation table, List *columns, CmdType command, List *assigned, List **attributes);

#endif							/* TESSERA_ROW_CONFLICT_H */
