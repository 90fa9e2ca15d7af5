/*
 * insert_scan.c
 *	  Executor of routed inserts: rows come from a plan of their own, each goes to the shard that owns its key.
 *
 * The source is read to its end before the first row is written, so a statement that selects from the table it inserts into does not meet its own
 * rows. Rows are collected for each shard and sent many in one statement (INSERT_BATCHES), the rest one by one; all fragments on one shard share the
 * snapshot of the first (statement number), so that ON CONFLICT and triggers see the statement as one. Rows of one statement that have come to belong
 * to several shards meanwhile are sent one by one.
 *
 * RETURNING hands its rows out in the order of the source's. What goes one by one comes back in it. Otherwise the rows of the source are numbered; of
 * several that went in one statement each one that comes back says which of them it is (executor/source_position.h), as any may be left out; and all
 * of them are sorted by their numbers.
 *
 * Memory: a batch's values live in its own context, reset when it is sent. The source's rows, and those of RETURNING, take work_mem each, then go to
 * temporary files.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"
#include "utils/tuplestore.h"

#include "common/protocol.h"
#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "control/call.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/targets.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

#define MAX_SIZES 4

typedef struct InsertState
{
	TesseraScan scan;			/* query: of one row */
	int			nparams;
	int		   *columns;		/* source column of each parameter */
	int			nattributes;
	int		   *attributes;		/* of the table, for each column of the source */
	Oid			relid;
	List	   *relids;			/* the same, as runs take it */
	QueryDesc  *source;
	Tuplestorestate *rows;		/* of the source */
	TupleTableSlot *row_slot;
	Tuplestorestate *returned;	/* of RETURNING, if all rows go one by one */
	Tuplesortstate *sorted;		/* else: each with its number */
	TupleTableSlot *numbered;	/* such a row; NULL: there is no RETURNING of several rows at once */
	TupleTableSlot *returned_slot;
	bool		done;
	uint64		inserted;
	uint64		statement;
	MemoryContext row_context;
	bool		counted;		/* texts for several rows take fewer as well, and their number */
	int			row_columns;	/* the first so many parameters are the row's columns */
	int16	   *typlen;			/* of the parameters */
	bool	   *typbyval;
	int			nsizes;			/* texts for several rows */
	int			sizes[MAX_SIZES];
	TesseraRemoteQuery *many[MAX_SIZES];
	List	   *batches;		/* of Batch *, one for each shard met */
} InsertState;

/* Rows on their way to one shard, parameters row by row. */
typedef struct Batch
{
	int32		node_id;
	int			n;
	Datum	   *values;
	bool	   *nulls;
	int64	   *numbers;		/* of the rows, in the source; NULL: not wanted */
	MemoryContext context;
} Batch;

static int *
int_array(List *list)
{
	int		   *result = palloc(sizeof(int) * Max(list_length(list), 1));
	ListCell   *cell;

	foreach(cell, list)
		result[foreach_current_index(cell)] = lfirst_int(cell);
	return result;
}

/* Columns of RETURNING, then a number. */
static TupleDesc
numbered_desc(TupleDesc returned)
{
	TupleDesc	desc = CreateTemplateTupleDesc(returned->natts + 1);

	for (AttrNumber column = 1; column <= returned->natts; column++)
		TupleDescCopyEntry(desc, column, returned, column);
	TupleDescInitEntry(desc, returned->natts + 1, "position", INT8OID, -1, 0);
	return desc;
}

/* The texts for several rows, and what is needed to keep values until they are sent. */
static void
prepare_batches(InsertState *state, List *private, const Oid *types)
{
	List	   *batches = list_nth(private, INSERT_BATCHES);
	int			others;
	ListCell   *cell;

	state->row_columns = intVal(list_nth(private, INSERT_ROW_COLUMNS));
	state->counted = (state->scan.flags & STATEMENT_COUNTED_ROWS) != 0;
	others = state->nparams - state->row_columns;
	state->typlen = palloc(sizeof(int16) * Max(state->nparams, 1));
	state->typbyval = palloc(sizeof(bool) * Max(state->nparams, 1));
	for (int i = 0; i < state->nparams; i++)
		get_typlenbyval(types[i], &state->typlen[i], &state->typbyval[i]);
	if (batches && state->scan.query->desc)
		state->numbered = MakeSingleTupleTableSlot(numbered_desc(state->scan.query->desc), &TTSOpsVirtual);
	foreach(cell, batches)
	{
		int			size = intVal(lsecond(lfirst(cell)));
		int			n = size * state->row_columns + others;
		Oid		   *all = palloc(sizeof(Oid) * (n + 1));

		for (int i = 0; i < size; i++)
			memcpy(all + i * state->row_columns, types, sizeof(Oid) * state->row_columns);
		memcpy(all + size * state->row_columns, types + state->row_columns, sizeof(Oid) * others);
		if (state->counted)
			all[n++] = INT8OID;
		Assert(state->nsizes < MAX_SIZES);
		state->sizes[state->nsizes] = size;
		state->many[state->nsizes++] = tessera_remote_query_make(linitial(lfirst(cell)), n, all,
																 state->numbered ? state->numbered->tts_tupleDescriptor : NULL,
																 state->scan.query->natts + 1, NULL);
		pfree(all);
	}
}

/* Read the source to its end. */
static void
read_source(InsertState *state)
{
	state->rows = tuplestore_begin_heap(false, false, work_mem);
	state->row_slot = MakeSingleTupleTableSlot(state->source->tupDesc, &TTSOpsMinimalTuple);
	tessera_nested_run(state->source, state->rows, false);
}

/* Parameter that holds an attribute of the table's new row; -1: none, the value is null. */
static int
param_of(InsertState *state, AttrNumber attribute)
{
	for (int i = 0; i < state->nattributes; i++)
		if (state->attributes[i] == attribute)
			for (int p = 0; p < state->nparams; p++)
				if (state->columns[p] == i + 1)
					return p;
	return -1;
}

/* Shard of a row, by its parameters. */
static int32
target_of_row(InsertState *state, const TesseraRouting *routing, const Datum *params, const bool *isnull)
{
	const TesseraTable *table = routing ? tessera_routing_table(routing, state->relid) : NULL;
	Datum		values[TESSERA_MAX_KEY_COLUMNS];
	bool		nulls[TESSERA_MAX_KEY_COLUMNS];
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	bool		no_row;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the table left the cluster while the statement ran"),
				 errhint("Run the statement again.")));
	if (table->group < 0)
		return table->node_id;
	for (int i = 0; i < table->nkeys; i++)
	{
		int			param = param_of(state, table->keys[i]);

		nulls[i] = param < 0 || isnull[param];
		types[i] = param < 0 ? UNKNOWNOID : state->scan.query->types[param];
		if (!nulls[i])
			values[i] = params[param];
	}
	return tessera_target_of_key(routing, table, values, nulls, types, &no_row);
}

/* ---- RETURNING ---- */

static void
begin_returning(InsertState *state)
{
	TupleDesc	desc = state->scan.css.ss.ss_ScanTupleSlot->tts_tupleDescriptor;

	if (state->numbered)
	{
		AttrNumber	column = desc->natts + 1;
		Oid			operator = Int8LessOperator;
		Oid			collation = InvalidOid;
		bool		nulls_first = false;

		desc = state->numbered->tts_tupleDescriptor;
		state->sorted = tuplesort_begin_heap(desc, 1, &column, &operator, &collation, &nulls_first, work_mem, NULL, TUPLESORT_NONE);
	}
	else
		state->returned = tuplestore_begin_heap(false, false, work_mem);
	state->returned_slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/* Which of the nrows rows of the statement it is; last: which the one before it was, -1: it is the first. */
static int64
position_of(const TupleTableSlot *returned, int column, int64 last, int nrows)
{
	int64		position = returned->tts_isnull[column] ? -1 : DatumGetInt64(returned->tts_values[column]);

	if (position <= last || position >= nrows)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a shard returned row " INT64_FORMAT " of %d after row " INT64_FORMAT, position, nrows, last)));
	return position;
}

/* What the run returns of one row, or of several, which have these numbers. */
static void
sort_returned(InsertState *state, const int64 *numbers, int nrows)
{
	TupleTableSlot *numbered = state->numbered;
	TupleTableSlot *own = nrows == 1 ? state->scan.css.ss.ss_ScanTupleSlot : numbered;
	TupleTableSlot *slot;
	int			natts = state->scan.query->desc->natts;
	int64		position = nrows == 1 ? 0 : -1;

	while ((slot = tessera_shard_run_next(state->scan.run, own)) != NULL)
	{
		slot_getallattrs(slot);
		if (nrows > 1)
			position = position_of(slot, natts, position, nrows);
		if (slot != numbered)
		{
			ExecClearTuple(numbered);
			memcpy(numbered->tts_values, slot->tts_values, sizeof(Datum) * natts);
			memcpy(numbered->tts_isnull, slot->tts_isnull, sizeof(bool) * natts);
			ExecStoreVirtualTuple(numbered);
		}
		numbered->tts_values[natts] = Int64GetDatum(numbers[position]);
		numbered->tts_isnull[natts] = false;
		tuplesort_puttupleslot(state->sorted, numbered);
	}
}

/* The next row of RETURNING; NULL: there is none. */
static TupleTableSlot *
next_returned(InsertState *state)
{
	TupleTableSlot *row = state->returned_slot;
	TupleTableSlot *slot = state->scan.css.ss.ss_ScanTupleSlot;
	int			natts = slot->tts_tupleDescriptor->natts;

	if (state->returned)
		return tuplestore_gettupleslot(state->returned, true, false, row) ? row : NULL;
	if (!tuplesort_gettupleslot(state->sorted, true, false, row, NULL))
		return NULL;
	slot_getallattrs(row);
	ExecClearTuple(slot);
	memcpy(slot->tts_values, row->tts_values, sizeof(Datum) * natts);
	memcpy(slot->tts_isnull, row->tts_isnull, sizeof(bool) * natts);
	return ExecStoreVirtualTuple(slot);
}

/* numbers: of the nrows rows that it has inserted; NULL: not wanted. */
static void
finish_run(InsertState *state, const int64 *numbers, int nrows)
{
	TesseraShardRun *run = state->scan.run;
	TupleTableSlot *slot;

	if (state->sorted)
		sort_returned(state, numbers, nrows);
	else if (state->returned)
		while ((slot = tessera_shard_run_next(run, state->scan.css.ss.ss_ScanTupleSlot)) != NULL)
			tuplestore_puttupleslot(state->returned, slot);
	state->inserted += tessera_shard_run_complete(run);
	tessera_scan_stop(&state->scan);
}

/* ---- rows to their shard ---- */

/* Rows that go in one statement, as they lie in a batch. */
typedef struct RowsRoute
{
	TesseraRoute route;			/* first */
	const Datum *values;		/* row by row */
	const bool *nulls;
	const int64 *numbers;
	int			nrows;
	int32		node_id;		/* where they belong */
} RowsRoute;

/* True unless the shard is of a version that does not say which of several rows it returns. */
static bool
tells_positions(const TesseraRouting *routing, int32 node_id)
{
	TesseraCommandNeeds needs = {.write = true, .aside = true};

	/* what runs on a shard reaches no other */
	if (node_id == routing->self || tessera_internal_connection())
		return true;
	return tessera_connection_protocol(tessera_participant(routing, node_id, &needs)) >= TESSERA_POSITION_PROTOCOL;
}

/*
 * The shard of the first row; false: they cannot go in one statement, as a chunk was moved since they were put together, or the shard does not say
 * which of them it returns.
 */
static bool
choose_target(TesseraRoute *route, TesseraShardRunRequest *request)
{
	RowsRoute  *rows = (RowsRoute *) route;
	InsertState *state = route->owner;

	rows->node_id = target_of_row(state, request->routing, rows->values, rows->nulls);
	for (int i = 1; i < rows->nrows; i++)
		if (target_of_row(state, request->routing, rows->values + i * state->nparams, rows->nulls + i * state->nparams) != rows->node_id)
			return false;
	if (state->sorted && rows->nrows > 1 && !tells_positions(request->routing, rows->node_id))
		return false;
	request->ntargets = 1;
	request->targets = &rows->node_id;
	return true;
}

/* Gives the statement a new number, so that no shard goes on with the snapshot that was found stale. */
static void
begin_anew(TesseraRoute *route, TesseraShardRunRequest *request)
{
	InsertState *state = route->owner;

	state->statement = request->statement = tessera_next_statement();
}

/* Rows by the query with these parameters. false: they cannot go in one statement, nothing was run. */
static bool
insert_by(InsertState *state, TesseraRemoteQuery *query, const Datum *params, const bool *isnull, RowsRoute *rows)
{
	TesseraShardRunRequest request = {
		.query = query, .values = params, .nulls = isnull, .write = true, .statement = state->statement, .relids = state->relids,
		.instrument = state->scan.css.ss.ps.state->es_instrument,
	};
	bool		runs;

	rows->route = (TesseraRoute) {.owner = state, .choose = choose_target, .stale = begin_anew};
	runs = tessera_scan_run(&state->scan, &rows->route, &request);
	if (runs)
		finish_run(state, rows->numbers, rows->nrows);
	else
		tessera_scan_stop(&state->scan);
	return runs;
}

/* number: NULL: not wanted. */
static void
insert_row(InsertState *state, const Datum *values, const bool *nulls, const int64 *number)
{
	RowsRoute	row = {.values = values, .nulls = nulls, .numbers = number, .nrows = 1};

	(void) insert_by(state, state->scan.query, values, nulls, &row);
}

/* ---- several rows at once ---- */

static Batch *
batch_for(InsertState *state, int32 node_id)
{
	Batch	   *batch;
	ListCell   *cell;

	foreach(cell, state->batches)
		if (((Batch *) lfirst(cell))->node_id == node_id)
			return lfirst(cell);
	batch = palloc0(sizeof(Batch));
	batch->node_id = node_id;
	batch->values = palloc(sizeof(Datum) * state->sizes[0] * state->nparams);
	batch->nulls = palloc(sizeof(bool) * state->sizes[0] * state->nparams);
	if (state->sorted)
		batch->numbers = palloc(sizeof(int64) * state->sizes[0]);
	batch->context = AllocSetContextCreate(state->scan.css.ss.ps.state->es_query_cxt, "tessera insert batch", ALLOCSET_DEFAULT_SIZES);
	state->batches = lappend(state->batches, batch);
	return batch;
}

/* Number of a row of the batch, and of those behind it; NULL: not wanted. */
static const int64 *
numbers_from(const Batch *batch, int row)
{
	return batch->numbers ? batch->numbers + row : NULL;
}

/* n rows from the first-th on in one statement. false: they cannot go in one, nothing was run. */
static bool
insert_many(InsertState *state, Batch *batch, int first, int which, int n)
{
	int			size = state->sizes[which];
	int			columns = state->row_columns;
	int			nparams = state->many[which]->nparams;
	RowsRoute	rows = {
		.values = batch->values + first * state->nparams, .nulls = batch->nulls + first * state->nparams, .numbers = numbers_from(batch, first),
		.nrows = n,
	};
	Datum	   *values = palloc0(sizeof(Datum) * nparams);
	bool	   *nulls = palloc(sizeof(bool) * nparams);

	memset(nulls, true, sizeof(bool) * nparams);
	for (int i = 0; i < n; i++)
	{
		const Datum *row = rows.values + i * state->nparams;
		const bool *row_nulls = rows.nulls + i * state->nparams;

		memcpy(values + i * columns, row, sizeof(Datum) * columns);
		memcpy(nulls + i * columns, row_nulls, sizeof(bool) * columns);
		memcpy(values + size * columns, row + columns, sizeof(Datum) * (state->nparams - columns));
		memcpy(nulls + size * columns, row_nulls + columns, sizeof(bool) * (state->nparams - columns));
	}
	if (state->counted)
	{
		values[nparams - 1] = Int64GetDatum(n);
		nulls[nparams - 1] = false;
	}
	return insert_by(state, state->many[which], values, nulls, &rows);
}

/* How many of the rows that are left go in the next statement, and by which of the texts for several. */
static int
next_size(InsertState *state, int left, int *which)
{
	*which = 0;
	if (state->counted)
	{
		while (*which + 1 < state->nsizes && state->sizes[*which + 1] >= left)
			(*which)++;
		return Min(left, state->sizes[*which]);
	}
	while (*which < state->nsizes && state->sizes[*which] > left)
		(*which)++;
	return *which < state->nsizes ? state->sizes[*which] : 1;
}

static void
send_batch(InsertState *state, Batch *batch)
{
	int			sent = 0;

	while (sent < batch->n)
	{
		MemoryContext before = MemoryContextSwitchTo(state->row_context);
		int			which;
		int			size;

		CHECK_FOR_INTERRUPTS();
		size = next_size(state, batch->n - sent, &which);
		if (size == 1 || !insert_many(state, batch, sent, which, size))
			for (int i = sent; i < sent + size; i++)
				insert_row(state, batch->values + i * state->nparams, batch->nulls + i * state->nparams, numbers_from(batch, i));
		sent += size;
		MemoryContextSwitchTo(before);
		MemoryContextReset(state->row_context);
	}
	batch->n = 0;
	MemoryContextReset(batch->context);
}

/* The parameters of a row of the source. */
static void
params_of_row(InsertState *state, TupleTableSlot *row, Datum *values, bool *nulls)
{
	slot_getallattrs(row);
	for (int i = 0; i < state->nparams; i++)
	{
		values[i] = row->tts_values[state->columns[i] - 1];
		nulls[i] = row->tts_isnull[state->columns[i] - 1];
	}
}

static void
add_to_batch(InsertState *state, const Datum *values, const bool *nulls, int64 number)
{
	Batch	   *batch = batch_for(state, target_of_row(state, tessera_routing(), values, nulls));
	MemoryContext before = MemoryContextSwitchTo(batch->context);
	int			base = batch->n * state->nparams;

	for (int i = 0; i < state->nparams; i++)
	{
		batch->nulls[base + i] = nulls[i];
		batch->values[base + i] = nulls[i] ? (Datum) 0 : datumCopy(values[i], state->typbyval[i], state->typlen[i]);
	}
	MemoryContextSwitchTo(before);
	if (batch->numbers)
		batch->numbers[batch->n] = number;
	if (++batch->n == state->sizes[0])
		send_batch(state, batch);
}

static void
insert_rows(InsertState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
	Datum	   *values;
	bool	   *nulls;
	int64		number = 0;
	ListCell   *cell;

	tessera_stat_count(TESSERA_STAT_INSERT);
	read_source(state);
	state->statement = tessera_next_statement();
	if (state->scan.flags & STATEMENT_RETURNS_ROWS)
		begin_returning(state);
	values = palloc(sizeof(Datum) * Max(state->nparams, 1));
	nulls = palloc(sizeof(bool) * Max(state->nparams, 1));
	while (tuplestore_gettupleslot(state->rows, true, false, state->row_slot))
	{
		CHECK_FOR_INTERRUPTS();
		params_of_row(state, state->row_slot, values, nulls);
		if (state->nsizes > 0)
		{
			add_to_batch(state, values, nulls, number++);
			continue;
		}
		MemoryContextSwitchTo(state->row_context);
		insert_row(state, values, nulls, NULL);
		MemoryContextSwitchTo(estate->es_query_cxt);
		MemoryContextReset(state->row_context);
	}
	foreach(cell, state->batches)
		send_batch(state, lfirst(cell));
	if (state->sorted)
		tuplesort_performsort(state->sorted);
	state->done = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	InsertState *state = (InsertState *) scan;
	EState	   *estate = scan->css.ss.ps.state;
	bool		returns = (scan->flags & STATEMENT_RETURNS_ROWS) != 0;
	TupleTableSlot *slot;

	if (!state->done)
	{
		insert_rows(state);
		if (!returns)
			estate->es_processed += state->inserted;
	}
	slot = returns ? next_returned(state) : NULL;
	/* counted as they are handed out, as core counts them */
	if (slot)
		estate->es_processed++;
	return slot;
}

static void
end(TesseraScan *scan)
{
	InsertState *state = (InsertState *) scan;

	if (state->row_slot)
		ExecDropSingleTupleTableSlot(state->row_slot);
	if (state->returned_slot)
		ExecDropSingleTupleTableSlot(state->returned_slot);
	if (state->numbered)
		ExecDropSingleTupleTableSlot(state->numbered);
	if (state->rows)
		tuplestore_end(state->rows);
	if (state->returned)
		tuplestore_end(state->returned);
	if (state->sorted)
		tuplesort_end(state->sorted);
	tessera_nested_end(scan, state->source);
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	InsertState *state = (InsertState *) scan;
	List	   *private = scan->private;
	List	   *types = list_nth(private, INSERT_PARAM_TYPES);
	Oid		   *type_array = palloc(sizeof(Oid) * Max(list_length(types), 1));
	ListCell   *cell;

	foreach(cell, types)
		type_array[foreach_current_index(cell)] = lfirst_oid(cell);
	scan->tier = "routed rows";
	scan->flags = intVal(list_nth(private, INSERT_FLAGS));
	state->nparams = list_length(types);
	state->columns = int_array(list_nth(private, INSERT_PARAM_COLUMNS));
	state->nattributes = list_length(list_nth(private, INSERT_ATTRIBUTES));
	state->attributes = int_array(list_nth(private, INSERT_ATTRIBUTES));
	state->relid = (Oid) intVal(list_nth(private, INSERT_RELID));
	state->relids = list_make1_oid(state->relid);
	scan->query = tessera_remote_query_make(list_nth(private, INSERT_SQL), state->nparams, type_array,
											(scan->flags & STATEMENT_RETURNS_ROWS) ? scan->css.ss.ss_ScanTupleSlot->tts_tupleDescriptor : NULL,
											 list_length(((CustomScan *) scan->css.ss.ps.plan)->custom_scan_tlist), NULL);
	prepare_batches(state, private, type_array);
	state->source = tessera_nested_start(scan, list_nth(private, INSERT_SOURCE), estate->es_queryEnv, eflags | TESSERA_EXEC_FOR_WRITE);
	state->row_context = AllocSetContextCreate(estate->es_query_cxt, "tessera insert row", ALLOCSET_DEFAULT_SIZES);
}

static void
explain(TesseraScan *scan, ExplainState *es)
{
	InsertState *state = (InsertState *) scan;

	if (es->verbose)
		ExplainPropertyText("Remote SQL", scan->query->sql, es);
	tessera_explain_figures(es, tessera_routing(), &scan->figures);
	tessera_explain_nested(es, state->source, "Source");
}

const TesseraScanKind tessera_insert_scan = {
	TESSERA_SCAN_METHODS("Tessera Insert"), .size = sizeof(InsertState), .begin = begin, .next = next, .end = end, .explain = explain,
	.once = "a routed INSERT",
};
