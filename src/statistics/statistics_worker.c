/*
 * statistics_worker.c
 *	  The worker that keeps tessera.table_statistics: writes this shard's rows when its own statistics have changed, and fetches the other shards'.
 *
 * A round: (1) stamps of this shard's tables are compared with its rows, and what differs is collected; (2) each other shard is asked for the stamps
 * of its rows, and what differs is fetched, unless an ANALYZE has written it here meanwhile; a shard that does not answer keeps its rows here; (3) if
 * an ANALYZE has committed since, the other nodes are told to look. Each row is written in a transaction of its own that waits for no lock, so the
 * round never blocks another session for long.
 *
 * Shared memory: one flag for each database slot, an atomic. A crash loses the flag: then the others look when their time has come.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "libpq-fe.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/shmem.h"
#include "common/spi_row.h"
#include "common/text.h"
#include "common/worker_registry.h"
#include "control/calls.h"
#include "session/internal_connection.h"
#include "statistics/collect.h"
#include "statistics/table_statistics.h"
#include "transaction/participant.h"


/* How long a node may take to answer, in ms: there is no waiter. */
#define CALL_MS 5000
/* Rows fetched at once: columns of wide tables are large. */
#define BATCH 32
/* After news, rounds at this distance (ms), so often: what has been told may not be visible everywhere yet. */
#define AGAIN_MS 1000
#define AGAIN 3
#define OFF_MS 60000

typedef struct Shared
{
	pg_atomic_uint32 tell;
} Shared;

/* A row to look at. */
typedef struct Candidate
{
	pg_uuid_t	table_id;
	Oid			relid;
	char	   *stamp;			/* of our row; NULL: we have none */
} Candidate;

static Shared *shared = NULL;
static int	interval = 60;		/* tessera.statistics_interval, s */
static bool tell_at_commit = false;
static Bitmapset *silent = NULL;	/* in the worker: nodes that did not answer last time */


/* ---- transactions of the worker ---- */

static void
begin(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static void
commit(MemoryContext context)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	MemoryContextSwitchTo(context);
}


/* ---- this shard's own rows ---- */

#define OWN_SQL \
	"SELECT t.table_id, t.relid, s.stamp FROM tessera.cluster_table AS t" \
	" LEFT JOIN tessera.table_statistics AS s ON s.table_id = t.table_id AND s.node_id = $1 WHERE t.relid IS NOT NULL"

/* Tables of the cluster with the stamp of a node's row, in the current context. */
static List *
list_candidates(int32 node_id)
{
	static const Oid types[] = {INT4OID};
	MemoryContext caller = CurrentMemoryContext;
	Datum		value = Int32GetDatum(node_id);
	List	   *candidates = NIL;
	TesseraSpi	spi;
	uint64		n;

	tessera_spi_begin(&spi);
	n = tessera_spi_run(OWN_SQL, SPI_OK_SELECT, 1, types, &value, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext before = MemoryContextSwitchTo(caller);
		Candidate  *candidate = palloc(sizeof(Candidate));

		candidate->table_id = *DatumGetUUIDP(spi_row_value(i, 1));
		candidate->relid = DatumGetObjectId(spi_row_value(i, 2));
		candidate->stamp = spi_row_text(i, 3);
		candidates = lappend(candidates, candidate);
		MemoryContextSwitchTo(before);
	}
	tessera_spi_end(&spi);
	return candidates;
}

/* Tables whose row here has to be collected anew, in the given context. */
static List *
own_changes(MemoryContext context)
{
	List	   *changed = NIL;
	ListCell   *cell;
	const TesseraRouting *routing;

	begin();
	routing = tessera_routing();
	MemoryContextSwitchTo(context);
	foreach(cell, routing ? list_candidates(routing->self) : NIL)
	{
		Candidate  *candidate = lfirst(cell);
		const TesseraTable *table = tessera_routing_table_by_id(routing, &candidate->table_id);

		CHECK_FOR_INTERRUPTS();
		if (table && tessera_statistics_changed(routing, table, candidate->stamp))
			changed = lappend(changed, candidate);
	}
	commit(context);
	return changed;
}

static void
collect_one(const Candidate *candidate, MemoryContext context)
{
	const TesseraRouting *routing;
	const TesseraTable *table;

	begin();
	routing = tessera_routing();
	table = routing ? tessera_routing_table_by_id(routing, &candidate->table_id) : NULL;
	if (table && tessera_statistics_lock(&candidate->table_id, false))
		(void) tessera_statistics_collect(routing, table, false);
	commit(context);
}

/* One table must not keep those of others from being looked at. */
static void
try_to_collect(const Candidate *candidate, MemoryContext context)
{
	PG_TRY();
	{
		collect_one(candidate, context);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("statistics of table %s cannot be collected for now: %s", tessera_uuid_text(&candidate->table_id), error->message)));
	}
	PG_END_TRY();
}

static void
collect_own(MemoryContext context)
{
	List	   *changed = own_changes(context);
	ListCell   *cell;

	foreach(cell, changed)
	{
		CHECK_FOR_INTERRUPTS();
		try_to_collect(lfirst(cell), context);
	}
}


/* ---- the other shards' rows ---- */

static const char *
stamp_at(const TesseraStatisticsStampsAnswer *rows, int n, const pg_uuid_t *id)
{
	for (int i = 0; i < n; i++)
		if (memcmp(rows[i].table_id, id, UUID_LEN) == 0)
			return rows[i].stamp;
	return NULL;
}

/*
 * Which rows of the node differ from ours: wanted, or gone there. In the given context. Ours are read first: what is written here while the other
 * node answers is newer than the answer, and is told from what was compared by its stamp.
 */
static void
compare(int32 node_id, MemoryContext context, List **wanted, List **gone)
{
	TesseraStatisticsStampsAnswer *rows;
	int			n;
	List	   *candidates;
	ListCell   *cell;

	begin();
	MemoryContextSwitchTo(context);
	candidates = list_candidates(node_id);
	commit(context);
	(void) tessera_call_statistics_stamps(tessera_to_node(node_id), node_id, &rows, &n);
	foreach(cell, candidates)
	{
		Candidate  *candidate = lfirst(cell);
		const char *stamp = stamp_at(rows, n, &candidate->table_id);

		if (stamp == NULL && candidate->stamp != NULL)
			*gone = lappend(*gone, candidate);
		else if (stamp != NULL && (candidate->stamp == NULL || strcmp(stamp, candidate->stamp) != 0))
			*wanted = lappend(*wanted, candidate);
	}
}

/* Locks the row; false if another transaction has it, or has changed it since it was compared. */
static bool
lock_unchanged(const Candidate *candidate, int32 node_id)
{
	return tessera_statistics_lock(&candidate->table_id, false) &&
		tessera_statistics_has_stamp(&candidate->table_id, node_id, candidate->stamp);
}

static const Candidate *
candidate_of(List *candidates, const pg_uuid_t *id)
{
	ListCell   *cell;

	foreach(cell, candidates)
		if (memcmp(&((Candidate *) lfirst(cell))->table_id, id, UUID_LEN) == 0)
			return lfirst(cell);
	return NULL;
}

static void
write_fetched(const TesseraStatisticsRowsAnswer *row, int32 node_id, List *wanted)
{
	const Candidate *candidate = candidate_of(wanted, row->table_id);
	TesseraStatisticsRow fetched = {
		.table_id = *row->table_id,.node_id = node_id,.stamp = row->stamp,.pages = row->pages,.tuples = row->tuples,.bytes = row->bytes
	};
	const TesseraTable *table;

	fetched.columns = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(row->columns)));
	fetched.collected = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(row->collected), ObjectIdGetDatum(InvalidOid),
																Int32GetDatum(-1)));
	table = tessera_routing() != NULL ? tessera_routing_table_by_id(tessera_routing(), &fetched.table_id) : NULL;
	if (table && candidate && lock_unchanged(candidate, node_id))
		tessera_statistics_write(&fetched, table->relid);
}

/* Up to BATCH of the wanted rows. The call is one transaction, each row another: no row stays locked while another node is waited for. */
static void
fetch_batch(int32 node_id, List *wanted, int first, MemoryContext context)
{
	StringInfoData ids;
	TesseraStatisticsRowsAnswer *rows;
	int			n;

	MemoryContextSwitchTo(context);
	initStringInfo(&ids);
	for (int i = first; i < list_length(wanted) && i < first + BATCH; i++)
		appendStringInfo(&ids, "%s%s", i > first ? "," : "{", tessera_uuid_text(&((Candidate *) list_nth(wanted, i))->table_id));
	appendStringInfoChar(&ids, '}');
	(void) tessera_call_statistics_rows(tessera_to_node(node_id), node_id, ids.data, &rows, &n);
	for (int i = 0; i < n; i++)
	{
		begin();
		write_fetched(&rows[i], node_id, wanted);
		commit(context);
	}
}

static void
fetch(int32 node_id, MemoryContext context)
{
	List	   *wanted = NIL;
	List	   *gone = NIL;
	ListCell   *cell;

	compare(node_id, context, &wanted, &gone);
	for (int i = 0; i < list_length(wanted); i += BATCH)
		fetch_batch(node_id, wanted, i, context);
	foreach(cell, gone)
	{
		Candidate  *candidate = lfirst(cell);

		begin();
		if (lock_unchanged(candidate, node_id))
			tessera_statistics_delete(&candidate->table_id, node_id);
		commit(context);
	}
}

/* Deletes rows of tables and nodes that do not exist any more. */
static void
sweep(MemoryContext context)
{
	TesseraSpi	spi;

	begin();
	tessera_spi_begin(&spi);
	(void) tessera_spi_run("DELETE FROM tessera.table_statistics AS s WHERE NOT EXISTS (SELECT FROM tessera.cluster_table AS t WHERE t.table_id = "
						   "s.table_id)"
						   " OR NOT EXISTS (SELECT FROM tessera.node AS n WHERE n.node_id = s.node_id AND n.is_shard)", SPI_OK_DELETE, 0, NULL, NULL,
						   NULL);
	tessera_spi_end(&spi);
	commit(context);
}


/* ---- rounds ---- */

/* Other nodes, in the current context: shards only, or all. */
static List *
other_nodes(bool shards, MemoryContext context)
{
	List	   *nodes = NIL;
	const TesseraRouting *routing;

	begin();
	routing = tessera_routing();
	MemoryContextSwitchTo(context);
	for (int i = 0; routing != NULL && i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);

		if (node->node_id != routing->self && (node->is_shard || !shards))
			nodes = lappend_int(nodes, node->node_id);
	}
	commit(context);
	return nodes;
}

static void
tell(int32 node_id, MemoryContext context)
{
	begin();
	tessera_call_wake_statistics(tessera_within(tessera_to_node(node_id), CALL_MS));
	commit(context);
}

/* Does a job that concerns one node; an error is logged once, and the next node follows. */
static void
with_node(void (*job) (int32 node_id, MemoryContext context), int32 node_id, MemoryContext context)
{
	PG_TRY();
	{
		job(node_id, context);
		silent = bms_del_member(silent, node_id);
	}
	PG_CATCH();
	{
		MemoryContext before = MemoryContextSwitchTo(context);
		ErrorData  *error = CopyErrorData();

		if (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(TopMemoryContext);
		if (!bms_is_member(node_id, silent))
			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("statistics of node %d cannot be fetched for now: %s", node_id, error->message)));
		silent = bms_add_member(silent, node_id);
		MemoryContextSwitchTo(before);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
}

static void
run_round(bool told)
{
	MemoryContext before = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tessera statistics", ALLOCSET_DEFAULT_SIZES);
	List	   *nodes;
	ListCell   *cell;

	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		collect_own(context);
		nodes = other_nodes(true, context);
		foreach(cell, nodes)
			with_node(fetch, lfirst_int(cell), context);
		sweep(context);
		nodes = told ? other_nodes(false, context) : NIL;
		foreach(cell, nodes)
			with_node(tell, lfirst_int(cell), context);
	}
	PG_FINALLY();
	{
		tessera_connections_close(1);	/* an idle session would keep CREATE, ALTER and DROP DATABASE there waiting */
		MemoryContextSwitchTo(before);
		MemoryContextDelete(context);
	}
	PG_END_TRY();
}

long
tessera_statistics_step(void)
{
	static TimestampTz due = 0;
	static int	again = 0;
	TimestampTz now = GetCurrentTimestamp();
	bool		told = pg_atomic_exchange_u32(&shared[tessera_database_slot()].tell, 0) != 0;
	long		wait;

	/* woken before its time: some node has new statistics */
	if (told || now < due)
		again = AGAIN;
	else if (again > 0)
		again--;
	if (interval > 0 || told || again > 0)
		run_round(told);
	wait = again > 0 ? AGAIN_MS : interval > 0 ? interval * 1000L : OFF_MS;
	due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait);
	return wait;
}

/* Another node knows of new statistics */
void
tessera_serve_wake_statistics(void)
{
	(void) tessera_worker_wake(TESSERA_STATISTICS);
}

void
tessera_statistics_tell_at_commit(void)
{
	(void) tessera_database_slot();	/* may error: not at the commit */
	tell_at_commit = true;
}

void
tessera_statistics_forget(void)
{
	tell_at_commit = false;
}

void
tessera_statistics_committed(void)
{
	if (tell_at_commit)
	{
		pg_atomic_write_u32(&shared[tessera_database_slot()].tell, 1);
		(void) tessera_worker_wake(TESSERA_STATISTICS);
	}
	tell_at_commit = false;
}

static Size
shared_size(void)
{
	return sizeof(Shared) * TESSERA_MAX_DATABASES;
}

static void
shared_init(void *memory, LWLockPadded *locks, bool found)
{
	shared = memory;
	for (int i = 0; !found && i < TESSERA_MAX_DATABASES; i++)
		pg_atomic_init_u32(&shared[i].tell, 0);
}

static const TesseraShmemModule module = {"tessera_statistics", shared_size, 0, shared_init, NULL};

void
tessera_statistics_init(void)
{
	DefineCustomIntVariable("tessera.statistics_interval",
							"How often a node looks whether statistics of tables have changed, on itself and on the other shards.",
							"0: only after an ANALYZE of a table of the cluster.",
							&interval, 60, 0, 86400, PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	tessera_shmem_register(&module);
}
