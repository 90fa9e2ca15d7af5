/*
 * explain_shards.h
 *	  What EXPLAIN shows of tessera's plan nodes: shards targeted of total, with ANALYZE the rows and time of each, with VERBOSE the shard's own plan;
 *	  in all formats.
 */
#ifndef TESSERA_EXPLAIN_SHARDS_H
#define TESSERA_EXPLAIN_SHARDS_H

#include "postgres.h"
#include "commands/explain.h"

#include "executor/shard_run.h"
#include "routing/routing.h"

/*
 * Rows and times of a plan node's runs, added up by shard. Zeroed at the node's begin; the list lives in the context of the first
 * tessera_figures_add, of the whole query.
 */
typedef struct TesseraFigures
{
	List	   *shards;			/* private */
} TesseraFigures;

/* Adds a run that is about to end, if it was measured. context: of the whole query. */
extern void tessera_figures_add(TesseraFigures *figures, TesseraShardRun *run, MemoryContext context);

/* Prints them, and with VERBOSE the plans of each shard's last run. */
extern void tessera_explain_figures(ExplainState *es, const TesseraRouting *routing, TesseraFigures *figures);

extern void tessera_explain_shards(ExplainState *es, const TesseraRouting *routing, int ntargets, const int *targets);

/*
 * EXPLAIN VERBOSE without ANALYZE: asks the request's targets for their plans of its query. Nothing is run. Of the request: query, values, nulls,
 * routing, ntargets, targets, snapshot. ERROR 08006 if a shard does not answer.
 */
extern void tessera_explain_plans(ExplainState *es, const TesseraShardRunRequest *request);

/* Another plan within a node's: prints it and puts back what that changes in es. label: name of its group; NULL: within a list. */
extern void tessera_explain_nested(ExplainState *es, QueryDesc *query, const char *label);

/* True if the expressions hold external parameters. */
extern bool tessera_exprs_need_params(List *exprs);

#endif							/* TESSERA_EXPLAIN_SHARDS_H */
