/*
 * statement_cut.h
 *	  The common snapshot of a statement with several fragments, or one that reads copies here (cut.h): all its nodes are asked before it reads.
 *
 * A statement whose only fragment goes to several nodes asks them when it is sent (shard_run.c).
 */
#ifndef TESSERA_STATEMENT_CUT_H
#define TESSERA_STATEMENT_CUT_H

#include "postgres.h"
#include "executor/execdesc.h"

#include "executor/shard_run.h"

/* True if what the plan reads is to be read as of one moment: it locks no rows, and changes none but those that it inserts. */
extern bool tessera_statement_is_cut(EState *estate);

/* True if a table is read here that every node has. */
extern bool tessera_statement_reads_copies(EState *estate);

/* Before the statement runs. Its snapshot becomes the one as of the nodes' time; returns whether it has. */
extern bool tessera_statement_cut(QueryDesc *query);

/* The same for a cursor that opens, or a plan within another one, before a scan of it starts: once for each number of the statement. */
extern void tessera_statement_cut_now(EState *estate);

/* The same for a statement in parts, of these plans, before the first of them starts. */
extern void tessera_parts_cut(TesseraParts *parts, List *plans, EState *estate);

/* The nodes that have rows of the plan's tables; palloc'd. */
extern Bitmapset *tessera_statement_owners(const TesseraRouting *routing, PlannedStmt *plan);

#endif							/* TESSERA_STATEMENT_CUT_H */
