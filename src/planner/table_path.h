/*
 * table_path.h
 *	  What scans of one cluster table have in common, whether its rows come in or groups of them (group_path.c). For planner/ only.
 */
#ifndef TESSERA_TABLE_PATH_H
#define TESSERA_TABLE_PATH_H

#include "postgres.h"
#include "nodes/pathnodes.h"
#include "nodes/plannodes.h"

#include "routing/routing.h"

/* Text of a scan being made: its parameters so far. */
typedef struct TesseraScanText
{
	Index		relid;			/* of the table, in the query being planned */
	List	   *params;			/* expressions of $1..$n */
	bool		conditional;	/* inside CASE or COALESCE */
} TesseraScanText;

/* The cluster table that a relation is; NULL: it is none. */
extern const TesseraTable *tessera_cluster_table(Oid relid);

/* True if an expression over the table's columns means the same on a shard, and can be printed. */
extern bool tessera_scan_ships(Node *node);

/* True if the condition can be checked by the shards alone. */
extern bool tessera_condition_ships(const RestrictInfo *restriction);

/* SELECT FROM the table WHERE the conditions (RestrictInfos that ship): a Query without columns. */
extern Query *tessera_scan_query(PlannerInfo *root, RelOptInfo *rel, List *shipped, TesseraScanText *text);

/* An expression of that query: the table's columns are those of its only relation, values from elsewhere are parameters. */
extern Node *tessera_scan_expression(Node *node, TesseraScanText *text);

/*
 * The scan that runs sql on the shards that the clauses (RestrictInfos) leave. attributes: of the scan's rows, those that the columns of the text
 * stand for. flags: TesseraStatementFlags. The caller sets target list and conditions, and what is scanned.
 */
extern CustomScan *tessera_scan_plan(RelOptInfo *rel, const TesseraTable *table, List *clauses, char *sql, List *params, List *attributes, int flags);

#endif							/* TESSERA_TABLE_PATH_H */
