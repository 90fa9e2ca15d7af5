/*
 * subscription.c
 *	  Logical replication into tables of the cluster, which is refused.
 *
 * The apply worker of a subscription, and the COPY that it begins with, write below the planner and the executor's hooks: their rows would land on
 * the node of the subscription, whatever shard owns them. Three places refuse that:
 * - The commit of such a worker, by whatever way its rows have come: the guard that cannot be passed. A worker's first commit comes before it
 *   connects to the publisher, so that a subscription with a table of the cluster gets no further; while a worker runs, each commit counts. With
 *   disable_on_error the worker goes on until it commits something, since core disables the subscription only from then on; that commit may pass.
 * - CREATE and ALTER SUBSCRIPTION, so that who types them is told, before core changes anything at the publisher. What leads out of it is allowed:
 *   ENABLE, without which core does not REFRESH, with a WARNING.
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
#include "replication/origin.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/relation.h"
#include "common/text.h"
#include "common/version_compat.h"
#include "control/calls.h"
#include "ddl/subscription.h"
#include "transaction/ask_nodes.h"

#define ASK_MS 5000				/* that the other nodes have for their answers, all together */

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
	int			n;
	const TesseraNodeReply *replies = tessera_ask_nodes(routing, &tessera_call_specs[TESSERA_CALL_SUBSCRIBED_TABLES], NULL, ASK_MS, &n);

	for (int i = 0; i < n; i++)
		for (int row = 0; row < replies[i].answer.nrows; row++)
		{
			const TesseraCallAnswer *answer = &replies[i].answer;
			Oid			namespace = get_namespace_oid(tessera_answer_value(answer, row, 0), true);
			Oid			relid = OidIsValid(namespace) ? get_relname_relid(tessera_answer_value(answer, row, 1), namespace) : InvalidOid;

			if (OidIsValid(relid))
				add(&list, relid, tessera_answer_value(answer, row, 2), NameStr(replies[i].name));
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

/* ERROR; WARNING: it stays, and does not run. */
static void
complain(int level, const char *subscription, Oid relid)
{
	ereport(level,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("subscription \"%s\" cannot write into table %s of the cluster", subscription, tessera_qualified_name(relid)),
			 errdetail("Rows that come by logical replication land on the node of the subscription, whatever shard owns them."),
			 errhint("Take the table out of the publication, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION; or drop the subscription. Load the "
					 "rows by statements or COPY.")));
}


/* The guard */

static bool
is_disabled_on_error(Oid subscription)
{
	HeapTuple	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subscription));
	bool		disabled = HeapTupleIsValid(tuple) && ((Form_pg_subscription) GETSTRUCT(tuple))->subdisableonerr;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return disabled;
}

/*
 * Has this transaction of a worker disabled its subscription, and done nothing else? Nothing that it writes is for others to see before its end, and
 * what comes from the publisher takes a command each.
 */
static bool
only_disables(Oid subscription)
{
	Relation	rel;
	ScanKeyData condition;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		disables;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) || GetCurrentCommandId(false) != FirstCommandId)
		return false;
	rel = table_open(SubscriptionRelationId, AccessShareLock);
	ScanKeyInit(&condition, Anum_pg_subscription_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subscription));
	/* of the same command */
	scan = systable_beginscan(rel, SubscriptionObjectIndexId, true, SnapshotSelf, 1, &condition);
	tuple = systable_getnext(scan);
	disables = HeapTupleIsValid(tuple) && TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)) &&
		!((Form_pg_subscription) GETSTRUCT(tuple))->subenabled;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return disables;
}

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

		/*
		 * A commit of nothing, of the worker itself: core disables it because of an error only when it has begun to work. One of the publisher's
		 * transactions that has found no row to change here would be taken for applied.
		 */
		if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) && replorigin_session_origin_lsn == InvalidXLogRecPtr &&
			is_disabled_on_error(MyLogicalRepWorker->subid))
			return;
		if (only_disables(MyLogicalRepWorker->subid))
		{
			/* as in core from 16 on: before, this commit takes the transaction that was refused for one that is applied, and it never comes again */
			replorigin_session_origin = InvalidRepOriginId;
			replorigin_session_origin_lsn = InvalidXLogRecPtr;
			replorigin_session_origin_timestamp = 0;
			return;
		}
		complain(ERROR, first->subscription, first->relid);
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

/* publications: List of String */
static char *
published_tables_sql(List *publications)
{
	StringInfoData sql;
	ListCell   *cell;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT DISTINCT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname IN (");
	foreach(cell, publications)
		appendStringInfo(&sql, "%s%s", cell == list_head(publications) ? "" : ", ", quote_literal_cstr(strVal(lfirst(cell))));
	appendStringInfoChar(&sql, ')');
	return sql.data;
}

/* before: what the subscription has already. */
static void
refuse_published(const TesseraRouting *routing, const char *subscription, List *before, WalRcvExecResult *published)
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

		if (OidIsValid(relid) && is_of_cluster(routing, relid) && !is_in(before, relid))
			complain(ERROR, subscription, relid);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Before core has made a slot at the publisher, which its own error would leave there, or dropped some, which that would not bring back. Whatever is
 * wrong with the statement or the publisher, the statement says itself.
 */
static void
check_publisher(const TesseraRouting *routing, const char *conninfo, const char *subscription, List *publications, List *before)
{
	Oid			types[] = {TEXTOID, TEXTOID};
	WalReceiverConn *connection;
	char	   *error;

	if (!superuser() || publications == NIL)
		return;
	load_file("libpqwalreceiver", false);
	connection = tessera_publisher_connect(conninfo, subscription, &error);
	if (connection == NULL)
		return;
	PG_TRY();
	{
		WalRcvExecResult *published = walrcv_exec(connection, published_tables_sql(publications), lengthof(types), types);

		refuse_published(routing, subscription, before, published);
		walrcv_clear_result(published);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(connection);
	}
	PG_END_TRY();
}

/* The option of that name; true if it is not there. */
static bool
is_on(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0)
			return defGetBoolean(option);
	}
	return true;
}

/* The publications of which the statement would have the subscription read the tables; NIL: of none. */
static List *
publications_after(const AlterSubscriptionStmt *alter, const Subscription *subscription)
{
	if (!subscription->enabled || !is_on(alter->options, "refresh"))
		return NIL;				/* core does not refresh it */
	switch (alter->kind)
	{
		case ALTER_SUBSCRIPTION_REFRESH:
			return subscription->publications;
		case ALTER_SUBSCRIPTION_SET_PUBLICATION:
			return alter->publication;
		case ALTER_SUBSCRIPTION_ADD_PUBLICATION:
			return list_concat_copy(subscription->publications, alter->publication);
		case ALTER_SUBSCRIPTION_DROP_PUBLICATION:
			return list_difference(subscription->publications, alter->publication);
		default:
			return NIL;
	}
}

static void
check_alter(const TesseraRouting *routing, const AlterSubscriptionStmt *alter, List *before)
{
	Oid			oid = get_subscription_oid(alter->subname, true);
	Subscription *subscription = OidIsValid(oid) ? GetSubscription(oid, true) : NULL;

	if (subscription != NULL)
		check_publisher(routing, subscription->conninfo, alter->subname, publications_after(alter, subscription), before);
}

/* Is it ALTER SUBSCRIPTION ... ENABLE? */
static bool
enables(const Node *statement)
{
	const AlterSubscriptionStmt *alter = (const AlterSubscriptionStmt *) statement;

	return IsA(statement, AlterSubscriptionStmt) && alter->kind == ALTER_SUBSCRIPTION_ENABLED &&
		defGetBoolean(linitial_node(DefElem, alter->options));
}

/* What takes tables out of a subscription, enables or disables it, is allowed while others are left in it. */
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
		const CreateSubscriptionStmt *create = (CreateSubscriptionStmt *) statement;

		name = create->subname;
		before = NIL;
		if (is_on(create->options, "connect"))
			check_publisher(routing, create->conninfo, name, create->publication, before);
	}
	else
	{
		Oid			subscription;

		name = castNode(AlterSubscriptionStmt, statement)->subname;
		subscription = get_subscription_oid(name, true);
		before = OidIsValid(subscription) ? subscribed_by(routing, subscription) : NIL;
		check_alter(routing, (AlterSubscriptionStmt *) statement, before);
	}
	tessera_utility_run(utility);
	CommandCounterIncrement();
	after = subscribed_by(tessera_routing_or_error(), get_subscription_oid(name, false));
	foreach(cell, after)
	{
		const TesseraSubscribed *subscribed = lfirst(cell);

		if (!is_in(before, subscribed->relid))
			complain(ERROR, name, subscribed->relid);
	}
	if (enables(statement) && after != NIL)
		complain(WARNING, name, ((TesseraSubscribed *) linitial(after))->relid);
}

void
tessera_subscription_init(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, look_again, (Datum) 0);
}
