/*
 * shard_run_rows.c
 *	  Rows of a run: received from its shards, and handed out; see shard_run.h.
 *
 * What a remote shard has sent is a list of PGresults, filled by the handler of its command, whichever call reads that connection; what comes faster
 * than it is handed out goes to a tuple store, whose files belong to the resource owner of tessera_shard_run_make.
 *
 * Rows go out source by source, or from whichever source has one (any_order of the request), or merged by an order that each source keeps. A source
 * is a remote target, or this node's own part, which is the last.
 */
#include "postgres.h"

#include "lib/binaryheap.h"
#include "utils/memutils.h"
#include "utils/sortsupport.h"
#include "utils/timestamp.h"

#include "executor/shard_run_private.h"
#include "transport/connection.h"

/* Results of single rows are large: this many of a target are kept as they are, what arrives beyond them goes to a tuple store. */
#define PENDING_LIMIT 256

/* So many rows of this node's part go out before the other shards' connections are looked at again. */
#define LOCAL_SLICE 64

void
tessera_shard_run_drop_received(TesseraShardRunTarget *target)
{
	while (target->first)
	{
		TesseraPendingResult *pending = target->first;

		target->first = pending->next;
		PQclear(pending->result);
		pfree(pending);
	}
	target->last = NULL;
	target->npending = 0;
	if (target->spool)
		tuplestore_end(target->spool);
	target->spool = NULL;
	if (target->error)
		PQclear(target->error);
	target->error = NULL;
}

void
tessera_shard_run_raise_errors(TesseraShardRun *run)
{
	for (int i = 0; i < run->ntargets; i++)
	{
		TesseraShardRunTarget *target = &run->targets[i];

		if (target->error)
		{
			PGresult   *error = target->error;

			target->error = NULL;
			tessera_connection_raise(target->connection, error, run->query->text);
		}
		if (target->command.done)
			tessera_connection_check(target->connection, &target->command);
	}
}

static void
spool_rows(TesseraShardRun *run, TesseraShardRunTarget *target, PGresult *result)
{
	if (run->spool_in == NULL)
	{
		run->spool_in = MakeSingleTupleTableSlot(run->query->desc, &TTSOpsVirtual);
		run->spool_out = MakeSingleTupleTableSlot(run->query->desc, &TTSOpsMinimalTuple);
		run->spool_context = AllocSetContextCreate(run->context, "tessera spool row", ALLOCSET_SMALL_SIZES);
	}
	if (target->spool == NULL)
		target->spool = tuplestore_begin_heap(false, false, work_mem);
	for (int row = 0; row < PQntuples(result); row++)
	{
		MemoryContextSwitchTo(run->spool_context);
		tessera_wire_row(run->query, result, row, run->spool_in);
		tuplestore_puttupleslot(target->spool, run->spool_in);
		MemoryContextReset(run->spool_context);
	}
}

/* Rows that are not read yet: their connection is wanted for another command, or its shard is faster than we are. Spills to disk beyond work_mem. */
static void
spool_result(TesseraShardRunTarget *target, PGresult *result)
{
	MemoryContext before = MemoryContextSwitchTo(target->run->context);
	ResourceOwner owner = CurrentResourceOwner;

	PG_TRY();
	{
		CurrentResourceOwner = target->run->owner;
		spool_rows(target->run, target, result);
	}
	PG_CATCH();
	{
		PQclear(result);
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();
	PQclear(result);
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(before);
}

/* Rows stay in their order: once there is a spool all that arrives goes behind it. */
static bool
run_spools(TesseraShardRunTarget *target)
{
	return target->run->query->desc != NULL && (target->spool != NULL || target->npending >= PENDING_LIMIT);
}

void
tessera_shard_run_receive(TesseraCommand *command, PGresult *result)
{
	TesseraShardRunTarget *target = (TesseraShardRunTarget *) command;
	ExecStatusType status = PQresultStatus(result);

	target->answered = true;
	if (status != PGRES_SINGLE_TUPLE && target->run->instrument != 0)
		target->ended = GetCurrentTimestamp();
	if (status == PGRES_SINGLE_TUPLE || status == PGRES_TUPLES_OK)
	{
		if (status == PGRES_TUPLES_OK)
			target->processed = strtou64(PQcmdTuples(result), NULL, 10);
		if (PQntuples(result) > 0 && run_spools(target))
		{
			target->rows += PQntuples(result);
			spool_result(target, result);
			return;
		}
		if (PQntuples(result) > 0)
		{
			TesseraPendingResult *pending = MemoryContextAlloc(target->run->context, sizeof(TesseraPendingResult));

			pending->next = NULL;
			pending->result = result;
			pending->row = 0;
			target->rows += PQntuples(result);
			if (target->last)
				target->last->next = pending;
			else
				target->first = pending;
			target->last = pending;
			target->npending++;
			return;
		}
	}
	else if (status == PGRES_COMMAND_OK)
		target->processed = strtou64(PQcmdTuples(result), NULL, 10);
	else if (status != PGRES_PIPELINE_ABORTED && target->error == NULL)
	{
		target->error = result;
		return;
	}
	PQclear(result);
}

/* The next row of a remote target's spool, spread into the slot; NULL (and no spool any more) at its end. */
static TupleTableSlot *
next_spooled(TesseraShardRun *run, TesseraShardRunTarget *target, TupleTableSlot *slot)
{
	if (!tuplestore_gettupleslot(target->spool, true, false, run->spool_out))
	{
		tuplestore_end(target->spool);
		target->spool = NULL;
		return NULL;
	}
	slot_getallattrs(run->spool_out);
	ExecClearTuple(slot);
	memcpy(slot->tts_values, run->spool_out->tts_values, sizeof(Datum) * run->query->desc->natts);
	memcpy(slot->tts_isnull, run->spool_out->tts_isnull, sizeof(bool) * run->query->desc->natts);
	return ExecStoreVirtualTuple(slot);
}

static TupleTableSlot *
next_pending(TesseraShardRun *run, TesseraShardRunTarget *target, TupleTableSlot *slot)
{
	TesseraPendingResult *pending = target->first;
	MemoryContext before;

	MemoryContextReset(run->row_context);
	before = MemoryContextSwitchTo(run->row_context);
	tessera_wire_row(run->query, pending->result, pending->row++, slot);
	MemoryContextSwitchTo(before);
	if (pending->row >= PQntuples(pending->result))
	{
		target->first = pending->next;
		if (target->first == NULL)
			target->last = NULL;
		target->npending--;
		PQclear(pending->result);
		pfree(pending);
	}
	return slot;
}

/* A row of a remote target that is here already; NULL: none is. */
static TupleTableSlot *
next_received(TesseraShardRun *run, TesseraShardRunTarget *target, TupleTableSlot *slot)
{
	if (target->first)
		return next_pending(run, target, slot);
	if (target->spool)
		return next_spooled(run, target, slot);
	return NULL;
}

/* True if the target has given all its rows. Raises the error that ended it. Nothing received is left. */
static bool
has_ended(TesseraShardRun *run, TesseraShardRunTarget *target)
{
	if (!target->command.done)
		return false;
	if (target->error || target->command.aborted || target->command.error)
		tessera_shard_run_raise_errors(run);
	return true;
}

static TupleTableSlot *
next_local(TesseraShardRun *run)
{
	TupleTableSlot *row;

	if (run->local == NULL || run->local_done)
		return NULL;
	row = run->local_first ? run->local_first : tessera_local_next(run->local);
	run->local_first = NULL;
	if (row)
		run->local_rows++;
	else
		run->local_done = true;
	return row;
}

/*
 * The next row of one source (see TesseraShardRun), which is waited for; NULL when it has given all. The values of a remote row live until the next
 * row of any source: who compares rows of several has to keep them.
 */
static TupleTableSlot *
next_of_source(TesseraShardRun *run, int source, TupleTableSlot *slot)
{
	TesseraShardRunTarget *target = &run->targets[source];

	if (source == run->ntargets)
		return next_local(run);
	for (;;)
	{
		TupleTableSlot *row = next_received(run, target, slot);

		if (row || has_ended(run, target))
			return row;
		(void) tessera_connections_pump(&target->connection, 1, -1);
	}
}

static TupleTableSlot *
next_in_order(TesseraShardRun *run, TupleTableSlot *slot)
{
	for (; run->source <= run->ntargets; run->source++)
	{
		TupleTableSlot *row = next_of_source(run, run->source, slot);

		if (row)
			return row;
	}
	return NULL;
}

/* A row that is here already, of the source of the last one as long as that has any; else *nwaiting connections have more to come. */
static TupleTableSlot *
next_of_any(TesseraShardRun *run, TupleTableSlot *slot, int *nwaiting)
{
	int			first = run->source < run->ntargets ? run->source : 0;

	*nwaiting = 0;
	for (int i = 0; i < run->ntargets; i++)
	{
		int			source = (first + i) % run->ntargets;
		TesseraShardRunTarget *target = &run->targets[source];
		TupleTableSlot *row = next_received(run, target, slot);

		if (row)
		{
			run->source = source;
			return row;
		}
		if (!has_ended(run, target))
			run->waiting[(*nwaiting)++] = target->connection;
	}
	return NULL;
}

/*
 * Whichever source has one. Connections are read only when none has anything left here, each that is ready once: so no shard is kept waiting for
 * another, what is kept here is what one reading brings, and a shard that is faster than we are is slowed down by its socket. This node's part fills
 * the time in which nothing has come.
 */
static TupleTableSlot *
next_ready(TesseraShardRun *run, TupleTableSlot *slot)
{
	for (;;)
	{
		int			nwaiting;
		TupleTableSlot *row = next_of_any(run, slot, &nwaiting);
		bool		local = run->local && !run->local_done;

		if (row)
			return row;
		if (local && (nwaiting == 0 || run->unpolled < LOCAL_SLICE))
		{
			run->unpolled++;
			row = next_local(run);
			if (row)
			{
				run->source = run->ntargets;
				return row;
			}
			continue;
		}
		if (nwaiting == 0)
			return NULL;
		run->unpolled = 0;
		(void) tessera_connections_pump(run->waiting, nwaiting, local ? 0 : -1);
	}
}

/* For the heap, whose first is the largest: the source whose row comes first. */
static int
compare_heads(Datum a, Datum b, void *arg)
{
	TesseraShardRun *run = arg;
	TupleTableSlot *left = run->heads[DatumGetInt32(a)];
	TupleTableSlot *right = run->heads[DatumGetInt32(b)];

	for (int i = 0; i < run->order->nkeys; i++)
	{
		SortSupport key = &run->order->keys[i];
		int			column = key->ssup_attno - 1;
		int			result = ApplySortComparator(left->tts_values[column], left->tts_isnull[column], right->tts_values[column],
												 right->tts_isnull[column], key);

		if (result != 0)
			return result > 0 ? -1 : 1;
	}
	return 0;
}

/* The source's next row becomes its head. False: it has given all. A remote row is copied: its values would not outlive another source's. */
static bool
advance(TesseraShardRun *run, int source)
{
	if (source == run->ntargets)
	{
		run->heads[source] = next_local(run);
		if (run->heads[source] == NULL)
			return false;
		slot_getallattrs(run->heads[source]);
		return true;
	}
	if (next_of_source(run, source, run->heads[source]) == NULL)
		return false;
	ExecMaterializeSlot(run->heads[source]);
	return true;
}

static void
begin_merge(TesseraShardRun *run)
{
	MemoryContext before = MemoryContextSwitchTo(run->context);

	run->heads = palloc0(sizeof(TupleTableSlot *) * (run->ntargets + 1));
	for (int i = 0; i < run->ntargets; i++)
		run->heads[i] = MakeTupleTableSlot(run->query->desc, &TTSOpsVirtual);
	run->merge = binaryheap_allocate(run->ntargets + 1, compare_heads, run);
	MemoryContextSwitchTo(before);
	for (int i = 0; i <= run->ntargets; i++)
		if (advance(run, i))
			binaryheap_add_unordered(run->merge, Int32GetDatum(i));
	binaryheap_build(run->merge);
}

/* The first of all sources' rows by the run's order. */
static TupleTableSlot *
next_merged(TesseraShardRun *run)
{
	if (run->merge == NULL)
		begin_merge(run);
	else if (!binaryheap_empty(run->merge))
	{
		if (advance(run, run->source))
			binaryheap_replace_first(run->merge, Int32GetDatum(run->source));
		else
			(void) binaryheap_remove_first(run->merge);
	}
	if (binaryheap_empty(run->merge))
		return NULL;
	run->source = DatumGetInt32(binaryheap_first(run->merge));
	return run->heads[run->source];
}

int32
tessera_shard_run_row_node(const TesseraShardRun *run)
{
	return run->source < run->ntargets ? run->targets[run->source].node_id : 0;
}

TupleTableSlot *
tessera_shard_run_next(TesseraShardRun *run, TupleTableSlot *slot)
{
	if (run->order)
		return next_merged(run);
	return run->any_order ? next_ready(run, slot) : next_in_order(run, slot);
}
