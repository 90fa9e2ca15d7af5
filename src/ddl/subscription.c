/*
 * subscription.c
 *	  Logical replication into tables of the cluster, which is refused.
 *
 * The apply worker of a subscription, and the COPY that it begins with, write below the planner and the executor's hooks: their rows would land on
 * the node of the subscription, whatever shard owns them. Three places refuse that:
 * - The commit of such a worker, by whatever way its rows have come: the guard that cannot be passed. A worker's first commit comes before it
 *   connects to the publisher, so that a subscription with a table of the cluster gets no further; while a worker runs, each commit counts.
 * - CREATE and ALTER SUBSCRIPTION, so that who types them is told.
 * - What makes a cluster, makes a table sharded or replicated, or moves it, looks for subscriptions on all nodes first (config/create_cluster.c,
 *   admin/shardable.c, admin/replicate_table.c, migration/move_schema.c): one may be older than the cluster, or made without the library.
 *
 * The extension's own tables count as tables of the cluster. Nothing is locked: what is subscribed meanwhile is refused by the guard.
 *
 * Memory: lists in the current context. Nothing is durable here, nothing shared.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "replication/logicalworker.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/relation.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/subscription.h"

#define ASK_MS 5000				/* that another node has for its answer */

/* What a worker of logical replication, which this process may be, knows of its subscription; for the life of the process. */
static struct
{
	bool		allowed;		/* it writes into no table of the cluster... */
	uint64		sequence;		/* ...by the catalog of that sequence */
} worker;


/* What is subscribed */

static bool
is_of_cluster(const TesseraRouting *routing, Oid relid)
{
	return tessera_routing_table(routing, relid) != NULL || tessera_is_own_schema(get_rel_namespace(relid));
}

static void
add(List **list, Oid relid, const char *subscription, const char *node)
{
	TesseraSubscribed *subscribed = palloc(sizeof(TesseraSubscribed));

	*subscribed = (TesseraSubscribed) {.relid = relid, .subscription = subscription, .node = node};
	*list = lappend(*list, subscribed);
}

/* By the catalog of this node: of one subscription, or (InvalidOid) of all. */
static List *
subscribed_by(const TesseraRouting *routing, Oid subscription)
{
	const TesseraNode *self = tessera_routing_node(routing, routing->self);
	Relation	rel = table_open(SubscriptionRelRelationId, AccessShareLock);
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *list = NIL;

	ScanKeyInit(&condition, Anum_pg_subscription_rel_srsubid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subscription));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, OidIsValid(subscription) ? 1 : 0, &condition);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription_rel form = (Form_pg_subscription_rel) GETSTRUCT(tuple);
		const char *name;

		if (is_of_cluster(routing, form->srrelid) && (name = get_subscription_name(form->srsubid, true)) != NULL)
			add(&list, form->srrelid, name, self != NULL ? pstrdup(NameStr(self->name)) : "unknown");
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return list;
}

List *
tessera_subscribed_here(const TesseraRouting *routing)
{
	return subscribed_by(routing, InvalidOid);
}

List *
tessera_subscribed_anywhere(const TesseraRouting *routing)
{
	List	   *list = tessera_subscribed_here(routing);

	for (int i = 0; i < routing->nnodes; i++)
	{
		const TesseraNode *node = tessera_routing_node_at(routing, i);
		TesseraSubscribedTablesAnswer *rows;
		int			n;

		if (node->node_id == routing->self ||
			!tessera_call_subscribed_tables(tessera_ask(tessera_within(tessera_to_node(node->node_id), ASK_MS), TESSERA_TOLERATE_ERRORS),
											&rows, &n))
			continue;
		for (int j = 0; j < n; j++)
		{
			Oid			namespace = get_namespace_oid(rows[j].schema_name, true);
			Oid			relid = OidIsValid(namespace) ? get_relname_relid(rows[j].table_name, namespace) : InvalidOid;

			if (OidIsValid(relid))
				add(&list, relid, rows[j].subscription, pstrdup(NameStr(node->name)));
		}
	}
	return list;
}

static bool
is_in(List *list, Oid relid)
{
	ListCell   *cell;

	foreach(cell, list)
		if (((TesseraSubscribed *) lfirst(cell))->relid == relid)
			return true;
	return false;
}

_Noreturn static void
refuse(const char *subscription, Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("subscription \"%s\" cannot write into table %s of the cluster", subscription, tessera_qualified_name(relid)),
			 errdetail("Rows that come by logical replication land on the node of the subscription, whatever shard owns them."),
			 errhint("Take the table out of the publication, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION; or drop the subscription. Load the "
					 "rows by statements or COPY.")));
}


/* The guard */

void
tessera_subscription_before_end(void)
{
	const TesseraRouting *routing;
	List	   *list;

	if (!IsLogicalWorker())
		return;
	routing = tessera_routing();
	if (routing == NULL || (worker.allowed && worker.sequence == routing->sequence))
		return;
	list = subscribed_by(routing, MyLogicalRepWorker->subid);
	if (list != NIL)
	{
		const TesseraSubscribed *first = linitial(list);

		refuse(first->subscription, first->relid);
	}
	worker.allowed = true;
	worker.sequence = routing->sequence;
}

static void
look_again(Datum arg, int cache, uint32 hash)
{
	worker.allowed = false;
}


/* The statements */

/* Does CREATE SUBSCRIPTION look at the publisher? */
static bool
connects(const CreateSubscriptionStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "connect") == 0)
			return defGetBoolean(option);
	}
	return true;
}

static char *
published_tables_sql(const CreateSubscriptionStmt *statement)
{
	StringInfoData sql;
	ListCell   *cell;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT DISTINCT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname IN (");
	foreach(cell, statement->publication)
		appendStringInfo(&sql, "%s%s", cell == list_head(statement->publication) ? "" : ", ", quote_literal_cstr(strVal(lfirst(cell))));
	appendStringInfoChar(&sql, ')');
	return sql.data;
}

static void
refuse_published(const TesseraRouting *routing, const CreateSubscriptionStmt *statement, WalRcvExecResult *published)
{
	TupleTableSlot *slot;

	if (published->status != WALRCV_OK_TUPLES)
		return;
	slot = MakeSingleTupleTableSlot(published->tupledesc, &TTSOpsMinimalTuple);
	while (tuplestore_gettupleslot(published->tuplestore, true, false, slot))
	{
		bool		isnull;
		char	   *schema = TextDatumGetCString(slot_getattr(slot, 1, &isnull));
		char	   *table = TextDatumGetCString(slot_getattr(slot, 2, &isnull));
		Oid			relid = RangeVarGetRelid(makeRangeVar(schema, table, -1), NoLock, true);

		if (OidIsValid(relid) && is_of_cluster(routing, relid))
			refuse(statement->subname, relid);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Before CREATE SUBSCRIPTION has made a slot at the publisher, which its own error would leave there. Whatever is wrong with the statement or the
 * publisher, the statement says itself.
 */
static void
check_publisher(const TesseraRouting *routing, const CreateSubscriptionStmt *statement)
{
	Oid			types[] = {TEXTOID, TEXTOID};
	WalReceiverConn *connection;
	char	   *error;

	if (!superuser() || !connects(statement))
		return;
	load_file("libpqwalreceiver", false);
	connection = tessera_publisher_connect(statement->conninfo, statement->subname, &error);
	if (connection == NULL)
		return;
	PG_TRY();
	{
		WalRcvExecResult *published = walrcv_exec(connection, published_tables_sql(statement), lengthof(types), types);

		refuse_published(routing, statement, published);
		walrcv_clear_result(published);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(connection);
	}
	PG_END_TRY();
}

/* Is it ALTER SUBSCRIPTION ... ENABLE? */
static bool
enables(const Node *statement)
{
	const AlterSubscriptionStmt *alter = (const AlterSubscriptionStmt *) statement;

	return IsA(statement, AlterSubscriptionStmt) && alter->kind == ALTER_SUBSCRIPTION_ENABLED &&
		defGetBoolean(linitial_node(DefElem, alter->options));
}

/* What takes tables out of a subscription, or disables it, is allowed while others are left in it. */
void
tessera_subscription(TesseraUtility *utility, const TesseraRouting *routing)
{
	Node	   *statement = utility->statement->utilityStmt;
	const char *name;
	List	   *before;
	List	   *after;
	ListCell   *cell;

	if (IsA(statement, CreateSubscriptionStmt))
	{
		name = ((CreateSubscriptionStmt *) statement)->subname;
		check_publisher(routing, (CreateSubscriptionStmt *) statement);
		before = NIL;
	}
	else
	{
		Oid			subscription;

		name = castNode(AlterSubscriptionStmt, statement)->subname;
		subscription = get_subscription_oid(name, true);
		before = OidIsValid(subscription) ? subscribed_by(routing, subscription) : NIL;
	}
	tessera_utility_run(utility);
	CommandCounterIncrement();
	after = subscribed_by(tessera_routing_or_error(), get_subscription_oid(name, false));
	foreach(cell, after)
	{
		const TesseraSubscribed *subscribed = lfirst(cell);

		if (enables(statement) || !is_in(before, subscribed->relid))
			refuse(name, subscribed->relid);
	}
}

void
tessera_subscription_init(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, look_again, (Datum) 0);
}
