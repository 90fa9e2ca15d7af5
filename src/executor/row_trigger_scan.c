/*
 * row_trigger_scan.c
 *	  Executor of an INSERT, UPDATE or DELETE whose triggers fire here, in the client's session, with the rows of the shards.
 *
 * Phases: BEFORE triggers of the statement; the rows are read to the end (those of an UPDATE or DELETE are locked where they lie, and answer their
 * ctid); then row by row: its BEFORE triggers, the write on its shard, which answers the row as it is stored, its AFTER triggers' events; then AFTER
 * triggers of the statement. Core's own machinery of triggers does all of this (commands/trigger.c), on a ResultRelInfo of ours, for which the rows
 * are those of a foreign table: core keeps them instead of reading them from the heap. The events have a level of their own in core's queue
 * (AfterTriggerBeginQuery), which fires when all rows are written: who runs the plan may leave its triggers to the statement around it, as core does
 * with cascades of foreign keys, and would not find these rows. Only what reads RETURNING comes before.
 *
 * On the shard none of the user's triggers fires (session/row_write.h). A locked row can neither change nor be moved away, but may be younger than
 * the statement's snapshot, so each write is a statement of its own there, which also sees what triggers have done. What a BEFORE trigger has done to
 * a row that is still to be written shows by this: it is not found.
 *
 * Where this node has all rows of the table, the ordinary plan runs: its triggers fire in this session by themselves.
 *
 * Memory: the query context of the outer statement; tuple stores end with the node, what is needed for one row with the row.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_class.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "parser/parsetree.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/queryenvironment.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "common/version_compat.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/targets.h"
#include "transaction/participant.h"

/* Identity of a row that was seen: of several matches of one row the first counts. No padding: it is hashed by its bytes. */
typedef struct RowPlace
{
	int32		node_id;
	uint32		block;
	uint32		offset;
} RowPlace;

typedef struct RowTriggerState
{
	TesseraScan scan;			/* query: the write of a row */
	CmdType		command;
	Oid			relid;
	List	   *relids;			/* the same, as runs take it */
	QueryDesc  *ordinary;		/* if that runs */
	QueryDesc  *source;
	QueryDesc  *returning;
	TesseraParts shared;		/* of the source's runs, if the statement is no part itself */
	QueryEnvironment *environment;	/* names the written rows */
	Tuplestorestate *rows;
	Tuplestorestate *written;	/* NULL: there is no RETURNING */
	TupleTableSlot *written_slot;
	Tuplestorestate *returned;	/* of RETURNING */
	TupleTableSlot *returned_slot;
	List	   *columns;		/* attribute numbers */
	List	   *assigned;
	List	   *params;
	HTAB	   *seen;
	/* the table */
	Relation	rel;
	ResultRelInfo *result;
	TransitionCaptureState *capture;
	TupleTableSlot *row;		/* the new row, virtual */
	TupleTableSlot *answer;		/* the row that a shard returns: columns */
	MemoryContext row_context;
	uint64		processed;
	bool		ready;
	bool		done;
} RowTriggerState;

/* ---- the table and its triggers ---- */

/* Entry of the statement's range table that it writes; 0: there is none. */
static Index
written_entry(RowTriggerState *state, EState *estate)
{
	AclMode		right = state->command == CMD_INSERT ? ACL_INSERT : state->command == CMD_UPDATE ? ACL_UPDATE : ACL_DELETE;

	for (Index rti = 1; rti <= estate->es_range_table_size; rti++)
	{
		RangeTblEntry *rte = exec_rt_fetch(rti, estate);

		if (rte->rtekind == RTE_RELATION && rte->relid == state->relid &&
			(tessera_executor_permissions(estate, rte)->requiredPerms & right) != 0)
			return rti;
	}
	return 0;
}

/* The relation as core is to see it: its rows cannot be fetched by their ctid. */
static Relation
as_foreign_table(Relation rel)
{
	Relation	copy = palloc(sizeof(RelationData));

	memcpy(copy, rel, sizeof(RelationData));
	copy->rd_rel = palloc(CLASS_TUPLE_SIZE);
	memcpy(copy->rd_rel, rel->rd_rel, CLASS_TUPLE_SIZE);
	copy->rd_rel->relkind = RELKIND_FOREIGN_TABLE;
	copy->rd_tableam = NULL;
	/* what core knows of indexes, by which it would choose a lock, it frees when the relation's entry is made anew */
	copy->rd_rel->relhasindex = false;
	tessera_forget_indexes(copy);
	return copy;
}

/* The user's triggers; those of foreign keys and of the extension fire on the shards. Core finds it for AFTER triggers in the executor's state. */
static void
open_table(RowTriggerState *state, EState *estate)
{
	Index		rti = written_entry(state, estate);
	TriggerDesc *triggers;

	state->rel = ExecGetRangeTableRelation(estate, rti);
	state->result = makeNode(ResultRelInfo);
	InitResultRelInfo(state->result, state->rel, rti, NULL, estate->es_instrument);
	triggers = state->result->ri_TrigDesc;	/* a copy */
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (triggers->triggers[i].tgisinternal)
			triggers->triggers[i].tgenabled = TRIGGER_DISABLED;
	state->result->ri_RelationDesc = as_foreign_table(state->rel);
	estate->es_opened_result_relations = lappend(estate->es_opened_result_relations, state->result);
	state->row = MakeSingleTupleTableSlot(RelationGetDescr(state->rel), &TTSOpsVirtual);
}

static void
before_statement(RowTriggerState *state, EState *estate)
{
	if (state->command == CMD_INSERT)
		ExecBSInsertTriggers(estate, state->result);
	else if (state->command == CMD_UPDATE)
		ExecBSUpdateTriggers(estate, state->result);
	else
		ExecBSDeleteTriggers(estate, state->result);
}

static void
after_statement(RowTriggerState *state, EState *estate)
{
	if (state->command == CMD_INSERT)
		ExecASInsertTriggers(estate, state->result, state->capture);
	else if (state->command == CMD_UPDATE)
		ExecASUpdateTriggers(estate, state->result, state->capture);
	else
		ExecASDeleteTriggers(estate, state->result, state->capture);
}

/* BEFORE triggers of a row; false: it is left as it is. */
static bool
before_row(RowTriggerState *state, EState *estate, HeapTuple old)
{
	TriggerDesc *triggers = state->result->ri_TrigDesc;

	if (triggers == NULL)
		return true;
	if (state->command == CMD_INSERT)
		return !triggers->trig_insert_before_row || ExecBRInsertTriggers(estate, state->result, state->row);
	if (state->command == CMD_UPDATE)
		return !triggers->trig_update_before_row || tessera_before_update(estate, state->result, old, state->row);
	return !triggers->trig_delete_before_row || tessera_before_delete(estate, state->result, old);
}

static void
after_row(RowTriggerState *state, EState *estate, HeapTuple old)
{
	if (state->command == CMD_INSERT)
		ExecARInsertTriggers(estate, state->result, state->row, NIL, state->capture);
	else if (state->command == CMD_UPDATE)
		ExecARUpdateTriggers(estate, state->result, NULL, NULL, NULL, old, state->row, NIL, state->capture, false);
	else
		ExecARDeleteTriggers(estate, state->result, NULL, old, state->capture, false);
}

/* ---- the write of a row ---- */

/* One row on its way. */
typedef struct RowRoute
{
	TesseraRoute route;			/* first */
	int32		node_id;		/* where it lies, or belongs */
} RowRoute;

static const TesseraTable *
known_table(RowTriggerState *state, const TesseraRouting *routing)
{
	const TesseraTable *table = routing ? tessera_routing_table(routing, state->relid) : NULL;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the table left the cluster while the statement ran"),
				 errhint("Run the statement again.")));
	return table;
}

/* The shard of a row: values and nulls are those of all attributes. */
static int32
shard_of_row(RowTriggerState *state, const TesseraRouting *routing, const Datum *values, const bool *nulls)
{
	const TesseraTable *table = known_table(state, routing);
	Datum		key[TESSERA_MAX_KEY_COLUMNS];
	bool		key_nulls[TESSERA_MAX_KEY_COLUMNS];
	Oid			types[TESSERA_MAX_KEY_COLUMNS];
	bool		no_row;

	if (table->group < 0)
		return table->node_id;
	for (int i = 0; i < table->nkeys; i++)
	{
		int			attribute = table->keys[i] - 1;

		key[i] = values[attribute];
		key_nulls[i] = nulls[attribute];
		types[i] = TupleDescAttr(RelationGetDescr(state->rel), attribute)->atttypid;
	}
	return tessera_target_of_key(routing, table, key, key_nulls, types, &no_row);
}

/* A new row goes where its key belongs. One that is locked stays where it is, whatever else has moved. */
static bool
choose_target(TesseraRoute *route, TesseraShardRunRequest *request)
{
	RowRoute   *row = (RowRoute *) route;
	RowTriggerState *state = route->owner;

	(void) known_table(state, request->routing);
	if (state->command == CMD_INSERT)
		row->node_id = shard_of_row(state, request->routing, state->row->tts_values, state->row->tts_isnull);
	if (route->attempts == 0)
		request->snapshot = tessera_shard_run_fresh_snapshot(state->scan.run, request->snapshot);
	request->ntargets = 1;
	request->targets = &row->node_id;
	return true;
}

/* The row as it is stored, by what the shard has returned. */
static void
take_answer(RowTriggerState *state, TupleTableSlot *answer)
{
	ListCell   *cell;

	slot_getallattrs(answer);
	ExecClearTuple(state->row);
	memset(state->row->tts_isnull, true, sizeof(bool) * state->row->tts_tupleDescriptor->natts);
	foreach(cell, state->columns)
	{
		int			i = foreach_current_index(cell);

		state->row->tts_values[lfirst_int(cell) - 1] = answer->tts_values[i];
		state->row->tts_isnull[lfirst_int(cell) - 1] = answer->tts_isnull[i];
	}
	ExecStoreVirtualTuple(state->row);
	ExecMaterializeSlot(state->row);
}

/* Writes the row (deletes the one at the place); false: nothing was written. After it the new row is as it is stored. */
static bool
write_row(RowTriggerState *state, int32 node_id, ItemPointer place)
{
	RowRoute	route = {.route = {.owner = state, .choose = choose_target}, .node_id = node_id};
	Datum	   *values = palloc(sizeof(Datum) * Max(list_length(state->params), 1));
	bool	   *nulls = palloc0(sizeof(bool) * Max(list_length(state->params), 1));
	TesseraShardRunRequest request = {
		.query = state->scan.query, .values = values, .nulls = nulls, .relids = state->relids, .write = true,
		.instrument = state->scan.css.ss.ps.state->es_instrument,
	};
	TesseraParts *parts = state->scan.parts;
	TupleTableSlot *answer;
	uint64		written;
	ListCell   *cell;

	foreach(cell, state->params)
	{
		int			attribute = lfirst_int(cell);
		int			i = foreach_current_index(cell);

		if (attribute == SelfItemPointerAttributeNumber)
			values[i] = PointerGetDatum(place);
		else
		{
			values[i] = state->row->tts_values[attribute - 1];
			nulls[i] = state->row->tts_isnull[attribute - 1];
		}
	}
	/* not a fragment of the statement that has locked the row, which may be younger than that */
	if (state->command != CMD_INSERT)
		state->scan.parts = NULL;
	(void) tessera_scan_run(&state->scan, &route.route, &request);
	state->scan.parts = parts;
	answer = state->answer ? tessera_shard_run_next(state->scan.run, state->answer) : NULL;
	if (answer)
		take_answer(state, answer);
	written = tessera_shard_run_complete(state->scan.run);
	tessera_scan_stop(&state->scan);
	return written > 0 || answer != NULL;
}

_Noreturn static void
changed_by_trigger(RowTriggerState *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("tuple to be %s was already modified by an operation triggered by the current command",
					state->command == CMD_UPDATE ? "updated" : "deleted"),
			 errhint("Consider using an AFTER trigger instead of a BEFORE trigger to propagate changes to other rows.")));
}

/* ---- rows ---- */

/* For RETURNING: the row's columns, then what else the source has. */
static void
keep_written(RowTriggerState *state, const Datum *values, const bool *nulls, TupleTableSlot *source, int first)
{
	int			n = 0;
	ListCell   *cell;

	if (state->written == NULL)
		return;
	ExecClearTuple(state->written_slot);
	foreach(cell, state->columns)
	{
		state->written_slot->tts_values[n] = values[lfirst_int(cell) - 1];
		state->written_slot->tts_isnull[n++] = nulls[lfirst_int(cell) - 1];
	}
	for (int i = first; n < state->written_slot->tts_tupleDescriptor->natts; i++)
	{
		state->written_slot->tts_values[n] = source->tts_values[i];
		state->written_slot->tts_isnull[n++] = source->tts_isnull[i];
	}
	ExecStoreVirtualTuple(state->written_slot);
	tuplestore_puttupleslot(state->written, state->written_slot);
}

/* Puts the values from column `first` of the source on into the new row. */
static void
assign(RowTriggerState *state, TupleTableSlot *source, int first)
{
	ListCell   *cell;

	foreach(cell, state->assigned)
	{
		int			i = first + foreach_current_index(cell);

		state->row->tts_values[lfirst_int(cell) - 1] = source->tts_values[i];
		state->row->tts_isnull[lfirst_int(cell) - 1] = source->tts_isnull[i];
	}
}

static void
insert_row(RowTriggerState *state, EState *estate, TupleTableSlot *source)
{
	ExecClearTuple(state->row);
	memset(state->row->tts_isnull, true, sizeof(bool) * state->row->tts_tupleDescriptor->natts);
	assign(state, source, 0);
	ExecStoreVirtualTuple(state->row);
	if (!before_row(state, estate, NULL))
		return;
	slot_getallattrs(state->row);
	/* nothing is written if it conflicts with another row */
	if (!write_row(state, 0, NULL))
		return;
	state->processed++;
	after_row(state, estate, NULL);
	keep_written(state, state->row->tts_values, state->row->tts_isnull, source, list_length(state->assigned));
}

/* True if the row was not met before. */
static bool
is_first_match(RowTriggerState *state, int32 node_id, ItemPointer place)
{
	RowPlace	key = {.node_id = node_id, .block = ItemPointerGetBlockNumber(place), .offset = ItemPointerGetOffsetNumber(place)};
	bool		found;

	(void) hash_search(state->seen, &key, HASH_ENTER, &found);
	return !found;
}

static void
change_row(RowTriggerState *state, EState *estate, TupleTableSlot *source)
{
	TupleDesc	desc = RelationGetDescr(state->rel);
	Datum	   *values = palloc0(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);
	int			assigned = 1 + list_length(state->columns);
	ItemPointer place = (ItemPointer) DatumGetPointer(source->tts_values[0]);
	int32		node_id;
	HeapTuple	old;
	ListCell   *cell;

	memset(nulls, true, sizeof(bool) * desc->natts);
	foreach(cell, state->columns)
	{
		values[lfirst_int(cell) - 1] = source->tts_values[foreach_current_index(cell) + 1];
		nulls[lfirst_int(cell) - 1] = source->tts_isnull[foreach_current_index(cell) + 1];
	}
	node_id = shard_of_row(state, tessera_routing(), values, nulls);
	if (!is_first_match(state, node_id, place))
		return;
	old = heap_form_tuple(desc, values, nulls);
	old->t_tableOid = state->relid;
	ExecClearTuple(state->row);
	memcpy(state->row->tts_values, values, sizeof(Datum) * desc->natts);
	memcpy(state->row->tts_isnull, nulls, sizeof(bool) * desc->natts);
	assign(state, source, assigned);
	ExecStoreVirtualTuple(state->row);
	if (!before_row(state, estate, old))
		return;
	slot_getallattrs(state->row);
	if (!write_row(state, node_id, place))
		changed_by_trigger(state);
	state->processed++;
	after_row(state, estate, old);
	if (state->command == CMD_DELETE)
		keep_written(state, values, nulls, source, assigned);
	else
		keep_written(state, state->row->tts_values, state->row->tts_isnull, source, assigned + list_length(state->assigned));
}

/* Reads the rows to the end, as one of the statement's parts: run alone, a shard would commit at once, and with that release the locks. */
static void
read_rows(RowTriggerState *state)
{
	if (state->scan.parts == NULL)
	{
		state->shared.number = tessera_next_statement();
		tessera_nested_join(state->source, &state->shared);
	}
	state->rows = tuplestore_begin_heap(false, false, work_mem);
	tessera_nested_run(state->source, state->rows, true);
}

static void
write_rows(RowTriggerState *state, EState *estate)
{
	TupleTableSlot *source = MakeSingleTupleTableSlot(state->source->tupDesc, &TTSOpsMinimalTuple);
	MemoryContext before = MemoryContextSwitchTo(state->row_context);

	while (tuplestore_gettupleslot(state->rows, true, false, source))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(source);
		if (state->command == CMD_INSERT)
			insert_row(state, estate, source);
		else
			change_row(state, estate, source);
		ExecClearTuple(state->row);
		ResetPerTupleExprContext(estate);
		MemoryContextReset(state->row_context);
	}
	MemoryContextSwitchTo(before);
	ExecDropSingleTupleTableSlot(source);
}

/* ---- RETURNING ---- */

/* Row type of the written rows: the table's columns, then those of the source that are not assigned. */
static TupleDesc
written_desc(RowTriggerState *state)
{
	int			before = state->command == CMD_INSERT ? 0 : 1 + list_length(state->columns);
	int			others = before + list_length(state->assigned);
	TupleDesc	source = state->source->tupDesc;
	TupleDesc	desc = CreateTemplateTupleDesc(list_length(state->columns) + source->natts - others);
	AttrNumber	n = 0;
	ListCell   *cell;

	foreach(cell, state->columns)
		TupleDescCopyEntry(desc, ++n, RelationGetDescr(state->rel), lfirst_int(cell));
	for (int i = others; i < source->natts; i++)
		TupleDescCopyEntry(desc, ++n, source, i + 1);
	return desc;
}

static void
prepare_returning(RowTriggerState *state)
{
	TupleDesc	desc = written_desc(state);

	state->environment = create_queryEnv();
	state->written = tuplestore_begin_heap(false, false, work_mem);
	state->written_slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	tessera_nested_name(state->environment, pstrdup(TRIGGER_ROWS), desc, state->written);
}

/* ---- the node ---- */

/* The text that writes a row, with the types of its parameters and of what it returns. */
static void
prepare_write(RowTriggerState *state)
{
	Oid		   *types = palloc(sizeof(Oid) * Max(list_length(state->params), 1));
	TupleDesc	desc = NULL;
	ListCell   *cell;

	foreach(cell, state->params)
		types[foreach_current_index(cell)] = lfirst_int(cell) == SelfItemPointerAttributeNumber ? TIDOID :
			TupleDescAttr(RelationGetDescr(state->rel), lfirst_int(cell) - 1)->atttypid;
	if (state->command != CMD_DELETE)
	{
		desc = CreateTemplateTupleDesc(list_length(state->columns));
		foreach(cell, state->columns)
			TupleDescCopyEntry(desc, foreach_current_index(cell) + 1, RelationGetDescr(state->rel), lfirst_int(cell));
		state->answer = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	}
	state->scan.query = tessera_remote_query_make(strVal(list_nth(state->scan.private, TRIGGER_SQL)), list_length(state->params), types, desc,
												  desc ? desc->natts : 0, NULL);
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	RowTriggerState *state = (RowTriggerState *) scan;
	HASHCTL		control = {.keysize = sizeof(RowPlace), .entrysize = sizeof(RowPlace), .hcxt = estate->es_query_cxt};

	state->command = intVal(list_nth(scan->private, TRIGGER_COMMAND));
	state->relid = (Oid) intVal(list_nth(scan->private, TRIGGER_RELID));
	if (tessera_all_rows_are_here(tessera_routing(), state->relid))
	{
		scan->tier = "triggers where the rows lie";
		state->ordinary = tessera_nested_start(scan, list_nth(scan->private, TRIGGER_ORDINARY), estate->es_queryEnv, eflags);
		return;
	}
	scan->tier = "triggers on the router";
	state->relids = list_make1_oid(state->relid);
	state->columns = list_nth(scan->private, TRIGGER_COLUMNS);
	state->assigned = list_nth(scan->private, TRIGGER_ASSIGNED);
	state->params = list_nth(scan->private, TRIGGER_PARAMS);
	state->source = tessera_nested_start(scan, list_nth(scan->private, TRIGGER_SOURCE), estate->es_queryEnv, eflags | TESSERA_EXEC_FOR_WRITE);
	open_table(state, estate);
	prepare_write(state);
	if (list_nth(scan->private, TRIGGER_RETURNING) != NIL)
		prepare_returning(state);
	state->seen = hash_create("tessera rows changed", 256, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	state->row_context = AllocSetContextCreate(estate->es_query_cxt, "tessera row with triggers", ALLOCSET_DEFAULT_SIZES);
}

/* It shows rows as they are before AFTER triggers. */
static void
read_returning(RowTriggerState *state)
{
	state->returning = tessera_nested_start(&state->scan, linitial(list_nth(state->scan.private, TRIGGER_RETURNING)), state->environment, 0);
	state->returned = tuplestore_begin_heap(false, false, work_mem);
	state->returned_slot = MakeSingleTupleTableSlot(state->returning->tupDesc, &TTSOpsMinimalTuple);
	tessera_nested_run(state->returning, state->returned, false);
}

static void
make_ready(RowTriggerState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);

	AfterTriggerBeginQuery();
	if (state->result->ri_TrigDesc)
		state->capture = MakeTransitionCaptureState(state->result->ri_TrigDesc, state->relid, state->command);
	before_statement(state, estate);
	read_rows(state);
	write_rows(state, estate);
	after_statement(state, estate);
	if (state->written)
		read_returning(state);
	AfterTriggerEndQuery(estate);
	estate->es_processed = state->processed;
	state->ready = true;
	MemoryContextSwitchTo(before);
}

static TupleTableSlot *
next_of_ordinary(RowTriggerState *state)
{
	TupleTableSlot *slot = tessera_nested_next(state->ordinary);

	state->scan.css.ss.ps.state->es_processed = state->ordinary->estate->es_processed;
	if (slot == NULL)
	{
		standard_ExecutorFinish(state->ordinary);
		state->done = true;
	}
	return slot;
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	RowTriggerState *state = (RowTriggerState *) scan;

	if (state->done)
		return NULL;
	if (state->ordinary)
		return next_of_ordinary(state);
	if (!state->ready)
		make_ready(state);
	if (!state->returned || !tuplestore_gettupleslot(state->returned, true, false, state->returned_slot))
		return NULL;
	return state->returned_slot;
}

static void
end(TesseraScan *scan)
{
	RowTriggerState *state = (RowTriggerState *) scan;

	tessera_nested_end(scan, state->returning);
	tessera_nested_end(scan, state->source);
	tessera_nested_end(scan, state->ordinary);
	if (state->rows)
		tuplestore_end(state->rows);
	if (state->written)
	{
		tuplestore_end(state->written);
		ExecDropSingleTupleTableSlot(state->written_slot);
	}
	if (state->returned)
	{
		tuplestore_end(state->returned);
		ExecDropSingleTupleTableSlot(state->returned_slot);
	}
	if (state->row)
		ExecDropSingleTupleTableSlot(state->row);
	if (state->answer)
		ExecDropSingleTupleTableSlot(state->answer);
}

static void
explain(TesseraScan *scan, ExplainState *es)
{
	RowTriggerState *state = (RowTriggerState *) scan;

	if (state->ordinary)
		tessera_explain_nested(es, state->ordinary, NULL);
	if (state->source)
		tessera_explain_nested(es, state->source, state->command == CMD_INSERT ? "Rows" : "Lock");
	if (state->source && es->verbose)
		ExplainPropertyText("Remote SQL", scan->query->sql, es);
	if (es->analyze && scan->figures.shards)
	{
		ExplainOpenGroup("Write", "Write", true, es);
		tessera_explain_figures(es, tessera_routing(), &scan->figures);
		ExplainCloseGroup("Write", "Write", true, es);
	}
}

const TesseraScanKind tessera_row_trigger_scan = {
	TESSERA_SCAN_METHODS("Tessera Row Triggers"), .size = sizeof(RowTriggerState), .begin = begin, .next = next, .end = end, .explain = explain,
	.once = "a statement whose triggers fire on the router",
};
