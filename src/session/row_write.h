/*
 * row_write.h
 *	  Statements by which a router writes rows whose triggers it fires itself.
 *
 * Such a statement writes rows that the router has computed or knows by their identity. On the shard no trigger of a user fires for it; those of
 * foreign keys and of the extension do. The rights to the table were checked on the router, by what the user wrote; here the statement names more
 * columns than that did, so they are not checked again. Row security applies.
 */
#ifndef TESSERA_ROW_WRITE_H
#define TESSERA_ROW_WRITE_H

#include "postgres.h"
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"

/* The INSERT, UPDATE or DELETE as such a text; palloc'd. reads: what the user wrote reads the table, so that policies for SELECT apply. */
extern char *tessera_row_write_text(const char *sql, bool reads);

/* True for such a text, of a statement that is known to come from a router. */
extern bool tessera_is_row_write(const char *sql);

/* After its planning: the rights to the table are not checked here. */
extern void tessera_row_write_planned(PlannedStmt *plan);

/* After its start: users' triggers do not fire. */
extern void tessera_row_write_started(PlanState *plan);

/* From _PG_init. */
extern void tessera_row_write_init(void);

#endif							/* TESSERA_ROW_WRITE_H */
