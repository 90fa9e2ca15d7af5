/*
 * table_scan.c
 *	  Executor of scans of one cluster table (T3): the rows of all its shards come in here, the rest of the plan runs on the router.
 *
 * The scan keeps its relation's full row type, so that core's rechecks work on it; columns that are not needed are null. If the shards join tables or
 * group or sort rows (planner/join_path.c, group_path.c, upper_path.c), the plan scans no relation and its rows are what the query returns. Shards
 * are chosen at each (re)scan: one if the key is pinned, else all owners of the group. A statement with several fragments carries a statement number,
 * so that all its fragments on one shard share a snapshot. In a cursor the shards are asked when it opens (cursor.h).
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/sortsupport.h"

#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "executor/current_of.h"
#include "executor/cursor.h"
#include "executor/eflags.h"
#include "executor/plan_private.h"
#include "executor/scan_frame.h"
#include "executor/shard_pruning.h"
#include "executor/statement_cut.h"
#include "executor/system_row.h"
#include "executor/targets.h"
#include "transaction/participant.h"

typedef struct TableState
{
	TesseraScan scan;			/* values: parameters, then the key */
	Oid			relid;			/* of the table, or the first of the join's */
	List	   *relids;			/* of all */
	List	   *copies;			/* of replicated tables joined with them */
	bool		known;			/* they are, for the run being started */
	List	   *pin;
	List	   *conditions;
	AttrNumber *attributes;		/* of the relation, for each column of the query */
	TesseraRowOrder *order;		/* of each shard's rows; NULL: none */
	TupleTableSlot *wide;		/* with system columns among them: a row as it comes from another node (system_row.h) */
	bool		started;
	bool		read;			/* rows were asked for since the (re)scan */
	bool		held;			/* in a cursor: only its snapshot is taken when that opens */
	MemoryContext scan_context; /* of one (re)scan */
} TableState;

/* The tables: of a join or of groups they are not the plan's scanned relation, whose rows the plan's own would be. */
static List *
scanned_tables(CustomScanState *node, EState *estate)
{
	CustomScan *plan = (CustomScan *) node->ss.ps.plan;
	List	   *tables = NIL;
	int			relid = -1;

	if (plan->scan.scanrelid > 0)
		return list_make1(exec_rt_fetch(plan->scan.scanrelid, estate));
	while ((relid = bms_next_member(plan->custom_relids, relid)) >= 0)
		tables = lappend(tables, exec_rt_fetch(relid, estate));
	return tables;
}

/* Of a replicated table that is joined with others, each shard reads its copy: it says nothing of where the scan goes. */
static bool
is_copy(CustomScanState *node, Oid relid)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, relid) : NULL;

	return ((Scan *) node->ss.ps.plan)->scanrelid == 0 && table != NULL && table->replicated;
}

_Noreturn static void
raise_changed(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("table \"%s\" was sharded or dropped while the statement was being planned", get_rel_name(relid)),
			 errhint("Run the statement again.")));
}

/*
 * Below a view the table is read by the rights of the view's owner, but everything in the scan runs as the current user. What is sent only when a
 * cursor's rows are fetched is read by the rights of who opened it.
 */
static void
set_reader(TableState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	RangeTblEntry *rte = linitial(scanned_tables(&state->scan.css, estate));	/* a join's are all read by the same role's */
	const TesseraPermissions *permissions = tessera_executor_permissions(estate, rte);
	Oid			role = permissions == NULL ? InvalidOid : permissions->checkAsUser;

	if (!OidIsValid(role))
		role = GetUserId();
	if (role != GetUserId() || state->held)
		tessera_remote_query_check_as(state->scan.query, role);
}

/* Chooses the shards to scan. known: the key values are known; without them, all shards of the group. */
static void
choose_targets(TableState *state, const TesseraRouting *routing, bool known)
{
	TesseraScan *scan = &state->scan;
	const TesseraValues *values = &scan->values;
	const TesseraTable *table = tessera_routing_table(routing, state->relid);
	bool		no_row;
	bool		fits = table != NULL && (state->pin == NIL || table->nkeys == list_length(state->pin) - 1);
	ListCell   *cell;

	foreach(cell, state->relids)
	{
		const TesseraTable *other = tessera_routing_table(routing, lfirst_oid(cell));

		fits = fits && other != NULL && (other == table || (table->group >= 0 && other->group == table->group));
	}
	if (!fits)
		raise_changed(state->relid);
	scan->ntargets = 1;
	if (table->group < 0)
		scan->targets[0] = table->node_id;
	else if (state->pin != NIL && known)
		scan->targets[0] = tessera_target_of_pin(routing, table, state->pin, values->values, values->nulls, values->types, &no_row);
	else
	{
		TesseraTargets *owners = tessera_prune_shards(routing, table, known ? state->conditions : NIL, values->values, values->nulls, values->types);

		scan->ntargets = owners->n;
		memcpy(scan->targets, owners->node_ids, sizeof(int) * owners->n);
	}
}

static void
stop(TableState *state)
{
	tessera_scan_stop(&state->scan);
	state->started = false;
	state->read = false;
}

/* The routing was stale: routes again, as another statement if no row was handed out; not if other statements may have run since the scan began. */
static void
begin_anew(TesseraRoute *route, TesseraShardRunRequest *request)
{
	TableState *state = route->owner;
	TesseraStatementNumber *number = tessera_statement_number(state->scan.css.ss.ps.state);

	if (number->emitted)
	{
		tessera_route_begun(route);
		return;
	}
	if (route->fixed)
		tessera_cursor_stale();
	/* copies may have been read under the common snapshot */
	if (number->asked && !number->cursor && tessera_statement_reads_copies(state->scan.css.ss.ps.state))
	{
		tessera_route_begun(route);
		return;
	}
	number->kept.number = tessera_next_statement();
}

/* True if the scan is all that the statement reads, of several nodes, which have no common snapshot yet. */
static bool
needs_cut(TableState *state, const TesseraStatementNumber *number)
{
	return (state->scan.flags & TABLE_SINGLE) != 0 && (state->scan.flags & STATEMENT_WRITES) == 0 && state->scan.ntargets > 1 &&
		number->cut != number->kept.number && state->scan.parts == NULL && tessera_statement_is_cut(state->scan.css.ss.ps.state);
}

static uint64
number_to_tell(TableState *state, const TesseraStatementNumber *number)
{
	bool		alone = (state->scan.flags & TABLE_SINGLE) != 0 && !state->held && !number->asked;

	return alone ? 0 : number->kept.number;
}

static bool
choose_run(TesseraRoute *route, TesseraShardRunRequest *request)
{
	TableState *state = route->owner;
	TesseraStatementNumber *number = tessera_statement_number(state->scan.css.ss.ps.state);

	if (request->routing == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database has left its cluster")));
	/* a new number needs a new common snapshot */
	if (number->asked && state->scan.parts == NULL)
	{
		tessera_statement_cut_now(state->scan.css.ss.ps.state);
		if (state->scan.snapshot == NULL)
			request->snapshot = state->scan.css.ss.ps.state->es_snapshot;
	}
	choose_targets(state, request->routing, state->known);
	request->ntargets = state->scan.ntargets;
	request->targets = state->scan.targets;
	request->cut = needs_cut(state, number);
	request->statement = request->cut ? number->kept.number : number_to_tell(state, number);
	request->autocommit = request->autocommit && request->statement == 0;
	request->cursor = number->cursor;
	return true;
}

/* Sends the scan's query, or a probe of it. Returns whether the statement has begun anew with another number. */
static bool
run(TableState *state, TesseraShardRunRequest *request)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	TesseraStatementNumber *number = tessera_statement_number(estate);
	TesseraRoute route = {.owner = state, .choose = choose_run, .stale = begin_anew, .fixed = state->scan.routing};

	if (!number->counted)
		tessera_stat_count(TESSERA_STAT_GENERAL);
	number->counted = true;
	if (state->scan.parts == NULL)
		tessera_statement_cut_now(estate);
	if (number->emitted || number->asked)
		route.first = number->routing;
	request->relids = state->relids;
	request->copies = state->copies;
	(void) tessera_scan_run(&state->scan, &route, request);
	number->routing = request->routing;
	if (request->cut)
		number->cut = number->kept.number;
	if (number->cursor && state->scan.routing == NULL)
		tessera_scan_keep_opening(&state->scan, request);
	return route.attempts > 0;
}

/* True if the statement only reads: then only the order of its rows tells which shard was faster. */
static bool
only_reads(EState *estate)
{
	const PlannedStmt *plan = estate->es_plannedstmt;

	return plan->commandType == CMD_SELECT && !plan->hasModifyingCTE && plan->rowMarks == NIL &&
		(estate->es_top_eflags & TESSERA_EXEC_FOR_WRITE) == 0;
}

/* Returns as run does. */
static bool
start(TableState *state)
{
	EState	   *estate = state->scan.css.ss.ps.state;
	bool		locks = (state->scan.flags & STATEMENT_WRITES) != 0;
	MemoryContext before = MemoryContextSwitchTo(state->scan_context);
	bool		anew;
	TesseraShardRunRequest request = {
		.query = state->scan.query, .values = state->scan.values.values, .nulls = state->scan.values.nulls, .write = locks,
		.any_order = !locks && only_reads(estate),
		.autocommit = !locks && !IsolationUsesXactSnapshot() && (state->scan.flags & TABLE_SINGLE) != 0,
		.order = state->order,
		.groups = ((Scan *) state->scan.css.ss.ps.plan)->scanrelid == 0,
		.instrument = estate->es_instrument,
	};

	tessera_values_evaluate(&state->scan.values, &state->scan.css);
	state->known = true;
	anew = run(state, &request);
	state->started = true;
	MemoryContextSwitchTo(before);
	return anew;
}

/* Opens the scan without reading: a probe makes every shard that it may go to keep its snapshot. Returns as run does. */
static bool
hold(TableState *state)
{
	MemoryContext before = MemoryContextSwitchTo(state->scan_context);
	bool		anew;
	TesseraShardRunRequest request = {
		.query = tessera_remote_query_probe(state->scan.query), .values = state->scan.values.values, .nulls = state->scan.values.nulls,
	};

	state->known = !tessera_needs_running_plan(((CustomScan *) state->scan.css.ss.ps.plan)->custom_exprs);
	if (state->known)
		tessera_values_evaluate(&state->scan.values, &state->scan.css);
	else
		memset(state->scan.values.nulls, true, sizeof(bool) * state->scan.values.n);
	anew = run(state, &request);
	stop(state);
	MemoryContextSwitchTo(before);
	return anew;
}

/* Opens the scan when its cursor opens. If a shard was found stale, the scans opened before are opened again: all show one moment. */
static void
open_scan(void *scan)
{
	TableState *state = scan;
	TesseraStatementNumber *number = tessera_statement_number(state->scan.css.ss.ps.state);
	List	   *others = list_copy(number->scans);
	bool		anew;
	ListCell   *cell;

	number->scans = lappend(number->scans, state);
	anew = state->held ? hold(state) : start(state);
	if (!anew)
		return;
	number->scans = list_make1(state);
	foreach(cell, others)
	{
		TableState *other = lfirst(cell);

		stop(other);
		MemoryContextReset(other->scan_context);
		tessera_scan_forget_opening(&other->scan);
		open_scan(other);
	}
}

/* The local part's row has the query's columns only, one with system columns has them behind the others. */
static void
spread(TableState *state, TupleTableSlot *row, TupleTableSlot *slot)
{
	slot_getallattrs(row);
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts);
	slot->tts_tableOid = state->relid;
	for (int i = 0; i < state->scan.query->natts; i++)
	{
		AttrNumber	attribute = state->attributes[i];
		int			column = row == state->wide ? state->scan.query->attnums[i] - 1 : i;

		if (attribute < 0)
			tessera_system_row_set(slot, attribute, row->tts_values[column]);
		else
		{
			slot->tts_values[attribute - 1] = row->tts_values[column];
			slot->tts_isnull[attribute - 1] = row->tts_isnull[column];
		}
	}
	if (state->scan.flags & TABLE_NODES)
	{
		int32		node = tessera_shard_run_row_node(state->scan.run);

		slot->tts_tableOid = node != 0 ? node : tessera_routing()->self;
	}
	ExecStoreVirtualTuple(slot);
}

static TupleTableSlot *
next_row(ScanState *node)
{
	TableState *state = (TableState *) node;
	TupleTableSlot *slot = node->ss_ScanTupleSlot;
	TupleTableSlot *row;

	if (!state->started)
		(void) start(state);
	state->read = true;
	row = tessera_shard_run_next(state->scan.run, state->wide ? state->wide : slot);
	if (row == NULL)
		return ExecClearTuple(slot);
	tessera_statement_number(node->ps.state)->emitted = true;
	if (row == slot)
		slot->tts_tableOid = state->relid;
	else
		spread(state, row, slot);
	return slot;
}

static bool
recheck(ScanState *node, TupleTableSlot *slot)
{
	/* The shipped conditions held on the shard for this very row. */
	return true;
}

static TupleTableSlot *
next(TesseraScan *scan)
{
	ScanState  *node = &scan->css.ss;
	TupleTableSlot *slot;

	if (((Scan *) node->ps.plan)->scanrelid > 0)
		return ExecScan(node, next_row, recheck);
	/* groups: no condition is left, and a recheck of another table's row reads them like any other statement */
	CHECK_FOR_INTERRUPTS();
	slot = next_row(node);
	if (TupIsNull(slot) || node->ps.ps_ProjInfo == NULL)
		return slot;
	ResetExprContext(node->ps.ps_ExprContext);
	node->ps.ps_ExprContext->ecxt_scantuple = slot;
	return ExecProject(node->ps.ps_ProjInfo);
}

static void
rescan(TesseraScan *scan)
{
	TableState *state = (TableState *) scan;

	/* What a cursor's start has sent is good for the first scan. */
	if (!state->started || state->read || scan->css.ss.ps.chgParam != NULL)
	{
		stop(state);
		MemoryContextReset(state->scan_context);
	}
	state->read = false;
	ExecScanReScan(&scan->css.ss);
}

typedef struct FindContext
{
	Oid			relid;
	const TesseraRouting *routing;
} FindContext;

static bool
find_scan(PlanState *node, void *context)
{
	FindContext *find = context;
	CustomScanState *scan = (CustomScanState *) node;

	if (node == NULL)
		return false;
	if (IsA(node, CustomScanState) && scan->methods == &tessera_table_scan.exec && ((TableState *) scan)->relid == find->relid)
		find->routing = ((TesseraScan *) scan)->routing;
	return find->routing != NULL || planstate_tree_walker(node, find_scan, context);
}

const TesseraRouting *
tessera_scan_routing(PlanState *state, Oid relid)
{
	FindContext find = {.relid = relid};

	(void) find_scan(state, &find);
	return find.routing;
}

/* The order in which the plan says that each shard sends its rows; NULL: in none. */
static TesseraRowOrder *
order_of(List *keys, MemoryContext context)
{
	TesseraRowOrder *order;
	ListCell   *cell;

	if (keys == NIL)
		return NULL;
	order = palloc0(sizeof(TesseraRowOrder));
	order->keys = palloc0(sizeof(SortSupportData) * list_length(keys));
	foreach(cell, keys)
	{
		List	   *key = lfirst(cell);
		SortSupport sort = &order->keys[order->nkeys++];

		sort->ssup_cxt = context;
		sort->ssup_attno = linitial_int(key);
		sort->ssup_collation = (Oid) lthird_int(key);
		sort->ssup_nulls_first = lfourth_int(key) != 0;
		PrepareSortSupportFromOrderingOp((Oid) lsecond_int(key), sort);
	}
	return order;
}

static void
begin(TesseraScan *scan, EState *estate, int eflags)
{
	TableState *state = (TableState *) scan;
	CustomScanState *node = &scan->css;
	List	   *private = scan->private;
	List	   *attributes = list_nth(private, TABLE_ATTRIBUTES);
	List	   *pins = list_nth(private, TABLE_PINS);
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * Max(list_length(attributes), 1));
	TupleDesc	desc = node->ss.ss_ScanTupleSlot->tts_tupleDescriptor;
	bool		has_system_columns = false;
	ListCell   *cell;

	foreach(cell, scanned_tables(node, estate))
		if (is_copy(node, lfirst_node(RangeTblEntry, cell)->relid))
			state->copies = list_append_unique_oid(state->copies, lfirst_node(RangeTblEntry, cell)->relid);
		else
			state->relids = list_append_unique_oid(state->relids, lfirst_node(RangeTblEntry, cell)->relid);
	if (state->relids == NIL)
		raise_changed(linitial_node(RangeTblEntry, scanned_tables(node, estate))->relid);
	state->relid = linitial_oid(state->relids);
	foreach(cell, attributes)
	{
		attnums[foreach_current_index(cell)] = lfirst_int(cell);
		has_system_columns |= lfirst_int(cell) < 0;
	}
	state->attributes = palloc(sizeof(AttrNumber) * Max(list_length(attributes), 1));
	memcpy(state->attributes, attnums, sizeof(AttrNumber) * list_length(attributes));
	if (has_system_columns)
	{
		node->ss.ss_ScanTupleSlot = tessera_system_row_slot(estate, desc);
		desc = tessera_system_row_desc(desc, attributes, attnums);
		state->wide = ExecInitExtraTupleSlot(estate, desc, &TTSOpsVirtual);
	}
	scan->tier = ((Scan *) node->ss.ps.plan)->scanrelid > 0 ? "T3" : "T2";
	scan->flags = intVal(list_nth(private, TABLE_FLAGS));
	state->conditions = list_nth(private, TABLE_CONDITIONS);
	state->order = order_of(list_nth(private, TABLE_ORDER), estate->es_query_cxt);
	state->pin = pins ? linitial(pins) : NIL;
	tessera_values_init(&scan->values, node);
	scan->targets = palloc(sizeof(int) * TESSERA_MAX_NODES);
	state->held = tessera_opens_cursor(eflags) &&
		tessera_cursor_holds(((CustomScan *) node->ss.ps.plan)->custom_exprs, (scan->flags & STATEMENT_WRITES) != 0);
	scan->query = tessera_remote_query_make(list_nth(private, TABLE_SQL), intVal(list_nth(private, TABLE_NPARAMS)), scan->values.types,
											 desc, list_length(attributes), attnums);
	set_reader(state);
	state->scan_context = AllocSetContextCreate(estate->es_query_cxt, "tessera scan", ALLOCSET_DEFAULT_SIZES);
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0 && (scan->flags & TABLE_SINGLE) == 0)
		tessera_statement_number(estate)->several = true;
	else if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
		(void) tessera_statement_number(estate);
	if (tessera_opens_cursor(eflags))
		tessera_open_in_cursor(open_scan, scan, estate);
}

static void
explain(TesseraScan *scan, ExplainState *es)
{
	TableState *state = (TableState *) scan;
	const TesseraRouting *routing = tessera_routing();
	bool		planned = !state->started && !es->analyze && routing != NULL;
	bool		known = planned && tessera_scan_knows_values(scan);

	if (known || (planned && state->pin == NIL && state->conditions == NIL))
		choose_targets(state, routing, known);
	tessera_scan_explain_query(scan, es, routing, known);
}

const TesseraScanKind tessera_table_scan = {
	TESSERA_SCAN_METHODS("Tessera Scan"), .size = sizeof(TableState), .begin = begin, .next = next, .rescan = rescan, .explain = explain,
};
