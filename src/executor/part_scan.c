/*
 * part_scan.c
 *	  Executor of a statement with data-modifying WITH queries whose parts go to different shards.
 *
 * The parts run one after the other, each to its end and once, whether its rows are wanted or not; the rows are kept in tuple stores, from which
 * later parts read them. The last part is the statement itself. All of it is one statement on each shard: parts share the snapshot of the first that
 * runs there, and none sees what another has written (TesseraParts in run.h). Nothing is committed before all is done, so a shard found stale after
 * the first part ran ends the transaction with 40001.
 *
 * Memory: the query context of the outer statement; tuple stores end with the node.
 */
#include "postgres.h"

#include "commands/explain.h"
#include "executor/executor.h"
#include "executor/tstoreReceiver.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/tuplestore.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "executor/explain_shards.h"
#include "executor/plan_private.h"
#include "executor/run.h"
#include "session/internal.h"
#include "transaction/participant.h"

typedef struct PartState
{
	CustomScanState css;
	int			n;				/* parts, with the statement itself */
	int			started;
	QueryDesc **parts;
	Tuplestorestate **rows;		/* of all but the last */
	QueryEnvironment *environment;
	TesseraParts shared;
	bool		ready;			/* all but the last have run */
	bool		done;
} PartState;

static Node *create_state(CustomScan *scan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

const CustomScanMethods tessera_part_methods = {"Tessera Parts", create_state};

static const CustomExecMethods exec_methods = {
	.CustomName = "Tessera Parts",
	.BeginCustomScan = begin,
	.ExecCustomScan = next,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static Node *
create_state(CustomScan *scan)
{
	PartState  *state = (PartState *) newNode(sizeof(PartState), T_CustomScanState);

	state->css.methods = &exec_methods;
	return (Node *) state;
}

static List *
private_of(PartState *state)
{
	return ((CustomScan *) state->css.ss.ps.plan)->custom_private;
}

/* What the part returns goes by its name from now on. */
static void
publish(PartState *state, int i)
{
	EphemeralNamedRelation relation = palloc0(sizeof(EphemeralNamedRelationData));

	state->rows[i] = tuplestore_begin_heap(false, false, work_mem);
	relation->md.name = strVal(list_nth(list_nth(private_of(state), PARTS_NAMES), i));
	relation->md.tupdesc = state->parts[i]->tupDesc;
	relation->md.enrtype = ENR_NAMED_TUPLESTORE;
	relation->reldata = state->rows[i];
	register_ENR(state->environment, relation);
}

static void
start_part(PartState *state, int eflags)
{
	EState	   *estate = state->css.ss.ps.state;
	int			i = state->started;
	QueryDesc  *part;

	part = CreateQueryDesc(list_nth(list_nth(private_of(state), PARTS_PLANS), i), estate->es_sourceText, estate->es_snapshot, InvalidSnapshot,
						   None_Receiver, estate->es_param_list_info, state->environment, estate->es_instrument);
	standard_ExecutorStart(part, eflags | TESSERA_EXEC_FOR_WRITE);
	/* What a function did meanwhile must not make this part a later command than the others. */
	if (part->estate->es_output_cid > estate->es_snapshot->curcid)
		part->estate->es_output_cid = estate->es_snapshot->curcid;
	state->parts[i] = part;
	state->started++;
	if (i < state->n - 1 && part->tupDesc)
		publish(state, i);
}

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	PartState  *state = (PartState *) node;

	state->n = list_length(list_nth(private_of(state), PARTS_PLANS));
	state->parts = palloc0(sizeof(QueryDesc *) * state->n);
	state->rows = palloc0(sizeof(Tuplestorestate *) * state->n);
	/* What a trigger's transition tables are named by stays reachable: its environment is used. */
	state->environment = estate->es_queryEnv ? estate->es_queryEnv : create_queryEnv();
	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		while (state->started < state->n)
			start_part(state, eflags);
}

static void
run_part(PartState *state, int i)
{
	QueryDesc  *part = state->parts[i];

	if (state->rows[i])
	{
		part->dest = CreateDestReceiver(DestTuplestore);
		SetTuplestoreDestReceiverParams(part->dest, state->rows[i], state->css.ss.ps.state->es_query_cxt, false, NULL, NULL);
	}
	tessera_run_to_end(standard_ExecutorRun, part);
	standard_ExecutorFinish(part);
}

/* All parts but the last, then the last one's start. */
static void
run_parts(PartState *state)
{
	MemoryContext before = MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);

	while (state->started < state->n - 1)
	{
		start_part(state, 0);
		run_part(state, state->started - 1);
	}
	start_part(state, 0);
	state->ready = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next_of_last(PartState *state)
{
	QueryDesc  *last = state->parts[state->n - 1];
	TupleTableSlot *slot;

	ResetPerTupleExprContext(last->estate);
	slot = ExecProcNode(last->planstate);
	if (intVal(list_nth(private_of(state), PARTS_FLAGS)) & STATEMENT_DML)
		state->css.ss.ps.state->es_processed = last->estate->es_processed;
	if (TupIsNull(slot))
	{
		standard_ExecutorFinish(last);
		state->done = true;
		return NULL;
	}
	if (last->estate->es_junkFilter)
		slot = ExecFilterJunk(last->estate->es_junkFilter, slot);
	return slot;
}

static TupleTableSlot *
next(CustomScanState *node)
{
	PartState  *state = (PartState *) node;
	TesseraParts *before = tessera_parts;
	TupleTableSlot *slot = NULL;

	if (state->done)
		return NULL;
	if (state->shared.number == 0)
	{
		state->shared.number = tessera_next_statement();
		tessera_stat_count(TESSERA_STAT_PARTS);
	}
	state->shared.nesting = tessera_nesting();
	tessera_parts = &state->shared;
	PG_TRY();
	{
		if (!state->ready)
			run_parts(state);
		slot = next_of_last(state);
	}
	PG_FINALLY();
	{
		tessera_parts = before;
	}
	PG_END_TRY();
	return slot;
}

static void
end(CustomScanState *node)
{
	PartState  *state = (PartState *) node;

	for (int i = state->started - 1; i >= 0; i--)
	{
		QueryDesc  *part = state->parts[i];

		if (!part->estate->es_finished && !(part->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY))
			standard_ExecutorFinish(part);
		standard_ExecutorEnd(part);
		FreeQueryDesc(part);
		if (state->rows[i])
		{
			unregister_ENR(state->environment, strVal(list_nth(list_nth(private_of(state), PARTS_NAMES), i)));
			tuplestore_end(state->rows[i]);
		}
	}
}

static void
rescan(CustomScanState *node)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("a statement that modifies data in WITH cannot be run again within a statement")));
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	PartState  *state = (PartState *) node;

	ExplainPropertyText("Tier", "parts", es);
	ExplainOpenGroup("Parts", "Parts", false, es);
	for (int i = 0; i < state->started; i++)
		tessera_explain_nested(es, state->parts[i], NULL);
	ExplainCloseGroup("Parts", "Parts", false, es);
}
