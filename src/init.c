/*
 * init.c
 *	  Composition root: loads the library, registers every module, nothing else.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "admin/admin.h"
#include "bgworkers/worker.h"
#include "catalog/change.h"
#include "common/injection.h"
#include "common/shmem.h"
#include "common/stat_routing.h"
#include "common/worker.h"
#include "ddl/ddl.h"
#include "executor/copy.h"
#include "executor/local_statement.h"
#include "executor/plan_private.h"
#include "executor/settings.h"
#include "executor/shard_check.h"
#include "transfer/transfer.h"
#include "migration/migration.h"
#include "planner/planner.h"
#include "planner/prepared_view.h"
#include "planner/sequences.h"
#include "routing/routing.h"
#include "session/check_as.h"
#include "session/internal.h"
#include "transaction/advisory.h"
#include "transaction/notify.h"
#include "statistics/table_statistics.h"
#include "transaction/participant.h"
#include "transport/connection.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* ddl/ and executor/ stand side by side: what one needs of the other goes through here. */
static bool
check_table(Oid relid, const TesseraRouting *image)
{
	TesseraRoutedBy routed = {.routing = image};

	return tessera_shard_check_table(relid, image ? &routed : NULL) == TESSERA_ACCEPTED;
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tessera must be loaded at server start"),
				 errhint("Add tessera to shared_preload_libraries and restart the server.")));

	tessera_admin_init();
	tessera_shmem_install();
	tessera_stat_init();
	tessera_worker_init();
	tessera_catalog_change_init();
	tessera_routing_init();
	tessera_connection_init();
	tessera_internal_init();
	tessera_check_as_init();
	tessera_statistics_init();	/* before: its part of a commit comes after that of the nodes */
	tessera_participant_init();
	tessera_advisory_init();
	tessera_notify_init();
	tessera_executor_settings_init();
	tessera_executor_init();
	tessera_shard_check_init();
	tessera_local_statement_init();
	tessera_planner_init();
	tessera_ddl_init();
	tessera_prepared_view_init();
	tessera_table_check = check_table;
	tessera_copy_handler = tessera_copy_statement;
	tessera_ddl_end_migrations = tessera_migrations_end;
	tessera_analyze_handler = tessera_analyze;
	tessera_run_utility = tessera_utility_run;
	tessera_route_default = tessera_route_sequences_of_default;
	tessera_injection_init();
	tessera_migration_data_init();
	tessera_migration_init();
	tessera_launcher_init();

	MarkGUCPrefixReserved("tessera");
}
