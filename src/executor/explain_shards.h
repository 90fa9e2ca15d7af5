/*
 * explain_shards.h
 *	  What EXPLAIN tells of tessera's plan nodes: shards targeted of total, and with ANALYZE the rows and time of each; in all formats.
 */
#ifndef TESSERA_EXPLAIN_SHARDS_H
#define TESSERA_EXPLAIN_SHARDS_H

#include "postgres.h"
#include "commands/explain.h"

#include "executor/run.h"
#include "routing/routing.h"

extern void tessera_explain_shards(ExplainState *es, const TesseraRouting *routing, int ntargets, const int *targets);
extern void tessera_explain_run(ExplainState *es, const TesseraRouting *routing, TesseraRun *run);

/* Do the expressions hold external parameters? */
extern bool tessera_exprs_need_params(List *exprs);

#endif							/* TESSERA_EXPLAIN_SHARDS_H */
