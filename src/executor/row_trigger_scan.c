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
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
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

/* A text for one row: its parameters are columns of the row at hand, or its ctid. */
typedef struct RowText
{
	TesseraRemoteQuery *query;
	List	   *params;			/* attribute numbers */
	TupleTableSlot *answer;		/* what a shard returns: ctid, columns; NULL: nothing */
} RowText;

/* ON CONFLICT DO UPDATE. */
typedef struct Conflict
{
	RowText		find;			/* locks the row that is in the way */
	RowText		update;
	List	   *assigned;
	List	   *values;			/* of ExprState *, one for each */
	ExprState  *where;			/* NULL: none */
	ExprContext *context;
	TupleTableSlot *old;		/* the row in the way */
	TupleTableSlot *new;		/* the one that was to be inserted */
	TransitionCaptureState *capture;
} Conflict;

typedef struct RowTriggerState
{
	TesseraScan scan;			/* query: that of write */
	RowText		write;
	Conflict   *conflict;		/* NULL: there is none */
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
	HTAB	   *seen;
	/* the table */
	Relation	rel;
	ResultRelInfo *result;
	TransitionCaptureState *capture;
	TupleTableSlot *row;		/* the new row, virtual */
	ItemPointerData place;		/* of the row that was written last */
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

/*
 * Core looks a trigger's function up when it first fires, in the memory of that moment, which here is the row's; what it keeps there (a function's
 * owner, its settings) is for all rows. So it is done ahead.
 */
static void
look_up_function(ResultRelInfo *result, int i, EState *estate)
{
	const Trigger *trigger = &result->ri_TrigDesc->triggers[i];

	if (trigger->tgenabled != TRIGGER_DISABLED && TRIGGER_FOR_ROW(trigger->tgtype) && TRIGGER_FOR_BEFORE(trigger->tgtype))
		fmgr_info_cxt(trigger->tgfoid, &result->ri_TrigFunctions[i], estate->es_query_cxt);
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
	{
		if (triggers->triggers[i].tgisinternal)
			triggers->triggers[i].tgenabled = TRIGGER_DISABLED;
		look_up_function(state->result, i, estate);
	}
	state->result->ri_RelationDesc = as_foreign_table(state->rel);
	estate->es_opened_result_relations = lappend(estate->es_opened_result_relations, state->result);
	state->row = MakeSingleTupleTableSlot(RelationGetDescr(state->rel), &TTSOpsVirtual);
}

static void
before_statement(RowTriggerState *state, EState *estate)
{
	if (state->command == CMD_INSERT)
		ExecBSInsertTriggers(estate, state->result);
	if (state->conflict)
		ExecBSUpdateTriggers(estate, state->result);
	if (state->command == CMD_INSERT)
		return;
	if (state->command == CMD_UPDATE)
		ExecBSUpdateTriggers(estate, state->result);
	else
		ExecBSDeleteTriggers(estate, state->result);
}

static void
after_statement(RowTriggerState *state, EState *estate)
{
	if (state->conflict)
		ExecASUpdateTriggers(estate, state->result, state->conflict->capture);
	if (state->command == CMD_INSERT)
		ExecASInsertTriggers(estate, state->result, state->capture);
	else if (state->command == CMD_UPDATE)
		ExecASUpdateTriggers(estate, state->result, state->capture);
	else
		ExecASDeleteTriggers(estate, state->result, state->capture);
}

/* BEFORE triggers of a row; false: it is left as it is. */
static bool
before_row(RowTriggerState *state, EState *estate, CmdType command, HeapTuple old)
{
	TriggerDesc *triggers = state->result->ri_TrigDesc;

	if (triggers == NULL)
		return true;
	if (command == CMD_INSERT)
		return !triggers->trig_insert_before_row || ExecBRInsertTriggers(estate, state->result, state->row);
	if (command == CMD_UPDATE)
		return !triggers->trig_update_before_row || tessera_before_update(estate, state->result, old, state->row);
	return !triggers->trig_delete_before_row || tessera_before_delete(estate, state->result, old);
}

static void
after_row(RowTriggerState *state, EState *estate, CmdType command, HeapTuple old, TransitionCaptureState *capture)
{
	if (command == CMD_INSERT)
		ExecARInsertTriggers(estate, state->result, state->row, NIL, capture);
	else if (command == CMD_UPDATE)
		ExecARUpdateTriggers(estate, state->result, NULL, NULL, NULL, old, state->row, NIL, capture, false);
	else
		ExecARDeleteTriggers(estate, state->result, NULL, old, capture, false);
}

/* ---- the write of a row ---- */

/* One row on its way. */
typedef struct RowRoute
{
	TesseraRoute route;			/* first */
	bool		by_key;			/* it is a new row, or one with the key of the new row */
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
	if (row->by_key)
		row->node_id = shard_of_row(state, request->routing, state->row->tts_values, state->row->tts_isnull);
	if (route->attempts == 0)
		request->snapshot = tessera_shard_run_fresh_snapshot(state->scan.run, request->snapshot);
	request->ntargets = 1;
	request->targets = &row->node_id;
	return true;
}

/* The row as it is stored, by what the shard has returned, into a slot of the table's. */
static void
take_answer(RowTriggerState *state, TupleTableSlot *answer, TupleTableSlot *row)
{
	ListCell   *cell;

	slot_getallattrs(answer);
	ExecClearTuple(row);
	memset(row->tts_isnull, true, sizeof(bool) * row->tts_tupleDescriptor->natts);
	state->place = *(ItemPointer) DatumGetPointer(answer->tts_values[0]);
	foreach(cell, state->columns)
	{
		int			i = foreach_current_index(cell) + 1;

		row->tts_values[lfirst_int(cell) - 1] = answer->tts_values[i];
		row->tts_isnull[lfirst_int(cell) - 1] = answer->tts_isnull[i];
	}
	ExecStoreVirtualTuple(row);
	ExecMaterializeSlot(row);
}

/*
 * Runs the text with the values of the row at hand, where its key belongs (node_id 0) or on the node on which it lies at the place. What is returned
 * goes into `returned`. false: there was no row.
 */
static bool
run_text(RowTriggerState *state, const RowText *text, int32 node_id, ItemPointer place, bool fragment, TupleTableSlot *returned)
{
	RowRoute	route = {.route = {.owner = state, .choose = choose_target}, .by_key = node_id == 0, .node_id = node_id};
	Datum	   *values = palloc(sizeof(Datum) * Max(list_length(text->params), 1));
	bool	   *nulls = palloc0(sizeof(bool) * Max(list_length(text->params), 1));
	TesseraShardRunRequest request = {
		.query = text->query, .values = values, .nulls = nulls, .relids = state->relids, .write = true,
		.instrument = state->scan.css.ss.ps.state->es_instrument,
	};
	TesseraParts *parts = state->scan.parts;
	TupleTableSlot *answer;
	uint64		written;
	ListCell   *cell;

	foreach(cell, text->params)
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
	/* else not of the statement around that has locked the row, which may be younger than that */
	if (!fragment)
		state->scan.parts = NULL;
	(void) tessera_scan_run(&state->scan, &route.route, &request);
	state->scan.parts = parts;
	answer = text->answer ? tessera_shard_run_next(state->scan.run, text->answer) : NULL;
	if (answer)
		take_answer(state, answer, returned);
	written = tessera_shard_run_complete(state->scan.run);
	tessera_scan_stop(&state->scan);
	return written > 0 || answer != NULL;
}

_Noreturn static void
changed_by_trigger(CmdType command)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("tuple to be %s was already modified by an operation triggered by the current command",
					command == CMD_UPDATE ? "updated" : "deleted"),
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

/* True if the row was not met before; HASH_ENTER: from now on it was. */
static bool
is_first_match(RowTriggerState *state, int32 node_id, ItemPointer place, HASHACTION action)
{
	RowPlace	key = {.node_id = node_id, .block = ItemPointerGetBlockNumber(place), .offset = ItemPointerGetOffsetNumber(place)};
	bool		found;

	(void) hash_search(state->seen, &key, action, &found);
	return !found;
}

static HeapTuple
tuple_of(RowTriggerState *state, Datum *values, bool *nulls)
{
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(state->rel), values, nulls);

	tuple->t_tableOid = state->relid;
	return tuple;
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

/* ---- conflicts ---- */

/* What is assigned to the row in the way, which is in conflict->old, makes the row at hand. false: WHERE does not hold. */
static bool
compute_update(RowTriggerState *state)
{
	Conflict   *conflict = state->conflict;
	ListCell   *cell;

	conflict->context->ecxt_innertuple = conflict->old;
	conflict->context->ecxt_outertuple = conflict->new;
	if (conflict->where)
	{
		bool		isnull;

		if (!DatumGetBool(ExecEvalExpr(conflict->where, conflict->context, &isnull)))
			return false;
	}
	ExecClearTuple(state->row);
	memcpy(state->row->tts_values, conflict->old->tts_values, sizeof(Datum) * state->row->tts_tupleDescriptor->natts);
	memcpy(state->row->tts_isnull, conflict->old->tts_isnull, sizeof(bool) * state->row->tts_tupleDescriptor->natts);
	foreach(cell, conflict->values)
	{
		int			column = list_nth_int(conflict->assigned, foreach_current_index(cell)) - 1;

		state->row->tts_values[column] = ExecEvalExpr(lfirst(cell), conflict->context, &state->row->tts_isnull[column]);
	}
	ExecStoreVirtualTuple(state->row);
	return true;
}

/* The row at hand could not be inserted: updates the one in its way. false: that is gone, so it may be inserted now. */
static bool
update_conflicting(RowTriggerState *state, EState *estate)
{
	Conflict   *conflict = state->conflict;
	ItemPointerData place;
	int32		node_id;
	HeapTuple	old;

	/* it may be one that this command has inserted on this node */
	CommandCounterIncrement();
	if (!run_text(state, &conflict->find, 0, NULL, false, conflict->old))
	{
		if (IsolationUsesXactSnapshot())
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access due to concurrent update")));
		return false;
	}
	place = state->place;
	node_id = shard_of_row(state, tessera_routing(), conflict->old->tts_values, conflict->old->tts_isnull);
	ExecCopySlot(conflict->new, state->row);
	slot_getallattrs(conflict->new);
	if (!is_first_match(state, node_id, &place, HASH_FIND))
		ereport(ERROR,
				(errcode(ERRCODE_CARDINALITY_VIOLATION),
				 errmsg("ON CONFLICT DO UPDATE command cannot affect row a second time"),
				 errhint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")));
	old = tuple_of(state, conflict->old->tts_values, conflict->old->tts_isnull);
	if (!compute_update(state) || !before_row(state, estate, CMD_UPDATE, old))
		return true;
	slot_getallattrs(state->row);
	if (!run_text(state, &conflict->update, node_id, &place, false, state->row))
		changed_by_trigger(CMD_UPDATE);
	(void) is_first_match(state, node_id, &state->place, HASH_ENTER);
	state->processed++;
	after_row(state, estate, CMD_UPDATE, old, conflict->capture);
	keep_written(state, state->row->tts_values, state->row->tts_isnull, NULL, 0);
	return true;
}

/* ---- rows of the statement ---- */

static void
insert_row(RowTriggerState *state, EState *estate, TupleTableSlot *source)
{
	ExecClearTuple(state->row);
	memset(state->row->tts_isnull, true, sizeof(bool) * state->row->tts_tupleDescriptor->natts);
	assign(state, source, 0);
	ExecStoreVirtualTuple(state->row);
	if (!before_row(state, estate, CMD_INSERT, NULL))
		return;
	slot_getallattrs(state->row);
	while (!run_text(state, &state->write, 0, NULL, true, state->row))
	{
		CHECK_FOR_INTERRUPTS();
		/* nothing is written if it conflicts with another row */
		if (state->conflict == NULL || update_conflicting(state, estate))
			return;
	}
	if (state->conflict)
		(void) is_first_match(state, shard_of_row(state, tessera_routing(), state->row->tts_values, state->row->tts_isnull), &state->place,
							  HASH_ENTER);
	state->processed++;
	after_row(state, estate, CMD_INSERT, NULL, state->capture);
	keep_written(state, state->row->tts_values, state->row->tts_isnull, source, list_length(state->assigned));
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
	if (!is_first_match(state, node_id, place, HASH_ENTER))
		return;
	old = tuple_of(state, values, nulls);
	ExecClearTuple(state->row);
	memcpy(state->row->tts_values, values, sizeof(Datum) * desc->natts);
	memcpy(state->row->tts_isnull, nulls, sizeof(bool) * desc->natts);
	assign(state, source, assigned);
	ExecStoreVirtualTuple(state->row);
	if (!before_row(state, estate, state->command, old))
		return;
	slot_getallattrs(state->row);
	if (!run_text(state, &state->write, node_id, place, false, state->row))
		changed_by_trigger(state->command);
	state->processed++;
	after_row(state, estate, state->command, old, state->capture);
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

/* A text with the types of its parameters and of what it returns. */
static RowText
make_text(RowTriggerState *state, List *texts, List *params, bool returns)
{
	Oid		   *types = palloc(sizeof(Oid) * Max(list_length(params), 1));
	TupleDesc	desc = NULL;
	RowText		text = {.params = params};
	ListCell   *cell;

	foreach(cell, params)
		types[foreach_current_index(cell)] = lfirst_int(cell) == SelfItemPointerAttributeNumber ? TIDOID :
			TupleDescAttr(RelationGetDescr(state->rel), lfirst_int(cell) - 1)->atttypid;
	if (returns)
	{
		desc = CreateTemplateTupleDesc(list_length(state->columns) + 1);
		TupleDescInitEntry(desc, 1, "ctid", TIDOID, -1, 0);
		foreach(cell, state->columns)
			TupleDescCopyEntry(desc, foreach_current_index(cell) + 2, RelationGetDescr(state->rel), lfirst_int(cell));
		text.answer = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	}
	text.query = tessera_remote_query_make(texts, list_length(params), types, desc, desc ? desc->natts : 0, NULL);
	return text;
}

/* expr: planned. In the statement's context. */
static ExprState *
ready(Expr *expr, EState *estate)
{
	return ExecInitExprWithParams(expr, estate->es_param_list_info);
}

static void
prepare_conflict(RowTriggerState *state, EState *estate, List *plan)
{
	Conflict   *conflict = palloc0(sizeof(Conflict));
	List	   *where = list_nth(plan, CONFLICT_WHERE);
	ListCell   *cell;

	state->conflict = conflict;
	conflict->find = make_text(state, list_nth(plan, CONFLICT_SQL), list_nth(plan, CONFLICT_PARAMS), true);
	tessera_remote_query_check_as(conflict->find.query, (Oid) intVal(list_nth(plan, CONFLICT_OWNER)));
	conflict->update = make_text(state, list_nth(plan, CONFLICT_UPDATE_SQL), list_nth(plan, CONFLICT_UPDATE_PARAMS), true);
	conflict->assigned = list_nth(plan, CONFLICT_ASSIGNED);
	foreach(cell, (List *) list_nth(plan, CONFLICT_VALUES))
		conflict->values = lappend(conflict->values, ready(lfirst(cell), estate));
	if (where != NIL)
	{
		/* NULL is not true */
		BooleanTest *holds = makeNode(BooleanTest);

		holds->arg = linitial(where);
		holds->booltesttype = IS_TRUE;
		conflict->where = ready((Expr *) holds, estate);
	}
	conflict->context = GetPerTupleExprContext(estate);
	conflict->old = MakeSingleTupleTableSlot(RelationGetDescr(state->rel), &TTSOpsVirtual);
	conflict->new = MakeSingleTupleTableSlot(RelationGetDescr(state->rel), &TTSOpsVirtual);
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
	state->source = tessera_nested_start(scan, list_nth(scan->private, TRIGGER_SOURCE), estate->es_queryEnv, eflags | TESSERA_EXEC_FOR_WRITE);
	open_table(state, estate);
	state->write = make_text(state, list_nth(scan->private, TRIGGER_SQL), list_nth(scan->private, TRIGGER_PARAMS), state->command != CMD_DELETE);
	scan->query = state->write.query;
	if (list_nth(scan->private, TRIGGER_CONFLICT) != NIL)
		prepare_conflict(state, estate, list_nth(scan->private, TRIGGER_CONFLICT));
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
	if (state->conflict && state->result->ri_TrigDesc)
		state->conflict->capture = MakeTransitionCaptureState(state->result->ri_TrigDesc, state->relid, CMD_UPDATE);
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
drop_text(RowText *text)
{
	if (text->answer)
		ExecDropSingleTupleTableSlot(text->answer);
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
	drop_text(&state->write);
	if (state->conflict)
	{
		drop_text(&state->conflict->find);
		drop_text(&state->conflict->update);
		ExecDropSingleTupleTableSlot(state->conflict->old);
		ExecDropSingleTupleTableSlot(state->conflict->new);
	}
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
