/*
 * part_scan.c
 *	  Executor of a statement that modifies data, itself or in WITH, whose WITH queries go to different shards.
 *
 * The parts run one after the other, each to its end and once, whether its rows are wanted or not; the rows are kept in tuple stores, from which
 * later parts read them. The last part is the statement itself. All of it is one statement on each shard: parts share the snapshot of the first that
 * runs there, and none sees what another has written (TesseraParts in shard_run.h, given to their plans by tessera_nested_join). Nothing is committed
 * before all is done, so a shard found stale after the first part ran ends the transaction with 40001.
 *
 * Memory: the query context of the outer statement; tuple stores end with the node.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/tuplestore.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/statement_cut.h"
#include "transaction/participant.h"

typedef struct PartState
{
	TesseraScan scan;
	int			n;				/* parts, with the statement itself */
	int			started;
	QueryDesc **parts;
	Tuplestorestate **rows;		/* of all but the last */
	QueryEnvironment *environment;
	TesseraParts shared;
	TesseraKeptStatement kept;	/* shared: triggers that fire here run other statements in between */
	MemoryContextCallback forget;
	bool		ready;			/* all but the last have run */
	bool		done;
} PartState;

/* Makes the tuple store for the rows of part i; later parts find it by the name of the WITH query. */
static void
publish(PartState *state, int i)
{
	char	   *name = strVal(list_nth(list_nth(state->scan.private, PARTS_NAMES), i));

	state->rows[i] = tuplestore_begin_heap(false, false, work_mem);
	tessera_nested_name(state->environment, name, state->parts[i]->tupDesc, state->rows[i]);
}

static void
start_part(PartState *state, int eflags)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	int			i = state->started;
	QueryDesc  *part;

	part = tessera_nested_start(&state->scan, list_nth(list_nth(state->scan.private, PARTS_PLANS), i), state->environment,
								eflags | TESSERA_EXEC_FOR_WRITE);
	tessera_nested_join(part, &state->shared);
	/* What a function did meanwhile must not make this part a later command than the others. */
	if (part->estate->es_output_cid > estate->es_snapshot->curcid)
		part->estate->es_output_cid = estate->es_snapshot->curcid;
	state->parts[i] = part;
	state->started++;
	if (i < state->n - 1 && part->tupDesc)
		publish(state, i);
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	PartState  *state = (PartState *) scan;

	scan->tier = "parts";
	scan->flags = intVal(list_nth(scan->private, PARTS_FLAGS));
	state->n = list_length(list_nth(state->scan.private, PARTS_PLANS));
	state->parts = palloc0(sizeof(QueryDesc *) * state->n);
	state->rows = palloc0(sizeof(Tuplestorestate *) * state->n);
	/* What a trigger's transition tables are named by stays reachable: its environment is used. */
	state->environment = estate->es_queryEnv ? estate->es_queryEnv : create_queryEnv();
	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		while (state->started < state->n)
			start_part(state, eflags);
}

/* All parts but the last, then the last one's start. */
static void
run_parts(PartState *state)
{
	MemoryContext before = MemoryContextSwitchTo(state->scan.css.ss.ps.state->es_query_cxt);

	while (state->started < state->n - 1)
	{
		int			i = state->started;

		start_part(state, 0);
		tessera_nested_run(state->parts[i], state->rows[i], false);
	}
	start_part(state, 0);
	state->ready = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next_of_last(PartState *state)
{
	QueryDesc  *last = state->parts[state->n - 1];
	TupleTableSlot *slot = tessera_nested_next(last);

	if (state->scan.flags & STATEMENT_DML)
		state->scan.css.ss.ps.state->es_processed = last->estate->es_processed;
	if (slot == NULL)
	{
		standard_ExecutorFinish(last);
		state->done = true;
	}
	return slot;
}

/* The executor's context goes away: at the end of the statement, or after an error. */
static void
forget_statement(void *kept)
{
	tessera_statement_forget(kept);
}

/* A number for all parts, whose snapshot the shards keep to the end of the statement. */
static void
begin_statement(PartState *state)
{
	state->shared.number = state->kept.number = tessera_next_statement();
	state->forget.func = forget_statement;
	state->forget.arg = &state->kept;
	tessera_statement_keep(&state->kept);
	MemoryContextRegisterResetCallback(state->scan.css.ss.ps.state->es_query_cxt, &state->forget);
	tessera_parts_cut(&state->shared, list_nth(state->scan.private, PARTS_PLANS), state->scan.css.ss.ps.state);
	state->kept.number = state->shared.number;
	tessera_stat_count(TESSERA_STAT_PARTS);
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	PartState  *state = (PartState *) scan;

	if (state->done)
		return NULL;
	if (state->shared.number == 0)
		begin_statement(state);
	if (!state->ready)
		run_parts(state);
	return next_of_last(state);
}

static void
end(TesseraScan *scan)
{
	PartState  *state = (PartState *) scan;

	for (int i = state->started - 1; i >= 0; i--)
	{
		tessera_nested_end(scan, state->parts[i]);
		if (state->rows[i])
		{
			unregister_ENR(state->environment, strVal(list_nth(list_nth(scan->private, PARTS_NAMES), i)));
			tuplestore_end(state->rows[i]);
		}
	}
}

static void
explain(TesseraScan *scan, ExplainState *es)
{
	PartState  *state = (PartState *) scan;

	ExplainOpenGroup("Parts", "Parts", false, es);
	for (int i = 0; i < state->started; i++)
		tessera_explain_nested(es, state->parts[i], NULL);
	ExplainCloseGroup("Parts", "Parts", false, es);
}

const TesseraScanKind tessera_part_scan = {
	TESSERA_SCAN_METHODS("Tessera Parts"), .size = sizeof(PartState), .begin = begin, .next = next, .end = end, .explain = explain,
	.once = "a statement that modifies data in WITH",
};
