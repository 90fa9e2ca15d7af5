/*
 * part_plan.h
 *	  Statements with WITH queries that no shard can run whole: a plan for each part.
 */
#ifndef TESSERA_PART_PLAN_H
#define TESSERA_PART_PLAN_H

#include "postgres.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"


/* The plan (executor/part_scan.c). ERROR if a part cannot be planned, as for a statement of its own. */
extern PlannedStmt *tessera_plan_parts(Query *query, const char *source, int cursor_options, ParamListInfo params);

#endif							/* TESSERA_PART_PLAN_H */
