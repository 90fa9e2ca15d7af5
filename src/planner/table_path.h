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

/* Text of a scan being made, or of a subquery in it: its parameters so far. */
typedef struct TesseraScanText
{
	Relids		relids;			/* of its tables, in the query being planned; the text has them in this order */
	List	   *params;			/* expressions of $1..$n; of a subquery, they are the outermost's */
	bool		conditional;	/* inside CASE or COALESCE */
	struct TesseraScanText *outer;	/* around it; NULL: it is none */
} TesseraScanText;

/*
 * A cluster table, or some of one group joined on its key, with replicated ones among them: each shard can answer for its rows alone.
 *
 * The tree is a RangeTblRef, or a JoinExpr of two trees: an inner join without conditions, or an outer one with those of its ON (quals: a List).
 * Conditions are RestrictInfos, and JoinExprs that stand for [NOT] EXISTS (a semijoin or antijoin with the tree on its right, quals: a List): all
 * that there are, and all ship.
 */
typedef struct TesseraClosedRel
{
	Relids		relids;			/* of all tables, also of those in EXISTS */
	List	   *conditions;		/* of WHERE */
	Node	   *tree;
} TesseraClosedRel;

/* The cluster table that a relation is; NULL: it is none. */
extern const TesseraTable *tessera_cluster_table(Oid relid);

/*
 * The same, if router mode scans it through the nodes that have its rows; NULL also for a replicated table that is only read, and not by its rows'
 * versions: its copy here is.
 */
extern const TesseraTable *tessera_scanned_table(PlannerInfo *root, Index rti, Oid relid);

/* True if an expression over the table's columns means the same on a shard, and can be printed. */
extern bool tessera_scan_ships(Node *node);

/* True if the condition can be checked by the shards alone. */
extern bool tessera_condition_ships(const RestrictInfo *restriction);

/* True if an expression uses whole rows of tables: they may have other columns on another node. */
extern bool tessera_uses_whole_row(Node *node);


/*
 * The scan that runs the texts (tessera_deparse) on the shards that the clauses (RestrictInfos of the table) leave. attributes: of the scan's rows,
 * those that the columns of the text stand for. flags: TesseraStatementFlags. The caller sets target list and conditions, and what is scanned.
 */
extern CustomScan *tessera_scan_plan(RelOptInfo *rel, const TesseraTable *table, List *clauses, List *texts, List *params, List *attributes,
									 int flags);

/* ---- group_path.c ---- */

/* True if a shard's planner takes the query for one that sends states of aggregates. */
extern bool tessera_sends_states(const Query *query);

/* ---- scan_text.c ---- */

/* SELECT FROM the tables WHERE the conditions: a Query without columns. Sets the text's tables. */
extern Query *tessera_scan_query(PlannerInfo *root, const TesseraClosedRel *closed, TesseraScanText *text);

/* An expression of that query: the tables' columns are those of its relations, values from elsewhere are parameters. */
extern Node *tessera_scan_expression(Node *node, TesseraScanText *text);

/* The tree of one table. */
extern Node *tessera_closed_leaf(Index relid);

/* The tables of a tree, and those of them that an outer join may extend by NULL. */
extern Relids tessera_tree_relids(Node *tree);
extern Relids tessera_tree_nullable(Node *tree);

/* ---- join_path.c ---- */

/* False: the relation is no such thing. A single table may also be a placed one. */
extern bool tessera_closed_rel(PlannerInfo *root, RelOptInfo *rel, TesseraClosedRel *closed);

/* The same for a path's custom_private, where it is one element, and back; relids: of the path's relation. */
extern List *tessera_closed_keep(const TesseraClosedRel *closed);
extern void tessera_closed_kept(List *kept, Relids relids, TesseraClosedRel *closed);

/* A table of it that is not replicated. clauses: conditions (RestrictInfos) of that table which each row fulfils, for tessera_scan_plan. */
extern RelOptInfo *tessera_closed_table(PlannerInfo *root, const TesseraClosedRel *closed, List **clauses);

/* Its tables whose key is that of each row: not replicated, in no EXISTS, never extended by NULL. */
extern Relids tessera_closed_keyed(PlannerInfo *root, const TesseraClosedRel *closed);

/* Position in the key of a column of one of the tables, which are the cluster's by this image; -1: it is none of it. */
extern int	tessera_key_column_position(const TesseraRouting *routing, PlannerInfo *root, Relids relids, Node *node);

/* Cost of reading the tables on the shards, before the first row comes here. */
extern Cost tessera_closed_cost(PlannerInfo *root, const TesseraClosedRel *closed);

#endif							/* TESSERA_TABLE_PATH_H */
