/*
 * replicated.c
 *	  What is written to replicated tables: captured on the lead, carried to the copies; see replicated.h.
 *
 * Phases: a trigger on the lead notes each row that is inserted, updated or deleted, whoever wrote it: the statement itself, a trigger, a cascade.
 * After the statement the router fetches what was noted and applies it to every copy, before the statement is reported as done. All of it is one
 * distributed transaction. Rows that nobody has fetched when the lead is to commit or to prepare end the transaction with an error.
 *
 * Memory: the rows noted, in a context of the transaction; a rollback to a savepoint drops those noted since. Locks: those of the writes. Rows are
 * applied as the table's owner in a restricted operation; users' triggers do not fire, as they have fired on the lead, but foreign keys are checked.
 * A crash leaves what two-phase commit leaves.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "common/acting_as.h"
#include "common/errors.h"
#include "common/fixed_settings.h"
#include "common/injection.h"
#include "common/protocol.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "common/wire.h"
#include "control/calls.h"
#include "executor/reference_check.h"
#include "executor/replicated.h"
#include "rows/stored_value.h"
#include "session/internal_connection.h"
#include "transaction/participant.h"

#define BATCH_BYTES (1024 * 1024)
#define BATCH_ROWS 10000
#define REFRESH_MS 10000

PG_FUNCTION_INFO_V1(tessera_capture_replicated);

typedef struct Change
{
	Oid			relid;
	char		operation;		/* 'I', 'U', 'D' */
	SubTransactionId subtransaction;
	HeapTuple	old;			/* NULL for 'I' */
	HeapTuple	row;			/* NULL for 'D' */
} Change;

/* What the transaction has changed here and nobody has fetched; empty between transactions. In memory of the transaction. */
typedef struct Captured
{
	Change	   *changes;
	int			n;
	int			size;
	int			taken;			/* of which so many were fetched */
	bool		told;			/* the router knows */
} Captured;

static Captured captured = {0};

/* ---- capture ---- */

static HeapTuple
copy_row(TupleTableSlot *slot)
{
	return slot == NULL ? NULL : ExecCopySlotHeapTuple(slot);
}

/* AFTER ROW, on every node, ENABLE ALWAYS; it does something on the lead only. */
Datum
tessera_capture_replicated(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	const TesseraRouting *routing;
	const TesseraTable *table;
	Change	   *change;
	MemoryContext before;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("this function is the trigger of replicated tables")));
	routing = tessera_routing();
	table = routing ? tessera_routing_table(routing, RelationGetRelid(trigger->tg_relation)) : NULL;
	if (table == NULL || !table->replicated || table->node_id != routing->self)
		return PointerGetDatum(NULL);

	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) && (captured.n == 0 || captured.changes[captured.n - 1].relid != table->relid ||
														captured.changes[captured.n - 1].operation == 'I'))
		tessera_reference_keep_own(routing, table->relid);
	before = MemoryContextSwitchTo(TopTransactionContext);
	if (captured.n == captured.size)
	{
		captured.size = Max(64, captured.size * 2);
		captured.changes = captured.changes == NULL ? palloc(captured.size * sizeof(Change)) :
			repalloc_huge(captured.changes, captured.size * sizeof(Change));
	}
	change = &captured.changes[captured.n];
	change->relid = RelationGetRelid(trigger->tg_relation);
	change->subtransaction = GetCurrentSubTransactionId();
	change->operation = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? 'I' : TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? 'U' : 'D';
	change->old = change->operation == 'I' ? NULL : copy_row(trigger->tg_trigslot);
	change->row = change->operation == 'I' ? copy_row(trigger->tg_trigslot) : change->operation == 'U' ? copy_row(trigger->tg_newslot) : NULL;
	captured.n++;
	captured.told = false;
	MemoryContextSwitchTo(before);
	return PointerGetDatum(NULL);
}

static void
forget_changes(int from)
{
	for (int i = from; i < captured.n; i++)
	{
		if (captured.changes[i].old)
			heap_freetuple(captured.changes[i].old);
		if (captured.changes[i].row)
			heap_freetuple(captured.changes[i].row);
	}
	captured.n = from;
	captured.taken = Min(captured.taken, from);
}

/* ---- batches ---- */

/* Values and names in them are written and read alike on every node. Ends with AtEOXact_GUC. */
static int
push_settings(void)
{
	return tessera_fixed_settings_push(TESSERA_FIXED_STYLES | TESSERA_FIXED_READING | TESSERA_FIXED_NAMES | TESSERA_FIXED_MONEY);
}

/*
 * A batch is an array of texts: "T", the table's schema and name, the number of its columns, their names; then rows of that table: "I" and values,
 * "U" and old and new values, "D" and old values. Of old rows only the columns of the primary key are there. A value is "=" and its text, or "-" if
 * it is NULL: the array is read under the session's settings, and while array_nulls is off NULL would be a string.
 */
static void
add_item(TesseraRowBatch *batch, const char *item)
{
	batch->items = accumArrayResult(batch->items, CStringGetTextDatum(item), false, TEXTOID, CurrentMemoryContext);
	batch->bytes += strlen(item);
}

/* Columns whose values are sent: generated ones, too, which copies must not compute anew. */
static bool
is_sent(Form_pg_attribute att)
{
	return !att->attisdropped;
}

static void
add_table(TesseraRowBatch *batch, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			n = 0;

	for (int i = 0; i < desc->natts; i++)
		n += is_sent(TupleDescAttr(desc, i));
	add_item(batch, "T");
	add_item(batch, get_namespace_name(RelationGetNamespace(rel)));
	add_item(batch, RelationGetRelationName(rel));
	add_item(batch, psprintf("%d", n));
	for (int i = 0; i < desc->natts; i++)
		if (is_sent(TupleDescAttr(desc, i)))
			add_item(batch, NameStr(TupleDescAttr(desc, i)->attname));
	batch->relid = RelationGetRelid(rel);
}

/* wanted: column numbers, NULL: all. */
static void
add_values(TesseraRowBatch *batch, TupleTableSlot *slot, const Bitmapset *wanted)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Oid			function;
		bool		is_varlena;
		FmgrInfo	output;

		if (!is_sent(att))
			continue;
		if (slot->tts_isnull[i] || (wanted != NULL && !bms_is_member(att->attnum, wanted)))
		{
			add_item(batch, "-");
			continue;
		}
		getTypeOutputInfo(att->atttypid, &function, &is_varlena);
		fmgr_info(function, &output);
		add_item(batch, psprintf("=%s", tessera_wire_output(&output, slot->tts_values[i])));
	}
}

static Bitmapset *
key_columns(Relation rel)
{
	Oid			key = tessera_primary_key(rel);
	Relation	index;
	Bitmapset  *columns = NULL;

	if (!OidIsValid(key))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("replicated table \"%s\" has no primary key", RelationGetRelationName(rel)),
				 errhint("Add one, or use tessera.unreplicate_table.")));
	index = index_open(key, AccessShareLock);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		columns = bms_add_member(columns, index->rd_index->indkey.values[i]);
	index_close(index, NoLock);
	return columns;
}

void
tessera_batch_row(TesseraRowBatch *batch, Relation rel, char operation, TupleTableSlot *old, TupleTableSlot *row)
{
	char		word[2] = {operation, '\0'};

	if (batch->relid != RelationGetRelid(rel))
		add_table(batch, rel);
	add_item(batch, word);
	if (old != NULL)
		add_values(batch, old, key_columns(rel));
	if (row != NULL)
		add_values(batch, row, NULL);
	batch->nrows++;
}

bool
tessera_batch_is_full(const TesseraRowBatch *batch)
{
	return batch->bytes >= BATCH_BYTES || batch->nrows >= BATCH_ROWS;
}

ArrayType *
tessera_batch_take(TesseraRowBatch *batch)
{
	ArrayType  *items = batch->nrows == 0 ? construct_empty_array(TEXTOID) :
		DatumGetArrayTypeP(makeArrayResult(batch->items, CurrentMemoryContext));

	memset(batch, 0, sizeof(*batch));
	return items;
}

/* ---- apply ---- */

/* Rows being applied. Everything lives in the caller's memory context. */
typedef struct Applier
{
	Datum	   *items;
	bool	   *nulls;
	int			n;
	int			at;
	bool		fresh;			/* new copies of tables that are as they should be: no trigger fires */
	List	   *results;		/* ResultRelInfos of all tables so far */
	List	   *estates;
	/* the table at hand */
	ResultRelInfo *result;
	EState	   *estate;
	Relation	rel;
	Oid			key;
	int			ncolumns;
	AttrNumber *columns;
	TesseraStoredType **types;
	TupleTableSlot *found;
	TupleTableSlot *old;
	TupleTableSlot *row;
	EPQState   *epq;
} Applier;

_Noreturn static void
batch_damaged(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("a batch of rows of replicated tables cannot be read")));
}

static char *
next_item(Applier *applier)
{
	if (applier->at >= applier->n || applier->nulls[applier->at])
		batch_damaged();
	return TextDatumGetCString(applier->items[applier->at++]);
}

/* NULL if the value is. */
static char *
next_value(Applier *applier)
{
	char	   *item = next_item(applier);

	if (item[0] == '-' && item[1] == '\0')
		return NULL;
	if (item[0] != '=')
		batch_damaged();
	return item + 1;
}

/* A check of a foreign key between replicated tables that the leads make: of a reference, or of what refers, unless this is the lead of that. */
static bool
is_checked_by_leads(const Trigger *trigger)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *other;

	if (RI_FKey_trigger_type(trigger->tgfoid) == RI_TRIGGER_FK)
		return true;
	if (trigger->tgfoid != F_RI_FKEY_NOACTION_DEL && trigger->tgfoid != F_RI_FKEY_NOACTION_UPD && trigger->tgfoid != F_RI_FKEY_RESTRICT_DEL &&
		trigger->tgfoid != F_RI_FKEY_RESTRICT_UPD)
		return false;
	other = routing != NULL ? tessera_routing_table(routing, trigger->tgconstrrelid) : NULL;
	return other != NULL && other->replicated && other->node_id != routing->self;
}

/*
 * Users' triggers have fired on the lead. Those of foreign keys fire here as well: other tables' rows may be on this node alone. Between replicated
 * tables what the leads have checked is not checked once more: a statement's rows come in several batches, and may refer to rows of a later one.
 */
static void
leave_foreign_keys_only(ResultRelInfo *result)
{
	TriggerDesc *triggers = result->ri_TrigDesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (RI_FKey_trigger_type(triggers->triggers[i].tgfoid) == RI_TRIGGER_NONE || is_checked_by_leads(&triggers->triggers[i]))
			triggers->triggers[i].tgenabled = TRIGGER_DISABLED;
}

void
tessera_replicated_cascade_started(PlanState *plan)
{
	const TesseraRouting *routing = IsA(plan, ModifyTableState) ? tessera_routing() : NULL;
	ModifyTableState *state = (ModifyTableState *) plan;

	for (int i = 0; routing != NULL && i < state->mt_nrels; i++)
	{
		const TesseraTable *table = tessera_routing_table(routing, RelationGetRelid(state->resultRelInfo[i].ri_RelationDesc));
		TriggerDesc *triggers = state->resultRelInfo[i].ri_TrigDesc;	/* a copy */

		if (table == NULL || !table->replicated || table->node_id == routing->self)
			continue;
		for (int t = 0; triggers != NULL && t < triggers->numtriggers; t++)
			if (!triggers->triggers[t].tgisinternal)
				triggers->triggers[t].tgenabled = TRIGGER_DISABLED;
	}
}

/* Executor state of a table that is written without a plan; every column counts as changed. */
static void
open_result(Applier *applier)
{
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	List	   *permissions = NIL;
	TesseraPermissions *written;

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(applier->rel);
	rte->relkind = applier->rel->rd_rel->relkind;
	rte->rellockmode = RowExclusiveLock;
	written = tessera_add_permissions(&permissions, rte);
	for (int i = 1; i <= RelationGetNumberOfAttributes(applier->rel); i++)
	{
		written->insertedCols = bms_add_member(written->insertedCols, i - FirstLowInvalidHeapAttributeNumber);
		written->updatedCols = bms_add_member(written->updatedCols, i - FirstLowInvalidHeapAttributeNumber);
	}
	applier->estate = CreateExecutorState();
	tessera_init_range_table(applier->estate, rte, permissions);
	applier->estate->es_output_cid = GetCurrentCommandId(true);
	applier->estate->es_snapshot = GetActiveSnapshot();
	applier->result = makeNode(ResultRelInfo);
	InitResultRelInfo(applier->result, applier->rel, 1, NULL, 0);
	if (applier->fresh)
		applier->result->ri_TrigDesc = NULL;
	leave_foreign_keys_only(applier->result);
	tessera_stored_rows_only(applier->result);
	ExecOpenIndices(applier->result, false);
	applier->epq = palloc0(sizeof(EPQState));
	tessera_init_epq(applier->epq, applier->estate);
	applier->results = lappend(applier->results, applier->result);
	applier->estates = lappend(applier->estates, applier->estate);
}

/* False: the sender is of an earlier version, and leaves them to be computed. */
static bool
generated_are_given(const Applier *applier)
{
	TupleDesc	desc = RelationGetDescr(applier->rel);

	for (int i = 0; i < desc->natts; i++)
	{
		bool		given = !TupleDescAttr(desc, i)->attgenerated;

		for (int j = 0; j < applier->ncolumns && !given; j++)
			given = applier->columns[j] == i + 1;
		if (!given)
			return false;
	}
	return true;
}

/* The table's part of the state, made anew for each run of rows of one table; what was opened before stays so until the end. */
static void
begin_table(Applier *applier)
{
	const char *schema = next_item(applier);
	const char *name = next_item(applier);
	Oid			relid = get_relname_relid(name, get_namespace_oid(schema, true));
	TesseraActing before;

	applier->ncolumns = pg_strtoint32(next_item(applier));
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("replicated table %s does not exist on this node", tessera_quote_qualified(schema, name))));
	applier->rel = table_open(relid, RowExclusiveLock);
	/* its indexes' expressions are simplified when they are opened: constant calls of the owner's functions in them run */
	tessera_act_as_owner(&before, applier->rel->rd_rel->relowner);
	open_result(applier);
	tessera_act_end(&before);
	applier->key = tessera_primary_key(applier->rel);
	applier->columns = palloc(Max(applier->ncolumns, 1) * sizeof(AttrNumber));
	applier->types = palloc(Max(applier->ncolumns, 1) * sizeof(TesseraStoredType *));
	for (int i = 0; i < applier->ncolumns; i++)
	{
		const char *column = next_item(applier);
		Form_pg_attribute attribute;

		applier->columns[i] = get_attnum(relid, column);
		if (applier->columns[i] <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("replicated table %s has no column \"%s\" on this node", tessera_quote_qualified(schema, name), column)));
		attribute = TupleDescAttr(RelationGetDescr(applier->rel), applier->columns[i] - 1);
		applier->types[i] = tessera_stored_type(attribute->atttypid, attribute->atttypmod);
	}
	if (generated_are_given(applier))
		tessera_stored_generated_given(applier->result);
	applier->found = table_slot_create(applier->rel, &applier->estate->es_tupleTable);
	applier->old = table_slot_create(applier->rel, &applier->estate->es_tupleTable);
	applier->row = table_slot_create(applier->rel, &applier->estate->es_tupleTable);
}

static void
read_row(Applier *applier, TupleTableSlot *slot)
{
	int			natts = RelationGetNumberOfAttributes(applier->rel);

	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, natts * sizeof(bool));
	memset(slot->tts_values, 0, natts * sizeof(Datum));
	for (int i = 0; i < applier->ncolumns; i++)
	{
		char	   *value = next_value(applier);
		AttrNumber	attnum = applier->columns[i];

		if (value == NULL)
			continue;
		slot->tts_values[attnum - 1] = tessera_stored_input(applier->types[i], value);
		slot->tts_isnull[attnum - 1] = false;
	}
	ExecStoreVirtualTuple(slot);
}

static bool
find_row(Applier *applier, TupleTableSlot *key)
{
	return OidIsValid(applier->key) &&
		RelationFindReplTupleByIndex(applier->rel, applier->key, LockTupleExclusive, key, applier->found);
}

/*
 * A cascade of a foreign key may have done here already what it did on the lead: then the row is gone, or has its new key. Anything else means that
 * the copies differ.
 */
static void
apply_row(Applier *applier, char operation)
{
	if (operation != 'I')
		read_row(applier, applier->old);
	if (operation != 'D')
		read_row(applier, applier->row);
	if (operation == 'I')
		ExecSimpleRelationInsert(applier->result, applier->estate, applier->row);
	else if (operation == 'D')
	{
		if (find_row(applier, applier->old))
			ExecSimpleRelationDelete(applier->result, applier->estate, applier->epq, applier->found);
	}
	else if (find_row(applier, applier->old) || find_row(applier, applier->row))
		ExecSimpleRelationUpdate(applier->result, applier->estate, applier->epq, applier->found, applier->row);
	else
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("a row that was updated in replicated table \"%s\" is missing in the copy on this node",
						RelationGetRelationName(applier->rel)),
				 errhint("tessera.unreplicate_table and tessera.replicate_table make the copies anew.")));
}

/* As the table's owner, in a restricted operation: what is evaluated (generated columns, indexes) is what the owner has put there. */
static void
apply_rows(Applier *applier)
{
	TesseraActing before;

	while (applier->at < applier->n)
	{
		const char *word = next_item(applier);

		CHECK_FOR_INTERRUPTS();
		if (strcmp(word, "T") == 0)
		{
			begin_table(applier);
			continue;
		}
		if (applier->result == NULL || strlen(word) != 1 || strchr("IUD", word[0]) == NULL)
			batch_damaged();
		tessera_act_as_owner(&before, applier->rel->rd_rel->relowner);
		apply_row(applier, word[0]);
		tessera_act_end(&before);
		ResetPerTupleExprContext(applier->estate);
	}
}

/*
 * Checks of foreign keys, at the end of the batch as at that of a statement, and triggers of users on the rows that cascades have changed: as the
 * user whose statement it is, with that session's settings. Then everything is closed.
 */
static void
end_tables(Applier *applier)
{
	ListCell   *cell;

	if (applier->estate != NULL)
		applier->estate->es_opened_result_relations = applier->results;
	AfterTriggerEndQuery(applier->estate);
	if (applier->estate != NULL)
	{
		applier->estate->es_opened_result_relations = NIL;
		ExecCloseResultRelations(applier->estate);	/* those that triggers were fired for */
	}
	foreach(cell, applier->results)
	{
		ExecCloseIndices(lfirst(cell));
		table_close(((ResultRelInfo *) lfirst(cell))->ri_RelationDesc, NoLock);
	}
	foreach(cell, applier->estates)
	{
		EState	   *estate = lfirst(cell);

		ExecResetTupleTable(estate->es_tupleTable, false);
		FreeExecutorState(estate);
	}
}

static void
apply_batch(ArrayType *batch, bool fresh)
{
	Applier		applier = {.fresh = fresh};
	int			level = push_settings();

	deconstruct_array(batch, TEXTOID, -1, false, TYPALIGN_INT, &applier.items, &applier.nulls, &applier.n);
	PushActiveSnapshot(GetTransactionSnapshot());
	AfterTriggerBeginQuery();
	apply_rows(&applier);
	AtEOXact_GUC(false, level);	/* what owners' code has set for the session goes, too */
	end_tables(&applier);
	PopActiveSnapshot();
	CommandCounterIncrement();
}

void
tessera_serve_carry_replicated(const TesseraCarryReplicatedArgs *args)
{
	tessera_reference_keep(args->versions);
	apply_batch(args->batch, false);
	tessera_injection("replicated_applied");
}

void
tessera_serve_apply_replicated(const TesseraApplyReplicatedArgs *args)
{
	tessera_reference_keep(args->versions);
	apply_batch(args->batch, args->fresh);
	tessera_injection("replicated_applied");
}

/* ---- carry ---- */

/* The error of a node that cannot be reached says what can be done; that of a full one does already. */
static void
send_to_node(const TesseraRouting *routing, int32 node_id, const char *batch, const char *versions, bool fresh)
{
	MemoryContext context = CurrentMemoryContext;
	TesseraCommandNeeds needs = {.write = true};

	PG_TRY();
	{
		if (fresh || tessera_connection_protocol(tessera_participant(routing, node_id, &needs)) < TESSERA_CARRY_PROTOCOL)
			tessera_call_apply_replicated(tessera_writing(tessera_to_node(node_id)), batch, versions, fresh);
		else
			tessera_call_carry_replicated(tessera_as_user(tessera_writing(tessera_to_node(node_id))), batch, versions);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_CONNECTION_EXCEPTION)
			PG_RE_THROW();
		FlushErrorState();
		error->hint = pstrdup("Replicated tables are written on all nodes. Bring the node back, or take it out of the cluster with "
							  "tessera.remove_shard or tessera.remove_router.");
		ReThrowError(error);
	}
	PG_END_TRY();
}

void
tessera_batch_send(const TesseraRouting *routing, const char *batch, const List *relids, int32 except, bool fresh)
{
	Oid			input;
	Oid			ioparam;

	for (int i = 0; i < routing->nnodes; i++)
	{
		int32		node_id = tessera_routing_node_at(routing, i)->node_id;

		if (node_id != except && node_id != routing->self)
			send_to_node(routing, node_id, batch, tessera_reference_versions(routing, relids, node_id), fresh);
	}
	if (except == routing->self)
		return;
	tessera_reference_keep(tessera_reference_versions(routing, relids, routing->self));
	getTypeInputInfo(TEXTARRAYOID, &input, &ioparam);
	apply_batch(DatumGetArrayTypeP(OidInputFunctionCall(input, unconstify(char *, batch), ioparam, -1)), fresh);
}

/* True if other rows may refer to what the row was and is not any more. */
static bool
key_goes(Relation rel, char operation, TupleTableSlot *old, TupleTableSlot *row)
{
	Bitmapset  *keys;
	int			column = -1;

	if (operation != 'U')
		return operation == 'D';
	keys = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_KEY);
	while ((column = bms_next_member(keys, column)) >= 0)
	{
		AttrNumber	attnum = column + FirstLowInvalidHeapAttributeNumber;
		Form_pg_attribute att = attnum > 0 ? TupleDescAttr(RelationGetDescr(rel), attnum - 1) : NULL;
		bool		old_null;
		bool		row_null;
		Datum		old_value;
		Datum		row_value;

		if (att == NULL)
			return true;
		old_value = slot_getattr(old, attnum, &old_null);
		row_value = slot_getattr(row, attnum, &row_null);
		if (old_null != row_null || (!old_null && !datum_image_eq(old_value, row_value, att->attbyval, att->attlen)))
			return true;
	}
	return false;
}

/* Takes what was captured here, in order, as much as fits a batch. *relids: tables with rows that others may refer to no more. */
static ArrayType *
take_batch(List **relids)
{
	TesseraRowBatch batch = {0};
	int			level = push_settings();

	while (captured.taken < captured.n && !tessera_batch_is_full(&batch))
	{
		Change	   *change = &captured.changes[captured.taken];
		Relation	rel = table_open(change->relid, AccessShareLock);
		TupleTableSlot *old = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
		TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

		/* a run of rows of one table */
		for (; captured.taken < captured.n && !tessera_batch_is_full(&batch); captured.taken++)
		{
			change = &captured.changes[captured.taken];
			if (change->relid != RelationGetRelid(rel))
				break;
			if (change->old)
				ExecStoreHeapTuple(change->old, old, false);
			if (change->row)
				ExecStoreHeapTuple(change->row, row, false);
			tessera_batch_row(&batch, rel, change->operation, change->old ? old : NULL, change->row ? row : NULL);
			if (!list_member_oid(*relids, change->relid) && key_goes(rel, change->operation, old, row))
				*relids = lappend_oid(*relids, change->relid);
		}
		ExecDropSingleTupleTableSlot(old);
		ExecDropSingleTupleTableSlot(row);
		table_close(rel, NoLock);
	}
	if (captured.taken == captured.n)
		forget_changes(0);
	AtEOXact_GUC(true, level);
	return tessera_batch_take(&batch);
}

char *
tessera_node_list(const TesseraRouting *routing)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < routing->nnodes; i++)
		appendStringInfo(&list, "%d ", tessera_routing_node_at(routing, i)->node_id);
	return list.data;
}

void
tessera_require_same_nodes(const char *nodes)
{
	if (strcmp(nodes, tessera_node_list(tessera_routing_or_error())) == 0)
		return;
	(void) tessera_routing_refresh(REFRESH_MS);
	if (strcmp(nodes, tessera_node_list(tessera_routing_or_error())) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: a node has joined or left the cluster meanwhile"),
				 errhint("Retry the transaction.")));
}

/* As words: names differ by who asks. */
static char *
table_ids(const List *relids)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	StringInfoData ids;
	ListCell   *cell;

	initStringInfo(&ids);
	foreach(cell, relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table != NULL)
			appendStringInfo(&ids, "%s ", DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&table->table_id))));
	}
	return ids.data;
}

/* The tables here. ERROR 40001 if this node does not know them so. */
static List *
tables_of(const TesseraRouting *routing, char *ids)
{
	List	   *relids = NIL;
	char	   *rest;

	for (char *id = strtok_r(ids, " ", &rest); id != NULL; id = strtok_r(NULL, " ", &rest))
	{
		const TesseraTable *table = tessera_routing_table_by_id(routing, DatumGetUUIDP(DirectFunctionCall1(uuid_in, CStringGetDatum(id))));

		if (table == NULL || !table->replicated)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access: a table was replicated meanwhile"),
					 errhint("Retry the transaction.")));
		relids = lappend_oid(relids, table->relid);
	}
	return relids;
}

void
tessera_serve_replicated_changes(const TesseraReplicatedChangesArgs *args, TesseraReplicatedChangesResult *result)
{
	List	   *relids = NIL;

	tessera_require_same_nodes(args->nodes);
	result->batch = take_batch(&relids);
	result->tables = table_ids(relids);
	result->kept = tessera_reference_kept();
	result->more = captured.n > 0;
}

static char *
batch_text(ArrayType *batch)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(TEXTARRAYOID, &output, &is_varlena);
	return OidOutputFunctionCall(output, PointerGetDatum(batch));
}

/* All nodes are to look for rows that refer by the newest placement: one that is older than a shard's own would only be refused there. */
static const TesseraRouting *
newest_placement(const char *nodes)
{
	(void) tessera_routing_refresh(REFRESH_MS);
	AcceptInvalidationMessages();
	tessera_require_same_nodes(nodes);
	return tessera_routing_or_error();
}

/* A batch on its way. */
typedef struct Captures
{
	char	   *batch;
	List	   *relids;			/* tables with rows that others may refer to no more */
	char	   *kept;			/* by which versions those were looked for on the lead */
	bool		more;
} Captures;

static void
take_from(int32 node_id, const TesseraRouting *routing, const char *nodes, Captures *captures)
{
	TesseraReplicatedChangesAnswer answer;

	memset(captures, 0, sizeof(*captures));
	if (node_id == routing->self)
	{
		captures->batch = batch_text(take_batch(&captures->relids));
		captures->kept = tessera_reference_kept();
		captures->more = captured.n > 0;
		return;
	}
	tessera_call_replicated_changes(tessera_writing(tessera_to_node(node_id)), nodes, &answer);
	captures->batch = answer.batch;
	captures->relids = tables_of(routing, answer.tables);
	captures->kept = answer.kept;
	captures->more = answer.more;
}

/* Everything that the node has captured, in batches. */
static void
carry_from(int32 node_id)
{
	const TesseraRouting *routing = tessera_routing_or_error();
	char	   *nodes = tessera_node_list(routing);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tessera replicated rows", ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	Captures	captures = {.more = true};
	bool		newest = false;

	while (captures.more)
	{
		MemoryContextReset(context);
		take_from(node_id, routing, nodes, &captures);
		if (tessera_reference_versions(routing, captures.relids, node_id)[0] != '\0')
		{
			if (!newest)
				routing = newest_placement(nodes);
			newest = true;
			tessera_reference_compare(routing, captures.kept, node_id);
		}
		tessera_batch_send(routing, captures.batch, captures.relids, node_id, false);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
	pfree(nodes);
}

static void
carry_all(void)
{
	int32		node_id;

	while ((node_id = tessera_participants_captured()) != 0)
		carry_from(node_id);
	if (captured.n > 0)
		carry_from(tessera_routing_or_error()->self);
	tessera_injection("replicated_carried");
}

void
tessera_replicated_carry(void)
{
	if (!tessera_internal_connection())
	{
		if (captured.n > 0 || tessera_participants_have_captured())
			carry_all();
	}
	else if (captured.n > 0 && !captured.told && tessera_nesting() == 0)
	{
		captured.told = true;
		ereport(INFO,
				(errcode(ERRCODE_TESSERA_CAPTURED),
				 errmsg("rows of replicated tables were changed")));
	}
}

/* ---- what reads copies ---- */

void
tessera_replicated_check_snapshot(const QueryDesc *query)
{
	const TesseraRouting *routing = tessera_routing();
	ListCell   *cell;

	if (routing == NULL || routing->nreplicated == 0 || query->snapshot == InvalidSnapshot || !IsMVCCSnapshot(query->snapshot))
		return;
	foreach(cell, query->plannedstmt->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		const TesseraTable *table = rte->rtekind == RTE_RELATION ? tessera_routing_table(routing, rte->relid) : NULL;

		if (table != NULL && table->replicated && table->node_id != routing->self && TransactionIdIsValid(table->replicated_since) &&
			!TransactionIdIsCurrentTransactionId(table->replicated_since) && XidInMVCCSnapshot(table->replicated_since, query->snapshot))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access: table \"%s\" was replicated after the snapshot was taken", get_rel_name(rte->relid)),
					 errhint("Retry the transaction.")));
	}
}

bool
tessera_replicated_may_follow(const TesseraRouting *routing, const List *relids)
{
	ListCell   *cell;

	if (routing->nreplicated == 0)
		return false;
	foreach(cell, relids)
	{
		Relation	rel = RelationIdGetRelation(lfirst_oid(cell));
		bool		triggers = rel == NULL || rel->rd_rel->relhastriggers;

		if (rel != NULL)
			RelationClose(rel);
		if (triggers)
			return true;
	}
	return false;
}

/* ---- callbacks ---- */

static void
require_fetched(void)
{
	if (captured.n > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("rows of replicated table \"%s\" were changed too late to be brought to the other nodes",
						get_rel_name(captured.changes[captured.n - 1].relid)),
				 errdetail("A deferred trigger that runs on a shard has written them, or a statement that commits by itself."),
				 errhint("SET CONSTRAINTS ALL IMMEDIATE before the end of the transaction, or make the trigger not deferred.")));
}

void
tessera_replicated_before_end(void)
{
	/* what deferred triggers have written */
	if (tessera_internal_connection())
		require_fetched();
	else
		tessera_replicated_carry();
}

void
tessera_replicated_forget(void)
{
	memset(&captured, 0, sizeof(captured));
}

/* Hands the changes of the subtransaction to its parent; returns where they begin. */
static int
hand_up(SubTransactionId mine, SubTransactionId parent)
{
	int			from = captured.n;

	while (from > 0 && captured.changes[from - 1].subtransaction == mine)
		captured.changes[--from].subtransaction = parent;
	return from;
}

void
tessera_replicated_subtransaction_committed(SubTransactionId mine, SubTransactionId parent)
{
	(void) hand_up(mine, parent);
}

void
tessera_replicated_subtransaction_aborted(SubTransactionId mine, SubTransactionId parent)
{
	forget_changes(hand_up(mine, parent));
}
