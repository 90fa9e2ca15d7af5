/*
 * explain_shards.c
 *	  EXPLAIN of tessera's plan nodes; see explain_shards.h.
 */
#include "postgres.h"

#include "commands/explain.h"
#include "nodes/nodeFuncs.h"

#include "executor/explain_shards.h"

static bool
has_param(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param))
		return true;
	return expression_tree_walker(node, has_param, context);
}

bool
tessera_exprs_need_params(List *exprs)
{
	return has_param((Node *) exprs, NULL);
}

static int
count_shards(const TesseraRouting *routing)
{
	int			n = 0;

	for (int i = 0; i < routing->nnodes; i++)
		if (tessera_routing_node_at(routing, i)->is_shard)
			n++;
	return n;
}

void
tessera_explain_shards(ExplainState *es, const TesseraRouting *routing, int ntargets, const int *targets)
{
	List	   *names = NIL;

	if (routing == NULL)
		return;
	if (ntargets == 0)
	{
		if (es->format == EXPLAIN_FORMAT_TEXT)
			ExplainPropertyText("Shards", psprintf("chosen at execution, of %d", count_shards(routing)), es);
		else
			ExplainPropertyInteger("Shards Total", NULL, count_shards(routing), es);
		return;
	}
	for (int i = 0; i < ntargets; i++)
	{
		const TesseraNode *node = tessera_routing_node(routing, targets[i]);

		names = lappend(names, node ? pstrdup(NameStr(node->name)) : psprintf("node %d", targets[i]));
	}
	if (es->format == EXPLAIN_FORMAT_TEXT)
		ExplainPropertyText("Shards", psprintf("%d of %d", ntargets, count_shards(routing)), es);
	else
	{
		ExplainPropertyInteger("Shards Targeted", NULL, ntargets, es);
		ExplainPropertyInteger("Shards Total", NULL, count_shards(routing), es);
	}
	ExplainPropertyList("Nodes", names, es);
}

void
tessera_explain_run(ExplainState *es, const TesseraRouting *routing, TesseraRun *run)
{
	TesseraRunStats *stats;
	int			n = tessera_run_stats(run, &stats);

	for (int i = 0; i < n; i++)
	{
		const TesseraNode *node = tessera_routing_node(routing, stats[i].node_id);
		const char *name = node ? NameStr(node->name) : "?";

		if (es->format == EXPLAIN_FORMAT_TEXT)
		{
			if (es->timing)
				ExplainPropertyText(psprintf("Shard %s", name), psprintf("rows=" UINT64_FORMAT " time=%.3f ms", stats[i].rows, stats[i].ms), es);
			else
				ExplainPropertyText(psprintf("Shard %s", name), psprintf("rows=" UINT64_FORMAT, stats[i].rows), es);
		}
		else
		{
			ExplainPropertyInteger(psprintf("Shard %s Rows", name), NULL, (int64) stats[i].rows, es);
			if (es->timing)
				ExplainPropertyFloat(psprintf("Shard %s Time", name), "ms", stats[i].ms, 3, es);
		}
	}
}
