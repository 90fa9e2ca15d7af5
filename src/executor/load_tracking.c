/*
 * load_tracking.c
 *	  Watches the plans that run on this shard: which rows they write, and how long one of so many takes; see load_tracking.h. And how long clients'
 *	  transactions take (load/client_pace.h).
 *
 * A statement's time is what it spends in ExecutorRun and ExecutorFinish, by the wall clock: what a chunk's load says is how many sessions are at
 * work on it, so what passes between two fetches from a cursor does not count. Only statements that are pinned to a few keys are counted, as of
 * others it is not known which chunk they are about; the plan of a router names no scan of a sharded table, so it is none of them.
 *
 * Memory: a timed statement's record lives in the executor's context, and leaves the list with it, also by an error.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "lib/ilist.h"
#include "portability/instr_time.h"
#include "utils/memutils.h"

#include "common/version_compat.h"
#include "executor/load_tracking.h"
#include "executor/plan_keys.h"
#include "load/client_pace.h"
#include "load/load_sample.h"
#include "load/written_rows.h"

/* Keys of a statement at most; of more only the first ones count. */
#define MAX_KEYS 4

/* A statement's time at most: of a client that takes its rows slowly, most of it is no work. */
#define MAX_US 60e6

typedef struct TimedStatement
{
	dlist_node	node;
	QueryDesc  *query;
	instr_time	entered;		/* the executor, the last time */
	instr_time	spent;			/* in it, up to then */
	int			statements;		/* that it stands for */
	pg_uuid_t	group_id;
	int			nkeys;
	TesseraSampleKey keys[MAX_KEYS];
	MemoryContextCallback forget;
} TimedStatement;

static dlist_head timed = DLIST_STATIC_INIT(timed);
static ExecutorStart_hook_type previous_start = NULL;
static ExecutorRun_hook_type previous_run = NULL;
static ExecutorFinish_hook_type previous_finish = NULL;
static ExecutorEnd_hook_type previous_end = NULL;

static void
forget(void *statement)
{
	dlist_delete(&((TimedStatement *) statement)->node);
}

/* The group of the first sharded table that the plan names; NULL: none. */
static const TesseraGroup *
find_group(const TesseraRouting *routing, PlannedStmt *plan)
{
	ListCell   *cell;

	foreach(cell, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		const TesseraTable *table = rte->rtekind == RTE_RELATION ? tessera_routing_table(routing, rte->relid) : NULL;

		if (table != NULL && table->group >= 0)
			return tessera_routing_group(routing, table->group);
	}
	return NULL;
}

/* Begins to time the statement, if it is about a few keys. It stands for so many. */
static void
begin_timing(QueryDesc *query, int statements)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing ? find_group(routing, query->plannedstmt) : NULL;
	TesseraPlanKeys keys;
	TimedStatement *statement;
	MemoryContext before;
	ListCell   *cell;

	if (group == NULL)
		return;
	before = MemoryContextSwitchTo(query->estate->es_query_cxt);
	tessera_plan_keys(query->plannedstmt, query->params, routing, group, &keys);
	MemoryContextSwitchTo(before);
	if (keys.everything || keys.positions == NIL)
		return;
	statement = MemoryContextAlloc(query->estate->es_query_cxt, sizeof(TimedStatement));
	statement->query = query;
	statement->statements = statements;
	statement->group_id = group->group_id;
	statement->nkeys = 0;
	foreach(cell, keys.positions)
	{
		TesseraSampleKey *key = &statement->keys[statement->nkeys];

		tessera_sample_key_set(key, tessera_group_keyspace(routing, group), lfirst(cell));
		/* one key is often named by several scans */
		if (key->size > 0 && (statement->nkeys == 0 || !tessera_sample_key_equal(key, key - 1)) && ++statement->nkeys == MAX_KEYS)
			break;
	}
	INSTR_TIME_SET_ZERO(statement->spent);
	dlist_push_head(&timed, &statement->node);
	statement->forget.func = forget;
	statement->forget.arg = statement;
	MemoryContextRegisterResetCallback(query->estate->es_query_cxt, &statement->forget);
}

/* A client's transaction is timed from its first plan on that names a sharded table. */
static void
begin_pace(QueryDesc *query)
{
	const TesseraRouting *routing = tessera_pace_asks() ? tessera_routing() : NULL;

	if (routing != NULL && find_group(routing, query->plannedstmt) != NULL)
		tessera_pace_counts();
}

void
tessera_load_start(QueryDesc *query, int eflags)
{
	int			statements;

	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		return;
	begin_pace(query);
	if (!tessera_load_sampled())
		return;
	tessera_watch_writes(query);
	statements = tessera_load_count_statement();
	if (statements > 0)
		begin_timing(query, statements);
}

static TimedStatement *
find_timed(QueryDesc *query)
{
	dlist_iter	iter;

	dlist_foreach(iter, &timed)
	{
		TimedStatement *statement = dlist_container(TimedStatement, node, iter.cur);

		if (statement->query == query)
			return statement;
	}
	return NULL;
}

static void
end_timing(TimedStatement *statement)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraGroup *group = routing ? tessera_routing_group_by_id(routing, &statement->group_id) : NULL;
	double		us = Min(INSTR_TIME_GET_MICROSEC(statement->spent), MAX_US);

	for (int i = 0; group != NULL && i < statement->nkeys; i++)
	{
		double		share = (double) statement->statements / statement->nkeys;
		TesseraKeyBound position;

		tessera_sample_key_get(&statement->keys[i], tessera_group_keyspace(routing, group), &position);
		tessera_load_put(routing, group, &position, 0, share, share * us);
	}
}

void
tessera_load_enter(QueryDesc *query)
{
	TimedStatement *statement = find_timed(query);

	tessera_pace_enter(query);
	if (statement != NULL)
		INSTR_TIME_SET_CURRENT(statement->entered);
}

void
tessera_load_leave(QueryDesc *query)
{
	TimedStatement *statement = find_timed(query);
	instr_time	now;

	tessera_pace_leave(query);
	if (statement == NULL)
		return;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_ACCUM_DIFF(statement->spent, now, statement->entered);
}

void
tessera_load_end(QueryDesc *query)
{
	TimedStatement *statement = find_timed(query);

	if (statement != NULL)
		end_timing(statement);
}

static void
executor_start(QueryDesc *query, int eflags)
{
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	tessera_load_start(query, eflags);
}

static void
executor_run(TESSERA_RUN_PARAMETERS)
{
	tessera_load_enter(query);
	if (previous_run)
		previous_run(TESSERA_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(TESSERA_RUN_ARGUMENTS);
	tessera_load_leave(query);
}

static void
executor_finish(QueryDesc *query)
{
	tessera_load_enter(query);
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
	tessera_load_leave(query);
}

static void
executor_end(QueryDesc *query)
{
	tessera_load_end(query);
	if (previous_end)
		previous_end(query);
	else
		standard_ExecutorEnd(query);
}

void
tessera_load_tracking_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = executor_finish;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = executor_end;
}
