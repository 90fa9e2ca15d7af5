/*
 * shard_run.c
 *	  One execution of a query on a set of shards; see shard_run.h.
 *
 * Phases: start (queue on every remote shard, sync all; start the local part), accept (read until each remote shard has answered once), rows
 * (shard_run_rows.c), end.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/procsignal.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/errors.h"
#include "control/call.h"
#include "executor/cut.h"
#include "executor/executor_settings.h"
#include "executor/pinned_versions.h"
#include "executor/shard_run_private.h"
#include "transaction/participant.h"

/* How long a shard may take to stop a query whose rest is not wanted, in ms; then its connection is closed. */
#define CANCEL_TIMEOUT 5000

/* How long the rest of a shard's sorted rows is waited for before it is cancelled, in ms. */
#define REST_TIMEOUT 20

/* How long a wait for a shard's own commit lasts before interrupts are looked at, in ms. */
#define AUTOCOMMIT_SLICE 100

/* Callback of the run's memory context: frees what libpq allocated, and takes commands that are still unanswered off their connections. */
static void
forget_run(void *arg)
{
	TesseraShardRun *run = arg;

	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (target->connection && target->command.sent && !target->command.done)
			tessera_connection_forget(target->connection, &target->command);
		tessera_questions_end(&target->meet, 1);
		while (target->first)
		{
			PQclear(target->first->result);
			target->first = target->first->next;
		}
		if (target->error)
			PQclear(target->error);
		target->error = NULL;
	}
	run->ntargets = 0;
}

TesseraShardRun *
tessera_shard_run_make(void)
{
	TesseraShardRun *run = palloc0(sizeof(TesseraShardRun));

	run->context = CurrentMemoryContext;
	run->owner = CurrentResourceOwner;
	run->callback.func = forget_run;
	run->callback.arg = run;
	MemoryContextRegisterResetCallback(run->context, &run->callback);
	return run;
}

/* The versions by which the request is routed, for the shard to compare with its own; returns how many. */
static int
versions_for(const TesseraShardRunRequest *request, int32 node_id, TesseraToldVersion *versions)
{
	int			n = 0;
	ListCell   *cell;

	foreach(cell, request->relids)
	{
		const TesseraTable *table = tessera_routing_table(request->routing, lfirst_oid(cell));

		if (table != NULL)
			n += tessera_told_versions(request->routing, table, node_id, &versions[n]);
	}
	return n;
}

static TesseraCutNodes
nodes_of(const TesseraShardRunRequest *request)
{
	return (TesseraCutNodes) {
		.routing = request->routing, .relids = request->relids, .copies = request->copies, .n = request->ntargets, .node_ids = request->targets,
		.few_rows = request->groups
	};
}

/* The common snapshot, in front of the query. */
static void
queue_cut(TesseraShardRun *run, TesseraShardRunTarget *target, const TesseraShardRunRequest *request)
{
	TesseraCutNodes nodes = nodes_of(request);

	target->meet.connection = target->connection;
	if (run->meets)
		tessera_cut_meet(&target->meet, &nodes, target->node_id, &run->moment);
	else
		tessera_cut_tell(target->connection, target->node_id, &run->moment);
}

static void
send_to(TesseraShardRun *run, TesseraShardRunTarget *target, const TesseraShardRunRequest *request, bool several_writes)
{
	TesseraToldVersion *versions = palloc(sizeof(TesseraToldVersion) * (TESSERA_TOLD_VERSIONS * list_length(request->relids) + 1));
	TesseraCommandNeeds needs = {0};
	TesseraCommand *command = &target->command;

	needs.write = request->write;
	needs.autocommit = request->autocommit && !several_writes;
	needs.timeless = request->timeless;
	needs.statement = request->statement;
	needs.nversions = versions_for(request, target->node_id, versions);
	needs.versions = versions;
	if (request->instrument != 0)
	{
		static uint64 last_explained = 0;

		target->explain = needs.explain = ++last_explained;
		needs.instrument = request->instrument;
	}
	target->connection = tessera_participant(request->routing, target->node_id, &needs);
	if (!request->write && request->statement != 0)
		tessera_cut_require(request->routing, target->node_id, request->statement);
	if (run->cut)
		queue_cut(run, target, request);
	if (several_writes)
	{
		tessera_connection_queue_sql(target->connection, "SAVEPOINT tessera_run");
		target->savepoint = true;
	}

	command->sql = tessera_remote_query_sql(request->query, tessera_connection_protocol(target->connection), &command->result_format);
	command->nparams = request->query->nparams;
	command->types = request->query->wire_types;
	command->values = (const char *const *) run->wire.values;
	command->lengths = run->wire.lengths;
	command->formats = request->query->formats;
	command->prepare = !request->query->once;
	command->shape = request->query->shape;
	command->single_row = request->query->desc != NULL && tessera_stream_rows;
	command->handler = tessera_shard_run_receive;
	tessera_connection_queue(target->connection, command);
	target->sent = GetCurrentTimestamp();
	tessera_connection_sync(target->connection);
}

_Noreturn static void
raise_unknown(TesseraShardRunTarget *target)
{
	const char *name = tessera_connection_name(target->connection);

	tessera_connection_forget(target->connection, NULL);
	tessera_connection_close(target->connection);
	ereport(ERROR,
			(errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
			 errmsg("node \"%s\" did not answer whether the statement is committed", name),
			 errhint("Look whether its effect is there before you run it again.")));
}

/*
 * A write that its shard commits by itself: an error here would say that nothing was done. So, as for a COMMIT, a request to cancel is passed on, and
 * then the answer must come within tessera.commit_timeout; it says what became of the statement. If that is done, the request came too late. It ends
 * when the node stands still.
 */
static void
await_autocommit(TesseraShardRunTarget *target)
{
	TimestampTz deadline = 0;
	TimestampTz looked = GetCurrentTimestamp();

	HOLD_INTERRUPTS();
	while (!target->command.done)
	{
		TimestampTz now = GetCurrentTimestamp();

		if (deadline == 0 && (QueryCancelPending || ProcDiePending))
		{
			tessera_connection_cancel(target->connection);
			deadline = TimestampTzPlusMilliseconds(now, tessera_commit_timeout);
		}
		if ((deadline != 0 && now >= deadline) || tessera_connection_stands_still(target->connection, &looked))
			raise_unknown(target);
		if (ProcSignalBarrierPending)
			ProcessProcSignalBarrier();
		(void) tessera_connections_pump(&target->connection, 1, AUTOCOMMIT_SLICE);
	}
	RESUME_INTERRUPTS();
	if (target->error == NULL && !target->command.aborted && !target->command.stale)
		QueryCancelPending = false;
	else
		CHECK_FOR_INTERRUPTS();
}

/* Read until every remote shard has given its first answer, or, of a statement that only reads, one of them an error or that it cannot be met. */
static void
await_acceptance(TesseraShardRun *run)
{
	int			nwaiting;

	for (int i = 0; run->write && i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (tessera_connection_state(target->connection)->xact_depth == 0)
			await_autocommit(target);
		while (!target->answered && !target->command.done)
			tessera_connections_pump(&target->connection, 1, -1);
	}
	do
	{
		nwaiting = 0;
		for (int i = 0; i < run->ntargets; i++)
		{
			TesseraShardRunTarget *target = &run->targets[i];

			if (target->error || (run->meets && target->command.stale))
				return;
			if (!target->answered && !target->command.done)
				run->waiting[nwaiting++] = target->connection;
		}
		if (nwaiting > 0)
			(void) tessera_connections_pump(run->waiting, nwaiting, -1);
	} while (nwaiting > 0);
}

static bool
any_stale(TesseraShardRun *run)
{
	for (int i = 0; i < run->ntargets; i++)
		if (run->targets[i].command.stale)
			return true;
	return false;
}

/* Sorted rows are sent when all the work is done: the rest of a few is on its way, and reading it is cheaper than to cancel it. */
static void
await_rest(TesseraShardRunTarget *target)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), REST_TIMEOUT);
	long		left = REST_TIMEOUT;

	while (!target->command.done && left > 0 && tessera_connections_pump(&target->connection, 1, (int) left))
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
}

/* The rest is cancelled where it is not wanted and no transaction would go with it, else read and dropped. */
static void
end_query(TesseraShardRun *run, TesseraShardRunTarget *target)
{
	if (!target->command.done && !run->write && tessera_connection_state(target->connection)->xact_depth == 0)
	{
		tessera_connection_forget(target->connection, &target->command);
		(void) tessera_connection_reset(target->connection, CANCEL_TIMEOUT);
	}
	else if (!target->command.done)
		tessera_connection_finish(target->connection, &target->command);
}

/* Each that was met has said so, which it does before it answers the query. */
static bool
all_met(TesseraShardRun *run)
{
	for (int i = 0; run->meets && i < run->ntargets; i++)
		if (!tessera_question_is_true(&run->targets[i].meet))
			return false;
	return true;
}

/* An error of the call in front of a query is why that was not run. */
static void
raise_meets(TesseraShardRun *run)
{
	for (int i = 0; run->meets && i < run->ntargets; i++)
		tessera_question_check(&run->targets[i].meet);
}

/*
 * When not all can be met: what is on its way is dropped. A shard that still works is cancelled, if no transaction would go with it: what it has an
 * error of ends that, and is raised.
 */
static void
undo_meets(TesseraShardRun *run)
{
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;

	for (int i = 0; i < run->ntargets; i++)
		if (!run->targets[i].command.done)
			run->waiting[n++] = run->targets[i].connection;
	if (n == 0 || tessera_connections_await_answers(run->waiting, n, TimestampTzPlusMilliseconds(now, REST_TIMEOUT)) == 0)
		return;
	n = 0;
	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (target->command.done || tessera_connection_state(target->connection)->xact_depth > 0)
			continue;
		tessera_connection_forget(target->connection, &target->command);
		run->waiting[n++] = target->connection;
	}
	tessera_connections_reset(run->waiting, n, TimestampTzPlusMilliseconds(now, CANCEL_TIMEOUT));
}

/* Undo: read everything to its end, roll savepoints back, forget the rows. */
static void
undo_run(TesseraShardRun *run)
{
	if (run->meets)
		undo_meets(run);
	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (!run->meets || tessera_connection_state(target->connection)->xact_depth > 0)
			tessera_connection_finish(target->connection, &target->command);
		if (run->meets && tessera_connection_state(target->connection)->xact_depth > 0)
			tessera_question_check(&target->meet);
		tessera_questions_end(&target->meet, 1);
		if (target->savepoint)
		{
			tessera_connection_queue_sql(target->connection, "ROLLBACK TO SAVEPOINT tessera_run");
			tessera_connection_queue_sql(target->connection, "RELEASE SAVEPOINT tessera_run");
			tessera_connection_sync(target->connection);
			tessera_connection_drain(target->connection);
		}
		tessera_shard_run_drop_received(target);
	}
	run->ntargets = 0;
}

static void
release_savepoints(TesseraShardRun *run)
{
	for (int i = 0; i < run->ntargets; i++)
		if (run->targets[i].savepoint)
		{
			tessera_connection_queue_sql(run->targets[i].connection, "RELEASE SAVEPOINT tessera_run");
			tessera_connection_sync(run->targets[i].connection);
			run->targets[i].savepoint = false;
		}
}

/* false: a node routes the tables otherwise, or, if the nodes are met, something is in doubt here. */
static bool
begin_cut(TesseraShardRun *run, const TesseraShardRunRequest *request, bool has_local)
{
	TesseraCutNodes nodes = nodes_of(request);

	run->cut = run->meets ? tessera_cut_choose(&nodes, has_local, &run->cut_here, &run->moment) :
		tessera_cut_ask_nodes(&nodes, request->statement, has_local, &run->cut_here, &run->moment);
	return run->cut;
}

/* This node's part of the common snapshot, else the request's. NULL: it cannot be had any more. */
static Snapshot
local_snapshot(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	Snapshot	cut;

	if (!run->cut)
		return request->snapshot;
	cut = tessera_cut_take(&run->cut_here, &run->moment);
	tessera_cut_release(&run->cut_here);
	if (cut == NULL)
		return NULL;
	cut->curcid = request->snapshot->curcid;
	run->cut_snapshot = cut;
	return cut;
}

static void
drop_cut_snapshot(TesseraShardRun *run)
{
	if (run->cut_snapshot)
		UnregisterSnapshot(run->cut_snapshot);
	run->cut_snapshot = NULL;
}

static bool
start_local(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	TesseraRoutedBy routed = {.routing = request->routing};
	Snapshot	snapshot = local_snapshot(run, request);

	if (snapshot == NULL)
		return false;
	run->local = tessera_local_begin(request->query, request->values, request->nulls, snapshot, &routed, request->eflags, request->instrument);
	/* A later fragment of a statement is no later command. */
	if (run->local && request->statement != 0 && (request->parts || request->cursor))
		tessera_local_query(run->local)->estate->es_output_cid = request->snapshot->curcid;
	return run->local != NULL;
}

static bool
start_run(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	MemoryContext before = MemoryContextSwitchTo(run->context);
	bool		has_local = false;
	bool		several_writes;
	bool		accepted = true;

	run->query = request->query;
	run->write = request->write;
	run->instrument = request->instrument;
	run->self = request->routing->self;
	run->source = 0;
	run->unpolled = 0;
	run->order = request->order;
	run->merge = NULL;
	run->any_order = request->any_order && run->order == NULL && request->ntargets > 1;
	run->waiting = palloc(sizeof(TesseraConnection *) * Max(request->ntargets, 1));
	run->local = NULL;
	run->local_first = NULL;
	run->local_done = false;
	run->local_rows = 0;
	run->ntargets = 0;
	run->targets = palloc0(sizeof(TesseraShardRunTarget) * Max(request->ntargets, 1));
	if (run->row_context == NULL)
		run->row_context = AllocSetContextCreate(run->context, "tessera row", ALLOCSET_SMALL_SIZES);

	for (int i = 0; i < request->ntargets; i++)
		if (request->targets[i] == request->routing->self)
			has_local = true;
	if (tessera_internal_connection() && request->ntargets > (has_local ? 1 : 0) && !request->refreshed)
	{
		/* what runs here was let in by the placement record, of which the routing table may not know yet */
		MemoryContextSwitchTo(before);
		return false;
	}
	if (tessera_internal_connection() && request->ntargets > (has_local ? 1 : 0))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a function or trigger that runs on a shard cannot reach rows of another shard"),
				 errdetail("The statement is: %s", request->query->text),
				 errhint("Do this work in the client or in a function called outside the statement.")));
	several_writes = request->write && request->ntargets > 1;
	tessera_pinned_check(request->routing, request->relids, request->ntargets, request->targets);
	tessera_cut_transaction(request->routing, request->ntargets, request->targets, NULL, request->snapshot);
	run->cut = false;
	if (request->cut && !begin_cut(run, request, has_local))
	{
		MemoryContextSwitchTo(before);
		return false;
	}

	/* The remote shards first, so that they work while the local part runs; a local writer starts only when they have accepted. */
	if (request->ntargets > (has_local ? 1 : 0))
		tessera_wire_params(request->query, request->values, request->nulls, &run->wire);
	for (int i = 0; i < request->ntargets; i++)
	{
		TesseraShardRunTarget *target;

		if (request->targets[i] == request->routing->self)
			continue;
		target = &run->targets[run->ntargets];
		target->run = run;
		target->node_id = request->targets[i];
		run->ntargets++;
		send_to(run, target, request, several_writes);
	}
	if (has_local && !request->write)
		accepted = start_local(run, request);
	if (run->local && request->groups)
	{
		run->local_first = tessera_local_next(run->local);
		run->local_done = run->local_first == NULL;
	}
	if (accepted || !run->meets)
		await_acceptance(run);
	raise_meets(run);
	tessera_shard_run_raise_errors(run);
	if (accepted && (any_stale(run) || !all_met(run)))
		accepted = false;
	if (accepted && has_local && request->write)
		accepted = start_local(run, request);
	if (!accepted)
	{
		tessera_cut_release(&run->cut_here);
		undo_run(run);
		if (run->local)
			tessera_local_end(run->local);
		run->local = NULL;
		drop_cut_snapshot(run);
	}
	else
	{
		if (several_writes)
			release_savepoints(run);
		tessera_pinned_note(request->routing, request->relids);
	}
	MemoryContextSwitchTo(before);
	return accepted;
}

/* A fragment of the parts' statement: under its number, and in one transaction with the others. */
static bool
start_part(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	TesseraParts *parts = request->parts;
	TesseraShardRunRequest own = *request;

	own.statement = parts->number;
	own.autocommit = false;
	if (start_run(run, &own))
	{
		parts->begun = true;
		parts->routing = request->routing;
		return true;
	}
	if (!parts->begun)
		parts->number = tessera_next_statement();
	return false;
}

/* ---- a common snapshot without a question ---- */

#define MOST_PASSED 63

/* So many runs are not tried, as nodes could not be met of late: it would only cost. Grows with each that could not, shrinks with each that could. */
static struct
{
	int			passed;			/* after the next that cannot */
	int			left;
} meeting;

/* What is undone and run once more must have called nobody's code, and be of no cursor. What is measured has to run once. */
static bool
may_meet(const TesseraShardRunRequest *request)
{
	if (!request->cut || !request->timeless || request->cursor || request->instrument != 0)
		return false;
	if (meeting.left == 0)
		return true;
	meeting.left--;
	return false;
}

/* Each node makes its snapshot that of the moment and runs the query at once, in a transaction of its own. false: a node could not. */
static bool
meet_nodes(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	TesseraShardRunRequest own = *request;
	bool		met;

	own.statement = 0;
	own.autocommit = true;
	run->meets = true;
	met = start_run(run, &own);
	run->meets = met;
	meeting.passed = met ? meeting.passed / 2 : Min(meeting.passed * 2 + 1, MOST_PASSED);
	meeting.left = met ? 0 : meeting.passed;
	return met;
}

bool
tessera_shard_run_start(TesseraShardRun *run, const TesseraShardRunRequest *request)
{
	if (request->parts)
		return start_part(run, request);
	return (may_meet(request) && meet_nodes(run, request)) || start_run(run, request);
}

/* After a run that was read to its end: rows processed. */
static uint64
rows_processed(TesseraShardRun *run)
{
	uint64		processed = run->local && run->write ? tessera_local_processed(run->local) : run->local_rows;

	for (int i = 0; i < run->ntargets; i++)
		processed += run->targets[i].processed;
	return processed;
}

uint64
tessera_shard_run_complete(TesseraShardRun *run)
{
	if (run->local && !run->local_done)
	{
		run->local_rows += run->local_first != NULL;
		run->local_first = NULL;
		while (tessera_local_next(run->local))
			run->local_rows++;
		run->local_done = true;
	}
	for (int i = 0; i < run->ntargets; i++)
		tessera_connection_finish(run->targets[i].connection, &run->targets[i].command);
	tessera_shard_run_raise_errors(run);
	return rows_processed(run);
}

void
tessera_shard_run_end(TesseraShardRun *run)
{
	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (run->order && target->answered && !run->write)
			await_rest(target);
		end_query(run, target);	/* a cursor closed early, a LIMIT */
		tessera_questions_end(&target->meet, 1);
		tessera_shard_run_drop_received(target);
	}
	run->ntargets = 0;
	if (run->spool_in)
	{
		ExecDropSingleTupleTableSlot(run->spool_in);
		ExecDropSingleTupleTableSlot(run->spool_out);
	}
	run->spool_in = run->spool_out = NULL;
	if (run->local)
		tessera_local_end(run->local);
	run->local = NULL;
	drop_cut_snapshot(run);
	if (run->fresh)
		UnregisterSnapshot(run->fresh);
	run->fresh = NULL;
}

Snapshot
tessera_shard_run_fresh_snapshot(TesseraShardRun *run, Snapshot own)
{
	if (IsolationUsesXactSnapshot())
		return own;
	if (run->fresh)
		UnregisterSnapshot(run->fresh);
	run->fresh = RegisterSnapshot(GetTransactionSnapshot());
	return run->fresh;
}

Snapshot
tessera_shard_run_take_snapshot(TesseraShardRun *run)
{
	Snapshot   *accepted = run->cut_snapshot ? &run->cut_snapshot : &run->fresh;
	Snapshot	snapshot = *accepted;

	*accepted = NULL;
	return snapshot;
}

bool
tessera_shard_run_is_measured(const TesseraShardRun *run)
{
	return run->instrument != 0;
}

/* This node's own part, by core's instrumentation. */
static void
local_stats(TesseraShardRun *run, TesseraShardRunStats *stats)
{
	QueryDesc  *query = tessera_local_query(run->local);
	Instrumentation *instrument = query->planstate ? query->planstate->instrument : NULL;

	stats->node_id = run->self;
	stats->query = query;
	stats->ended = run->local_done;
	stats->rows = run->local_rows > 0 ? run->local_rows : tessera_local_processed(run->local);
	if (instrument)
	{
		InstrEndLoop(instrument);
		stats->ms = instrument->total * 1000.0;
	}
}

int
tessera_shard_run_stats(TesseraShardRun *run, TesseraShardRunStats **stats)
{
	int			n = 0;

	*stats = palloc0(sizeof(TesseraShardRunStats) * (run->ntargets + 1));
	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		(*stats)[n].node_id = target->node_id;
		(*stats)[n].rows = target->rows > 0 ? target->rows : target->processed;
		(*stats)[n].ms = ((target->ended ? target->ended : GetCurrentTimestamp()) - target->sent) / 1000.0;
		(*stats)[n].ended = target->command.done;
		(*stats)[n].explain = target->explain;
		n++;
	}
	if (run->local)
		local_stats(run, &(*stats)[n++]);
	return n;
}
