/*
 * init.c
 *	  Composition root: loads the library, registers every module's hooks, callbacks, settings and workers, nothing else.
 *
 * No other place registers anything with the server; test/lint/registrations.py checks that. What is done when something ends stands in tables that
 * are read from top to bottom: a transaction or a subtransaction, one table for each event (common/transaction_steps.h), and a process (exit_steps),
 * which the server wants registered in the process itself. All else is registered once, in the postmaster, and every process inherits it
 * (registrations).
 *
 * How the server orders what it is given there:
 * - of a hook's chain the last registered is outermost: it sees a call first and hands it on to the one registered before;
 * - callbacks of invalidations run in the order of registration;
 * - settings, shared memory, scan methods and background workers have no order.
 *
 * What the first comes to is in doc/architecture.md, "Hooks and callbacks".
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "admin/admin.h"
#include "admin/shardable.h"
#include "balancer/balancer_settings.h"
#include "balance/splitter.h"
#include "bgworkers/worker_main.h"
#include "catalog/change.h"
#include "catalog/incarnation.h"
#include "catalog/prepared_change.h"
#include "catalog/signing_key.h"
#include "catalog/trigger_place.h"
#include "clock/clock.h"
#include "clock/commit_times.h"
#include "common/injection.h"
#include "common/process_exit.h"
#include "common/shmem.h"
#include "common/stand_in.h"
#include "common/stat_routing.h"
#include "common/transaction_steps.h"
#include "common/worker_registry.h"
#include "config/abandoned_migrations.h"
#include "config/membership.h"
#include "config/move_rate.h"
#include "config/owner_limits.h"
#include "config/promotion_merge.h"
#include "config/round_request.h"
#include "ddl/attempts.h"
#include "ddl/ddl.h"
#include "ddl/sequence.h"
#include "ddl/subscription.h"
#include "executor/copy.h"
#include "executor/cut.h"
#include "executor/cut_snapshot.h"
#include "executor/executor_settings.h"
#include "executor/explain_remote.h"
#include "executor/load_tracking.h"
#include "executor/local_statement.h"
#include "executor/ownership.h"
#include "executor/plan_private.h"
#include "executor/reference_check.h"
#include "executor/replicated.h"
#include "executor/shard_check.h"
#include "failover/promotion.h"
#include "load/client_pace.h"
#include "load/load_sample.h"
#include "logical_session/numbering.h"
#include "logical_session/reaper.h"
#include "logical_session/retryable.h"
#include "logical_session/session_uses.h"
#include "migration/migration.h"
#include "migration/migration_settings.h"
#include "migration/migration_slot.h"
#include "planner/planner.h"
#include "planner/prepared_view.h"
#include "planner/sequences.h"
#include "planner/ship.h"
#include "routing/refresh.h"
#include "routing/routing.h"
#include "session/check_as.h"
#include "session/internal_connection.h"
#include "session/remote_client.h"
#include "session/row_write.h"
#include "statistics/table_statistics.h"
#include "transaction/advisory.h"
#include "transaction/background.h"
#include "transaction/cluster_time.h"
#include "transaction/commit_hold.h"
#include "transaction/deadlock.h"
#include "transaction/decision_pruning.h"
#include "transaction/declared_wait.h"
#include "transaction/notify.h"
#include "transaction/participant.h"
#include "transport/connection.h"
#include "transport/connection_slots.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* ddl/ and executor/ stand side by side: what one needs of the other goes through here. */
static bool
check_table(Oid relid, const TesseraRouting *image)
{
	TesseraRoutedBy routed = {.routing = image};

	return tessera_shard_check_table(relid, image ? &routed : NULL) == TESSERA_ACCEPTED;
}

/* Functions of higher layers that lower ones call. */
static void
connect_layers(void)
{
	tessera_table_check = check_table;
	tessera_partition_check = tessera_check_new_partition;
	tessera_copy_handler = tessera_copy_statement;
	tessera_copy_done = tessera_replicated_carry;
	tessera_snapshot_imported = tessera_cut_stays;
	tessera_ddl_end_migrations = tessera_migrations_end;
	tessera_ddl_is_of_migration = tessera_is_of_migration;
	tessera_promotion_merge = tessera_recover_catalog;
	tessera_recovery_fence_abandoned = tessera_fence_abandoned_migrations;
	tessera_analyze_handler = tessera_analyze;
	tessera_run_utility = tessera_utility_run;
	tessera_route_default = tessera_route_sequences_of_default;
}

typedef struct Registration
{
	const char *what;			/* what it registers */
	void		(*init) (void);
} Registration;

/*
 * In this order: where a hook acts before it hands on, they are called from the bottom to the top. A new one needs a reason for its place; "free"
 * says that none is known, so that it may be moved.
 */
static const Registration registrations[] = {
	/*
	 * First of the object access hooks, as the others hand on before they act: what a schema script must not run is refused before another hook acts
	 * on it.
	 */
	{"object access", tessera_join_init},
	/* The innermost of the utility hooks: it takes the time of what the others let through. */
	{"settings, parse analysis, utility: commits take their time", tessera_cluster_time_init},
	{"shared memory", tessera_commit_hold_init},	/* free */
	/* Before all modules with shared memory, so that its hooks ask for theirs. */
	{"shared memory hooks", tessera_shmem_install},
	{"shared memory", tessera_round_request_init},	/* free */
	{"shared memory", tessera_stat_init},	/* free */
	{"settings, shared memory", tessera_clock_init},	/* free */
	{"shared memory", tessera_commit_times_init},	/* free */
	{"setting", tessera_signing_key_init},	/* free */
	{"shared memory", tessera_worker_init}, /* free */
	/* Its hooks are inside of the DDL's: they act on what is run here, not on what a user asks for. */
	{"shared memory, relcache, object access, utility: changes of the catalog", tessera_catalog_change_init},
	{"shared memory", tessera_incarnation_init},	/* free */
	{"shared memory", tessera_prepared_change_init},	/* free */
	{"shared memory", tessera_routing_init},	/* free */
	{"setting, shared memory", tessera_refresh_init},	/* free */
	{"settings", tessera_connection_init},	/* free */
	{"settings, shared memory", tessera_slots_init},	/* free */
	{"shared memory", tessera_remote_client_init}, /* free */
	/* With assertions its hooks are the innermost: they check what all others have made of a statement. */
	{"setting; with assertions planner, executor start, utility", tessera_internal_init},
	/* free: on internal connections alone, where the other hook does nothing */
	{"parse analysis: rights of a view's owner", tessera_check_as_init},
	/* free: of other statements than the one before */
	{"parse analysis: writes of a router that fires the triggers", tessera_row_write_init},
	{"setting, syscache", tessera_trigger_place_init},	/* free: a cache */
	{"setting, shared memory", tessera_statistics_init},	/* free */
	{"relcache", tessera_planner_statistics_init},	/* free: a cache */
	{"setting", tessera_deadlock_init}, /* free */
	{"setting, shared memory", tessera_load_sample_init},	/* free */
	{"shared memory", tessera_client_pace_init},	/* free */
	{"settings", tessera_splitter_init},	/* free */
	{"shared memory", tessera_declared_wait_init},	/* free */
	{"setting", tessera_decisions_init},	/* free */
	{"lanes of calls", tessera_node_link_init},	/* free */
	{"settings", tessera_participant_init}, /* free */
	/* Inside of the DDL's and the other executor hooks: it looks whether the locks are still held right before something runs. */
	{"setting, executor start, utility, object access: advisory locks", tessera_advisory_init},
	{"what takes notifications of other nodes", tessera_notify_init},	/* free */
	{"shared memory", tessera_notify_forward_init}, /* free */
	{"syscache", tessera_stand_in_init},	/* free: a cache */
	{"settings", tessera_executor_settings_init},	/* free */
	{"syscache", tessera_ownership_init},	/* free: a cache */
	{"setting", tessera_cut_init},	/* free */
	{"scan methods", tessera_executor_init},	/* free */
	/* Inside of the hooks for local statements: it looks at the plan that runs. */
	{"executor start, run, finish, end: what statements write and cost", tessera_load_tracking_init},
	{"executor start, end: the shard's part of EXPLAIN", tessera_explain_remote_init},	/* free: on internal connections alone */
	{"executor start, run, finish: the version check", tessera_shard_check_init},	/* free: on internal connections alone */
	/* Outermost of the executor's: the others see the plan that it puts in. */
	{"executor start, end: local statements", tessera_local_statement_init},
	/* Outermost, and but for assertions the only one: core plans what it hands on. */
	{"planner, function calls", tessera_planner_init},
	{"relation info, paths, statistics of relations, column width", tessera_table_path_init},	/* free: the only ones */
	{"paths of joins", tessera_join_path_init}, /* free: the only one */
	{"paths of groups", tessera_group_path_init},	/* free: each adds paths of its own */
	{"paths of sorted, distinct and limited rows", tessera_upper_path_init},	/* free: as the one before */
	{"relcache, syscache", tessera_deparse_init},	/* free: a cache */
	{"setting", tessera_attempts_init}, /* free */
	{"setting", tessera_maintenance_init},	/* free */
	/* Object access after those above have handed the call on: what they refuse is not noted. */
	{"object access: tables and schemas come and go", tessera_track_init},
	{"object access: objects of one node", tessera_node_objects_init},
	{"settings, shared memory", tessera_pool_init}, /* free */
	{"syscache", tessera_subscription_init},	/* free: a cache */
	{"settings", tessera_numbering_init},	/* free */
	{"shared memory", tessera_session_uses_init},	/* free */
	{"settings", tessera_session_reaper_init},	/* free */
	/* Outside of the catalog's and the advisory locks' hooks: what is fanned out comes to them once in each attempt. */
	{"setting, utility", tessera_ddl_init},
	/* Outside of the DDL's: all that is analysed while a view, rule or function is defined sees pg_prepared_xacts as it is written. */
	{"parse analysis, utility: the view of prepared transactions", tessera_prepared_view_init},
	/* Outermost of the executor's and utility hooks: what was done before is not run by any of the others. */
	{"executor start, run, finish, utility: what is done once", tessera_retryable_init},
	{"seams between layers", connect_layers},	/* free */
#ifdef TESSERA_TESTS
	{"setting, shared memory", tessera_injection_init}, /* free */
#endif
	{"settings", tessera_migration_settings_init},	/* free */
	{"setting", tessera_register_move_init},	/* free */
	{"setting", tessera_move_rate_init},	/* free */
	{"settings", tessera_owner_limits_init},	/* free */
	{"settings", tessera_balancer_settings_init},	/* free */
	{"observer of calls", tessera_background_show_calls},	/* free */
	{"shared memory", tessera_migration_slot_init},	/* free */
	{"shared memory", tessera_promotion_init},	/* free */
	{"background worker", tessera_launcher_init},	/* free */
};

/*
 * The steps at the end of transactions and subtransactions, from top to bottom. A new one needs a reason for its place; "free" says that none is
 * known.
 */
static const TesseraTransactionStep before_commit[] = {
	tessera_commit_move_before_commit,	/* free */
	/* Ahead of all that does anything: it lets the commit be or refuses it. */
	tessera_subscription_before_end,
	tessera_cut_snapshot_release,	/* free: of this connection alone */
	/* Ahead of the participants: what deferred triggers have written goes to nodes that may join by it. */
	tessera_replicated_before_end,
	/* The two-phase commit: an error rolls back here and on the other nodes. */
	tessera_participants_before_commit,
	/* After the participants: their errors leave the snapshots kept for cursors to the abort. */
	tessera_internal_before_end,
	/* When all that may change the catalog has; before it can be seen. */
	tessera_catalog_before_commit,
	/* Right before the time is taken: a commit that is held is later than the restore point, and asks no other node any more. */
	tessera_commit_hold_before_commit,
	/* Last of all: the time is later than all that the participants have said. */
	tessera_cluster_time_before_commit,
	NULL
};

/* The order and the reasons are those before a commit. PREPARE is not held: the commit that decides is. */
static const TesseraTransactionStep before_prepare[] = {
	tessera_subscription_before_end,
	tessera_cut_snapshot_release,
	tessera_replicated_before_end,
	tessera_participants_before_prepare,
	tessera_internal_before_end,
	tessera_cluster_time_before_prepare,
	NULL
};

/* The transaction can be seen; its locks are held yet. An error is a PANIC. */
static const TesseraTransactionStep at_commit[] = {
	/* First of all: who makes a restore point must not wait for a commit that asks other nodes, where commits are held. */
	tessera_commit_hold_ended,
	tessera_commit_move_ended,	/* free: memory of the session alone */
	/* Before all that takes time: readers look for the commit's time where it is under way until then. */
	tessera_cluster_time_committed,
	/* free, these six: memory of the session alone, which nothing below needs */
	tessera_sequences_ended,
	tessera_retryable_committed,
	tessera_cut_snapshot_forget,
	tessera_notify_committed,
	tessera_reference_forget,
	tessera_replicated_forget,
	/* Before all that tells of the transaction: it ends on the other nodes. */
	tessera_participants_committed,
	/* Connections that only the participants have used are idle now. */
	tessera_connections_at_end,
	/* The participants' commits belong to the transaction's time. */
	tessera_pace_committed,
	/* The worker that is woken finds on the other nodes what this transaction has changed there. */
	tessera_statistics_committed,
	/* The time that the other end is told is the latest of all that was heard. */
	tessera_internal_ended,
	/* After the participants and the statistics, which use the image. */
	tessera_routing_unpin,
	/* After the image and the statistics, which end with the old catalog; others load the new one from here on. */
	tessera_catalog_committed,
	/* After the catalog's sequence has grown: the round that is asked for finds what was changed. */
	tessera_round_committed,
	/* After the catalog's sequence has grown, too: what waits for the migration's end reads the placement next. */
	tessera_migration_control_committed,
	/* Last: a node that is told of a change must find the catalog's sequence grown. It waits for answers. */
	tessera_announcements_committed,
	NULL
};

/* The order and the reasons are those at a commit. */
static const TesseraTransactionStep at_prepare[] = {
	tessera_commit_move_ended,
	tessera_cluster_time_prepared,
	tessera_sequences_ended,
	tessera_retryable_committed,
	tessera_cut_snapshot_forget,
	tessera_notify_forget,
	tessera_reference_forget,
	tessera_replicated_forget,
	tessera_participants_prepared,
	tessera_connections_at_end,
	tessera_pace_committed,
	tessera_statistics_forget,
	tessera_internal_ended,
	tessera_routing_unpin,
	tessera_catalog_prepared,
	tessera_round_forget,
	tessera_migration_control_forget,
	tessera_announcements_forget,
	NULL
};

/* The order and the reasons are those at a commit. After an error in a step all of them are run again. */
static const TesseraTransactionStep at_abort[] = {
	tessera_commit_hold_ended,
	tessera_commit_move_ended,
	tessera_cluster_time_aborted,
	tessera_sequences_ended,
	tessera_retryable_aborted,
	tessera_cut_snapshot_forget,
	tessera_notify_forget,
	tessera_reference_forget,
	tessera_replicated_forget,
	tessera_participants_aborted,
	tessera_connections_at_end,
	tessera_pace_forget,
	tessera_statistics_forget,
	tessera_internal_aborted,
	tessera_routing_unpin,
	tessera_catalog_aborted,
	tessera_round_forget,
	tessera_migration_control_forget,
	tessera_announcements_forget,
	NULL
};

/* A parallel worker reads: it has nothing but images. */
static const TesseraTransactionStep at_end_of_parallel_worker[] = {
	tessera_routing_unpin,
	NULL
};

static const TesseraSubtransactionStep at_subtransaction_start[] = {
	tessera_participants_subtransaction_started,
	NULL
};

static const TesseraSubtransactionStep before_subtransaction_commit[] = {
	tessera_participants_before_subtransaction_commit,
	NULL
};

/* Each on memory of the session alone. */
static const TesseraSubtransactionStep at_subtransaction_commit[] = {
	tessera_fan_out_subtransaction_committed,
	tessera_retryable_subtransaction_committed,
	tessera_replicated_subtransaction_committed,
	tessera_announcements_subtransaction_committed,
	NULL
};

static const TesseraSubtransactionStep at_subtransaction_abort[] = {
	/* Memory of the session alone: free, but before the participants, which wait for answers. */
	tessera_fan_out_subtransaction_aborted,
	tessera_cut_snapshot_subtransaction_aborted,
	tessera_sequences_subtransaction_aborted,
	tessera_retryable_subtransaction_aborted,
	tessera_replicated_subtransaction_aborted,
	/* Before the time is told to the other end: it is the latest of all that was heard. */
	tessera_participants_subtransaction_aborted,
	tessera_internal_subtransaction_aborted,
	/* Before the announcements, as at a commit. */
	tessera_catalog_subtransaction_aborted,
	tessera_announcements_subtransaction_aborted,
	NULL
};

static const TesseraTransactionSteps transaction_steps = {
	.at = {
		[XACT_EVENT_PRE_COMMIT] = before_commit,
		[XACT_EVENT_PRE_PREPARE] = before_prepare,
		[XACT_EVENT_COMMIT] = at_commit,
		[XACT_EVENT_PREPARE] = at_prepare,
		[XACT_EVENT_ABORT] = at_abort,
		[XACT_EVENT_PARALLEL_COMMIT] = at_end_of_parallel_worker,
		[XACT_EVENT_PARALLEL_ABORT] = at_end_of_parallel_worker,
	},
	.at_sub = {
		[SUBXACT_EVENT_START_SUB] = at_subtransaction_start,
		[SUBXACT_EVENT_PRE_COMMIT_SUB] = before_subtransaction_commit,
		[SUBXACT_EVENT_COMMIT_SUB] = at_subtransaction_commit,
		[SUBXACT_EVENT_ABORT_SUB] = at_subtransaction_abort,
	},
};

/*
 * Each process asks for those that it needs (tessera_at_exit); they run in this order. All but the last run before the server rolls the open
 * transaction back.
 */
static const TesseraExitStep exit_steps[] = {
	/* A migration without a process is recovery's: first its slot says so. */
	{tessera_migration_slot_leave},
	/* A donor that no session will start any more; then recovery, which this wakes as well, need not wait for the end of its reservation. */
	{tessera_migration_withdraw},
	{tessera_migration_caller_gone},
	/* The wait before the backend's origin: who looks for deadlocks finds the one by the other. */
	{tessera_wait_clear},
	{tessera_remote_client_clear},
	/* free: memory that is shared with the session reaper alone */
	{tessera_session_use_leave},
	/* Who waits for it commits. */
	{tessera_commit_hold_leave},
	/* A worker's own, before another one may be started in its place. */
	{tessera_notify_forward_leave},
	{tessera_worker_leave},
	/* It waits for a connection no longer; what it holds is returned as the connections are closed. */
	{tessera_slots_leave},
	/* The rollback needs them: the other nodes' transactions end by it. */
	{tessera_connections_end, .last = true},
};

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tessera must be loaded at server start"),
				 errhint("Add tessera to shared_preload_libraries and restart the server.")));

	for (int i = 0; i < lengthof(registrations); i++)
		registrations[i].init();
	tessera_transaction_steps_install(&transaction_steps);
	tessera_exit_steps_install(exit_steps, lengthof(exit_steps));
	MarkGUCPrefixReserved("tessera");
}
