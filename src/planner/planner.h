/*
 * planner.h
 *	  The planner hook and its tiers (doc/design.md#statements).
 */
#ifndef TESSERA_PLANNER_H
#define TESSERA_PLANNER_H

#include "postgres.h"

#include "routing/routing.h"

typedef enum TesseraPlanMode
{
	TESSERA_PLAN_PLAIN,			/* not a member, or no cluster table: as without the extension */
	TESSERA_PLAN_ROUTER,		/* cluster tables are scanned through their shards */
	TESSERA_PLAN_SHARD			/* this shard's own heaps, with the ownership filter while there is anything to hide */
} TesseraPlanMode;

/* Mode of the planning in progress (innermost). */
extern TesseraPlanMode tessera_plan_mode(void);

/* In shard mode: true if the statement itself names this relation. If not, the relation comes from a function that core has inlined. */
extern bool tessera_plan_names(Oid relid);

/*
 * In router mode, while core plans: true if an entry of a query's range table reads the children (partitions) of its table, as the statement says.
 * The entry itself says to core that there are none. It is known by its address: core keeps an entry where it is from when it sets up its arrays to
 * the end of the planning.
 */
extern void tessera_plan_remember_children(RangeTblEntry *rte, bool reads);
extern bool tessera_plan_reads_children(RangeTblEntry *rte);

/* In router mode: FOR UPDATE/SHARE marks of the query being planned are wanted remotely. */
extern void tessera_planner_init(void);

/* table_path.c */
extern void tessera_table_path_init(void);

/* join_path.c */
extern void tessera_join_path_init(void);

/* group_path.c */
extern void tessera_group_path_init(void);

/* upper_path.c */
extern void tessera_upper_path_init(void);

#endif							/* TESSERA_PLANNER_H */
