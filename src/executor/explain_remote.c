/*
 * explain_remote.c
 *	  The shard's side of EXPLAIN ANALYZE; see explain_remote.h.
 *
 * tessera_internal.explain_next comes in front of a statement and gives it a number. The statement then runs once, as it would, but measured; when it
 * ends, its plan with what was measured is kept as text, under its number, until tessera_internal.explained asks for it. A router that announces and
 * does not ask (EXPLAIN ANALYZE without VERBOSE) leaves texts behind: only the newest KEPT are kept.
 *
 * Memory: texts live in a context of their own until they are asked for, pushed out, or the backend exits. Nothing survives a crash, and nothing
 * needs to.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "commands/explain.h"
#include "control/calls.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "common/version_compat.h"
#include "executor/eflags.h"
#include "executor/explain_remote.h"
#include "session/internal_connection.h"


#define KEPT 64

typedef struct Explained
{
	dlist_node	node;
	int64		number;
	char	   *with_costs;
	char	   *without;
} Explained;

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorEnd_hook_type previous_end = NULL;

/* What a router has announced for its next statement on this connection, until that starts; then of the one that runs. */
typedef struct Measuring
{
	int64		next;			/* number of the next statement; 0: it is not to be measured */
	int			instrument;		/* InstrumentOptions for it */
	int64		running;
} Measuring;

/* Texts that no router has asked for yet, the newest first. */
typedef struct ExplainedTexts
{
	dlist_head	list;
	int			n;
	MemoryContext context;
} ExplainedTexts;

static Measuring measuring = {0};
static ExplainedTexts kept = {.list = DLIST_STATIC_INIT(kept.list)};

char *
tessera_plan_text(QueryDesc *query, bool analyze, int instrument, bool costs)
{
	ExplainState *es = NewExplainState();

	es->verbose = true;
	es->analyze = analyze;
	es->costs = costs;
	es->timing = (instrument & INSTRUMENT_TIMER) != 0;
	es->buffers = (instrument & INSTRUMENT_BUFFERS) != 0;
	es->wal = (instrument & INSTRUMENT_WAL) != 0;
	es->format = EXPLAIN_FORMAT_TEXT;
	ExplainBeginOutput(es);
	ExplainPrintPlan(es, query);
	ExplainEndOutput(es);
	while (es->str->len > 0 && es->str->data[es->str->len - 1] == '\n')
		es->str->data[--es->str->len] = '\0';
	return es->str->data;
}

static void
forget(Explained *explained)
{
	dlist_delete(&explained->node);
	pfree(explained->with_costs);
	pfree(explained->without);
	pfree(explained);
	kept.n--;
}

static void
keep(int64 number, const char *with_costs, const char *without)
{
	Explained  *explained;

	if (kept.context == NULL)
		kept.context = AllocSetContextCreate(TopMemoryContext, "tessera explained", ALLOCSET_SMALL_SIZES);
	if (kept.n >= KEPT)
		forget(dlist_container(Explained, node, dlist_tail_node(&kept.list)));
	explained = MemoryContextAlloc(kept.context, sizeof(Explained));
	explained->number = number;
	explained->with_costs = MemoryContextStrdup(kept.context, with_costs);
	explained->without = MemoryContextStrdup(kept.context, without);
	dlist_push_head(&kept.list, &explained->node);
	kept.n++;
}

/* The calls that come in front of a statement name no relation. */
static void
executor_start(QueryDesc *query, int eflags)
{
	bool		measured = false;

	if (measuring.next != 0 && tessera_received(query->sourceText) && (eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0 &&
		query->plannedstmt->relationOids != NIL)
	{
		query->instrument_options |= measuring.instrument;
		measured = true;
		measuring.running = measuring.next;
		measuring.next = 0;
	}
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (measured)
		query->estate->es_top_eflags |= TESSERA_EXEC_MEASURED;
}

static void
executor_end(QueryDesc *query)
{
	if ((query->estate->es_top_eflags & TESSERA_EXEC_MEASURED) && !IsParallelWorker())
	{
		int			instrument = query->instrument_options;

		keep(measuring.running, tessera_plan_text(query, true, instrument, true), tessera_plan_text(query, true, instrument, false));
	}
	if (previous_end)
		previous_end(query);
	else
		standard_ExecutorEnd(query);
}

/* The next statement of this connection is measured, by these InstrumentOptions */
void
tessera_serve_explain_next(const TesseraExplainNextArgs *args)
{
	measuring.next = args->number;
	measuring.instrument = args->instrument & INSTRUMENT_ALL;
}

/* The plan of that statement; null: it has not ended, or is forgotten */
const char *
tessera_serve_explained(const TesseraExplainedArgs *args)
{
	dlist_iter	iter;

	dlist_foreach(iter, &kept.list)
	{
		Explained  *explained = dlist_container(Explained, node, iter.cur);

		if (explained->number == args->number)
		{
			const char *answer = pstrdup(args->costs ? explained->with_costs : explained->without);

			forget(explained);
			return answer;
		}
	}
	return NULL;
}

void
tessera_explain_remote_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = executor_end;
}
