/*
 * init.c
 *	  Composition root: loads the library, registers every module's hooks, callbacks, settings and workers, nothing else.
 *
 * Two tables, and no other place registers anything with the server: what is registered once, in the postmaster, which every process inherits
 * (registrations); and what a process does when it exits (exit_steps), which the server wants registered in the process itself.
 * test/lint/registrations.py checks that.
 *
 * How the server orders what it is given:
 * - callbacks at the end of transactions and subtransactions run in the reverse order of their registration, last registered first;
 * - of a hook's chain the last registered is outermost: it sees a call first and hands it on to the one registered before;
 * - callbacks of invalidations run in the order of registration;
 * - settings, shared memory, scan methods and background workers have no order.
 *
 * What the first two come to is in doc/architecture.md, "Hooks and callbacks".
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
	tessera_ddl_end_migrations = tessera_migrations_end;
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
 * In this order: at the end of a transaction, and where a hook acts before it hands on, they are called from the bottom to the top. A new one needs a
 * reason for its place; "free" says that none is known, so that it may be moved.
 */
static const Registration registrations[] = {
	/*
	 * First of the object access hooks, as the others hand on before they act: what a schema script must not run is refused before another hook acts
	 * on it.
	 */
	{"object access", tessera_join_init},
	/*
	 * Before a commit the last that does anything: its time is later than all that its participants have said. The innermost of the utility hooks: it
	 * takes the time of what the others let through.
	 */
	{"setting, xact, parse analysis, utility: commits take their time", tessera_cluster_time_init},
	/* Right before the time is taken: a commit that is held is later than the restore point, and asks no other node any more. */
	{"shared memory, xact: commits wait while a restore point is made", tessera_commit_hold_init},
	/*
	 * Last at a commit: a node that is told of a change must find the catalog's sequence grown (tessera_catalog_change_init). It waits for answers.
	 */
	{"xact, subxact: announcements to other nodes", tessera_announce_init},
	/*
	 * At a commit after the catalog's sequence has grown, as what waits for the migration's end reads the placement next; before the announcements,
	 * which may wait.
	 */
	{"xact: the recipient's worker may end", tessera_migration_control_init},
	/* Before all modules with shared memory, so that its hooks ask for theirs. */
	{"shared memory hooks", tessera_shmem_install},
	/*
	 * At a commit after the catalog's sequence has grown: the round that is asked for finds what was changed. Before the announcements, which may
	 * wait.
	 */
	{"shared memory, xact: rounds of the balancer", tessera_round_request_init},
	{"shared memory", tessera_stat_init},	/* free */
	{"settings, shared memory", tessera_clock_init},	/* free */
	{"shared memory", tessera_commit_times_init},	/* free */
	{"setting", tessera_signing_key_init},	/* free */
	{"shared memory", tessera_worker_init}, /* free */
	/*
	 * At a commit after the routing image and the statistics, which end with the old catalog; others load the new one from here on. Its hooks are
	 * inside of the DDL's: they act on what is run here, not on what a user asks for.
	 */
	{"shared memory, xact, subxact, relcache, object access, utility: changes of the catalog", tessera_catalog_change_init},
	{"shared memory", tessera_incarnation_init},	/* free */
	{"shared memory", tessera_prepared_change_init},	/* free */
	/* At a commit after the participants and the statistics: they use the image, which is unpinned here. */
	{"shared memory, xact: the routing image", tessera_routing_init},
	{"setting, shared memory", tessera_refresh_init},	/* free */
	{"settings", tessera_connection_init},	/* free */
	{"settings, shared memory", tessera_slots_init},	/* free */
	{"shared memory", tessera_remote_client_init}, /* free */
	/*
	 * Before a commit after the participants: their errors leave the snapshots kept for cursors to the abort. With assertions its hooks are the
	 * innermost: they check what all others have made of a statement.
	 */
	{"setting, xact; with assertions planner, executor start, utility", tessera_internal_init},
	/* free: on internal connections alone, where the other hook does nothing */
	{"parse analysis: rights of a view's owner", tessera_check_as_init},
	/* free: of other statements than the one before */
	{"parse analysis: writes of a router that fires the triggers", tessera_row_write_init},
	{"setting, syscache", tessera_trigger_place_init},	/* free: a cache */
	/* At a commit after the participants: the worker that is woken finds on the other nodes what this transaction has changed there. */
	{"setting, shared memory, xact: statistics are told", tessera_statistics_init},
	{"relcache", tessera_planner_statistics_init},	/* free: a cache */
	{"setting", tessera_deadlock_init}, /* free */
	{"setting, shared memory", tessera_load_sample_init},	/* free */
	/* At a commit after the participants: their commits belong to the transaction's time. */
	{"shared memory, xact: how long clients' transactions take", tessera_client_pace_init},
	{"settings", tessera_splitter_init},	/* free */
	{"shared memory", tessera_declared_wait_init},	/* free */
	{"setting", tessera_decisions_init},	/* free */
	{"lanes of calls", tessera_node_link_init},	/* free */
	/*
	 * Before a commit the first that does anything: an error rolls back here and on the other nodes. After the decision their ends come before all
	 * that tells of it.
	 */
	{"settings, xact, subxact: the participants", tessera_participant_init},
	/* Before a commit ahead of the participants: what deferred triggers have written goes to nodes that may join by it. */
	{"xact, subxact: changes of replicated tables", tessera_replicated_init},
	{"xact: versions of tables that refer to them", tessera_reference_init},
	/* Inside of the DDL's and the other executor hooks: it looks whether the locks are still held right before something runs. */
	{"setting, executor start, utility, object access: advisory locks", tessera_advisory_init},
	{"xact: notifications", tessera_notify_init},	/* free: memory of the session alone */
	{"shared memory", tessera_notify_forward_init}, /* free */
	{"syscache", tessera_stand_in_init},	/* free: a cache */
	{"settings", tessera_executor_settings_init},	/* free */
	{"syscache", tessera_ownership_init},	/* free: a cache */
	{"setting", tessera_cut_init},	/* free */
	{"xact: snapshots that routers have asked for", tessera_cut_snapshot_init},	/* free: of this connection alone */
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
	/*
	 * At the end of a (sub)transaction before all others, on memory of the session alone: nothing that another callback does can need values drawn
	 * for the transaction.
	 */
	{"xact, subxact, syscache: sequences", tessera_sequence_init},
	/* Before a commit ahead of all that does anything, and while the image is pinned: it lets the commit be or refuses it. */
	{"xact, syscache: rows of logical replication", tessera_subscription_init},
	/* After a commit the first of all: readers look for its time where it is under way until then. */
	{"xact: commits have had their time", tessera_cluster_time_end_init},
	{"settings", tessera_numbering_init},	/* free */
	{"shared memory", tessera_session_uses_init},	/* free */
	{"settings", tessera_session_reaper_init},	/* free */
	/* When a subtransaction ends before the participants': memory of the session alone. */
	{"subxact: a statement that was sent", tessera_fan_out_init},
	/* Outside of the catalog's and the advisory locks' hooks: what is fanned out comes to them once in each attempt. */
	{"setting, utility", tessera_ddl_init},
	/* Outside of the DDL's: all that is analysed while a view, rule or function is defined sees pg_prepared_xacts as it is written. */
	{"parse analysis, utility: the view of prepared transactions", tessera_prepared_view_init},
	/*
	 * Outermost of the executor's and utility hooks: what was done before is not run by any of the others. At the end of a transaction memory of the
	 * session alone.
	 */
	{"executor start, run, finish, utility, xact, subxact: what is done once", tessera_retryable_init},
	{"seams between layers", connect_layers},	/* free */
#ifdef TESSERA_TESTS
	{"setting, shared memory", tessera_injection_init}, /* free */
#endif
	{"settings", tessera_migration_settings_init},	/* free */
	{"setting", tessera_register_move_init},	/* free */
	{"setting", tessera_move_rate_init},	/* free */
	{"settings", tessera_owner_limits_init},	/* free */
	{"settings", tessera_balancer_settings_init},	/* free */
	{"xact: a move is decided", tessera_commit_move_init},	/* free: a point for tests alone */
	{"observer of calls", tessera_background_show_calls},	/* free */
	{"shared memory", tessera_migration_slot_init},	/* free */
	{"shared memory", tessera_promotion_init},	/* free */
	{"background worker", tessera_launcher_init},	/* free */
	/* The first of all after a commit: who makes a restore point must not wait for a commit that asks other nodes, where commits are held. */
	{"xact: the commit is under way no longer", tessera_commit_hold_end_init},
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
	tessera_exit_steps_install(exit_steps, lengthof(exit_steps));
	MarkGUCPrefixReserved("tessera");
}
