/*
 * insert_scan.c
 *	  Executor of routed inserts: rows come from a plan of their own, each goes to the shard that owns its key.
 *
 * The source is read to its end before the first row is written, so a statement that selects from the table it inserts into does not meet its own
 * rows. Rows are collected for each shard and sent many in one statement (INSERT_BATCHES), the rest one by one; all fragments on one shard share the
 * snapshot of the first (statement number), so that ON CONFLICT and triggers see the statement as one. Rows of one statement that have come to belong
 * to several shards meanwhile are sent one by one.
 *
 * Memory: a batch's values live in its own context, reset when it is sent.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/targets.h"
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
	Tuplestorestate *returned;	/* of RETURNING */
	TupleTableSlot *row_slot;
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
		state->many[state->nsizes++] = tessera_remote_query_make(linitial(lfirst(cell)), n, all, state->scan.query->desc,
																 state->scan.query->natts, NULL);
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

static void
finish_run(InsertState *state)
{
	TesseraShardRun *run = state->scan.run;
	TupleTableSlot *slot;

	if (state->returned)
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
	int			nrows;
	int32		node_id;		/* where they belong */
} RowsRoute;

/* The shard of the first row; false: not all belong to it, as a chunk was moved since they were put together. */
static bool
choose_target(TesseraRoute *route, TesseraShardRunRequest *request)
{
	RowsRoute  *rows = (RowsRoute *) route;
	InsertState *state = route->owner;

	rows->node_id = target_of_row(state, request->routing, rows->values, rows->nulls);
	for (int i = 1; i < rows->nrows; i++)
		if (target_of_row(state, request->routing, rows->values + i * state->nparams, rows->nulls + i * state->nparams) != rows->node_id)
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

/* nrows rows, with these parameters of the query. false: they do not belong to one shard any more, nothing was run. */
static bool
insert_by(InsertState *state, TesseraRemoteQuery *query, const Datum *params, const bool *isnull, const Datum *rows, const bool *row_nulls, int nrows)
{
	RowsRoute	route = {
		.route = {.owner = state, .choose = choose_target, .stale = begin_anew}, .values = rows, .nulls = row_nulls, .nrows = nrows,
	};
	TesseraShardRunRequest request = {
		.query = query, .values = params, .nulls = isnull, .write = true, .statement = state->statement, .relids = state->relids,
		.instrument = state->scan.css.ss.ps.state->es_instrument,
	};
	bool		runs = tessera_scan_run(&state->scan, &route.route, &request);

	if (runs)
		finish_run(state);
	else
		tessera_scan_stop(&state->scan);
	return runs;
}

static void
insert_row(InsertState *state, const Datum *values, const bool *nulls)
{
	(void) insert_by(state, state->scan.query, values, nulls, values, nulls, 1);
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
	batch->context = AllocSetContextCreate(state->scan.css.ss.ps.state->es_query_cxt, "tessera insert batch", ALLOCSET_DEFAULT_SIZES);
	state->batches = lappend(state->batches, batch);
	return batch;
}

/* n rows from the first-th on in one statement. false: they do not belong to one shard any more, nothing was run. */
static bool
insert_many(InsertState *state, Batch *batch, int first, int which, int n)
{
	int			size = state->sizes[which];
	int			columns = state->row_columns;
	int			nparams = state->many[which]->nparams;
	const Datum *rows = batch->values + first * state->nparams;
	const bool *rows_nulls = batch->nulls + first * state->nparams;
	Datum	   *values = palloc0(sizeof(Datum) * nparams);
	bool	   *nulls = palloc(sizeof(bool) * nparams);

	memset(nulls, true, sizeof(bool) * nparams);
	for (int i = 0; i < n; i++)
	{
		const Datum *row = rows + i * state->nparams;
		const bool *row_nulls = rows_nulls + i * state->nparams;

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
	return insert_by(state, state->many[which], values, nulls, rows, rows_nulls, n);
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
			for (int i = 0; i < size; i++)
				insert_row(state, batch->values + (sent + i) * state->nparams, batch->nulls + (sent + i) * state->nparams);
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
add_to_batch(InsertState *state, const Datum *values, const bool *nulls)
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
	ListCell   *cell;

	tessera_stat_count(TESSERA_STAT_INSERT);
	read_source(state);
	state->statement = tessera_next_statement();
	if (state->scan.flags & STATEMENT_RETURNS_ROWS)
	{
		state->returned = tuplestore_begin_heap(false, false, work_mem);
		state->returned_slot = MakeSingleTupleTableSlot(state->scan.css.ss.ss_ScanTupleSlot->tts_tupleDescriptor, &TTSOpsMinimalTuple);
	}
	values = palloc(sizeof(Datum) * Max(state->nparams, 1));
	nulls = palloc(sizeof(bool) * Max(state->nparams, 1));
	while (tuplestore_gettupleslot(state->rows, true, false, state->row_slot))
	{
		CHECK_FOR_INTERRUPTS();
		params_of_row(state, state->row_slot, values, nulls);
		if (state->nsizes > 0)
		{
			add_to_batch(state, values, nulls);
			continue;
		}
		MemoryContextSwitchTo(state->row_context);
		insert_row(state, values, nulls);
		MemoryContextSwitchTo(estate->es_query_cxt);
		MemoryContextReset(state->row_context);
	}
	foreach(cell, state->batches)
		send_batch(state, lfirst(cell));
	state->done = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	InsertState *state = (InsertState *) scan;
	EState	   *estate = scan->css.ss.ps.state;

	if (!state->done)
	{
		insert_rows(state);
		if (!state->returned)
			estate->es_processed += state->inserted;
	}
	if (!state->returned || !tuplestore_gettupleslot(state->returned, true, false, state->returned_slot))
		return NULL;
	/* counted as they are handed out, as core counts them */
	estate->es_processed++;
	return state->returned_slot;
}

static void
end(TesseraScan *scan)
{
	InsertState *state = (InsertState *) scan;

	if (state->row_slot)
		ExecDropSingleTupleTableSlot(state->row_slot);
	if (state->returned_slot)
		ExecDropSingleTupleTableSlot(state->returned_slot);
	if (state->rows)
		tuplestore_end(state->rows);
	if (state->returned)
		tuplestore_end(state->returned);
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
