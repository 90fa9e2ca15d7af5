/*
 * local_part.c
 *	  Nested execution of this shard's own part of a routed statement; see local_part.h.
 *
 * Plan cache: a backend-wide hash from (SQL text, parameter types) to a saved CachedPlanSource; core revalidates it (DDL, search_path, role). The
 * oldest entries go when there are more than tessera_local_plan_limit. Entries live in TopMemoryContext until dropped.
 *
 * A part's own state lives in the context current at tessera_local_begin (the executor's query context).
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "executor/tstoreReceiver.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "parser/parser.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "common/version_compat.h"
#include "executor/load_tracking.h"
#include "executor/local_part.h"
#include "executor/source_position.h"
#include "session/check_as.h"
#include "session/row_write.h"

#define LOCAL_PLAN_LIMIT 512

typedef struct LocalPlanKey
{
	uint64		text;			/* two independent hashes of the text and types: compared in full below */
} LocalPlanKey;

typedef struct LocalPlan
{
	LocalPlanKey key;
	char	   *sql;
	int			nparams;
	Oid		   *types;
	CachedPlanSource *source;
	int			busy;			/* being planned: what planning runs must not drop it */
	dlist_node	lru;
} LocalPlan;

struct TesseraLocalPart
{
	CachedPlan *plan;
	ResourceOwner owner;
	QueryDesc  *query;
	Snapshot	snapshot;		/* registered */
	bool		push_snapshot;	/* it is not the outer statement's active one */
	bool		to_completion;	/* writes, or a parallel plan: run whole into the spool */
	bool		ran;
	Tuplestorestate *spool;
	TupleTableSlot *spool_slot;
};

static HTAB *local_plans = NULL;
static dlist_head local_plans_lru = DLIST_STATIC_INIT(local_plans_lru);

static void
drop_local_plan(LocalPlan *plan)
{
	dlist_delete(&plan->lru);
	if (plan->source)
		DropCachedPlan(plan->source);
	if (plan->sql)
		pfree(plan->sql);
	if (plan->types)
		pfree(plan->types);
	hash_search(local_plans, &plan->key, HASH_REMOVE, NULL);
}

static List *
analyse(RawStmt *statement, const char *sql, int nparams, const Oid *types)
{
	const char *before = tessera_check_as_expect(sql);
	List	   *volatile analysed;

	PG_TRY();
	{
		analysed = pg_analyze_and_rewrite_fixedparams(statement, sql, types, nparams, NULL);
	}
	PG_FINALLY();
	{
		(void) tessera_check_as_expect(before);
	}
	PG_END_TRY();
	return analysed;
}

/* Parse and analyse once; the plan itself is made (and remade) by GetCachedPlan. */
static CachedPlanSource *
make_plan_source(const char *sql, int nparams, const Oid *types)
{
	List	   *raw = pg_parse_query(sql);
	RawStmt    *statement = linitial_node(RawStmt, raw);
	CachedPlanSource *source = CreateCachedPlan(statement, sql, CreateCommandTag(statement->stmt));
	List	   *analysed = analyse(statement, sql, nparams, types);

	CompleteCachedPlan(source, analysed, NULL, (Oid *) types, nparams, NULL, NULL, CURSOR_OPT_PARALLEL_OK | TESSERA_PLAN_LOCAL_PART, false);
	SaveCachedPlan(source);
	return source;
}

/* Drops the least recently used entry that is not being planned. */
static void
drop_oldest(void)
{
	dlist_iter iter;

	dlist_reverse_foreach(iter, &local_plans_lru)
	{
		LocalPlan  *plan = dlist_container(LocalPlan, lru, iter.cur);

		if (plan->busy == 0)
		{
			drop_local_plan(plan);
			return;
		}
	}
}

static LocalPlan *
find_plan(const char *sql, int nparams, const Oid *types)
{
	LocalPlanKey key;
	LocalPlan  *plan;
	bool		found;

	if (local_plans == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(LocalPlanKey), .entrysize = sizeof(LocalPlan)};

		local_plans = hash_create("tessera local plans", 128, &ctl, HASH_ELEM | HASH_BLOBS);
	}
	key.text = hash_bytes_extended((const unsigned char *) sql, strlen(sql),
								   nparams > 0 ? hash_bytes_extended((const unsigned char *) types, nparams * sizeof(Oid), 1) : 0);
	plan = hash_search(local_plans, &key, HASH_FIND, NULL);
	if (plan && (strcmp(plan->sql, sql) != 0 || plan->nparams != nparams ||
				 (nparams > 0 && memcmp(plan->types, types, nparams * sizeof(Oid)) != 0)))
	{
		/* another text with the same hash */
		if (plan->busy > 0)
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg_internal("two statements have the same hash, and one of them is being planned")));
		drop_local_plan(plan);
		plan = NULL;
	}
	if (plan)
	{
		dlist_move_head(&local_plans_lru, &plan->lru);
		return plan;
	}

	if (hash_get_num_entries(local_plans) >= LOCAL_PLAN_LIMIT)
		drop_oldest();
	{
		CachedPlanSource *source = make_plan_source(sql, nparams, types);

		plan = hash_search(local_plans, &key, HASH_ENTER, &found);
		Assert(!found);
		plan->source = source;
		plan->busy = 0;
		plan->sql = MemoryContextStrdup(TopMemoryContext, sql);
		plan->nparams = nparams;
		plan->types = NULL;
		if (nparams > 0)
		{
			plan->types = MemoryContextAlloc(TopMemoryContext, nparams * sizeof(Oid));
			memcpy(plan->types, types, nparams * sizeof(Oid));
		}
		dlist_push_head(&local_plans_lru, &plan->lru);
		return plan;
	}
}

ParamListInfo
tessera_local_params(int nparams, const Oid *types, const Datum *values, const bool *nulls)
{
	ParamListInfo params;

	if (nparams == 0)
		return NULL;
	params = makeParamList(nparams);
	for (int i = 0; i < nparams; i++)
	{
		params->params[i].ptype = types[i];
		params->params[i].pflags = PARAM_FLAG_CONST;
		params->params[i].value = values[i];
		params->params[i].isnull = nulls[i];
	}
	return params;
}

/* The custom or generic plan, made in shard mode. */
static CachedPlan *
get_plan(LocalPlan *volatile plan, ParamListInfo params)
{
	const char *before = tessera_check_as_expect(plan->source->query_string);
	CachedPlan *volatile cached;

	plan->busy++;
	PG_TRY();
	{
		cached = GetCachedPlan(plan->source, params, CurrentResourceOwner, NULL);
	}
	PG_FINALLY();
	{
		plan->busy--;
		(void) tessera_check_as_expect(before);
	}
	PG_END_TRY();
	return cached;
}

CachedPlan *
tessera_local_plan(const char *sql, int nparams, const Oid *types, ParamListInfo params)
{
	return get_plan(find_plan(sql, nparams, types), params);
}

/* The plan of a text that is not kept: it goes by these values. */
static CachedPlan *
plan_once(const TesseraRemoteQuery *query, ParamListInfo params)
{
	LocalPlan	plan = {.source = make_plan_source(query->local, query->nparams, query->types)};
	CachedPlan *volatile cached;

	PG_TRY();
	{
		cached = get_plan(&plan, params);
	}
	PG_FINALLY();
	{
		DropCachedPlan(plan.source);	/* not the plan, which has a reference of its own */
	}
	PG_END_TRY();
	return cached;
}

TesseraLocalPart *
tessera_local_begin(const TesseraRemoteQuery *query, const Datum *values, const bool *nulls, Snapshot snapshot, const TesseraRoutedBy *routed,
					int eflags, int instrument)
{
	ParamListInfo params = tessera_local_params(query->nparams, query->types, values, nulls);
	CachedPlan *plan = query->once ? plan_once(query, params) : tessera_local_plan(query->local, query->nparams, query->types, params);
	PlannedStmt *statement = linitial_node(PlannedStmt, plan->stmt_list);
	TesseraLocalPart *part;

	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY) && tessera_shard_check(statement, snapshot, params, routed) == TESSERA_STALE)
	{
		ReleaseCachedPlan(plan, CurrentResourceOwner);
		return NULL;
	}

	part = palloc0(sizeof(TesseraLocalPart));
	part->plan = plan;
	part->owner = CurrentResourceOwner;
	part->snapshot = snapshot;
	part->push_snapshot = !ActiveSnapshotSet() || GetActiveSnapshot() != snapshot;
	part->to_completion = statement->commandType != CMD_SELECT || statement->hasModifyingCTE || statement->parallelModeNeeded;
	part->query = CreateQueryDesc(statement, query->local, snapshot, InvalidSnapshot, None_Receiver, params, NULL, instrument);
	if (part->push_snapshot)
		PushActiveSnapshot(snapshot);
	standard_ExecutorStart(part->query, eflags);
	if (tessera_is_row_write(query->local))
		tessera_row_write_started(part->query->planstate);
	tessera_source_position_started(part->query);
	tessera_load_start(part->query, eflags);
	if (part->push_snapshot)
		PopActiveSnapshot();
	return part;
}

/* Run the whole statement; rows, if it returns any, go to the spool. */
static void
run_to_completion(TesseraLocalPart *part)
{
	DestReceiver *receiver = None_Receiver;

	if (part->query->operation == CMD_SELECT || part->query->plannedstmt->hasReturning)
	{
		part->spool = tuplestore_begin_heap(false, false, work_mem);
		part->spool_slot = MakeSingleTupleTableSlot(part->query->tupDesc, &TTSOpsMinimalTuple);
		receiver = CreateDestReceiver(DestTuplestore);
		SetTuplestoreDestReceiverParams(receiver, part->spool, CurrentMemoryContext, false, NULL, NULL);
	}
	part->query->dest = receiver;
	tessera_run_to_end(standard_ExecutorRun, part->query);
	standard_ExecutorFinish(part->query);
}

TupleTableSlot *
tessera_local_next(TesseraLocalPart *part)
{
	TupleTableSlot *slot;

	if (part->push_snapshot)
		PushActiveSnapshot(part->snapshot);
	tessera_load_enter(part->query);
	if (part->to_completion)
	{
		if (!part->ran)
			run_to_completion(part);
		part->ran = true;
		if (part->spool == NULL || !tuplestore_gettupleslot(part->spool, true, false, part->spool_slot))
			slot = NULL;
		else
			slot = part->spool_slot;
	}
	else
	{
		ResetPerTupleExprContext(part->query->estate);
		slot = ExecProcNode(part->query->planstate);
		if (TupIsNull(slot))
			slot = NULL;
		else if (part->query->estate->es_junkFilter)
			slot = ExecFilterJunk(part->query->estate->es_junkFilter, slot);
	}
	tessera_load_leave(part->query);
	if (part->push_snapshot)
		PopActiveSnapshot();
	return slot;
}

uint64
tessera_local_processed(TesseraLocalPart *part)
{
	return part->query->estate->es_processed;
}

QueryDesc *
tessera_local_query(TesseraLocalPart *part)
{
	return part->query;
}

void
tessera_local_end(TesseraLocalPart *part)
{
	/* A reading part ends without ExecutorFinish only if it was never run to completion: finish is due once, whatever was fetched. */
	if (!part->ran && !(part->query->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY))
		standard_ExecutorFinish(part->query);
	if (part->spool_slot)
		ExecDropSingleTupleTableSlot(part->spool_slot);
	if (part->spool)
		tuplestore_end(part->spool);
	tessera_load_end(part->query);
	standard_ExecutorEnd(part->query);
	FreeQueryDesc(part->query);
	ReleaseCachedPlan(part->plan, part->owner);
}
