/*
 * explain_remote.h
 *	  The shard's side of EXPLAIN ANALYZE: a router announces that the next statement is to be measured, and asks for its plan afterwards.
 */
#ifndef TESSERA_EXPLAIN_REMOTE_H
#define TESSERA_EXPLAIN_REMOTE_H

#include "postgres.h"
#include "executor/execdesc.h"

/*
 * The plan of a query that has run (analyze: under these InstrumentOptions) or has only been started, as EXPLAIN VERBOSE shows it in text; palloc'd,
 * without the last newline.
 */
extern char *tessera_plan_text(QueryDesc *query, bool analyze, int instrument, bool costs);

/* From _PG_init: hooks. */
extern void tessera_explain_remote_init(void);

#endif							/* TESSERA_EXPLAIN_REMOTE_H */
