/*
 * worker_main.c
 *	  The main of every worker of a database: a loop around the step of its kind, which lives in src/.
 *
 * A step runs its own transactions and returns the milliseconds until it wants to run again; it runs sooner when the worker's latch is set
 * (tessera_worker_wake). Negative: there is nothing to do in this database as it is now; the worker ends, and is started when that changes. An error
 * in a step is logged and the step run again after a pause that grows. A worker whose database leaves the cluster, or loses the extension, ends.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "balancer/balancer.h"
#include "balance/splitter.h"
#include "bgworkers/worker_main.h"
#include "common/worker_registry.h"
#include "config/ddl_operations.h"
#include "ddl/sequence.h"
#include "logical_session/reaper.h"
#include "migration/migration.h"
#include "routing/routing.h"
#include "transaction/notify.h"
#include "statistics/table_statistics.h"
#include "transaction/resolver.h"

#define FIRST_PAUSE 1000L
#define LONGEST_PAUSE 60000L
#define AWAITED_LOCK_TIMEOUT "5s"	/* of a probe that somebody waits for */

/* What the workers do; a kind without a step is not there (yet). */
static const struct
{
	const char *name;
	long		(*step) (void);
} workers[TESSERA_WORKERS] = {
	[TESSERA_REFRESHER] = {"refresher", tessera_refresher_step},
	[TESSERA_RANGE_DELETER] = {"range deleter", tessera_range_deleter_step},
	[TESSERA_MIGRATION_RECOVERY] = {"migration recovery", tessera_migration_recovery_step},
	[TESSERA_TRANSACTION_RESOLVER] = {"transaction resolver", tessera_resolver_step},
	[TESSERA_NOTIFICATION_FORWARDER] = {"notification forwarder", tessera_notify_forward_step},
	[TESSERA_STATISTICS] = {"statistics", tessera_statistics_step},
	[TESSERA_SEQUENCE_FETCHER] = {"sequence fetcher", tessera_sequence_fetcher_step},
	[TESSERA_BALANCER] = {"balancer", tessera_balancer_step},
	[TESSERA_DDL_OPERATIONS] = {"DDL operations", tessera_ddl_operations_step},
	[TESSERA_SPLITTER] = {"splitter", tessera_splitter_step},
	[TESSERA_SESSION_REAPER] = {"session reaper", tessera_session_reaper_step},
};


bool
tessera_worker_exists(TesseraWorker worker)
{
	return workers[worker].step != NULL;
}

void
tessera_worker_settings(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

static bool
is_node(void)
{
	bool		node;

	StartTransactionCommand();
	node = tessera_routing() != NULL;
	CommitTransactionCommand();
	return node;
}

/*
 * Finds out whether this database is a node. If it is, the launcher starts its workers from then on. Who has asked gets the answer: one that was
 * removed is none of the cluster any more.
 */
static void
probe(void)
{
	bool		removed;

	if (tessera_worker_is_awaited())
		SetConfigOption("lock_timeout", AWAITED_LOCK_TIMEOUT, PGC_USERSET, PGC_S_SESSION);
	if (is_node())
		tessera_launcher_wake();
	StartTransactionCommand();
	removed = tessera_node_was_removed();
	CommitTransactionCommand();
	tessera_worker_probed(is_node() && !removed);
}

/*
 * Was that error for want of what DROP EXTENSION, or the removal of the node, has just taken away, in the middle of the step? Then it is not worth a
 * word. The transaction has ended.
 */
static bool
is_dropped(int code)
{
	volatile bool dropped = false;

	if (code != ERRCODE_UNDEFINED_TABLE && code != ERRCODE_UNDEFINED_FUNCTION && code != ERRCODE_UNDEFINED_SCHEMA &&
		code != ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
		return false;
	PG_TRY();
	{
		dropped = !is_node();
	}
	PG_CATCH();
	{
		FlushErrorState();
		AbortOutOfAnyTransaction();
	}
	PG_END_TRY();
	return dropped;
}

/* Says it, as of an error that ends a transaction. */
static void
report(ErrorData *error)
{
	PG_TRY();
	{
		ReThrowError(error);
	}
	PG_CATCH();
	{
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
}

/* One step; on error the pause that it wants next time. */
static long
run_step(TesseraWorker worker, long *pause)
{
	MemoryContext context = CurrentMemoryContext;
	volatile long wait;

	PG_TRY();
	{
		pgstat_report_activity(STATE_RUNNING, workers[worker].name);
		wait = is_node() ? workers[worker].step() : -1;
		*pause = FIRST_PAUSE;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		LWLockReleaseAll();
		MemoryContextSwitchTo(context);
		RESUME_INTERRUPTS();
		if (is_dropped(error->sqlerrcode))
			wait = 0;
		else
		{
			report(error);
			wait = *pause;
			*pause = Min(*pause * 2, LONGEST_PAUSE);
		}
		MemoryContextSwitchTo(context);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	pgstat_report_activity(STATE_IDLE, NULL);
	return wait;
}

void
tessera_worker_main(Datum arg)
{
	TesseraWorker worker = (TesseraWorker) DatumGetInt32(arg);
	bool		probes = worker == TESSERA_WORKERS;
	long		pause = FIRST_PAUSE;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	/* a node that lets nobody in is one all the same */
	BackgroundWorkerInitializeConnectionByOid(tessera_worker_database(), InvalidOid, probes ? BGWORKER_BYPASS_ALLOWCONN : 0);
	tessera_worker_settings();
	if (probes)
	{
		probe();
		return;
	}
	if (!tessera_worker_attach(worker))
		return;

	for (;;)
	{
		uint64		roles = tessera_worker_roles();
		long		wait = workers[worker].step != NULL ? run_step(worker, &pause) : -1;

		if (wait < 0)
		{
			tessera_worker_unneeded(roles);
			return;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, wait, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}
