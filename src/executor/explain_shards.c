/*
 * explain_shards.c
 *	  EXPLAIN of tessera's plan nodes; see explain_shards.h.
 */
#include "postgres.h"

#include "commands/explain.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/memutils.h"

#include "common/version_compat.h"
#include "control/call.h"
#include "control/calls.h"
#include "executor/explain_remote.h"
#include "executor/explain_shards.h"
#include "transaction/participant.h"

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


/* ---- what was measured ---- */

typedef struct ShardFigure
{
	int32		node_id;
	uint64		rows;
	double		ms;
	int			loops;
	bool		measured;		/* the last run's plan can be asked for: */
	uint64		number;			/* on another node, under this number */
	char	   *local_plan;		/* on this one: with costs */
	char	   *local_plan_bare;	/* and without */
} ShardFigure;

static ShardFigure *
figure_of(TesseraFigures *figures, int32 node_id)
{
	ShardFigure *figure;
	ListCell   *cell;

	foreach(cell, figures->shards)
		if (((ShardFigure *) lfirst(cell))->node_id == node_id)
			return lfirst(cell);
	figure = palloc0(sizeof(ShardFigure));
	figure->node_id = node_id;
	figures->shards = lappend(figures->shards, figure);
	return figure;
}

void
tessera_figures_add(TesseraFigures *figures, TesseraShardRun *run, MemoryContext context)
{
	MemoryContext before;
	TesseraShardRunStats *stats;
	int			n;

	if (!tessera_shard_run_is_measured(run))
		return;
	before = MemoryContextSwitchTo(context);
	n = tessera_shard_run_stats(run, &stats);
	for (int i = 0; i < n; i++)
	{
		ShardFigure *figure = figure_of(figures, stats[i].node_id);

		figure->rows += stats[i].rows;
		figure->ms += stats[i].ms;
		figure->loops++;
		figure->number = stats[i].explain;
		figure->measured = stats[i].ended;
		if (stats[i].query != NULL)
		{
			if (figure->local_plan)
			{
				pfree(figure->local_plan);
				pfree(figure->local_plan_bare);
			}
			figure->local_plan = tessera_plan_text(stats[i].query, true, stats[i].query->instrument_options, true);
			figure->local_plan_bare = tessera_plan_text(stats[i].query, true, stats[i].query->instrument_options, false);
		}
	}
	MemoryContextSwitchTo(before);
}

static const char *
shard_name(const TesseraRouting *routing, int32 node_id)
{
	const TesseraNode *node = routing ? tessera_routing_node(routing, node_id) : NULL;

	return node ? pstrdup(NameStr(node->name)) : psprintf("node %d", node_id);
}

/* The plan of a figure's last run; NULL: not to be had. */
static char *
plan_of(ExplainState *es, const TesseraRouting *routing, const ShardFigure *figure)
{
	TesseraCommandNeeds needs = {.autocommit = true};
	char	   *plan;

	if (figure->local_plan)
		return es->costs ? figure->local_plan : figure->local_plan_bare;
	if (!figure->measured || figure->number == 0 || routing == NULL || tessera_routing_node(routing, figure->node_id) == NULL)
		return NULL;
	tessera_call_explained(tessera_over(tessera_participant(routing, figure->node_id, &needs)), (int64) figure->number, es->costs, &plan);
	return plan;
}

/* The lines of a shard's plan, below the line that names it. */
static void
print_lines(ExplainState *es, const char *plan)
{
	while (*plan != '\0')
	{
		const char *end = strchr(plan, '\n');
		int			length = end ? end - plan : strlen(plan);

		appendStringInfoSpaces(es->str, es->indent * 2 + 4);
		appendBinaryStringInfo(es->str, plan, length);
		appendStringInfoChar(es->str, '\n');
		plan += length + (end ? 1 : 0);
	}
}

/* figure NULL: only the plan. */
static void
print_shard(ExplainState *es, const char *name, const ShardFigure *figure, const char *plan)
{
	StringInfoData line;

	if (es->format != EXPLAIN_FORMAT_TEXT)
	{
		ExplainOpenGroup("Shard", NULL, true, es);
		ExplainPropertyText("Name", name, es);
		if (figure)
			ExplainPropertyInteger("Rows", NULL, (int64) figure->rows, es);
		if (figure && es->timing)
			ExplainPropertyFloat("Time", "ms", figure->ms, 3, es);
		if (figure)
			ExplainPropertyInteger("Loops", NULL, figure->loops, es);
		if (plan)
			ExplainPropertyText("Plan", plan, es);
		ExplainCloseGroup("Shard", NULL, true, es);
		return;
	}
	initStringInfo(&line);
	if (figure)
		appendStringInfo(&line, " rows=" UINT64_FORMAT, figure->rows);
	if (figure && es->timing)
		appendStringInfo(&line, " time=%.3f ms", figure->ms);
	if (figure && figure->loops > 1)
		appendStringInfo(&line, " loops=%d", figure->loops);
	appendStringInfoSpaces(es->str, es->indent * 2);
	appendStringInfo(es->str, "Shard %s:%s\n", name, line.data);
	if (plan)
		print_lines(es, plan);
}

void
tessera_explain_figures(ExplainState *es, const TesseraRouting *routing, TesseraFigures *figures)
{
	ListCell   *cell;

	if (!es->analyze || figures->shards == NIL)
		return;
	ExplainOpenGroup("Shards", "Shards", false, es);
	foreach(cell, figures->shards)
	{
		ShardFigure *figure = lfirst(cell);

		print_shard(es, shard_name(routing, figure->node_id), figure, es->verbose ? plan_of(es, routing, figure) : NULL);
	}
	ExplainCloseGroup("Shards", "Shards", false, es);
}

/* ---- plans without running ---- */

typedef struct PlanLines
{
	TesseraCommand command;		/* first: handlers cast */
	StringInfoData text;
} PlanLines;

static void
keep_lines(TesseraCommand *command, PGresult *result)
{
	PlanLines  *lines = (PlanLines *) command;

	if (PQresultStatus(result) == PGRES_FATAL_ERROR && command->error == NULL)
	{
		command->error = result;
		return;
	}
	for (int i = 0; PQresultStatus(result) == PGRES_TUPLES_OK && i < PQntuples(result); i++)
		appendStringInfo(&lines->text, "%s%s", lines->text.len ? "\n" : "", PQgetvalue(result, i, 0));
	PQclear(result);
}

/* NULL: that of a scan by another role's rights cannot be asked for without running it; only a SELECT carries the role. */
static char *
remote_plan(const TesseraShardRunRequest *request, int32 node_id, bool costs)
{
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);	/* the command must outlive an error here */
	PlanLines  *lines = palloc0(sizeof(PlanLines));
	TesseraWireParams *wire = palloc(sizeof(TesseraWireParams));
	TesseraCommand *command = &lines->command;
	TesseraCommandNeeds needs = {.autocommit = true};
	TesseraConnection *connection;
	const char *sql;
	int			format;			/* of the rows, which do not come */

	if (OidIsValid(request->query->check_as))
	{
		MemoryContextSwitchTo(before);
		return NULL;
	}
	initStringInfo(&lines->text);
	tessera_wire_params(request->query, request->values, request->nulls, wire);
	connection = tessera_participant(request->routing, node_id, &needs);
	sql = tessera_remote_query_sql(request->query, tessera_connection_protocol(connection), &format);
	command->sql = psprintf("EXPLAIN (VERBOSE, COSTS %s) %s", costs ? "on" : "off", sql);
	command->nparams = request->query->nparams;
	command->types = request->query->wire_types;
	command->values = (const char *const *) wire->values;
	command->lengths = wire->lengths;
	command->formats = request->query->formats;
	command->handler = keep_lines;
	tessera_connection_queue(connection, command);
	tessera_connection_sync(connection);
	MemoryContextSwitchTo(before);
	tessera_connection_finish(connection, command);
	tessera_connection_check(connection, command);
	return lines->text.data;
}

static char *
local_plan(const TesseraShardRunRequest *request, bool costs)
{
	TesseraRoutedBy routed = {.routing = request->routing};
	TesseraLocalPart *part;
	char	   *plan;

	part = tessera_local_begin(request->query, request->values, request->nulls, request->snapshot, &routed, EXEC_FLAG_EXPLAIN_ONLY, 0);
	plan = tessera_plan_text(tessera_local_query(part), false, 0, costs);
	tessera_local_end(part);
	return plan;
}

void
tessera_explain_plans(ExplainState *es, const TesseraShardRunRequest *request)
{
	ExplainOpenGroup("Shards", "Shards", false, es);
	for (int i = 0; i < request->ntargets; i++)
	{
		int32		node_id = request->targets[i];
		char	   *plan = node_id == request->routing->self ? local_plan(request, es->costs) : remote_plan(request, node_id, es->costs);

		print_shard(es, shard_name(request->routing, node_id), NULL, plan);
	}
	ExplainCloseGroup("Shards", "Shards", false, es);
}

/* ---- plans within plans ---- */

void
tessera_explain_nested(ExplainState *es, QueryDesc *query, const char *label)
{
	ExplainState saved = *es;

	ExplainOpenGroup(label ? label : "Part", label, true, es);
	es->indent++;
	ExplainPrintPlan(es, query);
	es->indent--;
	ExplainCloseGroup(label ? label : "Part", label, true, es);
	es->pstmt = saved.pstmt;
	es->rtable = saved.rtable;
	es->rtable_names = saved.rtable_names;
	es->deparse_cxt = saved.deparse_cxt;
	es->printed_subplans = saved.printed_subplans;
	es->hide_workers = saved.hide_workers;
}
