/*
 * table_path.h
 *	  What scans of cluster tables have in common: the rows of one table come in, or of a join (join_path.c), or groups of them (group_path.c). For
 *	  planner/ only.
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
	Relids		relids;			/* of its tables, in the query being planned; the text has them in this order */
	List	   *params;			/* expressions of $1..$n */
	bool		conditional;	/* inside CASE or COALESCE */
} TesseraScanText;

/* The cluster table that a relation is; NULL: it is none. */
extern const TesseraTable *tessera_cluster_table(Oid relid);

/* The same, if router mode scans it through the nodes that have its rows; NULL also for a replicated table that is only read: its copy here is. */
extern const TesseraTable *tessera_scanned_table(PlannerInfo *root, Index rti, Oid relid);

/* True if an expression over the table's columns means the same on a shard, and can be printed. */
extern bool tessera_scan_ships(Node *node);

/* True if the condition can be checked by the shards alone. */
extern bool tessera_condition_ships(const RestrictInfo *restriction);

/* True if an expression uses whole rows of tables: they may have other columns on another node. */
extern bool tessera_uses_whole_row(Node *node);

/* SELECT FROM the tables WHERE the conditions (RestrictInfos that ship): a Query without columns. */
extern Query *tessera_scan_query(PlannerInfo *root, List *shipped, TesseraScanText *text);

/* An expression of that query: the tables' columns are those of its relations, values from elsewhere are parameters. */
extern Node *tessera_scan_expression(Node *node, TesseraScanText *text);

/*
 * The scan that runs sql on the shards that the clauses (RestrictInfos of the table) leave. attributes: of the scan's rows, those that the columns of
 * the text stand for. flags: TesseraStatementFlags. The caller sets target list and conditions, and what is scanned.
 */
extern CustomScan *tessera_scan_plan(RelOptInfo *rel, const TesseraTable *table, List *clauses, char *sql, List *params, List *attributes, int flags);

/* ---- join_path.c ---- */

/* A cluster table, or some of one group joined on its key: each shard can answer for its rows alone. */
typedef struct TesseraClosedRel
{
	Relids		relids;
	List	   *conditions;		/* RestrictInfos, all that there are: they ship */
} TesseraClosedRel;

/* False: the relation is no such thing. A single table may also be a placed one. */
extern bool tessera_closed_rel(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed);

/* The table whose conditions say which shards the scan goes to. */
extern RelOptInfo *tessera_closed_table(PlannerInfo *root, const TesseraClosedRel *closed);

/* Position in the key of a column of one of the tables, which are the cluster's by this image; -1: it is none of it. */
extern int	tessera_key_column_position(const TesseraRouting *routing, PlannerInfo *root, Relids relids, Node *node);

/* Cost of reading the tables on the shards, before the first row comes here. */
extern Cost tessera_closed_cost(PlannerInfo *root, const TesseraClosedRel *closed);

#endif							/* TESSERA_TABLE_PATH_H */
