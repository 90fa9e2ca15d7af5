/*
 * pins.h
 *	  Analysis of an unplanned Query: which cluster tables it names, and which of them are pinned to one key.
 */
#ifndef TESSERA_PINS_H
#define TESSERA_PINS_H

#include "postgres.h"
#include "nodes/parsenodes.h"

#include "routing/routing.h"

/* One occurrence of a cluster table in the query. */
typedef struct TesseraOccurrence
{
	Query	   *query;
	Index		rti;			/* beyond the range table: the row of an INSERT action of MERGE */
	const TesseraTable *table;
	bool		pinned;			/* sharded: every key column has a value */
	List	   *key;			/* the values: expressions without Vars, in key column order */
	bool		closed;			/* only its rows of one key matter to what the statement does by that key; see all_closed */
} TesseraOccurrence;

typedef struct TesseraAnalysis
{
	List	   *occurrences;	/* of TesseraOccurrence * */
	bool		all_pinned;		/* every sharded occurrence is pinned */

	/*
	 * UPDATE, DELETE or MERGE of a sharded table, all occurrences of its group, which goes by the key: what it does is what it does for each key by
	 * itself, with the rows of that key. INSERT ... SELECT: so do the rows that it inserts. SELECT: so does its answer, before ORDER BY and LIMIT.
	 * Relations outside of the cluster are not looked at.
	 */
	bool		all_closed;
	int			nplaced;
	int			nother;			/* relations outside the cluster (local tables, catalogs, views' own entries not counted) */
	bool		writes_cluster; /* some cluster table is a result relation */
	bool		locks_rows;		/* FOR UPDATE/SHARE of a cluster table */
	bool		has_writing_cte;
	bool		policies_read_cluster;	/* row security, or a check option, has a subquery on a cluster table */
} TesseraAnalysis;

/* True if the query names a cluster table at any level. Cheap: one look-up for each relation. */
extern bool tessera_names_cluster_table(Query *query, const TesseraRouting *routing);

/* The analysis, in the current context; points into the query. */
extern TesseraAnalysis *tessera_analyse(Query *query, const TesseraRouting *routing);

/* The table that the query itself modifies; NULL: none, or none of the cluster. */
extern TesseraOccurrence *tessera_target_of(const TesseraAnalysis *analysis, const Query *query);

#endif							/* TESSERA_PINS_H */
