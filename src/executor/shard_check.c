/*
 * shard_check.c
 *	  The check before a statement touches a row of this shard; see shard_check.h and doc/design.md#stale-answers.
 *
 * Order matters: table locks are held, the snapshot is taken, and only then the newest placement is read. Writers of a migrating group take the gate
 * lock first and read the gate after it, so the mover, which closes the gate first and looks for holders after, cannot miss one.
 *
 * A stale statement of an internal connection is not an error: it is answered by an INFO message with SQLSTATE TS001 and runs nothing, so that the
 * router's transaction here stays whole and the statement can be routed again in the middle of it.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "parser/parsetree.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/change.h"
#include "common/errors.h"
#include "common/injection.h"
#include "common/spi.h"
#include "common/stat_routing.h"
#include "common/version_compat.h"
#include "common/worker_registry.h"
#include "executor/cut.h"
#include "executor/eflags.h"
#include "executor/executor_settings.h"
#include "executor/open_doubts.h"
#include "executor/plan_keys.h"
#include "executor/reference_check.h"
#include "executor/replicated.h"
#include "executor/scan_frame.h"
#include "executor/shard_check.h"
#include "executor/source_position.h"
#include "executor/statement_cut.h"
#include "executor/targets.h"
#include "routing/write_gate.h"
#include "session/row_write.h"

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorRun_hook_type previous_run = NULL;
static ExecutorFinish_hook_type previous_finish = NULL;

typedef struct Check
{
	PlannedStmt *plan;
	Snapshot	snapshot;
	ParamListInfo params;
	const TesseraRoutedBy *routed;
	Oid			relid;
	bool		writes;
} Check;

static bool
plan_writes(PlannedStmt *plan, Index rti)
{
	ListCell   *cell;

	if (list_member_int(plan->resultRelations, rti))
		return true;
	foreach(cell, plan->rowMarks)
	{
		PlanRowMark *mark = lfirst_node(PlanRowMark, cell);

		if (mark->rti == rti && mark->markType <= ROW_MARK_KEYSHARE)
			return true;
	}
	return false;
}

/* What the router goes by for this group: false if it told nothing. */
static bool
routed_version(const TesseraRoutedBy *routed, const TesseraGroup *group, TesseraToldVersion *version)
{
	if (routed)
	{
		const TesseraGroup *theirs = tessera_routing_group_by_id(routed->routing, &group->group_id);

		if (theirs == NULL)
			return false;
		version->group_id = group->group_id;
		version->epoch = theirs->epoch;
		version->term = routed->routing->term;
		version->major = tessera_routing_shard_major(routed->routing, theirs, routed->routing->self);
		return true;
	}
	else
	{
		const TesseraToldVersion *told = tessera_internal_told(&group->group_id);

		if (told == NULL)
			return false;
		*version = *told;
		return true;
	}
}

static bool
touches_gate(const TesseraPlacement *placement, TesseraKeySpace *ks, int i, const TesseraPlanKeys *keys)
{
	ListCell   *cell;

	if (keys->everything)
		return true;
	foreach(cell, keys->positions)
		if (tessera_placement_gate_holds(placement, ks, i, lfirst(cell)))
			return true;
	return false;
}

static bool
is_among(const List *ids, const pg_uuid_t *id)
{
	ListCell   *cell;

	foreach(cell, ids)
		if (memcmp(lfirst(cell), id, sizeof(pg_uuid_t)) == 0)
			return true;
	return false;
}

/*
 * Takes the locks of the gates that the statement touches, but those in `entered`: locks are counted, and one that is taken twice would still be held
 * after it is given back once. Returns `entered` with the ids of those added that this transaction did not have.
 */
static List *
enter_gates(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraPlanKeys *keys, List *entered)
{
	for (int i = 0; i < placement->ngates; i++)
	{
		const pg_uuid_t *migration_id = &tessera_placement_gate_image(placement, i)->migration_id;
		pg_uuid_t  *id;

		if (is_among(entered, migration_id) || !touches_gate(placement, ks, i, keys))
			continue;
		id = palloc(sizeof(pg_uuid_t));
		*id = *migration_id;
		if (tessera_gate_enter(id))
			entered = lappend(entered, id);
	}
	return entered;
}

/*
 * True if a gate that the statement touches is closed to it: the read gate to all; the write gate to writers that were not inside before, which are
 * those that entered just now.
 */
static bool
is_closed(const TesseraPlacement *placement, TesseraKeySpace *ks, const TesseraPlanKeys *keys, const List *entered)
{
	for (int i = 0; i < placement->ngates; i++)
	{
		const TesseraGateImage *gate = tessera_placement_gate_image(placement, i);

		if (gate->gate == TESSERA_GATE_OPEN || !touches_gate(placement, ks, i, keys))
			continue;
		if (gate->gate == TESSERA_GATE_READ || is_among(entered, &gate->migration_id))
			return true;
	}
	return false;
}

static bool
has_read_gate(const TesseraPlacement *placement)
{
	for (int i = 0; i < placement->ngates; i++)
		if (tessera_placement_gate_image(placement, i)->gate == TESSERA_GATE_READ)
			return true;
	return false;
}

/* The newest placement of the group; NULL if no migration is under way here. */
static const TesseraPlacement *
newest_with_gates(const TesseraRouting *routing, const pg_uuid_t *group_id, TesseraKeySpace **ks)
{
	const TesseraGroup *group = tessera_routing_group_by_id(routing, group_id);
	bool		dummy;
	const TesseraPlacement *newest = group ? tessera_placement_as_of(routing, group, InvalidSnapshot, &dummy) : NULL;

	if (newest == NULL || newest->ngates == 0)
		return NULL;
	*ks = tessera_group_keyspace(routing, group);
	return newest;
}

/*
 * Migrations of the group are under way: take the gate locks that this statement has to, wait while a gate is closed to it. Returns with the image at
 * which the statement may go on; and since when it has waited, if it has. While it waits it holds none of the locks newly taken, so that no mover
 * waits for it.
 */
static const TesseraRouting *
wait_at_gate(Check *check, const TesseraRouting *routing, const pg_uuid_t *group_id, const TesseraPlanKeys *keys, TimestampTz *since)
{
	bool		guarded = check->writes || IsolationIsSerializable();
	TimestampTz start = GetCurrentTimestamp();

	*since = 0;
	if (tessera_injection_skips("gate"))
		return routing;
	for (;;)
	{
		TesseraKeySpace *ks;
		const TesseraPlacement *newest = newest_with_gates(routing, group_id, &ks);
		List	   *entered = NIL;
		int			before = -1;
		ListCell   *cell;

		while (guarded && newest != NULL && before < list_length(entered))
		{
			before = list_length(entered);
			entered = enter_gates(newest, ks, keys, entered);
			routing = tessera_routing();	/* after the lock: the mover closes first, then looks for holders */
			newest = newest_with_gates(routing, group_id, &ks);
		}
		if (newest == NULL || !is_closed(newest, ks, keys, entered))
			return routing;

		foreach(cell, entered)
			tessera_gate_leave(lfirst(cell));
		*since = start;
		if (!tessera_catalog_wait(routing->sequence, TimestampTzPlusMilliseconds(start, tessera_gate_timeout)))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("timed out waiting for the gate of a migration of table \"%s\"", get_rel_name(check->relid)),
					 errhint("Look at tessera.migrations; tessera.gate_timeout limits the wait.")));
		routing = tessera_routing();
	}
}

static const TesseraRouting *
pass_gate(Check *check, const TesseraRouting *routing, const pg_uuid_t *group_id, const TesseraPlanKeys *keys)
{
	TimestampTz since;
	uint64		waited;

	routing = wait_at_gate(check, routing, group_id, keys, &since);
	if (since == 0)
		return routing;
	waited = Max(0, GetCurrentTimestamp() - since);
	tessera_stat_count(TESSERA_STAT_GATE_WAITS);
	tessera_stat_add(TESSERA_STAT_GATE_WAIT_US, waited);
	if (tessera_log_min_gate_wait >= 0 && waited >= (uint64) tessera_log_min_gate_wait * 1000)
		ereport(LOG,
				(errmsg("waited %.3f ms at the gate of a migration of table \"%s\"", waited / 1000.0, get_rel_name(check->relid))));
	return routing;
}

/*
 * The router routes by a newer version than this shard has: the shard fetches it, so that the next attempt fits. Waits BEHIND_TIMEOUT ms at most; a
 * failure only costs another attempt.
 */
#define BEHIND_TIMEOUT 1000

static TesseraVerdict
found_behind(Check *check)
{
	if (check->routed == NULL)
		(void) tessera_routing_refresh(BEHIND_TIMEOUT);
	AcceptInvalidationMessages();
	return TESSERA_STALE;
}

/* The placement and the router differ. A transaction snapshot cannot be renewed: if that is the reason, the transaction must be retried. */
static TesseraVerdict
found_stale(bool newest)
{
	if (IsolationUsesXactSnapshot() && !newest)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: a chunk was moved after the transaction's snapshot was taken"),
				 errhint("Retry the transaction.")));
	AcceptInvalidationMessages();
	return TESSERA_STALE;
}

static TesseraVerdict
check_by_placement(Check *check, const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);
	pg_uuid_t	group_id = group->group_id;
	const TesseraPlacement *placement;
	const TesseraPlacement *head;
	TesseraToldVersion version;
	TesseraPlanKeys keys = {0};
	bool		have_keys = false;
	bool		newest;
	bool		dummy;

	head = tessera_placement_as_of(routing, group, InvalidSnapshot, &dummy);
	if (head && head->ngates > 0)
	{
		if (check->plan)
			tessera_plan_keys(check->plan, check->params, routing, group, &keys);
		else
			keys.everything = true;
		have_keys = true;
		routing = pass_gate(check, routing, &group_id, &keys);
		group = tessera_routing_group_by_id(routing, &group_id);
		if (group == NULL)
			return found_stale(true);
	}

	placement = tessera_placement_as_of(routing, group, check->snapshot, &newest);
	if (tessera_injection_skips("version_check"))
		return TESSERA_ACCEPTED;
	if (!routed_version(check->routed, group, &version))
		return found_stale(true);
	/* the snapshot is from before the schema had a group: if it has not moved since, this shard has all of its rows */
	if (placement == NULL && !newest && group->of_schema)
	{
		placement = tessera_placement_as_of(routing, group, InvalidSnapshot, &dummy);
		if (placement == NULL || placement->major != 1 || placement->nowned == 0)
			return found_stale(false);
		newest = true;
	}
	if (placement == NULL)
		return version.major == 0 ? TESSERA_ACCEPTED : found_behind(check);
	if (newest && (version.term > placement->term || version.major > placement->major))
		return found_behind(check);
	if (version.major != placement->major || version.term != placement->term ||
		(placement->major != 0 && memcmp(&version.epoch, &placement->epoch, sizeof(pg_uuid_t)) != 0))
		return found_stale(newest);
	/* a migration that has begun meanwhile, or a range that was deleted, leaves what is owned as it was */
	if (check->writes && !newest && !tessera_placement_owns_same(placement, tessera_placement_as_of(routing, group, InvalidSnapshot, &dummy),
																  tessera_group_keyspace(routing, group)))
		return found_stale(newest);
	if (!newest && has_read_gate(placement))
	{
		/*
		 * The snapshot sees a moment at which it was open who owns the range; by now it is decided, and the rows it would see are right in neither
		 * case.
		 */
		if (!have_keys && check->plan)
			tessera_plan_keys(check->plan, check->params, routing, group, &keys);
		else if (!have_keys)
			keys.everything = true;
		have_keys = true;
		for (int i = 0; i < placement->ngates; i++)
			if (tessera_placement_gate_image(placement, i)->gate == TESSERA_GATE_READ &&
				touches_gate(placement, tessera_group_keyspace(routing, group), i, &keys))
				return found_stale(newest);
	}
	if (placement->hides && check->plan)
	{
		if (!have_keys)
			tessera_plan_keys(check->plan, check->params, routing, group, &keys);
		if (!keys.filtered)
			return found_stale(true);	/* planned before there were rows to hide: plan again */
	}
	return TESSERA_ACCEPTED;
}

static bool
same_group(const TesseraGroup *group, const pg_uuid_t *group_id)
{
	return memcmp(&group->group_id, group_id, sizeof(pg_uuid_t)) == 0;
}

/*
 * True if the router and this shard agree what the table is: placed, or of which group. The version that came with the statement does not tell: the
 * table may have joined the group since, perhaps from another one, and the router's image be older than that.
 */
static bool
same_kind_of_table(Check *check, const TesseraRouting *routing, const TesseraTable *table)
{
	const TesseraGroup *group = tessera_table_placement_group(routing, table);

	if (check->routed)
	{
		const TesseraTable *theirs = tessera_routing_table(check->routed->routing, table->relid);

		if (theirs == NULL || theirs->placement_group < 0)
			return theirs != NULL && group == NULL;
		return group != NULL && same_group(group, &tessera_table_placement_group(check->routed->routing, theirs)->group_id);
	}
	else
	{
		const TesseraToldVersion *told = tessera_internal_told(&table->table_id);

		return told == NULL || (told->major > 0 ? group != NULL && same_group(group, &told->epoch) : group == NULL);
	}
}

/* Waits until it is known again, after a promotion, what this shard owns: tessera.gate_timeout at most. */
static void
await_placements(Check *check)
{
	if (!tessera_routing_await_placements(tessera_gate_timeout))
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("this node was promoted, and what it owns of table \"%s\" is not known yet", get_rel_name(check->relid)),
				 errdetail("The config node has to confirm it."),
				 errhint("tessera.recover_node() says what is in the way.")));
}

/* True for a table of the extension's own: its rows are no rows of the cluster, and are read to find out what is. */
static bool
is_own_table(Oid relid)
{
	return relid < FirstNormalObjectId || get_rel_namespace(relid) == get_namespace_oid("tessera", true);
}

static TesseraVerdict
check_table(Check *check)
{
	const TesseraRouting *routing = tessera_routing();
	const TesseraTable *table = routing ? tessera_routing_table(routing, check->relid) : NULL;

	if (routing != NULL && (routing->replaced || routing->removed) && (table != NULL || !is_own_table(check->relid)))
		tessera_require_own_node(routing);
	/* what was a table of the cluster before a promotion may not be known as one after it */
	if (routing != NULL && !tessera_placements_known(routing, check->snapshot) && (table != NULL || !is_own_table(check->relid)))
	{
		await_placements(check);
		return found_stale(false);
	}
	if (table == NULL)
		return TESSERA_ACCEPTED;
	if (table->replicated && !check->writes)
		return TESSERA_ACCEPTED;
	if (!same_kind_of_table(check, routing, table))
		return found_behind(check);
	if (table->placement_group < 0)
		return table->node_id == routing->self ? TESSERA_ACCEPTED : found_behind(check);
	return check_by_placement(check, routing, table);
}

TesseraVerdict
tessera_shard_check(PlannedStmt *plan, Snapshot snapshot, ParamListInfo params, const TesseraRoutedBy *routed)
{
	Check		check = {.plan = plan, .snapshot = snapshot, .params = params, .routed = routed};
	ListCell   *cell;
	Index		rti = 0;

	tessera_open_doubts_check_plan(plan);
	foreach(cell, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		rti++;
		if (rte->rtekind != RTE_RELATION || rte->relkind == RELKIND_VIEW)
			continue;
		check.relid = rte->relid;
		check.writes = plan_writes(plan, rti);
		if (check_table(&check) == TESSERA_STALE)
			return TESSERA_STALE;
	}
	return TESSERA_ACCEPTED;
}

TesseraVerdict
tessera_shard_check_read(Oid relid, Snapshot snapshot, const TesseraRoutedBy *routed)
{
	Check		check = {.relid = relid,.snapshot = snapshot,.routed = routed};

	return check_table(&check);
}

TesseraVerdict
tessera_shard_check_table(Oid relid, const TesseraRoutedBy *routed)
{
	Check		check = {.routed = routed, .relid = relid, .writes = true};
	TesseraVerdict verdict;

	/* The statement's own snapshot is older than its locks: what has moved since then would be stale again at each look. */
	check.snapshot = RegisterSnapshot(IsolationUsesXactSnapshot() ? GetActiveSnapshot() : GetTransactionSnapshot());
	verdict = check_table(&check);
	UnregisterSnapshot(check.snapshot);
	return verdict;
}

/* ---- executor hooks ---- */

/* A call between nodes, in front of a statement, names none. */
static bool
names_tables(const QueryDesc *query)
{
	return query->plannedstmt->relationOids != NIL;
}

/* The common snapshot that was made for the statement alone. false: none was. */
static bool
use_met_snapshot(QueryDesc *query)
{
	Snapshot	met = tessera_cut_met();

	if (met == NULL)
		return false;
	UnregisterSnapshot(query->snapshot);
	query->snapshot = RegisterSnapshot(met);
	UnregisterSnapshotFromOwner(met, TopTransactionResourceOwner);
	return true;
}

/*
 * A later fragment of a router's statement runs under the snapshot of the first (doc/design.md#statement-snapshot), any under the common one. Returns
 * whether there was one.
 */
static bool
share_statement_snapshot(QueryDesc *query)
{
	Snapshot	kept;

	if (tessera_internal_statement() == 0)
		return names_tables(query) && use_met_snapshot(query);
	kept = tessera_internal_statement_snapshot();
	if (kept == NULL)
	{
		tessera_internal_keep_snapshot(query->snapshot);
		return false;
	}
	UnregisterSnapshot(query->snapshot);
	query->snapshot = RegisterSnapshot(kept);
	return true;
}

static void
start_query(QueryDesc *query, int eflags)
{
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

static void
executor_start(QueryDesc *query, int eflags)
{
	bool		outermost;
	bool		references;
	bool		missing;
	int			found = 0;

	if (tessera_known_no_node())
	{
		start_query(query, eflags);
		return;
	}
	tessera_internal_restate_start();
	tessera_cut_renew(query->snapshot);
	outermost = tessera_received(query->sourceText);
	references = !outermost && !IsParallelWorker() && tessera_is_reference_query(query->sourceText);
	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		tessera_refuse_removed_tables(query->plannedstmt->rtable);
	if (!outermost && !(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		tessera_open_doubts_check_plan(query->plannedstmt);
	if (outermost && !(eflags & EXEC_FLAG_EXPLAIN_ONLY))
	{
		if (share_statement_snapshot(query))
			found |= TESSERA_EXEC_KEPT_SNAPSHOT;
		missing = names_tables(query) && tessera_cut_missing();
		if (missing && IsolationUsesXactSnapshot())
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access: too much was committed while the transaction began"),
					 errhint("Retry the transaction.")));
		if (missing || tessera_shard_check(query->plannedstmt, query->snapshot, query->params, NULL) == TESSERA_STALE)
		{
			ereport(INFO,
					(errcode(ERRCODE_TESSERA_STALE_ROUTING),
					 errmsg("stale routing: the statement was not run")));
			found |= TESSERA_EXEC_STALE;
		}
	}

	if (!(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		tessera_replicated_check_snapshot(query);
	if (references)
		tessera_reference_check(query);
	start_query(query, eflags);

	query->estate->es_top_eflags |= found;
	if (outermost && tessera_is_row_write(query->sourceText))
		tessera_row_write_started(query->planstate);
	if (outermost)
		tessera_source_position_started(query);
	if (references)
		tessera_replicated_cascade_started(query->planstate);
	if (found & TESSERA_EXEC_KEPT_SNAPSHOT)
		query->estate->es_output_cid = query->snapshot->curcid;
}

/* True for a plan that reads a table; one of this session alone does not count. */
static bool
reads_table(PlannedStmt *plan)
{
	ListCell   *cell;

	foreach(cell, plan->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, cell);

		if (rte->rtekind == RTE_RELATION && get_rel_persistence(rte->relid) != RELPERSISTENCE_TEMP)
			return true;
	}
	return false;
}

/* The transaction's, with the nodes that the statement reads, as far as that is known before it runs. Where there is none to be had its own stays. */
static void
settle_transaction_cut(QueryDesc *query)
{
	const TesseraRouting *routing = tessera_cut_begins() ? tessera_routing() : NULL;
	int32		node_ids[TESSERA_MAX_NODES];
	int			n = routing == NULL ? 0 : tessera_statement_nodes(query->planstate, routing, node_ids);

	if (routing == NULL)
		tessera_cut_stays();
	else if (n >= 0)
		tessera_cut_transaction(routing, n, node_ids, NULL, query->snapshot);
	else
		tessera_cut_transaction(routing, 0, NULL, tessera_statement_owners(routing, query->plannedstmt), query->snapshot);
}

/* Before anything is read: the common snapshot, if it is read on several nodes. Returns whether it is the statement's now. */
static bool
cut_snapshot(QueryDesc *query)
{
	if (tessera_known_no_node())
		return false;
	if (IsolationUsesXactSnapshot())
	{
		/* whatever table it is: what was read under the snapshot must not be another one later. What we read by ourselves is no matter. */
		if (!tessera_cut_is_settled() && reads_table(query->plannedstmt) && !tessera_spi_at_work())
			settle_transaction_cut(query);
		tessera_cut_renew(query->snapshot);
		tessera_open_doubts_check_plan(query->plannedstmt);
		return false;
	}
	return tessera_statement_cut(query);
}

static void
run_nested(TESSERA_RUN_PARAMETERS)
{
	tessera_nesting_enter();
	PG_TRY();
	{
		if (previous_run)
			previous_run(TESSERA_RUN_ARGUMENTS);
		else
			standard_ExecutorRun(TESSERA_RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
}

static void
executor_run(TESSERA_RUN_PARAMETERS)
{
	const int	found = IsParallelWorker() ? 0 : query->estate->es_top_eflags;
	const bool	pushes = !(found & TESSERA_EXEC_STALE) && ((found & TESSERA_EXEC_KEPT_SNAPSHOT) || (!IsParallelWorker() && cut_snapshot(query)));

	if (found & TESSERA_EXEC_STALE)
		return;
	/* workers know of none */
	if (tessera_open_doubts_any())
		TESSERA_RUN_WITHOUT_WORKERS();
	tessera_internal_restate_start();
	if (pushes)
		PushActiveSnapshot(query->snapshot);
	run_nested(TESSERA_RUN_ARGUMENTS);
	if (pushes)
		PopActiveSnapshot();
	/* else the end of the transaction says it */
	if (tessera_nesting() == 0 && IsTransactionBlock())
		tessera_internal_tell_time();
}

static void
executor_finish(QueryDesc *query)
{
	tessera_nesting_enter();
	PG_TRY();
	{
		if (previous_finish)
			previous_finish(query);
		else
			standard_ExecutorFinish(query);
	}
	PG_FINALLY();
	{
		tessera_nesting_leave();
	}
	PG_END_TRY();
	if (tessera_nesting() == 0)
		tessera_internal_tell_unpreparable();
	tessera_replicated_carry();
}

void
tessera_shard_check_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = executor_finish;
}
