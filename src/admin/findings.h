/*
 * findings.h
 *	  What is found in the way of sharding a table: a list of findings, for tessera.shard_table, which raises the first error, and
 *	  tessera.check_table and tessera.check_schema, which return all.
 */
#ifndef TESSERA_FINDINGS_H
#define TESSERA_FINDINGS_H

#include "postgres.h"
#include "nodes/pg_list.h"

typedef struct TesseraFinding
{
	int			sqlstate;		/* of shard_table's error; 0: a warning */
	Oid			relid;			/* the table that the statement changes */
	const char *problem;		/* primary message */
	const char *detail;			/* or NULL */
	const char *hint;			/* what to do, in words, or NULL */
	const char *statement;		/* SQL that mends it, or NULL */
	const char *restore;		/* SQL that brings back what the statement takes away, when all tables are sharded; or NULL */
	Oid			referenced;		/* of a foreign key that the statement drops: the table that it references; else InvalidOid */
	const char *constraint;		/* and its name */
} TesseraFinding;

/* Everything lives in the context that is current when it is added. Statements can be run in the order of the list. */
typedef struct TesseraFindings
{
	List	   *list;			/* of TesseraFinding */
	List	   *foreign_keys;	/* OIDs of foreign keys that are on the list: one table's are another's, too */
} TesseraFindings;

/* Returns the finding, in the list. */
extern TesseraFinding *tessera_finding(TesseraFindings *findings, int sqlstate, Oid relid, const char *problem, const char *detail,
									   const char *hint, const char *statement);

/* Problem, detail and, where no statement says what to do, hint, as one text. In the current context. */
extern char *tessera_finding_text(const TesseraFinding *finding);

/* ERROR with the first finding that is one, if there is any. report: where all are listed, for its HINT (NULL: its own alone). */
extern void tessera_findings_raise(const TesseraFindings *findings, const char *report);

#endif							/* TESSERA_FINDINGS_H */
