/*
 * statement_cut.c
 *	  The common snapshot of a statement with several fragments; see statement_cut.h.
 *
 * All nodes that have rows of the statement's tables are asked, whatever its scans will prune; one that cannot be reached is left out, and must not
 * be read (tessera_cut_require). A node finds out by the question, too, whether it is
 * routed to by a stale image, and again when it makes its snapshot: nothing has been read then, and the statement is routed again. Later a move is no
 * matter: the snapshot shows who owned the rows then, and they stay as long as it is kept.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "utils/snapmgr.h"

#include "executor/cursor.h"
#include "executor/cut.h"
#include "executor/route_loop.h"
#include "executor/shard_check.h"
#include "executor/statement_cut.h"
#include "executor/system_row.h"
#include "executor/targets.h"
#include "transaction/participant.h"

typedef struct Question
{
	List	   *plans;			/* PlannedStmt */
	uint64		number;
	TesseraCutNodes nodes;
	int32		node_ids[TESSERA_MAX_NODES];
	TesseraCutAsk here;
	TesseraCutMoment moment;
	Snapshot	cut;			/* this node's, registered with the current resource owner */
} Question;


bool
tessera_statement_is_cut(EState *estate)
{
	const PlannedStmt *plan = estate->es_plannedstmt;

	return (plan->commandType == CMD_SELECT || plan->commandType == CMD_INSERT) && plan->rowMarks == NIL && tessera_cut_applies();
}

static void
add_node(Question *question, int32 node_id)
{
	for (int i = 0; i < question->nodes.n; i++)
		if (question->node_ids[i] == node_id)
			return;
	question->node_ids[question->nodes.n++] = node_id;
}

/* All that have rows of the table. Copies are read here. lead: it is read by its rows' versions, if it is replicated. */
static void
add_table(Question *question, Oid relid, bool lead)
{
	const TesseraRouting *routing = question->nodes.routing;
	const TesseraTable *table = tessera_routing_table(routing, relid);
	TesseraTargets *owners;

	if (table == NULL)
		return;
	if (table->replicated && !lead)
	{
		question->nodes.copies = list_append_unique_oid(question->nodes.copies, relid);
		add_node(question, routing->self);
		return;
	}
	question->nodes.relids = list_append_unique_oid(question->nodes.relids, relid);
	if (table->group < 0)
	{
		add_node(question, table->node_id);
		return;
	}
	owners = tessera_routing_owners(routing, tessera_routing_group(routing, table->group));
	for (int i = 0; i < owners->n; i++)
		add_node(question, owners->node_ids[i]);
}

static void
add_tables(Question *question, PlannedStmt *plan)
{
	ListCell   *cell;

	foreach(cell, plan->rtable)
		if (lfirst_node(RangeTblEntry, cell)->rtekind == RTE_RELATION)
			add_table(question, lfirst_node(RangeTblEntry, cell)->relid, tessera_names_row_version(tessera_plan_permissions(plan, lfirst(cell))));
}

Bitmapset *
tessera_statement_owners(const TesseraRouting *routing, PlannedStmt *plan)
{
	Question   *question = palloc0(sizeof(Question));
	Bitmapset  *owners = NULL;

	question->nodes.routing = routing;
	add_tables(question, plan);
	for (int i = 0; i < question->nodes.n; i++)
		owners = bms_add_member(owners, question->node_ids[i]);
	pfree(question);
	return owners;
}

static bool
choose_nodes(TesseraRoute *route, TesseraShardRunRequest *request)
{
	Question   *question = route->owner;
	ListCell   *plan;

	if (request->routing == NULL)
		return false;
	question->nodes = (TesseraCutNodes) {.routing = request->routing,.node_ids = question->node_ids,.lenient = true};
	foreach(plan, question->plans)
		add_tables(question, lfirst_node(PlannedStmt, plan));
	return question->nodes.n > 1;
}

/* True if this node's own snapshot shows the tables' rows where the image has them. A placed table that is elsewhere is not read here. */
static bool
fits_here(const Question *question)
{
	const TesseraRouting *routing = question->nodes.routing;
	TesseraRoutedBy routed = {.routing = routing};
	ListCell   *cell;

	foreach(cell, question->nodes.relids)
	{
		const TesseraTable *table = tessera_routing_table(routing, lfirst_oid(cell));

		if (table != NULL && (table->group >= 0 || table->node_id == routing->self) &&
			tessera_shard_check_read(lfirst_oid(cell), question->cut, &routed) == TESSERA_STALE)
			return false;
	}
	return true;
}

/* Asks, and makes the snapshots: nothing is read before all of them fit. */
static bool
ask(TesseraRoute *route, TesseraShardRunRequest *request)
{
	Question   *question = route->owner;
	bool		settled;

	if (!tessera_cut_ask_nodes(&question->nodes, question->number, true, &question->here, &question->moment))
		return false;
	settled = tessera_cut_settle_nodes(&question->nodes, question->number, &question->moment);
	if (settled)
		question->cut = tessera_cut_take(&question->here, &question->moment);
	tessera_cut_release(&question->here);
	if (question->cut == NULL)
		return false;
	if (fits_here(question))
		return true;
	UnregisterSnapshot(question->cut);
	question->cut = NULL;
	return false;
}

static void
ask_anew(TesseraRoute *route, TesseraShardRunRequest *request)
{
	Question   *question = route->owner;

	question->number = tessera_next_statement();
}

/* Registered with the current resource owner; NULL: the statement needs none. Sets the number by which the nodes know it, and the image. */
static Snapshot
cut(List *plans, uint64 *number, const TesseraRouting **routing)
{
	Question   *question = palloc0(sizeof(Question));
	TesseraRoute route = {.owner = question,.choose = choose_nodes,.start = ask,.stale = ask_anew};
	TesseraShardRunRequest request = {0};
	Snapshot	snapshot = NULL;

	question->plans = plans;
	question->number = *number;
	if (tessera_route(&route, NULL, &request))
	{
		*routing = request.routing;
		snapshot = question->cut;
	}
	/* under the former one nothing can be read any more */
	*number = question->number;
	pfree(question);
	return snapshot;
}

/* Bitmap scans have taken the estate's snapshot when they were started; all others do so when they read. */
static bool
renew_bitmap_scans(PlanState *state, void *snapshot)
{
	if (IsA(state, BitmapHeapScanState) && ((BitmapHeapScanState *) state)->ss.ss_currentScanDesc != NULL)
		((BitmapHeapScanState *) state)->ss.ss_currentScanDesc->rs_snapshot = snapshot;
	else if (IsA(state, BitmapIndexScanState) && ((BitmapIndexScanState *) state)->biss_ScanDesc != NULL)
		((BitmapIndexScanState *) state)->biss_ScanDesc->xs_snapshot = snapshot;
	return planstate_tree_walker(state, renew_bitmap_scans, snapshot);
}

static void
set_snapshot(EState *estate, Snapshot snapshot)
{
	UnregisterSnapshot(estate->es_snapshot);
	estate->es_snapshot = RegisterSnapshot(snapshot);
}

/* NULL: as above. */
static Snapshot
cut_estate(EState *estate)
{
	TesseraStatementNumber *number = tessera_statement_number(estate);
	uint64		own = number->kept.number;
	const TesseraRouting *routing = NULL;
	Snapshot	snapshot = cut(list_make1(estate->es_plannedstmt), &own, &routing);

	number->kept.number = own;
	number->cut = own;
	if (snapshot == NULL)
		return NULL;
	number->routing = routing;
	number->asked = true;
	snapshot->curcid = estate->es_snapshot->curcid;
	set_snapshot(estate, snapshot);
	return snapshot;
}

bool
tessera_statement_reads_copies(EState *estate)
{
	const TesseraRouting *routing = tessera_routing();
	ListCell   *cell;

	if (routing == NULL || routing->nreplicated == 0)
		return false;
	foreach(cell, estate->es_plannedstmt->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);
		const TesseraTable *table = rte->rtekind == RTE_RELATION ? tessera_routing_table(routing, rte->relid) : NULL;

		if (table != NULL && table->replicated)
			return true;
	}
	return false;
}

bool
tessera_statement_cut(QueryDesc *query)
{
	TesseraStatementNumber *number = tessera_statement_number_if_any(query->estate);
	Snapshot	snapshot;

	if (number == NULL || number->cursor || number->cut == number->kept.number || !tessera_statement_is_cut(query->estate) ||
		!(number->several || tessera_statement_reads_copies(query->estate)))
		return number != NULL && number->asked && !number->cursor;
	snapshot = cut_estate(query->estate);
	if (snapshot == NULL)
		return false;
	UnregisterSnapshot(query->snapshot);
	query->snapshot = snapshot;
	(void) renew_bitmap_scans(query->planstate, snapshot);
	return true;
}

void
tessera_statement_cut_now(EState *estate)
{
	TesseraStatementNumber *number = tessera_statement_number(estate);
	Snapshot	snapshot;

	if (!number->several || number->cut == number->kept.number || !tessera_statement_is_cut(estate))
		return;
	snapshot = cut_estate(estate);
	if (snapshot != NULL)
		UnregisterSnapshot(snapshot);
}

void
tessera_parts_cut(TesseraParts *parts, List *plans, EState *estate)
{
	const TesseraRouting *routing;
	Snapshot	snapshot;

	if (!tessera_cut_applies())
		return;
	snapshot = cut(plans, &parts->number, &routing);
	if (snapshot == NULL)
		return;
	snapshot->curcid = estate->es_snapshot->curcid;
	set_snapshot(estate, snapshot);
	UnregisterSnapshot(snapshot);
	/* the parts go by this snapshot, which cannot be had again */
	parts->begun = true;
	parts->routing = routing;
}
